//! Messages about a run before its first step.

use std::fmt;

use hlo::rewrites::ReplicaSums;
use hlo::{ActivationRows, Axis, AxisSet, DType, Graph, LeafSpec, Tree, counted};

use super::{Run, Trainer};
use crate::config::shorten;
use crate::data::{LabelKind, LabelScale, Source};
use crate::observe::{StepCollective, human_bytes};
use crate::parallel::{LeafTotals, ParallelPlan, ShardingReport};
use crate::step::{LocalSteps, StateSection};
use crate::targets::cost::{DeviceLayout, Timeline};
use crate::targets::{Arrangement, Chip, Family, StepPipeline, Target};

/// Classes that a message lists.
const MAX_CLASSES: usize = 10;
/// Share of the most frequent class beyond which accuracy says little.
const MAX_SHARE: f64 = 0.8;

/// The sizes that make up the global batch, the length of the run, and the sizes that examples are
/// padded to.
pub fn describe_batch(run: &Run) -> String {
    let (length, batch) = (&run.length, &run.batch);
    let epoch =
        length.steps_per_epoch().map(|steps| format!(" {} per epoch,", counted(steps, "step")));
    let padding = describe_padding(run).map_or_else(String::new, |padding| format!("\n{padding}"));
    format!(
        "batch: {batch};{} {} in total{padding}",
        epoch.unwrap_or_default(),
        length.total_steps()
    )
}

