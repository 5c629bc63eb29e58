//! Predicted scaling of a step from one device to the whole target.

use hlo::{Algorithm, Axis, counted};
use serde::Serialize;

use super::Target;
use super::backups::BackupSimulation;
use super::cost::{
    DeviceLayout, Fabric, Failures, NamedNetwork, STEP_VARIATION, StepTime, Stragglers, Timeline,
    WhatIf, Wire, Work, all_reduce, all_reduce_by, first_group, num_varying, waiting_secs,
};
use super::memory::{gib, usable};
use super::pipeline::{PipelineReport, StepPipeline};
use super::row::Row;

/// Predicted times of an all_reduce.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AllReduce {
    /// Bytes on each device.
    pub bytes: u64,
    /// Milliseconds with one ring or several parallel rings.
    pub ring_ms: f64,
    /// Milliseconds with two trees.
    pub tree_ms: f64,
    /// Milliseconds for reduce_scatter in the group, all_reduce over the network, all_gather in the
    /// group.
    pub hierarchical_ms: f64,
}

/// The output of `lockstep plan`.
#[derive(Clone, Debug, Serialize)]
pub struct ScalingPrediction {
    /// The target, as it is written.
    pub target: String,
    /// How the mesh grows with the number of devices, in words.
    pub mesh: String,
    /// The network between hosts or slices, in words.
    pub network: String,
    /// One row per size, smallest first.
    pub rows: Vec<Row>,
    /// Times of an all_reduce on the whole target, 1 KiB to 4 GiB.
    pub all_reduce: Vec<AllReduce>,
    /// The fastest algorithm on the whole target from each of these sizes (in bytes) on.
    pub algorithms: Vec<(u64, &'static str)>,
    /// How far predicted steps on this chip were off, in words.
    pub accuracy: String,
    /// The limit of scaling, in words.
    pub finding: String,
    /// Why there are no rows for more devices, if the target has more.
    pub stops: Option<String>,
    /// Whether the state fits in the memory of a device, in words.
    pub memory: String,
    /// That batches are larger than those of published recipes, in words.
    pub batch: Option<String>,
    /// What the pipeline of the largest step costs.
    pub pipeline: Option<PipelineReport>,
    /// A picture of it, a line for each stage.
    #[serde(skip)]
    pub ticks: Vec<String>,
    /// Backup workers on the whole target, if they were asked for.
    pub backups: Option<BackupSimulation>,
}

/// The numbers of devices to predict: `smallest` times powers of two, and the whole target.
pub fn sizes(target: &Target, smallest: usize) -> Vec<usize> {
    let whole = target.num_devices();
    let powers = std::iter::successors(Some(smallest.max(1)), |size| size.checked_mul(2));
    powers.take_while(|size| *size < whole).chain([whole]).collect()
}

/// A step at one size, before comparison with the others.
pub struct Measured {
    /// Devices.
    pub num_devices: usize,
    /// Examples per step.
    pub global_batch: usize,
    /// Tokens of an example, for texts.
    pub tokens_per_example: Option<usize>,
    /// The work of one device.
    pub work: Work,
    /// When its collectives can run.
    pub timeline: Timeline,
    /// Bytes of the state on each device.
    pub state_bytes: u64,
}

/// The assumptions of a prediction besides the target.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scenario {
    /// The network between hosts or slices, if it is not the target's.
    pub network: Option<NamedNetwork>,
    /// A change of that network.
    pub what_if: Option<WhatIf>,
    /// How often devices fail.
    pub failures: Option<Failures>,
    /// How step times vary, to simulate backup workers.
    pub stragglers: Option<Stragglers>,
}

impl Scenario {
    /// The network between hosts or slices, as one device uses it, instead of `wire`.
    fn network(&self, wire: Wire) -> Wire {
        let named = self.network.as_ref().map_or(wire, NamedNetwork::wire);
        self.what_if.map_or(named, |change| change.apply(named))
    }

    /// In words, for devices that use the network as `wire`.
    fn words(&self, wire: Wire) -> String {
        let name = match (self.network, self.what_if) {
            (Some(network), None) => network.to_string(),
            (Some(network), Some(_)) => format!("{network}, changed"),
            (None, Some(_)) => "the target's, changed".to_owned(),
            (None, None) => "the target's".to_owned(),
        };
        let sprayed = match self.network {
            Some(network) if network.is_multipath => {
                "; multipath is a scenario: packets of one flow on all paths of several planes of \
                 two tiers"
            }
            _ => "",
        };
        format!(
            "network between groups: {name}, {:.2} GB/s for each device and {:.1} us a \
             hop{sprayed}",
            wire.bytes_per_sec / 1e9,
            1e6 * wire.latency_secs
        )
    }
}

