//! Blocks that are cut into stages, in models that no configuration describes or whose data are
//! files: loss and all gradients in the interpreter against one replica. `compiled` has what XLA
//! computes, `faults` what is found and named.

mod compiled;
mod faults;

use hlo::{ActivationRows, Axis, DType, Literal, Mesh};
use lockstep::config::PipelineOrder::{self, Gpipe, OneForwardOneBackward};
use lockstep::parallel::{GatherAt, ParallelPlan, PipelinePlan};
use lockstep::step::BatchField;
use models::encoder::{Encoder, EncoderFamily, Head};
use models::gpt::Gpt;
use models::{Batch, Loss, LossFunction, Model, Objective, Scope};
use rayon::prelude::*;

use crate::tensor::{
    BATCH, DECODER, Decoder, POSITIONS, VOCABULARY, assert_alike, encoder, fields, gpt, gradients,
    of_one_replica, values,
};

/// How a step is distributed.
#[derive(Clone, Copy, Debug)]
struct Case {
    num_stages: usize,
    num_chunks: usize,
    order: PipelineOrder,
    num_microbatches: usize,
    beside: &'static [(Axis, usize)],
    rows: ActivationRows,
}

const ALONE: Case = Case {
    num_stages: 2,
    num_chunks: 1,
    order: OneForwardOneBackward,
    num_microbatches: 8,
    beside: &[],
    rows: ActivationRows::Whole,
};
const DATA: &[(Axis, usize)] = &[(Axis::Data, 2)];
const FSDP: &[(Axis, usize)] = &[(Axis::Fsdp, 2)];
const TENSOR: &[(Axis, usize)] = &[(Axis::Tensor, 2)];

/// One microbatch, fewer than stages, enough that a stage uses the memory of one for another.
const CASES: [Case; 9] = [
    ALONE,
    Case { num_microbatches: 1, beside: TENSOR, rows: ActivationRows::CutBetweenLayers, ..ALONE },
    Case { num_stages: 4, num_microbatches: 2, beside: DATA, ..ALONE },
    Case { num_stages: 4, num_chunks: 2, num_microbatches: 4, beside: FSDP, ..ALONE },
    Case { num_stages: 4, num_chunks: 2, ..ALONE },
    Case {
        num_chunks: 2,
        num_microbatches: 4,
        beside: TENSOR,
        rows: ActivationRows::CutBetweenLayers,
        ..ALONE
    },
    Case { num_chunks: 4, order: Gpipe, num_microbatches: 2, beside: DATA, ..ALONE },
    Case { num_stages: 4, order: Gpipe, num_microbatches: 4, beside: TENSOR, ..ALONE },
    Case {
        num_stages: 4,
        num_microbatches: 4,
        beside: TENSOR,
        rows: ActivationRows::CutBetweenLayers,
        ..ALONE
    },
];

impl Case {
    fn plan(self) -> ParallelPlan {
        let sizes = [self.beside, &[(Axis::Pipeline, self.num_stages)]].concat();
        ParallelPlan::new(Mesh::new(&sizes), GatherAt::Step)
            .with_rows(self.rows)
            .with_pipeline(PipelinePlan { order: self.order, num_chunks: self.num_chunks })
    }
}

/// On the cases with these indices; on all with `LOCKSTEP_FULL`.
fn check_with(
    what: &str,
    model: &(dyn Model + Sync),
    fields: &[BatchField],
    values_of: &(dyn Fn(&BatchField) -> Literal + Sync),
    cases: &[usize],
) {
    let expected = of_one_replica(what, model, fields, values_of);
    let all: Vec<_> = (0..CASES.len()).collect();
    let cases = if std::env::var_os("LOCKSTEP_FULL").is_some() { &all } else { cases };
    cases.par_iter().for_each(|index| {
        let case = CASES[*index];
        let found = gradients(model, fields, values_of, case.plan(), case.num_microbatches);
        assert_alike(&format!("{what}, {case:?}"), &expected, &found);
    });
}

fn check(what: &str, model: &(dyn Model + Sync), has_classes: bool, cases: &[usize]) {
    check_with(what, model, &fields(has_classes), &values, cases);
}

/// 8 blocks: 2 chunks for each of 4 stages.
fn deep(family: EncoderFamily, head: Head, scan_layers: bool) -> Encoder {
    Encoder {
        num_layers: 8,
        width: 16,
        num_heads: 2,
        num_hidden: 24,
        ..encoder(family, head, scan_layers)
    }
}

fn without_dropout(model: Encoder) -> Encoder {
    Encoder { dropout: 0.0, attention_dropout: 0.0, classifier_dropout: 0.0, ..model }
}

