//! Blocks with dropout and with batch norm: however they are run, they draw the same numbers and
//! observe the same statistics.

use hlo::random::{Key, threefry2x32};
use hlo::{Axis, DType, Graph, LeafSpec, Literal, Mesh, StackedRow, Tensor, TensorType, Tree};
use hlo::{grad, interpret, passes, row_paths, row_specs, rows, trace, verify};
use models::layers::{BatchNorm, Conv2d, batch_norm, conv2d, dropout, linear};
use models::{Initializer, Precision, Scope, Stack, Training, stack};

const F64S: Precision = Precision::uniform(DType::F64);
const NUM_BLOCKS: usize = 3;

type Block = for<'b> fn(&Scope<'b>, Tensor<'b>) -> Tensor<'b>;

fn with_dropout<'b>(scope: &Scope<'b>, x: Tensor<'b>) -> Tensor<'b> {
    let weights = Initializer::Normal { std: 0.5 };
    x + dropout(&scope.at("mlp"), linear(&scope.at("mlp"), x, x.dim(1), weights).tanh(), 0.5)
}

/// Two blocks with dropout inside each block.
fn nested<'b>(scope: &Scope<'b>, x: Tensor<'b>) -> Tensor<'b> {
    let how = Stack { num_blocks: 2, scan: true, remat: false };
    stack(&scope.at("inner"), x, how, with_dropout)
}

fn with_batch_norm<'b>(scope: &Scope<'b>, x: Tensor<'b>) -> Tensor<'b> {
    let conv = Conv2d { num_out: x.dim(3), size: 3, stride: 1 };
    let norm = BatchNorm { group: 2, weight: Initializer::Ones };
    x + batch_norm(&scope.at("norm"), conv2d(&scope.at("conv"), x, conv), norm).maximum(0.0)
}

fn run(graph: &Graph) -> Vec<Vec<Literal>> {
    let value = |dims: &[usize], leaf: u32| {
        let count = dims.iter().product::<usize>() as u32;
        let value = |i| f64::from(threefry2x32([3, leaf], [0, i])[0]) / 2f64.powi(32) + 0.1;
        Literal::from_slice(dims, &(0..count).map(value).collect::<Vec<_>>())
    };
    let num_replicas = graph.mesh().num_replicas();
    let inputs: Vec<_> = graph
        .inputs()
        .iter()
        .zip(0..)
        .map(|(input, leaf)| {
            let ty = graph.ty(input.value);
            // Each replica has another batch.
            let seed = |replica: u32| {
                if ty.varying.is_empty() { leaf } else { leaf + 100 * (replica + 1) }
            };
            (0..num_replicas as u32).map(|replica| value(&ty.dims, seed(replica))).collect()
        })
        .collect();
    interpret(graph, &inputs).unwrap()
}

/// The leaves made of their rows.
fn stacked<'g>(leaves: &Tree<LeafSpec>, rows: &Tree<Tensor<'g>>) -> Tree<Tensor<'g>> {
    leaves.map(|path, leaf| {
        let rows: Vec<_> = row_paths(path, leaf).iter().map(|path| rows[&**path]).collect();
        match leaf.num_stacked {
            0 => rows[0],
            _ => {
                let one = [&[1], &rows[0].shape()[..]].concat();
                let rows: Vec<_> = rows.iter().map(|row| row.reshape(&one)).collect();
                rows[0].concatenate(&rows[1..], 0).reshape(&leaf.dims)
            }
        }
    })
}

/// The rows of the leaves, block by block.
fn unstacked<'g>(leaves: &Tree<LeafSpec>, values: &Tree<Tensor<'g>>) -> Tree<Tensor<'g>> {
    rows(leaves).map(|_, StackedRow { leaf, index }| {
        let (spec, value) = (&leaves[&**leaf], values[&**leaf]);
        if spec.num_stacked == 0 {
            return value;
        }
        let row = spec.row().dims;
        let all = value.reshape(&[&[spec.num_rows()], &row[..]].concat());
        all.slice_dim(0, *index, index + 1).reshape(&row)
    })
}

