//! What the training rows teach about the columns, and how cells become what the model sees.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::collect::{Collected, Feature, TargetColumn};
use crate::config::{ColumnEncoding, LossConfig, MissingValues, TableConfig, shorten};
use crate::data::LabelScale;
use crate::data::row_labels::{BLOCK, Moments, RowLabels};

/// Most different whole numbers that are taken for classes if nothing says what they are.
const MAX_NUMBERED_CLASSES: usize = 20;

/// What `kept` rows teach about the features.
///
/// # Errors
/// Rows that cannot be read.
pub fn learn_features(
    collected: &Collected,
    kept: &[usize],
    config: &TableConfig,
) -> std::io::Result<Vec<ColumnEncoding>> {
    let num_features = collected.features.len();
    let of_block = |rows: &[usize]| {
        let mut values = vec![0.0; rows.len() * num_features];
        for (row, out) in rows.iter().zip(values.chunks_mut(num_features)) {
            collected.rows.read(*row, out)?;
        }
        let of_column = |column: usize| {
            let column = values.iter().skip(column).step_by(num_features).copied();
            Moments::of(column.filter(|value| !value.is_nan()))
        };
        Ok((0..num_features).map(of_column).collect::<Vec<_>>())
    };
    let blocks: Vec<std::io::Result<Vec<Moments>>> = kept.par_chunks(BLOCK).map(of_block).collect();
    let mut all = vec![Moments::default(); num_features];
    for block in blocks {
        for (all, block) in all.iter_mut().zip(block?) {
            *all = all.and(block);
        }
    }
    let mut used: Vec<Vec<bool>> = collected
        .features
        .iter()
        .map(|feature| vec![false; feature.names.as_ref().map_or(0, |names| names.texts.len())])
        .collect();
    if used.iter().any(|used| !used.is_empty()) {
        let mut row = vec![0.0; num_features];
        for index in kept {
            collected.rows.read(*index, &mut row)?;
            for (used, value) in used.iter_mut().zip(&row) {
                if !used.is_empty() && !value.is_nan() {
                    used[*value as usize] = true;
                }
            }
        }
    }
    let learned = collected.features.iter().zip(all).zip(used);
    Ok(learned
        .map(|((feature, moments), used)| {
            let name = feature.name.clone();
            match &feature.names {
                Some(names) => {
                    let names = names.texts.iter().zip(used).filter(|(_, used)| *used);
                    let mut names: Vec<_> = names.map(|(name, _)| name.clone()).collect();
                    names.sort();
                    ColumnEncoding { name, categories: Some(names), ..ColumnEncoding::default() }
                }
                None => {
                    let LabelScale { mean, deviation } = match config.standardize {
                        true => moments.scale(),
                        false => LabelScale { mean: 0.0, deviation: 1.0 },
                    };
                    ColumnEncoding {
                        name,
                        mean: Some(mean),
                        deviation: Some(deviation),
                        fill: (config.missing == MissingValues::Mean).then_some(moments.mean()),
                        categories: None,
                    }
                }
            }
        })
        .collect())
}

/// How the features of a file become numbers.
pub struct FeatureEncoder {
    columns: Vec<Encoded>,
    /// Number of features that the model sees.
    pub num_inputs: usize,
}

enum Encoded {
    /// `fill` stands where a cell is empty.
    Number { mean: f64, deviation: f64, fill: f64 },
    /// For each name of the file, its place among those that were learned.
    Names { places: Vec<Option<usize>>, count: usize },
}

impl FeatureEncoder {
    /// For the features of a file, as they were learned.
    pub fn new(features: &[Feature], learned: &[ColumnEncoding]) -> Self {
        let encoded = |(feature, learned): (&Feature, &ColumnEncoding)| match (
            &feature.names,
            &learned.categories,
        ) {
            (Some(names), Some(categories)) => {
                let place = |name: &String| categories.iter().position(|known| known == name);
                let places = names.texts.iter().map(place).collect();
                Encoded::Names { places, count: categories.len() }
            }
            _ => Encoded::Number {
                mean: learned.mean.unwrap_or(0.0),
                deviation: learned.deviation.unwrap_or(1.0),
                fill: learned.fill.or(learned.mean).unwrap_or(0.0),
            },
        };
        let columns: Vec<_> = features.iter().zip(learned).map(encoded).collect();
        let size = |column: &Encoded| match column {
            Encoded::Number { .. } => 1,
            Encoded::Names { count, .. } => *count,
        };
        let num_inputs = columns.iter().map(size).sum();
        Self { columns, num_inputs }
    }

