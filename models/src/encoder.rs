//! `bert` and `distilbert`: encoder-only transformers.
//!
//! Devlin, Chang, Lee and Toutanova, "BERT" (2019), section 3 and appendix A; Sanh, Debut, Chaumond
//! and Wolf, "DistilBERT" (2019), section 3: half the layers, no segments, no pooler. Each block is
//! `x = norm(x + attention(x)); x = norm(x + W_down gelu(W_up x))`; weights start from N(0, 0.02).
//!
//! Legend: b batch, t position, n = b * t, w width, c class, v entry of the vocabulary.

use std::path::PathBuf;

use hlo::{DType, Tensor, TensorType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::layers::{
    Attention, Embedding, attention, column_linear, dropout, embedding, gelu_exact,
    layer_norm_with, linear, linear_between, relu, row_linear,
};
use crate::loss::vocabulary_cross_entropy;
use crate::model_keys::{Architecture, InvalidValue, MAX_LAYERS, MAX_SIZE, check_transformer};
use crate::{
    Batch, Counterpart, Embedded, Initializer, Loss, Misfit, Model, Objective, Pipelined, Scope,
    Stack,
};

/// Standard deviation of the weights at the start.
const STD: f64 = 0.02;
const WEIGHTS: Initializer = Initializer::Normal { std: STD };
pub(crate) const EPSILON: f64 = 1e-12;

/// Which of the two it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderFamily {
    /// BERT.
    Bert,
    /// DistilBERT.
    DistilBert,
}

/// Published sizes, and a small one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncoderPreset {
    /// 2 layers of width 128, 2 heads, 128 positions.
    Mini,
    /// BERT with 12 layers or DistilBERT with 6, of width 768.
    #[default]
    Base,
    /// BERT with 24 layers of width 1024, or half as many, which nobody has published.
    Large,
}

/// The head on top of the encoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Head {
    /// Scores of classes, from the first position.
    #[default]
    Classification,
    /// Scores of the vocabulary at each position, with the table of the embedding.
    MaskedLm,
}

/// The keys of both: a preset, and the sizes that override it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct EncoderConfig {
    /// A Hugging Face folder, with `config.json` and `model.safetensors` or several files and their
    /// index: the parameters to start from. Without `name`, the architecture and its sizes come
    /// from there too; keys that are set replace them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "path", "absent" = "parameters are drawn"))]
    pub from: Option<PathBuf>,
    /// The sizes; the keys below override them one by one. `mini` has 2 layers of width 128.
    pub preset: EncoderPreset,
    /// Number of transformer blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = MAX_LAYERS),
        extend("unit" = "blocks", "depends" = "the preset's"),
    )]
    pub num_layers: Option<usize>,
    /// Width of the residual stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = MAX_SIZE),
        extend("unit" = "features", "depends" = "the preset's"),
    )]
    pub width: Option<usize>,
    /// Number of attention heads. It must divide the width.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = MAX_SIZE),
        extend("unit" = "heads", "depends" = "the preset's"),
    )]
    pub num_heads: Option<usize>,
    // Up to four times the largest width, so that the default is always allowed.
    /// Width between the two layers of the feed-forward part.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = 4 * MAX_SIZE),
        extend("unit" = "features", "depends" = "4 times the width"),
    )]
    pub num_hidden: Option<usize>,
    /// Maximum number of positions. Examples may be shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = MAX_SIZE),
        extend("unit" = "tokens", "depends" = "the preset's"),
    )]
    pub context: Option<usize>,
    /// Number of different tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_SIZE), extend("unit" = "tokens", "depends" = "30522"))]
    pub vocabulary: Option<usize>,
    /// Probability of dropout in training: of the embeddings, and of the output of each half of a
    /// block.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1, "resume" = "warn"))]
    #[default(0.1)]
    pub dropout: f64,
    /// Probability of dropout of the attention weights in training.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1))]
    #[default(0.1)]
    pub attention_dropout: f64,
    /// Probability of dropout before the last layer of the classifier in training.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend("minimum" = 0, "exclusiveMaximum" = 1, "depends" = "0.1; 0.2 for `distilbert`"),
    )]
    pub classifier_dropout: Option<f64>,
    /// The head: scores of classes, from the first position, or scores of the vocabulary at each
    /// position.
    pub head: Head,
    /// Write the blocks as a loop. It compiles faster, but less communication overlaps with
    /// compute.
    #[schemars(extend("resume" = "same"))]
    pub scan_layers: bool,
    /// Recompute each block in the backward pass instead of keeping its activations.
    #[schemars(extend("resume" = "same"))]
    pub remat: bool,
}

