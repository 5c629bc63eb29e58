//! The table of `lockstep plan --stragglers`: what slow processes cost, and what Lockstep can do.

use hlo::counted;
use serde::Serialize;

use super::cost::{Remedy, Stragglers};

/// Steps of a number of processes, with a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RemedyRow {
    /// Processes that train.
    pub num_processes: usize,
    /// What is done about slow ones.
    pub remedy: Remedy,
    /// Processes besides, in the place of slow ones; the slow ones do nothing.
    pub num_spares: usize,
    /// Mean time of a step in milliseconds.
    pub step_ms: f64,
    /// The time that 99 of 100 steps do not exceed, in milliseconds.
    pub p99_ms: f64,
    /// The share of the examples that are late and skipped.
    pub skipped: f64,
    /// Examples per second that are used.
    pub examples_per_sec: f64,
    /// The same for each process, spares included.
    pub per_process: f64,
}

/// Slow processes as a run has recorded them, for some numbers of processes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RemedyTable {
    /// Processes of the run.
    pub recorded_processes: usize,
    /// Its mean step in milliseconds.
    pub recorded_step_ms: f64,
    /// The processes that were slow on average.
    pub slow_processes: Vec<usize>,
    /// Rows by the number of processes.
    pub rows: Vec<RemedyRow>,
    /// The remedy with the most examples per second for each process, of the last number.
    pub best: Remedy,
}

impl RemedyTable {
    /// For numbers of processes, each with the milliseconds of a step in which none takes longer
    /// than usual, and with the global batch.
    pub fn of(run: &Stragglers, sizes: &[(usize, f64, f64)]) -> Self {
        let slow_processes = run.slow();
        let has_spares = !slow_processes.is_empty();
        let remedies = [Remedy::Wait, Remedy::Skip, Remedy::Replace];
        let used = remedies.into_iter().filter(|remedy| *remedy != Remedy::Replace || has_spares);
        let row = |(num_processes, rest_ms, batch): (usize, f64, f64), remedy| {
            let steps = run.resample(remedy, num_processes, rest_ms);
            let examples_per_sec = 1e3 * batch * (1.0 - steps.skipped) / steps.mean_ms;
            RemedyRow {
                num_processes,
                remedy,
                num_spares: steps.num_replaced,
                step_ms: steps.mean_ms,
                p99_ms: steps.p99_ms,
                skipped: steps.skipped,
                examples_per_sec,
                per_process: examples_per_sec / (num_processes + steps.num_replaced) as f64,
            }
        };
        let rows: Vec<_> = sizes
            .iter()
            .flat_map(|size| used.clone().map(move |remedy| row(*size, remedy)))
            .collect();
        let last = rows.last().map_or(0, |row| row.num_processes);
        let of_last = rows.iter().rev().filter(|row| row.num_processes == last);
        // Waiting comes last here: it wins where nothing is gained.
        let best = of_last.max_by(|a, b| a.per_process.total_cmp(&b.per_process));
        Self {
            recorded_processes: run.num_processes(),
            recorded_step_ms: run.step_ms(),
            slow_processes,
            best: best.map_or(Remedy::Wait, |row| row.remedy),
            rows,
        }
    }

    /// A human-readable table.
    pub fn table(&self) -> String {
        let titles = ["step ms", "p99 ms", "skipped", "examples/s", "per process"];
        let titles = titles.map(|title| format!("{title:>13}")).concat();
        let mut out = format!("{:>9}{:>9}{:>8}{titles}\n", "processes", "slow", "spares");
        for row in &self.rows {
            out += &format!(
                "{:>9}{:>9}{:>8}{:>13.2}{:>13.2}{:>12.2}%{:>13.1}{:>13.2}\n",
                row.num_processes,
                word(row.remedy),
                row.num_spares,
                row.step_ms,
                row.p99_ms,
                1e2 * row.skipped,
                row.examples_per_sec,
                row.per_process
            );
        }
        let slow = match &self.slow_processes[..] {
            [] => "no process of it is slow on average".to_owned(),
            some => {
                let list = some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                format!("slow on average: process {list}")
            }
        };
        let best = match self.best {
            Remedy::Wait => "wait",
            Remedy::Skip => "data.late = \"skip\"",
            Remedy::Replace => "cluster.on_slow = \"replace\" with lockstep launch --spares",
        };
        out + &format!(
            "slow processes, resampled from a run of {} with a mean step of {:.2} ms; {slow}\nmost \
             examples/s for each process, spares included: {best}. skip is data.late = \"skip\", \
             replace is cluster.on_slow = \"replace\". What collectives take is that of the step \
             without slow processes",
            counted(self.recorded_processes, "process"),
            self.recorded_step_ms
        )
    }
}

fn word(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::Wait => "wait",
        Remedy::Skip => "skip",
        Remedy::Replace => "replace",
    }
}
