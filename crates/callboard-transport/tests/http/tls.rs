//! TLS: whom the client trusts, who it says it is, and HTTP/2, which only TLS can choose.

use crate::rig::{Client, Server, json, local, modern, result, result_of, soon};
use callboard_proto::wire::{Command, Ended};
use callboard_transport::http::{Clients, Proxy, Tls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tokio_rustls::TlsAcceptor;

// ---- whom the client trusts ----

#[tokio::test]
async fn the_authority_that_is_given_is_trusted_and_no_other() {
    local(async {
        let authority = Authority::new();
        let stranger = Authority::new();
        let good = || authority.issue("127.0.0.1", |_| {});
        let expired = || authority.issue("127.0.0.1", |params| params.not_after = date_time_ymd(2020, 1, 1));
        let early = || {
            authority.issue("127.0.0.1", |params| {
                params.not_before = date_time_ymd(4000, 1, 1)
            })
        };
        let misnamed = || authority.issue("other.example", |_| {});
        let table: [(Issued, Tls, Option<&str>); 6] = [
            (good(), authority.trusted(), None),
            (good(), Tls::system(), Some("its issuer is not trusted here; add")),
            (
                good(),
                stranger.trusted(),
                Some("its issuer is not trusted here; add"),
            ),
            (expired(), authority.trusted(), Some("it has expired")),
            (early(), authority.trusted(), Some("it is not valid yet")),
            (misnamed(), authority.trusted(), Some("it is for another name")),
        ];
        for (issued, tls, refusal) in table {
            let script = refusal.is_none().then(|| json(&result(1)));
            let server = Server::start_tls(script, issued.acceptor(&[], None)).await;
            let mut client = Client::at(&format!("https://{}/mcp", server.address), |config| {
                config.tls = tls
            });

            let mark = client.call(1, modern("tools/call"));

            match (client.end_of(1).await, refusal) {
                ((frames, Ended::Clean), None) => assert_eq!(crate::rig::shown(&frames), [result_of(1)]),
                ((_, Ended::Unreachable(text)), Some(refusal)) => {
                    assert!(text.contains(refusal) && text.contains("127.0.0.1"), "{text}");
                    assert!(!mark.is_written(), "{text}");
                }
                (other, _) => panic!("{refusal:?}: {other:?}"),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_certificate_is_shown_to_whoever_asks_and_missed_before_anything_runs() {
    local(async {
        let authority = Authority::new();
        let acceptor = authority
            .issue("127.0.0.1", |_| {})
            .acceptor(&[], Some(&authority));
        let own = authority.issue("client.example", |_| {});
        let identified = authority
            .trusted()
            .identity(own.chain.as_bytes(), own.key.as_bytes())
            .unwrap();
        let mut server = Server::start_tls([json(&result(1))], acceptor).await;
        let url = format!("https://{}/mcp", server.address);

        // One arbiter, two pools: what the one has proved does not serve the other.
        let clients = Clients::new();
        let mut stranger = Client::of(&url, &clients, |config| config.tls = authority.trusted());
        stranger.call(1, modern("tools/call"));
        let (_, refused) = stranger.end_of(1).await;
        let mut client = Client::of(&url, &clients, |config| config.tls = identified);
        client.call(1, modern("tools/call"));

        assert_eq!(client.frames_of(1).await, [result_of(1)]);
        assert!(
            matches!(&refused, Ended::Unreachable(text)
                if text.contains("CertificateRequired") && text.contains("give one with `client_certificate`")),
            "{refused:?}"
        );
        server.request().await;
        assert!(
            server.requests.try_recv().is_err(),
            "nothing of the first came through"
        );
    })
    .await;
}

#[tokio::test]
async fn through_a_proxy_tls_runs_to_the_server_itself() {
    local(async {
        let authority = Authority::new();
        let acceptor = authority.issue("127.0.0.1", |_| {}).acceptor(&[], None);
        let mut server = Server::start_tls([json(&result(1)), json(&result(2))], acceptor).await;
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let through = format!("http://user:pass@{}", proxy.local_addr().unwrap())
            .parse()
            .unwrap();
        let to = server.address;
        let tunnel = spawn_local(async move {
            let (mut client, _) = proxy.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(client.read_u8().await.unwrap());
            }
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let mut server = TcpStream::connect(to).await.unwrap();
            let _ = copy_bidirectional(&mut client, &mut server).await;
            String::from_utf8(head).unwrap()
        });
        let mut client = Client::at(&format!("https://{}/mcp", server.address), |config| {
            config.tls = authority.trusted();
            config.proxy = Proxy::Through(through);
        });

        for key in [1, 2] {
            client.call(key, modern("tools/call"));
            assert_eq!(client.frames_of(key).await, [result_of(key)]);
            let request = server.request().await;
            assert_eq!(request.line, "POST /mcp HTTP/1.1");
            assert_eq!(request.header("proxy-authorization"), None);
        }

        drop(client);
        let head = soon(tunnel).await.unwrap();
        assert!(head.starts_with(&format!("CONNECT {to} HTTP/1.1\r\n")), "{head}");
        assert!(
            head.contains("Proxy-Authorization: Basic dXNlcjpwYXNz\r\n"),
            "{head}"
        );
        assert_eq!(server.accepted.get(), 1);
    })
    .await;
}

#[test]
fn equal_settings_are_one_and_what_cannot_be_used_is_refused() {
    let authority = Authority::new();
    let own = authority.issue("client.example", |_| {});
    let other = authority.issue("other.example", |_| {});
    let pem = authority.pem();

    assert_eq!(authority.trusted(), authority.trusted());
    assert_ne!(authority.trusted(), Tls::system());
    assert_ne!(authority.trusted(), Authority::new().trusted());
    let identified = || {
        authority
            .trusted()
            .identity(own.chain.as_bytes(), own.key.as_bytes())
            .unwrap()
    };
    assert_eq!(identified(), identified());
    assert_ne!(identified(), authority.trusted());
    let shown = format!("{:?}", identified());
    assert!(shown.len() < 60, "{shown}");

    let refused = |text: Result<Tls, String>| text.unwrap_err();
    let system = Tls::system();
    assert_eq!(
        refused(system.authority(b"")),
        "there is no PEM certificate in it"
    );
    assert_eq!(
        refused(system.authority(own.key.as_bytes())),
        "there is no PEM certificate in it"
    );
    assert!(
        refused(system.authority(b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----"))
            .starts_with("it is no PEM")
    );
    assert!(
        refused(system.authority(b"-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----"))
            .starts_with("it holds a certificate that cannot vouch for others")
    );
    assert!(
        refused(system.identity(own.chain.as_bytes(), pem.as_bytes()))
            .starts_with("the key is no PEM of a private key")
    );
    assert!(
        refused(system.identity(own.chain.as_bytes(), other.key.as_bytes()))
            .starts_with("certificate and key cannot be used together")
    );
}

// ---- the environment ----

#[tokio::test]
async fn the_environment_names_authorities_and_proxies() {
    local(async {
        let authority = Authority::new();
        let directory = std::env::temp_dir().join(format!("callboard-certificates-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("authority.pem");
        std::fs::write(&file, authority.pem()).unwrap();
        let acceptor = || authority.issue("127.0.0.1", |_| {}).acceptor(&[], None);
        let by_file = Server::start_tls([json(&result(1))], acceptor()).await;
        let by_directory = Server::start_tls([json(&result(1))], acceptor()).await;
        let mut proxy = Server::start([json(&result(1))]).await;
        let proxy_url = format!("http://{}", proxy.address);
        let file = file.to_str().unwrap();
        let directory_name = directory.to_str().unwrap();

        for (url, variable, value) in [
            (format!("https://{}/", by_file.address), "SSL_CERT_FILE", file),
            (
                format!("https://{}/", by_directory.address),
                "SSL_CERT_DIR",
                directory_name,
            ),
            ("http://docs.example/".to_owned(), "http_proxy", &*proxy_url),
        ] {
            // The environment of a process is fixed before it starts.
            let output = tokio::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "--ignored", "tls::guest_of_the_environment"])
                .env_clear()
                .env(variable, value)
                .env("CALLBOARD_TEST_URL", url)
                .kill_on_drop(true)
                .output();
            let output = soon(output).await.unwrap();
            assert!(
                output.status.success(),
                "{variable}: {}",
                String::from_utf8_lossy(&output.stdout)
            );
        }
        std::fs::remove_dir_all(&directory).unwrap();

        assert_eq!(proxy.request().await.line, "POST http://docs.example/ HTTP/1.1");
    })
    .await;
}

#[tokio::test]
#[ignore = "played by `the_environment_names_authorities_and_proxies`"]
async fn guest_of_the_environment() {
    local(async {
        let Ok(url) = std::env::var("CALLBOARD_TEST_URL") else {
            return;
        };
        let mut client = Client::at(&url, |_| {});

        client.call(1, modern("tools/call"));

        assert_eq!(client.frames_of(1).await, [result_of(1)]);
    })
    .await;
}

// ---- HTTP/2 ----

#[tokio::test]
async fn over_http_2_calls_share_one_socket() {
    local(async {
        let authority = Authority::new();
        let mut server = Http2::start(&authority).await;
        let mut client = server.client(&authority);

        // The first finds out that the server speaks it.
        client.call(0, modern("server/discover"));
        answer(server.stream().await).await;
        assert_eq!(client.frames_of(0).await, [result_of(0)]);
        for key in 1..=20 {
            client.call(key, modern("tools/call"));
        }
        let mut waiting = Vec::new();
        for _ in 0..20 {
            waiting.push(server.stream().await);
        }
        for stream in waiting.into_iter().rev() {
            assert_eq!(stream.0.headers()["mcp-method"], "tools/call");
            answer(stream).await;
        }

        let mut answered = Vec::new();
        while answered.len() < 20 {
            if let Some(callboard_proto::wire::Event::Ended {
                key,
                how: Ended::Clean,
            }) = client.event().await
            {
                answered.push(key);
            }
        }
        answered.sort_unstable();
        assert_eq!(answered, (1..=20).collect::<Vec<_>>());
        assert_eq!(server.accepted.get(), 1);
    })
    .await;
}

// FR-043
#[tokio::test]
async fn a_stream_that_the_server_refuses_was_not_run_and_one_that_it_breaks_may_have() {
    local(async {
        let authority = Authority::new();
        let mut server = Http2::start(&authority).await;
        let mut client = server.client(&authority);

        client.call(1, modern("tools/call"));
        server.stream().await.1.send_reset(h2::Reason::REFUSED_STREAM);
        let (_, refused) = client.end_of(1).await;
        client.call(2, modern("tools/call"));
        server.stream().await.1.send_reset(h2::Reason::INTERNAL_ERROR);
        let (_, broken) = client.end_of(2).await;

        assert!(
            matches!(&refused, Ended::Unreachable(text) if text.contains("refused")),
            "{refused:?}"
        );
        assert!(matches!(broken, Ended::Lost(_)), "{broken:?}");
        assert_eq!(server.accepted.get(), 1);
    })
    .await;
}

// FR-043
#[tokio::test]
async fn a_stream_that_came_too_late_for_its_connection_was_not_run() {
    local(async {
        let authority = Authority::new();
        let acceptor = authority.issue("127.0.0.1", |_| {}).acceptor(&["h2"], None);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/mcp", listener.local_addr().unwrap());
        let mut client = Client::at(&url, |config| config.tls = authority.trusted());

        let mark = client.call(1, modern("tools/call"));
        let (socket, _) = soon(listener.accept()).await.unwrap();
        let mut socket = soon(acceptor.accept(socket)).await.unwrap();
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        socket.write_all(&settings).await.unwrap();
        let mut preface = [0; 24];
        soon(socket.read_exact(&mut preface)).await.unwrap();
        loop {
            let mut head = [0; 9];
            soon(socket.read_exact(&mut head)).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            soon(socket.read_exact(&mut payload)).await.unwrap();
            if head[3] == DATA {
                break;
            }
        }
        let last_stream_and_no_error = [0; 8];
        socket.write_all(&[0, 0, 8, GOAWAY, 0, 0, 0, 0, 0]).await.unwrap();
        socket.write_all(&last_stream_and_no_error).await.unwrap();

        let (_, end) = client.end_of(1).await;
        assert!(mark.is_written());
        assert!(
            matches!(&end, Ended::Unreachable(text) if text.contains("before it ran")),
            "{end:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn over_http_2_nobody_waits_for_a_socket() {
    local(async {
        let authority = Authority::new();
        let mut server = Http2::start(&authority).await;
        let tls = authority.trusted();
        let url = format!("https://{}/mcp", server.address);
        let mut client = Client::at(&url, |config| {
            config.tls = tls;
            config.sockets = 1;
        });

        // Before the first answer nobody knows; its head frees those that wait.
        client.call(3, modern("server/discover"));
        let first = server.stream().await;
        client.call(4, modern("tools/call"));
        let (id, mut body) = begin(first).await;
        answer(server.stream().await).await;
        assert_eq!(client.frames_of(4).await, [result_of(4)]);
        end(id, &mut body);
        assert_eq!(client.frames_of(3).await, [result_of(3)]);

        // Then nobody waits for a head either.
        client.call(1, modern("tools/call"));
        client.call(2, modern("tools/call"));
        let both = [server.stream().await, server.stream().await];

        for stream in both {
            answer(stream).await;
        }
        for key in [1, 2] {
            assert_eq!(client.frames_of(key).await, [result_of(key)]);
        }
    })
    .await;
}

#[tokio::test]
async fn aborting_a_call_resets_its_stream_and_no_other() {
    local(async {
        let authority = Authority::new();
        let mut server = Http2::start(&authority).await;
        let mut client = server.client(&authority);

        client.call(1, modern("tools/call"));
        client.call(2, modern("tools/call"));
        let (_, mut first) = server.stream().await;
        let (request, second) = server.stream().await;
        client.post(Command::Abort { key: 1 });
        let reason = soon(std::future::poll_fn(|context| first.poll_reset(context)))
            .await
            .unwrap();
        answer((request, second)).await;

        assert_eq!(reason, h2::Reason::CANCEL);
        assert!(matches!(client.end_of(1).await, (_, Ended::AlreadySent)));
        assert_eq!(client.frames_of(2).await, [result_of(2)]);
    })
    .await;
}

// ---- helpers ----

/// Issues certificates at test time.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
struct Issued {
    chain: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// What trusts it.
    fn trusted(&self) -> Tls {
        Tls::system().authority(self.pem().as_bytes()).unwrap()
    }

    fn issue(&self, name: &str, adjust: impl FnOnce(&mut CertificateParams)) -> Issued {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        adjust(&mut params);
        let key = KeyPair::generate().unwrap();
        Issued {
            chain: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Issued {
    /// The server's end, which offers these protocols and asks for a certificate of `clients`, where given.
    fn acceptor(&self, protocols: &[&str], clients: Option<&Authority>) -> TlsAcceptor {
        let provider = Arc::new(ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.0.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let chain = vec![CertificateDer::from_pem_slice(self.chain.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        let mut config = builder.with_single_cert(chain, key).unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}

type Stream = (
    http::Request<h2::RecvStream>,
    h2::server::SendResponse<bytes::Bytes>,
);

/// A server that speaks HTTP/2 and hands its streams to the test.
struct Http2 {
    address: std::net::SocketAddr,
    accepted: std::rc::Rc<std::cell::Cell<usize>>,
    streams: tokio::sync::mpsc::UnboundedReceiver<Stream>,
}

impl Http2 {
    async fn start(authority: &Authority) -> Self {
        let acceptor = authority
            .issue("127.0.0.1", |_| {})
            .acceptor(&["h2", "http/1.1"], None);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = std::rc::Rc::new(std::cell::Cell::new(0));
        let (sender, streams) = tokio::sync::mpsc::unbounded_channel();
        let count = accepted.clone();
        spawn_local(async move {
            while let Ok((socket, _)) = listener.accept().await {
                count.set(count.get() + 1);
                let (acceptor, sender) = (acceptor.clone(), sender.clone());
                spawn_local(async move {
                    let socket = acceptor.accept(socket).await.unwrap();
                    let mut connection = h2::server::handshake(socket).await.unwrap();
                    while let Some(Ok(stream)) = connection.accept().await {
                        let _ = sender.send(stream);
                    }
                });
            }
        });
        Self {
            address,
            accepted,
            streams,
        }
    }

    fn client(&self, authority: &Authority) -> Client {
        let tls = authority.trusted();
        let url = format!("https://{}/mcp", self.address);
        Client::of(&url, &Clients::new(), |config| config.tls = tls)
    }

    async fn stream(&mut self) -> Stream {
        soon(self.streams.recv()).await.unwrap()
    }
}

/// Answers a stream as a server does that likes event streams.
async fn answer(stream: Stream) {
    let (id, mut body) = begin(stream).await;
    end(id, &mut body);
}

/// Sends the head of an answer; gives back the id of the request and what the rest is to go to.
async fn begin((request, mut respond): Stream) -> (u64, h2::SendStream<bytes::Bytes>) {
    assert_eq!(request.version(), http::Version::HTTP_2);
    let id = id_of(&whole(request.into_body()).await);
    let head = http::Response::builder().header("content-type", "text/event-stream");
    (id, respond.send_response(head.body(()).unwrap(), false).unwrap())
}

fn end(id: u64, body: &mut h2::SendStream<bytes::Bytes>) {
    let event = format!("data: {}\n\n", result(id));
    body.send_data(event.into(), true).unwrap();
}

async fn whole(mut body: h2::RecvStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(data) = soon(body.data()).await {
        bytes.extend_from_slice(&data.unwrap());
    }
    bytes
}

/// The id of a request, as the rig writes one.
fn id_of(body: &[u8]) -> u64 {
    let text = std::str::from_utf8(body).unwrap();
    let (_, rest) = text.split_once("\"id\":").unwrap();
    rest.split(',').next().unwrap().parse().unwrap()
}

/// Types of frames (RFC 9113, 6).
const DATA: u8 = 0;
const GOAWAY: u8 = 7;
