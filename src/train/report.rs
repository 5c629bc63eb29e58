//! Messages about a run before its first step.

use std::collections::BTreeSet;

use hlo::{Axis, LeafSpec};

use super::{Run, Trainer};
use crate::step::{OPT_STATE, PARAMS};

/// The sizes that make up the global batch, and the length of the run.
pub fn describe_batch(run: &Run) -> String {
    let (length, batch) = (&run.length, &run.batch);
    let epoch = length.steps_per_epoch().map(|steps| format!(" {steps} steps per epoch,"));
    format!("batch: {batch};{} {} in total", epoch.unwrap_or_default(), length.total_steps())
}

/// The sizes of the state, and the cost of synchronization: bytes per step, collectives and replica groups.
pub fn describe_synchronisation(trainer: &Trainer) -> String {
    let state = trainer.state();
    let bytes = |prefix: &str| -> usize {
        let leaves = state.iter().filter(|(path, _)| path.split('.').next() == Some(prefix));
        leaves.map(|(_, leaf)| leaf.num_bytes()).sum()
    };
    let params = state.specs().subtree(PARAMS);
    let collectives = hlo::count(trainer.step_graph()).collectives;
    let calls: u64 = collectives.iter().map(|collective| collective.count).sum();
    let synced: u64 = collectives.iter().map(|c| c.bytes * c.count).sum();
    let groups: BTreeSet<_> = collectives.iter().map(|c| (c.num_groups, c.group_size)).collect();
    let largest = groups.iter().map(|(_, size)| *size).max();
    // On an axis of one replica a collective moves nothing.
    let groups = groups.into_iter().filter(|(_, size)| *size > 1 || largest == Some(1));
    let groups: Vec<_> = groups
        .map(|(num, size)| format!("{} of {}", plural(num, "group"), plural(size, "replica")))
        .collect();
    let (cut, whole): (Vec<_>, Vec<_>) =
        params.values().partition(|leaf| !leaf.sharding.varying().is_empty());
    let bytes_of = |leaves: &[&LeafSpec]| human_bytes(leaves.iter().map(|l| l.num_bytes()).sum());
    let sharding = match state.mesh().size(Axis::Fsdp) {
        1 => String::new(),
        num_shards => format!(
            "\nsharding: {}, {}, cut over {num_shards} replicas; {}, {}, whole (small, or no dim divides)",
            plural(cut.len(), "leaf"),
            bytes_of(&cut),
            plural(whole.len(), "leaf"),
            bytes_of(&whole),
        ),
    };
    format!(
        "{PARAMS}: {}, {}, and {} of optimizer state on each replica{sharding}\n\
         synchronisation: {} per step in {} over {}",
        plural(params.len(), "leaf"),
        human_bytes(bytes(PARAMS)),
        human_bytes(bytes(OPT_STATE)),
        human_bytes(synced as usize),
        plural(calls as usize, "collective"),
        groups.join(" and "),
    )
}

/// `1 leaf`, `2 leaves`.
fn plural(count: usize, noun: &str) -> String {
    match (count, noun) {
        (1, noun) => format!("1 {noun}"),
        (count, "leaf") => format!("{count} leaves"),
        (count, noun) => format!("{count} {noun}s"),
    }
}

fn human_bytes(bytes: usize) -> String {
    indicatif::HumanBytes(bytes as u64).to_string()
}
