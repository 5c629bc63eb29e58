//! Compiles a step for a target and reads memory, collectives and schedule from the result.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use hlo::counted;
use hlo::{Graph, Mesh, Program, TensorType, Tree};

use super::advice::{Knobs, MemoryAdvice, advice};
use super::collective::{overlapped_fraction, sums};
use super::cost::{
    DeviceLayout, Fabric, STEP_VARIATION, StepTime, Timeline, Wire, Work, num_varying, seconds,
    waiting_secs,
};
use super::hlo_proto::HloModule;
use super::listing::listing;
use super::memory::{GPU_MEMORY_FRACTION, Memory};
use super::pipeline::count_heads;
use super::worker::{self, Compilation, Request, WorkerError};
use super::{
    Chip, Collective, CollectivePhase, CompileReport, ScatterForm, SentByStages, StepPipeline,
    Target, flags, schedule,
};
use crate::pjrt::OverrideValue;

/// The step to compile.
pub struct Step<'a> {
    /// The traced graph, with one all_reduce per parameter.
    pub graph: &'a Graph,
    /// The lowered program that is compiled.
    pub program: &'a Program,
    /// The same with reduce_scatters in another form. The better of both is reported.
    pub by_line: Option<ByLine<'a>>,
    /// Types of the state's leaves.
    pub state: &'a Tree<TensorType>,
    /// Bytes per element of the compute dtype.
    pub element_bytes: usize,
    /// Its pipeline, if it has one.
    pub pipeline: Option<StepPipeline>,
    /// The settings that can be changed if the step does not fit.
    pub knobs: &'a dyn Fn() -> Knobs,
    /// The fraction of a GPU's memory that the plugin is configured to allocate; `None` for its
    /// default.
    pub memory_fraction: Option<f64>,
    /// The network between hosts or slices as one device uses it, if it is not the target's.
    pub network: Option<Wire>,
    /// The user's XLA options, which override the chip's.
    pub overrides: &'a BTreeMap<String, OverrideValue>,
}

/// A step with two collectives for each reduce_scatter, one along each dim of the torus.
#[derive(Clone, Copy)]
pub struct ByLine<'a> {
    /// Replicas of a line.
    pub line: usize,
    /// The lowered program.
    pub program: &'a Program,
}

/// The replicas of a line, if reduce_scatters over a mesh's `fsdp` on a target may be better in two
/// collectives each. This is so on TPU v5e: its compiler turns a reduce_scatter over two dims of
/// the torus into an all_reduce of the whole.
pub fn scatter_line(target: &Target, mesh: &Mesh) -> Option<usize> {
    (target.chip.name == "v5e").then(|| DeviceLayout::of_mesh(target, mesh).line()).flatten()
}

impl Step<'_> {
    fn gpu_fraction(&self) -> f64 {
        self.memory_fraction.unwrap_or(GPU_MEMORY_FRACTION)
    }

    fn layout(&self, target: &Target) -> DeviceLayout {
        let layout = DeviceLayout::of_mesh(target, self.graph.mesh());
        match self.network {
            Some(network) => layout.with_network(network),
            None => layout,
        }
    }
}

