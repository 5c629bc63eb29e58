//! `Trainer`: the state on the devices, and the programs that act on it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use hlo::{AxisSet, Graph, LeafSpec, Literal, Mesh, Tree, row_paths, row_specs, rows, split_rows};
use models::Model;

use super::evaluate::metric_names;
use super::gather::Gathers;
use super::memory::{self, Need};
use super::model_values::{ModelValues, misfit, piece_of_leaf};
use super::observed::{LayerRows, ObservedSteps};
use super::programs::{
    Background, Callable, CompileSettings, LoweredPrograms, NamedLaunch, Programs,
};
use super::{Error, Run};
use crate::checkpoint::Checkpoint;
use crate::data::HostBatch;
use crate::lowering::Lowering;
use crate::observe::{Metric, MetricValues, StartupSpans, StepLayers};
use crate::pjrt::{Arg, Buffers, Client, Completion, EndTime, Placement};
use crate::state::State;
use crate::step::{
    AWAITED, BATCH, COMPUTED_METRICS, GRAD_NORM, IN_TIME, LATE, LATE_SHARDS, LAYER_COUNTS,
    LAYER_NORMS, LEARNING_RATE, METRICS_OUTPUT, NONFINITE_LEAF, ON_TIME, PART_SQUARES,
    REPLICA_LOSS, SEED, StateSection, ema_path, metrics_of_replicas,
};

/// The batches of a launch, on their way to the devices: the step's `batch.*` inputs by name.
#[derive(Clone)]
pub struct DeviceBatch {
    /// Index, in the run, of the first batch.
    pub index: u64,
    /// Number of batches.
    pub num_steps: usize,
    /// Its [`HostBatch::size_class`].
    pub size_class: usize,
    fields: Arc<Tree<Buffers>>,
    /// For each replica of this process, its shard of the batch.
    shards: Arc<[usize]>,
    /// For each of them, what [`ON_TIME`] says.
    on_time: Vec<u32>,
}

impl DeviceBatch {
    /// The same examples in place of a batch that is late.
    pub(super) fn in_place_of(&self, index: u64) -> Self {
        Self { index, on_time: vec![LATE; self.shards.len()], ..self.clone() }
    }

    /// These shards take part with weight 0.
    pub(super) fn leave_out(&mut self, late: &[usize]) {
        for (on_time, shard) in self.on_time.iter_mut().zip(&*self.shards) {
            if late.contains(shard) {
                *on_time = LATE;
            }
        }
    }

    /// It came late, and was waited for.
    pub(super) fn note_wait(&mut self) {
        self.on_time.fill(AWAITED);
    }

    /// The argument for the input `name`, if it is a field of the batch. It is borrowed, because
    /// destroying the buffer before the launch has ended would block.
    pub(super) fn arg(&self, name: &str) -> Option<Arg<'_>> {
        self.fields.get(name).map(Arg::Borrow)
    }

    /// Blocks until the batch is on the devices.
    pub(super) fn wait(&self) -> Result<(), Error> {
        Ok(self.fields.values().try_for_each(Buffers::wait)?)
    }
}

/// Steps that have been launched.
pub struct PendingSteps {
    /// The first step, from 0.
    first: u64,
    rates: Vec<f64>,
    metrics: Buffers,
    replica_loss: Buffers,
    /// Of a step that is observed.
    layer_norms: Option<Buffers>,
    layer_counts: Option<Buffers>,
    part_squares: Option<Buffers>,
    late_shards: Option<Buffers>,
    done: Completion,
    launched: Range<Instant>,
    end: EndTime,
    /// Inputs and donated buffers of the steps, kept until they have ended.
    _inputs: (DeviceBatch, Vec<Buffers>, Vec<Buffers>),
}

impl PendingSteps {
    /// Blocks until the steps have ended on every replica.
    pub(super) fn wait(&self) -> Result<(), Error> {
        Ok(self.done.wait()?)
    }

    /// From when to when the plugin took them, and when they end.
    pub(super) fn times(&self) -> (Range<Instant>, EndTime) {
        (self.launched.clone(), self.end.clone())
    }
}

