//! What a pipeline costs: ticks in which stages are idle, values that are kept, rows that are
//! padding, and how much of what stages send runs beside matmuls.

use hlo::counted;
use serde::Serialize;

use super::collective::{Collective, overlapped_fraction};
use crate::parallel::{Phase, PipelineSchedule};

/// The pipeline of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPipeline {
    /// Which stage runs what when.
    pub schedule: PipelineSchedule,
    /// Rows of a microbatch that the stages divide among them for the head; `None` if each stage
    /// computes all of it.
    pub head_rows: Option<usize>,
}

/// The costs of a pipeline, as the commands print them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PipelineReport {
    /// Replicas along `pipeline`.
    pub num_stages: usize,
    /// Chunks of blocks of each stage.
    pub num_chunks: usize,
    /// Microbatches of a step.
    pub num_microbatches: usize,
    /// Ticks with a forward pass; there are as many with a backward pass.
    pub num_ticks: usize,
    /// The fraction of these in which a stage is idle.
    pub idle_fraction: f64,
    /// For how many microbatches a stage keeps values of a chunk, at most, over all of its chunks.
    pub num_slots: usize,
    /// The fraction of the rows of the head that are padding; `None` if each stage computes the
    /// whole head.
    pub padded_fraction: Option<f64>,
    /// How much of what stages send runs beside matmuls, if the step was compiled.
    pub sent: Option<SentByStages>,
}

/// What the stages send, as compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SentByStages {
    /// Bytes of the collective_permutes over `pipeline`, in a step.
    pub bytes: u64,
    /// The fraction of these that runs beside matmuls.
    pub overlapped_fraction: f64,
    /// The bytes of those in ticks with both a forward and a backward pass. The others are in the
    /// ticks in which the pipeline fills and drains.
    pub steady_bytes: u64,
    /// The fraction of these that runs beside matmuls; `None` without such ticks.
    pub steady_overlapped_fraction: Option<f64>,
    /// The same of the others.
    pub filling_overlapped_fraction: Option<f64>,
}

/// Columns of a picture.
const WIDTH: usize = 92;
/// Columns of these for the last ticks, if not all have room.
const END: usize = 30;
/// Stages of a picture.
const MAX_STAGES: usize = 16;

impl StepPipeline {
    /// Rows of the head that are padding.
    fn padded_fraction(&self) -> Option<f64> {
        let (rows, stages) = (self.head_rows?, self.schedule.num_stages());
        let padded = rows.div_ceil(stages) * stages;
        Some((padded - rows) as f64 / padded.max(1) as f64)
    }

    /// The costs, before compiling.
    pub fn report(&self) -> PipelineReport {
        let schedule = &self.schedule;
        PipelineReport {
            num_stages: schedule.num_stages(),
            num_chunks: schedule.num_chunks(),
            num_microbatches: schedule.num_microbatches(),
            num_ticks: schedule.num_busy_ticks(),
            idle_fraction: schedule.bubble(),
            num_slots: schedule.num_slots(),
            padded_fraction: self.padded_fraction(),
            sent: None,
        }
    }

    /// The passes of each stage, tick by tick, a line for each. In the middle of wide pictures
    /// ticks are left out, and of high ones stages.
    pub fn picture(&self) -> Vec<String> {
        let all: Vec<String> = self.schedule.to_string().lines().map(str::to_owned).collect();
        let elided = |line: &String| {
            let chars: Vec<char> = line.trim_end().chars().collect();
            let width = all.iter().map(|line| line.len()).max().unwrap_or(0);
            if width <= WIDTH {
                return chars.into_iter().collect();
            }
            let padded = format!("{line:<width$}");
            let start: String = padded.chars().take(WIDTH - END - 4).collect();
            let end: String = padded.chars().skip(width - END).collect();
            format!("{start} .. {}", end.trim_end())
        };
        let mut lines: Vec<String> = all.iter().map(elided).collect();
        if lines.len() > MAX_STAGES {
            let left_out = lines.len() - MAX_STAGES;
            let half = MAX_STAGES / 2;
            lines.splice(half..half + left_out, [format!("({left_out} more stages)")]);
        }
        lines
    }
}

