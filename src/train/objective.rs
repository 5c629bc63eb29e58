//! What a model is trained on: the loss that the configuration names, for the labels that the data
//! have.

use models::{LossFunction, Model, Objective, ValueScale};

use super::Error;
use crate::config::{ClassWeights, Config, LossConfig};
use crate::data::{LabelKind, LabelScale, Source};

/// The model of a configuration, with a last layer for the labels of a source.
///
/// # Errors
/// A loss or weights of classes that do not fit the labels.
pub fn build_model(config: &Config, source: &dyn Source) -> Result<Box<dyn Model>, Error> {
    Ok(config.model.build(objective(config, source)?))
}

fn objective(config: &Config, source: &dyn Source) -> Result<Objective, Error> {
    let num_outputs = source.num_outputs();
    let kind = source.label_kind();
    let loss = loss_function(config, &kind).ok_or_else(|| {
        let (labels, allowed) = match kind {
            LabelKind::Class => (
                "the label of an example is a class",
                "\"cross_entropy\"; only the targets of data.source = \"table\" and \"arrays\" \
                 can be values",
            ),
            LabelKind::Labels => (
                "an example has any number of labels",
                "\"binary_cross_entropy\", or name one target",
            ),
            LabelKind::Values(_) => {
                ("the label of an example is a number", "\"mse\", \"mae\" or \"huber\"")
            }
        };
        Error::Loss { loss: config.train.loss.name(), labels, allowed }
    })?;
    let scales = match kind {
        LabelKind::Values(scales) => {
            let scale = |LabelScale { mean, deviation }| ValueScale { mean, deviation };
            scales.into_iter().map(scale).collect()
        }
        LabelKind::Class | LabelKind::Labels => vec![],
    };
    Ok(Objective { num_outputs, loss, class_weights: class_weights(config, loss, source)?, scales })
}

/// `None` if the loss does not fit.
fn loss_function(config: &Config, kind: &LabelKind) -> Option<LossFunction> {
    use LossConfig::{Auto, BinaryCrossEntropy, CrossEntropy, Huber, Mae, Mse};
    match (config.train.loss, kind) {
        (Auto | CrossEntropy, LabelKind::Class) => Some(LossFunction::CrossEntropy),
        (Auto | BinaryCrossEntropy, LabelKind::Labels) => Some(LossFunction::BinaryCrossEntropy),
        (Auto | Mse, LabelKind::Values(_)) => Some(LossFunction::SquaredError),
        (Mae, LabelKind::Values(_)) => Some(LossFunction::AbsoluteError),
        (Huber, LabelKind::Values(_)) => {
            Some(LossFunction::Huber { delta: config.train.huber_delta })
        }
        _ => None,
    }
}

fn class_weights(
    config: &Config,
    loss: LossFunction,
    source: &dyn Source,
) -> Result<Vec<f64>, Error> {
    let num_classes = source.num_outputs();
    let refused = |reason: String| Err(Error::ClassWeights { reason });
    let is_of_example =
        source.fields().iter().any(|field| field.name == "y" && field.dims.is_empty());
    match &config.train.class_weights {
        ClassWeights::Given(weights) if weights.is_empty() => Ok(vec![]),
        _ if loss != LossFunction::CrossEntropy || !is_of_example => {
            refused("the examples have no class each; remove it".to_owned())
        }
        ClassWeights::Given(weights) if weights.len() == num_classes => Ok(weights.clone()),
        ClassWeights::Given(weights) => refused(format!(
            "found {} weights, but the data have {num_classes} classes; give one for each, in \
             their order",
            weights.len()
        )),
        ClassWeights::Balanced => match source.class_counts() {
            None => {
                refused("this source does not count its classes; give a list of weights".to_owned())
            }
            Some(counts) => match counts.iter().position(|count| *count == 0) {
                Some(class) => refused(format!(
                    "class {class} has no training example, so that no weight makes it count as \
                     much as others; give a list of weights"
                )),
                None => {
                    let total = counts.iter().sum::<u64>() as f64 / num_classes as f64;
                    Ok(counts.iter().map(|count| total / *count as f64).collect())
                }
            },
        },
    }
}
