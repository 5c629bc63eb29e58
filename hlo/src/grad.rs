//! Reverse-mode differentiation. Gradients are ordinary ops appended to the same graph.
//!
//! # What is differentiated on many replicas
//!
//! A value that varies over no axis is one number that all replicas hold. A value that varies over
//! `data` is N numbers, one per replica. [`grad`] of a scalar loss differentiates **the sum of the
//! loss over the axes over which it varies**: the one number, or the sum of the N numbers. With
//! this convention, the rules of the collectives follow from their meaning, and a cotangent always
//! has exactly the type of its value, varying axes included (checked at every node):
//!
//! | op | VJP |
//! |---|---|
//! | `vary` (type a replicated value as varying) | `all_reduce` sum |
//! | `all_reduce` sum over whole groups | `vary` |
//! | `all_reduce` sum over subgroups | the same |
//! | `all_gather` | `reduce_scatter` |
//! | `reduce_scatter` | `all_gather` |
//! | `all_to_all` | `all_to_all` back |
//! | `collective_permute` | `collective_permute` back |
//!
//! So the gradient all_reduce of data-parallel training *is* the VJP of the parameter's `vary`.
//! There is one for each `vary`, and it cannot be forgotten: an op on a replicated parameter and a
//! varying batch does not type-check without `vary`.
//!
//! # The two errors that this prevents
//!
//! Without varying axes in the types, `all_reduce` must be given a VJP that is right for only some
//! of its uses:
//!
//! 1. **`all_reduce` as the VJP of `all_reduce`.** A loss after an all_reduce (a global mean, a
//!    batch norm, a tensor-parallel layer) then sums N equal cotangents: gradients are N times too
//!    large, which a tuned learning rate hides until N changes.
//! 2. **The identity as the VJP of everything.** A data-parallel loss that is reduced by hand
//!    inside the differentiated function then gives every replica the gradient of its own part of
//!    the batch: the replicas drift apart without an error.
//!
//! Here the VJP in the first case is `vary`, not a sum, and the second case does not type-check:
//! the cotangent of a replicated parameter must itself be replicated. `tests/lockstep_gradients.rs`
//! compares data-parallel, tensor-parallel and sharded losses on 4 replicas with one replica that
//! has the whole batch.

use crate::ops::custom_vjp::{Recompute, Recomputed};
use crate::ops::{convolution, custom_vjp, gather, pooling, top_k};
use crate::region;
use crate::{
    Binary, Comparison, DType, DotDims, Graph, Op, Reduction, Tensor, TensorType, Tracer, Unary,
    ValueId,
};

/// Gradients of the scalar `loss` with respect to each of `wrt`, in their types; zeros if the loss
/// does not depend on one. If the loss varies over mesh axes, these are the gradients of its sum
/// over them.
///
/// ```
/// use hlo::{DType, Literal, Mesh, TensorType, grad, interpret, trace};
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F64, &[3]));
///     let loss = (x * x).sum();
///     t.output("gradient", grad(loss, &[x])[0]);
/// })?;
/// let x = Literal::from_slice(&[3], &[1.0, 2.0, 3.0]);
/// let outputs = interpret(&graph, &[vec![x]]).unwrap();
/// assert_eq!(outputs[0][0].to_f64(), [2.0, 4.0, 6.0]);
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn grad<'g>(loss: Tensor<'g>, wrt: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
    if loss.rank() != 0 || !loss.dtype().is_float() {
        loss.reject("grad", "the loss must be a float scalar; sum it");
    }
    vjp(&[(loss, loss.full_like(1.0))], wrt)
}

/// Vector-Jacobian product: the cotangents of `wrt`, from pairs of a value and its cotangent in the
/// value's type. [`grad`] is this with a cotangent of 1.
#[track_caller]
pub fn vjp<'g>(cotangents: &[(Tensor<'g>, Tensor<'g>)], wrt: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
    vjp_with(cotangents, wrt, Recompute::Again)
}

