//! Two training steps of an MLP against values computed by JAX and optax.
//!
//! `mlp_step.py` computes the values and records the versions; its output is next to it. The model
//! there is written in plain formulas and differentiated by JAX, and the updates are optax's. Our
//! side is the step used in training: traced from `models::mlp`, on several numbers of replicas and
//! microbatches, in the interpreter in f64 and on the CPU plugin in f32.

use hlo::{DType, Graph, Literal, Mesh, interpret};
use lockstep::config::{AdamW, OnNonfinite, Sgd};
use lockstep::optim::{Mask, Transformation, adamw, sgd};
use lockstep::parallel::{GatherAt, ParallelPlan, PlainSum};
use lockstep::step::{BatchField, DeclaredStep, METRICS, StepSpec, trace_grad, trace_step};
use models::AttentionKernels;
use models::mlp::{Mlp, MlpConfig};
use serde_json::Value;

use super::support;

const BATCH: usize = 8;

/// How the batch of a step is split, where the step runs, and how closely it must agree.
struct Setting {
    num_replicas: usize,
    num_microbatches: usize,
    dtype: DType,
    tolerance: f64,
}

/// The interpreter, in f64.
const EXACT: [Setting; 4] = [exact(1, 1), exact(4, 1), exact(1, 4), exact(2, 2)];
/// The plugin, in f32.
const COMPILED: [Setting; 3] = [compiled(1, 1), compiled(4, 1), compiled(2, 2)];

const fn exact(num_replicas: usize, num_microbatches: usize) -> Setting {
    Setting { num_replicas, num_microbatches, dtype: DType::F64, tolerance: 1e-9 }
}

const fn compiled(num_replicas: usize, num_microbatches: usize) -> Setting {
    Setting { num_replicas, num_microbatches, dtype: DType::F32, tolerance: 1e-4 }
}

#[test]
fn gradients_match_jax() {
    let reference = reference();
    for setting in EXACT {
        let graph = setting.with_spec(&lockstep::optim::scale_by_learning_rate(), |step| {
            trace_grad(step).unwrap()
        });
        let inputs = setting.inputs(&graph, &reference, &reference["params"], 0.0);
        let outputs = interpret(&graph, &inputs).unwrap();
        for (output, values) in graph.outputs().iter().zip(&outputs) {
            let expected = match output.name.strip_prefix("gradients.") {
                Some(path) => numbers(&reference["gradients"][path]["values"]),
                None => numbers(&reference["sgd"]["steps"][0]["loss"]),
            };
            setting.assert_close(&output.name, values, &expected);
        }
        let gradients = reference["gradients"].as_object().unwrap();
        assert_eq!(outputs.len(), gradients.len() + 1);
    }
}

#[test]
fn sgd_steps_match_jax() {
    let options = &reference()["sgd"];
    let config = Sgd {
        momentum: number(&options["momentum"]),
        nesterov: options["nesterov"].as_bool().unwrap(),
        weight_decay: number(&options["weight_decay"]),
        ..Sgd::default()
    };
    assert!(config.nesterov && config.weight_decay > 0.0);
    check("sgd", &sgd(&config, Mask::Matrices.into()));
}

#[test]
fn adamw_steps_match_jax() {
    let options = &reference()["adamw"];
    let config = AdamW {
        beta1: number(&options["beta1"]),
        beta2: number(&options["beta2"]),
        epsilon: number(&options["epsilon"]),
        weight_decay: number(&options["weight_decay"]),
    };
    assert!(config.weight_decay > 0.0);
    check("adamw", &adamw(&config, Mask::Matrices.into()));
}

fn check(name: &str, optimizer: &dyn Transformation) {
    for setting in EXACT {
        let graph = setting.with_spec(optimizer, |step| trace_step(step).unwrap());
        setting.check_steps(name, &graph, |inputs| interpret(&graph, inputs).unwrap());
    }
    for setting in COMPILED {
        let graph = setting.with_spec(optimizer, |step| trace_step(step).unwrap());
        let executable = support::compile(&graph).unwrap();
        setting.check_steps(name, &graph, |inputs| support::run(&executable, inputs).unwrap());
    }
}

