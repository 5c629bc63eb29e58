//! The processes of a run: what one of them decides for all, and what they agree on while it runs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::host_metrics::LaunchTimes;
use super::{Error, Stop, Trainer};
use crate::cluster::{
    GenerationEnd, LaunchWaits, Member, Phase, ProbeTime, Session, SlowPeer, StepTimes, Wish,
};
use crate::observe::{FailedGeneration, GenerationStart, StartupSpans, Summary, Waiting, say};
use crate::pjrt::{Placement, Process};

/// The processes of a run, as one of them sees them. All launch the same programs in the same
/// order, so whatever decides what is launched must be the same in all: it follows from the number
/// of steps, from reduced values, or is agreed on here.
#[derive(Clone, Copy, Default)]
pub(super) struct Processes<'a> {
    member: Option<&'a Member>,
    /// Of processes that are not there, for which programs are compiled.
    absent: Option<Process>,
}

impl<'a> Processes<'a> {
    /// The processes that `member` belongs to; `None` if there is only one, and no other can come.
    pub fn of(member: Option<&'a Member>) -> Self {
        Self { member, absent: None }
    }

    /// The first of so many processes, none of which is there: only their programs are compiled.
    pub fn absent(num_processes: usize) -> Self {
        Self { member: None, absent: Some(Process { index: 0, num_processes }) }
    }

    /// This process among them.
    pub fn this(&self) -> Process {
        let member = self.member.map(Member::process);
        member.or(self.absent).unwrap_or(Process::ONLY)
    }

    /// `true` for the one that writes the files of the run and reports about it.
    pub fn is_first(&self) -> bool {
        self.this().index == 0
    }

