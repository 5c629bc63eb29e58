//! Layers that are cut over `tensor`, in models that no configuration describes or whose data are
//! files: loss and gradients in the interpreter against one replica, bytes on the wire against the
//! formulas of the papers, and what is refused.

use std::collections::BTreeMap;

use hlo::{
    ActivationRows, Axis, DType, Graph, LeafSpec, Literal, Mesh, Tensor, Tree, communication,
    count, interpret,
};
use lockstep::config::OnNonfinite;
use lockstep::optim::{Mask, chain};
use lockstep::parallel::{GatherAt, ParallelPlan, PlainSum};
use lockstep::step::{self, BatchField, DeclaredStep, StepSpec};
use models::encoder::{Encoder, EncoderFamily, Head};
use models::gpt::Gpt;
use models::layers::{Attention, Embedding, Rotary, attention, embedding, rms_norm, swiglu};
use models::loss::vocabulary_cross_entropy;
use models::{
    AttentionKernels, Batch, Embedded, Initializer, Loss, Model, Pipelined, Precision, Scope, Stack,
};

pub(crate) const BATCH: usize = 8;
pub(crate) const POSITIONS: usize = 8;
pub(crate) const VOCABULARY: usize = 30;
const WEIGHTS: Initializer = Initializer::Normal { std: 0.2 };

/// A decoder of grouped queries with norms, rotary embeddings and gated layers.
#[derive(Clone, Copy)]
pub(crate) struct Decoder {
    pub(crate) num_blocks: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) scan: bool,
    /// `true` if the head uses the table of the embedding.
    pub(crate) is_tied: bool,
}

pub(crate) const DECODER: Decoder =
    Decoder { num_blocks: 2, num_kv_heads: 4, scan: false, is_tied: true };
const DECODER_WIDTH: usize = 32;

impl Pipelined for Decoder {
    fn stack(&self) -> Stack {
        Stack { num_blocks: self.num_blocks, scan: self.scan, remat: false }
    }

    fn embed<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Embedded<'g> {
        let x_bt = batch.field("x");
        let [b, t] = x_bt.dims();
        let table = embedding(&scope.at("embed"), VOCABULARY, DECODER_WIDTH, WEIGHTS);
        let x = scope.leave_vocabulary(table.embed(x_bt).reshape(&[b * t, DECODER_WIDTH]));
        let tied = self.is_tied.then(|| table.tied()).into_iter().collect();
        Embedded { x, given: vec![], tied, num_positions: t }
    }

    fn block<'g>(
        &self,
        scope: &Scope<'g>,
        x_nw: Tensor<'g>,
        _given: &[Tensor<'g>],
        num_positions: usize,
    ) -> Tensor<'g> {
        let parts = Attention {
            num_positions,
            num_heads: 4,
            num_kv_heads: self.num_kv_heads,
            causal: true,
            qk_norm: Some(1e-5),
            rotary: Some(Rotary { base: 500.0, scaling: 2.0 }),
            dropout: 0.0,
            qkv: WEIGHTS,
            out: WEIGHTS,
        };
        let normal_nw = rms_norm(&scope.at("norm1"), x_nw, 1e-6);
        let x_nw = x_nw + attention(&scope.at("attn"), normal_nw, None, parts);
        let normal_nw = rms_norm(&scope.at("norm2"), x_nw, 1e-6);
        x_nw + swiglu(&scope.at("mlp"), normal_nw, 48, WEIGHTS, WEIGHTS)
    }

    fn is_head_by_row(&self) -> bool {
        true
    }

    fn head<'g>(&self, scope: &Scope<'g>, last: &Embedded<'g>, batch: &Batch<'g>) -> Loss<'g> {
        let normal_nw = rms_norm(&scope.at("norm"), last.x, 1e-6);
        let table = match last.tied[..] {
            [tied] => Embedding::of_tied(scope, tied),
            _ => embedding(&scope.at("unembed"), VOCABULARY, DECODER_WIDTH, WEIGHTS),
        };
        let logits_nv = table.logits(scope.enter_vocabulary(normal_nw));
        let y_bt = batch.field("y");
        let (y_n, weight_n) =
            (y_bt.reshape(&[y_bt.num_elements()]), batch.weight_of_positions(y_bt));
        vocabulary_cross_entropy(scope, logits_nv, y_n, weight_n, VOCABULARY)
    }
}

