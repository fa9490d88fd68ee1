//! The era that a demo server speaks, and the revisions it knows by that.

use std::fmt;
use std::str::FromStr;

use rmcp::model::ProtocolVersion;

/// The one era that a demo server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    /// 2026-07-28: stateless, `server/discover`, and input asked for in results (MRTR).
    Modern,
    /// 2024-11-05 to 2025-11-25: the `initialize` handshake, and requests from the server.
    Legacy,
}

impl Era {
    /// The newest revision of the era, which is what a server names as its own.
    pub(crate) fn newest(self) -> ProtocolVersion {
        match self {
            Self::Modern => ProtocolVersion::V_2026_07_28,
            Self::Legacy => ProtocolVersion::V_2025_11_25,
        }
    }

    /// All revisions of the era that the SDK knows.
    pub(crate) fn revisions(self) -> &'static [ProtocolVersion] {
        let legacy = ProtocolVersion::known_up_to(&ProtocolVersion::V_2025_11_25);
        match self {
            Self::Modern => &ProtocolVersion::KNOWN_VERSIONS[legacy.len()..],
            Self::Legacy => legacy,
        }
    }
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Modern => "modern",
            Self::Legacy => "legacy",
        })
    }
}

impl FromStr for Era {
    type Err = UnknownEra;

    fn from_str(text: &str) -> Result<Self, UnknownEra> {
        match text {
            "modern" => Ok(Self::Modern),
            "legacy" => Ok(Self::Legacy),
            _ => Err(UnknownEra),
        }
    }
}

/// The text names no era.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownEra;

impl fmt::Display for UnknownEra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the era is either `modern` or `legacy`")
    }
}

impl std::error::Error for UnknownEra {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_era_reads_what_it_writes() {
        for era in [Era::Modern, Era::Legacy] {
            assert_eq!(era.to_string().parse(), Ok(era));
        }
        assert_eq!("Modern".parse::<Era>(), Err(UnknownEra));
    }

    #[test]
    fn no_revision_belongs_to_both_eras() {
        assert_eq!(Era::Modern.revisions(), [ProtocolVersion::V_2026_07_28]);
        assert!(
            Era::Legacy
                .revisions()
                .iter()
                .all(ProtocolVersion::has_initialize)
        );
    }
}
