//! `Run`: a configuration resolved against the data and the mesh.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use hlo::{ActivationRows, Axis, DType, Mesh, counted};
use models::{AttentionKernels, Model, Precision};

use super::fabric_file::choose_all_reduces;
use super::{CompileSettings, Error, ObservedSteps};
use crate::config::{
    AutoOr, BatchSplit, CompileConfig, Compression, Config, GatherDType, KernelsConfig,
    OnNonfinite, OptionValue, ReduceDType, RunLength,
};
use crate::data::{Field, Source, Splits};
use crate::lowering::Lowering;
use crate::optim::{self, Mask, Transformation, schedule::Schedule};
use crate::parallel::{
    GatherAt, LocalMomentum, NarrowSum, ParallelPlan, PipelinePlan, PlainSum, PowerSgdSum,
    QuantizedSum, Synchronize, TopKSum,
};
use crate::pjrt::{CompileOptions, InstallOptions, OverrideValue, Platform};
use crate::step::{BatchField, BatchParts, LocalSteps, StepSpec};
use crate::targets::StepPipeline;

/// A configuration resolved against the data and the mesh. It needs no plugin.
pub struct Run {
    /// How the global batch is split.
    pub batch: BatchSplit,
    /// The length of the run.
    pub length: RunLength,
    /// The learning rates.
    pub schedule: Schedule,
    /// The replicas, and how a step is distributed over them.
    pub plan: ParallelPlan,
    /// The parameters that [`ParallelPlan::gather_dtype`] applies to.
    pub gather_mask: Mask,
    /// How gradients are summed over the replicas.
    pub synchronize: Arc<dyn Synchronize>,
    /// The steps that replicas along `data` take on their own, if they do.
    pub local_steps: Option<LocalSteps>,
    /// The update rule.
    pub optimizer: Box<dyn Transformation>,
    /// The fields of a batch.
    pub fields: Vec<BatchField>,
    /// The same with smaller dims, ascending; see [`Source::smaller_fields`].
    pub smaller_fields: Vec<Vec<BatchField>>,
    /// Element types of parameters and computation.
    pub precision: Precision,
    /// The action when a value is not finite.
    pub on_nonfinite: OnNonfinite,
    /// Steps of one launch.
    pub steps_per_launch: usize,
    /// Shards with late batches take part in a step with weight 0.
    pub skips_late: bool,
    /// The steps that are observed more closely.
    pub observed: ObservedSteps,
    /// The form in which programs are written for the platform.
    pub lowering: Lowering,
    /// The kernels that layers call for attention.
    pub attention: AttentionKernels,
    /// How programs are compiled.
    pub compile: CompileSettings,
}

impl Run {
    /// Resolves a configuration for a mesh of devices of a platform, which is [`Client::platform`],
    /// or [`platform_on_host`] before there is a client.
    ///
    /// [`Client::platform`]: crate::pjrt::Client::platform
    /// [`platform_on_host`]: super::platform_on_host
    ///
    /// # Errors
    /// If the batch does not divide evenly, or the length of the run or the schedule is invalid.
    pub fn new(
        config: &Config,
        splits: &Splits,
        mesh: Mesh,
        platform: Platform,
    ) -> Result<Self, Error> {
        let num_examples = usize::try_from(splits.train.num_examples()).unwrap_or(usize::MAX);
        let run =
            Self::resolve(config, fields_of(&*splits.train), Some(num_examples), mesh, platform)?;
        let compile = CompileSettings { cache_dir: cache_dir(config)?, ..run.compile };
        let smaller_fields = smaller_fields_of(&*splits.train);
        let plan = plan(config, smaller_fields.iter().flatten().chain(&run.fields), mesh);
        Ok(Self { smaller_fields, plan, compile, ..run })
    }

