//! Schedules of a pipeline: which stage runs which microbatch at which tick.

use std::fmt;

use crate::config::PipelineOrder;

/// How a step runs its microbatches through the stages of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelinePlan {
    /// Whether backward passes begin as early as they can.
    pub order: PipelineOrder,
    /// Number of chunks of blocks of each stage.
    pub num_chunks: usize,
}

impl Default for PipelinePlan {
    fn default() -> Self {
        Self { order: PipelineOrder::default(), num_chunks: 1 }
    }
}

/// When each of P stages runs each of its v chunks for each of M microbatches, in ticks. All stages
/// are one program, so a tick has the same parts on all of them: a forward pass through a chunk,
/// the head on what left the last stage, a backward pass through a chunk.
///
/// With m = g P + j, where j < P:
///
/// ```text
/// forward of chunk r at stage s    g v P + r P + j + s
/// backward                         start + g v P + (v - 1 - r) P + j + P - 1 - s
/// head                             start - 1 + g v P + j
/// ```
/// A value that a stage sends at a tick is used at the next, so no tick waits for it. With 1F1B,
/// `start` is v P + 1, two ticks after the last stage has run its last chunk for the first
/// microbatch: the head has the one between. With GPipe it is v M + P - 1, when all forward passes
/// are done. Either way each stage is idle in P - 1 of v M + P - 1 ticks, forward and backward.
///
/// Huang et al., "GPipe" (2019); Narayanan et al., "Efficient large-scale language model training
/// on GPU clusters using Megatron-LM" (2021), section 2.2.
///
/// ```
/// use lockstep::config::PipelineOrder;
/// use lockstep::parallel::PipelineSchedule;
///
/// let schedule = PipelineSchedule::new(PipelineOrder::OneForwardOneBackward, 2, 1, 4);
/// assert_eq!((schedule.num_busy_ticks(), schedule.num_slots()), (5, 5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineSchedule {
    num_stages: usize,
    num_chunks: usize,
    num_microbatches: usize,
    /// The first tick with a backward pass.
    start: usize,
}

/// A pass through a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagePass {
    /// Index of the microbatch.
    pub microbatch: usize,
    /// Index of the chunk among those of the stage.
    pub chunk: usize,
}

/// Ticks with the same parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TickPhase {
    /// The first tick.
    pub start: usize,
    /// Number of ticks.
    pub num_ticks: usize,
    /// `true` with forward passes.
    pub forward: bool,
    /// `true` with backward passes.
    pub backward: bool,
}

impl PipelineSchedule {
    /// The schedule of an order.
    pub fn new(
        order: PipelineOrder,
        num_stages: usize,
        num_chunks: usize,
        num_microbatches: usize,
    ) -> Self {
        let num_busy = num_chunks * num_microbatches + num_stages - 1;
        let start = match order {
            PipelineOrder::OneForwardOneBackward => num_chunks * num_stages + 1,
            PipelineOrder::Gpipe => num_busy.max(num_chunks * num_stages + 1),
        };
        Self { num_stages, num_chunks, num_microbatches, start }
    }

    /// Number of stages.
    pub fn num_stages(&self) -> usize {
        self.num_stages
    }

    /// Number of microbatches.
    pub fn num_microbatches(&self) -> usize {
        self.num_microbatches
    }

    /// Number of chunks of each stage.
    pub fn num_chunks(&self) -> usize {
        self.num_chunks
    }

    /// The first tick with a backward pass.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Number of ticks with forward passes, and of those with backward passes: v M + P - 1.
    pub fn num_busy_ticks(&self) -> usize {
        self.num_chunks * self.num_microbatches + self.num_stages - 1
    }

    /// The part of a stage's time in which it is idle: (P - 1) / (v M + P - 1).
    pub fn bubble(&self) -> f64 {
        (self.num_stages - 1) as f64 / self.num_busy_ticks() as f64
    }

    /// All ticks, by their parts. None is left out.
    pub fn phases(&self) -> [TickPhase; 3] {
        let forward_end = self.num_busy_ticks();
        let both_end = forward_end.max(self.start);
        let phase = |start: usize, end: usize, forward, backward| TickPhase {
            start,
            num_ticks: end - start,
            forward,
            backward,
        };
        [
            phase(0, self.start, true, false),
            phase(self.start, both_end, true, true),
            phase(both_end, self.start + self.num_busy_ticks(), false, true),
        ]
    }

    /// The forward pass of a stage at a tick.
    pub fn forward(&self, tick: usize, stage: usize) -> Option<StagePass> {
        self.pass(tick.checked_sub(stage)?)
    }

    /// The backward pass of a stage at a tick.
    pub fn backward(&self, tick: usize, stage: usize) -> Option<StagePass> {
        let pass = self.pass(tick.checked_sub(self.start + self.num_stages - 1 - stage)?)?;
        Some(StagePass { chunk: self.num_chunks - 1 - pass.chunk, ..pass })
    }

