//! A supervisor's session with the coordinator.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::AbortHandle;

use super::connection::{Connection, Contact, runtime};
use super::{Error, PATIENCE, POLL, block, lock, result, unexpected};
use crate::cluster::awake;
use crate::cluster::members::Directive;
use crate::cluster::messages::{self as wire, Ask, Reply};
use crate::cluster::roster::{HostPlace, JobSize, index};
use crate::cluster::watchdog::lengthened;

/// Time between two attempts to register.
const AGAIN: Duration = Duration::from_millis(100);
/// A coordinator that has opened a session answers within this time, or is asked in another one.
const ANSWER: Duration = Duration::from_secs(3);

/// Which host this is, and which processes it has.
#[derive(Clone, Debug)]
pub struct SupervisorOptions {
    /// The coordinator.
    pub contact: Contact,
    /// A random number, the same in all sessions of this supervisor.
    pub id: u64,
    /// How large the job may be.
    pub size: JobSize,
    /// Name of this host.
    pub host: String,
    /// Its index, if a launcher has given it one: the order of hosts follows it.
    pub host_index: Option<usize>,
    /// Number of its processes in a generation.
    pub num_local: usize,
    /// Where it serves snapshots; empty if it holds none.
    pub snapshot_address: String,
    /// What it has started in a session before.
    pub held: HeldProcesses,
    /// The coordinator must answer within this time.
    pub deadline: Duration,
}

/// The processes of a supervisor, for a coordinator that was started again.
#[derive(Clone, Debug, Default)]
pub struct HeldProcesses {
    /// The generation that was started last; 0 for none.
    pub generation: u64,
    /// The place of this host in it.
    pub place: Option<HostPlace>,
    /// Those that have not ended.
    pub running: Vec<usize>,
    /// Those that have ended in good order, with their exit code.
    pub ended: Vec<(usize, i32)>,
}

/// A supervisor's session. Shows the coordinator in the background that this supervisor is alive.
pub struct SupervisorSession {
    connection: Arc<Connection>,
    directives: Mutex<Receiver<Result<Directive, Error>>>,
    listening: AbortHandle,
    /// The coordinator has so long for an answer.
    patience: Duration,
}

impl Drop for SupervisorSession {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl SupervisorSession {
    /// Registers with the coordinator.
    ///
    /// # Errors
    /// If nobody answers, or this supervisor contradicts the job.
    pub fn register(options: SupervisorOptions) -> Result<Self, Error> {
        let (connection, patience) = block(async move {
            let ended = |&(process, exit_code): &(usize, i32)| wire::EndedRow {
                process_index: index(process),
                exit_code,
            };
            let held = &options.held;
            let ask = Ask::Register(wire::Register {
                supervisor: options.id,
                size: Some(options.size.to_row()),
                host: options.host,
                num_local: index(options.num_local),
                host_index: options.host_index.map(index),
                snapshot_address: options.snapshot_address,
                held: held.place.map(|place| wire::HeldGeneration {
                    generation: held.generation,
                    running: held.running.iter().map(|&process| index(process)).collect(),
                    ended: held.ended.iter().map(ended).collect(),
                    first_process: index(place.first_process),
                    num_processes: index(place.num_processes),
                }),
            });
            let until = awake::now() + options.deadline;
            loop {
                let left = until.saturating_sub(awake::now());
                let opened = Connection::open(options.contact.clone(), left).await;
                let connection = opened.map_err(|error| match error {
                    Error::Unreachable { address, error, .. } => {
                        Error::Unreachable { address, secs: options.deadline.as_secs(), error }
                    }
                    error => error,
                })?;
                match connection.insist(ask.clone(), Duration::ZERO, ANSWER).await {
                    Ok(reply) => {
                        let Reply::Registered(registered) = result(reply)? else {
                            return Err(unexpected());
                        };
                        let dead_after = Duration::from_millis(registered.dead_after_ms);
                        let patience = lengthened(PATIENCE, dead_after);
                        return Ok((Arc::new(connection), patience));
                    }
                    // The coordinator that has opened the session is gone; another one may have its
                    // place.
                    Err(_) if awake::now() < until => tokio::time::sleep(AGAIN).await,
                    Err(Error::Ended(error)) => {
                        let (address, secs) = (options.contact.address, options.deadline.as_secs());
                        return Err(Error::Unreachable { address, secs, error });
                    }
                    Err(error) => return Err(error),
                }
            }
        })?;
        let (sender, receiver) = mpsc::channel();
        let listening =
            runtime()?.spawn(listen(Arc::clone(&connection), patience, sender)).abort_handle();
        Ok(Self { connection, directives: Mutex::new(receiver), listening, patience })
    }

