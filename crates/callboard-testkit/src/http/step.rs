//! What one HTTP request is answered with.

use bytes::Bytes;
use callboard_proto::Revision;
use serde_json::Value;
use std::time::Duration;

/// How one HTTP request is answered, or is not.
///
/// Results, error data and events may hold [placeholders](crate#placeholders), read from the request's body.
#[derive(Clone, Debug)]
#[must_use = "a step does nothing until a router has it"]
pub struct HttpStep {
    pub(crate) reply: Reply,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) delay: Duration,
    pub(crate) then_close: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Respond {
        status: u16,
        body: Bytes,
    },
    Json {
        result: Value,
    },
    Error {
        status: u16,
        code: i64,
        message: String,
        data: Option<Value>,
    },
    Sse {
        events: Vec<SseEvent>,
    },
    Serve {
        revisions: Vec<String>,
    },
    Chunked {
        status: u16,
        chunks: Vec<Bytes>,
    },
    Garbled {
        result: Value,
    },
    Raw {
        bytes: Bytes,
    },
    Never,
    Close,
    Reset,
    Cut {
        status: u16,
        body: Bytes,
    },
    Stall {
        status: u16,
        body: Bytes,
    },
}

impl HttpStep {
    /// Any answer at all. `Content-Length` is added where it is not among the headers.
    pub fn respond<'a>(
        status: u16,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        body: impl Into<Bytes>,
    ) -> Self {
        Self::of(Reply::Respond {
            status,
            body: body.into(),
        })
        .headers(headers)
    }

    /// Any answer at all, its body in these chunks (`Transfer-Encoding: chunked`); without any it is empty.
    pub fn chunked<'a>(
        status: u16,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        chunks: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let chunks = chunks.into_iter();
        Self::of(Reply::Chunked {
            status,
            chunks: chunks
                .map(|chunk| Bytes::copy_from_slice(chunk.as_bytes()))
                .collect(),
        })
        .headers(headers)
    }

    /// A redirect to `location`, an address or a path, with an empty body.
    pub fn redirect(status: u16, location: &str) -> Self {
        Self::respond(status, [("Location", location)], "")
    }

    /// 200 with a JSON-RPC result for the request's id.
    pub fn json(result: Value) -> Self {
        Self::of(Reply::Json { result })
    }

    /// A JSON-RPC error for the request's id under this status.
    pub fn error(status: u16, code: i64, message: &str) -> Self {
        Self::of(Reply::Error {
            status,
            code,
            message: message.into(),
            data: None,
        })
    }

    /// Like [`error`](Self::error), with `data`.
    pub fn error_with_data(status: u16, code: i64, message: &str, data: Value) -> Self {
        Self::of(Reply::Error {
            status,
            code,
            message: message.into(),
            data: Some(data),
        })
    }

    /// 200 with an event stream, which ends in order after the last event.
    pub fn sse(events: impl IntoIterator<Item = SseEvent>) -> Self {
        Self::of(Reply::Sse {
            events: events.into_iter().collect(),
        })
    }

    /// Answers as an ordinary small server of these revisions would; see
    /// [`Script::serve_only`](crate::Script::serve_only).
    ///
    /// Modern errors come under 404 (unknown method) and 400, all else under 200 or 202; 405 for what is no
    /// POST.
    pub fn serve<'a>(revisions: impl IntoIterator<Item = &'a str>) -> Self {
        Self::of(Reply::Serve {
            revisions: revisions.into_iter().map(Into::into).collect(),
        })
    }

    /// An ordinary small server of all revisions; see [`serve`](Self::serve).
    pub fn serve_all() -> Self {
        Self::serve(Revision::ALL.map(Revision::as_str))
    }

    /// 200 with garbled JSON: of the result's message, the second half is overwritten with 0xFF.
    pub fn garbled(result: Value) -> Self {
        Self::of(Reply::Garbled { result })
    }

    /// Writes these bytes instead of any HTTP and closes the connection.
    pub fn raw(bytes: impl Into<Bytes>) -> Self {
        Self::of(Reply::Raw { bytes: bytes.into() })
    }

    /// Never answers; waits until the client gives up.
    pub fn never() -> Self {
        Self::of(Reply::Never)
    }

    /// Closes the connection without an answer.
    pub fn close() -> Self {
        Self::of(Reply::Close)
    }

    /// Resets the connection without an answer: the client's next read fails, where after
    /// [`close`](Self::close) it finds the end.
    pub fn reset() -> Self {
        Self::of(Reply::Reset)
    }

    /// Begins an answer and closes the connection within its body.
    ///
    /// `Content-Length` promises one byte more than `partial` has, where it is not among the headers.
    pub fn cut<'a>(
        status: u16,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        partial: impl Into<Bytes>,
    ) -> Self {
        Self::of(Reply::Cut {
            status,
            body: partial.into(),
        })
        .headers(headers)
    }

    /// Begins an answer and falls silent within its body, until the client gives up.
    ///
    /// `Content-Length` promises one byte more than `partial` has, where it is not among the headers.
    pub fn stall<'a>(
        status: u16,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        partial: impl Into<Bytes>,
    ) -> Self {
        Self::of(Reply::Stall {
            status,
            body: partial.into(),
        })
        .headers(headers)
    }

    /// Adds a header to the answer; one of the same name that the server would write is left out.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Waits before the answer. Default: not at all.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Closes the connection after the answer, without having said so.
    pub fn then_close(mut self) -> Self {
        self.then_close = true;
        self
    }

    fn headers<'a>(mut self, headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.headers.extend(
            headers
                .into_iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
        self
    }

    fn of(reply: Reply) -> Self {
        Self {
            reply,
            headers: Vec::new(),
            delay: Duration::ZERO,
            then_close: false,
        }
    }
}

