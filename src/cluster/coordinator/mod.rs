//! The coordinator of a job: keeps membership, the key-value store and the horizon, and directs the
//! supervisors.
//!
//! One runs per job, in a supervisor, in process 0, or on its own. The state of the job is a state
//! machine without IO ([`job`]); around it is a gRPC service ([`service`]), behind connections of
//! those who have the token ([`accept`]).

mod accept;
mod horizon;
mod job;
mod membership;
mod refusals;
mod service;
mod store;
mod supervision;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Server;

pub use self::job::JobChange;
use self::job::{Failure, FailureKind, JobOptions, JobState};
use self::service::{CoordinatorService, Shared};
use super::members::SlowPeer;
use super::report::Report;
use super::roster::JobSize;
use super::secret::{Secret, random_bytes};
use super::token_tls::TokenTls;
use super::watchdog::{DEAD_AFTER, heartbeat};

/// A connection whose other end vanished is closed after two of these.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// The longest time between two calls of a worker that waits for news.
const BETWEEN_CALLS: Duration = Duration::from_millis(100);
/// Workers and supervisors that a standalone coordinator is prepared for.
const STANDALONE_CALLERS: usize = 8192;
/// When the coordinator stops, callers may hear of the end for this long.
const LINGER: Duration = Duration::from_secs(1);

/// What a coordinator must know. Times and limits have defaults: see [`Self::new`].
pub struct CoordinatorOptions {
    /// Name of the job. Processes of another job are refused.
    pub job: String,
    /// The secret that all processes and supervisors share.
    pub secret: Secret,
    /// Number of worker processes, if there are no supervisors.
    pub num_processes: usize,
    /// How many supervisors and processes the job may have; `None` if there are no supervisors, so
    /// that the job has one generation and the coordinator directs nobody.
    pub size: Option<JobSize>,
    /// Interval of heartbeats: 2 s.
    pub heartbeat: Duration,
    /// Without a heartbeat for this long a process is dead: 10 s.
    pub dead_after: Duration,
    /// A process that lost a connection waits this long for a better explanation: 300 ms.
    pub grace: Duration,
    /// Enough supervisors must register within this time: 60 s.
    pub start_within: Duration,
    /// Processes must end within this time once they were told to: 30 s.
    pub kill_within: Duration,
    /// Restarts in a row without a new checkpoint: 3.
    pub max_restarts: usize,
    /// The first supervisor says how large the job is. When the job has ended,
    /// another one may come. The processes of a job go on when the coordinator stops, and wait for
    /// another at its address.
    pub is_standalone: bool,
    /// Bytes in the key-value store, gathers included: 64 MiB.
    pub max_store_bytes: usize,
    /// Certificate chain and private key, in PEM, that the coordinator shows; `None`: the key that
    /// follows from the secret.
    pub tls: Option<(Vec<u8>, Vec<u8>)>,
}

impl CoordinatorOptions {
    /// The defaults, without supervisors and without a certificate.
    pub fn new(job: &str, secret: Secret, num_processes: usize) -> Self {
        Self {
            job: job.to_owned(),
            secret,
            num_processes,
            size: None,
            heartbeat: heartbeat(DEAD_AFTER),
            dead_after: DEAD_AFTER,
            grace: Duration::from_millis(300),
            start_within: Duration::from_secs(60),
            kill_within: Duration::from_secs(30),
            max_restarts: 3,
            is_standalone: false,
            max_store_bytes: 64 << 20,
            tls: None,
        }
    }

    /// The time without a report after which a process is dead; reports come often enough for it.
    pub fn set_dead_after(&mut self, dead_after: Duration) {
        (self.heartbeat, self.dead_after) = (heartbeat(dead_after), dead_after);
    }
}

/// What the owner of a coordinator is told. Calls come from the coordinator's threads and must not
/// block.
pub trait Watcher: Send + Sync {
    /// A worker's heartbeat.
    fn report(&self, report: &Report, arrived: Instant) {
        let _ = (report, arrived);
    }

    /// The job has changed.
    fn changed(&self, change: &JobChange) {
        let _ = change;
    }

    /// A caller was refused. Once a minute for an address.
    fn refused(&self, peer: SocketAddr, why: &str) {
        let _ = (peer, why);
    }
}

/// A running coordinator. Stops when dropped; processes that are still in the job fail then, unless
/// it is standalone.
pub struct Coordinator {
    shared: Arc<Shared>,
    address: SocketAddr,
    is_standalone: bool,
    runtime: Option<Runtime>,
    stop: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<()>>,
}