    /// The microbatch of the head at a tick.
    pub fn head(&self, tick: usize) -> Option<usize> {
        let pass = self.pass(tick.checked_sub(self.start - 1)?)?;
        (pass.chunk == 0).then_some(pass.microbatch)
    }

    /// The pass with this index in the order in which a stage runs its passes: P microbatches
    /// through each chunk.
    fn pass(&self, index: usize) -> Option<StagePass> {
        let in_group = index % (self.num_chunks * self.num_stages);
        let group = index / (self.num_chunks * self.num_stages);
        let (chunk, place) = (in_group / self.num_stages, in_group % self.num_stages);
        let microbatch = group * self.num_stages + place;
        let exists = index < self.num_chunks * self.num_microbatches;
        exists.then_some(StagePass { microbatch, chunk })
    }

    /// Where a stage keeps the values of each of its forward passes, in order, up to its backward
    /// pass: as few slots as there are values to keep at once. The idle passes after the last one
    /// have slots in which nothing is kept.
    pub fn slots(&self) -> Vec<usize> {
        let num_passes = self.num_chunks * self.num_microbatches;
        // The first stage keeps values the longest: each other stage begins its passes as much
        // later as it ends them earlier.
        let end = |index: usize| match self.pass(index) {
            Some(StagePass { chunk, .. }) => {
                let turned = index + (self.num_chunks - 1) * self.num_stages;
                self.start + turned - 2 * chunk * self.num_stages + self.num_stages - 1
            }
            None => index,
        };
        let mut free_from: Vec<usize> = vec![];
        let slot = |index: usize| {
            let slot = free_from.iter().position(|free| *free <= index).unwrap_or(free_from.len());
            if slot == free_from.len() {
                free_from.push(0);
            }
            free_from[slot] = end(index) + 1;
            slot
        };
        (0..num_passes + self.num_stages - 1).map(slot).collect()
    }

    /// Number of slots: with 1F1B and enough microbatches v P + P + 1, with GPipe v M and one for
    /// idle passes.
    pub fn num_slots(&self) -> usize {
        self.slots().into_iter().max().map_or(0, |slot| slot + 1)
    }

    /// For how many microbatches at most the last stage keeps its results for the head.
    pub fn num_results(&self) -> usize {
        let first = self.num_chunks * self.num_stages - 1;
        (self.start - 1 - first).min(self.num_microbatches)
    }

    /// Checks that everything that a pass needs is there.
    ///
    /// # Errors
    /// The first pass without its inputs.
    pub fn check(&self) -> Result<(), String> {
        let num_ticks = self.start + self.num_busy_ticks();
        let (last_stage, last_chunk) = (self.num_stages - 1, self.num_chunks - 1);
        let find = |of: &dyn Fn(usize) -> Option<StagePass>, pass: StagePass| {
            (0..num_ticks).find(|tick| of(*tick) == Some(pass))
        };
        let slots = self.slots();
        for microbatch in 0..self.num_microbatches {
            let head = (0..num_ticks).find(|tick| self.head(*tick) == Some(microbatch));
            for (chunk, stage) in
                (0..self.num_chunks).flat_map(|r| (0..self.num_stages).map(move |s| (r, s)))
            {
                let pass = StagePass { microbatch, chunk };
                let at = |stage: usize, chunk: usize| {
                    let pass = StagePass { microbatch, chunk };
                    let forward = find(&|tick| self.forward(tick, stage), pass);
                    (forward, find(&|tick| self.backward(tick, stage), pass))
                };
                let before = |a: Option<usize>, b: Option<usize>| matches!((a, b), (Some(a), Some(b)) if a < b);
                let (forward, backward) = at(stage, chunk);
                let previous = match (stage, chunk) {
                    (0, 0) => None,
                    (0, _) => Some((last_stage, chunk - 1)),
                    _ => Some((stage - 1, chunk)),
                };
                // What a stage receives is there for one tick.
                let has_input = previous.is_none_or(|(stage, chunk)| {
                    let (from, back) = at(stage, chunk);
                    from.map(|tick| tick + 1) == forward && backward.map(|tick| tick + 1) == back
                });
                let has_head = (stage, chunk) != (last_stage, last_chunk)
                    || (before(forward, head) && head.map(|tick| tick + 1) == backward);
                let is_kept = forward.zip(backward).is_some_and(|(forward, backward)| {
                    // The forward passes of a stage are one tick after the other, idle or not.
                    let slot = slots[forward - stage];
                    let ticks = forward + 1..=backward.min(self.num_busy_ticks() - 1);
                    ticks.into_iter().all(|tick| slots[tick - stage] != slot)
                });
                if !(has_input && has_head && is_kept && before(forward, backward)) {
                    return Err(format!("{pass:?} at stage {stage} lacks what it needs"));
                }
            }
        }
        Ok(())
    }
}

