//! Evaluation: means of the loss and of the model's metrics over a split; `figures.rs` makes the
//! other figures of its counts.

mod figures;

use std::sync::Arc;

use super::{BatchSender, Callable, DeviceBatch, Error, Run, Trainer};
use crate::data::{EvalBatches, Source};
use crate::observe::EvalResult;
use crate::pjrt::{Arg, Buffers};
use crate::step::{EvalSums, SUMS};

pub(super) use figures::metric_names;
use figures::result_of;

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
        match self.evaluate_unless(source, run, |_, _| false)? {
            Some(result) => Ok(result),
            None => unreachable!("nothing ends it early"),
        }
    }

    /// Like [`Self::evaluate`], but calls `is_ended` before each batch, with its index and the
    /// number of batches, and returns `None` if that is `true`.
    pub(super) fn evaluate_unless(
        &self,
        source: &Arc<dyn Source>,
        run: &Run,
        is_ended: impl Fn(u64, u64) -> bool,
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
    is_ended: impl Fn(u64, u64) -> bool,
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
    for (index, batch) in (0..).zip(batches.iter()) {
        if is_ended(index, batches.num_batches()) {
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
