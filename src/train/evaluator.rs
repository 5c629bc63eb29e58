//! A trained model that is evaluated or predicts, for the commands `evaluate` and `predict`: its
//! parameters on each device, and no optimizer. Evaluation during training is in `evaluate.rs`.

use std::sync::Arc;

use hlo::{AxisSet, LeafSpec, Mesh, Tree, row_specs};
use models::{AttentionKernels, Model, Precision};

use super::evaluate::evaluate_with;
use super::memory::{self, Need};
use super::model_values::{ModelValues, piece_of_leaf};
use super::programs::{Callable, UncompiledProgram};
use super::run::{
    check_stages, check_tensor, eval_compile_settings, fields_of, plan, smaller_fields_of,
};
use super::{BatchSender, CompileSettings, Error, EvalResult};
use crate::config::{Config, OnNonfinite};
use crate::data::{EvalBatches, Source};
use crate::lowering::Lowering;
use crate::observe::Waiting;
use crate::optim;
use crate::parallel::{ParallelPlan, PlainSum};
use crate::pjrt::{Arg, Client};
use crate::state::State;
use crate::step::{self, DeclaredStep, EvalSums, SCORES, StepSpec};

/// The subject of an evaluation: a model, and how its examples are batched.
pub struct EvalSpec<'a> {
    /// The model.
    pub model: &'a dyn Model,
    /// The examples, or others with the same fields at the same sizes.
    pub source: &'a dyn Source,
    /// The replicas, and how parameters are sharded over them: as in training.
    pub plan: ParallelPlan,
    /// Examples of a batch on each replica.
    pub batch_per_replica: usize,
    /// Element types of parameters and computation.
    pub precision: Precision,
    /// How programs are compiled.
    pub compile: CompileSettings,
}

/// Programs for batches of each size, and the parameters that they read, on the devices.
pub struct Evaluator {
    program: Callable,
    /// The programs for smaller batches; see [`Source::smaller_fields`].
    smaller: Vec<Callable>,
    params: State,
    sender: BatchSender,
    batch: usize,
    /// For each shard of a batch, the first replica that has it.
    replica_of_shard: Vec<usize>,
    sums: EvalSums,
}

impl<'a> EvalSpec<'a> {
    /// The model and the source of a configuration, on these devices.
    ///
    /// # Errors
    /// If there is no place for compiled programs.
    pub fn of_config(
        config: &Config,
        model: &'a dyn Model,
        source: &'a dyn Source,
        mesh: Mesh,
        batch_per_replica: usize,
    ) -> Result<Self, Error> {
        let (fields, smaller) = (fields_of(source), smaller_fields_of(source));
        check_tensor(config, &fields, batch_per_replica, mesh)?;
        check_stages(config, mesh)?;
        Ok(Self {
            model,
            source,
            plan: plan(config, smaller.iter().flatten().chain(&fields), mesh),
            batch_per_replica,
            precision: config.train.precision.dtypes(),
            compile: eval_compile_settings(config)?,
        })
    }

    /// Means over examples. `open` gets the specifications of parameters and model state under the
    /// model's own paths, and returns what has their values.
    ///
    /// # Errors
    /// If the model does not trace, values do not fit, or the compiler or a transfer fails.
    pub fn evaluator<M: ModelValues>(
        &self,
        client: &Client,
        open: impl FnOnce(&Tree<LeafSpec>) -> Result<M, Error>,
    ) -> Result<Evaluator, Error> {
        let program = |step: &DeclaredStep<'_>| Ok(Some(step::trace_eval(step)?));
        match self.start(client, open, program)? {
            Some(evaluator) => Ok(evaluator),
            None => unreachable!("every model has a loss"),
        }
    }

    /// Scores of examples; `None` if the model does not classify them. `open` as for
    /// [`Self::evaluator`].
    ///
    /// # Errors
    /// As [`Self::evaluator`].
    pub fn scorer<M: ModelValues>(
        &self,
        client: &Client,
        open: impl FnOnce(&Tree<LeafSpec>) -> Result<M, Error>,
    ) -> Result<Option<Evaluator>, Error> {
        self.start(client, open, |step| {
            Ok(step::trace_scores(step)?.map(|graph| (graph, EvalSums::default())))
        })
    }