impl Coordinator {
    /// Starts the coordinator of a job behind a listening socket.
    ///
    /// # Errors
    /// If the socket, the certificate or threads cannot be used.
    pub fn start(
        listener: TcpListener,
        options: CoordinatorOptions,
        watcher: Arc<dyn Watcher>,
    ) -> io::Result<Self> {
        let job = JobState::new(JobOptions {
            num_processes: options.num_processes,
            size: options.size,
            heartbeat: options.heartbeat,
            dead_after: options.dead_after,
            grace: options.grace,
            start_within: options.start_within,
            kill_within: options.kill_within,
            max_restarts: options.max_restarts,
            max_store_bytes: options.max_store_bytes,
            is_standalone: options.is_standalone,
            coordinator: u64::from_le_bytes(*random_bytes()?.first_chunk().unwrap_or(&[0; 8])),
        });
        let num_callers = match options.size {
            _ if options.is_standalone => STANDALONE_CALLERS,
            Some(size) => size.full_processes + size.max_hosts + size.num_spares,
            None => options.num_processes,
        };
        let tls = TokenTls::new(&options.secret, &options.job)?.server(options.tls.as_ref())?;
        let shared = Arc::new(Shared::new(job, watcher));
        let server = Server::builder()
            .http2_keepalive_interval(Some(KEEP_ALIVE))
            .http2_keepalive_timeout(Some(KEEP_ALIVE))
            .max_concurrent_streams(256);
        let max_connections = 16 * num_callers + 256;
        accept::allow_connections(&listener, 2 * max_connections);
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("lockstep-coordinator")
            .enable_all()
            .build()?;
        let listener = {
            let _guard = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let service = CoordinatorService(Arc::clone(&shared));
        let refusing = Arc::clone(&shared);
        let refuse = move |peer, why: &str| refusing.refuse(peer, why);
        let server = runtime.spawn(async move {
            let incoming = accept::incoming(listener, tls, max_connections, refuse);
            let stopped = async {
                let _ = stopped.await;
            };
            let _ = server.serve_with_incoming_shutdown(service, incoming, stopped).await;
        });
        let ticker = Arc::downgrade(&shared);
        let interval = (options.heartbeat.min(options.grace) / 4).max(Duration::from_millis(5));
        runtime.spawn(async move {
            while let Some(shared) = ticker.upgrade() {
                shared.with_job(|now, job| job.tick(now));
                drop(shared);
                tokio::time::sleep(interval).await;
            }
        });
        let (runtime, stop, server) = (Some(runtime), Some(stop), Some(server));
        let is_standalone = options.is_standalone;
        Ok(Self { shared, address, is_standalone, runtime, stop, server })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Fails the running generation because of these processes.
    pub fn fail(&self, processes: &[usize], reason: &str) {
        let failure = Failure {
            processes: processes.to_vec(),
            reason: reason.to_owned(),
            kind: FailureKind::FirstHand,
        };
        self.shared.with_job(|now, job| job.fail(now, failure));
    }

    /// Tells the first process that another one is slow.
    pub fn name_slow(&self, peer: &SlowPeer) {
        self.shared.name_slow(peer);
    }

    /// Waits up to `timeout` until the job has ended. `true` if it has.
    pub fn wait_until_ended(&self, timeout: Duration) -> bool {
        self.poll(timeout, JobState::has_ended)
    }

    fn poll(&self, timeout: Duration, is_reached: impl Fn(&JobState) -> bool) -> bool {
        let until = Instant::now() + timeout;
        loop {
            if self.shared.with_job(|_, job| is_reached(job)) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        if !self.is_standalone {
            let has_ended = self.poll(Duration::ZERO, JobState::has_ended);
            self.shared.with_job(|now, job| job.give_up(now, "the coordinator was stopped", 0));
            self.poll(LINGER, JobState::all_were_told);
            if !has_ended {
                // Workers that are between two calls hear of it with the next one.
                thread::sleep(BETWEEN_CALLS);
            }
        }
        self.shared.stop_waiting();
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let (Some(runtime), Some(server)) = (self.runtime.take(), self.server.take()) {
            // Lets the last answers out.
            let _ = runtime.block_on(async { tokio::time::timeout(LINGER, server).await });
            runtime.shutdown_timeout(LINGER);
        }
    }
}
