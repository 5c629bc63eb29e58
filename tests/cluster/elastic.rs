//! Jobs whose hosts come, leave and are killed: several supervisors of this machine, each a host.
//!
//! A run of any sequence of hosts is the same training; only the order of sums differs.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use safetensors::SafeTensors;
use serde_json::Value;

use super::{
    DIGITS, Running, TIMEOUT, last_step, launch_hosts, metrics, none_left, run, summary, text,
    train, turn,
};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A job of 2 (`min_hosts`) to `max_hosts` hosts with a process each, and a coordinator of its own.
pub(super) struct Job {
    dir: PathBuf,
    pub out: PathBuf,
    address: String,
    pub min_hosts: usize,
    max_hosts: usize,
    num_spares: usize,
    args: Vec<String>,
    pub coordinator: Running,
    pub hosts: Vec<Running>,
}

impl Job {
    pub fn start(dir: &Path, max_hosts: usize, num_spares: usize, args: &[String]) -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let coordinator = ["coordinator", "--listen", &address].map(str::to_owned);
        let token = [("LOCKSTEP_TOKEN", TOKEN)];
        let mut coordinator = Running::start_with(dir, &coordinator, &token);
        coordinator.until("its address", |it| it.said().contains("waits for the hosts"));
        let out = dir.join("out");
        let args = [args, &["--resume".into(), "--out".into(), text(&out).into()]].concat();
        let (dir, hosts) = (dir.to_owned(), vec![]);
        let min_hosts = 2;
        Self { dir, out, address, min_hosts, max_hosts, num_spares, args, coordinator, hosts }
    }

    /// A host comes.
    pub fn come(&mut self) {
        let host = self.start_host(&self.args);
        self.hosts.push(host);
    }

    fn start_host(&self, args: &[String]) -> Running {
        let Self { min_hosts, max_hosts, .. } = self;
        let (range, spares) = (format!("{min_hosts}:{max_hosts}"), self.num_spares.to_string());
        let options = [
            ["--hosts", &range],
            ["--spares", &spares],
            ["--processes-per-host", "1"],
            ["--coordinator", &self.address],
        ];
        let options = [options.as_flattened(), &["--external-coordinator"]].concat();
        let args = launch_hosts(&options, args);
        Running::start_with(&self.dir, &args, &[("LOCKSTEP_TOKEN", TOKEN)])
    }

    /// A host is killed.
    pub fn kill(&mut self, index: usize) {
        let mut host = self.hosts.remove(index);
        let pid = host.child.id();
        host.signal("KILL");
        host.child.wait().unwrap();
        none_left(pid);
    }

    /// A host leaves in good order.
    pub fn leave(&mut self, index: usize) {
        let host = self.hosts.remove(index);
        host.signal("TERM");
        assert_eq!(host.end().code, Some(143));
    }

    /// Waits until so many processes train, and have taken some more steps.
    pub fn until_processes(&mut self, number: usize, num_steps: u64) {
        let runs = format!("runs: {number} process");
        let host = &mut self.hosts[0];
        self.coordinator.until(&runs, |it| {
            let ended = host.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}{}", it.said(), host.said());
            let said = it.said();
            said.lines()
                .rfind(|line| line.contains("generation"))
                .is_some_and(|l| l.contains(&runs))
        });
        let last = last_step(&self.out).unwrap_or(0);
        self.hosts[0].until_step(&self.out, last + num_steps);
    }

    /// The number of the generation that runs or ran last, 0 before the first.
    pub fn generation(&self) -> u64 {
        self.last_generation().map_or(0, |(number, _)| number)
    }

    /// The last generation that has formed, and its processes.
    fn last_generation(&self) -> Option<(u64, usize)> {
        let said = self.coordinator.said();
        let of_line = |line: &str| {
            let (number, processes) = line.split_once("generation ")?.1.split_once(" runs: ")?;
            let processes = processes.split(' ').next()?;
            Some((number.parse().ok()?, processes.parse().ok()?))
        };
        said.lines().rev().find_map(of_line)
    }

    /// Waits until a generation, or one after it, has so many processes, and has taken some steps.
    pub fn until_generation(&mut self, number: u64, processes: usize, num_steps: u64) {
        let start = Instant::now();
        while !self.last_generation().is_some_and(|it| it.0 >= number && it.1 == processes) {
            let said = self.coordinator.said();
            let what = format!("generation {number} of {processes} processes");
            assert!(start.elapsed() < TIMEOUT, "{what} was waited for in vain:\n{said}");
            for host in &mut self.hosts {
                let ended = host.child.try_wait().unwrap();
                assert!(ended.is_none(), "{what}: {ended:?}: {said}{}", host.said());
            }
            thread::sleep(Duration::from_millis(5));
        }
        let last = last_step(&self.out).unwrap_or(0);
        self.hosts[0].until_step(&self.out, last + num_steps);
    }

    /// Asks the job to stop, from which it could go on.
    pub fn stop(mut self) {
        self.hosts[0].signal("INT");
        for host in self.hosts.drain(..) {
            let pid = host.child.id();
            let ended = host.end();
            assert_eq!(ended.code, Some(130), "{}", ended.stderr);
            none_left(pid);
        }
    }

    pub fn end(mut self) -> String {
        for host in self.hosts.drain(..) {
            let pid = host.child.id();
            host.end().succeeded();
            none_left(pid);
        }
        self.coordinator.said()
    }
}

