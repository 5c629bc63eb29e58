//! The result types of every op, and the constraints on its operands.
//!
//! The rules for `varying`: operands of an op must vary over the same axes, because gradients are
//! lost where a replicated value is mixed with one that differs between replicas (see `grad`).
//! [`Op::Vary`] adds axes, [`Op::Replicated`] and [`Op::AllReduce`] over whole groups remove them;
//! other collectives keep theirs. The results of a loop also vary over the axes of its condition.

use crate::ops::{case, gather, top_k};
use crate::region;
use crate::window::MAX_EXTENT;
use crate::{
    AxisSet, Binary, CustomVjp, DType, DotDims, Groups, Mesh, Op, Reduction, Regions, TensorType,
    Unary,
};

type Types = Result<Vec<TensorType>, String>;

/// The largest number of elements of a tensor: keeps arithmetic on sizes far from overflow.
const MAX_ELEMENTS: usize = 1 << 40;

/// The types of the results of `op` on operands of the given types.
///
/// # Errors
/// If the operands do not fit.
pub(crate) fn infer(op: &Op, operands: &[&TensorType], mesh: &Mesh) -> Types {
    if let Some(expected) = num_operands(op) {
        ensure(operands.len() == expected, || {
            format!("takes {expected} operands, got {}", operands.len())
        })?;
    }
    if !takes_any_varying(op) {
        same_varying(operands)?;
    }
    let results = results(op, operands, mesh)?;
    results.iter().try_for_each(check_size)?;
    Ok(results)
}

/// `true` for ops with independent operands, and for ops with regions that determine the operands'
/// types.
pub(crate) fn takes_any_varying(op: &Op) -> bool {
    matches!(
        op,
        Op::AllReduce { .. }
            | Op::OptimizationBarrier
            | Op::While { .. }
            | Op::Scan(_)
            | Op::Case { .. }
            | Op::Remat(_)
            | Op::CustomVjp(_)
    )
}

/// Checks that later arithmetic on the size cannot overflow. Dims of size 0 count as 1, so that
/// they do not hide the others.
pub(crate) fn check_size(ty: &TensorType) -> Result<(), String> {
    let elements = ty.dims.iter().try_fold(1usize, |n, dim| n.checked_mul((*dim).max(1)));
    ensure(elements.is_some_and(|n| n <= MAX_ELEMENTS), || {
        format!("{ty} has more than 2^40 elements")
    })
}

/// Number of operands; `None` for variadic ops.
fn num_operands(op: &Op) -> Option<usize> {
    match op {
        Op::Input { .. } | Op::Constant(_) | Op::Iota { .. } | Op::ReplicaId { .. } => Some(0),
        Op::Binary(_) | Op::Compare(_) | Op::Pad { .. } | Op::DotGeneral(_) => Some(2),
        Op::Convolution(_) | Op::SelectAndScatter { .. } => Some(2),
        Op::Select | Op::Clamp => Some(3),
        Op::Gather { .. } => Some(2),
        Op::Scatter { .. } => Some(3),
        Op::Threefry(_) => Some(4),
        Op::Concatenate { .. }
        | Op::DynamicSlice { .. }
        | Op::DynamicUpdateSlice
        | Op::While { .. }
        | Op::Scan(_)
        | Op::Case { .. }
        | Op::Remat(_)
        | Op::CustomVjp(_)
        | Op::CustomCall(_)
        | Op::OptimizationBarrier
        | Op::AllReduce { .. } => None,
        _ => Some(1),
    }
}

