//! The graph that initializes the state.

use hlo::random::{GlobalSlice, Key};
use hlo::{DType, Graph, Sharding, Tensor, TensorType, Tree, trace};
use models::Parameter;

use super::{DeclaredStep, MODEL_STATE, PARAMS, SEED, StepError, ema_path, finish};

/// seed -> state. Every replica draws its own shards. Values depend only on the seed and the elements' global
/// indices, so no broadcast is needed and the values do not depend on the mesh.
///
/// # Errors
/// If the graph is rejected.
pub fn trace_init(step: &DeclaredStep<'_>) -> Result<Graph, StepError> {
    let running_means = step.running_means.clone().prefixed(MODEL_STATE);
    finish(trace(step.mesh(), |t| {
        let key = Key::from_seed(t.input(SEED, TensorType::new(DType::U32, &[2])));
        let drawn = draw(key, &step.params, |name, dims| {
            let sharding = step.sharding(name);
            let window = GlobalSlice::shard(t, dims, sharding);
            (window.unwrap_or_else(|_| unreachable!("`declare` has cut it before")), sharding)
        });
        for (path, ty) in step.types().iter() {
            // The running mean of a parameter starts as the parameter.
            let prefixes = [format!("{PARAMS}."), ema_path("")];
            let name = prefixes.iter().find_map(|prefix| path.strip_prefix(prefix.as_str()));
            let start = name.and_then(|name| drawn.get(name).copied()).unwrap_or_else(|| {
                let start = running_means.get(path).map_or(0.0, |mean| mean.start);
                t.full(ty.dtype, &ty.dims, start).vary(ty.varying)
            });
            t.output_varying(path, start, ty.varying);
        }
    })?)
}

/// The initial values of all parameters. Parameters with the same shape, sharding and initializer share one random
/// draw, because each draw is a large program to compile: the 20 kernels of ResNet-20 take 9 s one by one on XLA's
/// CPU backend, and 1 s as 7 kinds.
fn draw<'a, 'g>(
    key: Key<'g>,
    parameters: &'a Tree<Parameter>,
    window: impl Fn(&str, &[usize]) -> (GlobalSlice<'g>, &'a Sharding),
) -> Tree<Tensor<'g>> {
    let mut drawn = Tree::new();
    let mut kinds: Vec<(&'a Parameter, &'a Sharding, Vec<&'a str>)> = vec![];
    for (name, parameter) in parameters.iter() {
        let (window, sharding) = window(name, &parameter.dims);
        let Parameter { dtype, initializer, .. } = parameter;
        if !initializer.is_random() {
            drawn.insert(name, initializer.draw(key, &window, *dtype).vary(sharding.varying()));
            continue;
        }
        let same =
            |kind: &&mut (&Parameter, &Sharding, _)| kind.0 == parameter && kind.1 == sharding;
        match kinds.iter_mut().find(same) {
            Some((_, _, names)) => names.push(name),
            None => kinds.push((parameter, sharding, vec![name])),
        }
    }
    for (Parameter { dims, dtype, initializer, .. }, _, names) in kinds {
        let (window, _) = window(names[0], dims);
        let local = window.dims().to_vec();
        let paths = names.iter().map(|name| format!("{PARAMS}.{name}"));
        let together = initializer.draw(key.fold_in_paths(paths), &window.as_rows(), *dtype);
        // Without the barrier, XLA would unroll the draw over a kernel's 3 x 3 and repeat it for each parameter.
        let together = together.fusion_barrier();
        for (index, name) in names.into_iter().enumerate() {
            drawn.insert(name, together.slice_dim(0, index, index + 1).reshape(&local));
        }
    }
    drawn
}
