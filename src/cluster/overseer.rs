//! What a coordinator's owner does with what it hears: messages, the watchdog's verdicts, the
//! flight recorder.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hlo::counted;

use super::{
    Coordinator, FlightRecorder, JobChange, Limits, Report, SlowPeer, Verdict, Watchdog, Watcher,
    WorkerName,
};

/// How often the watchdog is asked.
const CHECK: Duration = Duration::from_millis(250);

/// Follows a job: fails a generation that cannot go on, names who is slow, and keeps what happened
/// last.
pub struct Overseer {
    say: Arc<dyn Fn(&str) + Send + Sync>,
    limits: Limits,
    /// Where the flight recorder is written when a generation fails.
    record_dir: Option<PathBuf>,
    state: Mutex<OverseerState>,
}

#[derive(Default)]
struct OverseerState {
    /// Of the generation that runs.
    watched: Option<Watched>,
    failed: Option<Instant>,
    checked: Option<Instant>,
}

struct Watched {
    watchdog: Watchdog,
    recorder: FlightRecorder,
    /// Slow processes that were named.
    named: BTreeSet<usize>,
}

impl Overseer {
    /// An overseer that says what happens.
    pub fn new(
        limits: Limits,
        record_dir: Option<PathBuf>,
        say: impl Fn(&str) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { say: Arc::new(say), limits, record_dir, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, OverseerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the watchdog, unless it was asked a moment ago. To be called again and again.
    pub fn check(&self, coordinator: &Coordinator) {
        let now = Instant::now();
        let mut state = self.lock();
        if state.checked.is_some_and(|checked| now - checked < CHECK) {
            return;
        }
        state.checked = Some(now);
        let Some(watched) = &mut state.watched else { return };
        let verdicts = watched.watchdog.verdicts(now);
        let mut slow = vec![];
        for verdict in &verdicts {
            // Once for each, as long as it stays slow.
            if let Verdict::Slow { who, factor, since_step, cause } = verdict
                // It may have fallen since it was found to be slow.
                && *factor >= self.limits.slow_factor
                && watched.named.insert(who.process_index)
            {
                let machine = watched.watchdog.machine(who.process_index).to_owned();
                let told = match &*machine {
                    "" => String::new(),
                    told => format!("; its machine: {told}"),
                };
                slow.push(SlowPeer {
                    process_index: who.process_index,
                    host: who.name.host.clone(),
                    factor: *factor,
                    since_step: *since_step,
                    cause: *cause,
                    machine,
                    text: format!("{verdict}{told}"),
                });
            }
        }
        let blamed = verdicts.iter().filter_map(Verdict::who).map(|who| who.process_index);
        let blamed: BTreeSet<_> = blamed.collect();
        watched.named.retain(|index| blamed.contains(index));
        // The coordinator finds the dead itself.
        let is_stuck =
            |verdict: &&Verdict| verdict.is_fatal() && !matches!(verdict, Verdict::Dead { .. });
        let fatal = verdicts.iter().find(is_stuck).map(|verdict| {
            let culprits: Vec<_> = verdict.who().map(|who| who.process_index).into_iter().collect();
            (culprits, verdict.to_string())
        });
        let screen =
            fatal.is_some().then(|| watched.watchdog.screen(now, "the processes are ended"));
        drop(state);
        // The first process of the job reports them, with everything else that happens in the run.
        slow.iter().for_each(|peer| coordinator.name_slow(peer));
        if let Some(screen) = screen {
            (self.say)(&screen);
        }
        if let Some((culprits, reason)) = fatal {
            coordinator.fail(&culprits, &reason);
        }
    }

    fn write_record(&self, watched: &Watched, culprits: &[usize]) {
        let Some(dir) = &self.record_dir else { return };
        match watched.recorder.write(dir, culprits) {
            Ok(path) => {
                (self.say)(&format!("the last phases of all processes: {}", path.display()))
            }
            Err(reason) => (self.say)(&format!("the last phases are not written: {reason}")),
        }
    }
}

impl Watcher for Overseer {
    fn report(&self, report: &Report, arrived: Instant) {
        if let Some(watched) = &mut self.lock().watched {
            watched.watchdog.receive(report, arrived);
            watched.recorder.record(report, arrived);
        }
    }

    fn changed(&self, change: &JobChange) {
        match change {
            JobChange::Formed { generation, peers } => {
                let now = Instant::now();
                let name = |peer: &super::Peer| WorkerName {
                    host: peer.host.clone(),
                    pid: peer.pid,
                    replicas: 0..0,
                };
                let names: Vec<_> = peers.iter().map(name).collect();
                let mut state = self.lock();
                let recovered = state.failed.take().map(|failed| {
                    format!(", {:.1} s after the failure", failed.elapsed().as_secs_f64())
                });
                state.watched = Some(Watched {
                    watchdog: Watchdog::new(names.clone(), self.limits, now),
                    recorder: FlightRecorder::new(names, (now, SystemTime::now())),
                    named: BTreeSet::new(),
                });
                drop(state);
                let processes = counted(peers.len(), "process");
                let recovered = recovered.unwrap_or_default();
                (self.say)(&format!("generation {generation} runs: {processes}{recovered}"));
            }
            JobChange::Left { process_index } => {
                if let Some(watched) = &mut self.lock().watched {
                    watched.watchdog.left(*process_index);
                }
            }
            JobChange::Failed(end) => {
                let mut state = self.lock();
                state.failed = Some(Instant::now());
                let watched = state.watched.take();
                drop(state);
                let generation = end.generation;
                let place = match end.step {
                    0 => "at its start".to_owned(),
                    step => format!("(last reported step: {step})"),
                };
                (self.say)(&format!("generation {generation} failed {place}: {}", end.reason));
                if let Some(watched) = watched {
                    self.write_record(&watched, &end.processes);
                }
            }
            JobChange::Ended { .. } => self.lock().watched = None,
            JobChange::Note(text) => (self.say)(text),
        }
    }

    fn refused(&self, peer: SocketAddr, why: &str) {
        (self.say)(&format!("refused a connection from {peer}: {why}"));
    }
}