fn results(op: &Op, t: &[&TensorType], mesh: &Mesh) -> Types {
    let one = |ty: TensorType| Ok(vec![ty]);
    match op {
        Op::Input { .. } => Err("inputs are made with `Graph::input`".into()),
        Op::Constant(literal) => one(TensorType::new(literal.dtype(), literal.dims())),
        Op::Iota { dtype, dims, dim } => {
            ensure(*dim < dims.len(), || format!("dim {dim} of rank {}", dims.len()))?;
            ensure(*dtype != DType::Pred, || "the dtype must be an integer or float".into())?;
            one(TensorType::new(*dtype, dims))
        }
        Op::Unary(op) => one(unary(*op, t[0])?),
        Op::Binary(op) => {
            same(t)?;
            binary_dtype(*op, t[0].dtype)?;
            one(t[0].clone())
        }
        Op::Compare(_) => {
            same(t)?;
            one(t[0].with_dtype(DType::Pred))
        }
        Op::Select => {
            same(&t[1..])?;
            ensure(t[0].dtype == DType::Pred && t[0].dims == t[1].dims, || {
                format!("the first operand must be pred{:?}", t[1].dims)
            })?;
            one(t[1].clone())
        }
        Op::Clamp => {
            for bound in [t[0], t[2]] {
                let fits = bound.dims.is_empty() || bound.dims == t[1].dims;
                ensure(fits && bound.dtype == t[1].dtype, || {
                    format!("bounds must be {} or a scalar of its dtype", t[1])
                })?;
            }
            ensure(t[1].dtype != DType::Pred, || "pred has no order".into())?;
            one(t[1].clone())
        }
        Op::Convert(dtype) => one(t[0].with_dtype(*dtype)),
        Op::BitcastConvert(dtype) => {
            let widths = (dtype.size_bits(), t[0].dtype.size_bits());
            let pred = *dtype == DType::Pred || t[0].dtype == DType::Pred;
            ensure(widths.0 == widths.1 && !pred, || {
                format!("{dtype} and {} do not have the same width", t[0].dtype)
            })?;
            one(t[0].with_dtype(*dtype))
        }
        Op::BroadcastInDim { dims, broadcast_dims } => {
            broadcast_in_dim(t[0], dims, broadcast_dims)?;
            one(t[0].with_dims(dims))
        }
        Op::Reshape { dims } => {
            let elements = dims.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim));
            ensure(elements == Some(t[0].num_elements()), || {
                format!("{} elements do not fill dims {dims:?}", t[0].num_elements())
            })?;
            one(t[0].with_dims(dims))
        }
        Op::Transpose { permutation } => {
            let mut sorted = permutation.clone();
            sorted.sort_unstable();
            ensure(sorted.iter().copied().eq(0..t[0].rank()), || {
                format!("{permutation:?} is not a permutation of {} dims", t[0].rank())
            })?;
            one(t[0].with_dims(&permutation.iter().map(|dim| t[0].dims[*dim]).collect::<Vec<_>>()))
        }
        Op::Slice { start, limit, strides } => one(slice(t[0], start, limit, strides)?),
        Op::DynamicSlice { sizes } => {
            let (x, start) = t.split_first().ok_or("takes an operand")?;
            dynamic_slice(x, sizes, start)?;
            one(x.with_dims(sizes))
        }
        Op::DynamicUpdateSlice => {
            let [x, update, start @ ..] = t else {
                return Err("takes an operand and an update".into());
            };
            ensure(x.dtype == update.dtype, || "the update has another dtype".into())?;
            dynamic_slice(x, &update.dims, start)?;
            one((*x).clone())
        }
        Op::Pad { low, high, interior } => one(pad(t, low, high, interior)?),
        Op::Concatenate { dim } => one(concatenate(t, *dim)?),
        Op::Reduce { reduction, dims } => {
            reduction_dtype(*reduction, t[0].dtype)?;
            increasing(dims, t[0].rank())?;
            let kept: Vec<_> = (0..t[0].rank()).filter(|dim| !dims.contains(dim)).collect();
            one(t[0].with_dims(&kept.iter().map(|dim| t[0].dims[*dim]).collect::<Vec<_>>()))
        }
        Op::DotGeneral(dims) => one(dot_general(t[0], t[1], dims)?),
        Op::Convolution(convolution) => one(convolution.infer(t[0], t[1])?),
        Op::Reverse { dims } => {
            increasing(dims, t[0].rank())?;
            one(t[0].clone())
        }
        Op::ReduceWindow { reduction, window } => {
            reduction_dtype(*reduction, t[0].dtype)?;
            one(t[0].with_dims(&window.positions(&t[0].dims)?))
        }
        Op::SelectAndScatter { window } => {
            let (x, source) = (t[0], t[1]);
            ensure(x.dtype.is_float(), || "is only defined for floats".into())?;
            ensure(!window.is_dilated(), || "the window must have no dilations".into())?;
            let positions = window.positions(&x.dims)?;
            ensure(source.dtype == x.dtype && source.dims == positions, || {
                format!(
                    "the source must be {}, one element per window position",
                    x.with_dims(&positions)
                )
            })?;
            one(x.clone())
        }
        Op::While { regions, .. } => while_loop(t, regions, mesh),
        Op::Gather { num_batch } => one(gather::infer_gather(t[0], t[1], *num_batch)?),
        Op::TopK { k } => top_k::infer(t[0], *k),
        Op::Threefry(threefry) => threefry.infer(t),
        Op::Scan(scan) => region::infer_scan(scan, t, mesh),
        Op::Case { branches } => case::infer(branches, t, mesh),
        Op::Remat(body) | Op::CustomVjp(CustomVjp { forward: body, .. }) => {
            region::infer_inlined(&body.graph, t, mesh)
        }
        Op::CustomCall(call) => call.infer(t),
        Op::FusionBarrier | Op::BlockBoundary => one(t[0].clone()),
        Op::Scatter { num_batch } => one(gather::infer_scatter(t, *num_batch)?),
        Op::OptimizationBarrier => {
            ensure(!t.is_empty(), || "takes at least one operand".into())?;
            Ok(t.iter().map(|ty| (*ty).clone()).collect())
        }
        Op::ReplicaId { axes } => one(TensorType::new(DType::U32, &[]).varying(*axes)),
        Op::Vary { axes } => {
            ensure(t[0].varying.intersection(*axes).is_empty(), || {
                format!("the operand already varies over some of {axes}")
            })?;
            one(t[0].clone().varying(t[0].varying | *axes))
        }
        Op::Replicated { axes } => {
            ensure(axes.is_subset(t[0].varying), || {
                format!("the operand does not vary over all of {axes}")
            })?;
            one(t[0].clone().varying(t[0].varying.minus(*axes)))
        }
        Op::StopGradient => one(t[0].clone()),
        Op::AllReduce { reduction, groups } => all_reduce(t, *reduction, *groups, mesh),
        Op::AllGather { dim, groups } => {
            let group_size = collective(t[0], *groups, &[*dim], mesh)?;
            let mut dims = t[0].dims.clone();
            dims[*dim] *= group_size;
            one(t[0].with_dims(&dims))
        }
        Op::ReduceScatter { dim, groups } => {
            let group_size = collective(t[0], *groups, &[*dim], mesh)?;
            reduction_dtype(Reduction::Sum, t[0].dtype)?;
            one(t[0].with_dims(&cut(t[0], *dim, group_size)?))
        }
        Op::AllToAll { split_dim, concat_dim, groups } => {
            let group_size = collective(t[0], *groups, &[*split_dim, *concat_dim], mesh)?;
            let mut dims = cut(t[0], *split_dim, group_size)?;
            dims[*concat_dim] *= group_size;
            one(t[0].with_dims(&dims))
        }
        Op::CollectivePermute { pairs, groups } => {
            let group_size = collective(t[0], *groups, &[], mesh)?;
            permute_pairs(pairs, group_size)?;
            one(t[0].clone())
        }
    }
}

