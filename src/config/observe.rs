//! `[observe]`: what is written about a run, beside `metrics.jsonl` and `summary.json`.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::address::HostPort;
use super::error::require;
use super::key::{KeyInfo, OnResume};
use super::keys::{Reader, Section};

/// The most steps that are traced: some kilobytes each.
const MAX_TRACED: u64 = 10_000;

/// `[observe]`. Files are in the output directory; without `--out` none is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct ObserveConfig {
    /// Write the numbers of each step and evaluation for TensorBoard, into the folder `tensorboard`
    /// of the output directory. See [Outputs](outputs.md#tensorboard).
    pub tensorboard: bool,
    /// Answer `GET /metrics` at this address with the state of the run, for Prometheus and others
    /// that read OpenMetrics. Further processes on a host take the next ports. Everyone who reaches
    /// the address can read it. See [Outputs](outputs.md#prometheus).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "`HOST:PORT`", "absent" = "no endpoint"))]
    pub prometheus: Option<String>,
    /// Trace the steps from the first index to the one before the second, for Perfetto: each
    /// process writes a file into the folder `trace` of the output directory. See
    /// [Outputs](outputs.md#perfetto).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "`FIRST..END`, at most 10000 steps", "absent" = "no trace"))]
    pub trace_steps: Option<String>,
}

impl ObserveConfig {
    /// The address of `prometheus`.
    pub fn prometheus_address(&self) -> Option<HostPort> {
        self.prometheus.as_ref()?.parse().ok()
    }

    /// The indices in `trace_steps`.
    pub fn traced_steps(&self) -> Option<Range<u64>> {
        let (first, end) = self.trace_steps.as_ref()?.split_once("..")?;
        let index = |text: &str| text.parse::<u64>().ok().filter(|_| !text.starts_with('+'));
        let steps = index(first)?..index(end)?;
        let num_steps = steps.end.checked_sub(steps.start)?;
        (1..=MAX_TRACED).contains(&num_steps).then_some(steps)
    }
}

impl Section for ObserveConfig {
    const NAME: &'static str = "observe";
    const ABOUT: &str = "What is written about a run.";

    fn keys(_choice: &str) -> Vec<KeyInfo> {
        KeyInfo::shared::<Self>(OnResume::Same)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let keys: Self = reader.keys()?;
        if let Some(address) = &keys.prometheus {
            let is_address = keys.prometheus_address().is_some();
            reader.errors.check(require(is_address, "prometheus", address, "HOST:PORT"));
        }
        if let Some(steps) = &keys.trace_steps {
            let allowed = "FIRST..END, such as 100..110, at most 10000 steps";
            let are_steps = keys.traced_steps().is_some();
            reader.errors.check(require(are_steps, "trace_steps", steps, allowed));
        }
        Some(keys)
    }
}
