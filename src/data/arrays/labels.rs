//! What the labels of arrays are: classes, values, or 0 and 1 for each of several labels.

use std::io;

use super::stored::StoredArray;
use crate::config::{ColumnEncoding, LossConfig};
use crate::data::row_labels::RowLabels;

/// Most classes that labels without names may have.
const MAX_CLASSES: f64 = 100_000.0;

/// Labels of all examples, as numbers, row by row.
pub struct LabelValues {
    /// What they are called in messages.
    place: String,
    is_whole: bool,
    values: Vec<f64>,
    /// Labels of an example.
    width: usize,
}

impl LabelValues {
    /// Reads an array `[n]` or `[n, k]`.
    ///
    /// # Errors
    /// A file that cannot be read; or other dims, or a label that is not finite.
    pub fn read(array: &StoredArray) -> io::Result<Result<Self, String>> {
        let StoredArray { place, element, dims, .. } = array;
        let width = match dims[..] {
            [] => 1,
            [width] => width,
            _ => {
                return Ok(Err(format!(
                    "{place}: an example has labels of shape {dims:?}, but must have one, or a row \
                     of them; save labels [n] or [n, k]"
                )));
            }
        };
        let mut values = Vec::with_capacity(array.num_examples * width);
        array.scan(|_, bytes| {
            element.decode(bytes, |value| values.push(value));
            Ok::<_, io::Error>(())
        })?;
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Ok(Err(format!(
                "{place}: the label of example {} is {}, which is not finite; correct it or remove \
                 the example",
                at / width,
                values[at]
            )));
        }
        Ok(Ok(Self { place: place.clone(), is_whole: element.is_whole(), values, width }))
    }

    /// What the labels are, as `train.loss` says, or as they look; and their encoding, except for
    /// means and deviations. `names` are those of the classes.
    ///
    /// # Errors
    /// Labels that do not fit.
    pub fn kind(
        &self,
        loss: LossConfig,
        names: &[String],
        array: &str,
    ) -> Result<Vec<ColumnEncoding>, String> {
        let is_binary = || self.values.iter().all(|value| *value == 0.0 || *value == 1.0);
        let loss = match (loss, self.width) {
            (LossConfig::Auto, 1) if self.is_whole || !names.is_empty() => LossConfig::CrossEntropy,
            (LossConfig::Auto, 1) => LossConfig::Mse,
            (LossConfig::Auto, _) if is_binary() => LossConfig::BinaryCrossEntropy,
            (LossConfig::Auto, _) => LossConfig::Mse,
            (given, _) => given,
        };
        let name = |column: usize| match self.width {
            1 => array.to_owned(),
            _ => format!("{array}[{column}]"),
        };
        match (loss, self.width) {
            (LossConfig::CrossEntropy, 1) => {
                let categories = match names {
                    [] => (0..self.num_classes()?).map(|class| class.to_string()).collect(),
                    names => names.to_vec(),
                };
                Ok(vec![ColumnEncoding {
                    name: name(0),
                    categories: Some(categories),
                    ..ColumnEncoding::default()
                }])
            }
            (LossConfig::CrossEntropy, width) => Err(format!(
                "{}: an example has {width} labels, but train.loss = \"cross_entropy\" takes one \
                 class; save y.argmax(axis=1)",
                self.place
            )),
            (LossConfig::BinaryCrossEntropy, width) => {
                let label = |column| ColumnEncoding { name: name(column), ..Default::default() };
                Ok((0..width).map(label).collect())
            }
            (_, width) => {
                let value = |column| ColumnEncoding {
                    name: name(column),
                    mean: Some(0.0),
                    deviation: Some(1.0),
                    ..ColumnEncoding::default()
                };
                Ok((0..width).map(value).collect())
            }
        }
    }

    fn num_classes(&self) -> Result<usize, String> {
        if let Some(at) = self.values.iter().position(|value| *value < 0.0) {
            return Err(format!(
                "{}: the label of example {at} is {}, but classes are numbered from 0; save \
                 numpy.unique(y, return_inverse=True)[1], or set train.loss = \"mse\" if labels are \
                 values",
                self.place, self.values[at]
            ));
        }
        let most = self.values.iter().copied().fold(0.0, f64::max);
        match most {
            0.0 => Err(format!(
                "{}: no label is above 0, so that all examples have the same class; save other \
                 labels, or name the classes in data.labels",
                self.place
            )),
            most if most >= MAX_CLASSES => Err(format!(
                "{}: a label is {most}, which is too many classes; number them from 0, or set \
                 train.loss = \"mse\" if labels are values",
                self.place
            )),
            most => Ok(most as usize + 1),
        }
    }

    /// The labels in their encoding.
    ///
    /// # Errors
    /// A label that does not fit.
    pub fn encode(self, columns: &[ColumnEncoding]) -> Result<RowLabels, String> {
        let Self { place, values, width, .. } = self;
        if columns.len() != width {
            return Err(format!(
                "{place}: an example has {width} labels, but those for training have {}",
                columns.len()
            ));
        }
        let odd = |at: usize, allowed: &str| {
            Err(format!(
                "{place}: the label of example {} is {}, but must be {allowed}",
                at / width,
                values[at]
            ))
        };
        match columns {
            [ColumnEncoding { categories: Some(classes), .. }] => {
                let most = classes.len() as f64;
                let is_odd = |value: &f64| value.fract() != 0.0 || *value < 0.0 || *value >= most;
                match values.iter().position(is_odd) {
                    Some(at) => odd(
                        at,
                        &format!(
                            "a class, a whole number from 0 to {}; correct it, name all classes in \
                             data.labels, or set train.loss = \"mse\" if labels are values",
                            classes.len() - 1
                        ),
                    ),
                    None => {
                        let classes = values.into_iter().map(|value| value as i32);
                        Ok(RowLabels::Classes(classes.collect()))
                    }
                }
            }
            [ColumnEncoding { mean: Some(_), .. }, ..] => Ok(RowLabels::Values(values)),
            _ => match values.iter().position(|value| *value != 0.0 && *value != 1.0) {
                Some(at) => odd(at, "0 or 1 with train.loss = \"binary_cross_entropy\""),
                None => {
                    Ok(RowLabels::Labels(values.into_iter().map(|value| value as f32).collect()))
                }
            },
        }
    }
}
