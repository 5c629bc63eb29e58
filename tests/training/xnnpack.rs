//! XNNPACK's fusions block workers of the CPU plugin, as collectives do. XLA enables them by
//! default on some processors. Lockstep disables them unless they are requested, and then no run
//! may hang.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep::config::Config;
use lockstep::data;
use lockstep::step::trace_step;
use lockstep::train::{Run, open_devices};

/// The compiler option that requests them. `xla_cpu_experimental_xnn_graph_fusion_mode`, which
/// fuses more ops, is not set, because with it version 0.0.1 of the plugin corrupts its own memory
/// on several replicas.
const FORCED: &str = "compile.overrides.xla_cpu_use_xnnpack=true";

/// Leaves dots to XLA. Kernels of the process compute them otherwise, and no fusion of XNNPACK is
/// left in these programs.
const XLA_DOTS: &str = r#"compile.kernels="xla""#;

/// Both have dots that XLA runs in XNNPACK. The first is the smallest GPT that hung on two
/// replicas.
const CONFIGS: [(&str, &str); 2] = [
    (
        "gpt",
        r#"
        model = { name = "gpt", num_layers = 1, width = 256, num_heads = 4, context = 32, vocabulary = 256 }
        data = { source = "synthetic_tokens", vocab_size = 256, context = 32 }
        train = { global_batch = 8, steps = 50, check_lockstep_every = 25 }
        optimizer = { name = "adamw" }
        schedule = { name = "constant", peak = 3e-4 }
        "#,
    ),
    (
        "mlp",
        r#"
        model = { name = "mlp", hidden = [1024, 1024], layer_norm = false }
        data = { source = "synthetic", features = 784 }
        train = { global_batch = 1024, steps = 50 }
        optimizer = { name = "sgd", momentum = 0.9 }
        schedule = { name = "constant", peak = 0.1 }
        "#,
    ),
];

/// Number of ops in the compiled step of a configuration that run in XNNPACK. XLA decides that
/// after optimising the program, so only the serialized executable shows it.
fn num_fusions(text: &str, sets: &[&str], num_replicas: usize) -> usize {
    let mut sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    sets.push(format!("mesh.data={num_replicas}"));
    let config = Config::parse(text, Path::new("/runs/config.toml"), &sets).unwrap();
    let splits = data::open(&config).unwrap();
    let model = config.model.build(splits.train.num_outputs());
    let (client, mesh) = open_devices(&config, |_| ()).unwrap();
    let run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
    let graph = trace_step(&run.spec(&*model).declare().unwrap()).unwrap();
    let step =
        client.compile(&run.lowering.lower(graph, "step").program, &run.compile.options).unwrap();
    let executable = step.serialize().unwrap();
    let kind = b"xnn-fusion";
    executable.windows(kind.len()).filter(|window| window == kind).count()
}

/// `true` on AMD's Zen 3 and Zen 4, where XLA is known to run dots of both programs in XNNPACK. It
/// decides from rules measured per processor, and takes none of these dots on Zen 5, and fewer or
/// none where there is a matrix unit.
fn has_fusions_if_asked() -> bool {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |key: &str, value: &str| {
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        fields.any(|(found, text)| found.trim() == key && text.trim() == value)
    };
    has("vendor_id", "AuthenticAMD") && has("cpu family", "25")
}

#[test]
fn xnnpack_fusions_are_off_unless_requested() {
    let is_certain = has_fusions_if_asked();
    let is_full = std::env::var_os("LOCKSTEP_FULL").is_some();
    for (name, text) in CONFIGS.into_iter().filter(|(name, _)| is_full || *name == "gpt") {
        for sets in [&[][..], &[XLA_DOTS]] {
            assert_eq!(num_fusions(text, sets, 2), 0, "{name} {sets:?}");
        }
        let num_forced = num_fusions(text, &[FORCED, XLA_DOTS], 2);
        println!("{name}: {num_forced} fusions where they are asked for");
        assert!(num_forced > 0 || !is_certain, "{name}");
    }
}

/// The number of workers alone prevents that: see `src/pjrt/cpu.rs`.
#[test]
fn runs_with_xnnpack_fusions_do_not_hang() {
    let dir = tempfile::tempdir().unwrap();
    // That the MLP's have fusions is tested above.
    let is_full = std::env::var_os("LOCKSTEP_FULL").is_some();
    for (name, text) in CONFIGS.into_iter().filter(|(name, _)| is_full || *name == "gpt") {
        let path: PathBuf = dir.path().join(format!("{name}.toml"));
        std::fs::write(&path, text).unwrap();
        for num_replicas in [2, 4, 8] {
            let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_lockstep"));
            command.arg("train").arg(&path).args(["--set", &format!("mesh.data={num_replicas}")]);
            command.args(["--set", FORCED, "--set", XLA_DOTS]);
            let output = command.timeout(Duration::from_secs(180)).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name} on {num_replicas} replicas: {stderr}");
            assert!(stderr.contains("step 50/50"), "{name} on {num_replicas} replicas: {stderr}");
        }
    }
}
