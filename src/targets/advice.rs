//! Advice for a step that does not fit in memory.

use std::fmt;

use hlo::{Axis, Mesh};

use super::memory::{Memory, gib};
use crate::parallel::{PipelinePlan, PipelineSchedule};

/// What a replica has of the model where so many hold a copy of it together, if nothing else is
/// sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPieces {
    /// Replicas along `tensor`.
    pub tensor: usize,
    /// `true` if they share rows, and layers are whole (context parallelism).
    pub is_context: bool,
    /// Replicas along `pipeline`.
    pub pipeline: usize,
    /// Bytes of the state.
    pub state_bytes: u64,
    /// Bytes of the parameters as they are kept.
    pub parameters_bytes: u64,
    /// Bytes of the parameters in the compute dtype.
    pub gathered_bytes: u64,
}

impl ModelPieces {
    /// Replicas that hold a copy of the model together.
    fn num_replicas(self) -> usize {
        self.tensor * self.pipeline
    }
}

/// The settings of a step on which advice depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// Examples per microbatch on one replica.
    pub microbatch: usize,
    /// Microbatches per step.
    pub num_microbatches: usize,
    /// `train.batch_per_replica`, if that is set and not the global batch.
    pub batch_per_replica: Option<usize>,
    /// The global batch, if `train.microbatch` is set: the microbatch divides it, and their number
    /// follows.
    pub batch_of_fixed: Option<usize>,
    /// `true` if blocks are recomputed in the backward pass; `None` if the model has no such
    /// option.
    pub remat: Option<bool>,
    /// The mesh.
    pub mesh: Mesh,
    /// Stage of ZeRO; matters only if the state is sharded.
    pub zero: usize,
    /// `true` if the configuration sets the stage, which it must not for whole state.
    pub is_zero_set: bool,
    /// How microbatches pass the stages, if there are several.
    pub pipeline: PipelinePlan,
    /// The keys of the pipeline that the configuration sets, which it must not without one.
    pub pipeline_keys: Vec<&'static str>,
    /// Number of equal blocks, which stages divide; 0 if the model is not made of such.
    pub num_blocks: usize,
    /// `true` if the configuration sets `parallel.sequence`, which it must not with context
    /// parallelism.
    pub is_sequence_set: bool,
    /// With the replicas of the mesh along `tensor` and `pipeline`.
    pub pieces: ModelPieces,
    /// With each other number of them that is possible, and with the other cut.
    pub other_pieces: Vec<ModelPieces>,
}

impl Knobs {
    fn all_pieces(&self) -> impl Iterator<Item = ModelPieces> + Clone {
        std::iter::once(self.pieces).chain(self.other_pieces.iter().copied())
    }
}

/// The settings that advice may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    /// Of a replica, with the replicas along `tensor` and `pipeline` that are chosen.
    pieces: ModelPieces,
    /// Chunks of blocks of each stage.
    num_chunks: usize,
    fsdp: usize,
    zero: usize,
    remat: bool,
    /// Number of microbatches in place of each present one.
    parts: usize,
}

/// Settings with which a step is expected to fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// Each as `section.key=value`, or `--unset section.key` for a key to take back.
    pub sets: Vec<String>,
    /// The peak with them, in bytes.
    pub peak_bytes: u64,
    /// Whether the step fits, if it was compiled with them; `None` if the peak is an estimate.
    pub fits: Option<bool>,
}

impl Suggestion {
    /// The keys to set. With another mesh, `mesh.data` takes the devices that are left,
    /// whatever the file says.
    pub fn all_sets(&self) -> Vec<String> {
        let mut sets = self.sets.clone();
        if sets.iter().any(|set| set.starts_with("mesh.")) {
            sets.push("mesh.data=auto".to_owned());
        }
        sets
    }
}

/// As arguments of any command.
impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peak = gib(self.peak_bytes);
        for set in self.all_sets() {
            let option = if set.starts_with("--unset ") { "" } else { "--set " };
            write!(f, "{option}{set} ")?;
        }
        match self.fits {
            None => write!(f, "(estimated peak {peak})"),
            Some(true) => write!(f, "(compiled: peak {peak}, fits)"),
            Some(false) => write!(f, "(compiled: peak {peak}, does not fit)"),
        }
    }
}