/// Why a step could not be compiled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The compiling process, its plugin or its compiler failed.
    #[error("cannot compile for {target}: {source}")]
    Worker {
        /// The target.
        target: String,
        /// The cause.
        source: WorkerError,
    },
    /// The step was made for another number of replicas.
    #[error(
        "the step has {}, but {target} has {}", counted(*found, "replica"), counted(*expected, "device")
    )]
    Replicas {
        /// The target.
        target: String,
        /// Number of devices of the target.
        expected: usize,
        /// Number of replicas of the program.
        found: usize,
    },
    /// The optimised program has an unknown form.
    #[error(
        "the optimised program cannot be read: {source}; is the plugin much newer than this \
         program?"
    )]
    Unreadable {
        /// The problem with the bytes.
        #[from]
        source: prost::DecodeError,
    },
    /// A file of `--dump` could not be written.
    #[error("cannot write {path}: {source}")]
    Dump {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// The files that a dump consists of: the program, its optimised form as text and as it is, and the
/// executable.
pub const DUMPED: [&str; 4] = ["step.mlir", "optimized.txt", "optimized.pb", "executable.bin"];

/// Compiles a step for a target in a child process that runs `binary`. With `dump`, that directory
/// is created if needed and gets the program, its optimised form and the executable. If the step
/// has a second form, both are compiled, and the report and these files are of the one that fits,
/// or of the one that is predicted to be faster.
///
/// # Errors
/// See [`Error`]. A step that does not fit in memory is not an error; the report says so.
pub fn compile(
    step: &Step<'_>,
    target: &Target,
    binary: &Path,
    dump: Option<&Path>,
) -> Result<CompileReport, Error> {
    let num_devices = target.num_devices();
    let found = step.program.num_replicas;
    if found != num_devices {
        return Err(Error::Replicas { target: target.to_string(), expected: num_devices, found });
    }
    if let Some(dir) = dump {
        write(dir, DUMPED[0], step.program.text.as_bytes())?;
    }
    let started = Instant::now();
    let mut chosen = Form::compile(step, step.program, target, binary)?;
    if let Some(ByLine { line, program }) = step.by_line {
        let by_line = Form::compile(step, program, target, binary)?;
        let is_better = by_line.report.is_better_than(&chosen.report);
        let forms = vec![
            chosen.report.scatter_form(0, !is_better),
            by_line.report.scatter_form(line, is_better),
        ];
        if is_better {
            chosen = by_line;
        }
        chosen.report.scatter_forms = forms;
    }
    if let Some(dir) = dump {
        chosen.dump(dir)?;
    }
    let mut report = chosen.report;
    report.compile_secs = started.elapsed().as_secs_f64();
    if !report.fits {
        report.advice = advice(&report.memory, &(step.knobs)());
    }
    Ok(report)
}

/// A program, what the compiler made of it, and the report.
struct Form<'a> {
    program: &'a Program,
    /// `None` if it does not fit.
    compilation: Option<Compilation>,
    report: CompileReport,
}

impl<'a> Form<'a> {
    fn compile(
        step: &Step<'_>,
        program: &'a Program,
        target: &Target,
        binary: &Path,
    ) -> Result<Self, Error> {
        let failed = |source| Error::Worker { target: target.to_string(), source };
        let overrides = flags::with_overrides(target.chip, step.graph.mesh(), step.overrides);
        let options = overrides.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        let outcome = request(target, overrides, step)
            .and_then(|request| worker::compile(binary, &request, program));
        let memory = Memory::of_state(step.state, target.chip, step.gpu_fraction());
        let mut report = CompileReport::new(step, target, memory, options);
        let compilation = match outcome {
            Ok(compilation) => {
                report.read(step, target, &compilation)?;
                Some(compilation)
            }
            Err(WorkerError::Compiler { message }) => {
                let source = || WorkerError::Compiler { message: message.clone() };
                report.memory = memory.refused(&message).ok_or_else(|| failed(source()))?;
                None
            }
            Err(source) => return Err(failed(source)),
        };
        report.fits = report.memory.fits();
        Ok(Self { program, compilation, report })
    }

    fn dump(&self, dir: &Path) -> Result<(), Error> {
        let [program, text, optimized, executable] = DUMPED;
        write(dir, program, self.program.text.as_bytes())?;
        let Some(compilation) = &self.compilation else { return Ok(()) };
        let module = HloModule::decode_optimized(&compilation.optimized)?;
        write(dir, text, listing(&module).as_bytes())?;
        write(dir, optimized, &compilation.optimized)?;
        write(dir, executable, &compilation.executable)
    }
}

