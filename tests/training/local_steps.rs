//! Local steps: replicas that train on their own between outer steps, against the algorithm written
//! out by hand; and that they communicate in outer steps only.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hlo::{
    Axis, AxisSet, DType, Graph, Literal, Mesh, OnOtherMesh, Op, interpret,
    unconditional_collectives,
};
use lockstep::checkpoint::{self, CheckpointDir, HostLeaf, HostPiece, LocalDisk};
use lockstep::config::{Config, OnNonfinite};
use lockstep::data::{self, TrainBatches};
use lockstep::optim::{Mask, from_config};
use lockstep::parallel::{GatherAt, ParallelPlan, PlainSum};
use lockstep::pjrt::Platform;
use lockstep::step::{
    BatchField, LocalSteps, METRICS, StepError, StepSpec, metrics_of_replicas, trace_init,
    trace_step,
};
use lockstep::train::{Error, Run, Trainer};
use models::layers::{BatchNorm, batch_norm, linear};
use models::{AttentionKernels, Batch, Initializer, Loss, Model, Precision, Scope, loss};

use super::checkpoints::record;
use super::support::{client, uniform};

const FEATURES: usize = 3;
/// Examples of a replica in a step.
const EXAMPLES: usize = 4;
const RATE: f64 = 0.125;
const OUTER: LocalSteps = LocalSteps { every: 3, learning_rate: 0.7, momentum: 0.9 };
const NUM_STEPS: u64 = 9;

/// Linear regression.
fn regression<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    let outputs = linear(&scope.at("head"), batch.field("x"), 1, Initializer::Zeros);
    loss::squared_error(outputs, batch.field("y"), batch.weight)
}

/// One with batch norm, in groups of this many examples.
fn normalized(group: usize) -> impl for<'b> Fn(&Scope<'b>, &Batch<'b>) -> Loss<'b> {
    move |scope, batch| {
        let x = batch.field("x");
        let rows = x.dim(0);
        let norm = BatchNorm { group, weight: Initializer::Ones };
        let x = batch_norm(&scope.at("norm"), x.reshape(&[rows, 1, 1, FEATURES]), norm);
        let outputs =
            linear(&scope.at("head"), x.reshape(&[rows, FEATURES]), 1, Initializer::Zeros);
        loss::squared_error(outputs, batch.field("y"), batch.weight)
    }
}

fn optimizer(keys: &[&str]) -> Config {
    let text = "model = { name = \"mlp\" }\n data = { source = \"synthetic\" }\n\
                train = { global_batch = 8, steps = 12 }\n optimizer = { name = \"sgd\" }\n\
                schedule = { name = \"constant\", peak = 0.1 }";
    let sets: Vec<_> = keys.iter().map(|key| format!("optimizer.{key}")).collect();
    Config::parse(text, Path::new("a.toml"), &sets).unwrap()
}

fn graphs(
    model: &dyn Model,
    keys: &[&str],
    num_replicas: usize,
    num_microbatches: usize,
    local_steps: Option<LocalSteps>,
) -> Result<[Graph; 2], StepError> {
    let config = optimizer(keys);
    let field = |name: &str, dims: &[usize]| BatchField {
        name: name.to_owned(),
        dtype: DType::F64,
        dims: dims.to_vec(),
    };
    let fields = [field("x", &[FEATURES]), field("y", &[1])];
    let spec = StepSpec {
        model,
        fields: &fields,
        plan: ParallelPlan::new(Mesh::data(num_replicas), GatherAt::Step),
        microbatch: EXAMPLES / num_microbatches,
        num_microbatches,
        num_global_microbatches: num_microbatches * num_replicas,
        skips_late: false,
        precision: Precision::uniform(DType::F64),
        optimizer: &*from_config(&config.optimizer),
        gather_mask: &Mask::Matrices,
        synchronize: &PlainSum,
        local_steps,
        on_nonfinite: OnNonfinite::Skip,
        attention: AttentionKernels::None,
    };
    let declared = spec.declare()?;
    Ok([trace_init(&declared)?, trace_step(&declared)?])
}

