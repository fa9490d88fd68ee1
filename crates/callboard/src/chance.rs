//! Randomness, for pauses that must not be those of everybody else.

use std::hash::{BuildHasher as _, RandomState};

/// A random number from 0 to 1. Not for secrets.
pub(crate) fn roll() -> f64 {
    // The keys of each hasher differ; what is hashed does not matter.
    let bits = u32::try_from(RandomState::new().hash_one(0_u8) >> 32).unwrap_or(0);
    f64::from(bits) / f64::from(u32::MAX)
}
