//! Collectives between processes over links of a known rate and delay, beside the formulas of
//! `docs/communication.md`.
//!
//! ```text
//! cargo build --release
//! cargo bench --bench limited_links -- 2:300:0 4:100:5      processes : Mb/s : ms one way; as root
//! cargo bench --bench limited_links -- steps:4:100:5         steps of training instead
//! cargo bench --bench limited_links -- bytes:4               bytes of a step, by the links' counters
//! cargo bench --bench limited_links                         the page from what has been measured
//! ```
//! The first form measures with `lockstep bench --collectives` and keeps the points in
//! `target/limited_links.json`. Measured again, a point is replaced by one for which the processors
//! were less busy. `nice -n -15` before it keeps other programs from being measured. `LOCKSTEP` is
//! the program, if it is another one. With `DDP_PYTHON`, an interpreter that has PyTorch, steps of
//! its DistributedDataParallel follow in the table of steps. See `README.md`.

mod bytes;
mod formulas;
#[path = "../../tests/support/links.rs"]
mod links;
mod page;
mod steps;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use links::{COORDINATOR_PORT, LimitedLinks, LinkSpeed, Outcome};
use lockstep::targets::cost::{LineFit, MeasuredFabric};
use serde::{Deserialize, Serialize};

/// What all processes share; nobody else reaches their namespaces.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// The hierarchical algorithm takes so many processes for a host.
const PER_HOST: usize = 2;
/// All ports together must pass less than this.
const MAX_BITS_PER_SEC: f64 = 1e9;

/// What was measured on links of one speed.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Cell {
    num_processes: usize,
    /// Asked for, and measured by a single connection.
    megabits_per_sec: [f64; 2],
    delay_ms: [f64; 2],
    /// The fraction of this host's processors that the measurement itself used, with the relay.
    own_busy: f64,
    fabric: MeasuredFabric,
}

fn main() -> Outcome<()> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    let path = target.join("limited_links.json");
    let mut cells: Vec<Cell> = match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text)?,
        Err(_) => vec![],
    };
    let program = std::env::var_os("LOCKSTEP").map(PathBuf::from);
    let program = program.unwrap_or_else(|| target.join("release/lockstep"));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut tables = String::new();
    for argument in arguments.iter().filter(|argument| *argument != "--bench") {
        if let Some(cell) = argument.strip_prefix("steps:") {
            let (num_processes, asked) = parse(cell)?;
            tables += &format!("{}\n", steps::table(&program, num_processes, asked)?);
            continue;
        }
        if let Some(num_processes) = argument.strip_prefix("bytes:") {
            tables += &format!("{}\n", bytes::table(&program, num_processes.parse()?)?);
            continue;
        }
        let cell = measure(&program, argument)?;
        let is_same = |old: &&mut Cell| {
            (old.num_processes, old.megabits_per_sec[0], old.delay_ms[0])
                == (cell.num_processes, cell.megabits_per_sec[0], cell.delay_ms[0])
        };
        match cells.iter_mut().find(is_same) {
            Some(old) => keep_quieter(old, cell),
            None => cells.push(cell),
        }
        fs::write(&path, serde_json::to_string(&cells)?)?;
    }
    if !tables.is_empty() {
        println!("{tables}");
        return Ok(());
    }
    cells.sort_by(|a, b| {
        let key = |cell: &Cell| [cell.num_processes as f64, cell.delay_ms[0]];
        key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal)
    });
    println!("{}", page::page(&cells));
    if let Some(picture) = page::picture(&cells) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/communication.svg");
        fs::write(&path, picture?)?;
    }
    Ok(())
}

/// Replaces points by those for which the processors were less busy, and fits again.
fn keep_quieter(old: &mut Cell, new: Cell) {
    for series in new.fabric.collectives {
        let is_same = |old: &&mut lockstep::targets::cost::MeasuredCollective| {
            (&old.kind, &old.algorithm, old.span) == (&series.kind, &series.algorithm, series.span)
        };
        let Some(kept) = old.fabric.collectives.iter_mut().find(is_same) else {
            old.fabric.collectives.push(series);
            continue;
        };
        for point in series.points {
            match kept.points.iter_mut().find(|kept| kept.bytes == point.bytes) {
                Some(kept) if point.busy < kept.busy => *kept = point,
                Some(_) => {}
                None => kept.points.push(point),
            }
        }
        kept.points.sort_by_key(|point| point.bytes);
        let points = kept.points.iter().map(|point| (point.bytes as f64, point.secs));
        kept.fit = LineFit::of(&points.collect::<Vec<_>>());
    }
}

/// Processor seconds of this process, and of those that it has waited for.
fn processor_secs() -> Outcome<f64> {
    const TICKS_PER_SEC: f64 = 100.0;
    let text = fs::read_to_string("/proc/self/stat")?;
    // After the name, which is in parentheses: the 14th to the 17th field.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: Vec<f64> = fields.skip(11).take(4).map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / TICKS_PER_SEC)
}

