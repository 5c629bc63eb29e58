//! The supervisors of a job: one on each host, which starts and ends the processes there.

use std::ops::Range;
use std::time::Duration;

use hlo::counted;

use crate::cluster::members::Holders;
use crate::cluster::messages::{ChildEnded, EndedRow, HeldGeneration, Why};
use crate::cluster::roster::{HostPlace, JobSize};
use crate::cluster::wish::ends_well;

/// Hosts that come one after the other within this time begin together.
const SETTLE: Duration = Duration::from_secs(2);

/// The supervisors that have registered.
#[derive(Debug)]
pub struct Supervision {
    pub size: JobSize,
    /// In the order of their processes.
    hosts: Vec<Supervisor>,
    num_arrived: u64,
    /// When a host came, or came back.
    changed: Duration,
}

/// Why the processes of a generation should stop after the same step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostChange {
    /// Others go on: why.
    Other(String),
    /// All go on, with more: why.
    More(String),
    /// These hosts leave, and the others are too few.
    TooFew(String),
}

/// A supervisor that has registered.
#[derive(Debug)]
pub struct Supervisor {
    /// Equal in all sessions of a supervisor.
    pub id: u64,
    pub session: u64,
    pub host: String,
    pub num_local: usize,
    /// The index that a launcher gave it.
    pub host_index: Option<u32>,
    pub last_seen: Duration,
    /// The first directive that concerns it: those before were given before it registered.
    pub first_directive: usize,
    /// How many directives it has received since.
    num_known: usize,
    /// Its number among those that have registered.
    arrival: u64,
    /// It is silent. It may come back, or another may take its place.
    is_lost: bool,
    /// It leaves the job when its processes have ended.
    is_leaving: bool,
    /// It has taken part in a step.
    has_trained: bool,
    /// How often one of its processes was slow, where that costs a host its place.
    num_strikes: u32,
    /// A spare takes its place in the next generation.
    is_replaced: bool,
    /// Why it was removed from the job.
    refused: Option<String>,
    /// Its place in the generation that started last, if it has one.
    place: Option<HostPlace>,
    /// Which of its processes of this generation have ended.
    has_ended: Vec<bool>,
    /// How many of its calls wait for directives: one, but for moments, as long as it is there.
    num_listening: usize,
    /// When that number last became 0.
    deaf_since: Duration,
    /// What it has started for a coordinator before this one.
    held: HeldGeneration,
    /// Where it serves snapshots; empty if it holds none.
    pub snapshot_address: String,
}

impl Supervisor {
    /// A supervisor of `num_local` processes, none of which runs. Directives from `first_directive`
    /// on concern it.
    pub fn new(
        (id, session): (u64, u64),
        (host, host_index): (String, Option<u32>),
        num_local: usize,
        first_directive: usize,
        now: Duration,
    ) -> Self {
        Self {
            id,
            session,
            host,
            num_local,
            host_index,
            last_seen: now,
            first_directive,
            num_known: 0,
            arrival: 0,
            is_lost: false,
            is_leaving: false,
            has_trained: false,
            num_strikes: 0,
            is_replaced: false,
            refused: None,
            place: None,
            has_ended: vec![true; num_local],
            num_listening: 0,
            deaf_since: now,
            held: HeldGeneration::default(),
            snapshot_address: String::new(),
        }
    }

    /// What it has started for a coordinator before this one.
    pub fn hold(&mut self, held: HeldGeneration) {
        if held.generation == 0 {
            return;
        }
        let place = HostPlace {
            first_process: held.first_process as usize,
            num_processes: held.num_processes as usize,
            num_hosts: 0,
        };
        self.place = Some(place);
        for (process, has_ended) in (place.first_process..).zip(&mut self.has_ended) {
            *has_ended = !held.running.iter().any(|running| *running as usize == process);
        }
        self.held = held;
    }

    fn processes(&self) -> Range<usize> {
        self.place.map_or(0..0, |place| place.first_process..place.first_process + self.num_local)
    }

    fn is_there(&self) -> bool {
        !self.is_lost
    }

    /// `true` if it can have a place in the next generation.
    fn can_take_part(&self) -> bool {
        !self.is_lost && !self.is_leaving && self.refused.is_none()
    }

    /// `true` if it has received all of so many directives.
    fn has_received(&self, num_directives: usize) -> bool {
        self.first_directive + self.num_known >= num_directives
    }

