//! Where the eras differ, in one place: what a request carries, how it is cancelled, what an answer may be.
//!
//! Everything that asks "which revision is this" is a method here; nothing else compares revisions.

mod legacy;
mod modern;

pub(crate) use modern::judge as judge_modern;

use crate::envelope::{self, ModernMeta, Params};
use crate::frame::ResultType;
use crate::message::{ClientCapabilities, Implementation, LoggingLevel};
use crate::method::Method;
use crate::negotiate::Channel;
use crate::revision::{Era, Revision};
use crate::wire::{Key, Outgoing, SendMeta};
use bytes::Bytes;

/// How one connection speaks, settled by its opening.
#[derive(Clone, Debug)]
pub struct Dialect {
    revision: Revision,
    channel: Channel,
    identity: Identity,
    log_level: Option<LoggingLevel>,
    /// The constant part of `_meta`; only in the modern era.
    meta: Option<ModernMeta>,
}

/// How a request that is on the wire is cancelled (5.2 of the protocol reference).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelWay {
    /// `notifications/cancelled`; nothing more is awaited (CAN-01).
    Notify,
    /// `notifications/cancelled` as a message of its own, the exchange stays open a while: at these servers a
    /// dropped connection is no cancellation (CAN-03).
    NotifyThenLinger,
    /// Dropping the exchange is the cancellation (CAN-02).
    Abort,
}

/// What a result means by its `resultType`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The final result.
    Complete,
    /// An interim result that asks for input.
    InputRequired,
    /// Not allowed here; the value that was found, [`Brief`](crate::Brief).
    Invalid(Box<str>),
}

/// What is told of the client to servers, serialised once.
#[derive(Clone, Debug)]
pub struct Identity {
    client_info: Bytes,
    capabilities: ClientCapabilities,
    raw: Bytes,
}

impl Identity {
    /// A client of this name and version that can do this.
    #[must_use]
    pub fn new(client: &Implementation, capabilities: ClientCapabilities) -> Self {
        // Both are plain data that serialise without fail.
        let json = |text: Result<Vec<u8>, serde_json::Error>| text.unwrap_or_else(|_| b"{}".to_vec()).into();
        Self {
            client_info: json(serde_json::to_vec(client)),
            raw: json(serde_json::to_vec(&capabilities)),
            capabilities,
        }
    }

    /// What it can do.
    #[must_use]
    pub fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }
}

impl Dialect {
    /// The dialect of `revision` over `channel`.
    #[must_use]
    pub fn new(revision: Revision, channel: Channel, identity: &Identity) -> Self {
        let mut dialect = Self {
            revision,
            channel,
            identity: identity.clone(),
            log_level: None,
            meta: None,
        };
        dialect.set_log_level(None);
        dialect
    }

    /// The level that later requests ask for log messages with; nothing is sent for it (modern era, LOG-01).
    pub fn set_log_level(&mut self, level: Option<LoggingLevel>) {
        self.log_level = level;
        self.meta = match self.era() {
            Era::Modern => Some(modern::meta(self.revision, &self.identity, None, level)),
            Era::Legacy => None,
        };
    }

    /// The level set by [`Dialect::set_log_level`].
    #[must_use]
    pub fn log_level(&self) -> Option<LoggingLevel> {
        self.log_level
    }

    /// The revision that was negotiated.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The era of that revision.
    #[must_use]
    pub fn era(&self) -> Era {
        self.revision.era()
    }

    /// Splices a request.
    #[must_use]
    pub fn request(&self, key: Key, method: &Method, params: &Params, wants_progress: bool) -> Outgoing {
        envelope::request(key, method, params, self.meta.as_ref(), wants_progress)
    }

    /// Splices a request that declares other capabilities (a JSON object) than its connection; in the legacy era,
    /// which declares them once for all, it is as any other.
    #[must_use]
    pub fn request_declaring(
        &self,
        key: Key,
        method: &Method,
        params: &Params,
        wants_progress: bool,
        capabilities: &Bytes,
    ) -> Outgoing {
        let meta = self
            .meta
            .is_some()
            .then(|| modern::meta(self.revision, &self.identity, Some(capabilities), self.log_level));
        envelope::request(key, method, params, meta.as_ref(), wants_progress)
    }

