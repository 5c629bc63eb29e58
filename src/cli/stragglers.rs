//! `lockstep plan --stragglers DIR`: the steps of the processes of a run.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::report::RunFiles;
use crate::config::open_regular;
use crate::observe::{LikeSteps, ProcessTimesFile};
use crate::targets::RemedyTable;
use crate::targets::cost::{RecordedSteps, Stragglers};

/// Most lines that count, the last ones.
const MAX_LINES: usize = 256;
/// Most processes, and fewest steps.
const MAX_PROCESSES: usize = 16_384;
const MIN_STEPS: u64 = 16;
/// Multiples of the run's processes that have rows.
const MULTIPLES: [usize; 4] = [1, 2, 4, 8];

/// What a run has recorded of its slow processes.
pub struct RecordedProcesses {
    /// The steps of its processes.
    pub stragglers: Stragglers,
    /// Examples of a step.
    global_batch: f64,
}

/// A line of the file.
#[derive(Deserialize)]
struct TimesLine {
    step: u64,
    num_steps: u64,
    #[serde(default)]
    spread: Vec<Vec<LikeSteps>>,
}

impl TimesLine {
    fn is_sound(&self) -> bool {
        self.step < u64::MAX
            && (1..=self.step + 1).contains(&self.num_steps)
            && self.spread.len() <= MAX_PROCESSES
    }

    /// The steps whose times are spread: all but those of a first launch.
    fn steps(&self) -> std::ops::Range<u64> {
        let spread = self.spread.first().into_iter().flatten().map(|steps| steps.num_steps);
        let end = self.step + 1;
        end - spread.sum::<u64>().min(self.num_steps)..end
    }
}

impl RecordedProcesses {
    /// Reads the directory of a run.
    ///
    /// # Errors
    /// Files that cannot be read, and runs that have recorded too little.
    pub fn read(dir: &Path) -> Result<Self> {
        let shown = dir.display();
        let run = RunFiles::read(dir, shown.to_string())?;
        let name = ProcessTimesFile::FILE;
        let path = dir.join(name);
        if !path.exists() {
            bail!(
                "{shown} has no {name}, which has the times of each process: it needs a run of two \
                 or more, as of `lockstep launch --num-processes 2`, with train.check_lockstep_every \
                 above 0"
            );
        }
        if run.number("num_late_shards").unwrap_or(0.0) > 0.0 {
            bail!(
                "{shown} skipped late batches, so that nothing says how late they were: give a run \
                 with data.late = \"wait\""
            );
        }
        let lines = read_lines(&path)?;
        if lines.is_empty() {
            bail!(
                "no line of {} says how steps differ: train again with this version",
                path.display()
            );
        }
        let num_processes = lines.back().map_or(0, |line| line.spread.len());
        let mut processes = vec![vec![]; num_processes];
        let (mut num_steps, mut sum, mut num_timed) = (0, 0.0, 0_usize);
        let step_ms = run.steps.column("step_ms").unwrap_or_default();
        // Only those since the number of processes has last changed.
        for line in lines.iter().rev().take_while(|line| line.spread.len() == num_processes) {
            for (process, spread) in processes.iter_mut().zip(&line.spread) {
                process.extend(spread.iter().map(|steps| RecordedSteps {
                    num_steps: steps.num_steps,
                    own_ms: steps.own_ms,
                    input_ms: steps.input_ms,
                }));
            }
            let steps = line.steps();
            num_steps += steps.end - steps.start;
            let [from, to] = [steps.start, steps.end]
                .map(|step| run.steps.step.partition_point(|other| *other < step));
            let times = step_ms.get(from..to).unwrap_or_default();
            let times = times.iter().filter(|ms| ms.is_finite());
            num_timed += times.clone().count();
            sum += times.sum::<f64>();
        }
        if num_steps < MIN_STEPS || num_timed == 0 {
            bail!(
                "{shown} has the times of {num_steps} steps, without the first: {MIN_STEPS} or more \
                 say something about slow ones. Steps are recorded with every lockstep proof, \
                 train.check_lockstep_every"
            );
        }
        let stragglers = Stragglers::new(&processes, sum / num_timed as f64);
        let stragglers = stragglers.with_context(|| {
            format!("{} has times that are none, or the steps of one process only", path.display())
        })?;
        let global_batch = run.number("global_batch").filter(|batch| *batch >= 1.0);
        let global_batch = global_batch.with_context(|| {
            format!("{shown} has no summary.json with a global_batch: give the --out of a run")
        })?;
        Ok(Self { stragglers, global_batch })
    }

    /// For its own machines, and for more of the same kind with as many examples each.
    pub fn table(&self) -> RemedyTable {
        let (recorded, rest_ms) = (self.stragglers.num_processes(), self.stragglers.rest_ms());
        let sizes = MULTIPLES.map(|times| {
            (recorded.saturating_mul(times), rest_ms, self.global_batch * times as f64)
        });
        RemedyTable::of(&self.stragglers, &sizes)
    }
}

/// The last lines that say how steps differ. Steps that were taken again replace the earlier ones.
fn read_lines(path: &Path) -> Result<VecDeque<TimesLine>> {
    let failed = || format!("cannot read {}", path.display());
    let file = BufReader::new(open_regular(path).with_context(failed)?);
    let mut lines: VecDeque<TimesLine> = VecDeque::new();
    for line in file.split(b'\n') {
        let line = line.with_context(failed)?;
        // What a killed process has left of its last line is none.
        let Ok(line) = serde_json::from_slice::<TimesLine>(&line) else { continue };
        if !line.is_sound() || line.spread.iter().any(Vec::is_empty) || line.spread.is_empty() {
            continue;
        }
        lines.retain(|other| other.step < line.step);
        lines.push_back(line);
        if lines.len() > MAX_LINES {
            lines.pop_front();
        }
    }
    Ok(lines)
}
