//! Predicted scaling of a step from one device to the whole target.

use hlo::{Algorithm, Axis, Communication, Graph, communication, counted};
use serde::Serialize;

use super::Target;
use super::cost::{
    AllReduced, DeviceLayout, Fabric, Failures, NamedNetwork, RegionLinks, STEP_VARIATION,
    StepTime, Stragglers, Timeline, WhatIf, Wire, Work, all_reduce, all_reduce_by, first_group,
    num_varying, waiting_secs,
};
use super::finding::{Found, finding};
use super::memory::{gib, usable};
use super::pipeline::{PipelineReport, StepPipeline};
use super::remedies::RemedyTable;
use super::resilience::{DeadLink, SpareTable};
use super::row::{PlannedCollectives, Row};

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
    /// `strong` if the batch is the same for every size, `weak` if it grows with the devices,
    /// `mixed` if it does neither, `none` for a single size.
    pub scaling: &'static str,
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
    /// Slow processes on the whole target, if a run has recorded some.
    pub stragglers: Option<RemedyTable>,
    /// Where the figures of failures are from, in words.
    pub failures: Option<String>,
    /// Spare hosts or slices, if they were asked for.
    pub spares: Option<SpareTable>,
    /// A link that dies, if that was asked for.
    pub dead_link: Option<DeadLink>,
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
    /// All collectives of its program.
    pub collectives: Vec<Communication>,
    /// When those can run that it would have with another `parallel.bucket_bytes`.
    pub other_buckets: Vec<(u64, Timeline)>,
    /// Bytes of the state on each device.
    pub state_bytes: u64,
}

impl Measured {
    /// A step from its graph, with elements of so many bytes.
    pub fn of(graph: &Graph, element_bytes: usize, global_batch: usize) -> Self {
        Self {
            num_devices: graph.mesh().num_replicas(),
            global_batch,
            tokens_per_example: None,
            work: Work::of(graph, element_bytes),
            timeline: Timeline::of(graph),
            collectives: communication(graph),
            other_buckets: vec![],
            state_bytes: 0,
        }
    }
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
    /// How long the repair of a host or slice takes, in seconds, to compare numbers of spares.
    pub repair_secs: Option<f64>,
    /// A number of spares to compare with the others.
    pub num_spares: Option<usize>,
}

impl Scenario {
    /// The network between hosts or slices, as one device uses it, instead of `wire`.
    fn network(&self, wire: Wire) -> Wire {
        let named = self.network.as_ref().map_or(wire, NamedNetwork::wire);
        self.what_if.map_or(named, |change| change.apply(named))
    }

    /// The network between regions, if the one within them is `wire`.
    fn regions(&self, wire: Wire) -> Option<RegionLinks> {
        self.what_if.and_then(|change| change.regions(wire))
    }

