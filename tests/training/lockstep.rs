//! The project's promises, on real devices and data: N replicas compute what one machine computes
//! on the whole batch, runs are reproducible bit for bit, and a replica that leaves lockstep is
//! found.

use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;

use hlo::{
    AxisSet, DType, LeafSpec, Literal, Mesh, Op, Reduction, Sharding, Tensor, TensorType, Tree,
    interpret, lower,
};
use lockstep::config::{self, Config};
use lockstep::data::{self, Splits, TrainBatches};
use lockstep::optim::{Context, Transformation};
use lockstep::pjrt::Platform;
use lockstep::state;
use lockstep::step::{self, StepError};
use lockstep::train::{Error, Run, Trainer, open_devices};
use models::mlp::Mlp;

/// Digits with every option on that could depend on N: dropout, layer norm, both kinds of momentum.
fn load(sets: &[&str]) -> (Config, Splits, Mlp) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits.toml");
    let all = ["model.hidden=[48, 32]", "model.dropout=0.2"].iter().chain(sets);
    let config = Config::load(&file, &all.map(|set| set.to_string()).collect::<Vec<_>>()).unwrap();
    let splits = data::open(&config).unwrap();
    let config::ModelConfig::Mlp(mlp) = config.model.clone() else {
        panic!("digits.toml has an mlp")
    };
    let model = Mlp { config: mlp, objective: splits.train.num_outputs().into() };
    (config, splits, model)
}

struct Training {
    trainer: Trainer,
    run: Run,
    batches: TrainBatches,
    losses: Vec<f64>,
}

impl Training {
    fn new(sets: &[&str]) -> Self {
        let (config, splits, model) = load(sets);
        let (client, mesh) = open_devices(&config, |_| ()).unwrap();
        let run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
        let trainer = Trainer::new(&client, &run, &model, config.train.seed).unwrap();
        let (batch, seed) = (run.batch.global_batch(), config.train.seed);
        let batches = TrainBatches::new(splits.train, seed, batch, mesh.num_replicas()).unwrap();
        Self { trainer, run, batches, losses: vec![] }
    }

    fn steps(mut self, num_steps: u64) -> Self {
        let sender = self.trainer.batch_sender();
        for _ in 0..num_steps {
            let step = self.trainer.steps_taken();
            let batch = sender.send(self.batches.get(step).unwrap()).unwrap();
            let pending = self.trainer.step(batch, self.run.schedule.lr(step)).unwrap();
            self.losses.push(self.trainer.finish(pending).unwrap()[0].loss);
        }
        self
    }

    fn launches(mut self, num_launches: u64) -> Self {
        let sender = self.trainer.batch_sender();
        let size = self.run.steps_per_launch as u64;
        for _ in 0..num_launches {
            let steps = self.trainer.steps_taken()..self.trainer.steps_taken() + size;
            let batch = sender.send(self.batches.launch(steps.clone()).unwrap()).unwrap();
            let rates = steps.map(|step| self.run.schedule.lr(step)).collect();
            let pending = self.trainer.launch(batch, rates).unwrap();
            let results = self.trainer.finish(pending).unwrap();
            self.losses.extend(results.iter().map(|result| result.loss));
        }
        self
    }

    fn fingerprint(&self) -> String {
        state::fingerprint(&self.trainer.model().unwrap())
    }

    /// One leaf's value on each replica.
    fn leaf(&self, path: &str) -> Vec<Literal> {
        let leaf = self.trainer.state().get(path).unwrap();
        leaf.placement().replicas().map(|replica| leaf.read(replica).unwrap()).collect()
    }
}

fn worst_relative_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / a.abs()).fold(0.0, f64::max)
}

