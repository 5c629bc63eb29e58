//! Steps of training over limited links, beside what the measured links predict.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::links::{COORDINATOR_PORT, LimitedLinks, Outcome};
use crate::{Speed, Started, measure_collectives, run};

/// The model: 3.4 MB of gradients.
const MODEL: &str = "examples/gpt-bytes.toml";
const BATCH: [&str; 4] = ["--unset", "train.global_batch", "--set", "train.batch_per_replica=4"];
/// That of [`BATCH`].
const BATCH_SIZE: &str = "4";
const NUM_STEPS: &str = "10";

/// What is set, by what it is called.
type Variant = (&'static str, Vec<String>);

/// `mesh.data`, and a key of `[parallel]`.
fn over_data(num_processes: usize, key: Option<&str>) -> Vec<String> {
    let key = key.map(|key| format!("parallel.{key}"));
    [format!("mesh.data={num_processes}")].into_iter().chain(key).collect()
}

/// How gradients are sent: in full first.
pub fn ways_to_send(num_processes: usize) -> Vec<Variant> {
    let sent = |key| over_data(num_processes, Some(key));
    vec![
        ("one bucket", over_data(num_processes, None)),
        ("`reduce_dtype = \"bf16\"`", sent("reduce_dtype=bf16")),
        ("`reduce_dtype = \"int8\"`", sent("reduce_dtype=int8")),
        ("`compression = \"power_sgd\"`", sent("compression=power_sgd")),
        ("`compression = \"top_k\"`", sent("compression=top_k")),
    ]
}

fn variants(num_processes: usize) -> Vec<Variant> {
    let bucket = |bytes: &str| over_data(num_processes, Some(&format!("bucket_bytes={bytes}")));
    let zero = |stage: u8| {
        let mesh = format!("mesh.fsdp={num_processes}");
        vec!["mesh.data=1".to_owned(), mesh, format!("parallel.zero={stage}")]
    };
    let others = [
        ("buckets of 1 MiB", bucket("1048576")),
        ("buckets of 256 KiB", bucket("262144")),
        ("buckets of 64 KiB", bucket("65536")),
        ("a sum for each parameter", bucket("0")),
        ("ZeRO 1", zero(1)),
        ("ZeRO 3", zero(3)),
    ];
    let mut variants = ways_to_send(num_processes);
    variants.splice(1..1, others);
    variants
}

/// The arguments of a bench of the step.
pub fn bench<'a>(sets: &'a [String], num_steps: &'a str) -> Vec<&'a str> {
    let bench = ["bench", MODEL, "--json", "--warm", "--steps", num_steps];
    let sets = sets.iter().map(String::as_str).chain(["parallel.all_reduce=direct"]);
    bench.into_iter().chain(BATCH).chain(sets.flat_map(|set| ["--set", set])).collect()
}

/// A table of the steps between so many processes.
pub fn table(program: &Path, num_processes: usize, asked: Speed) -> Outcome<String> {
    let links = LimitedLinks::new(num_processes, asked.link())?;
    let dir = tempfile::tempdir()?;
    let fabric = dir.path().join("fabric.json");
    fs::write(&fabric, measure_collectives(program, &links, num_processes)?)?;
    let fabric = format!("parallel.fabric={}", fabric.display());
    let mut text = format!(
        "| {num_processes} processes, {} Mb/s, {} ms | step | without collectives | predicted | \
         step / predicted |\n|---|---:|---:|---:|---:|\n",
        asked.megabits, asked.delay_ms
    );
    for (name, sets) in variants(num_processes) {
        let sets = [sets, vec![fabric.clone()]].concat();
        let output = run(program, &links, num_processes, &bench(&sets, NUM_STEPS))?;
        let found: Value = serde_json::from_slice(&output)?;
        let ms = |key: &str| found[key].as_f64().ok_or(format!("no {key}: {found}"));
        let [step, alone] = [ms("median_step_ms")?, ms("compute_only_ms")?];
        let predicted = ms("predicted_ms")?;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {name} | {step:.0} ms | {alone:.0} ms | {predicted:.0} ms | {:.2} |",
            step / predicted
        );
        eprintln!("{}", text.lines().last().unwrap_or_default());
    }
    if let Some(python) = std::env::var_os("DDP_PYTHON") {
        for (name, step, alone) in ddp(Path::new(&python), &links, num_processes)? {
            let _ = writeln!(text, "| PyTorch DDP, {name} | {step:.0} ms | {alone:.0} ms | | |");
        }
    }
    Ok(text)
}

/// What PyTorch's DistributedDataParallel is called, and the milliseconds of its step, with
/// communication and without.
fn ddp(
    python: &Path,
    links: &LimitedLinks,
    num_processes: usize,
) -> Outcome<Vec<(String, f64, f64)>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/limited_links/ddp.py");
    let start = |rank: usize| {
        let on = links.on(rank);
        let mut command = Command::new(&on[0]);
        command.args(&on[1..]).arg(python).arg(&script);
        command.args([rank, num_processes].map(|number| number.to_string()));
        command.args([BATCH_SIZE, NUM_STEPS]).env("GLOO_SOCKET_IFNAME", "port");
        command.env("MASTER_ADDR", LimitedLinks::address(0).to_string());
        command.env("MASTER_PORT", COORDINATOR_PORT.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map(Started::from)
    };
    let processes: Vec<Started> = (0..num_processes).map(start).collect::<Result<_, _>>()?;
    let outputs: Vec<_> = processes.into_iter().map(Started::output).collect::<Result<_, _>>()?;
    Ok(serde_json::from_slice(&outputs[0])?)
}
