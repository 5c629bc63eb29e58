//! Evaluates a graph slowly and exactly with N simulated replicas: the reference for tests.
//!
//! Nodes are evaluated in order, each on all replicas, so that the operands of a collective are
//! available. Every value is stored in its dtype; an op computes in f64, or in integers wide enough
//! for all dtypes, and rounds (or wraps) its result once. A sum, also inside a dot, is accumulated
//! in f64 and rounded at the end; an all_reduce adds replicas in the order of their group and
//! rounds after each, bitwise like XLA's CPU backend (except for bf16, which XLA adds in f32). No
//! plugin is needed. The root package's `tests/pjrt/ops` compares every op with that backend.
//!
//! Each op is a line in [`eval`]; its arithmetic is in one module per family.

mod collective;
mod contract;
mod elementwise;
mod erf;
mod gather;
mod movement;
mod region;
mod top_k;
mod window;

use std::panic::Location;
use std::sync::Arc;

use crate::{AxisSet, CustomVjp, DType, Graph, Literal, Node, Op, TensorType};

/// One value on each replica, in the order of replica numbers.
type Replicas = Vec<Arc<Literal>>;

/// The largest tensor that the interpreter evaluates.
const MAX_ELEMENTS: usize = 1 << 26;

/// Why a graph could not be evaluated on the given inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterpError {
    /// Replicas have different values of what is typed as replicated.
    #[error("`replicated` over {axes} at {location}: the replicas have different values")]
    Differs {
        /// The axes along which they differ.
        axes: AxisSet,
        /// Where the op was traced.
        location: &'static std::panic::Location<'static>,
    },
    /// The wrong number of inputs.
    #[error("the graph has {expected} inputs, got {got}")]
    InputCount {
        /// The graph's inputs.
        expected: usize,
        /// Inputs given.
        got: usize,
    },
    /// An input was not given once per replica.
    #[error("input `{input}` needs values for {expected} replicas, got {got}")]
    ReplicaCount {
        /// The input's name.
        input: String,
        /// Replicas of the graph's mesh.
        expected: usize,
        /// Replicas given.
        got: usize,
    },
    /// An input with the wrong dtype or dims.
    #[error("input `{input}` is {expected}, got {got} on replica {replica}")]
    InputType {
        /// The input's name.
        input: String,
        /// The replica with a value that does not fit.
        replica: usize,
        /// Type of the graph's input.
        expected: TensorType,
        /// Type of the value.
        got: TensorType,
    },
    /// A collective in a loop that some replicas of a group have left, or in a branch that they did
    /// not take. On devices it would wait forever.
    #[error(
        "{op} at {location}: some of replicas {group:?} have left the loop or taken another \
         branch, so that the others wait for them"
    )]
    LeftLoop {
        /// Which collective.
        op: &'static str,
        /// Where in the source it was asked for.
        location: &'static Location<'static>,
        /// The replica group.
        group: Vec<usize>,
    },
    /// A custom_call, which only a backend can evaluate.
    #[error(
        "custom_call at {location}: `{target}` is a function of a backend; compile the graph for \
         that backend"
    )]
    CustomCall {
        /// The function's name.
        target: String,
        /// Where in the source it was asked for.
        location: &'static Location<'static>,
    },
    /// A value too large to evaluate slowly.
    #[error("{op} at {location}: {ty} has more than 2^26 elements")]
    TooLarge {
        /// The op that produces the value.
        op: &'static str,
        /// Where in the source it was asked for.
        location: &'static Location<'static>,
        /// The value's type.
        ty: TensorType,
    },
}

