//! Reduce_scatters in two steps, along one dim of a torus each.

use super::everywhere;
use crate::rewriter::push;
use crate::{Graph, Groups, Op};

/// Writes each reduce_scatter over whole groups of `A * line` replicas as two: over the `A`
/// replicas at the same place in each line of `line` neighbours, then over the replicas of a line.
/// Each replica gets the same shard as before, of a sum that is taken in another order. The second
/// step moves `1/A` of the bytes. Unchanged are groups of a line or less, and those that do not
/// divide into lines.
///
/// For compilers that have a reduce_scatter along one dim of a torus only, with replicas laid out
/// row by row.
pub fn scatter_by_line(graph: &Graph, line: usize) -> Graph {
    let mesh = *graph.mesh();
    everywhere(graph, &|new, node, operands, _| {
        let Op::ReduceScatter { dim, groups } = node.op else { return None };
        let axes = groups.axes();
        let size = mesh.group_size(axes);
        if !groups.is_whole() || line <= 1 || size <= line || !size.is_multiple_of(line) {
            return None;
        }
        let steps = [Groups::strided(axes, line), Groups::contiguous(axes, line)];
        let scatter = |x, groups| push(new, node, Op::ReduceScatter { dim, groups }, &[x]);
        Some(steps.into_iter().fold(operands[0], scatter))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, AxisSet, DType, Literal, Mesh, TensorType, communication, interpret, trace};

    /// A scatter along a dim, in a loop too.
    fn scattered(mesh: Mesh, dims: [usize; 2], dim: usize) -> Graph {
        let axes = AxisSet::of(&[Axis::Data, Axis::Fsdp]);
        let graph = trace(mesh, |t| {
            let x = t.input("x", TensorType::new(DType::F32, &dims).varying(axes));
            let looped = t.fori_loop(2, &[x], |_, x| {
                let shard = x[0].reduce_scatter(dim, Axis::Fsdp);
                vec![shard.all_gather(dim, Axis::Fsdp)]
            });
            t.output_varying("looped", looped[0], axes);
            t.output_varying("shard", x.reduce_scatter(dim, Axis::Fsdp), axes);
        });
        graph.unwrap()
    }

    /// Groups and operand bytes of the scatters that run once.
    fn scatters(graph: &Graph) -> Vec<(Groups, u64)> {
        let found = communication(graph).into_iter();
        let once = found.filter(|c| c.kind == "reduce_scatter" && c.count == 1);
        once.map(|c| (c.groups, c.bytes)).collect()
    }

    #[test]
    fn two_steps_leave_each_replica_the_shard_of_one() {
        // Replicas along data and fsdp, length of a line.
        let cases = [(1, 8, 4), (1, 8, 2), (1, 16, 4), (2, 8, 4), (3, 8, 2), (2, 6, 3), (2, 6, 2)];
        for (data, fsdp, line) in cases {
            let mesh = Mesh::new(&[(Axis::Data, data), (Axis::Fsdp, fsdp)]);
            for (dims, dim) in [([2 * fsdp, 3], 0), ([3, 2 * fsdp], 1)] {
                let whole = scattered(mesh, dims, dim);
                let by_line = scatter_by_line(&whole, line);
                let bytes = (24 * fsdp) as u64;
                let expected = [
                    (Groups::strided(Axis::Fsdp, line), bytes),
                    (Groups::contiguous(Axis::Fsdp, line), bytes / (fsdp / line) as u64),
                ];
                assert_eq!(scatters(&by_line), expected, "{mesh:?}");
                let loops = |graph: &Graph| {
                    let found = communication(graph);
                    found.iter().filter(|c| c.kind == "reduce_scatter" && c.count == 2).count()
                };
                assert_eq!((loops(&whole), loops(&by_line)), (1, 2), "{mesh:?}");
                // Whole numbers, different on each replica: their sums are exact in any order.
                let xs: Vec<_> = (0..mesh.num_replicas())
                    .map(|replica| {
                        let value = |i: usize| ((i * 37 + replica * 101) % 211) as f64;
                        let values: Vec<_> = (0..6 * fsdp).map(value).collect();
                        Literal::from_f64(DType::F32, &dims, &values)
                    })
                    .collect();
                let [of_whole, of_steps] = [&whole, &by_line]
                    .map(|graph| interpret(graph, std::slice::from_ref(&xs)).unwrap());
                assert_eq!(of_whole, of_steps, "{mesh:?}, lines of {line}, dim {dim}");
            }
        }
    }

    #[test]
    fn groups_that_are_no_lines_remain() {
        let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Fsdp, 6)]);
        let graph = scattered(mesh, [12, 3], 0);
        for line in [0, 1, 4, 5, 6, 12] {
            let expected = [(Groups::from(Axis::Fsdp), 144)];
            assert_eq!(scatters(&scatter_by_line(&graph, line)), expected, "{line}");
        }
    }
}
