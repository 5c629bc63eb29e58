//! Processes that are killed, stopped, missing or different, and what becomes of the run.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use super::{
    CARGO_DIR, DIGITS, Running, assert_same_run, last_step, launch, launch_hosts, none_left, run,
    send, summary, text, train, turn,
};

const SETS: [&str; 3] = ["train.epochs=40", "checkpoint.every_steps=30", "train.eval_every=300"];

#[test]
fn a_killed_process_is_named_and_the_run_goes_on() {
    let _turn = turn::alone();
    let dir = tempfile::tempdir().unwrap();
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));
    let args = train(DIGITS, &SETS, &["--out", text(&whole)]);
    run(dir.path(), &launch(2, &[], &args)).succeeded();

    let args = train(DIGITS, &SETS, &["--resume", "--out", text(&killed)]);
    let mut running = Running::start(dir.path(), &launch(2, &[], &args));
    running.until_step(&killed, 100);
    let (supervisor, workers) = (running.child.id(), running.workers());
    assert_eq!(workers.len(), 2);
    let (index, pid) = workers[1];
    send("KILL", pid);
    let since = Instant::now();
    let named = format!("process {index} (host ");
    running.until("the name of the process", |run| run.said().contains(&named));
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    let ended = running.end().succeeded();
    assert!(ended.stderr.contains("ended: killed by signal 9"), "{}", ended.stderr);
    assert!(ended.stderr.contains("generation 2 runs"), "{}", ended.stderr);
    none_left(supervisor);
    assert_same_run(&whole, &killed);
}

/// Each process is a stage.
#[test]
#[ignore = "trains for half a minute; of the full set"]
fn a_killed_stage_is_named_and_the_run_goes_on() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gpt.toml");
    let config = "[model]\nname = \"gpt\"\nnum_layers = 2\nwidth = 16\nnum_heads = 2\ncontext = 8\n\
                  vocabulary = 16\n[data]\nsource = \"synthetic_tokens\"\nvocab_size = 16\n\
                  context = 8\n[train]\nglobal_batch = 8\nnum_microbatches = 4\nsteps = 90\n\
                  [optimizer]\nname = \"adamw\"\n[schedule]\nname = \"constant\"\npeak = 1e-3\n\
                  [mesh]\ndata = 1\npipeline = 2\n[checkpoint]\nevery_steps = 15\n\
                  [compile.overrides]\nxla_backend_optimization_level = 0\n";
    fs::write(&path, config).unwrap();
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));
    let args = train(text(&path), &[], &["--out", text(&whole)]);
    run(dir.path(), &launch(2, &[], &args)).succeeded();

    let args = train(text(&path), &[], &["--resume", "--out", text(&killed)]);
    let mut running = Running::start(dir.path(), &launch(2, &[], &args));
    running.until_step(&killed, 40);
    let (supervisor, workers) = (running.child.id(), running.workers());
    let (index, pid) = workers[1];
    send("KILL", pid);
    let ended = running.end().succeeded();
    for expected in
        [&*format!("process {index} (host "), "ended: killed by signal 9", "generation 2 runs"]
    {
        assert!(ended.stderr.contains(expected), "{expected}: {}", ended.stderr);
    }
    none_left(supervisor);
    assert_same_run(&whole, &killed);
}

