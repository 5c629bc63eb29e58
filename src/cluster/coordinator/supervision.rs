//! The supervisors of a job: one on each host, which starts and ends the processes there.

use std::time::Duration;

use hlo::counted;

use crate::cluster::messages::{EndedRow, Why};

/// The supervisors that have registered.
#[derive(Debug)]
pub struct Supervision {
    hosts: Vec<Option<Supervisor>>,
}

/// A supervisor that has registered.
#[derive(Debug)]
pub struct Supervisor {
    pub session: u64,
    /// Equal in all sessions in which it has asked to register, until it had an answer.
    attempt: u64,
    pub host: String,
    pub first_process: usize,
    pub last_seen: Duration,
    /// Which of its processes of this generation have ended.
    has_ended: Vec<bool>,
    /// It is silent. It may come back, or another may take its place.
    is_lost: bool,
    /// The first directive that concerns it: those before were given before it registered.
    first_directive: usize,
    /// How many directives it has received since.
    num_known: usize,
    /// The generation that it has started for a coordinator before this one.
    generation: u64,
    /// Of its processes of that generation, those that have ended in good order.
    ended: Vec<EndedRow>,
}

impl Supervisor {
    /// The supervisor of `num_local` processes from `first_process` on, none of which runs.
    /// Directives from `first_directive` on concern it.
    pub fn new(
        (session, attempt): (u64, u64),
        host: String,
        (first_process, num_local): (usize, usize),
        first_directive: usize,
        now: Duration,
    ) -> Self {
        let has_ended = vec![true; num_local];
        Self {
            session,
            attempt,
            host,
            first_process,
            last_seen: now,
            has_ended,
            is_lost: false,
            first_directive,
            num_known: 0,
            generation: 0,
            ended: vec![],
        }
    }

    /// What it says of the generation that it has started last.
    pub fn hold(&mut self, generation: u64, running: &[u32], ended: &[EndedRow]) {
        self.generation = generation;
        self.ended = ended.to_vec();
        for (process, has_ended) in (self.first_process..).zip(&mut self.has_ended) {
            *has_ended = !running.iter().any(|running| *running as usize == process);
        }
    }

    fn processes(&self) -> std::ops::Range<usize> {
        self.first_process..self.first_process + self.has_ended.len()
    }
}

impl Supervision {
    /// Nobody has registered.
    pub fn new(num_hosts: usize) -> Self {
        Self { hosts: (0..num_hosts).map(|_| None).collect() }
    }

    /// Adds a supervisor.
    ///
    /// # Errors
    /// Why, and a text: it contradicts the job, or its place is occupied.
    pub fn register(
        &mut self,
        host_index: usize,
        num_hosts: usize,
        num_processes: usize,
        supervisor: Supervisor,
    ) -> Result<(), (Why, String)> {
        let host = &supervisor.host;
        let invalid = |text| Err((Why::Invalid, text));
        if num_hosts != self.hosts.len() || host_index >= num_hosts {
            return invalid(format!(
                "the supervisor on {host} is number {host_index} of {num_hosts}, but the job has \
                 {}; start all with the same list of hosts",
                counted(self.hosts.len(), "host")
            ));
        }
        let own = supervisor.processes();
        if own.is_empty() || own.end > num_processes {
            return invalid(format!(
                "the supervisor on {host} has processes {own:?} of {num_processes}; start all with \
                 the same number of processes"
            ));
        }
        for (index, other) in self.hosts.iter_mut().enumerate() {
            let Some(other) = other else { continue };
            if index == host_index {
                if other.attempt == supervisor.attempt && !other.is_lost {
                    // Its answer was lost with the session.
                    other.session = supervisor.session;
                    return Ok(());
                }
                if other.is_lost {
                    continue;
                }
                let text = format!(
                    "the supervisor on {host} cannot register: host {host_index} is {} already",
                    other.host
                );
                return Err((Why::Occupied, text));
            }
            let theirs = other.processes();
            if own.start < theirs.end && theirs.start < own.end {
                return invalid(format!(
                    "the supervisors on {host} and {} both have some of the processes {own:?} and \
                     {theirs:?}",
                    other.host
                ));
            }
        }
        self.hosts[host_index] = Some(supervisor);
        let num_local: usize = self.registered().map(|other| other.has_ended.len()).sum();
        if self.hosts.iter().all(Option::is_some) && num_local != num_processes {
            return invalid(format!(
                "all supervisors together have {}, but the job has {num_processes}",
                counted(num_local, "process")
            ));
        }
        Ok(())
    }

