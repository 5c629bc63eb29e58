//! Waiting for the slowest: a synchronous step ends when the last of its devices has finished.
//!
//! The time of one device's step varies with its clock, the operating system, its input and its
//! neighbors. With normal, independent times of mean `t` and standard deviation `cv * t`, the last
//! of `n` devices is expected after
//!
//! ```text
//! t (1 + cv m(n)),   m(n) = Phi^-1((n - 0.375) / (n + 0.25))
//! ```
//! where `Phi^-1` is the quantile of the normal distribution and `m(n)` Blom's approximation of the
//! expected maximum of `n` standard normal values: Blom, "Statistical Estimates and Transformed
//! Beta-Variables" (1958). It grows with `sqrt(2 ln n)`: from 8 to 8192 devices it grows from 1.4
//! to 3.8.

use crate::targets::{Arrangement, Target};

/// The coefficient of variation of a device's compute time: standard deviation over mean. Fitted to
/// half of the published runs of `docs/cost-model.md`, which `cargo test --test cost_model` fits
/// again.
pub const STEP_VARIATION: f64 = 0.036;

/// Expected maximum of `n` standard normal values, by Blom's approximation; 0 for one value or
/// none.
///
/// ```
/// use lockstep::targets::cost::expected_maximum;
///
/// assert_eq!(expected_maximum(1), 0.0);
/// // 1 / sqrt(pi), and Harter's table (1961).
/// assert!((expected_maximum(2) - 0.5642).abs() < 0.03);
/// assert!((expected_maximum(100) - 2.5076).abs() < 0.01);
/// ```
pub fn expected_maximum(n: usize) -> f64 {
    if n <= 1 {
        return 0.0;
    }
    let n = n as f64;
    normal_quantile((n - 0.375) / (n + 0.25))
}

/// Seconds that `num_devices` wait for the slowest of them in a step with `compute_secs` of compute
/// on average.
pub fn waiting_secs(compute_secs: f64, variation: f64, num_devices: usize) -> f64 {
    compute_secs * variation * expected_maximum(num_devices)
}

/// The number of devices, among `num_devices` of a target, that take different times: every GPU,
/// but of TPUs one for each slice. TPUs keep their clock, run a program without their host and meet
/// the others of their slice at each collective; what varies is when slices reach the collectives
/// between them. MaxText's tables have steps of one slice and of up to 32.
pub fn num_varying(target: &Target, num_devices: usize) -> usize {
    match target.arrangement {
        Arrangement::Slices { num_slices, .. } => {
            num_devices.div_ceil((target.num_devices() / num_slices.max(1)).max(1))
        }
        Arrangement::Hosts { .. } => num_devices,
    }
}

/// The quantile of the standard normal distribution for `0.5 <= p < 1`, with an error below 4.5e-4:
/// Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), 26.2.23.
fn normal_quantile(p: f64) -> f64 {
    let t = (-2.0 * (1.0 - p).max(f64::MIN_POSITIVE).ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    t - above / below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_devices_wait_longer_and_more_and_more_slowly() {
        let waits: Vec<f64> = (0..=20).map(|power| waiting_secs(1.0, 0.03, 1 << power)).collect();
        assert_eq!(waits[0], 0.0);
        let steps: Vec<f64> = waits.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(steps.windows(2).all(|pair| pair[0] > pair[1] && pair[1] > 0.0), "{steps:?}");
    }

    #[test]
    fn gpus_vary_each_for_itself_and_tpus_by_slices() {
        let varying =
            |target: &str, num_devices| num_varying(&target.parse().unwrap(), num_devices);
        assert_eq!(varying("gpu:h100:4x8", 32), 32);
        assert_eq!(varying("gpu:h100:4x8", 2), 2);
        assert_eq!(varying("tpu:v5e:16x16", 256), 1);
        assert_eq!(varying("tpu:v5e:16x16x4", 1024), 4);
        assert_eq!(varying("tpu:v5e:16x16x4", 300), 2);
    }

    /// The expected maximum, from uniform numbers of a linear congruential generator through the
    /// same quantile.
    #[test]
    fn the_expected_maximum_is_that_of_a_simulation() {
        let mut state = 1u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        for n in [8, 256, 1024] {
            const ROUNDS: usize = 2000;
            let slowest = |uniform: &mut dyn FnMut() -> f64| {
                let largest = (0..n).map(|_| uniform()).fold(0.5, f64::max);
                normal_quantile(largest)
            };
            let sum: f64 = (0..ROUNDS).map(|_| slowest(&mut uniform)).sum();
            let mean = sum / ROUNDS as f64;
            assert!((mean - expected_maximum(n)).abs() < 0.05, "{n}: {mean}");
        }
    }
}
