//! The graph that initializes the state.

use hlo::random::{GlobalSlice, Key};
use hlo::{DType, Graph, LeafSpec, Tensor, TensorType, Tree, row_paths, trace};
use models::{Initializer, Parameter};

use super::{DeclaredStep, SEED, StateSection, StepError, finish};

/// seed -> state. Every replica draws its own shards. Values depend only on the seed and the
/// elements' global indices, so no broadcast is needed and the values do not depend on the mesh.
///
/// # Errors
/// If the graph is rejected.
pub fn trace_init(step: &DeclaredStep<'_>) -> Result<Graph, StepError> {
    finish(init_as_traced(step)?)
}

/// [`trace_init`] before the graph is simplified.
pub(super) fn init_as_traced(step: &DeclaredStep<'_>) -> Result<Graph, StepError> {
    let running_means = StateSection::ModelState.paths(step.running_means.clone());
    Ok(trace(step.mesh(), |t| {
        let key = Key::from_seed(t.input(SEED, TensorType::new(DType::U32, &[2])));
        let drawn = draw(key, &step.params, |name| step.param_leaf(name));
        for (path, ty) in step.types().iter() {
            // The running mean of a parameter starts as the parameter.
            let name = StateSection::value_of_parameter(path);
            let start = name.and_then(|name| drawn.get(name).copied()).unwrap_or_else(|| {
                let start = running_means.get(path).map_or(0.0, |mean| mean.start);
                t.full(ty.dtype, &ty.dims, start).vary(ty.varying)
            });
            t.output_varying(path, start, ty.varying);
        }
    })?)
}

/// The initial values of all parameters. Parameters with the same shape, sharding and initializer
/// share one random draw, because each draw is a large program to compile: the 20 kernels of
/// ResNet-20 take 9 s one by one on XLA's CPU backend, and 1 s as 7 kinds. Each row of a stacked
/// leaf is drawn with the key of its own path.
fn draw<'a, 'g>(
    key: Key<'g>,
    parameters: &Tree<Parameter>,
    leaf: impl Fn(&str) -> &'a LeafSpec,
) -> Tree<Tensor<'g>> {
    let t = key.words()[0].tracer();
    let window = |row: &LeafSpec| {
        let window = GlobalSlice::shard(t, &row.dims, &row.sharding);
        window.unwrap_or_else(|_| unreachable!("`declare` has cut it before"))
    };
    let mut drawn = Tree::new();
    let mut kinds: Vec<(LeafSpec, Initializer, Vec<&str>)> = vec![];
    for (name, parameter) in parameters.iter() {
        let (leaf, initializer) = (leaf(name), parameter.initializer);
        if !initializer.is_random() {
            let value = initializer.draw(key, &window(leaf), leaf.dtype);
            drawn.insert(name, value.vary(leaf.sharding.varying()));
            continue;
        }
        let row = leaf.row();
        match kinds.iter_mut().find(|kind| kind.0 == row && kind.1 == initializer) {
            Some((_, _, names)) => names.push(name),
            None => kinds.push((row, initializer, vec![name])),
        }
    }
    for (row, initializer, names) in kinds {
        let window = window(&row);
        let local = window.dims().to_vec();
        let paths = names.iter().flat_map(|name| row_paths(name, leaf(name)));
        let paths = paths.map(|name| StateSection::Params.path(name));
        let together = initializer.draw(key.fold_in_paths(paths), &window.as_rows(), row.dtype);
        // Without the barrier, XLA would unroll the draw over a kernel's 3 x 3 and repeat it for
        // each parameter.
        let together = together.fusion_barrier();
        let mut start = 0;
        for name in names {
            let leaf = leaf(name);
            let rows = together.slice_dim(0, start, start + leaf.num_rows());
            start += leaf.num_rows();
            drawn.insert(name, rows.reshape(&[leaf.stack_sizes(), &local].concat()));
        }
    }
    drawn
}
