//! Scan: its body, round by round.

use std::sync::Arc;

use super::movement::{concatenate, relabel, slice};
use super::{InterpError, Replicas, owned, run};
use crate::{Literal, Scan, TensorType};

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
            let slices: Vec<_> = rounds.iter().map(|ys| one_behind(&ys[y][replica])).collect();
            Arc::new(concatenate(&slices.iter().collect::<Vec<_>>(), 0))
        };
        (0..running.len()).map(on_replica).collect()
    };
    carried.extend((0..num_ys).map(stack));
    Ok(carried)
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
fn one_behind(x: &Literal) -> Literal {
    relabel(x, &TensorType::new(x.dtype(), &[&[1], x.dims()].concat()))
}
