//! The names of a step's inputs and outputs. Only this module orders arguments and splits results.

use hlo::Program;

use super::StateSection;
use crate::optim::EMA;

/// Name of the input that holds the seed: u32 `[2]`, high word first.
pub const SEED: &str = "seed";
/// Prefix of the names of the inputs that hold the batch, one for each field.
pub const BATCH: &str = "batch.";
/// Name of the input that holds the learning rate: f32 scalar, or `[steps]` in a program of several
/// steps.
pub const LEARNING_RATE: &str = "learning_rate";
/// Path, in the state, of the number of steps taken: u32 scalar.
pub const STEP: &str = "step";
/// Path, in the state, of the number of updates skipped because a value was not finite: u32 scalar.
pub const NUM_SKIPPED: &str = "num_skipped";
/// Name of evaluation's input with the weight of each example: f32 `[b]`, 0 for padding.
pub const WEIGHT: &str = "batch.weight";
/// Name of the step's output that holds [`METRICS`](super::METRICS).
pub const METRICS_OUTPUT: &str = "metrics";
/// Name of the step's output that holds each replica's own mean loss.
pub const REPLICA_LOSS: &str = "replica_loss";
/// Name of the output of [`super::trace_observed_step`] that holds counts of each parameter's
/// values, in buckets.
pub const LAYER_COUNTS: &str = "layer_counts";
/// Name of its output that holds norms of each parameter.
pub const LAYER_NORMS: &str = "layer_norms";
/// Name of its output that holds the mean, weighted by the examples, of the squared norms of the
/// gradients of [parts](super::BatchParts) of the batch.
pub const PART_SQUARES: &str = "part_squares";
/// Name of its input, where batches may be late, that says whether a replica's batch is there: one
/// of [`LATE`], [`IN_TIME`] and [`AWAITED`].
pub const ON_TIME: &str = "on_time";
/// It is not there: the replica's examples have weight 0.
pub const LATE: u32 = 0;
/// It came in time.
pub const IN_TIME: u32 = 1;
/// It came late, and was waited for.
pub const AWAITED: u32 = 2;
/// Name of the output that then has for each shard of the batch 1 if it was late, 2 if it was
/// waited for, otherwise 0: `[num_batch_shards]`.
pub const LATE_SHARDS: &str = "late_shards";
/// Name of the evaluation's output that holds the global sums.
pub const SUMS: &str = "sums";
/// The output of [`super::trace_scores`].
pub const SCORES: &str = "scores";
/// Name of the proof's output that holds each replica's own fingerprints.
pub const FINGERPRINTS: &str = "fingerprints";
/// Name of the proof's output that holds the smallest fingerprints.
pub const MIN: &str = "min";
/// Name of the proof's output that holds the largest fingerprints.
pub const MAX: &str = "max";

/// Name of the output that holds a gathered leaf.
pub const GATHERED: &str = "gathered";

/// Path, in the state, of the running mean of the parameter `name`, if the optimizer keeps one.
pub fn ema_path(name: &str) -> String {
    StateSection::OptState.path(format_args!("{EMA}.{name}"))
}

/// The names of a program's inputs and outputs, in order. Leaves of the state are passed as a
/// group, everything else by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    inputs: Vec<Slot>,
    outputs: Vec<Slot>,
}

/// One input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Slot {
    /// The next leaf of the state.
    Leaf,
    /// Anything else, by its name.
    Other(String),
}

/// A program does not have the expected inputs and outputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the program's signature is not the expected one: {reason}")]
pub struct SignatureError {
    reason: String,
}

impl Signature {
    /// The signature of a program that takes the leaves `taken` and returns the leaves `given`.
    ///
    /// # Errors
    /// If the program does not have these leaves, in this order, among its inputs and outputs.
    pub fn new(
        program: &Program,
        taken: impl Iterator<Item = impl AsRef<str>>,
        given: impl Iterator<Item = impl AsRef<str>>,
    ) -> Result<Self, SignatureError> {
        let inputs = program.inputs.iter().map(|input| input.name.as_str());
        let outputs = program.outputs.iter().map(|output| output.name.as_str());
        Ok(Self {
            inputs: slots("takes", inputs, taken)?,
            outputs: slots("returns", outputs, given)?,
        })
    }

    /// The arguments of a launch in the program's order. `leaves` are those that the program takes,
    /// in order; `other` returns every other argument by name.
    ///
    /// # Errors
    /// If an input has no argument, or there are too many leaves.
    pub fn arguments<A>(
        &self,
        leaves: impl IntoIterator<Item = A>,
        mut other: impl FnMut(&str) -> Option<A>,
    ) -> Result<Vec<A>, SignatureError> {
        let mut leaves = leaves.into_iter();
        let mut arguments = Vec::with_capacity(self.inputs.len());
        for slot in &self.inputs {
            let (argument, name) = match slot {
                Slot::Leaf => (leaves.next(), "a leaf of the state"),
                Slot::Other(name) => (other(name), name.as_str()),
            };
            arguments.push(argument.ok_or_else(|| missing(name))?);
        }
        match leaves.next() {
            None => Ok(arguments),
            Some(_) => Err(SignatureError { reason: "it takes fewer leaves".to_owned() }),
        }
    }

