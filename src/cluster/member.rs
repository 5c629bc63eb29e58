//! This process as a member of a job of several.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use super::own_host::{Whereabouts, host_name, interface_address, local_address};
use super::{
    Cause, Contact, Coordinator, CoordinatorOptions, Error, JoinOptions, LaunchWaits, Limits,
    LinkError, LinkOptions, Links, Overseer, Phase, Rendezvous, Secret, Session, StepTimes, Tls,
};
use crate::config::HostPort;
use crate::pjrt::{KeyValueStore, Process};

/// How long the end of a process may take that waits for what it has sent to arrive.
const CLOSE: Duration = Duration::from_secs(5);
/// How often the processes are looked after.
const CHECK: Duration = Duration::from_millis(250);
/// How often the machine is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// A process that waits in a collective for longer than this reports it.
const LATE: Duration = Duration::from_millis(200);
/// The user hears that a process still waits for a host's address, or for the others, after this
/// time, and from then on every minute.
const PATIENCE_FOR_ADDRESS: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(10);
const REMINDER: Duration = Duration::from_secs(60);

/// Which job a process joins, and as what.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    /// The coordinator, `HOST:PORT`.
    pub coordinator: String,
    /// The name of the job.
    pub job: String,
    /// What all processes of the job share.
    pub secret: Secret,
    /// Certificates of the coordinator.
    pub tls: Tls,
    /// Host collectives go over connections that are not encrypted.
    pub has_plain_links: bool,
    /// The network interface of this host that other processes connect to; `None` for the one on
    /// the way to the coordinator.
    pub interface: Option<String>,
    /// The place of a host that is named slow is given to a spare.
    pub replaces_slow: bool,
    /// Waits in host collectives are not told apart, as if the plugin computed them.
    pub hides_waits: bool,
    /// The attempt at the job that this process was started for; `None` for the one that is
    /// forming.
    pub generation: Option<u64>,
    /// This process.
    pub process: Process,
    /// Its index among the processes on its host, if it is known.
    pub local_index: Option<usize>,
    /// Names and values in which all processes must agree.
    pub program: Vec<(String, String)>,
    /// All processes must have joined within this time.
    pub deadline: Duration,
    /// Who is silent for this long is dead, if there is no supervisor. Then process 0 runs the
    /// coordinator.
    pub own_dead_after: Option<Duration>,
    /// The GPUs that this process uses, if it shares its host with others; `None` for all.
    pub gpus: Option<Vec<usize>>,
    /// Told what the user should know.
    pub say: fn(&str),
}

