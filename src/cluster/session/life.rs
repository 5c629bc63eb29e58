//! What a session does in the background: heartbeats, listening for the end of the generation,
//! asking ahead.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::activity::Activity;
use super::boundaries::Boundaries;
use super::connection::{CallError, Connection, Patience, runtime};
use super::error::Error;
use super::journal::Journal;
use super::{POLL, lock, result, unexpected};
use crate::cluster::awake;
use crate::cluster::members::SlowPeer;
use crate::cluster::messages::{self as wire, Ask, Reply};
use crate::cluster::report::Phase;
use crate::cluster::wish::{AgreedWish, Wish};

/// How far ahead of the steps the horizon is, at most, and if answers come at once. A wish takes
/// effect at the end of it, which is later in time if steps have become slower.
const MAX_AHEAD: Duration = Duration::from_secs(1);
const MIN_AHEAD: Duration = Duration::from_millis(200);
/// A call that waits for the end of the generation is repeated after this long.
const WATCH: Duration = Duration::from_secs(15);
/// A heartbeat that takes longer is given up, and the next is sent.
const MIN_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(100);

type Callback = Box<dyn FnOnce(&str) + Send>;

/// A member's state.
pub struct Life {
    connection: Connection,
    /// As what it has joined.
    identity: wire::Join,
    history: Vec<wire::GenerationRow>,
    journal: Mutex<Journal>,
    /// One call at a time resumes.
    resuming: tokio::sync::Mutex<()>,
    process_index: usize,
    heartbeat: Duration,
    dead_after: Duration,
    began: Instant,
    progress: Mutex<Activity>,
    /// A heartbeat is to be sent now.
    hurry: Arc<Notify>,
    course: Mutex<Course>,
    /// The horizon has grown, or the generation has ended.
    has_moved: Condvar,
    /// By the clock that stands still while this process is stopped.
    last_answer: Mutex<Duration>,
    end: watch::Sender<Option<String>>,
    callbacks: Mutex<Vec<Callback>>,
    slow: Mutex<NamedSlow>,
    /// As in [`JoinOptions`](super::JoinOptions).
    replaces_slow: bool,
}

/// Processes that were named slow.
#[derive(Default)]
struct NamedSlow {
    num_known: usize,
    /// Those that nobody has taken yet.
    news: Vec<SlowPeer>,
}

impl NamedSlow {
    fn add(&mut self, rows: &[wire::SlowRow]) {
        self.num_known += rows.len();
        self.news.extend(rows.iter().map(SlowPeer::from));
    }
}

struct Course {
    boundaries: Boundaries,
    is_asking: bool,
    /// The number of the coordinator that grants; 0 while it is not known.
    coordinator: u64,
}

impl Life {
    pub fn new(
        connection: Connection,
        join: wire::Join,
        joined: &wire::Joined,
        replaces_slow: bool,
    ) -> Self {
        let heartbeat = Duration::from_millis(joined.heartbeat_ms.max(1));
        let max_ahead = (2 * heartbeat).min(MAX_AHEAD);
        let boundaries = Boundaries::new(MIN_AHEAD.min(max_ahead), max_ahead);
        let course = Course { boundaries, is_asking: false, coordinator: joined.coordinator };
        Self {
            connection,
            process_index: join.process_index as usize,
            identity: wire::Join { generation: joined.generation, ..join },
            history: joined.history.clone(),
            journal: Mutex::default(),
            resuming: tokio::sync::Mutex::default(),
            heartbeat,
            dead_after: Duration::from_millis(joined.dead_after_ms.max(1)),
            began: Instant::now(),
            progress: Mutex::new(Activity::new()),
            hurry: Arc::default(),
            course: Mutex::new(course),
            has_moved: Condvar::new(),
            last_answer: Mutex::new(awake::now()),
            end: watch::Sender::new(None),
            callbacks: Mutex::default(),
            slow: Mutex::default(),
            replaces_slow,
        }
    }

    pub fn take_slow(&self) -> Vec<SlowPeer> {
        std::mem::take(&mut lock(&self.slow).news)
    }