/// A line for each stage, with `F3.1` for the forward pass of microbatch 3 through chunk 1, `B` for
/// backward passes, `.` where a stage is idle; without the chunk if there is one.
impl fmt::Display for PipelineSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |letter: char, pass: Option<StagePass>| match pass {
            None => ".".to_owned(),
            Some(StagePass { microbatch, .. }) if self.num_chunks == 1 => {
                format!("{letter}{microbatch}")
            }
            Some(StagePass { microbatch, chunk }) => format!("{letter}{microbatch}.{chunk}"),
        };
        let width = text('F', self.pass(self.num_chunks * self.num_microbatches - 1)).len();
        for stage in 0..self.num_stages {
            write!(f, "stage {stage:<3}")?;
            for TickPhase { start, num_ticks, forward, backward } in self.phases() {
                for tick in start..start + num_ticks {
                    let passes = [
                        forward.then(|| text('F', self.forward(tick, stage))),
                        backward.then(|| text('B', self.backward(tick, stage))),
                    ];
                    for pass in passes.into_iter().flatten() {
                        write!(f, " {pass:<width$}")?;
                    }
                }
            }
            if stage + 1 < self.num_stages {
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut f: impl FnMut(PipelineOrder, PipelineSchedule)) {
        for (stages, chunks) in (2..=8).flat_map(|p| (1..=4).map(move |v| (p, v))) {
            for microbatches in [1, 2, 3, 4, 5, 8, 12, 16, 24, 32] {
                if chunks > 1 && microbatches % stages != 0 {
                    continue;
                }
                for order in [PipelineOrder::OneForwardOneBackward, PipelineOrder::Gpipe] {
                    f(order, PipelineSchedule::new(order, stages, chunks, microbatches));
                }
            }
        }
    }

    #[test]
    fn nothing_is_used_before_it_is_there() {
        all(|_, schedule| assert_eq!(schedule.check(), Ok(()), "{schedule:?}"));
    }

    #[test]
    fn all_passes_run_once_and_stages_are_idle_as_the_formula_says() {
        all(|_, schedule| {
            let (stages, chunks) = (schedule.num_stages, schedule.num_chunks);
            let num_passes = chunks * schedule.num_microbatches;
            let ticks = |of: &dyn Fn(&TickPhase) -> bool| -> Vec<usize> {
                let phases = schedule.phases().into_iter().filter(of);
                phases.flat_map(|phase| phase.start..phase.start + phase.num_ticks).collect()
            };
            let (forward, backward) =
                (ticks(&|phase| phase.forward), ticks(&|phase| phase.backward));
            // With one microbatch the head has a tick of its own.
            let more = (schedule.start).saturating_sub(schedule.num_busy_ticks());
            assert_eq!(forward.len(), num_passes + stages - 1 + more);
            assert_eq!(backward.len(), num_passes + stages - 1);
            assert!(more == 0 || schedule.num_microbatches == 1);
            for stage in 0..stages {
                let found = forward.iter().filter(|tick| schedule.forward(**tick, stage).is_some());
                assert_eq!(found.count(), num_passes);
                let found =
                    backward.iter().filter(|tick| schedule.backward(**tick, stage).is_some());
                assert_eq!(found.count(), num_passes);
            }
            let idle = (stages - 1) as f64 / (num_passes + stages - 1) as f64;
            assert_eq!(schedule.bubble(), idle);
        });
    }

    #[test]
    fn microbatches_alive_do_not_depend_on_their_number() {
        all(|order, schedule| {
            let (p, v, m) = (schedule.num_stages, schedule.num_chunks, schedule.num_microbatches);
            let alive = |stage: usize| {
                let kept = |tick: usize| {
                    let all = (0..v)
                        .flat_map(|chunk| (0..m).map(move |m| StagePass { microbatch: m, chunk }));
                    all.filter(|pass| {
                        let at = |of: &dyn Fn(usize) -> Option<StagePass>| {
                            (0..).find(|tick| of(*tick) == Some(*pass)).unwrap_or_default()
                        };
                        let forward = at(&|tick| schedule.forward(tick, stage));
                        (forward..=at(&|tick| schedule.backward(tick, stage))).contains(&tick)
                    })
                    .count()
                };
                (0..schedule.start + schedule.num_busy_ticks()).map(kept).max().unwrap_or(0)
            };
            let slots = schedule.num_slots();
            match order {
                PipelineOrder::Gpipe => assert_eq!(slots, v * m + 1, "{schedule:?}"),
                _ if m > 2 * p => assert_eq!(slots, v * p + p + 1, "{schedule:?}"),
                _ => assert!(slots <= v * m + 1, "{schedule:?}"),
            }
            if p * v * m < 40 {
                assert!((alive(0)..=alive(0) + 1).contains(&slots), "{schedule:?}");
                assert!(alive(p - 1) <= alive(0));
            }
        });
    }

    #[test]
    fn the_picture_has_a_line_for_each_stage() {
        let schedule = PipelineSchedule::new(PipelineOrder::OneForwardOneBackward, 2, 1, 3);
        insta::assert_snapshot!(schedule, @r"
        stage 0   F0 F1 F2 .  .  B0 B1 B2
        stage 1   .  F0 F1 F2 B0 B1 B2 .
        ");
    }
}
