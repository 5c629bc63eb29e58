//! Batches that are late, where a run goes on without them: `data.late`.
//!
//! Each process decides for its own shards of a step's batch. A shard without its batch takes part
//! with another one and weight 0, so that nobody waits; the program counts what is there. Somebody
//! must have a batch in each step, and all know who: the shard that was not late for the longest
//! time, by what the program has told all of earlier steps.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::r#loop::MAX_UNRECORDED;
use super::{DeviceBatch, Error, Run, StepResult};
use crate::config::LateConfig;
use crate::data::{NextBatch, Prefetch, PrefetchError, Prefetched};
use crate::pjrt;

/// Steps that the length of one follows from.
const MEASURED: usize = 32;
/// As long as fewer are measured, all batches are waited for.
const FEWEST_MEASURED: usize = 8;

/// The results of a step are known to all processes when so many others have been launched.
const KNOWN_AFTER: u64 = MAX_UNRECORDED as u64 + 1;

/// What a process does about its late batches.
pub(super) struct LateBatches {
    /// The shards of this process.
    shards: Arc<[usize]>,
    /// For each shard with examples of its own, the last step for which its batch was late, plus 1.
    last_late: Vec<u64>,
    /// Late shards of steps that are too new to decide anything.
    new: VecDeque<(u64, Vec<usize>)>,
    /// Which shards were late in another run, by step, if that decides.
    decided: Option<BTreeMap<u64, Vec<usize>>>,
    /// Times of the last steps.
    steps: VecDeque<Duration>,
    /// The batch that takes the place of a late one.
    last: Option<DeviceBatch>,
    /// Earlier steps need no batch any more.
    wanted: Arc<AtomicU64>,
}

impl LateBatches {
    /// For the process with these shards.
    ///
    /// # Errors
    /// Decisions of another run that cannot be read.
    pub fn new(config: &LateConfig, run: &Run, shards: Arc<[usize]>) -> Result<Self, Error> {
        let batch = run.batch;
        let num_shards = batch.num_global_microbatches().div_ceil(batch.num_microbatches().max(1));
        let decided = config.late_from.as_deref().map(|path| {
            decisions(path).map_err(|source| Error::LateFrom { path: path.to_owned(), source })
        });
        Ok(Self {
            shards,
            last_late: vec![0; num_shards.max(1)],
            new: VecDeque::new(),
            decided: decided.transpose()?,
            steps: VecDeque::new(),
            last: None,
            wanted: Arc::default(),
        })
    }

    /// Says whether a batch is still wanted, for the thread that assembles batches.
    pub fn is_wanted(&self) -> impl Fn(u64) -> bool + Send + use<> {
        let wanted = Arc::clone(&self.wanted);
        move |step| step >= wanted.load(Ordering::Relaxed)
    }

    /// A step took so long; the batches of these shards were late, whether or not they were waited
    /// for.
    pub fn step_ended(&mut self, result: &StepResult, time: Duration) {
        let late = result.late_shards.iter().chain(&result.awaited_shards);
        self.new.push_back((result.step, late.copied().collect()));
        self.steps.push_back(time);
        if self.steps.len() > MEASURED {
            self.steps.pop_front();
        }
    }

    /// The batch of a step, or the one that takes its place. `last_end` says when the step before
    /// ended, if it has.
    pub fn next(
        &mut self,
        step: u64,
        batches: &mut Prefetch<DeviceBatch, pjrt::Error>,
        last_end: impl Fn() -> Option<Instant>,
    ) -> Option<Result<Prefetched<DeviceBatch>, PrefetchError<pjrt::Error>>> {
        let begun = Instant::now();
        self.wanted.store(step, Ordering::Relaxed);
        let late: Vec<usize> = match &self.decided {
            Some(decided) => decided.get(&step).cloned().unwrap_or_default(),
            None => vec![],
        };
        let are_all_late = self.shards.iter().all(|shard| late.contains(shard));
        if let Some(last) = self.last.as_ref().filter(|_| are_all_late) {
            let batch = last.in_place_of(step);
            return Some(Ok(Prefetched { batch, waited: Duration::ZERO }));
        }
        let (waits, grace) = (self.waits(step), self.grace());
        let is_late = || {
            let since = last_end().map(|end| end.elapsed());
            grace.is_some_and(|grace| since.is_some_and(|since| since > grace))
        };
        loop {
            match batches.next_unless(|| !waits && is_late()) {
                NextBatch::GivenUp => {
                    // Without a batch before, there is no grace either.
                    let batch = self.last.as_ref()?.in_place_of(step);
                    return Some(Ok(Prefetched { batch, waited: begun.elapsed() }));
                }
                // Of a step that did without.
                NextBatch::There(Ok(found)) if found.batch.index < step => {}
                NextBatch::There(Ok(mut found)) => {
                    self.last = Some(found.batch.clone());
                    if is_late() {
                        found.batch.note_wait();
                    }
                    // In the other run another process had them.
                    found.batch.leave_out(&late);
                    return Some(Ok(Prefetched { waited: begun.elapsed(), ..found }));
                }
                NextBatch::There(Err(error)) => return Some(Err(error)),
                NextBatch::None => return None,
            }
        }
    }

