//! Evaluation: means of the loss and of the model's metrics over a split.

use std::sync::Arc;

use super::{BatchSender, Callable, DeviceBatch, Error, Run, Trainer};
use crate::data::{EvalBatches, Source};
use crate::observe::EvalResult;
use crate::pjrt::{Arg, Buffers};
use crate::step::{EvalSums, SUMS};

/// F1 of the second of two classes, or the mean of those of all classes if there are more.
const F1: &str = "f1";
/// Matthews' correlation coefficient.
const MATTHEWS: &str = "matthews";

impl Trainer {
    /// Checks that every metric of the model can have its own field in the files of a run, and that
    /// the best evaluation is chosen by one of them or by the loss.
    ///
    /// # Errors
    /// If a metric has a reserved name, two have the same name, or the model has no metric called
    /// `best`.
    pub(super) fn check_metrics(&self, best: Option<&str>) -> Result<(), Error> {
        let names = self.eval_metrics();
        check_metric_names(&names)?;
        match best {
            Some(best) if best != EvalResult::LOSS && !names.contains(&best) => {
                let known = [&[EvalResult::LOSS], &names[..]].concat();
                Err(Error::BestMetric { found: best.to_owned(), known: known.join(", ") })
            }
            _ => Ok(()),
        }
    }

    /// Computes means over a split, counting each example once.
    ///
    /// # Errors
    /// If examples cannot be read, or a launch fails.
    pub fn evaluate(&self, source: &Arc<dyn Source>, run: &Run) -> Result<EvalResult, Error> {
        match self.evaluate_unless(source, run, || false)? {
            Some(result) => Ok(result),
            None => unreachable!("nothing ends it early"),
        }
    }

    /// Like [`Self::evaluate`], but calls `is_ended` before each batch and returns `None` if that
    /// is `true`.
    pub(super) fn evaluate_unless(
        &self,
        source: &Arc<dyn Source>,
        run: &Run,
        is_ended: impl Fn() -> bool,
    ) -> Result<Option<EvalResult>, Error> {
        let num_batch_shards = run.batch.num_batch_shards();
        let size = run.batch.microbatch() * num_batch_shards;
        let sender = self.sender(self.programs.eval.get()?);
        let program = |size_class| self.programs.eval_of_size_class(size_class);
        let batches = EvalBatches::new(source.clone(), size, num_batch_shards)?;
        let batches = batches.of_shards(sender.shards().clone());
        let leaves = self.programs.model_leaves.values().filter_map(|path| self.state.get(path));
        let leaves: Vec<_> = leaves.collect();
        evaluate_with((&program, &sender), &leaves, &self.programs.eval_sums, &batches, is_ended)
    }
}

/// Means over `batches`, by programs of [`crate::step::trace_eval`] for each size class, with these
/// leaves as inputs. `None` if `is_ended` before one of them.
pub(super) fn evaluate_with<'p>(
    (program, sender): (&dyn Fn(usize) -> Result<&'p Callable, Error>, &BatchSender),
    leaves: &[&Buffers],
    of: &EvalSums,
    batches: &EvalBatches,
    is_ended: impl Fn() -> bool,
) -> Result<Option<EvalResult>, Error> {
    let mut sums = vec![0.0; of.num_elements()];
    let mut add = |(more, _): (Buffers, DeviceBatch)| -> Result<(), Error> {
        for (sum, more) in sums.iter_mut().zip(more.first_to_host()?.wait()?.to_f64()) {
            *sum += more;
        }
        Ok(())
    };
    // Launches one batch ahead, so that the devices do not wait for the host.
    let mut before: Option<(Buffers, DeviceBatch)> = None;
    for batch in batches.iter() {
        if is_ended() {
            return Ok(None);
        }
        let batch = sender.send(batch?)?;
        let leaves = leaves.iter().map(|leaf| Arg::Borrow(leaf));
        let sums =
            program(batch.size_class)?.call(leaves, |name| batch.arg(name))?.results.take(SUMS)?;
        if let Some(before) = before.replace((sums, batch)) {
            add(before)?;
        }
    }
    before.map(add).transpose()?;
    if sums[1] == 0.0 && batches.has_skipped() {
        return Err(Error::NothingEvaluated);
    }
    Ok(Some(result_of(of, &sums)))
}

