//! Differentiable ops with a body: `scan` repeats it, the VJP of `remat` recomputes it,
//! `custom_vjp` has its own VJP.
//!
//! None is an op of StableHLO. [`expand`] rewrites them as `while` and as the body's ops, before
//! lowering and counting. The interpreter evaluates them directly.
//!
//! A region sees outer values only through its operands.
//!
//! The gradient of a scan is a scan in the other direction; the forward scan is then replaced by
//! one that also stacks the residuals. The gradient of a remat computes its body again, after a
//! barrier. The results of `custom_vjp_recomputed` are not kept for the backward pass, which
//! computes them again: so a sharded parameter is gathered twice and dropped in between.

mod expand;
mod halves;
mod prepare;
mod residuals;
mod vjp;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::{Graph, Mesh, TensorType};

pub(crate) use expand::{expand, inline};
pub use halves::VjpHalves;
pub(crate) use prepare::prepare;
pub(crate) use vjp::{case_vjp, remat_vjp, scan_vjp};

/// The body of an op. Compared by identity, so that ops with bodies are never merged.
#[derive(Debug)]
pub struct Region {
    /// From operands to results.
    pub graph: Graph,
    /// The body that this one extends by more results, for the forward pass of a VJP with
    /// residuals.
    pub(crate) extends: Option<Arc<Region>>,
}

impl Region {
    pub(crate) fn new(graph: Graph) -> Arc<Self> {
        Arc::new(Self { graph, extends: None })
    }
}

impl PartialEq for Region {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Region {}

impl Hash for Region {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self, state);
    }
}

/// `scan(consts.., init.., xs..) -> carried.., ys..`: runs the body `length` times. The body takes
/// the constants, the carried values and slice `i` of each of `xs`, and returns the next carried
/// values and slice `i` of each of `ys`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scan {
    /// The body.
    pub body: Arc<Region>,
    /// Number of iterations, at least 1.
    pub length: usize,
    /// Number of operands that are the same in every iteration.
    pub num_consts: usize,
    /// Number of carried values.
    pub num_carried: usize,
    /// `true` if `i` counts down.
    pub reverse: bool,
}

impl Scan {
    /// Number of operands that each iteration takes a slice of.
    pub(crate) fn num_xs(&self) -> usize {
        self.body.graph.inputs().len() - self.num_consts - self.num_carried
    }
}

/// The types of a scan's results.
pub(crate) fn infer_scan(
    scan: &Scan,
    t: &[&TensorType],
    mesh: &Mesh,
) -> Result<Vec<TensorType>, String> {
    let Scan { length, num_consts, num_carried, .. } = scan;
    let body = &scan.body.graph;
    if *length == 0 {
        return Err("the length must be at least 1".into());
    }
    // The counter is a u32.
    if u32::try_from(*length).is_err() {
        return Err(format!("the length must be 1 to {}, not {length}", u32::MAX));
    }
    let first_x = num_consts + num_carried;
    if body.mesh() != mesh || body.inputs().len() != t.len() || t.len() < first_x {
        return Err(
            "the body takes another number of values, or was traced for another mesh".into()
        );
    }
    for (i, (given, input)) in t.iter().zip(body.inputs()).enumerate() {
        let expected = body.ty(input.value);
        let fits = match i < first_x {
            true => *given == expected,
            false => **given == stacked(expected, *length),
        };
        if !fits {
            return Err(format!("operand {i} is {given}, but the body takes {expected}"));
        }
    }
    let outputs: Vec<_> = body.outputs().iter().map(|output| body.ty(output.value)).collect();
    if outputs.is_empty() || outputs.len() < *num_carried {
        return Err("the body returns too few values".into());
    }
    let (carried, ys) = outputs.split_at(*num_carried);
    for (i, (next, start)) in carried.iter().zip(&t[*num_consts..]).enumerate() {
        if next != start {
            return Err(format!("the body returns {next} for carried value {i} of type {start}"));
        }
    }
    let ys = ys.iter().map(|ty| stacked(ty, *length));
    Ok(carried.iter().map(|ty| (*ty).clone()).chain(ys).collect())
}

/// The types of the results of an op that is replaced by its body.
pub(crate) fn infer_inlined(
    body: &Graph,
    t: &[&TensorType],
    mesh: &Mesh,
) -> Result<Vec<TensorType>, String> {
    let inputs = body.inputs().iter().map(|input| body.ty(input.value));
    if body.mesh() != mesh || !inputs.eq(t.iter().copied()) {
        return Err("the body does not take the types of the operands".into());
    }
    if body.outputs().is_empty() {
        return Err("the body returns nothing".into());
    }
    Ok(body.outputs().iter().map(|output| body.ty(output.value).clone()).collect())
}

/// The type of a stack of `length` values along a new leading dim.
fn stacked(ty: &TensorType, length: usize) -> TensorType {
    ty.with_dims(&[&[length], &ty.dims[..]].concat())
}
