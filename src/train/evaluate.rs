//! Evaluation: means of the loss and of the model's metrics over a split.

use std::sync::Arc;

use super::{BatchSender, DeviceBatch, Error, Run, Trainer};
use crate::data::{EvalBatches, Source};
use crate::observe::EvalResult;
use crate::pjrt::{Arg, Buffers};

impl Trainer {
    /// Checks that every metric of the model has a field of its own in the files of a run.
    ///
    /// # Errors
    /// A metric with a reserved name, or two with the same one.
    pub(super) fn check_metric_names(&self) -> Result<(), Error> {
        check_metric_names(&self.programs.eval_metrics)
    }

    /// Computes means over a split, with each example counted once.
    ///
    /// # Errors
    /// Examples that cannot be read, a launch that fails.
    pub fn evaluate(&self, source: &Arc<dyn Source>, run: &Run) -> Result<EvalResult, Error> {
        match self.evaluate_unless(source, run, || false)? {
            Some(result) => Ok(result),
            None => unreachable!("nothing ends it early"),
        }
    }

    /// As [`Self::evaluate`], or `None` if `is_ended` returns `true`. It is called before each batch.
    pub(super) fn evaluate_unless(
        &self,
        source: &Arc<dyn Source>,
        run: &Run,
        is_ended: impl Fn() -> bool,
    ) -> Result<Option<EvalResult>, Error> {
        let num_replicas = run.mesh.num_replicas();
        let size = run.batch.microbatch() * num_replicas;
        let batches = EvalBatches::new(source.clone(), size, num_replicas)?;
        let program = self.programs.eval.get()?;
        let sender = BatchSender::new(program);
        let mut sums = vec![0.0; 2 + self.programs.eval_metrics.len()];
        let mut add = |(more, _): (Buffers, DeviceBatch)| -> Result<(), Error> {
            for (sum, more) in sums.iter_mut().zip(more.to_host(0)?.wait()?.to_f64()) {
                *sum += more;
            }
            Ok(())
        };
        let leaves: Vec<_> = self.model_leaves().map(|(_, path)| &self.state[&path]).collect();
        // One batch ahead, so that the devices do not wait for the host.
        let mut before: Option<(Buffers, DeviceBatch)> = None;
        for batch in batches.iter() {
            if is_ended() {
                return Ok(None);
            }
            let batch = sender.send(batch?)?;
            let args = leaves.iter().map(|leaf| Arg::Borrow(leaf)).chain(batch.args());
            let mut outputs = program.execute(args.collect())?.outputs;
            let sums = outputs.pop().unwrap_or_else(|| unreachable!("the program has one output"));
            if let Some(before) = before.replace((sums, batch)) {
                add(before)?;
            }
        }
        before.map(add).transpose()?;
        let weight = sums[1];
        let metrics = self.programs.eval_metrics.iter().zip(&sums[2..]);
        let metrics = metrics.map(|(name, sum)| (*name, sum / weight)).collect();
        Ok(Some(EvalResult { loss: sums[0] / weight, metrics }))
    }
}

fn check_metric_names(names: &[&str]) -> Result<(), Error> {
    for (index, name) in names.iter().enumerate() {
        let reason = if EvalResult::RESERVED_NAMES.contains(name) {
            "that name is reserved"
        } else if names[..index].contains(name) {
            "another one has the same name"
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
    fn every_metric_has_a_field_of_its_own() {
        check_metric_names(&["accuracy", "recall"]).unwrap();
        for (names, expected) in [
            (&["accuracy", "loss"][..], "metric `loss`: that name is reserved"),
            (&["step"], "metric `step`: that name is reserved"),
            (&["recall", "recall"], "metric `recall`: another one has the same name"),
        ] {
            let error = check_metric_names(names).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