/// Evaluates `graph` on all replicas of its mesh. `inputs[i][r]` is input `i` on replica `r`;
/// outputs are indexed in the same way.
///
/// ```
/// use hlo::{Axis, DType, Literal, Mesh, Reduction, TensorType, interpret, trace};
///
/// let graph = trace(Mesh::data(2), |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[2]).varying(Axis::Data.into()));
///     t.output("sum", (x * 10.0).all_reduce(Reduction::Sum, Axis::Data));
/// })?;
/// let x = vec![Literal::from_slice(&[2], &[1f32, 2.0]), Literal::from_slice(&[2], &[3f32, 4.0])];
/// let outputs = interpret(&graph, &[x])?;
/// assert_eq!(outputs[0][1], Literal::from_slice(&[2], &[40f32, 60.0]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A loop with a condition that always holds never ends. A replica keeps its values once its
/// condition is false, while others continue the loop.
///
/// An input may differ between replicas even if its type does not vary, which simulates a loss of
/// lockstep.
///
/// # Errors
/// Inputs that do not match the graph, a value of more than 2^26 elements, a custom_call, and a
/// collective inside a loop or branch that only some replicas of a group run.
pub fn interpret(graph: &Graph, inputs: &[Vec<Literal>]) -> Result<Vec<Vec<Literal>>, InterpError> {
    check_inputs(graph, inputs)?;
    let inputs: Vec<Replicas> =
        inputs.iter().map(|input| input.iter().cloned().map(Arc::new).collect()).collect();
    let running = vec![true; graph.mesh().num_replicas()];
    let outputs = run(graph, &inputs, &running)?;
    let owned = |value: Replicas| value.into_iter().map(Arc::unwrap_or_clone).collect();
    Ok(outputs.into_iter().map(owned).collect())
}

fn check_inputs(graph: &Graph, inputs: &[Vec<Literal>]) -> Result<(), InterpError> {
    let (expected, got) = (graph.inputs().len(), inputs.len());
    if expected != got {
        return Err(InterpError::InputCount { expected, got });
    }
    for (input, values) in graph.inputs().iter().zip(inputs) {
        let name = || input.name.clone();
        let (expected, got) = (graph.mesh().num_replicas(), values.len());
        if expected != got {
            return Err(InterpError::ReplicaCount { input: name(), expected, got });
        }
        let ty = graph.ty(input.value);
        for (replica, value) in values.iter().enumerate() {
            if value.dtype() != ty.dtype || value.dims() != ty.dims {
                let got = TensorType::new(value.dtype(), value.dims()).varying(ty.varying);
                let expected = ty.clone();
                return Err(InterpError::InputType { input: name(), replica, expected, got });
            }
        }
    }
    Ok(())
}

/// The outputs of a graph or of a loop's region. Results of replicas that are not `running` are
/// meaningless.
fn run(graph: &Graph, inputs: &[Replicas], running: &[bool]) -> Result<Vec<Replicas>, InterpError> {
    let mut values: Vec<Replicas> = Vec::with_capacity(graph.num_values());
    for node in graph.nodes() {
        for ty in node.results().map(|value| graph.ty(value)) {
            let elements = ty.dims.iter().try_fold(1usize, |n, dim| n.checked_mul((*dim).max(1)));
            if elements.is_none_or(|elements| elements > MAX_ELEMENTS) {
                let (op, location, ty) = (node.op.name(), node.location.line, ty.clone());
                return Err(InterpError::TooLarge { op, location, ty });
            }
        }
        let operands: Vec<_> = node.operands.iter().map(|value| &values[value.index()]).collect();
        let results = eval(graph, node, &operands, inputs, running)?;
        values.extend(results);
    }
    Ok(graph.outputs().iter().map(|output| values[output.value.index()].clone()).collect())
}