/// What is predicted, if it has names: the classes with their numbers, a few of many; and what a
/// model gets right that always says the most frequent one, if that is most of `eval`.
pub fn describe_classes(train: &dyn Source, eval: &dyn Source) -> Option<String> {
    let labels = train.labels();
    if labels.is_empty() {
        return None;
    }
    let list = |name: &dyn Fn((usize, &String)) -> String| {
        let shown = labels.iter().enumerate().take(MAX_CLASSES).map(name);
        let more = match labels.len().saturating_sub(MAX_CLASSES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{}{more}", shown.collect::<Vec<_>>().join(", "))
    };
    match train.label_kind() {
        LabelKind::Values(scales) => {
            let value = |(index, name): (usize, &String)| match scales.get(index) {
                Some(scale) if *scale != LabelScale::NONE => format!(
                    "{:?} (the loss is that of ({} - {:.4}) / {:.4})",
                    shorten(name),
                    shorten(name),
                    scale.mean,
                    scale.deviation
                ),
                _ => format!("{:?}", shorten(name)),
            };
            return Some(format!("values: {}", list(&value)));
        }
        LabelKind::Labels => {
            return Some(format!("labels: {}", list(&|(_, name)| format!("{:?}", shorten(name)))));
        }
        LabelKind::Class => {}
    }
    let are_numbers = labels.iter().enumerate().all(|(class, name)| *name == class.to_string());
    let class = |(class, name): (usize, &String)| match are_numbers {
        true => name.clone(),
        false => format!("{class} {:?}", shorten(name)),
    };
    let counts = eval.class_counts().unwrap_or_default();
    let most = counts.iter().enumerate().max_by_key(|(_, count)| **count);
    let share = most
        .map(|(class, count)| (class, *count as f64 / counts.iter().sum::<u64>().max(1) as f64));
    let frequent = match share.filter(|(_, share)| *share > MAX_SHARE) {
        None => String::new(),
        Some((class, share)) => format!(
            "\n{:?} is the class of {:.1} % of the evaluation examples: a model that always predicts it \
             has an accuracy of {share:.4}. `lockstep evaluate` has precision, recall and F1 of each \
             class, and train.class_weights = \"balanced\" lets rare ones count more",
            shorten(&labels[class]),
            100.0 * share
        ),
    };
    Some(format!("classes: {}{frequent}", list(&class)))
}

/// The sizes that batches have, if there are several.
fn describe_padding(run: &Run) -> Option<String> {
    let sizes = run.smaller_fields.iter().chain([&run.fields]);
    let inputs = sizes.map(|fields| fields.first().map_or(&[][..], |input| &input.dims[..]));
    let dims: Vec<_> = inputs.map(|dims| format!("{dims:?}")).collect();
    let [smaller @ .., largest] = &dims[..] else { return None };
    (!smaller.is_empty()).then(|| {
        format!(
            "padding: examples are {} or {largest}, the smallest that holds all of a batch; {} \
             programs each of the step and of the evaluation",
            smaller.join(", "),
            dims.len()
        )
    })
}

/// The sizes of the state, what is sharded, and the cost of synchronization: bytes per step,
/// collectives and replica groups.
pub fn describe_synchronisation(
    trainer: &Trainer,
    plan: &ParallelPlan,
    pipeline: Option<StepPipeline>,
    local_steps: Option<LocalSteps>,
    sums: ReplicaSums,
) -> String {
    let state = trainer.state();
    let bytes = |section: StateSection| -> usize {
        let is_in = |path: &str| StateSection::of(path).is_some_and(|(found, _)| found == section);
        let leaves = state.iter().filter(|(path, _)| is_in(path));
        leaves.map(|(_, leaf)| leaf.num_bytes()).sum()
    };
    let params = StateSection::Params.leaves(state.specs());
    let synchronisation = describe_collectives(trainer.step_graph(), local_steps, sums);
    let sharding = match state.mesh().size(Axis::Fsdp) {
        1 => String::new(),
        _ => format!("\nsharding: {}", describe_sharding(state.specs(), plan)),
    };
    let pipeline = pipeline.iter().flat_map(|pipeline| pipeline.report().lines());
    let pipeline = pipeline.map(|line| format!("pipeline: {line}"));
    let more = describe_cut(plan).into_iter().chain(pipeline);
    let more: String = more.map(|line| format!("\n{line}")).collect();
    format!(
        "{}: {}, {}, and {} of optimizer state on each replica{sharding}{more}\n\
         synchronisation: {synchronisation}",
        StateSection::Params,
        counted(params.len(), "leaf"),
        human_bytes(bytes(StateSection::Params) as u64),
        human_bytes(bytes(StateSection::OptState) as u64),
    )
}

/// Over how many replicas layers are cut, if they are.
fn describe_cut(plan: &ParallelPlan) -> Option<String> {
    let num_replicas = plan.mesh.size(Axis::Tensor);
    let cut = format!("layers: cut over {num_replicas} replicas; rows of activations between them");
    let described = match plan.rows {
        ActivationRows::Whole => format!("{cut} on every replica"),
        ActivationRows::CutBetweenLayers => format!("{cut} in pieces"),
        ActivationRows::CutThroughout => format!(
            "layers: whole, for rows of activations in {num_replicas} pieces; the vocabulary is cut"
        ),
    };
    (num_replicas > 1).then_some(described)
}

/// A warning if stage 2 of ZeRO is asked for with a pipeline.
pub fn warn_of_zero_stage(stage: Option<usize>, plan: &ParallelPlan) -> Option<String> {
    let taken = plan.gather_at.zero_stage();
    let asked = stage.filter(|stage| *stage != taken)?;
    Some(format!(
        "parallel.zero = {asked} is taken as {taken}: with mesh.pipeline = {} passes of several \
         microbatches overlap, so gradients are scattered once, after the last",
        plan.mesh.size(Axis::Pipeline)
    ))
}

/// A warning if replicas that compute a layer together are in several processes.
pub fn warn_of_distant_layers(trainer: &Trainer, plan: &ParallelPlan) -> Option<String> {
    let num_replicas = plan.mesh.size(Axis::Tensor);
    let num_here = trainer.num_addressable();
    if num_here.is_multiple_of(num_replicas) {
        return None;
    }
    let sent = total_collectives(trainer.step_graph());
    let sent = sent.iter().filter(|total| total.axes == Axis::Tensor.into());
    let sent: u64 = sent.map(|total| total.sent_bytes).sum();
    Some(format!(
        "mesh.tensor = {num_replicas}, but a process has {}: replicas that compute a layer together \
         wait for the links between processes, over which each sends {} per step{}; mesh.tensor \
         belongs inside a host, mesh.data and mesh.fsdp between hosts",
        counted(num_here, "replica"),
        human_bytes(sent),
        predicted_ms(trainer).unwrap_or_default(),
    ))
}

/// The time of what layers exchange, as `lockstep plan` predicts it with each process on a host of
/// its own, if the devices are GPUs that it knows.
fn predicted_ms(trainer: &Trainer) -> Option<String> {
    let (client, graph) = (trainer.client(), trainer.step_graph());
    let chip = client.devices().first().and_then(|device| Chip::of_kind(&device.kind))?;
    let gpus_per_host = trainer.num_addressable();
    let num_hosts = graph.mesh().num_replicas().div_ceil(gpus_per_host);
    let Family::Gpu(_) = chip.family else { return None };
    let target = Target { chip, arrangement: Arrangement::Hosts { num_hosts, gpus_per_host } };
    let layout = DeviceLayout::of_mesh(&target, graph.mesh());
    let (secs, _) = Timeline::of(graph).distant_layers(chip, &layout)?;
    Some(format!(", predicted to take {:.2} ms", 1e3 * secs))
}

/// What replicas send per step: of one kind of collective its bytes, of several a line each.
fn describe_collectives(
    step: &Graph,
    local_steps: Option<LocalSteps>,
    sums: ReplicaSums,
) -> String {
    let totals = total_collectives(step);
    let bytes =
        |of: fn(&CollectiveTotal) -> u64| totals.iter().map(of).fold(0, u64::saturating_add);
    let often = |bytes: u64| match local_steps {
        None => format!("{} per step", human_bytes(bytes)),
        Some(LocalSteps { every, .. }) => format!(
            "{} every {every} steps, {} per step",
            human_bytes(bytes),
            human_bytes(bytes / every)
        ),
    };
    match &totals[..] {
        [] => "none, with one replica".to_owned(),
        [total] if sums == ReplicaSums::Direct => format!(
            "{} in {} over {}",
            often(bytes(|total| total.whole_bytes)),
            counted(total.count as usize, "collective"),
            describe_groups(total.num_groups, total.group_size)
        ),
        _ => {
            let written = match sums {
                ReplicaSums::Direct => String::new(),
                _ => format!("; sums are written as {sums}"),
            };
            let lines = totals.iter().map(|total| {
                let CollectiveTotal { num_groups, group_size, count, whole_bytes, .. } = *total;
                let groups = describe_groups(num_groups, group_size);
                let bytes = human_bytes(whole_bytes);
                format!("\n  {total}, {groups}: {count}, {bytes}")
            });
            let sent = often(bytes(|total| total.sent_bytes));
            format!("each replica sends {sent}{written}{}", lines.collect::<String>())
        }
    }
}

/// How a sharded state is held: the stage of ZeRO, and bytes of parameters sharded and whole, and
/// why.
fn describe_sharding(state: &Tree<LeafSpec>, plan: &ParallelPlan) -> String {
    let report = ShardingReport::new(&StateSection::Params.leaves(state), state, plan);
    let total = |LeafTotals { num_leaves, bytes }| {
        format!("{}, {}", counted(num_leaves, "leaf"), human_bytes(bytes as u64))
    };
    let reasons = report.whole_by_reason();
    let reasons = reasons.into_iter().map(|(why, of)| format!("{} ({why})", total(of)));
    let whole = reasons.collect::<Vec<_>>().join(", ");
    format!(
        "{} over {} replicas (zero = {}); whole: {}; state: {} of {} on each replica",
        total(report.sharded()),
        report.num_shards,
        plan.gather_at.zero_stage(),
        if whole.is_empty() { "none" } else { &whole },
        human_bytes(report.local_state_bytes as u64),
        human_bytes(report.state_bytes as u64),
    )
}

/// The collectives of one kind and dtype over the same groups in one run of a graph.
struct CollectiveTotal {
    /// StableHLO's name: `all_gather`, ...
    kind: &'static str,
    /// What is sent.
    dtype: DType,
    /// The axes along which the replicas of a group differ.
    axes: AxisSet,
    /// Number of groups.
    num_groups: usize,
    /// Replicas in a group; at least 2.
    group_size: usize,
    /// Number of executions, loops included.
    count: u64,
    /// Bytes of the tensors that a group gathers, scatters or reduces.
    whole_bytes: u64,
    /// Bytes that one replica sends, by an algorithm of optimal bandwidth.
    sent_bytes: u64,
}

/// For example `all_to_all of bf16 over {data}`.
impl fmt::Display for CollectiveTotal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} over {}", self.kind, self.dtype, self.axes)
    }
}

