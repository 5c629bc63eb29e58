//! `config`, `hlo`, `bench`, `plugin`, `completions`, `man` and `doctor`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{BINARY, DIGITS, file, keys, lockstep, lockstep_with, names, set, text};

/// The inputs of the program: name, type, and whether the caller gives the buffer away.
fn inputs(program: &str) -> Vec<(&str, &str, bool)> {
    let arguments = program.lines().filter(|line| line.trim_start().starts_with("%arg"));
    let arguments = arguments.take_while(|line| line.contains(" // "));
    arguments
        .map(|line| {
            let (declaration, name) = line.split_once(" // ").unwrap();
            let (_, ty) = declaration.split_once(": ").unwrap();
            let end = ty.find('>').unwrap() + 1;
            (name, &ty[..end], declaration.contains("tf.aliasing_output"))
        })
        .collect()
}

/// The types that all_reduces over `groups` take, those of all of them together.
fn reduced_types<'a>(program: &'a str, groups: &str) -> Vec<&'a str> {
    let lines = program.lines().filter(|line| line.contains("stablehlo.all_reduce"));
    let types = lines.flat_map(|line| {
        assert!(line.contains(&format!("replica_groups = dense<{groups}>")), "{line}");
        let (_, signature) = line.rsplit_once(") : (").unwrap_or_else(|| panic!("{line}"));
        let (operands, _) = signature.split_once(") -> ").unwrap_or_else(|| panic!("{line}"));
        operands.split(", ")
    });
    types.collect()
}

#[test]
fn every_gradient_goes_through_an_all_reduce() {
    for (stage, bucket_bytes) in [("step", "auto"), ("step", "0"), ("grad", "auto"), ("grad", "0")]
    {
        let set = format!("parallel.bucket_bytes={bucket_bytes}");
        let done = lockstep(&["hlo", DIGITS, "--stage", stage, "--set", &set]).succeeded();
        let program = &done.stdout;
        let inputs = inputs(program);
        let params: Vec<_> =
            inputs.iter().filter(|(name, ..)| name.starts_with("params.")).collect();
        assert_eq!(params.len(), 10, "two blocks of four, and the head's two");
        let mut reduced = reduced_types(program, "[[0, 1, 2, 3]]");
        for (name, ty, _) in params {
            let at = reduced.iter().position(|reduced| reduced == ty);
            reduced.remove(at.unwrap_or_else(|| panic!("{stage}: {name}: {ty} is not reduced")));
        }
        assert_eq!(reduced, ["tensor<f32>"; 2], "loss and weight are left");
        let num_calls = program.matches("\"stablehlo.all_reduce\"").count();
        assert_eq!(num_calls, if bucket_bytes == "0" { 12 } else { 1 }, "{stage}");
    }
}

/// What is done for the CPU depends on the plugin's platform, not on the name that it was asked for
/// by.
#[test]
fn a_cpu_plugin_by_its_path_is_the_cpu_backend() {
    let listed = lockstep(&["plugin", "list", "--json"]).succeeded().json();
    let path = listed[0]["path"].as_str().unwrap().to_owned();
    for args in [&["hlo", DIGITS][..], &["train", DIGITS, "--set", "train.steps=30", "--json"]] {
        let [by_name, by_path] = ["cpu", &path].map(|backend| {
            let done = lockstep(&[args, &["--backend", backend]].concat()).succeeded();
            if args[0] == "hlo" {
                done.stdout
            } else {
                done.json()["params_fingerprint"].to_string()
            }
        });
        assert_eq!(by_name, by_path, "{}", args[0]);
    }
}

#[test]
fn the_state_is_donated_and_nothing_else() {
    let done = lockstep(&["hlo", DIGITS]).succeeded();
    let inputs = inputs(&done.stdout);
    // Ten parameters, two moments of each, `step` and `num_skipped`.
    assert_eq!(inputs.iter().filter(|(.., donated)| *donated).count(), 32);
    for (name, _, donated) in inputs {
        let is_input = name == "seed" || name == "learning_rate" || name.starts_with("batch.");
        assert_eq!(donated, !is_input, "{name}");
    }
}

#[test]
fn the_loss_alone_needs_two_sums() {
    let done = lockstep(&["hlo", DIGITS, "--stage", "loss", "--set", "mesh.data=2"]).succeeded();
    assert_eq!(reduced_types(&done.stdout, "[[0, 1]]"), ["tensor<f32>"; 2]);
    assert!(inputs(&done.stdout).iter().all(|(.., donated)| !donated));
}

