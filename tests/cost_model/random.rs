//! Random targets, networks and configurations: physical limits hold for all of them.

use lockstep::targets::cost::{
    DeviceLayout, Fabric, Group, NamedNetwork, Timeline, Wire, Work, all_reduce,
};
use lockstep::targets::{Measured, ScalingPrediction, Scenario, Target};

use super::step_of;

/// A sequence of random numbers below the bounds that it is given.
fn random_below(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |bound| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    }
}

/// 300 random targets, networks and sizes: nothing panics, is slower with more bandwidth or fewer
/// bytes, or is faster than light or the links allow.
#[test]
fn random_fabrics_are_monotone_and_within_physical_limits() {
    let mut below = random_below(42);
    let names: Vec<_> = NamedNetwork::names().collect();
    let step = gpt_bytes_work();
    for _ in 0..300 {
        let target = match below(3) {
            0 => format!("gpu:{}:{}x{}", ["h100", "h200"][below(2)], 1 << below(12), 1 + below(8)),
            1 => format!("tpu:{}:{}x{}x{}", ["v5e", "v6e"][below(2)], 4, 4, 1 + below(8)),
            _ => format!("tpu:v5p:4x4x{}x{}", 4 * (1 + below(4)), 1 + below(4)),
        };
        let parsed: Target = target.parse().unwrap_or_else(|error| panic!("{error}"));
        let option =
            ["", ":oversubscription=2", ":oversubscription=7.5:devices_per_port=8"][below(3)];
        let network: NamedNetwork =
            format!("{}{option}", names[below(names.len())]).parse().unwrap();
        let layout = DeviceLayout::of(&parsed).with_network(network.wire());
        let fabric = layout.first(1 + below(parsed.num_devices()));
        let faster = Fabric {
            network: Wire { bytes_per_sec: 2.0 * fabric.network.bytes_per_sec, ..fabric.network },
            ..fabric.clone()
        };
        let p = fabric.num_devices() as f64;
        let mut last = 0.0;
        for power in 8..36 {
            let bytes = f64::from(2u32).powi(power);
            let (secs, _) = all_reduce(&fabric, bytes);
            assert!(secs.is_finite() && secs >= last, "{target} {network} {bytes}: {secs} {last}");
            assert!(all_reduce(&faster, bytes).0 <= secs, "{target} {network}");
            // Each device sends 2 (p-1)/p n over all of its links: at most 6 ICI links or NVLink.
            let links = match &fabric.group {
                Group::Switch { wire, .. } => wire.bytes_per_sec + fabric.network.bytes_per_sec,
                Group::Torus { die, link, .. } => {
                    let die = die.map_or(0.0, |wire| wire.bytes_per_sec);
                    6.0 * link.bytes_per_sec + die + fabric.network.bytes_per_sec
                }
            };
            assert!(
                secs >= 2.0 * (p - 1.0) / p * bytes / links,
                "{target} {network} {bytes}: {secs}"
            );
            last = secs;
        }
        // No step is faster than its FLOPs at peak, its bytes at full bandwidth, or the start of
        // its kernels.
        let chip = parsed.chip;
        let compute = step.seconds(chip);
        let limits = [
            step.matmul_flops() / chip.flops_per_sec(step.element_bytes),
            (step.matmul_bytes() + step.other_bytes) / chip.memory_bytes_per_sec,
            step.launch_seconds(chip),
        ];
        assert!(limits.iter().all(|limit| compute > *limit), "{target}: {compute} {limits:?}");
        let time = Timeline::even(1e7).overlapped(compute, &fabric, 4e6);
        assert!(time.exposed_secs <= time.communication_secs + 1e-12, "{target}: {time:?}");
    }
}

/// The step of an example with a fixed batch per device, on each number of devices, with this many
/// bytes an element.
fn steps_of(example: &str, more: &[&str], element_bytes: usize) -> Vec<Measured> {
    let step = |num_devices: usize| {
        let (data, batch) = (
            format!("mesh.data={num_devices}"),
            format!("train.global_batch={}", 32 * num_devices),
        );
        let graph = step_of(example, &[&[&*data, &*batch], more].concat());
        Measured::of(&graph, element_bytes, 32 * num_devices)
    };
    [1, 2, 4, 8].map(step).into()
}

/// Tables of 300 random targets, networks and configurations: no row is above the peak of its
/// devices or as many times as fast as one, and a slower network makes no row faster.
#[test]
fn random_tables_are_within_physical_limits() {
    let configurations = [
        steps_of("digits", &[], 4),
        steps_of("gpt-bytes", &[], 2),
        steps_of("gpt-bytes", &["train.num_microbatches=4", "model.num_layers=1"], 4),
        steps_of("gpt-bytes", &["model.width=64", "model.remat=true"], 2),
        // Batch norm over 2 replicas, and within each.
        steps_of("resnet20-synthetic", &["model.batch_norm_group=32"], 2),
        steps_of("resnet20-synthetic", &["model.batch_norm_group=16"], 4),
    ];
    let mut below = random_below(7);
    let names: Vec<_> = NamedNetwork::names().collect();
    for _ in 0..300 {
        let steps = &configurations[below(configurations.len())];
        let target = match below(3) {
            0 => {
                let chip = ["a100", "l4", "l40s", "h100", "b200", "gb200"][below(6)];
                format!("gpu:{chip}:{}x{}", 4 + below(9), [2, 4, 8][below(3)])
            }
            1 => format!("tpu:{}:{}", ["v5e", "v6e"][below(2)], ["2x4", "4x4x2", "8x16"][below(3)]),
            _ => format!(
                "tpu:{}:{}",
                ["v4", "v5p", "tpu7x"][below(3)],
                ["2x2x2", "4x4x4x3"][below(2)]
            ),
        };
        let target: Target = target.parse().unwrap_or_else(|error| panic!("{error}"));
        let network = (below(2) == 0).then(|| names[below(names.len())].parse().unwrap());
        let table = |what_if: Option<&str>| {
            let what_if = what_if.map(|change| change.parse().unwrap());
            let scenario = Scenario { network, what_if, ..Scenario::default() };
            ScalingPrediction::new(&target, steps, None, &scenario).rows
        };
        let (rows, slower) = (table(None), table(Some("alpha=+50us,beta=x3")));
        assert_eq!(rows.len(), 4);
        for ((row, slower), step) in rows.iter().zip(&slower).zip(steps) {
            assert!(slower.step_ms >= row.step_ms, "{target:?} {row:?} {slower:?}");
            assert!((0.0..=row.communication_ms + 1e-9).contains(&row.exposed_ms), "{row:?}");
            let peak = target.chip.flops_per_sec(step.work.element_bytes);
            let reached = step.work.matmul_flops() / (1e-3 * row.step_ms);
            assert!(reached > 0.0 && reached < peak, "{target:?} {row:?}");
            let alone = 32.0 / (1e-3 * rows[0].step_ms);
            let most = alone * row.num_devices as f64;
            assert!(row.examples_per_sec <= 1.000_001 * most, "{target:?} {row:?} {alone}");
        }
    }
}

fn gpt_bytes_work() -> Work {
    Work::of(&step_of("gpt-bytes", &["mesh.data=1"]), 2)
}
