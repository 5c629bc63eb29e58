//! Messages between workers, supervisors and the coordinator: protocol buffers, written by hand so
//! that nothing needs `protoc`.
//!
//! A [`CallBody`] is answered by a [`ReplyBody`]. The connection is one of those who have the token
//! of the job: see [`token_tls`](super::token_tls).

use std::time::Duration;

use prost::{Message, Oneof};

/// The path of the gRPC method.
pub(super) const CALL: &str = "/lockstep.Coordinator/Call";

/// The largest request that the coordinator reads. A value of the key-value store must fit.
pub(super) const MAX_REQUEST_BYTES: usize = 4 << 20;
/// The largest response that a session reads: a gather holds the values of all processes.
pub(super) const MAX_RESPONSE_BYTES: usize = 64 << 20;

#[derive(Clone, PartialEq, Message)]
pub(super) struct CallBody {
    #[prost(oneof = "Ask", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16")]
    pub ask: Option<Ask>,
    /// A random number, the same in all calls of a worker or a supervisor.
    #[prost(fixed64, tag = "17")]
    pub caller: u64,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Ask {
    #[prost(message, tag = "1")]
    Join(Join),
    #[prost(message, tag = "2")]
    Heartbeat(Heartbeat),
    #[prost(message, tag = "3")]
    Watch(Watch),
    #[prost(message, tag = "4")]
    Failed(Failed),
    #[prost(message, tag = "5")]
    Leave(Leave),
    #[prost(message, tag = "6")]
    Get(Get),
    #[prost(message, tag = "7")]
    Put(Put),
    #[prost(message, tag = "8")]
    Delete(Delete),
    #[prost(message, tag = "9")]
    Gather(Gather),
    #[prost(message, tag = "10")]
    Wish(MakeWish),
    #[prost(message, tag = "11")]
    Extend(Extend),
    #[prost(message, tag = "12")]
    Register(Register),
    #[prost(message, tag = "13")]
    ChildEnded(ChildEnded),
    #[prost(message, tag = "14")]
    AskDirectives(AskDirectives),
    #[prost(message, tag = "15")]
    GiveUp(GiveUp),
    #[prost(message, tag = "16")]
    Resume(TellHeld),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ReplyBody {
    #[prost(oneof = "Reply", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub answer: Option<Reply>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Reply {
    /// Done; nothing to say.
    #[prost(message, tag = "1")]
    Done(Done),
    /// Not possible, and will not become possible.
    #[prost(message, tag = "2")]
    Refused(Refused),
    /// The generation of the caller has ended: it must end too.
    #[prost(message, tag = "3")]
    Ended(Ended),
    /// Not yet; ask again.
    #[prost(message, tag = "4")]
    NotYet(NotYet),
    #[prost(message, tag = "5")]
    Joined(Joined),
    #[prost(message, tag = "6")]
    Grant(Grant),
    #[prost(message, tag = "7")]
    Value(FoundValue),
    #[prost(message, tag = "8")]
    Gathered(GatheredValues),
    #[prost(message, tag = "9")]
    Directives(Directives),
    #[prost(message, tag = "10")]
    Slow(SlowRows),
}

/// A worker joins its generation. Repeated until all have joined.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Join {
    /// 0: whichever is forming.
    #[prost(uint64, tag = "1")]
    pub generation: u64,
    #[prost(uint32, tag = "2")]
    pub process_index: u32,
    #[prost(uint32, tag = "3")]
    pub num_processes: u32,
    #[prost(string, tag = "4")]
    pub host: String,
    #[prost(uint32, tag = "5")]
    pub pid: u32,
    #[prost(string, tag = "6")]
    pub data_address: String,
    #[prost(message, repeated, tag = "7")]
    pub program: Vec<Named>,
    #[prost(uint64, tag = "8")]
    pub wait_ms: u64,
}

/// A worker tells a coordinator that was started again what it knows of the generation. Repeated
/// until all processes have.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TellHeld {
    #[prost(message, optional, tag = "1")]
    pub join: Option<Join>,
    /// The largest horizon that it was granted.
    #[prost(uint64, tag = "2")]
    pub horizon: u64,
    /// All events that it knows.
    #[prost(message, repeated, tag = "3")]
    pub events: Vec<EventRow>,
    /// What it has wished for without seeing an event of it.
    #[prost(uint32, repeated, tag = "4")]
    pub wishes: Vec<u32>,
    #[prost(message, repeated, tag = "5")]
    pub values: Vec<HeldValue>,
    #[prost(message, repeated, tag = "6")]
    pub gathers: Vec<HeldGather>,
    #[prost(message, repeated, tag = "7")]
    pub history: Vec<GenerationRow>,
    /// Number of this part, from 0, and how many there are.
    #[prost(uint32, tag = "8")]
    pub part: u32,
    #[prost(uint32, tag = "9")]
    pub num_parts: u32,
}