    /// The newest generation that a supervisor has started, and the processes of it that have ended
    /// in good order. Processes of others do not run.
    pub fn take_over(&mut self) -> Option<(u64, Vec<EndedRow>)> {
        let newest = self.registered().map(|host| host.generation).max();
        let newest = newest.filter(|generation| *generation > 0)?;
        let mut ended = vec![];
        for host in self.hosts.iter_mut().flatten() {
            match host.generation == newest {
                true => ended.append(&mut host.ended),
                false => host.has_ended.fill(true),
            }
        }
        Some((newest, ended))
    }

    /// `true` if all have registered, and none is lost.
    pub fn is_complete(&self) -> bool {
        self.hosts.iter().all(|host| host.as_ref().is_some_and(|host| !host.is_lost))
    }

    /// Who has not registered, in words.
    pub fn missing(&self) -> String {
        let name = |(index, host): (usize, &Option<Supervisor>)| match host {
            Some(host) if host.is_lost => Some(format!("{index} ({})", host.host)),
            Some(_) => None,
            None => Some(index.to_string()),
        };
        let missing: Vec<_> = self.hosts.iter().enumerate().filter_map(name).collect();
        let there = self.registered().filter(|host| !host.is_lost);
        let registered: Vec<_> = there.map(|host| host.host.as_str()).collect();
        let registered = match &registered[..] {
            [] => "none".to_owned(),
            hosts => hosts.join(", "),
        };
        format!("missing: host {}; registered: {registered}", missing.join(", "))
    }

    /// A sign of life of a supervisor. Returns its host if it was lost.
    pub fn seen(&mut self, session: u64, now: Duration) -> Option<String> {
        let mut hosts = self.hosts.iter_mut().flatten();
        let host = hosts.find(|host| host.session == session)?;
        host.last_seen = now;
        std::mem::take(&mut host.is_lost).then(|| host.host.clone())
    }

    /// A generation starts: all its processes run.
    pub fn start(&mut self) {
        for host in self.hosts.iter_mut().flatten() {
            host.has_ended.fill(false);
        }
    }

    /// A process has ended. `false` if it is not one of this supervisor, or was known to have
    /// ended.
    pub fn child_ended(&mut self, session: u64, process_index: usize) -> bool {
        let mut hosts = self.hosts.iter_mut().flatten();
        let Some(host) = hosts.find(|host| host.session == session) else { return false };
        let local = process_index.checked_sub(host.first_process);
        match local.and_then(|local| host.has_ended.get_mut(local)) {
            Some(has_ended) => !std::mem::replace(has_ended, true),
            None => false,
        }
    }

    /// `true` when all processes have ended, those of lost supervisors included.
    pub fn all_ended(&self) -> bool {
        self.registered().all(|host| host.is_lost || host.has_ended.iter().all(|ended| *ended))
    }

    /// Processes that have not ended, with their host.
    pub fn running(&self) -> Vec<(usize, String)> {
        let running = |host: &Supervisor| -> Vec<_> {
            let name = &host.host;
            let processes = host.processes().zip(&host.has_ended);
            processes
                .filter(|(_, ended)| !**ended)
                .map(|(process, _)| (process, name.clone()))
                .collect()
        };
        self.registered().flat_map(running).collect()
    }

    /// Hosts whose supervisor was not heard of since `dead_after` before `now`, each named once,
    /// with their processes.
    pub fn take_silent(
        &mut self,
        now: Duration,
        dead_after: Duration,
    ) -> Vec<(String, Vec<usize>)> {
        let mut silent = Vec::new();
        for (index, host) in self.hosts.iter_mut().enumerate() {
            let Some(host) = host else { continue };
            if !host.is_lost && now.saturating_sub(host.last_seen) > dead_after {
                host.is_lost = true;
                // Several hosts may have one name.
                let name = format!("{} (--host-index {index})", host.host);
                silent.push((name, host.processes().collect()));
            }
        }
        silent
    }