#[track_caller]
pub(crate) fn vjp_with<'g>(
    cotangents: &[(Tensor<'g>, Tensor<'g>)],
    wrt: &[Tensor<'g>],
    recompute: Recompute,
) -> Vec<Tensor<'g>> {
    let Some(tracer) = cotangents.first().map(|(value, _)| value.tracer()) else {
        return wrt.iter().map(|x| x.full_like(0.0)).collect();
    };
    let poison = || wrt.iter().map(|_| tracer.poison()).collect::<Vec<_>>();
    let given = cotangents.iter().flat_map(|(value, cotangent)| [*value, *cotangent]);
    if !tracer.owns("grad", &given.chain(wrt.iter().copied()).collect::<Vec<_>>()) {
        return poison();
    }
    let mut backward = Backward::new(tracer, wrt, recompute);
    for (value, cotangent) in cotangents {
        let Some(id) = value.value() else { return poison() };
        backward.add(id, *cotangent, value.ty());
    }
    if tracer.in_backward(|| backward.run()).is_none() {
        return poison();
    }
    wrt.iter()
        .map(|x| x.value().and_then(|id| backward.cotangents[id.index()]))
        .zip(wrt)
        .map(|(cotangent, x)| cotangent.unwrap_or_else(|| x.full_like(0.0)))
        .collect()
}

/// For each value, `true` if gradients flow from it to one of `wrt`. Only such values get
/// cotangents. How `wrt` itself is computed does not matter: it may depend on constants alone.
pub(crate) fn active(graph: &Graph, wrt: impl IntoIterator<Item = ValueId>) -> Vec<bool> {
    let mut active = vec![false; graph.num_values()];
    for id in wrt {
        active[id.index()] = graph.ty(id).dtype.is_float();
    }
    for node in graph.nodes() {
        let stops = matches!(node.op, Op::StopGradient);
        if !stops && node.operands.iter().any(|operand| active[operand.index()]) {
            for result in node.results() {
                active[result.index()] = graph.ty(result).dtype.is_float();
            }
        }
    }
    active
}

impl<'g> Tensor<'g> {
    /// `true` if gradients flow from this value to `x`.
    pub fn depends_on(self, x: Tensor<'g>) -> bool {
        let (Some(value), Some(x)) = (self.value(), x.value()) else { return false };
        active(&self.tracer().graph(), [x])[value.index()]
    }

    /// `true` if this value is computed from `x`, whether or not gradients flow.
    pub fn is_computed_from(self, x: Tensor<'g>) -> bool {
        let (Some(value), Some(x)) = (self.value(), x.value()) else { return false };
        let graph = self.tracer().graph();
        let mut follows = vec![false; graph.num_values()];
        follows[x.index()] = true;
        for node in graph.nodes() {
            if node.operands.iter().any(|operand| follows[operand.index()]) {
                node.results().for_each(|result| follows[result.index()] = true);
            }
        }
        follows[value.index()]
    }
}

struct Backward<'g> {
    tracer: &'g Tracer,
    active: Vec<bool>,
    cotangents: Vec<Option<Tensor<'g>>>,
    recomputed: Recomputed<'g>,
}

