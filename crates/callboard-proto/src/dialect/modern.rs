//! 2026-07-28: every request describes itself; a result says what it is.

use super::{Identity, Verdict};
use crate::brief::Brief;
use crate::envelope::ModernMeta;
use crate::frame::ResultType;
use crate::message::LoggingLevel;
use crate::method::Method;
use crate::revision::Revision;
use bytes::Bytes;

/// `capabilities` are those of one request, where it declares others than the connection does.
pub(super) fn meta(
    revision: Revision,
    identity: &Identity,
    capabilities: Option<&Bytes>,
    log_level: Option<LoggingLevel>,
) -> ModernMeta {
    let capabilities = capabilities.unwrap_or(&identity.raw);
    ModernMeta::new(revision.as_str(), capabilities, &identity.client_info, log_level)
}

/// An extension's result types are accepted only where the extension was declared on the request.
pub(crate) fn judge(method: &Method, result_type: &ResultType) -> Verdict {
    match result_type {
        ResultType::Absent | ResultType::Complete => Verdict::Complete,
        ResultType::InputRequired if method.may_ask_for_input() => Verdict::InputRequired,
        ResultType::InputRequired => Verdict::Invalid("input_required".into()),
        ResultType::Task => Verdict::Invalid("task".into()),
        ResultType::Other(text) => Verdict::Invalid(Brief(text).to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // RPC-09
    #[test]
    fn a_type_that_is_not_allowed_is_told_in_brief() {
        let found = format!("odd\nERROR forged {}", "x".repeat(1_000_000));

        let verdict = judge(&Method::TOOLS_CALL, &ResultType::Other(found.into()));

        let Verdict::Invalid(told) = verdict else {
            panic!("{verdict:?}")
        };
        assert!(told.starts_with("odd ERROR forged x"), "{told}");
        assert_eq!(told.chars().count(), 81);
    }
}
