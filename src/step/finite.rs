//! Checks that the next state is finite before it replaces the current one.
//!
//! ```text
//! next  = f(state, gradients if their norm is finite)   tested element by element, not stored
//! apply = the norm and all of next are finite
//! again = f(state, gradients if apply)                  the same values, written over the state
//! ```
//! Whether to apply the update is known only after all of it has been computed. Storing it until
//! then would need the memory of a second state. Instead the update's elementwise ops run twice,
//! and the state is updated in place.

use hlo::{AxisSet, DType, Reduction, Tensor, TensorType, Tracer, Tree};

use super::StateSection;

/// 1 plus the index of the first leaf of `next` with a value that is not finite, or 0 if all values
/// are finite: an i32 scalar, the same on every replica but along `own`, where each replica decides
/// for itself.
///
/// The leaves of one parameter are computed from the same values, so they are tested together,
/// which reads these values once.
pub fn first_nonfinite<'g>(t: &'g Tracer, next: &Tree<Tensor<'g>>, own: AxisSet) -> Tensor<'g> {
    let mut groups: Vec<Group<'_, 'g>> = vec![];
    for (place, (path, leaf)) in next.iter().enumerate() {
        let (parameter, ty) = (StateSection::parameter(path).unwrap_or(path), leaf.ty());
        let group = groups.iter_mut().find(|g| g.parameter == parameter && g.ty == ty);
        match group {
            Some(group) => group.leaves.push((place, *leaf)),
            None => groups.push(Group { parameter, ty, leaves: vec![(place, *leaf)] }),
        }
    }
    // Codes count from the end, so that the first leaf has the greatest code.
    let num_leaves = next.len() as f64;
    let none = t.scalar(DType::I32, 0.0);
    let of_group = |group: &Group<'_, 'g>| {
        // Codes within the group: parameters of the same shape then have the same kernel, which is
        // compiled once.
        let like_leaf = |code: f64| t.full(DType::I32, &group.ty.dims, code).vary(group.ty.varying);
        let leaves = || (1..).map(f64::from).zip(group.leaves.iter().rev());
        let codes = leaves().fold(like_leaf(0.0), |codes, (code, (_, leaf))| {
            leaf.is_finite().select(codes, like_leaf(code))
        });
        let here = codes.reduce_max(&(0..group.ty.rank()).collect::<Vec<_>>());
        leaves().fold(none.vary(group.ty.varying), |among_all, (code, (place, _))| {
            let code_among_all = among_all.full_like(num_leaves - *place as f64);
            here.equal(code).select(code_among_all, among_all)
        })
    };
    // One collective for all leaves that vary over the same axes.
    let mut by_axes: Vec<(AxisSet, Tensor<'g>)> = vec![];
    for group in &groups {
        let (axes, code) = (group.ty.varying, of_group(group));
        match by_axes.iter_mut().find(|(others, _)| *others == axes) {
            Some((_, greatest)) => *greatest = greatest.maximum(code),
            None => by_axes.push((axes, code)),
        }
    }
    let greatest = by_axes.into_iter().fold(none, |greatest, (varying, here)| {
        let axes = varying.minus(own);
        let everywhere = match axes.is_empty() {
            true => here,
            false => here.all_reduce(Reduction::Max, axes),
        };
        greatest.maximum(everywhere)
    });
    greatest.equal(0.0).select(greatest, num_leaves + 1.0 - greatest)
}

/// Leaves of one type that belong to one parameter.
struct Group<'a, 'g> {
    parameter: &'a str,
    ty: TensorType,
    /// With their indices among all leaves.
    leaves: Vec<(usize, Tensor<'g>)>,
}

/// Recomputes `next` from the gradients `mean = totals * scale` if `apply` is true; otherwise the
/// values are unspecified. The recomputation depends on `apply` through `scale`, so that compilers
/// cannot merge it with the first computation.
///
/// Both computations apply the same ops to the same values. They differ at most in which
/// multiply-adds the compiler fuses, which could change finiteness only for a sum on the edge of
/// overflow.
pub fn recompute_if<'g>(
    apply: Tensor<'g>,
    next: &Tree<Tensor<'g>>,
    mean: &Tree<Tensor<'g>>,
    totals: &Tree<Tensor<'g>>,
    scale: Tensor<'g>,
) -> Tree<Tensor<'g>> {
    let scale = apply.select(scale, scale.full_like(0.0));
    let again =
        |(path, mean): (&str, &Tensor<'g>)| (*mean, totals[path] * scale.vary(mean.varying()));
    let replaced: Vec<_> = mean.iter().map(again).collect();
    let values: Vec<_> = next.values().copied().collect();
    let values = apply.tracer().recompute(&values, &replaced);
    next.paths().map(str::to_owned).zip(values).collect()
}
