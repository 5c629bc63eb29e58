//! What a pipeline costs: ticks in which stages are idle, values that are kept, rows that are
//! padding, and how much of what stages send runs beside matmuls.

use hlo::counted;
use serde::Serialize;

use super::collective::{Collective, overlapped_fraction};
use crate::parallel::{PipelineSchedule, TickPhase};

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
    pub num_kept: usize,
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
/// Columns of these for the name of a stage.
const NAME: usize = 9;
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
            // One slot more may be for idle passes.
            num_kept: schedule.num_slots().min(schedule.num_chunks() * schedule.num_microbatches()),
            padded_fraction: self.padded_fraction(),
            sent: None,
        }
    }

    /// The passes of each stage, tick by tick, a line for each after one that says what is what. In
    /// the middle of wide pictures ticks are left out, and of high ones stages.
    pub fn picture(&self) -> Vec<String> {
        let (number, chunk) = match self.schedule.num_chunks() {
            1 => ("3", ""),
            _ => ("3.1", " through chunk 1"),
        };
        let legend = format!(
            "F{number}: forward pass of microbatch 3{chunk}, B{number}: its backward pass, .: idle"
        );
        let all: Vec<String> = self.schedule.to_string().lines().map(str::to_owned).collect();
        // After the name of the stage, each pass has as many columns as the longest.
        let last = self.schedule.num_microbatches().saturating_sub(1);
        let column = format!(" F{last}{}", number.trim_start_matches('3')).len();
        let whole = |columns: usize| columns / column * column;
        let (start, end) = (NAME + whole(WIDTH - NAME - END - 3), whole(END));
        let elided = |line: &String| {
            // All lines are equally long.
            let middle = line.len().saturating_sub(end);
            let line = match (line.get(..start), line.get(middle..)) {
                (Some(start), Some(end)) if line.len() > WIDTH => format!("{start} ..{end}"),
                _ => line.clone(),
            };
            line.trim_end().to_owned()
        };
        let mut lines: Vec<String> = all.iter().map(elided).collect();
        if lines.len() > MAX_STAGES {
            let left_out = lines.len() - MAX_STAGES;
            let half = MAX_STAGES / 2;
            lines.splice(half..half + left_out, [format!("({left_out} more stages)")]);
        }
        lines.insert(0, legend);
        lines
    }
}

impl PipelineReport {
    /// In words, a line for each.
    pub fn lines(&self) -> Vec<String> {
        let Self { num_stages, num_chunks, num_microbatches, num_ticks, num_kept, .. } = self;
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
                1 => counted(*num_kept, "microbatch"),
                _ => format!("{} of a chunk", counted(*num_kept, "microbatch")),
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
            let mut line = format!(
                "{} of the permutes' bytes beside matmuls",
                percent(sent.overlapped_fraction)
            );
            let parts = [
                (sent.steady_overlapped_fraction, "of those in ticks with both passes"),
                (sent.filling_overlapped_fraction, "of those while the pipeline fills and drains"),
            ];
            let parts = parts
                .into_iter()
                .filter_map(|(fraction, of)| Some(format!("{} {of}", percent(fraction?))));
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
        let permutes: Vec<_> = collectives.iter().filter(|c| c.is_of_stages()).cloned().collect();
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
        let Some(TickPhase { start, num_ticks, .. }) = at.and_then(|at| phases.get(at)) else {
            continue;
        };
        let ticks = *start..start + num_ticks;
        let heads = ticks.filter(|tick| schedule.head(*tick).is_some()).count();
        let count = u128::from(collective.count) * heads as u128 / (*num_ticks).max(1) as u128;
        collective.count = u64::try_from(count).unwrap_or(u64::MAX);
    }
}

fn phases(schedule: &PipelineSchedule) -> impl Iterator<Item = TickPhase> {
    schedule.phases().into_iter().filter(|phase| phase.num_ticks > 0)
}