    /// [`Self::new`] for data that need not be there: the fields of a batch, which is of full size,
    /// and the number of training examples if it is known. Nothing is cached.
    pub(super) fn resolve(
        config: &Config,
        fields: Vec<BatchField>,
        num_examples: Option<usize>,
        mesh: Mesh,
        platform: Platform,
    ) -> Result<Self, Error> {
        let batch = config.split_batch(mesh.num_batch_shards())?;
        config.model.batch_norm_group().map_or(Ok(()), |group| batch.check_norm_group(group))?;
        check_tensor(config, &fields, batch.microbatch(), mesh)?;
        check_stages(config, mesh)?;
        check_turns(config, mesh, &batch)?;
        let length = RunLength::new(config.train.length, num_examples, batch.global_batch())?;
        check_local_steps(config, mesh, &batch, length.total_steps())?;
        let mut lowering = Lowering::for_platform(platform);
        if let AutoOr::Value(bytes) = config.parallel.bucket_bytes {
            lowering.bucket_bytes = bytes as u64;
        }
        lowering.scatter_line = config.parallel.scatter_line.or(0);
        choose_all_reduces(&mut lowering, &config.parallel, &mesh)?;
        let has_host_collectives =
            platform == Platform::Cpu && config.parallel.host_collectives.or(false);
        lowering.host_collectives = has_host_collectives.then_some(1);
        let attention = attention_kernels(&config.compile, platform);
        lowering.host_kernels = attention == AttentionKernels::Host;
        Ok(Self {
            schedule: Schedule::new(&config.schedule, &length)?,
            batch,
            length,
            plan: plan(config, &fields, mesh),
            gather_mask: Mask::new("parallel.gather_exact", config.parallel.gather_exact.as_ref()),
            synchronize: synchronize(config),
            local_steps: local_steps(config),
            optimizer: match config.parallel.momentum_before_sums(&config.optimizer) {
                Some(_) => optim::from_config_after_momentum(&config.optimizer),
                None => optim::from_config(&config.optimizer),
            },
            fields,
            smaller_fields: vec![],
            precision: config.train.precision.dtypes(),
            on_nonfinite: config.train.on_nonfinite,
            steps_per_launch: config.train.steps_per_launch,
            skips_late: config.late.skips(),
            observed: ObservedSteps::new(&config.observe),
            lowering,
            attention,
            compile: CompileSettings {
                options: CompileOptions {
                    overrides: compile_overrides(config),
                    ..CompileOptions::default()
                },
                cache_dir: None,
                is_deterministic: config.compile.deterministic,
            }
            .on_platform(platform),
        })
    }

    /// The specification of the step for a model.
    pub fn spec<'a>(&'a self, model: &'a dyn Model) -> StepSpec<'a> {
        self.spec_of(model, &self.fields)
    }

    /// The parts of a batch whose gradients are compared, if the noise of gradients is measured
    /// and there are several.
    pub fn batch_parts(&self, model: &dyn Model) -> Option<usize> {
        let parts = (self.observed.noise_every > 0).then(|| self.spec(model).batch_parts())?;
        parts.map(BatchParts::count)
    }

    /// The pipeline of the step, if it has one.
    pub fn pipeline(&self, model: &dyn Model) -> Option<StepPipeline> {
        let schedule = self.plan.schedule(self.batch.num_microbatches())?;
        let is_by_row = model.pipelined()?.is_head_by_row();
        let positions = self.fields.iter().find(|field| field.name == "x").and_then(positions);
        // Replicas along `tensor` have pieces of the rows, and their stages divide these.
        let rows = self.batch.microbatch() * positions.unwrap_or(1) / self.plan.num_row_pieces();
        let head_rows = is_by_row.then_some(rows);
        Some(StepPipeline { schedule, head_rows })
    }

