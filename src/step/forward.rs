//! The graph of a model without its loss.

use hlo::{AxisSet, Graph, LeafSpec, Mesh, Tensor, TensorType, Tree, trace};
use models::{Precision, Scope};

use super::{StepError, finish};

/// The forward pass of a model on one device.
pub struct Forward {
    /// The values of `leaves`, in order, then `x` -> `y`.
    pub graph: Graph,
    /// Parameters and running means under the model's own paths: what `params.safetensors` holds.
    pub leaves: Tree<LeafSpec>,
}

/// Traces `y = model(x)` in evaluation mode, with parameters and running means as inputs.
///
/// # Errors
/// If the model does not trace.
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
    let mut specs =
        parameters.map(|_, parameter| LeafSpec::replicated(parameter.dtype, &parameter.dims));
    specs.extend(running_means.map(|_, mean| LeafSpec::replicated(mean.dtype, &mean.dims)));
    let graph = trace(Mesh::SINGLE, |t| {
        let leaves = specs.map(|path, leaf| t.input(path, leaf.global_type()));
        let scope = Scope::bind(t, precision, leaves.clone(), None).with_model_state(leaves);
        t.output("y", model(&scope, t.input("x", x.clone())));
    })?;
    Ok(Forward { graph: finish(graph)?, leaves: specs })
}
