//! Faults that no configuration can express: a wrong model, one bad example, a data source that
//! fails. Errors name the fault, and the run's results up to then are kept.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use hlo::DType;
use lockstep::config::Config;
use lockstep::data::{self, Field, Sampler, Source, Splits};
use lockstep::observe::Status;
use lockstep::train::{self, Job, Options, Outcome, Stop};
use models::mlp::Mlp;
use models::{Batch, Initializer, Loss, Model, Scope, layers, loss};

const NUM_REPLICAS: usize = 4;
const NUM_STEPS: u64 = 12;

/// Four replicas of a small classifier, with overrides `sets`.
fn config(sets: &[&str]) -> Config {
    let text = r#"
        model = { name = "mlp", hidden = [8] }
        data = { source = "synthetic" }
        train = { global_batch = 16, steps = 12 }
        optimizer = { name = "sgd" }
        schedule = { name = "constant", peak = 0.1 }
        mesh = { data = 4 }
    "#;
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    Config::parse(text, Path::new("faults.toml"), &sets).unwrap()
}

/// 256 examples of 8 numbers and a label. One of them may be bad.
pub(crate) struct Examples {
    fields: [Field; 2],
    bad: Option<(u64, Bad)>,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Bad {
    NotANumber,
    Unreadable,
}

impl Examples {
    fn fields() -> [Field; 2] {
        [
            Field { name: "x", dtype: DType::F32, dims: vec![8] },
            Field { name: "y", dtype: DType::I32, dims: vec![] },
        ]
    }

    pub(crate) fn splits(bad: Option<(u64, Bad)>) -> Splits {
        let fields = Self::fields();
        let eval = Self { fields: fields.clone(), bad: None };
        Splits { train: Arc::new(Self { fields, bad }), eval: Arc::new(eval), warnings: vec![] }
    }
}

impl Source for Examples {
    fn num_examples(&self) -> u64 {
        256
    }

