//! Backup workers, simulated: `N + b` devices compute, and a step ends when the first `N` of them
//! have finished. The gradients of the others are dropped: Chen, Pan, Monga, Bengio and Jozefowicz,
//! "Revisiting Distributed Synchronous SGD" (2016).
//!
//! The time of a device's step is `t (1 + cv z)` with a standard normal `z`, as in
//! [`waiting_secs`](super::waiting_secs); with probability `slow` it is `factor` times as long.
//! Devices and steps are independent. The time that `N` of `M = N + b` devices have finished is the
//! `b + 1`-th largest of `M` times. Its probability in the distribution is the `b + 1`-th largest
//! of `M` uniform numbers, which are drawn from the largest on, each as `V^(1/k)` of the one before
//! with `k = M, M - 1, ...`: Devroye, "Non-Uniform Random Variate Generation" (1986), V.3.2. So a
//! step costs `b + 1` draws, whatever the number of devices.

use std::str::FromStr;

use hlo::counted;
use serde::Serialize;

use super::STEP_VARIATION;

/// How step times vary, and what is simulated: `slow=0.01,factor=2.0`.
///
/// ```
/// use lockstep::targets::cost::Stragglers;
///
/// let rare: Stragglers = "slow=0.001,factor=3".parse()?;
/// let found = rare.simulate(100, 1.0, 0.1);
/// // One device in a thousand takes three times as long: a step of 100 waits for one in every tenth step.
/// assert!(found[0].mean_secs > 1.3 && found[1].mean_secs < found[0].mean_secs);
/// # Ok::<(), lockstep::targets::cost::StragglersError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Stragglers {
    /// The coefficient of variation of a device's compute time.
    pub cv: f64,
    /// The probability that a device is slow in a step.
    pub slow: f64,
    /// How many times as long a slow device takes.
    pub factor: f64,
    /// The most backups that are simulated.
    pub backups: usize,
    /// Simulated steps.
    pub steps: usize,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// The simulated step with a number of backups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackupStep {
    /// Devices besides those that contribute gradients.
    pub num_backups: usize,
    /// Mean time of a step in seconds.
    pub mean_secs: f64,
    /// The time that 99 of 100 steps do not exceed, in seconds.
    pub p99_secs: f64,
}

/// A text that does not describe stragglers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} does not describe stragglers: {reason}; write keys with commas between them, such as \
     slow=0.01,factor=2.0"
)]
pub struct StragglersError {
    text: String,
    reason: String,
}

const KEYS: &str = "the keys are cv (variation of step times, from 0 to 0.2), slow (share of slow \
                    steps of a device, from 0 to 0.5), factor (how many times as long these take, \
                    from 1 to 1000), backups (at most 64), steps (100 to 100000) and seed";

impl Default for Stragglers {
    fn default() -> Self {
        Self { cv: STEP_VARIATION, slow: 0.0, factor: 2.0, backups: 8, steps: 2000, seed: 0 }
    }
}

impl FromStr for Stragglers {
    type Err = StragglersError;

    fn from_str(text: &str) -> Result<Self, StragglersError> {
        let mut found = Self::default();
        let mut seen: Vec<&str> = vec![];
        let parts = text.split(',').map(str::trim).filter(|_| !text.trim().is_empty());
        for part in parts {
            let refused = |reason: String| StragglersError { text: text.to_owned(), reason };
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| refused(format!("{part:?} is no key=value; {KEYS}")))?;
            if seen.contains(&key) {
                return Err(refused(format!("{key} is there twice")));
            }
            seen.push(key);
            found.set(key, value).map_err(refused)?;
        }
        if seen.contains(&"factor") && !seen.contains(&"slow") {
            let reason = "factor is of use only with slow, the share of slow steps".to_owned();
            return Err(StragglersError { text: text.to_owned(), reason });
        }
        Ok(found)
    }
}