/// Of a run, by name.
pub(super) fn parameters(out: &Path) -> BTreeMap<String, Vec<f64>> {
    let bytes = fs::read(out.join("params.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let values =
        |data: &[u8]| data.as_chunks().0.iter().map(|value| f64::from_le_bytes(*value)).collect();
    tensors.iter().map(|(name, tensor)| (name.clone(), values(tensor.data()))).collect()
}

/// The largest difference of two parameters.
pub(super) fn difference(a: &Path, b: &Path) -> f64 {
    let (a, b) = (parameters(a), parameters(b));
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    let of_leaf = |name: &String| {
        let (a, b) = (&a[name], &b[name]);
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).fold(0f64, |most, (a, b)| most.max((a - b).abs()))
    };
    a.keys().map(of_leaf).fold(0f64, f64::max)
}

/// Each step was taken, and its line is there once, in order.
pub(super) fn assert_whole(out: &Path, num_steps: u64) {
    let steps: Vec<_> = metrics(out).iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (0..num_steps).collect::<Vec<_>>());
}

const SETS: [&str; 4] = [
    "train.epochs=100",
    "checkpoint.every_steps=40",
    "train.eval_every=2000",
    "train.precision=f64",
];
const NUM_STEPS: u64 = 100 * 22;
/// Of parameters: sums are rounded in another order.
pub(super) const TOLERANCE: f64 = 1e-10;

#[test]
fn hosts_come_leave_and_are_killed() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    run(dir.path(), &train(DIGITS, &SETS, &["--out", text(&whole)])).succeeded();

    let mut job = Job::start(dir.path(), 4, 0, &train(DIGITS, &SETS, &[]));
    job.come();
    job.come();
    job.until_processes(2, 60);
    job.come();
    job.until_processes(3, 60);
    job.kill(0);
    job.until_processes(2, 60);
    job.come();
    job.come();
    job.until_processes(4, 60);
    job.leave(1);
    job.until_processes(3, 20);
    let out = job.out.clone();
    let said = job.end();
    assert_whole(&out, NUM_STEPS);
    let summary = summary(&out);
    assert_eq!((&summary["num_processes"], &summary["global_batch"]), (&3.into(), &64.into()));
    let failed = summary["failed_generations"].as_array().unwrap();
    assert_eq!(failed.len(), 1, "hosts that come and leave are no failures: {said}");
    assert!(failed[0]["reason"].as_str().unwrap().contains("the supervisor on "), "{failed:?}");
    let starts = summary["generation_starts"].as_array().unwrap();
    let of = |key: &str| -> Vec<_> { starts.iter().map(|start| start[key].clone()).collect() };
    assert_eq!(of("num_hosts"), [2, 3, 2, 4, 3]);
    assert_eq!(of("after"), ["start", "hosts", "failure", "hosts", "hosts"]);
    assert!(of("first_step_secs").iter().all(|secs| secs.as_f64().is_some_and(|it| it > 0.0)));
    let differ = difference(&whole, &out);
    assert!(differ < TOLERANCE, "{differ}");
}

