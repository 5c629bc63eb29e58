//! Losses and metrics of classification, on scores that are hard to rank, and what training changes
//! about labels.

use hlo::{AxisSet, DType, Literal, Mesh, Tensor, TensorType, Tree, interpret, trace};
use models::loss::{cross_entropy, smoothed_cross_entropy};
use models::mlp::{Mlp, MlpConfig};
use models::{Batch, Loss, Model, Precision, Scope};

const NUM_CLASSES: usize = 7;

/// Evaluates `f` of the scores of one example with label 2.
fn of_scores(
    scores: [f64; NUM_CLASSES],
    f: impl for<'g> Fn(Tensor<'g>, Tensor<'g>, Tensor<'g>) -> Loss<'g>,
) -> Tree<f64> {
    let mut names = vec!["loss"];
    let graph = trace(Mesh::SINGLE, |t| {
        let scores = t.constant(Literal::from_slice(&[1, NUM_CLASSES], &scores));
        let labels = t.constant(Literal::from_slice(&[1], &[2i32]));
        let loss = f(scores, labels, t.full(DType::F64, &[1], 1.0));
        t.output("loss", loss.sum);
        for (name, sum) in loss.metrics {
            names.push(name);
            t.output(name, sum);
        }
    });
    let outputs = interpret(&graph.unwrap(), &[]).unwrap();
    let value = |output: &Vec<Literal>| output[0].to_f64()[0];
    names.into_iter().map(str::to_owned).zip(outputs.iter().map(value)).collect()
}

#[test]
fn accuracies_count_ties_against_the_label() {
    let cases = [
        ([0.0, 1.0, 9.0, 3.0, 4.0, 5.0, 6.0], (1.0, 1.0)),
        // As high as another.
        ([0.0, 1.0, 6.0, 3.0, 4.0, 5.0, 6.0], (0.0, 1.0)),
        // The fifth, and the sixth.
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], (0.0, 1.0)),
        ([0.0, 7.0, 2.0, 3.0, 4.0, 5.0, 6.0], (0.0, 0.0)),
        // As high as the sixth.
        ([0.0, 2.0, 2.0, 3.0, 4.0, 5.0, 6.0], (0.0, 0.0)),
        // No number is no answer.
        ([0.0, 1.0, f64::NAN, 3.0, 4.0, 5.0, 6.0], (0.0, 0.0)),
    ];
    for (scores, expected) in cases {
        let metrics = of_scores(scores, cross_entropy);
        assert_eq!((metrics["accuracy"], metrics["top5_accuracy"]), expected, "{scores:?}");
    }
}

#[test]
fn smoothing_changes_the_loss_and_no_metric() {
    let scores = [0.5, -1.0, 2.0, 0.0, 0.25, -0.5, 1.0];
    let total: f64 = scores.iter().map(|score: &f64| score.exp()).sum();
    let log = |class: usize| scores[class] - total.ln();
    for smoothing in [0.0, 0.1, 0.9] {
        let found = of_scores(scores, |x, y, w| smoothed_cross_entropy(x, y, w, smoothing));
        let mean = (0..NUM_CLASSES).map(log).sum::<f64>() / NUM_CLASSES as f64;
        let expected = -((1.0 - smoothing) * log(2) + smoothing * mean);
        assert!((found["loss"] - expected).abs() < 1e-12, "{smoothing}: {}", found["loss"]);
        assert_eq!((found["accuracy"], found["top5_accuracy"]), (1.0, 1.0));
    }
}

#[test]
fn evaluation_takes_labels_as_they_are() {
    let loss = |label_smoothing: f64| {
        let config = MlpConfig { hidden: vec![], label_smoothing, ..MlpConfig::default() };
        let model = Mlp { config, objective: 3.into() };
        let graph = trace(Mesh::SINGLE, |t| {
            let scope = Scope::declare(t, Precision::uniform(DType::F64), AxisSet::EMPTY);
            let x = t.constant(Literal::from_slice(&[1, 2], &[1.0, -2.0]));
            let y = t.constant(Literal::from_slice(&[1], &[1i32]));
            let fields = [("x".to_owned(), x), ("y".to_owned(), y)].into_iter().collect();
            let weight = t.full(DType::F64, &[1], 1.0);
            t.output("loss", model.loss(&scope, &Batch { fields, weight }).sum);
        });
        let graph = graph.unwrap();
        let inputs = graph.inputs().iter().map(|input| {
            let TensorType { dtype, dims, .. } = graph.ty(input.value);
            let count = dims.iter().product();
            let values: Vec<_> = (0..count).map(|index| index as f64 * 0.3 - 0.5).collect();
            vec![Literal::from_f64(*dtype, dims, &values)]
        });
        interpret(&graph, &inputs.collect::<Vec<_>>()).unwrap()[0][0].to_f64()[0]
    };
    assert_eq!(loss(0.0), loss(0.3));
}