/// The fraction of exposed communication from which it is reported.
const NOTICEABLE: f64 = 0.1;

impl ScalingPrediction {
    /// Predicts from the steps at several sizes, smallest first. `refused` says why there is none
    /// for more devices.
    pub fn new(
        target: &Target,
        steps: &[Measured],
        refused: Option<&str>,
        scenario: &Scenario,
    ) -> Self {
        let layout = DeviceLayout::of(target);
        let wire = scenario.network(layout.network());
        let (layout, network) = (layout.with_network(wire), scenario.words(wire));
        let failures = scenario.failures.as_ref();
        let row = |step: &Measured| row(target, &layout, step, failures);
        let mut rows: Vec<Row> = steps.iter().map(row).collect();
        let per_device = |row: &Row| row.examples_per_sec / row.num_devices as f64;
        let base = rows.first().map_or(1.0, per_device);
        for row in &mut rows {
            row.efficiency = per_device(row) / base;
        }
        let finding = finding(&layout, steps, &rows);
        let fabric = layout.first(target.num_devices());
        let sizes = (10..=32).map(|power| 1u64 << power);
        let all_reduce: Vec<_> = sizes.map(|bytes| AllReduce::of(&fabric, bytes)).collect();
        let algorithms = changes(&fabric, &all_reduce);
        let stops = refused.zip(rows.last()).map(|(why, row)| {
            format!(
                "there are steps for up to {} of {} devices: {why}; with train.batch_per_replica \
                 the batch grows with the devices",
                row.num_devices,
                target.num_devices()
            )
        });
        let (mesh, memory) = (mesh(steps), memory(target, &rows));
        let accuracy = target.chip.accuracy();
        let target = target.to_string();
        let simulated = scenario.stragglers.as_ref().zip(rows.last());
        let backups = simulated.map(|(stragglers, row)| BackupSimulation::of(stragglers, row));
        let batch = None;
        Self {
            target,
            mesh,
            network,
            rows,
            all_reduce,
            algorithms,
            accuracy,
            finding,
            stops,
            memory,
            batch,
            pipeline: None,
            ticks: vec![],
            backups,
        }
    }

    /// Adds the pipeline of the largest step.
    pub fn describe_pipeline(&mut self, pipeline: &StepPipeline) {
        self.pipeline = Some(pipeline.report());
        self.ticks = pipeline.picture();
    }

    /// Compares the batches with the largest of a published recipe, in tokens for texts and
    /// otherwise in examples.
    pub fn compare_batches(&mut self, largest: usize, recipe: &str) {
        let size = |row: &Row| row.num_tokens.unwrap_or(row.global_batch);
        let larger = self.rows.iter().filter(|row| size(row) > largest);
        let Some(row) = larger.min_by_key(|row| row.num_devices) else { return };
        let what = if row.num_tokens.is_some() { "tokens" } else { "examples" };
        let devices = if row.num_devices == 1 { "device" } else { "devices" };
        self.batch = Some(format!(
            "batch: with {} {devices} a step has {} {what}; no published recipe for this kind of \
             model has more than {largest} ({recipe}), so rows from there on are of batches that \
             nobody is known to train with",
            row.num_devices,
            size(row)
        ));
    }

    /// CSV: a header line, then one line per size.
    pub fn csv(&self) -> String {
        let names = self.columns().map(|column| column.name);
        let mut out = names.chain(["algorithm"]).collect::<Vec<_>>().join(",") + "\n";
        for row in &self.rows {
            for column in self.columns() {
                out += &format!("{:.*},", column.digits.0, (column.value)(row));
            }
            out += &format!("{}\n", row.algorithm);
        }
        out
    }