impl<'g> Backward<'g> {
    fn new(tracer: &'g Tracer, wrt: &[Tensor<'g>], recompute: Recompute) -> Self {
        let active = active(&tracer.graph(), wrt.iter().filter_map(Tensor::value));
        let cotangents = vec![None; active.len()];
        let recomputed = Recomputed::new(tracer, recompute);
        Self { tracer, active, cotangents, recomputed }
    }

    /// Adds to the cotangent of a value.
    fn add(&mut self, id: ValueId, cotangent: Tensor<'g>, expected: TensorType) {
        if cotangent.value().is_some() && cotangent.ty() != expected {
            cotangent.reject("grad", format!("is the cotangent of a value of type {expected}"));
        }
        let sum = &mut self.cotangents[id.index()];
        *sum = Some(sum.map_or(cotangent, |sum| sum + cotangent));
    }

    /// Walks the nodes backwards; `None` after an error.
    fn run(&mut self) -> Option<()> {
        let num_nodes = self.tracer.graph().nodes().len();
        for index in (0..num_nodes).rev() {
            let node = {
                let graph = self.tracer.graph();
                let node = &graph.nodes()[index];
                let wanted = node.operands.iter().any(|id| self.is_active(*id));
                let reached = node
                    .results()
                    .any(|id| self.cotangents.get(id.index()).is_some_and(Option::is_some));
                if !(wanted && reached) {
                    continue;
                }
                node.clone()
            };
            let tensor = |id: ValueId| self.tracer.tensor(id);
            let mut operands: Vec<_> = node.operands.iter().copied().map(tensor).collect();
            let results: Vec<_> = node.results().map(tensor).collect();
            let mut cotangents: Vec<_> =
                node.results().map(|id| self.cotangents[id.index()]).collect();
            self.tracer.at(node.location, || {
                self.recomputed.replace(&node, &mut operands, &mut cotangents);
            });
            let wanted: Vec<_> = node.operands.iter().map(|id| self.is_active(*id)).collect();
            let rule = || rule(&node.op, &operands, &results, &cotangents, &wanted);
            match self.tracer.at(node.location, rule) {
                Ok(operand_cotangents) => {
                    let operands = node.operands.iter().zip(&wanted);
                    for ((id, wanted), cotangent) in operands.zip(operand_cotangents) {
                        if let (true, Some(cotangent)) = (*wanted, cotangent) {
                            let expected = self.tracer.graph().ty(*id).clone();
                            self.tracer.at(node.location, || self.add(*id, cotangent, expected));
                        }
                    }
                }
                Err(message) => {
                    self.tracer.at(node.location, || {
                        self.tracer.fail(node.op.name(), &operands, message);
                    });
                    return None;
                }
            }
        }
        Some(())
    }

    fn is_active(&self, id: ValueId) -> bool {
        self.active.get(id.index()).copied().unwrap_or(false)
    }
}

/// Cotangents of an op's operands (`None` is zero), or why the op has no VJP.
pub(crate) type Cotangents<'g> = Result<Vec<Option<Tensor<'g>>>, String>;

