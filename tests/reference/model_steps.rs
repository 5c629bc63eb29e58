//! A training step of a small GPT and of ResNet-20 against PyTorch's: `gpt_step.py`,
//! `resnet20_step.py`.
//!
//! On the CPU plugin, in f64 and in f32, on one replica and on several; parameters and batches are
//! [`drawn`](super::drawn). Gradients are also compared with finite differences of the loss.

use hlo::{DType, Graph, Literal, Mesh};
use lockstep::config::{AdamW, OnNonfinite, Sgd};
use lockstep::optim::{Mask, Transformation, adamw, scale_by_learning_rate, sgd};
use lockstep::parallel::{GatherAt, ParallelPlan, PlainSum};
use lockstep::step::{BatchField, DeclaredStep, StepError, StepSpec, trace_grad, trace_step};
use models::gpt::{self, Gpt};
use models::resnet::{self, ResNet};
use models::{AttentionKernels, Model, Precision};
use serde_json::Value;

use super::{drawn, support};

/// The fixtures have ten digits.
const F64: (DType, f64) = (DType::F64, 1e-8);
const F32: (DType, f64) = (DType::F32, 1e-4);

#[test]
fn a_step_of_gpt_matches_pytorch() {
    let reference = parse(include_str!("gpt_step.json"));
    let config: gpt::GptConfig = serde_json::from_value(reference["model"].clone()).unwrap();
    let adam: AdamW = serde_json::from_value(reference["optimizer"].clone()).unwrap();
    assert!(adam.weight_decay > 0.0);
    let model = config.model();
    gpt_case(&reference, &model, &adamw(&adam, Mask::Matrices.into())).check();
}

#[test]
fn a_step_of_resnet20_matches_pytorch() {
    let reference = parse(include_str!("resnet20_step.json"));
    let momentum: Sgd = serde_json::from_value(reference["optimizer"].clone()).unwrap();
    assert!(momentum.nesterov && momentum.weight_decay > 0.0);
    let model = resnet20(&reference);
    resnet20_case(&reference, &model, &sgd(&momentum, Mask::Matrices.into())).check();
}

#[test]
fn gradients_of_gpt_match_finite_differences() {
    let reference = parse(include_str!("gpt_step.json"));
    let config = gpt::GptConfig { vocabulary: Some(64), ..gpt::GptConfig::default() };
    let model = config.model();
    assert_eq!((model.num_layers, model.width), (4, 128));
    gpt_case(&reference, &model, &scale_by_learning_rate()).check_direction();
}

#[test]
fn gradients_of_resnet20_match_finite_differences() {
    let reference = parse(include_str!("resnet20_step.json"));
    let model = resnet20(&reference);
    resnet20_case(&reference, &model, &scale_by_learning_rate()).check_direction();
}

fn gpt_case<'a>(
    reference: &'a Value,
    model: &'a Gpt,
    optimizer: &'a dyn Transformation,
) -> Case<'a> {
    let [batch, positions] = ["batch", "positions"].map(|key| size(&reference[key]));
    let tokens = drawn::integers("tokens", model.vocabulary as u32);
    let tokens: Vec<_> = tokens.take(batch * (positions + 1)).collect();
    let tokens_from = |first: usize| -> Vec<f64> {
        let rows = tokens.chunks(positions + 1);
        rows.flat_map(|row| row[first..first + positions].to_vec()).collect()
    };
    let field = |name, first| (name, true, vec![positions], tokens_from(first));
    let fields = [field("x", 0), field("y", 1)];
    Case { reference, model, optimizer, fields, batch }
}

fn resnet20(reference: &Value) -> ResNet {
    let batch_norm_group = size(&reference["batch"]);
    let config = resnet::ResNetConfig { batch_norm_group, ..resnet::ResNetConfig::default() };
    ResNet { config, objective: size(&reference["classes"]).into() }
}

fn resnet20_case<'a>(
    reference: &'a Value,
    model: &'a ResNet,
    optimizer: &'a dyn Transformation,
) -> Case<'a> {
    let batch = size(&reference["batch"]);
    let image: Vec<_> = reference["image"].as_array().unwrap().iter().map(size).collect();
    let count = batch * image.iter().product::<usize>();
    let images = drawn::uniform("images").take(count).collect();
    let labels =
        drawn::integers("labels", model.objective.num_outputs as u32).take(batch).collect();
    let fields = [("x", false, image, images), ("y", true, vec![], labels)];
    Case { reference, model, optimizer, fields, batch }
}

/// A field's name, whether it holds integers, the dims of an example, and the whole batch.
type Field = (&'static str, bool, Vec<usize>, Vec<f64>);

struct Case<'a> {
    reference: &'a Value,
    model: &'a dyn Model,
    optimizer: &'a dyn Transformation,
    fields: [Field; 2],
    batch: usize,
}

