//! The job files in `examples/cluster`: what they start, with programs of the cluster that only
//! write down how they are called.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{BINARY, lockstep, text};

/// Programs of launchers: each runs, or has run, the command that is left of its arguments.
const LAUNCHERS: [(&str, &str); 7] = [
    // What it is called with stands in a file of its own, a line for each argument. A script may
    // kill it at any time, so the file is there whole or not at all.
    (
        "lockstep",
        "printf '%s\\n' \"$@\" > \"$CALLS.$$\"; mv \"$CALLS.$$\" \"$CALLS/$$\"; \
         [ -z \"${STAYS:-}\" ] || /bin/sleep 0.5",
    ),
    ("sleep", ""),
    ("openssl", "printf '%064d\\n' 0"),
    ("scontrol", ""),
    ("srun", "while [ \"$1\" != lockstep ]; do shift; done; exec \"$@\""),
    ("ssh", "exec bash -c \"$(sed 's#^cd .* && IFS#IFS#; s#target/release/##' <<< \"$2\")\""),
    (
        "gcloud",
        "for arg; do case $arg in --command=*) exec bash -c \"$(sed \
         's#--command=cd lockstep && ##; s#target/release/##' <<< \"$arg\")\";; esac; done",
    ),
];

fn job_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/cluster").join(name)
}

/// The calls of `lockstep` by a script.
fn calls(dir: &Path, name: &str, args: &[&str], env: &[(&str, &str)]) -> Vec<Vec<String>> {
    let programs = dir.join("bin");
    if !programs.exists() {
        fs::create_dir(&programs).unwrap();
        for (program, does) in LAUNCHERS {
            let path = programs.join(program);
            fs::write(&path, format!("#!/bin/bash\n{does}\nexit 0\n")).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(dir.join("lockstep-token"), "0".repeat(64)).unwrap();
    }
    let found = dir.join(format!("{name}.calls"));
    fs::create_dir(&found).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let done = Command::new("bash")
        .arg(job_file(name))
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("PATH", path)
        .env("HOME", dir)
        .env("CALLS", &found)
        .envs(env.iter().copied())
        .output()
        .unwrap();
    assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
    let calls = fs::read_dir(found).unwrap().map(|call| fs::read_to_string(call.unwrap().path()));
    calls.map(|call| call.unwrap().lines().map(str::to_owned).collect()).collect()
}

/// The commands of a manifest.
fn commands(name: &str) -> Vec<Vec<String>> {
    let manifest = fs::read_to_string(job_file(name)).unwrap();
    let commands = manifest.split("command:\n").skip(1).map(|rest| {
        let lines = rest.lines().map(str::trim_start).filter(|line| !line.starts_with('#'));
        let items = lines.map_while(|line| line.strip_prefix("- "));
        let words: Vec<_> = items.map(str::to_owned).collect();
        assert_eq!(words[0], "lockstep", "{name}");
        words[1..].to_vec()
    });
    commands.collect()
}

/// Checks what follows `lockstep`: the program takes the arguments, and the configuration with its
/// changes is one.
#[track_caller]
fn check(call: &[String]) {
    let refused = |args: &[&str], expected: &str| {
        let done = lockstep(args);
        assert!(done.stderr.contains(expected), "{expected}: {args:?}: {}", done.stderr);
    };
    let words: Vec<_> = call.iter().map(|word| word.replace("/opt/lockstep/", "")).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let train = match words[0] {
        "coordinator" => {
            return refused(&words, "need the same token");
        }
        // Without a token it starts nothing, but has read all arguments, and the configuration.
        "launch" => {
            refused(&words, "several hosts need the same token");
            let end = words.iter().position(|word| *word == "--").unwrap();
            &words[end + 1..]
        }
        _ => &words[..],
    };
    assert_eq!(train[0], "train", "{call:?}");
    // Nothing is written: there is another option.
    refused(&[train, &["--no-such-option"]].concat(), "unexpected argument '--no-such-option'");
    let mut config = vec!["config", train[1]];
    for (at, word) in train.iter().enumerate() {
        match *word {
            "--set" | "--backend" => config.extend([*word, train[at + 1]]),
            word if word.starts_with("--set=") || word.starts_with("--backend=") => {
                config.push(word);
            }
            _ => {}
        }
    }
    let resolved = lockstep(&config);
    assert_eq!(resolved.code, Some(0), "{config:?}: {}", resolved.stderr);
    for option in ["--out", "--resume"] {
        assert!(train.iter().any(|word| word.starts_with(option)), "{call:?}");
    }
}

/// The value of an option, as one word or two.
fn option<'c>(call: &'c [String], name: &str) -> &'c str {
    let at = call.iter().position(|word| word.split('=').next() == Some(name));
    let Some(at) = at else { panic!("{name}: {call:?}") };
    call[at].split_once('=').map_or_else(|| &*call[at + 1], |(_, value)| value)
}

