//! `[sync]`: how often replicas meet.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::error::KeyErrors;
use super::key::{KeyInfo, OnResume};
use super::keys::{Reader, Section};
use super::{AutoOr, KeyError, MeshConfig, OptimizerConfig, ParallelConfig, Problem};

/// `[sync]`. With `every` above 1, replicas along `mesh.data` train on their own between outer
/// steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct SyncConfig {
    /// Steps from one outer step to the next. With more than 1, each replica along `mesh.data`
    /// trains on its own share of the batch, and in every so many steps all take an outer step
    /// towards the mean of their parameters (DiLoCo): another algorithm, which communicates only
    /// then. Evaluations, checkpoints and proofs wait for the next outer step. See
    /// [What communication costs](communication.md#local-steps).
    #[schemars(range(min = 1, max = MAX_EVERY), extend("unit" = "steps", "resume" = "refuse"))]
    #[default(1)]
    pub every: u64,
    /// The learning rate of outer steps. Only with `every` above 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 10, "absent" = "0.7"))]
    pub outer_learning_rate: Option<f64>,
    /// The Nesterov momentum of outer steps. Only with `every` above 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1, "absent" = "0.9"))]
    pub outer_momentum: Option<f64>,
}

/// The largest `every`.
const MAX_EVERY: u64 = 1_000_000;

impl SyncConfig {
    /// `true` if replicas train on their own between outer steps.
    pub fn is_local(&self) -> bool {
        self.every > 1
    }
}

impl Section for SyncConfig {
    const NAME: &'static str = "sync";
    const ABOUT: &str = "How often replicas meet.";

    fn keys(_choice: &str) -> Vec<KeyInfo> {
        KeyInfo::shared::<Self>(OnResume::Warn)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.keys()
    }
}

/// With local steps each replica holds the whole model, no gradients are sent, and the engine sums
/// what outer steps send.
pub(super) fn check(
    sync: SyncConfig,
    (mesh, parallel): (&MeshConfig, &ParallelConfig),
    optimizer: &OptimizerConfig,
    errors: &mut KeyErrors,
) {
    let mut complain = |key: &str, others: &[&str], problem: String| {
        if errors.none_of(&[&[key], others].concat()) {
            errors.push(KeyError::new(key, Problem::Inconsistent(problem)));
        }
    };
    if !sync.is_local() {
        let outer = [
            ("sync.outer_learning_rate", sync.outer_learning_rate.is_some()),
            ("sync.outer_momentum", sync.outer_momentum.is_some()),
        ];
        for (key, _) in outer.into_iter().filter(|(_, is_set)| *is_set) {
            let problem = format!(
                "there are no outer steps: sync.every = 1; set sync.every to 2 or more, or leave \
                 out {key} (--unset {key})"
            );
            complain(key, &["sync.every"], problem);
        }
        return;
    }
    let every = sync.every;
    if mesh.data == AutoOr::Value(1) {
        let problem = format!(
            "replicas along mesh.data take {every} steps on their own, but mesh.data = 1: there \
             is nobody to meet; set mesh.data to 2 or more, or sync.every to 1"
        );
        complain("sync.every", &["mesh.data"], problem);
    }
    let others = [
        ("mesh.fsdp", !matches!(mesh.fsdp, AutoOr::Value(1))),
        ("mesh.tensor", mesh.tensor.unwrap_or(1) > 1),
        ("mesh.pipeline", mesh.pipeline.unwrap_or(1) > 1),
    ];
    for (key, _) in others.into_iter().filter(|(_, is_cut)| *is_cut) {
        let problem = format!(
            "with sync.every = {every} each replica holds the whole model; set {key} to 1, or \
             sync.every to 1"
        );
        complain(key, &["sync.every"], problem);
    }
    let sent = [
        ("parallel.reduce_dtype", parallel.reduce_dtype.is_some()),
        ("parallel.compression", parallel.compression.is_some()),
    ];
    for (key, _) in sent.into_iter().filter(|(_, is_set)| *is_set) {
        let problem = format!(
            "with sync.every = {every} no gradients are sent; leave it out (--unset {key}), or set \
             sync.every to 1"
        );
        complain(key, &["sync.every"], problem);
    }
    let algorithms = [
        ("parallel.all_reduce", parallel.all_reduce.algorithm().is_some()),
        ("parallel.fabric", parallel.fabric.is_some()),
    ];
    for (key, _) in algorithms.into_iter().filter(|(_, is_set)| *is_set) {
        let problem = format!(
            "with sync.every = {every} the engine sums what an outer step sends; leave it out \
             (--unset {key}), or set sync.every to 1"
        );
        complain(key, &["sync.every"], problem);
    }
    if optimizer.ema_decay.is_some() {
        let problem = format!(
            "with sync.every = {every} parameters are means of replicas already, which outer steps \
             change; leave it out (--unset optimizer.ema_decay), or set sync.every to 1"
        );
        complain("optimizer.ema_decay", &["sync.every"], problem);
    }
}
