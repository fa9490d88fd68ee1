//! Proxies on the way to a server: which one is asked, for what, and what happens when it refuses.

use crate::rig::{Client, Request, Server, Steps, answer, json, local, modern, result, result_of};
use callboard_proto::wire::Ended;
use callboard_transport::http::{Clients, HttpConfig, Proxies, Proxy};

#[tokio::test]
async fn an_http_server_is_asked_for_with_its_whole_address() {
    local(async {
        let mut proxy = Server::start([json(&result(1)), json(&result(2))]).await;
        let clients = Clients::with_proxies(Proxies::of(&url_of(&proxy), "", ""));
        let mut client = Client::of("http://docs.example/mcp?key=1", &clients, |_| {});

        for key in [1, 2] {
            let mark = client.call(key, modern("tools/call"));
            assert_eq!(client.frames_of(key).await, [result_of(key)]);
            assert!(mark.is_written());

            let request = proxy.request().await;
            assert_eq!(request.line, "POST http://docs.example/mcp?key=1 HTTP/1.1");
            assert_eq!(request.header("host"), Some("docs.example"));
            assert_eq!(request.header("proxy-authorization"), Some("Basic dXNlcjpwYXNz"));
            assert_eq!(request.header("authorization"), None);
        }
        assert_eq!(proxy.accepted.get(), 1);
    })
    .await;
}

#[tokio::test]
async fn an_https_server_is_reached_through_a_tunnel_that_alone_has_the_credentials() {
    local(async {
        let opened = || Steps::new("HTTP/1.1 200 Connection established\r\n\r\n").end();
        let mut proxy = Server::start([opened()]).await;
        let clients = Clients::with_proxies(Proxies::of("", &url_of(&proxy), ""));
        let mut client = Client::of("https://docs.example/mcp", &clients, |config| {
            config.headers = vec![("authorization".parse().unwrap(), "Bearer own".parse().unwrap())];
        });

        let mark = client.call(1, modern("tools/call"));
        let text = unreachable(&mut client, 1).await;

        let request = proxy.request().await;
        assert_eq!(request.line, "CONNECT docs.example:443 HTTP/1.1");
        assert_eq!(request.header("proxy-authorization"), Some("Basic dXNlcjpwYXNz"));
        assert_eq!(request.header("authorization"), None);
        assert!(!mark.is_written());
        assert!(
            text.contains("docs.example:443 through the proxy 127.0.0.1:"),
            "{text}"
        );
    })
    .await;
}

// FR-043
#[tokio::test]
async fn a_proxy_that_refuses_is_named_and_nothing_was_sent() {
    local(async {
        let table = [
            (
                answer(407, "Proxy-Authenticate: Basic\r\n", ""),
                "proxy authorization required",
            ),
            (answer(403, "", "no"), "unsuccessful"),
            (answer(502, "", "no"), "unsuccessful"),
            (Steps::new("").end(), "unexpected end of file"),
        ];
        for (refusal, expected) in table {
            let proxy = Server::start([refusal]).await;
            let clients = Clients::with_proxies(Proxies::of("", &url_of(&proxy), ""));
            let mut client = Client::of("https://docs.example/mcp", &clients, |_| {});

            let mark = client.call(1, modern("tools/call"));
            let text = unreachable(&mut client, 1).await;

            assert!(
                text.contains(expected) && text.contains("through the proxy"),
                "{text}"
            );
            assert!(!text.contains("pass"), "{text}");
            assert!(!mark.is_written());
        }
        let nobody = format!("http://127.0.0.1:{}", crate::rig::unbound_port().await);
        let clients = Clients::with_proxies(Proxies::of(&nobody, &nobody, ""));
        for url in ["http://docs.example/mcp", "https://docs.example/mcp"] {
            let mut client = Client::of(url, &clients, |_| {});
            let mark = client.call(1, modern("tools/call"));
            let text = unreachable(&mut client, 1).await;
            assert!(text.contains("through the proxy 127.0.0.1:"), "{text}");
            assert!(!mark.is_written());
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_server_is_configured_with_goes_before_the_environment() {
    local(async {
        let (mut own, of_environment) = (Server::start([json(&result(1))]).await, Server::start([]).await);
        let mut direct = Server::start([json(&result(1)), json(&result(1))]).await;
        let everywhere = url_of(&of_environment);
        let clients = Clients::with_proxies(Proxies::of(&everywhere, &everywhere, ""));
        let url = format!("http://{}/mcp", direct.address);
        let through: Proxy = Proxy::Through(url_of(&own).parse().unwrap());

        // On this machine no proxy is asked, unless one is configured.
        for proxy in [Proxy::Environment, Proxy::Direct, through] {
            let mut client = Client::of(&url, &clients, |config: &mut HttpConfig| config.proxy = proxy);
            client.call(1, modern("tools/call"));
            assert_eq!(client.frames_of(1).await, [result_of(1)]);
        }

        let lines: [Request; 3] = [
            direct.request().await,
            direct.request().await,
            own.request().await,
        ];
        let lines = lines.map(|request| request.line);
        let whole = format!("POST {url} HTTP/1.1");
        assert_eq!(lines, ["POST /mcp HTTP/1.1", "POST /mcp HTTP/1.1", &whole]);
        assert_eq!(of_environment.accepted.get(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_proxy_that_is_not_spoken_to_is_told_rather_than_gone_around() {
    local(async {
        let clients = Clients::with_proxies(Proxies::of("socks5://user:pass@127.0.0.1:1", "", ""));
        let mut client = Client::of("http://docs.example/mcp", &clients, |_| {});

        client.call(1, modern("tools/call"));
        let text = unreachable(&mut client, 1).await;

        assert!(text.contains("a proxy that is no http:// one"), "{text}");
    })
    .await;
}

fn url_of(proxy: &Server) -> String {
    format!("http://user:pass@{}", proxy.address)
}

async fn unreachable(client: &mut Client, key: u64) -> String {
    match client.end_of(key).await {
        (before, Ended::Unreachable(text)) if before.is_empty() => text,
        other => panic!("{other:?}"),
    }
}
