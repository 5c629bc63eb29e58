//! The graph that initializes the state.

use hlo::random::{GlobalSlice, Key};
use hlo::{
    AxisSet, DType, Graph, LeafSpec, Mesh, Tensor, TensorType, Tracer, Tree, row_paths, trace,
};
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
    let mut drawn = Tree::new();
    let mut kinds: Vec<(LeafSpec, Initializer, AxisSet, Vec<&str>)> = vec![];
    for (name, parameter) in parameters.iter() {
        let (leaf, initializer) = (leaf(name), parameter.initializer);
        if !initializer.is_random() {
            let value = initializer.draw(key, &shard(t, leaf), leaf.dtype);
            drawn.insert(name, without_padding(value.vary(leaf.sharding.varying()), leaf));
            continue;
        }
        let (row, stages) = (leaf.row(), stacked_axes(leaf));
        let same =
            |kind: &&mut (_, _, _, _)| (&kind.0, kind.1, kind.2) == (&row, initializer, stages);
        match kinds.iter_mut().find(same) {
            Some((_, _, _, names)) => names.push(name),
            None => kinds.push((row, initializer, stages, vec![name])),
        }
    }
    for (row, initializer, stages, names) in kinds {
        let window = shard(t, &row);
        let local = window.dims().to_vec();
        let paths = names.iter().flat_map(|name| row_paths(name, leaf(name)));
        let paths = paths.map(|name| StateSection::Params.path(name));
        let mut keys = key.fold_in_paths(paths);
        if !stages.is_empty() {
            keys = own_rows(keys, leaf(names[0]));
        }
        let together = initializer.draw(keys, &window.as_rows(), row.dtype);
        // Without the barrier, XLA would unroll the draw over a kernel's 3 x 3 and repeat it for
        // each parameter.
        let together = together.fusion_barrier();
        let mut start = 0;
        for name in names {
            let leaf = leaf(name);
            let sizes = local_stack(leaf, &t.mesh());
            let end = start + sizes.iter().product::<usize>();
            let rows = together.slice_dim(0, start, end);
            start = end;
            let value = rows.reshape(&[&sizes[..], &local].concat());
            drawn.insert(name, without_padding(value, leaf));
        }
    }
    drawn
}

/// This replica's piece of a leaf.
fn shard<'g>(t: &'g Tracer, leaf: &LeafSpec) -> GlobalSlice<'g> {
    let shard = GlobalSlice::shard(t, leaf);
    shard.unwrap_or_else(|_| unreachable!("`declare` has cut it before"))
}

/// A piece of a leaf with zeros in the place of elements that the whole leaf does not have.
fn without_padding<'g>(piece: Tensor<'g>, leaf: &LeafSpec) -> Tensor<'g> {
    let (t, local) = (piece.tracer(), piece.shape());
    let shard = shard(t, leaf);
    (0..local.len()).fold(piece, |piece, dim| {
        let num_pieces = t.mesh().group_size(leaf.sharding.dims()[dim]);
        let Some(first) = shard.start(dim).filter(|_| num_pieces * local[dim] != leaf.dims[dim])
        else {
            return piece;
        };
        let index = t.iota(DType::U32, &local, dim).vary(first.varying());
        let exists = (index + first.broadcast_like(index, &[])).less(leaf.dims[dim] as f64);
        let exists = exists.vary(piece.varying());
        exists.select(piece, piece.full_like(0.0))
    })
}

/// The axes over which the rows of a leaf are divided.
fn stacked_axes(leaf: &LeafSpec) -> AxisSet {
    let dims = leaf.sharding.dims()[..leaf.num_stacked].iter();
    dims.fold(AxisSet::EMPTY, |all, axes| all | *axes)
}

/// Of the keys of all rows of several leaves that are stacked like this one, those of the rows that
/// this replica has.
fn own_rows<'g>(keys: Key<'g>, leaf: &LeafSpec) -> Key<'g> {
    let t = keys.words()[0].tracer();
    let (shard, local) = (shard(t, leaf), local_stack(leaf, &t.mesh()));
    Key::from_words(keys.words().map(|words| {
        let num_leaves = words.dim(0) / leaf.num_rows();
        let all = words.reshape(&[&[num_leaves], leaf.stack_sizes()].concat());
        let zero = t.scalar(DType::U32, 0.0);
        let start = (0..local.len()).map(|dim| shard.start(dim).unwrap_or(zero));
        let start: Vec<_> = std::iter::once(zero).chain(start).collect();
        let own = all.dynamic_slice(&start, &[&[num_leaves], &local[..]].concat());
        own.reshape(&[own.num_elements()])
    }))
}

/// The sizes of the stacked dims of what one replica has of a leaf.
fn local_stack(leaf: &LeafSpec, mesh: &Mesh) -> Vec<usize> {
    let sizes = leaf.stack_sizes().iter().zip(leaf.sharding.dims());
    sizes.map(|(size, axes)| size / mesh.group_size(*axes)).collect()
}