    /// A supervisor has received the first `num_known` directives.
    pub fn knows(&mut self, session: u64, num_known: usize) {
        for host in self.hosts.iter_mut().flatten().filter(|host| host.session == session) {
            host.num_known = num_known;
        }
    }

    /// The first directive that concerns the supervisor of this session.
    pub fn first_directive(&self, session: u64) -> Option<usize> {
        let mut registered = self.registered();
        registered.find(|host| host.session == session).map(|host| host.first_directive)
    }

    /// `true` when all supervisors that are not lost have received `num_directives` directives.
    pub fn all_know(&self, num_directives: usize) -> bool {
        let knows = |host: &Supervisor| host.first_directive + host.num_known >= num_directives;
        self.registered().all(|host| host.is_lost || knows(host))
    }

    fn registered(&self) -> impl Iterator<Item = &Supervisor> {
        self.hosts.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supervisor(session: u64, first_process: usize, num_local: usize) -> Supervisor {
        let host = format!("host{session}");
        let who = (session, session);
        Supervisor::new(who, host, (first_process, num_local), 0, Duration::ZERO)
    }

    #[test]
    fn processes_are_divided_among_hosts() {
        let mut hosts = Supervision::new(2);
        assert_eq!(hosts.missing(), "missing: host 0, 1; registered: none");
        hosts.register(1, 2, 4, supervisor(1, 2, 2)).unwrap();
        hosts.register(1, 2, 4, supervisor(1, 2, 2)).unwrap();
        // Its answer was lost, and it asks again in another session.
        hosts.register(1, 2, 4, Supervisor { session: 9, ..supervisor(1, 2, 2) }).unwrap();
        assert_eq!(hosts.first_directive(9), Some(0));
        assert_eq!(hosts.missing(), "missing: host 0; registered: host1");
        for (index, num_hosts, other, expected) in [
            (0, 3, supervisor(2, 0, 2), "is number 0 of 3, but the job has 2 hosts"),
            (1, 2, supervisor(2, 0, 2), "host 1 is host1 already"),
            (0, 2, supervisor(2, 0, 3), "both have some of the processes 0..3 and 2..4"),
            (0, 2, supervisor(2, 3, 2), "has processes 3..5 of 4"),
        ] {
            let (_, error) = hosts.register(index, num_hosts, 4, other).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(!hosts.is_complete());
        let (_, error) = hosts.register(0, 2, 4, supervisor(0, 0, 1)).unwrap_err();
        assert!(error.contains("together have 3 processes, but the job has 4"), "{error}");
    }

    #[test]
    fn children_end_once_and_only_by_their_supervisor() {
        let mut hosts = Supervision::new(2);
        hosts.register(0, 2, 3, supervisor(0, 0, 1)).unwrap();
        hosts.register(1, 2, 3, supervisor(1, 1, 2)).unwrap();
        assert!(hosts.all_ended(), "nothing was started");
        hosts.start();
        assert!(!hosts.child_ended(0, 1));
        assert!(hosts.child_ended(1, 1));
        assert!(!hosts.child_ended(1, 1));
        assert!(hosts.child_ended(1, 2));
        assert_eq!(hosts.running(), [(0, "host0".to_owned())]);
        let second = Duration::from_secs(1);
        hosts.seen(1, 9 * second);
        let silent = hosts.take_silent(11 * second, 10 * second);
        assert_eq!(silent, [("host0 (--host-index 0)".to_owned(), vec![0])]);
        assert_eq!(hosts.take_silent(11 * second, 10 * second), []);
        assert!(hosts.all_ended());
        // It comes back: its process may still run.
        assert_eq!(hosts.missing(), "missing: host 0 (host0); registered: host1");
        assert_eq!(hosts.seen(0, 12 * second), Some("host0".to_owned()));
        assert!(hosts.is_complete() && !hosts.all_ended());
        // Another takes its place when it is lost again.
        assert!(hosts.register(0, 2, 3, supervisor(7, 0, 1)).is_err());
        assert_eq!(hosts.take_silent(30 * second, 10 * second).len(), 2);
        hosts.register(0, 2, 3, supervisor(7, 0, 1)).unwrap();
        assert_eq!(hosts.seen(0, 30 * second), None);
        assert!(!hosts.is_complete());
    }
}