type Examples = (Vec<f64>, Vec<f64>);

/// The values of a replica's examples: features, then what the outputs should be.
fn examples(step: u64, replica: usize, is_bad: bool) -> Examples {
    let stream = 10 * step as u32 + replica as u32;
    let mut x = uniform(stream, EXAMPLES * FEATURES, -1.0, 1.0);
    if is_bad {
        x[1] = f64::INFINITY;
    }
    (x, uniform(1000 + stream, EXAMPLES, -2.0, 2.0))
}

/// The update rule of a replica.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// Heavy-ball momentum, of clipped gradients.
    Sgd {
        momentum: f64,
        max_norm: f64,
    },
    Adam,
}

impl Rule {
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Sgd { .. } => &["momentum=0.5", "clip_grad_norm=0.25", "weight_decay=0"],
            Self::Adam => &["name=adam", "weight_decay=0"],
        }
    }
}

type Values = [f64; FEATURES + 1];

/// A replica of DiLoCo, by hand: the weights and the bias, and what the optimizer keeps.
#[derive(Clone, Default)]
struct Worker {
    params: Values,
    moments: [Values; 2],
    num_updates: i32,
}

impl Worker {
    /// Takes a step and returns the loss and the norm of its gradient.
    fn step(&mut self, rule: Rule, (x, y): &Examples) -> [f64; 2] {
        let (mut loss, mut gradient) = (0.0, Values::default());
        for (x, y) in x.chunks(FEATURES).zip(y) {
            let output: f64 = x.iter().zip(&self.params).map(|(x, w)| x * w).sum();
            let error = output + self.params[FEATURES] - y;
            loss += error * error / EXAMPLES as f64;
            for (gradient, x) in gradient.iter_mut().zip(x.iter().chain(&[1.0])) {
                *gradient += 2.0 * error * x / EXAMPLES as f64;
            }
        }
        let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
        if !loss.is_finite() {
            return [loss, norm];
        }
        self.num_updates += 1;
        for (i, g) in gradient.into_iter().enumerate() {
            match rule {
                Rule::Sgd { momentum, max_norm } => {
                    let m = &mut self.moments[0][i];
                    *m = momentum * *m + g * (max_norm / norm).min(1.0);
                    self.params[i] -= RATE * *m;
                }
                Rule::Adam => {
                    let (beta1, beta2) = (0.9, 0.999);
                    let [m, v] = &mut self.moments;
                    m[i] = beta1 * m[i] + (1.0 - beta1) * g;
                    v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
                    let mean = m[i] / (1.0 - f64::powi(beta1, self.num_updates));
                    let square = v[i] / (1.0 - f64::powi(beta2, self.num_updates));
                    self.params[i] -= RATE * mean / (square.sqrt() + 1e-8);
                }
            }
        }
        [loss, norm]
    }
}

/// DiLoCo, by hand: the parameters after each step, and the metrics of each.
fn by_hand(
    rule: Rule,
    every: u64,
    num_replicas: usize,
    is_bad: &dyn Fn(u64, usize) -> bool,
) -> Vec<(Values, [f64; 2])> {
    let (mut outer, mut velocity) = (Values::default(), Values::default());
    let mut workers = vec![Worker::default(); num_replicas];
    let step = |step: u64| {
        let mut metrics = [0.0; 2];
        for (replica, worker) in workers.iter_mut().enumerate() {
            let of_worker = worker.step(rule, &examples(step, replica, is_bad(step, replica)));
            for (sum, value) in metrics.iter_mut().zip(of_worker) {
                *sum += value / num_replicas as f64;
            }
        }
        if (step + 1).is_multiple_of(every) {
            for i in 0..=FEATURES {
                let mean = workers.iter().map(|worker| worker.params[i]).sum::<f64>();
                let delta = outer[i] - mean / num_replicas as f64;
                velocity[i] = OUTER.momentum * velocity[i] + delta;
                outer[i] -= OUTER.learning_rate * (delta + OUTER.momentum * velocity[i]);
            }
            workers.iter_mut().for_each(|worker| worker.params = outer);
        }
        (outer, metrics)
    };
    (0..NUM_STEPS).map(step).collect()
}