    /// "b (processes 2 to 3)": several hosts may have one name.
    fn name(&self) -> String {
        let Range { start, end } = self.processes();
        match end - start {
            0 => self.host.clone(),
            1 => format!("{} (process {start})", self.host),
            _ => format!("{} (processes {start} to {})", self.host, end - 1),
        }
    }
}

impl Supervision {
    /// Nobody has registered.
    pub fn new(size: JobSize) -> Self {
        Self { size, hosts: vec![], num_arrived: 0, changed: Duration::ZERO }
    }

    /// Adds a supervisor that has not registered before.
    ///
    /// # Errors
    /// Why, and a text: the job has no place for it.
    pub fn register(&mut self, mut supervisor: Supervisor) -> Result<(), (Why, String)> {
        let host = &supervisor.host;
        if self.hosts.len() >= self.size.max_hosts + self.size.num_spares {
            let Some(lost) = self.hosts.iter().position(|host| !host.can_take_part()) else {
                let hosts: Vec<_> = self.hosts.iter().map(|host| host.host.as_str()).collect();
                let text = format!(
                    "the supervisor on {host} is not needed: the job has its {} ({})",
                    counted(hosts.len(), "host"),
                    hosts.join(", ")
                );
                return Err((Why::Occupied, text));
            };
            self.hosts.remove(lost);
        }
        self.num_arrived += 1;
        supervisor.arrival = self.num_arrived;
        self.changed = supervisor.last_seen;
        self.hosts.push(supervisor);
        self.hosts.sort_by_key(|host| (host.host_index.unwrap_or(u32::MAX), host.arrival));
        Ok(())
    }

    /// A supervisor that has registered before does so in another session. `newest` is the
    /// generation that started last. Returns its processes of that generation that ran, and do not
    /// any more; `None` if it has not registered before.
    pub fn register_again(
        &mut self,
        supervisor: &Supervisor,
        held: &HeldGeneration,
        newest: u64,
    ) -> Option<Vec<usize>> {
        let host = self.hosts.iter_mut().find(|host| host.id == supervisor.id)?;
        host.session = supervisor.session;
        host.snapshot_address.clone_from(&supervisor.snapshot_address);
        host.last_seen = supervisor.last_seen;
        host.first_directive = supervisor.first_directive;
        host.num_known = 0;
        if std::mem::take(&mut host.is_lost) {
            self.changed = supervisor.last_seen;
        }
        let mut vanished = vec![];
        if held.generation == newest {
            let is_known = |process: usize| {
                held.running.iter().any(|running| *running as usize == process)
                    || held.ended.iter().any(|ended| ended.process_index as usize == process)
            };
            for (process, has_ended) in host.processes().zip(&mut host.has_ended) {
                if !*has_ended && !is_known(process) {
                    *has_ended = true;
                    vanished.push(process);
                }
            }
        }
        Some(vanished)
    }

    /// The newest generation that a supervisor has started for a coordinator before this one, its
    /// number of processes, and those of them that have ended in good order. Processes of others do
    /// not run. `None` while more supervisors of it may come: until all its processes are known,
    /// all hosts are there, or `is_late`.
    pub fn take_over(&mut self, is_late: bool) -> Option<(u64, usize, Vec<EndedRow>)> {
        let newest = self.hosts.iter().max_by_key(|host| host.held.generation)?;
        let (generation, num_processes) =
            (newest.held.generation, newest.held.num_processes as usize);
        let of_it = self.hosts.iter().filter(|host| host.held.generation == generation);
        let num_known: usize = of_it.map(|host| host.num_local).sum();
        let are_all_there = self.hosts.len() >= self.size.max_hosts;
        if generation == 0 || num_known < num_processes && !are_all_there && !is_late {
            return None;
        }
        let mut ended = vec![];
        for host in &mut self.hosts {
            match host.held.generation == generation {
                true => ended.append(&mut host.held.ended),
                false => {
                    host.has_ended.fill(true);
                    host.place = None;
                }
            }
        }
        Some((generation, num_processes, ended))
    }

    /// `true` if a supervisor has started a generation for a coordinator before this one.
    pub fn holds_generation(&self) -> bool {
        self.hosts.iter().any(|host| host.held.generation > 0)
    }

    /// `true` if the hosts that are there are enough for a generation and no more are waited for.
    pub fn can_start(&self, now: Duration) -> bool {
        let num_used = self.num_used();
        num_used.is_some_and(|number| number == self.size.max_hosts || now >= self.changed + SETTLE)
    }

