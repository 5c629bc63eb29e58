//! Events in a row, each during a run of two or four processes on one host or two, with a
//! coordinator of its own or a standalone one: the run goes on, says what happened, and what it
//! computes at the end is what an undisturbed run computes, bit for bit. Every kind of event occurs
//! once, in random order; `LOCKSTEP_NUM_EVENTS` is for more, random ones, and
//! `LOCKSTEP_LONGEST_SECS` for longer freezes.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::failures::hanging_disk;
use super::hosts::{COORDINATOR, Hosts, OWN_COORDINATOR, TOKEN};
use super::{
    DIGITS, Random, Running, TIMEOUT, assert_same_run, last_step, launch, none_left, run, send,
    text, train, turn,
};

/// What happens to a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// A worker is killed.
    Kill,
    /// Two workers are killed at once.
    KillTwo,
    /// A worker is frozen for longer than it may be silent.
    Freeze,
    /// A worker is frozen for a moment.
    Pause,
    /// A worker has half the processor for a while.
    Slow,
    /// The supervisor of a host, the first perhaps with the coordinator, is killed and started
    /// again.
    KillSupervisor,
    /// The supervisor of a host is frozen.
    FreezeSupervisor,
    /// The standalone coordinator is killed and started again.
    KillCoordinator,
    /// All processes are frozen, as by a virtual machine that is paused.
    FreezeAll,
    /// The disk with the checkpoints hangs.
    Disk,
    /// The run is asked to stop, and is started again.
    Stop,
    /// One worker is asked to stop, and with it the run, which is started again.
    StopWorker,
    /// The run is asked for a checkpoint.
    Save,
    /// The network between the hosts is cut for a moment.
    Delay,
    /// The network is cut for longer than a process may be silent.
    Cut,
}

const EVENTS: [Event; 15] = [
    Event::Kill,
    Event::KillTwo,
    Event::Freeze,
    Event::Pause,
    Event::Slow,
    Event::KillSupervisor,
    Event::FreezeSupervisor,
    Event::KillCoordinator,
    Event::FreezeAll,
    Event::Disk,
    Event::Stop,
    Event::StopWorker,
    Event::Save,
    Event::Delay,
    Event::Cut,
];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Every kind of event, in random order, and then random ones.
fn events(random: &mut Random, num_events: usize) -> Vec<Event> {
    let mut events = EVENTS.to_vec();
    for last in (1..events.len()).rev() {
        events.swap(last, random.below(last + 1));
    }
    events.extend((events.len()..num_events).map(|_| EVENTS[random.below(EVENTS.len())]));
    events
}

/// What the events happen to.
struct Place<'a> {
    dir: &'a Path,
    out: &'a Path,
    hosts: &'a Hosts,
    /// A library by which the disk of process 0 hangs as long as the file exists.
    disk: [&'a str; 2],
}

/// A run under a supervisor, or under one on each of two hosts.
struct Job<'a> {
    place: &'a Place<'a>,
    num_processes: usize,
    num_hosts: usize,
    /// The address of a standalone coordinator, if there is one.
    address: Option<String>,
    coordinator: Option<Running>,
    supervisors: Vec<Running>,
}

impl<'a> Job<'a> {
    /// A random job in which `rest` can happen.
    fn start(place: &'a Place<'a>, random: &mut Random, rest: &[Event]) -> Self {
        let num_processes = 2 * (1 + random.below(2));
        let needs = |event: &Event| matches!(event, Event::Delay | Event::Cut);
        let num_hosts = if rest.iter().any(needs) { 2 } else { 1 + random.below(2) };
        let is_standalone = rest.contains(&Event::KillCoordinator) || random.below(2) == 1;
        let address = is_standalone.then(|| match num_hosts {
            1 => TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string(),
            _ => COORDINATOR.to_owned(),
        });
        let (coordinator, supervisors) = (None, vec![]);
        let mut job = Self { place, num_processes, num_hosts, address, coordinator, supervisors };
        job.coordinator = job.start_coordinator();
        job.supervisors = (0..num_hosts).map(|host| job.start_host(host)).collect();
        job
    }

    fn start_coordinator(&self) -> Option<Running> {
        let address = self.address.as_ref()?;
        let args = [&["coordinator", "--listen", address], &OWN_COORDINATOR[..]].concat();
        let args: Vec<_> = args.into_iter().map(str::to_owned).collect();
        let prefix = if self.num_hosts == 2 { self.place.hosts.on(0) } else { vec![] };
        let token = [("LOCKSTEP_TOKEN", TOKEN)];
        let mut coordinator = Running::start_on(&prefix, self.place.dir, &args, &token);
        coordinator.until("its address", |it| it.said().contains("waits for the hosts"));
        Some(coordinator)
    }