/// Loss, gradients and what is observed on two replicas, by name; inputs by name too. Both are the
/// rows of stacked leaves.
fn training(block: Block, dims: &[usize], scan: bool, remat: bool) -> Graph {
    let (declared, means) = declared(block, dims, scan);
    let graph = trace(Mesh::data(2), |t| {
        let varying = Axis::Data.into();
        let x = t.input("x", TensorType::new(DType::F64, dims).varying(varying));
        let params = row_specs(&declared).map(|path, p| t.input(path, p.global_type()));
        let handed_out = stacked(&declared, &params.map(|_, p| p.vary(varying)));
        let training = Training {
            key: Key::from_seed(t.constant(Literal::from_slice(&[2], &[1u32, 2]))),
            first_example: t.replica_id(Axis::Data) * dims[0] as f64,
            num_examples: dims[0],
            batch_axes: varying,
        };
        let scope = Scope::bind(t, F64S, handed_out, Some(training));
        let how = Stack { num_blocks: NUM_BLOCKS, scan, remat };
        let loss = (stack(&scope.at("blocks"), x, how, block) * 0.1).sine().sum();
        t.output_varying("loss", loss, varying);
        let wrt: Vec<_> = params.values().copied().collect();
        for (path, gradient) in params.paths().zip(grad(loss, &wrt)) {
            t.output(format!("gradients.{path}"), gradient);
        }
        for (path, observed) in unstacked(&means, &scope.observed()).iter() {
            t.output_varying(format!("observed.{path}"), *observed, varying);
        }
    });
    let graph = graph.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(verify(&graph), Ok(()));
    passes::simplify(&graph)
}

/// The leaves of the parameters and of the running means.
fn declared(block: Block, dims: &[usize], scan: bool) -> (Tree<LeafSpec>, Tree<LeafSpec>) {
    let mut declared = (Tree::new(), Tree::new());
    trace(Mesh::data(2), |t| {
        let varying = Axis::Data.into();
        let x = t.input("x", TensorType::new(DType::F64, dims).varying(varying));
        let scope = Scope::declare(t, F64S, varying);
        let how = Stack { num_blocks: NUM_BLOCKS, scan, remat: false };
        stack(&scope.at("blocks"), x, how, block);
        declared.0 = scope.parameters().map(|_, parameter| parameter.leaf());
        declared.1 = scope.running_means().map(|_, mean| mean.leaf());
    })
    .unwrap();
    declared
}

const CASES: [(&str, Block, &[usize]); 3] = [
    ("dropout", with_dropout, &[4, 3]),
    ("dropout in a stack in a stack", nested, &[4, 3]),
    ("batch norm", with_batch_norm, &[4, 3, 3, 2]),
];

