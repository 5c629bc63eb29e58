//! The closed set of operations, named as in StableHLO.
//!
//! To add an op, add a variant here and a line to each table: [`crate::infer`] (result types),
//! `grad` (its VJP), `interp` (its value), `stablehlo` (its text) and `count` (its cost).

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::{
    AxisSet, Convolution, CustomCall, CustomVjp, DType, Graph, Groups, Literal, Region, Scan,
    Threefry, Window,
};

/// One operation; its operands and result types are stored in the graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Input number `index` of the graph.
    Input {
        /// Position among the graph's inputs.
        index: usize,
    },
    /// A constant.
    Constant(Arc<Literal>),
    /// Each element is its index along `dim`.
    Iota {
        /// Result dtype: an integer or a float.
        dtype: DType,
        /// Result dims.
        dims: Vec<usize>,
        /// The dim that is counted along.
        dim: usize,
    },
    /// An elementwise function of one operand.
    Unary(Unary),
    /// An elementwise function of two operands of the same type.
    Binary(Binary),
    /// Elementwise comparison; the result is `pred`.
    Compare(Comparison),
    /// `select(pred, on_true, on_false)`, elementwise.
    Select,
    /// `clamp(min, x, max)`: min and max have x's type, or are scalars of its dtype.
    Clamp,
    /// Conversion of values to another dtype.
    Convert(DType),
    /// Reinterpretation of the bits as another dtype of the same width.
    BitcastConvert(DType),
    /// Operand dim `i` becomes result dim `broadcast_dims[i]`; size 1 is stretched, other dims are
    /// new.
    BroadcastInDim {
        /// Result dims.
        dims: Vec<usize>,
        /// Where each operand dim goes; strictly increasing.
        broadcast_dims: Vec<usize>,
    },
    /// The same elements in row-major order, with other dims.
    Reshape {
        /// Result dims.
        dims: Vec<usize>,
    },
    /// Result dim `i` is operand dim `permutation[i]`.
    Transpose {
        /// A permutation of the dims.
        permutation: Vec<usize>,
    },
    /// Elements `start..limit` in steps of `strides`, for each dim.
    Slice {
        /// First index.
        start: Vec<usize>,
        /// One past the last index.
        limit: Vec<usize>,
        /// Step, at least 1.
        strides: Vec<usize>,
    },
    /// `dynamic_slice(x, start...)`: `sizes` elements from `start`, one integer scalar per dim. The
    /// start is clamped so that the slice is in bounds.
    DynamicSlice {
        /// Result dims.
        sizes: Vec<usize>,
    },
    /// `dynamic_update_slice(x, update, start...)`: x with `update` written at `start`, which is
    /// clamped as in [`Op::DynamicSlice`].
    DynamicUpdateSlice,
    /// `pad(x, value)`: negative edges cut elements off; `interior` is put between elements.
    Pad {
        /// Before the first element of each dim.
        low: Vec<i64>,
        /// After the last element of each dim.
        high: Vec<i64>,
        /// Between neighbouring elements of each dim.
        interior: Vec<usize>,
    },
    /// Concatenation of the operands along `dim`.
    Concatenate {
        /// The dim along which they are joined.
        dim: usize,
    },
    /// Reduction over `dims`, which are removed.
    Reduce {
        /// The reduction.
        reduction: Reduction,
        /// Strictly increasing.
        dims: Vec<usize>,
    },
    /// Generalised matrix product; result dims are batch, lhs free, rhs free.
    DotGeneral(DotDims),
    /// Convolution of an input with a kernel.
    Convolution(Convolution),
    /// Reversal of the elements along `dims`.
    Reverse {
        /// Strictly increasing.
        dims: Vec<usize>,
    },
    /// Reduction over each position of a sliding window.
    ReduceWindow {
        /// The reduction.
        reduction: Reduction,
        /// The window.
        window: Window,
    },
    /// `select_and_scatter(x, source)`: for each position of the window, adds `source`'s element to
    /// the position of the greatest element of `x` in the window, the first if several are equal.
    SelectAndScatter {
        /// The window, without dilations.
        window: Window,
    },
    /// `while(init...)`: results are the carried values when the condition is false.
    While {
        /// Condition and body.
        regions: Arc<Regions>,
        /// Number of iterations, if known: `count` multiplies by it.
        trip_count: Option<u64>,
    },
    /// `gather(x, indices)`: rows of `x` `[batch.., n, slice..]` at the integers
    /// `[batch.., index..]`, as `[batch.., index.., slice..]`. Indices are clamped to the range.
    Gather {
        /// Number of leading dims that operand and indices share.
        num_batch: usize,
    },
    /// `scatter(x, indices, updates)`: `x` with the updates `[batch.., index.., slice..]` added to
    /// its rows at the indices. Indices out of range are ignored.
    Scatter {
        /// Number of leading dims that operand, indices and updates share.
        num_batch: usize,
    },
    /// `top_k(x)`: the `k` greatest elements along the last dim, in decreasing order, and their i32
    /// indices. Equal elements keep their order; floats are compared in IEEE 754's total order.
    TopK {
        /// Number of elements, at least 1.
        k: usize,
    },
    /// Random bits: Threefry-2x32 of a key and of a grid of counters.
    Threefry(Threefry),
    /// `scan(consts.., init.., xs..) -> carried.., ys..`: a differentiable loop that reads and
    /// writes stacks of slices.
    Scan(Scan),
    /// `case(index, x..)`: the results of branch `index` on x; only this branch runs. An index out
    /// of range takes the last branch.
    Case {
        /// The branches; all return the same types.
        branches: Vec<Arc<Region>>,
    },
    /// `remat(x..)`: the body's results; its VJP recomputes the body instead of keeping its
    /// intermediate values.
    Remat(Arc<Region>),
    /// `custom_vjp(x..)`: the results of its forward function; its VJP is its backward function.
    CustomVjp(CustomVjp),
    /// A call of a function of the backend.
    CustomCall(Arc<CustomCall>),
    /// The operand, unchanged. On backends where it pays, its producer and its users are not fused
    /// into one loop; elsewhere it does nothing.
    FusionBarrier,
    /// The operand, unchanged: a mark between two blocks of a model.
    BlockBoundary,
    /// The operands, unchanged; compilers move and merge nothing across.
    OptimizationBarrier,
    /// This replica's index along `axes`, a u32 scalar that varies over exactly these axes.
    ReplicaId {
        /// Which axes.
        axes: AxisSet,
    },
    /// The operand, unchanged, typed as varying over `axes` too. Costs nothing. Its VJP is an
    /// `all_reduce`: for a parameter, the one that synchronises gradients.
    Vary {
        /// The axes added to the type.
        axes: AxisSet,
    },
    /// The operand, unchanged, typed as not varying over `axes`: all replicas of a group along
    /// `axes` must have the same value, which the interpreter checks and a compiler cannot. Costs
    /// nothing. In its VJP each of them gets an equal share of the cotangent.
    Replicated {
        /// The axes removed from the type.
        axes: AxisSet,
    },
    /// The operand, unchanged; gradients end here.
    StopGradient,
    /// Reduction over each replica group; variadic. Over whole groups the result varies over none
    /// of their axes, and the VJP of a sum is `vary`. Over subgroups the result still varies over
    /// the axes, since each subgroup has its own; so do the cotangents, and a sum is its own VJP.
    AllReduce {
        /// The reduction.
        reduction: Reduction,
        /// The replica groups.
        groups: Groups,
    },
    /// Concatenates the operands of each replica group along `dim`.
    AllGather {
        /// The dim along which shards are joined.
        dim: usize,
        /// The replica groups.
        groups: Groups,
    },
    /// Sums over each replica group; replica `i` of a group keeps shard `i` along `dim`.
    ReduceScatter {
        /// The dim that is cut.
        dim: usize,
        /// The replica groups.
        groups: Groups,
    },
    /// Cuts `split_dim` into pieces, sends piece `i` to replica `i` of the group, and concatenates
    /// the received pieces along `concat_dim`.
    AllToAll {
        /// The dim that is cut.
        split_dim: usize,
        /// The dim along which pieces are joined.
        concat_dim: usize,
        /// The replica groups.
        groups: Groups,
    },
    /// Sends the value of replica `source` of each group to replica `target` of the group, for each
    /// pair. A replica that is no target gets zeros.
    CollectivePermute {
        /// `(source, target)`: positions in the group. Sources are distinct, and so are targets.
        pairs: Vec<(usize, usize)>,
        /// The replica groups.
        groups: Groups,
    },
}