/// Longer than any patience. Two runs at the same time, of which one is frozen with all of its
/// processes: nobody has missed anything.
#[test]
fn a_run_goes_on_after_its_supervisor_was_frozen() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let [whole, alone, together] = ["whole", "alone", "together"].map(|name| dir.path().join(name));
    run(dir.path(), &launch(2, &[], &train(DIGITS, &SETS, &["--out", text(&whole)]))).succeeded();

    let start = |out| {
        let args = train(DIGITS, &SETS, &["--resume", "--out", text(out)]);
        let mut running = Running::start(dir.path(), &launch(2, &[], &args));
        running.until_step(out, 50);
        running
    };
    let runs = [start(&alone), start(&together)];
    let workers = runs[1].workers().into_iter().map(|(_, pid)| pid);
    let frozen: Vec<u32> = runs.iter().map(|run| run.child.id()).chain(workers).collect();
    frozen.iter().for_each(|pid| send("STOP", *pid));
    thread::sleep(Duration::from_secs(13));
    frozen.iter().for_each(|pid| send("CONT", *pid));
    let [alone_ended, together_ended] = runs.map(|run| {
        let supervisor = run.child.id();
        let ended = run.end().succeeded();
        none_left(supervisor);
        ended.stderr
    });
    for said in [&alone_ended, &together_ended] {
        assert!(said.contains("the coordinator did not run for 13 s"), "{said}");
    }
    assert!(alone_ended.contains("generation 2 runs"), "{alone_ended}");
    assert!(!together_ended.contains("failed"), "{together_ended}");
    assert_same_run(&whole, &alone);
    assert_same_run(&whole, &together);
}

/// A process that was killed keeps its locks until its memory is freed.
#[test]
fn a_run_that_is_started_again_at_once_waits_for_the_one_before() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let lock = fs::File::open(&out).unwrap();
    lock.try_lock().unwrap();
    let args = train(DIGITS, &["train.epochs=1"], &["--resume", "--out", text(&out)]);
    let mut running = Running::start(dir.path(), &launch(1, &[], &args));
    running.until("the wait", |run| run.said().contains("waiting up to 300 s until it has ended"));
    drop(lock);
    running.end().succeeded();
}

/// A checkpoint that cannot be read for a moment, and one that is damaged, when a run is to go on.
#[test]
fn a_restart_that_fails_is_not_the_end_of_a_run() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let [whole, failing] = ["whole", "failing"].map(|name| dir.path().join(name));
    let sets = ["train.epochs=60", "checkpoint.every_steps=200", "checkpoint.on_damaged=previous"];
    run(dir.path(), &launch(2, &[], &train(DIGITS, &sets, &["--out", text(&whole)]))).succeeded();

    let args = train(DIGITS, &sets, &["--resume", "--out", text(&failing)]);
    let mut running = Running::start(dir.path(), &launch(2, &[], &args));
    let of_step = |step: u64| failing.join(format!("checkpoints/step_{step:08}"));
    running.until("a checkpoint", |_| of_step(400).join("manifest.json").exists());
    // A directory in place of the manifest: reading it fails, as it does on a failing disk.
    let (manifest, aside) = (of_step(400).join("manifest.json"), of_step(400).join("aside"));
    fs::rename(&manifest, &aside).unwrap();
    fs::create_dir(&manifest).unwrap();
    send("KILL", running.workers()[1].1);
    running.until("a failed restart", |run| run.said().contains("generation 2 failed"));
    fs::remove_dir(&manifest).unwrap();
    fs::rename(&aside, &manifest).unwrap();
    running.until("another restart", |run| run.said().contains("generation 3 runs"));

    running.until("a checkpoint", |_| of_step(800).join("manifest.json").exists());
    let shard = of_step(800).join("shard_00000.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    send("KILL", running.workers()[1].1);
    let said = running.end().succeeded().stderr;
    for expected in [
        "step_00000800 is damaged: ",
        "the run continues from step_00000600, and takes 200 steps again",
        "resumed after 600 steps from ",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert_same_run(&whole, &failing);
}

/// A library that makes `fsync` hang in process 0 as long as the file `HANGS_WHILE` exists.
const HANGING_DISK: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/syscall.h>
int fsync(int file) {
    const char *index = getenv("LOCKSTEP_PROCESS_INDEX"), *hangs = getenv("HANGS_WHILE");
    while (index && hangs && !strcmp(index, "0") && !access(hangs, F_OK)) usleep(10000);
    return syscall(SYS_fsync, file);
}
"#;

/// The library, compiled.
pub fn hanging_disk(dir: &Path) -> PathBuf {
    let [source, library] = ["disk.c", "disk.so"].map(|name| dir.join(name));
    fs::write(&source, HANGING_DISK).unwrap();
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-o", text(&library), text(&source)]).status();
    assert!(compiled.expect("Rust's linker is installed").success());
    library
}

#[test]
fn a_disk_that_hangs_costs_checkpoints_and_no_steps() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let [out, hangs] = ["out", "hangs"].map(|name| dir.path().join(name));
    let library = hanging_disk(dir.path());
    let sets = ["train.epochs=4000", "checkpoint.every_steps=30"];
    let args = launch(2, &[], &train(DIGITS, &sets, &["--out", text(&out)]));
    let variables = [("LD_PRELOAD", text(&library)), ("HANGS_WHILE", text(&hangs))];
    let mut running = Running::start_with(dir.path(), &args, &variables);
    running.until_step(&out, 50);
    fs::write(&hangs, "").unwrap();
    running.until("a skipped checkpoint", |run| {
        run.said().contains("is skipped: the one before is still being written")
    });
    let step = last_step(&out).unwrap();
    running.until_step(&out, step + 200);
    fs::remove_file(&hangs).unwrap();
    running.signal("INT");
    let ended = running.end();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert!(!ended.stderr.contains("failed"), "{}", ended.stderr);
}

