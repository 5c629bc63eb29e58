//! The noise of gradients, and the batch that it suggests.

/// The gradient noise scale of McCandlish, Kaplan, Amodei and the OpenAI Dota team, "An empirical
/// model of large-batch training" (2018), appendix A.1, from gradients of a batch of `B` examples
/// and of `n` parts of it, each of `b = B/n`:
///
/// ```text
/// |G|^2     = (B |g_B|^2 - b |g_b|^2) / (B - b)        the squared norm of the true gradient
/// tr(Sigma) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)        the variance of an example's gradient
/// B_simple  = mean of tr(Sigma) / mean of |G|^2
/// ```
/// Both estimates are unbiased, and each by itself is poor. The means are over the steps so far,
/// each of which counts [`Self::DECAY`] times as much as the next.
///
/// ```
/// use lockstep::observe::NoiseAverages;
///
/// let mut noise = NoiseAverages::default();
/// assert_eq!(noise.scale(), None);
/// // Four parts of 2 examples, |G|^2 = 3 and tr(Sigma) = 8: |g_b|^2 = 3 + 8/2, |g_B|^2 = 3 + 8/8.
/// noise.add(8, 4, 7.0, 4.0);
/// assert!((noise.scale().unwrap() - 8.0 / 3.0).abs() < 1e-12);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NoiseAverages {
    /// The mean of `tr(Sigma)`, times the weight of all steps so far.
    pub variance: f64,
    /// That of `|G|^2`.
    pub square: f64,
}

impl NoiseAverages {
    /// How much a step counts, in multiples of the next one.
    pub const DECAY: f64 = 0.98;

    /// Adds a step: `of_part`, the mean over the parts of the squared norms of their gradients, and
    /// `of_batch`, that of the whole batch.
    pub fn add(&mut self, batch: usize, num_parts: usize, of_part: f64, of_batch: f64) {
        let (batch, num_parts) = (batch as f64, num_parts as f64);
        let square = (num_parts * of_batch - of_part) / (num_parts - 1.0);
        let variance = (of_part - of_batch) * batch / (num_parts - 1.0);
        let add = |mean: &mut f64, value| *mean = Self::DECAY * *mean + (1.0 - Self::DECAY) * value;
        if square.is_finite() && variance.is_finite() {
            add(&mut self.square, square);
            add(&mut self.variance, variance);
        }
    }

    /// `B_simple` in examples; `None` before the first step. NaN while the true gradient cannot be
    /// told from 0.
    pub fn scale(&self) -> Option<f64> {
        let has_steps = *self != Self::default();
        let scale = if self.square > 0.0 { self.variance / self.square } else { f64::NAN };
        has_steps.then_some(scale)
    }
}

/// What the noise scale says about a batch, in words.
pub fn describe_noise(scale: f64, global_batch: usize) -> String {
    let batch = global_batch as f64;
    if !scale.is_finite() || scale <= 0.0 {
        return format!(
            "gradient noise scale: not known: the noise hides the gradient, or there is none; more \
             steps, or a larger batch than {global_batch}, would tell"
        );
    }
    let advice = match batch / scale {
        share if share < 0.5 => "a larger batch would save steps almost in proportion",
        share if share <= 2.0 => "near it",
        _ => "a smaller batch would need few more steps, and less computing",
    };
    format!(
        "gradient noise scale: it suggests a critical batch of about {scale:.0} examples; the \
         global batch is {global_batch}: {advice}"
    )
}
