//! Sums of gradients that send fewer bits than they add.

use hlo::{Axis, AxisSet, DType, Tensor};

use super::Synchronize;
use super::quantized::quantized_scatter;
use super::sync::{add_to_own_piece, plain_sum, sum_in_order};

/// Gradients with fewer elements are summed in their own dtype: they are few bytes, and each sum
/// would be two collectives more.
pub(super) const MIN_ELEMENTS: usize = 4096;

/// Sums whose terms are rounded to a narrow dtype before they are sent, and added in the dtype of
/// the gradient, in the order of the replicas: an all_to_all, by which each replica gets a piece of
/// the gradient from all others, and an all_gather of the sums, which are rounded once more. Half
/// the bytes of an all_reduce in f32, with bf16; the same bits for any division of the replicas
/// over processes.
#[derive(Clone, Copy, Debug)]
pub struct NarrowSum {
    /// The dtype in which values are sent.
    pub dtype: DType,
}

impl Synchronize for NarrowSum {
    fn approximation(&self) -> Option<String> {
        Some(format!("gradients are sent in {}", self.dtype))
    }

    #[track_caller]
    fn sum<'g>(
        &self,
        local: Tensor<'g>,
        axes: AxisSet,
        _comm: &[Tensor<'g>],
    ) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        (narrow_sum(local, axes, self.dtype), vec![])
    }
}

/// The sum of x over the replicas along `axes`.
#[track_caller]
fn narrow_sum<'g>(x: Tensor<'g>, axes: AxisSet, dtype: DType) -> Tensor<'g> {
    let (n, p) = (x.num_elements(), x.tracer().mesh().group_size(axes));
    if p == 1 || !is_narrower(x, dtype) {
        return plain_sum(x, axes);
    }
    let piece = n.div_ceil(p);
    let sum = narrow_scatter(x.reshape(&[n]).pad_end(0, piece * p), 0, axes, dtype);
    let all = sum.convert(dtype).all_gather(0, axes).convert(x.dtype());
    all.slice_dim(0, 0, n).reshape(&x.shape()).replicated(axes)
}

/// The sum of x over the replicas along `axes`, cut along `dim`: a reduce_scatter whose terms are
/// sent in `dtype`. Its result is not rounded.
#[track_caller]
pub(super) fn narrow_scatter<'g>(
    x: Tensor<'g>,
    dim: usize,
    axes: AxisSet,
    dtype: DType,
) -> Tensor<'g> {
    let p = x.tracer().mesh().group_size(axes);
    if p == 1 || !is_narrower(x, dtype) {
        return x.reduce_scatter(dim, axes);
    }
    if dtype == DType::I8 {
        return quantized_scatter(x, dim, axes);
    }
    let received = x.convert(dtype).all_to_all(dim, dim, axes);
    let dims = [&x.shape()[..dim], &[p, x.dim(dim) / p], &x.shape()[dim + 1..]].concat();
    sum_in_order([received.reshape(&dims)], dim, |[piece]| piece.convert(x.dtype()))
}

/// A sum that sends `dtype`, and what it leaves.
#[derive(Clone, Copy)]
pub(super) struct SumWithRest<'g> {
    /// The sum over the replicas along `data`, rounded.
    pub sum: Tensor<'g>,
    /// What of this replica's term is not in the sum. The rests of all replicas and the sum are the
    /// sum of the terms.
    pub rest: Tensor<'g>,
}

/// The sum of x over `data`, sent in `dtype` whatever its size. What rounding the sum has lost is
/// left with the replica that rounded it.
#[track_caller]
pub(super) fn narrow_sum_with_rest<'g>(x: Tensor<'g>, dtype: DType) -> SumWithRest<'g> {
    let (n, p) = (x.num_elements(), x.tracer().mesh().size(Axis::Data));
    let piece = n.div_ceil(p);
    let pieces = x.reshape(&[n]).pad_end(0, p * piece).reshape(&[p, piece]);
    let whole =
        |pieces: Tensor<'g>| pieces.reshape(&[p * piece]).slice_dim(0, 0, n).reshape(&x.shape());
    let sent = pieces.convert(dtype);
    let received = sent.all_to_all(0, 0, Axis::Data);
    let sum = sum_in_order([received], 0, |[piece]| piece.convert(x.dtype()));
    let rounded = sum.convert(dtype);
    let all = rounded.all_gather(0, Axis::Data).convert(x.dtype());
    let lost = pieces - sent.convert(x.dtype());
    let rest = add_to_own_piece(lost, sum - rounded.convert(x.dtype()));
    SumWithRest { sum: whole(all).replicated(Axis::Data), rest: whole(rest) }
}