/// The restart is refused, and says what came first.
#[test]
fn a_restart_without_resume_does_not_hide_the_first_failure() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let args = train(DIGITS, &["train.epochs=4000"], &["--out", text(&out)]);
    let args = launch(2, &["--max-restarts", "1"], &args);
    let mut running = Running::start(dir.path(), &args);
    running.until_step(&out, 10);
    send("KILL", running.workers()[1].1);
    let ended = running.end();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.starts_with("warning: the command has no --resume"), "{}", ended.stderr);
    let last = ended.stderr.lines().last().unwrap();
    for expected in
        ["error: ", "generation 1 of this job has failed", "killed by signal 9", "--resume"]
    {
        assert!(last.contains(expected), "{expected}: {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("holds another run"), "{}", ended.stderr);
}

/// With the default times.
#[test]
fn a_frozen_process_is_named_within_ten_seconds() {
    let _turn = turn::alone();
    let dir = tempfile::tempdir().unwrap();
    let (out, record) = (dir.path().join("out"), dir.path().join("record"));
    let sets = ["train.epochs=4000", "checkpoint.every_steps=30"];
    let args = train(DIGITS, &sets, &["--resume", "--out", text(&out)]);
    let options = ["--record-dir", text(&record)];
    let mut running = Running::start(dir.path(), &launch(2, &options, &args));
    running.until_step(&out, 100);
    let (supervisor, workers) = (running.child.id(), running.workers());
    let (index, pid) = workers[1];
    send("STOP", pid);
    let since = Instant::now();
    let named = format!("process {index} (host ");
    running.until("the name of the process", |run| run.said().contains(&named));
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    running.until("another generation", |run| run.said().contains("generation 2 runs"));
    running.signal("TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
    assert!(ended.stderr.contains("no heartbeat"), "{}", ended.stderr);
    assert!(record.join("flight_recorder.jsonl").exists());
    none_left(supervisor);
}

#[test]
fn a_signal_saves_at_a_step_that_all_agree_on() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let (whole, stopped) = (dir.path().join("whole"), dir.path().join("stopped"));
    run(dir.path(), &launch(2, &[], &train(DIGITS, &SETS, &["--out", text(&whole)]))).succeeded();

    let args = train(DIGITS, &SETS, &["--resume", "--out", text(&stopped)]);
    let args = launch(2, &["--dead-after-secs", "0.8"], &args);
    let mut running = Running::start(dir.path(), &args);
    running.until_step(&stopped, 20);
    let supervisor = running.child.id();
    running.signal("TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
    none_left(supervisor);
    let interrupted = summary(&stopped);
    assert_eq!(interrupted["status"], "interrupted", "{}", ended.stderr);
    // 22 steps in each of 40 epochs.
    assert!(last_step(&stopped).unwrap() + 1 < 880);
    run(dir.path(), &args).succeeded();
    assert_same_run(&whole, &stopped);
}

#[test]
fn workers_end_with_their_supervisor() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let args = train(DIGITS, &["train.epochs=4000"], &["--out", text(&out)]);
    let (token, file) = ("0123456789abcdef".repeat(4), dir.path().join("token"));
    std::fs::write(&file, &token).unwrap();
    let mut running = Running::start(dir.path(), &launch(2, &["--token-file", text(&file)], &args));
    running.until_step(&out, 10);
    let supervisor = running.child.id();
    let workers = running.workers();
    assert_eq!(workers.len(), 2);
    // The token is in no list of processes, and in no message.
    for pid in workers.iter().map(|worker| worker.1).chain([supervisor]) {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(!String::from_utf8_lossy(&line).contains(&token));
    }
    assert!(!running.said().contains(&token));
    running.signal("KILL");
    running.child.wait().unwrap();
    none_left(supervisor);
}

/// Without a supervisor: process 0 keeps the coordinator.
#[test]
fn processes_that_differ_or_are_missing_are_named() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let start = |index: &str, sets: &[&str], token: &str| {
        let out = dir.path().join("out");
        let args = train(DIGITS, sets, &["--out", text(&out)]);
        let variables = [
            ("LOCKSTEP_COORDINATOR", &*address),
            ("LOCKSTEP_NUM_PROCESSES", "2"),
            ("LOCKSTEP_PROCESS_INDEX", index),
            ("LOCKSTEP_TOKEN", token),
        ];
        Running::start_with(dir.path(), &args, &variables)
    };
    let token = "0123456789abcdef0123456789abcdef";
    let deadline = "cluster.join_timeout_secs=6";

    let first = start("0", &["train.epochs=1", deadline], token);
    let second = start("1", &["train.epochs=1", "train.seed=7", deadline], token).end();
    assert_eq!(second.code, Some(1));
    assert!(second.stderr.contains("train.seed"), "{}", second.stderr);
    let first = first.end();
    assert_eq!(first.code, Some(1), "{}", first.stderr);
    assert!(first.stderr.contains('1'), "{}", first.stderr);

    let other = "ffffffffffffffffffffffffffffffff";
    let first = start("0", &["train.epochs=1", deadline], token);
    let refused = start("1", &["train.epochs=1", deadline], other).end();
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("token"), "{}", refused.stderr);
    assert!(!refused.stderr.contains(other), "{}", refused.stderr);
    let first = first.end();
    assert_eq!(first.code, Some(1));
    assert!(first.stderr.contains("process 1 has not joined"), "{}", first.stderr);
    assert!(!first.stderr.contains(token), "{}", first.stderr);

    // The same configuration, but as on hosts with different copies of the data: one pixel differs.
    let data = dir.path().join("digits.csv.gz");
    fs::copy(DIGITS.replace("digits.toml", "data/digits.csv.gz"), &data).unwrap();
    let path = format!("data.path={}", text(&data));
    let first = start("0", &["train.epochs=1", &path, deadline], token);
    thread::sleep(Duration::from_millis(1500));
    let mut rows = String::new();
    GzDecoder::new(fs::File::open(&data).unwrap()).read_to_string(&mut rows).unwrap();
    let changed = rows.replacen("0,", "1,", 1);
    let mut gzip = GzEncoder::new(fs::File::create(&data).unwrap(), Compression::fast());
    gzip.write_all(changed.as_bytes()).unwrap();
    gzip.finish().unwrap();
    for ended in [start("1", &["train.epochs=1", &path, deadline], token).end(), first.end()] {
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        let expected =
            "process 1 has other training data than process 0 (as many examples, but others)";
        assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    }

    let first = start("0", &["train.epochs=1", deadline], token);
    thread::sleep(Duration::from_millis(300));
    let second = start("1", &["train.epochs=1", deadline], token);
    first.end().succeeded();
    second.end().succeeded();
    assert_eq!(summary(&dir.path().join("out"))["num_processes"], 2);
}

