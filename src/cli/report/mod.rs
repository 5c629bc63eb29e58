//! `lockstep report`: what runs came to and where their time went, as one page that opens from the
//! disk, or as JSON.
//!
//! [`read`] takes what a run's directory has, [`goodput`] and [`verdicts`] say what it means,
//! [`levels`] bounds the curves, and [`page`] writes all of it; [`html`] escapes what was recorded.
//! `page.js` makes the charts interactive: the page is complete without it. [`serve`] shows the
//! page of a run that goes on, and `follow.js` loads it again.

mod chart;
mod confusion;
mod goodput;
mod html;
mod layers;
mod levels;
mod numbers;
mod own_times;
mod page;
mod percentiles;
mod program;
mod read;
mod sections;
mod serve;
mod settings;
mod shades;
mod verdicts;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value};

use super::args::ReportArgs;
use super::output::OutputFile;
use super::plot::names;
use super::print_line;
use crate::observe::ProcessTimes;
use goodput::Goodput;
use layers::LayerRecord;
use levels::Curves;
use percentiles::Percentiles;
use read::SlowRecord;
pub(super) use read::{RunFiles, generation_starts};
pub use serve::ADDRESS;
pub(super) use settings::{Difference, differences};
use verdicts::RunVerdict;

/// Where the page goes without `--to`.
const FILE: &str = "report.html";

/// Everything about these runs: the output of `--json`.
#[derive(Serialize)]
struct Report {
    runs: Vec<RunReport>,
    /// Settings that are not the same in all runs.
    config_differences: Vec<Difference>,
}

/// Everything about a run.
#[derive(Serialize)]
pub struct RunReport {
    name: String,
    dir: String,
    /// The model and the data, as configured.
    trained: String,
    verdicts: Vec<RunVerdict>,
    goodput: Goodput,
    /// `summary.json`.
    summary: Map<String, Value>,
    /// Steps that are recorded.
    num_recorded_steps: usize,
    /// Percentiles of each column of `metrics.jsonl`.
    percentiles: Vec<Percentiles>,
    /// The norms of each parameter, if they are recorded.
    layers: Vec<LayerRecord>,
    /// The times of processes, if they are recorded: of a long run means over more steps.
    process_times: Vec<ProcessTimes>,
    /// Verdicts of the watchdog, in order.
    slow_processes: Vec<SlowRecord>,
    /// Steps between two lockstep proofs, as configured.
    proof_every: Option<i64>,
    /// What is missing or damaged.
    notes: Vec<String>,
    /// `config.resolved.toml`.
    config: Option<String>,
    curves: Curves,
}

impl RunReport {
    fn of(run: RunFiles, num_runs: usize) -> Self {
        let goodput = Goodput::of(&run);
        Self {
            dir: run.dir.display().to_string(),
            trained: settings::trained(&run),
            verdicts: verdicts::verdicts(&run, &goodput),
            goodput,
            num_recorded_steps: run.steps.step.len(),
            percentiles: percentiles::of(&run.steps),
            proof_every: verdicts::proof_every(&run),
            curves: Curves::of(&run, num_runs),
            layers: run.layers,
            process_times: run.process_times,
            slow_processes: run.steps.slow,
            name: run.name,
            summary: run.summary,
            notes: run.notes,
            config: run.config_text,
        }
    }
}

impl Report {
    /// Reads the directories of runs.
    fn of(dirs: &[PathBuf]) -> Result<Self> {
        let named = dirs.iter().zip(names(dirs));
        let read = |(dir, name): (&PathBuf, String)| RunFiles::read(dir, name);
        let runs = named.map(read).collect::<Result<Vec<_>>>()?;
        let config_differences = differences(&runs);
        let num_runs = runs.len();
        let runs = runs.into_iter().map(|run| RunReport::of(run, num_runs)).collect();
        Ok(Self { runs, config_differences })
    }
}

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<ExitCode> {
    if let Some(address) = &args.serve {
        return serve::serve(&args.dirs, address);
    }
    let default = Path::new(FILE);
    let path = args.to.as_deref().or((!args.json).then_some(default));
    let is_own = page::is_page;
    let file = |path| OutputFile { option: "--to", path, overwrite: args.overwrite, is_own };
    let file = path.map(file);
    if let Some(file) = &file {
        file.check()?;
    }
    let report = Report::of(&args.dirs)?;
    if let Some(file) = file {
        file.write(page::page(&report, None)?.as_bytes())?;
    }
    match (args.json, path) {
        (true, _) => print_line(&serde_json::to_string(&report)?)?,
        (false, Some(path)) => print_line(&path.display().to_string())?,
        (false, None) => {}
    }
    Ok(ExitCode::SUCCESS)
}