    /// This process as a member, if there are several or others may come.
    pub fn member(&self) -> Option<&'a Member> {
        self.member
    }

    /// This process as a member, if there are several.
    pub fn with_others(&self) -> Option<&'a Member> {
        self.member.filter(|member| member.process().num_processes > 1)
    }

    /// The number of supervisors that have a part of the run; 0 without supervisors.
    pub fn num_hosts(&self) -> usize {
        self.session().map_or(0, |session| session.formation().num_hosts)
    }

    fn session(&self) -> Option<&'a Session> {
        self.member.map(Member::session)
    }

    /// Tells the user something that all processes would say.
    pub fn say(&self, text: &str) {
        if self.is_first() {
            say(text);
        }
    }

    /// As [`Waiting::on`], for something that all processes do.
    pub fn waiting(&self, what: &'static str) -> Option<Waiting> {
        self.is_first().then(|| Waiting::on(what))
    }

    /// Earlier attempts at the job under the same supervisor.
    pub fn failed_generations(&self) -> Vec<FailedGeneration> {
        let history = self.session().map(Session::history).unwrap_or_default();
        let failed = |end: &GenerationEnd| FailedGeneration {
            generation: end.generation,
            processes: end.processes.clone(),
            reason: end.reason.clone(),
            step: end.step,
        };
        history.iter().map(failed).collect()
    }

    /// How the generations of the job began: those in the summary of the run so far, and this one,
    /// which is about to go on with this state, and has it from there after this time. Without
    /// supervisors there are none.
    pub fn generation_starts(
        &self,
        dir: Option<&Path>,
        trainer: &Trainer,
        spans: &StartupSpans,
        (state_from, state): (&str, Duration),
    ) -> Vec<GenerationStart> {
        let session = self.session().filter(|session| session.formation().num_hosts > 0);
        let Some(session) = session else { return vec![] };
        let (formation, generation) = (session.formation(), session.generation());
        let plugin = ["find the plugin", "load the plugin", "open the devices"];
        let spans = spans.list();
        let plugin = spans.iter().filter(|span| plugin.contains(&&*span.name));
        let plugin_secs = plugin.map(|span| span.ms / 1e3).sum::<f64>();
        let since_joined = session.joined().elapsed().saturating_sub(state).as_secs_f64();
        let own = GenerationStart {
            generation,
            after: formation.after.to_owned(),
            num_hosts: formation.num_hosts,
            num_processes: session.num_processes(),
            step: trainer.steps_taken(),
            agree_secs: formation.agree.as_secs_f64(),
            join_secs: formation.join.as_secs_f64(),
            plugin_secs,
            programs_secs: (since_joined - plugin_secs).max(0.0),
            state_from: state_from.to_owned(),
            state_secs: state.as_secs_f64(),
            first_step_secs: None,
        };
        // A file of another version, or of none, has nothing to add.
        let before = dir.and_then(|dir| fs::read(dir.join(Summary::FILE)).ok());
        let before = before.and_then(|text| serde_json::from_slice::<EarlierStarts>(&text).ok());
        let mut starts = before.unwrap_or_default().generation_starts;
        starts.retain(|start| formation.after != "start" && start.generation < generation);
        starts.push(own);
        starts
    }

    /// Reports what this process does from now on, in which step.
    pub fn phase(&self, phase: Phase, step: u64) {
        tracing::trace!(?phase, step, "phase");
        if let Some(member) = self.member {
            member.set_phase(phase, step);
        }
    }

    /// Reports that the state after `step` steps is safe: the job has made progress.
    pub fn saved(&self, step: u64) {
        if let Some(session) = self.session() {
            session.saved(step);
        }
    }

    /// Reports the replicas of this process.
    pub fn set_replicas(&self, placement: &Placement) {
        let Some(session) = self.session() else { return };
        let replicas = placement.replicas();
        let Some(first) = replicas.min() else { return };
        let end = placement.replicas().fold(first, usize::max) + 1;
        // Elsewhere in the mesh's order they are not one range.
        if end - first == placement.num_addressable() {
            session.set_replicas(first..end);
        }
    }

    /// As [`Member::take_waits`]; `None` for one process alone, which waits for nobody.
    pub fn take_waits(&self) -> Option<Vec<LaunchWaits>> {
        self.member?.take_waits()
    }

    /// Bytes per second at which messages of other processes arrive, once that is known.
    pub fn link_bytes_per_sec(&self) -> Option<f64> {
        self.member?.link_bytes_per_sec()
    }

    /// Processes that were found to be slow since the last call; none but in the first process.
    pub fn take_slow(&self) -> Vec<SlowPeer> {
        self.session().map_or_else(Vec::new, Session::take_slow)
    }

    /// Reports the steps of a launch that has ended, from `first` on, and the time of the probe
    /// before it. Returns what this process itself took for each; `None` if it is no member.
    ///
    /// Where the plugin computes the collectives, a process cannot tell what its devices take from
    /// what they wait for others. But steps end together, and are launched ahead: the time from the
    /// end of one to the launch of the next is the process's own.
    pub fn steps_done(
        &self,
        first: u64,
        times: &LaunchTimes,
        probe: Option<ProbeTime>,
    ) -> Option<StepTimes> {
        let member = self.member?;
        let LaunchTimes { num_steps, total, input, collective_wait, .. } = *times;
        let (delay, own) = match collective_wait {
            Some(waited) => (times.delay, total.saturating_sub(waited)),
            None => (times.taken_after, times.taken_after),
        };
        let own = own.min(total);
        let delay = delay.min(own);
        let input = input.min(delay);
        let each = |time: Duration| time / num_steps.max(1) as u32;
        let times = StepTimes {
            step: first,
            own: each(own),
            waited: each(total - own),
            input: each(input),
            host: each(delay - input),
            hides_devices: collective_wait.is_none(),
            probe,
        };
        member.steps_done(first..first + num_steps as u64, times);
        Some(times)
    }

    /// The decision of the first process. The others wait for it.
    ///
    /// # Errors
    /// That of the first process; or if it is lost.
    pub fn decided_by_first<T: Serialize + DeserializeOwned>(
        &self,
        what: &str,
        decide: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Some(session) = self.session() else { return decide() };
        let key = format!("decided/{what}");
        match self.is_first() {
            true => {
                let decided = decide()?;
                let value = serde_json::to_vec(&decided).map_err(unreadable)?;
                session.put(key.as_bytes(), &value, false)?;
                Ok(decided)
            }
            false => {
                let decided = session.get(key.as_bytes(), session.patience())?;
                serde_json::from_slice(&decided).map_err(unreadable)
            }
        }
    }

    /// The values of all processes, in their order.
    ///
    /// # Errors
    /// If a process is lost.
    pub fn gather<T: Serialize + DeserializeOwned>(
        &self,
        what: &str,
        value: T,
    ) -> Result<Vec<T>, Error> {
        let Some(session) = self.session() else { return Ok(vec![value]) };
        let value = serde_json::to_vec(&value).map_err(unreadable)?;
        let values = session.gather(what, value, session.patience())?;
        values.iter().map(|value| serde_json::from_slice(value).map_err(unreadable)).collect()
    }
}

