//! StableHLO text of collectives as custom calls.

use std::fmt::Write as _;

use super::{RegionContext, custom_call};
use crate::{Groups, Node, Op, ValueId};

/// The target of the custom calls by which [`super::HostCalls`] leaves collectives to the process.
pub const HOST_COLLECTIVE_TARGET: &str = "lockstep_collective";

/// The target of the custom calls by which a replica of such a program asks for its number among
/// those of all processes.
pub const HOST_REPLICA_ID_TARGET: &str = "lockstep_replica_id";

/// The target of the custom call that ends such a program: it does nothing, but its operands, those
/// of the program's small collectives, stay in memory until then. Otherwise a compiler gives their
/// memory to later values, and the computation of these waits until the collective has sent it.
pub const HOST_KEEP_TARGET: &str = "lockstep_keep";

/// Larger collectives take long to send, beside which a delay is little, and their memory counts.
const MAX_KEPT_BYTES: usize = 4 << 20;

/// The form of collectives in a program.
pub(super) enum Collectives {
    /// StableHLO's ops.
    Ops,
    /// Custom calls in a program for `num_processes`; `num_sites` of them have been written.
    HostCalls { num_sites: usize, num_processes: usize },
}

impl Collectives {
    pub fn num_processes(&self) -> usize {
        match self {
            Self::Ops => 1,
            Self::HostCalls { num_processes, .. } => *num_processes,
        }
    }
}

/// The call, without the `=` and what precedes it. `site` distinguishes it from the other
/// collectives of the program.
///
/// | attribute | |
/// |---|---|
/// | `site` | the number of the collective in the program |
/// | `kind` | StableHLO's name of the op |
/// | `groups`, `group_size` | the replica groups, one after the other |
/// | `reduction` | of all_reduce and reduce_scatter: StableHLO's name of the op that combines two elements |
/// | `dim` | of all_gather and reduce_scatter |
/// | `split_dim`, `concat_dim` | of all_to_all |
/// | `pairs` | of collective_permute: source and target of each pair, as positions in the group |
pub(super) fn host_collective(
    context: &RegionContext<'_>,
    node: &Node,
    groups_of: impl Fn(Groups) -> Vec<Vec<usize>>,
    site: usize,
) -> String {
    let mut attributes = format!("{{site = {site} : i64, kind = \"{}\"", node.op.name());
    let mut grouped = |groups: Groups, more: String| {
        let listed = groups_of(groups);
        let _ = write!(
            attributes,
            ", groups = {}, group_size = {} : i64{more}}}",
            array(&listed.concat()),
            listed[0].len()
        );
    };
    match &node.op {
        Op::AllReduce { reduction, groups } => {
            grouped(*groups, format!(", reduction = \"{}\"", reduction.name()));
        }
        Op::AllGather { dim, groups } => grouped(*groups, format!(", dim = {dim} : i64")),
        Op::ReduceScatter { dim, groups } => {
            grouped(*groups, format!(", dim = {dim} : i64, reduction = \"add\""));
        }
        Op::AllToAll { split_dim, concat_dim, groups } => {
            let dims = format!(", split_dim = {split_dim} : i64, concat_dim = {concat_dim} : i64");
            grouped(*groups, dims);
        }
        Op::CollectivePermute { pairs, groups } => {
            let pairs: Vec<usize> = pairs.iter().flat_map(|(from, to)| [*from, *to]).collect();
            grouped(*groups, format!(", pairs = {}", array(&pairs)));
        }
        _ => unreachable!("only collectives are written as calls to the host"),
    }
    let results = context.types(node.results());
    custom_call::host_call(context, node, HOST_COLLECTIVE_TARGET, &attributes, true, &results)
}

/// The call of [`HOST_KEEP_TARGET`] for a graph, and the last node before it; `None` if there are
/// no two collectives that could wait for each other.
pub(super) fn keep<'a>(context: &RegionContext<'a>) -> Option<(String, &'a Node)> {
    let graph = context.graph;
    let num_bytes =
        |node: &Node| node.operands.iter().map(|x| graph.ty(*x).num_bytes()).sum::<usize>();
    let collectives = graph.nodes().iter().filter(|node| node.op.groups().is_some());
    let kept: Vec<&Node> = collectives.filter(|node| num_bytes(node) <= MAX_KEPT_BYTES).collect();
    // The memory of inputs is theirs anyway, and a next state may be written over it.
    let is_input = |value: ValueId| {
        graph.inputs().iter().any(|input| context.name(input.value) == context.name(value))
    };
    let operands = kept.iter().flat_map(|node| node.operands.iter().copied());
    let operands: Vec<_> = operands.filter(|operand| !is_input(*operand)).collect();
    if kept.len() < 2 || operands.is_empty() {
        return None;
    }
    let call = format!(
        "stablehlo.custom_call @{HOST_KEEP_TARGET}({}) {{api_version = 4 : i32, has_side_effect = \
         true}} : ({}) -> ()",
        context.list(&operands),
        context.types(operands.iter().copied())
    );
    Some((call, graph.nodes().last()?))
}