/// The metrics of a step. Those that decide how the run goes on are fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepResult {
    /// The step, from 0.
    pub step: u64,
    /// Its learning rate.
    pub lr: f64,
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Norm of the whole gradient.
    pub grad_norm: f64,
    /// Updates skipped so far because a value was not finite, including this one.
    pub num_skipped: u64,
    /// Replicas with a loss of their own that is not finite; empty if the update was not skipped.
    pub nonfinite_replicas: Vec<usize>,
    /// The first leaf of the state with a next value that was not finite.
    pub nonfinite_leaf: Option<String>,
    /// All that the program computes: [`COMPUTED_METRICS`].
    pub metrics: MetricValues,
    /// In a run with local steps what each replica of this process has measured, of which `metrics`
    /// is the whole: values of [`METRICS`](crate::step::METRICS).
    pub of_replicas: Vec<Vec<f64>>,
    /// The norms of each parameter, of a step that has them.
    pub layers: Option<StepLayers>,
    /// The mean of the squared norms of the gradients of parts of the batch, of a step that has it.
    pub part_squares: Option<f64>,
    /// The shards of the batch that were late, and took part with weight 0.
    pub late_shards: Vec<usize>,
    /// Those that were late and were waited for.
    pub awaited_shards: Vec<usize>,
}

impl StepResult {
    /// `true` if all values that the step computed are finite. Otherwise its update was skipped.
    pub fn is_finite(&self) -> bool {
        self.loss.is_finite() && self.grad_norm.is_finite() && self.nonfinite_leaf.is_none()
    }
}

/// Holds the state and runs steps on it.
pub struct Trainer {
    pub(super) client: Client,
    pub(super) programs: Programs,
    pub(super) state: State,
    seed: Buffers,
    batch_axes: AxisSet,
    /// `true` if replicas train on their own between outer steps.
    takes_local_steps: bool,
    /// `true` if the batch of a shard may be late.
    skips_late: bool,
    observed: ObservedSteps,
    layer_rows: LayerRows,
    pub(super) lowering: Lowering,
    pub(super) settings: CompileSettings,
}

impl Trainer {
    /// Compiles the programs and initializes the state from the seed, without communication between
    /// replicas.
    ///
    /// # Errors
    /// If the model does not trace, the compiler fails, or a launch fails.
    pub fn new(client: &Client, run: &Run, model: &dyn Model, seed: u64) -> Result<Self, Error> {
        let spans = StartupSpans::new(Instant::now());
        let lowered = LoweredPrograms::new(run, model, &spans)?;
        Self::with_programs(client, run, lowered, seed, &spans)
    }

    /// [`Self::new`] with lowered programs. Refuses what is larger than the memory before anything
    /// of that size is allocated.
    pub(super) fn with_programs(
        client: &Client,
        run: &Run,
        lowered: LoweredPrograms,
        seed: u64,
        spans: &StartupSpans,
    ) -> Result<Self, Error> {
        let settings = run.compile.clone().for_devices(client, &run.plan.mesh);
        let specs = lowered.leaves.clone();
        memory::check(client, &run.plan.mesh, Need::of_state(&specs, &run.plan.mesh))?;
        let programs = lowered.compile(client, &settings, spans)?;
        memory::check(client, &run.plan.mesh, Need::of_programs(programs.first())?)?;
        let placement = programs.init.executable.placement();
        let seed = Literal::from_slice(&[2], &[(seed >> 32) as u32, seed as u32]);
        let seed = client.upload_on(placement, &replicated(seed, placement))?;
        let call = programs.init.call([], |name| (name == SEED).then_some(Arg::Borrow(&seed)))?;
        let leaves = call.results.leaves;
        let (observed, layer_rows) = (run.observed, LayerRows::new(&specs));
        let state = State::new(client.clone(), placement.clone(), run.plan.mesh, specs, leaves);
        let (batch_axes, lowering) = (run.plan.batch_axes(), run.lowering);
        let takes_local_steps = run.local_steps.is_some();
        let client = client.clone();
        Ok(Self {
            client,
            state,
            programs,
            seed,
            batch_axes,
            takes_local_steps,
            skips_late: run.skips_late,
            observed,
            layer_rows,
            lowering,
            settings,
        })
    }

