//! What an exchange knows: the launches of this process, the calls that wait, and messages that
//! came early.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use super::compute::Payloads;
use super::frame::{FrameKind, Header, Meeting, Payload};
use super::span::{GroupSpan, Plan};
use super::waits::{WaitLog, WaitMeter};

/// Everything that an exchange's lock guards.
pub(super) struct ExchangeState<C> {
    /// The launches in flight here by id.
    pub launches: HashMap<i64, LaunchState<C>>,
    /// What came from other processes, by launch number.
    pub inboxes: HashMap<u64, Inbox>,
    pub ended: EndedLaunches,
    /// Why all launches fail.
    pub broken: Option<Arc<str>>,
    /// Processes that send nothing more.
    pub left: BTreeSet<usize>,
    pub waits: WaitLog,
    pub is_closed: bool,
}

impl<C> Default for ExchangeState<C> {
    fn default() -> Self {
        Self {
            launches: HashMap::new(),
            inboxes: HashMap::new(),
            ended: EndedLaunches::default(),
            broken: None,
            left: BTreeSet::new(),
            waits: WaitLog::default(),
            is_closed: false,
        }
    }
}

/// The calls of one launch.
pub(super) struct LaunchState<C> {
    /// Its number in all processes and the digest of its program, once known.
    pub program: Option<(u64, u64)>,
    /// Why calls that arrive are completed with an error.
    pub failure: Option<Arc<str>>,
    /// How often a replica has been at a site.
    pub num_visits: HashMap<(usize, usize), u64>,
    /// Meetings at which replicas of this process are missing.
    pub gathering: HashMap<Meeting, Gathering<C>>,
    /// Meetings at which only data of other processes is missing.
    pub spanning: HashMap<Meeting, Spanning<C>>,
    pub meter: WaitMeter,
}

impl<C> Default for LaunchState<C> {
    fn default() -> Self {
        Self {
            program: None,
            failure: None,
            num_visits: HashMap::new(),
            gathering: HashMap::new(),
            spanning: HashMap::new(),
            meter: WaitMeter::default(),
        }
    }
}

/// The calls of the replicas of this process that are in a group.
pub(super) struct Gathering<C> {
    pub span: GroupSpan,
    /// In the order of the span's positions.
    pub calls: Vec<Option<C>>,
    pub since: Instant,
}

/// A collective that waits for other processes.
pub(super) struct Spanning<C> {
    pub calls: Vec<C>,
    pub plan: Arc<Plan>,
    pub awaited: FrameKind,
    /// Processes and lengths of the frames that are awaited.
    pub incoming: Vec<(usize, usize)>,
    /// Processes whose frames are missing.
    pub missing: Vec<usize>,
    pub since: Instant,
}

impl<C> Spanning<C> {
    pub fn new(calls: Vec<C>, plan: Arc<Plan>, awaited: FrameKind) -> Self {
        let own = plan.span.own;
        let incoming = plan.span.others().map(|(index, part)| {
            let num_bytes = match awaited {
                FrameKind::Operands => plan.operands(index, own).1,
                _ => plan.totals(index).1,
            };
            (part.process, num_bytes)
        });
        let incoming: Vec<_> = incoming.filter(|(_, num_bytes)| *num_bytes > 0).collect();
        Self { calls, plan, awaited, incoming, missing: vec![], since: Instant::now() }
    }

    /// # Errors
    /// What is wrong with a frame that is awaited here, to follow the name of the process.
    pub fn check(&self, process: usize, num_bytes: usize) -> Result<(), String> {
        let (index, name) = (self.plan.site.index, self.plan.site.kind.name());
        match self.incoming.iter().find(|(other, _)| *other == process) {
            Some((_, expected)) if *expected == num_bytes => Ok(()),
            Some((_, expected)) => Err(format!(
                "sent {num_bytes} bytes for collective {index} ({name}), which needs {expected}"
            )),
            None => Err(format!("sent data for collective {index} ({name}), which needs none")),
        }
    }
}

/// What came from other processes for one launch.
#[derive(Default)]
pub(super) struct Inbox {
    /// The launch here.
    pub launch: Option<i64>,
    /// Why it failed in another process.
    pub failure: Option<Arc<str>>,
    /// The digest of each sender's program.
    digests: BTreeMap<usize, u64>,
    frames: HashMap<(Meeting, FrameKind), Payloads>,
}

impl Inbox {
    /// # Errors
    /// What the process did wrong, to follow its name.
    pub fn insert(
        &mut self,
        process: usize,
        header: &Header,
        payload: Payload,
    ) -> Result<(), String> {
        if *self.digests.entry(process).or_insert(header.digest) != header.digest {
            return Err(format!("runs two programs in launch {}", header.launch));
        }
        let frames = self.frames.entry((header.meeting, header.kind)).or_default();
        match frames.entry(process) {
            Entry::Vacant(place) => {
                place.insert(payload);
                Ok(())
            }
            Entry::Occupied(_) => {
                Err(format!("sent data for collective {} twice", header.meeting.site))
            }
        }
    }

    /// A process that runs another program than the one with this digest.
    pub fn stranger(&self, digest: u64) -> Option<usize> {
        self.digests.iter().find(|(_, other)| **other != digest).map(|(process, _)| *process)
    }

    /// The frames of one kind that came for a meeting.
    pub fn frames(
        &self,
        meeting: Meeting,
        kind: FrameKind,
    ) -> impl Iterator<Item = (usize, usize)> {
        let frames = self.frames.get(&(meeting, kind)).into_iter().flatten();
        frames.map(|(process, payload)| (*process, payload.bytes().len()))
    }

    pub fn take(&mut self, meeting: Meeting, kind: FrameKind) -> Payloads {
        self.frames.remove(&(meeting, kind)).unwrap_or_default()
    }

    /// Forgets the frames.
    pub fn clear(&mut self) {
        self.frames = HashMap::new();
    }
}

/// The numbers of launches that have ended here. Nearly all are below a bound.
#[derive(Default)]
pub(super) struct EndedLaunches {
    below: u64,
    others: BTreeSet<u64>,
}

impl EndedLaunches {
    pub fn contains(&self, number: u64) -> bool {
        number < self.below || self.others.contains(&number)
    }

    pub fn insert(&mut self, number: u64) {
        self.others.insert(number);
        while self.others.remove(&self.below) {
            self.below += 1;
        }
    }
}
