//! Narrows the SDK to one era: what passes to it, and what a server of that era alone refuses.
//!
//! `rmcp` serves both eras at once, and its lifecycle ends the connection on openings that real servers
//! survive. Here stands what each era knows and nothing more: a legacy server has never heard of
//! `server/discover`, nor of the `_meta` keys of 2026-07-28; a modern one has no handshake.
//!
//! Start reading at [`Gate::screen`]; [`GatedTransport`] applies it to a stream, `http` to each POST.

use rmcp::RoleServer;
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorCode, ErrorData, GetMeta, JsonRpcRequest, ProtocolVersion,
    ServerJsonRpcMessage,
};
use rmcp::transport::Transport;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Era;

/// What becomes of one message.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The SDK handles it.
    Pass,
    /// The client is told this, and the SDK sees nothing.
    Refuse(Box<ServerJsonRpcMessage>),
    /// Nobody hears of it.
    Drop,
}

/// The state of one connection, as far as its era needs one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    era: Era,
    opened: bool,
}

impl Gate {
    /// The gate of a fresh stream: a legacy server waits for `initialize`, a modern one for a request.
    pub(crate) fn closed(era: Era) -> Self {
        Self { era, opened: false }
    }

    /// The gate of a message that stands for itself, or comes in a session that is open.
    pub(crate) fn open(era: Era) -> Self {
        Self { era, opened: true }
    }

    /// Decides on a message, and strips from it what a server of this era cannot see.
    pub(crate) fn screen(&mut self, message: &mut ClientJsonRpcMessage) -> Verdict {
        let ClientJsonRpcMessage::Request(request) = message else {
            // The SDK takes anything but a request for a broken opening, and hangs up.
            return if self.opened { Verdict::Pass } else { Verdict::Drop };
        };
        let refused = match self.era {
            Era::Modern => self.screen_modern(request),
            Era::Legacy => self.screen_legacy(request),
        };
        match refused {
            None => Verdict::Pass,
            Some(error) => {
                let answer = ServerJsonRpcMessage::error(error, Some(request.id.clone()));
                Verdict::Refuse(Box::new(answer))
            }
        }
    }

    fn screen_modern(&mut self, request: &JsonRpcRequest<ClientRequest>) -> Option<ErrorData> {
        match &request.request {
            ClientRequest::InitializeRequest(initialize) => Some(ErrorData::unsupported_protocol_version(
                initialize.params.protocol_version.clone(),
                self.era.revisions(),
            )),
            ClientRequest::PingRequest(_) => Some(method_not_found()),
            ClientRequest::DiscoverRequest(_) => None,
            other => {
                // As the SDK decides it: a probe leaves the opening to come, a whole request is one.
                let meta = other.get_meta();
                let whole = meta
                    .missing_required_keys(&ProtocolVersion::V_2026_07_28)
                    .is_empty();
                let spoken = meta
                    .protocol_version()
                    .is_some_and(|version| self.era.revisions().contains(&version));
                self.opened |= whole && spoken;
                None
            }
        }
    }

    fn screen_legacy(&mut self, request: &mut JsonRpcRequest<ClientRequest>) -> Option<ErrorData> {
        let meta = request.request.get_meta_mut();
        meta.retain(|key, _| !MODERN_KEYS.contains(&key.as_str()));
        match &request.request {
            ClientRequest::InitializeRequest(_) => {
                self.opened = true;
                None
            }
            ClientRequest::PingRequest(_) => None,
            other if other.method() == DISCOVER => Some(method_not_found()),
            _ if self.opened => None,
            _ => Some(ErrorData::new(NOT_INITIALIZED, "Server not initialized", None)),
        }
    }
}

/// A transport with a gate before it.
pub(crate) struct GatedTransport<T> {
    inner: T,
    gate: Gate,
    refusals: JoinSet<()>,
    hung_up: CancellationToken,
}

impl<T> GatedTransport<T> {
    /// Cancels `hung_up` when the client has nothing more to say, so that the calls in flight stop.
    pub(crate) fn new(inner: T, era: Era, hung_up: CancellationToken) -> Self {
        Self {
            inner,
            gate: Gate::closed(era),
            refusals: JoinSet::new(),
            hung_up,
        }
    }
}