impl Stragglers {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let number = |least: f64, most: f64| -> Result<f64, String> {
            let number = value.parse().ok().filter(|number| (least..=most).contains(number));
            number.ok_or_else(|| format!("{key}={value} is no number from {least} to {most}"))
        };
        let count = |least: usize, most: usize| -> Result<usize, String> {
            let count = value.parse().ok().filter(|count| (least..=most).contains(count));
            count.ok_or_else(|| format!("{key}={value} is no whole number from {least} to {most}"))
        };
        match key {
            "cv" => self.cv = number(0.0, 0.2)?,
            "slow" => self.slow = number(0.0, 0.5)?,
            "factor" => self.factor = number(1.0, 1000.0)?,
            "backups" => self.backups = count(0, 64)?,
            "steps" => self.steps = count(100, 100_000)?,
            "seed" => {
                let seed = value.parse().map_err(|_| format!("{key}={value} is no whole number"));
                self.seed = seed?;
            }
            _ => return Err(format!("{key:?} is no key; {KEYS}")),
        }
        Ok(())
    }

    /// The distribution and the simulation, in words.
    pub fn words(&self) -> String {
        let slow = match self.slow {
            0.0 => String::new(),
            slow => format!(", in {slow} of its steps {} times as long", self.factor),
        };
        format!(
            "{}, seed {}; a device's compute time is normal with a coefficient of variation of \
             {}{slow}",
            counted(self.steps, "step"),
            self.seed,
            self.cv
        )
    }

    /// Simulates steps of `num_devices` and 0, 1, 2, ... backups. The compute of a step takes
    /// `compute_secs` on average if no device is slow; the step also waits `exposed_secs` for
    /// collectives.
    pub fn simulate(
        &self,
        num_devices: usize,
        compute_secs: f64,
        exposed_secs: f64,
    ) -> Vec<BackupStep> {
        let mut random = SplitMix64(self.seed);
        // The same random numbers for every number of backups, so that they differ by the backups
        // only.
        let draws: Vec<Vec<f64>> = (0..self.steps)
            .map(|_| (0..=self.backups).map(|_| -random.uniform().ln()).collect())
            .collect();
        let with = |num_backups: usize| {
            let num_computing = num_devices.max(1).saturating_add(num_backups);
            let mut secs: Vec<f64> = draws
                .iter()
                .map(|exponentials| {
                    let used = exponentials.iter().take(num_backups + 1).enumerate();
                    let log: f64 = used.map(|(at, e)| e / (num_computing - at) as f64).sum();
                    // 1 - exp(-log): the share of slower devices.
                    compute_secs * self.time_exceeded_by(-(-log).exp_m1()) + exposed_secs
                })
                .collect();
            secs.sort_by(f64::total_cmp);
            let at = (99 * secs.len()).div_ceil(100).saturating_sub(1);
            BackupStep {
                num_backups,
                mean_secs: secs.iter().sum::<f64>() / secs.len().max(1) as f64,
                p99_secs: secs.get(at).copied().unwrap_or_default(),
            }
        };
        (0..=self.backups).map(with).collect()
    }

    /// The time, relative to the mean of a device that is not slow, that a share of all steps of a
    /// device exceeds.
    fn time_exceeded_by(&self, share: f64) -> f64 {
        let cv = self.cv.max(1e-9);
        let exceeded = |time: f64| {
            let usual = normal_tail((time - 1.0) / cv);
            let slow = normal_tail((time / self.factor - 1.0) / cv);
            (1.0 - self.slow) * usual + self.slow * slow
        };
        // Nine standard deviations on both sides.
        let (mut low, mut high) = ((1.0 - 9.0 * cv).max(0.0), self.factor * (1.0 + 9.0 * cv));
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            if exceeded(middle) > share {
                low = middle;
            } else {
                high = middle;
            }
        }
        0.5 * (low + high)
    }
}

/// The probability that a standard normal value exceeds `x`, with an error below 7.5e-8: Abramowitz
/// and Stegun, "Handbook of Mathematical Functions" (1964), 26.2.17.
fn normal_tail(x: f64) -> f64 {
    if x < 0.0 {
        return 1.0 - normal_tail(-x);
    }
    let t = 1.0 / (1.0 + 0.231_641_9 * x);
    let polynomial = [1.330_274_429, -1.821_255_978, 1.781_477_937, -0.356_563_782, 0.319_381_530]
        .into_iter()
        .fold(0.0, |sum, coefficient| (sum + coefficient) * t);
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    density * polynomial
}

/// The generator of Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
struct SplitMix64(u64);