/// Changes that help, best first, and other advice if none of them is estimated to be enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryAdvice {
    /// Each alone, and each with other keys.
    pub suggestions: Vec<Suggestion>,
    /// Advice for all settings, if no change of settings is estimated to be enough.
    pub otherwise: Option<String>,
}

impl MemoryAdvice {
    /// A line for each.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.suggestions.iter().map(Suggestion::to_string).chain(self.otherwise.clone())
    }
}

/// Maximum number of suggestions.
const MAX_ADVICE: usize = 4;
/// The fraction of activations that remain with `model.remat`. Blocks differ; the largest part of
/// most is recomputed.
const REMAT_SHARE: f64 = 1.0 / 3.0;
/// The fraction of whole parameters and gradients that is in memory at once in stage 3, and of
/// whole gradients in stage 2: those of two blocks and the largest single parameters.
const BLOCKS_SHARE: f64 = 0.25;
/// The largest fraction of a GPU's memory that is suggested for the program. The rest is for the
/// driver, the libraries and their workspaces.
const MAX_FRACTION: f64 = 0.92;

impl Choice {
    fn now(knobs: &Knobs) -> Self {
        let (fsdp, remat) = (knobs.mesh.size(Axis::Fsdp), knobs.remat == Some(true));
        let (pieces, num_chunks) = (knobs.pieces, knobs.pipeline.num_chunks);
        Self { pieces, num_chunks, fsdp, zero: knobs.zero, remat, parts: 1 }
    }

    /// The schedule of the microbatches, if there are several stages.
    fn schedule(self, knobs: &Knobs) -> Option<PipelineSchedule> {
        let (order, num_stages) = (knobs.pipeline.order, self.pieces.pipeline);
        let num_microbatches = knobs.num_microbatches * self.parts;
        (num_stages > 1)
            .then(|| PipelineSchedule::new(order, num_stages, self.num_chunks, num_microbatches))
    }

    /// The fraction of the ticks in which a stage is idle.
    fn idle(self, knobs: &Knobs) -> f64 {
        self.schedule(knobs).map_or(0.0, |schedule| schedule.bubble())
    }

    /// For how many microbatches a replica has activations, each as many as of a whole model. A
    /// stage keeps those of its chunks for several, and one more is at work; but with P stages each
    /// replica has the part of the model that it would have of P times the examples.
    fn alive(self, knobs: &Knobs) -> f64 {
        let slots = self.schedule(knobs).map(|schedule| schedule.num_slots() + 1);
        slots.map_or(1.0, |slots| slots as f64 / self.num_chunks as f64)
    }

    /// Temporaries that do not depend on the batch: whole parameters in the compute dtype, and
    /// gradients.
    fn fixed_bytes(self) -> f64 {
        let ModelPieces { gathered_bytes, parameters_bytes, .. } = self.pieces;
        let (gathered, gradients) = (gathered_bytes as f64, parameters_bytes as f64);
        let shard = gradients / self.fsdp as f64;
        match (self.fsdp, self.zero) {
            // Whole parameters are used as they are, unless they are converted.
            (1, _) if gathered >= gradients => gradients,
            (1, _) | (_, ..=1) => gathered + gradients,
            (_, 2) => gathered + shard + BLOCKS_SHARE * gradients,
            (_, 3..) => shard + BLOCKS_SHARE * (gathered + gradients),
        }
    }

    /// Estimated peak, from the memory of the step as it is now. With twice as many replicas along
    /// `tensor` or `pipeline` each has half of the activations of twice as many examples.
    fn peak_bytes(self, memory: &Memory, knobs: &Knobs) -> f64 {
        let now = Self::now(knobs);
        let activations = (memory.temporaries_bytes as f64 - now.fixed_bytes()).max(0.0);
        let share = match (now.remat, self.remat) {
            (false, true) => REMAT_SHARE,
            (true, false) => 1.0 / REMAT_SHARE,
            _ => 1.0,
        };
        let state = self.pieces.state_bytes as f64 / self.fsdp as f64;
        let alive = self.alive(knobs) / now.alive(knobs);
        state + self.fixed_bytes() + activations * share * alive / self.parts as f64
    }

