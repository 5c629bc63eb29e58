//! How long steps take.

use std::time::{Duration, Instant};

/// Collects the durations of steps.
///
/// ```
/// use std::time::{Duration, Instant};
/// let mut timer = lockstep::metrics::StepTimer::new(Instant::now());
/// for ms in [900, 4, 3, 5] {
///     timer.record(Duration::from_millis(ms));
/// }
/// assert_eq!(timer.median_ms(), Some(4.5));
/// ```
#[derive(Clone, Debug)]
pub struct StepTimer {
    start: Instant,
    first_step: Option<Duration>,
    step_ms: Vec<f64>,
}

impl StepTimer {
    /// `start` is when the process started, as well as it is known.
    pub fn new(start: Instant) -> Self {
        Self { start, first_step: None, step_ms: vec![] }
    }

    /// Takes note of a step that has just ended.
    pub fn record(&mut self, step: Duration) {
        self.first_step.get_or_insert_with(|| self.start.elapsed());
        self.step_ms.push(step.as_secs_f64() * 1e3);
    }

    /// Steps recorded.
    pub fn num_steps(&self) -> usize {
        self.step_ms.len()
    }

    /// Seconds from the start to the end of the first step.
    pub fn first_step_secs(&self) -> Option<f64> {
        self.first_step.map(|time| time.as_secs_f64())
    }

    /// The median step in milliseconds.
    pub fn median_ms(&self) -> Option<f64> {
        median(&self.step_ms)
    }
}

/// The middle value, or the mean of the two in the middle; `None` without values.
///
/// ```
/// use lockstep::metrics::median;
/// assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
/// assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
/// assert_eq!(median(&[]), None);
/// ```
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}