    /// A human-readable table.
    pub fn table(&self) -> String {
        let title = |column: &Column| format!("{:>12}", column.title);
        let mut out = self.columns().map(title).collect::<String>() + "  all_reduce\n";
        for row in &self.rows {
            for column in self.columns() {
                out += &format!("{:>12.*}", column.digits.1, (column.value)(row));
            }
            out += &format!("  {}\n", row.algorithm);
        }
        let from = |(bytes, name): &(u64, &str)| format!("{name} from {bytes} bytes");
        let algorithms: Vec<_> = self.algorithms.iter().map(from).collect();
        out += &format!(
            "{}: {}\n{}\n{}\n",
            self.target,
            algorithms.join(", "),
            self.mesh,
            self.network
        );
        let (batch, stops) = (self.batch.as_ref(), self.stops.as_ref());
        let lines = [Some(&self.memory), batch, stops, Some(&self.finding)];
        for line in lines.into_iter().flatten() {
            out += &format!("{line}\n");
        }
        for line in self.pipeline.iter().flat_map(PipelineReport::lines) {
            out += &format!("pipeline: {line}\n");
        }
        for line in &self.ticks {
            out += &format!("{line}\n");
        }
        out += &format!("accuracy: {}\n", self.accuracy);
        out += UPPER_BOUND;
        if let Some(backups) = &self.backups {
            out += &format!("\n{}", backups.table());
        }
        out
    }

    /// The columns that all rows have values for.
    fn columns(&self) -> impl Iterator<Item = &'static Column> {
        let failures = self.rows.iter().any(|row| row.goodput.is_some());
        let texts = self.rows.iter().any(|row| row.num_tokens.is_some());
        let is_there = move |column: &&Column| texts || column.name != TOKENS;
        let all = COLUMNS.iter().filter(is_there);
        all.chain(FAILURE_COLUMNS.iter().filter(move |_| failures))
    }
}

/// The meaning of the examples per second.
const UPPER_BOUND: &str = "examples/s are an upper bound: input, failures and other traffic on the \
                           network are not counted";

