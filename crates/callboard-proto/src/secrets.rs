//! What a client has sent and nobody is to read again in an error, though the server repeats it.

use std::borrow::Cow;
use std::fmt;

/// Values that went out with one request: its session id, the credentials and headers of the configuration.
///
/// A value that is repeated in another form, taken apart or encoded, is not found.
#[derive(Clone, Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// These values, without those that are too short to be told from ordinary words.
    pub fn of(values: impl IntoIterator<Item = String>) -> Self {
        let mut values: Vec<_> = values
            .into_iter()
            .filter(|value| value.len() >= SHORTEST)
            .collect();
        // One may be a part of another, of which nothing is to be left.
        values.sort_unstable_by_key(|value| std::cmp::Reverse(value.len()));
        Self(values)
    }

    /// A text with [`MASK`] in place of each of them.
    #[must_use]
    pub fn masked<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut masked = Cow::Borrowed(text);
        for secret in &self.0 {
            if masked.contains(secret) {
                masked = masked.replace(secret, MASK).into();
            }
        }
        masked
    }
}

/// How many they are.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

/// What stands where a secret was.
pub const MASK: &str = "***";

/// In bytes.
const SHORTEST: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_masked_wherever_it_is_repeated() {
        let secrets = ["token-1", "Bearer token-1", "ab", "", "sésame", "session"];
        let secrets = Secrets::of(secrets.map(str::to_owned));
        #[rustfmt::skip]
        let table = [
            ("", ""),
            ("no such tool", "no such tool"),
            ("`token-1` is not token-1", "`***` is not ***"),
            ("got Bearer token-1", "got ***"),
            ("bearer token-1token-1", "bearer ******"),
            ("TOKEN-1 token-", "TOKEN-1 token-"),
            ("ab sésame ab", "ab *** ab"),
            ("unknown session", "unknown ***"),
        ];
        for (text, shown) in table {
            assert_eq!(secrets.masked(text), shown, "{text}");
        }
        assert_eq!(format!("{secrets:?}"), "Secrets(4)");
        assert_eq!(Secrets::default().masked("token-1"), "token-1");
    }
}
