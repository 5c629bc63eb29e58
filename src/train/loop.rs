//! The training loop: next batch, launch, record, do what is due.
//!
//! ```text
//! data thread: batch k+1 -> devices      loop: batch k, rate k -> launch -> state, metrics of step k
//! ```
//! Launches are asynchronous. The loop launches up to [`MAX_UNRECORDED`] of them ahead of the
//! metrics that it records, and waits only where it needs a value. With `steps_per_launch`, a
//! launch is several steps on as many batches.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::checkpoints::Saver;
use super::events::{Due, DueSteps};
use super::host_metrics::LaunchTimes;
use super::late::LateBatches;
use super::nonfinite::SkippedUpdates;
use super::own_times::{OwnTimes, by_steps};
use super::probe::DeviceProbe;
use super::processes::{Agreed, Agreement, Processes};
use super::recorder::Recorder;
use super::snapshots::Snapshots;
use super::traced_ops::TracedOps;
use super::{DeviceBatch, Error, Job, PendingSteps, Run, StepResult, Stop, Trainer};
use crate::cluster::{LaunchWaits, Phase, ProbeTime};
use crate::data::{Prefetch, Prefetched, TrainBatches};
use crate::observe::LaunchSpans;
use crate::pjrt;

/// Maximum number of launches with outstanding metrics. More would not make the devices busier, and
/// would let the host run far ahead of a step that stops the run.
pub(super) const MAX_UNRECORDED: usize = 2;

/// How the steps ended, if no error ended them.
pub(super) enum End {
    /// All were taken, and the run was evaluated.
    Done,
    /// A stop was requested before the last step or during the evaluation after it.
    Interrupted,
}

/// The loop, with its sources of batches and its outputs.
pub(super) struct Loop<'a> {
    job: &'a Job<'a>,
    run: &'a Run,
    processes: Processes<'a>,
    agreement: Agreement<'a>,
    trainer: &'a mut Trainer,
    recorder: &'a mut Recorder,
    due_steps: DueSteps,
    batches: Prefetch<DeviceBatch, pjrt::Error>,
    /// Where the run goes on without batches that are late.
    late: Option<LateBatches>,
    /// Launches without recorded metrics, oldest first.
    unrecorded: VecDeque<UnrecordedLaunch>,
    /// Launches that have ended since all processes knew of each other's metrics.
    ended: Vec<EndedLaunch>,
    /// When the previous launch ended, or what was done after it.
    last_end: Instant,
    /// The program of probes, from the first on.
    probe: Option<DeviceProbe>,
    /// The time of a probe that has not been reported.
    probed: Option<ProbeTime>,
    own_times: OwnTimes,
    traced_ops: TracedOps,
    skipped: SkippedUpdates,
    /// `true` after the first launch.
    has_recorded: bool,
    saver: Option<Saver>,
    snapshots: Option<Snapshots>,
}

/// A launch, and the time that the host spent on it.
struct UnrecordedLaunch {
    steps: PendingSteps,
    /// When the host began with it.
    begun: Instant,
    host: Duration,
    data_wait: Duration,
}

/// A launch that has ended, with the metrics of its steps.
struct EndedLaunch {
    results: Vec<StepResult>,
    times: LaunchTimes,
    spans: LaunchSpans,
}

impl<'a> Loop<'a> {
    /// Starts the thread that assembles batches and sends them to the devices.
    ///
    /// # Errors
    /// A data set that cannot fill a batch, or no thread.
    pub fn new(
        job: &'a Job<'a>,
        run: &'a Run,
        (stop, processes): (&'a Stop, Processes<'a>),
        trainer: &'a mut Trainer,
        recorder: &'a mut Recorder,
        (saver, snapshots): (Option<Saver>, Option<Snapshots>),
    ) -> Result<Self, Error> {
        let seed = job.config.train.seed;
        let due_steps = DueSteps::new(job.config, run.length.total_steps());
        let sender = trainer.batch_sender();
        let batches = TrainBatches::split(job.splits.train.clone(), seed, run.batch)?;
        let batches = batches.of_shards(sender.shards().clone());
        let launches = due_steps.launches(trainer.steps_taken(), run.steps_per_launch as u64);
        let late = &job.config.late;
        let late = late.skips().then(|| LateBatches::new(late, run, sender.shards().clone()));
        let late = late.transpose()?;
        let is_wanted = late.as_ref().map(LateBatches::is_wanted);
        let launches =
            launches.filter(move |steps| is_wanted.as_ref().is_none_or(|it| it(steps.start)));
        let launches = launches.map(move |steps| batches.launch(steps));
        let batches = Prefetch::start(launches, 1, move |batches| sender.send(batches))?;
        let skipped = SkippedUpdates::new(run.on_nonfinite, recorder.progress().run());
        let unrecorded = VecDeque::new();
        let last_end = Instant::now();
        let traced = recorder.has_trace().then(|| job.config.observe.traced_steps()).flatten();
        Ok(Self {
            job,
            run,
            processes,
            agreement: Agreement::new(stop, processes),
            trainer,
            recorder,
            due_steps,
            batches,
            late,
            unrecorded,
            ended: vec![],
            last_end,
            probe: None,
            probed: None,
            own_times: OwnTimes::new(processes.this().num_processes),
            traced_ops: TracedOps::of(traced),
            skipped,
            has_recorded: false,
            saver,
            snapshots,
        })
    }

