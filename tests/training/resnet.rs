//! Convolutional networks with batch norm on real devices: N replicas compute what one machine
//! computes on the whole batch, and the running statistics are part of the state that all replicas
//! share.

use hlo::{Literal, Mesh, Tree};
use lockstep::config::Config;
use lockstep::data::{self, Splits, TrainBatches};
use lockstep::pjrt::Platform;
use lockstep::train::{EvalResult, Run, Trainer, open_devices};
use models::layers::{BatchNorm, Conv2d, batch_norm, conv2d, global_avg_pool, linear, max_pool};
use models::loss::cross_entropy;
use models::resnet::{self, ResNet};
use models::{Batch, Initializer, Loss, Model, Scope};

/// A global batch of 32 in f64, and images of 8x8.
const CONFIG: &str = r#"
    model = { name = "resnet", preset = "resnet20", batch_norm_group = 8 }
    data = { source = "synthetic", image = [3, 8, 8], num_examples = 320 }
    train = { global_batch = 32, steps = 20, precision = "f64" }
    optimizer = { name = "sgd", momentum = 0.9 }
    schedule = { name = "constant", peak = 0.02 }
"#;

/// Two convolutions, each followed by batch norm over groups of 8.
fn small<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    let mut x = batch.field("x").transpose(&[0, 2, 3, 1]);
    for (layer, num_out) in [8, 12].into_iter().enumerate() {
        let scope = scope.at(layer);
        let y = conv2d(&scope.at("conv"), x, Conv2d { num_out, size: 3, stride: 1 });
        let norm = BatchNorm { group: 8, weight: Initializer::Ones };
        x = max_pool(batch_norm(&scope.at("norm"), y, norm).maximum(0.0), 3, 2, 1);
    }
    let logits = linear(&scope.at("head"), global_avg_pool(x), 10, Initializer::lecun_normal(12));
    cross_entropy(logits, batch.field("y"), batch.weight)
}

struct Trained {
    losses: Vec<f64>,
    /// Every running mean, as each replica holds it.
    model_state: Vec<Vec<Vec<f64>>>,
    eval: EvalResult,
    /// The contents of `params.safetensors`.
    saved: Tree<Literal>,
}

fn run(model: &dyn Model, num_steps: u64, sets: &[String]) -> Trained {
    let config = Config::parse(CONFIG, "resnet.toml".as_ref(), sets).unwrap();
    let splits: Splits = data::open(&config).unwrap();
    let (client, mesh) = open_devices(&config, |_| ()).unwrap();
    let run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
    let mut trainer = Trainer::new(&client, &run, model, 0).unwrap();
    let batches = TrainBatches::split(splits.train, 0, run.batch).unwrap();
    let sender = trainer.batch_sender();
    let mut losses = vec![];
    for step in 0..num_steps {
        let batch = sender.send(batches.get(step).unwrap()).unwrap();
        let pending = trainer.step(batch, run.schedule.lr(step)).unwrap();
        losses.push(trainer.finish(pending).unwrap()[0].loss);
    }
    trainer.prove_lockstep().unwrap();
    let num_replicas = trainer.state().mesh().num_replicas();
    let leaves = trainer.state().iter().filter(|(path, _)| path.starts_with("model_state."));
    let model_state = leaves
        .map(|(_, leaf)| (0..num_replicas).map(|r| leaf.read(r).unwrap().to_f64()).collect())
        .collect();
    let eval = trainer.evaluate(&splits.eval, &run).unwrap();
    let saved = trainer.model().unwrap();
    Trained { losses, model_state, eval, saved }
}

fn agree(name: &str, a: &[f64], b: &[f64], tolerance: f64) {
    assert_eq!(a.len(), b.len(), "{name}");
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= tolerance * a.abs().max(1e-3), "{name}: {a} and {b}");
    }
}

