//! If the next state would not be finite, the step is skipped as a whole and reports the leaf: for
//! all optimizers, in the interpreter and compiled.

use std::path::Path;

use crate::support;
use hlo::{DType, Graph, Literal, Mesh, interpret};
use lockstep::config::{Config, OnNonfinite};
use lockstep::lowering::Lowering;
use lockstep::optim::{Mask, from_config};
use lockstep::parallel::{GatherAt, ParallelPlan, PlainSum};
use lockstep::pjrt::Platform;
use lockstep::step::{BatchField, METRICS, StepSpec, trace_step};
use models::layers::{BatchNorm, batch_norm, linear};
use models::{AttentionKernels, Batch, Initializer, Loss, Model, Precision, Scope, loss};

const EXAMPLES: usize = 8;
const FEATURES: usize = 4;
const CLASSES: usize = 3;

/// A classifier with batch norm, and `idle`, a parameter that nothing depends on.
fn model<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    let x = batch.field("x");
    scope.param("idle", &[2, 2], Initializer::Ones);
    let hidden = linear(&scope.at("stem"), x, 4, Initializer::lecun_normal(FEATURES));
    let norm = BatchNorm { group: EXAMPLES / 2, weight: Initializer::Ones };
    let hidden = batch_norm(&scope.at("norm"), hidden.reshape(&[x.dim(0), 1, 1, 4]), norm);
    let hidden = hidden.reshape(&[x.dim(0), 4]);
    let logits = linear(&scope.at("head"), hidden, CLASSES, Initializer::lecun_normal(4));
    loss::cross_entropy(logits, batch.field("y"), batch.weight)
}

/// The value that overflows, while loss and gradients are finite.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Poison {
    /// The product of rate and update.
    Params,
    /// The running mean of parameters, which are finite themselves.
    Average,
    /// The variance of features that batch norm normalizes.
    ModelState,
}

/// Keys of `[optimizer]`; all average their parameters.
const OPTIMIZERS: [&[&str]; 7] = [
    &["name=sgd"],
    &["name=sgd", "nesterov=true", "clip_grad_norm=0.5"],
    &["name=sgd", "momentum_correction=false", "weight_decay=1"],
    &["name=adam", "clip_grad_norm=0.5"],
    &["name=adamw", "weight_decay=0"],
    &["name=lars", "momentum_correction=true", "trust_exclude=['[!i]*']"],
    &["name=lamb", "weight_decay=0", "trust_exclude=['[!i]*']"],
];

#[derive(Clone, Copy, Debug)]
struct Case {
    keys: &'static [&'static str],
    poison: Option<Poison>,
    on_nonfinite: OnNonfinite,
    num_replicas: usize,
    num_microbatches: usize,
    precision: Precision,
}

const F32: Precision = Precision::uniform(DType::F32);
const F64: Precision = Precision::uniform(DType::F64);
const BF16: Precision = Precision { params: DType::F32, compute: DType::Bf16 };