    /// Takes all steps, or those before a requested stop, and does what is due after them.
    ///
    /// # Errors
    /// The error that ends the run. The launches before it have been recorded, unless one of them
    /// failed.
    pub fn run(mut self) -> Result<End, Error> {
        let ended = self.take_steps();
        self.processes.phase(Phase::Checkpoint, self.trainer.steps_taken());
        // Whatever ended the steps: what has been copied is worth keeping.
        match (ended, self.finish_saving()) {
            (Ok(end), saved) => saved.map(|()| end),
            (Err(error), Ok(())) => Err(error),
            (Err(error), Err(unsaved)) => {
                self.recorder.say(&format!("error: {unsaved}"));
                Err(error)
            }
        }
    }

    fn take_steps(&mut self) -> Result<End, Error> {
        let total_steps = self.due_steps.total_steps();
        let resumed_at = self.trainer.steps_taken();
        let last_eval = self.recorder.progress().run().eval.as_ref();
        let last_eval = last_eval.filter(|eval| eval.step + 1 == resumed_at);
        let mut eval_loss = last_eval.map(|eval| eval.eval.loss);
        // A run that was stopped during an evaluation makes it now.
        if resumed_at > 0 && self.due_steps.after(resumed_at).evaluation && eval_loss.is_none() {
            eval_loss = self.evaluate()?;
        }
        if self.saver.as_ref().is_some_and(|saver| saver.saves_first) {
            self.save(true)?;
        }
        let mut agreed = self.agree()?;
        // A request from before the first step is met after it.
        let mut requested = std::mem::take(&mut agreed.must_save);
        while self.trainer.steps_taken() < total_steps
            && !agreed.stop
            && !self.recorder.progress().ends_early()
        {
            let Some(batch) = self.next_batch()? else { break };
            self.launch(batch)?;
            agreed = self.agree()?;
            let have_met = self.due_steps.have_met_after(self.trainer.steps_taken());
            let must_save = agreed.must_save || have_met && std::mem::take(&mut requested);
            let mut due = self.due_steps.after(self.trainer.steps_taken());
            if agreed.save || must_save {
                (due.checkpoint, due.proof) = (true, self.due_steps.has_proofs());
            }
            let is_snapshot_due = self.is_snapshot_due();
            let is_nothing_due = due == Due::default() && !is_snapshot_due;
            self.record_all_but(if is_nothing_due { MAX_UNRECORDED } else { 0 })?;
            if due.proof {
                self.prove()?;
            }
            if due.probe {
                self.probe()?;
            }
            if due.evaluation {
                eval_loss = self.evaluate()?;
            }
            let num_steps = self.trainer.steps_taken();
            let is_best = due.evaluation && self.recorder.progress().saves_best(num_steps);
            if due.checkpoint || is_best {
                self.save(must_save || is_best || num_steps >= total_steps)?;
            }
            if is_snapshot_due {
                self.take_snapshot()?;
            }
        }
        let num_steps = self.trainer.steps_taken();
        let ends_early = self.recorder.progress().ends_early();
        if num_steps < self.due_steps.total_steps() {
            self.record_all_but(0)?;
            if self.due_steps.has_proofs() {
                // The state is proved before it is saved.
                self.prove()?;
            }
            let is_held = agreed.regroup && agreed.all_stay && self.take_last_snapshot()?;
            if !is_held {
                self.save(true)?;
            }
            if !ends_early {
                return Ok(End::Interrupted);
            }
            self.say_why_early();
        }
        // This error comes first: with it, the run has failed whether or not it was evaluated.
        self.skipped.check_last(num_steps)?;
        match eval_loss {
            None => Ok(End::Interrupted),
            Some(loss) if loss.is_finite() => Ok(End::Done),
            Some(loss) => Err(Error::NonFiniteEval { loss }),
        }
    }