/// The results of one node.
fn eval(
    graph: &Graph,
    node: &Node,
    operands: &[&Replicas],
    inputs: &[Replicas],
    running: &[bool],
) -> Result<Vec<Replicas>, InterpError> {
    let (mesh, ty) = (graph.mesh(), graph.ty(node.result()));
    // An op that each replica computes on its own operands.
    let each = |op: &dyn Fn(&[&Literal]) -> Literal| {
        let on_replica = |replica: usize| {
            let operands: Vec<_> = operands.iter().map(|value| &*value[replica]).collect();
            Arc::new(op(&operands))
        };
        Ok(vec![(0..mesh.num_replicas()).map(on_replica).collect()])
    };
    // A collective: from the operand on each replica of a group to the result on each.
    let in_groups = |op: &dyn Fn(&[&Literal]) -> Replicas| {
        let groups = node.op.groups().map_or(Ok(vec![]), |groups| groups.list(mesh));
        let groups =
            groups.unwrap_or_else(|_| unreachable!("`infer` has checked that groups divide"));
        let each_operand = operands.iter().map(|operand| {
            let mut result = (*operand).clone();
            for group in groups.clone() {
                if group.iter().any(|replica| running[*replica] != running[group[0]]) {
                    let (op, location) = (node.op.name(), node.location.line);
                    return Err(InterpError::LeftLoop { op, location, group });
                }
                let values: Vec<_> = group.iter().map(|replica| &*operand[*replica]).collect();
                for (replica, value) in group.iter().zip(op(&values)) {
                    result[*replica] = value;
                }
            }
            Ok(result)
        });
        each_operand.collect()
    };
    let same = || Ok(owned(operands));
    match &node.op {
        Op::Input { index } => Ok(vec![inputs[*index].clone()]),
        Op::Constant(literal) => Ok(vec![vec![Arc::clone(literal); mesh.num_replicas()]]),
        Op::Iota { dtype, dims, dim } => each(&|_| movement::iota(*dtype, dims, *dim)),
        Op::Unary(op) => each(&|x| elementwise::unary(*op, x[0])),
        Op::Binary(op) => each(&|x| elementwise::binary(*op, x[0], x[1])),
        Op::Compare(op) => each(&|x| elementwise::compare(*op, x[0], x[1])),
        Op::Select => each(&|x| movement::select(x[0], x[1], x[2])),
        Op::Clamp => each(&|x| elementwise::clamp(x[0], x[1], x[2])),
        Op::Convert(dtype) => each(&|x| elementwise::convert(x[0], *dtype)),
        Op::BitcastConvert(_) | Op::Reshape { .. } => each(&|x| movement::relabel(x[0], ty)),
        Op::BroadcastInDim { dims, broadcast_dims } => {
            each(&|x| movement::broadcast_in_dim(x[0], dims, broadcast_dims))
        }
        Op::Transpose { permutation } => each(&|x| movement::transpose(x[0], permutation)),
        Op::Slice { start, strides, .. } => {
            each(&|x| movement::slice(x[0], &ty.dims, start, strides))
        }
        Op::DynamicSlice { .. } => each(&|x| movement::dynamic_slice(x[0], &ty.dims, &x[1..])),
        Op::DynamicUpdateSlice => each(&|x| movement::dynamic_update_slice(x[0], x[1], &x[2..])),
        Op::Pad { low, interior, .. } => {
            each(&|x| movement::pad(x[0], x[1], &ty.dims, low, interior))
        }
        Op::Concatenate { dim } => each(&|x| movement::concatenate(x, *dim)),
        Op::Reduce { reduction, dims } => each(&|x| contract::reduce(*reduction, x[0], dims)),
        Op::DotGeneral(dims) => each(&|x| contract::dot_general(x[0], x[1], dims, &ty.dims)),
        Op::Convolution(convolution) => {
            each(&|x| window::convolution(x[0], x[1], convolution, &ty.dims))
        }
        Op::Reverse { dims } => each(&|x| movement::reverse(x[0], dims)),
        Op::ReduceWindow { reduction, window } => {
            each(&|x| window::reduce_window(*reduction, x[0], window, &ty.dims))
        }
        Op::SelectAndScatter { window } => {
            each(&|x| window::select_and_scatter(x[0], x[1], window))
        }
        Op::While { regions, .. } => while_loop(&regions.cond, &regions.body, operands, running),
        Op::Gather { num_batch } => each(&|x| gather::gather(x[0], x[1], *num_batch, &ty.dims)),
        Op::Scatter { num_batch } => each(&|x| gather::scatter(x[0], x[1], x[2], *num_batch)),
        Op::TopK { k } => {
            let found = operands[0].iter().map(|x| top_k::top_k(x, *k).map(Arc::new));
            let (values, indices) = found.map(|[values, indices]| (values, indices)).unzip();
            Ok(vec![values, indices])
        }
        Op::Threefry(threefry) => {
            let mut results = vec![vec![]; threefry.num_words];
            for replica in 0..mesh.num_replicas() {
                let words: Vec<_> =
                    operands.iter().map(|value| value[replica].as_slice::<u32>()).collect();
                for (result, words) in results.iter_mut().zip(threefry.interpret(&words)) {
                    result.push(Arc::new(Literal::from_slice(&ty.dims, &words)));
                }
            }
            Ok(results)
        }
        Op::Scan(scan) => region::scan(scan, operands, running),
        Op::Case { branches } => region::case(branches, operands, running),
        Op::Remat(body) | Op::CustomVjp(CustomVjp { forward: body, .. }) => {
            run(&body.graph, &owned(operands), running)
        }
        Op::ReplicaId { axes } => {
            let index = |replica| Literal::scalar(mesh.index(replica, *axes) as u32);
            Ok(vec![(0..mesh.num_replicas()).map(|replica| Arc::new(index(replica))).collect()])
        }
        Op::CustomCall(call) => {
            let (target, location) = (call.target.clone(), node.location.line);
            Err(InterpError::CustomCall { target, location })
        }
        Op::FusionBarrier
        | Op::BlockBoundary
        | Op::OptimizationBarrier
        | Op::Vary { .. }
        | Op::StopGradient => same(),
        Op::Replicated { axes } => {
            for group in mesh.groups(*axes) {
                let first = &operands[0][group[0]];
                if group.iter().any(|replica| operands[0][*replica].bytes() != first.bytes()) {
                    return Err(InterpError::Differs { axes: *axes, location: node.location.line });
                }
            }
            same()
        }
        Op::AllReduce { reduction, .. } => in_groups(&|x| collective::all_reduce(*reduction, x)),
        Op::AllGather { dim, .. } => in_groups(&|x| collective::all_gather(x, *dim)),
        Op::ReduceScatter { dim, .. } => in_groups(&|x| collective::reduce_scatter(x, *dim)),
        Op::AllToAll { split_dim, concat_dim, .. } => {
            in_groups(&|x| collective::all_to_all(x, *split_dim, *concat_dim))
        }
        Op::CollectivePermute { pairs, .. } => {
            in_groups(&|x| collective::collective_permute(x, pairs))
        }
    }
}