    /// The state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The state, for replacing leaves.
    pub fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// Replaces parameters, their running means if the optimizer keeps them, and model state by the
    /// values that there are.
    ///
    /// # Errors
    /// A value that the model does not have, that does not fit, or that cannot be read; see
    /// [`State::fill`].
    pub fn set_model(&mut self, values: &dyn ModelValues) -> Result<(), Error> {
        let specs = self.model_leaf_specs();
        let rows = rows(&specs);
        let given = values.paths();
        if let Some(unknown) = given.iter().find(|name| rows.get(name).is_none()) {
            return Err(misfit(unknown, "the model has no such parameter"));
        }
        for (name, spec) in specs.iter() {
            let of_leaf = row_paths(name, spec);
            let (there, missing): (Vec<_>, Vec<_>) =
                of_leaf.iter().partition(|row| given.contains(&row.as_str()));
            match missing.first() {
                Some(_) if there.is_empty() => continue,
                Some(row) => return Err(misfit(row, "there is no value")),
                None => {}
            }
            let paths = [
                StateSection::Params.path(name),
                ema_path(name),
                StateSection::ModelState.path(name),
            ];
            for path in paths {
                if self.state.specs().get(&path).is_some() {
                    let piece = |start: &[usize], dims: &[usize]| {
                        piece_of_leaf(values, (name, spec), start, dims)
                    };
                    self.state.fill(&path, piece)?;
                }
            }
        }
        Ok(())
    }

    /// The specifications of parameters and model state under the model's own paths: what files
    /// hold. Where the state stacks parameters, these are the rows.
    pub fn model_specs(&self) -> Tree<LeafSpec> {
        row_specs(&self.model_leaf_specs())
    }

    /// The leaves that evaluation needs, under their paths in the model.
    fn model_leaf_specs(&self) -> Tree<LeafSpec> {
        self.programs.model_leaves.map(|_, path| self.state.specs()[path].clone())
    }

    /// The whole values of what evaluation needs: model state and parameters, or the parameters'
    /// running means if the optimizer keeps them, under the model's own paths.
    ///
    /// # Errors
    /// If a launch or a transfer fails.
    pub fn model(&self) -> Result<Tree<Literal>, Error> {
        let mut gathers = Gathers::default();
        let gather = |(name, path): (&str, &String)| {
            Ok((name.to_owned(), self.gather_leaf(path, &mut gathers)?))
        };
        let whole = self.programs.model_leaves.iter().map(gather).collect::<Result<_, Error>>()?;
        Ok(split_rows(&self.model_leaf_specs(), whole))
    }

    /// Starts to compile the programs that the first step does not need: those of smaller batches,
    /// the evaluation, and, with `proof`, the lockstep proof. Best called after the first step:
    /// while it runs, compiling would take its processors. A program that is needed before is
    /// compiled then.
    pub fn compile_later(&self, proof: bool) {
        let proof = proof.then_some(&self.programs.proof);
        self.programs.background().chain(proof).for_each(Background::start);
    }

    /// Waits until all programs are compiled.
    ///
    /// # Errors
    /// If the compiler fails.
    pub fn finish_compiling(&self) -> Result<(), Error> {
        let mut later = self.programs.background().chain([&self.programs.proof]);
        later.try_for_each(|program| program.get().map(drop))
    }

    /// Number of the mesh's replicas that this process has.
    pub fn num_addressable(&self) -> usize {
        self.programs.init.executable.placement().num_addressable()
    }

    /// The replicas of this process.
    pub(super) fn replicas(&self) -> Vec<usize> {
        self.programs.init.executable.placement().replicas().collect()
    }

    /// The replica on each device of this process, by XLA's device ordinal.
    pub(super) fn replica_of_device(&self) -> Vec<(i32, usize)> {
        self.programs.init.executable.replica_of_device()
    }

    /// Number of elements in the model's parameters.
    pub fn num_params(&self) -> u64 {
        let specs = StateSection::Params.leaves(self.state.specs());
        specs.values().map(|leaf| leaf.num_elements() as u64).sum()
    }

