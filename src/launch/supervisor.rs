//! The loop of a supervisor: directives of the coordinator, ends of workers, signals.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::worker::{Worker, WorkerCommand, WorkerEnd, describe};
use super::{LaunchEnd, LaunchError, LaunchOptions, Requests, variable};
use crate::cluster::{
    Contact, Coordinator, CoordinatorOptions, DEAD_AFTER, Directive, Limits, Overseer,
    Registration, SupervisorOptions, SupervisorSession, host_name, local_address,
    published_address,
};
use crate::observe::say;

/// The outcome of processes that were stopped after the same step.
const INTERRUPTED: &str = "interrupted";
const SIGTERM: usize = 15;
/// How often signals are looked for.
const POLL: Duration = Duration::from_millis(50);
/// Workers of a failed generation may end by themselves within this time: they still write why.
const GRACE: Duration = Duration::from_millis(500);

/// Runs the workers of this host until the job ends.
///
/// # Errors
/// If the options contradict each other, a worker cannot be started, or the coordinator cannot be reached. No worker is left
/// then.
pub fn launch(options: &LaunchOptions, requests: &Requests) -> Result<LaunchEnd, LaunchError> {
    let LaunchOptions { num_processes, num_hosts, host_index, .. } = *options;
    if !num_processes.is_multiple_of(num_hosts) {
        return Err(LaunchError::Uneven { num_processes, num_hosts });
    }
    let limits = Limits {
        dead_after: options.heartbeat * DEAD_AFTER,
        stuck_after: options.stuck_after,
        ..Limits::default()
    };
    let say_of_job = |text: &str| say(&format!("launch: {text}"));
    let overseer = Overseer::new(limits, options.record_dir.clone(), say_of_job);
    let (coordinator, address) = start_coordinator(options, overseer.clone())?;
    let etcd = options.etcd.as_ref().map(|(etcd, _)| etcd);
    let registration = match (etcd, &coordinator) {
        (Some(etcd), Some(_)) => {
            let publish = Registration::publish(etcd.clone(), &options.job, &address, say_of_job);
            Some(publish?)
        }
        _ => None,
    };
    let address = match (etcd, address.is_empty()) {
        (Some(etcd), true) => {
            published_address(etcd, &options.job, &options.secret, options.start_within)?
        }
        _ => address,
    };
    let num_local = num_processes / num_hosts;
    let first_process = host_index * num_local;
    let session = SupervisorSession::register(SupervisorOptions {
        contact: Contact {
            address: address.clone(),
            job: options.job.clone(),
            secret: options.secret.clone(),
            tls: None,
        },
        host_index,
        num_hosts,
        host: host_name(),
        first_process,
        num_local,
        deadline: options.start_within,
    })?;
    let (news, received) = mpsc::channel();
    let session = Arc::new(session);
    forward_directives(session.clone(), news.clone());
    let mut supervisor = Supervisor {
        options,
        requests,
        address,
        session: &session,
        overseen: coordinator.as_ref().map(|coordinator| (&*overseer, coordinator)),
        registration: registration.as_ref(),
        news,
        processes: first_process..first_process + num_local,
        workers: vec![],
        generation: 0,
        kill_at: None,
        forwarded: 0,
        stopped: 0,
    };
    let ended = supervisor.run(&received);
    supervisor.kill();
    drop(coordinator);
    drop(registration);
    ended
}

/// Starts the coordinator on the first host. Returns its address for this host.
fn start_coordinator(
    options: &LaunchOptions,
    overseer: Arc<Overseer>,
) -> Result<(Option<Coordinator>, String), LaunchError> {
    let LaunchOptions { num_hosts, host_index, .. } = *options;
    let address = match &options.coordinator {
        Some(address) => address.clone(),
        None if num_hosts == 1 => "127.0.0.1:0".to_owned(),
        None => match &options.etcd {
            // It is found in etcd.
            Some(_) if host_index > 0 => return Ok((None, String::new())),
            Some((etcd, _)) => {
                let endpoint = etcd.first_endpoint();
                let listen = |source| LaunchError::Listen { address: endpoint.to_owned(), source };
                SocketAddr::new(local_address(endpoint).map_err(listen)?, 0).to_string()
            }
            None => return Err(LaunchError::NoCoordinator { num_hosts }),
        },
    };
    if host_index > 0 {
        return Ok((None, address));
    }
    let listen = |source| LaunchError::Listen { address: address.clone(), source };
    let listener = bind(&address).map_err(listen)?;
    let secret = options.secret.clone();
    let mut own = CoordinatorOptions::new(&options.job, secret, options.num_processes);
    own.num_hosts = Some(num_hosts);
    own.heartbeat = options.heartbeat;
    own.dead_after = options.heartbeat * DEAD_AFTER;
    own.start_within = options.start_within;
    own.max_restarts = options.max_restarts;
    let coordinator = Coordinator::start(listener, own, overseer).map_err(listen)?;
    let address = match &options.coordinator {
        Some(address) => address.clone(),
        None => coordinator.address().to_string(),
    };
    Ok((Some(coordinator), address))
}

