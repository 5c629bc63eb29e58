use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lockstep::cluster::{
    Coordinator, CoordinatorOptions, Etcd, JobChange, Member, MemberOptions, Secret, Watcher,
};
use lockstep::pjrt::{Code, KeyValueStore, Process};

use super::server::{Server, free_port};
use crate::{BINARY, alone};

const SECOND: Duration = Duration::from_secs(1);
const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits.toml");

/// The members of a job of `num_processes`, in threads of this process. Process 0 runs the
/// coordinator.
fn members(etcd: &Etcd, job: &str, num_processes: usize) -> Vec<Member> {
    let join = |index: usize| {
        let options = MemberOptions {
            coordinator: None,
            etcd: Some(etcd.clone()),
            job: job.to_owned(),
            secret: Secret::new(vec![7; 32]),
            generation: None,
            process: Process { index, num_processes },
            program: vec![],
            deadline: 60 * SECOND,
            own_heartbeat: Some(SECOND),
            gpus: None,
            tls: Default::default(),
            say: |text| eprintln!("{text}"),
        };
        thread::spawn(move || Member::join(options).unwrap())
    };
    let joining: Vec<_> = (0..num_processes).map(join).collect();
    joining.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Leaves one after the other, process 0, which runs the coordinator, beside them.
fn leave(members: Vec<Member>) {
    let leave = |member: Member| thread::spawn(move || member.leave("done").unwrap());
    let leaving: Vec<_> = members.into_iter().map(leave).collect();
    leaving.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn processes_meet_in_etcd_and_leave_nothing() {
    let server = Server::start();
    let (a, b) = (members(&server.client(), "a", 2), members(&server.client(), "a/b", 2));
    let (first, second): (Arc<dyn KeyValueStore>, _) = (a[0].store(), a[1].store());
    first.put(b"key\xff", b"value").unwrap();
    assert_eq!(second.get(b"key\xff", SECOND).unwrap(), b"value");
    assert_eq!(second.try_get(b"other").unwrap_err().code, Code::NotFound);
    assert_eq!(second.get(b"other", SECOND / 2).unwrap_err().code, Code::DeadlineExceeded);
    assert_eq!(second.put(b"key\xff", b"x").unwrap_err().code, Code::AlreadyExists);
    assert_eq!(b[0].store().try_get(b"key\xff").unwrap_err().code, Code::NotFound);
    for round in 0..4u8 {
        let gather = |member: &Member, index| {
            let session = member.session().clone();
            thread::spawn(move || session.gather("g/1", vec![round, index], 20 * SECOND).unwrap())
        };
        for gathering in [gather(&a[0], 0), gather(&a[1], 1)] {
            assert_eq!(gathering.join().unwrap(), [vec![round, 0], vec![round, 1]]);
        }
    }
    let error = a[1].session().gather("late", vec![], SECOND).unwrap_err().to_string();
    assert!(error.contains("process 0") && !error.contains("process 1"), "{error}");
    assert!(server.keys().iter().any(|key| key.starts_with("a%2Fb/1/alive/1")));
    leave(a);
    assert!(!server.keys().iter().any(|key| key.starts_with("a/")), "{:?}", server.keys());
    leave(b);
    assert_eq!(server.keys(), [""; 0]);
}

#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Watcher for Log {
    fn changed(&self, change: &JobChange) {
        if let JobChange::Failed(end) = change {
            self.0.lock().unwrap().push(end.reason.clone());
        }
    }
}

/// `lockstep launch` of two processes that train digits.
struct Launched {
    child: Child,
    out: PathBuf,
    stderr: PathBuf,
}

impl Launched {
    fn start(dir: &Path, name: &str, store: &str, epochs: usize) -> Self {
        let (out, stderr) = (dir.join(name), dir.join(format!("{name}.stderr")));
        let child = Command::new(BINARY)
            .args(["launch", "--num-processes", "2", "--store", store, "--", "train", DIGITS])
            .args([
                "--set",
                &format!("train.epochs={epochs}"),
                "--set",
                "checkpoint.every_steps=20",
            ])
            .args(["--resume", "--out"])
            .arg(&out)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        Self { child, out, stderr }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }

    fn num_steps(&self) -> usize {
        fs::read_to_string(self.out.join("metrics.jsonl")).map_or(0, |text| text.lines().count())
    }

    #[track_caller]
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !done(self) {
            let status = self.child.try_wait().unwrap();
            assert!(status.is_none() || done(self), "{what}: {status:?} {}", self.said());
            assert!(began.elapsed() < 240 * SECOND, "{what}: {}", self.said());
            thread::sleep(SECOND / 50);
        }
    }

    /// Its exit code.
    #[track_caller]
    fn end(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(began.elapsed() < 240 * SECOND, "{}", self.said());
            thread::sleep(SECOND / 50);
        }
    }

    fn fingerprint(&mut self) -> String {
        assert_eq!(self.end(), Some(0), "{}", self.said());
        let summary = fs::read_to_string(self.out.join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
        summary["params_fingerprint"].as_str().unwrap().to_owned()
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// etcd is killed and started again in the middle of one run, and a worker in another.
#[test]
fn a_run_with_etcd_computes_the_same_bits() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start();
    let expected = Launched::start(dir.path(), "builtin", "builtin", 20).fingerprint();

    let mut restarted = Launched::start(dir.path(), "restarted", &server.url(), 20);
    restarted.until("step 30", |run| run.num_steps() >= 30);
    assert!(!server.keys().is_empty());
    server.kill();
    thread::sleep(SECOND);
    server.restart();
    assert_eq!(restarted.fingerprint(), expected, "{}", restarted.said());
    assert_eq!(server.keys(), [""; 0]);

    let mut killed = Launched::start(dir.path(), "killed", &server.url(), 20);
    killed.until("step 30", |run| run.num_steps() >= 30);
    let supervisor = killed.child.id();
    let kill = format!("kill -9 $(pgrep -P {supervisor} | tail -n 1)");
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    assert_eq!(killed.fingerprint(), expected, "{}", killed.said());
    assert!(killed.said().contains("generation 2 runs"), "{}", killed.said());
    assert_eq!(server.keys(), [""; 0]);
}

#[test]
fn without_etcd_a_run_ends_with_its_name() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let endpoint = format!("127.0.0.1:{}", free_port());
    let began = Instant::now();
    let mut run = Launched::start(dir.path(), "none", &format!("etcd://{endpoint}"), 1);
    assert_eq!(run.end(), Some(1), "{}", run.said());
    assert!(began.elapsed() < 60 * SECOND);
    assert!(run.said().contains(&format!("no etcd answered at {endpoint}")), "{}", run.said());
}

