//! Parameters that are gathered where they are used: the backward pass gathers them again, and
//! barriers keep at most two blocks of them whole.

use std::collections::HashMap;

use hlo::{
    Axis, DType, Graph, Groups, Literal, Mesh, Op, Reduction, Tensor, TensorType, Tracer, grad,
    interpret, passes, rewrites, trace, verify,
};

const NUM_BLOCKS: usize = 5;
const WIDTH: usize = 4;

/// How the blocks are run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Run {
    Unrolled,
    Remat,
    Scan,
    ScanRemat,
}

/// The whole weight `[WIDTH, WIDTH]` of a block, from `[WIDTH / 2, WIDTH]` on each of two replicas.
fn gathered(shard: Tensor<'_>) -> Tensor<'_> {
    shard.tracer().custom_vjp_recomputed(
        &[shard],
        |shard| vec![shard[0].all_gather(0, Axis::Fsdp)],
        |_, _, gradient| vec![gradient[0].reduce_scatter(0, Axis::Fsdp)],
    )[0]
}

fn block<'g>(x: Tensor<'g>, shard: Tensor<'g>) -> Tensor<'g> {
    x.dot(gathered(shard)).tanh()
}

/// The gradients of a loss with respect to the shards of all blocks, and to that of a table that
/// the first and the last op use.
fn model<'g>(t: &'g Tracer, run: Run) -> Vec<Tensor<'g>> {
    let batch = TensorType::new(DType::F64, &[3, WIDTH]).varying(Axis::Fsdp.into());
    let shard = TensorType::new(DType::F64, &[WIDTH / 2, WIDTH]).varying(Axis::Fsdp.into());
    let x = t.input("x", batch);
    let table = t.input("table", shard.clone());
    let shards: Vec<_> =
        (0..NUM_BLOCKS).map(|i| t.input(format!("w.{i}"), shard.clone())).collect();
    let whole = gathered(table);
    let x = x.dot(whole);
    let y = match run {
        Run::Unrolled => shards.iter().fold(x, |x, w| block(x.block_boundary(), *w)),
        Run::Remat => shards
            .iter()
            .fold(x, |x, w| t.remat(&[x.block_boundary(), *w], |x| vec![block(x[0], x[1])])[0]),
        Run::Scan | Run::ScanRemat => {
            let rows: Vec<_> = shards.iter().map(|w| w.reshape(&[1, WIDTH / 2, WIDTH])).collect();
            let stack = rows[0].concatenate(&rows[1..], 0);
            let (y, _) = t.scan(NUM_BLOCKS, &[], &[x], &[stack], |_, x, w| {
                let y = match run {
                    Run::Scan => block(x[0], w[0]),
                    _ => x[0].tracer().remat(&[x[0], w[0]], |x| vec![block(x[0], x[1])])[0],
                };
                (vec![y], vec![])
            });
            y[0]
        }
    };
    let y = y.block_boundary().dot(whole.transpose(&[1, 0]));
    grad((y * y).sum(), &[&[table], &shards[..]].concat())
}

fn graph(run: Run) -> Graph {
    let graph = trace(Mesh::new(&[(Axis::Fsdp, 2)]), |t| {
        for (i, gradient) in model(t, run).into_iter().enumerate() {
            t.output_varying(format!("gradient.{i}"), gradient, Axis::Fsdp.into());
        }
    });
    passes::simplify(&graph.unwrap())
}

fn count(graph: &Graph, is: fn(&Op) -> bool) -> usize {
    graph.nodes().iter().filter(|node| is(&node.op)).count()
}

fn is_gather(op: &Op) -> bool {
    matches!(op, Op::AllGather { .. })
}

/// The largest number of gathered parameters that are alive at once if the nodes run in order.
fn most_alive(graph: &Graph) -> usize {
    let mut last_use = HashMap::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        for operand in &node.operands {
            last_use.insert(*operand, index);
        }
    }
    let wholes = graph.nodes().iter().enumerate().filter(|(_, node)| is_gather(&node.op));
    let spans: Vec<_> = wholes.map(|(index, node)| (index, last_use[&node.result()])).collect();
    (0..graph.nodes().len())
        .map(|at| spans.iter().filter(|(start, end)| (*start..=*end).contains(&at)).count())
        .max()
        .unwrap_or(0)
}

fn inputs() -> Vec<Vec<Literal>> {
    let values = |seed: usize, dims: &[usize]| {
        let num: usize = dims.iter().product();
        let value = |i: usize| ((i * 7 + seed * 13) % 11) as f64 / 11.0 - 0.4;
        Literal::from_slice(dims, &(0..num).map(value).collect::<Vec<_>>())
    };
    let of_replicas = |seed: usize, dims: &[usize]| {
        (0..2).map(|replica| values(2 * seed + replica, dims)).collect::<Vec<_>>()
    };
    let shards = (0..=NUM_BLOCKS).map(|i| of_replicas(i + 1, &[WIDTH / 2, WIDTH]));
    [of_replicas(0, &[3, WIDTH])].into_iter().chain(shards).collect()
}

#[test]
fn gathering_again_changes_no_value_however_blocks_are_run() {
    let expected = interpret(&graph(Run::Unrolled), &inputs()).unwrap();
    assert!(expected[1][0].to_f64().iter().any(|x| x.abs() > 1e-3));
    for run in [Run::Unrolled, Run::Remat, Run::Scan, Run::ScanRemat] {
        let tied = rewrites::tie_gathers(&graph(run));
        verify(&tied).unwrap();
        for graph in [graph(run), tied] {
            let found = interpret(&graph, &inputs()).unwrap();
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                let pairs = found.to_f64().into_iter().zip(expected.to_f64());
                assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 1e-13), "{run:?}");
            }
        }
    }
}