/// Why a process cannot join a job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// The coordinator does not answer, or refuses this process.
    #[error(transparent)]
    Session(#[from] Error),
    /// Another process cannot be reached.
    #[error(transparent)]
    Links(#[from] LinkError),
    /// The address of the coordinator has no host, or is not one of this machine.
    #[error("the address of the coordinator, {address}, cannot be used: {source}")]
    Address {
        /// `HOST:PORT`.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// Some processes did not join, and they look for the coordinator elsewhere.
    #[error(
        "{source}; this is process 0, which runs the coordinator, but the others look for it at \
         {address}, which is no address of this host ({host}); set it to one of this host's in all \
         processes, or start process 0 there"
    )]
    Elsewhere {
        /// `HOST:PORT`, where the others look.
        address: String,
        /// The name of this machine.
        host: String,
        /// Who is missing.
        source: Box<Error>,
    },
    /// The network interface for the other processes cannot be used.
    #[error("cluster.interface = {name:?}: {reason}")]
    Interface {
        /// Its name.
        name: String,
        /// Why, and which there are.
        reason: String,
    },
    /// A socket or a thread cannot be had.
    #[error("cannot join the other processes: {0}")]
    Io(#[from] io::Error),
}

/// This process as a member of a job, from the time when all its processes have joined.
pub struct Member {
    process: Process,
    options: MemberOptions,
    session: Session,
    /// Where the others connect to, until they do.
    listener: Mutex<Option<TcpListener>>,
    rendezvous: OnceLock<Arc<Rendezvous>>,
    /// What this process does, as it says itself.
    phase: Arc<Mutex<(Phase, u64)>>,
    /// Of process 0, if there is no supervisor.
    coordinator: Option<Arc<Coordinator>>,
}

impl Member {
    /// Joins the job and waits until all its processes have.
    ///
    /// # Errors
    /// If the coordinator does not answer or refuses this process, or if another process is missing
    /// at the deadline.
    pub fn join(options: MemberOptions) -> Result<Self, MemberError> {
        let process = options.process;
        let began = Instant::now();
        let own = match options.own_dead_after.filter(|_| process.index == 0) {
            Some(dead_after) => Some(OwnCoordinator::start(&options, dead_after, began)?),
            None => None,
        };
        // A certificate is for the address that the others use.
        let is_direct = options.tls.authority.is_none();
        let elsewhere = own.as_ref().filter(|own| own.is_elsewhere && is_direct);
        let contact = match elsewhere {
            Some(own) => own.coordinator.address().to_string(),
            None => options.coordinator.clone(),
        };
        let on_the_way = address_on_the_way(&contact, &options, began)?;
        let address = match &options.interface {
            Some(name) => interface_address(name)
                .map_err(|reason| MemberError::Interface { name: name.clone(), reason })?,
            None => on_the_way,
        };
        let listener = TcpListener::bind((address, 0))?;
        let missing = Arc::<Mutex<String>>::default();
        let waiting = Waiting::start(&options, &contact, missing.clone())?;
        let session = Session::join(JoinOptions {
            contact: Contact {
                address: contact.clone(),
                job: options.job.clone(),
                secret: options.secret.clone(),
                tls: options.tls.authority.clone(),
            },
            generation: options.generation,
            process_index: process.index,
            num_processes: process.num_processes,
            host: host_name(),
            data_address: listener.local_addr()?.to_string(),
            program: options.program.clone(),
            replaces_slow: options.replaces_slow,
            // A host that was still being started has taken a part of it.
            deadline: match began.elapsed() {
                elapsed if elapsed < CHECK => options.deadline,
                elapsed => options.deadline.saturating_sub(elapsed),
            },
            missing,
        });
        drop(waiting);
        let session = session.map_err(|source| match (&source, elsewhere) {
            (Error::NotAllJoined { .. }, Some(_)) => {
                let (host, source) = (host_name(), Box::new(source));
                MemberError::Elsewhere { address: options.coordinator.clone(), host, source }
            }
            _ => source.into(),
        })?;
        let listener = Mutex::new(Some(listener));
        let rendezvous = OnceLock::new();
        let phase = Arc::new(Mutex::new((Phase::Start, 0)));
        let coordinator = own.map(|own| own.coordinator);
        Ok(Self { process, options, session, listener, rendezvous, phase, coordinator })
    }

    /// This process among those of the job.
    pub fn process(&self) -> Process {
        self.process
    }

    /// Its index among the processes on its host; where that is not known, among all.
    pub fn local_index(&self) -> usize {
        self.options.local_index.unwrap_or(self.process.index)
    }

    /// The GPUs that it uses; `None` for all of its host.
    pub fn gpus(&self) -> Option<&[usize]> {
        self.options.gpus.as_deref()
    }

    /// Its session with the coordinator.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The store through which the plugins of all processes find each other.
    pub fn store(&self) -> Arc<dyn KeyValueStore> {
        Arc::new(self.session.clone())
    }

    /// Connects to the other processes, for the collectives of the CPU backend. Once it has, it
    /// returns the same again.
    ///
    /// # Errors
    /// If not all are connected at the deadline.
    pub fn rendezvous(&self) -> Result<Arc<Rendezvous>, MemberError> {
        let mut listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rendezvous) = self.rendezvous.get() {
            return Ok(rendezvous.clone());
        }
        let Some(listener) = listener.take() else {
            return Err(io::Error::other("connecting to them has failed before").into());
        };
        let address = |text: &str| {
            let parsed: Result<SocketAddr, _> = text.parse();
            parsed.map_err(|error| io::Error::other(format!("the address {text:?}: {error}")))
        };
        let addresses = self.session.peers().iter().map(|peer| address(&peer.data_address));
        let links = LinkOptions {
            job: self.options.job.clone(),
            generation: self.session.generation(),
            process_index: self.process.index,
            addresses: addresses.collect::<Result<_, _>>()?,
            secret: self.options.secret.clone(),
            is_plain: self.options.has_plain_links,
            deadline: self.options.deadline,
            report: Arc::new(self.options.say),
        };
        let links = Links::connect(listener, &links)?;
        let rendezvous = Arc::new(Rendezvous::across(links, self.session.patience())?);
        if !self.options.hides_waits {
            self.report_waits(&rendezvous)?;
        }
        let failing = Arc::downgrade(&rendezvous);
        self.session.on_end(move |reason| {
            if let Some(rendezvous) = failing.upgrade() {
                rendezvous.fail_all(reason);
            }
        });
        Ok(self.rendezvous.get_or_init(|| rendezvous).clone())
    }

    /// Has `describe` say what the machine tells of why this process may be slow, again and again
    /// as long as this is a member. Empty if nothing.
    ///
    /// # Errors
    /// If a thread cannot be had.
    pub fn watch_machine(
        &self,
        mut describe: impl FnMut() -> String + Send + 'static,
    ) -> io::Result<()> {
        let (session, phase) = (self.session.clone(), Arc::downgrade(&self.phase));
        let watch = move || {
            while phase.strong_count() > 0 {
                session.set_machine(describe());
                thread::sleep(LOOK);
            }
        };
        thread::Builder::new().name("machine".to_owned()).spawn(watch).map(drop)
    }

    /// Says what this process does from now on, in which step. Cheap.
    pub fn set_phase(&self, phase: Phase, step: u64) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = (phase, step);
        self.session.set_phase(phase, step);
    }

    /// How this process has waited for others in collectives since the last call; `None` if it
    /// cannot tell, because the plugin computes them.
    pub fn take_waits(&self) -> Option<Vec<LaunchWaits>> {
        let waits = self.rendezvous.get()?.take_waits();
        (!self.options.hides_waits).then_some(waits)
    }

    /// As [`Rendezvous::link_bytes_per_sec`].
    pub fn link_bytes_per_sec(&self) -> Option<f64> {
        self.rendezvous.get()?.link_bytes_per_sec()
    }

    /// Reports steps that have ended, each with these times. A probe came before the first.
    pub fn steps_done(&self, steps: Range<u64>, times: StepTimes) {
        let mut probe = times.probe;
        for step in steps {
            self.session.step_done(StepTimes { step, probe: probe.take(), ..times });
        }
    }

    /// Reports, from a thread of its own, when this process waits in a collective, and for whom.
    fn report_waits(&self, rendezvous: &Arc<Rendezvous>) -> io::Result<()> {
        let (rendezvous, own) = (Arc::downgrade(rendezvous), self.phase.clone());
        let session = self.session.clone();
        let report = move || {
            let mut were_awaited = false;
            while let Some(rendezvous) = rendezvous.upgrade() {
                let awaited = rendezvous.awaited(LATE);
                drop(rendezvous);
                if were_awaited || !awaited.is_empty() {
                    let (phase, step) = *own.lock().unwrap_or_else(PoisonError::into_inner);
                    let phase = if awaited.is_empty() { phase } else { Phase::Collective };
                    session.set_phase(phase, step);
                    session.set_waits_for(&awaited);
                }
                were_awaited = !awaited.is_empty();
                thread::sleep(CHECK);
            }
        };
        thread::Builder::new().name("waits".to_owned()).spawn(report).map(drop)
    }

    /// Ends this process's part of the job: `outcome` says how the run ended. The last of the job's
    /// processes to do so ends the job.
    ///
    /// # Errors
    /// If the job has failed meanwhile.
    pub fn leave(self, outcome: &str) -> Result<(), Error> {
        if let Some(rendezvous) = self.rendezvous.get() {
            rendezvous.close(CLOSE);
        }
        self.session.leave(outcome)?;
        if let Some(coordinator) = &self.coordinator {
            // The others still talk to it.
            coordinator.wait_until_ended(self.options.deadline);
        }
        Ok(())
    }

    /// Ends the job, because this process cannot go on.
    pub fn fail(self, cause: Cause, reason: &str) {
        self.session.fail(cause, reason);
    }
}

