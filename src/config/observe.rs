//! `[observe]`: what is written about a run, beside `metrics.jsonl` and `summary.json`.

use std::ops::Range;

use hlo::Axis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::address::HostPort;
use super::error::{KeyError, KeyErrors, Problem, require};
use super::key::{KeyInfo, OnResume};
use super::keys::{Reader, Section};
use super::sync::SyncConfig;
use super::{BatchSplit, MeshConfig, ParallelConfig, TrainConfig};

/// The most steps that are traced: some kilobytes each.
const MAX_TRACED: u64 = 10_000;

/// `[observe]`. Files are in the output directory; without `--out` none is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct ObserveConfig {
    /// Write the numbers of each step and evaluation for TensorBoard, with `layers_every` also
    /// histograms of the parameters, into the folder `tensorboard` of the output directory. See
    /// [Outputs](outputs.md#tensorboard).
    pub tensorboard: bool,
    /// Steps between records of the norms of each parameter, its gradient and its update, in
    /// `layers.jsonl`. 0 records none. See [Outputs](outputs.md#layersjsonl).
    #[schemars(extend("unit" = "steps"))]
    pub layers_every: u64,
    /// Steps between measurements of the gradient noise scale, which suggests a batch size. 0 makes
    /// none. They need two batch shards or two microbatches. See
    /// [Outputs](outputs.md#gradient-noise-scale).
    #[schemars(extend("unit" = "steps"))]
    pub noise_scale_every: u64,
    /// Steps between probes of several processes, which find devices that are slower than others:
    /// each process times its work for one microbatch, eight times, without communication. 0 makes
    /// none. See [Several machines](cluster.md#slow-processes).
    #[schemars(extend("unit" = "steps"))]
    pub probe_every_steps: u64,
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

/// Checks what depends on other sections.
pub(super) fn check(
    observe: &ObserveConfig,
    (sync, parallel): (SyncConfig, &ParallelConfig),
    mesh: &MeshConfig,
    train: &TrainConfig,
    errors: &mut KeyErrors,
) {
    let mut complain = |key: &str, others: &[&str], problem: String| {
        if errors.none_of(&[&[key], others].concat()) {
            errors.push(KeyError::new(key, Problem::Inconsistent(problem)));
        }
    };
    let (layers, noise) = ("observe.layers_every", "observe.noise_scale_every");
    let keys = [(layers, observe.layers_every), (noise, observe.noise_scale_every)];
    for (key, _) in keys.into_iter().filter(|(_, every)| *every > 0 && sync.is_local()) {
        let problem = format!(
            "with sync.every = {} each replica has parameters of its own between outer steps, and \
             there is nothing to measure of all; set {key} to 0, or sync.every to 1",
            sync.every
        );
        complain(key, &["sync.every"], problem);
    }
    if observe.noise_scale_every == 0 {
        return;
    }
    if parallel.compression.is_some() {
        let problem = format!(
            "with parallel.compression the sum of the gradients is not that of the parts that it \
             is compared with; set {noise} to 0, or leave out parallel.compression (--unset \
             parallel.compression)"
        );
        complain(noise, &["parallel.compression"], problem);
    }
    let Some(mesh) = mesh.fixed() else { return };
    let batch = BatchSplit::new(train.batch, train.microbatches(), mesh.num_batch_shards());
    let Ok(batch) = batch else { return };
    let num_stages = mesh.size(Axis::Pipeline);
    let are_reduced_at_once = parallel.zero_stage() > 1 && mesh.size(Axis::Fsdp) > 1;
    let num_shards = match are_reduced_at_once {
        true => mesh.size(Axis::Data),
        false => mesh.num_batch_shards(),
    };
    if num_shards > 1 || num_stages == 1 && batch.num_microbatches() > 1 {
        return;
    }
    let mut changes = vec!["mesh.data to 2 or more"];
    if num_stages == 1 {
        changes.push("train.num_microbatches to 2 or more");
    }
    if are_reduced_at_once {
        changes.push("parallel.zero to 1");
    }
    let problem = format!(
        "the noise is measured by comparing the gradients of parts of the batch, and here it has \
         one part only; set {}, or {noise} to 0",
        changes.join(", or ")
    );
    let others = ["mesh", "parallel.zero", "train.num_microbatches", "train.microbatch"];
    complain(noise, &others, problem);
}
