//! What does a call cost over what a bare tokio task needs for the same?
//!
//! Both send the same bytes to the same server in memory and scan its answers with the same code. The bare client
//! is a table of oneshots and one reader task: no deadline, no cancel, no restart, no monitor.
//!
//! `cargo bench -p callboard --bench round_trip`

use bytes::Bytes;
use callboard::{Client, Hub, ServerConfig, memory};
use callboard_proto::Frame;
use callboard_proto::dialect::{Dialect, Identity};
use callboard_proto::envelope::Params;
use callboard_proto::negotiate::Channel;
use callboard_proto::{Method, Revision};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

const IN_FLIGHT: usize = 256;
const ARGUMENTS: &str = r#"{"text":"hello, world"}"#;

/// The answer of the fake server: the id is found without parsing, so that the clients are what is measured.
fn answer(request: &[u8]) -> Bytes {
    let text = std::str::from_utf8(request).unwrap_or_default();
    let id = text
        .split_once("\"id\":")
        .and_then(|(_, rest)| rest.split_once(','))
        .map_or("0", |(id, _)| id);
    let result = if text.contains("server/discover") {
        r#"{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}"#
    } else {
        r#"{"resultType":"complete","content":[{"type":"text","text":"hello, world"}],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"fake","version":"1"}}}"#
    };
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#).into()
}

fn hub_server(runtime: &Runtime) -> ServerConfig {
    let (connector, mut listener) = memory::listen();
    runtime.spawn(serve(async move { listener.accept().await }));
    ServerConfig::memory("bench", connector)
}

async fn serve(accept: impl Future<Output = Option<memory::Peer>>) {
    let Some(mut peer) = accept.await else { return };
    let mut requests = Vec::new();
    while peer.recv_many(&mut requests, IN_FLIGHT).await > 0 {
        for request in requests.drain(..) {
            if peer.send(answer(&request)).await.is_err() {
                return;
            }
        }
    }
}

/// The rival: all that is left when a client is only a table and a task.
#[derive(Clone)]
struct Bare {
    dialect: Arc<Dialect>,
    ids: Arc<AtomicU64>,
    waiting: Arc<Mutex<HashMap<u64, oneshot::Sender<Bytes>>>>,
    to_server: mpsc::Sender<Bytes>,
}

impl Bare {
    fn connect(runtime: &Runtime) -> Self {
        let (to_server, mut requests) = mpsc::channel::<Bytes>(1024);
        let (to_client, mut answers) = mpsc::channel::<Bytes>(1024);
        let waiting: Arc<Mutex<HashMap<u64, oneshot::Sender<Bytes>>>> = Arc::default();
        runtime.spawn(async move {
            let mut batch = Vec::new();
            while requests.recv_many(&mut batch, IN_FLIGHT).await > 0 {
                for request in batch.drain(..) {
                    let _ = to_client.send(answer(&request)).await;
                }
            }
        });
        let table = Arc::clone(&waiting);
        runtime.spawn(async move {
            let mut batch = Vec::new();
            while answers.recv_many(&mut batch, IN_FLIGHT).await > 0 {
                for line in batch.drain(..) {
                    for frame in Frame::parse(line).flatten() {
                        if let Frame::Result { id, result, .. } = frame
                            && let Some(key) = id.as_key()
                            && let Some(waiter) =
                                table.lock().unwrap_or_else(PoisonError::into_inner).remove(&key)
                        {
                            let _ = waiter.send(result);
                        }
                    }
                }
            }
        });
        let client = callboard::message::Implementation::new("bench", "1");
        let identity = Identity::new(&client, callboard::message::ClientCapabilities::default());
        let dialect = Arc::new(Dialect::new(Revision::V2026_07_28, Channel::Pipe, &identity));
        Self {
            dialect,
            ids: Arc::new(AtomicU64::new(1)),
            waiting,
            to_server,
        }
    }

    async fn call(&self) -> usize {
        let key = self.ids.fetch_add(1, Ordering::Relaxed);
        let text = format!(r#"{{"name":"echo","arguments":{ARGUMENTS}}}"#);
        let Ok(params) = Params::new(text.into()) else {
            return 0;
        };
        let message = self.dialect.request(key, &Method::TOOLS_CALL, &params, false);
        let (sender, receiver) = oneshot::channel();
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key, sender);
        let _ = self.to_server.send(message.to_vec().into()).await;
        let raw = receiver.await.unwrap_or_default();
        callboard::ToolResult::from_raw(callboard::RawResult::new(raw))
            .map_or(0, |result| result.text().len())
    }
}

async fn call(client: &Client) -> usize {
    let arguments = serde_json::value::RawValue::from_string(ARGUMENTS.to_owned());
    match client.call_tool("echo", arguments.ok()).await {
        Ok(result) => result.text().len(),
        Err(error) => panic!("{error}"),
    }
}

async fn in_flight<F: Future<Output = usize>>(mut call: impl FnMut() -> F) {
    use futures_util::stream::{FuturesUnordered, StreamExt as _};
    let mut calls: FuturesUnordered<F> = (0..IN_FLIGHT).map(|_| call()).collect();
    while let Some(length) = calls.next().await {
        assert_eq!(length, 12);
    }
}

fn round_trip(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let Ok(runtime) = runtime else { return };
    let bare = Bare::connect(&runtime);
    let hub = Hub::builder("bench", "1").server(hub_server(&runtime)).start();
    let Ok(hub) = hub else { return };
    let Ok(client) = hub.client("bench") else { return };

    let mut group = c.benchmark_group("one call at a time");
    group.bench_function("bare task", |b| {
        b.to_async(&runtime)
            .iter(|| async { black_box(bare.call().await) })
    });
    group.bench_function("callboard", |b| {
        b.to_async(&runtime)
            .iter(|| async { black_box(call(&client).await) })
    });
    local(&mut group, &runtime, |client| async move {
        black_box(call(&client).await)
    });
    group.finish();

    let mut group = c.benchmark_group("256 in flight");
    group.throughput(Throughput::Elements(IN_FLIGHT as u64));
    group.bench_function("bare task", |b| {
        b.to_async(&runtime).iter(|| in_flight(|| bare.call()))
    });
    group.bench_function("callboard", |b| {
        b.to_async(&runtime).iter(|| in_flight(|| call(&client)))
    });
    local(&mut group, &runtime, |client| async move {
        in_flight(|| call(&client)).await;
        0
    });
    group.finish();

    runtime.block_on(hub.shutdown(std::time::Duration::ZERO));
}

/// The hub and its callers on one thread, the server on another.
fn local<F: Future<Output = usize>>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    server_runtime: &Runtime,
    work: impl Fn(Client) -> F,
) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    let set = LocalSet::new();
    let config = hub_server(server_runtime);
    let started = set.block_on(&runtime, async {
        Hub::builder("bench", "1").server(config).start_local()
    });
    let Ok(hub) = started else { return };
    let Ok(client) = hub.client("bench") else { return };
    group.bench_function("callboard, start_local", |b| {
        // Criterion's async benches cannot be given a `LocalSet`; the set is entered once for all iterations.
        b.iter_custom(|iterations| {
            set.block_on(&runtime, async {
                let start = tokio::time::Instant::now();
                for _ in 0..iterations {
                    work(client.clone()).await;
                }
                start.elapsed()
            })
        });
    });
    set.block_on(&runtime, hub.shutdown(std::time::Duration::ZERO));
}

criterion_group!(benches, round_trip);
criterion_main!(benches);
