//! In-place updates of state.

use std::collections::HashMap;

use crate::rewriter::{push, rebuild};
use crate::{Graph, Node, Op, ValueId};

/// Makes all users of a leaf's next value read the value after `select`.
///
/// If an update may be skipped, a leaf becomes `select(apply, next, before)`. Other users of
/// `next`, such as a parameter that is updated from its momentum, would be fused with `next` and
/// read `before` again: then the leaf cannot overwrite `before`, and XLA's CPU backend copies it
/// first. So the select is moved before a fusion barrier, and the other users read its result. For
/// them it equals `next` only if `apply` is true, so a leaf is skipped unless the results of all
/// users of `next` are discarded if `apply` is false.
pub fn update_in_place(graph: &Graph) -> Graph {
    let leaves = leaves(graph);
    // The new values of each scalar `apply`, once copied, and of each leaf's select.
    let mut applies: HashMap<ValueId, Option<ValueId>> =
        leaves.values().map(|leaf| (leaf.apply, None)).collect();
    let mut kept: HashMap<ValueId, ValueId> = HashMap::new();
    rebuild(graph, |new, node, operands| {
        let result = node.result();
        if let Some(kept) = kept.get(&result) {
            return Some(*kept);
        }
        let mut value = push(new, node, node.op.clone(), operands);
        applies.entry(result).and_modify(|apply| *apply = Some(value));
        if let Some(leaf) = leaves.get(&result)
            && let Some(apply) = applies[&leaf.apply]
        {
            let before = new.inputs()[leaf.input].value;
            let dims = graph.ty(result).dims.clone();
            let broadcast = Op::BroadcastInDim { dims, broadcast_dims: vec![] };
            let apply = push(new, node, broadcast, &[apply]);
            value = push(new, node, Op::Select, &[apply, value, before]);
            value = push(new, node, Op::FusionBarrier, &[value]);
            kept.insert(leaf.select, value);
        }
        Some(value)
    })
}

/// A leaf of the state with a next value that has other users.
struct Leaf {
    /// A scalar, `true` if the update is applied.
    apply: ValueId,
    /// `select(apply, next, before)`.
    select: ValueId,
    /// Index of the input `before`.
    input: usize,
}

/// The leaves to rewrite, by their value `next`.
fn leaves(graph: &Graph) -> HashMap<ValueId, Leaf> {
    let mut num_users = vec![0usize; graph.num_values()];
    for operand in graph.nodes().iter().flat_map(|node| &node.operands) {
        num_users[operand.index()] += 1;
    }
    let mut leaves = HashMap::new();
    let mut needed_without: HashMap<ValueId, Vec<bool>> = HashMap::new();
    for output in graph.outputs() {
        let Some(input) = output.donated_input else { continue };
        let select = graph.node_of(output.value);
        let (Op::Select, Some(apply)) = (&select.op, scalar_apply(graph, select)) else { continue };
        let (next, before) = (select.operands[1], select.operands[2]);
        let is_alone = graph.node_of(next).results().len() == 1;
        let is_known_in_time = apply < next && before == graph.inputs()[input].value;
        if !is_alone || !is_known_in_time || num_users[next.index()] < 2 {
            continue;
        }
        let needed = needed_without.entry(apply).or_insert_with(|| needed_where_not(graph, apply));
        if !needed[next.index()] {
            leaves.insert(next, Leaf { apply, select: output.value, input });
        }
    }
    leaves
}

/// The scalar that is broadcast to a select's operand 0.
fn scalar_apply(graph: &Graph, select: &Node) -> Option<ValueId> {
    let pred = graph.node_of(select.operands[0]);
    let is_scalar = |value: ValueId| graph.ty(value).rank() == 0;
    let operand = pred.operands.first().copied().filter(|operand| is_scalar(*operand));
    matches!(pred.op, Op::BroadcastInDim { .. }).then_some(operand).flatten()
}

/// For each value, `true` if the outputs depend on it when `apply` is false.
fn needed_where_not(graph: &Graph, apply: ValueId) -> Vec<bool> {
    let mut needed = vec![false; graph.num_values()];
    for output in graph.outputs() {
        needed[output.value.index()] = true;
    }
    for node in graph.nodes().iter().rev() {
        if !node.results().any(|result| needed[result.index()]) {
            continue;
        }
        let is_left_out = matches!(node.op, Op::Select) && scalar_apply(graph, node) == Some(apply);
        for (index, operand) in node.operands.iter().enumerate() {
            if !(is_left_out && index == 1) {
                needed[operand.index()] = true;
            }
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Literal, Mesh, Reduction, TensorType, interpret, trace, verify};

    /// Momentum, a parameter that is updated from it, and optionally an output that depends on the
    /// momentum.
    fn step(outputs_momentum: bool) -> Graph {
        let graph = trace(Mesh::SINGLE, |t| {
            let ty = TensorType::new(DType::F32, &[4]);
            let [w, m, g] = ["w", "m", "g"].map(|name| t.input(name, ty.clone()));
            let apply = g.reduce(Reduction::Sum, &[0]).is_finite();
            let next_m = m * 0.9 + g;
            t.next_state("w", apply.select(w - next_m * 0.1, w));
            t.next_state("m", apply.select(next_m, m));
            if outputs_momentum {
                t.output("momentum", next_m * 2.0);
            }
        });
        graph.unwrap()
    }

    fn count_barriers(graph: &Graph) -> usize {
        graph.nodes().iter().filter(|node| matches!(node.op, Op::FusionBarrier)).count()
    }

    #[test]
    fn a_parameter_reads_the_selected_momentum_and_values_are_unchanged() {
        let before = step(false);
        let after = update_in_place(&before);
        verify(&after).unwrap();
        assert_eq!((count_barriers(&before), count_barriers(&after)), (0, 1));
        let selects = |graph: &Graph| {
            graph.nodes().iter().filter(|node| matches!(node.op, Op::Select)).count()
        };
        assert_eq!(selects(&after), selects(&before));
        for gradient in [1.5, f32::INFINITY] {
            let of = |values: [f32; 4]| Literal::from_slice(&[4], &values);
            let inputs = [[1.0, 2.0, 3.0, 4.0], [0.1, -0.2, 0.3, 0.0], [gradient, 0.5, 0.25, 2.0]];
            let inputs = inputs.map(|values| vec![of(values)]);
            let [expected, found] =
                [&before, &after].map(|graph| interpret(graph, &inputs).unwrap());
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_leaf_with_users_outside_the_update_is_left_alone() {
        assert_eq!(count_barriers(&update_in_place(&step(true))), 0);
    }
}