/// A launcher gave index 0 to another host than the one that it names. A service could still lead
/// here, so that is a warning at once; it is repeated when nobody has come.
#[test]
fn process_0_says_that_the_others_look_for_it_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let args = train(DIGITS, &["train.epochs=1", "cluster.join_timeout_secs=0.6"], &[]);
    // TEST-NET-3, which no machine has (RFC 5737).
    let variables = [
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "203.0.113.9"),
        ("MASTER_PORT", "29517"),
        ("LOCKSTEP_TOKEN", "0123456789abcdef0123456789abcdef"),
    ];
    let ended = Running::start_with(dir.path(), &args, &variables).end();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    let [first, .., last] = &lines[..] else { panic!("{}", ended.stderr) };
    for (line, begins) in
        [(first, "warning: the coordinator's address is 203.0.113.9:29517"), (last, "error: ")]
    {
        assert!(line.starts_with(begins), "{}", ended.stderr);
        for fragment in ["no address of this host", "process 0, which runs the coordinator"] {
            assert!(line.contains(fragment), "{fragment}: {line}");
        }
    }
    assert!(last.contains("process 1 has not joined"), "{last}");

    let host_0 = ["--hosts", "2", "--coordinator", "203.0.113.9:29517"];
    let token = dir.path().join("token");
    fs::write(&token, variables[4].1).unwrap();
    let within = ["--token-file", text(&token), "--start-within-secs", "1"];
    let host_0 = [&host_0[..], &within].concat();
    let host_0 = run(dir.path(), &launch_hosts(&host_0, &args));
    assert_eq!(host_0.code, Some(1), "{}", host_0.stderr);
    let expected = "expected at 203.0.113.9:29517, which is no address of this host";
    assert!(host_0.stderr.contains(expected), "{}", host_0.stderr);
}

