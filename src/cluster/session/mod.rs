//! A worker's session with the coordinator, and a supervisor's. All calls block and may come from
//! any thread.

mod activity;
pub(super) mod boundaries;
mod connection;
mod error;
mod journal;
mod life;
mod supervisor;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use prost::Message;
use tokio::task::AbortHandle;

pub use self::connection::Contact;
pub(super) use self::connection::NO_ANSWER;
pub use self::error::Error;
pub use self::supervisor::{HeldProcesses, SupervisorOptions, SupervisorSession};

use self::connection::{Connection, runtime};
use self::life::Life;
use super::awake;
use super::members::{Formation, GenerationEnd, Peer, SlowPeer};
use super::messages::{self as wire, Ask, MAX_REQUEST_BYTES, Named, Reply, Why};
use super::report::{Phase, StepTimes};
use super::watchdog::lengthened;
use super::wish::{AgreedWish, Wish};
use crate::pjrt::{Code, KeyValueError, KeyValueStore};

/// The coordinator may take this long for an answer before the session asks again.
const POLL: Duration = Duration::from_secs(2);
/// Until the coordinator says otherwise.
const PATIENCE: Duration = Duration::from_secs(10);
/// Processes wait this long for each other before the first step, while they save, and in a
/// collective. Long before that, one that is gone ends the wait, and one that is stuck is found by
/// its reports.
const COMMON_PATIENCE: Duration = Duration::from_secs(1800);
/// A process that fails or leaves waits this long for the coordinator.
const LAST_PATIENCE: Duration = Duration::from_secs(3);
/// Room for keys and names in a request.
const MAX_VALUE_BYTES: usize = MAX_REQUEST_BYTES - (64 << 10);

/// Who joins which job.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// The coordinator.
    pub contact: Contact,
    /// The generation that this process was started for; `None`: whichever is forming.
    pub generation: Option<u64>,
    /// Index of this process.
    pub process_index: usize,
    /// Number of processes of the job.
    pub num_processes: usize,
    /// Name of this host.
    pub host: String,
    /// Where this process accepts connections of the others: `host:port`, or empty.
    pub data_address: String,
    /// Names and values in which all processes must agree, e.g. digests of binary and
    /// configuration.
    pub program: Vec<(String, String)>,
    /// The place of a host that is named slow is given to a spare: what the first process says.
    pub replaces_slow: bool,
    /// All processes must have joined within this time.
    pub deadline: Duration,
    /// Set to who is missing, in words, while this process waits.
    pub missing: Arc<Mutex<String>>,
}

/// Why a process fails, for [`Session::fail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// An error of its own.
    Own,
    /// Something is wrong with its host: others may go on without it.
    Host,
    /// It lost the connection to another process, which may give a better reason.
    PeerLost,
    /// An error of its own, or a signal, that leaves no sense in another attempt.
    Final,
}

/// A worker's session. Clones share it; when the last is dropped without [`Self::leave`], the
/// coordinator takes the process for dead after a while.
#[derive(Clone)]
pub struct Session(Arc<Handle>);

