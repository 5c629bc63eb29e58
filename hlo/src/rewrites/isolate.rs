//! The work of a program without its communication.

use super::everywhere;
use crate::rewriter::push;
use crate::{Graph, Node, Op, TensorType, ValueId};

/// Replaces collectives by local ops of the same shapes, to measure the time of everything else.
/// The results are not those of the program.
///
/// | collective | becomes |
/// |---|---|
/// | all_gather | the shard, repeated |
/// | reduce_scatter | the first shard of the operand |
/// | all_to_all | a reshape |
/// | collective_permute | the operand |
///
/// A barrier follows or precedes them, so that the compiler does not shrink the ops around them. An
/// all_reduce remains: [`crate::lower_isolated`] writes it with groups of one replica.
pub(crate) fn isolate(graph: &Graph) -> Graph {
    everywhere(graph, &alone)
}

fn alone(new: &mut Graph, node: &Node, x: &[ValueId], result: &TensorType) -> Option<ValueId> {
    let barrier =
        |new: &mut Graph, value: ValueId| push(new, node, Op::OptimizationBarrier, &[value]);
    match &node.op {
        Op::AllGather { dim, .. } => {
            let num_shards = result.dims[*dim] / new.ty(x[0]).dims[*dim].max(1);
            let shards = vec![x[0]; num_shards];
            let whole = push(new, node, Op::Concatenate { dim: *dim }, &shards);
            Some(barrier(new, whole))
        }
        Op::ReduceScatter { .. } => {
            let whole = barrier(new, x[0]);
            let rank = result.dims.len();
            let (start, limit, strides) = (vec![0; rank], result.dims.clone(), vec![1; rank]);
            Some(push(new, node, Op::Slice { start, limit, strides }, &[whole]))
        }
        Op::AllToAll { .. } => {
            let whole = barrier(new, x[0]);
            Some(push(new, node, Op::Reshape { dims: result.dims.clone() }, &[whole]))
        }
        Op::CollectivePermute { .. } => Some(x[0]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Axis, DType, HostCalls, Mesh, Reduction, TensorType, lower, lower_isolated, trace,
    };

    const NONE: HostCalls = HostCalls { collectives: None, kernels: false };

    #[test]
    fn shapes_remain_and_nothing_is_sent() {
        let axis = Axis::Fsdp;
        let graph = trace(Mesh::new(&[(axis, 4)]), |t| {
            let x = t.input("x", TensorType::new(DType::F32, &[8, 4]).varying(axis.into()));
            let looped = t.fori_loop(2, &[x], |_, x| {
                let whole = x[0].all_gather(1, axis);
                let back = whole.reduce_scatter(1, axis);
                vec![back.collective_permute(&[(0, 1), (1, 0)], axis)]
            });
            t.output_varying("y", looped[0].all_to_all(0, 1, axis), axis.into());
            t.output("sum", x.all_reduce(Reduction::Sum, axis));
        });
        let graph = graph.unwrap();
        let kinds = ["all_gather", "reduce_scatter", "collective_permute", "all_to_all"];
        let (program, isolated) = (lower(&graph, "step"), lower_isolated(&graph, "step", 4, NONE));
        for kind in kinds {
            let op = format!("\"stablehlo.{kind}\"");
            assert!(program.text.contains(&op) && !isolated.text.contains(&op), "{kind}");
        }
        let types = |program: &crate::Program| {
            program.outputs.iter().map(|output| output.ty.clone()).collect::<Vec<_>>()
        };
        assert_eq!(types(&program), types(&isolated));
        assert!(isolated.text.contains("dense<[[0], [1], [2], [3]]>"), "{}", isolated.text);
        assert!(isolated.text.contains("(tensor<8x4xf32>, tensor<8x4xf32>"), "{}", isolated.text);
        let calls = HostCalls { collectives: Some(2), kernels: false };
        let of_processes = lower_isolated(&graph, "step", 4, calls);
        let alone = "groups = array<i64: 0, 1, 2, 3>, group_size = 1 : i64";
        assert!(of_processes.text.contains(alone), "{}", of_processes.text);
        assert_eq!((of_processes.num_replicas, of_processes.num_processes), (4, 2));
        // One replica of the four has its own shard, and whole tensors of the same shape.
        let one = lower_isolated(&graph, "step", 1, NONE);
        assert_eq!((one.num_replicas, types(&one)), (1, types(&program)));
        let all = isolated.text.replace("dense<[[0], [1], [2], [3]]>", "dense<[[0]]>");
        let all = all.replace("tensor<4x1xi64>", "tensor<1x1xi64>");
        assert_eq!(one.text, all.replace("num_replicas = 4", "num_replicas = 1"));
    }
}