/// The VJP rules: the cotangents of an op's operands `x`, from its operands, its results `y` and
/// the results' cotangents. Only cotangents that are `wanted` are used; expensive rules skip the
/// others.
fn rule<'g>(
    op: &Op,
    x: &[Tensor<'g>],
    y: &[Tensor<'g>],
    cotangents: &[Option<Tensor<'g>>],
    wanted: &[bool],
) -> Cotangents<'g> {
    // Nodes without any cotangent are not visited.
    let Some(ct) = cotangents.iter().flatten().next().copied() else {
        return Ok(vec![None; x.len()]);
    };
    let one = |cotangent| Ok(vec![Some(cotangent)]);
    match op {
        Op::Input { .. } | Op::Constant(_) | Op::Iota { .. } | Op::ReplicaId { .. } => Ok(vec![]),
        Op::Unary(op) => Ok(vec![unary(*op, x[0], y[0], ct)]),
        Op::Binary(op) => Ok(binary(*op, x[0], x[1], y[0], ct)),
        Op::Compare(_) => Ok(vec![None, None]),
        Op::Threefry(_) => Ok(vec![None; x.len()]),
        Op::Select => {
            let zero = ct.full_like(0.0);
            Ok(vec![None, Some(x[0].select(ct, zero)), Some(x[0].select(zero, ct))])
        }
        Op::Clamp => Ok(clamp(x, ct)),
        Op::Convert(_) => one(ct.convert(x[0].dtype())),
        Op::BitcastConvert(_) | Op::StopGradient => Ok(vec![None]),
        Op::BroadcastInDim { broadcast_dims, .. } => one(unbroadcast(x[0], broadcast_dims, ct)),
        Op::Reshape { .. } => one(ct.reshape(&x[0].shape())),
        Op::Transpose { permutation } => one(ct.transpose(&inverse(permutation))),
        Op::Slice { start, limit: _, strides } => one(unslice(x[0], start, strides, ct)),
        Op::DynamicSlice { .. } => {
            let zeros = x[0].full_like(0.0);
            Ok(with_no_start(vec![Some(zeros.dynamic_update_slice(ct, &x[1..]))], x))
        }
        Op::DynamicUpdateSlice => {
            let (update, start) = (x[1], &x[2..]);
            let kept = ct.dynamic_update_slice(update.full_like(0.0), start);
            let written = ct.dynamic_slice(start, &update.shape());
            Ok(with_no_start(vec![Some(kept), Some(written)], x))
        }
        Op::Pad { low, high, interior } => {
            let inner = unpad(x[0], low, high, interior, ct);
            let around = wanted[1].then(|| on_padding(x[0], low, high, interior, ct).sum());
            Ok(vec![Some(inner), around])
        }
        Op::Concatenate { dim } => Ok(unconcatenate(x, *dim, ct)),
        Op::Reduce { reduction, dims } => Ok(vec![reduce(*reduction, dims, x[0], y[0], ct)]),
        Op::DotGeneral(dims) => Ok(dot_general(dims, x[0], x[1], ct)),
        Op::Convolution(forward) => {
            Ok(convolution::vjp(forward, x[0], x[1], ct).map(Some).to_vec())
        }
        Op::Reverse { dims } => one(ct.reverse(dims)),
        Op::ReduceWindow { reduction, window } => {
            Ok(vec![pooling::reduce_window_vjp(*reduction, window, x[0], ct)?])
        }
        Op::SelectAndScatter { window } => {
            let source = || pooling::source_cotangent(window, x[0], x[1], ct);
            Ok(vec![None, if wanted[1] { Some(source()?) } else { None }])
        }
        Op::While { .. } => {
            Err("a `while` is not reverse-differentiable; use `scan`, or take the gradient inside \
                 its body"
                .into())
        }
        Op::Gather { num_batch } => {
            Ok(vec![Some(gather::gather_vjp(x[0], x[1], *num_batch, ct)), None])
        }
        Op::Scatter { num_batch } => {
            let to_updates = gather::scatter_vjp(x[0], x[1], *num_batch, ct);
            Ok(vec![Some(ct), None, Some(to_updates)])
        }
        Op::TopK { .. } => Ok(vec![cotangents[0].map(|ct| top_k::vjp(x[0], y[1], ct))]),
        Op::Scan(scan) => region::scan_vjp(scan, x, cotangents, wanted),
        Op::Case { branches } => region::case_vjp(branches, x, cotangents, wanted),
        Op::Remat(body) => region::remat_vjp(body, x, cotangents, wanted),
        Op::CustomVjp(custom) => Ok(custom_vjp::vjp(custom, x, y, cotangents)),
        Op::CustomCall(call) => Err(format!(
            "custom_call of `{}` has no VJP of its own; call it inside `Tracer::custom_vjp`",
            call.target
        )),
        Op::FusionBarrier => one(ct.fusion_barrier()),
        Op::BlockBoundary => one(ct.block_boundary()),
        Op::OptimizationBarrier => Ok(barrier(ct.tracer(), cotangents)),
        Op::Vary { axes } => one(ct.all_reduce(Reduction::Sum, *axes)),
        Op::Replicated { axes } => {
            let group_size = ct.tracer().mesh().group_size(*axes);
            one((ct / group_size as f64).vary(*axes))
        }
        Op::AllReduce { reduction: Reduction::Sum, groups } => {
            let back = |ct: Tensor<'g>| match groups.is_whole() {
                true => ct.vary(groups.axes()),
                false => ct.all_reduce(Reduction::Sum, *groups),
            };
            Ok(cotangents.iter().map(|ct| ct.map(back)).collect())
        }
        Op::AllReduce { reduction, .. } => Err(format!(
            "all_reduce {} is not differentiable; put `stop_gradient` before it",
            reduction.name()
        )),
        Op::AllGather { dim, groups } => one(ct.reduce_scatter(*dim, *groups)),
        Op::ReduceScatter { dim, groups } => one(ct.all_gather(*dim, *groups)),
        Op::AllToAll { split_dim, concat_dim, groups } => {
            one(ct.all_to_all(*concat_dim, *split_dim, *groups))
        }
        Op::CollectivePermute { pairs, groups } => {
            let back: Vec<_> = pairs.iter().map(|(source, target)| (*target, *source)).collect();
            one(ct.collective_permute(&back, *groups))
        }
    }
}