const BERT: EncoderFamily = EncoderFamily::Bert;
const DISTIL: EncoderFamily = EncoderFamily::DistilBert;

/// Blocks read a mask of the padding; the head picks rows, so the last stage runs it alone.
#[test]
fn classifiers_agree_with_one_replica() {
    let head = Head::Classification;
    check("bert", &deep(BERT, head, false), true, &[0, 3, 5, 7]);
    check("bert, scan", &without_dropout(deep(BERT, head, true)), true, &[1, 4]);
    let remat = Encoder { remat: true, ..deep(DISTIL, head, false) };
    check("distilbert, remat", &remat, true, &[2, 6, 8]);
    check("distilbert, scan", &deep(DISTIL, head, true), true, &[1, 5, 8]);
}

/// Labels are floats, several for an example; or classes have weights, so that microbatches count
/// by the classes in them.
#[test]
fn other_objectives_agree_with_one_replica() {
    let labels = |field: &BatchField| match field.dtype {
        DType::F64 => {
            let label = |i: usize| f64::from((i * 5 + i / 7).is_multiple_of(3));
            let all: Vec<_> = (0..BATCH * 3).map(label).collect();
            Literal::from_f64(DType::F64, &[BATCH, 3], &all)
        }
        _ => values(field),
    };
    let objective = |loss| Objective { loss, ..3.into() };
    let with = |objective| Encoder { objective, ..deep(BERT, Head::Classification, true) };
    let mut fields = fields(true);
    let weights =
        Objective { class_weights: vec![0.5, 1.0, 4.0], ..objective(LossFunction::CrossEntropy) };
    check_with("weights", &with(weights), &fields, &labels, &[0, 2, 8]);
    let y = fields.iter_mut().find(|field| field.name == "y").unwrap();
    (y.dtype, y.dims) = (DType::F64, vec![3]);
    let several = with(objective(LossFunction::BinaryCrossEntropy));
    check_with("several labels", &several, &fields, &labels, &[0, 4, 5, 6]);
}

/// Each stage runs the head on some of the rows. Most have no label, and some microbatches have
/// none at all, so that they count by the number of their labels.
#[test]
fn masked_language_models_agree_with_one_replica() {
    let some_labels = |field: &BatchField| match &*field.name {
        "y" => {
            let all = values(field);
            let counts = |i: usize| i % 4 == 1 && !(2..4).contains(&(i / POSITIONS));
            let label = |(i, y): (usize, &i32)| if counts(i) { *y } else { -100 };
            let labels: Vec<_> = all.as_slice::<i32>().iter().enumerate().map(label).collect();
            Literal::from_slice(all.dims(), &labels)
        }
        _ => values(field),
    };
    let check = |what: &str, model: &Encoder, cases: &[usize]| {
        check_with(what, model, &fields(false), &some_labels, cases);
    };
    let head = Head::MaskedLm;
    check("bert", &deep(BERT, head, false), &[0, 2, 5, 7]);
    check("bert, scan, remat", &Encoder { remat: true, ..deep(BERT, head, true) }, &[1, 4, 6]);
    check("distilbert, scan", &without_dropout(deep(DISTIL, head, true)), &[3, 8]);
}

/// With one head of keys for all, and fewer than replicas along `tensor`.
#[test]
fn decoders_agree_with_one_replica() {
    let deep = Decoder { num_blocks: 8, ..DECODER };
    check("tied", &deep, false, &[0, 7]);
    check("untied", &Decoder { is_tied: false, ..deep }, false, &[1, 4, 7]);
    let grouped = Decoder { num_kv_heads: 2, scan: true, ..deep };
    check("grouped, scan", &grouped, false, &[2, 5]);
    let untied = Decoder { num_kv_heads: 1, is_tied: false, scan: true, ..deep };
    check("one head of keys, untied", &untied, false, &[3, 6, 8]);
}

/// At most 5 rows in a chunk of the loss, which divide no stage's part of the rows.
#[test]
fn a_loss_in_chunks_of_rows_agrees_with_one_replica() {
    let chunks = Gpt {
        num_layers: 8,
        width: 16,
        num_heads: 2,
        vocabulary: VOCABULARY,
        dropout: 0.1,
        loss_chunk_rows: Some(5),
        ..gpt(true)
    };
    check("chunks", &chunks, false, &[0, 1, 2, 5, 7]);
}

/// A model that is only known as a loss: its stages run one after the other.
#[test]
fn a_model_without_parts_agrees_with_one_replica() {
    struct Whole(Decoder);
    impl Model for Whole {
        fn loss<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
            self.0.loss(scope, batch)
        }
    }
    check("whole", &Whole(Decoder { num_blocks: 8, scan: true, ..DECODER }), false, &[0, 3, 5]);
}