    /// The agreement of all processes on the actions after the launches so far; none between outer
    /// steps.
    fn agree(&mut self) -> Result<Agreed, Error> {
        let num_steps = self.trainer.steps_taken();
        let have_met = self.due_steps.have_met_after(num_steps);
        if num_steps >= self.due_steps.total_steps() || !have_met {
            return Ok(Agreed::default());
        }
        let is_due = match &mut self.saver {
            Some(saver) => saver.is_due(num_steps, self.recorder),
            None => false,
        };
        let mut agreed = self.agreement.after(num_steps, is_due)?;
        if agreed.regroup && !agreed.stop {
            // Nothing is left to go on from where nothing is saved.
            agreed.stop = self.saver.is_some();
            self.recorder.say(match agreed.stop {
                true => "the hosts of the job change: the run goes on from here with others",
                false => "another host waits: nothing is saved from which the run could go on",
            });
            if agreed.stop {
                self.agreement.regroup();
            }
        }
        agreed.regroup &= self.agreement.is_regrouping();
        if agreed.must_save && self.saver.is_none() {
            self.recorder.say("nothing is saved: there is no --out, or checkpoint.keep is 0");
        }
        Ok(agreed)
    }

    /// The next batch, or `None` if the run is to end before it.
    fn next_batch(&mut self) -> Result<Option<Prefetched<DeviceBatch>>, Error> {
        self.processes.phase(Phase::Data, self.trainer.steps_taken());
        let waiting = self.processes.waiting("waiting for the next batch");
        let batch = match &mut self.late {
            None => self.batches.next(),
            Some(late) => {
                let last_end = || match self.unrecorded.back() {
                    Some(launch) => launch.steps.times().1.get(),
                    None => Some(self.last_end),
                };
                late.next(self.trainer.steps_taken(), &mut self.batches, last_end)
            }
        };
        drop(waiting);
        // The wait for the batch may have been long.
        let have_met = self.due_steps.have_met_after(self.trainer.steps_taken());
        if have_met && self.agreement.stops_now() {
            return Ok(None);
        }
        if let Some(Err(_)) = &batch {
            // Launches before this are part of the run, and of the parameters.
            self.record_all_but(0)?;
        }
        Ok(batch.transpose()?)
    }

    fn launch(&mut self, batch: Prefetched<DeviceBatch>) -> Result<(), Error> {
        let Prefetched { batch, waited: data_wait } = batch;
        let begun = Instant::now();
        let first = self.trainer.steps_taken();
        self.processes.phase(Phase::Compute, first);
        let steps = first..first + batch.num_steps as u64;
        self.traced_ops.launch(&steps);
        let rates = steps.map(|step| self.run.schedule.lr(step)).collect();
        let steps = self.trainer.launch(batch, rates)?;
        let host = begun.elapsed();
        self.unrecorded.push_back(UnrecordedLaunch { steps, begun, host, data_wait });
        Ok(())
    }

    /// Waits for the metrics of all but the last `num_left` launches, and records them. Processes
    /// that take local steps tell each other theirs after outer steps only.
    fn record_all_but(&mut self, num_left: usize) -> Result<(), Error> {
        while self.unrecorded.len() > num_left
            && let Some(launch) = self.unrecorded.pop_front()
        {
            let UnrecordedLaunch { steps, begun, host, data_wait } = launch;
            let waiting = match self.has_recorded {
                true => None,
                false => self.processes.waiting("taking the first step"),
            };
            let (launched, end) = steps.times();
            let results = self.trainer.finish(steps)?;
            drop(waiting);
            let waits = self.processes.take_waits();
            let collective_wait =
                waits.as_ref().map(|waits| waits.iter().map(|launch| launch.waited).sum());
            if let Some(rate) = self.processes.link_bytes_per_sec() {
                self.recorder.links_measured(rate);
            }
            self.has_recorded = true;
            self.trainer.compile_later(self.due_steps.has_proofs());
            // The launch may have ended while the loop waited for something else.
            let end = end.get().unwrap_or_else(Instant::now);
            let last_end = std::mem::replace(&mut self.last_end, end);
            let (total, num_steps) = (end.saturating_duration_since(last_end), results.len());
            let delay = launched.start.saturating_duration_since(last_end);
            let taken_after = launched.end.saturating_duration_since(last_end);
            let first = results.first().map_or(0, |result| result.step);
            let input = begun.saturating_duration_since(last_end).min(data_wait).min(delay);
            let times = LaunchTimes {
                num_steps,
                total,
                delay,
                taken_after,
                input,
                host,
                data_wait,
                collective_wait,
            };
            if let Some(own) = self.processes.steps_done(first, &times, self.probed.take()) {
                self.own_times.add(first, num_steps, own.own, own.input);
            }
            if let (Some(late), [result]) = (&mut self.late, &results[..]) {
                late.step_ended(result, total);
            }
            let (waits, waited_for) = by_process(waits.unwrap_or_default());
            let whole = last_end.min(end)..end;
            let traced = first..first + num_steps as u64;
            let spans = LaunchSpans {
                ops: self.traced_ops.take(&traced, &whole, self.trainer),
                data: begun.checked_sub(data_wait).unwrap_or(begun)..begun,
                host: begun..begun + host,
                whole,
                compute: launched.start.max(last_end).min(end)..end,
                waits,
                waited_for,
            };
            for slow in self.processes.take_slow() {
                self.recorder.process_slow(slow);
            }
            let num_steps = results.last().map_or(0, |result| result.step + 1);
            self.ended.push(EndedLaunch { results, times, spans });
            let is_alone = self.processes.with_others().is_none();
            if is_alone || self.due_steps.have_met_after(num_steps) {
                self.record_ended()?;
            }
        }
        Ok(())
    }

