//! A whole leaf on every replica.

use hlo::{Graph, LeafSpec, Mesh, Tree, trace};

use super::declare::local_types;
use super::{GATHERED, StepError, finish};

/// leaf -> gathered: the whole value of a leaf, on every replica.
///
/// # Errors
/// If the leaf cannot be sharded over the mesh.
pub fn trace_gather(mesh: Mesh, spec: &LeafSpec) -> Result<Graph, StepError> {
    let leaves: Tree<LeafSpec> = [("leaf".to_owned(), spec.clone())].into_iter().collect();
    let types = local_types(&leaves, &mesh)?;
    finish(trace(mesh, |t| {
        for (path, ty) in types.iter() {
            let dims = spec.sharding.dims().iter().enumerate();
            let cut = dims.filter(|(_, axes)| !axes.is_empty());
            let shard = t.input(path, ty.clone());
            let whole = cut.fold(shard, |leaf, (dim, axes)| {
                let gathered = leaf.all_gather(dim, *axes);
                match gathered.dim(dim) == spec.dims[dim] {
                    true => gathered,
                    false => gathered.slice_dim(dim, 0, spec.dims[dim]),
                }
            });
            t.output_varying(GATHERED, whole, ty.varying);
        }
    })?)
}