    /// How the training differs from that of one device in the same dtypes: by what replicas send.
    pub fn approximations(&self) -> Vec<String> {
        let dtype = self.plan.gather_dtype.filter(|_| self.plan.mesh.size(Axis::Fsdp) > 1);
        let gathers = dtype.map(|dtype| {
            let bits = match dtype {
                GatherDType::Int8 => "8 bits",
                GatherDType::F8E4M3 => "f8e4m3",
            };
            format!("the loss is that of parameters that are rounded to {bits}")
        });
        let local_steps = self.local_steps.map(|LocalSteps { every, learning_rate, momentum }| {
            format!(
                "local steps: {every} between outer steps, which have learning rate \
                 {learning_rate} and Nesterov momentum {momentum}: another algorithm than a step \
                 with the whole batch"
            )
        });
        let late = self.skips_late.then(|| {
            "late batches are left out (data.late = \"skip\"): their examples are lost".to_owned()
        });
        let sums = self.synchronize.approximation();
        sums.into_iter().chain(gathers).chain(local_steps).chain(late).collect()
    }

    /// Whether context parallelism over this many replicas is possible, each with a piece of an
    /// example. Whole examples on some may be possible too.
    pub fn has_context_pieces(&self, config: &Config, num_replicas: usize) -> bool {
        let x = self.fields.iter().find(|field| field.name == "x");
        let num_positions = x.and_then(positions);
        config.model.num_blocks().is_some()
            && num_positions.is_some_and(|positions| positions.is_multiple_of(num_replicas))
    }

    /// The specification of the step on another mesh, with context parallelism or whole rows, and
    /// one chunk of each stage.
    pub fn spec_on<'a>(
        &'a self,
        model: &'a dyn Model,
        mesh: Mesh,
        is_context: bool,
    ) -> StepSpec<'a> {
        let gather_at = match mesh.size(Axis::Pipeline) {
            1 => self.plan.gather_at,
            _ => GatherAt::Step,
        };
        let pipeline = PipelinePlan { num_chunks: 1, ..self.plan.pipeline };
        let rows = match is_context {
            true => ActivationRows::CutThroughout,
            false => ActivationRows::Whole,
        };
        let plan = ParallelPlan { mesh, gather_at, rows, pipeline, ..self.plan };
        StepSpec { plan, ..self.spec(model) }
    }

    /// The specifications of the steps on smaller batches; see [`Self::smaller_fields`].
    pub(super) fn smaller_specs<'a>(
        &'a self,
        model: &'a dyn Model,
    ) -> impl Iterator<Item = StepSpec<'a>> {
        self.smaller_fields.iter().map(move |fields| self.spec_of(model, fields))
    }

    fn spec_of<'a>(&'a self, model: &'a dyn Model, fields: &'a [BatchField]) -> StepSpec<'a> {
        StepSpec {
            model,
            fields,
            plan: self.plan,
            microbatch: self.batch.microbatch(),
            num_microbatches: self.batch.num_microbatches(),
            num_global_microbatches: self.batch.num_global_microbatches(),
            skips_late: self.skips_late,
            precision: self.precision,
            optimizer: &*self.optimizer,
            gather_mask: &self.gather_mask,
            synchronize: &*self.synchronize,
            local_steps: self.local_steps,
            on_nonfinite: self.on_nonfinite,
            attention: self.attention,
        }
    }
}

/// Checks that the model's layers can be cut over the axis `tensor`; `num_examples` are together in
/// a program.
///
/// # Errors
/// Says what to change.
pub(super) fn check_tensor(
    config: &Config,
    fields: &[BatchField],
    num_examples: usize,
    mesh: Mesh,
) -> Result<(), Error> {
    let (num_replicas, model) = (mesh.size(Axis::Tensor), config.model.name());
    if num_replicas == 1 {
        return Ok(());
    }
    let wrong = |reason: String| Error::Tensor { num_replicas, model, reason };
    let is_context = config.parallel.is_context();
    let checked = match is_context {
        // Layers are whole.
        true if config.model.num_blocks().is_some() => Ok(()),
        _ => config.model.check_tensor_replicas(num_replicas),
    };
    checked.map_err(wrong)?;
    let Some(x) = fields.iter().find(|field| field.name == "x") else { return Ok(()) };
    match positions(x) {
        None if is_context => Err(Error::NoPositions { key: "context", model }),
        None if config.parallel.sequence == AutoOr::Value(true) => {
            Err(Error::NoPositions { key: "sequence", model })
        }
        Some(num_positions) if is_context => {
            check_context(num_replicas, num_examples, num_positions).map_err(wrong)
        }
        _ => Ok(()),
    }
}

