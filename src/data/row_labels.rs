//! The labels of rows that were read from a file: classes, values, or 0 and 1 for each of several
//! labels.

use hlo::DType;

use super::{Field, LabelKind, LabelScale};
use crate::config::ColumnEncoding;

/// Rows whose mean is computed at a time: fixed, so that sums do not depend on the threads.
pub(super) const BLOCK: usize = 4096;

/// Mean, and sum of squared differences from it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    /// Of values, in two passes.
    pub fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let count = values.clone().count() as f64;
        if count == 0.0 {
            return Self::default();
        }
        let mean = values.clone().sum::<f64>() / count;
        Self { count, mean, squares: values.map(|value| (value - mean).powi(2)).sum() }
    }

    /// Of both sets. Chan, Golub and LeVeque, "Algorithms for computing the sample variance"
    /// (1983).
    pub fn and(self, other: Self) -> Self {
        let count = self.count + other.count;
        if count == 0.0 {
            return self;
        }
        let difference = other.mean - self.mean;
        let squares = difference * difference * self.count * other.count / count;
        Self {
            count,
            mean: self.mean + difference * other.count / count,
            squares: self.squares + other.squares + squares,
        }
    }

    /// The mean.
    pub fn mean(self) -> f64 {
        self.mean
    }

    /// The mean and the standard deviation of the population; of a constant, 1.
    pub fn scale(self) -> LabelScale {
        let deviation = (self.squares / self.count.max(1.0)).sqrt();
        // What rounding leaves of a constant is no deviation.
        let is_constant = deviation <= 1e-12 * self.mean.abs() || deviation == 0.0;
        LabelScale { mean: self.mean, deviation: if is_constant { 1.0 } else { deviation } }
    }
}

/// The labels of the rows of a file.
pub(super) enum RowLabels {
    /// The class of each.
    Classes(Vec<i32>),
    /// 0 or 1 for each label of each row.
    Labels(Vec<f32>),
    /// The values of each row.
    Values(Vec<f64>),
}

/// What the training rows teach about labels.
pub(super) struct Targets {
    /// The names of the targets, and of the classes; means and deviations of values.
    pub columns: Vec<ColumnEncoding>,
    /// The names of the classes, or else of the targets.
    pub names: Vec<String>,
    /// What a label is.
    pub kind: LabelKind,
}

impl Targets {
    /// What the columns say.
    pub fn new(columns: Vec<ColumnEncoding>) -> Self {
        let (names, kind) = match &columns[..] {
            [ColumnEncoding { categories: Some(classes), .. }] => {
                (classes.clone(), LabelKind::Class)
            }
            targets => {
                let scale = |target: &ColumnEncoding| {
                    Some(LabelScale { mean: target.mean?, deviation: target.deviation? })
                };
                let scales: Option<_> = targets.iter().map(scale).collect();
                let kind = scales.map_or(LabelKind::Labels, LabelKind::Values);
                (targets.iter().map(|target| target.name.clone()).collect(), kind)
            }
        };
        Self { columns, names, kind }
    }

    /// Field `y`: i32 `[]` for a class, f32 `[k]` for values or labels.
    pub fn field(&self) -> Field {
        match self.kind {
            LabelKind::Class => Field { name: "y", dtype: DType::I32, dims: vec![] },
            LabelKind::Labels | LabelKind::Values(_) => {
                Field { name: "y", dtype: DType::F32, dims: vec![self.columns.len()] }
            }
        }
    }

    /// Labels of rows that have none: class 0, or 0.
    pub fn none(&self, num_rows: usize) -> RowLabels {
        match self.kind {
            LabelKind::Class => RowLabels::Classes(vec![0; num_rows]),
            LabelKind::Labels => RowLabels::Labels(vec![0.0; num_rows * self.columns.len()]),
            LabelKind::Values(_) => RowLabels::Values(vec![0.0; num_rows * self.columns.len()]),
        }
    }
}

impl RowLabels {
    /// The class of each row, by which rows are held out: 0 if they have none.
    pub fn classes(&self, num_rows: usize) -> Vec<i32> {
        match self {
            Self::Classes(classes) => classes.clone(),
            Self::Labels(_) | Self::Values(_) => vec![0; num_rows],
        }
    }

    /// Number of rows of each class.
    pub fn count(&self, rows: &[usize], num_classes: usize) -> Option<Vec<u64>> {
        let Self::Classes(classes) = self else { return None };
        let mut counts = vec![0; num_classes];
        rows.iter().for_each(|row| counts[classes[*row] as usize] += 1);
        Some(counts)
    }

    /// Sets means and deviations of values, from some rows.
    pub fn learn_scales(&self, columns: &mut [ColumnEncoding], rows: &[usize]) {
        let Self::Values(values) = self else { return };
        let num_values = columns.len();
        for (place, column) in columns.iter_mut().enumerate() {
            let of_block = |rows: &[usize]| {
                Moments::of(rows.iter().map(|row| values[row * num_values + place]))
            };
            let blocks = rows.chunks(BLOCK).map(of_block);
            let scale = blocks.fold(Moments::default(), Moments::and).scale();
            (column.mean, column.deviation) = (Some(scale.mean), Some(scale.deviation));
        }
    }

    /// Writes field `y` of a row.
    pub fn write(&self, row: usize, columns: &[ColumnEncoding], y: &mut [u8]) {
        let of_row = row * columns.len()..(row + 1) * columns.len();
        match self {
            Self::Classes(classes) => y.copy_from_slice(&classes[row].to_ne_bytes()),
            Self::Labels(labels) => y.copy_from_slice(bytemuck::cast_slice(&labels[of_row])),
            Self::Values(values) => {
                let out = y.as_chunks_mut::<4>().0;
                for ((value, column), out) in values[of_row].iter().zip(columns).zip(out) {
                    let mean = column.mean.unwrap_or(0.0);
                    let scaled = (value - mean) / column.deviation.unwrap_or(1.0);
                    *out = (scaled as f32).to_ne_bytes();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_blocks_are_those_of_all() {
        let values: Vec<f64> = (0..10_000).map(|index| 1e6 + f64::from(index % 7)).collect();
        let blocks = values.chunks(BLOCK).map(|block| Moments::of(block.iter().copied()));
        let all = blocks.fold(Moments::default(), Moments::and).scale();
        let mean = values.iter().sum::<f64>() / 1e4;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        assert!((all.mean - mean).abs() < 1e-12 * mean);
        assert!((all.deviation - (squares / 1e4).sqrt()).abs() < 1e-12);
        let constant = Moments::of([0.1, 0.1, 0.1].into_iter()).scale();
        assert_eq!(constant.deviation, 1.0);
    }
}