impl<T: Transport<RoleServer>> Transport<RoleServer> for GatedTransport<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        self.inner.send(message)
    }

    // The SDK drops this future whenever it has something else to do: a refusal on its way must outlive it.
    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            let Some(mut message) = self.inner.receive().await else {
                while self.refusals.join_next().await.is_some() {}
                self.hung_up.cancel();
                return None;
            };
            match self.gate.screen(&mut message) {
                Verdict::Pass => return Some(message),
                Verdict::Drop => {}
                Verdict::Refuse(answer) => {
                    let send = self.inner.send(*answer);
                    self.refusals.spawn(async move {
                        // A client that reads no more learns nothing, and says nothing more either.
                        let _ = send.await;
                    });
                }
            }
            while self.refusals.try_join_next().is_some() {}
            // A client that asks without reading is read no further.
            if self.refusals.len() >= REFUSALS {
                self.refusals.join_next().await;
            }
        }
    }

    async fn close(&mut self) -> Result<(), T::Error> {
        while self.refusals.join_next().await.is_some() {}
        self.inner.close().await
    }
}

/// How many refusals may be on their way.
const REFUSALS: usize = 64;

fn method_not_found() -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "Method not found", None)
}

pub(crate) const DISCOVER: &str = "server/discover";

/// What the TypeScript SDK 1.x answers before `initialize`; -32000 to -32019 carry no meaning of their own.
const NOT_INITIALIZED: ErrorCode = ErrorCode(-32000);

/// What only a server of 2026-07-28 reads from a request.
const MODERN_KEYS: [&str; 4] = [
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/logLevel",
];

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn each_era_refuses_what_only_the_other_knows() {
        let table = [
            // (era, opened, method, refused with)
            (Era::Modern, false, "initialize", Some(-32022)),
            (Era::Modern, true, "initialize", Some(-32022)),
            (Era::Modern, false, "ping", Some(-32601)),
            (Era::Modern, false, "server/discover", None),
            (Era::Modern, false, "tools/list", None),
            (Era::Legacy, false, "initialize", None),
            (Era::Legacy, false, "ping", None),
            (Era::Legacy, false, "server/discover", Some(-32601)),
            (Era::Legacy, true, "server/discover", Some(-32601)),
            (Era::Legacy, false, "tools/list", Some(-32000)),
            (Era::Legacy, true, "tools/list", None),
        ];
        for (era, opened, method, refused) in table {
            let verdict = Gate { era, opened }.screen(&mut request(method));

            let code = match verdict {
                Verdict::Pass => None,
                Verdict::Refuse(answer) => serde_json::to_value(answer).unwrap()["error"]["code"].as_i64(),
                Verdict::Drop => panic!("{method} dropped"),
            };
            assert_eq!(code, refused, "{era} {method}, opened: {opened}");
        }
    }

    #[test]
    fn a_notification_before_the_opening_is_dropped() {
        for era in [Era::Modern, Era::Legacy] {
            let mut gate = Gate::closed(era);
            let mut cancelled = message(json!({ "method": "notifications/initialized" }));

            assert!(matches!(gate.screen(&mut cancelled), Verdict::Drop));

            gate.screen(&mut request(if era == Era::Modern {
                "tools/list"
            } else {
                "initialize"
            }));
            assert!(matches!(gate.screen(&mut cancelled), Verdict::Pass));
        }
    }

    #[test]
    fn a_legacy_server_does_not_see_the_modern_keys() {
        let mut list = request("tools/list");

        Gate::open(Era::Legacy).screen(&mut list);

        let list = serde_json::to_value(list).unwrap();
        assert_eq!(list["params"]["_meta"], json!({ "progressToken": 7 }));
    }

    fn request(method: &str) -> ClientJsonRpcMessage {
        message(json!({
            "id": 1,
            "method": method,
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": { "name": "test", "version": "0" },
                "_meta": {
                    "progressToken": 7,
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "0" },
                    "io.modelcontextprotocol/clientCapabilities": {},
                },
            },
        }))
    }

    fn message(mut message: Value) -> ClientJsonRpcMessage {
        message["jsonrpc"] = json!("2.0");
        serde_json::from_value(message).unwrap()
    }
}
