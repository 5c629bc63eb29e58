//! The numbers of `docs/communication.md`.

use hlo::Algorithm;
use lockstep::config::PipelineOrder;
use lockstep::parallel::PipelineSchedule;
use lockstep::targets::Target;
use lockstep::targets::cost::{
    DeviceLayout, Fabric, Group, all_gather, all_reduce, all_reduce_by, reduce_scatter, seconds,
};

/// Gradients of `docs/communication.md`, in bytes.
const GRADIENTS: f64 = 3.4e9;

/// The lines of `docs/communication.md` with numbers of the model.
fn communication() -> Vec<String> {
    let target: Target = "gpu:h100:32x8".parse().unwrap();
    let fabric = DeviceLayout::of(&target).first(256);
    let (n, p) = (GRADIENTS, fabric.num_devices() as f64);
    let Group::Switch { size, wire } = fabric.group.clone() else { panic!("{fabric:?}") };
    let network = fabric.network;
    let one_port = Fabric {
        group: Group::Switch { size: 1, wire },
        num_groups: fabric.num_devices(),
        network,
        regions: None,
    };
    let ms = |secs: f64| format!("{:.1} ms", 1e3 * secs);
    let all_reduce_by =
        |fabric: &Fabric, algorithm: Algorithm| ms(all_reduce_by(algorithm, fabric, n));
    let mut lines = vec![
        format!(
            "{p} devices, {size} a host, {:.0} GB/s of NVLink and {:.0} GB/s of network for each",
            wire.bytes_per_sec / 1e9,
            network.bytes_per_sec / 1e9
        ),
        format!(
            "| beta n / p, which no all_reduce can reach | {} |",
            ms(n / p / network.bytes_per_sec)
        ),
        format!("| ring, one port for all of it | {} |", all_reduce_by(&one_port, Algorithm::Ring)),
        format!(
            "| rings in parallel, one through each port | {} |",
            all_reduce_by(&fabric, Algorithm::Ring)
        ),
        format!("| two trees | {} |", all_reduce_by(&fabric, Algorithm::Tree)),
        format!("| hierarchical | {} |", all_reduce_by(&fabric, Algorithm::Hierarchical)),
        format!(
            "{} in the host and {} on the network, twice each",
            ms(reduce_scatter(&Fabric::single(fabric.group.clone()), n)),
            ms(reduce_scatter(
                &Fabric { group: Group::Switch { size: 1, wire }, ..fabric.clone() },
                n / size as f64
            )),
        ),
    ];
    let (scatter, gather) = (reduce_scatter(&fabric, n), all_gather(&fabric, n));
    let moved = |passes: f64| format!("{:.2} GB", passes * (p - 1.0) / p * n / 1e9);
    lines.extend([
        format!(
            "| 0 | all_reduce | {} | {} |",
            moved(2.0),
            all_reduce_by(&fabric, Algorithm::Hierarchical)
        ),
        format!(
            "| 1 and 2 | reduce_scatter, all_gather | {} | {} |",
            moved(2.0),
            ms(scatter + gather)
        ),
        format!(
            "| 3 | all_gather, all_gather, reduce_scatter | {} | {} |",
            moved(3.0),
            ms(scatter + 2.0 * gather)
        ),
    ]);
    // Everything through one port of the network, or through those of several servers.
    let star = 2.0 * (p - 1.0) * (network.latency_secs + n / network.bytes_per_sec);
    lines.push(format!("| star: all send to one, which sends the sum back | {:.1} s |", star));
    for (num_servers, servers) in [(1.0, "1 server"), (32.0, "32 servers, one a host")] {
        let port = 2.0 * n * p / num_servers;
        lines.push(format!(
            "| {servers} | {:.1} GB | {:.2} s |",
            port / 1e9,
            2.0 * network.latency_secs + port / network.bytes_per_sec
        ));
    }
    let all = 2.0 * n;
    lines.push(format!(
        "| 256 servers, one a device | {:.1} GB | {:.2} s |",
        all / 1e9,
        2.0 * network.latency_secs + all / network.bytes_per_sec
    ));
    // 8 sequences of 2048 tokens, 4096 wide, in bfloat16.
    let activations = 8.0 * 2048.0 * 4096.0 * 2.0;
    let host = Fabric::single(fabric.group.clone());
    let two_hosts = Fabric { num_groups: 2, ..fabric.clone() };
    for (replicas, fabric) in [("8, in a host", &host), ("16, on two hosts", &two_hosts)] {
        let all_reduces = 4.0 * all_reduce(fabric, activations).0;
        let pairs = 4.0 * (all_gather(fabric, activations) + reduce_scatter(fabric, activations));
        lines.push(format!("| {replicas} | {} | {} |", ms(all_reduces), ms(pairs)));
    }
    let send = |fabric: &Fabric| 1e6 * seconds(fabric, "collective_permute", activations);
    lines.push(format!(
        "{:.0} MB take {:.0} us to the next host and {:.0} us within one",
        activations / 1e6,
        send(&fabric),
        send(&Fabric::single(fabric.group.clone()))
    ));
    for (stages, chunks, microbatches) in
        [(4, 1, 8), (4, 1, 32), (4, 2, 32), (16, 1, 32), (16, 4, 32)]
    {
        let order = PipelineOrder::OneForwardOneBackward;
        let idle = PipelineSchedule::new(order, stages, chunks, microbatches).bubble();
        let row = format!("| {stages} | {chunks} | {microbatches} | {:.1} % |", 100.0 * idle);
        lines.push(row);
    }
    lines
}

#[test]
fn every_number_of_the_page_on_communication_is_the_models() {
    let docs = include_str!("../../docs/communication.md");
    let missing: Vec<_> = communication().into_iter().filter(|line| !docs.contains(line)).collect();
    assert!(missing.is_empty(), "docs/communication.md should hold:\n{}", missing.join("\n"));
    // Each table row of the page is one of these: none is left over from before.
    let rows = docs
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains(|c: char| c.is_ascii_digit()));
    // Formulas, and values of keys, are not.
    let is_number = |row: &&str| {
        !row.contains("alpha") && !row.ends_with("| time |") && !row.starts_with("| `")
    };
    for row in rows.filter(is_number) {
        assert!(communication().iter().any(|line| line == row), "{row}");
    }
}