/// Each block's parameters are gathered once for the forward and once for the backward pass, remat
/// or not. The table is gathered for its first use and for its second; the VJP of the second uses
/// it at once.
#[test]
fn at_most_two_blocks_are_whole_at_a_time() {
    for run in [Run::Unrolled, Run::Remat] {
        let graph = graph(run);
        let tied = rewrites::tie_gathers(&graph);
        assert_eq!(count(&tied, is_gather), 2 * NUM_BLOCKS + 2, "{run:?}");
        assert_eq!(count(&tied, |op| matches!(op, Op::ReduceScatter { .. })), NUM_BLOCKS + 1);
        assert_eq!(most_alive(&tied), 1, "{run:?}: a gather stands where its block begins");
        assert_eq!(count(&tied, |op| matches!(op, Op::BlockBoundary)), 0);
        let barriers = tied.nodes().iter().filter(|node| node.op == Op::OptimizationBarrier);
        let held_back: Vec<_> = barriers.clone().flat_map(|node| node.results()).collect();
        let before: Vec<_> = barriers.flat_map(|node| &node.operands).collect();
        let gathers = tied.nodes().iter().filter(|node| is_gather(&node.op));
        let free = gathers.filter(|node| !held_back.contains(&node.operands[0])).count();
        assert_eq!(free, 2, "{run:?}: only those of the first two blocks may begin at once");
        let mut scatters =
            tied.nodes().iter().filter(|node| matches!(node.op, Op::ReduceScatter { .. }));
        let num_tied = scatters.by_ref().filter(|node| before.contains(&&node.result())).count();
        assert_eq!(
            num_tied,
            NUM_BLOCKS - 1,
            "{run:?}: no block follows the last two scatters by two"
        );
    }
}

/// A scan keeps no whole parameter from its forward to its backward pass.
#[test]
fn a_scan_keeps_shards() {
    for run in [Run::Scan, Run::ScanRemat] {
        let graph = rewrites::tie_gathers(&graph(run));
        let scans = graph.nodes().iter().filter_map(|node| match &node.op {
            Op::Scan(scan) => Some((scan, node)),
            _ => None,
        });
        let mut num_scans = 0;
        for (scan, node) in scans {
            num_scans += 1;
            let body = &scan.body.graph;
            let gathers = body.nodes().iter().filter(|node| is_gather(&node.op)).count();
            assert_eq!(gathers, 1, "{run:?}");
            for value in node.operands.iter().copied().chain(node.results()) {
                let dims = &graph.ty(value).dims;
                assert_ne!(dims, &[NUM_BLOCKS, WIDTH, WIDTH], "{run:?}");
            }
        }
        assert_eq!(num_scans, 2, "{run:?}");
    }
}

/// Without marks, the barriers of the VJP alone keep the two gathers of each parameter apart.
#[test]
fn a_model_without_marks_gathers_again_too() {
    let graph = trace(Mesh::new(&[(Axis::Fsdp, 2)]), |t| {
        let ty = TensorType::new(DType::F64, &[WIDTH / 2, WIDTH]).varying(Axis::Fsdp.into());
        let [x, a, b] = ["x", "a", "b"].map(|name| t.input(name, ty.clone()));
        let y = block(block(x.dot(gathered(a)), a), b);
        for (i, gradient) in grad((y * y).sum(), &[a, b]).into_iter().enumerate() {
            t.output_varying(format!("gradient.{i}"), gradient, Axis::Fsdp.into());
        }
    });
    let tied = rewrites::tie_gathers(&passes::simplify(&graph.unwrap()));
    assert_eq!(count(&tied, is_gather), 4);
}

/// A parameter that neighbouring blocks share is gathered once for them.
#[test]
fn a_parameter_of_all_blocks_stays_whole() {
    let graph = trace(Mesh::new(&[(Axis::Fsdp, 2)]), |t| {
        let ty = TensorType::new(DType::F32, &[2, 2]).varying(Axis::Fsdp.into());
        let (x, w) = (t.input("x", ty.clone()), t.input("w", ty.with_dims(&[1, 2])));
        let whole = w.all_gather(0, Axis::Fsdp);
        let y = (0..4).fold(x, |x, _| x.block_boundary().dot(whole));
        let sum = y.sum().all_reduce(Reduction::Sum, Axis::Fsdp);
        t.output("y", sum);
    });
    let tied = rewrites::tie_gathers(&passes::simplify(&graph.unwrap()));
    assert_eq!(count(&tied, is_gather), 1);
    let gather = tied.nodes().iter().find(|node| is_gather(&node.op)).unwrap();
    assert_eq!(gather.op.groups(), Some(Groups::from(Axis::Fsdp)));
}

/// Without gathers there are no barriers, and without the marks the program is that of a model
/// without marks.
#[test]
fn marks_alone_leave_nothing() {
    let traced = |marked: bool| {
        let graph = trace(Mesh::SINGLE, |t| {
            let x = t.input("x", TensorType::new(DType::F32, &[2]));
            let y = if marked { x.tanh().block_boundary() } else { x.tanh() };
            t.output("gradient", grad((y * y).sum(), &[x])[0]);
        });
        graph.unwrap()
    };
    let marked = traced(true);
    let is_barrier = |op: &Op| matches!(op, Op::BlockBoundary | Op::OptimizationBarrier);
    assert_eq!(count(&rewrites::tie_gathers(&marked), is_barrier), 0);
    let text =
        |graph: &Graph| hlo::lower(&passes::simplify(graph), "main").text_without_locations();
    assert_eq!(text(&rewrites::without_block_boundaries(&marked)), text(&traced(false)));
}
