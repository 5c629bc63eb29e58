//! The loop: from the first step to the last.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::recorder::{LaunchTimes, Recorder};
use super::{Error, Job, PendingSteps, Run, StepResult, Stop, Trainer, launches};
use crate::config::OnNonfinite;
use crate::data::{Prefetch, TrainBatches};

/// Launches whose numbers may be outstanding. More would not make the devices busier, and would let the
/// host run far ahead of a step that is to stop the run.
const MAX_IN_FLIGHT: usize = 2;

/// How the steps ended, where no error ended them.
pub(super) enum End {
    /// All were taken, and this is what is not finite after them.
    Done(Option<Error>),
    /// It was asked to, before the last of them or before the evaluation after it had ended.
    Interrupted,
}

/// The state of the loop on the host.
pub(super) struct Steps<'a> {
    job: &'a Job<'a>,
    run: &'a Run,
    stop: &'a Stop,
    recorder: &'a mut Recorder,
    num_skipped: u64,
    /// What was not finite in the last step, if its update was left out.
    skipped_last: Option<String>,
    /// When the launch before ended.
    last_end: Instant,
}

/// A launch in flight, and what the host has spent on it.
struct InFlight {
    pending: PendingSteps,
    host: Duration,
    data_wait: Duration,
}

impl<'a> Steps<'a> {
    pub fn new(job: &'a Job<'a>, run: &'a Run, stop: &'a Stop, recorder: &'a mut Recorder) -> Self {
        let last_end = Instant::now();
        Self { job, run, stop, recorder, num_skipped: 0, skipped_last: None, last_end }
    }

