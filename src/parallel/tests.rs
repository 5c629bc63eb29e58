//! What all sums that send a part of the gradients have in common, as the interpreter computes it.

use hlo::{
    Axis, AxisSet, DType, Graph, LeafSpec, Literal, Mesh, OnOtherMesh, Sharding, TensorType,
    communication, interpret, trace,
};

use crate::config::GatherDType;

use super::quantized::{quantized_gather, quantized_scatter};
use super::{
    GatherAt, LocalMomentum, ParallelPlan, PlainSum, PowerSgdSum, QuantizedSum, Synchronize,
    TopKSum, UseDTypes,
};

const GROUP_SIZE: usize = 4;

fn schemes() -> [(&'static str, Box<dyn Synchronize>); 4] {
    [
        ("int8", Box::new(QuantizedSum)),
        ("top_k", Box::new(TopKSum { block: TopKSum::DEFAULT_BLOCK, momentum: None })),
        ("top_k of large blocks", Box::new(TopKSum { block: 512, momentum: None })),
        ("power_sgd", Box::new(PowerSgdSum { rank: None })),
    ]
}

/// A mesh, and a parameter that is cut over it.
fn cases() -> Vec<(Mesh, LeafSpec)> {
    let whole = |dims: &[usize]| LeafSpec::replicated(DType::F64, dims);
    let mesh = Mesh::data(GROUP_SIZE);
    let both = Mesh::new(&[(Axis::Data, GROUP_SIZE), (Axis::Fsdp, 2)]);
    let cut = Sharding::new(&[AxisSet::EMPTY, Axis::Fsdp.into()]);
    vec![
        (mesh, whole(&[67, 93])),
        (mesh, whole(&[96, 64]).stacked(&[3])),
        (mesh, whole(&[16, 3, 4, 64])),
        (both, LeafSpec::new(DType::F64, &[72, 128], cut)),
        (both, whole(&[72, 128])),
    ]
}

/// `local`, what is kept -> the sum, what is kept next, by each replica.
fn graph(scheme: &dyn Synchronize, plan: &ParallelPlan, param: &LeafSpec) -> Graph {
    let kinds = scheme.comm(param, plan);
    let traced = trace(plan.mesh, |t| {
        let axes = AxisSet::from(Axis::Data) | Axis::Fsdp.into();
        let axes = axes.minus(param.sharding.varying());
        let local = param.local_type(&plan.mesh).unwrap();
        let varying = local.varying | axes;
        let local = t.input("local", local.varying(varying));
        let kept = kinds.iter().map(|(kind, leaf)| {
            let ty = leaf.local_type(&plan.mesh).unwrap();
            t.input(*kind, ty)
        });
        let (sum, next) = scheme.sum(local, axes, &kept.collect::<Vec<_>>());
        t.output_varying("sum", sum, param.sharding.varying());
        for ((kind, leaf), next) in kinds.iter().zip(next) {
            t.output_varying(format!("next_{kind}"), next, leaf.sharding.varying());
        }
    });
    traced.unwrap()
}

/// Different values on each replica.
fn locals(plan: &ParallelPlan, param: &LeafSpec, step: usize) -> Vec<Literal> {
    let dims = param.local_type(&plan.mesh).unwrap().dims;
    let count: usize = dims.iter().product();
    let of = |replica: usize| {
        let value = |i| ((i * 7919 + replica * 104_729 + step * 31) as f64).sin();
        Literal::from_f64(DType::F64, &dims, &(0..count).map(value).collect::<Vec<_>>())
    };
    (0..plan.mesh.group_size(AxisSet::ALL)).map(of).collect()
}

fn zeros(plan: &ParallelPlan, leaf: &LeafSpec) -> Vec<Literal> {
    let dims = leaf.local_type(&plan.mesh).unwrap().dims;
    vec![Literal::zeros(DType::F64, &dims); plan.mesh.group_size(AxisSet::ALL)]
}

fn add(to: &mut [f64], values: &Literal) {
    to.iter_mut().zip(values.to_f64()).for_each(|(to, value)| *to += value);
}

#[test]
fn what_is_not_sent_is_kept() {
    for (mesh, param) in cases() {
        let plan = ParallelPlan::new(mesh, GatherAt::Step);
        for (name, scheme) in schemes() {
            let kinds = scheme.comm(&param, &plan);
            assert_eq!(kinds[0].1.on_other_mesh, OnOtherMesh::SumThenSplit);
            let [graph, plain] = [&*scheme, &PlainSum].map(|s| graph(s, &plan, &param));
            let mut inputs = vec![vec![]];
            inputs.extend(kinds.iter().map(|(_, leaf)| zeros(&plan, leaf)));
            let size: usize = param.local_type(&mesh).unwrap().dims.iter().product();
            // Of the first replica and of those with the same shard.
            let (mut wanted, mut sent) = (vec![0.0; size], vec![0.0; size]);
            for step in 0..3 {
                inputs[0] = locals(&plan, &param, step);
                let exact = interpret(&plain, &inputs[..1]).unwrap();
                let found = interpret(&graph, &inputs).unwrap();
                assert_ne!(found[0], exact[0], "{name}: nothing is compressed");
                add(&mut wanted, &exact[0][0]);
                add(&mut sent, &found[0][0]);
                inputs.splice(1.., found[1..].to_vec());
            }
            for replica in mesh.groups(Axis::Data.into()).remove(0) {
                add(&mut sent, &inputs[1][replica]);
            }
            for (sent, wanted) in sent.iter().zip(&wanted) {
                assert!((sent - wanted).abs() < 1e-11, "{name} {param}: {sent} {wanted}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_arrives() {
    let plan = ParallelPlan::new(Mesh::data(GROUP_SIZE), GatherAt::Step);
    let param = LeafSpec::replicated(DType::F64, &[67, 93]);
    for (name, scheme) in schemes() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut inputs = vec![locals(&plan, &param, 0)];
            inputs.extend(scheme.comm(&param, &plan).iter().map(|(_, leaf)| zeros(&plan, leaf)));
            let mut values = inputs[0][2].to_f64();
            values[4321] = value;
            inputs[0][2] = Literal::from_f64(DType::F64, &[67, 93], &values);
            let found = interpret(&graph(&*scheme, &plan, &param), &inputs).unwrap();
            let is_finite = found[0][0].to_f64().iter().all(|x| x.is_finite());
            assert!(!is_finite, "{name}: {value} is lost");
        }
    }
}

#[test]
fn few_bytes_are_sent() {
    for group_size in [2, 3, 4, 8, 16, 50, 64, 100] {
        let plan = ParallelPlan::new(Mesh::data(group_size), GatherAt::Step);
        // Of f32, as gradients are.
        let param = LeafSpec::replicated(DType::F32, &[1024, 1024]);
        let bytes = |scheme: &dyn Synchronize| -> f64 {
            let sent = communication(&graph(scheme, &plan, &param));
            sent.iter().map(|c| c.total_bytes_on_wire()).sum::<u64>() as f64
        };
        let plain = bytes(&PlainSum);
        let share = |scheme: &dyn Synchronize| bytes(scheme) / plain;
        let [top_k, power_sgd, int8] = [
            share(&TopKSum { block: TopKSum::DEFAULT_BLOCK, momentum: None }),
            share(&PowerSgdSum { rank: Some(2) }),
            share(&QuantizedSum),
        ];
        assert!(top_k < 0.1, "{group_size}: {top_k}");
        assert!(power_sgd < 0.0025, "{group_size}: {power_sgd}");
        assert!((0.257..0.259).contains(&int8), "{group_size}: {int8}");
    }
}

/// As Lin et al. (2018), algorithm 4, written for one element at a time; one replica chooses for
/// all.
#[test]
fn what_is_sent_has_the_momentum_that_it_missed() {
    let (block, n, mu) = (32_usize, 67_usize * 93, 0.9);
    let blocks_of_replica = n.div_ceil(block * GROUP_SIZE);
    let num_blocks = blocks_of_replica * GROUP_SIZE;
    let rounded = |x: f64| half::bf16::from_f32(x as f32).to_f64();
    let plan = ParallelPlan::new(Mesh::data(GROUP_SIZE), GatherAt::Step);
    let param = LeafSpec::replicated(DType::F64, &[67, 93]);
    for nesterov in [false, true] {
        let scheme = TopKSum { block, momentum: Some(LocalMomentum { mu, nesterov }) };
        let graph = graph(&scheme, &plan, &param);
        let mut inputs = vec![vec![]];
        inputs.extend(scheme.comm(&param, &plan).iter().map(|(_, leaf)| zeros(&plan, leaf)));
        let mut velocity = vec![vec![0.0; n]; GROUP_SIZE];
        let mut residual = velocity.clone();
        for step in 0..4 {
            inputs[0] = locals(&plan, &param, step);
            let mut sum = vec![0.0; n];
            for replica in 0..GROUP_SIZE {
                let (velocity, residual) = (&mut velocity[replica], &mut residual[replica]);
                for (i, gradient) in inputs[0][replica].to_f64().into_iter().enumerate() {
                    velocity[i] = mu * velocity[i] + gradient;
                    residual[i] += if nesterov { gradient + mu * velocity[i] } else { velocity[i] };
                }
            }
            for first in 0..num_blocks {
                let chooser = first / blocks_of_replica;
                let places = (first..n).step_by(num_blocks).rev();
                let size = |place: &usize| residual[chooser][*place].abs();
                let chosen = places.max_by(|a, b| size(a).total_cmp(&size(b))).unwrap();
                let mut exact = 0.0;
                for replica in 0..GROUP_SIZE {
                    let sent = rounded(residual[replica][chosen]);
                    exact += sent;
                    residual[replica][chosen] -= sent;
                    velocity[replica][chosen] = 0.0;
                }
                sum[chosen] = rounded(exact);
                residual[chooser][chosen] += exact - sum[chosen];
            }
            let found = interpret(&graph, &inputs).unwrap();
            let mut expected = vec![(found[0][0].to_f64(), &sum)];
            for replica in 0..GROUP_SIZE {
                expected.push((found[1][replica].to_f64(), &residual[replica]));
                expected.push((found[2][replica].to_f64(), &velocity[replica]));
            }
            for (found, expected) in expected {
                let far = found.iter().zip(expected).find(|(a, b)| (*a - *b).abs() > 1e-12);
                assert_eq!(far, None, "step {step}");
            }
            inputs.splice(1.., found[1..].to_vec());
        }
    }
}

/// A gradient of low rank is sent whole but for the rounding of its factors, whatever was guessed
/// at first; and one that is 0 does no harm.
#[test]
fn power_sgd_finds_the_space_of_the_gradient() {
    let plan = ParallelPlan::new(Mesh::data(1), GatherAt::Step);
    let param = LeafSpec::replicated(DType::F64, &[64, 48]);
    let scheme = PowerSgdSum { rank: Some(3) };
    let graph = graph(&scheme, &plan, &param);
    let low_rank = (0..64 * 48).map(|i| {
        let (row, column) = ((i / 48) as f64, (i % 48) as f64);
        row.sin() * column.cos() + 0.01 * (row * 0.3).cos() * (column * 1.7).sin()
    });
    let low_rank = Literal::from_f64(DType::F64, &[64, 48], &low_rank.collect::<Vec<_>>());
    let mut inputs = vec![vec![Literal::zeros(DType::F64, &[64, 48])]];
    inputs.extend(scheme.comm(&param, &plan).iter().map(|(_, leaf)| zeros(&plan, leaf)));
    let found = interpret(&graph, &inputs).unwrap();
    assert!(found.iter().flatten().all(|x| x.to_f64().iter().all(|x| *x == 0.0)));
    inputs.splice(1.., found[1..].to_vec());
    inputs[0] = vec![low_rank.clone()];
    let found = interpret(&graph, &inputs).unwrap();
    for (found, expected) in found[0][0].to_f64().into_iter().zip(low_rank.to_f64()) {
        assert!((found - expected).abs() < 1e-2, "{found} {expected}");
    }
}

/// In the large parameters of the examples, and for any number of replicas.
#[test]
fn power_sgd_chooses_ranks_that_take_a_twelfth_of_the_bytes() {
    for (dims, rank) in [([64, 64], 5), ([64, 256], 8), ([768, 3072], 16), ([4, 512], 1)] {
        let param = LeafSpec::replicated(DType::F32, &dims);
        let plan = ParallelPlan::new(Mesh::data(GROUP_SIZE), GatherAt::Step);
        let scheme = PowerSgdSum { rank: None };
        let kept = scheme.comm(&param, &plan);
        assert_eq!(kept[1].1.dims, [1, dims[1], rank], "{dims:?}");
        let bytes = |scheme: &dyn Synchronize| -> u64 {
            let sent = communication(&graph(scheme, &plan, &param));
            sent.iter().map(|c| c.total_bytes_on_wire()).sum()
        };
        let share = bytes(&scheme) as f64 / bytes(&PlainSum) as f64;
        // A single column may be more.
        assert!(share < if rank == 1 { 0.13 } else { 1.0 / 12.0 }, "{dims:?}: {share}");
    }
}

#[test]
fn parameters_of_few_elements_are_summed_in_full() {
    let plan = ParallelPlan::new(Mesh::data(GROUP_SIZE), GatherAt::Step);
    for (name, scheme) in schemes() {
        for dims in [&[][..], &[1000], &[10, 100]] {
            let param = LeafSpec::replicated(DType::F32, dims);
            assert!(scheme.comm(&param, &plan).is_empty(), "{name}");
            let kinds = communication(&graph(&*scheme, &plan, &param));
            assert_eq!(kinds.iter().map(|c| c.kind).collect::<Vec<_>>(), ["all_reduce"], "{name}");
        }
    }
}

/// Along any dim, of pieces that are no whole number of blocks.
#[test]
fn gathers_and_scatters_in_8_bits_are_nearly_exact() {
    let (mesh, axes, dims) = (Mesh::new(&[(Axis::Fsdp, 4)]), Axis::Fsdp.into(), [8, 12, 100]);
    for dim in [0, 1, 2] {
        let graph = trace(mesh, |t| {
            let x = t.input("x", TensorType::new(DType::F32, &dims).varying(axes));
            let exact = x.all_gather(dim, axes);
            let gather = |sent_in| quantized_gather(x, dim, axes, sent_in) - exact;
            let [gather, floats] = [GatherDType::Int8, GatherDType::F8E4M3].map(gather);
            let scatter = quantized_scatter(x, dim, axes) - x.reduce_scatter(dim, axes);
            for (name, errors) in [("gather", gather), ("floats", floats), ("scatter", scatter)] {
                t.output_varying(name, errors.abs().reduce_max(&[0, 1, 2]), axes);
            }
        });
        let count: usize = dims.iter().product();
        let of = |replica: usize| {
            let values: Vec<_> = (0..count).map(|i| ((i + replica * 77) as f64).cos()).collect();
            Literal::from_f64(DType::F32, &dims, &values)
        };
        let found = interpret(&graph.unwrap(), &[(0..4).map(of).collect()]).unwrap();
        // Half a step of 1 / 127 for each term; with floats half a step of a 4-bit fraction.
        for (errors, bound) in found.iter().zip([0.5 / 127.0, 0.5 / 8.0, 4.0 * 0.5 / 127.0]) {
            for error in errors.iter().map(|x| x.to_f64()[0]) {
                assert!(0.0 < error && error <= 1.01 * bound, "dim {dim}: {error}");
            }
        }
    }
}

/// And those that are sent exactly, all of them.
#[test]
fn gathers_in_8_bits_send_a_quarter_of_the_bytes() {
    let mesh = Mesh::new(&[(Axis::Fsdp, 4)]);
    let sharding = Sharding::new(&[Axis::Fsdp.into(), AxisSet::EMPTY]);
    let bytes = |gather_dtype: Option<GatherDType>, is_sent_exactly: bool| -> f64 {
        let plan = ParallelPlan::new(mesh, GatherAt::Use).with_gather_dtype(gather_dtype);
        let (used_in, rounded_to) = (DType::F32, DType::F32);
        let dtypes = UseDTypes { used_in, rounded_to, is_sent_exactly };
        let graph = trace(mesh, |t| {
            let ty = TensorType::new(DType::F32, &[256, 128]).varying(Axis::Fsdp.into());
            let whole = plan.for_use(t.input("x", ty), &sharding, dtypes);
            t.output_varying("whole", whole, AxisSet::ALL);
        });
        let sent = communication(&graph.unwrap());
        sent.iter().map(|c| c.total_bytes_on_wire()).sum::<u64>() as f64
    };
    let plain = bytes(None, false);
    for dtype in [GatherDType::Int8, GatherDType::F8E4M3] {
        let share = bytes(Some(dtype), false) / plain;
        assert!((0.257..0.259).contains(&share), "{dtype:?}: {share}");
        assert_eq!(bytes(Some(dtype), true), plain);
    }
}
