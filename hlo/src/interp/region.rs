//! Scan, iteration by iteration, and case, each branch on the replicas that take it.

use std::sync::Arc;

use super::movement::{concatenate, relabel, slice};
use super::{InterpError, Replicas, ints, owned, run};
use crate::{Literal, Region, Scan, TensorType};

pub(super) fn scan(
    scan: &Scan,
    operands: &[&Replicas],
    running: &[bool],
) -> Result<Vec<Replicas>, InterpError> {
    let (consts, rest) = operands.split_at(scan.num_consts);
    let (init, xs) = rest.split_at(scan.num_carried);
    let mut carried = owned(init);
    let mut rounds: Vec<Vec<Replicas>> = vec![];
    for round in 0..scan.length {
        let index = if scan.reverse { scan.length - 1 - round } else { round };
        let mut inputs = [owned(consts), carried].concat();
        inputs.extend(xs.iter().map(|x| each(x, |x| leading(x, index))));
        carried = run(&scan.body.graph, &inputs, running)?;
        rounds.push(carried.split_off(scan.num_carried));
    }
    if scan.reverse {
        rounds.reverse();
    }
    let num_ys = rounds.first().map_or(0, Vec::len);
    let stack = |y: usize| -> Replicas {
        let on_replica = |replica: usize| {
            let slices: Vec<_> =
                rounds.iter().map(|ys| with_leading_dim(&ys[y][replica])).collect();
            Arc::new(concatenate(&slices.iter().collect::<Vec<_>>(), 0))
        };
        (0..running.len()).map(on_replica).collect()
    };
    carried.extend((0..num_ys).map(stack));
    Ok(carried)
}

/// Operands: the index, then those of the branches.
pub(super) fn case(
    branches: &[Arc<Region>],
    operands: &[&Replicas],
    running: &[bool],
) -> Result<Vec<Replicas>, InterpError> {
    let (index, x) = (operands[0], owned(&operands[1..]));
    let last = branches.len() - 1;
    let taken: Vec<usize> = index
        .iter()
        .map(|index| usize::try_from(ints(index)[0]).map_or(last, |index| index.min(last)))
        .collect();
    let mut results: Option<Vec<Replicas>> = None;
    for (i, branch) in branches.iter().enumerate().filter(|(i, _)| taken.contains(i)) {
        let takes: Vec<_> = taken.iter().zip(running).map(|(t, runs)| *t == i && *runs).collect();
        let found = run(&branch.graph, &x, &takes)?;
        let Some(results) = &mut results else {
            results = Some(found);
            continue;
        };
        for (result, found) in results.iter_mut().zip(found) {
            for (replica, value) in found.into_iter().enumerate().filter(|(r, _)| taken[*r] == i) {
                result[replica] = value;
            }
        }
    }
    Ok(results.unwrap_or_default())
}

fn each(x: &Replicas, f: impl Fn(&Literal) -> Literal) -> Replicas {
    x.iter().map(|x| Arc::new(f(x))).collect()
}

/// `[n, ..]` to `[..]`.
fn leading(x: &Literal, index: usize) -> Literal {
    let mut dims = x.dims().to_vec();
    dims[0] = 1;
    let mut start = vec![0; dims.len()];
    start[0] = index;
    let taken = slice(x, &dims, &start, &vec![1; dims.len()]);
    relabel(&taken, &TensorType::new(x.dtype(), &dims[1..]))
}

/// `[..]` to `[1, ..]`.
fn with_leading_dim(x: &Literal) -> Literal {
    relabel(x, &TensorType::new(x.dtype(), &[&[1], x.dims()].concat()))
}
