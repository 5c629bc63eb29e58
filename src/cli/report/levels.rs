//! Curves of any length in a page of bounded size: each at a few levels, in which a point has the
//! least and the largest value of some steps in a row, so that no outlier is lost.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::{Serialize, Serializer};

use super::read::{RunFiles, StepColumn, StepTable};

/// About as many numbers as a page may have. With 18 letters each they take 4 MB.
const MAX_NUMBERS: usize = 220_000;
/// Points of the coarsest level: more than a chart has columns of pixels, on most screens.
const COARSE_POINTS: usize = 1024;
/// Points of the finest level, where not every step is one.
const FINE_POINTS: usize = 8192;
/// Numbers of a point: least, largest, mean.
const NUMBERS_OF_A_POINT: usize = 3;
/// Columns that say where a step stands. They are no curves.
pub const PLACES: [&str; 3] = ["time", "examples", "epoch"];

/// The curves of a run.
#[derive(Serialize)]
pub struct Curves {
    /// The steps, coarsest level first.
    pub steps: Vec<CurveLevel>,
    /// The evaluations, likewise.
    pub evals: Vec<CurveLevel>,
}

/// All curves of a run at one level.
#[derive(Serialize)]
pub struct CurveLevel {
    /// How many steps, or evaluations, a point stands for. With 1 all values are exact.
    pub rows_per_point: usize,
    /// Index of the last step of each point.
    pub step: Vec<u64>,
    /// Examples seen at its end.
    pub examples: Vec<f64>,
    /// Seconds from the end of the first step to its end, breaks included.
    pub time: Vec<f64>,
    /// The values by field.
    #[serde(serialize_with = "as_map")]
    pub series: IndexMap<String, CurveValues>,
}

/// CurveValues of the points of a level; `null` in JSON if not finite.
#[derive(Serialize)]
#[serde(untagged)]
pub enum CurveValues {
    /// A point is a step.
    Exact(Vec<f64>),
    /// A point is several steps. Least and largest are exact.
    Ranges { min: Vec<f64>, max: Vec<f64>, mean: Vec<f64> },
}

fn as_map<S: Serializer>(
    series: &IndexMap<String, CurveValues>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(series)
}

/// Rows of numbers, and where they stand.
struct Rows<'a> {
    step: Vec<u64>,
    examples: Vec<f64>,
    time: Vec<f64>,
    columns: Vec<(&'a str, Vec<f64>)>,
}

impl Curves {
    /// The curves of one of `num_runs` runs.
    pub fn of(run: &RunFiles, num_runs: usize) -> Self {
        let steps = Rows::of_steps(&run.steps);
        let evals = Rows::of_evals(&run.steps, &steps);
        let budget = MAX_NUMBERS / num_runs.max(1);
        Self { steps: steps.levels(budget * 3 / 4), evals: evals.levels(budget / 4) }
    }
}

impl<'a> Rows<'a> {
    fn of_steps(steps: &'a StepTable) -> Self {
        let nothing = || vec![f64::NAN; steps.step.len()];
        let place = |name| steps.column(name).map_or_else(nothing, <[f64]>::to_vec);
        let mut time = place("time");
        let start = time.iter().copied().find(|time| time.is_finite()).unwrap_or(0.0);
        time.iter_mut().for_each(|time| *time = ((*time - start) * 1e3).round() / 1e3);
        let curves = steps.columns.iter().filter(|column| !PLACES.contains(&&*column.name));
        let curve = |column: &'a StepColumn| (&*column.name, column.values.clone());
        let columns = curves.map(curve).collect();
        Self { step: steps.step.clone(), examples: place("examples"), time, columns }
    }

    fn of_evals(steps: &'a StepTable, rows: &Self) -> Self {
        let mut columns: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (number, (_, values)) in steps.evals.iter().enumerate() {
            for (name, value) in values {
                let column = columns.entry(name).or_default();
                column.resize(number, f64::NAN);
                column.push(*value);
            }
        }
        let num = steps.evals.len();
        columns.values_mut().for_each(|column| column.resize(num, f64::NAN));
        let at = |of: &[f64]| -> Vec<f64> {
            steps.evals.iter().filter_map(|(index, _)| of.get(*index).copied()).collect()
        };
        let (examples, time) = (at(&rows.examples), at(&rows.time));
        let step = steps.evals.iter().filter_map(|(index, _)| rows.step.get(*index).copied());
        Self { step: step.collect(), examples, time, columns: columns.into_iter().collect() }
    }

