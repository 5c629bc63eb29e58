//! Indexing with integer tensors: gather, and scatter with sums.
//!
//! Both have the same shape rule: `batch` are the leading dims that operand and indices share, `n`
//! is the dim that is indexed, and `slice` are the dims after it:
//! ```text
//! gather(x [batch.., n, slice..], indices [batch.., index..]) -> [batch.., index.., slice..]
//! scatter(x [batch.., n, slice..], indices [batch.., index..], updates [batch.., index.., slice..]) -> x
//! ```
//! Indices out of range are clamped by gather and ignored by scatter, as StableHLO specifies.

use std::fmt::Write as _;

use crate::{DType, Op, Tensor, TensorType};

impl<'g> Tensor<'g> {
    /// Rows of this table: `[n, slice..]` at integers `[index..]` gives `[index.., slice..]`.
    /// Indices out of range are clamped. The VJP is a [`Self::scatter_add`].
    ///
    /// ```
    /// use hlo::{DType, Literal, Mesh, TensorType, interpret, trace};
    ///
    /// let graph = trace(Mesh::SINGLE, |t| {
    ///     let table = t.constant(Literal::from_slice(&[3, 2], &[0f32, 1.0, 10.0, 11.0, 20.0, 21.0]));
    ///     t.output("rows", table.take(t.constant(Literal::from_slice(&[2], &[2i32, 0]))));
    /// })?;
    /// let rows = &interpret(&graph, &[]).unwrap()[0][0];
    /// assert_eq!(*rows, Literal::from_slice(&[2, 2], &[20f32, 21.0, 0.0, 1.0]));
    /// # Ok::<(), hlo::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn take(self, indices: Tensor<'g>) -> Tensor<'g> {
        self.gather(indices, 0)
    }

    /// [`Self::take`] within each of `num_batch` leading dims, which the indices share:
    /// `[batch.., n, slice..]` at `[batch.., index..]` gives `[batch.., index.., slice..]`.
    #[must_use]
    #[track_caller]
    pub fn gather(self, indices: Tensor<'g>, num_batch: usize) -> Tensor<'g> {
        self.tracer().apply(Op::Gather { num_batch }, &[self, indices])
    }

    /// This tensor `[batch.., n, slice..]` with `updates` `[batch.., index.., slice..]` added at
    /// `indices` `[batch.., index..]`. Updates at equal indices are summed, in f32 for narrower
    /// floats. Indices out of range are ignored.
    #[must_use]
    #[track_caller]
    pub fn scatter_add(
        self,
        indices: Tensor<'g>,
        updates: Tensor<'g>,
        num_batch: usize,
    ) -> Tensor<'g> {
        let dtype = self.dtype();
        let [x, updates] = accumulated(self, updates);
        self.tracer().apply(Op::Scatter { num_batch }, &[x, indices, updates]).convert(dtype)
    }

    /// Elements along `dim` at `indices`, which have the dims of this tensor except for `dim`:
    /// for `dim` 1, `out[i, j, k] = self[i, indices[i, j, k], k]`.
    ///
    /// For one element per row, XLA fuses [`Self::take_along_last_dim`] better.
    #[must_use]
    #[track_caller]
    pub fn take_along_dim(self, indices: Tensor<'g>, dim: usize) -> Tensor<'g> {
        let rank = self.rank();
        if dim >= rank || indices.rank() != rank {
            self.reject("gather", format!("needs indices of {rank} dims and a dim below {rank}"));
            return self;
        }
        // Exchanges `dim` with the last dim, and back.
        let mut permutation: Vec<_> = (0..rank).collect();
        permutation.swap(dim, rank - 1);
        let exchange = |x: Tensor<'g>| if dim + 1 == rank { x } else { x.transpose(&permutation) };
        exchange(exchange(self).gather(exchange(indices), rank - 1))
    }
}

/// Converts a tensor and its updates to the dtype of their sums. If their dtypes differ, they are
/// unchanged, so that the op reports the error.
#[track_caller]
pub(super) fn accumulated<'g>(x: Tensor<'g>, updates: Tensor<'g>) -> [Tensor<'g>; 2] {
    let dtype = x.dtype();
    if updates.dtype() != dtype {
        return [x, updates];
    }
    [x.convert(dtype.accumulation()), updates.convert(dtype.accumulation())]
}