/// `name = "bert"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct BertConfig(pub EncoderConfig);

/// `name = "distilbert"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct DistilBertConfig(pub EncoderConfig);

/// The vocabulary of the published models, uncased.
const VOCABULARY: usize = 30522;

impl EncoderConfig {
    /// The model.
    pub fn model(&self, family: EncoderFamily, objective: Objective) -> Encoder {
        let (num_layers, width, num_heads, context) = match (self.preset, family) {
            (EncoderPreset::Mini, _) => (2, 128, 2, 128),
            (EncoderPreset::Base, EncoderFamily::Bert) => (12, 768, 12, 512),
            (EncoderPreset::Base, EncoderFamily::DistilBert) => (6, 768, 12, 512),
            (EncoderPreset::Large, EncoderFamily::Bert) => (24, 1024, 16, 512),
            (EncoderPreset::Large, EncoderFamily::DistilBert) => (12, 1024, 16, 512),
        };
        let width = self.width.unwrap_or(width);
        let classifier_dropout = match family {
            EncoderFamily::Bert => 0.1,
            EncoderFamily::DistilBert => 0.2,
        };
        Encoder {
            family,
            num_layers: self.num_layers.unwrap_or(num_layers),
            width,
            num_heads: self.num_heads.unwrap_or(num_heads),
            num_hidden: self.num_hidden.unwrap_or(4 * width),
            context: self.context.unwrap_or(context),
            vocabulary: self.vocabulary.unwrap_or(VOCABULARY),
            dropout: self.dropout,
            attention_dropout: self.attention_dropout,
            classifier_dropout: self.classifier_dropout.unwrap_or(classifier_dropout),
            head: self.head,
            objective,
            scan_layers: self.scan_layers,
            remat: self.remat,
        }
    }

    fn check(&self, family: EncoderFamily) -> Vec<InvalidValue> {
        let Encoder { width, num_heads, .. } = self.model(family, 2.into());
        let allowed = format!("a number that divides the width, {width}");
        let heads = InvalidValue {
            depends_on: &["preset", "width"],
            ..InvalidValue::new("num_heads", num_heads, allowed)
        };
        let divides = num_heads == 0 || width.is_multiple_of(num_heads);
        (!divides).then_some(heads).into_iter().collect()
    }

    fn resolve(&mut self, family: EncoderFamily) {
        let sizes = self.model(family, 2.into());
        self.num_layers = Some(sizes.num_layers);
        self.width = Some(sizes.width);
        self.num_heads = Some(sizes.num_heads);
        self.num_hidden = Some(sizes.num_hidden);
        self.context = Some(sizes.context);
        self.vocabulary = Some(sizes.vocabulary);
        self.classifier_dropout = Some(sizes.classifier_dropout);
    }

    fn example(&self) -> Vec<(&'static str, TensorType)> {
        let tokens = TensorType::new(DType::I32, &[1]);
        let y = match self.head {
            Head::Classification => TensorType::new(DType::I32, &[]),
            Head::MaskedLm => tokens.clone(),
        };
        vec![("x", tokens.clone()), ("segments", tokens.clone()), ("mask", tokens), ("y", y)]
    }
}

/// Implements [`Architecture`] for a configuration.
macro_rules! encoder {
    ($Config:ident, $family:expr) => {
        impl $Config {
            /// The model, with a last layer for its objective.
            pub fn model(&self, objective: impl Into<Objective>) -> Encoder {
                self.0.model($family, objective.into())
            }
        }

        impl Architecture for $Config {
            fn build(&self, objective: Objective) -> Box<dyn Model> {
                Box::new(self.model(objective))
            }

            fn example(&self) -> Vec<(&'static str, TensorType)> {
                self.0.example()
            }

            fn check(&self) -> Vec<InvalidValue> {
                self.0.check($family)
            }

            fn resolve(&mut self) {
                self.0.resolve($family);
            }

            fn remat(&self) -> Option<bool> {
                Some(self.0.remat)
            }

            fn check_tensor_replicas(&self, num_replicas: usize) -> Result<(), String> {
                let Encoder { num_heads, num_hidden, .. } = self.model(2);
                check_transformer(num_replicas, num_heads, num_hidden)
            }

            fn num_blocks(&self) -> Option<usize> {
                Some(self.model(2).num_layers)
            }

            fn counterpart(&self) -> Option<Counterpart> {
                Some(Counterpart::encoder(&self.model(2)))
            }

            fn context(&self) -> Option<usize> {
                Some(self.model(2).context)
            }

            fn vocabulary(&self) -> Option<usize> {
                Some(self.0.vocabulary.unwrap_or(VOCABULARY))
            }

            fn folder(&self) -> Option<&std::path::Path> {
                self.0.from.as_deref()
            }

            fn folder_mut(&mut self) -> Option<&mut PathBuf> {
                self.0.from.as_mut()
            }
        }
    };
}

