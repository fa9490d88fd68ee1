//! The session of the legacy era: an id that the server gives with its answer to `initialize`.
//!
//! A message belongs to the session that was the present one when it was handed to the transport, whatever becomes of
//! that: what carries an id never carries another's, and what is heard of it says nothing of a later one. No id is
//! ever kept beyond its transport, so that none can come back from storage after it expired (FR-046).

use callboard_proto::wire::{Key, SendMeta};
use callboard_proto::{Era, headers};
use http::{HeaderMap, HeaderValue};
use std::cell::{Cell, OnceCell};

/// What belongs to one handshake. In the modern era nothing of it is ever set (HTTP-08).
///
/// The id is a secret (LHT-05): its header value is marked so, and no error names it.
#[derive(Default)]
pub(super) struct Session {
    id: OnceCell<HeaderValue>,
    version: Cell<Option<&'static str>>,
    /// The `initialize` whose answer opens it.
    handshake: Option<Key>,
    /// The server has said that it does not know the id.
    gone: Cell<bool>,
}

impl Session {
    /// The session that the answer to this `initialize` opens.
    pub(super) fn of_handshake(key: Key) -> Self {
        Self {
            handshake: Some(key),
            ..Self::default()
        }
    }

    /// Takes note of the version that a message of it states.
    pub(super) fn note(&self, meta: &SendMeta) {
        if meta.era == Era::Legacy && meta.version_header.is_some() {
            self.version.set(meta.version_header);
        }
    }

    /// Takes the id, if `answer` is the successful one to its `initialize` and has one.
    ///
    /// # Errors
    ///
    /// An id with other characters than visible ASCII, as text for a user.
    pub(super) fn open(&self, key: Key, answer: &HeaderMap) -> Result<(), String> {
        if self.handshake != Some(key) {
            return Ok(());
        }
        let Some(id) = answer.get(headers::MCP_SESSION_ID) else {
            return Ok(());
        };
        // A copy: a clone would keep the whole buffer that the answer was read into.
        let text = id.to_str().ok().filter(|text| headers::valid_session_id(text));
        let Some(mut id) = text.and_then(|text| HeaderValue::from_str(text).ok()) else {
            return Err("the session id of the server has characters other than visible ASCII".to_owned());
        };
        id.set_sensitive(true);
        self.id.get_or_init(|| id);
        Ok(())
    }

    /// The id to send with each message of it, once there is one (LHT-02).
    pub(super) fn id(&self) -> Option<&HeaderValue> {
        self.id.get()
    }

    /// The version that its newest message stated; ending it states that too.
    pub(super) fn version(&self) -> Option<&'static str> {
        self.version.get()
    }

    /// The server has said that it does not know it.
    pub(super) fn set_gone(&self) {
        self.gone.set(true);
    }

    /// Whether there is something at the server to be ended.
    pub(super) fn is_to_be_ended(&self) -> bool {
        self.id.get().is_some() && !self.gone.get()
    }
}
