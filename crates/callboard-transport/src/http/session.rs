//! The session of the legacy era: an id that the server gives with its answer to `initialize`.

use callboard_proto::wire::{Key, SendMeta};
use callboard_proto::{Era, Method, headers};
use http::{HeaderMap, HeaderValue};
use std::cell::{Cell, RefCell};

/// What a legacy connection remembers between its POSTs. Nothing of it is ever set in the modern era (HTTP-08).
///
/// The id is a secret (LHT-05): its header value is marked so, and no error names it.
#[derive(Default)]
pub(super) struct Session {
    id: RefCell<Option<HeaderValue>>,
    version: Cell<Option<&'static str>>,
    /// The newest `initialize`: only its answer opens the session.
    handshake: Cell<Option<Key>>,
}

impl Session {
    /// Takes note of a message about to be sent: a new handshake forgets the old session (LHT-03).
    pub(super) fn note(&self, key: Option<Key>, meta: &SendMeta) {
        if meta.era != Era::Legacy {
            return;
        }
        if key.is_some() && meta.method.as_ref() == Some(&Method::INITIALIZE) {
            self.id.take();
            self.version.set(None);
            self.handshake.set(key);
        } else if meta.version_header.is_some() {
            self.version.set(meta.version_header);
        }
    }

    /// Opens the session, if `answer` is the successful one to the newest `initialize` and has an id.
    ///
    /// # Errors
    ///
    /// An id with other characters than visible ASCII, as text for a user.
    pub(super) fn open(&self, key: Key, answer: &HeaderMap) -> Result<(), String> {
        if self.handshake.get() != Some(key) {
            return Ok(());
        }
        let Some(id) = answer.get(headers::MCP_SESSION_ID) else {
            return Ok(());
        };
        if !id.to_str().is_ok_and(headers::valid_session_id) {
            return Err("the session id of the server has characters other than visible ASCII".to_owned());
        }
        let mut id = id.clone();
        id.set_sensitive(true);
        self.id.replace(Some(id));
        Ok(())
    }

    /// The id to send with each message of the legacy era, once there is one (LHT-02).
    pub(super) fn id(&self) -> Option<HeaderValue> {
        self.id.borrow().clone()
    }

    /// The version that the newest message stated; ending a session states it too.
    pub(super) fn version(&self) -> Option<&'static str> {
        self.version.get()
    }
}
