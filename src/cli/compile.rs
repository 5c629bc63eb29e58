//! `lockstep compile`: the step of a configuration, compiled for hardware that need not be
//! attached.

use std::path::Path;
use std::process::ExitCode;

use ::hlo::rewrites::written_all_reduce;
use ::hlo::{Axis, Communication, Graph, LeafSpec, Mesh, communication, counted};
use anyhow::{Context, Result, bail};
use models::AttentionKernels;

use super::args::{CompileArgs, ConfigArgs};
use super::fabric::measured_network;
use super::{Loaded, output, print_line};
use crate::config::{AutoOr, BatchSize, Config};
use crate::observe::{Waiting, say};
use crate::pjrt::Platform;
use crate::step::{self, DeclaredStep};
use crate::targets::cost::{DeviceLayout, NamedNetwork, Timeline, Work};
use crate::targets::{
    self, Arrangement, ByLine, CompileReport, Family, Knobs, Measured, MemoryAdvice, ModelPieces,
    Step, StepPipeline, Suggestion, Target, worker,
};
use crate::train::Run;

/// Most stages of a pipeline that are suggested.
const MAX_STAGES: usize = 16;
/// The values of `parallel.bucket_bytes` that `plan` compares with the configuration's.
const OTHER_BUCKETS: [u64; 3] = [0, 32 << 20, 1_000_000_000];
/// Most steps that are compiled to check what is advised.
const MAX_CHECKS: usize = 3;