    /// Replaces the whole state by that of a checkpoint, which may have been saved on another mesh,
    /// and with or without stacked blocks.
    ///
    /// # Errors
    /// A leaf that is missing, does not fit or is damaged, or one that this run does not have.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), Error> {
        let specs = self.state.specs().clone();
        checkpoint.check_fits(&specs)?;
        for (path, spec) in specs.iter() {
            let read = |start: &[usize], dims: &[usize]| checkpoint.read(path, spec, start, dims);
            self.state.fill::<Error>(path, |start, dims| Ok(read(start, dims)?))?;
        }
        self.state.set_num_steps(checkpoint.run().step);
        Ok(())
    }

    /// Processes that hold the replicas.
    pub(super) fn num_processes(&self) -> usize {
        let processes = self.client.global_devices().iter().map(|device| device.process_index);
        processes.max().map_or(1, |last| last + 1)
    }

    /// The devices.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Names of the metrics of an evaluation.
    pub(super) fn eval_metrics(&self) -> Vec<&'static str> {
        metric_names(&self.programs.eval_sums)
    }

    /// A hash of everything that the compiled step depends on.
    pub(super) fn program_key(&self) -> &str {
        &self.programs.step_key
    }

    /// `true` if the programs compute the same bits in each run.
    pub(super) fn repeats_bits(&self) -> bool {
        self.settings.repeats_bits(self.client.platform())
    }

    /// Steps taken since the start of the run.
    pub fn steps_taken(&self) -> u64 {
        self.state.num_steps()
    }

    /// The graph of the step that was compiled.
    pub fn step_graph(&self) -> &Graph {
        &self.programs.step_graph
    }

    /// The program of one step, on a batch of full size.
    pub fn step_program(&self) -> &Callable {
        &self.programs.step
    }

    /// Sends batches to the devices, from the data thread.
    pub fn batch_sender(&self) -> BatchSender {
        self.sender(&self.programs.step)
    }

    /// Sends the batches of a program.
    pub(super) fn sender(&self, program: &Callable) -> BatchSender {
        BatchSender::new(program, self.state.mesh(), self.batch_axes)
    }

    /// Launches a step without waiting for it.
    ///
    /// # Errors
    /// See [`Self::launch`].
    pub fn step(&mut self, batch: DeviceBatch, lr: f64) -> Result<PendingSteps, Error> {
        self.launch(batch, vec![lr])
    }

    /// Launches one step per rate, 1 or `steps_per_launch`, on as many batches, without waiting for
    /// them. A step that is [observed](Run::observed) is measured more closely if it is launched by
    /// itself.
    ///
    /// # Errors
    /// If the batches do not fit, or the launch fails. The state is then lost.
    pub fn launch(&mut self, batch: DeviceBatch, rates: Vec<f64>) -> Result<PendingSteps, Error> {
        let first = self.state.num_steps();
        let program = match &self.programs.steps {
            Some(steps) if rates.len() > 1 => steps,
            _ if self.observed.is_observed(first) => {
                self.programs.observed_of_size_class(batch.size_class)?
            }
            _ => self.programs.step_of_size_class(batch.size_class)?,
        };
        let rounded: Vec<_> = rates.iter().map(|rate| *rate as f32).collect();
        let rate = match rounded[..] {
            [rate] => Literal::scalar(rate),
            _ => Literal::from_slice(&[rounded.len()], &rounded),
        };
        let placement = program.executable.placement();
        let rate = self.client.upload_on(placement, &replicated(rate, placement))?;
        let on_time = batch.on_time.iter().map(|on_time| Arc::new(Literal::scalar(*on_time)));
        let on_time = match self.skips_late {
            true => Some(self.client.upload_on(placement, &on_time.collect::<Vec<_>>())?),
            false => None,
        };
        let leaves = self.state.take().into_iter().map(Arg::Donate);
        let begun = Instant::now();
        let NamedLaunch { mut results, done, spent } = program.call(leaves, |name| match name {
            SEED => Some(Arg::Borrow(&self.seed)),
            LEARNING_RATE => Some(Arg::Borrow(&rate)),
            ON_TIME => on_time.as_ref().map(Arg::Borrow),
            field => batch.arg(field),
        })?;
        let launched = begun..Instant::now();
        let (metrics, replica_loss) = (results.take(METRICS_OUTPUT)?, results.take(REPLICA_LOSS)?);
        // Most programs have none.
        let layer_norms = results.take(LAYER_NORMS).ok();
        let layer_counts = results.take(LAYER_COUNTS).ok();
        let part_squares = results.take(PART_SQUARES).ok();
        let late_shards = results.take(LATE_SHARDS).ok();
        self.state.put(results.leaves, rates.len() as u64);
        let (end, _inputs) =
            (done.note_end()?, (batch, [rate].into_iter().chain(on_time).collect(), spent));
        Ok(PendingSteps {
            first,
            rates,
            metrics,
            replica_loss,
            layer_norms,
            layer_counts,
            part_squares,
            late_shards,
            done,
            launched,
            end,
            _inputs,
        })
    }

    /// Waits for the metrics of launched steps. In a run with local steps they are those of the
    /// replicas of this process.
    ///
    /// # Errors
    /// If a launch or a transfer failed.
    pub fn finish(&self, pending: PendingSteps) -> Result<Vec<StepResult>, Error> {
        let PendingSteps { first, rates, metrics, replica_loss, .. } = pending;
        let PendingSteps { layer_norms, layer_counts, part_squares, late_shards, .. } = pending;
        let (has_layers, has_noise) =
            (self.observed.has_layers(first), self.observed.has_noise(first));
        // The copy is not requested earlier, because XLA's CPU backend would block there until the
        // step ends.
        let of_replicas: Vec<Vec<f64>> = match self.takes_local_steps {
            true => {
                let read = |replica| Ok(metrics.read(replica)?.to_f64());
                metrics.placement().replicas().map(read).collect::<Result<_, Error>>()?
            }
            false => vec![metrics.first_to_host()?.wait()?.to_f64()],
        };
        let result = |(i, lr): (usize, f64)| {
            let place = i * COMPUTED_METRICS.len()..(i + 1) * COMPUTED_METRICS.len();
            let values = of_replicas.iter().map(|values| values[place.clone()].to_vec());
            let mut result = self.step_result(first + i as u64, lr, values.collect());
            if !result.is_finite() {
                for replica in replica_loss.placement().replicas() {
                    if !replica_loss.read(replica)?.to_f64()[i].is_finite() {
                        result.nonfinite_replicas.push(replica);
                    }
                }
            }
            if let Some(norms) = layer_norms.as_ref().filter(|_| has_layers) {
                let norms = norms.first_to_host()?.wait()?.to_f64();
                let counts = match &layer_counts {
                    Some(counts) => counts.first_to_host()?.wait()?.to_f64(),
                    None => vec![],
                };
                result.layers = Some(self.layer_rows.layers(result.step, &norms, &counts));
            }
            if let Some(squares) = part_squares.as_ref().filter(|_| has_noise) {
                result.part_squares = squares.first_to_host()?.wait()?.to_f64().first().copied();
            }
            if let Some(late) = &late_shards {
                let late = late.first_to_host()?.wait()?.to_f64();
                let with = |found: f64| {
                    let shards = late.iter().enumerate().filter(|(_, value)| **value == found);
                    shards.map(|(shard, _)| shard).collect()
                };
                (result.late_shards, result.awaited_shards) = (with(1.0), with(2.0));
            }
            Ok(result)
        };
        rates.into_iter().enumerate().map(result).collect()
    }

    /// The metrics of a step, from what the program computes on each replica that has values of its
    /// own: those of [`METRICS`](crate::step::METRICS).
    pub(super) fn step_result(&self, step: u64, lr: f64, of_replicas: Vec<Vec<f64>>) -> StepResult {
        let values = match &of_replicas[..] {
            [only] => only.clone(),
            many => metrics_of_replicas(&many.iter().map(Vec::as_slice).collect::<Vec<_>>()),
        };
        let names = COMPUTED_METRICS.iter().map(|computed| &computed.metric);
        let metrics: MetricValues = names.zip(values).collect();
        let value = |name| metrics.get(name).unwrap_or(f64::NAN);
        let place = (value(NONFINITE_LEAF) as usize).checked_sub(1);
        let nonfinite_leaf = place.and_then(|place| self.state.specs().paths().nth(place));
        StepResult {
            step,
            lr,
            loss: value(Metric::LOSS),
            grad_norm: value(GRAD_NORM),
            num_skipped: value(Metric::NUM_SKIPPED) as u64,
            nonfinite_replicas: vec![],
            nonfinite_leaf: nonfinite_leaf.map(str::to_owned),
            metrics,
            of_replicas: if self.takes_local_steps { of_replicas } else { vec![] },
            layers: None,
            part_squares: None,
            late_shards: vec![],
            awaited_shards: vec![],
        }
    }

    /// Waits until all launches have ended.
    ///
    /// # Errors
    /// If a launch failed.
    pub fn wait(&self) -> Result<(), Error> {
        Ok(self.state.leaves().try_for_each(Buffers::wait)?)
    }
}