#[test]
fn hosts_that_make_no_job_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let args = train(DIGITS, &[], &[]);
    let resume =
        train(DIGITS, &["mesh.data=3", "train.global_batch=66"], &["--resume", "--out", "out"]);
    let at = ["--coordinator", "127.0.0.1:29517"];
    let refused = |options: &[&str], args: &[String], expected: &str| {
        let args = launch_hosts(&[options, &at[..]].concat(), args);
        let ended = Running::start_with(
            dir.path(),
            &args,
            &[("LOCKSTEP_TOKEN", "0123456789abcdef0123456789abcdef")],
        )
        .end();
        assert!(matches!(ended.code, Some(1 | 2)), "{}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{expected}: {}", ended.stderr);
    };
    refused(&["--hosts", "4:2"], &args, "the least number of hosts comes first");
    refused(&["--hosts", "0"], &args, "hosts are a number of at least 1");
    refused(&["--hosts", "2", "--num-processes", "2"], &args, "set --processes-per-host");
    refused(&["--hosts", "1:2"], &args, "give train --out DIR and --resume");
    let two = ["--hosts", "1:2", "--processes-per-host", "1"];
    refused(&two, &resume, "3 replicas, which the 2 processes of all hosts");
    let unknown = train(DIGITS, &["mesh.daata=3"], &["--resume", "--out", "out"]);
    refused(&two, &unknown, "mesh.daata");
    let any = ["--coordinator", "0.0.0.0:29519"];
    let args =
        launch_hosts(&[&two[..], &any].concat(), &train(DIGITS, &[], &["--resume", "--out", "o"]));
    let token = [("LOCKSTEP_TOKEN", "0123456789abcdef0123456789abcdef")];
    let ended = Running::start_with(dir.path(), &args, &token).end();
    assert!(ended.stderr.contains("is no address at which other hosts reach"), "{}", ended.stderr);
    let brackets = ["--hosts", "2", "--coordinator", "[[::1]]:29517"];
    assert_eq!(run(dir.path(), &launch_hosts(&brackets, &args)).code, Some(2));
}

