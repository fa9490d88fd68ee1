//! Servers of an era that the configuration excludes.

use crate::support::Server;
use crate::table::row;
use callboard::{EraChoice, Hub};

#[tokio::test]
async fn server_that_refuses_the_pinned_era_is_not_ready_and_says_so() {
    let refusing = ["ts-reject", "ts-http-reject"].map(|name| (row(name), EraChoice::Legacy));
    let old = ["everything", "everything-http", "time-old"].map(|name| (row(name), EraChoice::Modern));
    for (row, era) in refusing.into_iter().chain(old) {
        let server = Server::start(row).await;
        let hub = Hub::builder("callboard-tests", "1")
            .server(server.config().era(era))
            .start()
            .unwrap();

        let refused = hub
            .client(row.name)
            .unwrap()
            .ready()
            .or_first_failure()
            .await
            .unwrap_err();

        let message = refused.to_string();
        eprintln!("{message}");
        assert!(message.contains(row.name) && message.contains("era"), "{message}");
        hub.shutdown(std::time::Duration::from_secs(5)).await;
    }
}