    /// `true` if there is a microbatch for each stage, and several chunks take them in turns.
    fn takes_turns(self, knobs: &Knobs) -> bool {
        let (stages, microbatches) = (self.pieces.pipeline, knobs.num_microbatches * self.parts);
        let in_turns = self.num_chunks == 1 || microbatches.is_multiple_of(stages);
        let is_now = self == Self::now(knobs);
        stages == 1 || is_now || (microbatches >= stages && in_turns)
    }

    /// Examples of a microbatch, on all replicas that hold a copy of the model together.
    fn microbatch(self, knobs: &Knobs) -> usize {
        knobs.microbatch * self.pieces.num_replicas() / knobs.pieces.num_replicas() / self.parts
    }

    /// The keys that differ from `now`.
    fn sets(self, now: Self, knobs: &Knobs) -> Vec<String> {
        let mut sets = vec![];
        if knobs.batch_of_fixed.is_some() {
            let microbatch = self.microbatch(knobs);
            if microbatch != knobs.microbatch {
                sets.push(format!("train.microbatch={microbatch}"));
            }
        } else if self.parts != now.parts {
            sets.push(format!("train.num_microbatches={}", knobs.num_microbatches * self.parts));
        }
        let (pieces, of_now) = (self.pieces, now.pieces);
        if pieces.tensor != of_now.tensor {
            sets.push(format!("mesh.tensor={}", pieces.tensor));
        }
        if pieces.is_context != of_now.is_context {
            sets.push(match pieces.is_context {
                true => "parallel.context=true".to_owned(),
                false => "--unset parallel.context".to_owned(),
            });
            if pieces.is_context && knobs.is_sequence_set {
                sets.push("--unset parallel.sequence".to_owned());
            }
        }
        if pieces.pipeline != of_now.pipeline {
            sets.push(format!("mesh.pipeline={}", pieces.pipeline));
        }
        if pieces.pipeline > 1 && self.num_chunks != now.num_chunks {
            sets.push(format!("parallel.pipeline_chunks={}", self.num_chunks));
        }
        if pieces.pipeline == 1 && of_now.pipeline > 1 {
            sets.extend(knobs.pipeline_keys.iter().map(|key| format!("--unset {key}")));
        }
        if pieces.num_replicas() != of_now.num_replicas() {
            // The global batch stays.
            let batch = |batch: usize| batch * pieces.num_replicas() / of_now.num_replicas();
            let batch = knobs.batch_per_replica.map(batch);
            sets.extend(batch.map(|batch| format!("train.batch_per_replica={batch}")));
        }
        if self.fsdp != now.fsdp {
            sets.push(format!("mesh.fsdp={}", self.fsdp));
        }
        match self.fsdp {
            1 if now.fsdp != 1 && knobs.is_zero_set => {
                sets.push("--unset parallel.zero".to_owned())
            }
            2.. if self.zero != now.zero => sets.push(format!("parallel.zero={}", self.zero)),
            _ => {}
        }
        if self.remat != now.remat {
            sets.push(format!("model.remat={}", self.remat));
        }
        sets
    }

    /// The cost compared with the other choices, roughly in steps of a tenth of the step time.
    fn cost(self, now: Self, knobs: &Knobs) -> f64 {
        let parts = (self.parts as f64).log2() * 0.5;
        let remat = if self.remat && !now.remat { 3.0 } else { 0.0 };
        let gathers = match (self.fsdp, self.zero) {
            (1, _) => 0.0,
            (_, stage) => stage as f64 * (1.0 + 0.25 * ((self.parts as f64).log2())),
        };
        // Few of the collectives in layers overlap with matmuls. Keys and values of an example are
        // three fifths of the bytes of its rows.
        let more = self.pieces.tensor as f64 / now.pieces.tensor as f64;
        let per_doubling = if self.pieces.is_context { 1.5 } else { 2.5 };
        let layers = per_doubling * more.log2().max(0.0);
        // A pass through all stages takes longer by the ticks in which they are idle.
        let longer = |choice: Self| 10.0 / (1.0 - choice.idle(knobs));
        let idle = longer(self) - longer(now);
        parts + remat + gathers + layers + idle + 0.1 * (self.fsdp as f64 / now.fsdp as f64).log2()
    }
}

