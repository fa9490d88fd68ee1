//! What a legacy server asks of this client, until it is answered.
//!
//! A request that comes on the stream of a call is tied to that call. Over a pipe nothing ties it: all calls that may
//! lead to such a request are taken to wait for it, and one is named only where it is alone.

use crate::frame::RequestId;
use crate::message::{ClientCapabilities, RawJson};
use crate::method::Method;
use crate::mrtr::InputKind;
use crate::wire::Key;
use std::collections::HashMap;

/// The most requests of a server that are open at once.
const OPEN: usize = 512;

/// -32600 invalid request (JSON-RPC 2.0).
pub(super) const INVALID_REQUEST: i64 = -32600;
/// -32602 invalid params (JSON-RPC 2.0).
pub(super) const INVALID_PARAMS: i64 = -32602;
/// -32603 internal error (JSON-RPC 2.0).
pub const INTERNAL_ERROR: i64 = -32603;

/// The requests of a server that are not answered yet.
#[derive(Debug, Default)]
pub(super) struct Asked {
    open: HashMap<RequestId, Open>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) kind: InputKind,
    /// The calls whose time stands still for it.
    pub(super) paused: Vec<Key>,
    /// The one call it belongs to.
    pub(super) tied: Option<Key>,
}

/// Why a request of a server is refused.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) code: i64,
    pub(super) message: String,
}

impl Asked {
    /// Takes a request in, unless it must be refused.
    pub(super) fn admit(
        &self,
        id: &RequestId,
        method: &Method,
        params: &RawJson,
        declared: &ClientCapabilities,
    ) -> Result<InputKind, Refused> {
        let refuse = |code, message: &str| {
            Err(Refused {
                code,
                message: message.to_owned(),
            })
        };
        let offers = match method.as_str() {
            "elicitation/create" => declared.elicitation.is_some(),
            "sampling/createMessage" => declared.sampling.is_some(),
            "roots/list" => declared.roots.is_some(),
            _ => false,
        };
        if !offers {
            // RPC-13, ROOT-05
            return refuse(
                super::METHOD_NOT_FOUND,
                &format!("this client does not offer {method}"),
            );
        }
        match InputKind::of(method.as_str(), params) {
            // ELI-16, SMP-05
            None => refuse(INVALID_PARAMS, "this client does not know that mode"),
            Some(kind) if !kind.is_declared(declared) => {
                refuse(INVALID_PARAMS, &format!("this client did not declare {kind}"))
            }
            Some(_) if self.open.contains_key(id) => refuse(INVALID_REQUEST, "a request of this id is open"),
            Some(_) if self.open.len() >= OPEN => refuse(INTERNAL_ERROR, "too many requests are open"),
            Some(kind) => Ok(kind),
        }
    }

    pub(super) fn insert(&mut self, id: RequestId, open: Open) {
        self.open.insert(id, open);
    }

    pub(super) fn remove(&mut self, id: &RequestId) -> Option<Open> {
        self.open.remove(id)
    }

    /// Removes the requests that belong to a call that is over.
    pub(super) fn remove_tied(&mut self, key: Key) -> Vec<(RequestId, Open)> {
        if self.open.is_empty() {
            return Vec::new();
        }
        self.open.extract_if(|_, open| open.tied == Some(key)).collect()
    }

    pub(super) fn remove_all(&mut self) -> Vec<(RequestId, Open)> {
        self.open.drain().collect()
    }
}