/// Whether the state leaves room for a step.
fn memory(target: &Target, rows: &[Row]) -> String {
    let limit = usable(target.chip);
    let too_large = rows.iter().filter(|row| row.state_bytes > limit);
    let (Some(most), of) = (rows.iter().map(|row| row.state_bytes).max(), gib(limit)) else {
        return String::new();
    };
    match too_large.map(|row| row.num_devices).max() {
        Some(num_devices) => format!(
            "memory: the state alone, up to {}, does not fit in the {of} that a program has on a \
             device, on {}; --set mesh.fsdp=N shards it, `lockstep compile` says what else a step \
             needs",
            gib(most),
            match num_devices {
                1 => "1 device".to_owned(),
                _ => format!("{num_devices} devices or fewer"),
            }
        ),
        None => format!(
            "memory: the state takes up to {} of the {of} that a program has on a device; \
             `lockstep compile` says what else a step needs",
            gib(most)
        ),
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

/// The column that only texts have.
const TOKENS: &str = "num_tokens";

static COLUMNS: [Column; 12] = [
    column("num_devices", "devices", |row| row.num_devices as f64, (0, 0)),
    column("global_batch", "batch", |row| row.global_batch as f64, (0, 0)),
    column(TOKENS, "tokens", |row| row.num_tokens.unwrap_or(0) as f64, (0, 0)),
    column("compute_ms", "compute ms", |row| row.compute_ms, (4, 2)),
    column("communication_ms", "collect. ms", |row| row.communication_ms, (4, 2)),
    column("exposed_ms", "exposed ms", |row| row.exposed_ms, (4, 2)),
    column("jitter_ms", "jitter ms", |row| row.jitter_ms, (4, 2)),
    column("step_ms", "step ms", |row| row.step_ms, (4, 2)),
    column("efficiency", "efficiency", |row| row.efficiency, (4, 3)),
    column("examples_per_sec", "examples/s", |row| row.examples_per_sec, (1, 0)),
    column("state_mb", "state MB", |row| row.state_bytes as f64 / 1e6, (3, 1)),
    column("all_reduced_mb", "reduced MB", |row| row.all_reduced_bytes as f64 / 1e6, (3, 1)),
];

static FAILURE_COLUMNS: [Column; 2] = [
    column("checkpoint_secs", "save each s", |row| row.checkpoint_secs.unwrap_or(0.0), (1, 0)),
    column("goodput", "goodput", |row| row.goodput.unwrap_or(1.0), (4, 3)),
];

const fn column(
    name: &'static str,
    title: &'static str,
    value: fn(&Row) -> f64,
    digits: (usize, usize),
) -> Column {
    Column { name, title, value, digits }
}

/// How the meshes of the steps differ, in words.
fn mesh(steps: &[Measured]) -> String {
    let sizes = |axis: Axis| -> Vec<usize> {
        steps.iter().map(|step| step.timeline.mesh().size(axis)).collect()
    };
    let words = |axis: Axis| match &sizes(axis)[..] {
        [first, .., last] if first != last => {
            format!("{} grows from {first} to {last}", axis.name())
        }
        [first, ..] => format!("{} is {first}", axis.name()),
        [] => String::new(),
    };
    let is_used = |axis: &Axis| sizes(*axis).iter().any(|size| *size > 1);
    let others = [Axis::Tensor, Axis::Pipeline].into_iter().filter(is_used);
    let axes: Vec<_> = [Axis::Data, Axis::Fsdp].into_iter().chain(others).map(words).collect();
    format!("mesh: {}", axes.join(", "))
}

/// The links of the groups of the step's all_reduces, and the bytes of these.
fn all_reduced(layout: &DeviceLayout, step: &Measured) -> Option<(Fabric, u64)> {
    let (groups, bytes) = step.timeline.all_reduced()?;
    Some((layout.fabric(&first_group(step.timeline.mesh(), groups)), bytes))
}

fn row(
    target: &Target,
    layout: &DeviceLayout,
    step: &Measured,
    failures: Option<&Failures>,
) -> Row {
    let time: StepTime = step.timeline.step(&step.work, target.chip, layout);
    let num_varying = num_varying(target, step.num_devices);
    let jitter_secs = waiting_secs(time.compute_secs, STEP_VARIATION, num_varying);
    let step_secs = time.total_secs() + jitter_secs;
    let reduced = all_reduced(layout, step);
    let algorithm = reduced
        .as_ref()
        .map_or("none", |(fabric, bytes)| all_reduce(fabric, *bytes as f64).1.name());
    Row {
        num_devices: step.num_devices,
        global_batch: step.global_batch,
        num_tokens: step.tokens_per_example.and_then(|each| each.checked_mul(step.global_batch)),
        compute_ms: 1e3 * time.compute_secs,
        communication_ms: 1e3 * time.communication_secs,
        exposed_ms: 1e3 * time.exposed_secs,
        jitter_ms: 1e3 * jitter_secs,
        step_ms: 1e3 * step_secs,
        efficiency: 1.0,
        examples_per_sec: step.global_batch as f64 / step_secs,
        state_bytes: step.state_bytes,
        all_reduced_bytes: reduced.map_or(0, |(_, bytes)| bytes),
        algorithm,
        checkpoint_secs: failures.map(|failures| failures.interval_secs(step.num_devices)),
        goodput: failures.map(|failures| failures.goodput(step.num_devices)),
    }
}

impl AllReduce {
    fn of(fabric: &Fabric, bytes: u64) -> Self {
        let ms = |algorithm: Algorithm| 1e3 * all_reduce_by(algorithm, fabric, bytes as f64);
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

fn finding(layout: &DeviceLayout, steps: &[Measured], rows: &[Row]) -> String {
    let waits = |row: &Row, share: f64| row.exposed_ms > share * row.step_ms;
    let Some(at) = rows.iter().position(|row| waits(row, NOTICEABLE)) else {
        return format!(
            "up to {} the step hardly waits for collectives",
            counted(rows.last().map_or(1, |row| row.num_devices), "device")
        );
    };
    let (Some(step), Some(row)) = (steps.get(at), rows.get(at)) else { return String::new() };
    let fabric = layout.first(step.num_devices);
    let (bytes, gathered) = (step.timeline.gradient_bytes(), step.timeline.gathered_bytes());
    let secs = all_reduce(&fabric, bytes as f64).0;
    let latency = all_reduce(&fabric, 0.0).0;
    let early = step.timeline.gradient_bytes_by(0.99);
    let why = if latency > secs / 2.0 {
        "the hops take longer than the bytes: fewer, larger collectives or fewer devices help"
            .to_owned()
    } else if row.communication_ms > row.compute_ms {
        format!(
            "{} take longer than the arithmetic: more examples on each device help",
            megabytes(bytes, gathered)
        )
    } else if fabric.num_groups > 1 && early * 2 > bytes {
        format!("the network between groups of {} is slow", counted(fabric.group.size(), "device"))
    } else if gathered > 0 {
        format!("of {} not all overlap with the arithmetic", megabytes(bytes, gathered))
    } else if early * 2 > bytes {
        format!(
            "the collectives take {:.2} ms, and the arithmetic that is left when they can begin \
             hides {:.2} of these: smaller parallel.bucket_bytes or more examples on each device \
             help",
            row.communication_ms,
            row.communication_ms - row.exposed_ms
        )
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

fn megabytes(reduced: u64, gathered: u64) -> String {
    let mb = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
    match gathered {
        0 => format!("{} of gradients", mb(reduced)),
        _ => format!("{} of gradients and {} of gathered parameters", mb(reduced), mb(gathered)),
    }
}
