//! The params of notifications that carry something for the caller.

use super::raw::{RawJson, round_trips};
use super::view;
use crate::frame::RequestId;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// The params of `notifications/progress` (all revisions, basic/utilities/progress).
///
/// Its `Display` is a line such as `3/10 indexing`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// The token that the request carried; `1` and `"1"` differ (PROG-01).
    pub token: RequestId,
    /// How far it is.
    pub progress: f64,
    /// How far it goes, where the server knows.
    pub total: Option<f64>,
    /// What it is doing, untrusted text (since 2025-03-26).
    pub message: Option<String>,
    raw: RawJson,
}

/// The params of `notifications/message` (all revisions, server/utilities/logging).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogMessage {
    /// How much it matters; `None` where the server named no level of the protocol, `raw` has what it named.
    pub level: Option<LoggingLevel>,
    /// Which part of the server speaks.
    pub logger: Option<String>,
    /// What it says, any JSON value, untrusted.
    pub data: RawJson,
    raw: RawJson,
}

/// How much a log message matters, the least first (all revisions, server/utilities/logging).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LoggingLevel {
    /// `debug`.
    Debug,
    /// `info`.
    Info,
    /// `notice`.
    Notice,
    /// `warning`.
    Warning,
    /// `error`.
    Error,
    /// `critical`.
    Critical,
    /// `alert`.
    Alert,
    /// `emergency`.
    Emergency,
}

/// A name that is no [`LoggingLevel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no log level; the levels are debug, info, notice, warning, error, critical, alert, emergency")]
pub struct UnknownLevel;

impl Progress {
    /// Decodes the params.
    ///
    /// # Errors
    ///
    /// `progressToken` is absent or neither a string nor an integer, or `progress` is absent or no number.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: ProgressView<'_> = raw.view()?;
        Ok(Self {
            token: token(view.progress_token)?,
            progress: view.progress,
            total: view::optional(view.total),
            message: view::text(view.message),
            raw,
        })
    }

    /// How much of it is done, from 0 to 1, where `total` is known and positive.
    #[must_use]
    pub fn fraction(&self) -> Option<f64> {
        let total = self.total.filter(|total| *total > 0.0)?;
        Some((self.progress / total).clamp(0.0, 1.0))
    }
}

impl LogMessage {
    /// Decodes the params.
    ///
    /// # Errors
    ///
    /// They are no object, or `data` is absent.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: LogView<'_> = raw.view()?;
        let data = view
            .data
            .ok_or_else(|| serde_json::Error::missing_field("data"))?;
        Ok(Self {
            level: view::optional(view.level),
            logger: view::text(view.logger),
            data: raw.part(data),
            raw,
        })
    }
}

impl LoggingLevel {
    /// All levels, the least first.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// The name that goes over the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }
}

impl FromStr for LoggingLevel {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|level| level.as_str() == text)
            .ok_or(UnknownLevel)
    }
}

impl fmt::Display for LoggingLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for LoggingLevel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for LoggingLevel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text: Cow<'de, str> = Deserialize::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.progress)?;
        if let Some(total) = self.total {
            write!(f, "/{total}")?;
        }
        match &self.message {
            Some(message) => write!(f, " {message}"),
            None => Ok(()),
        }
    }
}

round_trips!(Progress: RawJson, LogMessage: RawJson);

fn token(raw: &RawValue) -> Result<RequestId, serde_json::Error> {
    if raw.get().starts_with('"') {
        serde_json::from_str(raw.get()).map(RequestId::String)
    } else {
        serde_json::from_str(raw.get()).map(RequestId::Number)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProgressView<'a> {
    #[serde(borrow)]
    progress_token: &'a RawValue,
    progress: f64,
    #[serde(borrow)]
    total: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct LogView<'a> {
    #[serde(borrow)]
    level: Option<&'a RawValue>,
    #[serde(borrow)]
    logger: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "view::present")]
    data: Option<&'a RawValue>,
}
