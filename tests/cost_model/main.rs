//! Compares the cost model with published scaling and published steps, and its counts of one step
//! in several forms with each other. The tables in `docs/cost-model.md` are computed here.

#[path = "../support/mod.rs"]
mod support;

mod communication;
mod flops;
mod pipeline;
mod published;
mod random;
mod scaling;
mod steps;

use std::path::Path;

use hlo::Graph;
use lockstep::config::Config;
use lockstep::data;
use lockstep::pjrt::Platform;
use lockstep::step;
use lockstep::targets::cost::Work;
use lockstep::targets::{Chip, Measured, ScalingPrediction, Scenario, Target};
use lockstep::train::{Run, mesh_on_host};

/// Digits takes as long as its kernels take to start, not as long as its FLOPs.
#[test]
fn a_tiny_step_takes_as_long_as_its_kernels_take_to_start() {
    let work = Work::of(&step_of("digits", &["mesh.data=1"]), 4);
    let chip = "gpu:h100:1x1".parse::<Target>().unwrap().chip;
    let launches = work.launch_seconds(chip);
    let rest = work.seconds(chip) - launches;
    assert!(launches > 5.0 * rest && launches > 5e-5, "{launches} {rest}");
    assert!(launches < 1e-3, "{launches}");
}

/// GPT-2's matmuls, counted by hand: on all chips those of attention take as long as their bytes,
/// and the others of a block as their FLOPs. The longer of the sums would be less.
#[test]
fn each_matmul_takes_the_longer_of_its_flops_and_its_bytes() {
    let work = Work::of(&gpt2_step(&["mesh.data=1"]), 2);
    let (batch, positions, width, vocabulary) = (8.0, 1024.0, 768.0, 50_257.0);
    let (num_layers, num_heads) = (12.0, 12.0);
    // How often, and the sizes of as many products as there are heads: forward, and for both
    // gradients.
    let (tokens, pairs) = (batch * positions, batch * num_heads);
    let mut products = vec![(3.0, 1.0, tokens, width, vocabulary)];
    products.extend(
        [(width, 3.0 * width), (width, width), (width, 4.0 * width), (4.0 * width, width)]
            .map(|(from, to)| (3.0 * num_layers, 1.0, tokens, from, to)),
    );
    let head = width / num_heads;
    products.push((6.0 * num_layers, pairs, positions, head, positions));
    for name in ["a100", "h100"] {
        let chip = Chip::named(name).unwrap();
        let reached = chip.calibration.matmul_share * chip.bf16_flops_per_sec;
        let bandwidth = 0.85 * chip.memory_bytes_per_sec;
        let secs = |count: f64, num: f64, m: f64, k: f64, n: f64| {
            let (flops, bytes) = (2.0 * m * k * n, 2.0 * (m * k + k * n + m * n));
            [flops / reached, bytes / bandwidth].map(|each| count * num * each)
        };
        let all: Vec<_> = products.iter().map(|(c, b, m, k, n)| secs(*c, *b, *m, *k, *n)).collect();
        let expected: f64 = all.iter().map(|[flops, bytes]| flops.max(*bytes)).sum();
        let found = work.matmul_seconds(chip);
        assert!((found / expected - 1.0).abs() < 0.01, "{name}: {found} {expected}");
        let sums = [0, 1].map(|at| all.iter().map(|secs| secs[at]).sum::<f64>());
        assert!(found > 1.1 * sums[0].max(sums[1]), "{name}: {found} {sums:?}");
    }
}

