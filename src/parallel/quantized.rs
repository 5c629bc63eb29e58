//! Tensors in 8 bits on the wire: blocks with a scale, about a quarter of the bytes of f32.

use hlo::{Axis, AxisSet, DType, LeafSpec, Tensor};

use super::narrow::MIN_ELEMENTS;
use super::sync::{
    RESIDUAL, add_to_own_piece, num_local_elements, plain_sum, residual, sum_in_order,
    sum_with_feedback,
};
use super::{ParallelPlan, Synchronize};
use crate::config::GatherDType;

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
    let sent = Quantized::of(blocks, GatherDType::Int8);
    let received = sent.map(|part| part.all_to_all(0, 0, Axis::Data));
    let piece = received.sum_in_order(0, dtype);
    let rounded = Quantized::of(piece, GatherDType::Int8);
    let all = rounded.map(|part| part.all_gather(0, Axis::Data)).values(dtype);
    let sum = all.reshape(&[p * num_blocks * BLOCK]).slice_dim(0, 0, n).reshape(&x.shape());

    let lost = add_to_own_piece(blocks - sent.values(dtype), piece - rounded.values(dtype));
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
    let blocks = blocks.reshape(&[p, num_blocks, BLOCK]);
    let sent = Quantized::of(blocks, GatherDType::Int8);
    let sum = sent.map(|part| part.all_to_all(0, 0, axes)).sum_in_order(0, x.dtype());
    sum.reshape(&[num_blocks * BLOCK]).slice_dim(0, 0, n).reshape(&of_piece)
}

/// The pieces of the replicas along `axes`, sent in 8 bits and joined along `dim`; of this replica
/// too, so that all have the same values.
#[track_caller]
pub(super) fn quantized_gather<'g>(
    shard: Tensor<'g>,
    dim: usize,
    axes: AxisSet,
    sent_in: GatherDType,
) -> Tensor<'g> {
    let p = shard.tracer().mesh().group_size(axes);
    let n = shard.num_elements();
    let num_blocks = n.div_ceil(BLOCK);
    let blocks = shard.reshape(&[n]).pad_end(0, num_blocks * BLOCK);
    let sent = Quantized::of(blocks.reshape(&[1, num_blocks, BLOCK]), sent_in);
    let all = sent.map(|part| part.all_gather(0, axes)).values(shard.dtype());
    let all = all.reshape(&[p, num_blocks * BLOCK]).slice_dim(1, 0, n);
    let all = all.reshape(&[&[p], &shard.shape()[..]].concat());
    // The replicas next to the dim that they cut.
    let order: Vec<usize> = (1..=dim).chain([0]).chain(dim + 1..all.rank()).collect();
    let mut whole = shard.shape().to_vec();
    whole[dim] *= p;
    all.transpose(&order).reshape(&whole)
}

/// Blocks in 8 bits: the values are those of `codes`, times `scales`. A block that is not finite
/// has a scale that is not.
#[derive(Clone, Copy)]
struct Quantized<'g> {
    /// `[.., BLOCK]`: i8 from -127 to 127, or u8 for floats of 8 bits.
    codes: Tensor<'g>,
    /// `[.., 1]`, f32.
    scales: Tensor<'g>,
}

impl<'g> Quantized<'g> {
    /// The nearest values to `blocks`, `[.., BLOCK]`.
    #[track_caller]
    fn of(blocks: Tensor<'g>, code: GatherDType) -> Self {
        let last = blocks.rank() - 1;
        let largest = blocks.abs().reduce_max(&[last]).convert(DType::F32);
        let limit = match code {
            GatherDType::Int8 => 127.0,
            GatherDType::F8E4M3 => MAX_F8E4M3,
        };
        let scales = largest / limit;
        let dims: Vec<usize> = (0..last).collect();
        let divisor = scales.equal(0.0).select(scales.full_like(1.0), scales);
        let divisor = divisor.convert(blocks.dtype()).broadcast_in_dim(&blocks.shape(), &dims);
        let scaled = blocks / divisor;
        let codes = match code {
            GatherDType::Int8 => {
                scaled.round_nearest_even().clamp(-limit, limit).convert(DType::I8)
            }
            GatherDType::F8E4M3 => to_f8e4m3(scaled),
        };
        let scales = scales.reshape(&[&blocks.shape()[..last], &[1]].concat());
        Self { codes, scales }
    }

    fn map(self, f: impl Fn(Tensor<'g>) -> Tensor<'g>) -> Self {
        Self { codes: f(self.codes), scales: f(self.scales) }
    }

    #[track_caller]
    fn values(self, dtype: DType) -> Tensor<'g> {
        let dims: Vec<usize> = (0..self.codes.rank()).collect();
        let scales = self.scales.convert(dtype);
        let values = match self.codes.dtype() {
            DType::U8 => of_f8e4m3(self.codes),
            _ => self.codes,
        };
        values.convert(dtype) * scales.broadcast_in_dim(&self.codes.shape(), &dims)
    }

