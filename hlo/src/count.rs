//! The cost of a graph: arithmetic, memory traffic and collectives, with loops multiplied by their
//! trip counts. A case costs as much as the branch that runs, where that follows from the counter
//! of the loop around it, and elsewhere as much as its branch with the most FLOPs.

use std::collections::HashMap;
use std::sync::Arc;

use crate::branches::TakenBranches;
use crate::ops::threefry::THREEFRY_FLOPS;
use crate::region::expand;
use crate::traffic::{Epilogue, traffic as fused_traffic};
use crate::{Binary, Communication, Graph, Node, Op, Region, TensorType, Unary};

/// The cost of running a graph once, **on one replica**.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Arithmetic operations; a fused multiply-add counts 2. A dot is 2 * batch * m * n * k, a
    /// convolution 2 for each product with an element of its input (not with padding), an
    /// elementwise op 1 per result element, a reduction 1 for each operand element less 1 for each
    /// result element, top_k 1 per operand element, a custom_call its own count. Additions inside
    /// collectives are not counted.
    pub flops: u64,
    /// Elements of exponentials, logarithms, roots, powers, sines and the like; not included in
    /// `flops`.
    pub transcendentals: u64,
    /// Bytes that ops read and write if nothing is fused: an upper bound of the memory traffic. Ops
    /// that only change a type (reshape, bitcast, vary, ...) move nothing; a slice reads only what
    /// it returns, and an update of a slice is done in position.
    pub bytes: u64,
    /// Dots, convolutions and custom_calls. Equal ones are one entry, in the order in which they
    /// first run.
    pub matmuls: Vec<MatmulCost>,
    /// Bytes that all other ops except collectives read and write if elementwise ops are fused: an
    /// estimate of the compiled program's memory traffic.
    pub fused_bytes: u64,
    /// Kernels of all other ops except collectives if elementwise ops are fused, each with one
    /// result: an upper bound, since compilers also make kernels with several results.
    pub num_fused_kernels: u64,
    /// All collectives, in program order.
    pub collectives: Vec<Communication>,
    /// `true` if there is a loop with an unknown trip count, which is counted as 1.
    pub has_unknown_loops: bool,
}

/// The cost of equal dots, convolutions or custom_calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatmulCost {
    /// FLOPs of one of them.
    pub flops: u64,
    /// Bytes that one of them reads and writes.
    pub bytes: u64,
    /// Bytes that the kernels read and write that can run as soon as the result of one of them is
    /// there, a part of [`Cost::fused_bytes`]. Compilers for TPUs make these kernels part of the
    /// product.
    pub epilogue_bytes: u64,
    /// The part of `epilogue_bytes` that reads this result. A kernel of both does not read it from
    /// memory.
    pub result_bytes: u64,
    /// Bytes of an element of their first operand.
    pub element_bytes: usize,
    /// `true` for a custom_call, which computes more than a product: attention with its softmax.
    pub is_call: bool,
    /// How often they run.
    pub count: u64,
}

impl Cost {
    /// The part of `flops` in dots, convolutions and custom_calls.
    pub fn matmul_flops(&self) -> u64 {
        self.of_matmuls(|matmul| matmul.flops)
    }

    /// Bytes that dots, convolutions and custom_calls read and write.
    pub fn matmul_bytes(&self) -> u64 {
        self.of_matmuls(|matmul| matmul.bytes)
    }

    /// Dots, convolutions and custom_calls.
    pub fn num_matmuls(&self) -> u64 {
        self.of_matmuls(|_| 1)
    }

    fn of_matmuls(&self, each: impl Fn(&MatmulCost) -> u64) -> u64 {
        let all = self.matmuls.iter().map(|matmul| each(matmul).saturating_mul(matmul.count));
        all.fold(0, u64::saturating_add)
    }
}

/// The cost of `graph`, per replica.
///
/// ```
/// use hlo::{DType, Mesh, TensorType, count, trace};
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[8, 4]));
///     let w = t.input("w", TensorType::new(DType::F32, &[4, 16]));
///     t.output("y", x.dot(w));
/// })?;
/// let cost = count(&graph);
/// assert_eq!(cost.flops, 2 * 8 * 4 * 16);
/// assert_eq!(cost.bytes, 4 * (8 * 4 + 4 * 16 + 8 * 16));
/// assert_eq!((cost.num_matmuls(), cost.num_fused_kernels), (1, 0));
/// # Ok::<(), hlo::Error>(())
/// ```
pub fn count(graph: &Graph) -> Cost {
    let mut counter = Counter::default();
    counter.add_graph(&expand(graph), 1);
    counter.cost
}

