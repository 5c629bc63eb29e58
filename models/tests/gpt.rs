//! GPT by tracing and in the interpreter: sizes, start, and that how blocks are run changes
//! nothing.

use std::ops::Range;

use hlo::random::{GlobalSlice, Key, threefry2x32};
use hlo::{
    AxisSet, DType, Graph, LeafSpec, Literal, Mesh, Tensor, TensorType, Tracer, Tree, count, grad,
    interpret, join_rows, lower, passes, row_specs, rows, split_rows, trace, verify,
};
use models::gpt::{Gpt, GptConfig, GptPreset};
use models::layers::{Attention, Rotary, attention};
use models::{Batch, Initializer, Model, Parameter, Precision, Scope};

fn f64s() -> Precision {
    Precision::uniform(DType::F64)
}

fn batch<'g>(t: &'g Tracer, size: usize, num_positions: usize, dtype: DType) -> Batch<'g> {
    let ids = |name: &str| t.input(name, TensorType::new(DType::I32, &[size, num_positions]));
    let fields = ["x", "y"].map(|name| (name.to_owned(), ids(name)));
    Batch { fields: fields.into_iter().collect(), weight: t.full(dtype, &[size], 1.0) }
}

fn parameters(model: &Gpt) -> Tree<Parameter> {
    let mut parameters = Tree::new();
    trace(Mesh::SINGLE, |t| {
        let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
        model.loss(&scope, &batch(t, 1, 8, DType::F32));
        parameters = scope.parameters();
    })
    .unwrap();
    parameters
}

/// The published models' own numbers of parameters: those of the checkpoints, output tied to input.
#[test]
fn published_sizes_have_their_numbers_of_parameters() {
    let expected = [
        (GptPreset::Gpt2Small, 124_439_808),
        (GptPreset::Gpt2Medium, 354_823_168),
        (GptPreset::Gpt2Large, 774_030_080),
        (GptPreset::Gpt2Xl, 1_557_611_200),
    ];
    for (preset, expected) in expected {
        let model = GptConfig::preset(preset).model();
        let sizes = parameters(&model).values().map(|p| p.dims.iter().product::<usize>()).sum();
        assert_eq!((preset, expected), (preset, sizes));
    }
}

/// Two layers of width 16, 8 positions, 11 tokens.
fn small(scan_layers: bool, remat: bool) -> Gpt {
    GptConfig {
        num_layers: Some(2),
        width: Some(16),
        num_heads: Some(2),
        context: Some(8),
        vocabulary: Some(11),
        scan_layers,
        remat,
        ..GptConfig::default()
    }
    .model()
}

#[test]
fn parameters_have_the_same_names_and_starts_however_blocks_are_run() {
    let rows_and_starts = |scan, remat| {
        let parameters = parameters(&small(scan, remat));
        let leaves = parameters.map(|_, parameter| parameter.leaf());
        let start = rows(&leaves).map(|_, row| parameters[&*row.leaf].initializer);
        (row_specs(&leaves), start)
    };
    let expected = rows_and_starts(false, false);
    assert!(expected.0.get("blocks.1.attn.query.weight").is_some());
    assert_eq!(expected.1["blocks.0.mlp.down.weight"], Initializer::Normal { std: 0.01 });
    for (scan, remat) in [(false, true), (true, false), (true, true)] {
        let (leaves, starts) = rows_and_starts(scan, remat);
        assert_eq!((&leaves, &starts), (&expected.0, &expected.1), "scan {scan}, remat {remat}");
        assert!(leaves.paths().eq(expected.0.paths()), "scan {scan}, remat {remat}");
    }
}

/// Loss per token, and its gradients. Inputs are the parameters, then `x` and `y`.
fn gradients(model: &Gpt, size: usize, num_positions: usize) -> Graph {
    let graph = trace(Mesh::SINGLE, |t| {
        let declared = parameters(model);
        let params = declared.map(|path, p| t.input(path, TensorType::new(DType::F64, &p.dims)));
        let scope = Scope::bind(t, f64s(), params.clone(), None);
        let loss = model.loss(&scope, &batch(t, size, num_positions, DType::F64));
        t.output("loss", loss.sum / loss.weight);
        let wrt: Vec<_> = params.values().copied().collect();
        for (path, gradient) in params.paths().zip(grad(loss.sum, &wrt)) {
            t.output(format!("gradients.{path}"), gradient);
        }
    });
    let graph = graph.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(verify(&graph), Ok(()));
    passes::simplify(&graph)
}

