//! The gRPC service around the job: checks who calls, and lets calls wait.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout_at;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::codegen::{Body as HttpBody, Service, StdError};
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Status};

use super::job::JobState;
use super::membership::list;
use super::refusals::Refusals;
use super::store::StoreError;
use super::{Watcher, horizon};
use crate::cluster::awake;
use crate::cluster::codec::ProstCodec;
use crate::cluster::members::{Directive, SlowPeer};
use crate::cluster::messages::{self as wire, Ask, Reply, Why};
use crate::cluster::wish::{AgreedWish, Wish};

/// A call waits at most this long; the caller asks again.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// Calls that are signs of life wait at most this part of the time after which their caller is
/// dead.
const SIGNS_OF_LIFE: u32 = 4;

/// The coordinator's state, shared by all calls.
pub struct Shared {
    /// By the clock that stands still while this process is stopped.
    began: Duration,
    refusals: Mutex<Refusals>,
    state: Mutex<State>,
    watcher: Arc<dyn Watcher>,
}

struct State {
    job: JobState,
    /// For how long this process was stopped, as the job knows.
    stopped: Duration,
    /// Who waits for what.
    waiting: HashMap<Topic, Arc<Notify>>,
    is_stopping: bool,
}

/// What a call can wait for. A change of the job wakes all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Topic {
    Job,
    Key(Vec<u8>),
    Gather(String, u64),
}

impl Shared {
    pub fn new(job: JobState, watcher: Arc<dyn Watcher>) -> Self {
        Self {
            began: awake::now(),
            refusals: Mutex::default(),
            state: Mutex::new(State {
                job,
                stopped: awake::read().1,
                waiting: HashMap::new(),
                is_stopping: false,
            }),
            watcher,
        }
    }

    /// Changes the job, wakes the calls that this concerns, and reports changes.
    pub fn with_job<T>(&self, change: impl FnOnce(Duration, &mut JobState) -> T) -> T {
        let mut state = self.lock();
        let (now, stopped) = awake::read();
        let now = now.saturating_sub(self.began);
        let gap = stopped.saturating_sub(state.stopped);
        if !gap.is_zero() {
            state.stopped = stopped;
            state.job.was_stopped(now, gap);
        }
        let result = change(now, &mut state.job);
        let changes = state.job.take_changes();
        if !changes.is_empty() {
            state.waiting.drain().for_each(|(_, notify)| notify.notify_waiters());
        }
        drop(state);
        changes.iter().for_each(|change| self.watcher.changed(change));
        result
    }

