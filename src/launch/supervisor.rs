//! The loop of a supervisor: directives of the coordinator, ends of workers, signals.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::beforehand::Beforehand;
use super::snapshots::SupervisorSnapshots;
use super::worker::{Worker, WorkerCommand, WorkerEnd, describe};
use super::{LaunchEnd, LaunchError, LaunchOptions, Requests, variable};
use crate::cluster::{
    self, Contact, Coordinator, CoordinatorOptions, Directive, HeldProcesses, Holders, HostPlace,
    INTERRUPTED, Limits, Overseer, SupervisorOptions, SupervisorSession, Tls, TlsError, awake,
    ends_well, host_name, random_bytes,
};
use crate::observe::{draws_block, end_passed, say};

const SIGTERM: usize = 15;
/// How often signals are looked for.
const POLL: Duration = Duration::from_millis(50);
/// Workers of a failed generation may end by themselves within this time: they still write why.
const GRACE: Duration = Duration::from_millis(500);
/// How often it is said that a job has no place for this host.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// One attempt to reach the coordinator again.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Runs the workers of this host until the job ends.
///
/// # Errors
/// If the options contradict each other, a worker cannot be started, or the coordinator cannot be
/// reached. No worker is left then.
pub fn launch(options: &LaunchOptions, requests: &Requests) -> Result<LaunchEnd, LaunchError> {
    let limits = Limits::new(options.dead_after, options.stuck_after);
    let say_of_job = |text: &str| say(&format!("launch: {text}"));
    let overseer = Overseer::new(limits, options.record_dir.clone(), say_of_job);
    await_name(options, requests)?;
    let stop = requests.stop.load(Ordering::Relaxed);
    if stop > 0 {
        return Ok(LaunchEnd::Stopped(stop));
    }
    let (mut coordinator, address) = start_coordinator(options, overseer.clone())?;
    let snapshots = SupervisorSnapshots::start(&address, options);
    let own = SupervisorOptions {
        contact: Contact {
            address: address.clone(),
            job: options.job.clone(),
            secret: options.secret.clone(),
            tls: options.tls.0.authority.clone(),
        },
        id: random_number()?,
        size: options.size,
        host: host_name(),
        host_index: options.host_index,
        num_local: options.num_local,
        snapshot_address: snapshots.address(),
        held: HeldProcesses::default(),
        deadline: options.start_within,
    };
    let mut until = awake::now() + options.start_within;
    let session = loop {
        match register(&own, requests, until)? {
            Registration::Done(session) => break Arc::new(session),
            Registration::Stopped => {
                return Ok(LaunchEnd::Stopped(requests.stop.load(Ordering::Relaxed)));
            }
            // One that runs here answers again.
            Registration::Vacant if coordinator.is_some() => {}
            Registration::Vacant => {
                (coordinator, _) = start_coordinator(options, overseer.clone())?;
                if coordinator.is_some() {
                    until = awake::now() + options.start_within;
                }
            }
        }
    };
    let (news, received) = mpsc::channel();
    forward_directives(session.clone(), news.clone());
    let mut supervisor = Supervisor {
        options,
        requests,
        address,
        own,
        session,
        overseen: coordinator.as_ref().map(|coordinator| (&*overseer, coordinator)),
        news,
        snapshots,
        beforehand: Beforehand::default(),
        workers: vec![],
        generation: 0,
        place: None,
        ended_well: vec![],
        kill_at: None,
        forwarded: 0,
        is_leaving: false,
        has_waited: false,
    };
    let ended = supervisor.run(&received);
    supervisor.kill();
    // Nothing more is heard of a worker that was killed just now.
    end_passed();
    drop(coordinator);
    ended
}