/// Parameters as they start, and tokens.
fn inputs(model: &Gpt, size: usize, num_positions: usize) -> Vec<Vec<Literal>> {
    let init = trace(Mesh::SINGLE, |t| {
        let seed = t.constant(Literal::from_slice(&[2], &[0u32, 7]));
        for (path, parameter) in parameters(model).iter() {
            let key = Key::from_seed(seed).fold_in_path(path);
            let slice = GlobalSlice::whole(&parameter.dims);
            t.output(path, parameter.initializer.draw(key, &slice, DType::F64));
        }
    });
    let mut inputs = interpret(&init.unwrap(), &[]).unwrap();
    let token = |i: u32| (threefry2x32([1, 2], [0, i])[0] % model.vocabulary as u32) as i32;
    let num_tokens = (size * num_positions) as u32;
    for first in [0, 1] {
        let tokens: Vec<_> = (first..first + num_tokens).map(token).collect();
        inputs.push(vec![Literal::from_slice(&[size, num_positions], &tokens)]);
    }
    inputs
}

#[test]
fn the_loss_at_the_start_is_that_of_guessing() {
    let model = GptConfig::preset(GptPreset::Bytes).model();
    let graph = trace(Mesh::SINGLE, |t| {
        let scope = Scope::declare(t, f64s(), AxisSet::EMPTY);
        let loss = model.loss(&scope, &batch(t, 1, 16, DType::F64));
        t.output("loss", loss.sum / loss.weight);
    })
    .unwrap();
    // Declared in the order in which they are used: the tokens' ids come first among the inputs.
    let named: Vec<_> = parameters(&model).paths().map(str::to_owned).collect();
    let given = inputs(&model, 1, 16);
    let names: Vec<_> = named.iter().map(String::as_str).chain(["x", "y"]).collect();
    let ordered: Vec<_> = graph
        .inputs()
        .iter()
        .map(|input| given[names.iter().position(|name| *name == input.name).unwrap()].clone())
        .collect();
    let loss = interpret(&graph, &ordered).unwrap()[0][0].to_f64()[0];
    assert!((loss / 256f64.ln() - 1.0).abs() < 0.02, "{loss}");
}

#[test]
fn scanned_and_recomputed_blocks_have_the_gradients_of_blocks_in_a_row() {
    let unrolled = small(false, false);
    let mut given = inputs(&unrolled, 2, 8);
    let tokens = given.split_off(given.len() - 2);
    let paths = parameters(&unrolled).paths().map(str::to_owned).collect::<Vec<_>>();
    let given: Tree<_> = paths.into_iter().zip(given.into_iter().flatten()).collect();
    // Loss, then the gradients of all parameters, those of stacked ones row by row.
    let run = |scan, remat| {
        let model = small(scan, remat);
        let leaves = parameters(&model).map(|_, p| LeafSpec { dtype: DType::F64, ..p.leaf() });
        let whole = |(path, leaf)| join_rows(path, leaf, &given).unwrap().unwrap().into_owned();
        let mut inputs: Vec<_> = leaves.iter().map(|leaf| vec![whole(leaf)]).collect();
        inputs.extend(tokens.clone());
        let mut outputs = interpret(&gradients(&model, 2, 8), &inputs).unwrap().into_iter();
        let loss = outputs.next().unwrap();
        let gradients = leaves.paths().map(str::to_owned).zip(outputs.flatten()).collect();
        let rows = split_rows(&leaves, gradients).into_iter().map(|(_, gradient)| vec![gradient]);
        std::iter::once(loss).chain(rows).collect::<Vec<_>>()
    };
    let expected = run(false, false);
    assert_eq!(run(false, true), expected, "recomputing changes no bit");
    for remat in [false, true] {
        for (i, (got, expected)) in run(true, remat).iter().zip(&expected).enumerate() {
            for (got, expected) in got[0].to_f64().into_iter().zip(expected[0].to_f64()) {
                assert!((got - expected).abs() < 1e-12, "output {i}: {got}, {expected}");
            }
        }
    }
}

#[test]
fn a_position_does_not_see_what_follows() {
    let model = small(false, false);
    let graph = trace(Mesh::SINGLE, |t| {
        let declared = parameters(&model);
        let params = declared.map(|path, p| t.input(path, TensorType::new(DType::F64, &p.dims)));
        let ids = t.input("x", TensorType::new(DType::I32, &[1, 8]));
        t.output("logits", model.logits(&Scope::bind(t, f64s(), params, None), ids));
    });
    let graph = graph.unwrap();
    let mut given = inputs(&model, 1, 8);
    given.pop();
    let before = interpret(&graph, &given).unwrap()[0][0].to_f64();
    let last = given.len() - 1;
    given[last][0].as_mut_slice::<i32>()[5] ^= 1;
    let after = interpret(&graph, &given).unwrap()[0][0].to_f64();
    let (seen, unseen) = (5 * model.vocabulary, 5 * model.vocabulary);
    assert_eq!(before[..seen], after[..seen]);
    assert_ne!(before[unseen..], after[unseen..]);
}