/// The largest target, of 131,072 devices.
#[test]
fn a_plan_of_131072_devices_takes_seconds() {
    use lockstep::targets::Arrangement;
    let chip = "gpu:h100:1x8".parse::<Target>().unwrap().chip;
    let target =
        Target { chip, arrangement: Arrangement::Hosts { num_hosts: 16_384, gpus_per_host: 8 } };
    let begun = std::time::Instant::now();
    let graph = gpt2_step(&["mesh.data=131072", "train.batch_per_replica=1"]);
    let num_devices = graph.mesh().num_replicas();
    let measured = Measured::of(&graph, 2, num_devices);
    let plan = ScalingPrediction::new(&target, &[measured], None, &Scenario::default());
    let row = &plan.rows[0];
    assert!(num_devices == 131_072 && row.step_ms > row.compute_ms + row.jitter_ms, "{row:?}");
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

/// Another network changes the rows that cross it, a change of it too.
#[test]
fn a_scenario_changes_the_network_and_counts_failures() {
    let target: Target = "gpu:h100:2x8".parse().unwrap();
    let row = |scenario: Scenario| {
        let graph = gpt2_step(&["mesh.data=16"]);
        let measured = Measured::of(&graph, 2, 64);
        let plan = ScalingPrediction::new(&target, &[measured], None, &scenario);
        (plan.rows[0].clone(), plan.table())
    };
    let network =
        |name: &str| Scenario { network: Some(name.parse().unwrap()), ..Scenario::default() };
    let (own, _) = row(Scenario::default());
    // The H100's own network is one port of 400 Gb/s for each.
    assert_eq!(row(network("ib-ndr")).0, own);
    let (slow, table) = row(network("ethernet-25:devices_per_port=8"));
    assert!(slow.communication_ms > 20.0 * own.communication_ms, "{slow:?}");
    assert!(
        table.contains("network between groups: ethernet-25:devices_per_port=8, 0.31 GB/s"),
        "{table}"
    );
    let change = Scenario { what_if: Some("alpha=+20ms".parse().unwrap()), ..network("ib-ndr") };
    assert!(row(change).0.communication_ms > own.communication_ms + 20.0);
    let sprayed = row(network("roce-v2-400:multipath"));
    assert!(
        sprayed.0.communication_ms < own.communication_ms && sprayed.1.contains("is a scenario")
    );
}

/// The step of an example.
fn step_of(example: &str, sets: &[&str]) -> Graph {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{example}.toml"));
    let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
    let config = Config::load(&path, &sets).unwrap();
    let splits = data::open(&config).unwrap();
    let model = config.model.build(splits.train.num_outputs());
    let run = Run::new(&config, &splits, mesh_on_host(&config), Platform::Cuda).unwrap();
    step::trace_step(&run.spec(&*model).declare().unwrap()).unwrap()
}

/// The step of GPT-2 124M.
fn gpt2_step(sets: &[&str]) -> Graph {
    step_of("gpt2-124m", sets)
}

/// An iteration moves its own slices of the stacks of parameters and residuals. So with remat,
/// where only the blocks' inputs are kept, a scan takes about as long as unrolled layers. Without
/// remat, it writes and reads the residuals that a compiler would recompute from others.
#[test]
fn scanned_layers_take_about_as_long_as_unrolled_ones() {
    let remat = "model.remat=true";
    for (more, slowest) in [
        (&["mesh.data=1", remat][..], 1.03),
        (&["mesh.data=1", remat, "train.num_microbatches=4"], 1.08),
        (&["mesh.data=1", "mesh.fsdp=8", remat], 1.03),
        (&["mesh.data=1", "mesh.fsdp=8", "parallel.zero=3", remat], 1.03),
        (&["mesh.data=1"], 1.5),
        (&["mesh.data=1", "mesh.fsdp=8", "parallel.zero=3"], 1.55),
    ] {
        let [unrolled, scanned] = ["false", "true"].map(|scan| {
            let scan = format!("model.scan_layers={scan}");
            Work::of(&gpt2_step(&[more, &[&*scan]].concat()), 2)
        });
        assert_eq!(scanned.matmul_flops(), unrolled.matmul_flops(), "{more:?}");
        assert_eq!(scanned.matmul_bytes(), unrolled.matmul_bytes(), "{more:?}");
        for target in ["gpu:h100:1x8", "tpu:v5e:4x4", "tpu:v5p:2x2x4"] {
            let chip = target.parse::<Target>().unwrap().chip;
            // Stacked parameters are updated by fewer kernels, which would hide what is read and
            // written.
            let secs = |work: &Work| work.seconds(chip) - work.launch_seconds(chip);
            let ratio = secs(&scanned) / secs(&unrolled);
            assert!((0.99..slowest).contains(&ratio), "{target} {more:?}: {ratio}");
        }
    }
}

/// With one replica along `data` no shard is all_reduced. The parameters that stay whole still are,
/// over `fsdp`.
#[test]
fn a_plan_says_what_sharded_state_leaves_to_all_reduce() {
    let target: Target = "gpu:h100:1x8".parse().unwrap();
    let row = |sets: &[&str]| {
        let graph = gpt2_step(sets);
        let measured = Measured::of(&graph, 2, 64);
        ScalingPrediction::new(&target, &[measured], None, &Scenario::default()).rows[0].clone()
    };
    let (single, data) = (row(&["mesh.data=1"]), row(&["mesh.data=8"]));
    assert_eq!((single.algorithm, single.all_reduced_bytes), ("none", 0));
    let num_params = 124_439_808;
    let gradients = 4 * num_params..4 * (num_params + 100);
    assert!(data.algorithm == "ring" && gradients.contains(&data.all_reduced_bytes), "{data:?}");
    for stage in ["1", "3"] {
        let zero = format!("parallel.zero={stage}");
        let sharded = row(&["mesh.data=1", "mesh.fsdp=8", &zero]);
        // The vectors: 13 * 768 for each of 12 layers, and 2 * 768.
        let whole = 4 * (12 * 13 + 2) * 768;
        assert!((whole..whole + 400).contains(&sharded.all_reduced_bytes), "{sharded:?}");
        assert_eq!(sharded.algorithm, "tree");
        let hybrid = row(&["mesh.data=2", "mesh.fsdp=4", &zero]);
        // A fourth of the matrices.
        assert_eq!(hybrid.all_reduced_bytes, num_params - whole / 4, "{hybrid:?}");
    }
}