    fn start<M: ModelValues>(
        &self,
        client: &Client,
        open: impl FnOnce(&Tree<LeafSpec>) -> Result<M, Error>,
        trace: impl Fn(&DeclaredStep<'_>) -> Result<Option<(hlo::Graph, EvalSums)>, Error>,
    ) -> Result<Option<Evaluator>, Error> {
        let _waiting = Waiting::on("compiling");
        let mesh = self.plan.mesh;
        let optimizer = optim::chain(vec![]);
        let settings = self.compile.clone().on_platform(client.platform());
        let settings = settings.for_devices(client, &mesh);
        let spec = StepSpec {
            model: self.model,
            fields: &fields_of(self.source),
            plan: self.plan,
            microbatch: self.batch_per_replica,
            num_microbatches: 1,
            num_global_microbatches: mesh.num_batch_shards(),
            skips_late: false,
            precision: self.precision,
            optimizer: &optimizer,
            gather_mask: &optim::Mask::Matrices,
            synchronize: &PlainSum,
            local_steps: None,
            on_nonfinite: OnNonfinite::Stop,
            attention: match client.has_host_kernels() {
                true => AttentionKernels::Host,
                false => AttentionKernels::None,
            },
        };
        let compile = |graph, declared: &DeclaredStep<'_>| {
            let lowering = Lowering {
                host_kernels: client.has_host_kernels(),
                ..Lowering::for_platform(client.platform())
            };
            let lowered = lowering.lower(graph, "eval");
            let none = std::iter::empty::<&str>();
            let program = UncompiledProgram::new(lowered.program, declared.eval_inputs(), none)?;
            let executable = settings.compile(client, &program.program)?.0;
            memory::check(client, &mesh, Need::of_evaluation(&executable)?)?;
            Ok::<_, Error>(program.compiled(executable))
        };
        let mut smaller = vec![];
        for fields in &smaller_fields_of(self.source) {
            let declared = StepSpec { fields, ..spec.clone() }.declare()?;
            let Some((graph, _)) = trace(&declared)? else { return Ok(None) };
            smaller.push(compile(graph, &declared)?);
        }
        let declared = spec.declare()?;
        let Some((graph, sums)) = trace(&declared)? else { return Ok(None) };
        let program = compile(graph, &declared)?;

        let specs = declared.model_leaves().map(|_, path| declared.leaves()[path].clone());
        let values = open(&row_specs(&specs))?;
        let placement = program.executable.placement();
        let read = |leaf: (&str, &LeafSpec), start: &[usize], dims: &[usize]| {
            piece_of_leaf(&values, leaf, start, dims)
        };
        let params = State::read(client.clone(), placement.clone(), mesh, specs, read)?;
        let sender = BatchSender::new(&program, &mesh, self.plan.batch_axes());
        let batch = self.batch_per_replica * mesh.num_batch_shards();
        let of_shards = mesh.groups(AxisSet::ALL.minus(Mesh::BATCH_AXES));
        let replica_of_shard = of_shards.into_iter().map(|replicas| replicas[0]).collect();
        Ok(Some(Evaluator { program, smaller, params, sender, batch, replica_of_shard, sums }))
    }
}

impl Evaluator {
    /// Means over all examples of a source, each counted once.
    ///
    /// # Errors
    /// If examples cannot be read, or a launch fails.
    pub fn evaluate(&self, source: Arc<dyn Source>) -> Result<EvalResult, Error> {
        let batches = self.batches(source)?;
        let leaves: Vec<_> = self.params.leaves().collect();
        let program = |size_class| Ok(self.program_of_size_class(size_class));
        let waiting = Waiting::on("evaluating batches");
        let is_ended = |batch, of| {
            waiting.set_done(batch, of);
            false
        };
        match evaluate_with((&program, &self.sender), &leaves, &self.sums, &batches, is_ended)? {
            Some(result) => Ok(result),
            None => unreachable!("nothing ends it early"),
        }
    }

    /// Calls `each` with the scores of every example of a source, `[num_classes]`, in order.
    ///
    /// # Errors
    /// If examples cannot be read, or a launch fails; and those of `each`.
    pub fn scores<E: From<Error>>(
        &self,
        source: Arc<dyn Source>,
        mut each: impl FnMut(u64, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let num_examples = source.num_examples();
        let mut next = 0;
        let waiting = Waiting::on("predicting batches");
        let batches = self.batches(source)?;
        for (index, batch) in (0..).zip(batches.iter()) {
            waiting.set_done(index, batches.num_batches());
            let batch = self.sender.send(batch.map_err(Error::from)?).map_err(Error::from)?;
            let leaves = self.params.leaves().map(Arg::Borrow);
            let program = self.program_of_size_class(batch.size_class);
            let called = program.call(leaves, |name| batch.arg(name))?;
            let scores = { called }.results.take(SCORES).map_err(Error::from)?;
            for replica in self.replica_of_shard.iter().copied() {
                let scores_bc = scores.read(replica).map_err(Error::from)?;
                let num_classes = scores_bc.dims().last().copied().unwrap_or(1).max(1);
                for scores_c in scores_bc.as_slice::<f32>().chunks(num_classes) {
                    // The rest of the last batch is padding.
                    if next < num_examples {
                        each(next, scores_c)?;
                    }
                    next += 1;
                }
            }
        }
        Ok(())
    }

    fn program_of_size_class(&self, size_class: usize) -> &Callable {
        self.smaller.get(size_class).unwrap_or(&self.program)
    }

    fn batches(&self, source: Arc<dyn Source>) -> Result<EvalBatches, Error> {
        let batches = EvalBatches::new(source, self.batch, self.replica_of_shard.len())?;
        Ok(batches.of_shards(self.sender.shards().clone()))
    }
}