#[test]
fn more_positions_than_the_context_are_an_error() {
    let error = trace(Mesh::SINGLE, |t| {
        let scope = Scope::declare(t, f64s(), AxisSet::EMPTY);
        t.output("loss", small(false, false).loss(&scope, &batch(t, 1, 9, DType::F64)).sum);
    });
    let message = error.unwrap_err().to_string();
    assert!(message.contains("9 positions are more than the context of 8"), "{message}");
}

/// Every head with keys and values of its own, computed from the shared ones', is the same
/// attention.
#[test]
fn grouped_queries_share_keys_and_values() {
    let (width, t, num_heads, d) = (8, 5, 4, 2);
    let run = |num_kv_heads: usize, rotary: bool| {
        let parts = Attention {
            num_positions: t,
            num_heads,
            num_kv_heads,
            causal: true,
            qk_norm: None,
            rotary: rotary.then(Rotary::default),
            dropout: 0.0,
            qkv: Initializer::Zeros,
            out: Initializer::Zeros,
        };
        let value = |name: &str, i: usize| {
            f64::from(threefry2x32([9, name.len() as u32], [0, i as u32])[0]) / 2f64.powi(31) - 1.0
        };
        // Row of the projection to the row of the grouped one that it is a copy of.
        let row = |row: usize| match row / (num_heads * d) {
            0 => row,
            of => {
                let head = (row - of * num_heads * d) / d / 2;
                num_heads * d + (of - 1) * 2 * d + head * d + row % d
            }
        };
        let num_rows = (num_heads + 2 * num_kv_heads) * d;
        let source = |index: usize| if num_kv_heads == num_heads { row(index) } else { index };
        let weight: Vec<_> = (0..num_rows * width)
            .map(|i| value("qkv", source(i / width) * width + i % width))
            .collect();
        let graph = trace(Mesh::SINGLE, |tracer| {
            let constant =
                |dims: &[usize], values: &[f64]| tracer.constant(Literal::from_slice(dims, values));
            let drawn = |name: &str, dims: &[usize]| -> Tensor<'_> {
                let count = dims.iter().product();
                let values: Vec<_> = (0..count).map(|i| value(name, i)).collect();
                constant(dims, &values)
            };
            let part = |rows: Range<usize>| {
                constant(&[rows.len(), width], &weight[rows.start * width..rows.end * width])
            };
            let bias = |size: usize| tracer.full(DType::F64, &[size], 0.25);
            let (q, kv) = (num_heads * d, num_kv_heads * d);
            let params = [
                ("query.weight", part(0..q)),
                ("query.bias", bias(q)),
                ("key.weight", part(q..q + kv)),
                ("key.bias", bias(kv)),
                ("value.weight", part(q + kv..num_rows)),
                ("value.bias", bias(kv)),
                ("out.weight", drawn("outer", &[width, width])),
                ("out.bias", tracer.full(DType::F64, &[width], 0.0)),
            ];
            let params = params.into_iter().map(|(path, x)| (path.to_owned(), x)).collect();
            let scope = Scope::bind(tracer, f64s(), params, None);
            tracer.output("y", attention(&scope, drawn("inputs", &[2 * t, width]), None, parts));
        });
        interpret(&graph.unwrap(), &[]).unwrap()[0][0].to_f64()
    };
    for rotary in [false, true] {
        assert_eq!(run(2, rotary), run(4, rotary));
    }
    assert_ne!(run(2, false), run(2, true));
}

/// The text of loss and gradients. Arguments, results, the joining of parameters and the cutting of
/// their gradients are 3 lines a parameter and block either way, which is 432 of the 12 blocks'
/// lines, so the ratio falls with the number of blocks: it would be below a quarter everywhere if
/// the blocks' parameters were stacks in the state.
#[test]
fn scanned_text_is_shorter_and_costs_the_same() {
    for (preset, percent) in [(GptPreset::Gpt2Small, 25), (GptPreset::Gpt2Xl, 10)] {
        let lines = |scan_layers: bool| {
            let config = GptConfig { scan_layers, ..GptConfig::preset(preset) };
            let graph = gradients(&config.model(), 1, 64);
            (lower(&graph, "grad").text.lines().count(), count(&graph).transcendentals)
        };
        let (unrolled, scanned) = (lines(false), lines(true));
        eprintln!("{preset:?}: {} lines, unrolled {}", scanned.0, unrolled.0);
        assert!(scanned.0 * 100 <= unrolled.0 * percent, "{scanned:?}, unrolled {unrolled:?}");
        assert_eq!(scanned.1, unrolled.1);
    }
}
