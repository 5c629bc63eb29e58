//! Two hosts: network namespaces, joined by a cable that can be cut. Nothing leaves them.
//!
//! Needs `unshare` and `nsenter` (util-linux), `ip` (iproute2), and the right to make namespaces.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{
    DIGITS, Running, assert_same_run, launch, launch_hosts, none_left, run, send, text, train,
    turn, workers_of,
};

/// Of host 0, in a range that is reserved for documentation.
pub const COORDINATOR: &str = "192.0.2.1:61400";
pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Options of a coordinator in the first supervisor.
pub const OWN_COORDINATOR: [&str; 4] = ["--dead-after-secs", "2", "--max-restarts", "1000"];

/// The hosts. They vanish with this, and with the processes that run there.
pub struct Hosts {
    /// A process in each, which keeps it.
    keepers: [Child; 2],
}

impl Hosts {
    pub fn new() -> Self {
        let keep = |command: &mut Command| {
            let keeper = command.args(["sleep", "100000"]).stdin(Stdio::null()).spawn();
            let mut keeper = keeper.expect("util-linux is installed");
            let name = format!("/proc/{}/comm", keeper.id());
            let since = Instant::now();
            while fs::read_to_string(&name).is_ok_and(|name| name.trim() != "sleep") {
                let status = keeper.try_wait().unwrap();
                assert!(status.is_none(), "network namespaces cannot be made: {status:?}");
                assert!(since.elapsed() < Duration::from_secs(20));
                thread::sleep(Duration::from_millis(5));
            }
            keeper
        };
        let first = keep(Command::new("unshare").args(["--map-root-user", "--net"]));
        let second = keep(Command::new(NSENTER).args(enter(first.id())).args(["unshare", "--net"]));
        let hosts = Self { keepers: [first, second] };
        let second = hosts.keepers[1].id().to_string();
        hosts.ip(
            0,
            &["link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", &second],
        );
        for (host, address) in ["192.0.2.1/24", "192.0.2.2/24"].into_iter().enumerate() {
            hosts.ip(host, &["link", "set", "lo", "up"]);
            hosts.ip(host, &["address", "add", address, "dev", "cable"]);
            hosts.ip(host, &["link", "set", "cable", "up"]);
        }
        hosts
    }

    /// What to put before a command that runs on a host.
    pub fn on(&self, host: usize) -> Vec<String> {
        [vec![NSENTER.to_owned()], enter(self.keepers[host].id())].concat()
    }

    /// Nothing passes between the hosts.
    pub fn cut(&self) {
        self.ip(0, &["link", "set", "cable", "down"]);
    }

    /// Everything passes again.
    pub fn mend(&self) {
        self.ip(0, &["link", "set", "cable", "up"]);
    }

    /// Starts the supervisor of a host.
    pub fn start(
        &self,
        dir: &Path,
        host: usize,
        num_processes: usize,
        train: &[String],
    ) -> Running {
        let token = [("LOCKSTEP_TOKEN", TOKEN)];
        let options = [&["--coordinator", COORDINATOR], &OWN_COORDINATOR[..]].concat();
        self.start_with(dir, host, num_processes, &options, &token, train)
    }

    /// With more options, and variables in its environment.
    pub fn start_with(
        &self,
        dir: &Path,
        host: usize,
        num_processes: usize,
        options: &[&str],
        variables: &[(&str, &str)],
        train: &[String],
    ) -> Running {
        let per_host = (num_processes / 2).to_string();
        let size = ["--hosts", "2", "--processes-per-host", &per_host];
        let args = launch_hosts(&[&size, options].concat(), train);
        Running::start_on(&self.on(host), dir, &args, variables)
    }

