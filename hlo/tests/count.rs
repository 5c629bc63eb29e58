//! Costs of graphs against values computed by hand.

use hlo::passes::simplify;
use hlo::{
    Axis, AxisSet, Communication, Convolution, Cost, CustomCall, DType, Groups, Mesh, Reduction,
    Tensor, TensorType, Tracer, Window, communication, count, grad, trace, transfers,
};

fn cost(mesh: Mesh, build: impl FnOnce(&Tracer)) -> Cost {
    count(&trace(mesh, build).unwrap_or_else(|error| panic!("{error}")))
}

fn f32s(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F32, dims)
}

#[test]
fn two_layers_have_the_costs_computed_by_hand() {
    let cost = cost(Mesh::SINGLE, |t| {
        let x = t.input("x", f32s(&[8, 4]));
        let w1 = t.input("w1", f32s(&[4, 16]));
        let b1 = t.input("b1", f32s(&[16]));
        let w2 = t.input("w2", f32s(&[16, 2]));
        let sum = x.dot(w1);
        let hidden = (sum + b1.broadcast_like(sum, &[1])).maximum(0.0);
        t.output("y", hidden.dot(w2).tanh().reduce_sum(&[0]));
    });
    let (batch, input, hidden, output) = (8, 4, 16, 2);
    let flops = [
        2 * batch * input * hidden,  // dot
        batch * hidden,              // add
        batch * hidden,              // maximum
        2 * batch * hidden * output, // dot
        (batch - 1) * output,        // reduce
    ];
    let elements = [
        batch * input + input * hidden + batch * hidden,
        hidden + batch * hidden, // broadcast of the bias
        3 * batch * hidden,
        1 + batch * hidden, // broadcast of 0.0
        3 * batch * hidden,
        batch * hidden + hidden * output + batch * output,
        2 * batch * output, // tanh
        batch * output + output,
    ];
    let bytes = 4 * elements.iter().sum::<u64>();
    assert_eq!(cost.flops, flops.iter().sum::<u64>());
    assert_eq!((cost.transcendentals, cost.bytes), (batch * output, bytes));
    assert_eq!(cost.matmul_flops(), flops[0] + flops[3]);
    assert_eq!((cost.flops, cost.bytes), (1806, 5964));
}

#[test]
fn a_convolution_counts_products_with_elements_of_its_input() {
    let convolution = |convolution: Convolution| {
        cost(Mesh::SINGLE, |t| {
            let x = t.input("x", f32s(&[2, 3, 8, 8]));
            let w = t.input("w", f32s(&[4, 3, 3, 3]));
            t.output("y", x.convolution(w, convolution));
        })
    };
    let inside = convolution(Convolution::new(2));
    assert_eq!(inside.flops, 2 * (2 * 4) * (6 * 6) * (3 * 3 * 3));
    // Along a padded dim of 8 the two outer positions cover 2 elements each, the other six cover 3.
    let padded = convolution(Convolution::new(2).padding(1));
    assert_eq!(padded.flops, 2 * (2 * 4) * 3 * 22 * 22);
    assert_eq!(padded.bytes, 4 * (2 * 3 * 64 + 4 * 3 * 9 + 2 * 4 * 64));
}

#[test]
fn a_window_counts_the_elements_it_covers() {
    let pooled = |reduction| {
        cost(Mesh::SINGLE, |t| {
            let x = t.input("x", f32s(&[1, 2, 8, 8]));
            t.output("y", x.reduce_window(reduction, Window::nchw(3, 2, 1)));
        })
    };
    // Four positions along each dim; the first covers 2 elements and the others 3.
    assert_eq!(pooled(Reduction::Sum).flops, 2 * (11 * 11 - 4 * 4));
    assert_eq!(pooled(Reduction::Max).bytes, 4 * 2 * (8 * 8 + 4 * 4));
    let scattered = cost(Mesh::SINGLE, |t| {
        let x = t.input("x", f32s(&[1, 2, 8, 8]));
        let source = t.input("source", f32s(&[1, 2, 4, 4]));
        t.output("y", x.select_and_scatter(source, Window::nchw(3, 2, 1)));
    });
    assert_eq!(scattered.flops, 2 * 11 * 11);
}