/// Sends batches to the devices: to each replica its shard.
#[derive(Clone)]
pub struct BatchSender {
    client: Client,
    placement: Placement,
    /// The batch shards of the replicas of this process, ascending.
    shards: Arc<[usize]>,
    /// For each replica of this process, its place among them.
    places: Vec<usize>,
    /// Names of the program's inputs that hold the batch.
    inputs: Vec<String>,
}

impl BatchSender {
    /// For a program with the batch split over `axes`.
    pub(super) fn new(program: &Callable, mesh: &Mesh, axes: AxisSet) -> Self {
        let program = &program.executable;
        let inputs = program.inputs().iter().map(|input| &input.name);
        let shard = |replica| mesh.index(replica, axes);
        let of_replicas: Vec<usize> = program.placement().replicas().map(shard).collect();
        let shards: BTreeSet<usize> = of_replicas.iter().copied().collect();
        let place = |shard: &usize| shards.range(..shard).count();
        Self {
            client: program.client().clone(),
            placement: program.placement().clone(),
            places: of_replicas.iter().map(place).collect(),
            shards: shards.into_iter().collect(),
            inputs: inputs.filter(|name| name.starts_with(BATCH)).cloned().collect(),
        }
    }

    /// The batch shards of the replicas of this process, ascending: those that a batch must have.
    pub fn shards(&self) -> &Arc<[usize]> {
        &self.shards
    }

