//! Tensor parallelism: where activations begin and end to differ along the axis `tensor`.
//!
//! A *region* is a part of a layer in which each replica along `tensor` has a piece of the columns:
//! some heads of attention, a part of a hidden layer, a part of a vocabulary. Its first matrix is
//! cut by columns and its last by rows, so that only its ends communicate. Between regions
//! activations are the same on all replicas; with sequence parallelism each replica has a piece of
//! the rows of `[examples * positions, width]` instead, and computes norms, dropout and additions
//! of these rows only.
//!
//! ```text
//!            |  enter             |  leave
//! ---------- | ------------------ | ------------------
//! plain      |  vary              |  all_reduce
//! sequence   |  all_gather rows   |  reduce_scatter rows
//! context    |                    |
//! ```
//! With context parallelism layers are not cut at all: their parameters are whole, and a replica
//! computes all columns of its own rows. Only attention reads other rows, keys and values. The
//! vocabulary alone is cut, and its ends are those of sequence parallelism.
//!
//! Each is the VJP of the other. No layer can omit one: ops reject operands that vary over other
//! axes, and the loss must not vary over `tensor`.
//!
//! Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model
//! parallelism" (2019), section 3; Korthikanti et al., "Reducing activation recomputation in large
//! transformer models" (2022), section 4.2.

use hlo::{ActivationRows, Axis, Reduction, Tensor};

use crate::Scope;

impl<'g> Scope<'g> {
    /// `true` if replicas have pieces of the rows between regions.
    pub(crate) fn cuts_rows(&self) -> bool {
        self.options().rows.are_cut() && self.num_tensor_replicas() > 1
    }

    /// The number of pieces of columns that layers are cut into.
    pub(crate) fn num_column_pieces(&self) -> usize {
        match self.options().rows {
            ActivationRows::Whole | ActivationRows::CutBetweenLayers => self.num_tensor_replicas(),
            ActivationRows::CutThroughout => 1,
        }
    }

    /// Activations `[rows, width]` at the start of a region in a layer: all rows, but for context
    /// parallelism.
    ///
    /// With sequence parallelism the gathered rows are not kept for the backward pass, which
    /// gathers them again.
    #[must_use]
    #[track_caller]
    pub fn enter(&self, x_nw: Tensor<'g>) -> Tensor<'g> {
        if self.num_column_pieces() == 1 { x_nw } else { self.enter_vocabulary(x_nw) }
    }

    /// [`Self::enter`], for products with this replica's entries of a vocabulary.
    #[must_use]
    #[track_caller]
    pub fn enter_vocabulary(&self, x_nw: Tensor<'g>) -> Tensor<'g> {
        if self.num_tensor_replicas() == 1 {
            return x_nw;
        }
        if !self.cuts_rows() {
            return x_nw.vary(Axis::Tensor);
        }
        let gathered = x_nw.tracer().custom_vjp_recomputed(
            &[x_nw],
            |x| vec![x[0].all_gather(0, Axis::Tensor)],
            |_, _, ct| vec![ct[0].reduce_scatter(0, Axis::Tensor)],
        );
        gathered[0]
    }

    /// The sum over replicas of what each has computed in a region of a layer, `[rows, width]`.
    #[must_use]
    #[track_caller]
    pub fn leave(&self, partial_nw: Tensor<'g>) -> Tensor<'g> {
        if self.num_column_pieces() == 1 { partial_nw } else { self.leave_vocabulary(partial_nw) }
    }

    /// [`Self::leave`], for vectors of this replica's entries of a vocabulary.
    #[must_use]
    #[track_caller]
    pub fn leave_vocabulary(&self, partial_nw: Tensor<'g>) -> Tensor<'g> {
        if self.num_tensor_replicas() == 1 {
            return partial_nw;
        }
        if !self.cuts_rows() {
            return partial_nw.all_reduce(Reduction::Sum, Axis::Tensor);
        }
        let (rows, num_pieces) = (partial_nw.dim(0), self.num_tensor_replicas());
        if !rows.is_multiple_of(num_pieces) {
            let message = format!(
                "mesh.tensor = {num_pieces} does not divide the {rows} rows of examples x \
                 positions, which it cuts; set parallel.sequence = false"
            );
            partial_nw.reject("sequence", message);
        }
        partial_nw.reduce_scatter(0, Axis::Tensor)
    }

    /// All rows of activations between regions, the same on all replicas.
    #[must_use]
    #[track_caller]
    pub fn all_rows(&self, x_nw: Tensor<'g>) -> Tensor<'g> {
        if self.cuts_rows() { x_nw.all_gather_replicated(0, Axis::Tensor) } else { x_nw }
    }

    /// The scope of parameters that layers use between regions.
    pub(crate) fn of_rows(&self) -> Self {
        if self.cuts_rows() { self.varying() } else { self.clone() }
    }

    /// A term of the sum that [`Self::leave_vocabulary`] computes, which all replicas have: on the
    /// first it stays, on the others it is 0.
    #[must_use]
    #[track_caller]
    pub fn once(&self, x: Tensor<'g>) -> Tensor<'g> {
        if self.num_tensor_replicas() == 1 {
            return x;
        }
        let x = x.vary(Axis::Tensor);
        let is_first = self.tensor_index().equal(0.0);
        is_first.select(x, x.full_like(0.0))
    }

    /// This replica's index along `tensor`: a u32 scalar.
    #[track_caller]
    pub(crate) fn tensor_index(&self) -> Tensor<'g> {
        self.tracer().replica_id(Axis::Tensor)
    }
}
