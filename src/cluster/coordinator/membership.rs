//! The processes of one generation: who has joined, who is alive, who has left.

use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use hlo::counted;

use crate::cluster::messages::{Named, PeerRow, PeerRows, SlowRow};
use crate::cluster::watchdog::WorkerName;

/// At most this many processes are listed in a message.
const MAX_LISTED: usize = 8;

/// The processes of one generation.
#[derive(Debug)]
pub struct Membership {
    members: Vec<Option<JoinedProcess>>,
    num_joined: usize,
    /// Processes that were named slow, in order.
    pub slow: Vec<SlowRow>,
}

/// A process that has joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinedProcess {
    pub session: u64,
    pub host: String,
    pub pid: u32,
    pub data_address: String,
    pub program: Vec<Named>,
    pub last_seen: Duration,
    /// In global numbers; empty while they are not known.
    pub replicas: Range<usize>,
    /// The last step that it reported.
    pub step: u64,
    /// What it said when it left.
    pub outcome: Option<String>,
}

/// What becomes of a process that wants to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is a member.
    JoinedProcess,
    /// It is not, and that concerns nobody else.
    Refused(String),
    /// It cannot be, and nobody else can take its place: the job contradicts itself, this process
    /// or, if there is one, the other.
    Contradiction(String, Option<usize>),
}

impl Membership {
    /// A generation that nobody has joined.
    pub fn new(num_processes: usize) -> Self {
        Self { members: vec![None; num_processes], num_joined: 0, slow: vec![] }
    }

    /// `true` when all have joined.
    pub fn is_complete(&self) -> bool {
        self.num_joined == self.members.len()
    }

    /// `true` if nobody has joined.
    pub fn is_empty(&self) -> bool {
        self.num_joined == 0
    }

    pub fn member(&self, process_index: usize) -> Option<&JoinedProcess> {
        self.members.get(process_index)?.as_ref()
    }

    pub fn member_mut(&mut self, process_index: usize) -> Option<&mut JoinedProcess> {
        self.members.get_mut(process_index)?.as_mut()
    }

    /// Process `process_index` of what it believes to be `num_processes` wants to join, or asks
    /// again.
    pub fn join(
        &mut self,
        process_index: usize,
        num_processes: usize,
        member: JoinedProcess,
    ) -> Admission {
        let name = format!("process {process_index} (host {}, pid {})", member.host, member.pid);
        if num_processes != self.members.len() {
            let text = format!(
                "{name} was started for {}, but the job has {}; start all with the same number of \
                 processes",
                counted(num_processes, "process"),
                self.members.len()
            );
            return Admission::Contradiction(text, None);
        }
        let Some(slot) = self.members.get(process_index) else {
            return Admission::Refused(format!(
                "{name} cannot join a job of {}: indices are 0 to {}",
                counted(num_processes, "process"),
                num_processes.saturating_sub(1)
            ));
        };
        if let Some(first) = slot {
            let is_same = first.session == member.session
                || (first.host == member.host && first.pid == member.pid && !self.is_complete());
            if !is_same {
                return Admission::Refused(format!(
                    "{name} cannot join: process {process_index} is already running on host {} \
                     with pid {}; each process needs an index of its own",
                    first.host, first.pid
                ));
            }
        }
        let joined = self.members.iter().enumerate();
        let other = joined.filter(|&(process, _)| process != process_index);
        let mut other = other.filter_map(|(process, other)| Some((process, other.as_ref()?)));
        // Of one that has left, this coordinator may not know what it ran.
        let other = other.find(|(_, other)| other.outcome.is_none());
        if let Some((process, other)) = other
            && let Some(difference) = difference(&member.program, &other.program)
        {
            let (name_of_value, value, expected) = difference;
            let text = format!(
                "{name} does not run the same program as process {process} (host {}): \
                 {name_of_value} is {value}, there it is {expected}",
                other.host
            );
            return Admission::Contradiction(text, Some(process));
        }
        let slot = &mut self.members[process_index];
        match slot {
            Some(first) => {
                first.session = member.session;
                first.last_seen = member.last_seen;
            }
            None => {
                *slot = Some(member);
                self.num_joined += 1;
            }
        }
        Admission::JoinedProcess
    }

    /// A process has left before this coordinator could hear of it.
    pub fn left_before(&mut self, process_index: usize, outcome: &str) {
        if let Some(slot @ None) = self.members.get_mut(process_index) {
            *slot = Some(JoinedProcess { outcome: Some(outcome.to_owned()), ..Default::default() });
            self.num_joined += 1;
        }
    }

