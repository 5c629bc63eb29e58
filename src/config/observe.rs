//! `[observe]`: what is written about a run, beside `metrics.jsonl` and `summary.json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::address::HostPort;
use super::error::{KeyError, KeyErrors, Problem, require};
use super::key::{KeyInfo, OnResume};
use super::keys::{Reader, Section};
use super::sync::SyncConfig;

/// `[observe]`. Files are in the output directory; without `--out` none is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct ObserveConfig {
    /// Write the numbers of each step and evaluation for TensorBoard, into the folder `tensorboard`
    /// of the output directory. See [Outputs](outputs.md#tensorboard).
    pub tensorboard: bool,
    /// Steps between records of the norms of each parameter, its gradient and its update, in
    /// `layers.jsonl`. 0 records none. See [Outputs](outputs.md#layersjsonl).
    #[schemars(extend("unit" = "steps"))]
    pub layers_every: u64,
    /// Answer `GET /metrics` at this address with the state of the run, for Prometheus and others
    /// that read OpenMetrics. Further processes on a host take the next ports. Everyone who reaches
    /// the address can read it. See [Outputs](outputs.md#prometheus).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "`HOST:PORT`", "absent" = "no endpoint"))]
    pub prometheus: Option<String>,
}

impl ObserveConfig {
    /// The address of `prometheus`.
    pub fn prometheus_address(&self) -> Option<HostPort> {
        self.prometheus.as_ref()?.parse().ok()
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
        Some(keys)
    }
}

/// Checks what depends on other sections.
pub(super) fn check(observe: &ObserveConfig, sync: SyncConfig, errors: &mut KeyErrors) {
    let key = "observe.layers_every";
    if observe.layers_every > 0 && sync.is_local() && errors.none_of(&[key, "sync.every"]) {
        let problem = format!(
            "with sync.every = {} each replica has parameters of its own between outer steps, so \
             that there are no norms of all; set {key} to 0, or sync.every to 1",
            sync.every
        );
        errors.push(KeyError::new(key, Problem::Inconsistent(problem)));
    }
}
