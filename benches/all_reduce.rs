//! In-process all_reduce on the CPU backend, 1 KiB to 256 MiB on 2, 4 and 8 replicas, compared with
//! the cost model.
//!
//! `cargo bench --bench all_reduce` prints a table. The model ([`InProcess`]) is calibrated on the
//! rendezvous of the threads, from 1 KiB for each number of replicas, and on three marked points;
//! every other size is predicted. The optional argument is the size of the processor's cache
//! available to it, in MiB. See `README.md`.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use hlo::{Axis, DType, Literal, Mesh, Reduction, TensorType, lower, trace};
use lockstep::cli::allocator;
use lockstep::pjrt::{Arg, Client, CompileOptions, InstallOptions, Plugin, find_or_install};
use lockstep::targets::cost::InProcess;
use mimalloc::MiMalloc;

/// As of the program.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const SIZES: [usize; 10] = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144];
/// Half of the third-level cache of the machine in `README.md`, which is shared with other
/// machines.
const CACHE_MIB: usize = 24;
/// `(replicas, bytes)`: all in the cache, in memory, and with only the sum in the cache.
const CALIBRATION: [(usize, usize); 3] = [(2, MIB), (2, 64 * MIB), (4, 16 * MIB)];

/// The time of an all_reduce of `bytes` on each of `num_replicas`.
struct Measured {
    num_replicas: usize,
    bytes: usize,
    secs: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    allocator::tune();
    let cache_mib = match std::env::args().skip(1).find(|argument| argument != "--bench") {
        Some(argument) => argument.parse()?,
        None => CACHE_MIB,
    };
    let found = find_or_install("cpu", &InstallOptions::from_env()?, |line| eprintln!("{line}"))?;
    let plugin = Plugin::load(&found.path)?;
    let mut all = vec![];
    for num_replicas in [2, 4, 8] {
        let client = Client::cpu(&plugin, num_replicas)?;
        for bytes in SIZES.map(|size| size * KIB) {
            let secs = measure(&client, num_replicas, bytes)?;
            all.push(Measured { num_replicas, bytes, secs });
        }
    }
    let machine = calibrate(&all, (cache_mib * MIB) as f64)?;
    println!("| replicas | bytes | measured ms | predicted ms | predicted / measured |");
    println!("|---:|---:|---:|---:|---:|");
    for Measured { num_replicas, bytes, secs } in &all {
        let meeting = meeting_secs(&all, *num_replicas)?;
        let predicted = machine.all_reduce(*num_replicas, *bytes as f64, meeting);
        let mark =
            if CALIBRATION.contains(&(*num_replicas, *bytes)) { " (calibration)" } else { "" };
        println!(
            "| {num_replicas} | {bytes} | {:.4} | {:.4} | {:.2}{mark} |",
            1e3 * secs,
            1e3 * predicted,
            predicted / secs
        );
    }
    Ok(())
}

fn find(all: &[Measured], num_replicas: usize, bytes: usize) -> Result<f64, String> {
    let is_it = |at: &&Measured| (at.num_replicas, at.bytes) == (num_replicas, bytes);
    let found = all.iter().find(is_it).map(|at| at.secs);
    found.ok_or_else(|| format!("{bytes} bytes on {num_replicas} replicas were not measured"))
}

/// The time of the smallest all_reduce, which is all rendezvous of threads.
fn meeting_secs(all: &[Measured], num_replicas: usize) -> Result<f64, String> {
    find(all, num_replicas, SIZES[0] * KIB)
}

fn calibrate(all: &[Measured], cache_bytes: f64) -> Result<InProcess, String> {
    let point = |(num_replicas, bytes): (usize, usize)| {
        let secs = find(all, num_replicas, bytes)? - meeting_secs(all, num_replicas)?;
        Ok::<_, String>((num_replicas, bytes as f64, secs))
    };
    let [in_cache, in_memory, sum_in_cache] = CALIBRATION;
    Ok(InProcess::calibrate(cache_bytes, point(in_cache)?, point(in_memory)?, point(sum_in_cache)?))
}

/// The minimum of several runs, in seconds: the time on an undisturbed machine.
fn measure(client: &Client, num_replicas: usize, bytes: usize) -> Result<f64, Box<dyn Error>> {
    let dims = [bytes / 4];
    let graph = trace(Mesh::data(num_replicas), |t| {
        let x = t.input("x", TensorType::new(DType::F32, &dims).varying(Axis::Data.into()));
        t.output("sum", x.all_reduce(Reduction::Sum, Axis::Data));
    })?;
    let executable = client.compile(&lower(&graph, "all_reduce"), &CompileOptions::default())?;
    // One per replica: a shared buffer would be read from the cache.
    let literals: Vec<_> =
        (0..num_replicas).map(|_| Arc::new(Literal::zeros(DType::F32, &dims))).collect();
    let x = client.upload(&literals)?;
    let num_runs = (64 * MIB / bytes).clamp(9, 200);
    let mut least = f64::INFINITY;
    for run in 0..num_runs + 2 {
        let started = Instant::now();
        executable.execute(vec![Arg::Borrow(&x)])?.done.wait()?;
        // The first runs touch fresh memory.
        if run >= 2 {
            least = least.min(started.elapsed().as_secs_f64());
        }
    }
    Ok(least)
}
