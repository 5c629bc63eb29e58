//! Matches calls of replicas, here and in other processes, and completes them with results.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::call::ReplicaCall;
use super::compute::{self, Payloads};
use super::frame::{FrameKind, Header, Meeting, Payload, PayloadBuffers};
use super::resume::{Resumer, ResumerJob};
use super::span::{GroupSpan, Plan};
use super::state::{ExchangeState, Gathering, LaunchState, Spanning};
use super::waits::LaunchWaits;
use crate::pjrt::{LaunchInfo, flush_denormals};

/// The most bytes of a reason that is sent to other processes.
const MAX_REASON_BYTES: usize = 4096;

/// Connections to the other processes of a job.
pub(super) trait Outbox: Send + Sync {
    fn process_index(&self) -> usize;
    fn num_processes(&self) -> usize;
    /// Sends a frame without waiting. Frames to one process arrive in order.
    fn send(&self, process: usize, header: Header, payload: Arc<Payload>);
    /// A process and its address, for messages.
    fn name(&self, process: usize) -> String;
    /// Sends what is queued and says goodbye. `false` if that takes longer than `timeout`.
    fn close(&self, timeout: Duration) -> bool;
}

/// The collectives of one process.
pub(super) struct Exchange<C: ReplicaCall> {
    deadline: Duration,
    state: Mutex<ExchangeState<C>>,
    /// Notified when the exchange is closed.
    closed: Condvar,
    resumer: Resumer<Work<C>>,
    pool: ThreadPool,
    buffers: Arc<PayloadBuffers>,
    outbox: Option<Box<dyn Outbox>>,
}

/// What the resumer's threads do.
enum Work<C: ReplicaCall> {
    /// Completes a call successfully.
    Complete(C),
    /// Goes on with a collective whose frames have arrived.
    Advance(Arc<Exchange<C>>, i64, Meeting, Spanning<C>),
}

impl<C: ReplicaCall> ResumerJob for Work<C> {
    fn run(self) {
        match self {
            Self::Complete(call) => call.complete(Ok(())),
            Self::Advance(exchange, launch, meeting, spanning) => {
                exchange.advance(launch, meeting, spanning, None);
            }
        }
    }
}

/// What becomes of a call that arrives.
enum Arrived<C> {
    /// It is left here until the others arrive.
    Waits,
    /// It is the last one of this process: the calls here, by position.
    Last(Meeting, GroupSpan, Vec<C>),
    /// It is to be completed with an error.
    Refused(C, Arc<str>),
}

/// What becomes of a collective that awaits frames.
enum Awaited<C> {
    /// It is left here until they arrive.
    Waits,
    Ready(Vec<C>, Payloads),
    /// The launch fails.
    Refused(Vec<C>, Arc<str>),
}

/// What a frame changes.
enum Received<C> {
    Kept,
    /// It is the last one that a collective awaits.
    Completes(i64, Spanning<C>),
    /// A launch fails.
    Fails(i64, String),
}

/// Why a launch fails before it begins.
enum FailedEarly {
    /// All launches fail.
    Broken(Arc<str>),
    /// It has failed in another process.
    Elsewhere(Arc<str>),
    /// A process runs another program.
    Stranger(usize),
}

/// Lists a launch.
fn begin_in<C>(
    state: &mut ExchangeState<C>,
    key: LaunchInfo,
    is_linked: bool,
) -> Option<FailedEarly> {
    let launch = state.launches.entry(key.id).or_default();
    launch.program = Some((key.number, key.program_digest));
    if is_linked {
        let inbox = state.inboxes.entry(key.number).or_default();
        inbox.launch = Some(key.id);
        if let Some(reason) = &inbox.failure {
            return Some(FailedEarly::Elsewhere(reason.clone()));
        }
        if let Some(process) = inbox.stranger(key.program_digest) {
            return Some(FailedEarly::Stranger(process));
        }
    }
    state.broken.clone().map(FailedEarly::Broken)
}

