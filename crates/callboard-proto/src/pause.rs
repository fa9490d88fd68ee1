//! Pauses before something is tried again: growing to a cap, with equal jitter.

use std::time::Duration;

/// `first`, doubled so many times, but not beyond `longest`.
#[must_use]
pub fn grown(first: Duration, doublings: u32, longest: Duration) -> Duration {
    first.saturating_mul(1 << doublings.min(20)).min(longest)
}

/// A pause whose second half is left to chance, so that what went down together does not come back together. `roll` is a
/// random number from 0 to 1.
#[must_use]
pub fn jittered(whole: Duration, roll: f64) -> Duration {
    let half = whole / 2;
    half + chance_of(half, roll)
}

/// The part of a time that a roll of the dice gives.
pub(crate) fn chance_of(time: Duration, roll: f64) -> Duration {
    time.mul_f64(roll.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_grows_to_its_cap_and_lies_in_its_second_half() {
        let (first, longest) = (Duration::from_millis(250), Duration::from_secs(30));
        let whole: Vec<u128> = (0..9)
            .map(|times| grown(first, times, longest).as_millis())
            .collect();
        assert_eq!(whole, [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(grown(first, u32::MAX, longest), longest);
        for (roll, millis) in [(0.0, 125), (0.5, 187), (1.0, 250), (7.0, 250), (-1.0, 125)] {
            assert_eq!(jittered(first, roll).as_millis(), millis, "{roll}");
        }
    }
}
