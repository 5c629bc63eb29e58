//! Compares the cost model with published scaling, and its counts of one step in several forms with each other. The table
//! in `docs/cost-model.md` is computed here.

use std::path::Path;

use hlo::Graph;
use lockstep::config::Config;
use lockstep::data;
use lockstep::pjrt::Platform;
use lockstep::step;
use lockstep::targets::cost::{Fabric, Group, Timeline, Wire, Work};
use lockstep::targets::{Measured, ScalingPrediction, Target};
use lockstep::train::{Run, mesh_on_host};

/// A published run: its parameters, and the efficiency from its smaller to its larger size.
struct Published {
    what: &'static str,
    /// Devices of a host or slice.
    group: Group,
    /// Hosts or slices of the smaller and of the larger run.
    num_groups: (usize, usize),
    /// One device's share of the network.
    network: Wire,
    /// Bytes that each device all_reduces: gradients, or its share of them.
    gradient_bytes: f64,
    /// Seconds of a step at the smaller size.
    step_secs: f64,
    efficiency: f64,
}

/// Fraction of a link's bandwidth that protocols leave: the model's own assumption.
const SHARE: f64 = 0.8;
/// A hop over Ethernet with TCP.
const TCP_SECS: f64 = 50e-6;

fn switch(size: usize, bytes_per_sec: f64) -> Group {
    Group::Switch {
        size,
        wire: Wire { latency_secs: 3.4e-6, bytes_per_sec: bytes_per_sec * SHARE },
    }
}

/// A host's network card, shared by its devices.
fn card(gbits_per_sec: f64, latency_secs: f64, devices: usize) -> Wire {
    Wire { latency_secs, bytes_per_sec: gbits_per_sec / 8.0 * 1e9 * SHARE / devices as f64 }
}

fn published() -> Vec<Published> {
    // MLPerf Training, ResNet-50 on H100: minutes to train by number of GPUs. The efficiency is that of the time to
    // train. A step has 408 images per GPU at about 6900 per second and GPU: 35 epochs in 13.466 minutes.
    let mlperf = |what, num_gpus: usize, minutes: f64| Published {
        what,
        group: switch(8, 450e9),
        num_groups: (1, num_gpus / 8),
        network: card(8.0 * 400.0, 14e-6, 8),
        gradient_bytes: 2.0 * 25_557_032.0,
        step_secs: 408.0 / 6900.0,
        efficiency: 13.466 * 8.0 / (minutes * num_gpus as f64),
    };
    vec![
        Published {
            what: "Goyal et al. 2017, ResNet-50, 8 to 256 P100, 50 Gb/s a host of 8",
            group: switch(8, 80e9),
            num_groups: (1, 32),
            network: card(50.0, TCP_SECS, 8),
            gradient_bytes: 4.0 * 25_557_032.0,
            // 90 epochs in an hour on 256 GPUs at 90 %, 32 images per GPU.
            step_secs: 0.9 * 32.0 * 256.0 * 3600.0 / (90.0 * 1_281_167.0),
            efficiency: 0.90,
        },
        Published {
            what: "Sergeev and Del Balso 2018 (Horovod), ResNet-101, 1 to 512 P100, 25 Gb/s a host of 4",
            group: switch(4, 20e9),
            num_groups: (1, 128),
            network: card(25.0, TCP_SECS, 4),
            gradient_bytes: 4.0 * 44_549_160.0,
            // TensorFlow's benchmarks of the time: about 130 images per second and P100, in batches of 64.
            step_secs: 64.0 / 130.0,
            efficiency: 0.90,
        },
        Published {
            what: "Sergeev and Del Balso 2018 (Horovod), VGG-16, 1 to 512 P100, 25 Gb/s a host of 4",
            group: switch(4, 20e9),
            num_groups: (1, 128),
            network: card(25.0, TCP_SECS, 4),
            gradient_bytes: 4.0 * 138_357_544.0,
            // TensorFlow's benchmarks of the time: 154 images per second and P100, in batches of 64.
            step_secs: 64.0 / 154.0,
            efficiency: 0.68,
        },
        mlperf("MLPerf Training, ResNet-50, 8 to 64 H100", 64, 2.664),
        mlperf("MLPerf Training, ResNet-50, 8 to 512 H100", 512, 0.509),
        mlperf("MLPerf Training, ResNet-50, 8 to 3584 H100", 3584, 0.183),
        Published {
            what: "MaxText, 16B parameters, 256 to 8192 v5e (slices of 256)",
            group: Group::Torus {
                bounds: vec![16, 16],
                ring_from: 16,
                link: Wire { latency_secs: 1e-6, bytes_per_sec: 50e9 * SHARE },
            },
            num_groups: (1, 32),
            network: Wire { latency_secs: 14e-6, bytes_per_sec: 3.125e9 * SHARE },
            // Parameters are sharded over a slice: between slices each chip reduces its shard.
            gradient_bytes: 4.0 * 16e9 / 256.0,
            // 6 FLOPs per parameter and token at 61.1 % of 197 TFLOP/s; MaxText, configs/v5e/16b.sh: 6 sequences
            // of 2048 tokens per chip.
            step_secs: 6.0 * 16e9 * 12_288.0 / (0.611 * 197e12),
            efficiency: 54.7 / 61.1,
        },
    ]
}

