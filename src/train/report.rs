//! What a run says of itself before its first step.

use super::{Plan, Trainer};
use crate::step::PARAMS;

/// The arithmetic of the global batch and the length of the run.
pub fn describe_batch(plan: &Plan) -> String {
    let (run, batch) = (&plan.run, &plan.batch);
    let (total, epoch) = (run.total_steps(), run.steps_per_epoch());
    format!("batch: {batch}; {epoch} steps an epoch, {total} in all")
}

/// What synchronisation will cost: leaves, bytes a step, replica groups.
pub fn describe_synchronisation(trainer: &Trainer) -> String {
    let graph = trainer.step_graph();
    let params = trainer.param_types();
    let (leaves, bytes) = (params.len(), params.values().map(|ty| ty.num_bytes()).sum::<usize>());
    let opt_bytes: usize = {
        let prefix = crate::step::OPT_STATE;
        let inputs = graph.inputs().iter().filter(|input| input.name.starts_with(prefix));
        inputs.map(|input| graph.ty(input.value).num_bytes()).sum()
    };
    let collectives = hlo::count(graph).collectives;
    let calls: u64 = collectives.iter().map(|collective| collective.count).sum();
    let synced: u64 = collectives.iter().map(|c| c.bytes * c.count).sum();
    let groups = collectives.first().map_or(String::new(), |c| {
        format!(" over {} of {} replicas", plural(c.num_groups as u64, "group"), c.group_size)
    });
    format!(
        "{PARAMS}: {leaves} leaves, {}, and {} of optimizer state on each replica\n\
         synchronisation: {} a step in {}{groups}",
        human_bytes(bytes as u64),
        human_bytes(opt_bytes as u64),
        human_bytes(synced),
        plural(calls, "collective"),
    )
}

fn plural(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn human_bytes(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}
