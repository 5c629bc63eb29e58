//! What is done about batches that are late: keys of `[data]`, whatever the source.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::{KeyError, KeyErrors, Problem};
use super::sync::SyncConfig;
use super::{DataConfig, MeshConfig, ModelConfig, ObserveConfig, TrainConfig};

/// Keys of `[data]` beside those of the source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LateConfig {
    /// What a process does about a batch that is not there when half a step has passed since the
    /// step before ended: wait for it, or go on without it, so that nobody waits. Its part of the
    /// global batch then has weight 0 in that step, and its examples are lost. See
    /// [Several machines](cluster.md#late-batches).
    pub late: OnLate,
    /// The `metrics.jsonl` of a run with `late = "skip"`: the same parts of the same steps have
    /// weight 0, and all others are waited for, so that the run computes the same bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "path", "absent" = "each process decides by the time"))]
    pub late_from: Option<PathBuf>,
}

/// What is done about a late batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnLate {
    /// It is waited for.
    #[default]
    Wait,
    /// Its shard takes part with weight 0.
    Skip,
}

impl LateConfig {
    /// `true` if shards may take part with weight 0.
    pub fn skips(&self) -> bool {
        self.late == OnLate::Skip
    }
}

/// Each process decides for its own shards, and for one step at a time.
pub(super) fn check(
    late: &LateConfig,
    (data, model): (&DataConfig, Option<&ModelConfig>),
    (train, sync): (&TrainConfig, SyncConfig),
    (mesh, observe): (&MeshConfig, &ObserveConfig),
    errors: &mut KeyErrors,
) {
    let mut complain = |key: &str, other: &str, problem: String| {
        if errors.none_of(&[key, other]) {
            errors.push(KeyError::new(key, Problem::Inconsistent(problem)));
        }
    };
    if !late.skips() {
        if late.late_from.is_some() {
            let problem = "nothing is skipped with data.late = \"wait\"; set data.late to \"skip\", \
                           or leave out data.late_from (--unset data.late_from)";
            complain("data.late_from", "data.late", problem.to_owned());
        }
        return;
    }
    let has_lengths = matches!(data, DataConfig::Classification(it) if !it.pad_to.is_empty());
    let (tensor, pipeline) = (mesh.tensor.unwrap_or(1), mesh.pipeline.unwrap_or(1));
    let one = "1, so that each part of the batch is that of one process";
    let has_groups = model.and_then(ModelConfig::batch_norm_group).is_some_and(|group| group > 1);
    let rows = [
        (
            "train.microbatch",
            has_groups && train.microbatch.is_none(),
            "a multiple of model.batch_norm_group, so that each group is on one replica",
        ),
        ("train.steps_per_launch", train.steps_per_launch > 1, "1"),
        ("sync.every", sync.is_local(), "1"),
        ("mesh.tensor", tensor > 1, one),
        ("mesh.pipeline", pipeline > 1, one),
        ("observe.noise_scale_every", observe.noise_scale_every > 0, "0"),
        ("data.pad_to", has_lengths, "an empty list: a late batch has no length yet"),
    ];
    for (other, _, needed) in rows.into_iter().filter(|(_, is_excluded, _)| *is_excluded) {
        let problem =
            format!("\"skip\" needs {other} = {needed}; set that, or data.late to \"wait\"");
        complain("data.late", other, problem);
    }
}
