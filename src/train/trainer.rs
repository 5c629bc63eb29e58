//! `Trainer`: the state on the devices, and the programs that act on it.

use std::sync::Arc;
use std::time::Instant;

use hlo::{Graph, Literal, TensorType, Tree};
use models::Model;
use sha2::{Digest, Sha256};

use super::programs::Traced;
use super::{Error, Programs, Run};
use crate::data::HostBatch;
use crate::observe::StartupSpans;
use crate::optim::EMA;
use crate::pjrt::{Arg, Buffers, Client, Completion, Executable, Launch, Placement};
use crate::step::{BATCH, METRICS, MODEL_STATE, OPT_STATE, PARAMS};

/// The batch of a step, or the batches of a launch, on their way to the devices: a value for each of the
/// step's `batch.*` inputs, in order.
pub struct DeviceBatch {
    /// Which batch of the run is the first.
    pub index: u64,
    /// How many there are.
    pub num_steps: usize,
    fields: Vec<Buffers>,
}

impl DeviceBatch {
    /// The step's arguments that the batch is, in order: lent, so that their handles are not freed, which
    /// would wait, before the step has ended. See [`Launch::spent`].
    pub(super) fn args(&self) -> impl Iterator<Item = Arg<'_>> {
        self.fields.iter().map(Arg::Borrow)
    }

    /// Blocks until the batch is on the devices.
    pub(super) fn wait(&self) -> Result<(), Error> {
        Ok(self.fields.iter().try_for_each(Buffers::wait)?)
    }
}

/// Steps that have been launched.
pub struct PendingSteps {
    /// The first of them, from 0.
    first: u64,
    rates: Vec<f64>,
    metrics: Buffers,
    replica_loss: Buffers,
    done: Completion,
    /// What the steps read and what they were given, kept until they have ended.
    _inputs: (DeviceBatch, Buffers, Vec<Buffers>),
}

impl PendingSteps {
    /// Blocks until the steps have ended on every replica.
    pub(super) fn wait(&self) -> Result<(), Error> {
        Ok(self.done.wait()?)
    }
}

/// The numbers of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepResult {
    /// The step, from 0.
    pub step: u64,
    /// Its learning rate.
    pub lr: f64,
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Norm of the whole gradient.
    pub grad_norm: f64,
    /// Updates left out so far as not finite, this one included.
    pub num_skipped: u64,
    /// Replicas whose own loss is not finite; looked at only where an update was left out.
    pub nonfinite_replicas: Vec<usize>,
    /// The first leaf of the state whose next value was not finite.
    pub nonfinite_leaf: Option<String>,
}

/// Holds the state and steps it.
pub struct Trainer {
    client: Client,
    pub(super) programs: Programs,
    pub(super) state: Tree<Buffers>,
    pub(super) types: Tree<TensorType>,
    seed: Buffers,
    steps_taken: u64,
    num_skipped: u64,
    /// The step's graph as compiled, for reports.
    step_graph: Graph,
}

impl Trainer {
    /// Compiles the programs and makes the state from the seed, on every replica by itself.
    ///
    /// # Errors
    /// A model that does not trace, what the compiler reports, a launch that fails.
    pub fn new(client: &Client, run: &Run, model: &dyn Model, seed: u64) -> Result<Self, Error> {
        let spans = StartupSpans::new(Instant::now());
        let traced = Traced::new(&run.spec(model), &run.compile, &spans)?;
        Self::with_programs(client, run, traced, seed, &spans)
    }

    /// [`Self::new`] with what has been traced.
    pub(super) fn with_programs(
        client: &Client,
        run: &Run,
        traced: Traced,
        seed: u64,
        spans: &StartupSpans,
    ) -> Result<Self, Error> {
        let (programs, types, step_graph) = traced.compile(client, &run.compile, spans)?;
        let num_replicas = run.mesh.num_replicas();
        let seed = Literal::from_slice(&[2], &[(seed >> 32) as u32, seed as u32]);
        let seed = client.upload_on(programs.init.placement(), &replicated(seed, num_replicas))?;
        let launch = programs.init.execute(vec![Arg::Borrow(&seed)])?;
        let state = types.paths().map(str::to_owned).zip(launch.outputs).collect();
        let client = client.clone();
        Ok(Self {
            client,
            programs,
            state,
            types,
            seed,
            steps_taken: 0,
            num_skipped: 0,
            step_graph,
        })
    }

    /// The state, leaf by leaf.
    pub fn state(&self) -> &Tree<Buffers> {
        &self.state
    }

    /// Replaces one leaf: to start from given parameters, or to test that a fault is found.
    ///
    /// # Errors
    /// A path that is none of the state's, dtype or dims that are not the leaf's, an upload that fails.
    pub fn replace_leaf(&mut self, path: &str, per_replica: &[Arc<Literal>]) -> Result<(), Error> {
        let failed = |reason: String| Error::Leaf { path: path.to_owned(), reason };
        let ty = self.types.get(path).ok_or_else(|| failed("the state has no such leaf".into()))?;
        let fits = |x: &Arc<Literal>| x.dtype() == ty.dtype && x.dims() == ty.dims;
        if !per_replica.iter().all(fits) || per_replica.len() != self.seed.num_replicas() {
            return Err(failed(format!("it takes a {ty} for each replica")));
        }
        let buffers = self.client.upload_on(self.programs.step.placement(), per_replica)?;
        self.state.insert(path, buffers);
        Ok(())
    }

