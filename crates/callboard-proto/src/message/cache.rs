//! How long a result may be reused, and by whom, as the server put it.

use super::text::string_enum;
use super::view;
use serde_json::value::RawValue;
use std::time::Duration;

/// The hints of a cacheable result (2026-07-28, server/utilities/caching); both absent at legacy servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheHints {
    /// `ttlMs` as sent, in milliseconds; may be negative. [`CacheHints::ttl`] reads it.
    pub ttl_ms: Option<i64>,
    /// `cacheScope` as sent. [`CacheHints::is_shareable`] reads it.
    pub scope: Option<CacheScope>,
}

string_enum! {
    /// Who may be given a cached result (2026-07-28, server/utilities/caching).
    CacheScope {
        /// Everybody.
        Public = "public",
        /// Only the authorization context that got it.
        Private = "private",
    }
}

impl CacheHints {
    pub(super) fn from_members(ttl_ms: Option<&RawValue>, scope: Option<&RawValue>) -> Self {
        Self {
            ttl_ms: view::whole(ttl_ms),
            scope: view::optional(scope),
        }
    }

    /// How long the result is fresh after its receipt; absent and negative count as zero (CACHE-04).
    #[must_use]
    pub fn ttl(&self) -> Duration {
        let millis = self.ttl_ms.and_then(|millis| u64::try_from(millis).ok());
        Duration::from_millis(millis.unwrap_or(0))
    }

    /// Whether another authorization context may be given the result; only where the server said so (CACHE-07).
    #[must_use]
    pub fn is_shareable(&self) -> bool {
        self.scope == Some(CacheScope::Public)
    }
}