struct Handle {
    life: Arc<Life>,
    tasks: [AbortHandle; 2],
    generation: u64,
    process_index: usize,
    peers: Vec<Peer>,
    history: Vec<GenerationEnd>,
    formation: Formation,
    joined: Instant,
    /// How often each name was gathered.
    rounds: Mutex<HashMap<String, u64>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Session {
    /// Joins the job, and waits until all its processes have.
    ///
    /// # Errors
    /// If nobody answers, this process is refused, or not all join in time.
    pub fn join(options: JoinOptions) -> Result<Self, Error> {
        let (process_index, replaces_slow) = (options.process_index, options.replaces_slow);
        let (connection, identity, joined) = block(async move {
            let deadline = options.deadline;
            let began = awake::now();
            let connection = Connection::open(options.contact.clone(), deadline).await?;
            let (identity, joined) = join(&connection, &options, began).await?;
            Ok((connection, identity, joined))
        })?;
        let peers = wire::PeerRows::decode(&*joined.peers).map_err(|_| unexpected())?;
        let life = Arc::new(Life::new(connection, identity, &joined, replaces_slow));
        let tasks = life::spawn(&life)?;
        Ok(Self(Arc::new(Handle {
            life,
            tasks,
            generation: joined.generation,
            process_index,
            peers: peers.rows.iter().map(Peer::from).collect(),
            history: joined.history.iter().map(GenerationEnd::from).collect(),
            formation: joined.formation.as_ref().map(Formation::from).unwrap_or_default(),
            joined: Instant::now(),
            rounds: Mutex::default(),
        })))
    }

    /// How long to wait for what all processes of the job must do: 30 minutes, or more where
    /// processes may be silent for long.
    pub fn patience(&self) -> Duration {
        lengthened(COMMON_PATIENCE, self.life().dead_after())
    }

    /// The generation, from 1.
    pub fn generation(&self) -> u64 {
        self.0.generation
    }

    /// Index of this process.
    pub fn process_index(&self) -> usize {
        self.0.process_index
    }

    /// Number of processes.
    pub fn num_processes(&self) -> usize {
        self.0.peers.len()
    }

    /// All processes of the generation, by index, this one included.
    pub fn peers(&self) -> &[Peer] {
        &self.0.peers
    }

    /// How earlier generations failed.
    pub fn history(&self) -> &[GenerationEnd] {
        &self.0.history
    }

    /// How the generation came about.
    pub fn formation(&self) -> &Formation {
        &self.0.formation
    }

    /// When all processes had joined.
    pub fn joined(&self) -> Instant {
        self.0.joined
    }

    /// This process now does something else, in this step. Costs nanoseconds: no IO.
    pub fn set_phase(&self, phase: Phase, step: u64) {
        self.life().progress().set_phase(phase, step);
    }

    /// The replicas of this process, in global numbers, are known.
    pub fn set_replicas(&self, replicas: Range<usize>) {
        self.life().progress().set_replicas(replicas);
    }

    /// What the machine tells of why this process may be slow; empty if nothing.
    pub fn set_machine(&self, text: String) {
        self.life().progress().set_machine(text);
    }

    /// In the current phase this process waits for data of these others.
    pub fn set_waits_for(&self, processes: &[usize]) {
        self.life().progress().set_waits_for(processes);
    }

    /// A step is finished.
    pub fn step_done(&self, times: StepTimes) {
        self.life().progress().step_done(times);
    }

    /// Processes that were found to be slow since the last call. Only the first process hears of
    /// them. Costs nanoseconds.
    pub fn take_slow(&self) -> Vec<SlowPeer> {
        self.life().take_slow()
    }

    /// A checkpoint after `step` steps is complete: the job has made progress.
    pub fn saved(&self, step: u64) {
        self.life().saved(step);
    }

    /// Wishes for something that all processes do after the same step. Returns at once.
    pub fn wish(&self, wish: Wish) {
        let life = Arc::clone(self.life());
        life.wished(wish);
        let Ok(runtime) = runtime() else { return };
        runtime.spawn(async move {
            let ask = Ask::Wish(wire::MakeWish { wish: wish.code() });
            let _ = life.ask(ask, Duration::ZERO).await;
        });
    }

    /// To be called at each launch boundary: after `step` steps, before what comes next is
    /// launched. Returns the events that are due and were not returned before: the same in all
    /// processes. Waits if the coordinator has not allowed to go on, which it does ahead of time.
    ///
    /// # Errors
    /// If the generation has ended.
    pub fn may_leave(&self, step: u64) -> Result<Vec<AgreedWish>, Error> {
        self.life().may_leave(step)
    }

    /// Sets the value of a key for all processes of this generation.
    ///
    /// # Errors
    /// If it is set, unless `overwrite`; if the value is too large; if the generation has ended.
    pub fn put(&self, key: &[u8], value: &[u8], overwrite: bool) -> Result<(), Error> {
        check_size(key.len() + value.len())?;
        let ask = wire::Put { key: key.to_vec(), value: value.to_vec(), overwrite };
        match self.change(Ask::Put(ask), key, Some(value)) {
            Ok(_) => Ok(()),
            Err(Error::KeyIsSet(_)) => Err(Error::KeyIsSet(text(key))),
            Err(error) => Err(error),
        }
    }

    /// The value of a key, waiting up to `timeout` until a process sets it.
    ///
    /// # Errors
    /// If none does; if the generation has ended.
    pub fn get(&self, key: &[u8], timeout: Duration) -> Result<Vec<u8>, Error> {
        let began = Instant::now();
        loop {
            let wait = timeout.saturating_sub(began.elapsed()).min(POLL);
            let ask = wire::Get { key: key.to_vec(), wait_ms: wire::millis(wait) };
            match self.ask(Ask::Get(ask), wait) {
                Ok(Reply::Value(value)) => return Ok(value.value),
                Err(Error::KeyNotSet(_)) if began.elapsed() < timeout => {}
                Err(Error::KeyNotSet(_)) => return Err(Error::KeyNotSet(text(key))),
                Ok(_) => return Err(unexpected()),
                Err(error) => return Err(error),
            }
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// If it is not set; if the generation has ended.
    pub fn try_get(&self, key: &[u8]) -> Result<Vec<u8>, Error> {
        self.get(key, Duration::ZERO)
    }

    /// Removes a key. `false` if it was not set.
    ///
    /// # Errors
    /// If the generation has ended.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        match self.change(Ask::Delete(wire::Delete { key: key.to_vec() }), key, None) {
            Ok(_) => Ok(true),
            Err(Error::KeyNotSet(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The values of all processes, by index. All must call it, with the same name; the k-th call
    /// of one meets the k-th of the others.
    ///
    /// # Errors
    /// If some do not within `deadline`; if a value is too large; if the generation has ended.
    pub fn gather(
        &self,
        name: &str,
        value: Vec<u8>,
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, Error> {
        check_size(name.len() + value.len())?;
        if value.len() * self.num_processes() > wire::MAX_RESPONSE_BYTES / 2 {
            return Err(Error::TooLarge(format!(
                "{} bytes of {} processes cannot be gathered: at most {} bytes in total",
                value.len(),
                self.num_processes(),
                wire::MAX_RESPONSE_BYTES / 2
            )));
        }
        let round = {
            let mut rounds = lock(&self.0.rounds);
            let next = rounds.entry(name.to_owned()).or_default();
            *next += 1;
            *next - 1
        };
        self.life().contributed(name, round, &value);
        let began = Instant::now();
        loop {
            let wait = deadline.saturating_sub(began.elapsed()).min(POLL);
            let (name, value, wait_ms) = (name.to_owned(), value.clone(), wire::millis(wait));
            let ask = wire::Gather { name, round, value, wait_ms };
            let what = format!("gathering {:?}", ask.name);
            match self.ask(Ask::Gather(ask), wait)? {
                Reply::Gathered(gathered) => return Ok(gathered.values),
                Reply::NotYet(_) if began.elapsed() < deadline => {}
                Reply::NotYet(not_yet) => {
                    let secs = deadline.as_secs();
                    return Err(Error::Deadline { what, missing: not_yet.missing, secs });
                }
                _ => return Err(unexpected()),
            }
        }
    }

    /// Waits until all processes have called this, with the same name.
    ///
    /// # Errors
    /// See [`Self::gather`].
    pub fn barrier(&self, name: &str, deadline: Duration) -> Result<(), Error> {
        self.gather(name, Vec::new(), deadline).map(|_| ())
    }

    /// Calls `callback` with the reason when the generation ends before this process leaves it:
    /// another process failed, or the coordinator does not answer. At once if it has ended. Runs on
    /// a thread of its own.
    pub fn on_end(&self, callback: impl FnOnce(&str) + Send + 'static) {
        self.life().on_end(Box::new(callback));
    }

    /// Why the generation has ended, if it has.
    pub fn ended(&self) -> Option<String> {
        self.life().ended()
    }

    /// Tells all why this process ends. To be called before it does.
    pub fn fail(&self, cause: Cause, reason: &str) {
        let ask = Ask::Failed(wire::Failed {
            is_peer_lost: cause == Cause::PeerLost,
            reason: reason.to_owned(),
            is_final: cause == Cause::Final,
            is_of_host: cause == Cause::Host,
        });
        let life = Arc::clone(self.life());
        let _ = block(async move { life.last(ask, LAST_PATIENCE).await });
    }

    /// Leaves the job in good order: `outcome` says how the run ended, e.g. "done". The session
    /// ends.
    ///
    /// # Errors
    /// If the generation has ended.
    pub fn leave(&self, outcome: &str) -> Result<(), Error> {
        let ask = Ask::Leave(wire::Leave { outcome: outcome.to_owned() });
        let life = Arc::clone(self.life());
        block(async move { life.last(ask, LAST_PATIENCE).await })?;
        self.0.tasks.iter().for_each(AbortHandle::abort);
        Ok(())
    }

    fn life(&self) -> &Arc<Life> {
        &self.0.life
    }

    /// Sets a key, or removes it.
    fn change(&self, ask: Ask, key: &[u8], value: Option<&[u8]>) -> Result<Reply, Error> {
        let (life, key, value) = (Arc::clone(self.life()), key.to_vec(), value.map(<[u8]>::to_vec));
        block(async move { life.change(ask, key, value).await })
    }

    fn ask(&self, ask: Ask, wait: Duration) -> Result<Reply, Error> {
        let life = Arc::clone(self.life());
        block(async move { life.ask(ask, wait).await })
    }
}

impl KeyValueStore for Session {
    fn get(&self, key: &[u8], timeout: Duration) -> Result<Vec<u8>, KeyValueError> {
        Self::get(self, key, timeout).map_err(|error| match error {
            Error::KeyNotSet(key) => KeyValueError {
                code: Code::DeadlineExceeded,
                message: format!("no process set the key {key:?} within {timeout:?}"),
            },
            error => error.into(),
        })
    }

    fn try_get(&self, key: &[u8]) -> Result<Vec<u8>, KeyValueError> {
        Ok(Self::try_get(self, key)?)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), KeyValueError> {
        Ok(Self::put(self, key, value, false)?)
    }
}

/// Joins until all have, or the deadline.
async fn join(
    connection: &Connection,
    options: &JoinOptions,
    began: Duration,
) -> Result<(wire::Join, wire::Joined), Error> {
    let index = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let named =
        |(name, value): &(String, String)| Named { name: name.clone(), value: value.clone() };
    loop {
        let left = options.deadline.saturating_sub(awake::now() - began);
        let wait = left.min(POLL);
        let join = wire::Join {
            generation: options.generation.unwrap_or(0),
            process_index: index(options.process_index),
            num_processes: index(options.num_processes),
            host: options.host.clone(),
            pid: std::process::id(),
            data_address: options.data_address.clone(),
            program: options.program.iter().map(named).collect(),
            wait_ms: wire::millis(wait),
        };
        // Until the deadline: many join at once.
        let patience = left.max(PATIENCE);
        match result(connection.insist(Ask::Join(join.clone()), wait, patience).await?)? {
            Reply::Joined(joined) => return Ok((join, joined)),
            Reply::NotYet(not_yet) if !left.is_zero() => {
                *lock(&options.missing) = not_yet.missing;
            }
            Reply::NotYet(not_yet) => {
                let secs = options.deadline.as_secs();
                return Err(Error::NotAllJoined { missing: not_yet.missing, secs });
            }
            _ => return Err(unexpected()),
        }
    }
}

/// Turns the answers that are errors into those.
fn result(answer: Reply) -> Result<Reply, Error> {
    Err(match answer {
        Reply::Refused(refused) => match Why::try_from(refused.why) {
            Ok(Why::NotFound) => Error::KeyNotSet(String::new()),
            Ok(Why::AlreadyExists) => Error::KeyIsSet(String::new()),
            Ok(Why::Full) => Error::TooLarge(refused.message),
            Ok(Why::Occupied) => Error::Occupied(refused.message),
            Ok(Why::Unknown) => Error::Forgotten(refused.message),
            Ok(Why::Invalid) | Err(_) => Error::Refused(refused.message),
        },
        Reply::Ended(ended) => Error::Ended(ended.reason),
        answer => return Ok(answer),
    })
}

/// Runs a future on the session's threads, and waits for it on this one.
fn block<T: Send + 'static>(
    future: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let (sender, receiver) = mpsc::sync_channel(1);
    runtime()?.spawn(async move {
        let _ = sender.send(future.await);
    });
    receiver.recv().unwrap_or_else(|_| Err(Error::Ended("the session was closed".to_owned())))
}

fn check_size(num_bytes: usize) -> Result<(), Error> {
    match num_bytes <= MAX_VALUE_BYTES {
        true => Ok(()),
        false => Err(Error::TooLarge(format!(
            "a value of {num_bytes} bytes is too large for the key-value store: at most \
             {MAX_VALUE_BYTES}"
        ))),
    }
}

fn unexpected() -> Error {
    Error::Refused("the coordinator gave an unexpected answer: it runs another version".to_owned())
}

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