    /// All steps, proofs and evaluations.
    pub fn run(mut self, trainer: &mut Trainer) -> Result<End, Error> {
        let config = &self.job.config.train;
        let total = self.run.length.total_steps();
        let batches = TrainBatches::new(
            self.job.splits.train.clone(),
            config.seed,
            self.run.batch.global_batch(),
            self.run.mesh.num_replicas(),
        )?;
        let steps_per_launch = config.steps_per_launch as u64;
        let stops = [config.check_lockstep_every, config.eval_every];
        let launches = launches(total, steps_per_launch, &stops);
        let launches = launches.map(move |steps| batches.launch(steps));
        let sender = trainer.batch_sender();
        let mut prefetch = Prefetch::start(launches, 1, move |batches| sender.send(batches))?;
        let mut in_flight = VecDeque::new();
        self.last_end = Instant::now();
        while trainer.steps_taken() < total && !self.stop.is_requested() {
            let Some(batch) = prefetch.next() else { break };
            // The first batch, or one from a slow disk, may have been waited for for long.
            if self.stop.is_requested() {
                break;
            }
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => {
                    // What was launched before is part of the run, and of the parameters.
                    self.finish(trainer, &mut in_flight, 0)?;
                    return Err(error.into());
                }
            };
            let launched = Instant::now();
            let (taken, num_steps) = (trainer.steps_taken(), batch.batch.num_steps as u64);
            let rates = (taken..taken + num_steps).map(|step| self.run.schedule.lr(step));
            let pending = trainer.launch(batch.batch, rates.collect())?;
            let (host, data_wait) = (launched.elapsed(), batch.waited);
            in_flight.push_back(InFlight { pending, host, data_wait });

            let taken = trainer.steps_taken();
            let every = config.check_lockstep_every;
            let prove = every > 0 && taken.is_multiple_of(every) && taken < total;
            let evaluate = self.is_evaluated_after(taken - 1) && taken < total;
            let keep = if prove || evaluate { 0 } else { MAX_IN_FLIGHT };
            self.finish(trainer, &mut in_flight, keep)?;
            if prove {
                self.prove(trainer)?;
                // Its time is not the next step's.
                self.last_end = Instant::now();
            }
            if evaluate {
                self.evaluate(trainer)?;
            }
        }
        self.finish(trainer, &mut in_flight, 0)?;
        if config.check_lockstep_every > 0 {
            // What is saved has been proved.
            self.prove(trainer)?;
        }
        if trainer.steps_taken() < total {
            return Ok(End::Interrupted);
        }
        let num_steps = total;
        let loss = self.evaluate(trainer)?;
        if let Some(what) = self.skipped_last {
            let (step, num_skipped) = (num_steps - 1, self.num_skipped);
            return Ok(End::Done(Some(Error::LastSkipped { step, what, num_skipped, num_steps })));
        }
        match loss {
            None => Ok(End::Interrupted),
            Some(loss) if loss.is_finite() => Ok(End::Done(None)),
            Some(loss) => Ok(End::Done(Some(Error::NonFiniteEval { loss }))),
        }
    }

    /// Waits for the numbers of all but the last `keep` launches, and writes them down.
    fn finish(
        &mut self,
        trainer: &mut Trainer,
        in_flight: &mut VecDeque<InFlight>,
        keep: usize,
    ) -> Result<(), Error> {
        while in_flight.len() > keep {
            let Some(InFlight { pending, host, data_wait }) = in_flight.pop_front() else { break };
            let results = trainer.finish(pending)?;
            let end = Instant::now();
            let total = end - std::mem::replace(&mut self.last_end, end);
            let num_steps = results.len();
            self.record(&results, LaunchTimes { num_steps, total, host, data_wait })?;
        }
        Ok(())
    }

    /// A step that stops the run is the last that is written down: those that were launched after it have
    /// changed nothing.
    fn record(&mut self, results: &[StepResult], times: LaunchTimes) -> Result<(), Error> {
        let (mut num_recorded, mut ended) = (results.len(), Ok(()));
        for (result, number) in results.iter().zip(1..) {
            self.skipped_last = None;
            if result.num_skipped == self.num_skipped {
                continue;
            }
            self.num_skipped = result.num_skipped;
            let what = describe_nonfinite(result);
            if self.run.on_nonfinite == OnNonfinite::Stop {
                (num_recorded, ended) = (number, Err(Error::NonFinite { step: result.step, what }));
                break;
            }
            self.recorder.update_skipped(result, &what);
            self.skipped_last = Some(what);
        }
        let results = &results[..num_recorded];
        let last = results.last().map(|result| result.step);
        let is_evaluated = last.is_some_and(|step| self.is_evaluated_after(step));
        self.recorder.launch(results, times, is_evaluated);
        ended
    }

    fn prove(&mut self, trainer: &Trainer) -> Result<(), Error> {
        trainer.prove_lockstep()?;
        self.recorder.lockstep_proved(trainer.steps_taken());
        Ok(())
    }

    /// Evaluates and returns the loss, or `None` if the run is asked to end meanwhile.
    fn evaluate(&mut self, trainer: &Trainer) -> Result<Option<f64>, Error> {
        let source = &self.job.splits.eval;
        let eval = trainer.evaluate_unless(source, self.run, || self.stop.is_requested())?;
        let loss = eval.as_ref().map(|eval| eval.loss);
        if let Some(eval) = eval {
            self.recorder.evaluated(trainer.steps_taken(), eval);
        }
        // Its time is not the next step's.
        self.last_end = Instant::now();
        Ok(loss)
    }

    /// Is the evaluation split looked at after this step? Its line waits for that.
    fn is_evaluated_after(&self, step: u64) -> bool {
        let every = self.job.config.train.eval_every;
        step + 1 == self.run.length.total_steps() || every > 0 && (step + 1).is_multiple_of(every)
    }
}

fn describe_nonfinite(result: &StepResult) -> String {
    let replicas: Vec<_> = result.nonfinite_replicas.iter().map(usize::to_string).collect();
    match (&replicas[..], &result.nonfinite_leaf) {
        ([], _) if !result.loss.is_finite() => format!("the loss is {}", result.loss),
        ([], Some(leaf)) if result.grad_norm.is_finite() => {
            format!("the next value of `{leaf}` is not finite")
        }
        ([], _) => format!("the gradient's norm is {}", result.grad_norm),
        ([one], _) => format!("the loss is not finite on replica {one}"),
        (many, _) => format!("the loss is not finite on replicas {}", many.join(", ")),
    }
}