impl Case {
    fn new(keys: &'static [&'static str], poison: Poison) -> Self {
        Self {
            keys,
            poison: Some(poison),
            on_nonfinite: OnNonfinite::Skip,
            num_replicas: 1,
            num_microbatches: 1,
            precision: F32,
        }
    }

    fn graph(&self) -> Graph {
        graph(&model, EXAMPLES, &[self.keys, &["ema_decay=0.5"]].concat(), self)
    }

    /// An input's value on each replica.
    fn input(&self, name: &str, ty: &hlo::TensorType, index: u32) -> Vec<Literal> {
        let is_wide = self.precision.params == DType::F64;
        let (huge, greatest) = if is_wide { (1e300, 1.7e308) } else { (30.0, 3.3e38) };
        let count = ty.num_elements();
        let values = |replica: usize| -> Vec<f64> {
            match name {
                "learning_rate" if self.poison == Some(Poison::Params) => vec![3e38],
                "learning_rate" => vec![0.1],
                "batch.y" => (0..count).map(|i| ((i + replica) % CLASSES) as f64).collect(),
                "batch.x" => support::uniform(100 + replica as u32, count, -1.0, 1.0),
                _ if name.ends_with("second_moment.idle") => vec![0.0; count],
                _ if name.contains("second_moment") => vec![0.01; count],
                "model_state.norm.variance" => vec![1.0; count],
                "step" | "num_skipped" | "seed" => vec![0.0; count],
                _ => support::uniform(index, count, -0.5, 0.5),
            }
        };
        let poisoned = match (self.poison, name) {
            (Some(Poison::Params), "params.idle") => Some(huge),
            (Some(Poison::Params), "opt_state.momentum.idle") => Some(huge),
            (Some(Poison::Params), "opt_state.first_moment.idle") => Some(huge),
            (Some(Poison::Average), "params.idle") => Some(greatest),
            (Some(Poison::Average), "opt_state.ema.idle") => Some(-greatest),
            (Some(Poison::Average), "opt_state.momentum.idle") => Some(0.0),
            (Some(Poison::Average), "opt_state.first_moment.idle") => Some(0.0),
            _ => None,
        };
        let scale = match (self.poison, name) {
            (Some(Poison::ModelState), "params.stem.weight") if is_wide => 1e200,
            (Some(Poison::ModelState), "params.stem.weight") => 1e20,
            _ => 1.0,
        };
        let of_replica = |replica: usize| {
            let values = values(replica).into_iter().map(|value| poisoned.unwrap_or(value) * scale);
            Literal::from_f64(ty.dtype, &ty.dims, &values.collect::<Vec<_>>())
        };
        (0..self.num_replicas).map(of_replica).collect()
    }

    fn inputs(&self, graph: &Graph) -> Vec<Vec<Literal>> {
        let inputs = graph.inputs().iter().zip(0..);
        inputs.map(|(input, index)| self.input(&input.name, graph.ty(input.value), index)).collect()
    }

    /// Runs the step twice, the second time without the overflow, and checks which leaves change.
    fn check(&self, graph: &Graph, run: impl Fn(&[Vec<Literal>]) -> Vec<Vec<Literal>>) {
        let mut inputs = self.inputs(graph);
        let first = run(&inputs);
        let names: Vec<_> = graph.inputs().iter().map(|input| &input.name).collect();
        for (output, values) in graph.outputs().iter().zip(&first) {
            let Some(input) = output.donated_input else { continue };
            let what = format!("{self:?}: {}", output.name);
            match &*output.name {
                "step" | "num_skipped" => {
                    assert!(values.iter().all(|x| x.to_f64() == [1.0]), "{what} {values:?}");
                }
                _ => assert_eq!(values, &inputs[input], "{what}"),
            }
        }
        assert_eq!(METRICS, ["loss", "grad_norm", "weight", "num_skipped", "nonfinite_leaf"]);
        let metrics = self.metrics(graph, &first);
        assert!(metrics[..3].iter().all(|value| value.is_finite()), "{self:?}: {metrics:?}");
        let expected = match self.poison {
            Some(Poison::Params) => "params.idle",
            Some(Poison::Average) => "opt_state.ema.idle",
            Some(Poison::ModelState) => "model_state.norm.variance",
            None => unreachable!("there is one to be checked"),
        };
        assert_eq!(names[metrics[4] as usize - 1], expected, "{self:?}: {metrics:?}");

        // After a stop, later steps change nothing either.
        let healthy = Self { poison: None, ..*self };
        for (input, value) in graph.outputs().iter().zip(first) {
            if let Some(input) = input.donated_input {
                inputs[input] = value;
            }
        }
        for (index, input) in graph.inputs().iter().enumerate() {
            let is_counter = matches!(&*input.name, "step" | "num_skipped");
            if !is_counter {
                inputs[index] = healthy.input(&input.name, graph.ty(input.value), index as u32);
            }
        }
        let second = run(&inputs);
        let metrics = self.metrics(graph, &second);
        let stays = self.on_nonfinite == OnNonfinite::Stop;
        assert_eq!((metrics[3], metrics[4]), (if stays { 2.0 } else { 1.0 }, 0.0), "{self:?}");
        for (output, values) in graph.outputs().iter().zip(&second) {
            if let Some(input) = output.donated_input
                && !matches!(&*output.name, "step" | "num_skipped")
            {
                let is_kept = values == &inputs[input];
                let may_rest = output.name.ends_with("idle");
                assert!(is_kept == stays || may_rest, "{self:?}: {}", output.name);
                assert!(values.iter().flat_map(Literal::to_f64).all(f64::is_finite));
            }
        }
    }

    fn metrics(&self, graph: &Graph, outputs: &[Vec<Literal>]) -> Vec<f64> {
        let index = graph.outputs().iter().position(|output| output.name == "metrics");
        let metrics = &outputs[index.unwrap()];
        assert!(metrics.iter().all(|replica| replica == &metrics[0]), "{self:?}: alike everywhere");
        metrics[0].to_f64()
    }
}

