//! The graph of a model without its loss.

use hlo::{AxisSet, Graph, Mesh, Tensor, TensorType, Tree, trace};
use models::{Precision, Scope};

use super::{StepError, finish};

/// What a model makes of an input, on one device.
pub struct Forward {
    /// The leaves of `types`, in order, then `x` -> `y`.
    pub graph: Graph,
    /// Parameters and running means under the model's own paths: what `params.safetensors` holds.
    pub types: Tree<TensorType>,
}

/// Traces `y = model(x)` as evaluation sees it, with parameters and running means as inputs.
///
/// # Errors
/// A model that does not trace.
pub fn trace_forward(
    precision: Precision,
    x: &TensorType,
    model: impl for<'g> Fn(&Scope<'g>, Tensor<'g>) -> Tensor<'g>,
) -> Result<Forward, StepError> {
    let mut declared = (Tree::new(), Tree::new());
    trace(Mesh::SINGLE, |t| {
        let scope = Scope::declare(t, precision, AxisSet::EMPTY);
        model(&scope, t.input("x", x.clone()));
        declared = (scope.parameters(), scope.running_means());
    })?;
    let (parameters, running_means) = declared;
    let mut types =
        parameters.map(|_, parameter| TensorType::new(parameter.dtype, &parameter.dims));
    types.extend(running_means.map(|_, mean| TensorType::new(mean.dtype, &mean.dims)));
    let graph = trace(Mesh::SINGLE, |t| {
        let leaves = types.map(|path, ty| t.input(path, ty.clone()));
        let scope = Scope::bind(t, precision, leaves.clone(), None).with_model_state(leaves);
        t.output("y", model(&scope, t.input("x", x.clone())));
    })?;
    Ok(Forward { graph: finish(graph)?, types })
}