/// One thing that happens on an event stream.
#[derive(Clone, Debug)]
#[must_use = "an event does nothing until a stream has it"]
pub struct SseEvent {
    pub(crate) act: Act,
    /// How often it happens.
    pub(crate) times: usize,
    /// The fields before `data`, in order.
    pub(crate) fields: Vec<(&'static str, String)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Act {
    Result(Value),
    Error { code: i64, message: String },
    Message(Value),
    Text(String),
    Raw(String),
    Torn(String),
    Delay(Duration),
    After(String),
    Before(String),
    Hold,
    Cut,
}

impl SseEvent {
    /// A JSON-RPC result for the request.
    pub fn result(result: Value) -> Self {
        Self::of(Act::Result(result))
    }

    /// A JSON-RPC error for the request.
    pub fn error(code: i64, message: &str) -> Self {
        Self::of(Act::Error {
            code,
            message: message.into(),
        })
    }

    /// Any JSON as data: a notification, a request of the server.
    pub fn message(message: Value) -> Self {
        Self::of(Act::Message(message))
    }

    /// Any text as data, a `data` line for each of its lines.
    pub fn text(data: &str) -> Self {
        Self::of(Act::Text(data.into()))
    }

    /// The first event of HTTP+SSE (2024-11-05): where messages are to be posted.
    pub fn endpoint(uri: &str) -> Self {
        Self::text(uri).event("endpoint")
    }

    /// Text as it is, no event made of it: a comment, half an event, other line ends.
    pub fn raw(text: &str) -> Self {
        Self::of(Act::Raw(text.into()))
    }

    /// Text as it is, and the connection breaks off within the chunk that carries it.
    pub fn torn(text: &str) -> Self {
        Self::of(Act::Torn(text.into()))
    }

    /// Waits.
    pub fn delay(duration: Duration) -> Self {
        Self::of(Act::Delay(duration))
    }

    /// Waits for a request of this name ([`Recorded::name`](crate::Recorded::name)) that came after the
    /// stream's own, each taken once.
    ///
    /// If it is a JSON-RPC request, the results, errors and placeholders that follow are for it. So HTTP+SSE
    /// is scripted: the stream answers what is posted elsewhere.
    pub fn after(name: &str) -> Self {
        Self::of(Act::After(name.into()))
    }

    /// Takes up the last request of this name that came before the stream's own: what follows is for it.
    ///
    /// So a stream is resumed: a GET delivers the answer that a POST's stream was cut before.
    pub fn before(name: &str) -> Self {
        Self::of(Act::Before(name.into()))
    }

    /// Leaves the stream open, without a word, until the client closes it.
    pub fn hold() -> Self {
        Self::of(Act::Hold)
    }

    /// Breaks the connection off.
    pub fn cut() -> Self {
        Self::of(Act::Cut)
    }

    /// Gives the event an id.
    pub fn id(self, id: &str) -> Self {
        self.field("id", id.into())
    }

    /// Gives the event a name.
    pub fn event(self, name: &str) -> Self {
        self.field("event", name.into())
    }

    /// Sets the time to wait before reconnecting, in milliseconds.
    pub fn retry_ms(self, ms: u64) -> Self {
        self.field("retry", ms.to_string())
    }

    /// Makes it happen this many times, without a pause: a flood of events. Default: 1.
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    fn field(mut self, name: &'static str, value: String) -> Self {
        self.fields.push((name, value));
        self
    }

    fn of(act: Act) -> Self {
        Self {
            act,
            times: 1,
            fields: Vec::new(),
        }
    }
}