encoder!(BertConfig, EncoderFamily::Bert);
encoder!(DistilBertConfig, EncoderFamily::DistilBert);

/// An encoder of known sizes with its head. Parameters are `embed.weight`, `position.weight`, with
/// BERT `segment.weight`, `embed.norm.*`;
/// `weight` and `bias` of `blocks.I.{attn.{query, key, value, out}, norm1, mlp.{up, down}, norm2}`;
/// and of the head `pooler.*` (BERT) or `pre_classifier.*` (DistilBERT) and `classifier.*`, or
/// `transform.*`, `transform.norm.*` and `vocabulary.bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoder {
    /// BERT or DistilBERT.
    pub family: EncoderFamily,
    /// Number of blocks.
    pub num_layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Number of attention heads.
    pub num_heads: usize,
    /// Width of the feed-forward part.
    pub num_hidden: usize,
    /// Maximum number of positions.
    pub context: usize,
    /// Number of different tokens.
    pub vocabulary: usize,
    /// Rate of dropout.
    pub dropout: f64,
    /// Rate of dropout of the attention weights.
    pub attention_dropout: f64,
    /// Rate of dropout in the classifier.
    pub classifier_dropout: f64,
    /// The head.
    pub head: Head,
    /// What the outputs of the head are trained on, unless it predicts tokens.
    pub objective: Objective,
    /// `true` if the blocks are a loop.
    pub scan_layers: bool,
    /// `true` if the backward pass recomputes them.
    pub remat: bool,
}

/// Segments of the published models: the first sentence and the second.
pub(crate) const NUM_SEGMENTS: usize = 2;

impl Encoder {
    /// The head's scores: of classes `[b, c]`, or of the vocabulary `[b * t, v]`, of which each
    /// replica along `tensor` has the columns of its own entries.
    #[track_caller]
    pub fn logits<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Tensor<'g> {
        self.head_logits(scope, &self.through_blocks(scope, batch))
    }

    #[track_caller]
    fn head_logits<'g>(&self, scope: &Scope<'g>, last: &Embedded<'g>) -> Tensor<'g> {
        let x_nw = last.x;
        if self.head == Head::MaskedLm {
            let transform = scope.at("transform");
            let x_nw = gelu_exact(linear_between(&transform, x_nw, self.width, WEIGHTS));
            let x_nw = layer_norm_with(&transform.at("norm"), x_nw, EPSILON);
            let of_piece = scope.at("vocabulary").of_vocabulary();
            let bias_v = of_piece.param("bias", &[self.vocabulary], Initializer::Zeros);
            let table = Embedding::of_tied(scope, last.tied[0]);
            let logits_nv = table.logits(scope.enter_vocabulary(x_nw));
            return logits_nv + bias_v.broadcast_like(logits_nv, &[1]);
        }
        let x_nw = scope.all_rows(x_nw);
        let num_examples = x_nw.dim(0) / last.num_positions.max(1);
        let x_btw = x_nw.reshape(&[num_examples, last.num_positions, self.width]);
        let first_bw = x_btw.slice_dim(1, 0, 1).reshape(&[num_examples, self.width]);
        let pooled_bw = match self.family {
            EncoderFamily::Bert => {
                linear(&scope.at("pooler"), first_bw, self.width, WEIGHTS).tanh()
            }
            EncoderFamily::DistilBert => {
                relu(linear(&scope.at("pre_classifier"), first_bw, self.width, WEIGHTS))
            }
        };
        let classifier = scope.at("classifier");
        let pooled_bw = dropout(&classifier, pooled_bw, self.classifier_dropout);
        linear(&classifier, pooled_bw, self.objective.num_outputs, WEIGHTS)
    }
}

impl Pipelined for Encoder {
    fn stack(&self) -> Stack {
        Stack { num_blocks: self.num_layers, scan: self.scan_layers, remat: self.remat }
    }