#[test]
fn type_changes_cost_nothing_and_a_slice_reads_only_what_it_returns() {
    let free = cost(Mesh::data(2), |t| {
        let x = t.input("x", f32s(&[4, 4]));
        let x = t.optimization_barrier(&[x.reshape(&[16]).stop_gradient()])[0];
        t.output_varying("y", x.bitcast_convert(DType::U32).vary(Axis::Data), Axis::Data.into());
    });
    assert_eq!((free.flops, free.bytes), (0, 0));

    let sliced = cost(Mesh::SINGLE, |t| {
        let x = t.input("x", f32s(&[1000, 2]));
        let row = x.slice_dim(0, 3, 4);
        let zero = t.scalar(DType::I32, 0.0);
        t.output("x", x.dynamic_update_slice(row, &[zero, zero]));
    });
    assert_eq!((sliced.flops, sliced.bytes), (0, 4 * (2 + 2 + 2 + 2)));
}

#[test]
fn a_gather_reads_the_rows_it_returns_and_a_scatter_adds_in_place() {
    let cost = cost(Mesh::SINGLE, |t| {
        let table = t.input("table", f32s(&[1000, 2]));
        let indices = t.input("indices", TensorType::new(DType::I32, &[3]));
        let rows = table.take(indices);
        t.output("table", table.scatter_add(indices, rows, 0));
    });
    let gather = 3 + 3 * 2 + 3 * 2;
    let scatter = 3 + 3 * 2 + 2 * (3 * 2);
    assert_eq!((cost.flops, cost.bytes), (6, 4 * (gather + scatter)));
}

#[test]
fn a_custom_call_counts_as_what_it_reads_and_writes() {
    let cost = cost(Mesh::SINGLE, |t| {
        let x = t.input("x", f32s(&[10]));
        t.output("y", t.custom_call(CustomCall::new("f", vec![f32s(&[3])]), &[x])[0]);
    });
    assert_eq!((cost.flops, cost.bytes), (0, 4 * (10 + 3)));
}

#[test]
fn top_k_looks_at_each_element() {
    let cost = cost(Mesh::SINGLE, |t| {
        t.output("indices", t.input("x", f32s(&[3, 100])).top_k(2).1);
    });
    assert_eq!((cost.flops, cost.bytes), (300, 4 * (300 + 2 * (3 * 2))));
}

#[test]
fn loops_are_multiplied_out() {
    let mesh = Mesh::new(&[(Axis::Data, 4), (Axis::Tensor, 2)]);
    let cost = cost(mesh, |t| {
        let x = t.input("x", f32s(&[6]).varying(Axis::Data.into()));
        let outer = t.fori_loop(3, &[x], |_, x| {
            x[0].tracer().fori_loop(2, x, |_, x| {
                vec![x[0].all_reduce(Reduction::Sum, Axis::Data).vary(Axis::Data)]
            })
        });
        let gathered = outer[0].all_gather(0, Axis::Data);
        t.output_varying("y", gathered, Axis::Data.into());
    });
    let reduce = Communication {
        kind: "all_reduce",
        dtype: DType::F32,
        groups: Axis::Data.into(),
        bytes: 6 * 4,
        whole_bytes: 6 * 4,
        group_size: 4,
        num_groups: 2,
        count: 3 * 2,
        is_backward: false,
        num_senders: 4,
        summed_elements: 6,
    };
    let whole_bytes = 4 * 6 * 4;
    let (kind, summed_elements) = ("all_gather", 0);
    let gather = Communication { kind, whole_bytes, count: 1, summed_elements, ..reduce.clone() };
    assert_eq!(cost.collectives, [reduce, gather]);
    // Each loop compares its counter once more than it increments it.
    let (outer_counts, inner_counts) = ((3 + 1) + 3, (2 + 1) + 2);
    assert_eq!(cost.flops, outer_counts + 3 * inner_counts);
    // A comparison of u32 reads 4 + 4 and writes 1, an addition moves 3 * 4.
    let (outer_bytes, inner_bytes) = (4 * 9 + 3 * 12, 3 * 9 + 2 * 12);
    let collective_bytes = 6 * (24 + 24) + (24 + 4 * 24);
    assert_eq!(cost.bytes, outer_bytes + 3 * inner_bytes + collective_bytes);
    assert!(!cost.has_unknown_loops);
}

