//! Ops with a body that are differentiated: `scan` repeats it, `remat` computes it again, `custom_vjp` has
//! its own gradient.
//!
//! None is an op of StableHLO. [`expand`] writes them as `while` and as the body's own ops: text and
//! costs are made of that. The interpreter evaluates them as they are.
//!
//! A region sees outer values only through its operands.

mod expand;
mod prepare;
mod residuals;
mod vjp;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::{Graph, Mesh, TensorType};

pub(crate) use expand::{expand, inline};
pub(crate) use prepare::prepare;
pub(crate) use vjp::{remat_vjp, scan_vjp};

/// The body of a scan or of a remat. Two are equal only if they are the same one, so ops with bodies
/// are never merged.
#[derive(Debug)]
pub struct Region {
    /// From operands to results.
    pub graph: Graph,
    /// The body that this one is with more results behind: what a gradient makes to keep its residuals.
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

/// `scan(consts.., init.., xs..) -> carried.., ys..`: the body runs `length` times. It takes the constants,
/// the carried values and slice `i` of each of `xs`, and returns the next carried values and slice `i`
/// of each of `ys`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scan {
    /// What is repeated.
    pub body: Arc<Region>,
    /// How often; at least once.
    pub length: usize,
    /// Operands that are the same in every round.
    pub num_consts: usize,
    /// Operands that are the carried values' start.
    pub num_carried: usize,
    /// Does `i` count down?
    pub reverse: bool,
}

impl Scan {
    /// Operands of which each round takes a slice.
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
        return Err("repeats its body at least once".into());
    }
    // The rounds are counted by a u32.
    if u32::try_from(*length).is_err() {
        return Err(format!("runs 1 to {} times, not {length}", u32::MAX));
    }
    let first_x = num_consts + num_carried;
    if body.mesh() != mesh || body.inputs().len() != t.len() || t.len() < first_x {
        return Err("the body takes another number of values, or is for another mesh".into());
    }
    for (i, (given, input)) in t.iter().zip(body.inputs()).enumerate() {
        let expected = body.ty(input.value);
        let fits = match i < first_x {
            true => *given == expected,
            false => **given == stacked(expected, *length),
        };
        if !fits {
            return Err(format!("operand {i} is {given} where the body takes {expected}"));
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

/// The types of the results of an op that its body stands for: those of the body.
pub(crate) fn infer_inlined(
    body: &Graph,
    t: &[&TensorType],
    mesh: &Mesh,
) -> Result<Vec<TensorType>, String> {
    let inputs = body.inputs().iter().map(|input| body.ty(input.value));
    if body.mesh() != mesh || !inputs.eq(t.iter().copied()) {
        return Err("the body takes other types than its operands'".into());
    }
    if body.outputs().is_empty() {
        return Err("the body returns nothing".into());
    }
    Ok(body.outputs().iter().map(|output| body.ty(output.value).clone()).collect())
}

/// The type of `length` values of a type, one behind the other along a new leading dim.
fn stacked(ty: &TensorType, length: usize) -> TensorType {
    ty.with_dims(&[&[length], &ty.dims[..]].concat())
}
