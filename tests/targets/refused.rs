//! Requests that cannot be compiled: each gives one error that says what to change, and no abort.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use hlo::{DType, Mesh, TensorType, lower, trace};
use lockstep::targets::worker::{self, Request, WorkerError};
use serde_json::Value;

use super::{FEATURES, MLP, compile, config, install, lockstep};

#[test]
fn a_wrong_target_is_rejected_before_anything_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MLP, FEATURES, 8);
    let rows = [
        ("tpu:v5e:32x16", "the largest slice of TPU v5e, 16x16"),
        ("tpu:v3:4x4", "known are v4, v5e, v5p, v6e, tpu7x"),
        ("tpu:v5litepod-12", "there are v5litepod-1, v5litepod-4, v5litepod-8, v5litepod-16"),
        ("tpu:v5p:1x1x1", "there is no slice 1x1x1 of TPU v5p; there are 2x2x1"),
        ("gpu:h100:1x9", "at most 8"),
        ("h100", "gpu:CHIP:HOSTSxGPUS"),
    ];
    for (target, told) in rows {
        for command in ["compile", "plan"] {
            let done = lockstep(&[command, path.to_str().unwrap(), "--target", target], &[]);
            assert_eq!(
                (done.code, done.stdout.as_str()),
                (Some(1), ""),
                "{target}: {}",
                done.stderr
            );
            assert!(done.stderr.contains(told), "{target}: {}", done.stderr);
        }
    }
}

#[test]
fn a_batch_that_does_not_divide_over_the_slice_is_rejected_with_one_that_would() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MLP, FEATURES, 8);
    let args = ["compile", path.to_str().unwrap(), "--target", "tpu:v5e:4x4"];
    let done = lockstep(&[&args[..], &["--set", "train.global_batch=24"]].concat(), &[]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("the nearest that would: 16 or 32"), "{}", done.stderr);
}

#[test]
fn a_missing_plugin_is_named_with_the_command_that_installs_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MLP, FEATURES, 8);
    // Neither the cache nor the Python installation has it.
    let env = [("LOCKSTEP_CACHE", dir.path()), ("LOCKSTEP_PYTHON", dir.path())];
    for (target, plugin) in [("tpu:v5e:4x4", "tpu"), ("gpu:h100:4x8", "cuda-compiler")] {
        let done = lockstep(&["compile", path.to_str().unwrap(), "--target", target], &env);
        assert_eq!(done.code, Some(1));
        let command = format!("lockstep plugin install {plugin}");
        assert!(done.stderr.contains(&command), "{}", done.stderr);
    }
}

#[test]
fn compiling_for_a_gpu_needs_the_assembler() {
    install("cuda-compiler");
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MLP, FEATURES, 8);
    let set = format!("compile.overrides.xla_gpu_cuda_data_dir={}", dir.path().display());
    let args = ["compile", path.to_str().unwrap(), "--target", "gpu:h100:4x8", "--set", &set];
    let done = lockstep(&args, &[]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("bin/ptxas is missing"), "{}", done.stderr);
}

#[test]
fn an_option_that_the_compiler_does_not_know_is_named() {
    install("tpu");
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MLP, FEATURES, 8);
    let args = ["compile", path.to_str().unwrap(), "--target", "tpu:v5e:4x4"];
    let set = ["--set", "compile.overrides.xla_no_such_option=true"];
    let done = lockstep(&[&args[..], &set].concat(), &[]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("'xla_no_such_option'"), "{}", done.stderr);
}

#[test]
fn an_option_that_the_plugin_does_not_know_is_named() {
    install("cuda-compiler");
    let found = lockstep(&["plugin", "list", "--json"], &[]).stdout;
    let plugins: Value = serde_json::from_str(&found).unwrap();
    let of_compiler = |plugin: &&Value| plugin["name"] == "cuda-compiler";
    let path = plugins.as_array().unwrap().iter().find(of_compiler).unwrap()["path"].as_str();
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), MLP, FEATURES, 8);
    // For a plugin given by path, only the plugin itself checks the option.
    let args = ["train", config.to_str().unwrap(), "--backend", path.unwrap()];
    let set = ["--set", "device.options.no_such_option=true"];
    let done = lockstep(&[&args[..], &set].concat(), &[]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("no_such_option"), "{}", done.stderr);
    assert!(done.stderr.contains("with device.options (no_such_option): "), "{}", done.stderr);
}

#[test]
fn a_compiler_that_aborts_its_process_is_an_error_with_its_last_output() {
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("compiler");
    let script = "#!/bin/sh\necho 'I0000 loading' >&2\necho 'F0000 Check failed: x < y' >&2\n\
                  kill -ABRT $$\n";
    fs::write(&binary, script).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    let graph = trace(Mesh::data(2), |t| {
        t.output("y", t.input("x", TensorType::new(DType::F32, &[4])) * 2.0);
    });
    let request = Request {
        plugin: PathBuf::from("none"),
        topology: "none".into(),
        topology_options: vec![],
        mesh: hlo::Mesh::data(2).sizes(),
        overrides: [].into(),
    };
    let error = worker::compile(&binary, &request, &lower(&graph.unwrap(), "step")).unwrap_err();
    assert!(matches!(error, WorkerError::Aborted { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("signal: 6") && said.contains("Check failed: x < y"), "{said}");
    assert!(!said.contains("loading"), "{said}");
}

#[test]
fn a_dump_that_cannot_be_written_is_reported() {
    install("tpu");
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MLP, FEATURES, 8);
    let in_the_way = dir.path().join("file");
    fs::write(&in_the_way, "").unwrap();
    let args = ["compile", path.to_str().unwrap(), "--target", "tpu:v5e:4x4", "--dump"];
    let done = lockstep(&[&args[..], &[in_the_way.to_str().unwrap()]].concat(), &[]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("cannot write"), "{}", done.stderr);
}

/// Too large by the activations of a layer alone: examples * 16384, some of them more than once.
pub const LARGE: &str = "name = \"mlp\"\nhidden = [16384]";
pub const MANY: &str = "source = \"synthetic\"\nfeatures = 1024\nnum_examples = 16777216";

fn check_that_does_not_fit(target: &str, batch_per_replica: usize) {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), LARGE, MANY, batch_per_replica);
    let (code, report) = compile(&path, target, &[]);
    assert_eq!((code, &report["fits"]), (Some(1), &false.into()), "{report}");
    let bytes = |name: &str| report["memory"][name].as_u64().unwrap();
    assert!(bytes("peak_bytes") > bytes("limit_bytes") && bytes("limit_bytes") > 10 << 30);
    assert_eq!(bytes("optimizer_bytes"), 2 * bytes("parameters_bytes"));

    let advice = report["advice"][0].as_str().unwrap();
    assert!(advice.starts_with("--set train.num_microbatches="), "{advice}");
    assert!(advice.contains("(compiled: peak ") && advice.ends_with(", fits)"), "{advice}");
}

#[test]
fn a_step_too_large_for_a_tpu_is_rejected_and_compiles_with_the_advice() {
    check_that_does_not_fit("tpu:v5e:1x1", 1 << 19);
}

#[test]
fn a_step_too_large_for_a_gpu_is_rejected_and_compiles_with_the_advice() {
    check_that_does_not_fit("gpu:h100:1x1", 1 << 20);
}