#[test]
fn every_kind_of_collective_has_its_bytes_on_the_wire() {
    let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Fsdp, 4)]);
    let graph = trace(mesh, |t| {
        let fsdp = Axis::Fsdp.into();
        let shard = t.input("x", f32s(&[8, 2]).varying(fsdp));
        let whole = shard.all_gather(0, Axis::Fsdp);
        let sum = whole.all_reduce(Reduction::Sum, Axis::Fsdp);
        let back = whole.reduce_scatter(0, Axis::Fsdp).vary(Axis::Data);
        let exchanged = shard.all_to_all(0, 1, Axis::Fsdp);
        let sent = t.fori_loop(3, &[shard], |_, x| {
            vec![x[0].collective_permute(&[(0, 1), (1, 2), (3, 3)], Axis::Fsdp)]
        });
        t.output("sum", sum);
        t.output_varying("back", back.all_reduce(Reduction::Sum, Axis::Data), fsdp);
        t.output_varying("exchanged", exchanged, fsdp);
        t.output_varying("sent", sent[0], fsdp);
    });
    let rows: Vec<_> = communication(&graph.unwrap())
        .iter()
        .map(|c| (c.kind, c.groups.axes(), c.whole_bytes, c.bytes_on_wire(), c.count))
        .collect();
    let (data, fsdp) = (Axis::Data.into(), Axis::Fsdp.into());
    // A shard has 64 bytes, the whole 256.
    let expected = [
        ("all_gather", fsdp, 256, 192, 1),
        ("all_reduce", fsdp, 256, 2 * 192, 1),
        ("reduce_scatter", fsdp, 256, 192, 1),
        ("all_to_all", fsdp, 64, 48, 1),
        // Two of four replicas send to another.
        ("collective_permute", fsdp, 64, 32, 3),
        ("all_reduce", data, 64, 64, 1),
    ];
    assert_eq!(rows, expected);
}

#[test]
fn collectives_in_subgroups_have_the_size_of_their_groups() {
    let graph = trace(Mesh::data(8), |t| {
        let x = t.input("x", f32s(&[6]).varying(Axis::Data.into()));
        let sums = x.all_reduce(Reduction::Sum, Groups::strided(Axis::Data, 4));
        t.output("y", sums.all_reduce(Reduction::Sum, Axis::Data));
    });
    let graph = graph.unwrap();
    let sizes: Vec<_> =
        count(&graph).collectives.iter().map(|c| (c.num_groups, c.group_size)).collect();
    assert_eq!(sizes, [(4, 2), (1, 8)]);
    let reduced: Vec<_> =
        transfers(&graph).iter().map(|t| (t.groups.is_whole(), t.whole_bytes)).collect();
    assert_eq!(reduced, [(false, 6 * 4), (true, 6 * 4)]);
}

#[test]
fn a_scatter_in_two_steps_is_two_transfers() {
    let axis = Axis::Fsdp;
    let graph = trace(Mesh::new(&[(axis, 4)]), |t| {
        let x = t.input("x", f32s(&[8]).varying(axis.into()));
        let part = x.reduce_scatter(0, Groups::strided(axis, 2));
        t.output_varying("y", part.reduce_scatter(0, Groups::contiguous(axis, 2)), axis.into());
    });
    let bytes: Vec<_> = transfers(&graph.unwrap()).iter().map(|t| t.whole_bytes).collect();
    assert_eq!(bytes, [32, 16]);
}