/// The leaves of the state and the outputs of steps in the interpreter, on each replica.
type State = BTreeMap<String, Vec<Literal>>;

fn run(graph: &Graph, state: &State) -> State {
    let inputs: Vec<_> = graph.inputs().iter().map(|input| state[&*input.name].clone()).collect();
    let outputs = interpret(graph, &inputs).unwrap();
    graph.outputs().iter().map(|output| output.name.to_string()).zip(outputs).collect()
}

/// The same as [`by_hand`] in the interpreter.
fn traced(
    rule: Rule,
    every: u64,
    (num_replicas, num_microbatches): (usize, usize),
    is_bad: &dyn Fn(u64, usize) -> bool,
) -> Vec<(Values, [f64; 2])> {
    let outer = LocalSteps { every, ..OUTER };
    let graphs = graphs(&regression, rule.keys(), num_replicas, num_microbatches, Some(outer));
    let [init, graph] = graphs.unwrap();
    let alike = |value: Literal| vec![value; num_replicas];
    let mut state = State::from([
        ("seed".to_owned(), alike(Literal::from_slice(&[2], &[0u32, 3]))),
        ("learning_rate".to_owned(), alike(Literal::scalar(RATE as f32))),
    ]);
    state.extend(run(&init, &state));
    let step = |step: u64| {
        let each = |part: fn(Examples) -> Vec<f64>, dims: &[usize]| {
            let value = |replica| {
                let values = part(examples(step, replica, is_bad(step, replica)));
                Literal::from_f64(DType::F64, dims, &values)
            };
            (0..num_replicas).map(value).collect::<Vec<_>>()
        };
        state.insert("batch.x".to_owned(), each(|example| example.0, &[EXAMPLES, FEATURES]));
        state.insert("batch.y".to_owned(), each(|example| example.1, &[EXAMPLES, 1]));
        state.extend(run(&graph, &state));
        for path in ["params.head.weight", "params.head.bias", "num_skipped"] {
            assert!(state[path].iter().all(|value| *value == state[path][0]), "{path}");
        }
        let values = ["params.head.weight", "params.head.bias"].map(|path| state[path][0].to_f64());
        let metrics: Vec<_> = state["metrics"].iter().map(Literal::to_f64).collect();
        let metrics = metrics.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let metrics = metrics_of_replicas(&metrics);
        assert_eq!(METRICS[..2], ["loss", "grad_norm"]);
        (values.concat().try_into().unwrap(), [metrics[0], metrics[1]])
    };
    (0..NUM_STEPS).map(step).collect()
}

#[test]
fn replicas_train_as_diloco_does_by_hand() {
    for rule in [Rule::Sgd { momentum: 0.5, max_norm: 0.25 }, Rule::Adam] {
        for (every, num_replicas, num_microbatches) in
            [(3, 2, 1), (3, 4, 1), (3, 2, 2), (1, 2, 1), (9, 4, 2)]
        {
            // One of them skips a step, for its examples alone.
            let is_bad = |step, replica| (step, replica) == (4, 1);
            let expected = by_hand(rule, every, num_replicas, &is_bad);
            let found = traced(rule, every, (num_replicas, num_microbatches), &is_bad);
            for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let metrics = found.1.iter().zip(&expected.1);
                let values = found.0.iter().zip(&expected.0).chain(metrics);
                for (found, expected) in values.filter(|(_, expected)| expected.is_finite()) {
                    let what = format!("{rule:?}, {every}, {num_replicas} replicas, step {step}");
                    assert!((found - expected).abs() < 1e-10, "{what}: {found} {expected}");
                }
                assert_eq!(found.1[0].is_finite(), step != 4);
            }
            let has_moved = |step: &usize| found[*step].0 != found[step - 1].0;
            let moves: Vec<_> = (1..NUM_STEPS as usize).filter(has_moved).collect();
            let meets = |step: &usize| (step + 1).is_multiple_of(every as usize);
            assert_eq!(moves, (1..NUM_STEPS as usize).filter(meets).collect::<Vec<_>>());
        }
    }
}

