//! Sums of gradients as products of two thin matrices.

use hlo::{Axis, AxisSet, DType, DotDims, LeafSpec, OnOtherMesh, Sharding, Tensor};

use super::narrow::{SumWithRest, narrow_sum_with_rest};
use super::sync::{
    MIN_COMPRESSED, RESIDUAL, num_local_elements, plain_sum, residual, sum_with_feedback,
};
use super::{ParallelPlan, Synchronize};

/// The sum of the replicas' gradients, each taken as a matrix M `[n, m]`, projected on a basis P
/// `[n, rank]` of what the sum maps a guess Q `[m, rank]` to: the sums of M Q and of M^T P over the
/// replicas, sent in bf16, `rank (n + m)` elements instead of `n m`. The next guess is the last M^T
/// P, so that the basis follows the gradients from step to step. A replica keeps what the
/// projection and rounding leave of its gradient. Only sums over `data` are compressed, of matrices
/// for which it pays.
///
/// Vogels, Karimireddy and Jaggi, "PowerSGD: Practical low-rank gradient compression for
/// distributed optimization" (2019), algorithm 1.
#[derive(Clone, Copy, Debug)]
pub struct PowerSgdSum {
    /// Columns of the basis; `None` for as many as take at most a twelfth of the bytes of a sum in
    /// f32, and at most 16.
    pub rank: Option<usize>,
}

/// The most columns of a basis that no configuration asks for: making columns orthonormal takes a
/// few operations in turn for each of them, and large matrices are well described by few.
const MAX_AUTO_RANK: usize = 16;

impl PowerSgdSum {
    /// Columns of the basis for matrices `[n, m]`; `None` if they are summed in full.
    fn rank_for(&self, n: usize, m: usize) -> Option<usize> {
        let in_a_twelfth = (n * m / (6 * (n + m))).clamp(1, MAX_AUTO_RANK);
        let rank = self.rank.unwrap_or(in_a_twelfth);
        (2 * rank * (n + m) <= n * m).then_some(rank)
    }
}

/// The dtype in which factors are sent.
const SENT: DType = DType::Bf16;

/// The kind of leaf that holds guesses Q.
const BASIS: &str = "basis";

impl Synchronize for PowerSgdSum {
    fn comm(&self, param: &LeafSpec, plan: &ParallelPlan) -> Vec<(&'static str, LeafSpec)> {
        let row = param.row();
        let Ok(local) = row.local_type(&plan.mesh) else { return vec![] };
        let (n, m) = as_matrix(&local.dims);
        if num_local_elements(param, plan) < MIN_COMPRESSED {
            return vec![];
        }
        let Some(rank) = self.rank_for(n, m) else { return vec![] };
        // Each shard of a parameter is a matrix of its own.
        let axes = row.sharding.varying();
        let dims = [plan.mesh.group_size(axes), m, rank];
        let basis = LeafSpec::new(param.dtype, &dims, Sharding::leading(dims.len(), axes));
        let basis = LeafSpec { on_other_mesh: OnOtherMesh::Restart, ..basis };
        vec![(RESIDUAL, residual(param, plan)), (BASIS, param.with_row(basis))]
    }

    fn approximation(&self) -> Option<String> {
        let rank = self.rank.map_or("low rank".to_owned(), |rank| format!("rank {rank}"));
        Some(format!(
            "gradients are sent as matrices of {rank}, and what these leave of them later"
        ))
    }

    #[track_caller]
    fn sum<'g>(
        &self,
        local: Tensor<'g>,
        axes: AxisSet,
        comm: &[Tensor<'g>],
    ) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        let [residual, basis] = *comm else { return (plain_sum(local, axes), vec![]) };
        let mut next_basis = basis;
        let (sum, kept) = sum_with_feedback(local, axes, residual, |x| {
            let projected = projected(x, basis);
            next_basis = projected.basis;
            (projected.sum, projected.rest)
        });
        (sum, vec![kept, next_basis])
    }
}

/// The sizes of a matrix with the elements of a tensor in their order, as nearly square as its dims
/// allow.
fn as_matrix(dims: &[usize]) -> (usize, usize) {
    let product = |dims: &[usize]| dims.iter().product::<usize>();
    let splits = (0..=dims.len()).map(|at| (product(&dims[..at]), product(&dims[at..])));
    splits.min_by_key(|(n, m)| n + m).unwrap_or((1, 1))
}

struct Projected<'g> {
    /// The sum over the replicas, projected.
    sum: Tensor<'g>,
    /// What the projection leaves of this replica's tensor.
    rest: Tensor<'g>,
    /// The next guess.
    basis: Tensor<'g>,
}

