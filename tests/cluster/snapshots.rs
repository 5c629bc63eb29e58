//! What is left of a state in the memory of supervisors when processes and hosts are killed.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::elastic::{Job, TOLERANCE, assert_whole, difference};
use super::{
    DIGITS, Running, assert_same_run, last_step, launch, none_left, run, send, summary, text,
    train, turn, variable,
};

const SETS: [&str; 3] =
    ["train.epochs=40", "train.eval_every=300", "checkpoint.snapshot_every_steps=10"];
const NUM_STEPS: u64 = 40 * 22;
const F64: &str = "train.precision=f64";

/// Of each generation, where its state came from, and the first step that it took.
#[track_caller]
fn starts(out: &Path) -> Vec<(String, u64)> {
    let summary = summary(out);
    let starts = summary["generation_starts"].as_array().unwrap();
    let of = |start: &Value| {
        (start["state_from"].as_str().unwrap().to_owned(), start["step"].as_u64().unwrap())
    };
    starts.iter().map(of).collect()
}

#[track_caller]
fn sources(out: &Path) -> Vec<String> {
    starts(out).into_iter().map(|(from, _)| from).collect()
}

/// The files of snapshots that a supervisor has, opened by a process of the same user.
fn slots(supervisor: u32) -> Vec<PathBuf> {
    let files = fs::read_dir(format!("/proc/{supervisor}/fd")).unwrap().flatten();
    let files = files.map(|entry| entry.path()).filter(|path| {
        fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("lockstep-snapshot"))
    });
    files.collect()
}

/// Bytes of memory in the slots of a supervisor.
fn held(supervisor: u32) -> Vec<u64> {
    let sizes =
        slots(supervisor).into_iter().map(|slot| fs::metadata(slot).map_or(0, |it| it.len()));
    sizes.filter(|size| *size > 0).collect()
}

/// Changes one bit of the values in each slot of a supervisor.
fn damage(supervisor: u32) {
    for slot in slots(supervisor) {
        let file = OpenOptions::new().read(true).write(true).open(slot).unwrap();
        let size = file.metadata().unwrap().len();
        if size > 0 {
            // In the values: they begin at 4096, and what describes them is shorter than they are.
            let mut byte = [0];
            file.read_exact_at(&mut byte, size / 2).unwrap();
            file.write_all_at(&[byte[0] ^ 1], size / 2).unwrap();
        }
    }
}

#[test]
fn a_killed_process_costs_no_checkpoint_and_no_bits() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));
    run(dir.path(), &launch(2, &[], &train(DIGITS, &SETS, &["--out", text(&whole)]))).succeeded();
    let args = train(DIGITS, &SETS, &["--resume", "--out", text(&killed)]);
    let mut running = Running::start(dir.path(), &launch(2, &[], &args));
    running.until_step(&killed, 100);
    let (supervisor, workers) = (running.child.id(), running.workers());
    // Two snapshots of parameters and two moments, of which each process has what no other before
    // it has, and the descriptions of the four files.
    let (state, most) = (3 * 336 * 1024, held(supervisor).iter().sum::<u64>());
    assert!((state..2 * state + 4 * (64 << 10)).contains(&most), "{most} bytes");
    assert!(held(supervisor).len() <= 4, "two slots of each process");
    // The token is no more in the new variables than in the arguments.
    let holders = variable(workers[0].1, "LOCKSTEP_SNAPSHOT_HOLDERS").unwrap();
    assert!(holders.starts_with("127.0.0.1:"), "{holders}");
    send("KILL", workers[0].1);
    running.until("another generation", |run| run.said().contains("generation 2 runs"));
    running.until("what it begins with", |run| run.said().contains("continues from memory after"));
    let ended = running.end().succeeded();
    none_left(supervisor);
    assert!(!ended.stderr.contains("warning"), "{}", ended.stderr);
    let starts = starts(&killed);
    assert_eq!((&*starts[0].0, &*starts[1].0), ("start", "memory"));
    assert!(starts[1].1 >= 80, "{starts:?}");
    assert_eq!(summary(&killed)["resumed_from"], "memory");
    assert_whole(&killed, NUM_STEPS);
    assert_same_run(&whole, &killed);
}

/// A bit of each snapshot is changed: the newest checkpoint is taken, and snapshots after that.
#[test]
fn a_damaged_snapshot_is_refused() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));
    let sets = [&SETS[..], &["checkpoint.every_steps=30"]].concat();
    run(dir.path(), &launch(2, &[], &train(DIGITS, &sets, &["--out", text(&whole)]))).succeeded();
    let args = train(DIGITS, &sets, &["--resume", "--out", text(&killed)]);
    let mut running = Running::start(dir.path(), &launch(2, &[], &args));
    running.until_step(&killed, 100);
    let workers = running.workers();
    // Nothing is written into the slots any more.
    workers.iter().for_each(|worker| send("STOP", worker.1));
    damage(running.child.id());
    send("KILL", workers[1].1);
    running.until("the checkpoint", |run| run.said().contains("resumed after "));
    let last = last_step(&killed).unwrap_or_default();
    running.until_step(&killed, last + 60);
    send("KILL", running.workers()[0].1);
    let ended = running.end().succeeded();
    for expected in ["warning: the state in memory after ", "has other bytes than were written"] {
        assert!(ended.stderr.contains(expected), "{expected}: {}", ended.stderr);
    }
    assert_eq!(sources(&killed), ["start", "checkpoint", "memory"], "{}", ended.stderr);
    assert_whole(&killed, NUM_STEPS);
    assert_same_run(&whole, &killed);
}