    /// The request that costs a server the least: the modern era has no `ping` (PING-03).
    #[must_use]
    pub fn sign_of_life(&self) -> Method {
        match self.era() {
            Era::Legacy => Method::PING,
            Era::Modern => Method::DISCOVER,
        }
    }

    /// Whether a client may send notifications of its own: modern HTTP knows none.
    #[must_use]
    pub fn takes_notifications(&self) -> bool {
        !(self.era() == Era::Modern && self.channel == Channel::Http)
    }

    /// Whether what the server asks on the connection itself may belong to any call in flight: over a pipe, and on
    /// the one stream of HTTP+SSE, nothing ties it to one.
    #[must_use]
    pub fn asks_untied(&self) -> bool {
        self.channel != Channel::Http
    }

    /// What the headers of a request need; cheap where there are none.
    #[must_use]
    pub fn send_meta(&self, method: &Method, params: &Params) -> SendMeta {
        let has_headers = self.channel == Channel::Http;
        let name = if has_headers && self.era() == Era::Modern {
            params.target(method)
        } else {
            None
        };
        SendMeta {
            name,
            ..self.plain_meta(Some(method.clone()))
        }
    }

    /// What the headers of a notification or an answer need.
    #[must_use]
    pub fn plain_meta(&self, method: Option<Method>) -> SendMeta {
        SendMeta {
            method,
            name: None,
            era: self.era(),
            version_header: self.revision.has_version_header().then(|| self.revision.as_str()),
            headers: None,
            resumable: self.resumes(),
        }
    }

    /// Whether an event stream that answers a request is taken up again where it ended (LHT-08).
    #[must_use]
    pub fn resumes(&self) -> bool {
        self.channel == Channel::Http && self.revision.has_resumption()
    }

    /// Whether a message may come in a batch (RPC-07).
    #[must_use]
    pub fn takes_batches(&self) -> bool {
        self.revision.has_batches()
    }

    /// How a request on the wire is cancelled.
    #[must_use]
    pub fn cancel_way(&self) -> CancelWay {
        match (self.era(), self.channel) {
            (_, Channel::Pipe) => CancelWay::Notify,
            (Era::Modern, Channel::Http | Channel::HttpSse) => CancelWay::Abort,
            (Era::Legacy, Channel::Http | Channel::HttpSse) => CancelWay::NotifyThenLinger,
        }
    }

    /// Reads the `resultType` of an answer to `method`.
    #[must_use]
    pub fn judge(&self, method: &Method, result_type: &ResultType) -> Verdict {
        match self.era() {
            Era::Modern => modern::judge(method, result_type),
            Era::Legacy => legacy::judge(result_type),
        }
    }

    /// Whether requests of the server are answered at all (RPC-06, PING-04).
    #[must_use]
    pub fn answers_requests(&self) -> bool {
        self.era() == Era::Legacy
    }
}

/// The `initialize` request that offers `revision`.
#[must_use]
pub fn initialize(key: Key, revision: Revision, identity: &Identity) -> (Outgoing, SendMeta) {
    legacy::initialize(key, revision, identity)
}

/// The `server/discover` request that states `revision`.
#[must_use]
pub fn discover(key: Key, revision: Revision, channel: Channel, identity: &Identity) -> (Outgoing, SendMeta) {
    modern_request(key, &Method::DISCOVER, revision, channel, identity)
}

/// The `tools/list` request that states `revision`.
#[must_use]
pub fn list(key: Key, revision: Revision, channel: Channel, identity: &Identity) -> (Outgoing, SendMeta) {
    modern_request(key, &Method::TOOLS_LIST, revision, channel, identity)
}

