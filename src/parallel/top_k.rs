//! Sums of the largest elements of gradients.

use hlo::{Axis, AxisSet, DType, LeafSpec, Tensor};

use super::sync::{
    MIN_COMPRESSED, RESIDUAL, num_local_elements, plain_sum, residual, sum_in_order,
    sum_with_feedback,
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
/// for distributed training" (2018), without its momentum correction: any optimizer may follow.
#[derive(Clone, Copy, Debug)]
pub struct TopKSum {
    /// Elements of a block.
    pub block: usize,
}

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
        match num_local_elements(param, plan) >= MIN_COMPRESSED.max(self.block) {
            true => vec![(RESIDUAL, residual(param, plan))],
            false => vec![],
        }
    }

    fn approximation(&self) -> Option<String> {
        let block = self.block;
        Some(format!(
            "of each {block} elements of a gradient the largest is sent, and the others later"
        ))
    }

    #[track_caller]
    fn sum<'g>(
        &self,
        local: Tensor<'g>,
        axes: AxisSet,
        comm: &[Tensor<'g>],
    ) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        let [residual] = *comm else { return (plain_sum(local, axes), vec![]) };
        let send = |x| largest(x, self.block);
        let (sum, kept) = sum_with_feedback(local, axes, residual, send);
        (sum, vec![kept])
    }
}

/// The sum over `data` of the largest element of each block of `x`, and the rest of `x`.
#[track_caller]
fn largest(x: Tensor<'_>, block: usize) -> (Tensor<'_>, Tensor<'_>) {
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
    let [sum, rest] = [sum, rest]
        .map(|blocks| blocks.reshape(&[num_blocks * block]).slice_dim(0, 0, n).reshape(&x.shape()));
    (sum.replicated(Axis::Data), rest)
}