fn agree_on_any_mesh(
    model: &dyn Model,
    num_steps: u64,
    cases: &[(usize, usize)],
    sets: &[&str],
    tolerance: f64,
) {
    let on = |(num_replicas, num_microbatches): (usize, usize)| {
        let mesh = [
            format!("mesh.data={num_replicas}"),
            format!("train.num_microbatches={num_microbatches}"),
        ];
        let sets = sets.iter().map(|set| (*set).to_owned()).chain(mesh);
        run(model, num_steps, &sets.collect::<Vec<_>>())
    };
    let one = on((1, 1));
    let (first, last) = (one.losses[0], one.losses[one.losses.len() - 1]);
    assert!(last < first * 0.9, "does not learn: {:?}", one.losses);
    for case in cases {
        let name = format!("replicas and microbatches {case:?}");
        let other = on(*case);
        agree(&name, &one.losses, &other.losses, tolerance);
        for (one, other) in one.model_state.iter().zip(&other.model_state) {
            assert!(other.iter().all(|on_replica| *on_replica == other[0]), "{name}");
            agree(&name, &one[0], &other[0], tolerance);
        }
        agree(&name, &[one.eval.loss], &[other.eval.loss], tolerance);
    }
}

/// Groups of 8 out of 32: several per replica, one per replica, one over two replicas; and
/// microbatches of whole groups.
#[test]
fn batch_norm_over_groups_does_not_depend_on_replicas_or_microbatches() {
    agree_on_any_mesh(&small, 12, &[(2, 1), (4, 1), (8, 1), (2, 2)], &[], 1e-9);
}

/// In f32, the dtype it is trained in, for only three steps: each about doubles the differences
/// from rounding (`docs/performance.md`). XLA's lowest optimization level halves the compile time.
#[test]
fn resnet20_agrees_on_any_number_of_replicas() {
    let config = resnet::ResNetConfig { batch_norm_group: 8, ..resnet::ResNetConfig::default() };
    let model = ResNet { config, objective: 10.into() };
    let sets = ["train.precision=f32", "compile.overrides.xla_backend_optimization_level=0"];
    agree_on_any_mesh(&model, 3, &[(2, 1), (4, 1), (8, 1)], &sets, 1e-4);
}

#[test]
fn running_statistics_move_towards_the_observed_ones() {
    let trained = run(&small, 20, &["mesh.data=2".to_owned()]);
    // Means start at 0 and variances at 1; the inputs of the first norm have another variance.
    assert_eq!(trained.model_state.len(), 4);
    assert!(trained.model_state[0][0].iter().any(|mean| mean.abs() > 1e-3));
    assert!(trained.model_state[1][0].iter().all(|variance| *variance > 0.0 && *variance != 1.0));
    assert!(trained.eval.loss.is_finite());

    // The saved leaves are all that evaluation needs.
    let config =
        Config::parse(CONFIG, "resnet.toml".as_ref(), &["mesh.data=2".to_owned()]).unwrap();
    let splits = data::open(&config).unwrap();
    let (client, mesh) = open_devices(&config, |_| ()).unwrap();
    let run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
    let mut other = Trainer::new(&client, &run, &small, 1).unwrap();
    assert_ne!(other.evaluate(&splits.eval, &run).unwrap(), trained.eval);
    other.set_model(&trained.saved).unwrap();
    assert_eq!(other.evaluate(&splits.eval, &run).unwrap(), trained.eval);
}

#[test]
fn an_impossible_group_size_is_rejected_with_the_key_to_change() {
    let config =
        Config::parse(CONFIG, "resnet.toml".as_ref(), &["mesh.data=4".to_owned()]).unwrap();
    let splits = data::open(&config).unwrap();
    let run = Run::new(&config, &splits, Mesh::data(4), Platform::Cpu).unwrap();
    let config = resnet::ResNetConfig { batch_norm_group: 12, ..resnet::ResNetConfig::default() };
    let model = ResNet { config, objective: 10.into() };
    let message =
        lockstep::step::trace_step(&run.spec(&model).declare().unwrap()).unwrap_err().to_string();
    assert!(
        message.contains("groups of 12 examples cannot be made of 8 on each of 4"),
        "{message}"
    );
    assert!(message.contains("model.batch_norm_group"), "{message}");
}
