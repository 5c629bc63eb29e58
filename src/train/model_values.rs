//! Values of a model, wherever they are, read in the pieces in which replicas hold them.

use hlo::{LeafSpec, Literal, Tree, row_paths, unravel};

use super::Error;
use crate::state;
use crate::step::StateSection;

/// Values of parameters and model state under the model's own paths. Where the state stacks
/// parameters, these are the rows.
pub trait ModelValues {
    /// The paths that have a value.
    fn paths(&self) -> Vec<&str>;

    /// The rectangle of these `dims` that starts at `start`, of the value at `path`. The model
    /// declares that value as `spec`.
    ///
    /// # Errors
    /// A path without a value, a value of another type, or one that cannot be read.
    fn piece(
        &self,
        path: &str,
        spec: &LeafSpec,
        start: &[usize],
        dims: &[usize],
    ) -> Result<Literal, Error>;
}

impl ModelValues for Tree<Literal> {
    fn paths(&self) -> Vec<&str> {
        self.paths().collect()
    }

    fn piece(
        &self,
        path: &str,
        spec: &LeafSpec,
        start: &[usize],
        dims: &[usize],
    ) -> Result<Literal, Error> {
        let value = self.get(path).ok_or_else(|| misfit(path, "there is no value"))?;
        if (value.dtype(), value.dims()) != (spec.dtype, &spec.dims[..]) {
            let found = format!("{}{:?}", value.dtype(), value.dims());
            return Err(misfit(path, &format!("it is {}, not {found}", spec.global_type())));
        }
        Ok(value.slice(start, dims))
    }
}

/// A rectangle of a leaf of the state, which may be a stack of the model's parameters.
pub(super) fn piece_of_leaf(
    values: &dyn ModelValues,
    (path, spec): (&str, &LeafSpec),
    start: &[usize],
    dims: &[usize],
) -> Result<Literal, Error> {
    let row = spec.row();
    if spec.num_stacked == 0 {
        return values.piece(path, &row, start, dims);
    }
    let (stack_start, row_start) = start.split_at(spec.num_stacked);
    let (stack_dims, row_dims) = dims.split_at(spec.num_stacked);
    let mut piece = Literal::zeros(spec.dtype, dims);
    let num_bytes = Literal::zeros(spec.dtype, row_dims).num_bytes();
    let mut places = piece.bytes_mut().chunks_exact_mut(num_bytes.max(1));
    for (index, path) in row_paths(path, spec).into_iter().enumerate() {
        let index = unravel(index, spec.stack_sizes());
        let is_inside = |((index, start), size): ((&usize, &usize), &usize)| {
            (*start..start + size).contains(index)
        };
        if index.iter().zip(stack_start).zip(stack_dims).all(is_inside)
            && let Some(place) = places.next()
        {
            place.copy_from_slice(values.piece(&path, &row, row_start, row_dims)?.bytes());
        }
    }
    Ok(piece)
}

/// The error for a value that does not fit.
pub(super) fn misfit(path: &str, reason: &str) -> Error {
    let path = StateSection::Params.path(path);
    state::Error::Leaf { path, reason: reason.to_owned() }.into()
}