    fn ip(&self, host: usize, args: &[&str]) {
        let on = self.on(host);
        let status = Command::new(&on[0]).args(&on[1..]).arg("ip").args(args).status();
        assert!(status.expect("iproute2 is installed").success(), "ip {args:?}");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for keeper in self.keepers.iter_mut().rev() {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
    }
}

const NSENTER: &str = "nsenter";

fn enter(keeper: u32) -> Vec<String> {
    let target = keeper.to_string();
    ["--target", &target, "--user", "--preserve-credentials", "--net"].map(str::to_owned).into()
}

const SETS: [&str; 3] = ["train.epochs=50", "checkpoint.every_steps=30", "train.eval_every=500"];

#[test]
fn a_run_goes_on_after_the_network_was_cut() {
    let _turn = turn::alone();
    let dir = tempfile::tempdir().unwrap();
    let (whole, cut) = (dir.path().join("whole"), dir.path().join("cut"));
    run(dir.path(), &launch(2, &[], &train(DIGITS, &SETS, &["--out", text(&whole)]))).succeeded();

    let hosts = Hosts::new();
    let args = train(DIGITS, &SETS, &["--resume", "--out", text(&cut)]);
    let mut first = hosts.start(dir.path(), 0, 2, &args);
    let second = hosts.start(dir.path(), 1, 2, &args);
    first.until_step(&cut, 100);
    // What was lost is sent again before a process has been silent for too long.
    hosts.cut();
    thread::sleep(Duration::from_millis(300));
    hosts.mend();
    let last = super::last_step(&cut).unwrap();
    first.until_step(&cut, last + 200);
    assert!(!first.said().contains("failed"), "{}", first.said());

    hosts.cut();
    let since = Instant::now();
    first.until("the failure", |run| run.said().contains("generation 1 failed"));
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    first.until("the name of the host", |run| run.said().contains("the supervisor on "));
    thread::sleep(Duration::from_secs(1));
    hosts.mend();
    first.until("another generation", |run| run.said().contains("generation 2 runs"));
    let supervisors = [first.child.id(), second.child.id()];
    first.end().succeeded();
    second.end().succeeded();
    supervisors.into_iter().for_each(none_left);
    assert_same_run(&whole, &cut);
}

#[test]
fn supervisors_that_were_killed_are_started_again() {
    let _turn = turn::alone();
    let dir = tempfile::tempdir().unwrap();
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));
    run(dir.path(), &launch(2, &[], &train(DIGITS, &SETS, &["--out", text(&whole)]))).succeeded();

    let hosts = Hosts::new();
    let args = train(DIGITS, &SETS, &["--resume", "--out", text(&killed)]);
    let mut first = hosts.start(dir.path(), 0, 2, &args);
    let mut second = hosts.start(dir.path(), 1, 2, &args);
    first.until_step(&killed, 100);

    let kill = |running: &mut Running| {
        let supervisor = running.child.id();
        running.signal("KILL");
        running.child.wait().unwrap();
        none_left(supervisor);
    };
    kill(&mut second);
    second = hosts.start(dir.path(), 1, 2, &args);
    first.until("another generation", |run| run.said().contains("generation 2 runs"));
    let last = super::last_step(&killed).unwrap();
    first.until_step(&killed, last + 50);

    // With the first, the coordinator is gone.
    kill(&mut first);
    first = hosts.start(dir.path(), 0, 2, &args);
    second.until("another attempt", |run| run.said().contains("trying to reach it again"));
    // The second one tells the new coordinator of the generation that is not whole any more.
    first.until("its generation", |run| run.said().contains("generation 3 runs"));
    assert!(first.said().contains("the coordinator was started again"), "{}", first.said());
    let last = super::last_step(&killed).unwrap();
    first.until_step(&killed, last + 50);
    for (_, pid) in workers_of(second.child.id()) {
        send("KILL", pid);
    }
    first.until("another generation", |run| run.said().contains("generation 4 runs"));
    let supervisors = [first.child.id(), second.child.id()];
    first.end().succeeded();
    second.end().succeeded();
    supervisors.into_iter().for_each(none_left);
    assert_same_run(&whole, &killed);
}