/// A host that is left alone hears of others that come, and of its own signals.
#[test]
fn a_job_shrinks_to_one_process_and_grows_again() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let (whole, constant) = (dir.path().join("whole"), "schedule.name=\"constant\"");
    let sets = [&SETS[1..], &["mesh.data=2", constant]].concat();
    let args = |steps: u64, more: &[&str]| {
        let steps = format!("train.steps={steps}");
        let more = [&["--unset", "train.epochs"], more].concat();
        train(DIGITS, &[&sets[..], &[&steps]].concat(), &more)
    };
    let mut job = Job::start(dir.path(), 2, 0, &args(1_000_000, &[]));
    job.min_hosts = 1;
    job.come();
    job.until_processes(1, 20);
    job.come();
    job.until_processes(2, 20);
    job.kill(0);
    job.until_processes(1, 20);
    job.come();
    job.until_processes(2, 20);
    job.leave(0);
    job.until_processes(1, 20);
    // One that would save elsewhere is left out.
    let elsewhere = dir.path().join("elsewhere");
    let elsewhere = args(1_000_000, &["--resume", "--out", text(&elsewhere)]);
    let refused = job.start_host(&elsewhere).end();
    assert_eq!(refused.code, Some(1));
    for expected in ["goes on without this host", "do not see each other's files in"] {
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
    job.until_processes(1, 20);
    let out = job.out.clone();
    job.stop();
    let steps = last_step(&out).unwrap() + 11;
    for out in [&whole, &out] {
        run(dir.path(), &args(steps, &["--resume", "--out", text(out)])).succeeded();
    }
    assert_whole(&out, steps);
    let differ = difference(&whole, &out);
    assert!(differ < TOLERANCE, "{differ}");
}

#[test]
fn a_spare_takes_the_place_of_a_host_with_the_same_bits() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let undisturbed = dir.path().join("undisturbed");
    fs::create_dir(&undisturbed).unwrap();
    let sets = [&SETS[1..], &["train.epochs=40", "mesh.data=2"]].concat();
    let args = train(DIGITS, &sets, &[]);
    let fingerprint = |out: &Path| -> Value { summary(out)["params_fingerprint"].clone() };
    let run_of = |dir: &Path, is_disturbed: bool| {
        let mut job = Job::start(dir, 2, 1, &args);
        (0..2).for_each(|_| job.come());
        job.until_processes(2, 60);
        if is_disturbed {
            job.come();
            job.coordinator.until("the spare", |it| it.said().contains("has come, and waits"));
            job.kill(0);
            job.until_processes(2, 60);
        }
        let out = job.out.clone();
        job.end();
        assert_whole(&out, 40 * 22);
        fingerprint(&out)
    };
    assert_eq!(run_of(&undisturbed, false), run_of(dir.path(), true));
}

/// Axes other than `data` keep their sizes: hosts beyond whole copies of them wait.
#[test]
#[ignore = "a minute; of the full set"]
fn a_gpt_on_data_and_fsdp_goes_on_in_whole_copies() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let sets = [
        "train.precision=f64",
        "train.steps=400",
        "train.global_batch=8",
        "train.microbatch=1",
        "train.eval_every=1000",
        "checkpoint.every_steps=20",
        "model.num_layers=2",
        "model.width=32",
        "model.num_heads=4",
        "mesh.data=2",
        "mesh.fsdp=2",
    ];
    let gpt = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/gpt-bytes.toml");
    run(dir.path(), &train(gpt, &sets, &["--out", text(&whole)])).succeeded();
    let mut job = Job::start(dir.path(), 4, 0, &train(gpt, &sets, &[]));
    (0..2).for_each(|_| job.come());
    job.until_processes(2, 20);
    job.come();
    job.coordinator.until("the third host", |it| it.said().contains("has come, and waits"));
    thread::sleep(Duration::from_secs(3));
    assert!(!job.coordinator.said().contains("generation 2"), "{}", job.coordinator.said());
    job.come();
    job.until_processes(4, 20);
    job.kill(2);
    job.until_processes(2, 20);
    let out = job.out.clone();
    let said = job.end();
    assert!(said.contains("2 processes on 2 hosts; 1 host waits"), "{said}");
    assert_whole(&out, 400);
    let differ = difference(&whole, &out);
    println!("parameters differ by {differ:.1e}");
    assert!(differ < TOLERANCE, "{differ}");
}