/// Changes that are estimated to make the step fit, or if there are none, the one that needs the
/// least memory. The estimate counts as activations whatever else the compiler holds whole, such as
/// updates and their copies, so a change may fit all the same.
pub(super) fn advice(memory: &Memory, knobs: &Knobs) -> MemoryAdvice {
    let now = Choice::now(knobs);
    let mut suggestions: Vec<Suggestion> = larger_fraction(memory).into_iter().collect();
    let remats = if knobs.remat == Some(false) { &[false, true][..] } else { &[now.remat] };
    let mut found: Vec<(Vec<String>, f64, f64)> = choices(Some(now), remats, knobs)
        .into_iter()
        .filter(|choice| *choice != now)
        .map(|choice| {
            let sets = choice.sets(now, knobs);
            (sets, choice.cost(now, knobs), choice.peak_bytes(memory, knobs))
        })
        .collect();
    // Stages wait for each other, so they are named only if that is enough.
    let has_more_stages = |sets: &[String]| sets.iter().any(|set| set.starts_with("mesh.pipeline"));
    let others = found.iter().filter(|(sets, ..)| !has_more_stages(sets));
    let least = others.min_by(|a, b| a.2.total_cmp(&b.2)).cloned();
    found.retain(|(_, _, peak)| *peak <= memory.limit_bytes as f64);
    if found.is_empty() && suggestions.is_empty() {
        let suggestion = |(sets, _, peak)| Suggestion { sets, peak_bytes: peak as u64, fits: None };
        let whole = knobs.all_pieces().map(|pieces| pieces.state_bytes).max();
        let state = gib(whole.unwrap_or(0));
        let otherwise = format!("take more devices or a smaller model: the whole state is {state}");
        let suggestions = least.map(suggestion).into_iter().collect();
        return MemoryAdvice { suggestions, otherwise: Some(otherwise) };
    }
    // Few changes first, cheap ones first.
    found.sort_by(|a, b| a.0.len().cmp(&b.0.len()).then_with(|| a.1.total_cmp(&b.1)));
    let keys = |sets: &[String]| -> Vec<String> {
        sets.iter().filter_map(|set| set.split('=').next().map(str::to_owned)).collect()
    };
    let mut seen: Vec<Vec<String>> = vec![];
    for (sets, _, peak) in found {
        // The best for each set of keys, and none that changes further keys without need.
        let changed = keys(&sets);
        if seen.iter().any(|seen| seen.iter().all(|key| changed.contains(key))) {
            continue;
        }
        seen.push(changed);
        suggestions.push(Suggestion { sets, peak_bytes: peak as u64, fits: None });
    }
    suggestions.truncate(MAX_ADVICE);
    MemoryAdvice { suggestions, otherwise: None }
}

/// More of a GPU's memory for the program, if that is enough.
fn larger_fraction(memory: &Memory) -> Option<Suggestion> {
    let device = memory.device_bytes as f64;
    let fraction = (100.0 * memory.peak_bytes as f64 / device + 1.0).ceil() / 100.0;
    let is_enough = memory.limit_bytes < memory.device_bytes && fraction <= MAX_FRACTION;
    is_enough.then(|| Suggestion {
        sets: vec![format!("device.options.memory_fraction={fraction}")],
        peak_bytes: memory.peak_bytes,
        fits: None,
    })
}

/// A fraction of ticks in which stages are idle that no more microbatches are taken to lower.
const LITTLE_IDLE: f64 = 0.1;