    /// Records the launches that have ended.
    fn record_ended(&mut self) -> Result<(), Error> {
        let mut ended = std::mem::take(&mut self.ended);
        if self.run.local_steps.is_some() {
            self.join_processes(&mut ended)?;
        }
        for EndedLaunch { mut results, times, spans } in ended {
            for result in results.iter_mut().filter(|result| !result.is_finite()) {
                let replicas = std::mem::take(&mut result.nonfinite_replicas);
                result.nonfinite_replicas = self.processes.gather("nonfinite", replicas)?.concat();
            }
            let skipped = |result: &StepResult, reason: &str| {
                self.recorder.update_skipped(result, reason);
            };
            let stopped = self.skipped.check(&mut results, skipped);
            let num_steps = results.last().map_or(0, |result| result.step + 1);
            let is_evaluated = self.due_steps.after(num_steps).evaluation;
            self.recorder.launch(&results, (times, spans), is_evaluated);
            stopped?;
        }
        Ok(())
    }

    /// Replaces the metrics of the replicas of this process by those of all.
    fn join_processes(&self, ended: &mut [EndedLaunch]) -> Result<(), Error> {
        // As bits, because JSON has no infinity.
        let bits = |values: &Vec<f64>| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let of_step = |result: &StepResult| result.of_replicas.iter().map(bits).collect::<Vec<_>>();
        let results = ended.iter().flat_map(|launch| &launch.results);
        let own: Vec<_> = results.map(of_step).collect();
        let of_processes = self.processes.gather("metrics", own)?;
        let results = ended.iter_mut().flat_map(|launch| &mut launch.results);
        for (index, result) in results.enumerate() {
            let of_step = of_processes.iter().filter_map(|steps| steps.get(index)).flatten();
            let values = |bits: &Vec<u64>| bits.iter().map(|x| f64::from_bits(*x)).collect();
            let of_replicas = of_step.map(values).collect();
            let nonfinite_replicas = std::mem::take(&mut result.nonfinite_replicas);
            let joined = self.trainer.step_result(result.step, result.lr, of_replicas);
            *result = StepResult { nonfinite_replicas, ..joined };
        }
        Ok(())
    }

    fn say_why_early(&mut self) {
        let patience = self.job.config.train.patience;
        let best = self.recorder.progress().run().best_eval.as_ref();
        let kept = match (self.job.config.checkpoint.keep_best, &self.saver) {
            (true, Some(_)) => "; `lockstep checkpoint list` shows where its state is",
            _ => "; checkpoint.keep_best = true keeps its state",
        };
        let best = best.map_or("none was finite".to_owned(), |best| {
            format!("the best was after step {}{kept}", best.step + 1)
        });
        self.recorder.say(&format!(
            "ended early: no better evaluation in the last {patience} ({best}; train.patience = \
             {patience})"
        ));
    }

    /// Starts to save a checkpoint. One that is not needed is skipped if the one before is still
    /// being written.
    fn save(&mut self, must_save: bool) -> Result<(), Error> {
        let Some(saver) = &mut self.saver else { return Ok(()) };
        self.processes.phase(Phase::Checkpoint, self.trainer.steps_taken());
        saver.save(self.processes, self.trainer, self.recorder, must_save)?;
        self.start_step_clock();
        Ok(())
    }