fn unary(op: Unary, ty: &TensorType) -> Result<TensorType, String> {
    let ok = match op {
        Unary::Not => ty.dtype.is_integer() || ty.dtype == DType::Pred,
        Unary::Negate => ty.dtype.is_float() || ty.dtype.is_integer(),
        Unary::Abs | Unary::Sign => {
            ty.dtype.is_float() || ty.dtype.is_integer() && !ty.dtype.is_unsigned()
        }
        _ => ty.dtype.is_float(),
    };
    ensure(ok, || format!("is not defined for {}", ty.dtype))?;
    Ok(if op == Unary::IsFinite { ty.with_dtype(DType::Pred) } else { ty.clone() })
}

fn binary_dtype(op: Binary, dtype: DType) -> Result<(), String> {
    use Binary::*;
    let ok = match op {
        And | Or | Xor => !dtype.is_float(),
        ShiftLeft | ShiftRightArithmetic | ShiftRightLogical => dtype.is_integer(),
        Maximum | Minimum | Add | Multiply => true,
        Divide | Remainder | Subtract => dtype != DType::Pred,
        Power => dtype.is_float(),
    };
    ensure(ok, || format!("is not defined for {dtype}"))
}

fn reduction_dtype(reduction: Reduction, dtype: DType) -> Result<(), String> {
    let logical = matches!(reduction, Reduction::And | Reduction::Or);
    ensure(logical == (dtype == DType::Pred), || {
        format!("reduction {} is not defined for {dtype}", reduction.name())
    })
}