    fn start_host(&self, host: usize) -> Running {
        let Place { dir, out, hosts, disk } = self.place;
        let args = train(DIGITS, &sets(), &["--resume", "--out", text(out)]);
        let variables =
            [("LD_PRELOAD", disk[0]), ("HANGS_WHILE", disk[1]), ("LOCKSTEP_TOKEN", TOKEN)];
        let mut options = match &self.address {
            Some(address) => vec!["--external-coordinator", "--coordinator", address],
            None => OWN_COORDINATOR.to_vec(),
        };
        if self.num_hosts == 1 {
            let args = launch(self.num_processes, &options, &args);
            return Running::start_with(dir, &args, &variables);
        }
        if self.address.is_none() {
            options.extend(["--coordinator", COORDINATOR]);
        }
        hosts.start_with(dir, host, self.num_processes, &options, &variables, &args)
    }

    fn has_ended(&mut self) -> bool {
        self.supervisors[0].child.try_wait().unwrap().is_some()
    }

    /// Workers of all hosts: the index and the process id of each.
    fn workers(&self) -> Vec<(usize, u32)> {
        self.supervisors.iter().flat_map(Running::workers).collect()
    }

    /// What the coordinator has said since it was last started.
    fn said(&self) -> String {
        self.coordinator.as_ref().unwrap_or(&self.supervisors[0]).said()
    }