    /// What the processes of the generation should do because of hosts that have come or leave.
    pub fn change(&self, now: Duration) -> Option<HostChange> {
        let has_place = self.hosts.iter().filter(|host| host.place.is_some());
        let number = has_place.clone().count();
        let names = |hosts: Vec<&Supervisor>| -> String {
            let names: Vec<_> = hosts.into_iter().map(Supervisor::name).collect();
            format!("{} {}", if names.len() == 1 { "host" } else { "hosts" }, names.join(", "))
        };
        let leaving: Vec<_> = has_place.clone().filter(|host| host.is_leaving).collect();
        let possible = self.num_used();
        if !leaving.is_empty() {
            let leaving = names(leaving);
            return Some(possible.map_or(HostChange::TooFew(leaving.clone()), |_| {
                HostChange::Other(format!("leaving: {leaving}"))
            }));
        }
        if let Some(slow) = has_place.clone().find(|host| host.is_replaced)
            && let Some(spare) = self.spare_for(slow)
        {
            let (slow, spare) = (slow.name(), spare.name());
            let why = format!("slow: host {slow}; the spare on {spare} takes its place");
            return Some(HostChange::Other(why));
        }
        let has_settled = now >= self.changed + SETTLE;
        let can_grow = possible.is_some_and(|possible| possible > number)
            && has_place.clone().all(Supervisor::is_there);
        let waiting = self.hosts.iter().filter(|host| host.place.is_none());
        (has_settled && can_grow)
            .then(|| HostChange::More(format!("new: {}", names(waiting.collect()))))
    }

    /// The processes have taken steps.
    pub fn have_trained(&mut self) {
        for host in self.hosts.iter_mut().filter(|host| host.place.is_some()) {
            host.has_trained = true;
        }
    }

    /// A process is slow: a spare that was so less often takes the place of its host. `false` if
    /// there is none; the host is behind spares all the same when the next generation starts.
    pub fn replace(&mut self, process_index: usize) -> bool {
        let is_it = |host: &Supervisor| host.processes().contains(&process_index);
        let Some(slow) = self.hosts.iter().position(is_it) else { return false };
        if self.hosts[slow].is_replaced {
            // For another of its processes.
            return true;
        }
        self.hosts[slow].num_strikes += 1;
        self.hosts[slow].is_replaced = self.spare_for(&self.hosts[slow]).is_some();
        self.hosts[slow].is_replaced
    }

    /// The spare that may take the place of a slow host.
    fn spare_for(&self, slow: &Supervisor) -> Option<&Supervisor> {
        let spares = self.hosts.iter().filter(|host| {
            host.place.is_none()
                && host.can_take_part()
                && host.num_local == slow.num_local
                && host.num_strikes < slow.num_strikes
        });
        spares.min_by_key(|host| host.num_strikes)
    }

    /// Removes the host of a process that cannot take part, if the host is new and the others are
    /// enough for a generation. `false` otherwise.
    pub fn refuse(&mut self, process_index: usize, reason: &str) -> bool {
        let is_it = |host: &Supervisor| host.processes().contains(&process_index);
        let others = self.hosts.iter().filter(|host| host.can_take_part() && !is_it(host));
        let others: Vec<_> = others.map(|host| host.num_local).collect();
        let is_enough = self.size.num_used(&others).is_some();
        let host = self.hosts.iter_mut().find(|host| is_it(host) && !host.has_trained);
        let Some(host) = host.filter(|_| is_enough) else { return false };
        host.refused = Some(reason.to_owned());
        true
    }

    /// Why the host of this session was removed from the job.
    pub fn refusal(&self, session: u64) -> Option<String> {
        self.hosts.iter().find(|host| host.session == session)?.refused.clone()
    }

    /// A host leaves.
    pub fn leaves(&mut self, session: u64) {
        for host in self.hosts.iter_mut().filter(|host| host.session == session) {
            host.is_leaving = true;
        }
    }

    /// `true` if hosts that leave are the reason why no generation can start.
    pub fn are_leaving(&self) -> bool {
        self.num_used().is_none() && self.hosts.iter().any(|host| host.is_leaving)
    }

    /// Hosts of the next generation.
    fn num_used(&self) -> Option<usize> {
        let hosts = self.hosts.iter().filter(|host| host.can_take_part());
        let hosts: Vec<_> = hosts.map(|host| host.num_local).collect();
        self.size.num_used(&hosts)
    }

    fn there(&self) -> impl Iterator<Item = &Supervisor> {
        self.hosts.iter().filter(|host| host.is_there())
    }

