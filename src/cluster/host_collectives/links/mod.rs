//! Connections between all pairs of processes of a job, one for each direction.

mod handshake;
#[cfg(test)]
mod tests;
mod threads;

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::arrivals::ArrivalMeter;
use super::call::ReplicaCall;
use super::exchange::Exchange;
use crate::cluster::{Secret, token_tls};
use handshake::{Guest, HandshakeProgress, Incoming, LinkKeys, Outgoing};
use threads::Writers;

/// Handshakes in progress. The oldest one is given up for one more.
const MAX_GUESTS: usize = 256;
/// How long to wait before asking again whether something has arrived.
const POLL: Duration = Duration::from_millis(1);
/// The longest pause before another attempt to connect.
const MAX_RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How the processes of a job find and recognise each other. Equal in all of them, but for
/// `process_index` and `report`.
#[derive(Clone)]
pub struct LinkOptions {
    /// The name of the job.
    pub job: String,
    /// Which attempt of the job this is. Processes of other generations are refused.
    pub generation: u64,
    /// The index of this process.
    pub process_index: usize,
    /// The address on which each process listens.
    pub addresses: Vec<SocketAddr>,
    /// What the processes prove that they have.
    pub secret: Secret,
    /// What the connections carry is neither encrypted nor signed, once both sides have proved that
    /// they are of the job.
    pub is_plain: bool,
    /// How long all connections together may take.
    pub deadline: Duration,
    /// Called with a line for each connection that was refused, and why.
    pub report: Arc<dyn Fn(&str) + Send + Sync>,
}

impl fmt::Debug for LinkOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkOptions")
            .field("job", &self.job)
            .field("generation", &self.generation)
            .field("process_index", &self.process_index)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// Why processes cannot be linked.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The index of this process is not one of those with an address.
    #[error("this is process {process_index}, but only {num_processes} processes have an address")]
    NoSuchProcess {
        /// The index.
        process_index: usize,
        /// Number of addresses.
        num_processes: usize,
    },
    /// Some processes did not connect in time.
    #[error("not all processes were connected within {deadline:?}: {}", missing.join("; "))]
    Deadline {
        /// How long it may take.
        deadline: Duration,
        /// Each process that is missing, and why if known.
        missing: Vec<String>,
    },
    /// The system refused something.
    #[error("cannot connect the processes: {0}")]
    Io(#[from] io::Error),
}

/// Authenticated connections to and from all other processes of a job.
pub struct Links {
    process_index: usize,
    addresses: Vec<SocketAddr>,
    /// By process, `None` for this one.
    peers: Vec<Option<Link>>,
}

/// The connections of this process and another one.
struct Link {
    outgoing: Outgoing,
    incoming: Incoming,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links")
            .field("process_index", &self.process_index)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// A process to which this one tried to connect.
type Attempt = (usize, io::Result<Outgoing>);

impl Links {
    /// Connects to all other processes, to send, and accepts theirs at `listener`, which listens at
    /// this process's address. Processes may start in any order. A connection that does not prove
    /// within 5 s that it belongs to the job is closed and reported, and keeps nobody else waiting.
    ///
    /// # Errors
    /// If a process is still missing at the deadline, or the system refuses sockets or threads.
    pub fn connect(listener: TcpListener, options: &LinkOptions) -> Result<Self, LinkError> {
        let LinkOptions { process_index, addresses, deadline, .. } = options;
        if *process_index >= addresses.len() {
            let (process_index, num_processes) = (*process_index, addresses.len());
            return Err(LinkError::NoSuchProcess { process_index, num_processes });
        }
        listener.set_nonblocking(true)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let keys = LinkKeys::new(options)?;
        let attempts = connect_to_others(options, &keys, &is_over)?;
        let peers = Lobby::new(&listener, options, &keys).wait(&attempts);
        is_over.store(true, Ordering::Release);
        let peers =
            peers.map_err(|missing| LinkError::Deadline { deadline: *deadline, missing })?;
        Ok(Self { process_index: *process_index, addresses: addresses.clone(), peers })
    }