/// The collectives of a graph by kind, dtype and groups, in the order in which each kind first
/// occurs. Collectives among one replica move nothing and are omitted.
fn total_collectives(graph: &Graph) -> Vec<CollectiveTotal> {
    let mut totals: Vec<CollectiveTotal> = vec![];
    for found in hlo::communication(graph).into_iter().filter(|found| found.group_size > 1) {
        let (kind, dtype, axes) = (found.kind, found.dtype, found.groups.axes());
        let (num_groups, group_size) = (found.num_groups, found.group_size);
        let is_same = |total: &CollectiveTotal| {
            let of = (total.kind, total.dtype, total.axes, total.group_size);
            of == (kind, dtype, axes, group_size)
        };
        let count = found.count;
        let whole_bytes = found.whole_bytes.saturating_mul(count);
        let sent_bytes = found.total_bytes_on_wire();
        match totals.iter_mut().find(|total| is_same(total)) {
            Some(total) => {
                total.count = total.count.saturating_add(count);
                total.whole_bytes = total.whole_bytes.saturating_add(whole_bytes);
                total.sent_bytes = total.sent_bytes.saturating_add(sent_bytes);
            }
            None => totals.push(CollectiveTotal {
                kind,
                dtype,
                axes,
                num_groups,
                group_size,
                count,
                whole_bytes,
                sent_bytes,
            }),
        }
    }
    totals
}