impl Op {
    /// StableHLO's name of the op (our own for `input`, `scan`, `remat`, `vary`, `threefry` and
    /// `stop_gradient`; CHLO's for `erf` and `top_k`).
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input { .. } => "input",
            Op::Constant(_) => "constant",
            Op::Iota { .. } => "iota",
            Op::Unary(op) => op.name(),
            Op::Binary(op) => op.name(),
            Op::Compare(_) => "compare",
            Op::Select => "select",
            Op::Clamp => "clamp",
            Op::Convert(_) => "convert",
            Op::BitcastConvert(_) => "bitcast_convert",
            Op::BroadcastInDim { .. } => "broadcast_in_dim",
            Op::Reshape { .. } => "reshape",
            Op::Transpose { .. } => "transpose",
            Op::Slice { .. } => "slice",
            Op::DynamicSlice { .. } => "dynamic_slice",
            Op::DynamicUpdateSlice => "dynamic_update_slice",
            Op::Pad { .. } => "pad",
            Op::Concatenate { .. } => "concatenate",
            Op::Reduce { .. } => "reduce",
            Op::DotGeneral(_) => "dot_general",
            Op::Convolution(_) => "convolution",
            Op::Reverse { .. } => "reverse",
            Op::ReduceWindow { .. } => "reduce_window",
            Op::SelectAndScatter { .. } => "select_and_scatter",
            Op::While { .. } => "while",
            Op::Gather { .. } => "gather",
            Op::Scatter { .. } => "scatter",
            Op::TopK { .. } => "top_k",
            Op::Threefry(_) => "threefry",
            Op::Scan(_) => "scan",
            Op::Case { .. } => "case",
            Op::Remat(_) => "remat",
            Op::CustomVjp(_) => "custom_vjp",
            Op::CustomCall(_) => "custom_call",
            Op::FusionBarrier => "fusion_barrier",
            Op::BlockBoundary => "block_boundary",
            Op::OptimizationBarrier => "optimization_barrier",
            Op::ReplicaId { .. } => "replica_id",
            Op::Vary { .. } => "vary",
            Op::Replicated { .. } => "replicated",
            Op::StopGradient => "stop_gradient",
            Op::AllReduce { .. } => "all_reduce",
            Op::AllGather { .. } => "all_gather",
            Op::ReduceScatter { .. } => "reduce_scatter",
            Op::AllToAll { .. } => "all_to_all",
            Op::CollectivePermute { .. } => "collective_permute",
        }
    }

    /// The body that replaces the op when the graph is lowered or evaluated, if it has one.
    pub(crate) fn inlined_body(&self) -> Option<&Region> {
        match self {
            Op::Remat(body) | Op::CustomVjp(CustomVjp { forward: body, .. }) => Some(body),
            _ => None,
        }
    }

    /// The graphs inside the op.
    pub(crate) fn regions(&self) -> Vec<&Graph> {
        match self {
            Op::While { regions, .. } => vec![&regions.cond, &regions.body],
            Op::Scan(Scan { body, .. }) => vec![&body.graph],
            Op::Case { branches } => branches.iter().map(|branch| &branch.graph).collect(),
            op => op.inlined_body().map(|body| &body.graph).into_iter().collect(),
        }
    }

    /// `true` for ops that spend their FLOPs on products.
    pub(crate) fn is_matmul(&self) -> bool {
        matches!(self, Op::DotGeneral(_) | Op::Convolution(_) | Op::CustomCall(_))
    }

    /// `true` if the op, or one inside it, has a side effect.
    pub(crate) fn has_side_effect(&self) -> bool {
        let mut inner = self.regions().into_iter().flat_map(Graph::nodes);
        matches!(self, Op::CustomCall(call) if call.has_side_effect)
            || inner.any(|node| node.op.has_side_effect())
    }

    /// The op with a pass applied to its graphs, if it is a loop or a case.
    pub(crate) fn with_regions(&self, pass: impl Fn(&Graph) -> Graph) -> Option<Op> {
        let region = |region: &Region| Region::new(pass(&region.graph));
        Some(match self {
            Op::While { regions, trip_count } => {
                let [cond, body] = [&regions.cond, &regions.body].map(pass);
                Op::While { regions: Arc::new(Regions { cond, body }), trip_count: *trip_count }
            }
            Op::Scan(scan) => Op::Scan(Scan { body: region(&scan.body), ..scan.clone() }),
            Op::Case { branches } => {
                Op::Case { branches: branches.iter().map(|branch| region(branch)).collect() }
            }
            _ => return None,
        })
    }

    /// The replica groups of a collective; `None` for other ops.
    pub fn groups(&self) -> Option<Groups> {
        match self {
            Op::AllReduce { groups, .. }
            | Op::AllGather { groups, .. }
            | Op::ReduceScatter { groups, .. }
            | Op::AllToAll { groups, .. }
            | Op::CollectivePermute { groups, .. } => Some(*groups),
            _ => None,
        }
    }

    /// The axes along which a collective communicates; none for other ops.
    pub fn collective_axes(&self) -> AxisSet {
        self.groups().map_or(AxisSet::EMPTY, Groups::axes)
    }
}

macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($variant:ident = $text:literal, $doc:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $(#[doc = $doc] $variant,)* }
        impl $name {
            /// Every variant.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// StableHLO's name.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }
    };
}

named! {
    /// Elementwise functions of one operand.
    Unary {
        Abs = "abs", "Absolute value.";
        Ceil = "ceil", "Least whole number >= x.";
        Cosine = "cosine", "Cosine of radians.";
        Erf = "erf", "Error function: 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x. Of \
                      CHLO.";
        Exponential = "exponential", "e^x.";
        ExponentialMinusOne = "exponential_minus_one", "e^x - 1, accurate near 0.";
        Floor = "floor", "Greatest whole number <= x.";
        IsFinite = "is_finite", "Neither infinite nor NaN; the result is `pred`.";
        Log = "log", "Natural logarithm.";
        LogPlusOne = "log_plus_one", "log(1 + x), accurate near 0.";
        Logistic = "logistic", "1 / (1 + e^-x).";
        Negate = "negate", "-x.";
        Not = "not", "Bitwise, or logical for `pred`.";
        RoundNearestEven = "round_nearest_even", "Nearest whole number, ties to even.";
        Rsqrt = "rsqrt", "1 / sqrt(x).";
        Sign = "sign", "-1, 0 or 1; NaN for NaN.";
        Sine = "sine", "Sine of radians.";
        Sqrt = "sqrt", "Square root.";
        Tanh = "tanh", "Hyperbolic tangent.";
    }
}

named! {
    /// Elementwise functions of two operands.
    Binary {
        Add = "add", "x + y (`or` for pred).";
        And = "and", "Bitwise, or logical for `pred`.";
        Divide = "divide", "x / y; integers round towards zero.";
        Maximum = "maximum", "The greater; NaN if either is NaN.";
        Minimum = "minimum", "The lesser; NaN if either is NaN.";
        Multiply = "multiply", "x * y (`and` for pred).";
        Or = "or", "Bitwise, or logical for `pred`.";
        Power = "power", "x^y.";
        Remainder = "remainder", "x - y * trunc(x / y), with the sign of x.";
        ShiftLeft = "shift_left", "x << y; 0 if y >= the width.";
        ShiftRightArithmetic = "shift_right_arithmetic", "x >> y, copying the sign bit.";
        ShiftRightLogical = "shift_right_logical", "x >> y, filling with zeros.";
        Subtract = "subtract", "x - y.";
        Xor = "xor", "Bitwise, or logical for `pred`.";
    }
}

named! {
    /// Directions of [`Op::Compare`]. NaN is unequal to everything and unordered.
    Comparison {
        Eq = "EQ", "Equal.";
        Ne = "NE", "Not equal.";
        Lt = "LT", "Less.";
        Le = "LE", "Less or equal.";
        Gt = "GT", "Greater.";
        Ge = "GE", "Greater or equal.";
    }
}

named! {
    /// Reductions, named by the StableHLO op that combines two elements.
    Reduction {
        Sum = "add", "Sum; for integers modulo 2^width.";
        Max = "maximum", "Greatest.";
        Min = "minimum", "Least.";
        And = "and", "All; for `pred`.";
        Or = "or", "Any; for `pred`.";
    }
}

/// The batch and contracted dims of an [`Op::DotGeneral`], in pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DotDims {
    /// Batch dims of the left operand.
    pub lhs_batch: Vec<usize>,
    /// Batch dims of the right operand, paired with `lhs_batch`.
    pub rhs_batch: Vec<usize>,
    /// Contracted dims of the left operand.
    pub lhs_contracting: Vec<usize>,
    /// Contracted dims of the right operand, paired with `lhs_contracting`.
    pub rhs_contracting: Vec<usize>,
}