/// No checkpoint is ever saved on the way. One host of three is killed with all its processes, then
/// one comes, and its neighbour is killed.
#[test]
fn hosts_are_lost_and_their_neighbours_have_their_state() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let sets = [&SETS[1..], &[F64, "train.epochs=100"]].concat();
    run(dir.path(), &train(DIGITS, &sets, &["--out", text(&whole)])).succeeded();
    let mut job = Job::start(dir.path(), 4, 0, &train(DIGITS, &sets, &[]));
    (0..3).for_each(|_| job.come());
    job.until_processes(3, 60);
    job.kill(1);
    job.until_processes(2, 60);
    job.come();
    job.until_processes(3, 60);
    job.kill(0);
    job.until_processes(2, 30);
    let out = job.out.clone();
    let said = job.end();
    let starts = starts(&out);
    let sources: Vec<_> = starts.iter().map(|start| &*start.0).collect();
    assert_eq!(sources, ["start", "memory", "memory", "memory"], "{said}");
    assert!(starts.iter().skip(1).all(|start| start.1 > 30), "{starts:?}");
    assert_whole(&out, 100 * 22);
    let differ = difference(&whole, &out);
    assert!(differ < TOLERANCE, "{differ}");
}

/// Two hosts of four are lost together. The first one has all values, and the second its copies.
#[test]
fn a_host_and_its_neighbour_are_lost() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let sets = [&SETS[1..], &[F64, "train.epochs=50", "checkpoint.every_steps=40"]].concat();
    run(dir.path(), &train(DIGITS, &sets, &["--out", text(&whole)])).succeeded();
    for (lost, expected) in [([1, 2], "memory"), ([0, 1], "checkpoint")] {
        let dir = dir.path().join(expected);
        fs::create_dir(&dir).unwrap();
        let mut job = Job::start(&dir, 4, 0, &train(DIGITS, &sets, &[]));
        (0..4).for_each(|_| job.come());
        job.until_processes(4, 60);
        // Hosts have their places in the order in which they registered.
        job.hosts.sort_by_key(|host| host.workers()[0].0);
        let pids = lost.map(|index| job.hosts[index].child.id());
        pids.iter().for_each(|pid| send("KILL", *pid));
        for pid in pids {
            let mut host = job.hosts.remove(lost[0]);
            host.child.wait().unwrap();
            none_left(pid);
        }
        job.until_processes(2, 30);
        let out = job.out.clone();
        let said = job.end();
        assert_eq!(sources(&out), ["start", expected], "{said}");
        assert_whole(&out, 50 * 22);
        let differ = difference(&whole, &out);
        assert!(differ < TOLERANCE, "{differ}");
    }
}

/// All hosts that had the state are lost, and a spare has fetched it meanwhile.
#[test]
fn a_spare_has_the_state_at_hand() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let sets = [&SETS[..], &["mesh.data=2"]].concat();
    run(dir.path(), &launch(2, &[], &train(DIGITS, &sets, &["--out", text(&whole)]))).succeeded();
    let mut job = Job::start(dir.path(), 2, 1, &train(DIGITS, &sets, &[]));
    (0..2).for_each(|_| job.come());
    job.until_processes(2, 60);
    // It comes while the others train, or would: it takes some seconds, and they may be fast.
    job.come();
    let came = |it: &mut Running| it.said().contains("has come, and waits");
    job.coordinator.until("the spare", came);
    let workers = job.hosts[..2].iter().flat_map(Running::workers);
    workers.for_each(|(_, pid)| send("STOP", pid));
    let spare = job.hosts[2].child.id();
    // Parameters and two moments.
    let is_state = |bytes: &u64| *bytes > 3 * 336 * 1024;
    job.coordinator.until("the copy of the spare", |_| held(spare).iter().any(is_state));
    // Its record is written after its last byte.
    thread::sleep(Duration::from_millis(200));
    (0..2).for_each(|_| job.kill(0));
    job.come();
    job.until_processes(2, 30);
    let out = job.out.clone();
    let said = job.end();
    assert_eq!(sources(&out), ["start", "memory"], "{said}");
    assert_whole(&out, NUM_STEPS);
    assert_same_run(&whole, &out);
}

/// Each process has a shard of the parameters, and no other has it.
#[test]
fn sharded_states_are_put_together_again() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let sets = [
        &SETS[1..],
        &[F64, "train.epochs=60", "mesh.data=2", "mesh.fsdp=2", "train.microbatch=16"],
    ]
    .concat();
    run(dir.path(), &train(DIGITS, &sets, &["--out", text(&whole)])).succeeded();
    let mut job = Job::start(dir.path(), 4, 0, &train(DIGITS, &sets, &[]));
    (0..4).for_each(|_| job.come());
    job.until_processes(4, 60);
    // Three are left, of which two are a whole copy of the mesh.
    job.kill(2);
    job.until_processes(2, 30);
    thread::sleep(Duration::from_millis(100));
    let out = job.out.clone();
    let said = job.end();
    assert_eq!(sources(&out), ["start", "memory"], "{said}");
    assert_whole(&out, 60 * 22);
    let differ = difference(&whole, &out);
    assert!(differ < TOLERANCE, "{differ}");
}