    /// Who is silent for this long is dead.
    pub fn dead_after(&self) -> Duration {
        self.dead_after
    }

    pub fn progress(&self) -> MutexGuard<'_, Activity> {
        lock(&self.progress)
    }

    /// A checkpoint is complete. The coordinator hears of the first one at once: a process that
    /// fails soon after it has made progress, and is started again without delay.
    pub fn saved(&self, step: u64) {
        let mut progress = self.progress();
        if progress.saved_step().is_none() {
            self.hurry.notify_one();
        }
        progress.saved(step);
    }

    pub fn ended(&self) -> Option<String> {
        self.end.borrow().clone()
    }

    pub fn on_end(&self, callback: Callback) {
        let mut callbacks = lock(&self.callbacks);
        match self.ended() {
            None => callbacks.push(callback),
            Some(reason) => call_back(vec![callback], reason),
        }
    }

    /// Asks the coordinator, which may take `wait` for the answer. Returns at once when the
    /// generation ends.
    pub async fn ask(&self, ask: Ask, wait: Duration) -> Result<Reply, Error> {
        let mut end = self.end.subscribe();
        tokio::select! {
            biased;
            end = end.wait_for(Option::is_some) => {
                let reason = end.ok().and_then(|reason| reason.clone());
                Err(Error::Ended(reason.unwrap_or_default()))
            }
            answer = self.ask_known(ask, wait, self.dead_after) => {
                if let Err(Error::Ended(reason)) = &answer {
                    self.finish(reason);
                }
                answer
            }
        }
    }

    /// The last words of this process, which are said even if the generation has ended.
    pub async fn last(&self, ask: Ask, patience: Duration) -> Result<Reply, Error> {
        let ask = self.ask_known(ask, Duration::ZERO, patience);
        let silence = || Error::Ended(self.connection.silence(2 * patience, "no answer"));
        tokio::time::timeout(2 * patience, ask).await.unwrap_or_else(|_| Err(silence()))
    }

    /// Asks a coordinator that knows this process, or comes to know it.
    async fn ask_known(
        &self,
        ask: Ask,
        wait: Duration,
        patience: Duration,
    ) -> Result<Reply, Error> {
        loop {
            let before = lock(&self.course).coordinator;
            let answer = self.connection.insist(ask.clone(), wait, patience).await?;
            self.heard();
            match result(answer) {
                Err(Error::Forgotten(_)) => self.resume(before).await?,
                answer => return answer,
            }
        }
    }

    /// Tells a coordinator that was started again what this process knows, unless another call has
    /// done so since the coordinator was `before`. Returns when all processes have.
    async fn resume(&self, before: u64) -> Result<(), Error> {
        let _alone = self.resuming.lock().await;
        let current = lock(&self.course).coordinator;
        if current != 0 && current != before {
            return Ok(());
        }
        let resumed = self.resume_alone().await;
        if let Err(error) = &resumed {
            self.finish(&error.to_string());
        }
        resumed
    }

    async fn resume_alone(&self) -> Result<(), Error> {
        let limit = POLL + self.dead_after;
        let mut patience = Patience::new(limit);
        'again: loop {
            let mut parts = {
                let mut course = lock(&self.course);
                // What the one before has granted does not count any more, unless it is told.
                course.coordinator = 0;
                lock(&self.journal).parts(&self.identity, &course.boundaries)
            };
            parts[0].history.clone_from(&self.history);
            for mut part in parts {
                if let Some(join) = &mut part.join {
                    join.wait_ms = wire::millis(POLL);
                }
                let answer = match self.connection.call(Ask::Resume(part), limit).await {
                    Ok(answer) => answer,
                    Err(CallError::Lost(error)) => {
                        patience.after(&self.connection, &error).await?;
                        // Another coordinator may answer the next time. If this one has let other
                        // calls of this process go on, it knows more by now.
                        continue 'again;
                    }
                };
                patience = Patience::new(limit);
                self.heard();
                match result(answer)? {
                    Reply::Joined(joined) => {
                        lock(&self.course).coordinator = joined.coordinator;
                        lock(&self.slow).num_known = 0;
                        self.has_moved.notify_all();
                        return Ok(());
                    }
                    Reply::Done(_) => {}
                    Reply::NotYet(_) => continue 'again,
                    _ => return Err(unexpected()),
                }
            }
        }
    }

    /// Sets a key, or removes it. That is noted where the answer arrives: the thread of all
    /// sessions does so before it can meet another coordinator, which is to be told of it.
    pub async fn change(
        &self,
        ask: Ask,
        key: Vec<u8>,
        value: Option<Vec<u8>>,
    ) -> Result<Reply, Error> {
        let answer = self.ask(ask, Duration::ZERO).await;
        if let Ok(Reply::Done(wire::Done { revision })) = &answer {
            lock(&self.journal).changed(&key, value.as_deref(), *revision);
        }
        answer
    }

    /// This process contributes to a gather.
    pub fn contributed(&self, name: &str, round: u64, value: &[u8]) {
        lock(&self.journal).contributed(name, round, value);
    }

    /// This process wishes for something.
    pub fn wished(&self, wish: Wish) {
        let num_events = lock(&self.course).boundaries.num_events();
        lock(&self.journal).wished(wish, num_events);
    }

    pub fn may_leave(self: &Arc<Self>, step: u64) -> Result<Vec<AgreedWish>, Error> {
        let mut course = lock(&self.course);
        course.boundaries.arrive(self.began.elapsed(), step);
        self.ask_ahead(&mut course);
        let mut before = None;
        let result = loop {
            if let Some(reason) = self.ended() {
                break Err(Error::Ended(reason));
            }
            if let Some(events) = course.boundaries.leave(step) {
                break Ok(events);
            }
            if before.is_none() {
                let mut progress = self.progress();
                before = Some(progress.phase());
                progress.set_phase(Phase::Coordinator, step);
            }
            self.ask_ahead(&mut course);
            let waited = self.has_moved.wait_timeout(course, self.heartbeat);
            course = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        if let Some((phase, step)) = before {
            self.progress().set_phase(phase, step);
        }
        result
    }

    /// Asks for a larger horizon, unless that is on its way or not needed.
    fn ask_ahead(self: &Arc<Self>, course: &mut Course) {
        let Ok(runtime) = runtime() else { return };
        if course.is_asking || course.boundaries.ask().is_none() {
            return;
        }
        course.is_asking = true;
        let life = Arc::clone(self);
        runtime.spawn(async move {
            loop {
                let extend = life.extend();
                let asked = Instant::now();
                let answer = life.ask(Ask::Extend(extend), Duration::ZERO).await;
                let took = asked.elapsed();
                let Some(mut course) = life.take_grant(answer) else { return };
                course.boundaries.answered_after(took);
                if course.boundaries.ask().is_none() {
                    course.is_asking = false;
                    return;
                }
            }
        });
    }

    fn extend(&self) -> wire::Extend {
        let course = lock(&self.course);
        let num_events = course.boundaries.num_events() as u64;
        wire::Extend { wanted: course.boundaries.wanted(), num_events }
    }

    /// `None` if the answer is no grant: then nobody asks any more, until the next boundary.
    fn take_grant(&self, answer: Result<Reply, Error>) -> Option<MutexGuard<'_, Course>> {
        let mut course = lock(&self.course);
        let grant = match answer {
            Ok(Reply::Grant(grant)) => grant,
            _ => {
                course.is_asking = false;
                return None;
            }
        };
        if grant.coordinator != course.coordinator {
            // Its promise does not bind the one that has taken its place.
            return Some(course);
        }
        let event = |row: &wire::EventRow| {
            Wish::from_code(row.wish).map(|wish| AgreedWish { step: row.step, wish })
        };
        let events: Vec<_> = grant.events.iter().filter_map(event).collect();
        let first_event = usize::try_from(grant.first_event).unwrap_or(usize::MAX);
        course.boundaries.grant(grant.horizon, first_event, &events);
        self.has_moved.notify_all();
        Some(course)
    }

    /// The generation has ended for this process.
    fn finish(&self, reason: &str) {
        let mut callbacks = lock(&self.callbacks);
        let is_first = self.end.send_if_modified(|end| {
            let is_first = end.is_none();
            end.get_or_insert_with(|| reason.to_owned());
            is_first
        });
        if is_first {
            call_back(std::mem::take(&mut callbacks), reason.to_owned());
            drop(lock(&self.course));
            self.has_moved.notify_all();
        }
    }

    fn heard(&self) {
        *lock(&self.last_answer) = awake::now();
    }

    async fn send_heartbeat(&self) {
        let extend = Some(self.extend()).filter(|extend| extend.wanted > 0);
        let (report, taken, saved_step) = {
            let mut progress = self.progress();
            let (report, taken) = progress.take(self.process_index);
            (report, taken, progress.saved_step())
        };
        let ask = Ask::Heartbeat(wire::Heartbeat::new(&report, extend, saved_step));
        let within = (2 * self.heartbeat).max(MIN_HEARTBEAT_TIMEOUT).min(self.dead_after);
        let before = lock(&self.course).coordinator;
        match self.connection.call(ask, within).await {
            Ok(answer) => {
                self.heard();
                match result(answer) {
                    Ok(Reply::Done(_)) => {}
                    Ok(grant @ Reply::Grant(_)) => drop(self.take_grant(Ok(grant))),
                    Ok(_) => self.finish(&unexpected().to_string()),
                    Err(Error::Forgotten(_)) => {
                        self.progress().put_back(taken);
                        // An error ends the generation.
                        let _ = self.resume(before).await;
                    }
                    Err(error) => self.finish(&error.to_string()),
                }
            }
            Err(CallError::Lost(error)) => {
                self.progress().put_back(taken);
                let silent = awake::now().saturating_sub(*lock(&self.last_answer));
                if silent >= self.dead_after {
                    self.finish(&self.connection.silence(silent, &error));
                }
            }
        }
    }

    async fn watch(&self) -> Result<(), CallError> {
        let num_known_slow = lock(&self.slow).num_known as u64;
        let (wait_ms, replaces_slow) = (wire::millis(WATCH), self.replaces_slow);
        let ask = Ask::Watch(wire::Watch { wait_ms, num_known_slow, replaces_slow });
        let before = lock(&self.course).coordinator;
        let answer = self.connection.call(ask, WATCH + self.dead_after).await?;
        self.heard();
        match result(answer) {
            Ok(Reply::Slow(wire::SlowRows { rows })) => lock(&self.slow).add(&rows),
            Ok(_) => {}
            Err(Error::Forgotten(_)) => drop(self.resume(before).await),
            Err(error) => self.finish(&error.to_string()),
        }
        Ok(())
    }
}

