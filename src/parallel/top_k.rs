//! Sums of the largest elements of gradients.

use hlo::{Axis, AxisSet, DType, LeafSpec, Tensor};

use super::sync::{
    MIN_COMPRESSED, RESIDUAL, num_local_elements, plain_sum, residual, sum_in_order,
    sum_over_others,
};
use super::{ParallelPlan, Synchronize};

/// Each replica sends one element of each block of its gradient, that with the largest magnitude,
/// in bf16, and keeps the rest for later steps. All replicas get all elements that were sent, by an
/// all_gather, and add them in the dtype of the gradient, in the order of the replicas. Only sums
/// over `data` are compressed.
///
/// Shapes of a program are static, so that each block sends as many elements as any other, and a
/// schedule of how many to send would save no bytes.
///
/// Lin, Han, Mao, Wang and Dally, "Deep gradient compression: Reducing the communication bandwidth
/// for distributed training" (2018).
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
    /// The smallest blocks, a power of 2, with which replicas receive less than a tenth of the
    /// bytes of a ring all_reduce in f32: 3 p / (8 block) of them, where an index has one byte.
    pub fn block_for(group_size: usize) -> usize {
        match group_size * 5 {
            block @ ..=256 => block.next_power_of_two().max(16),
            _ => (group_size * 8).next_power_of_two(),
        }
    }
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
            "of each {block} elements of a gradient the largest is sent, and the others \
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
        let Largest { sum, rest, is_sent } = largest(update + like_local(residual), self.block);
        let velocity =
            moved.map(|(velocity, _)| kept(is_sent.select(velocity.full_like(0.0), velocity)));
        (sum, [kept(rest)].into_iter().chain(velocity).collect())
    }
}

/// What was sent.
struct Largest<'g> {
    /// The sum over `data` of the largest element of each block.
    sum: Tensor<'g>,
    /// What this replica has not sent.
    rest: Tensor<'g>,
    /// Which elements this replica has sent.
    is_sent: Tensor<'g>,
}

/// Sends the largest element of each block of `x`.
#[track_caller]
fn largest(x: Tensor<'_>, block: usize) -> Largest<'_> {
    let (n, dtype, t) = (x.num_elements(), x.dtype(), x.tracer());
    let num_blocks = n.div_ceil(block);
    let blocks = x.reshape(&[n]).pad_end(0, num_blocks * block).reshape(&[num_blocks, block]);
    let magnitudes = blocks.abs();
    let most = magnitudes.reduce_max(&[1]);
    let indices = t.iota(DType::I32, &blocks.shape(), 1).vary(x.varying());
    let is_most = magnitudes.equal(most.broadcast_in_dim(&blocks.shape(), &[0]));
    // The first of equal ones. None equals NaN.
    let last = indices.full_like((block - 1) as f64);
    let index = is_most.select(indices, last).reduce_min(&[1]);
    let is_sent = indices.equal(index.broadcast_in_dim(&blocks.shape(), &[0]));
    let value = is_sent.select(blocks, blocks.full_like(0.0)).reduce_sum(&[1]);
    // What is not finite arrives, whatever stands at the index.
    let value = most.is_finite().select(value, most).convert(DType::Bf16);

    let index_dtype = if block <= 256 { DType::U8 } else { DType::I32 };
    let all_values = value.all_gather(0, Axis::Data);
    let all_indices = index.convert(index_dtype).all_gather(0, Axis::Data);
    let p = t.mesh().size(Axis::Data);
    let all = [all_values, all_indices].map(|part| part.reshape(&[p, num_blocks]));
    let sum = sum_in_order(all, 0, |[values, indices]| {
        let dims = [&values.shape()[..], &[block]].concat();
        let at = t.iota(DType::I32, &dims, 2).vary(values.varying());
        let indices = indices.convert(DType::I32).broadcast_in_dim(&dims, &[0, 1]);
        let values = values.convert(dtype).broadcast_in_dim(&dims, &[0, 1]);
        at.equal(indices).select(values, values.full_like(0.0))
    });

    let sent = value.convert(dtype).broadcast_in_dim(&blocks.shape(), &[0]);
    let rest = is_sent.select(blocks - sent, blocks);
    let [sum, rest, is_sent] = [sum, rest, is_sent]
        .map(|blocks| blocks.reshape(&[num_blocks * block]).slice_dim(0, 0, n).reshape(&x.shape()));
    Largest { sum: sum.replicated(Axis::Data), rest, is_sent }
}