    /// Replaces parameters, their running means if the optimizer keeps them, and model state, on every
    /// replica.
    ///
    /// # Errors
    /// As [`Self::replace_leaf`].
    pub fn set_model(&mut self, model: Tree<Literal>) -> Result<(), Error> {
        let num_replicas = self.seed.num_replicas();
        for (name, literal) in model {
            let copies = replicated(literal, num_replicas);
            let paths =
                [format!("{PARAMS}.{name}"), averaged_path(&name), format!("{MODEL_STATE}.{name}")];
            let there: Vec<_> =
                paths.iter().filter(|path| self.types.get(path).is_some()).collect();
            // What the model does not have is refused under its name as a parameter.
            for path in if there.is_empty() { vec![&paths[0]] } else { there } {
                self.replace_leaf(path, &copies)?;
            }
        }
        Ok(())
    }

    /// Types of what evaluation needs, parameters and model state, under the model's own paths.
    pub fn model_types(&self) -> Tree<TensorType> {
        self.model_leaves().map(|(name, path)| (name, self.types[&path].clone())).collect()
    }

    /// What evaluation needs, parameters and model state, as replica 0 holds it. Where the optimizer keeps
    /// a running mean of the parameters, that takes their place.
    ///
    /// # Errors
    /// A launch or a transfer that fails.
    pub fn model(&self) -> Result<Tree<Literal>, Error> {
        let copy = |(name, path): (String, String)| Ok((name, self.state[&path].to_host(0)?));
        let pending: Vec<_> = self.model_leaves().map(copy).collect::<Result<_, Error>>()?;
        pending.into_iter().map(|(name, pending)| Ok((name, pending.wait()?))).collect()
    }

    /// The leaves that evaluation needs: their names in the model, and their paths in the state. The
    /// model gives a parameter and a running mean different names, since both are its leaves.
    pub(super) fn model_leaves(&self) -> impl Iterator<Item = (String, String)> {
        self.types.paths().filter_map(|path| {
            let (prefix, name) = path.split_once('.')?;
            let averaged = averaged_path(name);
            match prefix {
                PARAMS if self.types.get(&averaged).is_some() => Some((name.to_owned(), averaged)),
                PARAMS | MODEL_STATE => Some((name.to_owned(), path.to_owned())),
                _ => None,
            }
        })
    }

    /// Waits until nothing is being compiled any more.
    ///
    /// # Errors
    /// What the compiler reports.
    pub fn finish_compiling(&self) -> Result<(), Error> {
        self.programs.eval.get()?;
        self.programs.proof.get()?;
        Ok(())
    }

    /// Replaces the step's program by another of the same signature.
    pub(super) fn replace_step(&mut self, step: Executable) {
        self.programs.step = step;
    }

    /// Numbers in the model's parameters.
    pub fn num_params(&self) -> u64 {
        let is_param = |path: &str| path.split('.').next() == Some(PARAMS);
        let params = self.types.iter().filter(|(path, _)| is_param(path));
        params.map(|(_, ty)| ty.num_elements() as u64).sum()
    }

    /// Steps taken since the start.
    pub fn steps_taken(&self) -> u64 {
        self.steps_taken
    }

    /// The graph of the step as it is compiled.
    pub fn step_graph(&self) -> &Graph {
        &self.step_graph
    }

    /// A function that sends batches to the devices, for the data thread.
    pub fn batch_sender(&self) -> BatchSender {
        BatchSender::new(&self.programs.step)
    }

    /// Launches a step. It does not wait for it.
    ///
    /// # Errors
    /// As [`Self::launch`].
    pub fn step(&mut self, batch: DeviceBatch, lr: f64) -> Result<PendingSteps, Error> {
        self.launch(batch, vec![lr])
    }

