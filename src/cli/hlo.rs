//! `lockstep hlo`.

use std::process::ExitCode;

use anyhow::Result;
use hlo::Axis;

use super::args::{ConfigArgs, Stage};
use super::{Loaded, print_lines};
use crate::observe::say;
use crate::step;
use crate::train::{
    Run, list_collectives, list_sharding, mesh_on_host, open_devices, platform_on_host,
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
    let passes: Vec<_> = run.lowering.passes().iter().map(|pass| pass.to_string()).collect();
    let mut lines = vec![format!("passes: {}", passes.join(", "))];
    let is_step = matches!(stage, Stage::Step);
    if is_step && mesh.num_replicas() > mesh.size(Axis::Data) {
        lines.extend(list_sharding(declared.leaves(), &run.plan));
    }
    if is_step {
        lines.extend(list_collectives(&lowered.graph));
        if let Some(pipeline) = run.pipeline(&*model) {
            let words = pipeline.report().lines();
            lines.extend(words.into_iter().map(|line| format!("pipeline: {line}")));
            lines.extend(pipeline.picture());
        }
    }
    let comments = lines.iter().map(|line| format!("// {line}"));
    let text = lowered.program.text.trim_end();
    print_lines(comments.chain(std::iter::once(text.to_owned())))?;
    Ok(ExitCode::SUCCESS)
}