fn unary<'g>(op: Unary, x: Tensor<'g>, y: Tensor<'g>, ct: Tensor<'g>) -> Option<Tensor<'g>> {
    match op {
        Unary::Abs => Some(ct * x.sign()),
        Unary::Cosine => Some(-(ct * x.sine())),
        Unary::Erf => Some(ct * ((-(x * x)).exponential() * std::f64::consts::FRAC_2_SQRT_PI)),
        Unary::Exponential => Some(ct * y),
        Unary::ExponentialMinusOne => Some(ct * (y + 1.0)),
        Unary::Log => Some(ct / x),
        Unary::LogPlusOne => Some(ct / (x + 1.0)),
        Unary::Logistic => Some(ct * (y * (1.0 - y))),
        Unary::Negate => Some(-ct),
        Unary::Rsqrt => Some(ct * (y * y * y) * -0.5),
        Unary::Sine => Some(ct * x.cosine()),
        Unary::Sqrt => Some(ct * 0.5 / y),
        Unary::Tanh => Some(ct * (1.0 - y * y)),
        // Piecewise constant, or not differentiable.
        Unary::Ceil
        | Unary::Floor
        | Unary::IsFinite
        | Unary::Not
        | Unary::RoundNearestEven
        | Unary::Sign => None,
    }
}

fn binary<'g>(
    op: Binary,
    a: Tensor<'g>,
    b: Tensor<'g>,
    y: Tensor<'g>,
    ct: Tensor<'g>,
) -> Vec<Option<Tensor<'g>>> {
    match op {
        Binary::Add => vec![Some(ct), Some(ct)],
        Binary::Subtract => vec![Some(ct), Some(-ct)],
        Binary::Multiply => vec![Some(ct * b), Some(ct * a)],
        Binary::Divide => vec![Some(ct / b), Some(-(ct * y / b))],
        Binary::Remainder => vec![Some(ct), Some(-(ct * ((a - y) / b)))],
        Binary::Power => {
            // 0^b has no logarithm, but also no slope in b where it is defined.
            let log = a.equal(0.0).select(a.full_like(0.0), a.log());
            // b * a^(b - 1), which is 0 and not 0 * inf where b is 0.
            let slope = b.equal(0.0).select(b.full_like(0.0), b * a.power(b - 1.0));
            vec![Some(ct * slope), Some(ct * y * log)]
        }
        Binary::Maximum => chosen(a, b, Comparison::Gt, ct),
        Binary::Minimum => chosen(a, b, Comparison::Lt, ct),
        Binary::And
        | Binary::Or
        | Binary::Xor
        | Binary::ShiftLeft
        | Binary::ShiftRightArithmetic
        | Binary::ShiftRightLogical => vec![None, None],
    }
}

/// Cotangents of maximum or minimum: all to the selected operand, half to each on a tie.
fn chosen<'g>(
    a: Tensor<'g>,
    b: Tensor<'g>,
    wins: Comparison,
    ct: Tensor<'g>,
) -> Vec<Option<Tensor<'g>>> {
    let zero = ct.full_like(0.0);
    let tie = a.equal(b).select(ct * 0.5, zero);
    let [takes_a, takes_b] =
        if wins == Comparison::Gt { [a.greater(b), b.greater(a)] } else { [a.less(b), b.less(a)] };
    vec![Some(takes_a.select(ct, tie)), Some(takes_b.select(ct, tie))]
}

fn clamp<'g>(x: &[Tensor<'g>], ct: Tensor<'g>) -> Vec<Option<Tensor<'g>>> {
    let zero = ct.full_like(0.0);
    let (below, above) = (x[1].less(x[0]), x[1].greater(x[2]));
    let part = |here: Tensor<'g>, bound: Tensor<'g>| {
        let part = here.select(ct, zero);
        Some(if bound.rank() < part.rank() { part.sum() } else { part })
    };
    vec![part(below, x[0]), Some(below.or(above).select(zero, ct)), part(above, x[2])]
}