impl Setting {
    fn with_spec<T>(
        &self,
        optimizer: &dyn Transformation,
        f: impl FnOnce(&DeclaredStep<'_>) -> T,
    ) -> T {
        let reference = reference();
        let sizes = reference["hidden"].as_array().unwrap().iter().map(size).collect();
        let config =
            MlpConfig { hidden: sizes, dropout: 0.0, layer_norm: true, ..MlpConfig::default() };
        let model = Mlp { config, objective: size(&reference["num_classes"]).into() };
        let features = size(&reference["x"]["dims"][1]);
        let fields = [
            BatchField { name: "x".into(), dtype: self.dtype, dims: vec![features] },
            BatchField { name: "y".into(), dtype: DType::I32, dims: vec![] },
        ];
        let spec = StepSpec {
            model: &model,
            fields: &fields,
            plan: ParallelPlan::new(Mesh::data(self.num_replicas), GatherAt::Step),
            microbatch: BATCH / self.num_replicas / self.num_microbatches,
            num_microbatches: self.num_microbatches,
            num_global_microbatches: self.num_microbatches * self.num_replicas,
            skips_late: false,
            precision: models::Precision::uniform(self.dtype),
            optimizer,
            gather_mask: &Mask::Matrices,
            synchronize: &PlainSum,
            local_steps: None,
            on_nonfinite: OnNonfinite::Stop,
            attention: AttentionKernels::None,
        };
        f(&spec.declare().unwrap())
    }

    /// Runs the reference's steps in sequence.
    fn check_steps(
        &self,
        name: &str,
        graph: &Graph,
        run: impl Fn(&[Vec<Literal>]) -> Vec<Vec<Literal>>,
    ) {
        let reference = reference();
        let learning_rate = number(&reference[name]["learning_rate"]);
        let mut inputs = self.inputs(graph, &reference, &reference["params"], learning_rate);
        for (index, step) in reference[name]["steps"].as_array().unwrap().iter().enumerate() {
            let outputs = run(&inputs);
            let mut num_leaves = 0;
            for (output, values) in graph.outputs().iter().zip(outputs) {
                let what = format!("{name}, step {index}: {}", output.name);
                match output.name.split_once('.') {
                    Some((tree @ ("params" | "opt_state"), path)) => {
                        num_leaves += 1;
                        let expected = numbers(&step[tree][path]["values"]);
                        self.assert_close(&what, &values, &expected);
                    }
                    _ if output.name == "metrics" => {
                        let [loss, norm] = [&step["loss"], &step["grad_norm"]].map(number);
                        let expected = [loss, norm, BATCH as f64, 0.0, 0.0];
                        let names =
                            ["loss", "grad_norm", "weight", "num_skipped", "nonfinite_leaf"];
                        assert_eq!(METRICS, names);
                        self.assert_close(&what, &values, &expected);
                    }
                    _ if output.name == "step" => {
                        assert_eq!(values[0].to_f64(), [index as f64 + 1.0]);
                    }
                    _ => {}
                }
                if let Some(input) = output.donated_input {
                    inputs[input] = values;
                }
            }
            let leaves = |tree: &str| step[tree].as_object().unwrap().len();
            assert_eq!(num_leaves, leaves("params") + leaves("opt_state"), "{name}");
        }
    }

    /// Values of a graph's inputs, by name. Optimizer state and counters start at zero.
    fn inputs(
        &self,
        graph: &Graph,
        reference: &Value,
        params: &Value,
        learning_rate: f64,
    ) -> Vec<Vec<Literal>> {
        let value = |name: &str, dtype: DType, dims: &[usize], replica: usize| {
            let rows = |values: Vec<f64>| {
                let per_replica = values.len() / self.num_replicas;
                values[replica * per_replica..][..per_replica].to_vec()
            };
            let values = match name.split_once('.') {
                Some(("params", path)) => numbers(&params[path]["values"]),
                Some(("batch", "x")) => rows(numbers(&reference["x"]["values"])),
                Some(("batch", "y")) => rows(numbers(&reference["y"])),
                _ if name == "learning_rate" => vec![learning_rate],
                _ => return Literal::zeros(dtype, dims),
            };
            Literal::from_f64(dtype, dims, &values)
        };
        let on_replicas = |input: &hlo::Input| {
            let ty = graph.ty(input.value);
            (0..self.num_replicas)
                .map(|replica| value(&input.name, ty.dtype, &ty.dims, replica))
                .collect()
        };
        graph.inputs().iter().map(on_replicas).collect()
    }

    fn assert_close(&self, what: &str, got: &[Literal], expected: &[f64]) {
        for (replica, got) in got.iter().enumerate() {
            let got = got.to_f64();
            assert_eq!(got.len(), expected.len(), "{what}");
            for (got, expected) in got.iter().zip(expected) {
                let close = (got - expected).abs() <= self.tolerance * expected.abs().max(1.0);
                let Setting { num_replicas, num_microbatches, .. } = self;
                assert!(
                    close,
                    "{what} on replica {replica} of {num_replicas}, {num_microbatches} \
                     microbatches: {got}, not {expected}"
                );
            }
        }
    }
}

fn reference() -> Value {
    serde_json::from_str(include_str!("mlp_step.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(values) => values.iter().map(number).collect(),
        one => vec![number(one)],
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("the reference has {value} for a number"))
}

fn size(value: &Value) -> usize {
    number(value) as usize
}
