//! What a process costs, seen from inside, and whether something grows: for benches and soaks.
//!
//! What the system does not tell is `None`: all but the processor time is read from Linux's `/proc`.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time that processors have spent on this process, in it and in the kernel; not on its children.
#[must_use]
pub fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The memory of this process that is resident, in bytes.
#[must_use]
pub fn resident() -> Option<u64> {
    status("VmRSS:")
}

/// The most that was resident at a time, in bytes.
#[must_use]
pub fn resident_peak() -> Option<u64> {
    status("VmHWM:")
}

/// The threads of this process.
#[must_use]
pub fn threads() -> Option<usize> {
    Some(fs::read_dir("/proc/self/task").ok()?.count())
}

/// The open descriptors of this process.
#[must_use]
pub fn descriptors() -> Option<usize> {
    // One is that of the listing itself.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

/// A size in `/proc/self/status`, in bytes.
fn status(field: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// By how much something grows, with the interval that holds the truth in 95 % of all cases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slope {
    /// Growth for each unit of time.
    pub per_unit: f64,
    /// The interval reaches so far to both sides.
    pub margin: f64,
}

impl Slope {
    /// The line through samples of (time, value), in order of time, by ordinary least squares.
    ///
    /// Neighbouring samples resemble each other, which would make the interval too narrow: they are averaged over
    /// `blocks` of about equal length first, and the blocks are what counts. `None` for less than three blocks, or
    /// where no time passes.
    #[must_use]
    pub fn of(samples: &[(f64, f64)], blocks: usize) -> Option<Self> {
        let blocks = blocks.min(samples.len());
        if blocks < 3 {
            return None;
        }
        let means: Vec<(f64, f64)> = (0..blocks)
            .map(|block| {
                let bound = |block: usize| block * samples.len() / blocks;
                mean(&samples[bound(block)..bound(block + 1)])
            })
            .collect();
        let (time, value) = mean(&means);
        let sum = |term: &dyn Fn(f64, f64) -> f64| -> f64 { means.iter().map(|&(t, v)| term(t, v)).sum() };
        let spread = sum(&|t, _| (t - time).powi(2));
        if spread <= 0.0 {
            return None;
        }
        let per_unit = sum(&|t, v| (t - time) * (v - value)) / spread;
        let residual = sum(&|t, v| (v - value - per_unit * (t - time)).powi(2));
        let freedom = (blocks - 2) as f64;
        Some(Self {
            per_unit,
            margin: quantile(freedom) * (residual / freedom / spread).sqrt(),
        })
    }

    /// The lower end of the interval.
    #[must_use]
    pub fn low(&self) -> f64 {
        self.per_unit - self.margin
    }

    /// The upper end of the interval.
    #[must_use]
    pub fn high(&self) -> f64 {
        self.per_unit + self.margin
    }

    /// Whether it is no growth, as far as can be told, or one below `limit`.
    #[must_use]
    pub fn is_flat(&self, limit: f64) -> bool {
        self.high() < limit || (self.low() <= 0.0 && self.high() >= 0.0)
    }
}

/// The middle of some samples, of which there are some.
fn mean(samples: &[(f64, f64)]) -> (f64, f64) {
    let (time, value) = samples.iter().fold((0.0, 0.0), |(time, value), sample| {
        (time + sample.0, value + sample.1)
    });
    let count = samples.len() as f64;
    (time / count, value / count)
}

/// What Student's t stays below in 97.5 % of all cases, by the expansion of Cornish and Fisher: good to 0.2 % from three
/// degrees of freedom on.
fn quantile(freedom: f64) -> f64 {
    let z = 1.959_963_985_f64;
    let terms = [
        (z.powi(3) + z) / 4.0,
        (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
        (79.0 * z.powi(9) + 776.0 * z.powi(7) + 1482.0 * z.powi(5) - 1920.0 * z.powi(3) - 945.0 * z)
            / 92_160.0,
    ];
    let mut power = 1.0;
    terms.iter().fold(z, |sum, term| {
        power *= freedom;
        sum + term / power
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantiles_are_those_of_the_tables() {
        for (freedom, expected) in [
            (3, 3.182),
            (5, 2.571),
            (10, 2.228),
            (18, 2.101),
            (30, 2.042),
            (120, 1.980),
        ] {
            let found = quantile(f64::from(freedom));
            assert!((found - expected).abs() < 0.002 * expected, "{freedom}: {found}");
        }
    }

    /// The first of Anscombe's quartet, whose line is in every textbook: slope 0.5001, standard error 0.1179.
    #[test]
    fn the_line_through_known_points_is_the_known_one() {
        let samples = [
            (4.0, 4.26),
            (5.0, 5.68),
            (6.0, 7.24),
            (7.0, 4.82),
            (8.0, 6.95),
            (9.0, 8.81),
            (10.0, 8.04),
            (11.0, 8.33),
            (12.0, 10.84),
            (13.0, 7.58),
            (14.0, 9.96),
        ];

        let slope = Slope::of(&samples, samples.len()).unwrap();

        assert!((slope.per_unit - 0.5001).abs() < 1e-4, "{slope:?}");
        assert!((slope.margin - 0.1179 * 2.262).abs() < 1e-3, "{slope:?}");
    }

    #[test]
    fn what_repeats_itself_within_a_block_is_no_doubt_about_the_slope() {
        let samples: Vec<(f64, f64)> = (0..240)
            .map(|second| {
                (
                    f64::from(second),
                    f64::from(second % 12) + f64::from(second / 12) * 0.6,
                )
            })
            .collect();

        let slope = Slope::of(&samples, 20).unwrap();

        assert!(
            (slope.per_unit - 0.05).abs() < 1e-9 && slope.margin < 1e-9,
            "{slope:?}"
        );
        assert!(Slope::of(&samples, 240).unwrap().margin > 1e-3);
    }

    #[test]
    fn growth_is_told_from_noise_and_from_little() {
        let slope = |per_unit, margin| Slope { per_unit, margin };
        let table = [
            ("around nothing", slope(0.5, 2.0), true),
            ("below the limit", slope(0.5, 0.2), true),
            ("shrinking", slope(-3.0, 0.2), true),
            ("growing", slope(3.0, 0.2), false),
            ("perhaps above the limit", slope(0.9, 0.2), false),
        ];
        for (row, slope, flat) in table {
            assert_eq!(slope.is_flat(1.0), flat, "{row}");
        }
    }

    #[test]
    fn too_little_has_no_slope() {
        assert_eq!(Slope::of(&[(0.0, 1.0), (1.0, 2.0)], 20), None);
        assert_eq!(Slope::of(&[(1.0, 1.0); 9], 9), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_seen() {
        let (size, before) = (32 << 20, resident().unwrap());
        let held = std::hint::black_box(vec![1_u8; size as usize]);

        assert!(resident().unwrap() >= before + size / 2);
        assert!(resident_peak().unwrap() >= size);
        drop(held);
        assert!(threads().unwrap() >= 1);
        let (open, file) = (
            descriptors().unwrap(),
            fs::File::open("/proc/self/status").unwrap(),
        );
        assert!(open >= 1, "{file:?}");
        assert!(cpu() > Duration::ZERO);
    }
}