/// Checks that each replica along `tensor` gets whole examples, or a piece of one.
///
/// # Errors
/// Says what to change.
fn check_context(
    num_replicas: usize,
    num_examples: usize,
    num_positions: usize,
) -> Result<(), String> {
    let are_whole = num_examples.is_multiple_of(num_replicas);
    let are_pieces = num_replicas.is_multiple_of(num_examples)
        && num_positions.is_multiple_of(num_replicas / num_examples);
    if are_whole || are_pieces {
        return Ok(());
    }
    Err(format!(
        "with parallel.context each replica gets whole examples or an equal piece of one, which is \
         not possible with {} of {num_positions} positions; set a microbatch (or an evaluation's \
         batch) of B examples where B is a multiple of {num_replicas}, or where B divides \
         {num_replicas} and {num_replicas}/B divides the positions",
        counted(num_examples, "example")
    ))
}

/// Checks that the model's layers can be cut into the stages of a pipeline.
///
/// # Errors
/// Says what to change.
pub(super) fn check_stages(config: &Config, mesh: Mesh) -> Result<(), Error> {
    let num_stages = mesh.size(Axis::Pipeline);
    if num_stages == 1 {
        return Ok(());
    }
    let num_chunks = config.parallel.num_pipeline_chunks();
    let reason = match config.model.num_blocks() {
        None => {
            format!(
                "model.name = {:?} is not made of equal blocks, which stages divide; use mesh.data \
                 and mesh.fsdp",
                config.model.name()
            )
        }
        Some(num_blocks) if !num_blocks.is_multiple_of(num_stages * num_chunks) => {
            let chunks = match num_chunks {
                1 => String::new(),
                chunks => format!(" of parallel.pipeline_chunks = {chunks} chunks"),
            };
            let parts = num_stages * num_chunks;
            let below = num_blocks / parts * parts;
            let layers = nearest((below > 0).then_some(below), Some(below + parts));
            // Fewer stages are one at least, which is no pipeline.
            let fits = |stages: &usize| num_blocks.is_multiple_of(stages * num_chunks);
            let fewer = (2..num_stages).rev().find(fits);
            let more = (num_stages..=num_blocks / num_chunks).find(fits);
            let stages = match (fewer, more) {
                (None, None) => String::new(),
                _ => format!("mesh.pipeline = {} or ", nearest(fewer, more)),
            };
            format!(
                "the stages{chunks} do not divide the {num_blocks} blocks of the model; with \
                 {stages}model.num_layers = {layers} they do"
            )
        }
        Some(_) => return Ok(()),
    };
    Err(Error::Pipeline { num_stages, reason })
}

/// `2 or 4`, of the two that there are.
fn nearest(below: Option<usize>, above: Option<usize>) -> String {
    let numbers: Vec<_> = below.into_iter().chain(above).map(|n| n.to_string()).collect();
    numbers.join(" or ")
}

/// Checks that microbatches pass several chunks of a stage in turns.
///
/// # Errors
/// Says what to change.
fn check_turns(config: &Config, mesh: Mesh, batch: &BatchSplit) -> Result<(), Error> {
    let num_microbatches = batch.num_microbatches();
    let (num_stages, chunks) = (mesh.size(Axis::Pipeline), config.parallel.num_pipeline_chunks());
    if chunks == 1 || num_stages == 1 || num_microbatches.is_multiple_of(num_stages) {
        return Ok(());
    }
    let change = match config.train.microbatch {
        None => format!("train.num_microbatches to a multiple of {num_stages}, or "),
        Some(now) => {
            let (size, shards) = (batch.global_batch(), batch.num_batch_shards());
            let fits = |microbatch: &usize| {
                size.is_multiple_of(*microbatch)
                    && (size / microbatch).div_ceil(shards).is_multiple_of(num_stages)
            };
            let (below, above) = ((1..now).rev().find(fits), (now..=size).find(fits));
            match (below, above) {
                (None, None) => String::new(),
                _ => format!("train.microbatch to {}, or ", nearest(below, above)),
            }
        }
    };
    let reason = format!(
        "with parallel.pipeline_chunks = {chunks} the stages take microbatches by {num_stages}, \
         which does not divide {num_microbatches}; set {change}parallel.pipeline_chunks to 1"
    );
    Err(Error::Pipeline { num_stages, reason })
}

