//! Attention as calls of cuDNN: which attention is, and what the calls are given.

use hlo::random::Key;
use hlo::rewrites::order_collectives;
use hlo::{
    AxisSet, DType, Graph, Literal, Mesh, Node, Op, TensorType, Tree, count, grad, lower, trace,
};
use models::layers::{Attention, attention};
use models::{AttentionKernels, Initializer, LayerOptions, Precision, Scope, Training};

const FORWARD: &str = "__cudnn$fmhaSoftmax";
const BACKWARD: &str = "__cudnn$fmhaSoftmaxBackward";
const BATCH: usize = 2;
const POSITIONS: usize = 32;
const HEADS: usize = 4;

#[derive(Clone, Copy)]
struct Case {
    dtype: DType,
    head_width: usize,
    num_kv_heads: usize,
    causal: bool,
    dropout: f64,
    is_training: bool,
    kernels: AttentionKernels,
}

const PLAIN: Case = Case {
    dtype: DType::Bf16,
    head_width: 16,
    num_kv_heads: HEADS,
    causal: true,
    dropout: 0.0,
    is_training: true,
    kernels: AttentionKernels::Cudnn,
};

/// The layer, and in training its gradients, written out to single ops.
fn graph(case: Case) -> Graph {
    let Case { dtype, head_width, num_kv_heads, causal, dropout, is_training, kernels } = case;
    let width = HEADS * head_width;
    let kv_width = num_kv_heads * head_width;
    let graph = trace(Mesh::SINGLE, |t| {
        let input = |name: &str, dims: &[usize]| t.input(name, TensorType::new(dtype, dims));
        let x = input("x", &[BATCH * POSITIONS, width]);
        let shapes = [
            ("query.weight", vec![width, width]),
            ("query.bias", vec![width]),
            ("key.weight", vec![kv_width, width]),
            ("key.bias", vec![kv_width]),
            ("value.weight", vec![kv_width, width]),
            ("value.bias", vec![kv_width]),
            ("out.weight", vec![width, width]),
            ("out.bias", vec![width]),
        ];
        let values = shapes.map(|(name, dims)| (name.to_owned(), input(name, &dims)));
        let training = is_training.then(|| Training {
            key: Key::from_seed(t.constant(Literal::from_slice(&[2], &[5u32, 6]))),
            first_example: t.scalar(DType::U32, 3.0),
            num_examples: BATCH,
            batch_axes: AxisSet::EMPTY,
        });
        let values: Tree<_> = values.into_iter().collect();
        let scope = Scope::bind(t, Precision::uniform(dtype), values, training);
        let qkv = Initializer::Zeros;
        let parts = Attention {
            num_positions: POSITIONS,
            num_heads: HEADS,
            num_kv_heads,
            causal,
            qk_norm: None,
            rotary: None,
            dropout,
            qkv,
            out: qkv,
        };
        let options = LayerOptions { attention: kernels, ..LayerOptions::default() };
        let y = attention(&scope.with_options(options), x, None, parts);
        t.output("y", y);
        if is_training {
            t.output("dx", grad(y.reduce_sum(&[0, 1]), &[x])[0]);
        }
    });
    // There are no collectives; this writes out the ops with a gradient rule of their own.
    order_collectives(&graph.unwrap())
}

fn calls<'g>(graph: &'g Graph, target: &str) -> Vec<&'g Node> {
    let is_call = |node: &&Node| matches!(&node.op, Op::CustomCall(call) if call.target == target);
    graph.nodes().iter().filter(is_call).collect()
}

#[test]
fn the_backward_pass_is_given_what_the_forward_pass_was_and_gave() {
    for num_kv_heads in [HEADS, 1] {
        for causal in [true, false] {
            let graph = graph(Case { num_kv_heads, causal, ..PLAIN });
            let [forward] = calls(&graph, FORWARD)[..] else { panic!("{graph:?}") };
            let [backward] = calls(&graph, BACKWARD)[..] else { panic!("{graph:?}") };
            let types = |node: &Node| -> Vec<String> {
                node.results().map(|value| graph.ty(value).to_string()).collect()
            };
            let q = format!("bf16[{BATCH}, {HEADS}, {POSITIONS}, 16]");
            let kv = format!("bf16[{BATCH}, {num_kv_heads}, {POSITIONS}, 16]");
            let statistics = format!("f32[{BATCH}, {HEADS}, {POSITIONS}]");
            assert_eq!(types(forward), [&q, &statistics, "u8[0]"]);
            assert_eq!(types(backward), [&q, &kv, &kv, "u8[0]"]);
            // q, k, v, statistics, dy, y.
            let results: Vec<_> = forward.results().collect();
            assert_eq!(backward.operands[..3], forward.operands[..]);
            assert_eq!(backward.operands[3], results[1]);
            let y = graph.node_of(backward.operands[5]);
            assert!(
                matches!(&y.op, Op::Transpose { permutation } if permutation[..] == [0, 2, 1, 3])
            );
            assert_eq!(y.operands, [results[0]]);
            assert_ne!(backward.operands[4], backward.operands[5]);

            let text = lower(&graph, "test").text;
            let mask = if causal { "CAUSAL" } else { "NO_MASK" };
            assert_eq!(text.matches(&format!("mask_type\\22:\\22{mask}\\22")).count(), 2, "{text}");
            assert_eq!(text.matches("fmha_scale\\22:0.25,").count(), 2, "{text}");
            assert_eq!(text.matches("dense<[3, 1, 2, 0]> : tensor<4xindex>").count(), 4, "{text}");
        }
    }
}

#[test]
fn what_cudnn_has_no_kernels_for_is_written_as_ops() {
    let num_calls = |case| calls(&graph(case), FORWARD).len();
    assert_eq!(num_calls(Case { dtype: DType::F16, ..PLAIN }), 1);
    assert_eq!(num_calls(Case { head_width: 128, ..PLAIN }), 1);
    // Without training there is no dropout.
    assert_eq!(num_calls(Case { dropout: 0.1, is_training: false, ..PLAIN }), 1);
    for case in [
        Case { dtype: DType::F32, ..PLAIN },
        Case { head_width: 12, ..PLAIN },
        Case { head_width: 136, ..PLAIN },
        Case { dropout: 0.1, ..PLAIN },
        Case { kernels: AttentionKernels::Host, ..PLAIN },
        Case { kernels: AttentionKernels::None, ..PLAIN },
    ] {
        assert_eq!(num_calls(case), 0);
    }
}

/// The pairs of positions up to the query, among all pairs: 2 products forward; 5 backward, which
/// computes scores again.
#[test]
fn calls_count_the_flops_of_the_pairs_that_are_computed() {
    let flops = |kernels| count(&graph(Case { kernels, ..PLAIN })).matmul_flops();
    let product = (2 * BATCH * HEADS * 16 * POSITIONS) as u64;
    let (pairs, all) =
        (POSITIONS as u64 * (POSITIONS as u64 + 1) / 2, (POSITIONS * POSITIONS) as u64);
    let as_ops = flops(AttentionKernels::None) - 6 * product * all / POSITIONS as u64;
    let by_cudnn = flops(AttentionKernels::Cudnn) - 7 * product * pairs / POSITIONS as u64;
    assert_eq!(by_cudnn, as_ops);
}
