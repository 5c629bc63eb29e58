//! BERT and DistilBERT as Hugging Face's transformers has them, without a head, or with the one for
//! classifying sequences or for masked tokens.

use serde::Serialize;

use super::Layout::{self, Same};
use super::{ForeignFormat, Library, Tied};
use crate::encoder::{EPSILON, Encoder, EncoderFamily, Head, NUM_SEGMENTS};

type Rows = &'static [(&'static str, &'static str, Layout)];

const BERT_ROWS: Rows = &[
    ("embed.weight", "embeddings.word_embeddings.weight", Same),
    ("position.weight", "embeddings.position_embeddings.weight", Same),
    ("segment.weight", "embeddings.token_type_embeddings.weight", Same),
    ("embed.norm.weight", "embeddings.LayerNorm.weight", Same),
    ("embed.norm.bias", "embeddings.LayerNorm.bias", Same),
    ("blocks.*.attn.query.weight", "encoder.layer.*.attention.self.query.weight", Same),
    ("blocks.*.attn.query.bias", "encoder.layer.*.attention.self.query.bias", Same),
    ("blocks.*.attn.key.weight", "encoder.layer.*.attention.self.key.weight", Same),
    ("blocks.*.attn.key.bias", "encoder.layer.*.attention.self.key.bias", Same),
    ("blocks.*.attn.value.weight", "encoder.layer.*.attention.self.value.weight", Same),
    ("blocks.*.attn.value.bias", "encoder.layer.*.attention.self.value.bias", Same),
    ("blocks.*.attn.out.weight", "encoder.layer.*.attention.output.dense.weight", Same),
    ("blocks.*.attn.out.bias", "encoder.layer.*.attention.output.dense.bias", Same),
    ("blocks.*.norm1.weight", "encoder.layer.*.attention.output.LayerNorm.weight", Same),
    ("blocks.*.norm1.bias", "encoder.layer.*.attention.output.LayerNorm.bias", Same),
    ("blocks.*.mlp.up.weight", "encoder.layer.*.intermediate.dense.weight", Same),
    ("blocks.*.mlp.up.bias", "encoder.layer.*.intermediate.dense.bias", Same),
    ("blocks.*.mlp.down.weight", "encoder.layer.*.output.dense.weight", Same),
    ("blocks.*.mlp.down.bias", "encoder.layer.*.output.dense.bias", Same),
    ("blocks.*.norm2.weight", "encoder.layer.*.output.LayerNorm.weight", Same),
    ("blocks.*.norm2.bias", "encoder.layer.*.output.LayerNorm.bias", Same),
    ("pooler.weight", "pooler.dense.weight", Same),
    ("pooler.bias", "pooler.dense.bias", Same),
];

const DISTILBERT_ROWS: Rows = &[
    ("embed.weight", "embeddings.word_embeddings.weight", Same),
    ("position.weight", "embeddings.position_embeddings.weight", Same),
    ("embed.norm.weight", "embeddings.LayerNorm.weight", Same),
    ("embed.norm.bias", "embeddings.LayerNorm.bias", Same),
    ("blocks.*.attn.query.weight", "transformer.layer.*.attention.q_lin.weight", Same),
    ("blocks.*.attn.query.bias", "transformer.layer.*.attention.q_lin.bias", Same),
    ("blocks.*.attn.key.weight", "transformer.layer.*.attention.k_lin.weight", Same),
    ("blocks.*.attn.key.bias", "transformer.layer.*.attention.k_lin.bias", Same),
    ("blocks.*.attn.value.weight", "transformer.layer.*.attention.v_lin.weight", Same),
    ("blocks.*.attn.value.bias", "transformer.layer.*.attention.v_lin.bias", Same),
    ("blocks.*.attn.out.weight", "transformer.layer.*.attention.out_lin.weight", Same),
    ("blocks.*.attn.out.bias", "transformer.layer.*.attention.out_lin.bias", Same),
    ("blocks.*.norm1.weight", "transformer.layer.*.sa_layer_norm.weight", Same),
    ("blocks.*.norm1.bias", "transformer.layer.*.sa_layer_norm.bias", Same),
    ("blocks.*.mlp.up.weight", "transformer.layer.*.ffn.lin1.weight", Same),
    ("blocks.*.mlp.up.bias", "transformer.layer.*.ffn.lin1.bias", Same),
    ("blocks.*.mlp.down.weight", "transformer.layer.*.ffn.lin2.weight", Same),
    ("blocks.*.mlp.down.bias", "transformer.layer.*.ffn.lin2.bias", Same),
    ("blocks.*.norm2.weight", "transformer.layer.*.output_layer_norm.weight", Same),
    ("blocks.*.norm2.bias", "transformer.layer.*.output_layer_norm.bias", Same),
];