    /// A generation starts, with all its processes. Returns the number of them.
    pub fn start(&mut self) -> usize {
        // One that comes back later registers again.
        self.hosts.retain(Supervisor::can_take_part);
        // Those that were slow come last, and otherwise the order stays.
        self.hosts.sort_by_key(|host| host.num_strikes);
        let num_hosts = self.num_used().unwrap_or(0);
        let num_processes = self.hosts.iter().take(num_hosts).map(|host| host.num_local).sum();
        let mut first_process = 0;
        for (index, host) in self.hosts.iter_mut().enumerate() {
            let is_used = index < num_hosts;
            host.place = is_used.then_some(HostPlace { first_process, num_processes, num_hosts });
            host.has_ended.fill(!is_used);
            host.is_replaced = false;
            first_process += host.num_local;
        }
        num_processes
    }

    /// Number of hosts of the generation.
    pub fn num_hosts(&self) -> usize {
        self.hosts.iter().filter(|host| host.place.is_some()).count()
    }

    /// The names of the hosts of the generation, and of those that wait.
    pub fn describe(&self) -> String {
        let names = |is_used: bool| -> Vec<_> {
            let hosts = self.hosts.iter().filter(move |host| host.place.is_some() == is_used);
            hosts.map(|host| host.host.as_str()).collect()
        };
        let (used, waiting) = (names(true), names(false));
        let waiting = match &waiting[..] {
            [] => String::new(),
            waiting => {
                format!("; {} waits: {}", counted(waiting.len(), "host"), waiting.join(", "))
            }
        };
        format!("{}{waiting}", counted(used.len(), "host"))
    }

    /// Who is there, and how many are missing, in words.
    pub fn missing(&self) -> String {
        let names = |is_lost| -> Vec<_> {
            let hosts = self.hosts.iter().filter(move |host| host.is_lost == is_lost);
            hosts.map(|host| host.host.as_str()).collect()
        };
        let (there, lost) = (names(false), names(true));
        let least = self.size.min_hosts.max(1);
        let number = there.len();
        let mut text = match number < least {
            true => format!("{number} of {} {}", counted(least, "host"), are_there(number)),
            false => {
                let multiple = self.size.multiple_of;
                format!(
                    "{} {}, but the mesh needs a multiple of {multiple} processes",
                    counted(number, "host"),
                    are_there(number)
                )
            }
        };
        for (what, hosts) in [(": ", there), ("; not heard of: ", lost)] {
            if !hosts.is_empty() {
                text = format!("{text}{what}{}", hosts.join(", "));
            }
        }
        text
    }

    /// A sign of life of a supervisor. Returns its host if it was lost.
    pub fn seen(&mut self, session: u64, now: Duration) -> Option<String> {
        let host = self.hosts.iter_mut().find(|host| host.session == session)?;
        host.last_seen = now;
        if !std::mem::take(&mut host.is_lost) {
            return None;
        }
        self.changed = now;
        Some(host.host.clone())
    }

    /// A call of a supervisor begins to wait for directives, or has ended.
    pub fn listens(&mut self, session: u64, now: Duration, begins: bool) {
        for host in self.hosts.iter_mut().filter(|host| host.session == session) {
            host.num_listening = match begins {
                true => host.num_listening + 1,
                false => host.num_listening.saturating_sub(1),
            };
            host.deaf_since = now;
        }
    }

    /// The first host of the generation that has not waited for directives for so long: its
    /// connection is closed. With its processes.
    pub fn hung_up(&self, now: Duration, since: Duration) -> Option<(String, Vec<usize>)> {
        let hung_up = |host: &&Supervisor| {
            let is_deaf = host.num_listening == 0;
            host.place.is_some() && is_deaf && now.saturating_sub(host.deaf_since) >= since
        };
        let host = self.hosts.iter().find(hung_up)?;
        Some((host.name(), host.processes().collect()))
    }

    /// A process has ended. `false` if it is not one of this supervisor, or was known to have
    /// ended.
    pub fn child_ended(&mut self, session: u64, process_index: usize) -> bool {
        let mut hosts = self.hosts.iter_mut();
        let Some(host) = hosts.find(|host| host.session == session) else { return false };
        let local = process_index.checked_sub(host.processes().start);
        match local.and_then(|local| host.has_ended.get_mut(local)) {
            Some(has_ended) => !std::mem::replace(has_ended, true),
            None => false,
        }
    }