fn bind(address: &str) -> std::io::Result<TcpListener> {
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    TcpListener::bind(&addresses[..])
}

/// What a supervisor hears of.
enum News {
    Ended(WorkerEnd),
    Directive(Directive),
    /// The coordinator is gone.
    Lost(crate::cluster::Error),
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
    session: &'a SupervisorSession,
    /// On the first host.
    overseen: Option<(&'a Overseer, &'a Coordinator)>,
    /// On the first host, if the job has etcd.
    registration: Option<&'a Registration>,
    news: Sender<News>,
    processes: std::ops::Range<usize>,
    /// The workers that have not ended, with their index.
    workers: Vec<(usize, Worker)>,
    generation: u64,
    /// When workers that have not ended by themselves are killed.
    kill_at: Option<Instant>,
    /// The number of the signal that was passed on to the workers; 0 for none.
    forwarded: usize,
    /// The number of a signal that a worker says it was stopped by; 0 for none.
    stopped: usize,
}

impl Supervisor<'_> {
    fn run(&mut self, received: &Receiver<News>) -> Result<LaunchEnd, LaunchError> {
        loop {
            self.forward_signals();
            if let Some((overseer, coordinator)) = self.overseen {
                overseer.check(coordinator);
                if let Some(registration) = self.registration {
                    registration.check(coordinator);
                }
            }
            if self.kill_at.is_some_and(|at| at <= Instant::now()) {
                self.kill();
            }
            let Ok(news) = received.recv_timeout(POLL) else { continue };
            match news {
                News::Ended(end) => self.ended(&end)?,
                News::Directive(Directive::Start { generation }) => self.start(generation)?,
                News::Directive(Directive::Kill { .. }) => {
                    self.kill_at = Some(Instant::now() + GRACE);
                }
                News::Directive(Directive::End { is_success, text }) => {
                    let signal = match self.requests.stop.load(Ordering::Relaxed) {
                        0 => self.stopped,
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
                News::Lost(error) => return Err(error.into()),
            }
        }
    }

    fn start(&mut self, generation: u64) -> Result<(), LaunchError> {
        if self.requests.stop.load(Ordering::Relaxed) > 0 {
            self.session.give_up("stopped by a signal")?;
            for process_index in self.processes.clone() {
                self.session.child_ended(generation, process_index, "not started", None)?;
            }
            return Ok(());
        }
        (self.generation, self.kill_at) = (generation, None);
        let ends = self.forward_ends();
        for process_index in self.processes.clone() {
            let mut environment = vec![
                (variable::COORDINATOR, self.address.clone()),
                (variable::PROCESS_INDEX, process_index.to_string()),
                (variable::NUM_PROCESSES, self.options.num_processes.to_string()),
                (variable::GENERATION, generation.to_string()),
                (variable::JOB, self.options.job.clone()),
                (variable::TOKEN, self.options.secret.hex()),
                (variable::SUPERVISOR, std::process::id().to_string()),
            ];
            if let Some((_, url)) = &self.options.etcd {
                environment.push((variable::STORE, url.clone()));
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

    fn ended(&mut self, end: &WorkerEnd) -> Result<(), LaunchError> {
        if end.generation == self.generation {
            self.workers.retain(|(index, _)| *index != end.process_index);
        }
        let status = describe(&end.status);
        let exit_code = end.status.as_ref().ok().and_then(std::process::ExitStatus::code);
        // A signal that reached a worker only.
        if let Some(code @ (129 | 130 | 143)) = exit_code {
            self.stopped = code as usize - 128;
        }
        self.session.child_ended(end.generation, end.process_index, &status, exit_code)?;
        Ok(())
    }

    fn forward_signals(&mut self) {
        let stop = self.requests.stop.load(Ordering::Relaxed);
        if stop != self.forwarded && stop > 0 && !self.workers.is_empty() {
            self.forwarded = stop;
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

    fn kill(&mut self) {
        self.kill_at = None;
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        self.workers.iter().for_each(|(_, worker)| worker.signal(signal));
    }
}