fn is_narrower(x: Tensor<'_>, dtype: DType) -> bool {
    x.num_elements() >= MIN_ELEMENTS && dtype.size_bytes() < x.dtype().size_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo::{Literal, Mesh, Reduction, TensorType, communication, interpret, trace};

    #[test]
    fn sums_are_those_of_rounded_terms_at_half_the_bytes() {
        let (mesh, n) = (Mesh::data(4), 5000);
        let ty = || TensorType::new(DType::F32, &[n]).varying(Axis::Data.into());
        let sum = NarrowSum { dtype: DType::Bf16 };
        let narrow = trace(mesh, |t| {
            let x = t.input("x", ty());
            t.output("sum", sum.sum(x, Axis::Data.into(), &[]).0);
        });
        let wide = trace(mesh, |t| {
            let x = t.input("x", ty()).convert(DType::Bf16).convert(DType::F32);
            t.output("sum", x.all_reduce(Reduction::Sum, Axis::Data));
        });
        let [narrow, wide] = [narrow, wide].map(Result::unwrap);
        let value = |replica: usize, i: usize| ((i * 7919 + replica * 104_729) as f64).sin();
        let xs = (0..4).map(|replica| {
            let values: Vec<_> = (0..n).map(|i| value(replica, i)).collect();
            Literal::from_f64(DType::F32, &[n], &values)
        });
        let xs = [xs.collect::<Vec<_>>()];
        let [found, expected] = [&narrow, &wide].map(|graph| interpret(graph, &xs).unwrap());
        for (found, expected) in found[0][0].to_f64().into_iter().zip(expected[0][0].to_f64()) {
            // Once more to 8 bits.
            assert!((found - expected).abs() <= expected.abs() / 256.0, "{found} {expected}");
        }
        let sent =
            |graph| -> u64 { communication(graph).iter().map(|c| c.total_bytes_on_wire()).sum() };
        assert_eq!(2 * sent(&narrow), sent(&wide));
    }

    #[test]
    fn a_scatter_keeps_the_sum_in_the_wide_dtype() {
        let (mesh, dims) = (Mesh::new(&[(Axis::Fsdp, 4)]), [8, 4, 128]);
        for dim in [0, 1, 2] {
            let graph = trace(mesh, |t| {
                let ty = TensorType::new(DType::F32, &dims).varying(Axis::Fsdp.into());
                let x = t.input("x", ty);
                let rounded = x.convert(DType::Bf16).convert(DType::F32);
                let found = narrow_scatter(x, dim, Axis::Fsdp.into(), DType::Bf16);
                let expected = rounded.reduce_scatter(dim, Axis::Fsdp);
                t.output_varying("difference", (found - expected).abs().sum(), AxisSet::ALL);
            });
            let count: usize = dims.iter().product();
            let of = |replica: usize| {
                let values: Vec<_> =
                    (0..count).map(|i| ((i + replica * 77) as f64).cos()).collect();
                Literal::from_f64(DType::F32, &dims, &values)
            };
            let xs = [(0..4).map(of).collect::<Vec<_>>()];
            let found = interpret(&graph.unwrap(), &xs).unwrap();
            assert!(found[0].iter().all(|x| x.to_f64()[0] < 1e-3), "dim {dim}: {found:?}");
        }
    }

    #[test]
    fn small_gradients_are_summed_in_their_own_dtype() {
        let graph = trace(Mesh::data(2), |t| {
            let x = t.input("x", TensorType::new(DType::F32, &[64]).varying(Axis::Data.into()));
            let sum = NarrowSum { dtype: DType::Bf16 };
            t.output("sum", sum.sum(x, Axis::Data.into(), &[]).0);
        });
        let found = communication(&graph.unwrap());
        assert_eq!(found.iter().map(|c| c.kind).collect::<Vec<_>>(), ["all_reduce"]);
    }
}
