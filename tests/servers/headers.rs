//! Arguments that a server wants mirrored in headers.

use crate::support::{PATIENCE, Session};
use crate::table::{Kind, ROWS};
use serde_json::json;

// FR-096: over modern HTTP this server refuses a call whose argument is not in a header too, and compares the two
#[tokio::test]
async fn marked_argument_arrives_whether_the_tools_were_listed_before_or_not() {
    let regions = [
        "eu-3",
        "",
        " two words ",
        "Zürich",
        "a\r\nX-Evil: 1",
        "=?base64?YQ==?=",
    ];
    for row in ROWS.into_iter().filter(|row| row.kind == Kind::TypeScript) {
        let session = Session::open(row).await;
        let call = async |region: &str| {
            let answer = session
                .client
                .call_tool("region", json!({ "region": region }))
                .timeout(PATIENCE)
                .await;
            assert_eq!(answer.unwrap().text(), region, "{}", row.name);
        };

        call("before any list").await;
        session.client.tools().await.unwrap();
        for region in regions {
            call(region).await;
        }
        session.close().await;
    }
}