    /// Reports a caller that is refused.
    pub fn refuse(&self, peer: SocketAddr, why: &str) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let should_report = refusals.should_report(self.now(), peer.ip());
        drop(refusals);
        if should_report {
            self.watcher.refused(peer, why);
        }
    }

    /// Answers all calls that wait: the coordinator stops.
    pub fn stop_waiting(&self) {
        let mut state = self.lock();
        state.is_stopping = true;
        state.waiting.drain().for_each(|(_, notify)| notify.notify_waiters());
    }

    fn sign_of_life(&self) -> Duration {
        self.lock().job.options.dead_after / SIGNS_OF_LIFE
    }

    fn now(&self) -> Duration {
        awake::now().saturating_sub(self.began)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names a slow process of the running generation.
    pub fn name_slow(&self, peer: &SlowPeer) {
        self.with_job(|now, job| job.name_slow(now, peer));
        self.notify(&Topic::Job);
    }

    fn notify(&self, topic: &Topic) {
        if let Some(notify) = self.lock().waiting.remove(topic) {
            notify.notify_waiters();
        }
    }

    /// Asks until there is an answer, each time when `topic` or the job has changed; the last time
    /// after `wait`.
    async fn wait(
        &self,
        topic: Topic,
        wait: Duration,
        mut ask: impl FnMut(Duration, &mut JobState) -> Option<Reply>,
    ) -> Option<Reply> {
        let until = tokio::time::Instant::now() + wait.min(MAX_WAIT);
        loop {
            if let Some(answer) = self.with_job(&mut ask) {
                return Some(answer);
            }
            let notify = {
                let mut state = self.lock();
                if state.is_stopping {
                    return None;
                }
                Arc::clone(state.waiting.entry(topic.clone()).or_default())
            };
            let mut notified = Box::pin(notify.notified());
            notified.as_mut().enable();
            // It may have happened before this call began to wait.
            if let Some(answer) = self.with_job(&mut ask) {
                return Some(answer);
            }
            if timeout_at(until, notified).await.is_err() {
                let mut state = self.lock();
                // This call and the map: nobody else waits.
                if Arc::strong_count(&notify) == 2 {
                    state.waiting.remove(&topic);
                }
                drop(state);
                return self.with_job(&mut ask);
            }
        }
    }

    async fn answer(&self, caller: u64, ask: Ask) -> Reply {
        match ask {
            Ask::Join(join) => {
                self.admit(join.wait_ms, |now, job| job.join(now, caller, &join)).await
            }
            Ask::Resume(resume) => {
                let wait = resume.join.as_ref().map_or(0, |join| join.wait_ms);
                self.admit(wait, |now, job| job.resume(now, caller, &resume)).await
            }
            Ask::Register(register) => {
                self.with_job(|now, job| job.register(now, caller, &register))
            }
            Ask::ChildEnded(_) | Ask::AskDirectives(_) | Ask::GiveUp(_) => {
                self.answer_supervisor(caller, ask).await
            }
            ask => self.answer_worker(caller, ask).await.unwrap_or_else(|answer| answer),
        }
    }

    /// Asks whether a process is admitted until it is, or is refused.
    async fn admit(
        &self,
        wait_ms: u64,
        mut ask: impl FnMut(Duration, &mut JobState) -> Reply,
    ) -> Reply {
        let mut last = None;
        let wait = Duration::from_millis(wait_ms).min(self.sign_of_life());
        let ask = |now, job: &mut JobState| match ask(now, job) {
            Reply::NotYet(not_yet) => {
                last = Some(Reply::NotYet(not_yet));
                None
            }
            answer => Some(answer),
        };
        let answer = self.wait(Topic::Job, wait, ask).await;
        answer.or(last).unwrap_or(Reply::NotYet(wire::NotYet::default()))
    }

    async fn answer_supervisor(&self, caller: u64, ask: Ask) -> Reply {
        if !self.with_job(|now, job| job.supervisor(now, caller)) {
            return Reply::refused(Why::Unknown, "this supervisor has not registered");
        }
        match ask {
            Ask::ChildEnded(ended) => {
                self.with_job(|now, job| job.child_ended(now, caller, &ended));
            }
            Ask::GiveUp(give_up) if give_up.is_for_this_host => {
                self.with_job(|now, job| job.host_leaves(now, caller));
            }
            Ask::GiveUp(give_up) => {
                self.with_job(|now, job| job.give_up(now, &give_up.reason, give_up.signal));
            }
            Ask::AskDirectives(wire::AskDirectives { num_known, wait_ms }) => {
                let num_known = usize::try_from(num_known).unwrap_or(usize::MAX);
                let wait = Duration::from_millis(wait_ms).min(self.sign_of_life());
                let _listening = Listening::new(self, caller);
                let answer = self.wait(Topic::Job, wait, |_, job| {
                    job.knows_directives(caller, num_known);
                    let rows: Vec<_> =
                        job.directives(caller, num_known).iter().map(Directive::to_row).collect();
                    (!rows.is_empty()).then_some(Reply::Directives(wire::Directives { rows }))
                });
                return answer.await.unwrap_or(Reply::Directives(wire::Directives::default()));
            }
            _ => {}
        }
        Reply::Done(wire::Done::default())
    }

    /// # Errors
    /// The answer too, if the caller is not, or not yet, in the generation that this concerns.
    async fn answer_worker(&self, caller: u64, ask: Ask) -> Result<Reply, Reply> {
        let process_index = self.with_job(|now, job| job.worker(now, caller))?;
        let done = Reply::Done(wire::Done::default());
        match ask {
            Ask::Heartbeat(heartbeat) => self.heartbeat(caller, &heartbeat),
            Ask::Watch(watch) => {
                let wait = Duration::from_millis(watch.wait_ms);
                if process_index == 0 {
                    self.with_job(|_, job| job.replaces_slow = watch.replaces_slow);
                }
                // The first process reports about the run.
                let num_known = match process_index {
                    0 => usize::try_from(watch.num_known_slow).unwrap_or(usize::MAX),
                    _ => usize::MAX,
                };
                let news = |_, job: &mut JobState| {
                    let slow = |job: &JobState| {
                        let rows = job.membership.slow.get(num_known..)?.to_vec();
                        (!rows.is_empty()).then_some(Reply::Slow(wire::SlowRows { rows }))
                    };
                    job.member(caller).err().or_else(|| slow(job))
                };
                Ok(self.wait(Topic::Job, wait, news).await.unwrap_or(done))
            }
            Ask::Failed(failed) => self.with_job(|now, job| {
                let process_index = job.member(caller)?;
                job.process_failed(now, process_index, &failed);
                Ok(done)
            }),
            Ask::Leave(leave) => self.with_job(|now, job| {
                let process_index = job.member(caller)?;
                job.leave(now, process_index, &leave.outcome);
                Ok(done)
            }),
            ask => self.answer_settled(caller, ask).await,
        }
    }

    /// Answers what concerns the values, gathers and steps that all processes of a generation
    /// share. The generation is looked at and changed under one lock: a call that is late changes
    /// nothing in the next one.
    async fn answer_settled(&self, caller: u64, ask: Ask) -> Result<Reply, Reply> {
        let not_found = || Reply::refused(Why::NotFound, "the key is not set");
        let done = |revision| Reply::Done(wire::Done { revision });
        match ask {
            Ask::Get(wire::Get { key, wait_ms }) => {
                let wait = Duration::from_millis(wait_ms);
                let topic = Topic::Key(key.clone());
                let get = |_, job: &mut JobState| match job.settled(caller) {
                    Ok(_) => job
                        .store
                        .get(&key)
                        .map(|value| Reply::Value(wire::FoundValue { value: value.to_vec() })),
                    Err(answer) => Some(answer),
                };
                let answer = match wait.is_zero() {
                    true => self.with_job(get),
                    false => self.wait(topic, wait, get).await,
                };
                Ok(answer.unwrap_or_else(not_found))
            }
            Ask::Put(wire::Put { key, value, overwrite }) => {
                let put = |job: &mut JobState| job.store.put(&key, value, overwrite);
                let result = self.with_settled(caller, |_, job| put(job))?;
                self.notify(&Topic::Key(key));
                Ok(result.map_or_else(|error| refused(&error), done))
            }
            Ask::Delete(wire::Delete { key }) => {
                let revision = self.with_settled(caller, |_, job| job.store.delete(&key))?;
                Ok(revision.map_or_else(not_found, done))
            }
            Ask::Gather(gather) => self.gather(caller, gather).await,
            Ask::Wish(wire::MakeWish { wish }) => match Wish::from_code(wish) {
                Some(wish) => {
                    self.with_settled(caller, |_, job| job.horizon.wish(wish))?;
                    Ok(done(0))
                }
                None => Ok(Reply::refused(Why::Invalid, "no such wish")),
            },
            Ask::Extend(extend) => self.with_settled(caller, |_, job| grant(job, extend)),
            _ => Ok(Reply::refused(Why::Invalid, "a worker does not ask that")),
        }
    }

    /// Changes what all processes share, if the caller is one of those of the running generation.
    fn with_settled<T>(
        &self,
        caller: u64,
        change: impl FnOnce(usize, &mut JobState) -> T,
    ) -> Result<T, Reply> {
        self.with_job(|_, job| {
            let process_index = job.settled(caller)?;
            Ok(change(process_index, job))
        })
    }

    fn heartbeat(&self, caller: u64, heartbeat: &wire::Heartbeat) -> Result<Reply, Reply> {
        let (process_index, answer) = self.with_job(|_, job| {
            let process_index = job.member(caller)?;
            job.heartbeat(process_index, heartbeat);
            let answer = match heartbeat.extend {
                Some(extend) if job.settled(caller).is_ok() => grant(job, extend),
                _ => Reply::Done(wire::Done::default()),
            };
            Ok((process_index, answer))
        })?;
        self.watcher.report(&heartbeat.report(process_index), Instant::now());
        Ok(answer)
    }

    async fn gather(&self, caller: u64, ask: wire::Gather) -> Result<Reply, Reply> {
        let wire::Gather { name, round, value, wait_ms } = ask;
        let taken = self.with_settled(caller, |process_index, job| {
            job.store.contribute(&name, round, process_index, value)
        })?;
        let topic = Topic::Gather(name.clone(), round);
        match taken {
            Ok(true) => self.notify(&topic),
            Ok(false) => {}
            Err(error) => return Ok(refused(&error)),
        }
        let mut missing = Vec::new();
        let answer = self.wait(topic, Duration::from_millis(wait_ms), |_, job| {
            if let Err(answer) = job.settled(caller) {
                return Some(answer);
            }
            if let Some(values) = job.store.gathered(&name, round) {
                return Some(Reply::Gathered(wire::GatheredValues { values: values.to_vec() }));
            }
            missing = job.store.missing(&name, round);
            // Those contribute nothing any more.
            let mut gone = missing.clone();
            gone.retain(|&process| job.membership.has_left(process));
            let who = list(&gone);
            let text = || format!("{who} left the job before the gather {name:?} was complete");
            (!gone.is_empty()).then(|| Reply::refused(Why::Invalid, text()))
        });
        let answer = answer.await;
        Ok(answer.unwrap_or_else(|| {
            let missing = self.lock().job.membership.describe_all(&missing);
            Reply::NotYet(wire::NotYet { missing })
        }))
    }

    async fn call(&self, call: wire::CallBody) -> wire::ReplyBody {
        let answer = match call {
            wire::CallBody { ask: Some(ask), caller } => self.answer(caller, ask).await,
            _ => Reply::refused(Why::Invalid, "unknown request"),
        };
        wire::ReplyBody { answer: Some(answer) }
    }
}

