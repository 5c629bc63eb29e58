//! `y = dropout(relu(norm(x W^T + b)))`

use hlo::Tensor;

use crate::layers::linear::gathered_linear;
use crate::layers::{dropout, layer_norm, relu};
use crate::{Initializer, Scope};

/// Parameters of [`mlp_block`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlpBlock {
    /// Width of the result.
    pub num_out: usize,
    /// `true` for a layer norm before the ReLU.
    pub layer_norm: bool,
    /// Dropout rate of the activations.
    pub dropout: f64,
}

/// A hidden layer: `[b, in] -> [b, out]`, with parameters `linear.*` and, with a norm, `norm.*`.
///
/// ```
/// use hlo::{AxisSet, DType, Mesh, TensorType, trace};
/// use models::{Precision, Scope, layers::{MlpBlock, mlp_block}};
///
/// trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[8, 64]));
///     let block = MlpBlock { num_out: 32, layer_norm: true, dropout: 0.1 };
///     assert_eq!(mlp_block(&Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY), x, block).dims(), [8, 32]);
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn mlp_block<'g>(scope: &Scope<'g>, x_bi: Tensor<'g>, block: MlpBlock) -> Tensor<'g> {
    let he = Initializer::he_normal(x_bi.dim(1));
    let mut x_bo = gathered_linear(&scope.at("linear"), x_bi, block.num_out, he);
    if block.layer_norm {
        x_bo = layer_norm(&scope.at("norm"), x_bo);
    }
    dropout(scope, relu(x_bo), block.dropout)
}
