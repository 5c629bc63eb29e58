//! The formulas. Each is a pure function of the step, or of the fraction of the decay that has
//! passed, and returns a fraction of the peak rate.

use std::f64::consts::PI;

use crate::config::ReachedAt;

/// Linear ("gradual") warm-up from `factor`, for `step < warmup_steps`:
/// `factor + (1 - factor) * n / warmup_steps`.
///
/// `n = step + 1` if the last step has the peak, as in Vaswani et al., "Attention Is All You Need"
/// (2017), equation 3. `n = step` if the first step has `factor`, as in Goyal et al., "Accurate,
/// Large Minibatch SGD: Training ImageNet in 1 Hour" (2017), section 2.2, where `factor` is the
/// ratio of the base rate to the peak.
///
/// ```
/// use lockstep::{config::ReachedAt, optim::schedule::warmup};
/// let rates = |peak_at| [0, 1, 2, 3].map(|step| warmup(step, 4, 0.0, peak_at));
/// assert_eq!(rates(ReachedAt::LastStep), [0.25, 0.5, 0.75, 1.0]);
/// assert_eq!(rates(ReachedAt::NextStep), [0.0, 0.25, 0.5, 0.75]);
/// ```
pub fn warmup(step: u64, warmup_steps: u64, factor: f64, peak_at: ReachedAt) -> f64 {
    factor + (1.0 - factor) * (number(step, peak_at) as f64 / warmup_steps as f64)
}

/// The step counted so that step number `warmup_steps` has the peak.
fn number(step: u64, peak_at: ReachedAt) -> u64 {
    match peak_at {
        ReachedAt::LastStep => step.saturating_add(1),
        ReachedAt::NextStep => step,
    }
}

/// The peak throughout: `1`.
///
/// ```
/// assert_eq!(lockstep::optim::schedule::constant(), 1.0);
/// ```
pub fn constant() -> f64 {
    1.0
}

/// Cosine decay without restarts: `floor + (1 - floor) * (1 + cos(pi * t)) / 2`.
///
/// Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (ICLR 2017),
/// equation 5, with one cycle.
///
/// ```
/// use lockstep::optim::schedule::cosine;
/// assert_eq!(cosine(0.0, 0.1), 1.0);
/// assert!((cosine(0.5, 0.1) - 0.55).abs() < 1e-15);
/// assert!((cosine(1.0, 0.1) - 0.1).abs() < 1e-15);
/// ```
pub fn cosine(t: f64, floor: f64) -> f64 {
    floor + (1.0 - floor) * 0.5 * (1.0 + (PI * t).cos())
}

/// Linear decay: `floor + (1 - floor) * (1 - t)`.
///
/// Devlin et al., "BERT" (NAACL 2019), appendix A.2, with floor 0.
///
/// ```
/// use lockstep::optim::schedule::linear;
/// assert_eq!([0.0, 0.5, 1.0].map(|t| linear(t, 0.0)), [1.0, 0.5, 0.0]);
/// ```
pub fn linear(t: f64, floor: f64) -> f64 {
    floor + (1.0 - floor) * (1.0 - t)
}

/// Polynomial decay: `floor + (1 - floor) * (1 - t)^power`.
///
/// You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks" (2017), with power 2
/// and floor 0.
///
/// ```
/// use lockstep::optim::schedule::polynomial;
/// assert_eq!([0.0, 0.5, 1.0].map(|t| polynomial(t, 2.0, 0.0)), [1.0, 0.25, 0.0]);
/// ```
pub fn polynomial(t: f64, power: f64, floor: f64) -> f64 {
    floor + (1.0 - floor) * (1.0 - t).powf(power)
}

/// Inverse square root: `sqrt(scale / n)`, at most 1; `scale` is the length of the warm-up, so that
/// the curve continues it. `n` is `step + 1`, or `step` if the warm-up reaches the peak at the step
/// after it.
///
/// Vaswani et al., "Attention Is All You Need" (2017), equation 3, counts steps from 1.
///
/// ```
/// use lockstep::{config::ReachedAt, optim::schedule::inverse_sqrt};
/// assert_eq!([99, 399].map(|step| inverse_sqrt(step, 100, ReachedAt::LastStep)), [1.0, 0.5]);
/// assert_eq!([100, 400].map(|step| inverse_sqrt(step, 100, ReachedAt::NextStep)), [1.0, 0.5]);
/// ```
pub fn inverse_sqrt(step: u64, scale: u64, peak_at: ReachedAt) -> f64 {
    (scale.max(1) as f64 / number(step, peak_at) as f64).sqrt().min(1.0)
}

/// Step decay: `factor ^ (number of boundaries at or before the step)`. Boundaries are ascending.
///
/// He et al., "Deep Residual Learning for Image Recognition" (CVPR 2016), section 4.2, with factor
/// 0.1.
///
/// ```
/// use lockstep::optim::schedule::step_decay;
/// assert_eq!([9, 10, 20].map(|step| step_decay(step, &[10, 20], 0.5)), [1.0, 0.5, 0.25]);
/// ```
pub fn step_decay(step: u64, boundaries: &[u64], factor: f64) -> f64 {
    let num_passed = boundaries.partition_point(|boundary| *boundary <= step);
    (0..num_passed).fold(1.0, |rate, _| rate * factor)
}

/// Inverse-root decay, for the end of a [`Wsd`](crate::config::Wsd) schedule:
/// `floor + (1 - floor) * (1 - sqrt(t))`.
///
/// Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations"
/// (2024).
///
/// ```
/// use lockstep::optim::schedule::one_minus_sqrt;
/// assert_eq!([0.0, 0.25, 1.0].map(|t| one_minus_sqrt(t, 0.0)), [1.0, 0.5, 0.0]);
/// ```
pub fn one_minus_sqrt(t: f64, floor: f64) -> f64 {
    floor + (1.0 - floor) * (1.0 - t.sqrt())
}

/// Linear interpolation between points `(boundary, factor)` of increasing boundaries: the first
/// factor before the first point, the last factor after the last point; 1 without points.
///
/// ```
/// use lockstep::optim::schedule::piecewise_linear;
/// let points = [(10, 0.5), (20, 1.0), (40, 0.0)];
/// let rates = [0, 10, 15, 20, 30, 50].map(|step| piecewise_linear(step, &points));
/// assert_eq!(rates, [0.5, 0.5, 0.75, 1.0, 0.5, 0.0]);
/// ```
pub fn piecewise_linear(step: u64, points: &[(u64, f64)]) -> f64 {
    let next = points.partition_point(|(boundary, _)| *boundary <= step);
    match (next.checked_sub(1).and_then(|before| points.get(before)), points.get(next)) {
        (Some((start, from)), Some((end, to))) => {
            from + (to - from) * ((step - start) as f64 / (end - start) as f64)
        }
        (Some((_, factor)), None) | (None, Some((_, factor))) => *factor,
        (None, None) => constant(),
    }
}

/// The factor of the last point at or before the step; the first factor before the first point; 1
/// without points.
///
/// ```
/// use lockstep::optim::schedule::piecewise_constant;
/// let points = [(10, 1.0), (20, 0.3)];
/// assert_eq!([0, 19, 20].map(|step| piecewise_constant(step, &points)), [1.0, 1.0, 0.3]);
/// ```
pub fn piecewise_constant(step: u64, points: &[(u64, f64)]) -> f64 {
    let next = points.partition_point(|(boundary, _)| *boundary <= step);
    points.get(next.saturating_sub(1)).map_or(constant(), |(_, factor)| *factor)
}
