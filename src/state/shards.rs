//! Which pieces of a leaf the replicas hold, and the whole leaf that they make up.

use hlo::{LeafSpec, Literal, Mesh};

/// The first of `replicas` that holds each of a leaf's pieces, in the order of the pieces. `None`
/// if one of the pieces is on none of them.
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

/// Where a replica's piece with dims `local` lies in the whole leaf: the index of its first element
/// and its size, in each dim, without padding. A piece of nothing but padding has a size of 0.
pub fn place(
    leaf: &LeafSpec,
    mesh: &Mesh,
    replica: usize,
    local: &[usize],
) -> (Vec<usize>, Vec<usize>) {
    let dims = leaf.dims.iter().zip(local).zip(leaf.sharding.dims());
    let range = dims.map(|((whole, size), axes)| {
        let start = (mesh.index(replica, *axes) * size).min(*whole);
        (start, (*size).min(whole - start))
    });
    range.unzip()
}

/// A piece without its padding, from that with it or without it.
pub fn without_padding(piece: Literal, dims: &[usize]) -> Literal {
    if piece.dims() == dims { piece } else { piece.slice(&vec![0; dims.len()], dims) }
}

/// A piece with zeros after its last elements, so that it has these dims.
pub fn padded(piece: Literal, dims: &[usize]) -> Literal {
    if piece.dims() == dims {
        return piece;
    }
    let mut padded = Literal::zeros(piece.dtype(), dims);
    padded.paste(&piece, &vec![0; dims.len()]);
    padded
}

/// The whole leaf, from the pieces of its [`holders`].
pub fn join(leaf: &LeafSpec, mesh: &Mesh, pieces: Vec<(usize, Literal)>) -> Literal {
    let mut whole = Literal::zeros(leaf.dtype, &leaf.dims);
    for (replica, piece) in pieces {
        let (start, dims) = place(leaf, mesh, replica, piece.dims());
        whole.paste(&without_padding(piece, &dims), &start);
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
            let piece =
                |replica: usize| whole.slice(&place(&leaf, &mesh, replica, &local).0, &local);
            for replica in 0..mesh.num_replicas() {
                let first = |dim: usize| mesh.index(replica, axes[dim]) * local[dim];
                let mut expected = vec![];
                for i in first(0)..first(0) + local[0] {
                    for j in first(1)..first(1) + local[1] {
                        let row = (i * 6 + j) * 2 + first(2);
                        expected.extend_from_slice(&values[row..row + local[2]]);
                    }
                }
                assert_eq!(piece(replica).as_slice::<f32>(), expected, "{leaf}");
            }
            let held = holders(&leaf, &mesh, 0..12).unwrap();
            assert_eq!(held.len(), mesh.group_size(leaf.sharding.varying()));
            let held: Vec<_> = held.into_iter().map(|replica| (replica, piece(replica))).collect();
            assert_eq!(join(&leaf, &mesh, held), whole);
        }
        // Pieces of 2 rows: the third has one, or nothing but padding.
        let rows = Sharding::leading(2, tensor);
        for (num_rows, third) in [(5, [8.0, 9.0, 0.0, 0.0]), (4, [0.0; 4])] {
            let dims = [num_rows, 2];
            let whole = Literal::from_slice(&dims, &values[..2 * num_rows]);
            let leaf = LeafSpec::new(DType::F32, &dims, rows.clone());
            let leaf = LeafSpec { is_padded: true, ..leaf };
            let local = leaf.local_type(&mesh).unwrap().dims;
            let piece = |replica| {
                let (start, dims) = place(&leaf, &mesh, replica, &local);
                padded(whole.slice(&start, &dims), &local)
            };
            let held: Vec<_> = (0..3).map(|replica| (replica, piece(replica))).collect();
            assert_eq!(held[2].1.to_f64(), third);
            assert_eq!(join(&leaf, &mesh, held), whole);
        }

        let scalar = LeafSpec::replicated(DType::U32, &[]);
        assert_eq!(holders(&scalar, &mesh, 0..12), Some(vec![0]));
        assert_eq!(place(&scalar, &mesh, 5, &[]), (vec![], vec![]));
        assert_eq!(join(&scalar, &mesh, vec![(0, Literal::scalar(7u32))]), Literal::scalar(7u32));
    }
}