fn request(
    target: &Target,
    overrides: BTreeMap<String, OverrideValue>,
    step: &Step<'_>,
) -> Result<Request, WorkerError> {
    let (topology, topology_options) = target.topology();
    let plugin = worker::find_plugin(target.plugins())?;
    let mut overrides = overrides;
    worker::find_cuda_data(&plugin, target.chip, &mut overrides)?;
    let mesh = step.graph.mesh().sizes();
    Ok(Request { plugin, topology, topology_options, mesh, overrides })
}

impl CompileReport {
    /// The report as far as it is known before compiling.
    fn new(
        step: &Step<'_>,
        target: &Target,
        memory: Memory,
        options: Vec<(String, String)>,
    ) -> Self {
        let work = Work::of(step.graph, step.element_bytes);
        let timeline = Timeline::of(step.graph);
        let mut report = Self {
            target: target.to_string(),
            num_devices: target.num_devices(),
            fits: false,
            memory,
            advice: MemoryAdvice::default(),
            collectives: vec![],
            collective_sums: vec![],
            has_unknown_loops: false,
            gradient_bytes: timeline.gradient_bytes(),
            overlapped_gradient_fraction: 0.0,
            overlapped_gather_fraction: None,
            overlapped_layer_fraction: None,
            pipeline: step.pipeline.map(|pipeline| pipeline.report()),
            flops_per_device: work.flops as u64,
            traffic_bytes: (work.matmul_bytes() + work.other_bytes) as u64,
            arithmetic_intensity: work.arithmetic_intensity(),
            predicted_step_ms: 0.0,
            compute_ms: 0.0,
            backward_ms: 0.0,
            communication_ms: 0.0,
            exposed_ms: 0.0,
            jitter_ms: 0.0,
            accuracy: target.chip.accuracy(),
            predicted_utilization: 0.0,
            options,
            scatter_forms: vec![],
            num_cudnn_calls: step.program.text.matches("@__cudnn$").count(),
            attention_forms: vec![],
            compile_secs: 0.0,
        };
        let time = timeline.step(&work, target.chip, &step.layout(target));
        report.predict(&time, &work, target);
        report
    }

    fn predict(&mut self, time: &StepTime, work: &Work, target: &Target) {
        let chip = target.chip;
        let num_varying = num_varying(target, target.num_devices());
        let jitter_secs = waiting_secs(time.compute_secs, STEP_VARIATION, num_varying);
        let step_secs = time.total_secs() + jitter_secs;
        self.jitter_ms = 1e3 * jitter_secs;
        self.predicted_step_ms = 1e3 * step_secs;
        self.compute_ms = 1e3 * time.compute_secs;
        self.backward_ms = 1e3 * BACKWARD_SHARE * work.seconds(chip);
        self.communication_ms = 1e3 * time.communication_secs;
        self.exposed_ms = 1e3 * time.exposed_secs;
        self.predicted_utilization = work.utilization(chip, step_secs);
    }

    /// Adds what is read from the compiled program.
    fn read(
        &mut self,
        step: &Step<'_>,
        target: &Target,
        compilation: &Compilation,
    ) -> Result<(), Error> {
        let module = HloModule::decode_optimized(&compilation.optimized)?;
        self.memory = self.memory.compiled(&compilation.answer, target.chip);
        let schedule = schedule::read(&module, self.num_devices);
        self.memory.gathered_bytes = schedule.gathered_bytes;
        self.has_unknown_loops = schedule.has_unknown_loops;
        self.collectives = schedule.collectives;
        for collective in &mut self.collectives {
            let axes = step.graph.mesh().axes_between(&collective.group);
            collective.axes = axes.iter().map(|axis| axis.name().to_owned()).collect();
        }
        if let (Some(report), Some(StepPipeline { schedule, .. })) =
            (&mut self.pipeline, &step.pipeline)
        {
            count_heads(&mut self.collectives, schedule);
            report.sent = SentByStages::of(&self.collectives, schedule);
        }
        let of_state = |kinds: &[&str]| {
            overlapped_fraction(&self.collectives, |collective| {
                kinds.contains(&collective.kind.as_str()) && !collective.is_of_layers()
            })
        };
        self.overlapped_gradient_fraction =
            of_state(&["all_reduce", "reduce_scatter"]).unwrap_or(0.0);
        self.overlapped_gather_fraction = of_state(&["all_gather"]);
        self.overlapped_layer_fraction =
            overlapped_fraction(&self.collectives, Collective::is_of_layers);
        let work = Work::of(step.graph, step.element_bytes);
        let layout = step.layout(target);
        let mut links = Links { layout: &layout, fabrics: HashMap::new() };
        self.collective_sums = sums(&self.collectives, |collective| links.seconds(collective));
        let time = scheduled(&self.collectives, &work, target.chip, &mut links);
        self.predict(&time, &work, target);
        Ok(())
    }

