//! Compiled programs on disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use hlo::Literal;
use lockstep::pjrt::{Arg, CacheOutcome, CompileOptions, OverrideValue, compile_cached};

use crate::programs::{accumulate, client};

fn compile(num_replicas: usize, dim: usize, dir: &Path) -> CacheOutcome {
    let client = client(num_replicas);
    let (executable, outcome) = compile_cached(
        &client,
        &accumulate(num_replicas, dim),
        &CompileOptions::default(),
        Some(dir),
    )
    .unwrap();
    let ones = Arc::new(Literal::from_slice(&[dim], &vec![1f32; dim]));
    let x = client.upload_replicated(ones.clone()).unwrap();
    let state = client.upload_replicated(ones).unwrap();
    let launch = executable.execute(vec![Arg::Donate(state), Arg::Borrow(&x)]).unwrap();
    let expected = vec![1.0 + num_replicas as f64; dim];
    assert_eq!(launch.outputs[0].read(0).unwrap().to_f64(), expected);
    outcome
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn the_second_time_is_a_hit_and_another_program_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("made/when/needed");
    assert!(matches!(compile(2, 4, &dir), CacheOutcome::Stored));
    assert!(matches!(compile(2, 4, &dir), CacheOutcome::Hit));
    assert!(matches!(compile(2, 5, &dir), CacheOutcome::Stored));
    assert!(matches!(compile(1, 4, &dir), CacheOutcome::Stored));
    let client = client(2);
    let options = CompileOptions {
        overrides: [("xla_allow_excess_precision".into(), OverrideValue::Bool(false))].into(),
        ..CompileOptions::default()
    };
    let (_, outcome) = compile_cached(&client, &accumulate(2, 4), &options, Some(&dir)).unwrap();
    assert!(matches!(outcome, CacheOutcome::Stored));
    let (_, outcome) = compile_cached(&client, &accumulate(2, 4), &options, None).unwrap();
    assert!(matches!(outcome, CacheOutcome::Off));
}

#[test]
fn moved_source_lines_compile_nothing_anew() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(compile(1, 4, dir.path()), CacheOutcome::Stored));
    let mut program = accumulate(1, 4);
    program.text = program
        .text
        .replace("%a0, %r : tensor<4xf32>", "%a0, %r : tensor<4xf32> loc(\"x.rs\":1:2)");
    let (_, outcome) =
        compile_cached(&client(1), &program, &CompileOptions::default(), Some(dir.path())).unwrap();
    assert!(matches!(outcome, CacheOutcome::Hit), "{outcome:?}");
}

/// As `bench --profile` does: compiled for all processors, run on one.
#[cfg(target_os = "linux")]
#[test]
fn what_was_compiled_before_a_thread_was_bound_to_a_processor_is_found_after() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(compile(1, 4, dir.path()), CacheOutcome::Stored));
    let bound = || {
        let allowed = sched_getaffinity(None).unwrap();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap());
        sched_setaffinity(None, &one).unwrap();
        compile(1, 4, dir.path())
    };
    let outcome = std::thread::scope(|scope| scope.spawn(bound).join().unwrap());
    assert!(matches!(outcome, CacheOutcome::Hit));
}

/// The runtime of TPUs takes compiler flags from a variable of its own. The child is this test, run
/// again with it.
#[test]
fn another_environment_of_the_compiler_is_another_entry() {
    const DIR: &str = "LOCKSTEP_TEST_ENVIRONMENT_DIR";
    if let Some(dir) = std::env::var_os(DIR) {
        let outcome = compile(1, 4, Path::new(&dir));
        assert!(matches!(outcome, CacheOutcome::Stored), "{outcome:?}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(compile(1, 4, dir.path()), CacheOutcome::Stored));
    let test = "cache::another_environment_of_the_compiler_is_another_entry";
    for value in ["--xla_tpu_a=1", "--xla_tpu_a=2"] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", test]).env(DIR, dir.path()).env("LIBTPU_INIT_ARGS", value);
        assert!(child.status().unwrap().success(), "{value}");
    }
}

#[test]
fn a_damaged_entry_is_compiled_again() {
    let dir = tempfile::tempdir().unwrap();
    compile(2, 4, dir.path());
    let entry = entries(dir.path()).remove(0);
    let good = fs::read(&entry).unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [flipped, good[..good.len() / 2].to_vec(), Vec::new(), b"garbage".to_vec()] {
        fs::write(&entry, damaged).unwrap();
        let outcome = compile(2, 4, dir.path());
        assert!(matches!(outcome, CacheOutcome::Replaced { .. }), "{outcome:?}");
        assert!(matches!(compile(2, 4, dir.path()), CacheOutcome::Hit));
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_done_without() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a_file");
    fs::write(&file, "in the way").unwrap();
    // Below a file nobody can write, not even root.
    match compile(1, 4, &file.join("cache")) {
        CacheOutcome::NotStored { reason } => {
            assert!(reason.contains("LOCKSTEP_CACHE"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
}

/// The children are this test, run again with the directory set.
#[test]
fn two_processes_at_once_do_not_clash() {
    if let Some(dir) = std::env::var_os("LOCKSTEP_TEST_CACHE_DIR") {
        for dim in [4, 5, 6, 4, 5, 6] {
            let outcome = compile(2, dim, Path::new(&dir));
            assert!(matches!(outcome, CacheOutcome::Stored | CacheOutcome::Hit), "{outcome:?}");
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..2)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "cache::two_processes_at_once_do_not_clash"])
                .env("LOCKSTEP_TEST_CACHE_DIR", dir.path())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(entries(dir.path()).len(), 3, "one entry a program, and no temporary file");
}
