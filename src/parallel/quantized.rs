//! Tensors in 8 bits on the wire: blocks with a scale, about a quarter of the bytes of f32.

use hlo::{Axis, AxisSet, DType, LeafSpec, Tensor};

use super::narrow::MIN_ELEMENTS;
use super::sync::{
    RESIDUAL, num_local_elements, plain_sum, residual, sum_in_order, sum_with_feedback,
};
use super::{ParallelPlan, Synchronize};

/// Elements that share a scale in f32, which adds a 32nd to their bytes.
const BLOCK: usize = 128;

/// Sums of gradients that are sent in 8 bits: an all_to_all, by which each replica gets a piece of
/// the gradient from all others and adds it in the dtype of the gradient, in the order of the
/// replicas; and an all_gather of the sums, which are rounded once more. A replica keeps what the
/// first rounding lost of its gradient and the second of its piece of the sum, and sends it with
/// the next gradient, so that nothing is lost in the long run. Over other axes than `data` sums
/// are in full, and over `fsdp` [`GatherAt`](super::GatherAt) says how.
///
/// Wang et al., "ZeRO++: Extremely efficient collective communication for giant model training"
/// (2023), sends gradients in blocks; without error feedback.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedSum;

impl Synchronize for QuantizedSum {
    fn comm(&self, param: &LeafSpec, plan: &ParallelPlan) -> Vec<(&'static str, LeafSpec)> {
        match num_local_elements(param, plan) >= MIN_ELEMENTS {
            true => vec![(RESIDUAL, residual(param, plan))],
            false => vec![],
        }
    }

    fn approximation(&self) -> Option<String> {
        Some("gradients are sent in 8 bits, and what rounding has lost of them later".to_owned())
    }

    #[track_caller]
    fn sum<'g>(
        &self,
        local: Tensor<'g>,
        axes: AxisSet,
        comm: &[Tensor<'g>],
    ) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        let [residual] = *comm else { return (plain_sum(local, axes), vec![]) };
        let (sum, kept) = sum_with_feedback(local, axes, residual, quantized_sum);
        (sum, vec![kept])
    }
}

/// The sum over `data` of what replicas send of `x`, and what this replica has not sent.
#[track_caller]
fn quantized_sum(x: Tensor<'_>) -> (Tensor<'_>, Tensor<'_>) {
    let (n, dtype) = (x.num_elements(), x.dtype());
    let p = x.tracer().mesh().size(Axis::Data);
    let num_blocks = n.div_ceil(p * BLOCK);
    let blocks = x.reshape(&[n]).pad_end(0, p * num_blocks * BLOCK);
    let blocks = blocks.reshape(&[p, num_blocks, BLOCK]);
    let sent = Quantized::of(blocks);
    let received = sent.map(|part| part.all_to_all(0, 0, Axis::Data));
    let piece = received.sum_in_order(0, dtype);
    let rounded = Quantized::of(piece);
    let all = rounded.map(|part| part.all_gather(0, Axis::Data)).values(dtype);
    let sum = all.reshape(&[p * num_blocks * BLOCK]).slice_dim(0, 0, n).reshape(&x.shape());

    let lost_of_piece = (piece - rounded.values(dtype)).reshape(&[1, num_blocks, BLOCK]);
    let replicas = x.tracer().iota(DType::U32, &blocks.shape(), 0);
    let is_own = replicas.vary(Axis::Data).equal(x.tracer().replica_id(Axis::Data));
    let own = lost_of_piece.broadcast_in_dim(&blocks.shape(), &[0, 1, 2]);
    let lost = blocks - sent.values(dtype);
    let lost = lost + is_own.vary(own.varying()).select(own, own.full_like(0.0));
    let lost = lost.reshape(&[p * num_blocks * BLOCK]).slice_dim(0, 0, n).reshape(&x.shape());
    (sum.replicated(Axis::Data), lost)
}

