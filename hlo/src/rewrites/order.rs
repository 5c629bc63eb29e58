//! The order of collectives around loops, for a backend that runs ops as soon as their operands are
//! there.

use std::sync::Arc;

use crate::region::expand;
use crate::rewriter::Rewriter;
use crate::{Comparison, DType, Graph, Literal, Node, Op, ValueId};

/// Orders the collectives of a graph around each loop (or branch) that has some inside: collectives
/// that the loop does not need wait for its end, and the loop waits for those that it needs. This
/// is done inside loops and branches too. Scans are written as `while`. Values do not change.
///
/// XLA's CPU backend runs an op as soon as its operands are there. It starts the collectives of one
/// computation in the order of its schedule, but not those of a loop and those beside it. A
/// rendezvous is identified by launch and devices alone, so on different replicas two different
/// collectives could meet: the launch hangs, or overwrites memory. What orders them is a dependence
/// that is computed, since barriers do not exist at run time. So an operand `x` of the later one
/// becomes `select(p, x, barrier(x))`, where `p` is computed from a result of the earlier one. It
/// is `x` whatever `p` is, but the compiler cannot know.
pub fn order_collectives(graph: &Graph) -> Graph {
    ordered(&expand(graph))
}

fn ordered(graph: &Graph) -> Graph {
    let loops: Vec<_> = graph.nodes().iter().filter(|node| is_loop(node)).collect();
    if loops.is_empty() {
        return graph.clone();
    }
    let copy = Rewriter::new(graph);
    let mut copy = OrderedCopy { copy, last_loop: None, collectives: vec![] };
    for input in graph.inputs() {
        copy.node(graph.node_of(input.value));
    }
    for node in loops {
        copy.with_ancestors(node);
    }
    for node in graph.nodes() {
        copy.node(node);
    }
    copy.copy.finish()
}

/// A loop or branch with collectives inside.
fn is_loop(node: &Node) -> bool {
    let mut inner = node.op.regions().into_iter().flat_map(Graph::nodes);
    inner.any(|node| is_collective(node) || is_loop(node))
}

fn is_collective(node: &Node) -> bool {
    node.op.groups().is_some()
}

/// A graph that is copied loop by loop, each loop after the nodes that it depends on.
struct OrderedCopy<'a> {
    copy: Rewriter<'a>,
    /// The first result of the last loop that was copied, and of the collectives since.
    last_loop: Option<ValueId>,
    collectives: Vec<ValueId>,
}

impl<'a> OrderedCopy<'a> {
    /// Copies a node after everything that it depends on.
    fn with_ancestors(&mut self, node: &'a Node) {
        let old = self.copy.old();
        let mut is_needed = vec![false; old.num_values()];
        is_needed[node.result().index()] = true;
        let mut needed = vec![];
        for ancestor in old.nodes().iter().rev() {
            if ancestor.results().any(|result| is_needed[result.index()]) {
                needed.push(ancestor);
                ancestor.operands.iter().for_each(|operand| is_needed[operand.index()] = true);
            }
        }
        needed.into_iter().rev().for_each(|node| self.node(node));
    }

    /// Copies a node, once, after its operands have been copied.
    fn node(&mut self, node: &'a Node) {
        if self.copy.get(node.result()).is_some() {
            return;
        }
        if let Op::Input { index } = node.op {
            return self.copy.input(index);
        }
        let mut operands: Vec<_> =
            node.operands.iter().map(|operand| self.copy.value(*operand)).collect();
        let is_loop = is_loop(node);
        let mut earlier = vec![];
        if is_loop || is_collective(node) {
            earlier.extend(self.last_loop);
        }
        if is_loop {
            earlier.append(&mut self.collectives);
        }
        for earlier in earlier {
            let places = (0..operands.len()).filter(|place| is_read(&node.op, *place));
            let read: Vec<_> = places.map(|place| operands[place]).collect();
            if !depend_on(self.copy.copied(), &read, earlier) {
                self.wait(node, &mut operands, earlier);
            }
        }
        let op = node.op.with_regions(ordered).unwrap_or_else(|| node.op.clone());
        let first = self.copy.push(node, op, &operands);
        self.copy.set_results(node.results(), first);
        if is_loop {
            self.last_loop = Some(first);
        } else if is_collective(node) {
            self.collectives.push(first);
        }
    }