/// The number of positions of an example, if it is a sequence of tokens.
fn positions(field: &BatchField) -> Option<usize> {
    match field.dims[..] {
        [positions] if !field.dtype.is_float() => Some(positions),
        _ => None,
    }
}

/// The steps that replicas take on their own.
fn local_steps(config: &Config) -> Option<LocalSteps> {
    let sync = &config.sync;
    sync.is_local().then(|| LocalSteps {
        every: sync.every,
        learning_rate: sync.outer_learning_rate.unwrap_or(LocalSteps::LEARNING_RATE),
        momentum: sync.outer_momentum.unwrap_or(LocalSteps::MOMENTUM),
    })
}

/// Checks that replicas can take local steps, and that the run ends with an outer step.
///
/// # Errors
/// Says what to change.
fn check_local_steps(
    config: &Config,
    mesh: Mesh,
    batch: &BatchSplit,
    total_steps: u64,
) -> Result<(), Error> {
    let every = config.sync.every;
    if every == 1 {
        return Ok(());
    }
    let num_data = mesh.size(Axis::Data);
    if num_data == 1 || num_data < mesh.num_replicas() {
        let reason = format!(
            "replicas along mesh.data train on their own, each with the whole model, and the mesh \
             has {num_data} of them among {}; set mesh.data to 2 or more and other axes to 1, or \
             sync.every to 1",
            counted(mesh.num_replicas(), "replica")
        );
        return Err(Error::LocalSteps { every, reason });
    }
    if batch.efficiency() < 1.0 {
        let reason = format!(
            "replicas train on equal shares of the batch, and {num_data} do not divide its {}; \
             set mesh.data or train.microbatch so that they do, or sync.every to 1",
            counted(batch.num_global_microbatches(), "microbatch")
        );
        return Err(Error::LocalSteps { every, reason });
    }
    if total_steps.is_multiple_of(every) {
        return Ok(());
    }
    let below = total_steps / every * every;
    let steps = [below, below + every].into_iter().filter(|steps| *steps > 0);
    let steps: Vec<_> = steps.map(|steps| steps.to_string()).collect();
    let reason = format!(
        "the last of {total_steps} steps is no outer step; set train.steps to {} (--set \
         train.steps=N takes the place of epochs)",
        steps.join(" or ")
    );
    Err(Error::LocalSteps { every, reason })
}

/// How gradients are summed.
fn synchronize(config: &Config) -> Arc<dyn Synchronize> {
    let parallel = &config.parallel;
    match (parallel.compression, parallel.reduce_dtype) {
        (Some(Compression::TopK), _) => {
            let block = parallel.top_k_block.or(TopKSum::DEFAULT_BLOCK);
            let momentum = config.parallel.momentum_before_sums(&config.optimizer);
            let momentum =
                momentum.map(|sgd| LocalMomentum { mu: sgd.momentum, nesterov: sgd.nesterov });
            Arc::new(TopKSum { block, momentum })
        }
        (Some(Compression::PowerSgd), _) => {
            Arc::new(PowerSgdSum { rank: parallel.power_sgd_rank.value() })
        }
        (None, Some(ReduceDType::Int8)) => Arc::new(QuantizedSum),
        (None, Some(ReduceDType::Bf16)) => Arc::new(NarrowSum { dtype: DType::Bf16 }),
        (None, None) => Arc::new(PlainSum),
    }
}