impl DotDims {
    /// Contraction of `lhs` dims with `rhs` dims, without batch dims.
    pub fn contract(lhs: &[usize], rhs: &[usize]) -> Self {
        Self { lhs_contracting: lhs.to_vec(), rhs_contracting: rhs.to_vec(), ..Self::default() }
    }

    /// Adds batch dims.
    #[must_use]
    pub fn batch(self, lhs: &[usize], rhs: &[usize]) -> Self {
        Self { lhs_batch: lhs.to_vec(), rhs_batch: rhs.to_vec(), ..self }
    }

    /// Dims of the left operand that are neither batch nor contracted.
    pub fn lhs_free(&self, rank: usize) -> Vec<usize> {
        free_dims(rank, &self.lhs_batch, &self.lhs_contracting)
    }

    /// Dims of the right operand that are neither batch nor contracted.
    pub fn rhs_free(&self, rank: usize) -> Vec<usize> {
        free_dims(rank, &self.rhs_batch, &self.rhs_contracting)
    }
}

fn free_dims(rank: usize, batch: &[usize], contracting: &[usize]) -> Vec<usize> {
    (0..rank).filter(|dim| !batch.contains(dim) && !contracting.contains(dim)).collect()
}

/// The condition and body of a `while`: graphs with the carried values as inputs. Compared by
/// identity, so that loops are never merged.
#[derive(Debug)]
pub struct Regions {
    /// From the carried values to one `pred` scalar.
    pub cond: Graph,
    /// From the carried values to the next ones.
    pub body: Graph,
}

impl PartialEq for Regions {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Regions {}

impl Hash for Regions {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self, state);
    }
}