    /// Levels with at most about `budget` numbers.
    fn levels(&self, budget: usize) -> Vec<CurveLevel> {
        let (num_rows, num_columns) = (self.step.len(), self.columns.len() + PLACES.len());
        if num_rows * num_columns <= budget {
            return vec![self.level(1)];
        }
        let most = budget / (num_columns * NUMBERS_OF_A_POINT);
        let fine = most.saturating_sub(COARSE_POINTS).clamp(COARSE_POINTS / 2, FINE_POINTS);
        let rows_per_point = |num_points: usize| num_rows.div_ceil(num_points).max(2);
        let mut sizes = vec![rows_per_point(COARSE_POINTS.min(fine)), rows_per_point(fine)];
        sizes.dedup();
        sizes.into_iter().map(|size| self.level(size)).collect()
    }

    fn level(&self, rows_per_point: usize) -> CurveLevel {
        let last = |of: &[f64]| -> Vec<f64> {
            of.chunks(rows_per_point).filter_map(|part| part.last().copied()).collect()
        };
        let step = self.step.chunks(rows_per_point).filter_map(|part| part.last().copied());
        let series = self.columns.iter().map(|(name, values)| {
            let values = match rows_per_point {
                1 => CurveValues::Exact(values.clone()),
                _ => ranges(values, rows_per_point),
            };
            ((*name).to_owned(), values)
        });
        CurveLevel {
            rows_per_point,
            step: step.collect(),
            examples: last(&self.examples),
            time: last(&self.time),
            series: series.collect(),
        }
    }
}

fn ranges(values: &[f64], rows_per_point: usize) -> CurveValues {
    let (mut min, mut max, mut mean) = (vec![], vec![], vec![]);
    for part in values.chunks(rows_per_point) {
        let (mut low, mut high) = (f64::NAN, f64::NAN);
        let (mut sum, mut num) = (0.0, 0.0);
        for value in part {
            if value.is_finite() {
                (low, high) = (low.min(*value), high.max(*value));
                (sum, num) = (sum + value, num + 1.0);
            }
        }
        min.push(low);
        max.push(high);
        mean.push(six_digits(sum / num));
    }
    CurveValues::Ranges { min, max, mean }
}

/// Rounded to six digits: a mean is no recorded number.
fn six_digits(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let unit = 10f64.powi(5 - value.abs().log10().floor() as i32);
    let rounded = (value * unit).round() / unit;
    if rounded.is_finite() { rounded } else { value }
}

impl CurveValues {
    /// The least and the largest value of each point.
    pub fn low_and_high(&self) -> (&[f64], &[f64]) {
        match self {
            Self::Exact(values) => (values, values),
            Self::Ranges { min, max, .. } => (min, max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(num: usize) -> Rows<'static> {
        let values = (0..num).map(|row| if row == num / 2 { 1e3 } else { row as f64 / num as f64 });
        let place: Vec<_> = (0..num).map(|row| row as f64).collect();
        let columns = vec![("a", values.collect()), ("b", vec![f64::NAN; num])];
        Rows { step: (0..num as u64).collect(), examples: place.clone(), time: place, columns }
    }

    #[test]
    fn short_runs_are_exact_and_no_outlier_of_a_long_one_is_lost() {
        let [level] = &rows(100).levels(1000)[..] else { panic!("one level") };
        assert_eq!(level.rows_per_point, 1);
        let levels = rows(1_000_000).levels(100_000);
        assert_eq!(levels.len(), 2);
        for level in &levels {
            assert_eq!(level.step.last(), Some(&999_999));
            assert!(level.step.len() <= FINE_POINTS, "{}", level.step.len());
            let (low, high) = level.series["a"].low_and_high();
            assert_eq!(high.iter().copied().fold(0.0, f64::max), 1e3);
            assert_eq!(low[0], 0.0);
            assert!(level.series["b"].low_and_high().0.iter().all(|value| value.is_nan()));
        }
        assert!(rows(0).levels(0)[0].step.is_empty());
    }

    #[test]
    fn means_have_six_digits() {
        assert_eq!(
            [1.23456789, -0.000123456789, 0.0].map(six_digits),
            [1.23457, -0.000123457, 0.0]
        );
    }
}