/// The settings that are estimated to fit, as they are among them: each way of sharding and remat,
/// with the fewest microbatches that fit. And the number of those that are estimated not to.
///
/// Of pipelines, those with more microbatches too, until few ticks are idle; with `fsdp` over all
/// other replicas or none, and with remat only where nothing fits without it.
pub fn candidates(memory: &Memory, knobs: &Knobs) -> (Vec<Suggestion>, usize) {
    let now = Choice::now(knobs);
    let mut found: Vec<(Choice, Suggestion)> = vec![];
    let mut num_too_large = 0;
    let remats = if knobs.remat.is_some() { &[false, true][..] } else { &[now.remat] };
    for choice in choices(None, remats, knobs) {
        let is_pipeline = choice.pieces.pipeline > 1;
        let of_replicas = knobs.mesh.num_replicas() / choice.pieces.num_replicas();
        if is_pipeline && choice != now && ![1, of_replicas].contains(&choice.fsdp) {
            continue;
        }
        // Microbatches that fit make more of them useless, unless stages are idle.
        let makes_useless = |other: &Choice| {
            let same = |choice: Choice| Choice { parts: 1, ..choice };
            let is_same = same(*other) == same(choice) && other.idle(knobs) <= LITTLE_IDLE;
            let without_remat = Choice { remat: false, ..same(choice) };
            is_same || (is_pipeline && choice.remat && same(*other) == without_remat)
        };
        if choice != now && found.iter().any(|(other, _)| makes_useless(other)) {
            continue;
        }
        let peak =
            if choice == now { memory.peak_bytes as f64 } else { choice.peak_bytes(memory, knobs) };
        if peak > memory.limit_bytes as f64 {
            num_too_large += 1;
            continue;
        }
        let sets = choice.sets(now, knobs);
        found.push((choice, Suggestion { sets, peak_bytes: peak as u64, fits: None }));
    }
    (found.into_iter().map(|(_, suggestion)| suggestion).collect(), num_too_large)
}

/// Every combination of the settings that the mesh and the batch allow; with `least` only those
/// that cut the state into at least as many pieces, from its stage on. With stages, at least as
/// many microbatches, and one or two chunks.
fn choices(least: Option<Choice>, remats: &[bool], knobs: &Knobs) -> Vec<Choice> {
    let divisors = |number: usize| (1..=number).filter(move |n| number.is_multiple_of(*n));
    let is_enough = |pieces: ModelPieces, fsdp: usize| {
        least.is_none_or(|Choice { pieces: of_least, fsdp: least_fsdp, .. }| {
            pieces.tensor >= of_least.tensor
                && pieces.pipeline >= of_least.pipeline
                && fsdp * pieces.num_replicas() >= least_fsdp * of_least.num_replicas()
        })
    };
    let least_zero = least.map_or(1, |least| least.zero);
    let mut found = vec![];
    for pieces in knobs.all_pieces() {
        let (replicas, now) = (pieces.num_replicas(), knobs.pieces.num_replicas());
        // The examples of a microbatch on all replicas that hold a copy of the model together.
        let num_examples = knobs.microbatch * replicas;
        if !num_examples.is_multiple_of(now) {
            continue;
        }
        for fsdp in divisors(knobs.mesh.num_replicas() / replicas) {
            if !is_enough(pieces, fsdp) {
                continue;
            }
            let stages = match (fsdp, pieces.pipeline) {
                (1, _) => least_zero..=least_zero,
                (_, 1) => least_zero..=3,
                // Microbatches overlap, so parameters are whole during a step.
                _ => 1..=1,
            };
            for (zero, remat) in stages.flat_map(|zero| remats.iter().map(move |r| (zero, *r))) {
                for num_chunks in chunks(pieces, knobs) {
                    let with = |parts| Choice { pieces, num_chunks, fsdp, zero, remat, parts };
                    let all = divisors(num_examples / now).map(with);
                    let divides = |choice: &Choice| {
                        let microbatch = choice.microbatch(knobs);
                        knobs.batch_of_fixed.is_none_or(|batch| batch.is_multiple_of(microbatch))
                    };
                    let all = all.filter(divides);
                    found.extend(all.filter(|choice| choice.takes_turns(knobs)));
                }
            }
        }
    }
    found
}