    /// Makes an operand of a node depend on an earlier node: the smallest, and if there is one that
    /// varies wherever a result of the earlier node does, that.
    fn wait(&mut self, node: &Node, operands: &mut [ValueId], earlier: ValueId) {
        let new = self.copy.copied();
        let earlier = new.node_of(earlier);
        let results = earlier.results().enumerate().filter(|(index, result)| {
            is_computed(&earlier.op, *index) && new.ty(*result).num_elements() > 0
        });
        let results: Vec<_> = results.map(|(_, result)| result).collect();
        let mut places: Vec<_> =
            (0..operands.len()).filter(|place| is_read(&node.op, *place)).collect();
        places.sort_by_key(|place| new.ty(operands[*place]).num_bytes());
        let pairs = places.iter().flat_map(|place| results.iter().map(|result| (*place, *result)));
        let fits = |(place, result): &(usize, ValueId)| {
            new.ty(*result).varying.is_subset(new.ty(operands[*place]).varying)
        };
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_by_key(|pair| !fits(pair));
        if let Some((place, result)) = pairs.first().copied() {
            operands[place] = self.after(node, operands[place], result);
        }
    }

    /// `x`, but known only when `result` is.
    fn after(&mut self, node: &Node, x: ValueId, result: ValueId) -> ValueId {
        let new = self.copy.copied();
        let (of_result, of_x) = (new.ty(result).clone(), new.ty(x).clone());
        let mut push = |op: Op, operands: &[ValueId]| self.copy.push(node, op, operands);
        // Whatever the others decide, all of them select the same `x`.
        let excess = of_result.varying.minus(of_x.varying);
        let x = if excess.is_empty() { x } else { push(Op::Vary { axes: excess }, &[x]) };
        let rank = of_result.rank();
        let (start, limit, strides) = (vec![0; rank], vec![1; rank], vec![1; rank]);
        let mut p = push(Op::Slice { start, limit, strides }, &[result]);
        p = push(Op::Reshape { dims: vec![] }, &[p]);
        if of_result.dtype != DType::Pred {
            let zero = push(Op::Constant(Arc::new(Literal::zeros(of_result.dtype, &[]))), &[]);
            let zero = push(Op::Vary { axes: of_result.varying }, &[zero]);
            p = push(Op::Compare(Comparison::Eq), &[p, zero]);
        }
        p = push(Op::Vary { axes: of_x.varying.minus(of_result.varying) }, &[p]);
        p = push(Op::BroadcastInDim { dims: of_x.dims, broadcast_dims: vec![] }, &[p]);
        let same = push(Op::OptimizationBarrier, &[x]);
        let selected = push(Op::Select, &[p, x, same]);
        match excess.is_empty() {
            true => selected,
            false => push(Op::Replicated { axes: excess }, &[selected]),
        }
    }
}

/// `true` if some of the values are computed from a result of the node with this first result.
fn depend_on(graph: &Graph, values: &[ValueId], first: ValueId) -> bool {
    let mut is_seen = vec![false; graph.num_values()];
    let mut open = values.to_vec();
    while let Some(value) = open.pop() {
        if value < first || std::mem::replace(&mut is_seen[value.index()], true) {
            continue;
        }
        let node = graph.node_of(value);
        let index = value.index() - node.result().index();
        if !is_computed(&node.op, index) {
            open.push(node.operands[index]);
        } else if node.result() == first {
            return true;
        } else {
            open.extend(&node.operands);
        }
    }
    false
}

