//! The events of a run as a person sees them on stderr.

use super::{ProgressDisplay, RunEvent, Sink, StepEval, say};

/// Shows progress and messages on stderr.
#[derive(Default)]
pub struct Terminal {
    /// From the start of the run on.
    progress: Option<ProgressDisplay>,
}

impl Terminal {
    /// In the block alone.
    fn show(&mut self, event: &RunEvent) {
        if let Some(progress) = &mut self.progress {
            progress.event(event);
        }
    }

    fn say(&mut self, text: &str) {
        match &mut self.progress {
            Some(progress) => progress.message(text),
            None => say(text),
        }
    }
}

impl Sink for Terminal {
    fn event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Started(info) => {
                self.progress = Some(ProgressDisplay::new(
                    info.progress.num_steps,
                    info.planned_steps,
                    info.global_batch,
                ));
            }
            RunEvent::Launch(launch) => {
                if let Some(progress) = &mut self.progress {
                    progress.launch(launch);
                }
            }
            RunEvent::UpdateSkipped { step, reason, num_skipped } => self.say(&format!(
                "step {step}: {reason}; its update was skipped ({num_skipped} so far)"
            )),
            RunEvent::Evaluated { eval, .. } => self.say(&describe_eval(eval)),
            RunEvent::ProcessSlow(slow) => {
                self.show(event);
                self.say(&format!("warning: {}", slow.text));
            }
            RunEvent::Message(text) => self.say(text),
            RunEvent::StepsEnded => {
                if let Some(progress) = &mut self.progress {
                    progress.finish();
                }
            }
            RunEvent::LockstepProved { .. } | RunEvent::CheckpointSaved(_) => self.show(event),
            RunEvent::Ended(_) => {}
        }
    }
}

/// The loss, then the accuracy, then the model's other metrics.
fn describe_eval(eval: &StepEval) -> String {
    let StepEval { step, eval } = eval;
    let steps = if *step == 0 { "1 step".to_owned() } else { format!("{} steps", step + 1) };
    let mut text = format!("evaluation after {steps}: loss {:.4}", eval.loss);
    let (accuracy, others): (Vec<_>, Vec<_>) =
        eval.metrics.iter().partition(|(name, _)| **name == "accuracy");
    for (name, value) in accuracy.into_iter().chain(others) {
        text += &format!(", {name} {value:.4}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::EvalResult;

    #[test]
    fn the_accuracy_comes_before_other_metrics() {
        let line = |metrics: &[(&'static str, f64)]| {
            let eval = EvalResult {
                loss: 0.5,
                metrics: metrics.iter().copied().collect(),
                ..EvalResult::default()
            };
            describe_eval(&StepEval { step: 99, eval })
        };
        assert_eq!(line(&[]), "evaluation after 100 steps: loss 0.5000");
        let expected =
            "evaluation after 100 steps: loss 0.5000, accuracy 0.7500, a 1.0000, b 2.0000";
        assert_eq!(line(&[("b", 2.0), ("accuracy", 0.75), ("a", 1.0)]), expected);
    }
}