    /// As [`Self::child_ended`], of a generation of a coordinator before this one.
    pub fn held_child_ended(&mut self, session: u64, ended: &ChildEnded) {
        let &ChildEnded { generation, process_index, exit_code, .. } = ended;
        let is_it =
            |host: &&mut Supervisor| host.session == session && host.held.generation == generation;
        let Some(host) = self.hosts.iter_mut().find(is_it) else { return };
        let local = (process_index as usize).checked_sub(host.processes().start);
        if let Some(has_ended) = local.and_then(|local| host.has_ended.get_mut(local)) {
            *has_ended = true;
            let well = exit_code.filter(|code| ends_well(*code));
            let ended = well.map(|exit_code| EndedRow { process_index, exit_code });
            host.held.ended.extend(ended);
        }
    }

    /// `true` when all processes have ended, those of lost supervisors included.
    pub fn all_ended(&self) -> bool {
        // Those of a host that was refused end with its supervisor.
        let mut hosts = self.there().filter(|host| host.refused.is_none());
        hosts.all(|host| host.has_ended.iter().all(|ended| *ended))
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
        self.hosts.iter().flat_map(running).collect()
    }

    /// Hosts whose supervisor was not heard of since `dead_after` before `now`, or for half of that
    /// if all its processes are `silent`; each named once, with their processes.
    pub fn take_silent(
        &mut self,
        now: Duration,
        dead_after: Duration,
        silent: &[usize],
    ) -> Vec<(String, Vec<usize>)> {
        self.take_lost(|host| {
            let are_silent =
                host.place.is_some_and(|_| host.processes().all(|p| silent.contains(&p)));
            let limit = if are_silent { dead_after / 2 } else { dead_after };
            now.saturating_sub(host.last_seen) > limit
        })
    }

    /// Hosts that have not received all directives, if the others are enough for a generation.
    pub fn take_unresponsive(&mut self, num_directives: usize) -> Vec<(String, Vec<usize>)> {
        let others = self
            .hosts
            .iter()
            .filter(|host| host.can_take_part() && host.has_received(num_directives));
        let others: Vec<_> = others.map(|host| host.num_local).collect();
        if self.size.num_used(&others).is_none() {
            return vec![];
        }
        self.take_lost(|host| !host.has_received(num_directives))
    }

    fn take_lost(&mut self, is_lost: impl Fn(&Supervisor) -> bool) -> Vec<(String, Vec<usize>)> {
        let mut lost = Vec::new();
        for host in self.hosts.iter_mut().filter(|host| host.is_there()) {
            if is_lost(host) {
                host.is_lost = true;
                lost.push((host.name(), host.processes().collect()));
            }
        }
        lost
    }

    /// A supervisor has received the first `num_known` directives.
    pub fn knows(&mut self, session: u64, num_known: usize) {
        for host in self.hosts.iter_mut().filter(|host| host.session == session) {
            host.num_known = num_known;
        }
    }

    /// The first directive that concerns the supervisor of this session, and its place.
    pub fn directed(&self, session: u64) -> Option<(usize, Option<HostPlace>)> {
        let host = self.hosts.iter().find(|host| host.session == session)?;
        Some((host.first_directive, host.place))
    }

    /// Who holds snapshots, as far as it is there, in the order of processes and then those that
    /// wait, and the one of the host that follows the host of this session in the generation; the
    /// first follows the last.
    pub fn holders(&self, session: u64) -> Holders {
        let in_ring: Vec<_> = self.hosts.iter().filter(|host| host.place.is_some()).collect();
        let own = in_ring.iter().position(|host| host.session == session);
        let next = own.filter(|_| in_ring.len() > 1);
        let next = next.map(|own| in_ring[(own + 1) % in_ring.len()].snapshot_address.clone());
        let mut there: Vec<_> = self.there().collect();
        there.sort_by_key(|host| host.place.map_or(usize::MAX, |place| place.first_process));
        let addresses = there.into_iter().map(|host| host.snapshot_address.clone());
        Holders {
            addresses: addresses.filter(|address| !address.is_empty()).collect(),
            next: next.unwrap_or_default(),
        }
    }

    /// `true` when all supervisors that belong to the job have received `num_directives`
    /// directives.
    pub fn all_know(&self, num_directives: usize) -> bool {
        let mut hosts = self.hosts.iter().filter(|host| host.can_take_part());
        hosts.all(|host| host.has_received(num_directives))
    }
}

fn are_there(number: usize) -> &'static str {
    if number == 1 { "is there" } else { "are there" }
}