/// The type of a gather's result, and of a scatter's updates.
pub(crate) fn infer_gather(
    x: &TensorType,
    indices: &TensorType,
    num_batch: usize,
) -> Result<TensorType, String> {
    if !indices.dtype.is_integer() {
        return Err(format!("the indices are {}, not integers", indices.dtype));
    }
    if x.rank() <= num_batch || !indices.dims.starts_with(&x.dims[..num_batch]) {
        return Err(format!(
            "operand {x} and indices {indices} do not share {num_batch} leading dims before the \
             dim that is indexed"
        ));
    }
    if x.dims[num_batch] == 0 {
        return Err("the indexed dim has size 0".into());
    }
    Ok(x.with_dims(&[&indices.dims, &x.dims[num_batch + 1..]].concat()))
}

pub(crate) fn infer_scatter(t: &[&TensorType], num_batch: usize) -> Result<TensorType, String> {
    let (x, updates) = (t[0], t[2]);
    let expected = infer_gather(x, t[1], num_batch)?;
    if x.dtype == DType::Pred {
        return Err("is not defined for pred".into());
    }
    if updates.dtype != x.dtype || updates.dims != expected.dims {
        return Err(format!("the updates are {updates}, not {expected}"));
    }
    Ok(x.clone())
}

/// The cotangent of the gathered operand: each row's cotangent, added to the row that was taken.
pub(crate) fn gather_vjp<'g>(
    x: Tensor<'g>,
    indices: Tensor<'g>,
    num_batch: usize,
    ct: Tensor<'g>,
) -> Tensor<'g> {
    let last = x.dim(num_batch) as f64 - 1.0;
    let wide = widened(indices);
    x.full_like(0.0).scatter_add(wide.clamp(0.0, last), ct, num_batch)
}

/// The cotangent of a scatter's updates: that of the rows they were added to, zero where they were
/// ignored.
pub(crate) fn scatter_vjp<'g>(
    x: Tensor<'g>,
    indices: Tensor<'g>,
    num_batch: usize,
    ct: Tensor<'g>,
) -> Tensor<'g> {
    let size = x.dim(num_batch) as f64;
    let wide = widened(indices);
    let taken = ct.gather(wide, num_batch);
    let kept: Vec<_> = (0..indices.rank()).collect();
    let below = wide.less(size);
    let inside =
        if wide.dtype().is_unsigned() { below } else { below.and(wide.greater_equal(0.0)) };
    inside.broadcast_like(taken, &kept).select(taken, taken.full_like(0.0))
}

/// Widens 8-bit indices to 32 bits, since the number of rows need not fit into 8 bits.
fn widened(indices: Tensor<'_>) -> Tensor<'_> {
    match indices.dtype() {
        DType::U8 => indices.convert(DType::U32),
        DType::I8 => indices.convert(DType::I32),
        _ => indices,
    }
}

/// StableHLO's dimension numbers of a gather, and the sizes of its slices.
pub(crate) fn gather_attributes(x: &TensorType, indices: &TensorType, num_batch: usize) -> String {
    let numbers = Numbers::new(x, indices, num_batch);
    let sizes: Vec<_> = (0..x.rank())
        .map(|dim| if dim <= num_batch { 1 } else { x.dims[dim] }.to_string())
        .collect();
    let mut out = String::from("dimension_numbers = #stablehlo.gather<");
    let _ = write!(
        out,
        "offset_dims = {:?}, collapsed_slice_dims = [{num_batch}], operand_batching_dims = {:?}, \
         start_indices_batching_dims = {:?}, start_index_map = [{num_batch}], index_vector_dim = \
         {}>, slice_sizes = array<i64: {}>, indices_are_sorted = false",
        numbers.slice,
        numbers.batch,
        numbers.batch,
        indices.rank(),
        sizes.join(", ")
    );
    out
}

/// StableHLO's dimension numbers of a scatter.
pub(crate) fn scatter_attributes(x: &TensorType, indices: &TensorType, num_batch: usize) -> String {
    let numbers = Numbers::new(x, indices, num_batch);
    format!(
        "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {:?}, \
         inserted_window_dims = [{num_batch}], input_batching_dims = {:?}, \
         scatter_indices_batching_dims = {:?}, scatter_dims_to_operand_dims = [{num_batch}], \
         index_vector_dim = {}>, indices_are_sorted = false, unique_indices = false",
        numbers.slice,
        numbers.batch,
        numbers.batch,
        indices.rank()
    )
}

struct Numbers {
    /// The dims that operand and indices share.
    batch: Vec<usize>,
    /// The slices' dims in the result, or in the updates.
    slice: Vec<usize>,
}

impl Numbers {
    fn new(x: &TensorType, indices: &TensorType, num_batch: usize) -> Self {
        let num_slice = x.rank() - num_batch - 1;
        let slice = (indices.rank()..indices.rank() + num_slice).collect();
        Self { batch: (0..num_batch).collect(), slice }
    }
}