/// How a sharded state is held: the stage of ZeRO, a line for each parameter, and the totals in
/// bytes.
pub fn list_sharding(state: &Tree<LeafSpec>, plan: &ParallelPlan) -> Vec<String> {
    let report = ShardingReport::new(&StateSection::Params.leaves(state), state, plan);
    let stage = plan.gather_at.zero_stage();
    let is_sharded = report.num_shards > 1;
    let zero = is_sharded.then(|| format!("zero = {stage} over {} replicas", report.num_shards));
    let mut lines: Vec<_> = zero.into_iter().chain(describe_cut(plan)).collect();
    lines.extend(
        report
            .params
            .iter()
            .map(|(path, param)| format!("{}: {param}", StateSection::Params.path(path))),
    );
    let total = |LeafTotals { num_leaves, bytes }| {
        format!("{}, {bytes} bytes", counted(num_leaves, "leaf"))
    };
    if is_sharded {
        lines.push(format!("sharded: {}", total(report.sharded())));
        lines.push(format!("whole: {}", total(report.whole())));
        let reasons = report.whole_by_reason();
        lines.extend(reasons.into_iter().map(|(why, of)| format!("  {why}: {}", total(of))));
    }
    let (local, all) = (report.local_state_bytes, report.state_bytes);
    lines.push(format!("state: {local} of {all} bytes on each replica"));
    lines
}

/// A line for each kind and dtype of collective over the same groups, with the bytes of one run of
/// the graph.
pub fn list_collectives(graph: &Graph) -> Vec<String> {
    let line = |total: CollectiveTotal| {
        let CollectiveTotal { num_groups, group_size, count, whole_bytes, sent_bytes, .. } = total;
        format!(
            "{total}, {}: {count} per step, {whole_bytes} bytes, \
             {sent_bytes} sent by each replica",
            describe_groups(num_groups, group_size),
        )
    };
    total_collectives(graph).into_iter().map(line).collect()
}

/// The collectives of a graph, by kind, dtype and axes.
pub(super) fn step_collectives(graph: &Graph) -> Vec<StepCollective> {
    let collective = |total: CollectiveTotal| StepCollective {
        name: total.to_string(),
        count: total.count,
        bytes: total.whole_bytes,
        sent_bytes: total.sent_bytes,
    };
    total_collectives(graph).into_iter().map(collective).collect()
}

fn describe_groups(num_groups: usize, group_size: usize) -> String {
    format!("{} of {}", counted(num_groups, "group"), counted(group_size, "replica"))
}