/// An error that each attempt would meet ends the job at once; wrong arguments of `launch` too.
#[test]
fn what_would_fail_again_is_not_tried_again() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    for (sets, expected) in [
        (&["train.steeps=3"][..], "train.steeps"),
        (&["mesh.data=1"], "cannot share 1 replica evenly"),
        (&["parallel.host_collectives=false"], "parallel.host_collectives = false, but"),
        (&["schedule.warmup_steps=100000"], "warm-up"),
    ] {
        let ended = run(dir.path(), &launch(2, &[], &train(DIGITS, sets, &[])));
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{expected}: {}", ended.stderr);
        assert!(!ended.stderr.contains("generation 2"), "{}", ended.stderr);
    }
    let many = run(dir.path(), &launch(999_999, &[], &train(DIGITS, &[], &[])));
    assert_eq!(many.code, Some(2));
    assert!(many.stderr.contains("lower --num-processes"), "{}", many.stderr);
    for (command, expected) in [
        (&["plan", DIGITS][..], "-- train CONFIG"),
        (&["bench", DIGITS, "--processes", "2"], "leave out --processes"),
        (&["bench", DIGITS, "--profile"], "leave out --profile"),
    ] {
        let args = [&["launch", "--"], command].concat();
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        let ended = run(dir.path(), &args);
        assert_eq!(ended.code, Some(2));
        assert!(ended.stderr.contains(expected), "{}", ended.stderr);
        assert!(!ended.stderr.contains("generation"), "nothing is started: {}", ended.stderr);
    }
}

#[test]
fn the_coordinator_has_a_certificate() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| format!("{CARGO_DIR}/tests/support/tls/{name}.pem");
    let (authority, certificate, key) = (file("authority"), file("certificate"), file("key"));
    let tls = ["--tls-ca", &authority, "--tls-certificate", &certificate, "--tls-key", &key];
    let (open, encrypted) = (dir.path().join("open"), dir.path().join("encrypted"));
    let sets = ["train.epochs=2"];
    run(dir.path(), &launch(2, &[], &train(DIGITS, &sets, &["--out", text(&open)]))).succeeded();
    let args = train(DIGITS, &sets, &["--out", text(&encrypted)]);
    run(dir.path(), &launch(2, &tls, &args)).succeeded();
    assert_same_run(&open, &encrypted);

    // Another authority; parts that are missing.
    let wrong = ["--tls-ca", &certificate, "--tls-certificate", &certificate, "--tls-key", &key];
    let within = ["--start-within-secs", "3"];
    let refused = run(dir.path(), &launch(2, &[&wrong[..], &within].concat(), &args));
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("certificate"), "{}", refused.stderr);
    let partial = run(dir.path(), &launch(2, &tls[..4], &args));
    assert_eq!(partial.code, Some(1));
    assert!(partial.stderr.contains("tls_key is missing"), "{}", partial.stderr);
}

/// A directory that cannot be made stands for a disk that is full: each save fails at once in
/// process 0, whether or not the other one has begun with it.
#[test]
fn a_checkpoint_that_cannot_be_written_stops_nobody() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let (out, file) = (dir.path().join("out"), dir.path().join("checkpoints"));
    let checkpoints = format!("checkpoint.dir={}", text(&file));
    let sets = ["train.epochs=40", "checkpoint.every_steps=400", &checkpoints];
    let args = train(DIGITS, &sets, &["--out", text(&out)]);
    let mut running = Running::start(dir.path(), &launch(2, &[], &args));
    running.until_step(&out, 20);
    // A save that is under way on a busy machine may make its directory again.
    for attempt in 0..100 {
        let _ = std::fs::rename(&file, dir.path().join(format!("aside-{attempt}")));
        if std::fs::write(&file, "in the way").is_ok() {
            break;
        }
    }
    assert!(file.is_file());
    let since = Instant::now();
    let ended = running.end();
    assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains(text(&file)), "{}", ended.stderr);
    assert_eq!(summary(&out)["steps"], 880, "{}", ended.stderr);
}