/// Waits until the coordinator's name has an address: where hosts and names come at the same time,
/// as in Kubernetes, it may have none yet.
fn await_name(options: &LaunchOptions, requests: &Requests) -> Result<(), cluster::Error> {
    let Some(address) = &options.coordinator else { return Ok(()) };
    let secs = options.start_within.as_secs();
    let until = awake::now() + options.start_within;
    let mut has_said = false;
    while requests.stop.load(Ordering::Relaxed) == 0 {
        match address.to_socket_addrs() {
            // What is no address will not become one; what is said of that comes later.
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
                if awake::now() >= until {
                    let (address, error) = (address.clone(), error.to_string());
                    return Err(cluster::Error::Unreachable { address, secs, error });
                }
                if !std::mem::replace(&mut has_said, true) {
                    say(&format!("launch: --coordinator {address}: {error}; trying for {secs} s"));
                }
                thread::sleep(ATTEMPT);
            }
            _ => break,
        }
    }
    Ok(())
}

/// What became of the registration of this host.
enum Registration {
    Done(SupervisorSession),
    /// A signal stopped it before.
    Stopped,
    /// The coordinator of the job that had no place for this host has ended.
    Vacant,
}

/// Registers this host. Waits for the coordinator, and while other supervisors have all places: one
/// of them may have been killed a moment ago.
fn register(
    own: &SupervisorOptions,
    requests: &Requests,
    until: Duration,
) -> Result<Registration, cluster::Error> {
    let mut said: Option<Duration> = None;
    let attempt = SupervisorOptions { deadline: ATTEMPT.min(own.deadline), ..own.clone() };
    while requests.stop.load(Ordering::Relaxed) == 0 {
        let is_over = awake::now() >= until;
        match SupervisorSession::register(attempt.clone()) {
            Err(cluster::Error::Occupied(text)) if !is_over => {
                let now = awake::now();
                if said.is_none_or(|said| now >= said + SAY_AGAIN) {
                    said = Some(now);
                    let secs = until.saturating_sub(now).as_secs_f64().round();
                    say(&format!(
                        "launch: {text}; waiting up to {secs} s for one of them to leave. For \
                         more hosts set --spares K or a larger --hosts; another job needs another \
                         port"
                    ));
                }
                thread::sleep(ATTEMPT);
            }
            Err(cluster::Error::Unreachable { .. }) if !is_over && said.is_some() => {
                return Ok(Registration::Vacant);
            }
            Err(cluster::Error::Unreachable { .. }) if !is_over => {}
            Err(cluster::Error::Unreachable { address, error, .. }) => {
                let secs = own.deadline.as_secs();
                return Err(cluster::Error::Unreachable { address, secs, error });
            }
            registered => return registered.map(Registration::Done),
        }
    }
    Ok(Registration::Stopped)
}

/// By which the coordinator knows this supervisor again.
fn random_number() -> Result<u64, cluster::Error> {
    let random = random_bytes()?;
    Ok(u64::from_le_bytes(*random.first_chunk().unwrap_or(&[0; 8])))
}

/// Starts the coordinator, if it listens on this host and nobody has started it here. Returns its
/// address for this host.
fn start_coordinator(
    options: &LaunchOptions,
    overseer: Arc<Overseer>,
) -> Result<(Option<Coordinator>, String), LaunchError> {
    let num_hosts = options.size.max_hosts + options.size.num_spares;
    let address = match &options.coordinator {
        Some(address) => address.clone(),
        None if num_hosts == 1 => "127.0.0.1:0".to_owned(),
        None => return Err(LaunchError::NoCoordinator { num_hosts }),
    };
    if options.is_coordinator_elsewhere {
        return Ok((None, address));
    }
    let listen = |source| LaunchError::Listen { address: address.clone(), source };
    let listener = match bind(&address) {
        Ok(listener) => listener,
        Err(error) if num_hosts > 1 => {
            match error.kind() {
                io::ErrorKind::AddrInUse => {}
                io::ErrorKind::AddrNotAvailable => say(&format!(
                    "launch: the coordinator is expected at {address}, which is no address of \
                     this host ({})",
                    host_name()
                )),
                _ => return Err(listen(error)),
            }
            return Ok((None, address));
        }
        Err(error) => return Err(listen(error)),
    };
    if num_hosts > 1 && listener.local_addr().map_err(listen)?.ip().is_unspecified() {
        return Err(LaunchError::Unspecified { address });
    }
    let Tls { authority, identity } = &options.tls.0;
    if authority.is_some() && identity.is_none() {
        return Err(TlsError::Missing { missing: "tls_certificate" }.into());
    }
    let secret = options.secret.clone();
    let mut own = CoordinatorOptions::new(&options.job, secret, 0);
    own.size = Some(options.size);
    own.tls.clone_from(identity);
    own.set_dead_after(options.dead_after);
    own.start_within = options.start_within;
    own.max_restarts = options.max_restarts;
    let coordinator = Coordinator::start(listener, own, overseer).map_err(listen)?;
    let address = match &options.coordinator {
        Some(address) => address.clone(),
        None => coordinator.address().to_string(),
    };
    Ok((Some(coordinator), address))
}

