//! The numbers of a step, by name.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// A number that every step has. It is declared once, with what becomes of it: sinks go through the
/// metrics of a step, so that a new one needs no change in any of them.
///
/// ```
/// use lockstep::observe::Metric;
/// static DROPPED: Metric = Metric::count("num_dropped").on_terminal(0);
/// assert!(DROPPED.is_written && DROPPED.total_secs.is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, and the field of a line of `metrics.jsonl`.
    pub name: &'static str,
    /// `true` if it is a whole number.
    pub is_count: bool,
    /// `true` if files have it. Otherwise only the loop uses it.
    pub is_written: bool,
    /// The terminal shows it with this many digits after the point; `None`: it does not.
    pub terminal_digits: Option<usize>,
    /// For milliseconds: the field of `summary.json` that has their sum over all steps, in seconds.
    pub total_secs: Option<&'static str>,
}

impl Metric {
    /// The loss: the one metric that every program of a step has.
    pub const LOSS: &'static str = "loss";
    /// Updates skipped so far because a value was not finite.
    pub const NUM_SKIPPED: &'static str = "num_skipped";
    /// The batch that the noise of gradients suggests, in examples.
    pub const NOISE_SCALE: &'static str = "noise_scale";

    /// A number that only files have.
    pub const fn number(name: &'static str) -> Self {
        let (is_count, is_written) = (false, true);
        Self { name, is_count, is_written, terminal_digits: None, total_secs: None }
    }

    /// A whole number that only files have.
    pub const fn count(name: &'static str) -> Self {
        Self { is_count: true, ..Self::number(name) }
    }

    /// For the loop alone.
    #[must_use]
    pub const fn unwritten(self) -> Self {
        Self { is_written: false, ..self }
    }

    /// Also on the terminal, with this many digits after the point.
    #[must_use]
    pub const fn on_terminal(self, digits: usize) -> Self {
        Self { terminal_digits: Some(digits), ..self }
    }

    /// Also in the summary: the sum over all steps in seconds, as `field`. The metric is in
    /// milliseconds.
    #[must_use]
    pub const fn summed_as(self, field: &'static str) -> Self {
        Self { total_secs: Some(field), ..self }
    }
}

/// The metrics of a step, in the order of the files.
///
/// ```
/// use lockstep::observe::{Metric, MetricValues};
/// static RATE: Metric = Metric::number("rate");
/// let values: MetricValues = [(&RATE, 0.5)].into_iter().collect();
/// assert_eq!((values.get("rate"), values.get("other")), (Some(0.5), None));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricValues(Vec<(&'static Metric, f64)>);

impl MetricValues {
    /// The metric of this name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find_map(|(metric, value)| (metric.name == name).then_some(value))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Metric, f64)> {
        self.0.iter().copied()
    }
}

impl FromIterator<(&'static Metric, f64)> for MetricValues {
    fn from_iter<T: IntoIterator<Item = (&'static Metric, f64)>>(values: T) -> Self {
        Self(values.into_iter().collect())
    }
}

/// Those that files have.
impl Serialize for MetricValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        for (metric, value) in self.iter().filter(|(metric, _)| metric.is_written) {
            match metric.is_count {
                true => fields.serialize_entry(metric.name, &(value as u64))?,
                false => fields.serialize_entry(metric.name, &value)?,
            }
        }
        fields.end()
    }
}