#[test]
fn blocks_train_alike_however_they_are_run() {
    for (name, block, dims) in CASES {
        let unrolled = training(block, dims, false, false);
        let expected = run(&unrolled);
        for (scan, remat) in [(false, true), (true, false), (true, true)] {
            let graph = training(block, dims, scan, remat);
            let got = run(&graph);
            assert_eq!(got.len(), expected.len(), "{name}");
            for (i, output) in graph.outputs().iter().enumerate() {
                assert_eq!(output.name, unrolled.outputs()[i].name, "{name}");
                for (got, expected) in got[i].iter().zip(&expected[i]) {
                    for (got, expected) in got.to_f64().into_iter().zip(expected.to_f64()) {
                        let close = (got - expected).abs() < 1e-12;
                        let output = &output.name;
                        assert!(
                            close,
                            "{name}, scan {scan}, remat {remat}, {output}: {got}, {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn each_block_drops_other_elements_and_observes_under_its_own_name() {
    let dropped = |scan: bool| {
        let graph = trace(Mesh::SINGLE, |t| {
            let training = Training {
                key: Key::from_seed(t.constant(Literal::from_slice(&[2], &[1u32, 2]))),
                first_example: t.scalar(DType::U32, 0.0),
                num_examples: 1,
                batch_axes: hlo::AxisSet::EMPTY,
            };
            let scope = Scope::bind(t, F64S, Tree::new(), Some(training));
            let how = Stack { num_blocks: NUM_BLOCKS, scan, remat: false };
            let x = t.full(DType::F64, &[1, 64], 0.0);
            // Block i adds 4^i times what is kept of ones: a digit of each result for each block.
            let y =
                stack(&scope, x, how, |scope, x| x * 4.0 + dropout(scope, x.full_like(1.0), 0.5));
            t.output("y", y);
        });
        interpret(&graph.unwrap(), &[]).unwrap()[0][0].to_f64()
    };
    let digits = dropped(false);
    assert_eq!(digits, dropped(true));
    let block = |i: u32| -> Vec<bool> {
        digits.iter().map(|y| (*y as u32 / 4u32.pow(i)).is_multiple_of(4)).collect()
    };
    assert!(block(0) != block(1) && block(1) != block(2) && block(0) != block(2));

    let graph = training(with_batch_norm, &[4, 3, 3, 2], true, false);
    let names: Vec<_> = graph.outputs().iter().map(|output| output.name.as_str()).collect();
    for i in 0..NUM_BLOCKS {
        assert!(
            names.contains(&format!("observed.blocks.{i}.norm.variance").as_str()),
            "{names:?}"
        );
    }
}

#[test]
fn evaluation_reads_each_blocks_running_means() {
    let evaluation = |scan: bool, remat: bool| {
        let mut running_means = Tree::new();
        let graph = trace(Mesh::SINGLE, |t| {
            let x = t.input("x", TensorType::new(DType::F64, &[2, 3, 3, 2]));
            let (params, means) = declared(with_batch_norm, &[4, 3, 3, 2], scan);
            let bound = [&params, &means].map(|leaves| {
                let rows = row_specs(leaves);
                stacked(leaves, &rows.map(|path, leaf| t.input(path, leaf.global_type())))
            });
            let [params, means] = bound;
            let scope = Scope::bind(t, F64S, params, None).with_model_state(means);
            let how = Stack { num_blocks: NUM_BLOCKS, scan, remat };
            t.output("y", stack(&scope.at("blocks"), x, how, with_batch_norm));
            running_means = row_specs(&scope.running_means().map(|_, mean| mean.leaf()));
        });
        (run(&graph.unwrap())[0][0].to_f64(), running_means)
    };
    let expected = evaluation(false, false);
    assert!(expected.1.get("blocks.2.norm.mean").is_some());
    for (scan, remat) in [(false, true), (true, false), (true, true)] {
        assert_eq!(evaluation(scan, remat), expected, "scan {scan}, remat {remat}");
    }
}

#[test]
fn a_scan_declares_stacks_and_its_program_does_not_grow_with_the_blocks() {
    let program = |num_blocks: usize| {
        let how = Stack { num_blocks, scan: true, remat: false };
        let x = TensorType::new(DType::F64, &[4, 3]);
        let mut leaves = Tree::new();
        trace(Mesh::SINGLE, |t| {
            let scope = Scope::declare(t, F64S, hlo::AxisSet::EMPTY);
            stack(&scope.at("blocks"), t.input("x", x.clone()), how, with_dropout);
            leaves = scope.parameters().map(|_, parameter| parameter.leaf());
        })
        .unwrap();
        let graph = trace(Mesh::SINGLE, |t| {
            let params = leaves.map(|path, leaf| t.input(path, leaf.global_type()));
            let scope = Scope::bind(t, F64S, params.clone(), None);
            let y = stack(&scope.at("blocks"), t.input("x", x.clone()), how, with_dropout);
            let params: Vec<_> = params.values().copied().collect();
            for (i, gradient) in grad(y.sum(), &params).into_iter().enumerate() {
                t.output(format!("gradient.{i}"), gradient);
            }
        });
        (leaves, passes::simplify(&graph.unwrap()).nodes().len())
    };
    let (leaves, num_nodes) = program(3);
    let weight = &leaves["blocks.*.mlp.weight"];
    assert_eq!((leaves.len(), &weight.dims[..], weight.num_stacked), (2, &[3, 3, 3][..], 1));
    assert_eq!(program(30).1, num_nodes);
}