impl<C: ReplicaCall> Exchange<C> {
    pub fn new(deadline: Duration, outbox: Option<Box<dyn Outbox>>) -> io::Result<Arc<Self>> {
        let num_threads = thread::available_parallelism().map_or(1, usize::from);
        let name = |index| format!("collective-{index}");
        let pool = ThreadPoolBuilder::new().num_threads(num_threads).thread_name(name);
        // Sums are the same bits on the pool's threads and on XLA's.
        let pool = pool.start_handler(|_| std::mem::forget(flush_denormals()));
        let exchange = Arc::new(Self {
            deadline,
            state: Mutex::new(ExchangeState::default()),
            closed: Condvar::new(),
            resumer: Resumer::new(num_threads)?,
            pool: pool.build().map_err(io::Error::other)?,
            buffers: Arc::default(),
            outbox,
        });
        let watched = exchange.clone();
        thread::Builder::new()
            .name("collective-deadline".to_owned())
            .spawn(move || watched.watch_deadlines())?;
        Ok(exchange)
    }

    /// Memory for payloads.
    pub fn buffers(&self) -> &Arc<PayloadBuffers> {
        &self.buffers
    }

    /// Number of launches in flight that have begun here.
    pub fn num_launches(&self) -> usize {
        self.lock().launches.len()
    }

    /// The processes that launches have waited for longer than `longer_than`, ascending.
    pub fn awaited(&self, longer_than: Duration) -> Vec<usize> {
        let state = self.lock();
        let spanning = state.launches.values().flat_map(|launch| launch.spanning.values());
        let late = spanning.filter(|spanning| spanning.since.elapsed() > longer_than);
        let late: std::collections::BTreeSet<_> =
            late.flat_map(|spanning| spanning.missing.iter().copied()).collect();
        late.into_iter().collect()
    }

    /// The waits of launches that have ended since the last call.
    pub fn take_waits(&self) -> Vec<LaunchWaits> {
        self.lock().waits.take()
    }

