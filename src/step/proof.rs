//! The lockstep proof: a fingerprint of every leaf of the state on each replica.

use hlo::{AxisSet, DType, Graph, LeafSpec, Mesh, Reduction, Tensor, Tree, trace};

use super::declare::local_types;
use super::{FINGERPRINTS, MAX, MIN, StepError, finish};

/// state -> fingerprints, min, max; each u32 `[leaves]`, in the order of the state's leaves.
///
/// `fingerprints` are each replica's own. `min` and `max` are taken over the replicas that hold the
/// same shard of the leaf, those along the axes [`LeafSpec::held_alike`]. If they are equal for
/// every leaf on every replica, the replicas are in lockstep. A difference in a single element
/// always changes the leaf's fingerprint; differences in several elements cancel with probability
/// 2^-32.
///
/// # Errors
/// If a leaf cannot be sharded over the mesh.
pub fn trace_proof(mesh: Mesh, leaves: &Tree<LeafSpec>) -> Result<Graph, StepError> {
    finish(proof_as_traced(mesh, leaves)?)
}

/// [`trace_proof`] before the graph is simplified.
pub(super) fn proof_as_traced(mesh: Mesh, leaves: &Tree<LeafSpec>) -> Result<Graph, StepError> {
    let types = local_types(leaves, &mesh)?;
    Ok(trace(mesh, |t| {
        let state = types.map(|path, ty| t.input(path, ty.clone()));
        let prints: Vec<_> = state.values().map(|leaf| fingerprint(*leaf).reshape(&[1])).collect();
        // Typed as varying even if the leaf's type says that it is the same everywhere: that is
        // what is being proved.
        let all = AxisSet::ALL;
        let prints: Vec<_> = prints.into_iter().map(|x| x.vary(all)).collect();
        let Some(together) = concatenate(&prints) else { return };
        t.output_varying(FINGERPRINTS, together, all);
        let varying = types.values().fold(AxisSet::EMPTY, |axes, ty| axes | ty.varying);
        for (name, reduction) in [(MIN, Reduction::Min), (MAX, Reduction::Max)] {
            let reduced = reduce_where_alike(leaves, &prints, reduction, varying);
            t.output_varying(name, reduced, varying);
        }
    })?)
}

/// Each leaf's fingerprint, reduced over the replicas that hold the same shard of it. Leaves that
/// are replicated along the same axes share an all_reduce. The result varies over `varying`.
fn reduce_where_alike<'g>(
    leaves: &Tree<LeafSpec>,
    prints: &[Tensor<'g>],
    reduction: Reduction,
    varying: AxisSet,
) -> Tensor<'g> {
    let mut groups: Vec<(AxisSet, Vec<usize>)> = vec![];
    for (leaf, spec) in leaves.values().enumerate() {
        let axes = spec.held_alike();
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

/// `sum_i mix(bits_i + i * golden)` modulo 2^32, where `mix` is a bijection on 32 bits, so one
/// changed element changes the sum. 64-bit elements count as two of 32.
fn fingerprint(leaf: Tensor<'_>) -> Tensor<'_> {
    let words = words(leaf.reshape(&[leaf.num_elements()]));
    let position = leaf.tracer().iota(DType::U32, &words.shape(), 0);
    mix(words + position * f64::from(0x9E37_79B9_u32)).sum()
}

/// A vector's bits as u32 words.
fn words(flat: Tensor<'_>) -> Tensor<'_> {
    match flat.dtype() {
        DType::F64 => halves(flat.bitcast_convert(DType::U64)),
        DType::I64 => halves(flat.bitcast_convert(DType::U64)),
        DType::U64 => halves(flat),
        DType::F32 | DType::I32 => flat.bitcast_convert(DType::U32),
        DType::Bf16 | DType::F16 => {
            // Widening is exact and maps distinct bits to distinct bits, except for NaN payloads.
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

/// A bijection in which every input bit affects every output bit: Wellons' `lowbias32` (2018).
fn mix(x: Tensor<'_>) -> Tensor<'_> {
    let x = x.xor(x.shift_right_logical(16.0)) * f64::from(0x7FEB_352D_u32);
    let x = x.xor(x.shift_right_logical(15.0)) * f64::from(0x846C_A68B_u32);
    x.xor(x.shift_right_logical(16.0))
}