/// A rate and a delay, as asked for.
#[derive(Clone, Copy)]
struct Speed {
    megabits: f64,
    delay_ms: f64,
}

impl Speed {
    fn link(self) -> LinkSpeed {
        LinkSpeed {
            bits_per_sec: 1e6 * self.megabits,
            delay: Duration::from_secs_f64(self.delay_ms / 1e3),
        }
    }
}

/// A number of processes, and the speed of their links.
fn parse(cell: &str) -> Outcome<(usize, Speed)> {
    let numbers: Vec<f64> = cell.split(':').map(str::parse).collect::<Result<_, _>>()?;
    let [num_processes, megabits, delay_ms] = numbers[..] else {
        return Err(format!("{cell}: write PROCESSES:MBITS:MS, such as 4:100:5").into());
    };
    if !(2.0..=8.0).contains(&num_processes) || num_processes * megabits * 1e6 > MAX_BITS_PER_SEC {
        return Err(format!("{cell}: 2 to 8 processes with less than 1 Gb/s together").into());
    }
    Ok((num_processes as usize, Speed { megabits, delay_ms }))
}

fn measure(program: &Path, cell: &str) -> Outcome<Cell> {
    let (num_processes, asked) = parse(cell)?;
    let Speed { megabits, delay_ms } = asked;
    let asked = asked.link();
    let links = LimitedLinks::new(num_processes, asked)?;
    let found = links.measure(asked)?;
    let found = [found.bits_per_sec / 1e6, 1e3 * found.delay.as_secs_f64()];
    eprintln!(
        "{num_processes} processes: asked for {megabits} Mb/s and {delay_ms} ms, measured {:.1} \
         Mb/s and {:.2} ms",
        found[0], found[1]
    );
    let (began, used) = (Instant::now(), processor_secs()?);
    let fabric = MeasuredFabric::parse(&measure_collectives(program, &links, num_processes)?)?;
    let num_processors = thread::available_parallelism()?.get() as f64;
    let own_busy = (processor_secs()? - used) / began.elapsed().as_secs_f64() / num_processors;
    eprintln!("{:.0} % of the processors were used for this", 100.0 * own_busy);
    Ok(Cell {
        num_processes,
        megabits_per_sec: [megabits, found[0]],
        delay_ms: [delay_ms, found[1]],
        own_busy,
        fabric,
    })
}

/// The fabric file of the links.
fn measure_collectives(
    program: &Path,
    links: &LimitedLinks,
    num_processes: usize,
) -> Outcome<Vec<u8>> {
    let per_host = format!("parallel.replicas_per_host={PER_HOST}");
    let bench = ["bench", "--collectives", "--json", "--warm", "--max-bytes", "4194304"];
    let rest = ["--steps", "20", "--set", &per_host];
    run(program, links, num_processes, &[&bench[..], &rest].concat())
}

/// Runs a command in all processes. What the first one prints.
fn run(
    program: &Path,
    links: &LimitedLinks,
    num_processes: usize,
    arguments: &[&str],
) -> Outcome<Vec<u8>> {
    let start =
        |process| start(program, links, process, num_processes, arguments).map(Started::from);
    let processes: Vec<Started> = (0..num_processes).map(start).collect::<Result<_, _>>()?;
    let outputs: Vec<_> = processes.into_iter().map(Started::output).collect::<Result<_, _>>()?;
    Ok(outputs[0].trim_ascii().to_vec())
}

/// Ends with its owner.
struct Started(Option<Child>);

impl Started {
    /// What it prints until it has ended.
    fn output(mut self) -> Outcome<Vec<u8>> {
        let child = self.0.take().ok_or("it has ended")?;
        let output = child.wait_with_output()?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(format!("the measurement has failed: {}", output.status).into()),
        }
    }
}

impl From<Child> for Started {
    fn from(child: Child) -> Self {
        Self(Some(child))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(
    program: &Path,
    links: &LimitedLinks,
    process: usize,
    num_processes: usize,
    arguments: &[&str],
) -> Outcome<Child> {
    let on = links.on(process);
    let [number, index] = [num_processes, process].map(|number| number.to_string());
    let coordinator = format!("{}:{COORDINATOR_PORT}", LimitedLinks::address(0));
    let mut command = Command::new(&on[0]);
    command.args(&on[1..]).arg(program).args(["launch", "--hosts", &number]);
    command.args(["--processes-per-host", "1"]);
    command.args(["--coordinator", &coordinator, "--max-restarts", "0", "--"]);
    command.args(arguments);
    // The order of hosts: the first one has process 0, which prints the result.
    command.envs([("LOCKSTEP_PROCESS_INDEX", &index), ("LOCKSTEP_NUM_PROCESSES", &number)]);
    command.env("LOCKSTEP_TOKEN", TOKEN).stdin(Stdio::null()).stdout(Stdio::piped());
    if process > 0 {
        command.stderr(Stdio::null());
    }
    Ok(command.spawn()?)
}