    /// `true` if the process has left in good order.
    pub fn has_left(&self, process_index: usize) -> bool {
        self.member(process_index).is_some_and(|member| member.outcome.is_some())
    }

    /// Those that have not joined.
    pub fn not_joined(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|&process| self.members[process].is_none()).collect()
    }

    /// Who is missing and who has joined, in words.
    pub fn missing(&self) -> String {
        let mut text = format!("{} not joined", list(&self.not_joined()));
        let joined = self.members.iter().enumerate();
        let joined = joined.filter_map(|(process, member)| Some((process, member.as_ref()?)));
        let mut separator = "; joined: ";
        for (process, member) in joined.clone().take(MAX_LISTED) {
            let _ = write!(text, "{separator}{process} (host {}, pid {})", member.host, member.pid);
            separator = ", ";
        }
        match self.num_joined.saturating_sub(MAX_LISTED) {
            0 => {}
            more => {
                let _ = write!(text, " and {more} more");
            }
        }
        text
    }

    /// Members that have not left and were not heard of since `dead_after` before `now`.
    pub fn silent(&self, now: Duration, dead_after: Duration) -> Vec<usize> {
        let is_silent = |member: &JoinedProcess| {
            member.outcome.is_none() && now.saturating_sub(member.last_seen) > dead_after
        };
        let members = self.members.iter().enumerate();
        members
            .filter(|(_, member)| member.as_ref().is_some_and(is_silent))
            .map(|(process, _)| process)
            .collect()
    }

    /// Forgets a process that joined and vanished before the generation was complete.
    pub fn forget(&mut self, process_index: usize) -> Option<JoinedProcess> {
        let member = self.members.get_mut(process_index)?.take()?;
        self.num_joined -= 1;
        Some(member)
    }

    /// `true` when all have left.
    pub fn all_left(&self) -> bool {
        let mut members = self.members.iter();
        members.all(|member| member.as_ref().is_some_and(|member| member.outcome.is_some()))
    }

    /// The largest step that a process reported.
    pub fn step(&self) -> u64 {
        self.members.iter().flatten().map(|member| member.step).max().unwrap_or(0)
    }

    /// All processes, by index, when the generation is complete.
    pub fn peers(&self) -> PeerRows {
        let peer = |member: &JoinedProcess| PeerRow {
            host: member.host.clone(),
            pid: member.pid,
            data_address: member.data_address.clone(),
        };
        PeerRows { rows: self.members.iter().flatten().map(peer).collect() }
    }

    /// "process 3 (host a, pid 7, replicas 6 to 7)", or without host and pid if it has not joined.
    pub fn describe(&self, process_index: usize) -> String {
        match self.member(process_index) {
            Some(JoinedProcess { host, pid, replicas, .. }) => {
                let name = WorkerName { host: host.clone(), pid: *pid, replicas: replicas.clone() };
                format!("process {process_index} {name}")
            }
            None => format!("process {process_index}"),
        }
    }

    /// Names several processes, with hosts and pids of the first ones.
    pub fn describe_all(&self, processes: &[usize]) -> String {
        let names = processes.iter().take(MAX_LISTED).map(|&process| self.describe(process));
        let names = names.collect::<Vec<_>>().join(", ");
        match processes.len().saturating_sub(MAX_LISTED) {
            0 => names,
            more => format!("{names} and {more} more"),
        }
    }
}

/// "process 1 has", "processes 1 and 3 have", "processes 1, 2, 3 and 60 more have".
pub fn list(processes: &[usize]) -> String {
    let names: Vec<_> = processes.iter().take(MAX_LISTED).map(usize::to_string).collect();
    let more = processes.len().saturating_sub(MAX_LISTED);
    match &names[..] {
        [] => "no process has".to_owned(),
        [one] => format!("process {one} has"),
        [first @ .., last] if more == 0 => {
            format!("processes {} and {last} have", first.join(", "))
        }
        names => format!("processes {} and {more} more have", names.join(", ")),
    }
}

