//! How the numbers of steps are distributed.

use serde::Serialize;

use super::levels::PLACES;
use super::read::{StepColumn, StepTable};

/// The values of a column that are finite, in order; the first step's is left out of times, since
/// it warms up.
#[derive(Serialize)]
pub struct Percentiles {
    pub field: String,
    pub num: usize,
    pub mean: f64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
    /// The last step's, finite or not.
    pub last: f64,
}

/// Those of all columns with numbers.
pub fn of(steps: &StepTable) -> Vec<Percentiles> {
    let columns = steps.columns.iter().filter(|column| !PLACES.contains(&&*column.name));
    columns.filter_map(Percentiles::of).collect()
}

impl Percentiles {
    fn of(column: &StepColumn) -> Option<Self> {
        let values = match column.values.split_first() {
            Some((_, later)) if column.name.ends_with("_ms") && !later.is_empty() => later,
            _ => &column.values,
        };
        let mut sorted: Vec<_> = values.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let num = sorted.len();
        // The least value that at least this share of all do not exceed.
        let at = |share: f64| {
            let rank = (share * num as f64).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
        };
        (num > 0).then(|| Self {
            field: column.name.clone(),
            num,
            mean: sorted.iter().sum::<f64>() / num as f64,
            min: at(0.0),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: at(1.0),
            last: column.values.last().copied().unwrap_or(f64::NAN),
        })
    }

    /// `true` for a time in milliseconds.
    pub fn is_time(&self) -> bool {
        self.field.ends_with("_ms")
    }

    /// `true` for a whole number, by its name.
    pub fn is_count(&self) -> bool {
        self.field.starts_with("num_")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values = (0..=100).rev().map(f64::from).chain([f64::NAN]).collect();
        let found = Percentiles::of(&StepColumn::new("a", values)).unwrap();
        assert_eq!((found.num, found.min, found.p50, found.p90), (101, 0.0, 50.0, 90.0));
        assert_eq!((found.p99, found.max, found.mean), (99.0, 100.0, 50.0));
        assert!(found.last.is_nan());
        let times = StepColumn::new("step_ms", vec![900.0, 2.0, 1.0]);
        assert_eq!(Percentiles::of(&times).unwrap().max, 2.0);
    }
}
