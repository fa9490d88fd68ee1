//! Proposals for the value of an argument.

use super::raw::{RawResult, round_trips};
use super::view;
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::value::RawValue;

/// The answer to `completion/complete` (all revisions, server/utilities/completion).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The proposals, the best first; at most 100 by the protocol.
    pub values: Vec<String>,
    /// How many there are in all, where the server knows.
    pub total: Option<u64>,
    /// Whether there are more than these.
    pub has_more: bool,
    raw: RawResult,
}

impl Completion {
    /// Decodes the answer. Proposals that are no strings are left out.
    ///
    /// # Errors
    ///
    /// The result has no object `completion` with an array `values`.
    pub fn from_raw(raw: RawResult) -> Result<Self, serde_json::Error> {
        let View { completion } = raw.json().view()?;
        let values = completion
            .values
            .ok_or_else(|| serde_json::Error::missing_field("values"))?;
        Ok(Self {
            values: values
                .into_iter()
                .filter_map(|value| view::text(Some(value)))
                .collect(),
            total: view::whole(completion.total).and_then(|total| u64::try_from(total).ok()),
            has_more: view::optional(completion.has_more).unwrap_or(false),
            raw,
        })
    }
}

round_trips!(Completion: RawResult);

#[derive(Deserialize)]
struct View<'a> {
    #[serde(borrow)]
    completion: CompletionView<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CompletionView<'a> {
    #[serde(borrow, default, deserialize_with = "view::items")]
    values: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    total: Option<&'a RawValue>,
    #[serde(borrow)]
    has_more: Option<&'a RawValue>,
}
