//! `y = E[ids]`, and with the same table `logits = x E^T`

use hlo::{DType, DotDims, Tensor};

use crate::{Initializer, Scope};

/// A table of vectors, one per entry of a vocabulary. On a mesh with the axis `tensor` each replica
/// has a piece of the vocabulary, and both functions are ends of a region.
#[derive(Clone)]
pub struct Embedding<'g> {
    scope: Scope<'g>,
    /// `[vocabulary, d]`, in the dtype of parameters: the entries of this replica.
    table_vd: Tensor<'g>,
}

/// An embedding with the parameter `weight` `[vocabulary, d]`.
///
/// The table serves both ends of a model: [`Embedding::embed`] at the input, [`Embedding::logits`]
/// at the output. Press and Wolf, "Using the output embedding to improve language models" (2017).
///
/// ```
/// use hlo::{AxisSet, DType, Mesh, TensorType, trace};
/// use models::{Initializer, Precision, Scope, layers::embedding};
///
/// trace(Mesh::SINGLE, |t| {
///     let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
///     let table = embedding(&scope, 256, 64, Initializer::Normal { std: 0.02 });
///     let x = table.embed(t.input("ids", TensorType::new(DType::I32, &[8])));
///     assert_eq!(x.dims(), [8, 64]);
///     assert_eq!(table.logits(x).dims(), [8, 256]);
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn embedding<'g>(
    scope: &Scope<'g>,
    vocabulary: usize,
    d: usize,
    initializer: Initializer,
) -> Embedding<'g> {
    let of_piece = scope.of_vocabulary();
    let table_vd = of_piece.param_to_round("weight", &[vocabulary, d], initializer);
    Embedding { scope: scope.clone(), table_vd }
}

impl<'g> Embedding<'g> {
    /// The table that [`Self::tied`] returned.
    pub fn of_tied(scope: &Scope<'g>, table_vd: Tensor<'g>) -> Self {
        Self { scope: scope.clone(), table_vd }
    }

    /// The parameter, for a head that uses it too.
    pub fn tied(&self) -> Tensor<'g> {
        self.table_vd
    }

    /// The vectors of ids: `[..] -> [.., d]`. Ids beyond the vocabulary are clamped to it. With
    /// several replicas along `tensor` the vectors are zeros except on the replica that has the
    /// entry, if any has, and [`Scope::leave_vocabulary`] adds them up.
    #[must_use]
    #[track_caller]
    pub fn embed(&self, ids: Tensor<'g>) -> Tensor<'g> {
        let Self { scope, table_vd } = self;
        let dtype = scope.precision().compute;
        if scope.num_tensor_replicas() == 1 {
            // Taken before the conversion, so that a row's gradients are summed in the dtype of
            // parameters.
            return table_vd.take(ids).convert(dtype);
        }
        let num_entries = table_vd.dim(0) as f64;
        let first = scope.tensor_index().convert(DType::I32) * num_entries;
        let place = ids - first.broadcast_like(ids, &[]);
        let is_here = place.greater_equal(0.0).and(place.less(num_entries));
        let vectors = table_vd.take(place.maximum(0.0).minimum(num_entries - 1.0)).convert(dtype);
        let is_here = is_here.broadcast_like(vectors, &(0..ids.rank()).collect::<Vec<_>>());
        is_here.select(vectors, vectors.full_like(0.0))
    }

    /// The logits of this replica's entries: `[b, d] -> [b, vocabulary]`.
    #[must_use]
    #[track_caller]
    pub fn logits(&self, x_bd: Tensor<'g>) -> Tensor<'g> {
        Self::logits_of(self.table_vd, x_bd)
    }

    /// [`Self::logits`] with the table that [`Self::tied`] returned.
    #[track_caller]
    pub(crate) fn logits_of(table_vd: Tensor<'g>, x_bd: Tensor<'g>) -> Tensor<'g> {
        x_bd.dot_general(table_vd.convert(x_bd.dtype()), DotDims::contract(&[1], &[1]))
    }
}