/// A layer's parameter is gathered before its product, and the gradient scattered after the two
/// products of the backward pass; three products for each of two layers, and the first layer's
/// operand needs no cotangent.
#[test]
fn gathers_are_needed_before_their_use_and_scatters_are_ready_after_the_gradient() {
    let mesh = Mesh::new(&[(Axis::Fsdp, 2)]);
    let graph = trace(mesh, |t| {
        let fsdp = AxisSet::from(Axis::Fsdp);
        let shards = ["v", "w"].map(|name| t.input(name, f32s(&[4, 8]).varying(fsdp)));
        let [v, w] = shards.map(|shard| shard.all_gather(0, Axis::Fsdp));
        let x = t.input("x", f32s(&[8, 8]).varying(fsdp));
        let gradients = grad(x.dot(v).tanh().dot(w).sum(), &shards);
        for (name, gradient) in ["dv", "dw"].iter().zip(gradients) {
            t.output_varying(*name, gradient, fsdp);
        }
    });
    let rows: Vec<_> = transfers(&simplify(&graph.unwrap()))
        .iter()
        .map(|t| (t.kind, (5.0 * t.ready).round(), (5.0 * t.needed).round()))
        .collect();
    let gathers = [("all_gather", 0.0, 0.0), ("all_gather", 0.0, 1.0)];
    assert_eq!(rows[..2], gathers);
    // The second layer's gradient is one of the first two products of the backward pass.
    assert!(rows[2].0 == "reduce_scatter" && rows[2].1 <= 4.0, "{rows:?}");
    assert_eq!(rows[3], ("reduce_scatter", 5.0, 5.0));
    assert!(rows[2..].iter().all(|row| row.2 == 5.0), "{rows:?}");
}

#[test]
fn a_collective_in_a_loop_stays_in_its_iteration() {
    let graph = trace(Mesh::new(&[(Axis::Fsdp, 2)]), |t| {
        let fsdp = AxisSet::from(Axis::Fsdp);
        let [x, w] = [[8, 8], [4, 8]].map(|dims| t.input("x", f32s(&dims).varying(fsdp)));
        let looped = t.fori_loop(4, &[x, w], |_, x| {
            vec![x[0].dot(x[0]).dot(x[1].all_gather(0, Axis::Fsdp)), x[1]]
        });
        t.output_varying("y", looped[0], fsdp);
    });
    let found = transfers(&graph.unwrap());
    let rows: Vec<_> =
        found.iter().map(|t| (t.whole_bytes, 8.0 * t.ready, 8.0 * t.needed)).collect();
    assert_eq!(rows, [0.0, 2.0, 4.0, 6.0].map(|at| (8 * 8 * 4, at, at + 1.0)));
}

#[test]
fn a_case_costs_as_much_as_its_most_expensive_branch() {
    let cost = cost(Mesh::SINGLE, |t| {
        let (x, index) =
            (t.input("x", f32s(&[4, 4])), t.input("i", TensorType::new(DType::I32, &[])));
        let y = t.case(index, &[x], &[&|x| vec![x[0].sine()], &|x| vec![x[0].dot(x[0])]]);
        t.output("y", t.remat(&y, |y| vec![-y[0]])[0]);
    });
    let dot = 2 * 4 * 4 * 4;
    assert_eq!((cost.flops, cost.matmul_flops(), cost.transcendentals), (dot + 16, dot, 0));
    assert_eq!(cost.bytes, 4 * (3 * 16 + 2 * 16));
}