impl PipelineReport {
    /// In words, a line for each.
    pub fn lines(&self) -> Vec<String> {
        let Self { num_stages, num_chunks, num_microbatches, num_ticks, num_slots, .. } = self;
        let chunks = match num_chunks {
            1 => String::new(),
            chunks => format!(" of {chunks} chunks"),
        };
        let mut first = format!(
            "{} through {}{chunks}: {num_ticks} ticks, idle {:.0} % of them, {} kept",
            counted(*num_microbatches, "microbatch"),
            counted(*num_stages, "stage"),
            100.0 * self.idle_fraction,
            match num_chunks {
                1 => counted(*num_slots, "microbatch"),
                _ => format!("{} of a chunk", counted(*num_slots, "microbatch")),
            }
        );
        match self.padded_fraction {
            None => first += ", the head whole on each stage",
            Some(padded) if padded > 0.0 => {
                first += &format!(", {:.1} % of the head's rows are padding", 100.0 * padded);
            }
            Some(_) => {}
        }
        let percent = |fraction: f64| format!("{:.0} %", 100.0 * fraction);
        let sent = self.sent.map(|sent| {
            let mut line =
                format!("{} of the permutes' bytes beside matmuls", percent(sent.overlapped_fraction));
            let parts = [
                (sent.steady_overlapped_fraction, "of those in ticks with both passes"),
                (sent.filling_overlapped_fraction, "of those while the pipeline fills and drains"),
            ];
            let parts = parts.into_iter().filter_map(|(fraction, of)| {
                Some(format!("{} {of}", percent(fraction?)))
            });
            let parts: Vec<_> = parts.collect();
            if !parts.is_empty() {
                line += &format!(": {}", parts.join(", "));
            }
            line
        });
        [first].into_iter().chain(sent).collect()
    }
}

impl SentByStages {
    /// From the collectives of a compiled step; `None` if no stage sends anything.
    pub(super) fn of(collectives: &[Collective], schedule: &PipelineSchedule) -> Option<Self> {
        let loops = loops(collectives);
        let phases: Vec<_> = phases(schedule).collect();
        // In the order of the phases, unless the compiler has unrolled a loop.
        let steady = (loops.len() == phases.len())
            .then(|| phases.iter().position(|phase| phase.forward && phase.backward))
            .flatten()
            .and_then(|at| loops.get(at).copied());
        let is_steady = |collective: &Collective| Some(collective.in_loop) == steady;
        let permutes: Vec<_> =
            collectives.iter().filter(|c| c.is_of_stages()).cloned().collect();
        let overlapped = overlapped_fraction(&permutes, |_| true)?;
        let has_parts = loops.len() == phases.len();
        let of = |steady: bool| {
            overlapped_fraction(&permutes, |permute| is_steady(permute) == steady)
                .filter(|_| has_parts)
        };
        let bytes = |permutes: &mut dyn Iterator<Item = &Collective>| {
            permutes.map(Collective::total_bytes).fold(0, u64::saturating_add)
        };
        Some(Self {
            bytes: bytes(&mut permutes.iter()),
            overlapped_fraction: overlapped,
            steady_bytes: bytes(&mut permutes.iter().filter(|permute| is_steady(permute))),
            steady_overlapped_fraction: of(true),
            filling_overlapped_fraction: of(false),
        })
    }
}

/// Counts what a head exchanges as often as it runs, which the compiled program does not say: it is
/// in a branch, which most ticks take.
pub(super) fn count_heads(collectives: &mut [Collective], schedule: &PipelineSchedule) {
    let (loops, phases) = (loops(collectives), phases(schedule).collect::<Vec<_>>());
    if loops.len() != phases.len() {
        return;
    }
    let in_branches = collectives.iter_mut().filter(|collective| collective.in_branch);
    for collective in in_branches {
        let at = loops.iter().position(|number| *number == collective.in_loop);
        let Some(Phase { start, num_ticks, .. }) = at.and_then(|at| phases.get(at)) else {
            continue;
        };
        let ticks = *start..start + num_ticks;
        let heads = ticks.filter(|tick| schedule.head(*tick).is_some()).count();
        let count = u128::from(collective.count) * heads as u128 / (*num_ticks).max(1) as u128;
        collective.count = u64::try_from(count).unwrap_or(u64::MAX);
    }
}

fn phases(schedule: &PipelineSchedule) -> impl Iterator<Item = Phase> {
    schedule.phases().into_iter().filter(|phase| phase.num_ticks > 0)
}

/// The loops in which stages send, in the order of the schedule.
fn loops(collectives: &[Collective]) -> Vec<usize> {
    let all = collectives.iter().filter(|collective| collective.is_of_stages());
    let mut loops: Vec<_> = all.map(|collective| collective.in_loop).collect();
    loops.sort_unstable();
    loops.dedup();
    loops
}