    /// In words, for devices that use the network as `wire`.
    fn words(&self, wire: Wire) -> String {
        let is_changed = self.what_if.is_some_and(|change| change.changes_links());
        let name = match (self.network, is_changed) {
            (Some(network), false) => network.to_string(),
            (Some(network), true) => format!("{network}, changed"),
            (None, true) => "the target's, changed".to_owned(),
            (None, false) => "the target's".to_owned(),
        };
        let sprayed = match self.network {
            Some(network) if network.is_multipath => {
                "; multipath is a scenario: packets of one flow on all paths of several planes of \
                 two tiers"
            }
            _ => "",
        };
        let speed = |wire: Wire| {
            format!(
                "{:.2} GB/s for each device and {:.1} us a hop",
                wire.bytes_per_sec / 1e9,
                1e6 * wire.latency_secs
            )
        };
        let regions = self.regions(wire).map_or(String::new(), |regions| {
            format!("; between {} regions {}", regions.num_regions, speed(regions.wire))
        });
        let compression = self.what_if.filter(|change| change.compression() > 1.0);
        let compression = compression.map_or(String::new(), |change| {
            format!(
                "; gradients are sent in 1/{} of their bytes, and encoding and decoding takes a \
                 device {:.1} ms for each GB of them, which is part of its arithmetic",
                change.compression(),
                1e3 * change.encode_secs(1e9)
            )
        });
        format!("network between groups: {name}, {}{regions}{sprayed}{compression}", speed(wire))
    }
}

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
        let layout = layout.with_network(wire).with_regions(scenario.regions(wire));
        let network = scenario.words(wire);
        let row = |step: &Measured| row(target, &layout, step, scenario);
        let mut rows: Vec<Row> = steps.iter().map(row).collect();
        let per_device = |row: &Row| row.examples_per_sec / row.num_devices as f64;
        let base = rows.first().map_or(1.0, per_device);
        for row in &mut rows {
            row.efficiency = per_device(row) / base;
        }
        let what_if = scenario.what_if.as_ref();
        let finding = finding(&Found { chip: target.chip, layout: &layout, what_if, steps }, &rows);
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
        let (mesh, scaling, memory) = (mesh(steps), scaling(steps), memory(target, &rows));
        let accuracy = target.chip.accuracy();
        let spares = scenario.failures.zip(scenario.repair_secs);
        let spares = spares
            .map(|(failures, secs)| SpareTable::of(target, &failures, secs, scenario.num_spares));
        let dead_link = what_if.zip(rows.last());
        let dead_link = dead_link.and_then(|(change, row)| DeadLink::of(change, row));
        let target = target.to_string();
        let batch = None;
        Self {
            target,
            mesh,
            scaling,
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
            stragglers: None,
            failures: None,
            spares,
            dead_link,
        }
    }

    /// The row of so many devices.
    pub fn of(&self, num_devices: usize) -> Option<&Row> {
        self.rows.iter().find(|row| row.num_devices == num_devices)
    }

    /// Says where the figures of failures are from.
    pub fn describe_failures(&mut self, words: String) {
        self.failures = Some(words);
    }

    /// Adds what slow processes of a run cost on the whole target, with a process on each host.
    /// They take the place of the waits that are assumed for devices.
    pub fn add_stragglers(&mut self, target: &Target, run: &Stragglers) {
        let row = self.rows.last();
        self.stragglers = row.map(|row| {
            let (rest_ms, batch) = (row.compute_ms + row.exposed_ms, row.global_batch as f64);
            RemedyTable::of(run, &[(target.num_hosts(), rest_ms, batch)])
        });
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
        let scaling = self.scaling_words();
        let (batch, stops) = (self.batch.as_ref(), self.stops.as_ref());
        let lines = [scaling.as_ref(), Some(&self.memory), batch, stops, Some(&self.finding)];
        for line in lines.into_iter().flatten().chain(&self.failures) {
            out += &format!("{line}\n");
        }
        for line in self.rows.last().iter().flat_map(|row| row.program_lines()) {
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
        if let Some(stragglers) = &self.stragglers {
            out += &format!("\n{}", stragglers.table());
        }
        if let Some(dead_link) = &self.dead_link {
            out += &format!("\n{}", dead_link.words());
        }
        if let Some(spares) = &self.spares {
            out += &format!("\n{}", spares.table());
        }
        out
    }

    /// What grows, in words.
    fn scaling_words(&self) -> Option<String> {
        let row = self.rows.last()?;
        Some(match self.scaling {
            "strong" => format!(
                "strong scaling: every row has the same batch of {}, so a device has less to do \
                 the more there are; with train.batch_per_replica the scaling is weak",
                row.global_batch
            ),
            "weak" => format!(
                "weak scaling: the batch grows with the devices, {} a device; with \
                 train.global_batch the scaling is strong",
                counted_examples(row.global_batch, row.num_devices)
            ),
            "mixed" => "neither strong nor weak scaling: the batch grows, but not as the devices \
                        do"
            .to_owned(),
            _ => return None,
        })
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

/// What happens to the batch where the number of devices grows.
fn scaling(steps: &[Measured]) -> &'static str {
    let [first, rest @ ..] = steps else { return "none" };
    let grows_alike = |step: &Measured| {
        step.global_batch * first.num_devices == first.global_batch * step.num_devices
    };
    match rest {
        [] => "none",
        _ if rest.iter().all(|step| step.global_batch == first.global_batch) => "strong",
        _ if rest.iter().all(grows_alike) => "weak",
        _ => "mixed",
    }
}

/// `8 examples`, or `1/2 examples` for replicas that share one.
fn counted_examples(global_batch: usize, num_devices: usize) -> String {
    match (global_batch / num_devices, num_devices / global_batch.max(1)) {
        (0, shared_by) => format!("1/{shared_by} examples"),
        (each, _) => counted(each, "example"),
    }
}

/// The algorithm of a step's largest sum over replicas.
fn algorithm(layout: &DeviceLayout, step: &Measured, reduced: &AllReduced) -> &'static str {
    let AllReduced { groups, kind, bytes, written } = *reduced;
    let fabric = || layout.fabric(&first_group(step.timeline.mesh(), groups));
    match written {
        Some(algorithm) => algorithm.name(),
        None if kind == "all_reduce" => all_reduce(&fabric(), bytes as f64).1.name(),
        None => kind,
    }
}

fn row(target: &Target, layout: &DeviceLayout, step: &Measured, scenario: &Scenario) -> Row {
    let (what_if, failures) = (scenario.what_if.as_ref(), scenario.failures.as_ref());
    let time: StepTime = step.timeline.step_if(&step.work, target.chip, layout, what_if);
    let num_varying = num_varying(target, step.num_devices);
    let jitter_secs = waiting_secs(time.compute_secs, STEP_VARIATION, num_varying);
    let step_secs = time.total_secs() + jitter_secs;
    let reduced = step.timeline.all_reduced();
    let algorithm = reduced.as_ref().map_or("none", |reduced| algorithm(layout, step, reduced));
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
        all_reduced_bytes: reduced.map_or(0, |reduced| reduced.bytes),
        algorithm,
        collectives: PlannedCollectives::sums(&step.collectives),
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