fn broadcast_in_dim(
    x: &TensorType,
    dims: &[usize],
    broadcast_dims: &[usize],
) -> Result<(), String> {
    ensure(broadcast_dims.len() == x.rank(), || {
        format!("{} broadcast dims for an operand of rank {}", broadcast_dims.len(), x.rank())
    })?;
    increasing(broadcast_dims, dims.len())?;
    for (size, dim) in x.dims.iter().zip(broadcast_dims) {
        ensure(*size == dims[*dim] || *size == 1, || {
            format!("size {size} does not become dim {dim} of {dims:?}")
        })?;
    }
    Ok(())
}

fn slice(
    x: &TensorType,
    start: &[usize],
    limit: &[usize],
    strides: &[usize],
) -> Result<TensorType, String> {
    let rank = x.rank();
    ensure([start.len(), limit.len(), strides.len()] == [rank; 3], || {
        format!("start, limit and strides need {rank} entries")
    })?;
    let mut dims = vec![];
    for dim in 0..rank {
        let (from, to, stride) = (start[dim], limit[dim], strides[dim]);
        let is_step = stride > 0 && stride as i128 <= MAX_EXTENT;
        ensure(from <= to && to <= x.dims[dim] && is_step, || {
            format!(
                "{from}..{to} in steps of {stride} is not within dim {dim} of size {}",
                x.dims[dim]
            )
        })?;
        dims.push((to - from).div_ceil(stride));
    }
    Ok(x.with_dims(&dims))
}

fn dynamic_slice(x: &TensorType, sizes: &[usize], start: &[&TensorType]) -> Result<(), String> {
    let fits = sizes.len() == x.rank() && sizes.iter().zip(&x.dims).all(|(size, dim)| size <= dim);
    ensure(fits, || format!("a slice of {sizes:?} does not fit into dims {:?}", x.dims))?;
    let is_index = |ty: &&TensorType| ty.dims.is_empty() && ty.dtype.is_integer();
    ensure(start.len() == x.rank() && start.iter().all(is_index), || {
        format!("the start needs {} integer scalars, one per dim", x.rank())
    })?;
    ensure(start.windows(2).all(|pair| pair[0].dtype == pair[1].dtype), || {
        "the start indices have different dtypes".into()
    })
}