fn unreadable(error: serde_json::Error) -> Error {
    Error::OtherProcess { reason: format!("a message between processes cannot be read: {error}") }
}

/// The part of a summary that its successor keeps.
#[derive(Default, Deserialize)]
struct EarlierStarts {
    #[serde(default)]
    generation_starts: Vec<GenerationStart>,
}

/// The actions before the next launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Agreed {
    /// The run ends here.
    pub stop: bool,
    /// These processes end here, and the run goes on in others.
    pub regroup: bool,
    /// All hosts take part in that.
    pub all_stay: bool,
    /// A checkpoint is saved here.
    pub save: bool,
    /// The save must not be skipped, even if the one before is still being written.
    pub must_save: bool,
}

/// Requests to stop or save a run, which reach its processes at different times, and become
/// something that all do after the same step.
pub(super) struct Agreement<'a> {
    stop: &'a Stop,
    processes: Processes<'a>,
    has_wished_to_stop: bool,
    has_wished_to_save: bool,
}

impl<'a> Agreement<'a> {
    pub fn new(stop: &'a Stop, processes: Processes<'a>) -> Self {
        Self { stop, processes, has_wished_to_stop: false, has_wished_to_save: false }
    }

    /// `true` if the run is to end before the next launch. Only a run of one process can decide
    /// that at once.
    pub fn stops_now(&self) -> bool {
        self.processes.member.is_none() && self.stop.is_requested()
    }

    /// The run goes on in other processes.
    pub fn regroup(&self) {
        self.stop.regroup();
    }

    /// `true` if it does.
    pub fn is_regrouping(&self) -> bool {
        self.stop.is_regrouping()
    }

    /// The agreement after `num_steps` steps. Called once after each launch, and before the first
    /// one. `is_due` says whether this process wants a checkpoint, by its clock.
    ///
    /// # Errors
    /// If the coordinator does not answer, or the job has failed.
    pub fn after(&mut self, num_steps: u64, is_due: bool) -> Result<Agreed, Error> {
        let wishes_to_stop = self.stop.is_requested();
        let is_requested = self.stop.take_save_request();
        let Some(session) = self.processes.session() else {
            let save = is_requested || is_due;
            let (stop, must_save) = (wishes_to_stop, is_requested);
            return Ok(Agreed { stop, save, must_save, ..Agreed::default() });
        };
        if wishes_to_stop && !std::mem::replace(&mut self.has_wished_to_stop, true) {
            session.wish(Wish::Stop);
        }
        // A checkpoint that is due by the clock of the first process is due for all.
        let wishes_to_save = is_requested || is_due && self.processes.is_first();
        if wishes_to_save && !std::mem::replace(&mut self.has_wished_to_save, true) {
            session.wish(Wish::Save);
        }
        let mut agreed = Agreed::default();
        for event in session.may_leave(num_steps)? {
            match event.wish {
                Wish::Stop => agreed.stop = true,
                Wish::Regroup => agreed.regroup = true,
                Wish::Grow => (agreed.regroup, agreed.all_stay) = (true, true),
                Wish::Save => {
                    (agreed.save, agreed.must_save, self.has_wished_to_save) = (true, true, false);
                }
            }
        }
        Ok(agreed)
    }
}