/// The axes of collectives in the branches of cases.
fn in_branches(graph: &Graph) -> AxisSet {
    let of_node = |op: &Op| match op {
        Op::Case { branches } => {
            let all = branches.iter().flat_map(|branch| branch.graph.nodes());
            all.fold(AxisSet::EMPTY, |axes, node| axes | node.op.collective_axes())
        }
        _ => AxisSet::EMPTY,
    };
    graph.nodes().iter().fold(AxisSet::EMPTY, |axes, node| axes | of_node(&node.op))
}

#[test]
fn replicas_communicate_in_outer_steps_only() {
    let keys = &["name=adamw", "clip_grad_norm=0.5"];
    for model in [&regression as &dyn Model, &normalized(EXAMPLES)] {
        let [_, graph] = graphs(model, keys, 2, 1, Some(OUTER)).unwrap();
        assert_eq!(unconditional_collectives(&graph), AxisSet::EMPTY);
        assert_eq!(in_branches(&graph), Axis::Data.into());
        let [_, graph] = graphs(model, keys, 2, 1, None).unwrap();
        assert_eq!(unconditional_collectives(&graph), Axis::Data.into());
    }
    let error = graphs(&normalized(2 * EXAMPLES), keys, 2, 1, Some(OUTER)).unwrap_err();
    assert!(error.to_string().contains("set model.batch_norm_group so that"), "{error}");
}

const MLP: &str = r#"
model = { name = "mlp", hidden = [8] }
data = { source = "synthetic", num_examples = 64 }
train = { global_batch = 16, steps = 12 }
optimizer = { name = "adamw", clip_grad_norm = 1.0 }
schedule = { name = "constant", peak = 0.01 }
sync = { every = 3 }
"#;

struct Training {
    trainer: Trainer,
    batches: TrainBatches,
}

impl Training {
    fn on(num_replicas: usize) -> Self {
        let run = resolve(&[], num_replicas).unwrap();
        let config = Config::parse(MLP, "a.toml".as_ref(), &[]).unwrap();
        let splits = data::open(&config).unwrap();
        let model = config.model.build(splits.train.num_outputs());
        let trainer = Trainer::new(client(), &run, &*model, 0).unwrap();
        let batches = TrainBatches::new(splits.train, 0, 16, num_replicas).unwrap();
        Self { trainer, batches }
    }

    fn steps(&mut self, num_steps: usize) {
        for _ in 0..num_steps {
            let batch = self.batches.get(self.trainer.steps_taken()).unwrap();
            let batch = self.trainer.batch_sender().send(batch).unwrap();
            let pending = self.trainer.step(batch, 0.01).unwrap();
            self.trainer.finish(pending).unwrap();
        }
    }

    fn leaves(&self) -> Vec<HostLeaf> {
        let state = self.trainer.state();
        let leaf = |(path, spec): (&str, &hlo::LeafSpec)| {
            let pieces = state.pieces(path).unwrap().wait().unwrap();
            let pieces = pieces.into_iter().map(|(start, values)| HostPiece { start, values });
            HostLeaf { path: path.to_owned(), spec: spec.clone(), pieces: pieces.collect() }
        };
        state.specs().iter().map(leaf).collect()
    }

    fn value(&self, path: &str) -> Literal {
        self.trainer.state().gather(path).unwrap().wait().unwrap()
    }
}

fn resolve(sets: &[&str], num_replicas: usize) -> Result<Run, Error> {
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    let config = Config::parse(MLP, "a.toml".as_ref(), &sets).unwrap();
    let splits = data::open(&config).unwrap();
    Run::new(&config, &splits, Mesh::data(num_replicas), Platform::Cpu)
}

