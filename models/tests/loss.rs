//! Losses and metrics of classification, on scores that are hard to rank; what training changes
//! about labels; losses in chunks of rows against the whole.

use hlo::random::Key;
use hlo::{
    AxisSet, DType, Graph, Literal, Mesh, Tensor, TensorType, Tree, grad, interpret, lower, trace,
    verify,
};
use models::layers::Embedding;
use models::loss::{cross_entropy, smoothed_cross_entropy, tied_cross_entropy};
use models::mlp::{Mlp, MlpConfig};
use models::{Batch, Loss, Model, Precision, Scope, Training};

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

/// Sum, weight, metrics and gradients of [`tied_cross_entropy`] of `num_rows` rows of width 5.
fn tied(num_rows: usize, chunk_rows: Option<usize>, is_training: bool) -> Graph {
    let graph = trace(Mesh::SINGLE, |t| {
        let input = |name: &str, dims: &[usize]| t.input(name, TensorType::new(DType::F64, dims));
        let (x_nd, table_vd) = (input("x", &[num_rows, 5]), input("table", &[NUM_CLASSES, 5]));
        let weight_n = input("weight", &[num_rows]);
        let labels_n = t.input("labels", TensorType::new(DType::I32, &[num_rows]));
        let training = Training {
            key: Key::from_seed(t.constant(Literal::from_slice(&[2], &[0u32, 1]))),
            first_example: t.scalar(DType::U32, 0.0),
            num_examples: num_rows,
            batch_axes: AxisSet::EMPTY,
        };
        let precision = Precision::uniform(DType::F64);
        let scope = Scope::bind(t, precision, Tree::new(), is_training.then_some(training));
        let table = Embedding::of_tied(&scope, table_vd);
        let loss =
            tied_cross_entropy(&scope, x_nd, &table, labels_n, weight_n, NUM_CLASSES, chunk_rows);
        t.output("sum", loss.sum);
        t.output("weight", loss.weight);
        for (name, sum) in loss.metrics {
            t.output(name, sum);
        }
        // A cotangent that is not 1.
        for (name, gradient) in
            ["dx", "dtable"].into_iter().zip(grad(loss.sum * loss.sum * 0.3, &[x_nd, table_vd]))
        {
            t.output(name, gradient);
        }
    });
    let graph = graph.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(verify(&graph), Ok(()));
    graph
}

#[test]
fn chunks_of_rows_are_the_whole() {
    // 12 rows divide into chunks; of 11, the last chunk of several lacks some.
    for num_rows in [12, 11] {
        let values = |count: usize, step: f64| -> Vec<_> {
            (0..count).map(|i| (i as f64 * step).sin() * 2.0).collect()
        };
        let weights: Vec<_> = (0..num_rows).map(|i| [1.0, 0.0, 2.5][i % 3]).collect();
        let labels: Vec<_> = (0..num_rows).map(|i| (i * 5 % NUM_CLASSES) as i32).collect();
        let inputs = [
            Literal::from_slice(&[num_rows, 5], &values(num_rows * 5, 0.7)),
            Literal::from_slice(&[NUM_CLASSES, 5], &values(NUM_CLASSES * 5, 1.3)),
            Literal::from_slice(&[num_rows], &weights),
            Literal::from_slice(&[num_rows], &labels),
        ]
        .map(|input| vec![input]);
        let run = |graph: &Graph| -> Vec<Vec<f64>> {
            let outputs = interpret(graph, &inputs).unwrap();
            outputs.iter().map(|output| output[0].to_f64()).collect()
        };
        let expected = run(&tied(num_rows, None, false));
        let [sum, weight, accuracy, among_five, ..] = &expected[..] else { unreachable!() };
        assert!(sum[0] > 1.0 && 0.0 < accuracy[0] && accuracy[0] < among_five[0], "{expected:?}");
        assert_eq!(weight[0], weights.iter().sum::<f64>());
        assert_eq!(expected.len(), 6);
        for is_training in [false, true] {
            for chunk_rows in [None, Some(100), Some(num_rows), Some(6), Some(4), Some(3), Some(1)]
            {
                let graph = tied(num_rows, chunk_rows, is_training);
                let what = format!("{chunk_rows:?} of {num_rows}, training {is_training}");
                let text = lower(&graph, "loss").text;
                let has_chunks = chunk_rows.is_some_and(|most| most < num_rows);
                assert_eq!(text.contains("stablehlo.while"), has_chunks, "{what}");
                let whole = format!("tensor<{num_rows}x{NUM_CLASSES}xf64>");
                assert_eq!(text.contains(&whole), !has_chunks, "{what}: logits of all rows");
                for (found, expected) in run(&graph).iter().zip(&expected) {
                    assert_eq!(found.len(), expected.len(), "{what}");
                    for (found, expected) in found.iter().zip(expected) {
                        let error = (found - expected).abs() / expected.abs().max(1.0);
                        assert!(error < 1e-12, "{what}: {found}, {expected}");
                    }
                }
            }
        }
    }
}

#[test]
fn only_logits_of_more_than_four_gibibytes_are_in_chunks_unasked() {
    let types_of_logits = |num_rows: usize, chunk_rows: Option<usize>| {
        let graph = trace(Mesh::SINGLE, |t| {
            let input = |dims: &[usize]| t.input("x", TensorType::new(DType::Bf16, dims));
            let (x_nd, table_vd) = (input(&[num_rows, 8]), input(&[128_256, 8]));
            let scope = Scope::bind(t, Precision::uniform(DType::Bf16), Tree::new(), None);
            let table = Embedding::of_tied(&scope, table_vd);
            let labels_n = t.full(DType::I32, &[num_rows], 0.0);
            let weight_n = t.full(DType::F32, &[num_rows], 1.0);
            let loss =
                tied_cross_entropy(&scope, x_nd, &table, labels_n, weight_n, 128_256, chunk_rows);
            t.output("loss", loss.sum);
        });
        let text = lower(&graph.unwrap(), "loss").text;
        let rows = [num_rows, 4096, 4000].into_iter();
        rows.filter(|rows| text.contains(&format!("<{rows}x128256xbf16>"))).collect::<Vec<_>>()
    };
    assert_eq!(types_of_logits(16_000, None), [16_000]);
    // 3.91 GiB, then 4.89.
    assert_eq!(types_of_logits(16_384, None), [16_384]);
    assert_eq!(types_of_logits(20_480, None), [4096]);
    assert_eq!(types_of_logits(20_000, None), [4000]);
    assert_eq!(types_of_logits(20_000, Some(20_000)), [20_000]);
}