/// A supervisor's call that waits for directives. It is dropped when its connection is closed.
struct Listening<'a> {
    shared: &'a Shared,
    caller: u64,
}

impl<'a> Listening<'a> {
    fn new(shared: &'a Shared, caller: u64) -> Self {
        shared.with_job(|now, job| job.listens(now, caller, true));
        Self { shared, caller }
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.shared.with_job(|now, job| job.listens(now, self.caller, false));
    }
}

fn refused(error: &StoreError) -> Reply {
    let why = match error {
        StoreError::AlreadyExists => Why::AlreadyExists,
        StoreError::Full { .. } => Why::Full,
        StoreError::OutOfStep { .. } => Why::Invalid,
    };
    Reply::refused(why, error.to_string())
}

fn grant(job: &mut JobState, ask: wire::Extend) -> Reply {
    let num_known = usize::try_from(ask.num_events).unwrap_or(usize::MAX);
    let horizon::Granted { horizon, first_event, events } =
        job.horizon.extend(ask.wanted, num_known);
    let row = |event: &AgreedWish| wire::EventRow { step: event.step, wish: event.wish.code() };
    let events = events.iter().map(row).collect();
    let (first_event, coordinator) = (first_event as u64, job.options.coordinator);
    Reply::Grant(wire::Grant { horizon, first_event, events, coordinator })
}