#[test]
fn loss_curves_agree_on_any_number_of_replicas() {
    let adamw = ("adamw", 2e-3);
    for ((optimizer, peak), precision, tolerance) in
        [(("sgd", 0.1), "f32", 1e-4), (adamw, "f32", 1e-4), (adamw, "f64", 1e-10)]
    {
        let losses = |num_replicas: usize| {
            let sets = [
                format!("mesh.data={num_replicas}"),
                format!("train.precision={precision}"),
                format!("optimizer.name={optimizer}"),
                format!("schedule.peak={peak}"),
            ];
            Training::new(&sets.each_ref().map(String::as_str)).steps(50).losses
        };
        let one = losses(1);
        assert!(one[49] < one[0] * 0.7, "{optimizer} does not learn: {one:?}");
        for num_replicas in [2, 4, 8] {
            let worst = worst_relative_difference(&one, &losses(num_replicas));
            let case = format!("{optimizer} {precision} on {num_replicas} replicas");
            assert!(worst < tolerance, "{case}: {worst:e}");
        }
    }
}

/// Replicas of one run must not join the collectives of another that runs at the same time.
#[test]
fn concurrent_runs_in_one_process_are_the_same_as_alone() {
    let losses = |seed: u64, before_each: &dyn Fn()| {
        let mut run = Training::new(&["mesh.data=4", &format!("train.seed={seed}")]);
        for _ in 0..300 {
            before_each();
            run = run.steps(1);
        }
        run.losses
    };
    let alone = [1, 2].map(|seed| losses(seed, &|| ()));
    let together = Barrier::new(2);
    let side_by_side = thread::scope(|scope| {
        let wait = || {
            together.wait();
        };
        let threads = [1, 2].map(|seed| scope.spawn(move || losses(seed, &wait)));
        threads.map(|thread| thread.join().unwrap())
    });
    assert!(alone == side_by_side);
}

/// Norms, trust ratios and running means are those of one machine.
#[test]
fn adaptive_rates_agree_on_any_number_of_replicas() {
    for (optimizer, peak) in [("lars", 5.0), ("lamb", 1e-2)] {
        let run = |num_replicas: usize| {
            let sets = [
                format!("mesh.data={num_replicas}"),
                "train.precision=f64".to_owned(),
                format!("optimizer.name={optimizer}"),
                "optimizer.clip_grad_norm=2".to_owned(),
                "optimizer.ema_decay=0.9".to_owned(),
                format!("schedule.peak={peak}"),
            ];
            Training::new(&sets.each_ref().map(String::as_str)).steps(20)
        };
        let (one, eight) = (run(1), run(8));
        assert!(one.losses[19] < one.losses[0] * 0.95, "{optimizer}: {:?}", one.losses);
        let worst = worst_relative_difference(&one.losses, &eight.losses);
        assert!(worst < 1e-10, "{optimizer}: {worst:e}");
        for path in one.trainer.state().specs().paths().filter(|path| path.contains(".ema.")) {
            let (one, eight) = (one.leaf(path)[0].to_f64(), eight.leaf(path)[7].to_f64());
            let close = one.iter().zip(&eight).all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(close, "{optimizer}: {path}");
        }
    }
}

/// Evaluation and saved files use the running mean of the parameters if the optimizer keeps one. It
/// starts as the parameters, also if these are given.
#[test]
fn the_running_mean_takes_the_place_of_the_parameters() {
    let path = "head.bias";
    let value = |run: &Training, tree: &str| run.leaf(&format!("{tree}.{path}"))[0].to_f64();
    let mean = "opt_state.ema";
    let sets = ["mesh.data=2", "optimizer.ema_decay=0.5", "train.precision=f64"];
    let start = Training::new(&sets);
    let weight = "blocks.0.linear.weight";
    let leaf = |tree: &str| start.leaf(&format!("{tree}.{weight}"))[1].to_f64();
    assert!(leaf(mean) == leaf("params"), "the mean starts elsewhere");
    let one = start.steps(1);
    assert_eq!(value(&one, mean), value(&one, "params"), "the initial parameters have no weight");
    let first = value(&one, "params");
    let mut two = one.steps(1);
    let (second, averaged) = (value(&two, "params"), value(&two, mean));
    // Weights of 1/3 and 2/3.
    for ((first, second), averaged) in first.iter().zip(&second).zip(&averaged) {
        assert!((averaged - (first + 2.0 * second) / 3.0).abs() < 1e-12);
    }
    assert_ne!(averaged, second);
    assert_eq!(two.trainer.model().unwrap()[path].to_f64(), averaged);
    let mut given = two.trainer.model().unwrap();
    let zeros = Literal::zeros(DType::F64, given[path].dims());
    given.insert(path, zeros.clone());
    two.trainer.set_model(&given).unwrap();
    assert_eq!((value(&two, "params"), value(&two, mean)), (zeros.to_f64(), zeros.to_f64()));
}

