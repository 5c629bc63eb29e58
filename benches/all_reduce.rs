//! In-process all_reduce on the CPU backend, 1 KiB to 256 MiB on 2, 4 and 8 replicas, beside what the cost
//! model says of it.
//!
//! `cargo bench --bench all_reduce` prints a table. The replicas share one memory: the model's wire is the
//! share that each has of its bandwidth. Latency is taken from 1 KiB and bandwidth from 16 MiB, for each
//! number of replicas; every other size is predicted. See `README.md` here.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use hlo::{Axis, DType, Literal, Mesh, Reduction, TensorType, lower, trace};
use lockstep::pjrt::{Arg, Client, CompileOptions, InstallOptions, Plugin, find_or_install};
use lockstep::targets::cost::{Fabric, Group, Wire, all_reduce};

const KIB: usize = 1024;
const SIZES: [usize; 10] = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144];
const CALIBRATION: usize = 16384;

fn main() -> Result<(), Box<dyn Error>> {
    let max_kib = match std::env::args().skip(1).find(|argument| argument != "--bench") {
        Some(argument) => argument.parse()?,
        None => usize::MAX,
    };
    let found = find_or_install("cpu", &InstallOptions::from_env()?, |line| eprintln!("{line}"))?;
    let plugin = Plugin::load(&found.path)?;
    println!("| replicas | bytes | measured ms | predicted ms | predicted / measured |");
    println!("|---:|---:|---:|---:|---:|");
    for num_replicas in [2, 4, 8] {
        let client = Client::cpu(&plugin, num_replicas)?;
        let sizes = SIZES.into_iter().filter(|size| *size <= max_kib);
        let mut measured = vec![];
        for size in sizes {
            measured.push((size * KIB, measure(&client, num_replicas, size * KIB)?));
        }
        let fabric = calibrate(num_replicas, &measured);
        for (bytes, secs) in measured {
            let predicted = all_reduce(&fabric, bytes as f64).0;
            println!(
                "| {num_replicas} | {bytes} | {:.4} | {:.4} | {:.2} |",
                1e3 * secs,
                1e3 * predicted,
                predicted / secs
            );
        }
    }
    Ok(())
}

/// A ring whose latency and bandwidth give the smallest and one large measurement.
fn calibrate(num_replicas: usize, measured: &[(usize, f64)]) -> Fabric {
    let p = num_replicas as f64;
    let smallest = measured[0].1;
    let large = measured.iter().rfind(|(bytes, _)| *bytes <= CALIBRATION * KIB);
    let (bytes, secs) = *large.expect("the sizes begin below it");
    let hops = 2.0 * (p - 1.0);
    let latency_secs = smallest / hops;
    let bytes_per_sec = 2.0 * (p - 1.0) / p * bytes as f64 / (secs - smallest).max(1e-9);
    let wire = Wire { latency_secs, bytes_per_sec };
    Fabric::single(Group::Switch { size: num_replicas, wire })
}

/// Median seconds of an all_reduce of so many bytes on every replica.
fn measure(client: &Client, num_replicas: usize, bytes: usize) -> Result<f64, Box<dyn Error>> {
    let dims = [bytes / 4];
    let graph = trace(Mesh::data(num_replicas), |t| {
        let x = t.input("x", TensorType::new(DType::F32, &dims).varying(Axis::Data.into()));
        t.output("sum", x.all_reduce(Reduction::Sum, Axis::Data));
    })?;
    let executable = client.compile(&lower(&graph, "all_reduce"), &CompileOptions::default())?;
    let x = client.upload_replicated(Arc::new(Literal::zeros(DType::F32, &dims)))?;
    let num_runs = (64 * 1024 * KIB / bytes).clamp(5, 200);
    let mut secs = Vec::with_capacity(num_runs);
    for run in 0..num_runs + 2 {
        let started = Instant::now();
        executable.execute(vec![Arg::Borrow(&x)])?.done.wait()?;
        // The first ones touch memory for the first time.
        if run >= 2 {
            secs.push(started.elapsed().as_secs_f64());
        }
    }
    secs.sort_by(f64::total_cmp);
    Ok(secs[secs.len() / 2])
}