/// `false` if result `index` is operand `index` as it is, in the same memory.
fn is_computed(op: &Op, index: usize) -> bool {
    match op {
        Op::While { regions, .. } => {
            regions.body.outputs()[index].value != regions.body.inputs()[index].value
        }
        Op::OptimizationBarrier | Op::FusionBarrier => false,
        _ => true,
    }
}

/// `false` if a loop only passes operand `index` on.
fn is_read(op: &Op, index: usize) -> bool {
    let Op::While { regions, .. } = op else { return true };
    let input = regions.body.inputs()[index].value;
    regions.body.nodes().iter().any(|node| node.operands.contains(&input))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::{Axis, AxisSet, Mesh, Reduction, TensorType, interpret, trace, verify};

    fn operand(graph: &Graph, is_wanted: fn(&Op) -> bool) -> Vec<&str> {
        let users = graph.nodes().iter().filter(|node| is_wanted(&node.op));
        users.map(|node| graph.node_of(node.operands[0]).op.name()).collect()
    }

    /// A loop with an all_reduce, and gathers; some of these have nothing to do with the loop.
    fn looped(barrier: bool) -> Graph {
        let axis = Axis::Fsdp;
        let graph = trace(Mesh::new(&[(axis, 2)]), |t| {
            let ty = TensorType::new(DType::F64, &[2]).varying(axis.into());
            let [x, before, after, beside] =
                ["x", "before", "after", "beside"].map(|name| t.input(name, ty.clone()));
            let before = before.all_gather(0, axis).sum();
            let looped = t.scan(3, &[], &[x * before], &[], |_, x, _| {
                let sum = x[0].all_reduce(Reduction::Sum, axis).vary(axis);
                (vec![x[0] * 0.5 + sum], vec![])
            });
            let x = looped.0[0];
            let tied = t.optimization_barrier(&[x, beside]);
            let beside = if barrier { tied[1] } else { beside };
            t.output_varying("after", (after * x).all_gather(0, axis), axis.into());
            t.output_varying("beside", beside.all_gather(0, axis), axis.into());
        });
        graph.unwrap()
    }

    #[test]
    fn what_a_loop_does_not_need_waits_for_it_and_values_are_unchanged() {
        for barrier in [false, true] {
            let graph = looped(barrier);
            let ordered = order_collectives(&graph);
            verify(&ordered).unwrap();
            let gathered = operand(&ordered, |op| matches!(op, Op::AllGather { .. }));
            assert_eq!(gathered, ["input", "multiply", "select"]);
            let inputs = [[1.0, -0.0], [3.0, f64::INFINITY], [0.5, 7.0], [-0.0, f64::NAN]];
            let inputs = inputs.map(|values| {
                let of = |scale: f64| Literal::from_slice(&[2], &values.map(|value| value * scale));
                vec![of(1.0), of(2.0)]
            });
            let [expected, found] =
                [&graph, &ordered].map(|graph| interpret(graph, &inputs).unwrap());
            assert_eq!(format!("{found:?}"), format!("{expected:?}"));
        }
    }

    #[test]
    fn a_loop_waits_for_a_collective_that_it_needs_only_for_a_barrier() {
        let axis = Axis::Fsdp;
        let graph = trace(Mesh::new(&[(axis, 2)]), |t| {
            let ty = TensorType::new(DType::F32, &[2]).varying(axis.into());
            let [x, w] = ["x", "w"].map(|name| t.input(name, ty.clone()));
            let tied = t.optimization_barrier(&[x, w.all_gather(0, axis)]);
            let looped = t.fori_loop(3, &[tied[0]], |_, x| {
                vec![x[0].all_reduce(Reduction::Sum, axis).vary(axis)]
            });
            t.output_varying("x", looped[0], axis.into());
        });
        let ordered = order_collectives(&graph.unwrap());
        let is_loop = ordered.nodes().iter().find(|node| matches!(node.op, Op::While { .. }));
        let started = &is_loop.unwrap().operands;
        let started: Vec<_> = started.iter().map(|x| ordered.node_of(*x).op.name()).collect();
        assert_eq!(started, ["constant", "select"]);
    }

    /// A pair of a loop with collectives and a collective (or another such loop) of one graph, of
    /// neither of which the other needs a result.
    fn unordered(graph: &Graph) -> Option<(&Node, &Node)> {
        let synchronised: Vec<_> =
            graph.nodes().iter().filter(|node| is_loop(node) || is_collective(node)).collect();
        let needs = |later: &Node, earlier: &Node| {
            let places = (0..later.operands.len()).filter(|place| is_read(&later.op, *place));
            let read: Vec<_> = places.map(|place| later.operands[place]).collect();
            depend_on(graph, &read, earlier.result())
        };
        let pairs = (0..synchronised.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
        let pairs = pairs.map(|(i, j)| (synchronised[i], synchronised[j]));
        let mut of_loops = pairs.filter(|(a, b)| is_loop(a) || is_loop(b));
        of_loops.find(|(later, earlier)| !needs(later, earlier))
    }

    /// A graph on a mesh of two axes: values that vary over none, one or both of them, sums of
    /// them, collectives, and loops with a collective inside.
    fn random_graph(choices: &[(u8, usize, usize, u8)]) -> Graph {
        let axes_of = |bits: u8| {
            let axes = [Axis::Data, Axis::Fsdp].into_iter().enumerate();
            let axes = axes.filter(|(bit, _)| bits >> bit & 1 == 1);
            axes.fold(AxisSet::EMPTY, |all, (_, axis)| all | axis.into())
        };
        let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Fsdp, 2)]);
        let graph = trace(mesh, |t| {
            let ty = TensorType::new(DType::F64, &[2]);
            let mut values: Vec<_> = (0..4)
                .map(|bits| t.input(format!("x{bits}"), ty.clone().varying(axes_of(bits))))
                .collect();
            for (kind, a, b, bits) in choices {
                let (a, b) = (values[a % values.len()], values[b % values.len()]);
                let axes = axes_of(bits % 4);
                let over = if axes.is_empty() { Axis::Data.into() } else { axes };
                values.push(match kind % 4 {
                    0 => {
                        let both = a.varying() | b.varying();
                        a.vary(both) * 0.5 + b.vary(both)
                    }
                    1 => a.vary(over).all_reduce(Reduction::Sum, over),
                    2 => a.vary(over).all_gather(0, over).slice_dim(0, 0, 2),
                    _ => {
                        let start = a.vary(over);
                        t.fori_loop(2, &[start, b], |_, x| {
                            let sum = x[0].all_reduce(Reduction::Sum, over).vary(over);
                            vec![sum * 0.25, x[1]]
                        })[0]
                    }
                });
            }
            for (index, value) in values.iter().enumerate() {
                t.output_varying(format!("y{index}"), *value, value.varying());
            }
        });
        graph.unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn no_pair_stays_unordered_whatever_varies(
            choices in vec((0u8..4, 0usize..32, 0usize..32, 0u8..4), 2..14)
        ) {
            let graph = random_graph(&choices);
            let ordered = order_collectives(&graph);
            verify(&ordered).unwrap();
            prop_assert!(unordered(&ordered).is_none(), "{:?}", unordered(&ordered));
            let inputs: Vec<_> = (0..4u8)
                .map(|bits| {
                    let of = |replica: usize| {
                        let varied = [bits & 1 == 1, bits & 2 == 2];
                        let place = [replica / 2, replica % 2];
                        let value: usize =
                            (0..2).filter(|axis| varied[*axis]).map(|axis| place[axis] + 1).sum();
                        Literal::from_slice(&[2], &[value as f64 + 0.5, -(value as f64)])
                    };
                    (0..4).map(of).collect::<Vec<_>>()
                })
                .collect();
            let [expected, found] =
                [&graph, &ordered].map(|graph| interpret(graph, &inputs).unwrap());
            prop_assert_eq!(format!("{found:?}"), format!("{expected:?}"));
        }
    }
}