/// The coordinator of a job without supervisors, in process 0.
struct OwnCoordinator {
    coordinator: Arc<Coordinator>,
    /// `true` if the others look for it at an address that is none of this machine.
    is_elsewhere: bool,
}

impl OwnCoordinator {
    fn start(
        options: &MemberOptions,
        dead_after: Duration,
        began: Instant,
    ) -> Result<Self, MemberError> {
        let wanted = &options.coordinator;
        let address = |source| MemberError::Address { address: wanted.clone(), source };
        let local = address_on_the_way(wanted, options, began)?;
        let parsed: Option<HostPort> = wanted.parse().ok();
        let port = parsed.as_ref().map_or(0, HostPort::port);
        let whereabouts = parsed.and_then(|wanted| Whereabouts::of(wanted.host()).ok());
        let listener = TcpListener::bind((local, port)).map_err(address)?;
        let num_processes = options.process.num_processes;
        let mut own = CoordinatorOptions::new(&options.job, options.secret.clone(), num_processes);
        own.tls.clone_from(&options.tls.identity);
        own.set_dead_after(dead_after);
        let say = options.say;
        let limits = Limits::new(dead_after, None);
        let overseer =
            Overseer::new(limits, None, move |text| say(&format!("coordinator: {text}")));
        let coordinator = Arc::new(Coordinator::start(listener, own, overseer.clone())?);
        let checked = Arc::downgrade(&coordinator);
        thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
            while let Some(coordinator) = checked.upgrade() {
                overseer.check(&coordinator);
                drop(coordinator);
                thread::sleep(CHECK);
            }
        })?;
        let is_elsewhere = matches!(whereabouts, Some(Whereabouts::Elsewhere(_)));
        Ok(Self { coordinator, is_elsewhere })
    }
}