/// The sum of x over the replicas along `axes`, cut along `dim`: a reduce_scatter whose terms are
/// sent in 8 bits.
#[track_caller]
pub(super) fn quantized_scatter<'g>(x: Tensor<'g>, dim: usize, axes: AxisSet) -> Tensor<'g> {
    let p = x.tracer().mesh().group_size(axes);
    let (before, after) = (&x.shape()[..dim], &x.shape()[dim + 1..]);
    let piece = x.dim(dim) / p;
    let cut = x.reshape(&[before, &[p, piece], after].concat());
    // The replicas first.
    let order: Vec<usize> = [dim].into_iter().chain(0..dim).chain(dim + 1..cut.rank()).collect();
    let pieces = cut.transpose(&order);
    let of_piece = pieces.shape()[1..].to_vec();
    let n = x.num_elements() / p;
    let num_blocks = n.div_ceil(BLOCK);
    let blocks = pieces.reshape(&[p, n]).pad_end(1, num_blocks * BLOCK);
    let sent = Quantized::of(blocks.reshape(&[p, num_blocks, BLOCK]));
    let sum = sent.map(|part| part.all_to_all(0, 0, axes)).sum_in_order(0, x.dtype());
    sum.reshape(&[num_blocks * BLOCK]).slice_dim(0, 0, n).reshape(&of_piece)
}

/// The pieces of the replicas along `axes`, sent in 8 bits and joined along `dim`; of this replica
/// too, so that all have the same values.
#[track_caller]
pub(super) fn quantized_gather<'g>(shard: Tensor<'g>, dim: usize, axes: AxisSet) -> Tensor<'g> {
    let p = shard.tracer().mesh().group_size(axes);
    let n = shard.num_elements();
    let num_blocks = n.div_ceil(BLOCK);
    let blocks = shard.reshape(&[n]).pad_end(0, num_blocks * BLOCK);
    let sent = Quantized::of(blocks.reshape(&[1, num_blocks, BLOCK]));
    let all = sent.map(|part| part.all_gather(0, axes)).values(shard.dtype());
    let all = all.reshape(&[p, num_blocks * BLOCK]).slice_dim(1, 0, n);
    let all = all.reshape(&[&[p], &shard.shape()[..]].concat());
    // The replicas next to the dim that they cut.
    let order: Vec<usize> = (1..=dim).chain([0]).chain(dim + 1..all.rank()).collect();
    let mut whole = shard.shape().to_vec();
    whole[dim] *= p;
    all.transpose(&order).reshape(&whole)
}

/// Blocks in 8 bits: the values are `integers * scales`. A block that is not finite has a scale
/// that is not.
#[derive(Clone, Copy)]
struct Quantized<'g> {
    /// `[.., BLOCK]`, i8 from -127 to 127.
    integers: Tensor<'g>,
    /// `[.., 1]`, f32.
    scales: Tensor<'g>,
}

impl<'g> Quantized<'g> {
    /// The nearest values to `blocks`, `[.., BLOCK]`.
    #[track_caller]
    fn of(blocks: Tensor<'g>) -> Self {
        let last = blocks.rank() - 1;
        let largest = blocks.abs().reduce_max(&[last]).convert(DType::F32);
        let scales = largest / 127.0;
        let dims: Vec<usize> = (0..last).collect();
        let divisor = scales.equal(0.0).select(scales.full_like(1.0), scales);
        let divisor = divisor.convert(blocks.dtype()).broadcast_in_dim(&blocks.shape(), &dims);
        let integers = (blocks / divisor).round_nearest_even().clamp(-127.0, 127.0);
        let scales = scales.reshape(&[&blocks.shape()[..last], &[1]].concat());
        Self { integers: integers.convert(DType::I8), scales }
    }

    fn map(self, f: impl Fn(Tensor<'g>) -> Tensor<'g>) -> Self {
        Self { integers: f(self.integers), scales: f(self.scales) }
    }

    #[track_caller]
    fn values(self, dtype: DType) -> Tensor<'g> {
        let dims: Vec<usize> = (0..self.integers.rank()).collect();
        let scales = self.scales.convert(dtype);
        self.integers.convert(dtype) * scales.broadcast_in_dim(&self.integers.shape(), &dims)
    }

    /// The sum along `dim`, which counts replicas, in their order.
    #[track_caller]
    fn sum_in_order(self, dim: usize, dtype: DType) -> Tensor<'g> {
        sum_in_order([self.integers, self.scales], dim, |[integers, scales]| {
            Self { integers, scales }.values(dtype)
        })
    }
}