    /// Writes what the model sees of a row.
    pub fn encode(&self, row: &[f64], out: &mut [f32]) {
        let mut next = 0;
        for (column, value) in self.columns.iter().zip(row) {
            match column {
                Encoded::Number { mean, deviation, fill } => {
                    let value = if value.is_nan() { fill } else { value };
                    out[next] = ((value - mean) / deviation) as f32;
                    next += 1;
                }
                Encoded::Names { places, count } => {
                    let out = &mut out[next..][..*count];
                    out.fill(0.0);
                    // `as` makes 0 of NaN.
                    let place = (!value.is_nan()).then(|| places.get(*value as usize)).flatten();
                    if let Some(Some(place)) = place {
                        out[*place] = 1.0;
                    }
                    next += count;
                }
            }
        }
    }

    /// Names of the file that were not learned, with their columns.
    pub fn unknown<'a>(
        &'a self,
        features: &'a [Feature],
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.columns.iter().zip(features).flat_map(|(column, feature)| {
            let places = match column {
                Encoded::Names { places, .. } => &places[..],
                Encoded::Number { .. } => &[],
            };
            let names = feature.names.iter().flat_map(|names| &names.texts);
            let unknown = names.zip(places).filter(|(_, place)| place.is_none());
            unknown.map(move |(name, _)| (feature.name.as_str(), name.as_str()))
        })
    }
}

/// What the targets of a file are: classes, labels or values, as the loss says, or as they look;
/// and their encoding, but for means and deviations.
///
/// # Errors
/// The line of a target that does not fit, and what is wrong with it.
pub fn kind_of(
    targets: &[TargetColumn],
    loss: LossConfig,
    labels: &[String],
) -> Result<Vec<ColumnEncoding>, (usize, String)> {
    let looks = match targets {
        [target] if target.first_text.is_some() => LossConfig::CrossEntropy,
        [_] if !labels.is_empty() => LossConfig::CrossEntropy,
        // One class is refused below, and is no value that could be learned either.
        [target] => match numbered_classes(target).len() {
            1..=MAX_NUMBERED_CLASSES => LossConfig::CrossEntropy,
            _ => LossConfig::Mse,
        },
        several => match several.iter().all(is_binary) {
            true => LossConfig::BinaryCrossEntropy,
            false => LossConfig::Mse,
        },
    };
    let loss = if loss == LossConfig::Auto { looks } else { loss };
    let named = |target: &TargetColumn| ColumnEncoding {
        name: target.name.clone(),
        ..ColumnEncoding::default()
    };
    match (loss, targets) {
        (LossConfig::CrossEntropy, [target]) => {
            let categories = match labels {
                [] => classes_of(target)?,
                labels => labels.to_vec(),
            };
            Ok(vec![ColumnEncoding { categories: Some(categories), ..named(target) }])
        }
        (LossConfig::CrossEntropy, _) => Err((
            1,
            "train.loss = \"cross_entropy\" takes one class; name one column in data.target"
                .to_owned(),
        )),
        (LossConfig::BinaryCrossEntropy, targets) => Ok(targets.iter().map(named).collect()),
        (_, targets) => {
            let value =
                |target| ColumnEncoding { mean: Some(0.0), deviation: Some(1.0), ..named(target) };
            Ok(targets.iter().map(value).collect())
        }
    }
}