pub(super) fn array(values: &[usize]) -> String {
    match values {
        [] => "array<i64>".to_owned(),
        values => {
            let values: Vec<_> = values.iter().map(ToString::to_string).collect();
            format!("array<i64: {}>", values.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Axis, DType, Graph, HostCalls, Mesh, Program, Reduction, TensorType, lower_with_host_calls,
        trace,
    };

    fn lower_for(graph: &Graph, num_processes: usize) -> Program {
        let calls = HostCalls { collectives: Some(num_processes), ..HostCalls::default() };
        lower_with_host_calls(graph, "test", calls)
    }

    #[test]
    fn attributes_say_what_to_compute_and_among_which_replicas() {
        let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Fsdp, 2)]);
        let axis = Axis::Data;
        let graph = trace(mesh, |t| {
            let x = t.input("x", TensorType::new(DType::F32, &[4, 2]).varying(axis.into()));
            let y = t.input("y", TensorType::new(DType::F32, &[]).varying(axis.into()));
            let sums = t.all_reduce(&[x, y], Reduction::Max, axis);
            t.output("sum", sums[0] + sums[1].broadcast_like(sums[0], &[]));
            let looped = t.fori_loop(2, &[x], |_, x| {
                let moved = x[0].all_gather(1, axis).reduce_scatter(0, axis);
                vec![moved.all_to_all(1, 0, axis).collective_permute(&[(1, 0)], axis)]
            });
            t.output_varying("looped", looped[0], axis.into());
        });
        let program = lower_for(&graph.unwrap(), 1);
        assert!(program.has_host_collectives());
        let groups = "groups = array<i64: 0, 2, 1, 3>, group_size = 2 : i64";
        let matrix = "dense<[1, 0]> : tensor<2xindex>";
        let both = format!("{matrix}, dense<> : tensor<0xindex>");
        let expected = [
            format!(
                "site = 0 : i64, kind = \"all_reduce\", {groups}, reduction = \"maximum\"}}, \
                 has_side_effect = true, operand_layouts = [{both}], result_layouts = [{both}]}}"
            ),
            format!("kind = \"all_gather\", {groups}, dim = 1 : i64}}"),
            format!("kind = \"reduce_scatter\", {groups}, dim = 0 : i64, reduction = \"add\"}}"),
            format!("kind = \"all_to_all\", {groups}, split_dim = 1 : i64, concat_dim = 0 : i64}}"),
            format!("kind = \"collective_permute\", {groups}, pairs = array<i64: 1, 0>}}"),
        ];
        for expected in expected {
            assert!(program.text.contains(&expected), "{expected}\n{}", program.text);
        }
        let sites = (0..5).filter(|site| program.text.contains(&format!("{{site = {site} : i64")));
        assert_eq!(sites.count(), 5);
        assert!(!program.text.contains("\"stablehlo."), "{}", program.text);
    }

    #[test]
    fn operands_stay_while_others_are_sent_to_other_processes() {
        let graph = trace(Mesh::data(4), |t| {
            for (name, size) in [("a", 4), ("b", 8), ("large", 2 << 20)] {
                let ty = TensorType::new(DType::F32, &[size]).varying(Axis::Data.into());
                let x = t.input(name, ty).tanh();
                t.output(name, x.all_reduce(Reduction::Sum, Axis::Data));
            }
            let state = t.input("state", TensorType::new(DType::F32, &[3]));
            t.output("state", state.vary(Axis::Data).all_reduce(Reduction::Sum, Axis::Data));
        });
        let graph = graph.unwrap();
        let text = lower_for(&graph, 2).text;
        let kept: Vec<_> = text.lines().filter(|line| line.contains("@lockstep_keep")).collect();
        let end = ": (tensor<4xf32>, tensor<8xf32>) -> ()";
        assert!(matches!(kept[..], [line] if line.contains(end)), "{text}");
        assert!(!lower_for(&graph, 1).text.contains("@lockstep_keep"));
    }

    #[test]
    fn a_process_compiles_its_own_replicas_and_they_know_their_numbers() {
        let mesh = Mesh::new(&[(Axis::Data, 4), (Axis::Fsdp, 2)]);
        let graph = trace(mesh, |t| {
            let index = t.replica_id(Axis::Data).convert(DType::F32);
            t.output("sum", index.all_reduce(Reduction::Sum, Axis::Data));
        });
        let graph = graph.unwrap();
        let program = lower_for(&graph, 4);
        assert_eq!((program.num_replicas, program.replicas_per_process()), (8, 2));
        let expected = [
            "mhlo.num_replicas = 2 : i32",
            "stablehlo.custom_call @lockstep_replica_id() {api_version = 4 : i32} : () -> \
             tensor<ui32>",
            "groups = array<i64: 0, 2, 4, 6, 1, 3, 5, 7>, group_size = 4 : i64",
        ];
        for expected in expected {
            assert!(program.text.contains(expected), "{expected}\n{}", program.text);
        }
        assert!(!program.text.contains("stablehlo.replica_id"), "{}", program.text);
    }
}