/// The service as tonic's server runs it.
#[derive(Clone)]
pub struct CoordinatorService(pub Arc<Shared>);

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl UnaryService<wire::CallBody> for CoordinatorService {
    type Response = wire::ReplyBody;
    type Future = BoxFuture<Result<tonic::Response<wire::ReplyBody>, Status>>;

    fn call(&mut self, request: tonic::Request<wire::CallBody>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move { Ok(tonic::Response::new(shared.call(request.into_inner()).await)) })
    }
}

impl<B> Service<http::Request<B>> for CoordinatorService
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                wire::CALL => {
                    let codec = ProstCodec::<wire::ReplyBody, wire::CallBody>::default();
                    let mut grpc =
                        Grpc::new(codec).max_decoding_message_size(wire::MAX_REQUEST_BYTES + 4096);
                    grpc.unary(service, request).await
                }
                _ => Status::new(Code::Unimplemented, "no such method").into_http(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::coordinator::job::JobOptions;
    use crate::cluster::messages::{HeldGather, HeldValue};
    use crate::cluster::roster::JobSize;

    struct Nobody;

    impl Watcher for Nobody {}

    /// A coordinator that was started again, in generation 3 of two processes.
    struct Restarted(Shared);

    impl Restarted {
        fn new() -> Self {
            let second = Duration::from_secs(1);
            let job = JobState::new(JobOptions {
                num_processes: 0,
                size: None,
                heartbeat: 2 * second,
                dead_after: 10 * second,
                grace: second,
                start_within: 60 * second,
                kill_within: 30 * second,
                max_restarts: 3,
                max_store_bytes: 1 << 20,
                is_standalone: true,
                coordinator: 1,
            });
            let restarted = Self(Shared::new(job, Arc::new(Nobody)));
            let register = wire::Register {
                size: Some(JobSize::fixed(1, 2).to_row()),
                num_local: 2,
                held: Some(wire::HeldGeneration {
                    generation: 3,
                    running: vec![0, 1],
                    num_processes: 2,
                    ..Default::default()
                }),
                ..Default::default()
            };
            let answer = restarted.ask(100, Ask::Register(register));
            assert!(matches!(answer, Reply::Registered(_)), "{answer:?}");
            restarted
        }

        /// Session 0 is of process 0, session 1 of process 1.
        fn ask(&self, caller: u64, ask: Ask) -> Reply {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            runtime.unwrap().block_on(self.0.answer(caller, ask))
        }

        /// A process tells that it was granted `horizon`, and of the last two rounds of a gather.
        fn resume(&self, process: u32, horizon: u64, last_round: u64) -> Reply {
            let join = wire::Join {
                generation: 3,
                process_index: process,
                num_processes: 2,
                ..Default::default()
            };
            let gather = |round| HeldGather {
                name: "g".to_owned(),
                round,
                value: vec![process as u8, round as u8],
            };
            let key = format!("of {process}").into_bytes();
            let value = HeldValue { key, value: Some(b"1".into()), revision: 5 };
            let told = wire::TellHeld {
                join: Some(join),
                horizon,
                values: vec![value],
                gathers: vec![gather(last_round - 1), gather(last_round)],
                num_parts: 1,
                ..Default::default()
            };
            self.ask(u64::from(process), Ask::Resume(told))
        }
    }

    fn gather(process: u8, round: u8) -> Ask {
        let (name, value) = ("g".to_owned(), vec![process, round]);
        Ask::Gather(wire::Gather { name, round: round.into(), value, wait_ms: 0 })
    }

    fn why(answer: &Reply) -> Option<Why> {
        match answer {
            Reply::Refused(refused) => Why::try_from(refused.why).ok(),
            _ => None,
        }
    }

    /// Several threads of a process call; one of them has told what the process knows, and the
    /// other process has not. It has left boundaries that the first has not reached, and has set a
    /// key.
    #[test]
    fn who_has_told_waits_for_the_others() {
        let coordinator = Restarted::new();
        assert!(matches!(coordinator.resume(0, 12, 15), Reply::NotYet(_)));
        let get = || Ask::Get(wire::Get { key: b"of 1".to_vec(), wait_ms: 0 });
        let put = || {
            let (key, value) = (b"of 1".to_vec(), b"2".to_vec());
            Ask::Put(wire::Put { key, value, overwrite: false })
        };
        let early = [
            gather(0, 15),
            get(),
            put(),
            Ask::Delete(wire::Delete { key: b"of 1".to_vec() }),
            Ask::Wish(wire::MakeWish { wish: Wish::Save.code() }),
            Ask::Extend(wire::Extend { wanted: 13, num_events: 0 }),
        ];
        for ask in early {
            let answer = coordinator.ask(0, ask.clone());
            assert_eq!(why(&answer), Some(Why::Unknown), "{ask:?}: {answer:?}");
        }
        let extend = Some(wire::Extend { wanted: 13, num_events: 0 });
        let heartbeat = wire::Heartbeat { extend, ..Default::default() };
        let answer = coordinator.ask(0, Ask::Heartbeat(heartbeat));
        assert!(matches!(answer, Reply::Done(_)), "a sign of life, and no grant: {answer:?}");

        assert!(matches!(coordinator.resume(1, 20, 14), Reply::Joined(_)));
        assert!(matches!(coordinator.ask(0, gather(0, 15)), Reply::NotYet(_)));
        let answer = coordinator.ask(1, gather(1, 14));
        let Reply::Gathered(gathered) = answer else { panic!("{answer:?}") };
        assert_eq!(gathered.values, [[0, 14], [1, 14]]);
        let answer = coordinator.ask(1, gather(1, 15));
        let Reply::Gathered(gathered) = answer else { panic!("{answer:?}") };
        assert_eq!(gathered.values, [[0, 15], [1, 15]]);
        let answer = coordinator.ask(0, get());
        assert!(matches!(&answer, Reply::Value(found) if found.value == b"1"), "{answer:?}");
        assert_eq!(why(&coordinator.ask(0, put())), Some(Why::AlreadyExists));
        coordinator.ask(0, Ask::Wish(wire::MakeWish { wish: Wish::Save.code() }));
        let answer = coordinator.ask(0, Ask::Extend(wire::Extend { wanted: 13, num_events: 0 }));
        let Reply::Grant(grant) = answer else { panic!("{answer:?}") };
        assert_eq!((grant.horizon, grant.events[0].step), (20, 20));
    }

    /// Process 1 has the result of a round, and leaves; that of process 0 was lost with the
    /// coordinator.
    #[test]
    fn nobody_waits_for_the_values_of_those_that_have_left() {
        let coordinator = Restarted::new();
        coordinator.resume(0, 12, 15);
        let ended = wire::ChildEnded {
            generation: 3,
            process_index: 1,
            exit_code: Some(0),
            ..Default::default()
        };
        coordinator.ask(100, Ask::ChildEnded(ended));
        assert!(matches!(coordinator.resume(0, 12, 15), Reply::Joined(_)));
        let answer = coordinator.ask(0, gather(0, 15));
        let Reply::Refused(refused) = answer else { panic!("{answer:?}") };
        let expected = "process 1 has left the job before the gather \"g\" was complete";
        assert_eq!(refused.message, expected);
    }
}