    /// Waits for more steps, or the end.
    #[track_caller]
    fn until_it_trains(&mut self) {
        let (before, since) = (last_step(self.place.out), Instant::now());
        let trains = || last_step(self.place.out) > before.map(|step| step + 8);
        while !trains() && !self.has_ended() {
            assert!(since.elapsed() < TIMEOUT, "no steps after {before:?}: {}", self.said());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the supervisor of a host, and starts it again.
    fn kill_supervisor(&mut self, host: usize) {
        let killed = &mut self.supervisors[host];
        let pid = killed.child.id();
        killed.signal("KILL");
        killed.child.wait().unwrap();
        none_left(pid);
        self.supervisors[host] = self.start_host(host);
    }

    /// All processes but that of a test.
    fn all(&self) -> Vec<u32> {
        let supervisors = self.supervisors.iter().chain(&self.coordinator);
        let supervisors = supervisors.map(|running| running.child.id());
        supervisors.chain(self.workers().into_iter().map(|(_, pid)| pid)).collect()
    }

    /// Waits for the end, with one of these exit codes, on all hosts. Nothing is left over.
    #[track_caller]
    fn end(&mut self, codes: &[i32]) {
        for supervisor in self.supervisors.drain(..) {
            let pid = supervisor.child.id();
            let ended = supervisor.end();
            let code = ended.code.unwrap_or(-1);
            assert!(codes.contains(&code), "{code}: {}", ended.stderr);
            none_left(pid);
        }
        self.coordinator = None;
    }
}

fn sets() -> [&'static str; 3] {
    ["train.epochs=250", "checkpoint.every_steps=40", "model.hidden=[64]"]
}

/// What a coordinator must say after an event that was for the first of `victims`: whether a
/// generation failed, and the words of that line.
fn expected(event: Event, job: &Job<'_>, victims: &[usize], host: usize) -> (bool, Vec<String>) {
    let has_coordinator = job.coordinator.is_none() && host == 0;
    let process = |victim: usize| format!("process {} (", victims[victim]);
    match event {
        Event::Kill | Event::Freeze => (true, vec![process(0)]),
        Event::KillTwo => (true, vec![process(0), process(1)]),
        Event::KillSupervisor if has_coordinator => (false, vec!["started again".to_owned()]),
        Event::KillSupervisor | Event::Cut => (true, vec!["supervisor on".to_owned()]),
        Event::FreezeSupervisor if has_coordinator => (false, vec!["did not run".to_owned()]),
        Event::FreezeSupervisor => (false, vec!["supervisor on".to_owned()]),
        Event::FreezeAll => (false, vec!["did not run".to_owned()]),
        _ => (false, vec![]),
    }
}

#[test]
fn a_run_survives_events_of_every_kind() {
    let _turn = turn::alone();
    let (num_events, seed) = (setting("LOCKSTEP_NUM_EVENTS", 0), setting("LOCKSTEP_SEED", 1));
    let longest = setting("LOCKSTEP_LONGEST_SECS", 4) as usize;
    let dir = tempfile::tempdir().unwrap();
    let (whole, disturbed) = (dir.path().join("whole"), dir.path().join("disturbed"));
    run(dir.path(), &launch(2, &[], &train(DIGITS, &sets(), &["--out", text(&whole)]))).succeeded();

    let mut random = Random { seed, count: 0 };
    let events = events(&mut random, num_events as usize);
    eprintln!("seed {seed}: {events:?}");
    let (library, hangs) = (hanging_disk(dir.path()), dir.path().join("hangs"));
    let disk = [text(&library), text(&hangs)];
    let place = Place { dir: dir.path(), out: &disturbed, hosts: &Hosts::new(), disk };
    let mut job = Job::start(&place, &mut random, &events);
    for (number, event) in events.iter().copied().enumerate() {
        // Half of the events wait for the one before to be over, and are judged by what is said.
        let is_judged = random.below(2) == 0;
        let victims = loop {
            thread::sleep(Duration::from_millis(300 + random.below(1500) as u64));
            if is_judged {
                job.until_it_trains();
            }
            if job.has_ended() {
                // It was done: once more from the beginning.
                job.end(&[0]);
                assert_same_run(&whole, &disturbed);
                fs::remove_dir_all(&disturbed).unwrap();
                job = Job::start(&place, &mut random, &events[number..]);
                continue;
            }
            let mut workers = job.workers();
            if workers.len() == job.num_processes {
                let second = random.below(workers.len());
                let len = workers.len();
                workers.swap(0, second);
                workers.swap(1, 1 + random.below(len - 1));
                break workers;
            }
        };
        let host = random.below(job.num_hosts);
        let secs = Duration::from_secs(1 + random.below(longest) as u64);
        let (victim, before) = (victims[0].1, job.said().len());
        let kind = if job.coordinator.is_some() { "standalone" } else { "own" };
        eprintln!(
            "event {number}: {event:?} of {:?}, host {host} of {}, {secs:?}, {kind} coordinator",
            &victims[..2],
            job.num_hosts,
        );
        let mut is_new = false;
        match event {
            Event::Kill => send("KILL", victim),
            Event::KillTwo => victims[..2].iter().for_each(|(_, pid)| send("KILL", *pid)),
            Event::Freeze => send("STOP", victim),
            Event::Pause => stop_for(&[victim], Duration::from_millis(200)),
            Event::Slow => {
                for _ in 0..20 {
                    stop_for(&[victim], Duration::from_millis(25));
                    thread::sleep(Duration::from_millis(25));
                }
            }
            Event::KillSupervisor => {
                is_new = job.coordinator.is_none() && host == 0;
                job.kill_supervisor(host);
            }
            Event::FreezeSupervisor => stop_for(&[job.supervisors[host].child.id()], secs),
            Event::FreezeAll => stop_for(&job.all(), secs),
            Event::KillCoordinator => {
                if let Some(mut coordinator) = job.coordinator.take() {
                    coordinator.signal("KILL");
                    coordinator.child.wait().unwrap();
                    thread::sleep(Duration::from_millis(random.below(3000) as u64));
                    (job.coordinator, is_new) = (job.start_coordinator(), true);
                }
            }
            Event::Disk => {
                fs::write(&hangs, "").unwrap();
                thread::sleep(secs);
                fs::remove_file(&hangs).unwrap();
            }
            Event::Stop | Event::StopWorker => {
                match event {
                    Event::StopWorker => send("TERM", victim),
                    _ => job.supervisors.iter().for_each(|supervisor| supervisor.signal("TERM")),
                }
                // It may have been done just then.
                job.end(&[143, 0]);
                job = Job::start(&place, &mut random, &events[number + 1..]);
                continue;
            }
            Event::Save => job.supervisors[0].signal("USR1"),
            Event::Delay | Event::Cut => {
                let millis = if matches!(event, Event::Cut) { 3000 } else { 200 };
                place.hosts.cut();
                thread::sleep(Duration::from_millis(millis));
                place.hosts.mend();
            }
        }
        if is_judged {
            // Lines of steps before it are written within a second.
            thread::sleep(Duration::from_millis(1500));
            job.until_it_trains();
            let indices: Vec<_> = victims.iter().map(|(index, _)| *index).collect();
            let (must_fail, words) = expected(event, &job, &indices, host);
            let said = job.said()[if is_new { 0 } else { before }..].to_owned();
            let relevant = |line: &&str| line.contains("failed") || line.contains("coordinator");
            said.lines().filter(relevant).for_each(|line| eprintln!("    {line}"));
            let failures: Vec<_> = said.lines().filter(|line| line.contains(" failed ")).collect();
            let is_named = |line: &&str| words.iter().all(|word| line.contains(word));
            assert!(failures.len() <= 1 && failures.iter().all(is_named), "{words:?}: {said}");
            assert!(!must_fail || !failures.is_empty() || job.has_ended(), "{words:?}: {said}");
        }
    }
    job.end(&[0]);
    assert_same_run(&whole, &disturbed);
}

/// Freezes processes for a while.
fn stop_for(pids: &[u32], time: Duration) {
    pids.iter().for_each(|pid| send("STOP", *pid));
    thread::sleep(time);
    pids.iter().for_each(|pid| send("CONT", *pid));
}