/// Runs a standalone coordinator until a signal ends it; returns its number. `ready` is called when
/// it listens.
///
/// # Errors
/// If it cannot listen there.
pub fn coordinate(
    address: &str,
    options: CoordinatorOptions,
    overseer: &Arc<Overseer>,
    requests: &Requests,
    ready: impl FnOnce(),
) -> Result<usize, LaunchError> {
    let listen = |source| LaunchError::Listen { address: address.to_owned(), source };
    let listener = bind(address).map_err(listen)?;
    let coordinator = Coordinator::start(listener, options, overseer.clone()).map_err(listen)?;
    ready();
    loop {
        match requests.stop.load(Ordering::Relaxed) {
            0 => overseer.check(&coordinator),
            signal => return Ok(signal),
        }
        thread::sleep(POLL);
    }
}

fn bind(address: &str) -> io::Result<TcpListener> {
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    TcpListener::bind(&addresses[..])
}

/// What a supervisor hears of.
enum News {
    Ended(WorkerEnd),
    Directive(Directive),
    /// The coordinator is gone, or has forgotten this supervisor.
    Lost(cluster::Error),
}

/// Asks for directives as long as somebody hears the news.
fn forward_directives(session: Arc<SupervisorSession>, news: Sender<News>) {
    thread::spawn(move || {
        loop {
            let told = match session.next_directive(Duration::from_secs(1)) {
                Ok(None) => continue,
                Ok(Some(directive)) => news.send(News::Directive(directive)),
                Err(error) => {
                    // The supervisor ends then, or has ended.
                    let _ = news.send(News::Lost(error));
                    return;
                }
            };
            if told.is_err() {
                return;
            }
        }
    });
}

struct Supervisor<'a> {
    options: &'a LaunchOptions,
    requests: &'a Requests,
    address: String,
    own: SupervisorOptions,
    session: Arc<SupervisorSession>,
    /// On the first host.
    overseen: Option<(&'a Overseer, &'a Coordinator)>,
    news: Sender<News>,
    snapshots: SupervisorSnapshots,
    beforehand: Beforehand,
    /// The workers that have not ended, with their index.
    workers: Vec<(usize, Worker)>,
    generation: u64,
    /// The place of this host in it.
    place: Option<HostPlace>,
    /// Workers of this generation that have ended in good order, with their exit code.
    ended_well: Vec<(usize, i32)>,
    /// When workers that have not ended by themselves are killed.
    kill_at: Option<Instant>,
    /// The number of the signal that was passed on to the workers; 0 for none.
    forwarded: usize,
    /// This host leaves the job when its workers have ended.
    is_leaving: bool,
    /// The generation before ran without this host.
    has_waited: bool,
}

