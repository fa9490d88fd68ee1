//! The connection's side of the seam, played by a test.

use bytes::Bytes;
use callboard_proto::frame::Frame;
use callboard_proto::revision::Era;
use callboard_proto::wire::{Command, Down, Ended, Event, Key, Outgoing, SendMeta};
use callboard_transport::{BATCH, Batch, Events, Link, Post, WireMark};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::timeout;

/// No test waits longer for an event.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a test on a `LocalSet`, as connections do.
pub(crate) async fn local<F: Future>(test: F) -> F::Output {
    LocalSet::new().run_until(test).await
}

/// A notification at which the connection panics, in the task of the transport that delivers it.
pub(crate) const BREAKS: &str = "test/breaks";

/// The line of it.
pub(crate) fn breaks() -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{BREAKS}\"}}\n")
}

/// What a transport has delivered.
pub(crate) struct Delivered {
    batches: mpsc::UnboundedReceiver<Batch>,
    events: std::vec::IntoIter<Event>,
}

/// The two ends of a transport's events.
pub(crate) fn events() -> (Events, Delivered) {
    let (deliver, batches) = mpsc::unbounded_channel();
    let events = Events::new(move |batch: Batch| {
        let breaks = |event: &Event| match event {
            Event::Frame {
                frame: Frame::Notification { method, .. },
                ..
            } => method.as_str() == BREAKS,
            _ => false,
        };
        assert!(!batch.events.iter().any(breaks), "a bug of the connection");
        // A test may end before its transport.
        let _ = deliver.send(batch);
    });
    (
        events,
        Delivered {
            batches,
            events: Vec::new().into_iter(),
        },
    )
}

impl Delivered {
    /// The next event.
    pub(crate) async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.events.next() {
                return event;
            }
            let batch = timeout(PATIENCE, self.batches.recv())
                .await
                .expect("no event in time");
            let events = batch.expect("the transport ended without a word").events;
            assert!(events.len() <= BATCH, "{} events in one batch", events.len());
            self.events = events.into_iter();
        }
    }

    /// Whether nothing is there to be read.
    pub(crate) fn is_empty(&self) -> bool {
        self.events.as_slice().is_empty() && self.batches.is_empty()
    }

    /// Expects the first event of a connection.
    pub(crate) async fn up(&mut self) {
        let event = self.next().await;
        assert!(matches!(event, Event::Up), "{event:?}");
    }

    /// Expects a frame; gives its params.
    pub(crate) async fn params(&mut self) -> String {
        match self.next().await {
            Event::Frame {
                frame: Frame::Request { params, .. } | Frame::Notification { params, .. },
                ..
            } => String::from_utf8(params.unwrap_or_default().to_vec()).expect("JSON is UTF-8"),
            other => panic!("{other:?}"),
        }
    }

    /// Expects the end of an exchange.
    pub(crate) async fn ended(&mut self) -> (Key, Ended) {
        match self.next().await {
            Event::Ended { key, how } => (key, how),
            other => panic!("{other:?}"),
        }
    }

    /// Expects the end of the connection.
    pub(crate) async fn down(&mut self) -> Down {
        match self.next().await {
            Event::Down(reason) => reason,
            other => panic!("{other:?}"),
        }
    }
}

/// Remembers whether a message was written.
#[derive(Default)]
pub(crate) struct Mark(AtomicBool);

impl WireMark for Mark {
    fn mark_written(&self) {
        assert!(!self.0.swap(true, Ordering::Relaxed), "marked twice");
    }

    fn is_taken_back(&self) -> bool {
        false
    }
}

impl Mark {
    pub(crate) fn is_written(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Sends a request with these params (JSON text).
pub(crate) fn send(link: &Link, key: Key, params: &str) -> Arc<Mark> {
    send_marked(link, key, params, Mark::default())
}

/// Sends a request whose mark panics, in the task of the transport that writes it.
pub(crate) fn send_broken(link: &Link, key: Key) {
    send_marked(link, key, "[]", Mark(AtomicBool::new(true)));
}

fn send_marked(link: &Link, key: Key, params: &str, mark: Mark) -> Arc<Mark> {
    let mark = Arc::new(mark);
    let message = Outgoing {
        prefix: format!(r#"{{"jsonrpc":"2.0","id":{key},"method":"m","params":"#).into(),
        params: Bytes::copy_from_slice(params.as_bytes()),
        suffix: "}",
    };
    let meta = SendMeta {
        method: None,
        name: None,
        era: Era::Modern,
        version_header: None,
        headers: None,
        resumable: false,
    };
    let command = Command::Send {
        key: Some(key),
        message,
        meta,
    };
    link.post(Post {
        command,
        mark: Some(mark.clone()),
    })
    .expect("the queue has room");
    mark
}

/// Answers a server that asks and asks and reads nothing, until their number ends the connection.
pub(crate) async fn assert_flood_of_answers_ends(link: &Link, delivered: &mut Delivered) {
    for sent in 0.. {
        if !delivered.is_empty() {
            break;
        }
        assert!(sent < 100_000, "nobody counts them");
        answer(link);
        tokio::task::yield_now().await;
    }
    assert_eq!(delivered.down().await, Down::NotReading);
}

/// Sends what has no key: an answer to the server, which may find no room.
pub(crate) fn answer(link: &Link) {
    let message = Outgoing {
        prefix: r#"{"jsonrpc":"2.0","id":1,"result":"#.into(),
        params: Bytes::from_static(b"{}"),
        suffix: "}",
    };
    let meta = SendMeta {
        method: None,
        name: None,
        era: Era::Legacy,
        version_header: None,
        headers: None,
        resumable: false,
    };
    let command = Command::Send {
        key: None,
        message,
        meta,
    };
    // It may be over by now.
    let _ = link.post(Post { command, mark: None });
}

/// Takes a request back.
pub(crate) fn abort(link: &Link, key: Key) {
    link.post(Post {
        command: Command::Abort { key },
        mark: None,
    })
    .expect("the queue has room");
}

/// Closes the connection.
pub(crate) fn close(link: &Link) {
    link.post(Post {
        command: Command::Close,
        mark: None,
    })
    .expect("the queue has room");
}