/// Names of the metrics of an evaluation.
pub(super) fn metric_names(of: &EvalSums) -> Vec<&'static str> {
    let counted: &[_] = if of.num_classes > 0 { &[F1, MATTHEWS] } else { &[] };
    [&of.metrics, counted].concat()
}

fn result_of(of: &EvalSums, sums: &[f64]) -> EvalResult {
    let (loss, weight) = (sums[0], sums[1]);
    let (metrics, counts) = sums[2..].split_at(of.metrics.len());
    let metrics = of.metrics.iter().zip(metrics);
    let mut metrics: Vec<_> = metrics.map(|(name, sum)| (*name, sum / weight)).collect();
    if of.num_classes > 0 {
        metrics.extend([(F1, f1(counts)), (MATTHEWS, matthews(counts))]);
    }
    EvalResult { loss: loss / weight, metrics: metrics.into_iter().collect() }
}

/// F1 from [`models::loss::class_counts`]: of class 1 if there are two, as GLUE and scikit-learn
/// report it, otherwise the unweighted mean over classes. 0 for a class that is neither a label nor
/// predicted.
fn f1(counts: &[f64]) -> f64 {
    let num_classes = counts.len() / 3;
    let of_class = |class: usize| {
        let [correct, predicted, labels] = [0, 1, 2].map(|kind| counts[kind * num_classes + class]);
        if predicted + labels == 0.0 { 0.0 } else { 2.0 * correct / (predicted + labels) }
    };
    match num_classes {
        2 => of_class(1),
        _ => (0..num_classes).map(of_class).sum::<f64>() / num_classes as f64,
    }
}

/// Matthews' correlation coefficient from [`models::loss::class_counts`]; 0 if only one class is
/// predicted or labelled. Gorodkin, "Comparing two K-category assignments by a K-category
/// correlation coefficient" (2004).
fn matthews(counts: &[f64]) -> f64 {
    let num_classes = counts.len() / 3;
    let (correct, rest) = counts.split_at(num_classes);
    let (predicted, labels) = rest.split_at(num_classes);
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let total: f64 = labels.iter().sum();
    let covariance = correct.iter().sum::<f64>() * total - product(predicted, labels);
    let variance = |of: &[f64]| total * total - product(of, of);
    let norm = (variance(predicted) * variance(labels)).sqrt();
    if norm == 0.0 { 0.0 } else { covariance / norm }
}

fn check_metric_names(names: &[&str]) -> Result<(), Error> {
    for (index, name) in names.iter().enumerate() {
        let reason = if EvalResult::RESERVED_NAMES.contains(name) {
            "that name is reserved"
        } else if names[..index].contains(name) {
            "another metric has the same name"
        } else {
            continue;
        };
        return Err(Error::MetricName { name: (*name).to_owned(), reason });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of scikit-learn 1.9.1's `f1_score` and `matthews_corrcoef`.
    #[test]
    fn f1_and_correlation_follow_from_counts() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a}, not {b}");
        // Labels 0 0 0 1 1 1 1 1, predictions 0 0 1 1 1 1 0 0.
        let two = [2.0, 3.0, 4.0, 4.0, 3.0, 5.0];
        near(f1(&two), 2.0 / 3.0);
        near(matthews(&two), 0.258_198_889_747_161_1);
        // Labels 0 0 1 1 2 2, predictions 0 1 1 1 2 0.
        let three = [1.0, 2.0, 1.0, 2.0, 3.0, 1.0, 2.0, 2.0, 2.0];
        near(f1(&three), (0.5 + 0.8 + 2.0 / 3.0) / 3.0);
        near(matthews(&three), 0.522_232_967_867_093_5);
        // Always the same class.
        let one = [0.0, 4.0, 0.0, 9.0, 5.0, 4.0];
        near(matthews(&one), 0.0);
        near(f1(&one), 8.0 / 13.0);
        near(f1(&[5.0, 0.0, 5.0, 0.0, 5.0, 0.0]), 0.0);
    }

    #[test]
    fn every_metric_has_its_own_field() {
        check_metric_names(&["accuracy", "recall"]).unwrap();
        for (names, expected) in [
            (&["accuracy", "loss"][..], "metric `loss`: that name is reserved"),
            (&["step"], "metric `step`: that name is reserved"),
            (&["recall", "recall"], "metric `recall`: another metric has the same name"),
        ] {
            let error = check_metric_names(names).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