    fn num_outputs(&self) -> usize {
        4
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn read(
        &self,
        example: u64,
        _epoch: Option<u64>,
        out: &mut [&mut [u8]],
    ) -> Result<(), data::Error> {
        let bad = self.bad.filter(|(id, _)| *id == example).map(|(_, bad)| bad);
        if bad == Some(Bad::Unreadable) {
            return Err(data::Error::NoSuchExample { example, num_examples: example });
        }
        let mut x: [f32; 8] = std::array::from_fn(|i| ((example + i as u64) % 4) as f32);
        if bad == Some(Bad::NotANumber) {
            x[3] = f32::NAN;
        }
        out[0].copy_from_slice(bytemuck::cast_slice(&x));
        out[1].copy_from_slice(&((example % 4) as i32).to_ne_bytes());
        Ok(())
    }
}

/// Trains with files in `out`, replacing those of an earlier run.
pub(crate) fn train(
    sets: &[&str],
    model: &dyn Model,
    splits: &Splits,
    out: &Path,
) -> Result<Outcome, train::Error> {
    let config = config(sets);
    let options = Options { out: Some(out.to_owned()), overwrite: true, ..Options::default() };
    train::train(&Job { config: &config, model, splits }, &options)?.success()
}

fn mlp() -> Mlp {
    Mlp {
        config: models::mlp::MlpConfig { hidden: vec![8], ..Default::default() },
        objective: 4.into(),
    }
}

fn num_lines(out: &Path) -> usize {
    fs::read_to_string(out.join("metrics.jsonl")).unwrap().lines().count()
}

/// Number of steps in the summary.
fn num_steps(out: &Path) -> u64 {
    let text = fs::read_to_string(out.join("summary.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["steps"].as_u64().unwrap()
}

/// The step and the replica that get the bad example.
pub(crate) const STEP: u64 = 5;
const REPLICA: usize = 2;

/// The data with a bad example for that step and replica, and its index.
pub(crate) fn bad_splits(bad: Bad) -> (Splits, u64) {
    let ids = Sampler::new(0, 256, 16).batch(STEP);
    let example = ids[REPLICA * 16 / NUM_REPLICAS + 1];
    (Examples::splits(Some((example, bad))), example)
}

#[test]
fn a_nan_example_is_traced_to_step_and_replica() {
    let (splits, _) = bad_splits(Bad::NotANumber);
    let dir = tempfile::tempdir().unwrap();
    // Also in the middle of a launch of several steps.
    for sets in [&[][..], &["train.steps_per_launch=4"]] {
        let error = train(sets, &mlp(), &splits, dir.path()).unwrap_err();
        let expected = format!("step {STEP}: the loss is not finite on replica {REPLICA}; ");
        assert!(error.to_string().starts_with(&expected), "{expected}: {error}");
        assert!(matches!(error, train::Error::NonFinite { step: found, .. } if found == STEP));
        assert_eq!((num_lines(dir.path()), num_steps(dir.path())), (STEP as usize + 1, STEP + 1));
    }

    // The parameters are those before that step, as if the run had ended there.
    let stopped = fs::read(dir.path().join("params.safetensors")).unwrap();
    let steps = format!("train.steps={STEP}");
    train(&[&steps], &mlp(), &splits, dir.path()).unwrap();
    assert_eq!(fs::read(dir.path().join("params.safetensors")).unwrap(), stopped);
}

#[test]
fn the_update_of_a_nan_example_can_be_skipped() {
    let (splits, _) = bad_splits(Bad::NotANumber);
    let dir = tempfile::tempdir().unwrap();
    let skip = ["train.on_nonfinite=skip"];
    let outcome = train(&skip, &mlp(), &splits, dir.path()).unwrap();
    assert_eq!(outcome.summary.steps, NUM_STEPS);
    assert!(outcome.summary.final_loss.is_some_and(f64::is_finite), "{:?}", outcome.summary);
    assert_eq!(outcome.summary.num_skipped, 1);
    let text = fs::read_to_string(dir.path().join("metrics.jsonl")).unwrap();
    let steps = text.lines().take(NUM_STEPS as usize).enumerate();
    for (index, line) in steps {
        assert_eq!(line.contains("\"loss\":null"), index as u64 == STEP, "{line}");
        let skipped = format!("\"num_skipped\":{},", u64::from(index as u64 >= STEP));
        assert!(line.contains(&skipped), "{line}");
    }
}

#[test]
fn failing_data_end_the_run_after_the_last_step_that_has_data() {
    let (splits, example) = bad_splits(Bad::Unreadable);
    let dir = tempfile::tempdir().unwrap();
    let error = train(&[], &mlp(), &splits, dir.path()).unwrap_err();
    assert!(error.to_string().contains(&format!("example {example}")), "{error}");
    assert_eq!((num_lines(dir.path()), num_steps(dir.path())), (STEP as usize, STEP));
    assert!(dir.path().join("params.safetensors").is_file());
}

/// A source that ends the run as soon as an example is read.
struct Stopping {
    examples: Examples,
    stop: Stop,
}

impl Source for Stopping {
    fn num_examples(&self) -> u64 {
        self.examples.num_examples()
    }

    fn num_outputs(&self) -> usize {
        self.examples.num_outputs()
    }

    fn fields(&self) -> &[Field] {
        self.examples.fields()
    }

    fn read(
        &self,
        example: u64,
        epoch: Option<u64>,
        out: &mut [&mut [u8]],
    ) -> Result<(), data::Error> {
        self.stop.request();
        self.examples.read(example, epoch, out)
    }
}

#[test]
fn a_run_can_be_stopped_before_its_first_step_and_in_an_evaluation() {
    // While reading for the first step, in the first evaluation, and in the last one.
    for (in_eval, eval_every, num_steps) in [(false, 0, 0), (true, 5, 5), (true, 0, NUM_STEPS)] {
        let dir = tempfile::tempdir().unwrap();
        let stop = Stop::default();
        let mut splits = Examples::splits(None);
        let examples = Examples { fields: Examples::fields(), bad: None };
        let stopping = Arc::new(Stopping { examples, stop: stop.clone() });
        match in_eval {
            true => splits.eval = stopping,
            false => splits.train = stopping,
        }
        let config = config(&[&format!("train.eval_every={eval_every}")]);
        let options = Options { out: Some(dir.path().to_owned()), stop, ..Options::default() };
        let job = Job { config: &config, model: &mlp(), splits: &splits };
        let Outcome { summary, failure } = train::train(&job, &options).unwrap();
        assert!(failure.is_none() && summary.status == Status::Interrupted, "{summary:?}");
        assert_eq!((summary.steps, summary.eval_step), (num_steps, None));
        assert_eq!(num_lines(dir.path()) as u64, num_steps);
        assert!(dir.path().join("params.safetensors").is_file());
    }
}

/// A model, words of its error message, and the line of this file that is at fault.
type Case = (for<'g> fn(&Scope<'g>, &Batch<'g>) -> Loss<'g>, &'static [&'static str], u32);

fn classify<'g>(batch: &Batch<'g>, logits: hlo::Tensor<'g>) -> Loss<'g> {
    loss::cross_entropy(logits, batch.field("y"), batch.weight)
}

fn logits<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> hlo::Tensor<'g> {
    layers::linear(&scope.at("head"), batch.field("x"), 4, Initializer::lecun_normal(8))
}

fn added<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    classify(batch, logits(scope, batch) + batch.field("x"))
}
const ADDED: u32 = line!() - 2;

fn reshaped<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    classify(batch, logits(scope, batch).reshape(&[3, 5]))
}
const RESHAPED: u32 = line!() - 2;

fn without_field<'g>(_: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    classify(batch, batch.field("image"))
}
const WITHOUT_FIELD: u32 = line!() - 2;

#[test]
fn a_model_with_wrong_shapes_is_rejected_with_op_and_line() {
    let cases: [Case; 3] = [
        (added, &["add(f32[4, 4]{data}, f32[4, 8]{data})", "different dims"], ADDED),
        (reshaped, &["reshape(f32[4, 4]{data})", "[3, 5]"], RESHAPED),
        (without_field, &["no field `image`; it has x, y"], WITHOUT_FIELD),
    ];
    for (model, fragments, line) in cases {
        let dir = tempfile::tempdir().unwrap();
        let error = train(&[], &model, &Examples::splits(None), dir.path()).unwrap_err();
        let message = error.to_string();
        let place = format!("tests/training/faults.rs:{line}:");
        for fragment in
            fragments.iter().copied().chain([place.as_str(), "the model does not trace"])
        {
            assert!(message.contains(fragment), "{fragment:?} is not in: {message}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was written");
    }
}