#[test]
fn bench_prints_a_line_of_json() {
    let args = ["bench", DIGITS, "--steps", "3", "--json", "--set", "mesh.data=2"];
    let figures = lockstep(&args).succeeded().json();
    let expected = [
        "median_step_ms",
        "host_ms_per_step",
        "first_step_secs",
        "compute_only_ms",
        "num_replicas",
    ];
    assert_eq!(keys(&figures), set(&expected));
    assert_eq!(figures["num_replicas"], 2);
    for key in expected {
        assert!(figures[key].as_f64().unwrap() > 0.0, "{key}: {figures}");
    }
    let text = lockstep(&["bench", DIGITS, "--steps", "2"]).succeeded().stdout;
    assert!(text.contains("replicas               4\n"), "{text}");
    assert!(text.contains("median of 2, each waited for"), "{text}");
}

/// What is measured is what other commands take, and a bad file is refused with a remedy.
#[test]
fn bench_measures_collectives_for_plan_and_train() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fabric.json");
    let file = file.to_str().unwrap();
    let bench = ["bench", "--collectives", "--processes", "2", "--max-bytes", "4096"];
    let bench = [&bench[..], &["--steps", "5", "--json", "--to", file]].concat();
    let fabric = lockstep(&bench).succeeded().json();
    assert_eq!((&fabric["num_devices"], &fabric["num_processes"]), (&2.into(), &2.into()));
    let collectives = fabric["collectives"].as_array().unwrap();
    let names: Vec<_> = collectives
        .iter()
        .map(|of| format!("{} {}", of["kind"].as_str().unwrap(), of["algorithm"].as_str().unwrap()))
        .collect();
    let all = [
        "collective_permute direct",
        "all_reduce direct",
        "all_reduce ring",
        "all_reduce tree",
        "reduce_scatter direct",
        "all_gather direct",
        "all_to_all direct",
    ];
    assert_eq!(names, all);
    for of in collectives {
        let points = of["points"].as_array().unwrap();
        let bytes: Vec<_> = points.iter().map(|at| at["bytes"].as_u64().unwrap()).collect();
        assert_eq!(bytes, [1024, 4096]);
        assert!(points.iter().all(|at| at["secs"].as_f64().unwrap() > 0.0), "{of}");
    }

    // Two sizes make no line.
    assert_eq!(fabric["network"], Value::Null);
    let mut known: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    known["network"] = json!({
        "latency_secs": { "value": 0.25, "low": 0.2, "high": 0.3 },
        "secs_per_byte": { "value": 1e-8, "low": 1e-8, "high": 1e-8 },
        "relative_residual": 0.0
    });
    for (series, secs) in [(1, [1e-3, 1e-3]), (2, [2e-3, 1e-4]), (3, [2e-3, 2e-3])] {
        for (point, secs) in secs.into_iter().enumerate() {
            known["collectives"][series]["points"][point]["secs"] = json!(secs);
        }
    }
    fs::write(file, known.to_string()).unwrap();
    let plan = ["plan", DIGITS, "--target", "gpu:h100:2x1", "--json"];
    let network = |more: &[&str]| {
        let found = lockstep(&[&plan[..], more].concat()).succeeded().json();
        found["network"].as_str().unwrap().to_owned()
    };
    let measured = "measured, 0.10 GB/s for each device and 250000.0 us a hop";
    assert!(network(&["--fabric", file]).contains(measured));
    let key = format!("parallel.fabric={file}");
    assert!(network(&["--set", &key]).contains(measured));
    assert!(!network(&[]).contains("measured"));

    // A message takes 1 ms at least, and the gradients of digits some more.
    let bench = ["bench", DIGITS, "--processes", "2", "--steps", "6", "--json"];
    let of_steps = |replicas: &str| {
        let sets = ["--set", &key, "--set", replicas];
        lockstep(&[&bench[..], &sets].concat()).succeeded().json()
    };
    let steps = of_steps("mesh.data=2");
    assert_eq!(steps["num_replicas"], 2);
    let ms = |key: &str| steps[key].as_f64().unwrap();
    assert!(ms("median_step_ms") > 0.0, "{steps}");
    let waited = ms("predicted_ms") - ms("compute_only_ms");
    // On a busy machine links are measured as slow ones.
    assert!((1.0..20_000.0).contains(&waited), "{steps}");
    assert_eq!(of_steps("mesh.data=4")["predicted_ms"], Value::Null, "not measured with 4");

    let passes = ["hlo", DIGITS, "--set", "mesh.data=2", "--set", &key];
    let text = lockstep(&passes).succeeded().stdout;
    assert!(text.contains("direct, ring from 2048 bytes over 2 replicas"), "{text}");
    let refused = |args: &[&str]| {
        let done = lockstep(args);
        assert_eq!(done.code, Some(1), "{}", done.stderr);
        done.stderr
    };
    known["network"] = Value::Null;
    fs::write(file, known.to_string()).unwrap();
    let error = refused(&[&plan[..], &["--fabric", file]].concat());
    assert!(error.contains("no links between processes"), "{error}");
    fs::write(file, "{}").unwrap();
    for command in [[&plan[..], &["--fabric", file]].concat(), passes.to_vec()] {
        let error = refused(&command);
        let remedy = "`lockstep bench --collectives --to FILE` writes one";
        assert!(error.contains("cannot be used") && error.contains(remedy), "{error}");
    }
}

