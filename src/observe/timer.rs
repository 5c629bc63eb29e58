//! How long steps take.

use std::time::Duration;

/// Collects the durations of launches.
///
/// ```
/// use std::time::Duration;
/// let mut timer = lockstep::observe::StepTimer::default();
/// for (ms, num_steps, elapsed_secs) in [(900, 1, 2.5), (8, 2, 2.51), (3, 1, 2.52), (5, 1, 2.53)] {
///     timer.record(Duration::from_millis(ms), num_steps, elapsed_secs);
/// }
/// assert_eq!(timer.first_step_secs(), Some(2.5));
/// assert_eq!(timer.median_ms(), Some(4.0));
/// assert_eq!(timer.steps_per_sec(), Some(250.0));
/// ```
#[derive(Clone, Debug, Default)]
pub struct StepTimer {
    first_step_secs: Option<f64>,
    step_ms: Vec<f64>,
    /// Steps of all launches but the first, and how long they took.
    later: (usize, Duration),
}

impl StepTimer {
    /// Adds a launch of `num_steps` steps, which share its duration evenly. It ended `elapsed_secs`
    /// seconds after the process started.
    pub fn record(&mut self, duration: Duration, num_steps: usize, elapsed_secs: f64) {
        match self.first_step_secs {
            None => self.first_step_secs = Some(elapsed_secs),
            Some(_) => self.later = (self.later.0 + num_steps, self.later.1 + duration),
        }
        let step_ms = duration.as_secs_f64() * 1e3 / num_steps as f64;
        self.step_ms.extend(std::iter::repeat_n(step_ms, num_steps));
    }

    /// Seconds from the start of the process to the end of the first launch.
    pub fn first_step_secs(&self) -> Option<f64> {
        self.first_step_secs
    }

    /// The median step in milliseconds.
    pub fn median_ms(&self) -> Option<f64> {
        median(&self.step_ms)
    }

    /// Steps per second in all launches but the first, which warms up; `None` if there was no
    /// other.
    pub fn steps_per_sec(&self) -> Option<f64> {
        let (num_steps, time) = self.later;
        (!time.is_zero()).then(|| num_steps as f64 / time.as_secs_f64())
    }
}

/// The middle value, or the mean of the two in the middle; `None` without values.
///
/// ```
/// use lockstep::observe::median;
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
