//! `y = E[ids]`, and with the same table `logits = x E^T`

use hlo::{DotDims, Tensor};

use crate::{Initializer, Scope};

/// A table of vectors, one per entry of a vocabulary.
#[derive(Clone, Copy)]
pub struct Embedding<'g> {
    /// `[vocabulary, d]`, in the dtype of parameters.
    table_vd: Tensor<'g>,
    dtype: hlo::DType,
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
    let table_vd = scope.param_to_round("weight", &[vocabulary, d], initializer);
    Embedding { table_vd, dtype: scope.precision().compute }
}

impl<'g> Embedding<'g> {
    /// The vectors of ids: `[..] -> [.., d]`. Ids are clamped to the vocabulary.
    #[must_use]
    #[track_caller]
    pub fn embed(self, ids: Tensor<'g>) -> Tensor<'g> {
        // Taken before the conversion, so that a row's gradients are summed in the dtype of
        // parameters.
        self.table_vd.take(ids).convert(self.dtype)
    }

    /// The logits of all entries: `[b, d] -> [b, vocabulary]`.
    #[must_use]
    #[track_caller]
    pub fn logits(self, x_bd: Tensor<'g>) -> Tensor<'g> {
        x_bd.dot_general(self.table_vd.convert(self.dtype), DotDims::contract(&[1], &[1]))
    }
}