/// Without communication, the gathers and scatters of sharded parameters become local ops of the
/// same shapes.
#[test]
fn bench_times_sharded_steps() {
    let mesh = ["--set", "mesh.data=2", "--set", "mesh.fsdp=2"];
    let program = lockstep(&[&["hlo", DIGITS], &mesh[..]].concat()).succeeded().stdout;
    for op in ["stablehlo.all_gather", "stablehlo.reduce_scatter", "stablehlo.all_reduce"] {
        assert!(program.contains(op), "{op} is not in the step");
    }
    let args = [&["bench", DIGITS, "--steps", "2", "--json"][..], &mesh].concat();
    let figures = lockstep(&args).succeeded().json();
    assert_eq!(figures["num_replicas"], 4);
    for key in ["median_step_ms", "compute_only_ms"] {
        assert!(figures[key].as_f64().unwrap() > 0.0, "{key}: {figures}");
    }
}

#[test]
fn bench_says_where_the_time_goes() {
    let args = ["bench", DIGITS, "--steps", "2", "--json", "--profile", "--set", "mesh.data=2"];
    let figures = lockstep(&args).succeeded().json();
    let names = |list: &str, key: &str| -> Vec<String> {
        let rows = figures[list].as_array().or(figures["ops"][list].as_array()).unwrap();
        rows.iter().map(|row| row[key].as_str().unwrap().to_owned()).collect()
    };
    for span in ["load the plugin", "trace the step", "compile the step"] {
        assert!(names("start", "name").iter().any(|name| name == span), "{span}: {figures}");
    }
    assert!(figures["parts"]["transfer_ms"].as_f64().unwrap() > 0.0);
    let kinds = names("kinds", "kind");
    assert!(
        ["dot", "fusion"].iter().all(|kind| kinds.iter().any(|found| found == kind)),
        "{kinds:?}"
    );
    let ops = &figures["ops"];
    let sum = |list: &str| -> f64 {
        ops[list].as_array().unwrap().iter().map(|row| row["ms"].as_f64().unwrap()).sum()
    };
    assert!(sum("ops") > 0.0 && ops["total_ms"].as_f64().unwrap() > 0.0, "{ops}");
    let launches = ops["ops"].as_array().unwrap().iter();
    let launches: u64 = launches.map(|row| row["num_launches"].as_u64().unwrap()).sum();
    assert_eq!(launches, ops["num_launches"].as_u64().unwrap());
}

/// In each stage of ZeRO the ops are those of one replica's shards. It repeats them where the mesh
/// would gather, and cuts them from gradients where it would scatter.
#[test]
fn a_profile_of_a_sharded_mesh_has_the_ops_of_one_replica() {
    for stage in ["1", "2", "3"] {
        let zero = format!("parallel.zero={stage}");
        let mesh = ["--set", "mesh.data=2", "--set", "mesh.fsdp=2", "--set", &zero];
        let args = [&["bench", DIGITS, "--steps", "1", "--json", "--profile"][..], &mesh].concat();
        let figures = lockstep(&args).succeeded().json();
        let ops = figures["ops"]["ops"].as_array().unwrap();
        let has = |found: &dyn Fn(&str, &str, &str) -> bool| {
            ops.iter().any(|row| {
                let [kind, op] = ["kind", "op"].map(|key| row[key].as_str().unwrap());
                found(kind, op, &row["sources"].to_string())
            })
        };
        assert!(has(&|_, op, _| op.starts_with("concatenate")), "{stage}: {ops:?}");
        let is_cut = |kind: &str, _: &str, from: &str| {
            kind == "slice" && from.contains("parallel/gather.rs")
        };
        assert!(has(&is_cut), "{stage}: {ops:?}");
        let is_sent =
            |kind: &str, _: &str, _: &str| matches!(kind, "all-gather" | "reduce-scatter");
        assert!(!has(&is_sent), "{stage}: {ops:?}");
    }
}