fn unbroadcast<'g>(x: Tensor<'g>, broadcast_dims: &[usize], ct: Tensor<'g>) -> Tensor<'g> {
    let (from, to) = (x.shape(), ct.shape());
    let kept = |dim: usize| {
        broadcast_dims.iter().position(|d| *d == dim).is_some_and(|i| from[i] == to[dim])
    };
    let summed: Vec<_> = (0..to.len()).filter(|dim| !kept(*dim)).collect();
    if summed.is_empty() {
        return ct;
    }
    let sum = ct.reduce_sum(&summed);
    // Restores dims of size 1 that were stretched.
    sum.reshape(&from)
}

fn unslice<'g>(x: Tensor<'g>, start: &[usize], strides: &[usize], ct: Tensor<'g>) -> Tensor<'g> {
    let (from, taken) = (x.shape(), ct.shape());
    let interior: Vec<_> = strides.iter().map(|stride| stride - 1).collect();
    let low: Vec<_> = start.iter().map(|start| *start as i64).collect();
    let high: Vec<_> = (0..from.len())
        .map(|dim| {
            let covered = taken[dim] + taken[dim].saturating_sub(1) * interior[dim] + start[dim];
            from[dim] as i64 - covered as i64
        })
        .collect();
    ct.pad(0.0, &low, &high, &interior)
}

/// Appends zero cotangents for the integer start indices.
fn with_no_start<'g>(
    mut cotangents: Vec<Option<Tensor<'g>>>,
    x: &[Tensor<'g>],
) -> Vec<Option<Tensor<'g>>> {
    cotangents.resize(x.len(), None);
    cotangents
}

/// The part of a padded result's cotangent that belongs to the operand: negated padding removes the
/// edges and restores what was cut off, then a strided slice skips the interior padding.
fn unpad<'g>(
    x: Tensor<'g>,
    low: &[i64],
    high: &[i64],
    interior: &[usize],
    ct: Tensor<'g>,
) -> Tensor<'g> {
    let negated = |edges: &[i64]| edges.iter().map(|edge| -edge).collect::<Vec<_>>();
    let none = vec![0; interior.len()];
    let spread = ct.pad(0.0, &negated(low), &negated(high), &none);
    let strides: Vec<_> = interior.iter().map(|between| between + 1).collect();
    let taken = spread.slice(&none, &spread.shape(), &strides);
    taken.reshape(&x.shape())
}

/// The cotangent of a padded result where it is padding, and zeros elsewhere. The sum over the
/// padding is not computed as a difference of sums: the cotangent of the operand may be much
/// greater, or not finite.
fn on_padding<'g>(
    x: Tensor<'g>,
    low: &[i64],
    high: &[i64],
    interior: &[usize],
    ct: Tensor<'g>,
) -> Tensor<'g> {
    let inner = x.tracer().full(DType::Pred, &x.shape(), 1.0).pad(0.0, low, high, interior);
    inner.select(ct.full_like(0.0), ct)
}

fn unconcatenate<'g>(x: &[Tensor<'g>], dim: usize, ct: Tensor<'g>) -> Vec<Option<Tensor<'g>>> {
    let mut start = 0;
    x.iter()
        .map(|x| {
            let limit = start + x.dim(dim);
            let part = ct.slice_dim(dim, start, limit);
            start = limit;
            Some(part)
        })
        .collect()
}

fn reduce<'g>(
    reduction: Reduction,
    dims: &[usize],
    x: Tensor<'g>,
    y: Tensor<'g>,
    ct: Tensor<'g>,
) -> Option<Tensor<'g>> {
    let kept: Vec<_> = (0..x.rank()).filter(|dim| !dims.contains(dim)).collect();
    match reduction {
        Reduction::Sum => Some(ct.broadcast_like(x, &kept)),
        // Ties share the cotangent equally.
        Reduction::Max | Reduction::Min => {
            let here = x.equal(y.broadcast_like(x, &kept)).convert(ct.dtype());
            let share = ct / here.reduce_sum(dims);
            Some(here * share.broadcast_like(x, &kept))
        }
        Reduction::And | Reduction::Or => None,
    }
}