/// On the same mesh they are as they were. On another each replica begins with the mean of what the
/// optimizers of all had.
#[test]
fn another_mesh_has_the_mean_of_what_replicas_had() {
    let mut training = Training::on(2);
    training.steps(6);
    let dir = tempfile::tempdir().unwrap();
    checkpoint::save(&LocalDisk, dir.path(), &training.leaves(), record(6)).unwrap();
    let saved = CheckpointDir::open(dir.path()).unwrap();
    let specs = training.trainer.state().specs().clone();
    let means = specs.iter().filter(|(_, spec)| spec.on_other_mesh == OnOtherMesh::Mean);
    let means: Vec<_> = means.map(|(path, _)| path).collect();
    assert_eq!(means.len(), 2 * 6 + 1, "{means:?}");
    for num_replicas in [2, 4] {
        let mut other = Training::on(num_replicas);
        other.trainer.restore(&saved).unwrap();
        for (path, spec) in specs.iter() {
            let [before, after] = [&training, &other].map(|training| training.value(path));
            match spec.on_other_mesh {
                _ if num_replicas == 2 => assert_eq!(before, after, "{path}"),
                OnOtherMesh::Exact => assert_eq!(before, after, "{path}"),
                OnOtherMesh::Mean => {
                    let (before, after) = (before.to_f64(), after.to_f64());
                    let size = before.len() / 2;
                    for (index, value) in after.iter().enumerate() {
                        let of_two = [index % size, index % size + size].map(|i| before[i]);
                        let mean = (of_two[0] + of_two[1]) / 2.0;
                        assert!((value - mean).abs() <= 1e-7 * mean.abs(), "{path}");
                    }
                }
                _ => assert!(after.to_f64().iter().all(|value| *value == 0.0), "{path}"),
            }
        }
        other.steps(3);
        other.trainer.prove_lockstep().unwrap();
        if num_replicas == 2 {
            let mut whole = Training::on(2);
            whole.steps(9);
            for path in specs.paths() {
                assert_eq!(other.value(path), whole.value(path), "{path}: the same bits");
            }
        }
    }
}

#[test]
fn a_flipped_bit_is_found_after_an_outer_step() {
    let mut training = Training::on(2);
    training.steps(3);
    training.trainer.prove_lockstep().unwrap();
    let path = "params.head.bias";
    let leaf = training.trainer.state().get(path).unwrap();
    let mut values: Vec<_> = (0..2).map(|replica| leaf.read(replica).unwrap()).collect();
    values[1].bytes_mut()[3] ^= 1;
    let values: Vec<_> = values.into_iter().map(Arc::new).collect();
    training.trainer.state_mut().replace(path, &values).unwrap();
    // Also after the next one, to which replicas went from different values.
    for num_steps in [0, 3] {
        training.steps(num_steps);
        match training.trainer.prove_lockstep().unwrap_err() {
            Error::LockstepLost { leaf, replicas, .. } => {
                assert_eq!(&*replicas, "{0} against {1}", "{leaf}");
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    let error =
        |sets: &[&str], num_replicas| resolve(sets, num_replicas).err().unwrap().to_string();
    let found = error(&["train.steps=10"], 2);
    assert!(found.contains("set train.steps to 9 or 12"), "{found}");
    let found = error(&["train.steps=2"], 2);
    assert!(found.contains("set train.steps to 3 ("), "{found}");
    let found = error(&[], 1);
    assert!(found.contains("set mesh.data to 2 or more"), "{found}");
    let found = error(&["train.global_batch=12", "train.microbatch=4"], 2);
    assert!(found.contains("2 do not divide its 3 microbatches"), "{found}");
    let approximations = resolve(&[], 2).unwrap().approximations();
    assert!(approximations[0].starts_with("local steps: 3 between outer steps"));
    assert!(resolve(&["sync.every=1"], 2).unwrap().local_steps.is_none());
}