impl Model for Decoder {
    fn loss<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
        self.run(scope, batch)
    }

    fn pipelined(&self) -> Option<&dyn Pipelined> {
        Some(self)
    }
}

pub(crate) fn encoder(family: EncoderFamily, head: Head, scan_layers: bool) -> Encoder {
    Encoder {
        family,
        num_layers: 2,
        width: 32,
        num_heads: 4,
        num_hidden: 64,
        context: POSITIONS,
        vocabulary: VOCABULARY,
        dropout: 0.1,
        attention_dropout: 0.2,
        classifier_dropout: 0.1,
        head,
        objective: 3.into(),
        scan_layers,
        remat: false,
    }
}

pub(crate) fn gpt(scan_layers: bool) -> Gpt {
    Gpt {
        num_layers: 2,
        width: 32,
        num_heads: 4,
        context: POSITIONS,
        vocabulary: 32,
        dropout: 0.0,
        scan_layers,
        remat: false,
        loss_chunk_rows: None,
    }
}

/// Tokens, with a label for each position, or for each example.
pub(crate) fn fields(has_classes: bool) -> Vec<BatchField> {
    let field = |name: &str, dims: &[usize]| BatchField {
        name: name.to_owned(),
        dtype: DType::I32,
        dims: dims.to_vec(),
    };
    let labels = if has_classes { vec![] } else { vec![POSITIONS] };
    let tokens = ["x", "segments", "mask"].map(|name| field(name, &[POSITIONS]));
    tokens.into_iter().chain([field("y", &labels)]).collect()
}

/// A field of the whole batch.
pub(crate) fn values(field: &BatchField) -> Literal {
    let dims = [&[BATCH], &field.dims[..]].concat();
    let count: usize = dims.iter().product();
    let value = |i: usize| match &*field.name {
        "x" => (i * 7 + i / 5) % VOCABULARY,
        "segments" => i % POSITIONS / 5,
        "mask" => usize::from(i % POSITIONS < 8 - i / POSITIONS % 3),
        _ if field.dims.is_empty() => i % 3,
        _ => (i * 11 + 3) % VOCABULARY,
    };
    Literal::from_slice(&dims, &(0..count).map(|i| value(i) as i32).collect::<Vec<_>>())
}

fn plan(sizes: &[(Axis, usize)], gather_at: GatherAt, rows: ActivationRows) -> ParallelPlan {
    ParallelPlan::new(Mesh::new(sizes), gather_at).with_rows(rows)
}