/// Sends heartbeats and listens for the end, until the session is dropped or has ended.
pub fn spawn(life: &Arc<Life>) -> Result<[AbortHandle; 2], Error> {
    let runtime = runtime()?;
    let heartbeats: Weak<Life> = Arc::downgrade(life);
    let watch = heartbeats.clone();
    let (interval, hurry) = (life.heartbeat, life.hurry.clone());
    let heartbeats = runtime.spawn(async move {
        let mut next = tokio::time::Instant::now();
        while let Some(life) = heartbeats.upgrade() {
            if life.ended().is_some() {
                return;
            }
            life.send_heartbeat().await;
            drop(life);
            next = (next + interval).max(tokio::time::Instant::now());
            let _ = tokio::time::timeout_at(next, hurry.notified()).await;
        }
    });
    let watch = runtime.spawn(async move {
        while let Some(life) = watch.upgrade() {
            if life.ended().is_some() {
                return;
            }
            if life.watch().await.is_err() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    });
    Ok([heartbeats.abort_handle(), watch.abort_handle()])
}

/// Callbacks may block, so they get a thread of their own.
fn call_back(callbacks: Vec<Callback>, reason: String) {
    if callbacks.is_empty() {
        return;
    }
    let run = move || callbacks.into_iter().for_each(|callback| callback(&reason));
    let _ = thread::Builder::new().name("lockstep-end".to_owned()).spawn(run);
}