/// `BertModel`, `BertForSequenceClassification`, `BertForMaskedLM`, `BertForPreTraining`.
pub(super) static BERT: ForeignFormat = ForeignFormat {
    name: "a Hugging Face BERT",
    library: Library::Transformers,
    prefix: "bert.",
    rows: BERT_ROWS,
    heads: &[
        ("classifier.weight", "classifier.weight", Same),
        ("classifier.bias", "classifier.bias", Same),
        ("transform.weight", "cls.predictions.transform.dense.weight", Same),
        ("transform.bias", "cls.predictions.transform.dense.bias", Same),
        ("transform.norm.weight", "cls.predictions.transform.LayerNorm.weight", Same),
        ("transform.norm.bias", "cls.predictions.transform.LayerNorm.bias", Same),
        ("vocabulary.bias", "cls.predictions.bias", Same),
    ],
    optional: &["pooler.weight", "pooler.bias"],
    ignored: &["embeddings.position_ids"],
    tied: &[
        Tied {
            copy: "cls.predictions.decoder.weight",
            of: "embeddings.word_embeddings.weight",
            used_with: Some("vocabulary.bias"),
        },
        Tied {
            copy: "cls.predictions.decoder.bias",
            of: "cls.predictions.bias",
            used_with: Some("vocabulary.bias"),
        },
    ],
};

/// `DistilBertModel`, `DistilBertForSequenceClassification`, `DistilBertForMaskedLM`.
pub(super) static DISTILBERT: ForeignFormat = ForeignFormat {
    name: "a Hugging Face DistilBERT",
    library: Library::Transformers,
    prefix: "distilbert.",
    rows: DISTILBERT_ROWS,
    heads: &[
        ("pre_classifier.weight", "pre_classifier.weight", Same),
        ("pre_classifier.bias", "pre_classifier.bias", Same),
        ("classifier.weight", "classifier.weight", Same),
        ("classifier.bias", "classifier.bias", Same),
        ("transform.weight", "vocab_transform.weight", Same),
        ("transform.bias", "vocab_transform.bias", Same),
        ("transform.norm.weight", "vocab_layer_norm.weight", Same),
        ("transform.norm.bias", "vocab_layer_norm.bias", Same),
        ("vocabulary.bias", "vocab_projector.bias", Same),
    ],
    optional: &[],
    ignored: &["embeddings.position_ids"],
    tied: &[Tied {
        copy: "vocab_projector.weight",
        of: "embeddings.word_embeddings.weight",
        used_with: Some("vocabulary.bias"),
    }],
};

/// `config.json` of either.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum EncoderFields {
    /// The fields of `BertConfig`.
    Bert(BertFields),
    /// The fields of `DistilBertConfig`.
    DistilBert(DistilBertFields),
}

/// The fields of transformers' `BertConfig` that describe one of our models.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BertFields {
    architectures: [&'static str; 1],
    model_type: &'static str,
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    hidden_act: &'static str,
    hidden_dropout_prob: f64,
    attention_probs_dropout_prob: f64,
    classifier_dropout: f64,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    layer_norm_eps: f64,
    position_embedding_type: &'static str,
    pad_token_id: usize,
    /// `Some(true)` if the head for masked tokens uses the table of the embedding.
    #[serde(skip_serializing_if = "Option::is_none")]
    tie_word_embeddings: Option<bool>,
}