/// The labels of the rows, for targets that are encoded so.
///
/// # Errors
/// As [`kind_of`].
pub fn encode_targets(
    targets: &[TargetColumn],
    encodings: &[ColumnEncoding],
) -> Result<RowLabels, (usize, String)> {
    let in_column = |target: &TargetColumn, row: usize, problem: String| {
        let line = target.lines.get(row).copied().unwrap_or_default() as usize;
        (line, format!("column {:?}: {problem}", shorten(&target.name)))
    };
    let num_rows = targets.first().map_or(0, |target| target.numbers.len());
    match encodings {
        [ColumnEncoding { categories: Some(names), .. }] => {
            let target = &targets[0];
            let Some(texts) = &target.names else {
                let problem = "it has too many different names for classes; set train.loss = \
                               \"mse\" if it is a value";
                return Err(in_column(target, 0, problem.to_owned()));
            };
            let by_number = |text: &str| {
                let number: f64 = text.parse().ok()?;
                names.iter().position(|name| name.parse() == Ok(number))
            };
            let place = |text: &String| {
                names.iter().position(|name| name == text).or_else(|| by_number(text))
            };
            let classes: Vec<_> = texts.texts.iter().map(place).collect();
            let class = |(row, code): (usize, &u32)| {
                classes[*code as usize].map(|class| class as i32).ok_or_else(|| {
                    let problem = format!(
                        "{:?} is none of the {} classes, {}; correct it, or set data.labels",
                        shorten(&texts.texts[*code as usize]),
                        names.len(),
                        shorten(&format!("{names:?}"))
                    );
                    in_column(target, row, problem)
                })
            };
            let classes = target.codes.iter().enumerate().map(class).collect::<Result<_, _>>()?;
            Ok(RowLabels::Classes(classes))
        }
        encodings => {
            let is_value = encodings.iter().all(|encoding| encoding.mean.is_some());
            for target in targets {
                let odd = |number: &f64| match is_value {
                    true => number.is_nan(),
                    false => *number != 0.0 && *number != 1.0,
                };
                if let Some(row) = target.numbers.iter().position(odd) {
                    let problem = match (is_value, &target.first_text) {
                        (true, Some((_, text))) => format!(
                            "{:?} is no number, but train.loss takes values; correct it, or set \
                             train.loss = \"cross_entropy\"",
                            shorten(text)
                        ),
                        _ => format!(
                            "each label of train.loss = \"binary_cross_entropy\" is 0 or 1, but \
                             this is {}",
                            target.numbers[row]
                        ),
                    };
                    return Err(in_column(target, row, problem));
                }
            }
            let rows =
                (0..num_rows).flat_map(|row| targets.iter().map(move |target| target.numbers[row]));
            Ok(match is_value {
                true => RowLabels::Values(rows.collect()),
                false => RowLabels::Labels(rows.map(|label| label as f32).collect()),
            })
        }
    }
}

/// The names of the classes that a target has: numbers in their order, or else texts in
/// alphabetical order.
fn classes_of(target: &TargetColumn) -> Result<Vec<String>, (usize, String)> {
    let problem = |text: String| {
        let line = target.lines.first().copied().unwrap_or_default() as usize;
        Err((line, format!("column {:?}: {text}", shorten(&target.name))))
    };
    let Some(names) = &target.names else {
        return problem(
            "it has too many different cells for classes; set train.loss = \"mse\" if it is a \
             value, or correct data.target"
                .to_owned(),
        );
    };
    let mut classes: Vec<_> = match &target.first_text {
        // Equal numbers are one class, however they are written.
        None => {
            let mut numbers: Vec<f64> = vec![];
            let all = names.texts.iter().filter_map(|text| text.parse::<f64>().ok());
            numbers.extend(all);
            numbers.sort_by(f64::total_cmp);
            numbers.dedup();
            numbers.iter().map(f64::to_string).collect()
        }
        Some(_) => names.texts.clone(),
    };
    if target.first_text.is_some() {
        classes.sort();
    }
    match classes.len() {
        0 | 1 => problem(format!(
            "all rows have the same target, {}; correct data.target, or name the classes in \
             data.labels",
            shorten(classes.first().map_or("none", String::as_str))
        )),
        count if count == target.numbers.len() && count > MAX_NUMBERED_CLASSES => problem(format!(
            "each of its {count} rows has another target, {}; correct data.target, or set \
                 train.loss = \"mse\" if it is a value",
            shorten(&classes[0])
        )),
        _ => Ok(classes),
    }
}

/// The different numbers of a target if all are whole; none if they are not.
fn numbered_classes(target: &TargetColumn) -> BTreeMap<i64, ()> {
    let Some(names) = &target.names else { return BTreeMap::new() };
    let whole = |text: &String| {
        let number: f64 = text.parse().ok()?;
        (number.fract() == 0.0 && number.abs() < 1e15).then_some((number as i64, ()))
    };
    names.texts.iter().map(whole).collect::<Option<_>>().unwrap_or_default()
}

fn is_binary(target: &TargetColumn) -> bool {
    target.numbers.iter().all(|number| *number == 0.0 || *number == 1.0)
}