/// The loops in which stages send, in the order of the schedule. Compilers may take what does not
/// depend on a tick out of its loop.
fn loops(collectives: &[Collective]) -> Vec<usize> {
    let is_in_loop = |c: &&Collective| c.is_of_stages() && c.in_loop > 0;
    let all = collectives.iter().filter(is_in_loop);
    let mut loops: Vec<_> = all.map(|collective| collective.in_loop).collect();
    loops.sort_unstable();
    loops.dedup();
    loops
}

#[cfg(test)]
mod tests {
    use super::super::CollectivePhase;
    use super::*;
    use crate::parallel::PipelinePlan;

    fn pipeline(num_stages: usize, num_microbatches: usize) -> StepPipeline {
        let PipelinePlan { order, num_chunks } = PipelinePlan::default();
        let schedule = PipelineSchedule::new(order, num_stages, num_chunks, num_microbatches);
        StepPipeline { schedule, head_rows: Some(10) }
    }

    #[test]
    fn pictures_are_cut_in_the_middle() {
        let small = pipeline(2, 4).picture();
        assert_eq!(small.len(), 3);
        let wide = pipeline(4, 64).picture();
        assert!(wide[1..].iter().all(|line| line.len() <= WIDTH), "{wide:?}");
        assert!(wide[1].starts_with("stage 0   F0  F1") && wide[1].contains(" .. "), "{wide:?}");
        assert!(wide[1].ends_with("B63") && wide[4].contains(" B63 "), "{wide:?}");
        let high = pipeline(24, 24).picture();
        assert_eq!((high.len(), &*high[9]), (18, "(8 more stages)"));
    }

    #[test]
    fn padding_and_idle_ticks_are_said() {
        let line = &pipeline(4, 8).report().lines()[0];
        let expected = "8 microbatches through 4 stages: 11 ticks, idle 27 % of them, 8 \
                        microbatches kept, 16.7 % of the head's rows are padding";
        assert_eq!(line, expected);
        let whole = StepPipeline { head_rows: None, ..pipeline(4, 8) }.report();
        assert!(whole.lines()[0].ends_with("the head whole on each stage"));
    }

    /// Of 12 microbatches through 4 stages: loops of 5, 10 and 5 ticks.
    #[test]
    fn what_stages_send_is_by_the_loops_of_ticks() {
        let permute = |in_loop: usize, count: u64, overlapped_matmuls: usize| Collective {
            kind: "collective_permute".into(),
            phase: CollectivePhase::Other,
            bytes: 100,
            count,
            group_size: 4,
            num_groups: 1,
            axes: vec!["pipeline".to_owned()],
            asynchronous: true,
            overlapped_matmuls,
            group: vec![],
            in_loop,
            in_branch: false,
        };
        let of_head = Collective {
            kind: "all_reduce".into(),
            axes: vec!["tensor".to_owned()],
            in_branch: true,
            ..permute(3, 10, 0)
        };
        let schedule = pipeline(4, 12).schedule;
        let mut all = vec![permute(1, 5, 0), permute(3, 10, 2), permute(4, 5, 1), of_head];
        all.extend([1, 4].map(|in_loop| Collective { in_loop, count: 5, ..all[3].clone() }));
        let sent = SentByStages::of(&all, &schedule).unwrap();
        assert_eq!((sent.bytes, sent.steady_bytes, sent.overlapped_fraction), (2000, 1000, 0.75));
        assert_eq!(sent.steady_overlapped_fraction, Some(1.0));
        assert_eq!(sent.filling_overlapped_fraction, Some(0.5));
        // The head runs 12 times, as often as there are microbatches.
        count_heads(&mut all, &schedule);
        let of_heads = all.iter().filter(|collective| collective.in_branch);
        assert_eq!(of_heads.map(|collective| collective.count).collect::<Vec<_>>(), [10, 1, 1]);
        // With a loop unrolled it is not known which tick is which.
        let sent = SentByStages::of(&all[1..3], &schedule).unwrap();
        assert_eq!((sent.steady_overlapped_fraction, sent.overlapped_fraction), (None, 1.0));
        assert_eq!(SentByStages::of(&[], &schedule), None);
    }
}