#[test]
fn the_job_files_start_what_the_program_takes() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    fs::write(run.join("metrics.jsonl"), "{}\n").unwrap();
    let run = [("RUN", text(&run)), ("LOCKSTEP", "lockstep")];
    let stays = [&run[..], &[("STAYS", "1"), ("SPARES", "1")]].concat();
    let size = [&run[..], &[("SIZE", "2:3"), ("SPARES", "1"), ("MESH", "24")]].concat();
    let of_script =
        |name, args: &[&str], env: &[(&str, &str)]| (name, calls(dir.path(), name, args, env));
    let found: BTreeMap<&str, Vec<Vec<String>>> = [
        of_script("laptop.sh", &[], &stays),
        of_script("slurm.sh", &[], &run),
        of_script("slurm_elastic.sh", &[], &run),
        of_script("ssh.sh", &["a", "b", "c", "d"], &size),
        of_script("tpu_slice.sh", &["slice", "zone", "gs://bucket/run"], &[]),
        ("jobset.yaml", commands("jobset.yaml")),
        ("jobset_elastic.yaml", commands("jobset_elastic.yaml")),
    ]
    .into();
    for (name, calls) in &found {
        assert!(!calls.is_empty(), "{name}");
        calls.iter().for_each(|call| check(call));
    }
    // All that there are, but for the image.
    for file in fs::read_dir(job_file("")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(found.contains_key(&*name) || name.starts_with("Dockerfile"), "{name}");
    }
    // Those whose hosts come and go say how many, and how many wait.
    for (name, hosts) in [
        ("laptop.sh", "2:4"),
        ("slurm_elastic.sh", "2:4"),
        ("ssh.sh", "2:3"),
        ("jobset_elastic.yaml", "2:4"),
    ] {
        let launched: Vec<_> = found[name].iter().filter(|call| call[0] == "launch").collect();
        let is_elastic = |call: &&&Vec<String>| option(call, "--hosts") == hosts;
        assert_eq!(launched.iter().filter(is_elastic).count(), launched.len(), "{launched:?}");
        assert!(!launched.is_empty() && option(launched[0], "--spares") == "1", "{launched:?}");
    }
    // As many pods, or nodes, as train and wait.
    let jobset = fs::read_to_string(job_file("jobset_elastic.yaml")).unwrap();
    assert!(jobset.contains("completions: 5\n") && jobset.contains("parallelism: 5\n"));
    let slurm = fs::read_to_string(job_file("slurm_elastic.sh")).unwrap();
    assert!(slurm.contains("#SBATCH --nodes=5\n"));
}

/// As its first lines say.
#[test]
#[ignore = "takes as long as four processes train on two processors; of the full set"]
fn the_job_on_one_machine_goes_on_without_a_host_and_takes_it_back() {
    super::install_plugin();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let done = Command::new(job_file("laptop.sh"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .envs([("LOCKSTEP", BINARY), ("RUN", text(&run)), ("PORT", &port.to_string())])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    let summary = fs::read(run.join("summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    assert_eq!(summary["status"], "done", "{said}");
    let starts = summary["generation_starts"].as_array().unwrap();
    let hosts: Vec<_> = starts.iter().map(|start| start["num_hosts"].as_u64().unwrap()).collect();
    assert_eq!(hosts, [4, 3, 4], "{said}");
    assert_eq!(starts[1]["state_from"], "memory", "{said}");
}
