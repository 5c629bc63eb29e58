//! Programs that the next generation needs, compiled before a host is lost.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, DirEntry};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{
    BINARY, DIGITS, Running, last_step, launch_hosts, none_left, supervised_by, text, train, turn,
    variable,
};

/// A cache without programs, with the installed plugins.
fn empty_cache(dir: &Path) -> PathBuf {
    let output = Command::new(BINARY).args(["plugin", "list", "--json"]).output().unwrap();
    let plugins: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let cpu = plugins.iter().find(|plugin| plugin["name"] == "cpu").unwrap();
    let path = Path::new(cpu["path"].as_str().unwrap());
    let installed = path.ancestors().find(|dir| dir.ends_with("plugins")).unwrap();
    let cache = dir.join("cache");
    fs::create_dir(&cache).unwrap();
    symlink(installed, cache.join("plugins")).unwrap();
    cache
}

fn compiled(cache: &Path) -> BTreeSet<OsString> {
    let entries = fs::read_dir(cache.join("compiled")).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name());
    names.filter(|name| Path::new(name).extension().is_some_and(|end| end == "xla")).collect()
}

/// The processes under a supervisor that only compile.
fn compiling(supervisor: u32) -> Vec<u32> {
    let only_compiles = |pid: &u32| variable(*pid, "LOCKSTEP_ONLY_COMPILE").is_some();
    supervised_by(supervisor).filter(only_compiles).collect()
}

/// Of the threads of a process, the first of which only waits for the others.
fn priorities(pid: u32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let priority = |entry: DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(16)?.parse().ok()
    };
    threads.flatten().filter_map(priority).collect()
}

#[test]
fn a_lost_host_leaves_nothing_to_compile() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let cache = empty_cache(dir.path());
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let out = dir.path().join("out");
    let sets = [
        "train.epochs=10000",
        "train.eval_every=40",
        "mesh.data=3",
        "train.global_batch=48",
        "train.microbatch=16",
    ];
    let args = train(DIGITS, &sets, &["--resume", "--out", text(&out)]);
    let size = ["--hosts", "2:3", "--processes-per-host", "1"];
    let coordinator = ["--coordinator", &address, "--external-coordinator"];
    let args = launch_hosts(&[size.as_slice(), &coordinator].concat(), &args);
    let variables =
        [("LOCKSTEP_TOKEN", "0123456789abcdef0123456789abcdef"), ("LOCKSTEP_CACHE", text(&cache))];
    let start = || Running::start_with(dir.path(), &args, &variables);
    let (mut first, mut second, mut third) = (start(), start(), start());
    // They find it together, so that there is no generation of two.
    thread::sleep(Duration::from_secs(2));
    let listen = ["coordinator", "--listen", &address].map(str::to_owned);
    let mut coordinator = Running::start_with(dir.path(), &listen, &variables);
    coordinator.until("3 hosts", |it| it.said().contains("runs: 3 processes"));
    third.until_step(&out, 40);

    // At the lowest priority.
    first.until("compilers", |it| match compiling(it.child.id())[..] {
        [] => false,
        [pid] => priorities(pid).last() == Some(&19),
        _ => panic!("several at once"),
    });
    let of_three = compiled(&cache);
    let hosts = [first.child.id(), second.child.id(), third.child.id()];
    let mut idle_since = Instant::now();
    first.until("all programs", |_| {
        if hosts.iter().any(|host| !compiling(*host).is_empty()) {
            idle_since = Instant::now();
        }
        idle_since.elapsed().as_secs() >= 1
    });
    let beforehand = compiled(&cache);
    assert!(beforehand.len() >= of_three.len() + 3, "{of_three:?} {beforehand:?}");

    let pid = third.child.id();
    third.signal("KILL");
    third.child.wait().unwrap();
    none_left(pid);
    coordinator.until("2 hosts", |it| it.said().contains("runs: 2 processes"));
    let last = last_step(&out).unwrap();
    first.until_step(&out, last + 100);
    assert_eq!(compiled(&cache), beforehand, "programs were compiled after the failure");

    for host in [&mut second, &mut first] {
        host.signal("TERM");
        host.child.wait().unwrap();
        none_left(host.child.id());
    }
}