/// A key that the worker has set or removed.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeldValue {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Absent if it was removed.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub value: Option<Vec<u8>>,
    #[prost(uint64, tag = "3")]
    pub revision: u64,
}

/// What the worker has contributed to a round of a gather.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeldGather {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint64, tag = "2")]
    pub round: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub value: Vec<u8>,
}

/// A property in which all programs of a job must agree.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Named {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// What a worker does, and how far it wants to be allowed to go. See [`Report`](super::Report).
#[derive(Clone, PartialEq, Message)]
pub(super) struct Heartbeat {
    #[prost(uint32, tag = "1")]
    pub phase: u32,
    #[prost(uint64, tag = "2")]
    pub step: u64,
    #[prost(uint64, tag = "3")]
    pub in_phase_us: u64,
    #[prost(uint32, repeated, tag = "4")]
    pub waits_for: Vec<u32>,
    #[prost(message, repeated, tag = "5")]
    pub steps: Vec<StepRow>,
    #[prost(message, repeated, tag = "6")]
    pub changes: Vec<ChangeRow>,
    #[prost(message, optional, tag = "7")]
    pub extend: Option<Extend>,
    /// Step of the newest complete checkpoint that this process knows of.
    #[prost(uint64, optional, tag = "8")]
    pub saved_step: Option<u64>,
    /// Global numbers.
    #[prost(uint32, tag = "9")]
    pub first_replica: u32,
    #[prost(uint32, tag = "10")]
    pub num_replicas: u32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct StepRow {
    #[prost(uint64, tag = "1")]
    pub step: u64,
    #[prost(uint64, tag = "2")]
    pub own_us: u64,
    #[prost(uint64, tag = "3")]
    pub waited_us: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct ChangeRow {
    #[prost(uint32, tag = "1")]
    pub phase: u32,
    #[prost(uint64, tag = "2")]
    pub step: u64,
    #[prost(uint64, tag = "3")]
    pub ago_us: u64,
}

/// Waits until the generation ends or, for the first process, until more processes are named slow.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Watch {
    #[prost(uint64, tag = "1")]
    pub wait_ms: u64,
    /// Those that were named before.
    #[prost(uint64, tag = "2")]
    pub num_known_slow: u64,
}

/// The caller cannot go on.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Failed {
    /// The caller only lost the connection to another process, which may know more.
    #[prost(bool, tag = "1")]
    pub is_peer_lost: bool,
    #[prost(string, tag = "2")]
    pub reason: String,
    /// Another attempt would fail as well.
    #[prost(bool, tag = "3")]
    pub is_final: bool,
}