    /// `true` if this process waits for the batch of a step, whenever it comes.
    fn waits(&mut self, step: u64) -> bool {
        while let Some((of, _)) = self.new.front()
            && of + KNOWN_AFTER <= step
            && let Some((of, late)) = self.new.pop_front()
        {
            for shard in late {
                if let Some(last) = self.last_late.get_mut(shard) {
                    *last = of + 1;
                }
            }
        }
        let (_, shard) = self.last_late.iter().zip(0..).min().unwrap_or((&0, 0));
        self.shards.contains(&shard)
    }

    /// How long after the end of a step the next batch is late; `None` as long as that is not
    /// known.
    fn grace(&self) -> Option<Duration> {
        let is_measured = self.steps.len() >= FEWEST_MEASURED;
        if !is_measured || self.last.is_none() || self.decided.is_some() {
            return None;
        }
        let mut steps: Vec<_> = self.steps.iter().copied().collect();
        steps.sort_unstable();
        Some(steps[steps.len() / 2] / 2)
    }
}

/// The late shards of each step that had some, from the metrics of a run.
fn decisions(path: &Path) -> io::Result<BTreeMap<u64, Vec<usize>>> {
    #[derive(serde::Deserialize)]
    struct Line {
        step: u64,
        #[serde(default)]
        late_shards: Vec<usize>,
    }
    let text = std::fs::read_to_string(path)?;
    let mut decided = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line: Line = serde_json::from_str(line).map_err(|error| {
            let problem = format!("line {} is no step of a run: {error}", number + 1);
            io::Error::new(io::ErrorKind::InvalidData, problem)
        })?;
        if !line.late_shards.is_empty() {
            decided.insert(line.step, line.late_shards);
        }
    }
    Ok(decided)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_shard(shard: usize) -> LateBatches {
        LateBatches {
            shards: [shard].into(),
            last_late: vec![0; 3],
            new: VecDeque::new(),
            decided: None,
            steps: VecDeque::new(),
            last: None,
            wanted: Arc::default(),
        }
    }

    #[test]
    fn one_process_waits_and_it_is_the_one_that_was_on_time_for_longest() {
        let mut processes: Vec<_> = (0..3).map(of_shard).collect();
        let waits = |processes: &mut Vec<LateBatches>, step| {
            let waits: Vec<_> = processes.iter_mut().map(|process| process.waits(step)).collect();
            assert_eq!(waits.iter().filter(|waits| **waits).count(), 1, "step {step}: {waits:?}");
            waits.iter().position(|waits| *waits).unwrap()
        };
        let ended = |processes: &mut Vec<LateBatches>, step, late: &[usize], awaited: &[usize]| {
            let (late_shards, awaited_shards) = (late.to_vec(), awaited.to_vec());
            let result = StepResult { step, late_shards, awaited_shards, ..StepResult::default() };
            processes.iter_mut().for_each(|it| it.step_ended(&result, Duration::ZERO));
        };
        assert_eq!(waits(&mut processes, 0), 0);
        // Shard 0 was waited for in step 0, which all know when steps 1 and 2 have been launched.
        ended(&mut processes, 0, &[], &[0]);
        assert_eq!(waits(&mut processes, 2), 0);
        assert_eq!(waits(&mut processes, 3), 1);
        ended(&mut processes, 1, &[1], &[]);
        ended(&mut processes, 2, &[2], &[]);
        // Some have recorded more than others: that decides nothing yet.
        let result = StepResult { step: 3, late_shards: vec![0], ..StepResult::default() };
        processes[1].step_ended(&result, Duration::ZERO);
        assert_eq!(waits(&mut processes, 4), 2);
        assert_eq!(waits(&mut processes, 5), 0);
    }

    #[test]
    fn decisions_are_those_of_the_lines_and_a_damaged_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let lines = "{\"step\":0,\"loss\":1.0}\n{\"step\":1,\"late_shards\":[2,3]}\n";
        std::fs::write(&path, lines).unwrap();
        assert_eq!(decisions(&path).unwrap(), BTreeMap::from([(1, vec![2, 3])]));
        std::fs::write(&path, format!("{lines}{{\"step\":")).unwrap();
        let error = decisions(&path).unwrap_err().to_string();
        assert!(error.starts_with("line 3 is no step of a run: "), "{error}");
    }
}
