//! `--answer KEY=JSON`: what a server is told when it asks, given beforehand.

use crate::error::CliError;
use callboard::InputKind;
use callboard::message::RawJson;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Answers by key: that of a question, the name of a kind, or `*`.
#[derive(Debug, Default)]
pub(crate) struct Answers(BTreeMap<String, RawJson>);

impl Answers {
    /// Reads the values of the flag. Each is a JSON object, and a key is given once.
    pub(crate) fn parse(given: &[String]) -> Result<Self, CliError> {
        let mut answers = BTreeMap::new();
        for text in given {
            let Some((key, json)) = text.split_once('=').filter(|(key, _)| !key.is_empty()) else {
                return Err(CliError::Usage(format!("the --answer `{text}` is not KEY=JSON")));
            };
            // The value may be a secret, so it is not shown.
            let refused = |reason: String| {
                CliError::Usage(format!(
                    "the value of --answer `{key}` is no JSON object, {reason}; write '{key}={{\"name\": value}}'"
                ))
            };
            let value: Box<RawValue> = serde_json::from_str(json).map_err(|error| {
                refused(format!(
                    "{:?} error at column {}",
                    error.classify(),
                    error.column()
                ))
            })?;
            if !value.get().starts_with('{') {
                return Err(refused("it is another value".to_owned()));
            }
            let answer = RawJson::of(&value).map_err(|error| refused(error.to_string()))?;
            if answers.insert(key.to_owned(), answer).is_some() {
                return Err(CliError::Usage(format!("--answer `{key}` is given twice")));
            }
        }
        Ok(Self(answers))
    }

    /// The answer to a question of this key, where it has one, and kind; with the key it was given under.
    pub(crate) fn to(&self, key: Option<&str>, kind: InputKind) -> Option<(&str, &RawJson)> {
        key.into_iter()
            .chain([name(kind), ALL])
            .find_map(|key| self.0.get_key_value(key))
            .map(|(key, answer)| (key.as_str(), answer))
    }

    /// Whether every question of this kind has an answer.
    pub(crate) fn have(&self, kind: InputKind) -> bool {
        self.to(None, kind).is_some()
    }
}

/// What a kind of question is called in the flag.
pub(crate) fn name(kind: InputKind) -> &'static str {
    match kind {
        InputKind::Sampling | InputKind::SamplingTools => "sampling",
        InputKind::Roots => "roots",
        _ => "elicitation",
    }
}

/// The key that answers everything.
const ALL: &str = "*";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_answers() {
        let given = ["who={\"a\":1}", "elicitation={\"a\":2}", "*={\"a\":3}"].map(str::to_owned);
        let answers = Answers::parse(&given).unwrap();
        let table = [
            (Some("who"), InputKind::ElicitationForm, "{\"a\":1}"),
            (Some("other"), InputKind::ElicitationForm, "{\"a\":2}"),
            (None, InputKind::ElicitationUrl, "{\"a\":2}"),
            (None, InputKind::Roots, "{\"a\":3}"),
        ];
        for (key, kind, expected) in table {
            assert_eq!(
                answers.to(key, kind).unwrap().1.get(),
                expected,
                "{key:?} {kind:?}"
            );
        }
        let answers = Answers::parse(&given[..1]).unwrap();
        assert!(answers.to(None, InputKind::ElicitationForm).is_none());
        assert!(!answers.have(InputKind::Sampling));
    }

    #[test]
    fn what_is_no_answer_is_told_without_its_value() {
        for given in [
            "who",
            "={}",
            "who=s3cret",
            "who=\"s3cret\"",
            "who={\"s3cret\":}",
            "who=",
            "who=[1]",
        ] {
            let error = Answers::parse(&[given.to_owned()]).unwrap_err();
            assert!(matches!(error, CliError::Usage(_)), "{given}");
            assert!(given == "who" || !error.to_string().contains("s3cret"), "{error}");
        }
        let twice = ["a={}", "a={}"].map(str::to_owned);
        assert!(matches!(Answers::parse(&twice), Err(CliError::Usage(_))));
    }
}
