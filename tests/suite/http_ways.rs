//! The way to a server over HTTP, as a configuration sets it: proxy, certificates, sockets.

use crate::support::{assert_echo, assert_says, end, eventually, first_failure, http, hub_of, millis, ready};
use callboard::{CallErrorKind, Delivery, ServerConfig};
use callboard_testkit::{HttpScript, HttpStep, Router};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

#[tokio::test]
async fn proxy_that_is_configured_is_asked_for_the_whole_address() {
    let router = Router::modern().on("tools/call", HttpStep::serve_all());
    let proxy = HttpScript::start(router).await.unwrap();
    let config = ServerConfig::http("docs", "http://docs.example/mcp").unwrap();
    let config = config
        .proxy(&format!("http://user:secret@{}", proxy.address()))
        .unwrap();
    assert!(!format!("{config:?}").contains("secret"));
    let (hub, client) = ready(config).await;

    assert_echo(&client, "by proxy").await;

    end(hub, &[]).await;
    let requests = proxy.requests();
    assert!(requests.len() >= 2, "{requests:?}");
    for request in requests {
        assert_eq!(request.path, "http://docs.example/mcp");
        assert_eq!(
            request.header("Proxy-Authorization"),
            Some("Basic dXNlcjpzZWNyZXQ=")
        );
    }
}

#[tokio::test]
async fn server_with_a_certificate_of_its_own_is_reached_once_that_is_given() {
    let router = Router::modern().on("tools/call", HttpStep::serve_all());
    let server = HttpScript::start(router).await.unwrap();
    let (front, certificate, _running) = tls_before(server.address()).await;
    let config = || ServerConfig::http("docs", &format!("https://{front}/mcp")).unwrap();

    let (hub, stranger) = hub_of(config());
    let refused = first_failure(&stranger).await;
    end(hub, &[]).await;
    assert_says(
        &refused,
        &[
            "`docs`",
            "issuer is not trusted",
            "`ca_certificate`",
            "SSL_CERT_FILE",
        ],
    );
    assert!(server.requests().is_empty());

    let (hub, client) = ready(config().ca_certificate(certificate).unwrap()).await;
    assert_echo(&client, "in private").await;
    end(hub, &[]).await;
}

// FR-043
#[tokio::test]
async fn call_that_waits_for_a_socket_ends_in_time_and_was_not_sent() {
    let router = Router::modern()
        .on("tools/call", HttpStep::never())
        .on("tools/call", HttpStep::serve_all());
    let (config, server) = http("docs", router).await;
    let (hub, client) = ready(config.max_sockets(1)).await;
    let calls = || {
        let requests = server.requests();
        requests
            .iter()
            .filter(|request| request.name() == "tools/call")
            .count()
    };
    let holder = client.clone();
    let mut held = JoinSet::new();
    held.spawn(async move { holder.call_tool("echo", json!({})).await });
    eventually("the socket is taken", || calls() == 1).await;

    let error = client
        .call_tool("echo", json!({}))
        .timeout(millis(100))
        .await
        .unwrap_err();

    assert!(matches!(error.kind(), CallErrorKind::Timeout { .. }), "{error}");
    assert_eq!(error.delivery(), Delivery::NotSent);
    assert_eq!(calls(), 1);
    held.shutdown().await;
    assert_echo(&client, "free again").await;
    end(hub, &[]).await;
}

/// TLS in front of a server: its address and its certificate, for as long as the tasks are held.
pub(crate) async fn tls_before(server: SocketAddr) -> (SocketAddr, String, JoinSet<()>) {
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut running = JoinSet::new();
    running.spawn(async move {
        let mut sockets = JoinSet::new();
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            sockets.spawn(async move {
                if let Ok(mut socket) = acceptor.accept(socket).await {
                    let mut behind = TcpStream::connect(server).await.unwrap();
                    let _ = copy_bidirectional(&mut socket, &mut behind).await;
                }
            });
        }
    });
    (address, own.cert.pem(), running)
}