fn pad(
    t: &[&TensorType],
    low: &[i64],
    high: &[i64],
    interior: &[usize],
) -> Result<TensorType, String> {
    let (x, value) = (t[0], t[1]);
    let rank = x.rank();
    ensure(value.dims.is_empty() && value.dtype == x.dtype, || {
        format!("the padding must be a {} scalar", x.dtype)
    })?;
    ensure([low.len(), high.len(), interior.len()] == [rank; 3], || {
        format!("low, high and interior need {rank} entries")
    })?;
    let mut dims = vec![];
    for dim in 0..rank {
        // In i128, since edges and interior are unbounded.
        let edges = [low[dim], high[dim]].map(i128::from);
        let gaps = x.dims[dim].saturating_sub(1) as i128 * interior[dim] as i128;
        let numbers = [edges[0], edges[1], gaps, interior[dim] as i128 + 1];
        ensure(numbers.iter().all(|number| number.abs() <= MAX_EXTENT), || {
            format!("the padding of dim {dim} exceeds 2^60")
        })?;
        let size = x.dims[dim] as i128 + gaps + edges[0] + edges[1];
        let size =
            usize::try_from(size).map_err(|_| format!("dim {dim} would have size {size}"))?;
        dims.push(size);
    }
    Ok(x.with_dims(&dims))
}

fn concatenate(t: &[&TensorType], dim: usize) -> Result<TensorType, String> {
    let first = t.first().ok_or("takes at least one operand")?;
    ensure(dim < first.rank(), || format!("dim {dim} of rank {}", first.rank()))?;
    let mut dims = first.dims.clone();
    dims[dim] = 0;
    for ty in t {
        let fits = ty.dtype == first.dtype
            && ty.rank() == first.rank()
            && (0..first.rank()).all(|d| d == dim || ty.dims[d] == first.dims[d]);
        ensure(fits, || format!("operands may differ only in dim {dim}"))?;
        dims[dim] += ty.dims[dim];
    }
    Ok(first.with_dims(&dims))
}

fn dot_general(lhs: &TensorType, rhs: &TensorType, dims: &DotDims) -> Result<TensorType, String> {
    ensure(lhs.dtype == rhs.dtype && lhs.dtype != DType::Pred, || {
        "operands must have the same numeric dtype".into()
    })?;
    for (lhs_dims, rhs_dims, role) in [
        (&dims.lhs_batch, &dims.rhs_batch, "batch"),
        (&dims.lhs_contracting, &dims.rhs_contracting, "contracting"),
    ] {
        ensure(lhs_dims.len() == rhs_dims.len(), || format!("{role} dims come in pairs"))?;
        for (l, r) in lhs_dims.iter().zip(rhs_dims) {
            let sizes = (lhs.dims.get(*l), rhs.dims.get(*r));
            ensure(sizes.0.is_some() && sizes.0 == sizes.1, || {
                format!("{role} dims {l} and {r} differ in size or do not exist")
            })?;
        }
    }
    let lhs_free = dims.lhs_free(lhs.rank());
    let rhs_free = dims.rhs_free(rhs.rank());
    let used = dims.lhs_batch.len() + dims.lhs_contracting.len();
    ensure(lhs_free.len() + used == lhs.rank() && rhs_free.len() + used == rhs.rank(), || {
        "a dim is listed twice".into()
    })?;
    let result: Vec<_> = dims
        .lhs_batch
        .iter()
        .chain(&lhs_free)
        .map(|d| lhs.dims[*d])
        .chain(rhs_free.iter().map(|d| rhs.dims[*d]))
        .collect();
    Ok(lhs.with_dims(&result))
}

fn while_loop(t: &[&TensorType], regions: &Regions, mesh: &Mesh) -> Types {
    let Regions { cond, body } = regions;
    let carried = t.iter().copied();
    for (region, name) in [(cond, "condition"), (body, "body")] {
        ensure(region.mesh() == mesh, || format!("the {name} was traced for another mesh"))?;
        let inputs = region.inputs().iter().map(|input| region.ty(input.value));
        ensure(inputs.eq(t.iter().copied()), || {
            format!("the {name} does not take the types of the carried values")
        })?;
    }
    let outputs: Vec<_> = body.outputs().iter().map(|output| body.ty(output.value)).collect();
    ensure(outputs.iter().copied().eq(t.iter().copied()), || {
        let first = outputs.iter().zip(t).position(|(new, old)| new != old);
        let mismatch = first.map_or("another number of values".into(), |i| {
            format!("{} for carried value {i} of type {}", outputs[i], t[i])
        });
        format!("the body returns {mismatch}")
    })?;
    let cond_types: Vec<_> = cond.outputs().iter().map(|output| cond.ty(output.value)).collect();
    let is_pred = matches!(&cond_types[..], [ty] if ty.dtype == DType::Pred && ty.dims.is_empty());
    ensure(is_pred, || "the condition must return one pred scalar".into())?;
    // Replicas that leave in different iterations leave with different values.
    let leaves_over = cond_types[0].varying;
    Ok(carried.map(|ty| ty.clone().varying(ty.varying | leaves_over)).collect())
}