    /// The sum along `dim`, which counts replicas, in their order.
    #[track_caller]
    fn sum_in_order(self, dim: usize, dtype: DType) -> Tensor<'g> {
        sum_in_order([self.codes, self.scales], dim, |[codes, scales]| {
            Self { codes, scales }.values(dtype)
        })
    }
}

/// The largest finite value of f8e4m3 without infinities (StableHLO's f8E4M3FN): 1.75 * 2^8.
const MAX_F8E4M3: f64 = 448.0;
/// The smallest value with a full fraction.
const MIN_NORMAL: f64 = 1.0 / 64.0;
/// The distance of the values below.
const SUBNORMAL_STEP: f64 = 1.0 / 512.0;
/// Zero bits of an f32's fraction of 23 bits, behind the 3 of f8e4m3.
const DROPPED_BITS: f64 = 20.0;
/// The difference of the exponents' biases, 127 - 7, above a fraction of 3 bits.
const BIAS: f64 = (120 << 3) as f64;

/// The codes of the nearest values in f8e4m3, ties to even, as u8: a sign, 4 bits of exponent, 3 of
/// fraction. Values beyond the range become the last in it, and what is not a number becomes one.
///
/// Computed by integers, so that every device has the same bits: some have no conversion to 8 bits,
/// and some round twice.
///
/// Micikevicius et al., "FP8 formats for deep learning" (2022), table 1.
#[track_caller]
fn to_f8e4m3(x: Tensor<'_>) -> Tensor<'_> {
    let x = x.convert(DType::F32).clamp(-MAX_F8E4M3, MAX_F8E4M3);
    let size = x.abs();
    let bits = size.bitcast_convert(DType::U32);
    let is_odd = bits.shift_right_logical(DROPPED_BITS).and(bits.full_like(1.0));
    let below_half = f64::from((1u32 << 19) - 1);
    let rounded = (bits + is_odd + below_half).shift_right_logical(DROPPED_BITS);
    let subnormal = (size / SUBNORMAL_STEP).round_nearest_even().convert(DType::U32);
    // The one after the last subnormal is the first of the others, which it has the code of.
    let code = size.less(MIN_NORMAL).select(subnormal, rounded - BIAS);
    let sign = x.bitcast_convert(DType::U32).shift_right_logical(31.0).shift_left(7.0);
    (code + sign).convert(DType::U8)
}

/// The values of codes, in f32: exactly.
#[track_caller]
fn of_f8e4m3(codes: Tensor<'_>) -> Tensor<'_> {
    let codes = codes.convert(DType::U32);
    let code = codes.and(codes.full_like(127.0));
    let normal = (code + BIAS).shift_left(DROPPED_BITS).bitcast_convert(DType::F32);
    let subnormal = code.convert(DType::F32) * SUBNORMAL_STEP;
    let size = code.less(8.0).select(subnormal, normal);
    code.equal(codes).select(size, -size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo::{Literal, Mesh, TensorType, interpret, trace};

    /// By definition, with infinite range.
    fn value_of(code: u8) -> f64 {
        let (exponent, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7));
        let size = match exponent {
            0 => fraction * 2f64.powi(-9),
            _ => (1.0 + fraction / 8.0) * 2f64.powi(exponent - 7),
        };
        if code >= 128 { -size } else { size }
    }

    #[test]
    fn floats_of_8_bits_are_the_nearest_ones() {
        let finite: Vec<f64> = (0..=255).filter(|code| code & 127 < 127).map(value_of).collect();
        let sizes: Vec<f64> = finite[..127].to_vec();
        let mut values = finite.clone();
        for pair in sizes.windows(2) {
            let middle = (pair[0] + pair[1]) / 2.0;
            let beside = middle * 2f64.powi(-22);
            values.extend([middle, middle - beside, middle + beside, -middle]);
        }
        values.extend([460.0, -1e4, 1e-30, -1e-30, 2f64.powi(-10), 3.0 * 2f64.powi(-10)]);
        let n = values.len();
        let graph = trace(Mesh::data(1), |t| {
            let codes = to_f8e4m3(t.input("x", TensorType::new(DType::F32, &[n])));
            t.output("codes", codes);
            t.output("values", of_f8e4m3(codes));
        });
        let x = vec![Literal::from_f64(DType::F32, &[n], &values)];
        let found = interpret(&graph.unwrap(), &[x]).unwrap();
        let (codes, found) = (found[0][0].to_f64(), found[1][0].to_f64());
        for ((value, code), found) in values.iter().zip(codes).zip(found) {
            assert_eq!(found, value_of(code as u8), "{code}");
            let distance = |code: usize| (sizes[code] - value.abs()).abs();
            let nearest = (0..127)
                .min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a % 2).cmp(&(b % 2))));
            let expected = sizes[nearest.unwrap()];
            assert_eq!(
                (found.abs(), code >= 128.0),
                (expected, *value < 0.0 || code == 128.0),
                "{value:e}"
            );
        }
    }
}
