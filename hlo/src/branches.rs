//! Which branches the cases in a loop's body take, where that follows from the loop's counter.

use std::collections::HashMap;

use crate::rewriter::push;
use crate::{AxisSet, Graph, Literal, Mesh, Node, Op, Output, TensorType, ValueId, interpret};

/// Most iterations whose branches are found out.
const MAX_ITERATIONS: u64 = 1 << 12;

/// The branches that the cases of a loop's body take in each iteration. A case whose index depends
/// on more than the counter is not listed.
#[derive(Default)]
pub(crate) struct TakenBranches {
    /// By the first result of the case: a branch for each iteration.
    branches: HashMap<ValueId, Vec<usize>>,
}

impl TakenBranches {
    /// For a loop of `graph`. It is found by running what leads from the counter to the index of
    /// each case, which is the first carried value of loops of this crate.
    pub(crate) fn of(graph: &Graph, node: &Node) -> Self {
        let Op::While { regions, trip_count: Some(trips @ ..=MAX_ITERATIONS) } = &node.op else {
            return Self::default();
        };
        let start = node.operands.first().map(|counter| &graph.node_of(*counter).op);
        let Some(Op::Constant(start)) = start else { return Self::default() };
        let cases: Vec<_> = regions.body.nodes().iter().filter(|node| is_case(node)).collect();
        if cases.is_empty() || start.num_elements() != 1 {
            return Self::default();
        }
        Self::run(&regions.body, &cases, Literal::clone(start), *trips).unwrap_or_default()
    }

    /// `None` if the counter itself depends on more than the counter.
    fn run(body: &Graph, cases: &[&Node], start: Literal, trips: u64) -> Option<Self> {
        let (graph, known) = of_counter(body);
        let with_outputs = |values: &[ValueId]| {
            let mut graph = graph.clone();
            for value in values {
                let (name, varying, donated_input) = (String::new(), AxisSet::EMPTY, None);
                graph.output(Output { name, value: *value, varying, donated_input });
            }
            graph
        };
        let next = *known.get(&body.outputs().first()?.value)?;
        let index = |case: &&&Node| known.get(case.operands.first()?).copied();
        let listed: Vec<_> = cases.iter().filter(|case| index(case).is_some()).collect();
        let indices = listed.iter().filter_map(index);
        let graph = with_outputs(&[next].into_iter().chain(indices).collect::<Vec<_>>());
        let mut branches = vec![vec![]; listed.len()];
        let mut counter = start;
        for _ in 0..trips {
            let mut values = interpret(&graph, &[vec![counter]]).ok()?.into_iter();
            counter = values.next()?.pop()?;
            for ((index, case), branches) in values.zip(&listed).zip(&mut branches) {
                let Op::Case { branches: all } = &case.op else { return None };
                // An index out of range takes the last branch.
                let (index, last) = (*index.first()?.to_f64().first()?, all.len() - 1);
                let is_inside = index >= 0.0 && index <= last as f64;
                branches.push(if is_inside { index as usize } else { last });
            }
        }
        let first = |case: &&Node| case.results().next();
        let branches = listed.iter().zip(branches);
        Some(Self {
            branches: branches.filter_map(|(case, taken)| Some((first(case)?, taken))).collect(),
        })
    }

    /// How often a case takes each of its branches; `None` if that is not known.
    pub(crate) fn counts(&self, case: &Node) -> Option<Vec<u64>> {
        let taken = self.branches.get(&case.results().next()?)?;
        let Op::Case { branches } = &case.op else { return None };
        let mut counts = vec![0; branches.len()];
        for branch in taken {
            counts[*branch] += 1;
        }
        Some(counts)
    }

    /// The branches that are known of an iteration, by the first result of each case.
    pub(crate) fn in_iteration(&self, iteration: u64) -> Branches {
        let at = |taken: &Vec<usize>| taken.get(usize::try_from(iteration).ok()?).copied();
        let known = self.branches.iter().filter_map(|(case, taken)| Some((*case, at(taken)?)));
        Branches(known.collect())
    }
}

/// The branches of one iteration.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Branches(HashMap<ValueId, usize>);

impl Branches {
    /// The branch of a case, if it is known.
    pub(crate) fn of<'g>(&self, case: &'g Node) -> Option<&'g Graph> {
        let branch = self.0.get(&case.results().next()?)?;
        let Op::Case { branches } = &case.op else { return None };
        branches.get(*branch).map(|branch| &branch.graph)
    }
}

fn is_case(node: &Node) -> bool {
    matches!(node.op, Op::Case { .. })
}

/// The scalars of a loop's body that depend on the first carried value alone, as a graph of it, and
/// their values in that graph.
fn of_counter(body: &Graph) -> (Graph, HashMap<ValueId, ValueId>) {
    let mut graph = Graph::new(Mesh::SINGLE);
    let mut known: HashMap<ValueId, ValueId> = HashMap::new();
    for node in body.nodes() {
        let Some(value) = node.results().next() else { continue };
        match &node.op {
            Op::Input { index: 0 } => {
                let TensorType { dtype, dims, .. } = body.ty(value);
                let ty = TensorType::new(*dtype, dims);
                known.insert(value, graph.input("counter", ty, node.location));
                continue;
            }
            Op::Vary { .. } | Op::StopGradient => {
                let same = known.get(&node.operands[0]).copied();
                known.extend(same.map(|same| (value, same)));
                continue;
            }
            Op::Constant(_)
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare(_)
            | Op::Select
            | Op::Clamp
            | Op::Convert(_)
            | Op::Reshape { .. }
            | Op::BroadcastInDim { .. } => {}
            _ => continue,
        }
        let is_scalar = body.ty(value).num_elements() == 1;
        let operands: Option<Vec<_>> =
            node.operands.iter().map(|operand| known.get(operand).copied()).collect();
        if let Some(operands) = operands.filter(|_| is_scalar) {
            known.insert(value, push(&mut graph, node, node.op.clone(), &operands));
        }
    }
    (graph, known)
}
