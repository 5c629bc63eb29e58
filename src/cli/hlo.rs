//! `lockstep hlo`.

use std::process::ExitCode;

use anyhow::Result;
use hlo::{Axis, Graph, LeafSpec, Mesh, Tree};

use super::args::{ConfigArgs, Stage};
use super::{Loaded, print_lines};
use crate::observe::say;
use crate::parallel::{ShardingReport, Total};
use crate::step::{self, PARAMS};
use crate::train::{
    CollectiveTotal, Run, mesh_on_host, open_devices, platform_on_host, total_collectives,
};

pub fn run(config: &ConfigArgs, stage: Stage) -> Result<ExitCode> {
    let Loaded { config, splits, model } = Loaded::new(config)?;
    let (mesh, platform) = match platform_on_host(&config) {
        Some(platform) => (mesh_on_host(&config), platform),
        None => {
            let (client, mesh) = open_devices(&config, say)?;
            (mesh, client.platform())
        }
    };
    let run = Run::new(&config, &splits, mesh, platform)?;
    let declared = run.spec(&*model).declare()?;
    let (graph, name) = match stage {
        Stage::Loss => (step::trace_loss(&declared)?, "loss"),
        Stage::Grad => (step::trace_grad(&declared)?, "grad"),
        Stage::Step => (step::trace_step(&declared)?, "step"),
    };
    let lowered = run.lowering.lower(graph, name);
    let mut lines = vec![];
    if matches!(stage, Stage::Step) && mesh.size(Axis::Fsdp) > 1 {
        lines.extend(describe_state(declared.leaves(), &mesh, config.parallel.zero_stage()));
        lines.extend(describe_collectives(&lowered.graph));
    }
    let comments = lines.iter().map(|line| format!("// {line}"));
    let text = lowered.program.text.trim_end();
    print_lines(comments.chain(std::iter::once(text.to_owned())))?;
    Ok(ExitCode::SUCCESS)
}

/// A line for each parameter, and the totals.
fn describe_state(state: &Tree<LeafSpec>, mesh: &Mesh, zero: usize) -> Vec<String> {
    let report = ShardingReport::new(&state.subtree(PARAMS), state, mesh);
    let mut lines = vec![format!("zero = {zero} over {} replicas", report.num_shards)];
    lines.extend(report.params.iter().map(|(path, param)| format!("{PARAMS}.{path}: {param}")));
    let total = |Total { num_leaves, bytes }| format!("{num_leaves} leaves, {bytes} bytes");
    lines.push(format!("sharded: {}", total(report.sharded())));
    lines.push(format!("whole: {}", total(report.whole())));
    let reasons = report.whole_by_reason();
    lines.extend(reasons.into_iter().map(|(why, of)| format!("  {why}: {}", total(of))));
    let (local, all) = (report.local_state_bytes, report.state_bytes);
    lines.push(format!("state: {local} of {all} bytes on each replica"));
    lines
}

/// A line for each kind of collective and groups, with the bytes of one step.
fn describe_collectives(graph: &Graph) -> Vec<String> {
    let line = |total: CollectiveTotal| {
        let CollectiveTotal { kind, axes, num_groups, group_size, count, whole_bytes, sent_bytes } =
            total;
        format!(
            "{kind} over {axes}, groups of {group_size}, {num_groups} of them: {count} per step, \
             {whole_bytes} bytes, {sent_bytes} sent by each replica"
        )
    };
    total_collectives(graph).into_iter().map(line).collect()
}