/// FLOPs of the dots, convolutions and custom_calls of a node, in its loops too.
pub(crate) fn matmul_flops(graph: &Graph, node: &Node) -> u64 {
    match &node.op {
        op if op.is_matmul() => match work(graph, node) {
            Work::Flops(flops) => flops,
            _ => 0,
        },
        Op::While { regions, trip_count } => {
            let mut counter = Counter::default();
            let taken = TakenBranches::of(graph, node);
            counter.add_body(&regions.body, 1, trip_count.unwrap_or(1), &taken);
            counter.cost.matmul_flops()
        }
        Op::Case { branches } => {
            most_expensive(branches).map_or(0, |branch| count(branch).matmul_flops())
        }
        _ => 0,
    }
}

#[derive(Default)]
struct Counter {
    cost: Cost,
    /// The index in `cost.matmuls` of the entry that equals this one but for the count, which is 0
    /// here.
    matmuls: HashMap<MatmulCost, usize>,
}

impl Counter {
    /// Adds a graph or region that runs `times` times.
    fn add_graph(&mut self, graph: &Graph, times: u64) {
        self.add_body(graph, times, 1, &TakenBranches::default());
    }

    /// Adds the body of a loop that runs `loops` times, with `trips` iterations each.
    fn add_body(&mut self, graph: &Graph, loops: u64, trips: u64, taken: &TakenBranches) {
        let times = loops.saturating_mul(trips);
        let moved = fused_traffic(graph, |node| traffic(graph, node));
        add(&mut self.cost.fused_bytes, moved.bytes, times);
        add(&mut self.cost.num_fused_kernels, moved.num_kernels, times);
        for node in graph.nodes() {
            match &node.op {
                Op::While { regions, trip_count } => {
                    self.cost.has_unknown_loops |= trip_count.is_none();
                    let trips = trip_count.unwrap_or(1);
                    // The condition is evaluated once more than the body.
                    self.add_graph(&regions.cond, times.saturating_mul(trips.saturating_add(1)));
                    self.add_body(&regions.body, times, trips, &TakenBranches::of(graph, node));
                }
                Op::Case { branches } => match taken.counts(node) {
                    Some(counts) => {
                        for (branch, count) in branches.iter().zip(counts) {
                            if count > 0 {
                                self.add_graph(&branch.graph, loops.saturating_mul(count));
                            }
                        }
                    }
                    None => {
                        if let Some(branch) = most_expensive(branches) {
                            self.add_graph(branch, times);
                        }
                    }
                },
                _ => {
                    let mut epilogue = Epilogue::default();
                    for one in node.results().filter_map(|value| moved.epilogues.get(&value)) {
                        epilogue.bytes += one.bytes;
                        epilogue.result_bytes += one.result_bytes;
                    }
                    self.add_node(graph, node, epilogue, times);
                }
            }
        }
    }

    /// Adds an op that has no body.
    fn add_node(&mut self, graph: &Graph, node: &Node, epilogue: Epilogue, times: u64) {
        let bytes = traffic(graph, node);
        match work(graph, node) {
            Work::Flops(flops) => {
                add(&mut self.cost.flops, flops, times);
                if node.op.is_matmul() {
                    let first = operands(graph, node).next();
                    let one = MatmulCost {
                        flops,
                        bytes,
                        epilogue_bytes: epilogue.bytes,
                        result_bytes: epilogue.result_bytes,
                        element_bytes: first.map_or(0, |ty| ty.dtype.size_bytes()),
                        is_call: matches!(node.op, Op::CustomCall(_)),
                        count: 0,
                    };
                    self.add_matmul(one, times);
                }
            }
            Work::Transcendentals(elements) => add(&mut self.cost.transcendentals, elements, times),
            Work::Collective => {
                self.cost.collectives.extend(Communication::of(graph, node, times));
            }
            Work::Move => {}
            Work::Nothing => return,
        }
        add(&mut self.cost.bytes, bytes, times);
    }

    fn add_matmul(&mut self, one: MatmulCost, times: u64) {
        let all = &mut self.cost.matmuls;
        let at = *self.matmuls.entry(one).or_insert_with(|| {
            all.push(one);
            all.len() - 1
        });
        let count = &mut all[at].count;
        *count = count.saturating_add(times);
    }
}

/// Adds what is there `times` times.
fn add(to: &mut u64, amount: u64, times: u64) {
    *to = to.saturating_add(amount.saturating_mul(times));
}

/// The branch with the most FLOPs; among equals the one that moves the most bytes.
pub(crate) fn most_expensive(branches: &[Arc<Region>]) -> Option<&Graph> {
    let graphs = branches.iter().map(|branch| &branch.graph);
    graphs.max_by_key(|graph| {
        let cost = count(graph);
        (cost.flops, cost.bytes)
    })
}

/// The work of a node besides reading and writing memory.
enum Work {
    Flops(u64),
    Transcendentals(u64),
    Collective,
    Move,
    /// No arithmetic and no memory traffic.
    Nothing,
}

