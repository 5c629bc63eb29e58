//! Splits a whole leaf into the replicas' pieces and joins them again, in host memory.

use hlo::{LeafSpec, Literal, Mesh, UnevenShard};

/// Splits a leaf into the pieces that the replicas hold: `(pieces, index of each replica's piece)`. Replicas that hold
/// the same piece have the same index.
///
/// # Errors
/// If the leaf cannot be sharded over the mesh.
pub fn cut(
    leaf: &LeafSpec,
    mesh: &Mesh,
    whole: &Literal,
) -> Result<(Vec<Literal>, Vec<usize>), UnevenShard> {
    let local = leaf.local_type(mesh)?;
    let axes = leaf.sharding.varying();
    let mut pieces: Vec<Option<Literal>> = vec![None; mesh.group_size(axes)];
    let mut indices = Vec::with_capacity(mesh.num_replicas());
    for replica in 0..mesh.num_replicas() {
        let index = mesh.index(replica, axes);
        indices.push(index);
        let start = start(leaf, mesh, replica, &local.dims);
        pieces[index].get_or_insert_with(|| whole.slice(&start, &local.dims));
    }
    Ok((pieces.into_iter().flatten().collect(), indices))
}

/// The first of `replicas` that holds each of a leaf's pieces, in the order of the pieces. `None` if one of the pieces is
/// on none of them.
pub fn holders(
    leaf: &LeafSpec,
    mesh: &Mesh,
    replicas: impl Iterator<Item = usize>,
) -> Option<Vec<usize>> {
    first_holders(leaf, mesh, replicas).into_iter().collect()
}

/// The first of `replicas` that holds each of the leaf's pieces that are on them.
pub fn held(leaf: &LeafSpec, mesh: &Mesh, replicas: impl Iterator<Item = usize>) -> Vec<usize> {
    first_holders(leaf, mesh, replicas).into_iter().flatten().collect()
}

fn first_holders(
    leaf: &LeafSpec,
    mesh: &Mesh,
    replicas: impl Iterator<Item = usize>,
) -> Vec<Option<usize>> {
    let axes = leaf.sharding.varying();
    let mut holders = vec![None; mesh.group_size(axes)];
    for replica in replicas {
        holders[mesh.index(replica, axes)].get_or_insert(replica);
    }
    holders
}

/// The index in the whole leaf of the first element of a replica's piece, whose dims are `local`.
pub fn start(leaf: &LeafSpec, mesh: &Mesh, replica: usize, local: &[usize]) -> Vec<usize> {
    let axes = leaf.sharding.dims();
    local.iter().zip(axes).map(|(size, axes)| mesh.index(replica, *axes) * size).collect()
}

/// The whole leaf, from the pieces of its [`holders`].
pub fn join(leaf: &LeafSpec, mesh: &Mesh, pieces: &[(usize, Literal)]) -> Literal {
    let mut whole = Literal::zeros(leaf.dtype, &leaf.dims);
    for (replica, piece) in pieces {
        whole.paste(piece, &start(leaf, mesh, *replica, piece.dims()));
    }
    whole
}

#[cfg(test)]
mod tests {
    use hlo::{Axis, AxisSet, DType, Sharding};

    use super::*;

    #[test]
    fn pieces_are_the_rows_and_columns_of_the_whole_and_join_to_it() {
        let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Fsdp, 2), (Axis::Tensor, 3)]);
        let values: Vec<f32> = (0..4 * 6 * 2).map(|i| i as f32).collect();
        let whole = Literal::from_slice(&[4, 6, 2], &values);
        let (none, fsdp, tensor) = (AxisSet::EMPTY, Axis::Fsdp.into(), Axis::Tensor.into());
        for axes in [
            [none, none, none],
            [fsdp, none, none],
            [none, tensor, none],
            [none, none, fsdp],
            [fsdp, tensor, none],
            [AxisSet::of(&[Axis::Data, Axis::Fsdp]), tensor, none],
        ] {
            let leaf = LeafSpec::new(DType::F32, &[4, 6, 2], Sharding::new(&axes));
            let local = leaf.local_type(&mesh).unwrap().dims;
            let (pieces, indices) = cut(&leaf, &mesh, &whole).unwrap();
            assert_eq!(pieces.len(), mesh.group_size(leaf.sharding.varying()));
            for replica in 0..mesh.num_replicas() {
                let first = |dim: usize| mesh.index(replica, axes[dim]) * local[dim];
                let mut expected = vec![];
                for i in first(0)..first(0) + local[0] {
                    for j in first(1)..first(1) + local[1] {
                        let row = (i * 6 + j) * 2 + first(2);
                        expected.extend_from_slice(&values[row..row + local[2]]);
                    }
                }
                assert_eq!(pieces[indices[replica]].as_slice::<f32>(), expected, "{leaf}");
            }
            let held = holders(&leaf, &mesh, 0..12)
                .unwrap()
                .into_iter()
                .map(|r| (r, pieces[indices[r]].clone()));
            assert_eq!(join(&leaf, &mesh, &held.collect::<Vec<_>>()), whole);
        }
        let scalar = LeafSpec::replicated(DType::U32, &[]);
        let (pieces, indices) = cut(&scalar, &mesh, &Literal::scalar(7u32)).unwrap();
        assert_eq!((pieces.len(), indices), (1, vec![0; 12]));
        assert_eq!(join(&scalar, &mesh, &[(0, pieces[0].clone())]), Literal::scalar(7u32));
    }
}
