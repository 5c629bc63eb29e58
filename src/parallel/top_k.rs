//! Sums of the largest elements of gradients.

use hlo::{Axis, AxisSet, DType, LeafSpec, Tensor};

use super::narrow::{SumWithRest, narrow_sum_with_rest};
use super::sync::{
    MIN_COMPRESSED, RESIDUAL, is_own_piece, num_local_elements, plain_sum, residual,
    sum_over_others,
};
use super::{ParallelPlan, Synchronize};

/// Of each block of the gradient, the replicas sum the same element, in bf16, and each of them
/// keeps the others for later steps. Each replica chooses for its share of the blocks, by the
/// magnitudes of its own gradient with what it has kept, and an all_gather tells the others. So a
/// sum takes as few bytes for many replicas as for few. Only sums over `data` are compressed.
///
/// Shapes of a program are static, so that each block sends as many elements as any other, and a
/// schedule of how many to send would save no bytes.
///
/// Lin, Han, Mao, Wang and Dally, "Deep gradient compression: Reducing the communication bandwidth
/// for distributed training" (2018); that one replica chooses for all is from Chen et al.,
/// "ScaleCom: Scalable sparsified gradient compression for communication-efficient distributed
/// training" (2020).
#[derive(Clone, Copy, Debug)]
pub struct TopKSum {
    /// Elements of a block.
    pub block: usize,
    /// Momentum before the sum, in place of the optimizer's: the paper's momentum correction.
    pub momentum: Option<LocalMomentum>,
}

/// Momentum of each replica's own gradients. What an element has gathered until it is sent is then
/// what a sum in full would have given it; after that it starts from nothing (momentum factor
/// masking). Sums that are in full have the momentum of their sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalMomentum {
    /// Its decay.
    pub mu: f64,
    /// Nesterov's form.
    pub nesterov: bool,
}

/// The kind of leaf that holds a replica's momentum.
const VELOCITY: &str = "velocity";

impl TopKSum {
    /// The smallest blocks, a power of 2, with which a sum takes less than a tenth of the bytes of
    /// one in f32: 5 for each element of 2 bytes, which is sent twice, and its index of one byte,
    /// instead of 8 for each element of the block.
    pub const DEFAULT_BLOCK: usize = 8;
}

impl Synchronize for TopKSum {
    fn comm(&self, param: &LeafSpec, plan: &ParallelPlan) -> Vec<(&'static str, LeafSpec)> {
        let of_replica = |kind| (kind, residual(param, plan));
        let compresses = num_local_elements(param, plan) >= MIN_COMPRESSED.max(self.block);
        let residual = compresses.then(|| of_replica(RESIDUAL));
        let velocity = self.momentum.map(|_| of_replica(VELOCITY));
        residual.into_iter().chain(velocity).collect()
    }

    fn approximation(&self) -> Option<String> {
        let block = self.block;
        let momentum =
            if self.momentum.is_some() { ", with the momentum that they missed" } else { "" };
        Some(format!(
            "one of each {block} elements of a gradient is sent, and the others \
             later{momentum}"
        ))
    }

    #[track_caller]
    fn sum<'g>(
        &self,
        local: Tensor<'g>,
        axes: AxisSet,
        comm: &[Tensor<'g>],
    ) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        let (residual, velocity) = match (comm, self.momentum) {
            (&[residual, velocity], _) => (Some(residual), Some(velocity)),
            (&[velocity], Some(_)) => (None, Some(velocity)),
            (&[residual], None) => (Some(residual), None),
            _ => return (plain_sum(local, axes), vec![]),
        };
        let local = sum_over_others(local, axes);
        let like_local = |kept: Tensor<'g>| kept.reshape(&local.shape());
        let moved =
            velocity.zip(self.momentum).map(|(velocity, LocalMomentum { mu, nesterov })| {
                let velocity = like_local(velocity) * mu + local;
                (velocity, if nesterov { local + velocity * mu } else { velocity })
            });
        let update = moved.map_or(local, |(_, update)| update);
        let kept = |of: Tensor<'g>| of.reshape(&comm[0].shape());
        let Some(residual) = residual else {
            let velocity = moved.map(|(velocity, _)| kept(velocity));
            return (plain_sum(update, Axis::Data.into()), velocity.into_iter().collect());
        };
        let Largest { sum, rest, is_sent } =
            sum_of_largest(update + like_local(residual), self.block);
        let velocity =
            moved.map(|(velocity, _)| kept(is_sent.select(velocity.full_like(0.0), velocity)));
        (sum, [kept(rest)].into_iter().chain(velocity).collect())
    }
}

/// What was sent.
struct Largest<'g> {
    /// The sum over `data` of one element of each block.
    sum: Tensor<'g>,
    /// What this replica has not sent.
    rest: Tensor<'g>,
    /// Which elements were sent.
    is_sent: Tensor<'g>,
}

/// Sends an element of each block of `x`, the largest of the replica that chooses it.
#[track_caller]
fn sum_of_largest<'g>(x: Tensor<'g>, block: usize) -> Largest<'g> {
    let (n, t) = (x.num_elements(), x.tracer());
    let p = t.mesh().size(Axis::Data);
    let num_blocks = n.div_ceil(block * p) * p;
    // Blocks are columns: short rows would take whole tiles of a TPU's memory each.
    let blocks = x.reshape(&[n]).pad_end(0, num_blocks * block).reshape(&[block, num_blocks]);
    let spread = |of_blocks: Tensor<'g>| of_blocks.broadcast_in_dim(&blocks.shape(), &[1]);
    let magnitudes = blocks.abs();
    let most = magnitudes.reduce_max(&[0]);
    let indices = t.iota(DType::I32, &blocks.shape(), 0).vary(x.varying());
    let is_most = magnitudes.equal(spread(most));
    // The first of equal ones. None equals NaN.
    let last = indices.full_like((block - 1) as f64);
    let index = is_most.select(indices, last).reduce_min(&[0]);

    let index_dtype = if block <= 256 { DType::U8 } else { DType::I32 };
    let pieces = index.reshape(&[p, num_blocks / p]);
    let own = is_own_piece(&pieces).select(pieces, pieces.full_like(0.0)).reduce_sum(&[0]);
    let chosen = own.convert(index_dtype).all_gather(0, Axis::Data).replicated(Axis::Data);
    let at = t.iota(index_dtype, &blocks.shape(), 0).vary(chosen.varying());
    let is_sent = at.equal(spread(chosen));
    let or =
        |sent: Tensor<'g>, others: Tensor<'g>| is_sent.vary(others.varying()).select(sent, others);

    let value = or(blocks, blocks.full_like(0.0)).reduce_sum(&[0]);
    // What is not finite arrives, whatever stands at the index.
    let value = most.is_finite().select(value, most);
    let SumWithRest { sum, rest } = narrow_sum_with_rest(value, DType::Bf16);
    let sum = spread(sum);
    let [sum, rest, is_sent] =
        [or(sum, sum.full_like(0.0)), or(spread(rest), blocks), is_sent.vary(x.varying())]
            .map(|b| b.reshape(&[num_blocks * block]).slice_dim(0, 0, n).reshape(&x.shape()));
    Largest { sum, rest, is_sent }
}
