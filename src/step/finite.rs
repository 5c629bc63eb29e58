//! Whether a next state is finite, found out before it takes the place of the last one.
//!
//! ```text
//! next  = f(state, gradients if their norm is finite)   looked at, element by element, not kept in memory
//! apply = the norm and all of next are finite
//! again = f(state, gradients if apply)                  the same values, written over the state
//! ```
//! Whether anything is kept is known only when all of it has been computed once. Keeping that until then would need
//! the memory of a second state; so it is computed twice, by the elementwise ops alone, and the update stays
//! in place.

use hlo::{DType, Reduction, Tensor, TensorType, Tracer, Tree};

use super::{OPT_STATE, PARAMS};

/// 1 plus the place of the first leaf of `next` that holds a value that is not finite, and 0 where there is
/// none: an i32 scalar, the same on every replica.
///
/// The leaves that belong to one parameter follow from the same values, and are looked at together: these
/// are read once.
pub fn first_nonfinite<'g>(t: &'g Tracer, next: &Tree<Tensor<'g>>) -> Tensor<'g> {
    let mut groups: Vec<Group<'_, 'g>> = vec![];
    for (place, (path, leaf)) in next.iter().enumerate() {
        let (parameter, ty) = (parameter(path), leaf.ty());
        let group = groups.iter_mut().find(|g| g.parameter == parameter && g.ty == ty);
        match group {
            Some(group) => group.leaves.push((place, *leaf)),
            None => groups.push(Group { parameter, ty, leaves: vec![(place, *leaf)] }),
        }
    }
    // Counted from the end, so that the first leaf has the greatest code.
    let num_leaves = next.len() as f64;
    let none = t.scalar(DType::I32, 0.0);
    let greatest = groups.iter().fold(none, |greatest, group| {
        let like_leaf = |code: f64| t.full(DType::I32, &group.ty.dims, code).vary(group.ty.varying);
        let codes = group.leaves.iter().rev().fold(like_leaf(0.0), |codes, (place, leaf)| {
            leaf.is_finite().select(codes, like_leaf(num_leaves - *place as f64))
        });
        let greatest_here = codes.reduce_max(&(0..group.ty.rank()).collect::<Vec<_>>());
        let greatest_everywhere = match group.ty.varying.is_empty() {
            true => greatest_here,
            false => greatest_here.all_reduce(Reduction::Max, group.ty.varying),
        };
        greatest.maximum(greatest_everywhere)
    });
    greatest.equal(0.0).select(greatest, num_leaves + 1.0 - greatest)
}

/// Leaves of one type that belong to one parameter.
struct Group<'a, 'g> {
    parameter: &'a str,
    ty: TensorType,
    /// With their places among all leaves.
    leaves: Vec<(usize, Tensor<'g>)>,
}

/// `next`, which follows from the gradients `totals * scale` that `mean` holds, computed again where `apply`
/// holds; elsewhere anything. The scale depends on `apply`, and all of it on the scale, so that no compiler
/// merges the two.
///
/// The same ops on the same values: they differ by no more than a compiler's choice of which products it adds
/// without rounding them first, which could tell only where a sum is on the edge of overflow.
pub fn again_if<'g>(
    apply: Tensor<'g>,
    next: &Tree<Tensor<'g>>,
    mean: &Tree<Tensor<'g>>,
    totals: &Tree<Tensor<'g>>,
    scale: Tensor<'g>,
) -> Tree<Tensor<'g>> {
    let scale = apply.select(scale, scale.full_like(0.0));
    let again = |(path, mean): (&str, &Tensor<'g>)| (*mean, totals[path] * scale);
    let replaced: Vec<_> = mean.iter().map(again).collect();
    let values: Vec<_> = next.values().copied().collect();
    let values = apply.tracer().recompute(&values, &replaced);
    next.paths().map(str::to_owned).zip(values).collect()
}

/// The parameter that a leaf of the state belongs to; for others the leaf itself.
fn parameter(path: &str) -> &str {
    match path.split_once('.') {
        Some((PARAMS, name)) => name,
        Some((OPT_STATE, rest)) => rest.split_once('.').map_or(path, |(_, name)| name),
        _ => path,
    }
}
