//! Collectives: from an operand on each replica of a group, in the order of the group, to the
//! result on each.

use std::sync::Arc;

use super::Replicas;
use super::contract::step;
use super::elementwise::binary;
use super::movement::{concatenate, piece};
use crate::{Literal, Reduction};

pub(super) fn all_reduce(reduction: Reduction, group: &[&Literal]) -> Replicas {
    everywhere(reduced(reduction, group), group)
}

pub(super) fn all_gather(group: &[&Literal], dim: usize) -> Replicas {
    everywhere(concatenate(group, dim), group)
}

pub(super) fn reduce_scatter(group: &[&Literal], dim: usize) -> Replicas {
    let sum = reduced(Reduction::Sum, group);
    (0..group.len()).map(|index| Arc::new(piece(&sum, dim, group.len(), index))).collect()
}

pub(super) fn all_to_all(group: &[&Literal], split_dim: usize, concat_dim: usize) -> Replicas {
    let received = |index: usize| {
        let pieces: Vec<_> =
            group.iter().map(|sent| piece(sent, split_dim, group.len(), index)).collect();
        Arc::new(concatenate(&pieces.iter().collect::<Vec<_>>(), concat_dim))
    };
    (0..group.len()).map(received).collect()
}

pub(super) fn collective_permute(group: &[&Literal], pairs: &[(usize, usize)]) -> Replicas {
    let received = |index: usize| {
        let source = pairs.iter().find(|(_, target)| *target == index).map(|pair| pair.0);
        Arc::new(match source {
            Some(source) => group[source].clone(),
            None => Literal::zeros(group[index].dtype(), group[index].dims()),
        })
    };
    (0..group.len()).map(received).collect()
}

fn everywhere(value: Literal, group: &[&Literal]) -> Replicas {
    let value = Arc::new(value);
    vec![value; group.len()]
}

/// ((x0 + x1) + x2) + x3, rounded after each addition.
fn reduced(reduction: Reduction, group: &[&Literal]) -> Literal {
    let [first, others @ ..] = group else { unreachable!("replica groups are not empty") };
    others.iter().fold((*first).clone(), |sum, x| binary(step(reduction), &sum, x))
}