/// How a step is distributed over the mesh.
pub(super) fn plan<'f>(
    config: &Config,
    fields: impl IntoIterator<Item = &'f BatchField>,
    mesh: Mesh,
) -> ParallelPlan {
    let num_pieces = mesh.size(Axis::Tensor);
    let divides = fields.into_iter().filter(|field| field.name == "x").all(|field| {
        positions(field).is_some_and(|positions| positions.is_multiple_of(num_pieces))
    });
    let rows = match config.parallel.is_context() {
        _ if num_pieces == 1 => ActivationRows::Whole,
        true => ActivationRows::CutThroughout,
        false if config.parallel.sequence.or(divides) => ActivationRows::CutBetweenLayers,
        false => ActivationRows::Whole,
    };
    let gather_at = match mesh.size(Axis::Pipeline) {
        1 => GatherAt::of_zero_stage(config.parallel.zero_stage()),
        // Microbatches overlap, so parameters and gradients are whole during a step.
        _ => GatherAt::Step,
    };
    let pipeline = PipelinePlan {
        order: config.parallel.pipeline_schedule.unwrap_or_default(),
        num_chunks: config.parallel.num_pipeline_chunks(),
    };
    ParallelPlan::new(mesh, gather_at)
        .with_rows(rows)
        .with_pipeline(pipeline)
        .with_reduce_dtype(config.parallel.reduce_dtype.map(Into::into))
        .with_gather_dtype(config.parallel.gather_dtype)
}

/// The kernels for attention.
fn attention_kernels(config: &CompileConfig, platform: Platform) -> AttentionKernels {
    match (platform, config.kernels) {
        (Platform::Cpu, KernelsConfig::Auto | KernelsConfig::All) => AttentionKernels::Host,
        // XLA aborts on cuDNN's attention where it must not take ops that round differently.
        (Platform::Cuda, KernelsConfig::All) if !config.deterministic => AttentionKernels::Cudnn,
        _ => AttentionKernels::None,
    }
}

/// How the programs of an evaluation without training are compiled.
///
/// # Errors
/// If the directory of the compile cache is not known.
pub(super) fn eval_compile_settings(config: &Config) -> Result<CompileSettings, Error> {
    let overrides = compile_overrides(config);
    let options = CompileOptions { overrides, ..CompileOptions::default() };
    let is_deterministic = config.compile.deterministic;
    Ok(CompileSettings { options, cache_dir: cache_dir(config)?, is_deterministic })
}

/// The fields of a batch of examples.
pub(super) fn fields_of(source: &dyn Source) -> Vec<BatchField> {
    batch_fields(source.fields())
}

/// The fields of smaller batches.
pub(super) fn smaller_fields_of(source: &dyn Source) -> Vec<Vec<BatchField>> {
    source.smaller_fields().iter().map(|fields| batch_fields(fields)).collect()
}

fn batch_fields(fields: &[Field]) -> Vec<BatchField> {
    let field = |field: &Field| BatchField {
        name: field.name.to_owned(),
        dtype: field.dtype,
        dims: field.dims.clone(),
    };
    fields.iter().map(field).collect()
}

/// The options that the configuration passes to the compiler.
pub(super) fn compile_overrides(config: &Config) -> BTreeMap<String, OverrideValue> {
    let value = |value: &OptionValue| match value {
        OptionValue::Bool(value) => OverrideValue::Bool(*value),
        OptionValue::Int(value) => OverrideValue::Int(*value),
        OptionValue::Float(value) => OverrideValue::Double(*value),
        OptionValue::Text(value) => OverrideValue::String(value.clone()),
    };
    config.compile.overrides.iter().map(|(name, v)| (name.clone(), value(v))).collect()
}

fn cache_dir(config: &Config) -> Result<Option<PathBuf>, Error> {
    if !config.compile.cache {
        return Ok(None);
    }
    Ok(Some(InstallOptions::from_env()?.compile_cache_dir()))
}
