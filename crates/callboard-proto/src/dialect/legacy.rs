//! 2024-11-05 to 2025-11-25: the `initialize` handshake; results are what their method says.

use super::{Identity, Verdict};
use crate::envelope::{self, Params};
use crate::frame::ResultType;
use crate::method::Method;
use crate::revision::{Era, Revision};
use crate::wire::{Key, Outgoing, SendMeta};

/// No version header: a server must refuse one it does not know, and none is negotiated yet (ERA-14).
pub(super) fn initialize(key: Key, revision: Revision, identity: &Identity) -> (Outgoing, SendMeta) {
    let mut text = Vec::with_capacity(96 + identity.raw.len() + identity.client_info.len());
    text.extend_from_slice(b"{\"protocolVersion\":\"");
    text.extend_from_slice(revision.as_str().as_bytes());
    text.extend_from_slice(b"\",\"capabilities\":");
    text.extend_from_slice(&identity.raw);
    text.extend_from_slice(b",\"clientInfo\":");
    text.extend_from_slice(&identity.client_info);
    text.extend_from_slice(b"}");
    let params = Params::new(text.into()).unwrap_or_default();
    let message = envelope::request(key, &Method::INITIALIZE, &params, None, false);
    let meta = SendMeta {
        method: Some(Method::INITIALIZE),
        name: None,
        era: Era::Legacy,
        version_header: None,
        headers: None,
        resumable: false,
    };
    (message, meta)
}

/// `resultType` is unknown here; a member of that name is the server's own, but for the one value that could
/// only be a confusion of eras.
pub(super) fn judge(result_type: &ResultType) -> Verdict {
    match result_type {
        ResultType::InputRequired => Verdict::Invalid("input_required".into()),
        ResultType::Absent | ResultType::Complete | ResultType::Task | ResultType::Other(_) => {
            Verdict::Complete
        }
    }
}
