//! Predicted scaling of a step from one device to the whole target.

use serde::Serialize;

use super::Target;
use super::cost::{Algorithm, Fabric, StepTime, Timeline, Work, all_reduce};

/// The prediction for one number of devices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Number of devices, with one replica each.
    pub num_devices: usize,
    /// Examples per step.
    pub global_batch: usize,
    /// Compute time in milliseconds.
    pub compute_ms: f64,
    /// Time of all collectives in milliseconds, including overlapped ones.
    pub communication_ms: f64,
    /// The part of it that does not overlap with compute.
    pub exposed_ms: f64,
    /// Step time in milliseconds.
    pub step_ms: f64,
    /// Examples per second and device, relative to the smallest size.
    pub efficiency: f64,
    /// Examples per second.
    pub examples_per_sec: f64,
    /// The fastest algorithm for an all_reduce of all gradients at once.
    pub algorithm: &'static str,
}

/// Predicted times of an all_reduce.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AllReduce {
    /// Bytes on each device.
    pub bytes: u64,
    /// Milliseconds with one ring or several parallel rings.
    pub ring_ms: f64,
    /// Milliseconds with two trees.
    pub tree_ms: f64,
    /// Milliseconds for reduce_scatter in the group, all_reduce over the network, all_gather in the group.
    pub hierarchical_ms: f64,
}

/// The output of `lockstep plan`.
#[derive(Clone, Debug, Serialize)]
pub struct ScalingPrediction {
    /// The target, as it is written.
    pub target: String,
    /// One row per size, smallest first.
    pub rows: Vec<Row>,
    /// Times of an all_reduce on the whole target, 1 KiB to 4 GiB.
    pub all_reduce: Vec<AllReduce>,
    /// The fastest algorithm on the whole target from each of these sizes (in bytes) on.
    pub algorithms: Vec<(u64, &'static str)>,
    /// What limits scaling, in words.
    pub finding: String,
}

/// The numbers of devices to predict: powers of two, and the whole target.
pub fn sizes(target: &Target) -> Vec<usize> {
    let whole = target.num_devices();
    let powers = std::iter::successors(Some(1usize), |size| size.checked_mul(2));
    powers.take_while(|size| *size < whole).chain([whole]).collect()
}

/// A step at one size, before comparison with the others.
pub struct Measured {
    /// Devices.
    pub num_devices: usize,
    /// Examples per step.
    pub global_batch: usize,
    /// The work of one device.
    pub work: Work,
    /// When its gradients become available.
    pub timeline: Timeline,
}

/// The fraction of exposed communication from which it is reported.
const NOTICEABLE: f64 = 0.1;

impl ScalingPrediction {
    /// Predicts from the steps at several sizes, smallest first.
    pub fn new(target: &Target, steps: &[Measured]) -> Self {
        let mut rows: Vec<Row> = steps.iter().map(|step| row(target, step)).collect();
        let per_device = |row: &Row| row.examples_per_sec / row.num_devices as f64;
        let base = rows.first().map_or(1.0, per_device);
        for row in &mut rows {
            row.efficiency = per_device(row) / base;
        }
        let finding = finding(target, steps, &rows);
        let fabric = Fabric::of(target, target.num_devices());
        let sizes = (10..=32).map(|power| 1u64 << power);
        let all_reduce: Vec<_> = sizes.map(|bytes| AllReduce::of(&fabric, bytes)).collect();
        let algorithms = changes(&fabric, &all_reduce);
        Self { target: target.to_string(), rows, all_reduce, algorithms, finding }
    }

    /// CSV: a header line, then one line per size.
    pub fn csv(&self) -> String {
        let names = COLUMNS.iter().map(|column| column.name);
        let mut out = names.chain(["algorithm"]).collect::<Vec<_>>().join(",") + "\n";
        for row in &self.rows {
            for column in &COLUMNS {
                out += &format!("{:.*},", column.digits.0, (column.value)(row));
            }
            out += &format!("{}\n", row.algorithm);
        }
        out
    }