pub fn run(args: &CompileArgs) -> Result<ExitCode> {
    let target: Target = args.target.parse()?;
    if let Some(dir) = &args.dump {
        let is_step = |head: &[u8]| head.starts_with(b"module @step");
        output::check_dir(("--dump", dir), &targets::DUMPED, args.overwrite, is_step)?;
    }
    let step = TargetStep::new(&args.config, &[], &target, target.num_devices())?;
    step.tell_of_surplus();
    if step.run.plan.mesh.size(Axis::Tensor) > 1 {
        step.warn_of_distant_layers(&step.measure()?.timeline, &target);
    }
    say_outer_steps(&step.loaded.config);
    let mut report = step.compile(&target, args.dump.as_deref())?;
    if step.run.attention == AttentionKernels::Cudnn && report.num_cudnn_calls == 0 {
        say(
            "no attention is computed by cuDNN: it must be in bf16 (train.precision), in heads of \
             at most 128 columns, a multiple of 8, without dropout and padding",
        );
    } else if step.run.attention == AttentionKernels::Cudnn {
        say("compiling with compile.kernels=xla to show what cuDNN's attention saves");
        let as_ops = ["compile.kernels=xla".to_owned()];
        let as_ops = TargetStep::new(&args.config, &as_ops, &target, target.num_devices())?;
        report.compare_attention(&as_ops.compile(&target, None)?);
    }
    if !report.fits && !args.no_check {
        check_advice(&args.config, &target, &mut report.advice)?;
    }
    if args.json {
        print_line(&serde_json::to_string(&report)?)?;
    } else {
        print_line(&report.to_string())?;
    }
    Ok(if report.fits { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Says which step is meant where not all are alike.
pub(super) fn say_outer_steps(config: &Config) {
    let every = config.sync.every;
    if config.sync.is_local() {
        say(&format!(
            "sync.every = {every}: what follows is about an outer step; between two of them \
             {} no bytes between replicas along mesh.data",
            match every - 1 {
                1 => "a step sends".to_owned(),
                others => format!("{others} steps send"),
            }
        ));
    }
}

/// Compiles what is advised. What does not fit is followed by what is advised then, until something
/// fits, which then comes first.
pub(super) fn check_advice(
    config: &ConfigArgs,
    target: &Target,
    advice: &mut MemoryAdvice,
) -> Result<()> {
    let mut next = advice.suggestions.first().cloned();
    let mut checked = vec![];
    while let Some(suggestion) = next.filter(|_| checked.len() < MAX_CHECKS) {
        let (sets, all) = (suggestion.sets.clone(), suggestion.all_sets());
        say(&format!("compiling with {} to check that it fits", all.join(" ")));
        // The advice may not divide the batch; then it stays an estimate.
        let Ok(step) = TargetStep::new(config, &all, target, target.num_devices()) else { break };
        let report = step.compile(target, None)?;
        let peak_bytes = report.memory.peak_bytes;
        checked.push(Suggestion { peak_bytes, fits: Some(report.fits), ..suggestion });
        let following = report.advice.suggestions.into_iter().next();
        next = following
            .map(|following| Suggestion { sets: with(&sets, &following.sets), ..following });
    }
    let is_checked = |suggestion: &Suggestion| checked.iter().any(|c| c.sets == suggestion.sets);
    advice.suggestions.retain(|suggestion| !is_checked(suggestion));
    checked.reverse();
    advice.suggestions.splice(..0, checked);
    Ok(())
}

/// `sets` and `later`, which replaces settings of the same key.
fn with(sets: &[String], later: &[String]) -> Vec<String> {
    let key = |set: &str| set.split_once('=').map_or(set, |(key, _)| key).to_owned();
    let is_replaced = |set: &&String| later.iter().any(|other| key(other) == key(set));
    sets.iter().filter(|set| !is_replaced(set)).chain(later).cloned().collect()
}

/// The hidden command that compiles in a child process: see [`worker`].
pub fn serve(dir: &Path) -> Result<ExitCode> {
    worker::serve(dir)?;
    Ok(ExitCode::SUCCESS)
}

/// The fewest devices that the configuration's mesh can have if one axis grows with their number.
fn smallest_mesh(args: &ConfigArgs) -> Result<usize> {
    let mesh = Config::load(&args.config, &args.sets())?.mesh;
    let growing = if mesh.fsdp == AutoOr::Auto { Axis::Fsdp } else { Axis::Data };
    Ok(mesh.smallest_along(growing).num_replicas())
}

/// The steps on every part of a target that has one.
pub(super) struct Steps {
    /// Smallest first.
    pub steps: Vec<Measured>,
    /// Why the largest part without a step has none.
    pub refused: Option<anyhow::Error>,
    /// The pipeline of the largest step.
    pub pipeline: Option<StepPipeline>,
}

impl Steps {
    /// # Errors
    /// A configuration that cannot be read.
    pub fn new(args: &ConfigArgs, target: &Target) -> Result<Self> {
        let mut found = Self { steps: vec![], refused: None, pipeline: None };
        for num_devices in targets::sizes(target, smallest_mesh(args)?) {
            let step = TargetStep::new(args, &[], target, num_devices);
            let is_whole = num_devices == target.num_devices();
            let measure = |step: &TargetStep| match is_whole {
                true => step.measure_with_other_buckets(),
                false => step.measure(),
            };
            match step.and_then(|step| Ok((measure(&step)?, step))) {
                Ok((measured, step)) => {
                    if is_whole {
                        step.tell_of_surplus();
                        step.warn_of_distant_layers(&measured.timeline, target);
                    }
                    found.steps.push(measured);
                    found.pipeline = step.run.pipeline(&*step.loaded.model);
                }
                // A batch that does not divide over this number of devices may divide over others.
                Err(error) => found.refused = Some(error),
            }
        }
        Ok(found)
    }
}

/// The step that `train` would run on a target.
pub(super) struct TargetStep {
    pub loaded: Loaded,
    pub run: Run,
    /// The network between hosts or slices, if it was measured.
    pub network: Option<NamedNetwork>,
    /// Most replicas along `tensor` that are suggested, as they communicate in each layer.
    most_along_tensor: usize,
}

impl TargetStep {
    /// Reads the configuration with the target's backend, for a number of its devices: `mesh.fsdp`
    /// is as many as `mesh.data` leaves if it is `"auto"`, otherwise `mesh.data` is as many as
    /// `mesh.fsdp` leaves. `more` are further keys to set.
    pub fn new(
        args: &ConfigArgs,
        more: &[String],
        target: &Target,
        num_devices: usize,
    ) -> Result<Self> {
        let (backend, platform) = match target.chip.family {
            Family::Tpu(_) => ("tpu", Platform::Tpu),
            Family::Gpu(_) => ("cuda", Platform::Cuda),
        };
        let mut sets = [&args.sets(), more].concat();
        sets.push(format!("device.backend={backend}"));
        sets.push("mesh.data=auto".to_owned());
        if Config::load(&args.config, &sets)?.mesh.fsdp == AutoOr::Auto {
            // Then the configuration's `data` stands.
            sets.pop();
        }
        let loaded = Loaded::with_sets(&args.config, &sets)?;
        let mesh = loaded.config.mesh.on_devices(num_devices)?;
        if mesh.num_replicas() != num_devices {
            bail!(
                "the mesh has {}, but the target has {}",
                counted(mesh.num_replicas(), "replica"),
                counted(num_devices, "device")
            );
        }
        let mut run = Run::new(&loaded.config, &loaded.splits, mesh, platform)?;
        if let Arrangement::Hosts { gpus_per_host, .. } = target.arrangement {
            // As where each host has a process.
            let replicas_per_host = loaded.config.parallel.replicas_per_host.or(gpus_per_host);
            run.lowering.set_replicas_per_host(replicas_per_host);
        }
        let network = measured_network(&loaded.config.parallel)?;
        Ok(Self { loaded, run, network, most_along_tensor: target.most_along_tensor() })
    }

    /// The inputs of the cost model.
    ///
    /// # Errors
    /// A step that does not trace.
    pub fn measure(&self) -> Result<Measured> {
        let declared = self.run.spec(&*self.loaded.model).declare()?;
        Ok(self.measured(&declared, &step::trace_step(&declared)?))
    }

    /// The same, and the collectives with other buckets.
    ///
    /// # Errors
    /// A step that does not trace.
    pub fn measure_with_other_buckets(&self) -> Result<Measured> {
        let declared = self.run.spec(&*self.loaded.model).declare()?;
        let graph = step::trace_step(&declared)?;
        let mut measured = self.measured(&declared, &graph);
        let now = self.run.lowering.bucket_bytes;
        for bucket_bytes in OTHER_BUCKETS.into_iter().filter(|bytes| *bytes != now) {
            let mut lowering = self.run.lowering;
            lowering.bucket_bytes = bucket_bytes;
            let grouped = lowering.group_collectives(&graph);
            measured.other_buckets.push((bucket_bytes, self.timeline(&grouped)));
        }
        Ok(measured)
    }

    fn measured(&self, declared: &DeclaredStep<'_>, graph: &Graph) -> Measured {
        let lowering = self.run.lowering;
        let grouped = lowering.group_collectives(graph);
        let mesh = *graph.mesh();
        let as_written = |one: Communication| {
            let choose = |sum| lowering.all_reduce.algorithm(sum);
            let written = written_all_reduce(&one, &mesh, &choose, lowering.replicas_per_host);
            written.map_or_else(|| vec![one], |(_, messages)| messages)
        };
        Measured {
            num_devices: mesh.num_replicas(),
            global_batch: self.run.batch.global_batch(),
            tokens_per_example: self.loaded.config.data.tokens_per_example(),
            work: Work::of(graph, self.run.precision.compute.size_bytes()),
            timeline: self.timeline(&grouped),
            collectives: communication(&grouped).into_iter().flat_map(as_written).collect(),
            other_buckets: vec![],
            state_bytes: declared.types().values().map(|ty| ty.num_bytes() as u64).sum(),
        }
    }

    /// When the collectives of a graph can run, as they are written.
    fn timeline(&self, grouped: &Graph) -> Timeline {
        let lowering = self.run.lowering;
        Timeline::of(grouped).written_as(lowering.all_reduce, lowering.replicas_per_host)
    }

    /// The settings that can be changed to make it fit.
    ///
    /// # Errors
    /// A step that does not trace.
    pub fn knobs(&self) -> Result<Knobs> {
        Ok(self.knobs_of(&self.run.spec(&*self.loaded.model).declare()?))
    }

    fn knobs_of(&self, declared: &DeclaredStep<'_>) -> Knobs {
        let (run, config) = (&self.run, &self.loaded.config);
        let (mesh, num_devices) = (&run.plan.mesh, run.plan.mesh.num_replicas());
        let (of_tensor, of_stages) = (mesh.size(Axis::Tensor), mesh.size(Axis::Pipeline));
        let num_blocks = config.model.num_blocks().unwrap_or(0);
        let is_context = config.parallel.is_context();
        let is_now =
            |(tensor, context): &(usize, bool)| (*tensor, *context) == (of_tensor, is_context);
        let is_possible = |cut: &(usize, bool)| match *cut {
            _ if is_now(cut) => true,
            (1, context) => !context,
            (tensor, true) => run.has_context_pieces(config, tensor),
            (tensor, false) => config.model.check_tensor_replicas(tensor).is_ok(),
        };
        // A step with stages is launched by itself.
        let has_stages = num_blocks > 1 && config.train.steps_per_launch == 1;
        let cuts_blocks =
            |stages: &usize| *stages == 1 || (has_stages && num_blocks.is_multiple_of(*stages));
        let most_along_pipeline = num_blocks.clamp(1, MAX_STAGES);
        let cuts = (1..=self.most_along_tensor)
            .flat_map(|tensor| [(tensor, false), (tensor, true)])
            .filter(is_possible);
        let pairs = cuts.flat_map(|cut| {
            (1..=most_along_pipeline).filter(cuts_blocks).map(move |stages| (cut, stages))
        });
        let is_other = |(cut, stages): &((usize, bool), usize)| {
            !(is_now(cut) && *stages == of_stages) && num_devices.is_multiple_of(cut.0 * stages)
        };
        let others = pairs.filter(is_other).filter_map(|((tensor, is_context), stages)| {
            let mesh = Mesh::new(&[
                (Axis::Data, num_devices / (tensor * stages)),
                (Axis::Tensor, tensor),
                (Axis::Pipeline, stages),
            ]);
            let spec = run.spec_on(&*self.loaded.model, mesh, is_context);
            Some(self.pieces_of(&spec.declare().ok()?, is_context))
        });
        let batch_per_replica = match config.train.batch {
            BatchSize::PerReplica(size) => Some(size),
            BatchSize::Global(_) => None,
        };
        Knobs {
            microbatch: run.batch.microbatch(),
            num_microbatches: run.batch.num_microbatches(),
            batch_per_replica,
            batch_of_fixed: config.train.microbatch.map(|_| run.batch.global_batch()),
            remat: config.model.remat(),
            mesh: *mesh,
            // With stages, 2 is taken as 1.
            zero: if of_stages > 1 { 1 } else { config.parallel.zero_stage() },
            is_zero_set: config.parallel.zero.is_some(),
            pipeline: run.plan.pipeline,
            pipeline_keys: config.parallel.pipeline_keys().collect(),
            num_blocks,
            is_sequence_set: config.parallel.sequence != AutoOr::Auto,
            pieces: self.pieces_of(declared, is_context),
            other_pieces: others.collect(),
        }
    }

    /// Says how the batch is split if replicas run microbatches that do not count.
    fn tell_of_surplus(&self) {
        if self.run.batch.efficiency() < 1.0 {
            say(&format!("batch: {}", self.run.batch));
        }
    }

    /// Warns if replicas that compute a layer together are on several hosts or slices of a target.
    fn warn_of_distant_layers(&self, timeline: &Timeline, target: &Target) {
        let mesh = &self.run.plan.mesh;
        let layout = DeviceLayout::of_mesh(target, mesh);
        if let Some((secs, num_groups)) = timeline.distant_layers(target.chip, &layout) {
            let groups = match target.chip.family {
                Family::Tpu(_) => counted(num_groups, "slice"),
                Family::Gpu(_) => counted(num_groups, "host"),
            };
            say(&format!(
                "warning: mesh.tensor = {} spans {groups} of {target}: what layers exchange is \
                 predicted to take {:.2} ms of a step; mesh.tensor belongs inside one, mesh.data \
                 and mesh.fsdp between them",
                mesh.size(Axis::Tensor),
                1e3 * secs
            ));
        }
    }

    /// What replicas along `tensor` and `pipeline` cut, they hold and gather in pieces, whatever
    /// else changes.
    fn pieces_of(&self, declared: &DeclaredStep<'_>, is_context: bool) -> ModelPieces {
        let mesh = declared.mesh();
        let parameters = step::StateSection::Params.leaves(declared.leaves());
        let piece = |leaf: &LeafSpec| {
            let shards = mesh.group_size(leaf.sharding.varying().intersection(Mesh::BATCH_AXES));
            leaf.local_type(&mesh).map_or(0, |local| (local.num_elements() * shards) as u64)
        };
        let bytes = |leaf: &LeafSpec| piece(leaf) * leaf.dtype.size_bytes() as u64;
        let compute_bytes = self.run.precision.compute.size_bytes() as u64;
        ModelPieces {
            tensor: mesh.size(Axis::Tensor),
            is_context,
            pipeline: mesh.size(Axis::Pipeline),
            state_bytes: declared.leaves().values().map(bytes).sum(),
            parameters_bytes: parameters.values().map(bytes).sum(),
            gathered_bytes: parameters.values().map(piece).sum::<u64>() * compute_bytes,
        }
    }

    /// Compiles it for the target. With `dump`, that directory gets the program and its compiled
    /// forms.
    ///
    /// # Errors
    /// A step that does not trace, and the compiler's.
    pub fn compile(&self, target: &Target, dump: Option<&Path>) -> Result<CompileReport> {
        let _waiting = Waiting::on("compiling");
        let binary = std::env::current_exe().context("cannot find this program's own file")?;
        let run = &self.run;
        let declared = run.spec(&*self.loaded.model).declare()?;
        let graph = step::trace_step(&declared)?;
        let program = run.lowering.lower(graph.clone(), "step").program;
        let line = match self.loaded.config.parallel.scatter_line {
            AutoOr::Auto => targets::scatter_line(target, &run.plan.mesh),
            AutoOr::Value(_) => None,
        };
        let by_line = line.map(|line| {
            let mut lowering = run.lowering;
            lowering.scatter_line = line;
            (line, lowering.lower(graph.clone(), "step").program)
        });
        let step = Step {
            graph: &graph,
            program: &program,
            by_line: by_line.as_ref().map(|(line, program)| ByLine { line: *line, program }),
            state: declared.types(),
            element_bytes: run.precision.compute.size_bytes(),
            pipeline: run.pipeline(&*self.loaded.model),
            knobs: &|| self.knobs_of(&declared),
            memory_fraction: self.loaded.config.device.memory_fraction(),
            network: self.network.as_ref().map(NamedNetwork::wire),
            overrides: &run.compile.options.overrides,
        };
        Ok(targets::compile(&step, target, &binary, dump)?)
    }
}