fn work(graph: &Graph, node: &Node) -> Work {
    let result = elements(graph.ty(node.result()));
    let operand = |i: usize| graph.ty(node.operands[i]);
    match &node.op {
        Op::Unary(
            Unary::Cosine
            | Unary::Erf
            | Unary::Exponential
            | Unary::ExponentialMinusOne
            | Unary::Log
            | Unary::LogPlusOne
            | Unary::Logistic
            | Unary::Rsqrt
            | Unary::Sine
            | Unary::Sqrt
            | Unary::Tanh,
        )
        | Op::Binary(Binary::Power) => Work::Transcendentals(result),
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Clamp | Op::Convert(_) => {
            Work::Flops(result)
        }
        Op::Reduce { .. } => Work::Flops(elements(operand(0)).saturating_sub(result)),
        Op::DotGeneral(dims) => {
            let contracted = dims.lhs_contracting.iter().map(|dim| operand(0).dims[*dim] as u64);
            let k = contracted.fold(1, u64::saturating_mul);
            Work::Flops(result.saturating_mul(k).saturating_mul(2))
        }
        Op::Convolution(convolution) => {
            let (lhs, rhs) = (operand(0), operand(1));
            let y = graph.ty(node.result());
            let roles = &convolution.dims;
            let pairs = (y.dims[roles.result[0]] * y.dims[roles.result[1]]) as u64;
            let inputs = rhs.dims[roles.rhs[1]] as u64;
            let products = convolution.num_products(lhs, rhs, y).saturating_mul(inputs);
            Work::Flops(pairs.saturating_mul(products).saturating_mul(2))
        }
        Op::ReduceWindow { window, .. } => {
            let covered = window.num_covered(operand(0), graph.ty(node.result()));
            Work::Flops(covered.saturating_sub(result))
        }
        // One FLOP per window element: comparisons, and one addition per position.
        Op::SelectAndScatter { window } => Work::Flops(window.num_covered(operand(0), operand(1))),
        Op::Scan(_) | Op::Remat(_) | Op::CustomVjp(_) => {
            unreachable!("written as other ops by `expand`")
        }
        Op::CustomCall(call) => Work::Flops(call.flops),
        Op::Gather { .. } => Work::Move,
        Op::Scatter { .. } => Work::Flops(elements(operand(2))),
        Op::TopK { .. } => Work::Flops(elements(operand(0))),
        Op::Threefry(_) => {
            Work::Flops(elements(graph.ty(node.result())).saturating_mul(THREEFRY_FLOPS))
        }
        Op::AllReduce { .. }
        | Op::AllGather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllToAll { .. }
        | Op::CollectivePermute { .. } => Work::Collective,
        Op::Iota { .. }
        | Op::BroadcastInDim { .. }
        | Op::Transpose { .. }
        | Op::Slice { .. }
        | Op::DynamicSlice { .. }
        | Op::DynamicUpdateSlice
        | Op::Pad { .. }
        | Op::Reverse { .. }
        | Op::Concatenate { .. } => Work::Move,
        Op::Input { .. }
        | Op::Constant(_)
        | Op::BitcastConvert(_)
        | Op::Reshape { .. }
        | Op::While { .. }
        | Op::Case { .. }
        | Op::FusionBarrier
        | Op::BlockBoundary
        | Op::OptimizationBarrier
        | Op::ReplicaId { .. }
        | Op::Vary { .. }
        | Op::Replicated { .. }
        | Op::StopGradient => Work::Nothing,
    }
}

/// Bytes that a node reads and writes.
fn traffic(graph: &Graph, node: &Node) -> u64 {
    let results = || node.results().map(|value| bytes(graph.ty(value))).sum::<u64>();
    let read_and_written = match node.op {
        Op::Slice { .. } | Op::DynamicSlice { .. } => [results(), results()],
        // In position: only the update is read and written.
        Op::DynamicUpdateSlice => [bytes(graph.ty(node.operands[1])); 2],
        // The selected rows, and the indices.
        Op::Gather { .. } => [results() + bytes(graph.ty(node.operands[1])), results()],
        // In position: reads the updates, the indices and the rows that are updated, and writes
        // these rows.
        Op::Scatter { .. } => {
            let [indices, updates] = [1, 2].map(|i| bytes(graph.ty(node.operands[i])));
            [indices + 2 * updates, updates]
        }
        _ => [operands(graph, node).map(bytes).sum(), results()],
    };
    read_and_written.iter().sum()
}

fn operands<'g>(graph: &'g Graph, node: &'g Node) -> impl Iterator<Item = &'g TensorType> {
    node.operands.iter().map(|value| graph.ty(*value))
}

fn elements(ty: &TensorType) -> u64 {
    ty.num_elements() as u64
}

fn bytes(ty: &TensorType) -> u64 {
    ty.num_bytes() as u64
}
