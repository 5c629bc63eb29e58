//! Figures that follow from what an evaluation counts, and are no means over examples.

use crate::observe::{EvalCounts, EvalResult};
use crate::step::{EvalSums, TallyKind};

/// F1 of the second of two classes, or the mean of those of all classes if there are more; of
/// labels, the mean of those of all labels.
const F1: &str = "f1";
/// Matthews' correlation coefficient.
const MATTHEWS: &str = "matthews";
/// Root of the mean squared error, mean absolute error, and coefficient of determination; of
/// several values the mean of those of each.
const OF_VALUES: [&str; 3] = ["rmse", "mae", "r2"];

/// Names of the metrics of an evaluation.
pub fn metric_names(of: &EvalSums) -> Vec<&'static str> {
    let counted: &[_] = match of.tally {
        TallyKind::Classes(_) if of.reports_f1 => &[F1, MATTHEWS],
        TallyKind::Labels(_) => &[F1],
        TallyKind::Values(_) => &OF_VALUES,
        TallyKind::None | TallyKind::Classes(_) => &[],
    };
    [&of.metrics, counted].concat()
}

/// The result of an evaluation with these sums over all its examples.
pub fn result_of(of: &EvalSums, sums: &[f64]) -> EvalResult {
    let (loss, weight) = (sums[0], sums[1]);
    let (metrics, tally) = sums[2..].split_at(of.metrics.len());
    let mut values: Vec<_> = metrics.iter().map(|sum| sum / weight).collect();
    let mut counts = EvalCounts::None;
    match of.tally {
        TallyKind::None => {}
        TallyKind::Classes(num_classes) => {
            let confusion: Vec<_> = tally.chunks(num_classes).map(<[f64]>::to_vec).collect();
            if of.reports_f1 {
                let of_classes = of_confusion(&confusion);
                values.extend([f1(&of_classes), matthews(&of_classes)]);
            }
            counts = EvalCounts::Classes(confusion);
        }
        TallyKind::Labels(num_labels) => {
            let of_label = |label| [0, 1, 2].map(|kind: usize| tally[kind * num_labels + label]);
            let labels: Vec<_> = (0..num_labels).map(of_label).collect();
            values.push(mean(labels.iter().map(f1_of)));
            counts = EvalCounts::Labels(labels);
        }
        TallyKind::Values(num_values) => {
            let of_value = |value| [0, 1, 2, 3].map(|kind: usize| tally[kind * num_values + value]);
            let moments: Vec<_> = (0..num_values).map(of_value).collect();
            values.extend(of_moments(&moments, weight));
        }
    }
    let metrics = metric_names(of).into_iter().zip(values).collect();
    EvalResult { loss: loss / weight, metrics, counts }
}

/// How often each class is predicted correctly, is predicted, and is the label.
fn of_confusion(confusion: &[Vec<f64>]) -> Vec<[f64; 3]> {
    let of_class = |class: usize| {
        let predicted = confusion.iter().map(|row| row[class]).sum();
        [confusion[class][class], predicted, confusion[class].iter().sum()]
    };
    (0..confusion.len()).map(of_class).collect()
}

/// 2 correct / (predicted + there); 0 for a class that is neither predicted nor there.
fn f1_of([correct, predicted, labels]: &[f64; 3]) -> f64 {
    if predicted + labels == 0.0 { 0.0 } else { 2.0 * correct / (predicted + labels) }
}

/// F1 of class 1 if there are two, as GLUE and scikit-learn report it, otherwise the unweighted
/// mean over classes.
fn f1(classes: &[[f64; 3]]) -> f64 {
    match classes {
        [_, second] => f1_of(second),
        all => mean(all.iter().map(f1_of)),
    }
}

/// Matthews' correlation coefficient; 0 if only one class is predicted or labelled. Gorodkin,
/// "Comparing two K-category assignments by a K-category correlation coefficient" (2004).
fn matthews(classes: &[[f64; 3]]) -> f64 {
    let sum = |of: fn(&[f64; 3]) -> f64| classes.iter().map(of).sum::<f64>();
    let total = sum(|[_, _, labels]| *labels);
    let correct = sum(|[correct, _, _]| *correct);
    let covariance = correct * total - sum(|[_, predicted, labels]| predicted * labels);
    let of_predicted = total * total - sum(|[_, predicted, _]| predicted * predicted);
    let of_labels = total * total - sum(|[_, _, labels]| labels * labels);
    let norm = (of_predicted * of_labels).sqrt();
    if norm == 0.0 { 0.0 } else { covariance / norm }
}

/// [`OF_VALUES`] from sums of squared errors, absolute errors, values and squared values.
fn of_moments(moments: &[[f64; 4]], weight: f64) -> [f64; 3] {
    let rmse = mean(moments.iter().map(|[squared, ..]| (squared / weight).sqrt()));
    let mae = mean(moments.iter().map(|[_, absolute, ..]| absolute / weight));
    let r2 = mean(moments.iter().map(|[squared, _, sum, squares]| {
        let spread = squares - sum * sum / weight;
        match (*squared, spread > 0.0) {
            (squared, true) => 1.0 - squared / spread,
            // The values are all the same, as scikit-learn has it.
            (squared, false) => f64::from(squared == 0.0),
        }
    }));
    [rmse, mae, r2]
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-12, "{a}, not {b}");
    }

    /// Values of scikit-learn 1.9.1's `f1_score` and `matthews_corrcoef`.
    #[test]
    fn f1_and_correlation_follow_from_the_confusion_matrix() {
        let of = |confusion: &[&[f64]]| {
            of_confusion(&confusion.iter().map(|row| row.to_vec()).collect::<Vec<_>>())
        };
        // Labels 0 0 0 1 1 1 1 1, predictions 0 0 1 1 1 1 0 0.
        let two = of(&[&[2.0, 1.0], &[2.0, 3.0]]);
        near(f1(&two), 2.0 / 3.0);
        near(matthews(&two), 0.258_198_889_747_161_1);
        // Labels 0 0 1 1 2 2, predictions 0 1 1 1 2 0.
        let three = of(&[&[1.0, 1.0, 0.0], &[0.0, 2.0, 0.0], &[1.0, 0.0, 1.0]]);
        near(f1(&three), (0.5 + 0.8 + 2.0 / 3.0) / 3.0);
        near(matthews(&three), 0.522_232_967_867_093_5);
        // Always the same class.
        let one = of(&[&[0.0, 5.0], &[0.0, 4.0]]);
        near(matthews(&one), 0.0);
        near(f1(&one), 8.0 / 13.0);
        near(f1(&of(&[&[5.0, 0.0], &[0.0, 0.0]])), 0.0);
    }

    /// Values of scikit-learn 1.9.1's `root_mean_squared_error`, `mean_absolute_error`, `r2_score`.
    #[test]
    fn errors_follow_from_moments() {
        // y = 3, -0.5, 2, 7; predictions 2.5, 0, 2, 8.
        let first = [1.5, 2.0, 11.5, 62.25];
        let [rmse, mae, r2] = of_moments(&[first], 4.0);
        near(rmse, 0.612_372_435_695_794_5);
        near(mae, 0.5);
        near(r2, 0.948_608_137_044_967_9);
        let constant = of_moments(&[[4.0, 4.0, 8.0, 16.0]], 4.0);
        near(constant[2], 0.0);
        let [_, mae, _] = of_moments(&[first, [0.0, 4.0, 0.0, 4.0]], 4.0);
        near(mae, 0.75);
    }
}
