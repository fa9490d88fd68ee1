//! The published revisions of the protocol, the era each belongs to, and what each has.

use std::fmt;
use std::str::FromStr;

/// A published revision of the Model Context Protocol.
///
/// Revisions are compared by membership of [`Revision::ALL`], never by the order of their dates: a date
/// that is not in the list is not spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Revision {
    /// 2024-11-05: HTTP+SSE, no Streamable HTTP.
    V2024_11_05,
    /// 2025-03-26: Streamable HTTP, batches.
    V2025_03_26,
    /// 2025-06-18: the `MCP-Protocol-Version` header, structured content.
    V2025_06_18,
    /// 2025-11-25: the newest revision that opens with `initialize`.
    V2025_11_25,
    /// 2026-07-28: stateless requests, MRTR, no handshake.
    V2026_07_28,
}

/// The two ways of opening a connection and of describing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    /// 2026-07-28: every request describes itself in `_meta`; servers never send requests.
    Modern,
    /// 2024-11-05 to 2025-11-25: the `initialize` handshake; both sides send requests.
    Legacy,
}

impl Revision {
    /// All revisions that this client speaks, the newest first.
    pub const ALL: [Self; 5] = [
        Self::V2026_07_28,
        Self::V2025_11_25,
        Self::V2025_06_18,
        Self::V2025_03_26,
        Self::V2024_11_05,
    ];

    /// The revision that a modern request states first.
    pub const NEWEST_MODERN: Self = Self::V2026_07_28;

    /// The revision that an `initialize` request offers first (2025-11-25, basic/lifecycle: the newest).
    pub const NEWEST_LEGACY: Self = Self::V2025_11_25;

    /// The date that stands for this revision on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// The era of this revision.
    #[must_use]
    pub const fn era(self) -> Era {
        match self {
            Self::V2024_11_05 | Self::V2025_03_26 | Self::V2025_06_18 | Self::V2025_11_25 => Era::Legacy,
            Self::V2026_07_28 => Era::Modern,
        }
    }

    /// Whether every HTTP request after the opening carries `MCP-Protocol-Version` (since 2025-06-18).
    #[must_use]
    pub const fn has_version_header(self) -> bool {
        match self {
            Self::V2024_11_05 | Self::V2025_03_26 => false,
            Self::V2025_06_18 | Self::V2025_11_25 | Self::V2026_07_28 => true,
        }
    }

    /// Whether a message may come in a batch, a JSON array of messages (2025-03-26 alone).
    #[must_use]
    pub const fn has_batches(self) -> bool {
        match self {
            Self::V2025_03_26 => true,
            Self::V2024_11_05 | Self::V2025_06_18 | Self::V2025_11_25 | Self::V2026_07_28 => false,
        }
    }

    /// Whether an event stream that ended is taken up again behind its last event: Streamable HTTP brought it, the
    /// modern era did away with it.
    #[must_use]
    pub const fn has_resumption(self) -> bool {
        match self {
            Self::V2025_03_26 | Self::V2025_06_18 | Self::V2025_11_25 => true,
            Self::V2024_11_05 | Self::V2026_07_28 => false,
        }
    }

    /// Whether a model's message may have several blocks of content, and tool blocks (since 2025-11-25).
    #[must_use]
    pub const fn has_sampling_lists(self) -> bool {
        match self {
            Self::V2024_11_05 | Self::V2025_03_26 | Self::V2025_06_18 => false,
            Self::V2025_11_25 | Self::V2026_07_28 => true,
        }
    }

    /// Picks the newest revision of `era` (of any era where `None`) that is in `offered`.
    pub fn pick<'a>(offered: impl IntoIterator<Item = &'a str>, era: Option<Era>) -> Option<Self> {
        let offered: Vec<Self> = offered.into_iter().filter_map(|name| name.parse().ok()).collect();
        Self::ALL
            .into_iter()
            .find(|revision| offered.contains(revision) && era.is_none_or(|era| revision.era() == era))
    }
}

/// A version string that names no revision spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no protocol revision that this client speaks")]
pub struct UnknownRevision;

impl FromStr for Revision {
    type Err = UnknownRevision;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|revision| revision.as_str() == text)
            .ok_or(UnknownRevision)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_revision_survives_its_own_name() {
        for revision in Revision::ALL {
            assert_eq!(revision.as_str().parse(), Ok(revision));
        }
        assert_eq!("2027-01-01".parse::<Revision>(), Err(UnknownRevision));
    }

    // VER-04
    #[test]
    fn the_newest_shared_revision_is_picked_by_membership() {
        use Revision as R;
        let table: [(&[&str], Option<Era>, Option<R>); 6] = [
            (&["2025-11-25", "2026-07-28"], None, Some(R::V2026_07_28)),
            (&["2024-11-05", "2025-06-18"], None, Some(R::V2025_06_18)),
            (
                &["2024-11-05", "2026-07-28"],
                Some(Era::Legacy),
                Some(R::V2024_11_05),
            ),
            (&["2025-11-25"], Some(Era::Modern), None),
            (&["2099-01-01", "DRAFT"], None, None),
            (&[], None, None),
        ];
        for (offered, era, picked) in table {
            assert_eq!(
                Revision::pick(offered.iter().copied(), era),
                picked,
                "{offered:?} {era:?}"
            );
        }
    }
}