    /// Starts to exchange collectives, and to measure how fast they arrive.
    pub(super) fn start<C: ReplicaCall>(
        self,
        deadline: Duration,
        arrivals: &Arc<ArrivalMeter>,
    ) -> io::Result<Arc<Exchange<C>>> {
        let Self { process_index, addresses, peers } = self;
        let (mut outgoing, mut incoming) = (vec![], vec![]);
        for link in peers {
            let (out, into) = link.map(|link| (link.outgoing, link.incoming)).unzip();
            // A direction that breaks ends the other one, where it is noticed.
            let back = into.as_ref().map(|into| into.tcp.try_clone()).transpose()?;
            let there = out.as_ref().map(|out| out.tcp.try_clone()).transpose()?;
            outgoing.push(out.zip(back));
            incoming.push(into.zip(there));
        }
        let writers = Writers::start(process_index, addresses, outgoing)?;
        let exchange = Exchange::new(deadline, Some(Box::new(writers)))?;
        let exchange: Arc<Exchange<C>> = exchange;
        for (process, incoming) in incoming.into_iter().enumerate() {
            let Some((incoming, there)) = incoming else { continue };
            let (buffers, arrivals) = (exchange.buffers().clone(), arrivals.clone());
            let exchange: Weak<Exchange<C>> = Arc::downgrade(&exchange);
            let thread = thread::Builder::new().name(format!("receive-{process}"));
            thread.spawn(move || {
                threads::receive(&exchange, process, incoming, &there, (&buffers, &arrivals));
            })?;
        }
        Ok(exchange)
    }
}

/// Tries to connect to each other process until that succeeds, on a thread for each. Failures are
/// sent, too.
fn connect_to_others(
    options: &LinkOptions,
    keys: &LinkKeys,
    is_over: &Arc<AtomicBool>,
) -> io::Result<Receiver<Attempt>> {
    let (sender, attempts) = mpsc::channel();
    let own = options.process_index;
    for process in (0..options.addresses.len()).filter(|process| *process != own) {
        let (options, keys) = (options.clone(), keys.clone());
        let (is_over, sender) = (is_over.clone(), sender.clone());
        let thread = thread::Builder::new().name(format!("connect-{process}"));
        thread.spawn(move || {
            let mut pause = Duration::from_millis(20);
            while !is_over.load(Ordering::Acquire) {
                let attempt = handshake::connect(&options, &keys, process);
                let is_done = attempt.is_ok();
                if sender.send((process, attempt)).is_err() || is_done {
                    return;
                }
                thread::sleep(pause);
                pause = (2 * pause).min(MAX_RETRY_PAUSE);
            }
        })?;
    }
    Ok(attempts)
}

/// Where connections are before all of them are there.
struct Lobby<'o> {
    listener: &'o TcpListener,
    options: &'o LinkOptions,
    keys: &'o LinkKeys,
    guests: Vec<Guest>,
    outgoing: Vec<Option<Outgoing>>,
    incoming: Vec<Option<Incoming>>,
    /// Why the last attempt to connect to a process failed.
    errors: Vec<Option<String>>,
    accept_error: Option<ErrorKind>,
}

impl<'o> Lobby<'o> {
    fn new(listener: &'o TcpListener, options: &'o LinkOptions, keys: &'o LinkKeys) -> Self {
        let num_processes = options.addresses.len();
        Self {
            listener,
            options,
            keys,
            guests: vec![],
            outgoing: (0..num_processes).map(|_| None).collect(),
            incoming: (0..num_processes).map(|_| None).collect(),
            errors: vec![None; num_processes],
            accept_error: None,
        }
    }

    /// The connections with all other processes, or what is missing at the deadline.
    fn wait(mut self, attempts: &Receiver<Attempt>) -> Result<Vec<Option<Link>>, Vec<String>> {
        let from = Instant::now();
        loop {
            while let Ok((process, attempt)) = attempts.try_recv() {
                match attempt {
                    Ok(outgoing) => self.outgoing[process] = Some(outgoing),
                    Err(error) => self.errors[process] = Some(token_tls::describe(&error)),
                }
            }
            self.accept();
            self.advance();
            let own = self.options.process_index;
            let is_missing = |process: &usize| {
                let (outgoing, incoming) = (&self.outgoing[*process], &self.incoming[*process]);
                *process != own && (outgoing.is_none() || incoming.is_none())
            };
            let missing: Vec<_> = (0..self.outgoing.len()).filter(is_missing).collect();
            if missing.is_empty() {
                let pairs = self.outgoing.into_iter().zip(self.incoming);
                let link = |(out, into): (Option<_>, Option<_>)| {
                    out.zip(into).map(|(outgoing, incoming)| Link { outgoing, incoming })
                };
                return Ok(pairs.map(link).collect());
            }
            if from.elapsed() > self.options.deadline {
                return Err(missing.into_iter().map(|process| self.explain(process)).collect());
            }
            thread::sleep(POLL);
        }
    }

    fn explain(&self, process: usize) -> String {
        let address = self.options.addresses[process];
        match &self.errors[process] {
            Some(error) if self.outgoing[process].is_none() => {
                format!("process {process} ({address}): {error}")
            }
            _ if self.outgoing[process].is_none() => {
                format!("process {process} ({address}) does not answer")
            }
            _ => format!("process {process} ({address}) has not connected to this one"),
        }
    }

    fn report(&self, address: SocketAddr, reason: &str) {
        (self.options.report)(&format!("refused a connection from {address}: it {reason}"));
    }

    fn accept(&mut self) {
        // A bound, so that a flood of connections does not keep others from making progress.
        for _ in 0..MAX_GUESTS {
            match self.listener.accept() {
                Ok((stream, address)) => {
                    if self.guests.len() >= MAX_GUESTS {
                        let oldest = self.guests.remove(0);
                        self.report(oldest.address, "gave way to newer ones");
                    }
                    self.guests.extend(Guest::new(self.keys, stream, address));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // The system is short of something, which may pass. Once for each kind of error
                    // in a row.
                    if self.accept_error.replace(error.kind()) != Some(error.kind()) {
                        (self.options.report)(&format!("cannot accept connections: {error}"));
                    }
                    return;
                }
            }
        }
    }

    fn advance(&mut self) {
        for mut guest in std::mem::take(&mut self.guests) {
            match guest.advance(self.options) {
                HandshakeProgress::Pending => self.guests.push(guest),
                HandshakeProgress::Refused(reason) => self.report(guest.address, &reason),
                // A newer connection replaces an older one, which its process has given up.
                HandshakeProgress::Member(process) => {
                    match guest.into_incoming(self.options.is_plain) {
                        Ok(incoming) => self.incoming[process] = Some(incoming),
                        Err(error) => self.errors[process] = Some(error.to_string()),
                    }
                }
            }
        }
    }
}