/// The head of a pipeline: in 3 of 8 iterations.
#[test]
fn a_case_on_the_counter_of_a_loop_costs_as_much_as_the_branches_that_run() {
    let graph = trace(Mesh::new(&[(Axis::Tensor, 2)]), |t| {
        let tensor = AxisSet::from(Axis::Tensor);
        let x = t.input("x", f32s(&[4, 4]).varying(tensor));
        let looped = t.fori_loop(8, &[x], |index, x| {
            let number = index.convert(DType::I32) - 5.0;
            let is_off = (number / 2.0).less(0.0).or(number.less(0.0)).convert(DType::U32);
            let y = case_of(x[0], is_off, &|x| {
                let sum = x[0].dot(x[0]).all_reduce(Reduction::Sum, Axis::Tensor);
                vec![sum.vary(Axis::Tensor)]
            });
            vec![y.dot(y)]
        });
        t.output_varying("y", looped[0], tensor);
    });
    let graph = graph.unwrap();
    let (cost, dot) = (count(&graph), 2 * 4 * 4 * 4);
    assert_eq!(cost.matmul_flops(), (8 + 3) * dot);
    assert_eq!(cost.collectives.iter().map(|c| c.count).collect::<Vec<_>>(), [3]);
    // After 5 products the iterations have two.
    let ready = transfers(&graph).iter().map(|t| (11.0 * t.ready).round()).collect::<Vec<_>>();
    assert_eq!(ready, [6.0, 8.0, 10.0]);
}

/// Branch 0, or x.
fn case_of<'g>(
    x: Tensor<'g>,
    index: Tensor<'g>,
    branch: &dyn for<'b> Fn(&[Tensor<'b>]) -> Vec<Tensor<'b>>,
) -> Tensor<'g> {
    x.tracer().case(index, &[x], &[branch, &|x| vec![x[0]]])[0]
}

#[test]
fn a_loop_of_unknown_length_counts_once_and_is_reported() {
    let cost = cost(Mesh::SINGLE, |t| {
        let x = t.input("x", f32s(&[]));
        t.output("y", t.while_loop(&[x], |x| x[0].less(9.0), |x| vec![x[0].exponential()])[0]);
    });
    assert_eq!(cost.transcendentals, 1);
    assert!(cost.has_unknown_loops);
}

#[test]
fn elementwise_ops_are_fused_into_their_users() {
    let (m, k, n) = (8, 16, 4);
    let graph = trace(Mesh::SINGLE, |t| {
        let x = t.input("x", TensorType::new(DType::F32, &[m, k]));
        let w = t.input("w", TensorType::new(DType::F32, &[k, n]));
        let y = (x.dot(w) * 2.0 + 1.0).tanh();
        t.output("total", (y * y).sum());
        t.output("y", y);
    })
    .unwrap();
    let cost = count(&graph);
    let dot = 4 * (m * k + k * n + m * n) as u64;
    assert_eq!((cost.matmul_flops(), cost.matmul_bytes()), (2 * (m * k * n) as u64, dot));
    // Two kernels depend on the dot's result: one writes `y`, one the total.
    let y = 4 * (m * n) as u64;
    assert_eq!(cost.fused_bytes, (y + y) + (y + 4));
    // The first can be part of it. The other reads `y`.
    let [matmul] = cost.matmuls[..] else { panic!("{:?}", cost.matmuls) };
    assert_eq!((matmul.epilogue_bytes, matmul.result_bytes), (2 * y, y));
    assert_eq!((matmul.element_bytes, matmul.is_call, matmul.count), (4, false, 1));
}

/// A kernel that waits for two products can be part of the later one only, and what waits for a
/// further kernel of none.
#[test]
fn a_kernel_can_be_part_of_the_product_that_it_waits_for_last() {
    let (m, n) = (8, 4);
    let cost = cost(Mesh::SINGLE, |t| {
        let x = t.input("x", f32s(&[m, m]));
        let [first, second] = ["v", "w"].map(|name| x.dot(t.input(name, f32s(&[m, n]))));
        let sum = first + second;
        let total = sum.reduce_sum(&[0]);
        t.output("sum", sum);
        t.output("scaled", first * total.broadcast_in_dim(&[m, n], &[1]));
    });
    let y = 4 * (m * n) as u64;
    let row = 4 * n as u64;
    let found: Vec<_> = cost.matmuls.iter().map(|one| (one.epilogue_bytes, one.count)).collect();
    // Only the sum waits for nothing later: the total reads it, and the last kernel the total.
    // Equal products have two entries.
    assert_eq!(found, [(0, 1), (3 * y, 1)], "{cost:?}");
    assert_eq!(cost.fused_bytes, 3 * y + (y + row) + (2 * y + row));
}