/// The numbers of chunks that are tried.
fn chunks(pieces: ModelPieces, knobs: &Knobs) -> Vec<usize> {
    let of_now = knobs.pipeline.num_chunks;
    if pieces.pipeline == 1 {
        return vec![if knobs.pieces.pipeline == 1 { of_now } else { 1 }];
    }
    let mut all = vec![1, 2];
    if pieces.pipeline == knobs.pieces.pipeline && of_now > 2 {
        all.push(of_now);
    }
    all.retain(|chunks| knobs.num_blocks.is_multiple_of(pieces.pipeline * chunks));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn memory(state: u64, temporaries: u64) -> Memory {
        Memory {
            parameters_bytes: state / 3,
            optimizer_bytes: 2 * state / 3,
            temporaries_bytes: temporaries,
            peak_bytes: state + temporaries,
            limit_bytes: 16 * GIB,
            device_bytes: 16 * GIB,
            ..Memory::default()
        }
    }

    fn pieces(tensor: usize, pipeline: usize, state_bytes: u64) -> ModelPieces {
        let part = state_bytes / 3;
        let (parameters_bytes, gathered_bytes) = (part, part);
        let is_context = false;
        ModelPieces { tensor, is_context, pipeline, state_bytes, parameters_bytes, gathered_bytes }
    }

    fn knobs(state_bytes: u64, num_replicas: usize) -> Knobs {
        Knobs {
            microbatch: 12,
            num_microbatches: 2,
            batch_per_replica: None,
            batch_of_fixed: None,
            remat: Some(false),
            mesh: Mesh::data(num_replicas),
            zero: 1,
            is_zero_set: false,
            pipeline: PipelinePlan::default(),
            pipeline_keys: vec![],
            num_blocks: 12,
            is_sequence_set: false,
            pieces: pieces(1, 1, state_bytes),
            other_pieces: vec![],
        }
    }

    fn lines(memory: &Memory, knobs: &Knobs) -> Vec<String> {
        advice(memory, knobs).lines().collect()
    }

    #[test]
    fn advice_names_the_key_and_a_value_that_divides() {
        let found = lines(&memory(6 * GIB, 25 * GIB), &knobs(6 * GIB, 4));
        // 23 GiB of activations into the remaining 8: at least three microbatches.
        assert!(found[0].starts_with("--set train.num_microbatches=6 ("), "{found:?}");
        let advice = found.join("\n");
        assert!(advice.contains("model.remat=true"), "{advice}");
        // Shards alone do not make room for the activations.
        assert!(!found.iter().any(|line| line.starts_with("--set mesh.fsdp")), "{advice}");
    }

    #[test]
    fn state_that_does_not_fit_is_sharded_over_as_few_replicas_as_do() {
        // 6 GiB of parameters and gradients, 12 of optimizer state, 1 of activations.
        let found = lines(&memory(18 * GIB, 7 * GIB), &knobs(18 * GIB, 16));
        // On two, 9 of state, 12 of whole parameters and gradients, and 1: too much.
        // On eight, 2.25 + 12 + 1.
        assert!(found[0].starts_with("--set mesh.fsdp=8 --set mesh.data=auto ("), "{found:?}");
        // On four, stage 1 takes 4.5 + 12 + 1.
        let few = lines(&memory(18 * GIB, 7 * GIB), &knobs(18 * GIB, 4));
        let expected = "--set mesh.fsdp=4 --set parallel.zero=2 --set mesh.data=auto (";
        assert!(few[0].starts_with(expected), "{few:?}");
        // On one device nothing is estimated to be enough.
        let none = lines(&memory(18 * GIB, 7 * GIB), &knobs(18 * GIB, 1));
        assert!(none.len() == 2 && none[1].contains("more devices"), "{none:?}");
    }

    #[test]
    fn candidates_have_the_fewest_microbatches_that_fit() {
        // 6 GiB of state, 2 of gradients and 23 of activations, in 16 GiB.
        let (found, num_too_large) = candidates(&memory(6 * GIB, 25 * GIB), &knobs(6 * GIB, 4));
        let sets: Vec<_> = found.iter().map(|suggestion| suggestion.sets.join(" ")).collect();
        assert!(sets.contains(&"train.num_microbatches=6".to_owned()), "{sets:?}");
        assert!(sets.contains(&"model.remat=true".to_owned()), "{sets:?}");
        assert!(!sets.iter().any(|sets| sets.contains("num_microbatches=12")), "{sets:?}");
        assert!(num_too_large > 0 && found.iter().all(|one| one.peak_bytes <= 16 * GIB));
        // Microbatches of a fixed size are made smaller, and still divide the batch.
        let fixed = |batch: usize| Knobs { batch_of_fixed: Some(batch), ..knobs(6 * GIB, 4) };
        for (batch, expected) in [(84, "train.microbatch=4"), (108, "train.microbatch=4")] {
            let (found, _) = candidates(&memory(6 * GIB, 25 * GIB), &fixed(batch));
            let sets: Vec<_> = found.iter().map(|suggestion| suggestion.sets.join(" ")).collect();
            assert!(sets.contains(&expected.to_owned()), "{sets:?}");
            assert!(!sets.join(" ").contains("num_microbatches"), "{sets:?}");
        }
        // The advice may be to keep tensors whole that are sharded or recomputed now.
        let mut sharded = knobs(2 * GIB, 4);
        sharded.mesh = Mesh::new(&[(Axis::Fsdp, 4)]);
        (sharded.zero, sharded.remat) = (3, Some(true));
        let (found, _) = candidates(&memory(GIB / 2, GIB), &sharded);
        let sets: Vec<_> = found.iter().map(|suggestion| suggestion.sets.join(" ")).collect();
        assert!(sets.contains(&"mesh.fsdp=1 model.remat=false".to_owned()), "{sets:?}");
        assert!(sets.contains(&String::new()), "{sets:?}");
        // Whole state with a stage of ZeRO is refused, so that the stage must go.
        sharded.is_zero_set = true;
        let (found, _) = candidates(&memory(GIB / 2, GIB), &sharded);
        let whole = found.iter().map(Suggestion::to_string).find(|line| line.contains("fsdp=1 "));
        let expected = "--set mesh.fsdp=1 --unset parallel.zero --set model.remat=false --set \
                        mesh.data=auto (";
        assert!(whole.as_ref().is_some_and(|line| line.starts_with(expected)), "{whole:?}");
    }

    /// 48 GiB of state and 16 of gradients in 16 GiB: not even ZeRO stage 3 makes room on 8
    /// devices, only pieces of layers do.
    #[test]
    fn layers_are_cut_where_that_helps() {
        let mut of_gpt = knobs(48 * GIB, 8);
        let on = |n: usize| pieces(n, 1, 48 * GIB / n as u64);
        of_gpt.other_pieces = [2, 4, 8].map(on).to_vec();
        (of_gpt.batch_per_replica, of_gpt.remat) = (Some(24), None);
        let found = lines(&memory(48 * GIB, 17 * GIB), &of_gpt);
        let expected =
            "--set mesh.tensor=8 --set train.batch_per_replica=192 --set mesh.data=auto (";
        assert!(found.iter().any(|line| line.starts_with(expected)), "{found:?}");
        // What is cut already is not made whole to fit.
        of_gpt.mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Tensor, 4)]);
        (of_gpt.pieces, of_gpt.other_pieces) = (on(4), [1, 2, 8].map(on).to_vec());
        let found = lines(&memory(12 * GIB, 5 * GIB), &of_gpt);
        assert!(!found.is_empty() && !found.join(" ").contains("mesh.tensor=1"), "{found:?}");
        // A search goes over all meshes.
        let (all, _) = candidates(&memory(12 * GIB, 5 * GIB), &of_gpt);
        let sets: Vec<_> = all.iter().map(|one| one.sets.join(" ")).collect();
        let expected = "mesh.tensor=2 train.batch_per_replica=12 mesh.fsdp=4 parallel.zero=3";
        assert!(sets.iter().any(|sets| sets.contains(expected)), "{sets:?}");
    }

    /// 3 GiB of state, and 14 GiB of activations of one example, which only pieces of it make
    /// smaller, in 16 GiB.
    #[test]
    fn rows_of_layers_are_cut_where_that_helps() {
        let mut of_gpt = knobs(3 * GIB, 8);
        let context = |tensor| ModelPieces { is_context: tensor > 1, ..pieces(tensor, 1, 3 * GIB) };
        of_gpt.other_pieces = [2, 4, 8].map(context).to_vec();
        (of_gpt.microbatch, of_gpt.num_microbatches, of_gpt.remat) = (1, 1, None);
        of_gpt.is_sequence_set = true;
        let found = lines(&memory(3 * GIB, 17 * GIB), &of_gpt);
        let expected = "--set train.num_microbatches=2 --set mesh.tensor=2 --set \
                        parallel.context=true --unset parallel.sequence --set mesh.data=auto (";
        assert!(found.iter().any(|line| line.starts_with(expected)), "{found:?}");
        // Layers are cut in place of rows, and whole without the axis.
        of_gpt.mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Tensor, 4)]);
        let layers = pieces(4, 1, 3 * GIB);
        (of_gpt.pieces, of_gpt.other_pieces) = (context(4), vec![layers, context(1)]);
        (of_gpt.microbatch, of_gpt.is_sequence_set) = (4, false);
        let (all, _) = candidates(&memory(3 * GIB, 5 * GIB), &of_gpt);
        let sets: Vec<_> = all.iter().map(|one| one.sets.join(" ")).collect();
        assert!(sets.contains(&"--unset parallel.context".to_owned()), "{sets:?}");
        let whole = "mesh.tensor=1 --unset parallel.context";
        assert!(sets.iter().any(|sets| sets.ends_with(whole)), "{sets:?}");
    }

    /// 64 GiB of state and 21 of gradients are too much for stages and shards on 8 devices, 24 and
    /// 8 are not.
    #[test]
    fn stages_are_named_only_where_they_help() {
        let mut of_gpt = knobs(64 * GIB, 8);
        let on = |n: usize| pieces(1, n, 64 * GIB / n as u64);
        of_gpt.other_pieces = [2, 4].map(on).to_vec();
        (of_gpt.microbatch, of_gpt.num_microbatches, of_gpt.remat) = (8, 1, None);
        let found = lines(&memory(64 * GIB, 22 * GIB), &of_gpt);
        assert!(!found.join(" ").contains("mesh.pipeline"), "{found:?}");
        assert!(found.last().unwrap().contains("more devices"), "{found:?}");
        let smaller = |n: usize| pieces(1, n, 24 * GIB / n as u64);
        of_gpt.pieces = smaller(1);
        of_gpt.other_pieces = [2, 4].map(smaller).to_vec();
        let found = lines(&memory(24 * GIB, 8 * GIB + GIB / 8), &of_gpt);
        let expected =
            "--set train.num_microbatches=32 --set mesh.pipeline=4 --set mesh.data=auto (";
        assert!(found.iter().any(|line| line.starts_with(expected)), "{found:?}");
        // A search goes over chunks and more microbatches too, but not of one for more stages.
        let (all, _) = candidates(&memory(24 * GIB, 8 * GIB + GIB / 8), &of_gpt);
        let sets: Vec<_> = all.iter().map(|one| one.sets.join(" ")).collect();
        for expected in [
            "train.num_microbatches=8 mesh.pipeline=4",
            "train.num_microbatches=16 mesh.pipeline=4 parallel.pipeline_chunks=2",
        ] {
            let expected = expected.to_owned();
            let is_there = sets.contains(&expected);
            // Twelve blocks are not four stages of two chunks.
            assert_eq!(is_there, !expected.contains("chunks"), "{expected}: {sets:?}");
        }
        assert!(!sets.iter().any(|sets| sets == "mesh.pipeline=4"), "{sets:?}");
        // Without stages their keys have no meaning.
        of_gpt.mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Pipeline, 4)]);
        (of_gpt.pieces, of_gpt.other_pieces) = (smaller(4), vec![smaller(1)]);
        (of_gpt.num_microbatches, of_gpt.pipeline_keys) = (4, vec!["parallel.pipeline_schedule"]);
        let (all, _) = candidates(&memory(6 * GIB, 3 * GIB), &of_gpt);
        let sets: Vec<_> = all.iter().map(|one| one.sets.join(" ")).collect();
        assert!(sets.contains(&String::new()), "{sets:?}");
        let whole = "mesh.pipeline=1 --unset parallel.pipeline_schedule";
        assert!(sets.iter().any(|sets| sets.contains(whole)), "{sets:?}");
    }

    /// A program of 15 GiB on a GPU of 20 GiB that gives programs three quarters or more.
    #[test]
    fn a_gpu_that_has_the_memory_may_use_more_of_it() {
        let on_gpu = |peak_bytes: u64| {
            let memory = memory(6 * GIB, peak_bytes - 6 * GIB);
            Memory { limit_bytes: 15 * GIB, device_bytes: 20 * GIB, ..memory }
        };
        let found = lines(&on_gpu(18 * GIB), &knobs(6 * GIB, 4));
        let expected = "--set device.options.memory_fraction=0.91 (estimated peak 18.00 GiB)";
        assert_eq!(found[0], expected);
        let found = lines(&on_gpu(19 * GIB), &knobs(6 * GIB, 4));
        assert!(!found.join("\n").contains("memory_fraction"), "{found:?}");
    }
}
