//! Ops that move elements: broadcasting, reshaping, slicing, padding, concatenation.

use crate::{DType, Op, Tensor};

impl<'g> Tensor<'g> {
    /// Dim `i` becomes dim `broadcast_dims[i]` of `dims`; size 1 is stretched, other dims are new.
    /// Returns the tensor itself if nothing changes.
    #[must_use]
    #[track_caller]
    pub fn broadcast_in_dim(self, dims: &[usize], broadcast_dims: &[usize]) -> Tensor<'g> {
        if self.shape() == dims && broadcast_dims.iter().copied().eq(0..dims.len()) {
            return self;
        }
        let (dims, broadcast_dims) = (dims.to_vec(), broadcast_dims.to_vec());
        self.tracer().apply(Op::BroadcastInDim { dims, broadcast_dims }, &[self])
    }

    /// Broadcast to `other`'s dims, with dim `i` as dim `broadcast_dims[i]` of `other`.
    #[must_use]
    #[track_caller]
    pub fn broadcast_like(self, other: Tensor<'g>, broadcast_dims: &[usize]) -> Tensor<'g> {
        self.broadcast_in_dim(&other.shape(), broadcast_dims)
    }

    /// The same elements in row-major order, with other dims. Returns the tensor itself if the dims
    /// are equal.
    #[must_use]
    #[track_caller]
    pub fn reshape(self, dims: &[usize]) -> Tensor<'g> {
        if self.shape() == dims {
            return self;
        }
        self.tracer().apply(Op::Reshape { dims: dims.to_vec() }, &[self])
    }

    /// Result dim `i` is dim `permutation[i]`.
    #[must_use]
    #[track_caller]
    pub fn transpose(self, permutation: &[usize]) -> Tensor<'g> {
        self.tracer().apply(Op::Transpose { permutation: permutation.to_vec() }, &[self])
    }

    /// Elements `start..limit` in steps of `strides`, for each dim.
    #[must_use]
    #[track_caller]
    pub fn slice(self, start: &[usize], limit: &[usize], strides: &[usize]) -> Tensor<'g> {
        let [start, limit, strides] = [start, limit, strides].map(<[usize]>::to_vec);
        self.tracer().apply(Op::Slice { start, limit, strides }, &[self])
    }

    /// Elements `start..limit` of one dim, all of the others.
    #[must_use]
    #[track_caller]
    pub fn slice_dim(self, dim: usize, start: usize, limit: usize) -> Tensor<'g> {
        let mut limits = self.shape();
        let (mut starts, strides) = (vec![0; limits.len()], vec![1; limits.len()]);
        if dim < limits.len() {
            (starts[dim], limits[dim]) = (start, limit);
        } else {
            self.reject("slice", format!("there is no dim {dim}"));
        }
        self.slice(&starts, &limits, &strides)
    }

    /// `sizes` elements from `start` (integer scalars, one per dim), which is clamped to stay in
    /// bounds.
    #[must_use]
    #[track_caller]
    pub fn dynamic_slice(self, start: &[Tensor<'g>], sizes: &[usize]) -> Tensor<'g> {
        let operands = [&[self], start].concat();
        self.tracer().apply(Op::DynamicSlice { sizes: sizes.to_vec() }, &operands)
    }

    /// This tensor with `update` written at `start` (integer scalars, one per dim), which is
    /// clamped to stay in bounds.
    #[must_use]
    #[track_caller]
    pub fn dynamic_update_slice(self, update: Tensor<'g>, start: &[Tensor<'g>]) -> Tensor<'g> {
        let operands = [&[self, update], start].concat();
        self.tracer().apply(Op::DynamicUpdateSlice, &operands)
    }

    /// Slice `index` (an integer scalar) along dim 0, which is removed: `[n, ..] -> [..]`.
    #[must_use]
    #[track_caller]
    pub fn index_leading(self, index: Tensor<'g>) -> Tensor<'g> {
        let dims = self.shape();
        let Some((_, rest)) = dims.split_first() else {
            self.reject("dynamic_slice", "a scalar has no dim to index");
            return self;
        };
        let zero = index.full_like(0.0);
        let mut start = vec![zero; dims.len()];
        start[0] = index;
        let sizes = [&[1], rest].concat();
        self.dynamic_slice(&start, &sizes).reshape(rest)
    }

    /// Puts `value` (a number or scalar tensor) around and between the elements. Negative edges cut
    /// elements off.
    #[must_use]
    #[track_caller]
    pub fn pad(
        self,
        value: impl Into<super::Operand<'g>>,
        low: &[i64],
        high: &[i64],
        interior: &[usize],
    ) -> Tensor<'g> {
        let value = value.into().tensor_like(self, "pad");
        let (low, high, interior) = (low.to_vec(), high.to_vec(), interior.to_vec());
        self.tracer().apply(Op::Pad { low, high, interior }, &[self, value])
    }

    /// Zeros after the last element of `dim`, so that it has `size` elements.
    #[must_use]
    #[track_caller]
    pub fn pad_end(self, dim: usize, size: usize) -> Tensor<'g> {
        let num_missing = size as i64 - self.dim(dim) as i64;
        if num_missing == 0 {
            return self;
        }
        let mut high = vec![0; self.rank()];
        high[dim] = num_missing;
        self.pad(0.0, &vec![0; high.len()], &high, &vec![0; high.len()])
    }

    /// Concatenates `self` and `others` along `dim`.
    #[must_use]
    #[track_caller]
    pub fn concatenate(self, others: &[Tensor<'g>], dim: usize) -> Tensor<'g> {
        let operands: Vec<_> = std::iter::once(self).chain(others.iter().copied()).collect();
        self.tracer().apply(Op::Concatenate { dim }, &operands)
    }

    /// 1 where the index along a new last dim of size `num_classes` equals this integer tensor's
    /// value, else 0; all zeros for values out of range.
    #[must_use]
    #[track_caller]
    pub fn one_hot(self, num_classes: usize, dtype: DType) -> Tensor<'g> {
        self.matches_index(num_classes).convert(dtype)
    }

    /// One element per row: `out[..] = self[.., indices[..]]`, with `indices` of the leading dims
    /// of this tensor. 0 where an index is out of range.
    ///
    /// Computed as a masked sum, which XLA fuses into the producer. Its gradient is a select, while
    /// that of a gather would be a scatter.
    #[must_use]
    #[track_caller]
    pub fn take_along_last_dim(self, indices: Tensor<'g>) -> Tensor<'g> {
        let last = self.rank().saturating_sub(1);
        let here = indices.matches_index(self.dim(last));
        here.select(self, self.full_like(0.0)).reduce_sum(&[last])
    }

    #[track_caller]
    fn matches_index(self, num_classes: usize) -> Tensor<'g> {
        let mut dims = self.shape();
        let kept: Vec<_> = (0..dims.len()).collect();
        dims.push(num_classes);
        // An index that wraps around would match a second time.
        let indices = match self.dtype() {
            DType::U8 if num_classes > 256 => self.convert(DType::U32),
            DType::I8 if num_classes > 128 => self.convert(DType::I32),
            _ => self,
        };
        let index = self.tracer().iota(indices.dtype(), &dims, dims.len() - 1);
        indices.broadcast_in_dim(&dims, &kept).equal(index)
    }
}
