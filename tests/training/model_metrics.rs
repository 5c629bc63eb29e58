//! Every metric that a model returns is recorded, whatever its name.

use std::fs;
use std::path::Path;

use hlo::Tensor;
use lockstep::config::Config;
use lockstep::train::{self, Error, Job, Options, Outcome};
use lockstep::{data, observe};
use models::layers::linear;
use models::{Batch, Initializer, Loss, Model, Scope, loss};
use serde_json::Value;

const NUM_STEPS: usize = 12;

fn classify<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    let x = batch.field("x");
    let logits = linear(&scope.at("head"), x, 10, Initializer::lecun_normal(x.dim(1)));
    loss::cross_entropy(logits, batch.field("y"), batch.weight)
}

/// A loss with one metric that has a mean of 0.5.
fn with_metric<'g>(name: &'static str, scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    let half: Tensor<'g> = (batch.weight * 0.5).sum();
    Loss { metrics: vec![(name, half)], ..classify(scope, batch) }
}

fn half<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    with_metric("half", scope, batch)
}

fn step<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    with_metric("step", scope, batch)
}

fn train(model: &dyn Model, out: &Path) -> Result<Outcome, Error> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits.toml");
    let steps = format!("train.steps={NUM_STEPS}");
    let sets = ["mesh.data=2", "train.eval_every=5", "schedule.warmup=none", &steps];
    let config = Config::load(&file, &sets.map(str::to_owned)).unwrap();
    let splits = data::open(&config).unwrap();
    let options = Options { out: Some(out.to_owned()), ..Options::default() };
    train::train(&Job { config: &config, model, splits: &splits }, &options)?.success()
}

#[test]
fn a_metric_of_any_name_is_in_the_lines_of_evaluations_and_in_the_summary() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = train(&half, dir.path()).unwrap();
    let text = fs::read_to_string(dir.path().join(observe::Jsonl::FILE)).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), NUM_STEPS);
    for (step, line) in lines.iter().enumerate() {
        let is_evaluated = [4, 9, NUM_STEPS - 1].contains(&step);
        assert_eq!(line.get("eval_half"), is_evaluated.then_some(&0.5.into()), "{line}");
        assert!(line.get("eval_accuracy").is_none(), "{line}");
    }
    let text = fs::read_to_string(dir.path().join(observe::Summary::FILE)).unwrap();
    let summary: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(summary["eval_half"], 0.5);
    assert_eq!(summary["eval_loss"], lines[NUM_STEPS - 1]["eval_loss"]);
    // These are always present.
    for name in ["eval_accuracy", "eval_top5_accuracy"] {
        assert_eq!(summary.get(name), Some(&Value::Null), "{name}");
    }
    assert_eq!(summary["best_eval"]["eval_half"], 0.5);
    assert_eq!(outcome.summary.eval_metrics, [("eval_half".to_owned(), 0.5)].into());
}

#[test]
fn a_metric_with_the_name_of_another_field_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let error = train(&step, dir.path()).unwrap_err().to_string();
    assert!(error.contains("metric `step`: that name is reserved"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was written");
}