/// bf16 rounds the terms of a sum, and how often depends on how the batch is split. The sums
/// themselves are f32.
#[test]
fn bf16_learns_what_f32_learns() {
    let last_losses = |set: &str, num_replicas: usize| {
        let mesh = format!("mesh.data={num_replicas}");
        let losses = Training::new(&[set, &mesh]).steps(60).losses;
        losses[50..].iter().sum::<f64>() / 10.0
    };
    let expected = last_losses("train.precision=f32", 1);
    for num_replicas in [1, 4] {
        let found = last_losses("train.precision=bf16", num_replicas);
        let off = (found - expected).abs() / expected;
        assert!(off < 0.02, "{num_replicas} replicas: {found} instead of {expected}");
    }
}

#[test]
fn nothing_is_accumulated_in_bf16() {
    check_accumulation(&["mesh.data=4"], Mesh::data(4));
    let sharded = Mesh::new(&[(hlo::Axis::Fsdp, 4)]);
    for stage in ["parallel.zero=1", "parallel.zero=2", "parallel.zero=3"] {
        check_accumulation(&["mesh.fsdp=4", "mesh.data=1", stage], sharded);
    }
}

fn check_accumulation(sets: &[&str], mesh: Mesh) {
    let (config, splits, model) = load(&[sets, &["train.precision=bf16"]].concat());
    let run = Run::new(&config, &splits, mesh, Platform::Cpu).unwrap();
    let graph = step::trace_step(&run.spec(&model).declare().unwrap()).unwrap();
    let mut num_dots = 0;
    for node in graph.nodes() {
        let dtype = graph.ty(node.result()).dtype;
        match &node.op {
            Op::Reduce { reduction: Reduction::Sum, .. }
            | Op::AllReduce { .. }
            | Op::ReduceScatter { .. } => {
                assert_ne!(dtype, DType::Bf16, "{} at {}", node.op.name(), node.location);
            }
            Op::DotGeneral(_) => {
                assert_eq!(dtype, DType::Bf16, "a product at {}", node.location);
                num_dots += 1;
            }
            _ => {}
        }
    }
    // A bf16 product in the graph has an f32 result in the program.
    let text = lower(&graph, "step").text;
    let dots: Vec<_> = text.lines().filter(|line| line.contains("stablehlo.dot_general")).collect();
    assert_eq!(dots.len(), num_dots);
    assert!(dots.iter().all(|dot| dot.rsplit("->").next().is_some_and(|to| to.contains("f32>"))));
    for (path, leaf) in run.spec(&model).declare().unwrap().leaves().iter() {
        assert!(matches!(leaf.dtype, DType::F32 | DType::U32), "{path} is kept as {leaf}");
    }
}

#[test]
fn microbatches_change_nothing_beyond_rounding() {
    let losses = |num_microbatches: usize| {
        let set = format!("train.num_microbatches={num_microbatches}");
        Training::new(&[&set, "train.precision=f64", "mesh.data=2"]).steps(30).losses
    };
    let one = losses(1);
    for num_microbatches in [2, 8] {
        let worst = worst_relative_difference(&one, &losses(num_microbatches));
        assert!(worst < 1e-10, "{num_microbatches} microbatches: {worst:e}");
    }
}

#[test]
fn grouping_all_reduces_changes_no_bit() {
    let run = |bytes: usize| {
        let set = format!("parallel.bucket_bytes={bytes}");
        Training::new(&[&set, "mesh.data=4"]).steps(20)
    };
    let alone = run(0);
    for bytes in [1 << 12, 1 << 30] {
        let grouped = run(bytes);
        assert_eq!(grouped.losses, alone.losses, "buckets of {bytes} bytes");
        assert_eq!(grouped.fingerprint(), alone.fingerprint(), "buckets of {bytes} bytes");
    }
}

