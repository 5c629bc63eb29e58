//! The graph of a model without its loss.

use hlo::{
    AxisSet, Graph, LeafSpec, Literal, Mesh, MisfitRow, Tensor, TensorType, Tree, join_rows,
};
use hlo::{row_specs, trace};
use models::{Precision, Scope};

use super::{StepError, finish};

/// The forward pass of a model on one device.
pub struct Forward {
    /// [`Self::arguments`], then `x` -> `y`.
    pub graph: Graph,
    /// Parameters and running means under the model's own paths: what `params.safetensors` holds.
    pub leaves: Tree<LeafSpec>,
    /// The same in the form that the graph takes: those of scanned blocks are stacked.
    inputs: Tree<LeafSpec>,
}

impl Forward {
    /// The graph's arguments except `x`, in order, from the values of `leaves`.
    ///
    /// # Errors
    /// If a value is missing or does not fit its leaf.
    pub fn arguments(&self, leaves: &Tree<Literal>) -> Result<Vec<Literal>, MisfitRow> {
        let argument = |(path, spec): (&str, &LeafSpec)| match join_rows(path, spec, leaves)? {
            Some(value) => Ok(value.into_owned()),
            None => {
                Err(MisfitRow { path: path.to_owned(), reason: "there is no value".to_owned() })
            }
        };
        self.inputs.iter().map(argument).collect()
    }
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
    let mut inputs = parameters.map(|_, parameter| parameter.leaf());
    inputs.extend(running_means.map(|_, mean| mean.leaf()));
    let graph = trace(Mesh::SINGLE, |t| {
        let leaves = inputs.map(|path, leaf| t.input(path, leaf.global_type()));
        let scope = Scope::bind(t, precision, leaves.clone(), None).with_model_state(leaves);
        t.output("y", model(&scope, t.input("x", x.clone())));
    })?;
    Ok(Forward { graph: finish(graph)?, leaves: row_specs(&inputs), inputs })
}