    /// `true` if the step fits and the other's does not, is predicted to be faster if both fit, or
    /// lacks less memory if neither does.
    fn is_better_than(&self, other: &Self) -> bool {
        match (self.fits, other.fits) {
            (true, true) => self.predicted_step_ms < other.predicted_step_ms,
            (false, false) => self.memory.peak_bytes < other.memory.peak_bytes,
            (fits, _) => fits,
        }
    }

    fn scatter_form(&self, scatter_line: usize, is_chosen: bool) -> ScatterForm {
        ScatterForm {
            scatter_line,
            is_chosen,
            fits: self.fits,
            peak_bytes: self.memory.peak_bytes,
            temporaries_bytes: self.memory.temporaries_bytes,
            predicted_step_ms: self.predicted_step_ms,
        }
    }
}

/// The part of the compute that is in the backward pass; the rest is in the forward pass.
const BACKWARD_SHARE: f64 = 2.0 / 3.0;

/// The links of each group.
struct Links<'a> {
    layout: &'a DeviceLayout,
    fabrics: HashMap<Vec<usize>, Fabric>,
}

impl Links<'_> {
    /// Predicted time of all executions of a collective.
    fn seconds(&mut self, collective: &Collective) -> f64 {
        let group = &collective.group;
        let fabric = self.fabrics.entry(group.clone()).or_insert_with(|| self.layout.fabric(group));
        let once = seconds(fabric, &collective.kind, collective.whole_bytes() as f64);
        once * collective.count as f64
    }
}

/// The step time of the compiled schedule, with each collective on the links of its own group.
/// Synchronous collectives are exposed. Those that overlap with matmuls are hidden, up to the time
/// of the compute of their pass: beside the matmuls there are other kernels.
fn scheduled(
    collectives: &[Collective],
    work: &Work,
    chip: &Chip,
    links: &mut Links<'_>,
) -> StepTime {
    let (mut waited_for, mut forward, mut backward) = (0.0, 0.0, 0.0);
    for collective in collectives {
        let secs = links.seconds(collective);
        match (collective.is_overlapped(), collective.phase) {
            (false, _) => waited_for += secs,
            (true, CollectivePhase::ForwardGather) => forward += secs,
            (true, _) => backward += secs,
        }
    }
    let compute_secs = work.seconds(chip);
    let beyond = |hidden: f64, share: f64| (hidden - share * compute_secs).max(0.0);
    let exposed = beyond(forward, 1.0 - BACKWARD_SHARE) + beyond(backward, BACKWARD_SHARE);
    StepTime {
        compute_secs,
        communication_secs: waited_for + forward + backward,
        exposed_secs: waited_for + exposed,
    }
}

fn text(value: &OverrideValue) -> String {
    match value {
        OverrideValue::String(value) => value.clone(),
        OverrideValue::Bool(value) => value.to_string(),
        OverrideValue::Int(value) => value.to_string(),
        OverrideValue::Double(value) => value.to_string(),
    }
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let path = dir.join(name);
    fs::create_dir_all(dir)
        .and_then(|()| fs::write(&path, bytes))
        .map_err(|source| Error::Dump { path, source })
}