    /// `true` if a snapshot may be due now. None is needed of the last state, nor of one that all
    /// stop with.
    fn is_snapshot_due(&self) -> bool {
        let num_steps = self.trainer.steps_taken();
        let have_met = self.due_steps.have_met_after(num_steps);
        let is_last = num_steps >= self.due_steps.total_steps();
        let is_due = |snapshots: &Snapshots| snapshots.is_due(num_steps);
        have_met && !is_last && self.snapshots.as_ref().is_some_and(is_due)
    }

    /// Starts to take a snapshot, if all are ready for it.
    fn take_snapshot(&mut self) -> Result<(), Error> {
        let Some(snapshots) = &mut self.snapshots else { return Ok(()) };
        self.processes.phase(Phase::Checkpoint, self.trainer.steps_taken());
        snapshots.take(self.processes, self.trainer, self.recorder)?;
        self.start_step_clock();
        Ok(())
    }

    /// Takes the last snapshot before other hosts join. `false` if not all supervisors hold it.
    fn take_last_snapshot(&mut self) -> Result<bool, Error> {
        let Some(snapshots) = &mut self.snapshots else { return Ok(false) };
        self.processes.phase(Phase::Checkpoint, self.trainer.steps_taken());
        let _waiting = self.processes.waiting("copying the state to the supervisors");
        snapshots.take_last(self.processes, self.trainer, self.recorder)
    }

    fn finish_saving(&mut self) -> Result<(), Error> {
        let _waiting = self.processes.waiting("writing the checkpoint");
        self.saver.as_mut().map_or(Ok(()), |saver| saver.finish(self.recorder))
    }

    fn prove(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        let waiting = self.processes.waiting("comparing the replicas");
        let own_times = self.trainer.prove_among(self.processes, self.own_times.take())?;
        drop(waiting);
        let (num_steps, took) = (self.trainer.steps_taken(), begun.elapsed());
        self.recorder.lockstep_proved(num_steps, took, by_steps(&own_times));
        self.start_step_clock();
        Ok(())
    }

    /// Times the devices of each process without communication, if there are several.
    fn probe(&mut self) -> Result<(), Error> {
        if self.processes.with_others().is_none() {
            return Ok(());
        }
        let probe = match self.probe.take() {
            Some(probe) => probe,
            None => {
                self.processes.phase(Phase::Compile, self.trainer.steps_taken());
                DeviceProbe::new(self.trainer, self.run, self.job.model)?
            }
        };
        self.processes.phase(Phase::Compute, self.trainer.steps_taken());
        let probed = probe.time(self.trainer.state())?;
        tracing::debug!(mean = ?probed.mean, error = ?probed.error, "probe");
        self.probed = Some(probed);
        self.probe = Some(probe);
        self.start_step_clock();
        Ok(())
    }

    /// Evaluates and returns the loss, or `None` if a stop was requested meanwhile.
    fn evaluate(&mut self) -> Result<Option<f64>, Error> {
        self.processes.phase(Phase::Evaluate, self.trainer.steps_taken());
        let begun = Instant::now();
        let (eval, agreement) = (&self.job.splits.eval, &self.agreement);
        let waiting = self.processes.waiting("evaluating batches");
        let eval = self.trainer.evaluate_unless(eval, self.run, |batch, of| {
            if let Some(waiting) = &waiting {
                waiting.set_done(batch, of);
            }
            agreement.stops_now()
        })?;
        drop(waiting);
        let loss = eval.as_ref().map(|eval| eval.loss);
        if let Some(eval) = eval {
            self.recorder.evaluated(self.trainer.steps_taken(), eval, begun.elapsed());
        }
        self.start_step_clock();
        Ok(loss)
    }

    /// What was done since the last launch is not part of the next step's times.
    fn start_step_clock(&mut self) {
        self.last_end = Instant::now();
        let _ = self.processes.take_waits();
    }
}

/// When this process waited for others, and how long for which.
type Waits = (Vec<Range<Instant>>, Vec<(usize, Duration)>);

fn by_process(waits: Vec<LaunchWaits>) -> Waits {
    let mut waited_for = BTreeMap::<usize, Duration>::new();
    for last in waits.iter().flat_map(|launch| &launch.last) {
        *waited_for.entry(last.process_index).or_default() += last.waited;
    }
    let spans = waits.into_iter().flat_map(|launch| launch.spans).collect();
    (spans, waited_for.into_iter().collect())
}