/// The fields of transformers' `DistilBertConfig` that describe one of our models.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DistilBertFields {
    architectures: [&'static str; 1],
    model_type: &'static str,
    vocab_size: usize,
    dim: usize,
    n_layers: usize,
    n_heads: usize,
    hidden_dim: usize,
    activation: &'static str,
    dropout: f64,
    attention_dropout: f64,
    seq_classif_dropout: f64,
    max_position_embeddings: usize,
    sinusoidal_pos_embds: bool,
    pad_token_id: usize,
    /// `Some(true)` if the head for masked tokens uses the table of the embedding.
    #[serde(skip_serializing_if = "Option::is_none")]
    tie_word_embeddings: Option<bool>,
}

impl EncoderFields {
    pub(super) fn of(model: &Encoder) -> Self {
        // Every field is named: a new one must be expressed here, or the model has no counterpart.
        let Encoder {
            family,
            num_layers,
            width,
            num_heads,
            num_hidden,
            context,
            vocabulary,
            dropout,
            attention_dropout,
            classifier_dropout,
            head,
            objective: _,
            scan_layers: _,
            remat: _,
        } = *model;
        let tie_word_embeddings = (head == Head::MaskedLm).then_some(true);
        match family {
            EncoderFamily::Bert => Self::Bert(BertFields {
                architectures: [match head {
                    Head::Classification => "BertForSequenceClassification",
                    Head::MaskedLm => "BertForMaskedLM",
                }],
                model_type: "bert",
                vocab_size: vocabulary,
                hidden_size: width,
                num_hidden_layers: num_layers,
                num_attention_heads: num_heads,
                intermediate_size: num_hidden,
                hidden_act: "gelu",
                hidden_dropout_prob: dropout,
                attention_probs_dropout_prob: attention_dropout,
                classifier_dropout,
                max_position_embeddings: context,
                type_vocab_size: NUM_SEGMENTS,
                layer_norm_eps: EPSILON,
                position_embedding_type: "absolute",
                pad_token_id: 0,
                tie_word_embeddings,
            }),
            EncoderFamily::DistilBert => Self::DistilBert(DistilBertFields {
                architectures: [match head {
                    Head::Classification => "DistilBertForSequenceClassification",
                    Head::MaskedLm => "DistilBertForMaskedLM",
                }],
                model_type: "distilbert",
                vocab_size: vocabulary,
                dim: width,
                n_layers: num_layers,
                n_heads: num_heads,
                hidden_dim: num_hidden,
                activation: "gelu",
                dropout,
                attention_dropout,
                seq_classif_dropout: classifier_dropout,
                max_position_embeddings: context,
                sinusoidal_pos_embds: false,
                pad_token_id: 0,
                tie_word_embeddings,
            }),
        }
    }

    /// `true` if the model distinguishes the texts of a pair.
    pub fn has_segments(&self) -> bool {
        matches!(self, Self::Bert(_))
    }

    /// The keys that decide what is computed.
    pub(super) fn computed_with(&self) -> &'static [&'static str] {
        match self {
            Self::Bert(_) => &[
                "model_type",
                "vocab_size",
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "intermediate_size",
                "hidden_act",
                "max_position_embeddings",
                "type_vocab_size",
                "layer_norm_eps",
                "position_embedding_type",
                "tie_word_embeddings",
            ],
            Self::DistilBert(_) => &[
                "model_type",
                "vocab_size",
                "dim",
                "n_layers",
                "n_heads",
                "hidden_dim",
                "activation",
                "max_position_embeddings",
                "tie_word_embeddings",
            ],
        }
    }

    /// Another name that transformers has for GELU by the error function.
    pub(super) const SAME_ACTIVATION: [&'static str; 1] = ["gelu_python"];
}