/// The step of a model, with the number of examples, the keys of `[optimizer]`, and a case's
/// replicas and precision.
fn graph(model: &dyn Model, num_examples: usize, keys: &[&str], case: &Case) -> Graph {
    let text = "model = { name = \"mlp\" }\n data = { source = \"synthetic\" }\n\
                train = { global_batch = 8, steps = 10 }\n optimizer = { name = \"sgd\" }\n\
                schedule = { name = \"constant\", peak = 0.1 }";
    let sets: Vec<_> = keys.iter().map(|key| format!("optimizer.{key}")).collect();
    let config = Config::parse(text, Path::new("a.toml"), &sets).unwrap();
    let fields = [
        BatchField { name: "x".into(), dtype: DType::F32, dims: vec![FEATURES] },
        BatchField { name: "y".into(), dtype: DType::I32, dims: vec![] },
    ];
    let spec = StepSpec {
        model,
        fields: &fields,
        plan: ParallelPlan::new(Mesh::data(case.num_replicas), GatherAt::Step),
        microbatch: num_examples / case.num_replicas / case.num_microbatches,
        num_microbatches: case.num_microbatches,
        num_global_microbatches: case.num_microbatches * case.num_replicas,
        skips_late: false,
        precision: case.precision,
        optimizer: &*from_config(&config.optimizer),
        gather_mask: &Mask::Matrices,
        synchronize: &PlainSum,
        local_steps: None,
        on_nonfinite: case.on_nonfinite,
        attention: AttentionKernels::None,
    };
    trace_step(&spec.declare().unwrap()).unwrap()
}

#[test]
fn nonfinite_updates_are_skipped() {
    for keys in OPTIMIZERS {
        for poison in [Poison::Params, Poison::Average, Poison::ModelState] {
            for on_nonfinite in [OnNonfinite::Skip, OnNonfinite::Stop] {
                for (num_replicas, num_microbatches, precision) in
                    [(1, 1, F32), (1, 1, F64), (1, 2, BF16), (4, 1, F32), (4, 1, BF16), (4, 1, F64)]
                {
                    let case = Case::new(keys, poison);
                    let case = Case { on_nonfinite, num_replicas, precision, ..case };
                    let case = Case { num_microbatches, ..case };
                    let graph = case.graph();
                    case.check(&graph, |inputs| interpret(&graph, inputs).unwrap());
                }
            }
        }
    }
}

/// Also in the form lowered for the CPU backend.
#[test]
fn nonfinite_updates_are_skipped_compiled() {
    for keys in OPTIMIZERS {
        let case = Case { num_replicas: 4, ..Case::new(keys, Poison::Params) };
        let graph = Lowering::for_platform(Platform::Cpu).lower(case.graph(), "step").graph;
        let executable = support::compile(&graph).unwrap();
        for poison in [Poison::Params, Poison::Average, Poison::ModelState] {
            let case = Case { poison: Some(poison), ..case };
            case.check(&graph, |inputs| support::run(&executable, inputs).unwrap());
        }
    }
}

/// The next state is written over the current one although it is tested first. Other memory is only
/// for gradients, a few activations, and the updates that LAMB stores; a copied leaf would exceed
/// the limit.
#[test]
fn the_update_stays_in_place() {
    let optimizers =
        [("name=sgd", 1), ("name=adam", 1), ("name=adamw", 1), ("name=lars", 1), ("name=lamb", 2)];
    for (name, num_copies) in optimizers {
        for more in [&[][..], &["clip_grad_norm=0.5", "ema_decay=0.5"]] {
            let keys = [&[name], more].concat();
            let graph = graph(&wide, 32, &keys, &Case::new(&[], Poison::Params));
            let graph = Lowering::for_platform(Platform::Cpu).lower(graph, "step").graph;
            let memory = support::compile(&graph).unwrap().memory().unwrap();
            let bytes = |prefix: &str| -> u64 {
                let leaves = graph.inputs().iter().filter(|input| input.name.starts_with(prefix));
                leaves.map(|leaf| graph.ty(leaf.value).num_elements() as u64 * 4).sum()
            };
            let params = bytes("params.");
            // Plus the two counters.
            assert_eq!(memory.alias_bytes, params + bytes("opt_state.") + 8, "{keys:?}");
            let beside = memory.temporary_bytes;
            assert!(beside < num_copies * params + params / 4, "{keys:?}: {params} {memory:?}");
        }
    }
}

/// A classifier with far more memory in parameters than in activations.
fn wide<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    let x = batch.field("x");
    let [stem, hidden] = ["stem", "hidden"].map(|name| scope.at(name));
    let x = linear(&stem, x, 1024, Initializer::lecun_normal(FEATURES)).tanh();
    let x = linear(&hidden, x, 1024, Initializer::lecun_normal(1024)).tanh();
    let logits = linear(&scope.at("head"), x, CLASSES, Initializer::lecun_normal(1024));
    loss::cross_entropy(logits, batch.field("y"), batch.weight)
}