/// Loops and equal products are multiplied out.
#[test]
fn equal_products_are_one_entry() {
    let cost = cost(Mesh::SINGLE, |t| {
        let x = t.input("x", f32s(&[4, 4]));
        let w = t.input("w", f32s(&[4, 4]));
        let y = x.dot(w).dot(w);
        t.output("y", y.dot(t.input("v", f32s(&[4, 2]))));
    });
    let found: Vec<_> = cost.matmuls.iter().map(|one| (one.flops, one.bytes, one.count)).collect();
    assert_eq!(found, [(128, 192, 2), (64, 4 * (16 + 8 + 8), 1)]);
    assert_eq!((cost.num_matmuls(), cost.matmul_flops()), (3, 2 * 128 + 64));
}

/// A slice of a stack is read, changed and written back: none of the other rows.
#[test]
fn a_kernel_moves_the_slices_that_it_needs() {
    let (num_rows, n) = (100, 8);
    let updated = cost(Mesh::SINGLE, |t| {
        let stack = t.input("stack", f32s(&[num_rows, n]));
        let index = t.input("index", TensorType::new(DType::U32, &[]));
        let row = (stack.index_leading(index) * 2.0).tanh().reshape(&[1, n]);
        t.output("stack", stack.dynamic_update_slice(row, &[index, t.scalar(DType::U32, 0.0)]));
    });
    assert_eq!(updated.fused_bytes, 4 * (n + 1 + n) as u64);

    let sliced = |limits: &[(usize, usize)]| {
        cost(Mesh::SINGLE, |t| {
            let x = t.input("x", f32s(&[num_rows, n])).reshape(&[num_rows * n]);
            let slices = limits.iter().map(|(start, limit)| x.slice_dim(0, *start, *limit));
            t.output("y", slices.reduce(|sum, slice| sum + slice).unwrap());
        })
        .fused_bytes
    };
    assert_eq!(sliced(&[(0, 4)]), 4 * (4 + 4));
    assert_eq!(sliced(&[(0, 4), (4, 8)]), 4 * (8 + 4));
    // No part of a value is read twice.
    let half = num_rows * n / 2;
    let overlapping = sliced(&[(0, half), (1, half + 1), (2, half + 2)]);
    assert_eq!(overlapping, 4 * (num_rows * n + half) as u64);
}

/// A scan's dots read rows of a stack, and so does the loop itself.
#[test]
fn a_scan_moves_as_much_as_its_iterations() {
    let (length, n) = (10, 64);
    let scanned = cost(Mesh::SINGLE, |t| {
        let x = t.input("x", f32s(&[n, n]));
        let stack = t.input("stack", f32s(&[length, n, n]));
        let (carried, _) =
            t.scan(length, &[], &[x], &[stack], |_, x, w| (vec![x[0].dot(w[0])], vec![]));
        t.output("y", carried[0]);
    });
    let row = 4 * (n * n * length) as u64;
    assert_eq!(scanned.matmul_bytes(), 3 * row);
    // A copy of each row for the dot, its index, and a few bytes for the loop's counter.
    let rest = scanned.fused_bytes - 2 * row;
    assert!(rest < 100 * length as u64, "{rest}");
}

#[test]
fn changes_of_a_type_move_nothing() {
    let free = cost(Mesh::data(2), |t| {
        let x = t.input("x", f32s(&[4, 4])).reshape(&[16]).fusion_barrier().stop_gradient();
        t.output_varying("y", x.bitcast_convert(DType::U32).vary(Axis::Data), Axis::Data.into());
    });
    assert_eq!(free.fused_bytes, 0);
}