fn with_step<R>(
    model: &dyn Model,
    fields: &[BatchField],
    plan: ParallelPlan,
    run: impl FnOnce(&DeclaredStep<'_>) -> R,
) -> Result<R, step::StepError> {
    with_microbatches(1, model, fields, plan, run)
}

fn with_microbatches<R>(
    num_microbatches: usize,
    model: &dyn Model,
    fields: &[BatchField],
    plan: ParallelPlan,
    run: impl FnOnce(&DeclaredStep<'_>) -> R,
) -> Result<R, step::StepError> {
    let spec = StepSpec {
        model,
        fields,
        plan,
        microbatch: BATCH / plan.mesh.num_batch_shards() / num_microbatches,
        num_microbatches,
        num_global_microbatches: num_microbatches * plan.mesh.num_batch_shards(),
        skips_late: false,
        precision: Precision::uniform(DType::F64),
        optimizer: &chain(vec![]),
        gather_mask: &Mask::Matrices,
        synchronize: &PlainSum,
        local_steps: None,
        on_nonfinite: OnNonfinite::Stop,
        attention: AttentionKernels::None,
    };
    Ok(run(&spec.declare()?))
}

type Values = BTreeMap<String, Vec<Literal>>;

fn run_graph(graph: &Graph, values: &Values) -> Values {
    let inputs: Vec<_> = graph.inputs().iter().map(|input| values[&*input.name].clone()).collect();
    let outputs = interpret(graph, &inputs).unwrap();
    graph.outputs().iter().map(|output| output.name.to_string()).zip(outputs).collect()
}

/// Loss and whole gradients by the names of the rows of parameters.
pub(crate) type Gradients = (f64, Tree<Literal>);

/// Those of a step on these values of the fields of the whole batch.
pub(crate) fn gradients(
    model: &dyn Model,
    fields: &[BatchField],
    values_of: &dyn Fn(&BatchField) -> Literal,
    plan: ParallelPlan,
    num_microbatches: usize,
) -> Gradients {
    let mesh = plan.mesh;
    with_microbatches(num_microbatches, model, fields, plan, |declared| {
        let seed = vec![Literal::from_slice(&[2], &[0u32, 3]); mesh.num_replicas()];
        let mut values = Values::from([(step::SEED.to_owned(), seed)]);
        values.extend(run_graph(&step::trace_init(declared).unwrap(), &values));
        for field in fields {
            let whole = values_of(field);
            let size = BATCH / mesh.num_batch_shards();
            let piece = |replica| {
                let mut start = vec![0; whole.dims().len()];
                let mut dims = whole.dims().to_vec();
                (start[0], dims[0]) = (mesh.index(replica, Mesh::BATCH_AXES) * size, size);
                whole.slice(&start, &dims)
            };
            let pieces = (0..mesh.num_replicas()).map(piece).collect();
            values.insert(format!("{}{}", step::BATCH, field.name), pieces);
        }
        let found = run_graph(&step::trace_grad(declared).unwrap(), &values);
        let specs = step::StateSection::Params.leaves(declared.leaves());
        let whole = specs.map(|path, spec| join(spec, &mesh, &found[&format!("gradients.{path}")]));
        (found["loss"][0].to_f64()[0], hlo::split_rows(&specs, whole))
    })
    .unwrap()
}

/// The whole leaf. Replicas with the same piece must have the same bits, and padding is zeros.
pub(crate) fn join(leaf: &LeafSpec, mesh: &Mesh, on_replicas: &[Literal]) -> Literal {
    let sizes = on_replicas[0].dims().iter().zip(leaf.sharding.dims());
    let stored: Vec<_> = sizes.map(|(size, axes)| mesh.group_size(*axes) * size).collect();
    let mut with_padding = Literal::zeros(leaf.dtype, &stored);
    let mut pieces = BTreeMap::new();
    for (replica, piece) in on_replicas.iter().enumerate() {
        let dims = piece.dims().iter().zip(leaf.sharding.dims());
        let start: Vec<_> = dims.map(|(size, axes)| mesh.index(replica, *axes) * size).collect();
        with_padding.paste(piece, &start);
        assert!(*pieces.entry(start).or_insert(piece) == piece, "replica {replica} differs");
    }
    let whole = with_padding.slice(&vec![0; stored.len()], &leaf.dims);
    let count = |x: &Literal| x.to_f64().iter().filter(|x| **x != 0.0).count();
    assert_eq!(count(&with_padding), count(&whole), "{leaf}");
    whole
}

/// Those of one replica that runs the batch as a whole. They are not trivial.
pub(crate) fn of_one_replica(
    what: &str,
    model: &dyn Model,
    fields: &[BatchField],
    values_of: &dyn Fn(&BatchField) -> Literal,
) -> Gradients {
    let one = ParallelPlan::new(Mesh::SINGLE, GatherAt::Step);
    let expected = gradients(model, fields, values_of, one, 1);
    let is_random = |(path, gradient): &(&str, &Literal)| {
        // The gradient of keys' biases is zero but for rounding.
        !path.ends_with("key.bias") && gradient.to_f64().iter().any(|x| x.abs() > 1e-9)
    };
    assert!(expected.1.iter().filter(is_random).count() > 10, "{what}");
    expected
}

pub(crate) fn assert_alike(what: &str, expected: &Gradients, found: &Gradients) {
    let ((loss, expected), (found, gradients)) = (expected, found);
    assert!((found - loss).abs() < 1e-12 * loss.abs(), "{what}: {found} {loss}");
    assert!(gradients.paths().eq(expected.paths()), "{what}");
    for (path, expected) in expected.iter() {
        let (found, expected) = (gradients[path].to_f64(), expected.to_f64());
        let scale = expected.iter().fold(1e-3, |scale: f64, x| scale.max(x.abs()));
        let is_close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-10 * scale;
        let num_close = found.iter().zip(&expected).filter(|pair| is_close(*pair)).count();
        assert_eq!((num_close, found.len()), (expected.len(), expected.len()), "{what}: {path}");
    }
}

fn check(what: &str, model: &dyn Model, has_classes: bool) {
    let fields = fields(has_classes);
    let expected = of_one_replica(what, model, &fields, &values);
    let beside = [
        (2, vec![(Axis::Data, 2)], GatherAt::Step),
        (4, vec![(Axis::Fsdp, 2)], GatherAt::Use),
        (4, vec![], GatherAt::Step),
    ];
    for (num_pieces, beside, gather_at) in beside {
        for rows in
            [ActivationRows::Whole, ActivationRows::CutBetweenLayers, ActivationRows::CutThroughout]
        {
            let sizes = [&beside[..], &[(Axis::Tensor, num_pieces)]].concat();
            let plan = plan(&sizes, gather_at, rows);
            let what = format!("{what} on {sizes:?}, {rows:?}");
            assert_alike(&what, &expected, &gradients(model, &fields, &values, plan, 1));
        }
    }
}

#[test]
fn a_decoder_with_grouped_heads_and_norms_agrees_with_one_replica() {
    // One head of keys for all, and fewer than replicas: gathered over those that share it.
    for (num_kv_heads, scan) in [(4, false), (2, true), (1, false)] {
        let model = Decoder { num_kv_heads, scan, ..DECODER };
        check(&format!("{num_kv_heads} kv heads"), &model, false);
    }
}

/// Each of 4 replicas has 8 of 30 entries, the last 6; of 64 or 32 rows the last chunk lacks some.
#[test]
fn a_loss_in_chunks_of_rows_agrees_with_one_replica() {
    let model = Gpt { vocabulary: VOCABULARY, loss_chunk_rows: Some(24), ..gpt(true) };
    let (whole, fields) = (Gpt { loss_chunk_rows: None, ..model.clone() }, fields(false));
    let [(loss, _), (expected, _)] =
        [&model, &whole].map(|model| of_one_replica("chunks", model, &fields, &values));
    assert!((loss - expected).abs() < 1e-12 * expected, "{loss} {expected}");
    check("chunks", &model, false);
}

/// Each of 8 replicas has 5 of 33 entries, but the seventh 3 and the last none.
#[test]
fn replicas_without_entries_of_the_vocabulary_agree_with_one_replica() {
    let (model, fields) = (Gpt { num_heads: 8, vocabulary: 33, ..gpt(false) }, fields(false));
    let expected = of_one_replica("33 entries", &model, &fields, &values);
    for rows in [ActivationRows::Whole, ActivationRows::CutBetweenLayers] {
        let plan = plan(&[(Axis::Tensor, 8)], GatherAt::Step, rows);
        let found = gradients(&model, &fields, &values, plan, 1);
        assert_alike("33 entries", &expected, &found);
    }
}

#[test]
fn encoders_agree_with_one_replica() {
    let (bert, distil) = (EncoderFamily::Bert, EncoderFamily::DistilBert);
    check("classes", &encoder(bert, Head::Classification, false), true);
    check("classes, scan", &encoder(distil, Head::Classification, true), true);
    check("tokens", &encoder(bert, Head::MaskedLm, false), false);
}

/// Context parallelism with fewer examples than replicas: each has some positions of one.
#[test]
fn pieces_of_examples_agree_with_one_replica() {
    let gpt = Gpt { vocabulary: VOCABULARY, dropout: 0.1, loss_chunk_rows: Some(7), ..gpt(true) };
    let grouped = Decoder { num_kv_heads: 1, ..DECODER };
    let classes = encoder(EncoderFamily::Bert, Head::Classification, false);
    let tokens = encoder(EncoderFamily::DistilBert, Head::MaskedLm, false);
    let models: [(&str, &dyn Model, bool); 4] = [
        ("gpt", &gpt, false),
        ("grouped heads", &grouped, false),
        ("classes", &classes, true),
        ("tokens", &tokens, false),
    ];
    // Replicas, microbatches, and those that share an example.
    let meshes = [
        (4, vec![(Axis::Data, 2)], GatherAt::Step, 4, 4),
        (4, vec![(Axis::Fsdp, 2)], GatherAt::Use, 2, 2),
        (8, vec![(Axis::Fsdp, 2)], GatherAt::Microbatch, 1, 2),
        (8, vec![], GatherAt::Step, 8, 8),
    ];
    for (what, model, has_classes) in models {
        let fields = fields(has_classes);
        let expected = of_one_replica(what, model, &fields, &values);
        for (num_pieces, beside, gather_at, num_microbatches, num_sharing) in &meshes {
            let sizes = [&beside[..], &[(Axis::Tensor, *num_pieces)]].concat();
            let plan = plan(&sizes, *gather_at, ActivationRows::CutThroughout);
            let num_examples = BATCH / plan.mesh.num_batch_shards() / num_microbatches;
            assert_eq!(num_examples * num_sharing, *num_pieces);
            let what = format!("{what} on {sizes:?}, {num_sharing} replicas for an example");
            let found = gradients(model, &fields, &values, plan, *num_microbatches);
            assert_alike(&what, &expected, &found);
        }
    }
}

/// Bytes that a replica sends in the collectives over `tensor`, by kind.
fn bytes_over_tensor(graph: &Graph) -> BTreeMap<&'static str, u64> {
    let mut bytes = BTreeMap::new();
    for found in communication(graph) {
        if found.groups.axes() == Axis::Tensor.into() {
            *bytes.entry(found.kind).or_insert(0) += found.total_bytes_on_wire();
        }
    }
    bytes
}

/// Per block and pass, two all_reduces of `[b s, h]` without sequence parallelism; with it two
/// reduce_scatters and two gathers, and in the backward pass two gathers more, of what is not kept
/// (Korthikanti et al., 2022, section 4.2.2). With context parallelism, keys and values are
/// gathered and scattered. Two blocks are compared with four, so that embedding and loss do not
/// count. Gradients of what is used along `tensor` are summed over `data` too.
#[test]
fn a_block_sends_what_the_formulas_say() {
    let fields = fields(false);
    let of_two_layers = |num_pieces: u64, rows: ActivationRows| {
        let bytes = |num_layers: usize| {
            let model = Gpt { num_layers, ..gpt(false) };
            let plan = plan(&[(Axis::Tensor, num_pieces as usize)], GatherAt::Step, rows);
            let graph =
                with_step(&model, &fields, plan, |declared| step::trace_grad(declared).unwrap());
            bytes_over_tensor(&graph.unwrap())
        };
        let (less, more) = (bytes(2), bytes(4));
        let of_two = |kind: &str| more.get(kind).unwrap_or(&0) - less.get(kind).unwrap_or(&0);
        ["all_reduce", "all_gather", "reduce_scatter"].map(of_two)
    };
    for num_pieces in [2u64, 4] {
        for rows in [ActivationRows::Whole, ActivationRows::CutBetweenLayers] {
            // f64 `[b s, h]`, and what a ring sends of it in a scatter or a gather.
            let activations = (BATCH * POSITIONS * 32 * 8) as u64;
            let part = activations * (num_pieces - 1) / num_pieces;
            let expected = match rows {
                ActivationRows::Whole => [2 * 4 * 2 * part, 0, 0],
                _ => [0, 2 * 6 * part, 2 * 4 * part],
            };
            let found = of_two_layers(num_pieces, rows);
            assert_eq!(found, expected, "{num_pieces} replicas, {rows:?}");
        }
    }
    // Keys and values of one example on each group of replicas; none where examples are whole.
    for (num_pieces, num_sharing) in [(4, 1), (16, 2), (32, 4)] {
        let keys = (POSITIONS * 32 * 8) as u64;
        let part = keys * (num_sharing - 1) / num_sharing;
        let [_, gathered, scattered] = of_two_layers(num_pieces, ActivationRows::CutThroughout);
        assert_eq!([gathered, scattered], [2 * 4 * part, 2 * 2 * part], "{num_pieces} replicas");
    }
}

/// XLA's compiler for GPUs aborts on an all_reduce of several operands in a loop, and microbatches
/// are one.
#[test]
fn all_reduces_of_layers_have_one_operand() {
    let chunks = Gpt { loss_chunk_rows: Some(24), ..gpt(false) };
    let whole = gpt(false);
    let cut = ActivationRows::CutBetweenLayers;
    let cases = [
        (&whole, ActivationRows::Whole),
        (&whole, cut),
        (&chunks, ActivationRows::Whole),
        (&chunks, cut),
    ];
    for (model, rows) in cases {
        let plan = plan(&[(Axis::Tensor, 2)], GatherAt::Step, rows);
        let graph = with_step(model, &fields(false), plan, step::trace_grad);
        let text = hlo::lower(&graph.unwrap().unwrap(), "gradients").text;
        let operands =
            |line: &str| Some(line.split_once("all_reduce\"(")?.1.split_once(')')?.0.into());
        let found: Vec<String> = text.lines().filter_map(operands).collect();
        assert!(found.len() > 1, "{found:?}");
        assert!(found.iter().all(|operands| !operands.contains(',')), "{found:?}");
    }
}

/// Only norms and residuals are computed on more than one replica, and with sequence parallelism
/// not even these.
#[test]
fn nothing_is_computed_twice() {
    let fields = fields(false);
    let model = Gpt { width: 1024, num_heads: 8, vocabulary: 2048, ..gpt(false) };
    let cost = |num_pieces: usize, rows: ActivationRows| {
        let plan = plan(&[(Axis::Tensor, num_pieces)], GatherAt::Step, rows);
        let graph =
            with_step(&model, &fields, plan, |declared| step::trace_step(declared).unwrap());
        let cost = count(&graph.unwrap());
        let of_matmuls: u64 = cost.matmuls.iter().map(|matmul| matmul.count * matmul.flops).sum();
        (cost.flops, of_matmuls)
    };
    let (all, of_matmuls) = cost(1, ActivationRows::Whole);
    for num_pieces in [2, 4, 8] {
        for (rows, most) in
            [(ActivationRows::Whole, 1.02), (ActivationRows::CutBetweenLayers, 1.005)]
        {
            let what = format!("{num_pieces} replicas, {rows:?}");
            let (flops, of_own_matmuls) = cost(num_pieces, rows);
            assert_eq!(of_own_matmuls * num_pieces as u64, of_matmuls, "{what}");
            let ratio = (flops * num_pieces as u64) as f64 / all as f64;
            assert!((0.98..most).contains(&ratio), "{what}: {ratio}");
        }
    }
}

#[test]
fn a_region_that_is_not_left_does_not_trace() {
    let plan = plan(&[(Axis::Tensor, 2)], GatherAt::Step, ActivationRows::Whole);
    let Err(error) = with_step(&unsummed, &fields(false), plan, |_| ()) else {
        panic!("it traces")
    };
    let error = error.to_string();
    assert!(error.contains("tensor") && error.contains("var"), "{error}");
}

/// A residual connection around a region without its end.
fn unsummed<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    let x_bt = batch.field("x");
    let [b, t] = x_bt.dims();
    let table = embedding(&scope.at("embed"), 32, 16, WEIGHTS);
    let x_nw = scope.leave_vocabulary(table.embed(x_bt).reshape(&[b * t, 16]));
    let weight_ww = scope.at("up").cut(0).param("weight", &[16, 16], WEIGHTS);
    let partial: Tensor<'g> =
        scope.enter(x_nw).dot_general(weight_ww, hlo::DotDims::contract(&[1], &[1]));
    let back_ww = scope.at("down").cut(1).param("weight", &[16, 16], WEIGHTS);
    let y_nw = x_nw + partial.dot_general(back_ww, hlo::DotDims::contract(&[1], &[1]));
    let weight = batch.weight.sum();
    Loss { sum: y_nw.sum(), weight, metrics: vec![], tally: None, reports_f1: false }
}

#[test]
fn sizes_that_do_not_fit_are_refused_with_those_that_do() {
    let refused = |model: &dyn Model, num_pieces: usize, rows: ActivationRows| {
        let plan = plan(&[(Axis::Tensor, num_pieces)], GatherAt::Step, rows);
        with_step(model, &fields(false), plan, |_| ()).unwrap_err().to_string()
    };
    let error = refused(&gpt(false), 3, ActivationRows::Whole);
    assert!(error.contains("mesh.tensor = 3 does not fit 4 heads"), "{error}");
    assert!(error.contains("1, 2, 4 do"), "{error}");
    let error = refused(&DECODER, 8, ActivationRows::Whole);
    assert!(error.contains("mesh.tensor = 8 does not fit 4 heads"), "{error}");
    let error = refused(
        &Gpt { num_heads: 16, width: 48, ..gpt(false) },
        48,
        ActivationRows::CutBetweenLayers,
    );
    assert!(error.contains("set parallel.sequence = false"), "{error}");
}