    /// The next thing to do, in order, each once; `None` if there was none within `timeout`.
    ///
    /// # Errors
    /// If the coordinator does not answer for 10 s or more, or was started again, and after
    /// [`Directive::End`].
    pub fn next_directive(&self, timeout: Duration) -> Result<Option<Directive>, Error> {
        match lock(&self.directives).recv_timeout(timeout) {
            Ok(directive) => directive.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::Ended("the session with the coordinator has ended".to_owned()))
            }
        }
    }

    /// A process of this host has ended: `status` says how, e.g. "killed by signal 9". `exit_code`
    /// is `None` then.
    ///
    /// # Errors
    /// If the coordinator does not answer for 10 s or more.
    pub fn child_ended(
        &self,
        generation: u64,
        process_index: usize,
        status: &str,
        exit_code: Option<i32>,
    ) -> Result<(), Error> {
        let process_index = u32::try_from(process_index).unwrap_or(u32::MAX);
        let status = status.to_owned();
        let ask = wire::ChildEnded { generation, process_index, status, exit_code };
        self.ask(Ask::ChildEnded(ask), Duration::ZERO).map(|_| ())
    }

    /// This supervisor cannot go on, because of this signal if it is not 0: the job ends.
    ///
    /// # Errors
    /// If the coordinator does not answer for 10 s or more.
    pub fn give_up(&self, reason: &str, signal: usize) -> Result<(), Error> {
        let signal = u32::try_from(signal).unwrap_or_default();
        let ask = wire::GiveUp { reason: reason.to_owned(), is_for_this_host: false, signal };
        self.ask(Ask::GiveUp(ask), Duration::ZERO).map(|_| ())
    }

    /// This host leaves the job, which goes on without it if enough others are there, and otherwise
    /// ends as after a signal. Its processes end by themselves.
    ///
    /// # Errors
    /// If the coordinator does not answer for 10 s or more.
    pub fn leave(&self) -> Result<(), Error> {
        let ask = wire::GiveUp { is_for_this_host: true, ..wire::GiveUp::default() };
        self.ask(Ask::GiveUp(ask), Duration::ZERO).map(|_| ())
    }

    fn ask(&self, ask: Ask, wait: Duration) -> Result<Reply, Error> {
        let (connection, patience) = (Arc::clone(&self.connection), self.patience);
        result(block(async move { connection.insist(ask, wait, patience).await })?)
    }
}

/// Passes directives on until the last.
async fn listen(
    connection: Arc<Connection>,
    patience: Duration,
    sender: Sender<Result<Directive, Error>>,
) {
    let mut num_known = 0;
    let mut has_ended = false;
    loop {
        // The call after the last directive tells the coordinator that it has arrived.
        let wait = if has_ended { Duration::ZERO } else { POLL };
        let ask = wire::AskDirectives { num_known, wait_ms: wire::millis(wait) };
        let answer = connection.insist(Ask::AskDirectives(ask), wait, patience).await;
        if has_ended {
            return;
        }
        let rows = match answer.and_then(result) {
            Ok(Reply::Directives(directives)) => directives.rows,
            Ok(_) => return drop(sender.send(Err(unexpected()))),
            Err(error) => return drop(sender.send(Err(error))),
        };
        for row in rows {
            num_known += 1;
            let directive = Directive::from_row(row).ok_or_else(unexpected);
            has_ended |= matches!(directive, Ok(Directive::End { .. }));
            if sender.send(directive).is_err() {
                return;
            }
        }
    }
}