/// The result has dims (batch, lhs free, rhs free). The cotangent of an operand contracts it with
/// the other operand over the other's free dims.
fn dot_general<'g>(
    dims: &DotDims,
    lhs: Tensor<'g>,
    rhs: Tensor<'g>,
    ct: Tensor<'g>,
) -> Vec<Option<Tensor<'g>>> {
    let (lhs_free, rhs_free) = (dims.lhs_free(lhs.rank()), dims.rhs_free(rhs.rank()));
    let num_batch = dims.lhs_batch.len();
    let ct_lhs: Vec<_> = (num_batch..num_batch + lhs_free.len()).collect();
    let ct_rhs: Vec<_> = (num_batch + lhs_free.len()..ct.rank()).collect();

    let lhs_dims = in_order_of(&dims.lhs_contracting, &dims.rhs_contracting);
    let lhs_ct = operand_cotangent(
        (ct, &ct_rhs),
        (rhs, &rhs_free, &dims.rhs_batch),
        [&dims.lhs_batch, &lhs_free, &lhs_dims],
    );
    let rhs_dims = in_order_of(&dims.rhs_contracting, &dims.lhs_contracting);
    let rhs_ct = operand_cotangent(
        (ct, &ct_lhs),
        (lhs, &lhs_free, &dims.lhs_batch),
        [&dims.rhs_batch, &rhs_free, &rhs_dims],
    );
    vec![Some(lhs_ct), Some(rhs_ct)]
}

/// The product of `ct` and the other operand, contracted over the dims listed with them; the
/// other's batch dims correspond to the first of `ct`. `to` are the dims of the result that are
/// batch dims, from `ct`, and from the other operand. The operand with the first dims of the result
/// is the left one, so that there is nothing to transpose in the usual orders.
fn operand_cotangent<'g>(
    (ct, ct_dims): (Tensor<'g>, &[usize]),
    (other, other_dims, other_batch): (Tensor<'g>, &[usize], &[usize]),
    [batch, from_ct, from_other]: [&[usize]; 3],
) -> Tensor<'g> {
    let ct_batch: Vec<_> = (0..batch.len()).collect();
    let first = |dims: &[usize]| dims.first().copied().unwrap_or(usize::MAX);
    if first(from_ct) < first(from_other) {
        let dims = DotDims::contract(ct_dims, other_dims).batch(&ct_batch, other_batch);
        put_back(ct.dot_general(other, dims), &[batch, from_ct, from_other])
    } else {
        let dims = DotDims::contract(other_dims, ct_dims).batch(other_batch, &ct_batch);
        put_back(other.dot_general(ct, dims), &[batch, from_other, from_ct])
    }
}

/// `dims` in the order that sorts `by`: a product keeps an operand's free dims in increasing order.
fn in_order_of(dims: &[usize], by: &[usize]) -> Vec<usize> {
    let mut pairs: Vec<_> = by.iter().zip(dims).collect();
    pairs.sort_unstable();
    pairs.into_iter().map(|(_, dim)| *dim).collect()
}

/// Transposes a tensor so that its dim `i` corresponds to `i`; before, its dims correspond to
/// `dims`, in order.
fn put_back<'g>(x: Tensor<'g>, dims: &[&[usize]]) -> Tensor<'g> {
    let permutation = inverse(&dims.concat());
    if permutation.is_sorted() { x } else { x.transpose(&permutation) }
}

fn inverse(permutation: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; permutation.len()];
    for (to, from) in permutation.iter().enumerate() {
        inverse[*from] = to;
    }
    inverse
}

/// A barrier in the backward pass too, over the cotangents that are not zero.
fn barrier<'g>(tracer: &'g Tracer, cotangents: &[Option<Tensor<'g>>]) -> Vec<Option<Tensor<'g>>> {
    let present: Vec<_> = cotangents.iter().flatten().copied().collect();
    let mut barred = tracer.optimization_barrier(&present).into_iter();
    cotangents.iter().map(|ct| ct.and_then(|_| barred.next())).collect()
}