    /// Splits the results of a launch.
    pub fn results<R>(&self, outputs: Vec<R>) -> Results<'_, R> {
        let mut results = Results { leaves: Vec::with_capacity(outputs.len()), others: vec![] };
        for (slot, output) in self.outputs.iter().zip(outputs) {
            match slot {
                Slot::Leaf => results.leaves.push(output),
                Slot::Other(name) => results.others.push((name, output)),
            }
        }
        results
    }
}

/// Marks the names that are leaves. These must be in order; other names may be before, between or
/// after them.
fn slots<'a>(
    verb: &str,
    names: impl Iterator<Item = &'a str>,
    leaves: impl Iterator<Item = impl AsRef<str>>,
) -> Result<Vec<Slot>, SignatureError> {
    let mut leaves = leaves.peekable();
    let slots = names.map(|name| match leaves.next_if(|leaf| leaf.as_ref() == name) {
        Some(_) => Slot::Leaf,
        None => Slot::Other(name.to_owned()),
    });
    let slots = slots.collect();
    match leaves.next() {
        None => Ok(slots),
        Some(leaf) => Err(SignatureError {
            reason: format!("it {verb} no `{}`, or not in order", leaf.as_ref()),
        }),
    }
}

fn missing(name: &str) -> SignatureError {
    SignatureError { reason: format!("there is no value for {name}") }
}

/// The results of a launch.
#[derive(Debug)]
pub struct Results<'s, R> {
    /// The leaves that the program returns, in order.
    pub leaves: Vec<R>,
    others: Vec<(&'s str, R)>,
}

impl<R> Results<'_, R> {
    /// Takes the output with this name.
    ///
    /// # Errors
    /// If the program has no such output, or it was taken before.
    pub fn take(&mut self, name: &str) -> Result<R, SignatureError> {
        let place = self.others.iter().position(|(other, _)| *other == name);
        place.map(|place| self.others.swap_remove(place).1).ok_or_else(|| missing(name))
    }
}

#[cfg(test)]
mod tests {
    use hlo::{DType, ProgramInput, ProgramOutput, TensorType};

    use super::*;

    fn program(inputs: &[&str], outputs: &[&str]) -> Program {
        let ty = TensorType::new(DType::F32, &[]);
        let input =
            |name: &&str| ProgramInput { name: (*name).to_owned(), ty: ty.clone(), donated: false };
        let output = |name: &&str| ProgramOutput { name: (*name).to_owned(), ty: ty.clone() };
        Program {
            text: String::new(),
            num_replicas: 1,
            num_processes: 1,
            inputs: inputs.iter().map(input).collect(),
            outputs: outputs.iter().map(output).collect(),
        }
    }

    #[test]
    fn arguments_and_results_go_by_name() {
        let program = program(&["rate", "w", "seed", "step"], &["metrics", "w", "loss", "step"]);
        let leaves = || ["w", "step"].into_iter();
        let signature = Signature::new(&program, leaves(), leaves()).unwrap();
        let other = |name: &str| match name {
            "seed" => Some("SEED"),
            "rate" => Some("RATE"),
            _ => None,
        };
        let arguments = signature.arguments(["W", "STEP"], other).unwrap();
        assert_eq!(arguments, ["RATE", "W", "SEED", "STEP"]);
        let mut results = signature.results(vec![1, 2, 3, 4]);
        assert_eq!(results.leaves, [2, 4]);
        assert_eq!((results.take("loss"), results.take("metrics")), (Ok(3), Ok(1)));
        assert!(results.take("loss").unwrap_err().to_string().contains("no value for loss"));

        for (leaves, expected) in
            [(&["W"][..], "a leaf of the state"), (&["W", "STEP", "X"], "takes fewer leaves")]
        {
            let error = signature.arguments(leaves.to_vec(), other).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = signature.arguments(["W", "STEP"], |_| None).unwrap_err().to_string();
        assert!(error.contains("no value for rate"), "{error}");
        for (taken, given, expected) in [
            (["step", "w"], ["w", "step"], "takes no `w`"),
            (["w", "step"], ["w", "x"], "returns no `x`"),
        ] {
            let error = Signature::new(&program, taken.into_iter(), given.into_iter());
            assert!(error.unwrap_err().to_string().contains(expected));
        }
    }
}