impl Published {
    fn predicted(&self) -> f64 {
        let secs = |num_groups: usize| {
            let fabric = Fabric { group: self.group.clone(), num_groups, network: self.network };
            let timeline = Timeline::even(self.gradient_bytes);
            timeline.overlapped(self.step_secs, &fabric, 4e6).total_secs()
        };
        secs(self.num_groups.0) / secs(self.num_groups.1)
    }
}

fn table() -> String {
    let mut out = "| run | published | predicted | predicted / published |\n|---|---:|---:|---:|\n"
        .to_owned();
    for run in published() {
        let (predicted, efficiency) = (run.predicted(), run.efficiency);
        out += &format!(
            "| {} | {:.1} % | {:.1} % | {:.2} |\n",
            run.what,
            100.0 * efficiency,
            100.0 * predicted,
            predicted / efficiency
        );
    }
    out
}

#[test]
fn the_table_in_the_docs_matches_the_model() {
    let docs = include_str!("../docs/cost-model.md");
    assert!(docs.contains(&table()), "docs/cost-model.md should hold:\n{}", table());
}

#[test]
fn network_bound_runs_are_predicted_and_no_prediction_is_too_slow() {
    for run in published() {
        let predicted = run.predicted();
        // An upper bound: stragglers, input and growing numbers of epochs are not in the model.
        assert!(predicted > run.efficiency - 0.03, "{}: {predicted}", run.what);
        // Of these runs, only VGG-16 waits for its network.
        if run.what.contains("VGG-16") {
            assert!((predicted / run.efficiency - 1.0).abs() < 0.1, "{predicted}");
        }
    }
}

/// The step of GPT-2 124M.
fn gpt2_step(sets: &[&str]) -> Graph {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/gpt2-124m.toml");
    let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
    let config = Config::load(&path, &sets).unwrap();
    let splits = data::open(&config.data, config.train.seed).unwrap();
    let model = config.model.build(splits.train.num_classes());
    let run = Run::new(&config, &splits, mesh_on_host(&config), Platform::Cuda).unwrap();
    step::trace_step(&run.spec(&*model).declare().unwrap()).unwrap()
}

/// Of the stacks of parameters and residuals, an iteration moves its own slices. So with remat, where only the blocks'
/// inputs are kept, a scan takes about as long as unrolled layers. Without, it writes and reads the residuals that a
/// compiler would recompute from others.
#[test]
fn scanned_layers_take_about_as_long_as_unrolled_ones() {
    let remat = "model.remat=true";
    for (more, slowest) in [
        (&["mesh.data=1", remat][..], 1.03),
        (&["mesh.data=1", remat, "train.num_microbatches=4"], 1.07),
        (&["mesh.data=1", "mesh.fsdp=8", remat], 1.03),
        (&["mesh.data=1", "mesh.fsdp=8", "parallel.zero=3", remat], 1.03),
        (&["mesh.data=1"], 1.5),
        (&["mesh.data=1", "mesh.fsdp=8", "parallel.zero=3"], 1.55),
    ] {
        let [unrolled, scanned] = ["false", "true"].map(|scan| {
            let scan = format!("model.scan_layers={scan}");
            Work::of(&gpt2_step(&[more, &[&*scan]].concat()), 2)
        });
        assert_eq!(scanned.matmul_flops, unrolled.matmul_flops, "{more:?}");
        assert_eq!(scanned.matmul_bytes, unrolled.matmul_bytes, "{more:?}");
        for target in ["gpu:h100:1x8", "tpu:v5e:4x4", "tpu:v5p:2x2x4"] {
            let chip = target.parse::<Target>().unwrap().chip;
            let ratio = scanned.seconds(chip) / unrolled.seconds(chip);
            assert!((0.99..slowest).contains(&ratio), "{target} {more:?}: {ratio}");
        }
    }
}

/// With one replica along `data` no shard is all_reduced. The parameters that stay whole still are, over `fsdp`.
#[test]
fn a_plan_says_what_sharded_state_leaves_to_all_reduce() {
    let target: Target = "gpu:h100:1x8".parse().unwrap();
    let row = |sets: &[&str]| {
        let graph = gpt2_step(sets);
        let measured = Measured {
            num_devices: graph.mesh().num_replicas(),
            global_batch: 64,
            work: Work::of(&graph, 2),
            timeline: Timeline::of(&graph),
            state_bytes: 0,
        };
        ScalingPrediction::new(&target, &[measured], None).rows[0].clone()
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