    /// Tokens `x`, integers `[b, t]`; BERT's `segments`; and `mask`, 0 for padding, which no other
    /// position attends to.
    #[track_caller]
    fn embed<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Embedded<'g> {
        let ids_bt = batch.field("x");
        let [b, t] = ids_bt.dims();
        if t > self.context {
            let message = format!("{t} positions are more than the context of {}", self.context);
            ids_bt.reject("encoder", message);
        }
        let embed = scope.at("embed");
        let table = embedding(&embed, self.vocabulary, self.width, WEIGHTS);
        let position = scope.at("position").varying();
        let positions = position.param("weight", &[self.context, self.width], WEIGHTS);
        let position_td = scope.once(positions.slice_dim(0, 0, t.min(self.context)));
        let mut x_btw = table.embed(ids_bt);
        x_btw = x_btw + position_td.broadcast_like(x_btw, &[1, 2]);
        if self.family == EncoderFamily::Bert {
            let segments = embedding(&scope.at("segment"), NUM_SEGMENTS, self.width, WEIGHTS);
            x_btw = x_btw + segments.embed(batch.field("segments"));
        }
        let x_nw = scope.leave_vocabulary(x_btw.reshape(&[b * t, self.width]));
        let x_nw = layer_norm_with(&embed.at("norm"), x_nw, EPSILON);
        let x = dropout(&embed, x_nw, self.dropout);
        let (given, tied) = (vec![batch.field("mask")], vec![table.tied()]);
        Embedded { x, given, tied, num_positions: t }
    }

    #[track_caller]
    fn block<'g>(
        &self,
        scope: &Scope<'g>,
        x_nw: Tensor<'g>,
        given: &[Tensor<'g>],
        num_positions: usize,
    ) -> Tensor<'g> {
        let Self { num_heads, num_hidden, dropout: rate, .. } = *self;
        let parts = Attention {
            num_positions,
            num_heads,
            num_kv_heads: num_heads,
            causal: false,
            qk_norm: None,
            rotary: None,
            dropout: self.attention_dropout,
            qkv: WEIGHTS,
            out: WEIGHTS,
        };
        let attn = scope.at("attn");
        let added_nw = attention(&attn, x_nw, Some(given[0]), parts);
        let x_nw = x_nw + dropout(&attn, added_nw, rate);
        let x_nw = layer_norm_with(&scope.at("norm1"), x_nw, EPSILON).fusion_barrier();
        let mlp = scope.at("mlp");
        let hidden_nh = column_linear(&mlp.at("up"), scope.enter(x_nw), num_hidden, WEIGHTS);
        let added_nw = row_linear(&mlp.at("down"), gelu_exact(hidden_nh), x_nw.dim(1), WEIGHTS);
        let x_nw = x_nw + dropout(&mlp, added_nw, rate);
        layer_norm_with(&scope.at("norm2"), x_nw, EPSILON).fusion_barrier()
    }

    fn is_head_by_row(&self) -> bool {
        self.head == Head::MaskedLm
    }

    #[track_caller]
    fn head<'g>(&self, scope: &Scope<'g>, last: &Embedded<'g>, batch: &Batch<'g>) -> Loss<'g> {
        let logits = self.head_logits(scope, last);
        match self.head {
            Head::Classification => {
                let loss = self.objective.loss(scope, logits, batch, 0.0);
                Loss { reports_f1: !self.objective.loss.is_regression(), ..loss }
            }
            Head::MaskedLm => {
                let y = batch.field("y");
                let weight_n = batch.weight_of_positions(y);
                let y_n = y.reshape(&[y.num_elements()]);
                let counts_n = y_n.greater_equal(0.0).convert(weight_n.dtype());
                let (y_n, weight_n) = (y_n.maximum(0.0), weight_n * counts_n);
                vocabulary_cross_entropy(scope, logits, y_n, weight_n, self.vocabulary)
            }
        }
    }
}

impl Model for Encoder {
    /// The objective's loss of the labels `y`; or the cross-entropy of tokens at the positions to
    /// predict (`y` integer `[b, t]`), negative elsewhere.
    fn loss<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
        self.run(scope, batch)
    }

    fn pipelined(&self) -> Option<&dyn Pipelined> {
        Some(self)
    }

    fn scores<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Option<Tensor<'g>> {
        let is_of_example = self.head == Head::Classification;
        is_of_example.then(|| self.objective.scores(self.logits(scope, batch)))
    }

    fn check_example(&self, dtype: DType, dims: &[usize], _classes: usize) -> Result<(), Misfit> {
        let context = self.context;
        match dims {
            _ if dtype.is_float() => {
                Err(Misfit::Kind { takes: "tokens, i32[positions]".to_owned() })
            }
            [positions] if *positions <= context => Ok(()),
            _ => {
                let takes = format!("i32[positions], at most {context}, which is model.context");
                Err(Misfit::Dims { takes })
            }
        }
    }
}
