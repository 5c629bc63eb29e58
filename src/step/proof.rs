//! The lockstep proof: a fingerprint of every leaf of the state on each replica.

use hlo::{AxisSet, DType, Graph, Mesh, Reduction, Tensor, TensorType, Tree, trace};

use super::{StepError, finish};

/// state -> fingerprints, min, max; each u32 `[leaves]`, in the order of the state's leaves.
///
/// `fingerprints` are each replica's own. `min` and `max` are taken over the replicas on which the leaf
/// is held alike, which differ along [`held_alike`]: so where they are equal for every leaf on every replica, the
/// replicas are in lockstep. A difference in
/// any one element of a leaf changes its fingerprint for certain, differences in several cancel with
/// probability 2^-32.
///
/// # Errors
/// None for types that [`super::StepSpec::state_types`] gave.
pub fn trace_proof(mesh: Mesh, types: &Tree<TensorType>) -> Result<Graph, StepError> {
    finish(trace(mesh, |t| {
        let state = types.map(|path, ty| t.input(path, ty.clone()));
        let prints: Vec<_> = state.values().map(|leaf| fingerprint(*leaf).reshape(&[1])).collect();
        // What is the same by type is handed over as varying: it is the type that is being proved.
        let all = AxisSet::ALL;
        let prints: Vec<_> = prints.into_iter().map(|x| x.vary(all)).collect();
        let Some(together) = concatenate(&prints) else { return };
        t.output_varying("fingerprints", together, all);
        let varying = types.values().fold(AxisSet::EMPTY, |axes, ty| axes | ty.varying);
        for (name, reduction) in [("min", Reduction::Min), ("max", Reduction::Max)] {
            let reduced = reduce_where_alike(types, &prints, reduction, varying);
            t.output_varying(name, reduced, varying);
        }
    })?)
}

/// The axes along which replicas hold a leaf of this type alike: those that it does not vary over.
pub fn held_alike(ty: &TensorType) -> AxisSet {
    AxisSet::ALL.minus(ty.varying)
}

/// Each leaf's fingerprint, reduced over the replicas on which the leaf is held alike. Leaves that are held alike along the
/// same axes share an all_reduce; all together vary over `varying`.
fn reduce_where_alike<'g>(
    types: &Tree<TensorType>,
    prints: &[Tensor<'g>],
    reduction: Reduction,
    varying: AxisSet,
) -> Tensor<'g> {
    let mut groups: Vec<(AxisSet, Vec<usize>)> = vec![];
    for (leaf, ty) in types.values().enumerate() {
        let axes = held_alike(ty);
        match groups.iter_mut().find(|group| group.0 == axes) {
            Some(group) => group.1.push(leaf),
            None => groups.push((axes, vec![leaf])),
        }
    }
    let mut reduced = prints.to_vec();
    for (axes, leaves) in &groups {
        let members: Vec<_> = leaves.iter().map(|leaf| prints[*leaf]).collect();
        let Some(together) = concatenate(&members) else { continue };
        let together = match axes.is_empty() {
            true => together,
            false => together.all_reduce(reduction, *axes).vary(varying),
        };
        if groups.len() == 1 {
            return together;
        }
        for (place, leaf) in leaves.iter().enumerate() {
            reduced[*leaf] = together.slice_dim(0, place, place + 1);
        }
    }
    concatenate(&reduced).unwrap_or_else(|| unreachable!("a state has leaves"))
}

fn concatenate<'g>(vectors: &[Tensor<'g>]) -> Option<Tensor<'g>> {
    vectors.split_first().map(|(first, rest)| first.concatenate(rest, 0))
}

/// `sum_i mix(bits_i + i * golden)` modulo 2^32, where `mix` is a bijection of 32 bits: so one changed
/// element changes the sum. 64-bit elements count as two of 32.
fn fingerprint(leaf: Tensor<'_>) -> Tensor<'_> {
    let words = words(leaf.reshape(&[leaf.num_elements()]));
    let position = leaf.tracer().iota(DType::U32, &words.shape(), 0);
    mix(words + position * f64::from(0x9E37_79B9_u32)).sum()
}

/// A vector's bits as u32.
fn words(flat: Tensor<'_>) -> Tensor<'_> {
    match flat.dtype() {
        DType::F64 => halves(flat.bitcast_convert(DType::U64)),
        DType::I64 => halves(flat.bitcast_convert(DType::U64)),
        DType::U64 => halves(flat),
        DType::F32 | DType::I32 => flat.bitcast_convert(DType::U32),
        DType::Bf16 | DType::F16 => {
            // Widening is exact, and keeps distinct bits distinct but for the payloads of NaN.
            flat.convert(DType::F32).bitcast_convert(DType::U32)
        }
        DType::I8 => flat.convert(DType::I32).bitcast_convert(DType::U32),
        DType::U32 | DType::U8 | DType::Pred => flat.convert(DType::U32),
    }
}

fn halves(flat: Tensor<'_>) -> Tensor<'_> {
    let low = flat.convert(DType::U32);
    let high = flat.shift_right_logical(32.0).convert(DType::U32);
    high.concatenate(&[low], 0)
}

/// A bijection in which every input bit reaches every output bit: Wellons' `lowbias32` (2018).
fn mix(x: Tensor<'_>) -> Tensor<'_> {
    let x = x.xor(x.shift_right_logical(16.0)) * f64::from(0x7FEB_352D_u32);
    let x = x.xor(x.shift_right_logical(15.0)) * f64::from(0x846C_A68B_u32);
    x.xor(x.shift_right_logical(16.0))
}