fn all_reduce(t: &[&TensorType], reduction: Reduction, groups: Groups, mesh: &Mesh) -> Types {
    let first = t.first().ok_or("takes at least one operand")?;
    ensure(t.iter().all(|ty| ty.dtype == first.dtype), || {
        "operands must have the same dtype".into()
    })?;
    t.iter()
        .map(|ty| {
            reduction_dtype(reduction, ty.dtype)?;
            collective(ty, groups, &[], mesh)?;
            let removed = if groups.is_whole() { groups.axes() } else { AxisSet::EMPTY };
            Ok((*ty).clone().varying(ty.varying.minus(removed)))
        })
        .collect()
}

/// Checks the operand of a collective, and returns the number of replicas in each group. A
/// collective over axes along which its operand is the same everywhere is a mistake: a sum would be
/// a multiple of what was meant.
fn collective(
    ty: &TensorType,
    groups: Groups,
    dims: &[usize],
    mesh: &Mesh,
) -> Result<usize, String> {
    let axes = groups.axes();
    ensure(axes.is_subset(ty.varying) && !axes.is_empty(), || {
        format!("the operand does not vary over all of {axes}; apply `vary` if it should")
    })?;
    for dim in dims {
        ensure(*dim < ty.rank(), || format!("dim {dim} of rank {}", ty.rank()))?;
    }
    groups.size(mesh).map_err(|uneven| uneven.to_string())
}

fn cut(ty: &TensorType, dim: usize, pieces: usize) -> Result<Vec<usize>, String> {
    let mut dims = ty.dims.clone();
    ensure(dims[dim].is_multiple_of(pieces), || {
        format!("dim {dim} of size {} does not divide by {pieces} replicas", dims[dim])
    })?;
    dims[dim] /= pieces;
    Ok(dims)
}

fn permute_pairs(pairs: &[(usize, usize)], size: usize) -> Result<(), String> {
    let unique = |mut indices: Vec<usize>| {
        indices.sort_unstable();
        indices.windows(2).all(|pair| pair[0] != pair[1]) && indices.iter().all(|i| *i < size)
    };
    ensure(!pairs.is_empty(), || "needs at least one pair".into())?;
    let sources = pairs.iter().map(|pair| pair.0).collect();
    let targets = pairs.iter().map(|pair| pair.1).collect();
    ensure(unique(sources) && unique(targets), || {
        format!("pairs {pairs:?} contain an index twice or one not below {size}")
    })
}

fn same(t: &[&TensorType]) -> Result<(), String> {
    ensure(t.windows(2).all(|pair| pair[0].dtype == pair[1].dtype), || {
        "operands have different dtypes; convert one".into()
    })?;
    ensure(t.windows(2).all(|pair| pair[0].dims == pair[1].dims), || {
        "operands have different dims; broadcast one".into()
    })
}

fn same_varying(t: &[&TensorType]) -> Result<(), String> {
    ensure(t.windows(2).all(|pair| pair[0].varying == pair[1].varying), || {
        "one operand is the same on all replicas while the other varies; apply `vary` to it: \
         gradients through it are then summed over the replicas"
            .into()
    })
}

fn increasing(dims: &[usize], rank: usize) -> Result<(), String> {
    let ok = dims.windows(2).all(|pair| pair[0] < pair[1]) && dims.iter().all(|dim| *dim < rank);
    ensure(ok, || format!("dims {dims:?} must be increasing and below the rank {rank}"))
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}