/// A process that does not keep its lease alive is named, though heartbeats would take longer to
/// miss.
#[test]
fn a_process_without_its_lease_is_dead() {
    let server = Server::start();
    let log = Arc::new(Log::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = CoordinatorOptions::new("dead", Secret::new(vec![7; 32]), 1);
    options.dead_after = 600 * SECOND;
    let coordinator = Coordinator::start(listener, options, Arc::clone(&log) as Arc<_>).unwrap();
    let address = coordinator.address().to_string();
    let say = |text: &str| eprintln!("{text}");
    let registration =
        lockstep::cluster::Registration::publish(server.client(), "dead", &address, say).unwrap();
    let member = Member::join(MemberOptions {
        coordinator: None,
        etcd: Some(server.client()),
        job: "dead".to_owned(),
        secret: Secret::new(vec![7; 32]),
        generation: None,
        process: Process { index: 0, num_processes: 1 },
        program: vec![],
        deadline: 60 * SECOND,
        own_heartbeat: None,
        gpus: None,
        tls: Default::default(),
        say,
    })
    .unwrap();
    let wait = |until: &dyn Fn() -> bool, during: &dyn Fn()| {
        let began = Instant::now();
        while !until() && began.elapsed() < 30 * SECOND {
            during();
            registration.check(&coordinator);
            thread::sleep(SECOND / 20);
        }
    };
    let has_failed = || !log.0.lock().unwrap().is_empty();
    let began = Instant::now();
    wait(&|| began.elapsed() > 4 * SECOND, &|| {});
    assert!(!has_failed(), "its key is there");
    let remove = || drop(server.client().delete(b"/lockstep/dead/1/alive/0"));
    wait(&has_failed, &remove);
    let reasons = log.0.lock().unwrap().clone();
    assert!(reasons[0].contains("process 0 (host") && reasons[0].contains("lease"), "{reasons:?}");
    drop(member);
}