#[test]
fn runs_repeat_and_replicas_stay_equal_bit_for_bit() {
    let run = || Training::new(&["mesh.data=4"]).steps(200);
    let (first, second) = (run(), run());
    assert_eq!(first.losses, second.losses);
    assert_eq!(first.fingerprint(), second.fingerprint());
    first.trainer.prove_lockstep().unwrap();
    for path in first.trainer.state().specs().paths() {
        let values = first.leaf(path);
        assert!(values.iter().all(|value| *value == values[0]), "{path} differs");
    }
}

#[test]
fn another_seed_is_another_run() {
    let first_loss = |seed: &str| Training::new(&[seed, "mesh.data=1"]).steps(1).losses[0];
    assert_ne!(first_loss("train.seed=0"), first_loss("train.seed=1"));
}

#[test]
fn one_flipped_bit_is_found_with_step_leaf_and_replica() {
    let leaf = "params.blocks.1.linear.weight";
    let mut run = Training::new(&["mesh.data=4"]).steps(7);
    run.trainer.prove_lockstep().unwrap();
    let mut values = run.leaf(leaf);
    // The lowest bit of the mantissa of one element.
    values[2].bytes_mut()[4 * 100] ^= 1;
    let values: Vec<_> = values.into_iter().map(Arc::new).collect();
    run.trainer.state_mut().replace(leaf, &values).unwrap();
    let run = run.steps(3);
    match run.trainer.prove_lockstep().unwrap_err() {
        Error::LockstepLost { step, leaf: found, replicas } => {
            assert_eq!((step, &*found, &*replicas), (10, leaf, "2"));
        }
        other => panic!("{other}"),
    }
}

/// On two axes: a leaf that is replicated, one sharded over `fsdp`, and one sharded over both axes.
#[test]
fn the_proof_compares_the_replicas_on_which_a_leaf_is_held_alike() {
    use hlo::Axis::{Data, Fsdp};
    let mesh = Mesh::new(&[(Data, 2), (Fsdp, 2)]);
    let varying = [AxisSet::EMPTY, Fsdp.into(), AxisSet::of(&[Data, Fsdp])];
    let leaves: Tree<LeafSpec> = ["whole", "cut", "own"]
        .iter()
        .zip(varying)
        .map(|(path, axes)| {
            let sharding = Sharding::new(&[axes]);
            let dims = [3 * mesh.group_size(axes)];
            ((*path).to_owned(), LeafSpec::new(DType::F32, &dims, sharding))
        })
        .collect();
    let graph = step::trace_proof(mesh, &leaves).unwrap();
    // Each replica's part contains its index along the axes over which the leaf varies.
    let state: Vec<Vec<Literal>> = varying
        .map(|axes| {
            let part = |replica| [1.0, 2.0, mesh.index(replica, axes) as f32];
            (0..4).map(|replica| Literal::from_slice(&[3], &part(replica))).collect()
        })
        .to_vec();
    // Replicas on which the minimum and the maximum of each leaf differ.
    let differ = |state: &[Vec<Literal>]| -> Vec<Vec<usize>> {
        let outputs = interpret(&graph, state).unwrap();
        let at =
            |output: usize, replica: usize| outputs[output][replica].as_slice::<u32>().to_vec();
        let is_between = |(print, (min, max)): (&u32, (&u32, &u32))| min <= print && print <= max;
        for replica in 0..4 {
            let (min, max) = (at(1, replica), at(2, replica));
            assert!(at(0, replica).iter().zip(min.iter().zip(&max)).all(is_between));
        }
        let differs = |leaf: usize, replica: &usize| at(1, *replica)[leaf] != at(2, *replica)[leaf];
        (0..3).map(|leaf| (0..4).filter(|replica| differs(leaf, replica)).collect()).collect()
    };
    let none: Vec<usize> = vec![];
    assert_eq!(differ(&state), [&none[..]; 3]);
    let changed = |leaf: usize, replica: usize| {
        let mut state = state.clone();
        state[leaf][replica].bytes_mut()[0] ^= 1;
        differ(&state)
    };
    assert_eq!(changed(0, 3), [vec![0, 1, 2, 3], vec![], vec![]]);
    // Replicas 0 and 2 differ along `data` only.
    assert_eq!(changed(1, 2), [vec![], vec![0, 2], vec![]]);
    assert_eq!(changed(2, 1), [&none[..]; 3]);
}

