//! `lockstep coordinator`, on its own: killed and started again while a job runs.

use std::fs;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use super::{
    DIGITS, Running, assert_same_run, last_step, launch, none_left, run, text, train, turn,
};

const SETS: [&str; 3] = ["train.epochs=120", "checkpoint.every_steps=200", "model.hidden=[64]"];

#[test]
fn a_job_goes_on_when_its_coordinator_is_killed_and_started_again() {
    restart(2, 1, &["train.epochs=40"]);
}

#[test]
#[ignore = "a minute; of the full set"]
fn a_job_goes_on_when_its_coordinator_is_killed_ten_times() {
    restart(4, 10, &[]);
}

/// A job of so many processes of a host, whose coordinator is killed so many times.
fn restart(num_processes: usize, num_times: usize, sets: &[&str]) {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let (whole, restarted) = (dir.path().join("whole"), dir.path().join("restarted"));
    let sets = [&SETS[..], sets].concat();
    run(dir.path(), &launch(num_processes, &[], &train(DIGITS, &sets, &["--out", text(&whole)])))
        .succeeded();

    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let token = dir.path().join("token");
    fs::write(&token, "0123456789abcdef0123456789abcdef").unwrap();
    let token = text(&token);
    let args = ["coordinator", "--listen", &address, "--token-file", token];
    let args = args.map(str::to_owned);
    let start = || {
        let mut coordinator = Running::start(dir.path(), &args);
        coordinator.until("its address", |it| it.said().contains("waits for the hosts"));
        coordinator
    };
    let mut coordinator = start();
    let options = ["--coordinator", &address, "--external-coordinator", "--token-file", token];
    let args = train(DIGITS, &sets, &["--resume", "--out", text(&restarted)]);
    let mut job = Running::start(dir.path(), &launch(num_processes, &options, &args));
    for time in 0..num_times {
        let last = last_step(&restarted).unwrap_or(0);
        job.until_step(&restarted, last + 60);
        coordinator.signal("KILL");
        coordinator.child.wait().unwrap();
        // Once for longer than the processes have leave to go on.
        thread::sleep(Duration::from_millis(if time % 3 == 2 { 3000 } else { 200 }));
        coordinator = start();
        coordinator.until("the generation", |it| it.said().contains("generation 1 runs"));
    }
    let supervisor = job.child.id();
    let ended = job.end().succeeded();
    none_left(supervisor);
    assert!(!ended.stderr.contains("failed"), "{}", ended.stderr);
    assert_same_run(&whole, &restarted);
    let said = coordinator.said();
    assert!(said.contains("generation 1 goes on") && !said.contains("failed"), "{said}");
    // It waits for another job, until a signal ends it.
    coordinator.signal("TERM");
    assert_eq!(coordinator.end().code, Some(143));
}