#[test]
fn plugins_are_listed() {
    let listed = lockstep(&["plugin", "list", "--json"]).succeeded().json();
    let plugins = listed.as_array().unwrap();
    let names: Vec<_> = plugins.iter().map(|plugin| plugin["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["cpu", "cuda", "cuda-compiler", "tpu"]);
    for plugin in plugins {
        let expected = ["name", "pinned_version", "installed_version", "path", "damage"];
        assert_eq!(keys(plugin), set(&expected));
    }
    assert_eq!(plugins[0]["installed_version"], plugins[0]["pinned_version"]);
    let path = plugins[0]["path"].as_str().unwrap();
    assert!(lockstep(&["plugin", "list"]).succeeded().stdout.contains(path));
    // Once installed, installing does no more than say where.
    assert!(lockstep(&["plugin", "install", "cpu"]).succeeded().stdout.contains(path));
}

#[test]
fn doctor_tries_the_cpu_plugin() {
    // Its exit code also depends on other plugins that this machine may have.
    let done = lockstep(&["doctor", "--json"]);
    let report = done.json();
    let expected = [
        "os",
        "arch",
        "cores",
        "memory_bytes",
        "transparent_hugepage",
        "reserved_hugepage_bytes",
        "open_files",
        "locked_memory_bytes",
        "nvidia_pci_devices",
        "tpu_pci_devices",
        "infiniband_devices",
        "cache_dir",
        "plugins",
        "nvidia",
        "cluster",
        "findings",
    ];
    assert_eq!(keys(&report), set(&expected));
    // Linux tells these of every machine.
    assert!(report["memory_bytes"].as_u64().unwrap() > 1 << 28, "{report}");
    assert!(report["open_files"]["soft"].as_u64().unwrap() > 0, "{report}");
    for finding in report["findings"].as_array().unwrap() {
        assert_eq!(keys(finding), set(&["what", "change"]));
    }
    let cpu = &report["plugins"][0];
    let expected = [
        "name",
        "path",
        "version",
        "api_version",
        "platform",
        "num_devices",
        "device_kind",
        "device_memory_bytes",
        "problem",
    ];
    assert_eq!(keys(cpu), set(&expected));
    assert_eq!((&cpu["name"], &cpu["platform"]), (&"cpu".into(), &"cpu".into()));
    assert_eq!((&cpu["num_devices"], cpu["problem"].is_null()), (&2.into(), true), "{cpu}");
    let text = lockstep(&["doctor"]).stdout;
    assert!(text.contains(cpu["path"].as_str().unwrap()), "{text}");
    assert!(text.contains("open files"), "{text}");
    let is_sound = report["findings"].as_array().unwrap().is_empty();
    assert_eq!(text.ends_with("\nok       nothing wrong was found\n"), is_sound, "{text}");
    assert_eq!(text.contains("\nwrong "), !is_sound, "{text}");
}

/// Both ask the same function: what ends `train` is a finding of `doctor`, in the same words.
#[test]
fn train_refuses_at_once_what_doctor_finds_in_the_environment() {
    let rows: [&[(&str, &str)]; 3] = [
        &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("LOCKSTEP_TOKEN", "hello")],
        &[("JAX_PROCESS_ID", "1"), ("JAX_NUM_PROCESSES", "4"), ("JAX_COORDINATOR_ADDRESS", "[a")],
        &[
            ("JOB_COMPLETION_INDEX", "1"),
            ("HOSTNAME", "ms-node-1-1"),
            ("JOBSET_NAME", "ms"),
            ("LOCKSTEP_NUM_PROCESSES", "4"),
        ],
    ];
    for row in rows {
        let row: Vec<_> = row.iter().map(|(name, value)| (*name, Path::new(*value))).collect();
        let train = lockstep_with(&["train", DIGITS, "--set", "train.steps=1"], &row);
        assert_eq!(train.code, Some(1), "{}", train.stderr);
        let report = lockstep_with(&["doctor", "--json"], &row).json();
        let findings = report["findings"].as_array().unwrap();
        let lines = findings.iter().map(|finding| {
            let text = |key: &str| finding[key].as_str().unwrap();
            format!("error: {}: {}", text("what"), text("change"))
        });
        let said: Vec<&str> = train.stderr.lines().collect();
        assert!(!said.is_empty(), "{row:?}");
        let lines: Vec<_> = lines.collect();
        assert!(said.iter().all(|line| lines.iter().any(|of| of == line)), "{said:?} {lines:?}");
    }
}

#[test]
fn without_a_driver_nvidias_part_is_an_answer_and_no_failure() {
    let mut command = Command::new(BINARY);
    command.args(["probe-nvidia", "no-such-libnccl.so.2"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // The command ends with its parent, which it knows from its stdin.
    let stdin = child.stdin.take();
    let done = child.wait_with_output().unwrap();
    drop(stdin);
    assert!(done.status.success(), "{done:?}");
    let said: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(said["nccl_version"].is_null(), "{said}");
    let problem = said["nccl_problem"].as_str().unwrap();
    assert!(problem.contains("no-such-libnccl.so.2") && problem.contains("plugin install cuda"));
}

#[test]
fn config_prints_what_the_file_and_the_arguments_come_to() {
    let args = ["config", DIGITS, "--set", "train.epochs=3", "--backend", "cuda"];
    let resolved = lockstep(&args).succeeded().stdout;
    for line in ["[train]", "epochs = 3", "seed = 0", "backend = \"cuda\""] {
        assert!(resolved.lines().any(|found| found == line), "{line}: {resolved}");
    }
    // The same from wherever it is kept.
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy.toml");
    std::fs::write(&copy, &resolved).unwrap();
    assert_eq!(lockstep(&["config", text(&copy)]).succeeded().stdout, resolved);

    let reference = lockstep(&["config", "--reference"]).succeeded().stdout;
    assert!(reference.contains("| `check_lockstep_every` | whole number, 0 or more | steps |"));
    assert_eq!(lockstep(&["config"]).code, Some(2));
}

#[test]
fn completions_are_scripts_for_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let script = lockstep(&["completions", shell]).succeeded().stdout;
        for word in ["lockstep", "report", "smooth"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        assert!(
            !script.contains("time-ops"),
            "{shell}: hidden commands are for the program itself"
        );
    }
    let script = lockstep(&["completions", "bash"]).succeeded().stdout;
    let done = Command::new("bash").args(["-n", "-c", &script]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(lockstep(&["completions", "dos"]).code, Some(2));
}

#[test]
fn every_command_has_a_manual_page_and_no_other_file_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let man = dir.path().join("man1");
    let done = lockstep(&["man", text(&man)]).succeeded();
    assert!(done.stdout.contains(text(&man)), "{}", done.stdout);
    let pages = names(&man);
    for page in ["lockstep.1", "lockstep-train.1", "lockstep-checkpoint-export.1"] {
        assert!(pages.iter().any(|name| name == page), "{pages:?}");
    }
    assert!(!pages.iter().any(|name| name.contains("time-ops") || name.contains("help")));
    let read = |name: &str| std::fs::read_to_string(man.join(name)).unwrap();
    let first = read("lockstep.1");
    for page in &pages {
        let title = page.strip_suffix(".1").unwrap();
        assert!(read(page).contains(&format!(".TH {title} 1")), "{page}");
        // The first names all commands, and none that is the program's own.
        let is_command = title.split('-').count() == 2;
        assert!(!is_command || first.contains(&title.replace('-', "\\-")), "{title}");
    }
    assert!(!first.contains("time\\-ops") && first.contains(".SH MESSAGES"));
    let train = read("lockstep-train.1");
    for word in ["overwrite", "stopped by SIGTERM", "replaced\\-run", "log\\-json"] {
        assert!(train.contains(word), "{word}: {train}");
    }

    // Earlier pages are replaced, and nothing else.
    file(&man, "lockstep-train.1", b".TH lockstep-train 1 \"an older one\"");
    lockstep(&["man", text(&man)]).succeeded();
    assert_eq!(read("lockstep-train.1"), train);
    let mine = file(&man, "lockstep-plan.1", b"mine");
    std::fs::remove_file(man.join("lockstep.1")).unwrap();
    let done = lockstep(&["man", text(&man)]);
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(done.stderr.contains("--overwrite"), "{}", done.stderr);
    assert_eq!(std::fs::read(&mine).unwrap(), b"mine");
    assert!(!man.join("lockstep.1").exists(), "nothing was written");
    lockstep(&["man", text(&man), "--overwrite"]).succeeded();
    assert_eq!(read("lockstep.1"), first);
}