/// This machine's address on the way to `remote`. Waits for the name of a host that is still being
/// started.
fn address_on_the_way(
    remote: &str,
    options: &MemberOptions,
    began: Instant,
) -> Result<IpAddr, MemberError> {
    let mut has_said = false;
    loop {
        match local_address(remote) {
            Err(error) if began.elapsed() < options.deadline => {
                if began.elapsed() >= PATIENCE_FOR_ADDRESS && !has_said {
                    has_said = true;
                    (options.say)(&format!(
                        "warning: the address of the coordinator, {remote}, cannot be used yet \
                         ({error}); trying for {} s",
                        options.deadline.as_secs()
                    ));
                }
                thread::sleep(Duration::from_millis(500));
            }
            found => {
                let address = remote.to_owned();
                return found.map_err(|source| MemberError::Address { address, source });
            }
        }
    }
}

/// Tells the user, until it is dropped, that the other processes are waited for.
struct Waiting(#[expect(dead_code, reason = "the thread ends when it is dropped")] Sender<()>);

impl Waiting {
    fn start(
        options: &MemberOptions,
        contact: &str,
        missing: Arc<Mutex<String>>,
    ) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel::<()>();
        let (say, num_processes) = (options.say, options.process.num_processes);
        let (contact, deadline) = (contact.to_owned(), options.deadline.as_secs());
        let remind = move || {
            let (mut wait, mut waited) = (PATIENCE, Duration::ZERO);
            while receiver.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                waited += wait;
                wait = REMINDER;
                let missing = missing.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let missing = if missing.is_empty() { missing } else { format!(" ({missing})") };
                say(&format!(
                    "warning: not all {num_processes} processes have joined at {contact} after {} \
                     s{missing}; the limit is {deadline} s",
                    waited.as_secs()
                ));
            }
        };
        thread::Builder::new().name("waiting".to_owned()).spawn(remind)?;
        Ok(Self(sender))
    }
}