    /// A human-readable table.
    pub fn table(&self) -> String {
        let title = |column: &Column| format!("{:>12}", column.title);
        let mut out = COLUMNS.iter().map(title).collect::<String>() + "  all_reduce\n";
        for row in &self.rows {
            for column in &COLUMNS {
                out += &format!("{:>12.*}", column.digits.1, (column.value)(row));
            }
            out += &format!("  {}\n", row.algorithm);
        }
        let from = |(bytes, name): &(u64, &str)| format!("{name} from {bytes} bytes");
        let algorithms: Vec<_> = self.algorithms.iter().map(from).collect();
        out += &format!("{}: {}\n", self.target, algorithms.join(", "));
        out + &self.finding
    }
}

/// A column of the table and of the CSV.
struct Column {
    name: &'static str,
    title: &'static str,
    value: fn(&Row) -> f64,
    /// Digits after the decimal point, in the CSV and in the table.
    digits: (usize, usize),
}

const COLUMNS: [Column; 8] = [
    column("num_devices", "devices", |row| row.num_devices as f64, (0, 0)),
    column("global_batch", "batch", |row| row.global_batch as f64, (0, 0)),
    column("compute_ms", "compute ms", |row| row.compute_ms, (4, 2)),
    column("communication_ms", "collect. ms", |row| row.communication_ms, (4, 2)),
    column("exposed_ms", "exposed ms", |row| row.exposed_ms, (4, 2)),
    column("step_ms", "step ms", |row| row.step_ms, (4, 2)),
    column("efficiency", "efficiency", |row| row.efficiency, (4, 3)),
    column("examples_per_sec", "examples/s", |row| row.examples_per_sec, (1, 0)),
];

const fn column(
    name: &'static str,
    title: &'static str,
    value: fn(&Row) -> f64,
    digits: (usize, usize),
) -> Column {
    Column { name, title, value, digits }
}

fn time(target: &Target, step: &Measured) -> StepTime {
    let fabric = Fabric::of(target, step.num_devices);
    step.timeline.step(&step.work, target.chip, &fabric)
}

fn row(target: &Target, step: &Measured) -> Row {
    let time = time(target, step);
    let fabric = Fabric::of(target, step.num_devices);
    let algorithm = match step.num_devices {
        1 => "none",
        _ => all_reduce(&fabric, step.timeline.bytes() as f64).1.name(),
    };
    Row {
        num_devices: step.num_devices,
        global_batch: step.global_batch,
        compute_ms: 1e3 * time.compute_secs,
        communication_ms: 1e3 * time.communication_secs,
        exposed_ms: 1e3 * time.exposed_secs,
        step_ms: 1e3 * time.total_secs(),
        efficiency: 1.0,
        examples_per_sec: step.global_batch as f64 / time.total_secs(),
        algorithm,
    }
}

impl AllReduce {
    fn of(fabric: &Fabric, bytes: u64) -> Self {
        let ms = |algorithm: Algorithm| 1e3 * algorithm.all_reduce(fabric, bytes as f64);
        Self {
            bytes,
            ring_ms: ms(Algorithm::Ring),
            tree_ms: ms(Algorithm::Tree),
            hierarchical_ms: ms(Algorithm::Hierarchical),
        }
    }
}

/// The sizes in bytes at which another algorithm becomes the fastest.
fn changes(fabric: &Fabric, sizes: &[AllReduce]) -> Vec<(u64, &'static str)> {
    let mut found: Vec<(u64, &'static str)> = vec![];
    for AllReduce { bytes, .. } in sizes {
        let name = all_reduce(fabric, *bytes as f64).1.name();
        if found.last().is_none_or(|last| last.1 != name) {
            found.push((*bytes, name));
        }
    }
    found
}

fn finding(target: &Target, steps: &[Measured], rows: &[Row]) -> String {
    let waits = |row: &Row, share: f64| row.exposed_ms > share * row.step_ms;
    let Some(at) = rows.iter().position(|row| waits(row, NOTICEABLE)) else {
        return format!(
            "up to {} devices the step hardly waits for gradients",
            target.num_devices()
        );
    };
    let (Some(step), Some(row)) = (steps.get(at), rows.get(at)) else { return String::new() };
    let fabric = Fabric::of(target, step.num_devices);
    let bytes = step.timeline.bytes();
    let secs = all_reduce(&fabric, bytes as f64).0;
    let latency = all_reduce(&fabric, 0.0).0;
    let early = step.timeline.bytes_by(0.99);
    let why = if latency > secs / 2.0 {
        "the hops take longer than the bytes: fewer, larger collectives or fewer devices help"
            .to_owned()
    } else if row.communication_ms > row.compute_ms {
        format!(
            "{:.0} MB of gradients take longer than the arithmetic: more examples on each device help",
            bytes as f64 / 1e6
        )
    } else if fabric.num_groups > 1 && early * 2 > bytes {
        format!("the network between groups of {} devices is slow", fabric.group.size())
    } else {
        let late = bytes - early;
        format!(
            "{:.0} of {:.0} MB of gradients are there only when the arithmetic ends",
            late as f64 / 1e6,
            bytes as f64 / 1e6
        )
    };
    let dominated = rows.iter().find(|row| waits(row, 0.5));
    let dominated = dominated.map_or(String::new(), |row| {
        format!("; from {} devices on it waits longer than it computes", row.num_devices)
    });
    format!(
        "from {} devices on the step waits for more than a tenth of its time: {why}{dominated}",
        row.num_devices
    )
}