impl Case<'_> {
    /// Each graph is compiled once per setting, because compiling takes most of the time.
    fn check(&self) {
        let steps = self.check_outputs(trace_step, 1, F64);
        assert_eq!(steps, self.check_outputs(trace_step, 4, F32));
        let gradients = self.check_outputs(trace_grad, 4, F32);
        let num_leaves = |tree: &str| self.reference[tree].as_object().unwrap().len();
        assert_eq!(steps, num_leaves("params") + num_leaves("model_state"));
        assert_eq!(gradients, num_leaves("gradients"));
    }

    fn with_spec<T>(
        &self,
        num_replicas: usize,
        dtype: DType,
        f: impl FnOnce(&DeclaredStep<'_>) -> T,
    ) -> T {
        let field = |(name, is_integer, dims, _): &Field| BatchField {
            name: (*name).to_owned(),
            dtype: if *is_integer { DType::I32 } else { dtype },
            dims: dims.clone(),
        };
        let fields = self.fields.each_ref().map(field);
        let spec = StepSpec {
            model: self.model,
            fields: &fields,
            plan: ParallelPlan::new(Mesh::data(num_replicas), GatherAt::Step),
            microbatch: self.batch / num_replicas,
            num_microbatches: 1,
            num_global_microbatches: num_replicas,
            skips_late: false,
            precision: Precision::uniform(dtype),
            optimizer: self.optimizer,
            gather_mask: &Mask::Matrices,
            synchronize: &PlainSum,
            local_steps: None,
            on_nonfinite: OnNonfinite::Stop,
            attention: AttentionKernels::None,
        };
        f(&spec.declare().unwrap())
    }

    /// Compares the product of the gradient and a direction over all parameters with the slope of
    /// the loss along that direction, from central differences: in f64, on two replicas.
    fn check_direction(&self) {
        const STEP: f64 = 1e-5;
        let graph = self.with_spec(2, DType::F64, |step| trace_grad(step).unwrap());
        let executable = support::compile(&graph).unwrap();
        let inputs = self.inputs(&graph, 2);
        let directions: Vec<Option<Vec<f64>>> = graph
            .inputs()
            .iter()
            .map(|input| {
                let path = input.name.strip_prefix("params.")?;
                let count = graph.ty(input.value).num_elements();
                Some(drawn::uniform(&format!("direction of {path}")).take(count).collect())
            })
            .collect();
        let norm = directions.iter().flatten().flatten().map(|u| u * u).sum::<f64>().sqrt();
        let outputs_at = |step: f64| {
            let mut inputs = inputs.clone();
            for (per_replica, direction) in inputs.iter_mut().zip(&directions) {
                let Some(direction) = direction else { continue };
                for value in per_replica {
                    let value = value.as_mut_slice::<f64>().iter_mut();
                    value.zip(direction).for_each(|(x, u)| *x += u / norm * step);
                }
            }
            support::run(&executable, &inputs).unwrap()
        };
        let value = |outputs: &[Vec<Literal>]| {
            let loss = graph.outputs().iter().position(|output| output.name == "loss").unwrap();
            outputs[loss][0].to_f64()[0]
        };
        let mut slope = 0.0;
        for (output, gradient) in graph.outputs().iter().zip(outputs_at(0.0)) {
            let Some(path) = output.name.strip_prefix("gradients.") else { continue };
            let direction = drawn::uniform(&format!("direction of {path}"));
            slope +=
                gradient[0].to_f64().iter().zip(direction).map(|(g, u)| g * u).sum::<f64>() / norm;
        }
        let expected = (value(&outputs_at(STEP)) - value(&outputs_at(-STEP))) / (2.0 * STEP);
        assert!(expected.abs() > 1e-4, "{expected}");
        assert!((slope - expected).abs() < 1e-6 * expected.abs(), "{slope}, not {expected}");
    }

    /// The number of leaves compared.
    fn check_outputs(
        &self,
        trace: fn(&DeclaredStep<'_>) -> Result<Graph, StepError>,
        num_replicas: usize,
        (dtype, tolerance): (DType, f64),
    ) -> usize {
        let graph = self.with_spec(num_replicas, dtype, |step| trace(step).unwrap());
        let executable = support::compile(&graph).unwrap();
        let outputs = support::run(&executable, &self.inputs(&graph, num_replicas)).unwrap();
        let mut num_leaves = 0;
        for (output, values) in graph.outputs().iter().zip(&outputs) {
            let what = format!("{} on {num_replicas} replicas, {dtype}", output.name);
            let scalars = |names: &[&str]| {
                for (name, got) in names.iter().zip(values[0].to_f64()) {
                    let expected = self.reference[*name].as_f64().unwrap();
                    let close = (got - expected).abs() <= tolerance * expected.abs();
                    assert!(close, "{what}: {name} {got}, not {expected}");
                }
            };
            match output.name.split_once('.') {
                Some((tree @ ("gradients" | "params" | "model_state"), path)) => {
                    num_leaves += 1;
                    let digest = &self.reference[tree][path];
                    drawn::assert_digest(&what, path, &values[0], digest, tolerance);
                }
                _ if output.name == "loss" => scalars(&["loss"]),
                _ if output.name == "metrics" => scalars(&["loss", "grad_norm"]),
                _ => {}
            }
        }
        num_leaves
    }

    /// Values of a graph's inputs, by name. Optimizer state and counters start at zero.
    fn inputs(&self, graph: &Graph, num_replicas: usize) -> Vec<Vec<Literal>> {
        let value = |input: &hlo::Input, replica: usize| {
            let ty = graph.ty(input.value);
            match input.name.split_once('.') {
                Some(("params" | "model_state", path)) => drawn::leaf(path, ty.dtype, &ty.dims),
                Some(("batch", name)) => {
                    let of_name = |(field, ..): &&Field| *field == name;
                    let (.., values) = self.fields.iter().find(of_name).unwrap();
                    let here = values.len() / num_replicas;
                    Literal::from_f64(ty.dtype, &ty.dims, &values[replica * here..][..here])
                }
                _ if input.name == "learning_rate" => {
                    Literal::scalar(self.reference["learning_rate"].as_f64().unwrap() as f32)
                }
                _ => Literal::zeros(ty.dtype, &ty.dims),
            }
        };
        let on_replicas =
            |input: &hlo::Input| (0..num_replicas).map(|replica| value(input, replica)).collect();
        graph.inputs().iter().map(on_replicas).collect()
    }
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn size(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}