    /// Starts the transfer of a batch.
    ///
    /// # Errors
    /// If a transfer cannot be started.
    pub fn send(&self, batch: HostBatch) -> Result<DeviceBatch, crate::pjrt::Error> {
        let HostBatch { index, num_steps, size_class, shards, fields } = batch;
        // A batch may have more shards than are needed here.
        let held: Vec<_> = match shards == self.shards {
            true => (0..shards.len()).collect(),
            false => {
                self.shards.iter().map(|shard| shards.partition_point(|s| s < shard)).collect()
            }
        };
        let upload = |input: &String| {
            let pieces = &fields[&input[BATCH.len()..]];
            let of_replicas: Vec<_> =
                self.places.iter().map(|place| pieces[held[*place]].clone()).collect();
            let buffers = self.client.upload_on(&self.placement, &of_replicas)?;
            Ok::<_, crate::pjrt::Error>((input.clone(), buffers))
        };
        let fields = self.inputs.iter().map(upload).collect::<Result<_, _>>()?;
        let fields = Arc::new(fields);
        let shards: Arc<[usize]> = self.places.iter().map(|place| self.shards[*place]).collect();
        let on_time = vec![IN_TIME; shards.len()];
        Ok(DeviceBatch { index, num_steps, size_class, fields, shards, on_time })
    }
}

/// The same value for each replica of this process.
pub(super) fn replicated(literal: Literal, placement: &Placement) -> Vec<Arc<Literal>> {
    std::iter::repeat_n(Arc::new(literal), placement.num_addressable()).collect()
}