fn modern_request(
    key: Key,
    method: &Method,
    revision: Revision,
    channel: Channel,
    identity: &Identity,
) -> (Outgoing, SendMeta) {
    let dialect = Dialect::new(revision, channel, identity);
    let params = Params::default();
    (
        dialect.request(key, method, &params, false),
        dialect.send_meta(method, &params),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity::new(&Implementation::new("t", "1"), ClientCapabilities::default())
    }

    // CAN-01, CAN-02, CAN-03
    #[test]
    fn a_cancel_takes_the_way_of_era_and_channel() {
        use {CancelWay as W, Channel as C, Revision as R};
        let table = [
            (R::V2026_07_28, C::Pipe, W::Notify),
            (R::V2026_07_28, C::Http, W::Abort),
            (R::V2025_11_25, C::Pipe, W::Notify),
            (R::V2025_11_25, C::Http, W::NotifyThenLinger),
            (R::V2024_11_05, C::HttpSse, W::NotifyThenLinger),
            (R::V2024_11_05, C::Pipe, W::Notify),
        ];
        for (revision, channel, way) in table {
            assert_eq!(
                Dialect::new(revision, channel, &identity()).cancel_way(),
                way,
                "{revision} {channel:?}"
            );
        }
    }

    // RPC-08, RPC-09, RPC-10, MRTR-08
    #[test]
    fn a_result_type_is_read_by_era_and_method() {
        use {ResultType as T, Revision as R, Verdict as V};
        let other = || T::Other("x".into());
        let (call, list) = (Method::TOOLS_CALL, Method::TOOLS_LIST);
        let table = [
            (R::V2026_07_28, &call, T::Absent, V::Complete),
            (R::V2026_07_28, &call, T::Complete, V::Complete),
            (R::V2026_07_28, &call, T::InputRequired, V::InputRequired),
            (
                R::V2026_07_28,
                &list,
                T::InputRequired,
                V::Invalid("input_required".into()),
            ),
            (R::V2026_07_28, &call, T::Task, V::Invalid("task".into())),
            (R::V2026_07_28, &call, other(), V::Invalid("x".into())),
            (R::V2025_11_25, &call, T::Absent, V::Complete),
            (R::V2025_11_25, &call, T::Complete, V::Complete),
            (
                R::V2025_11_25,
                &call,
                T::InputRequired,
                V::Invalid("input_required".into()),
            ),
            (R::V2025_11_25, &call, other(), V::Complete),
        ];
        for (revision, method, found, verdict) in table {
            let dialect = Dialect::new(revision, Channel::Pipe, &identity());
            assert_eq!(
                dialect.judge(method, &found),
                verdict,
                "{revision} {method} {found:?}"
            );
        }
    }

    // HTTP-05, LHT-01, HDR-02
    #[test]
    fn headers_follow_revision_and_channel() {
        let params = Params::new(Bytes::from_static(br#"{"name":"add"}"#)).unwrap();
        let table = [
            (
                Revision::V2026_07_28,
                Channel::Http,
                Some("2026-07-28"),
                Some("add"),
            ),
            (Revision::V2026_07_28, Channel::Pipe, Some("2026-07-28"), None),
            (Revision::V2025_06_18, Channel::Http, Some("2025-06-18"), None),
            (Revision::V2025_03_26, Channel::Http, None, None),
        ];
        for (revision, channel, version, name) in table {
            let meta = Dialect::new(revision, channel, &identity()).send_meta(&Method::TOOLS_CALL, &params);
            assert_eq!(meta.version_header, version, "{revision} {channel:?}");
            assert_eq!(meta.name.as_deref(), name, "{revision} {channel:?}");
        }
    }

    // LIF-01, LIF-02, ERA-14
    #[test]
    fn initialize_offers_the_revision_and_states_no_version_header() {
        let (message, meta) = initialize(4, Revision::NEWEST_LEGACY, &identity());
        let value: serde_json::Value = serde_json::from_slice(&message.to_vec()).unwrap();
        assert_eq!(
            value,
            serde_json::json!({"jsonrpc": "2.0", "id": 4, "method": "initialize", "params": {
                "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}})
        );
        assert_eq!(meta.version_header, None);
        assert_eq!(meta.era, Era::Legacy);
    }
}