/// The caller has done everything.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Leave {
    #[prost(string, tag = "1")]
    pub outcome: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Get {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(uint64, tag = "2")]
    pub wait_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Put {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    #[prost(bool, tag = "3")]
    pub overwrite: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

/// Contributes to the round of a gather, and waits for the others.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Gather {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint64, tag = "2")]
    pub round: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub value: Vec<u8>,
    #[prost(uint64, tag = "4")]
    pub wait_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct MakeWish {
    #[prost(uint32, tag = "1")]
    pub wish: u32,
}

/// Asks for a horizon.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Extend {
    #[prost(uint64, tag = "1")]
    pub wanted: u64,
    /// How many events the caller knows.
    #[prost(uint64, tag = "2")]
    pub num_events: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Register {
    #[prost(uint32, tag = "1")]
    pub host_index: u32,
    #[prost(uint32, tag = "2")]
    pub num_hosts: u32,
    #[prost(string, tag = "3")]
    pub host: String,
    #[prost(uint32, tag = "4")]
    pub first_process: u32,
    #[prost(uint32, tag = "5")]
    pub num_local: u32,
    /// Of those who ask again in another session, because the answer was lost, all have this
    /// number.
    #[prost(uint64, tag = "6")]
    pub attempt: u64,
    #[prost(uint32, tag = "7")]
    pub num_processes: u32,
    /// The generation that it has started last, in an earlier session; 0 for none.
    #[prost(uint64, tag = "8")]
    pub generation: u64,
    /// Its processes of that generation that have not ended.
    #[prost(uint32, repeated, tag = "9")]
    pub running: Vec<u32>,
    /// Those that have ended in good order.
    #[prost(message, repeated, tag = "10")]
    pub ended: Vec<EndedRow>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct EndedRow {
    #[prost(uint32, tag = "1")]
    pub process_index: u32,
    #[prost(int32, tag = "2")]
    pub exit_code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ChildEnded {
    #[prost(uint64, tag = "1")]
    pub generation: u64,
    #[prost(uint32, tag = "2")]
    pub process_index: u32,
    #[prost(string, tag = "3")]
    pub status: String,
    /// Absent if a signal ended it.
    #[prost(int32, optional, tag = "4")]
    pub exit_code: Option<i32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct AskDirectives {
    #[prost(uint64, tag = "1")]
    pub num_known: u64,
    #[prost(uint64, tag = "2")]
    pub wait_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GiveUp {
    #[prost(string, tag = "1")]
    pub reason: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Done {
    /// After a key was set or removed: a number that grows with every change.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Refused {
    #[prost(enumeration = "Why", tag = "1")]
    pub why: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Why {
    Invalid = 0,
    NotFound = 1,
    AlreadyExists = 2,
    Full = 3,
    Occupied = 4,
    /// The caller has not introduced itself to this coordinator.
    Unknown = 5,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Ended {
    #[prost(string, tag = "1")]
    pub reason: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NotYet {
    /// Who is missing, in words.
    #[prost(string, tag = "1")]
    pub missing: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Joined {
    #[prost(uint64, tag = "1")]
    pub generation: u64,
    /// [`PeerRows`]. All processes get the same bytes, so they are encoded once.
    #[prost(bytes = "vec", tag = "2")]
    pub peers: Vec<u8>,
    #[prost(message, repeated, tag = "3")]
    pub history: Vec<GenerationRow>,
    #[prost(uint64, tag = "4")]
    pub heartbeat_ms: u64,
    #[prost(uint64, tag = "5")]
    pub dead_after_ms: u64,
    /// A random number of this coordinator.
    #[prost(fixed64, tag = "6")]
    pub coordinator: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PeerRows {
    #[prost(message, repeated, tag = "1")]
    pub rows: Vec<PeerRow>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PeerRow {
    #[prost(string, tag = "1")]
    pub host: String,
    #[prost(uint32, tag = "2")]
    pub pid: u32,
    #[prost(string, tag = "3")]
    pub data_address: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GenerationRow {
    #[prost(uint64, tag = "1")]
    pub generation: u64,
    #[prost(uint32, repeated, tag = "2")]
    pub processes: Vec<u32>,
    #[prost(string, tag = "3")]
    pub reason: String,
    #[prost(uint64, tag = "4")]
    pub step: u64,
}

/// Boundaries before `horizon` may be left. All events up to there are known with it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Grant {
    #[prost(uint64, tag = "1")]
    pub horizon: u64,
    #[prost(uint64, tag = "2")]
    pub first_event: u64,
    #[prost(message, repeated, tag = "3")]
    pub events: Vec<EventRow>,
    /// That of [`Joined`].
    #[prost(fixed64, tag = "4")]
    pub coordinator: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct EventRow {
    #[prost(uint64, tag = "1")]
    pub step: u64,
    #[prost(uint32, tag = "2")]
    pub wish: u32,
}

/// Processes that were named slow, after those that the caller knows.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SlowRows {
    #[prost(message, repeated, tag = "1")]
    pub rows: Vec<SlowRow>,
}

/// See [`SlowPeer`](super::SlowPeer).
#[derive(Clone, PartialEq, Message)]
pub(super) struct SlowRow {
    #[prost(uint32, tag = "1")]
    pub process_index: u32,
    #[prost(string, tag = "2")]
    pub host: String,
    #[prost(double, tag = "3")]
    pub factor: f64,
    #[prost(uint64, tag = "4")]
    pub since_step: u64,
    #[prost(string, tag = "5")]
    pub text: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FoundValue {
    #[prost(bytes = "vec", tag = "1")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GatheredValues {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub values: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Directives {
    #[prost(message, repeated, tag = "1")]
    pub rows: Vec<DirectiveRow>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DirectiveRow {
    #[prost(oneof = "DirectiveKind", tags = "1, 2, 3")]
    pub kind: Option<DirectiveKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum DirectiveKind {
    #[prost(uint64, tag = "1")]
    Start(u64),
    #[prost(message, tag = "2")]
    Kill(Kill),
    #[prost(message, tag = "3")]
    End(JobEnd),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Kill {
    #[prost(uint64, tag = "1")]
    pub generation: u64,
    #[prost(string, tag = "2")]
    pub reason: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct JobEnd {
    #[prost(bool, tag = "1")]
    pub is_success: bool,
    #[prost(string, tag = "2")]
    pub text: String,
    #[prost(uint32, tag = "3")]
    pub signal: u32,
}

/// The first message of a process on a connection of host collectives, by which it sends.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LinkHello {
    #[prost(uint64, tag = "1")]
    pub generation: u64,
    /// The process that sends.
    #[prost(uint32, tag = "2")]
    pub from: u32,
    #[prost(uint32, tag = "3")]
    pub to: u32,
    /// What follows is not encrypted.
    #[prost(bool, tag = "4")]
    pub is_plain: bool,
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Reply {
    pub fn refused(why: Why, message: impl Into<String>) -> Self {
        Self::Refused(Refused { why: why.into(), message: message.into() })
    }
}