impl SplitMix64 {
    /// A number above 0 and below 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((bits ^ (bits >> 31)) >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::super::expected_maximum;
    use super::*;

    #[test]
    fn tails_are_those_of_the_table() {
        // Abramowitz and Stegun, table 26.1: P(1) = 0.8413447461, P(3) = 0.9986501020.
        for (x, tail) in
            [(0.0, 0.5), (1.0, 0.158_655_253_9), (-1.0, 0.841_344_746_1), (3.0, 0.001_349_898)]
        {
            assert!((normal_tail(x) - tail).abs() < 1e-7, "{x}: {}", normal_tail(x));
        }
    }

    #[test]
    fn without_backups_the_mean_is_the_expected_maximum() {
        for num_devices in [8, 256, 131_072] {
            let usual = Stragglers { steps: 20_000, ..Stragglers::default() };
            let mean = usual.simulate(num_devices, 1.0, 0.0)[0].mean_secs;
            let expected = 1.0 + STEP_VARIATION * expected_maximum(num_devices);
            assert!((mean - expected).abs() < 0.003, "{num_devices}: {mean} {expected}");
        }
    }

    /// Every device drawn on its own, and sorted.
    #[test]
    fn the_times_are_those_of_drawing_every_device() {
        let heavy: Stragglers = "slow=0.05,factor=2,backups=3,steps=20000".parse().unwrap();
        let found = heavy.simulate(16, 1.0, 0.5);
        let mut random = SplitMix64(7);
        for (num_backups, simulated) in found.iter().enumerate() {
            const ROUNDS: usize = 4000;
            let mut sum = 0.0;
            for _ in 0..ROUNDS {
                let mut times: Vec<f64> = (0..16 + num_backups)
                    .map(|_| {
                        let normal: f64 = (0..12).map(|_| random.uniform()).sum::<f64>() - 6.0;
                        let factor = if random.uniform() < 0.05 { 2.0 } else { 1.0 };
                        factor * (1.0 + STEP_VARIATION * normal)
                    })
                    .collect();
                times.sort_by(f64::total_cmp);
                sum += times[15] + 0.5;
            }
            let drawn = sum / ROUNDS as f64;
            assert!(
                (simulated.mean_secs - drawn).abs() < 0.03,
                "{num_backups}: {simulated:?} {drawn}"
            );
        }
    }

    #[test]
    fn more_backups_are_never_slower_and_the_seed_decides() {
        let heavy: Stragglers = "slow=0.01".parse().unwrap();
        let found = heavy.simulate(100, 1.0, 0.0);
        assert_eq!(found.len(), 9);
        assert!(found.windows(2).all(|two| two[1].mean_secs <= two[0].mean_secs), "{found:?}");
        assert!(found.iter().all(|step| step.p99_secs >= step.mean_secs), "{found:?}");
        assert_eq!(found, heavy.simulate(100, 1.0, 0.0));
        let other = Stragglers { seed: 1, ..heavy };
        assert_ne!(found, other.simulate(100, 1.0, 0.0));
        // Nothing varies: nothing to wait for.
        let even: Stragglers = "cv=0".parse().unwrap();
        assert!(even.simulate(8, 1.0, 0.25).iter().all(|step| (step.p99_secs - 1.25).abs() < 1e-6));
    }

    #[test]
    fn wrong_keys_and_values_are_refused() {
        assert_eq!("".parse(), Ok(Stragglers::default()));
        for (text, expected) in [
            ("slow", "is no key=value"),
            ("speed=2", "\"speed\" is no key; the keys are cv"),
            ("slow=0.6", "slow=0.6 is no number from 0 to 0.5"),
            ("slow=NaN", "slow=NaN is no number"),
            ("slow=0.1,factor=0.5", "factor=0.5 is no number from 1 to 1000"),
            ("factor=2", "factor is of use only with slow"),
            ("backups=65", "from 0 to 64"),
            ("steps=1.5", "is no whole number from 100"),
            ("seed=-1", "seed=-1 is no whole number"),
            ("slow=0.1,slow=0.2", "slow is there twice"),
            ("slow=0.1,", "is no key=value"),
        ] {
            let error = text.parse::<Stragglers>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