/// `x` is the stack `[.., n, m]`, in any dims, of as many matrices as `basis` has guesses: `[.., 1,
/// m, rank]`.
#[track_caller]
fn projected<'g>(x: Tensor<'g>, basis: Tensor<'g>) -> Projected<'g> {
    let last = basis.rank().saturating_sub(1);
    let (m, rank) = (basis.dim(last.saturating_sub(1)), basis.dim(last));
    let rows = basis.num_elements() / (m * rank).max(1);
    let n = x.num_elements() / (rows * m).max(1);
    let matrices = x.reshape(&[rows, n, m]);
    let guesses = not_zero(basis.reshape(&[rows, m, rank]));
    let product = |lhs: Tensor<'g>, rhs: Tensor<'g>, contracted: [usize; 2]| {
        let dims = DotDims::contract(&contracted[..1], &contracted[1..]).batch(&[0], &[0]);
        lhs.dot_general(rhs, dims)
    };
    // [rows, n, rank]: any basis will do that all replicas have, so nothing is lost by rounding.
    let columns = product(matrices, guesses.vary(x.varying()), [2, 1]).convert(SENT);
    let columns = orthonormal(plain_sum(columns, Axis::Data.into()).convert(x.dtype()));
    let local = columns.vary(x.varying());
    // [rows, m, rank]
    let own = product(matrices, local, [1, 1]);
    let SumWithRest { sum: all, rest } = narrow_sum_with_rest(own, SENT);
    Projected {
        sum: product(columns, all, [2, 2]).reshape(&x.shape()),
        rest: (matrices - product(local, own - rest, [2, 2])).reshape(&x.shape()),
        basis: all.reshape(&basis.shape()),
    }
}

/// The guesses, `[rows, m, rank]`, or others in place of those that are 0, as they are at first:
/// nothing would ever follow from them.
#[track_caller]
fn not_zero(guesses: Tensor<'_>) -> Tensor<'_> {
    let (t, dims) = (guesses.tracer(), guesses.shape());
    let [_, m, rank] = dims[..] else { return guesses };
    // Values without a pattern that a gradient may share, the same for each row.
    let index = t.iota(guesses.dtype(), &[m * rank], 0);
    let others = (index * 12.9898 + 1.0).sine() + (index * 78.233).cosine();
    let others = others.reshape(&[m, rank]).broadcast_in_dim(&dims, &[1, 2]);
    let is_zero = guesses.abs().reduce_max(&[1, 2]).equal(0.0).broadcast_in_dim(&dims, &[0]);
    is_zero.select(others.vary(guesses.varying()), guesses)
}

/// An orthonormal basis of the space of the columns, `[rows, n, rank]`, by the Gram-Schmidt process
/// with each projection taken twice, which makes up for its rounding (Giraud, Langou and Rozloznik,
/// "The loss of orthogonality in the Gram-Schmidt orthogonalization process", 2005). A column that
/// the ones before it span becomes 0.
#[track_caller]
fn orthonormal(columns: Tensor<'_>) -> Tensor<'_> {
    let rank = columns.dim(2);
    let mut basis: Vec<Tensor<'_>> = vec![];
    for index in 0..rank {
        let column = columns.slice_dim(2, index, index + 1);
        let rest = match basis.split_first() {
            Some((first, others)) => {
                let earlier = first.concatenate(others, 2);
                without(without(column, earlier), earlier)
            }
            None => column,
        };
        let (before, after) = (dot(column, column), dot(rest, rest));
        // Where less than a thousandth is left, it is mostly the rounding.
        let is_spanned = after.less_equal(before * 1e-6);
        let divisor = is_spanned.select(after.full_like(f64::INFINITY), after.sqrt());
        let divisor = before.is_finite().select(divisor, before);
        basis.push(rest / divisor.broadcast_like(rest, &[0, 1, 2]));
    }
    basis[0].concatenate(&basis[1..], 2)
}

/// A column, `[rows, n, 1]`, without its projection on an orthonormal basis, `[rows, n, i]`. Not by
/// `dot_general`, which a TPU computes from operands in bf16.
#[track_caller]
fn without<'g>(column: Tensor<'g>, basis: Tensor<'g>) -> Tensor<'g> {
    let dims = basis.shape();
    let shares = (column.broadcast_in_dim(&dims, &[0, 1, 2]) * basis).reduce_sum(&[1]);
    let projection = (basis * shares.broadcast_in_dim(&dims, &[0, 2])).reduce_sum(&[2]);
    column - projection.reshape(&column.shape())
}

/// The products of the columns of two `[rows, n, 1]`: `[rows, 1, 1]`.
#[track_caller]
fn dot<'g>(a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
    (a * b).reduce_sum(&[1]).reshape(&[a.dim(0), 1, 1])
}
