//! Messages about a run before its first step.

use std::collections::BTreeSet;

use super::{Run, Trainer};
use crate::step::{OPT_STATE, PARAMS};

/// The sizes that make up the global batch, and the length of the run.
pub fn describe_batch(run: &Run) -> String {
    let (length, batch) = (&run.length, &run.batch);
    let epoch = length.steps_per_epoch().map(|steps| format!(" {steps} steps an epoch,"));
    format!("batch: {batch};{} {} in all", epoch.unwrap_or_default(), length.total_steps())
}

/// The sizes of the state, and the cost of synchronization: bytes per step, collectives and replica groups.
pub fn describe_synchronisation(trainer: &Trainer) -> String {
    let graph = trainer.step_graph();
    let sizes = |prefix: &str| -> Vec<usize> {
        let inputs = graph.inputs().iter().filter(|input| input.name.starts_with(prefix));
        inputs.map(|input| graph.ty(input.value).num_bytes()).collect()
    };
    let (params, opt_state) = (sizes(PARAMS), sizes(OPT_STATE));
    let collectives = hlo::count(graph).collectives;
    let calls: u64 = collectives.iter().map(|collective| collective.count).sum();
    let synced: u64 = collectives.iter().map(|c| c.bytes * c.count).sum();
    let groups: BTreeSet<_> = collectives.iter().map(|c| (c.num_groups, c.group_size)).collect();
    let groups: Vec<_> = groups
        .into_iter()
        .map(|(num, size)| format!("{} of {size} replicas", plural(num as u64, "group")))
        .collect();
    format!(
        "{PARAMS}: {} leaves, {}, and {} of optimizer state on each replica\n\
         synchronisation: {} a step in {} over {}",
        params.len(),
        human_bytes(params.iter().sum::<usize>() as u64),
        human_bytes(opt_state.iter().sum::<usize>() as u64),
        human_bytes(synced),
        plural(calls, "collective"),
        groups.join(" and "),
    )
}

fn plural(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn human_bytes(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}