    /// Launches a step for each of the rates, on as many batches: one, or as many as `Run`'s
    /// `steps_per_launch`. It does not wait for them.
    ///
    /// # Errors
    /// Batches that do not fit, or a launch that fails: then the state is lost.
    pub fn launch(&mut self, batch: DeviceBatch, rates: Vec<f64>) -> Result<PendingSteps, Error> {
        let num_replicas = self.seed.num_replicas();
        let program = match &self.programs.steps {
            Some(steps) if rates.len() > 1 => steps,
            _ => &self.programs.step,
        };
        let rounded: Vec<_> = rates.iter().map(|rate| *rate as f32).collect();
        let rate = match rounded[..] {
            [rate] => Literal::scalar(rate),
            _ => Literal::from_slice(&[rounded.len()], &rounded),
        };
        let rate = self.client.upload_on(program.placement(), &replicated(rate, num_replicas))?;
        let num_leaves = self.state.len();
        let (paths, leaves): (Vec<_>, Vec<_>) = std::mem::take(&mut self.state).into_iter().unzip();
        let mut args = Vec::with_capacity(num_leaves + batch.fields.len() + 2);
        args.extend(leaves.into_iter().map(Arg::Donate));
        args.push(Arg::Borrow(&self.seed));
        args.extend(batch.args());
        args.push(Arg::Borrow(&rate));
        let Launch { mut outputs, done, spent } = program.execute(args)?;
        let replica_loss = outputs.pop();
        let metrics = outputs.pop();
        self.state = paths.into_iter().zip(outputs).collect();
        let (Some(metrics), Some(replica_loss)) = (metrics, replica_loss) else {
            unreachable!("the step's program has these outputs");
        };
        let first = self.steps_taken;
        self.steps_taken += rates.len() as u64;
        let inputs = (batch, rate, spent);
        Ok(PendingSteps { first, rates, metrics, replica_loss, done, _inputs: inputs })
    }

    /// Waits for the numbers of launched steps.
    ///
    /// # Errors
    /// A launch or a transfer that failed.
    pub fn finish(&mut self, pending: PendingSteps) -> Result<Vec<StepResult>, Error> {
        let PendingSteps { first, rates, metrics, replica_loss, .. } = pending;
        // The copy is asked for only now: XLA's CPU backend would wait for the step where it is asked for.
        let metrics = metrics.to_host(0)?.wait()?.to_f64();
        // Beside the first step they would be in its way.
        self.programs.eval.start();
        self.programs.proof.start();
        let mut results = Vec::with_capacity(rates.len());
        for (i, (lr, metrics)) in rates.into_iter().zip(metrics.chunks(METRICS.len())).enumerate() {
            let [loss, grad_norm, _weight, num_skipped, nonfinite_leaf] = *metrics else {
                unreachable!("the step's program returns five metrics");
            };
            let num_skipped = num_skipped as u64;
            let mut nonfinite_replicas = vec![];
            if num_skipped > self.num_skipped {
                for replica in 0..replica_loss.num_replicas() {
                    if !replica_loss.read(replica)?.to_f64()[i].is_finite() {
                        nonfinite_replicas.push(replica);
                    }
                }
            }
            self.num_skipped = num_skipped;
            let place = (nonfinite_leaf as usize).checked_sub(1);
            let nonfinite_leaf = place.and_then(|place| self.types.paths().nth(place));
            results.push(StepResult {
                step: first + i as u64,
                lr,
                loss,
                grad_norm,
                num_skipped,
                nonfinite_replicas,
                nonfinite_leaf: nonfinite_leaf.map(str::to_owned),
            });
        }
        Ok(results)
    }

    /// Waits until everything launched has been done.
    ///
    /// # Errors
    /// A launch that failed.
    pub fn wait(&self) -> Result<(), Error> {
        for leaf in self.state.values() {
            leaf.wait()?;
        }
        Ok(())
    }
}

/// Sends batches to the devices.
#[derive(Clone)]
pub struct BatchSender {
    client: Client,
    placement: Placement,
    /// Names of the fields, in the order of the program's inputs.
    names: Vec<String>,
}

impl BatchSender {
    /// Sends the batches of a step's program.
    pub(super) fn new(program: &Executable) -> Self {
        let inputs = program.inputs().iter();
        let names = inputs.filter_map(|input| input.name.strip_prefix(BATCH)).map(str::to_owned);
        let (client, placement) = (program.client().clone(), program.placement().clone());
        Self { client, placement, names: names.collect() }
    }

    /// Starts the transfer of a batch.
    ///
    /// # Errors
    /// A transfer that cannot be started.
    pub fn send(&self, batch: HostBatch) -> Result<DeviceBatch, crate::pjrt::Error> {
        let HostBatch { index, num_steps, fields } = batch;
        let upload = |name: &String| self.client.upload_on(&self.placement, &fields[name]);
        let fields = self.names.iter().map(upload);
        Ok(DeviceBatch { index, num_steps, fields: fields.collect::<Result<_, _>>()? })
    }
}

/// Where the state holds the running mean of a parameter, if the optimizer keeps one.
fn averaged_path(name: &str) -> String {
    format!("{OPT_STATE}.{EMA}.{name}")
}

/// The same value for each replica.
fn replicated(literal: Literal, num_replicas: usize) -> Vec<Arc<Literal>> {
    std::iter::repeat_n(Arc::new(literal), num_replicas).collect()
}

/// Hex of SHA-256 over paths and bits of what [`Trainer::model`] gives, in the order of the model.
pub fn params_fingerprint(params: &Tree<Literal>) -> String {
    let mut hash = Sha256::new();
    for (path, literal) in params.iter() {
        hash.update((path.len() as u64).to_le_bytes());
        hash.update(path);
        hash.update(literal.bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