/// The first property that differs: name, value of `own`, value of `other`.
fn difference(own: &[Named], other: &[Named]) -> Option<(String, String, String)> {
    let value = |of: &[Named], name: &str| {
        let named = of.iter().find(|named| named.name == name);
        named.map_or_else(|| "absent".to_owned(), |named| format!("`{}`", named.value))
    };
    let names = own.iter().chain(other).map(|named| &named.name);
    names
        .map(|name| (name.clone(), value(own, name), value(other, name)))
        .find(|(_, own, other)| own != other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn member(session: u64, value: &str) -> JoinedProcess {
        JoinedProcess {
            session,
            host: format!("host{session}"),
            pid: 100 + session as u32,
            data_address: String::new(),
            program: vec![
                Named { name: "binary".into(), value: "x".into() },
                Named { name: "configuration".into(), value: value.into() },
            ],
            last_seen: Duration::ZERO,
            replicas: 0..0,
            step: 0,
            outcome: None,
        }
    }

    #[test]
    fn a_generation_is_complete_when_all_have_joined() {
        let mut membership = Membership::new(3);
        assert_eq!(membership.missing(), "processes 0, 1 and 2 have not joined");
        assert_eq!(membership.join(2, 3, member(2, "a")), Admission::JoinedProcess);
        assert_eq!(membership.join(0, 3, member(0, "a")), Admission::JoinedProcess);
        assert_eq!(membership.join(0, 3, member(0, "a")), Admission::JoinedProcess, "asks again");
        assert_eq!(
            membership.missing(),
            "process 1 has not joined; joined: 0 (host host0, pid 100), 2 (host host2, pid 102)"
        );
        assert!(!membership.is_complete());
        assert_eq!(membership.join(1, 3, member(1, "a")), Admission::JoinedProcess);
        assert!(membership.is_complete());
        assert_eq!(membership.peers().rows[2].pid, 102);
    }

    #[test]
    fn contradictions_are_explained() {
        let mut membership = Membership::new(2);
        membership.join(0, 2, member(0, "a"));
        let cases = [
            (0, 2, "a", "process 0 is already running on host host0 with pid 100"),
            (1, 3, "a", "was started for 3 processes, but the job has 2"),
            (2, 2, "a", "indices are 0 to 1"),
            (1, 2, "b", "process 0 (host host0): configuration is `b`, there it is `a`"),
        ];
        for (process_index, num_processes, value, expected) in cases {
            let admission = membership.join(process_index, num_processes, member(7, value));
            let (Admission::Refused(text) | Admission::Contradiction(text, _)) = admission else {
                panic!("{expected}");
            };
            assert!(text.contains(expected), "{text}");
            assert!(text.contains("(host host7, pid 107)"), "{text}");
        }
        let mut other = member(7, "a");
        other.program.pop();
        let Admission::Contradiction(text, _) = membership.join(1, 2, other) else { panic!() };
        assert!(text.contains("configuration is absent, there it is `a`"), "{text}");
    }

    #[test]
    fn a_process_may_open_another_session_while_the_generation_forms() {
        let mut membership = Membership::new(2);
        membership.join(0, 2, member(0, "a"));
        let again = JoinedProcess { session: 9, ..member(0, "a") };
        assert_eq!(membership.join(0, 2, again.clone()), Admission::JoinedProcess);
        assert_eq!(membership.member(0).unwrap().session, 9);
        membership.join(1, 2, member(1, "a"));
        let late = JoinedProcess { session: 10, ..again };
        assert!(matches!(membership.join(0, 2, late), Admission::Refused(_)));
    }

    #[test]
    fn those_that_left_before_are_compared_with_nobody() {
        let mut membership = Membership::new(3);
        membership.left_before(0, "done");
        assert_eq!(membership.join(1, 3, member(1, "a")), Admission::JoinedProcess);
        let admission = membership.join(2, 3, member(2, "b"));
        assert!(matches!(admission, Admission::Contradiction(..)), "{admission:?}");
        assert_eq!(membership.join(2, 3, member(2, "a")), Admission::JoinedProcess);
        assert!(membership.is_complete() && !membership.all_left());
    }

    #[test]
    fn who_is_silent_is_known() {
        let mut membership = Membership::new(3);
        for process in 0..3 {
            membership.join(process, 3, member(process as u64, "a"));
        }
        membership.member_mut(0).unwrap().last_seen = 5 * SECOND;
        membership.member_mut(2).unwrap().outcome = Some("done".into());
        assert!(membership.silent(10 * SECOND, 10 * SECOND).is_empty());
        assert_eq!(membership.silent(11 * SECOND, 10 * SECOND), [1]);
        assert_eq!(membership.silent(16 * SECOND, 10 * SECOND), [0, 1]);
        assert_eq!(membership.describe_all(&[1]), "process 1 (host host1, pid 101)");
    }

    #[test]
    fn long_lists_are_cut() {
        let processes: Vec<_> = (0..2000).collect();
        let expected = "processes 0, 1, 2, 3, 4, 5, 6, 7 and 1992 more have";
        assert_eq!(list(&processes), expected);
        let membership = Membership::new(2000);
        assert!(membership.describe_all(&processes).ends_with(" and 1992 more"));
    }
}