impl Supervisor<'_> {
    fn run(&mut self, received: &Receiver<News>) -> Result<LaunchEnd, LaunchError> {
        loop {
            self.forward_signals();
            if let Some((overseer, coordinator)) = self.overseen {
                overseer.check(coordinator);
            }
            if self.kill_at.is_some_and(|at| at <= Instant::now()) {
                self.kill();
            }
            self.beforehand.go_on(self.options);
            if self.is_leaving && self.workers.is_empty() {
                return Ok(LaunchEnd::Stopped(self.requests.stop.load(Ordering::Relaxed)));
            }
            let Ok(news) = received.recv_timeout(POLL) else { continue };
            match news {
                News::Ended(end) => self.ended(&end),
                News::Directive(Directive::Start {
                    generation,
                    place,
                    full_processes,
                    holders,
                }) => self.start(generation, place, full_processes, &holders)?,
                News::Directive(Directive::Kill { .. }) => {
                    self.kill_at = Some(Instant::now() + GRACE);
                }
                News::Directive(Directive::End { is_success, text, signal }) => {
                    let signal = match self.requests.stop.load(Ordering::Relaxed) {
                        0 => signal as usize,
                        signal => signal,
                    };
                    return Ok(match (is_success, &*text, signal) {
                        (true, INTERRUPTED, 0) => LaunchEnd::Stopped(SIGTERM),
                        (true, INTERRUPTED, signal) => LaunchEnd::Stopped(signal),
                        (true, ..) => LaunchEnd::Done,
                        (false, _, 0) => LaunchEnd::Failed(text),
                        (false, _, signal) => LaunchEnd::Stopped(signal),
                    });
                }
                News::Lost(error) => {
                    // One that was started again lets the generation go on, if all of it is there.
                    if !matches!(error, cluster::Error::Forgotten(_)) {
                        self.kill();
                        self.workers.clear();
                    }
                    self.session = Arc::new(self.register_again(error)?);
                    if self.is_leaving {
                        // A coordinator that does not answer is noticed by the session.
                        let _ = self.session.leave();
                    }
                    forward_directives(self.session.clone(), self.news.clone());
                }
            }
        }
    }

    /// Another session with the coordinator after `lost`: the network may come back, or the first
    /// host's supervisor be started again.
    fn register_again(&mut self, lost: cluster::Error) -> Result<SupervisorSession, LaunchError> {
        let within = self.options.start_within;
        let ended = match lost {
            cluster::Error::Forgotten(_) => "",
            _ => "its processes on this host are ended; ",
        };
        let secs = within.as_secs_f64();
        say(&format!("launch: {lost}; {ended}trying to reach it again for {secs} s"));
        let until = awake::now() + within;
        loop {
            if self.requests.stop.load(Ordering::Relaxed) > 0 && self.workers.is_empty() {
                return Err(lost.into());
            }
            let held = HeldProcesses {
                generation: self.generation,
                place: self.place,
                running: self.workers.iter().map(|(index, _)| *index).collect(),
                ended: self.ended_well.clone(),
            };
            let own = SupervisorOptions { deadline: ATTEMPT, held, ..self.own.clone() };
            match SupervisorSession::register(own) {
                Ok(session) => return Ok(session),
                Err(cluster::Error::Unreachable { address, error, .. })
                    if awake::now() >= until =>
                {
                    let secs = within.as_secs();
                    return Err(cluster::Error::Unreachable { address, secs, error }.into());
                }
                Err(error) if awake::now() >= until => return Err(error.into()),
                // Also if it refuses: it may not have noticed yet that the session before is gone.
                Err(_) => thread::sleep(POLL),
            }
        }
    }

    /// Starts the workers of a generation, if this host has a place in it.
    fn start(
        &mut self,
        generation: u64,
        place: Option<HostPlace>,
        full_processes: usize,
        holders: &Holders,
    ) -> Result<(), LaunchError> {
        // Of a generation that went on without this host.
        self.kill();
        self.workers.clear();
        let of_generation = place.map(|place| place.num_processes);
        self.beforehand.follow(self.options, full_processes, of_generation);
        let Some(HostPlace { first_process, num_processes, .. }) = place else {
            say(&format!("launch: generation {generation} runs without this host, which waits"));
            self.snapshots.wait(generation, &holders.addresses);
            self.has_waited = true;
            return Ok(());
        };
        let num_local = self.options.num_local;
        let processes = first_process..first_process + num_local;
        let stop = self.requests.stop.load(Ordering::Relaxed);
        if stop > 0 {
            self.forward_signals();
            if !self.is_leaving {
                self.session.give_up(&self.stopped(), stop)?;
            }
            for process_index in processes {
                self.session.child_ended(generation, process_index, "not started", None)?;
            }
            return Ok(());
        }
        if std::mem::take(&mut self.has_waited) {
            say(&format!("launch: generation {generation} runs on this host too"));
        }
        (self.generation, self.place) = (generation, place);
        self.ended_well.clear();
        self.snapshots.follow(generation, &holders.next);
        let ends = self.forward_ends();
        for process_index in processes {
            let mut environment = vec![
                (variable::COORDINATOR, self.address.clone()),
                (variable::PROCESS_INDEX, process_index.to_string()),
                (variable::NUM_PROCESSES, num_processes.to_string()),
                (variable::LOCAL_PROCESS_INDEX, (process_index - first_process).to_string()),
                (variable::NUM_LOCAL_PROCESSES, num_local.to_string()),
                (variable::GENERATION, generation.to_string()),
                (variable::START_WITHIN_SECS, self.options.start_within.as_secs_f64().to_string()),
                (variable::JOB, self.options.job.clone()),
                (variable::TOKEN, self.options.secret.hex()),
                (variable::SUPERVISOR, std::process::id().to_string()),
                (variable::SNAPSHOT_SLOTS, self.snapshots.slots(process_index - first_process)),
                (variable::SNAPSHOT_HOLDER, self.own.snapshot_address.clone()),
                (variable::SNAPSHOT_HOLDERS, holders.addresses.join(",")),
            ];
            if process_index == 0 && draws_block() {
                environment.push((variable::SHOWN_BY, std::process::id().to_string()));
            }
            if self.options.size.is_flexible() {
                environment.push((variable::IS_FLEXIBLE, "1".to_owned()));
            }
            if self.options.size.is_elastic() {
                environment.push((variable::FULL_PROCESSES, full_processes.to_string()));
            }
            if let (_, Some(authority)) = &self.options.tls {
                environment.push((variable::TLS_CA, authority.to_string_lossy().into_owned()));
            }
            let (program, arguments) = (&self.options.program, &self.options.arguments);
            let command = WorkerCommand { program, arguments, environment };
            let worker = Worker::start(command, (generation, process_index), &ends);
            let worker =
                worker.map_err(|source| LaunchError::Start { program: program.clone(), source })?;
            self.workers.push((process_index, worker));
        }
        Ok(())
    }

    /// A channel for the ends of workers, which become news.
    fn forward_ends(&self) -> Sender<WorkerEnd> {
        let (ends, received) = mpsc::channel();
        let news = self.news.clone();
        thread::spawn(move || {
            for end in received {
                if news.send(News::Ended(end)).is_err() {
                    return;
                }
            }
        });
        ends
    }

    fn ended(&mut self, end: &WorkerEnd) {
        if end.generation == self.generation {
            self.workers.retain(|(index, _)| *index != end.process_index);
        }
        let status = describe(&end.status);
        let exit_code = end.status.as_ref().ok().and_then(std::process::ExitStatus::code);
        if let Some(code) = exit_code.filter(|code| ends_well(*code))
            && end.generation == self.generation
        {
            self.ended_well.push((end.process_index, code));
        }
        // A coordinator that does not answer is noticed by the session too.
        let _ = self.session.child_ended(end.generation, end.process_index, &status, exit_code);
    }

    fn forward_signals(&mut self) {
        let stop = self.requests.stop.load(Ordering::Relaxed);
        if stop != self.forwarded && stop > 0 {
            self.forwarded = stop;
            // The job goes on without this host, unless its coordinator ends with it.
            let is_for_this_host = stop == SIGTERM || self.workers.is_empty();
            if self.options.size.is_flexible() && is_for_this_host && self.overseen.is_none() {
                self.is_leaving = true;
                // A coordinator that does not answer is noticed by the session.
                let _ = self.session.leave();
                return;
            }
            if self.workers.is_empty() {
                // Between generations, or before the first. A coordinator that does not answer is
                // noticed by the session.
                let _ = self.session.give_up(&self.stopped(), stop);
            }
            self.signal(match stop {
                1 => Signal::HUP,
                2 => Signal::INT,
                _ => Signal::TERM,
            });
        }
        if self.requests.save.swap(false, Ordering::Relaxed) {
            self.signal(Signal::USR1);
        }
    }

    fn stopped(&self) -> String {
        format!("host {} was stopped by a signal", self.own.host)
    }

    fn kill(&mut self) {
        self.kill_at = None;
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        self.workers.iter().for_each(|(_, worker)| worker.signal(signal));
    }
}