fn owned(values: &[&Replicas]) -> Vec<Replicas> {
    values.iter().map(|value| (*value).clone()).collect()
}

fn while_loop(
    cond: &Graph,
    body: &Graph,
    init: &[&Replicas],
    running: &[bool],
) -> Result<Vec<Replicas>, InterpError> {
    let mut carried = owned(init);
    let mut running = running.to_vec();
    loop {
        let holds = run(cond, &carried, &running)?;
        for (running, holds) in running.iter_mut().zip(&holds[0]) {
            *running &= holds.bytes() == [1];
        }
        if !running.contains(&true) {
            return Ok(carried);
        }
        let next = run(body, &carried, &running)?;
        for (value, next) in carried.iter_mut().zip(next) {
            for (replica, next) in next.into_iter().enumerate().filter(|(r, _)| running[*r]) {
                value[replica] = next;
            }
        }
    }
}

/// Elements of an integer or `pred` tensor, in an integer wide enough for all dtypes.
fn ints(x: &Literal) -> Vec<i128> {
    macro_rules! wide {
        ($ty:ty) => {
            x.as_slice::<$ty>().iter().map(|v| i128::from(*v)).collect()
        };
    }
    match x.dtype() {
        DType::I64 => wide!(i64),
        DType::I32 => wide!(i32),
        DType::I8 => wide!(i8),
        DType::U64 => wide!(u64),
        DType::U32 => wide!(u32),
        DType::U8 => wide!(u8),
        DType::Pred => x.bytes().iter().map(|v| i128::from(*v)).collect(),
        float => unreachable!("infer rejects {float} operands here"),
    }
}

/// An integer tensor of the values modulo 2^width, or a `pred` tensor that is true where they are
/// not 0.
fn from_ints(dtype: DType, dims: &[usize], values: &[i128]) -> Literal {
    macro_rules! wrap {
        ($ty:ty) => {
            Literal::from_slice(dims, &values.iter().map(|v| *v as $ty).collect::<Vec<_>>())
        };
    }
    match dtype {
        DType::I64 => wrap!(i64),
        DType::I32 => wrap!(i32),
        DType::I8 => wrap!(i8),
        DType::U64 => wrap!(u64),
        DType::U32 => wrap!(u32),
        DType::U8 => wrap!(u8),
        DType::Pred => Literal::pred(dims, &values.iter().map(|v| *v != 0).collect::<Vec<_>>()),
        float => unreachable!("infer rejects {float} results here"),
    }
}

/// The least and the greatest value of an integer dtype.
fn int_range(dtype: DType) -> (i128, i128) {
    match (dtype.is_unsigned() || dtype == DType::Pred, dtype.size_bits()) {
        _ if dtype == DType::Pred => (0, 1),
        (true, bits) => (0, (1 << bits) - 1),
        (false, bits) => (-1 << (bits - 1), (1 << (bits - 1)) - 1),
    }
}