/// An update that depends on the replica, as after a forgotten synchronisation.
struct Drifting;

impl Transformation for Drifting {
    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        _state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>> {
        let replica = context.num_updates.tracer().replica_id(AxisSet::of(&[hlo::Axis::Data]));
        updates.map(|path, update| {
            let drift = replica.convert(update.dtype());
            if path == "head.bias" { update.vary(hlo::Axis::Data) + drift } else { *update }
        })
    }
}

#[test]
fn an_update_that_is_not_synchronised_does_not_trace() {
    let (config, splits, model) = load(&["mesh.data=4"]);
    let mut run = Run::new(&config, &splits, Mesh::data(4), Platform::Cpu).unwrap();
    run.optimizer = Box::new(Drifting);
    let error = step::trace_step(&run.spec(&model).declare().unwrap()).unwrap_err();
    assert!(matches!(error, StepError::Trace(_) | StepError::Verify(_)));
    let message = error.to_string();
    assert!(message.contains("params.head.bias"), "{message}");
}

#[test]
fn a_model_that_reduces_its_own_loss_gives_the_same_gradients() {
    // The model itself sums over the global batch, so the step must not sum again.
    fn reduced<'g>(scope: &models::Scope<'g>, batch: &models::Batch<'g>) -> models::Loss<'g> {
        let mut loss = plain(scope, batch);
        for sum in [&mut loss.sum, &mut loss.weight] {
            *sum = sum.all_reduce(hlo::Reduction::Sum, hlo::Axis::Data);
        }
        loss
    }
    fn plain<'g>(scope: &models::Scope<'g>, batch: &models::Batch<'g>) -> models::Loss<'g> {
        let logits = models::layers::linear(
            &scope.at("head"),
            batch.field("x"),
            10,
            models::Initializer::lecun_normal(64),
        );
        models::loss::cross_entropy(logits, batch.field("y"), batch.weight)
    }
    let (config, splits, _) = load(&["mesh.data=4", "train.precision=f64"]);
    let run = Run::new(&config, &splits, Mesh::data(4), Platform::Cpu).unwrap();
    let gradients = |model: &dyn models::Model| {
        let graph = step::trace_grad(&run.spec(model).declare().unwrap()).unwrap();
        let inputs: Vec<_> = graph
            .inputs()
            .iter()
            .map(|input| {
                let ty = graph.ty(input.value);
                (0..4).map(|replica| example_value(ty, replica)).collect()
            })
            .collect();
        hlo::interpret(&graph, &inputs).unwrap()
    };
    let (expected, found) = (gradients(&plain), gradients(&reduced));
    for (expected, found) in expected.iter().zip(&found) {
        let (expected, found) = (expected[0].to_f64(), found[0].to_f64());
        for (expected, found) in expected.iter().zip(&found) {
            assert!((expected - found).abs() <= 1e-12 * expected.abs().max(1e-3));
        }
    }
}

/// Values that differ between replicas only if the type varies.
fn example_value(ty: &TensorType, replica: usize) -> Literal {
    let shift = if ty.varying.is_empty() { 0 } else { replica };
    let value = |i: usize| match ty.dtype {
        DType::I32 | DType::U32 => ((i * 7 + shift * 3) % 10) as f64,
        _ => ((i * 37 + shift * 11) % 101) as f64 / 101.0 - 0.4,
    };
    let values: Vec<_> = (0..ty.num_elements()).map(value).collect();
    Literal::from_f64(ty.dtype, &ty.dims, &values)
}

#[test]
fn several_steps_in_one_launch_equal_single_steps() {
    for num_replicas in ["mesh.data=1", "mesh.data=4"] {
        let one_by_one = Training::new(&[num_replicas]).steps(20);
        let together = Training::new(&[num_replicas, "train.steps_per_launch=5"]).launches(4);
        assert_eq!(together.losses, one_by_one.losses);
        assert_eq!(together.fingerprint(), one_by_one.fingerprint());
    }
}