    /// Ends the threads when they have nothing left to do. Does not wait for them, since this may
    /// be one of them.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.closed.notify_all();
    }

    /// Sends what is queued and says goodbye to the other processes.
    pub fn say_goodbye(&self, timeout: Duration) -> bool {
        self.outbox.as_ref().is_none_or(|outbox| outbox.close(timeout))
    }

    fn lock(&self) -> MutexGuard<'_, ExchangeState<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn name(&self, process: usize) -> String {
        let name = self.outbox.as_ref().map(|outbox| outbox.name(process));
        name.unwrap_or_else(|| format!("process {process}"))
    }

    /// A launch is about to start.
    pub fn begin(&self, key: LaunchInfo) {
        let failure = begin_in(&mut self.lock(), key, self.outbox.is_some());
        match failure {
            None => {}
            Some(FailedEarly::Broken(reason)) => self.fail(key.id, &reason),
            Some(FailedEarly::Elsewhere(reason)) => self.fail_as_told(key.id, &reason),
            Some(FailedEarly::Stranger(process)) => {
                self.fail(key.id, &self.other_program(process, key.number));
            }
        }
    }

    fn other_program(&self, process: usize, launch: u64) -> String {
        format!("{} runs another program in launch {launch}", self.name(process))
    }

    /// A replica has arrived at a collective.
    pub fn start(self: &Arc<Self>, call: C) {
        let (launch, replica) = (call.launch().id, call.replica());
        let place = compute::check(&call).and_then(|()| self.place(&call));
        let arrived = match place {
            Ok((group, place, span)) => self.arrive(call, group, place, span),
            Err(reason) => Arrived::Refused(call, reason.into()),
        };
        match arrived {
            Arrived::Waits => {}
            Arrived::Refused(call, reason) => self.refuse(launch, vec![call], &reason),
            Arrived::Last(meeting, span, calls) => {
                self.meet(launch, meeting, span, calls, replica);
            }
        }
    }

    /// The group of a call, its place among the calls of this process, and where the group is.
    fn place(&self, call: &C) -> Result<(usize, usize, GroupSpan), String> {
        let (site, replica) = (call.site(), call.replica());
        let index = site.groups.iter().position(|other| *other == replica);
        let index = index.ok_or_else(|| format!("replica {replica} is in none of the groups"))?;
        let (group, position) = (index / site.group_size, index % site.group_size);
        let replicas = &site.groups[group * site.group_size..][..site.group_size];
        let span = GroupSpan::of(replicas, call.num_replicas(), call.local_replicas())?;
        let place = span.own().positions.iter().position(|here| *here == position);
        let place = place.ok_or_else(|| format!("replica {replica} is not in this process"))?;
        if !span.is_local() {
            let (index, name) = (site.index, site.kind.name());
            let num_local = call.local_replicas().count();
            let found = (span.own().process, call.num_replicas() / num_local.max(1));
            match &self.outbox {
                None => {
                    let missing =
                        replicas.iter().find(|other| !call.local_replicas().any(|x| x == **other));
                    return Err(format!(
                        "collective {index} ({name}): replica {} is not in this process, which is \
                         connected to no other",
                        missing.unwrap_or(&replica)
                    ));
                }
                Some(outbox) if (outbox.process_index(), outbox.num_processes()) != found => {
                    return Err(format!(
                        "collective {index} ({name}): the replicas are those of process {} of {}, \
                         this is process {} of {}",
                        found.0,
                        found.1,
                        outbox.process_index(),
                        outbox.num_processes()
                    ));
                }
                Some(_) => {}
            }
        }
        Ok((group, place, span))
    }

    fn arrive(&self, call: C, group: usize, place: usize, span: GroupSpan) -> Arrived<C> {
        let (key, site) = (call.launch(), call.site().index);
        let mut state = self.lock();
        let launch = state.launches.entry(key.id).or_default();
        if let Some(reason) = &launch.failure {
            let reason = reason.clone();
            return Arrived::Refused(call, reason);
        }
        let visits = launch.num_visits.entry((site, call.replica())).or_default();
        let meeting = Meeting { site, visit: *visits, group };
        *visits += 1;
        let gathering = launch.gathering.entry(meeting).or_insert_with(|| Gathering {
            calls: span.own().positions.iter().map(|_| None).collect(),
            span,
            since: Instant::now(),
        });
        match gathering.calls.get_mut(place) {
            Some(free @ None) => *free = Some(call),
            _ => {
                let reason = format!("collective {site} differs between replicas");
                return Arrived::Refused(call, reason.into());
            }
        }
        if gathering.calls.iter().any(Option::is_none) {
            return Arrived::Waits;
        }
        match launch.gathering.remove(&meeting) {
            Some(Gathering { span, calls, .. }) => {
                Arrived::Last(meeting, span, calls.into_iter().flatten().collect())
            }
            None => Arrived::Waits,
        }
    }

    /// All replicas of a group that are in this process have arrived, `replica` last, whose program
    /// may continue on this thread.
    fn meet(
        self: &Arc<Self>,
        launch: i64,
        meeting: Meeting,
        span: GroupSpan,
        mut calls: Vec<C>,
        replica: usize,
    ) {
        let plan = match compute::plan(&calls, span) {
            Ok(plan) => Arc::new(plan),
            Err(reason) => return self.refuse(launch, calls, &reason),
        };
        if plan.span.is_local() {
            return match compute::combine(
                &mut calls,
                &plan,
                &Payloads::new(),
                &self.buffers,
                &self.pool,
            ) {
                Ok(_) => self.complete(calls, Some(replica)),
                Err(reason) => self.refuse(launch, calls, &reason),
            };
        }
        self.send_operands(&mut calls, meeting, &plan);
        let spanning = Spanning::new(calls, plan, FrameKind::Operands);
        self.advance(launch, meeting, spanning, Some(replica));
    }

    fn send_operands(&self, calls: &mut [C], meeting: Meeting, plan: &Plan) {
        let (Some(outbox), Some(first)) = (&self.outbox, calls.first()) else { return };
        let LaunchInfo { number, program_digest: digest, .. } = first.launch();
        let header = Header { kind: FrameKind::Operands, launch: number, digest, meeting };
        let mut shared = None;
        for (index, part) in plan.span.others() {
            if plan.operands(plan.span.own, index).1 == 0 {
                continue;
            }
            let payload = match &shared {
                Some(payload) => Arc::clone(payload),
                None => Arc::new(compute::pack(calls, plan, index, &self.buffers, &self.pool)),
            };
            if plan.sends_same_operands() {
                shared = Some(payload.clone());
            }
            outbox.send(part.process, header, payload);
        }
    }

    fn send_totals(&self, calls: &[C], meeting: Meeting, plan: &Plan, totals: Payload) {
        let (Some(outbox), Some(first)) = (&self.outbox, calls.first()) else { return };
        let LaunchInfo { number, program_digest: digest, .. } = first.launch();
        let header = Header { kind: FrameKind::Totals, launch: number, digest, meeting };
        let totals = Arc::new(totals);
        if !totals.bytes().is_empty() {
            for (_, part) in plan.span.others() {
                outbox.send(part.process, header, totals.clone());
            }
        }
    }

    /// Does what can be done for a collective across processes with the frames that are there. The
    /// program of the replica `here` may continue on this thread, or of any replica if this is a
    /// thread of the resumer.
    fn advance(
        self: &Arc<Self>,
        launch: i64,
        meeting: Meeting,
        mut spanning: Spanning<C>,
        here: Option<usize>,
    ) {
        loop {
            let (plan, awaited) = (spanning.plan.clone(), spanning.awaited);
            let (mut calls, payloads) = match self.await_frames(launch, meeting, spanning) {
                Awaited::Waits => return,
                Awaited::Refused(calls, reason) => return self.refuse(launch, calls, &reason),
                Awaited::Ready(calls, payloads) => (calls, payloads),
            };
            if awaited == FrameKind::Totals {
                compute::finish(&mut calls, &plan, &payloads, &self.pool);
                return self.complete(calls, here);
            }
            match compute::combine(&mut calls, &plan, &payloads, &self.buffers, &self.pool) {
                Err(reason) => return self.refuse(launch, calls, &reason),
                Ok(None) => return self.complete(calls, here),
                Ok(Some(totals)) => {
                    self.send_totals(&calls, meeting, &plan, totals);
                    spanning = Spanning::new(calls, plan, FrameKind::Totals);
                }
            }
        }
    }

    fn await_frames(
        &self,
        launch_id: i64,
        meeting: Meeting,
        mut spanning: Spanning<C>,
    ) -> Awaited<C> {
        let mut state = self.lock();
        let ExchangeState { launches, inboxes, left, .. } = &mut *state;
        let launch = launches.entry(launch_id).or_default();
        if let Some(reason) = &launch.failure {
            return Awaited::Refused(spanning.calls, reason.clone());
        }
        let inbox = inboxes.entry(launch.program.unwrap_or_default().0).or_default();
        let mut is_here = vec![];
        for (process, num_bytes) in inbox.frames(meeting, spanning.awaited) {
            if let Err(reason) = spanning.check(process, num_bytes) {
                let reason = format!("{} {reason}", self.name(process));
                return Awaited::Refused(spanning.calls, reason.into());
            }
            is_here.push(process);
        }
        let missing = spanning.incoming.iter().map(|(process, _)| *process);
        spanning.missing = missing.filter(|process| !is_here.contains(process)).collect();
        if spanning.missing.is_empty() {
            launch.meter.use_without_wait();
            return Awaited::Ready(spanning.calls, inbox.take(meeting, spanning.awaited));
        }
        if let Some(process) = spanning.missing.iter().find(|process| left.contains(process)) {
            let reason = self.has_left(*process, &spanning.plan);
            return Awaited::Refused(spanning.calls, reason.into());
        }
        spanning.since = Instant::now();
        launch.meter.begin(spanning.since);
        launch.spanning.insert(meeting, spanning);
        Awaited::Waits
    }

    fn has_left(&self, process: usize, plan: &Plan) -> String {
        let (index, name) = (plan.site.index, plan.site.kind.name());
        format!("{} has ended, but collective {index} ({name}) needs its data", self.name(process))
    }

    /// A frame has come from another process. Never waits for long.
    pub fn deliver(self: &Arc<Self>, process: usize, header: Header, payload: Payload) {
        let mut state = self.lock();
        match header.kind {
            FrameKind::Goodbye => {
                drop(state);
                self.leave(process);
            }
            _ if state.ended.contains(header.launch) => {}
            FrameKind::Failure => {
                let failed = Self::hear_failure(&mut state, &header, &payload);
                drop(state);
                if let Some((launch, reason)) = failed {
                    self.fail_as_told(launch, &reason);
                }
            }
            FrameKind::Operands | FrameKind::Totals => {
                let received = self.receive(&mut state, process, &header, payload);
                drop(state);
                match received {
                    Received::Kept => {}
                    Received::Completes(launch, spanning) => {
                        let exchange = self.clone();
                        let work = Work::Advance(exchange, launch, header.meeting, spanning);
                        self.resumer.push_first(work);
                    }
                    Received::Fails(launch, reason) => self.fail(launch, &reason),
                }
            }
        }
    }

    /// The launch that has failed in another process, if it is in flight here.
    fn hear_failure(
        state: &mut ExchangeState<C>,
        header: &Header,
        reason: &Payload,
    ) -> Option<(i64, String)> {
        let text = reason.bytes();
        let text = String::from_utf8_lossy(&text[..text.len().min(MAX_REASON_BYTES)]);
        let reason = text.into_owned();
        let inbox = state.inboxes.entry(header.launch).or_default();
        inbox.failure.get_or_insert_with(|| reason.as_str().into());
        inbox.launch.map(|launch| (launch, reason))
    }

    /// Keeps a frame.
    fn receive(
        &self,
        state: &mut ExchangeState<C>,
        process: usize,
        header: &Header,
        payload: Payload,
    ) -> Received<C> {
        let ExchangeState { launches, inboxes, .. } = state;
        let inbox = inboxes.entry(header.launch).or_default();
        let num_bytes = payload.bytes().len();
        let launch_id = inbox.launch;
        let name = || self.name(process);
        let inserted = inbox.insert(process, header, payload);
        let Some((id, launch)) = launch_id.and_then(|id| Some((id, launches.get_mut(&id)?))) else {
            if let Err(reason) = inserted {
                inbox.failure.get_or_insert_with(|| format!("{} {reason}", name()).into());
            }
            return Received::Kept;
        };
        if launch.failure.is_some() {
            inbox.clear();
            return Received::Kept;
        }
        if let Err(reason) = inserted {
            return Received::Fails(id, format!("{} {reason}", name()));
        }
        if launch.program.is_some_and(|(_, digest)| digest != header.digest) {
            return Received::Fails(id, self.other_program(process, header.launch));
        }
        let Some(spanning) = launch.spanning.get_mut(&header.meeting) else {
            return Received::Kept;
        };
        if spanning.awaited != header.kind {
            return Received::Kept;
        }
        if let Err(reason) = spanning.check(process, num_bytes) {
            return Received::Fails(id, format!("{} {reason}", name()));
        }
        spanning.missing.retain(|missing| *missing != process);
        if !spanning.missing.is_empty() {
            return Received::Kept;
        }
        let now = Instant::now();
        launch.meter.end(now);
        if header.kind == FrameKind::Operands {
            launch.meter.was_last(process, now.duration_since(spanning.since));
        }
        match launch.spanning.remove(&header.meeting) {
            Some(spanning) => Received::Completes(id, spanning),
            None => Received::Kept,
        }
    }

    /// A process sends nothing more: collectives that need its data fail.
    fn leave(&self, process: usize) {
        let failed: Vec<_> = {
            let mut state = self.lock();
            state.left.insert(process);
            let waits = |launch: &LaunchState<C>| {
                let mut waiting = launch.spanning.values();
                let waiting = waiting.find(|spanning| spanning.missing.contains(&process))?;
                Some(self.has_left(process, &waiting.plan))
            };
            state.launches.iter().filter_map(|(id, launch)| Some((*id, waits(launch)?))).collect()
        };
        failed.iter().for_each(|(id, reason)| self.fail(*id, reason));
    }

    /// The connection to a process is lost. `reason` follows its name.
    pub fn lose(&self, process: usize, reason: &str) {
        if !self.lock().left.contains(&process) {
            self.fail_all(&format!("{} {reason}", self.name(process)));
        }
    }

    /// Fails all launches, also those that begin later.
    pub fn fail_all(&self, reason: &str) {
        let ids: Vec<i64> = {
            let mut state = self.lock();
            state.broken.get_or_insert_with(|| reason.into());
            state.launches.keys().copied().collect()
        };
        ids.iter().for_each(|id| self.fail(*id, reason));
    }

    /// Completes the calls of a launch with an error, here and in the other processes.
    pub fn fail(&self, launch_id: i64, reason: &str) {
        self.fail_and_tell(launch_id, reason, || {
            let own = self.outbox.as_ref().map_or(0, |outbox| outbox.process_index());
            format!("{}: {reason}", self.name(own))
        });
    }

    /// Fails a launch that has failed in another process. Told to all others, since that process
    /// may not reach them.
    fn fail_as_told(&self, launch_id: i64, reason: &str) {
        self.fail_and_tell(launch_id, reason, || reason.to_owned());
    }

    fn fail_and_tell(&self, launch_id: i64, reason: &str, told: impl FnOnce() -> String) {
        let (gathering, spanning, number) = {
            let mut state = self.lock();
            let launch = state.launches.entry(launch_id).or_default();
            let is_first = launch.failure.is_none();
            launch.failure.get_or_insert_with(|| reason.into());
            let gathering: Vec<_> = launch.gathering.drain().collect();
            let spanning: Vec<_> = launch.spanning.drain().collect();
            let now = Instant::now();
            spanning.iter().for_each(|_| launch.meter.end(now));
            let number = launch.program.map(|(number, _)| number);
            if let Some(inbox) = number.and_then(|number| state.inboxes.get_mut(&number)) {
                inbox.clear();
            }
            (gathering, spanning, number.filter(|_| is_first))
        };
        // Without the lock: XLA continues on this thread, with the end of the launch.
        if let Some(number) = number {
            self.send_failure(number, &told());
        }
        for (_, Gathering { calls, .. }) in gathering {
            calls.into_iter().flatten().for_each(|call| call.complete(Err(reason)));
        }
        for (_, Spanning { calls, .. }) in spanning {
            calls.into_iter().for_each(|call| call.complete(Err(reason)));
        }
    }

    fn send_failure(&self, launch: u64, reason: &str) {
        let Some(outbox) = &self.outbox else { return };
        let mut ends = (0..=reason.len().min(MAX_REASON_BYTES)).rev();
        let end = ends.find(|end| reason.is_char_boundary(*end)).unwrap_or(0);
        let reason = Arc::new(Payload::of_text(&reason[..end]));
        for process in (0..outbox.num_processes()).filter(|x| *x != outbox.process_index()) {
            let header = Header::of_launch(FrameKind::Failure, launch);
            outbox.send(process, header, reason.clone());
        }
    }

    fn refuse(&self, launch: i64, calls: Vec<C>, reason: &str) {
        self.fail(launch, reason);
        calls.into_iter().for_each(|call| call.complete(Err(reason)));
    }

    /// Completes calls. The program of the replica `here`, or of the last one, continues on this
    /// thread, those of the others on the resumer's.
    fn complete(&self, calls: Vec<C>, here: Option<usize>) {
        let mut own = None;
        for call in calls {
            if own.is_none() && here.is_none_or(|here| here == call.replica()) {
                own = Some(call);
            } else {
                self.resumer.push(Work::Complete(call));
            }
        }
        if let Some(own) = own {
            own.complete(Ok(()));
        }
    }

    /// The launch has ended on all replicas of this process.
    pub fn end(&self, launch_id: i64) {
        let mut state = self.lock();
        let Some(launch) = state.launches.remove(&launch_id) else { return };
        let Some((number, _)) = launch.program.filter(|_| self.outbox.is_some()) else { return };
        state.inboxes.remove(&number);
        state.ended.insert(number);
        if let Some(waits) = launch.meter.finish(number, Instant::now()) {
            state.waits.push(waits);
        }
    }

    /// Fails launches that wait for too long, until the exchange is closed.
    fn watch_deadlines(&self) {
        let pause = (self.deadline / 8).min(Duration::from_secs(10));
        let mut state = self.lock();
        while !state.is_closed {
            let waited = self.closed.wait_timeout(state, pause);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let late = |(id, launch): (&i64, &LaunchState<C>)| Some((*id, self.explain(launch)?));
            let late: Vec<_> = state.launches.iter().filter_map(late).collect();
            if !late.is_empty() {
                drop(state);
                late.iter().for_each(|(id, reason)| self.fail(*id, reason));
                state = self.lock();
            }
        }
    }

    /// Why a launch has waited for too long, if so.
    fn explain(&self, launch: &LaunchState<C>) -> Option<String> {
        let is_late = |since: Instant| since.elapsed() > self.deadline;
        let describe = |calls: &[&C], missing: String| {
            let site = calls.first()?.site();
            let present: Vec<_> = calls.iter().map(|call| call.replica()).collect();
            Some(format!(
                "{missing} did not arrive at collective {} ({}) within {:?}, where replicas \
                 {present:?} wait",
                site.index,
                site.kind.name(),
                self.deadline
            ))
        };
        if let Some(late) = launch.spanning.values().find(|spanning| is_late(spanning.since)) {
            let names: Vec<_> = late.missing.iter().map(|process| self.name(*process)).collect();
            return describe(&late.calls.iter().collect::<Vec<_>>(), names.join(", "));
        }
        let (meeting, late) =
            launch.gathering.iter().find(|(_, gathering)| is_late(gathering.since))?;
        let present: Vec<&C> = late.calls.iter().flatten().collect();
        let site = present.first()?.site();
        let group = site.groups.chunks(site.group_size).nth(meeting.group)?;
        let places = late.span.own().positions.iter().zip(&late.calls);
        let missing = places.filter(|(_, call)| call.is_none()).map(|(at, _)| group[*at]);
        describe(&present, format!("replicas {:?}", missing.collect::<Vec<_>>()))
    }
}
