//! `gpt`: a decoder-only transformer, as GPT-2.
//!
//! Radford, Wu, Child, Luan, Amodei and Sutskever, "Language models are unsupervised multitask
//! learners" (2019), section 2.3: norms before attention and feed-forward, one after the last
//! block, weights from N(0, 0.02), those that write to the residual stream scaled by
//! `1 / sqrt(2 num_layers)`.

use std::path::{Path, PathBuf};

use hlo::{DType, Tensor, TensorType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::layers::{
    Attention, Embedding, attention, dropout, embedding, feed_forward, layer_norm,
};
use crate::loss::tied_cross_entropy;
use crate::model_keys::{Architecture, InvalidValue, MAX_LAYERS, MAX_SIZE, check_transformer};
use crate::{
    Batch, Counterpart, Embedded, Initializer, Loss, Misfit, Model, Objective, Pipelined, Scope,
    Stack,
};

/// The width of the hidden layers, in widths of the residual stream.
const HIDDEN_FACTOR: usize = 4;

/// Standard deviation of the weights at the start.
const STD: f64 = 0.02;
const WEIGHTS: Initializer = Initializer::Normal { std: STD };

/// Published sizes, and a small one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GptPreset {
    /// 4 layers of width 128, 4 heads, 128 bytes.
    #[default]
    #[serde(rename = "gpt-bytes")]
    Bytes,
    /// 124,439,808 parameters.
    #[serde(rename = "gpt2-124m")]
    Gpt2Small,
    /// 354,823,168 parameters.
    #[serde(rename = "gpt2-355m")]
    Gpt2Medium,
    /// 774,030,080 parameters.
    #[serde(rename = "gpt2-774m")]
    Gpt2Large,
    /// 1,557,611,200 parameters.
    #[serde(rename = "gpt2-1558m")]
    Gpt2Xl,
}

/// Layers, width, heads, positions, vocabulary.
struct Sizes(usize, usize, usize, usize, usize);

impl GptPreset {
    /// Every preset.
    pub const ALL: [GptPreset; 5] =
        [Self::Bytes, Self::Gpt2Small, Self::Gpt2Medium, Self::Gpt2Large, Self::Gpt2Xl];

    fn sizes(self) -> Sizes {
        match self {
            Self::Bytes => Sizes(4, 128, 4, 128, 256),
            Self::Gpt2Small => Sizes(12, 768, 12, 1024, 50257),
            Self::Gpt2Medium => Sizes(24, 1024, 16, 1024, 50257),
            Self::Gpt2Large => Sizes(36, 1280, 20, 1024, 50257),
            Self::Gpt2Xl => Sizes(48, 1600, 25, 1024, 50257),
        }
    }
}

/// Configuration of a GPT: a preset, and the sizes that override it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub struct GptConfig {
    /// A Hugging Face folder, with `config.json` and `model.safetensors` or several files and their
    /// index: the parameters to start from. Without `name`, the architecture and its sizes come
    /// from there too; keys that are set replace them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "path", "absent" = "parameters are drawn"))]
    pub from: Option<PathBuf>,
    /// The sizes; the keys below override them one by one.
    pub preset: GptPreset,
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
    /// Maximum number of positions. Examples may be shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = MAX_SIZE),
        extend("unit" = "tokens", "depends" = "the preset's"),
    )]
    pub context: Option<usize>,
    /// Number of different tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = MAX_SIZE),
        extend("unit" = "tokens", "depends" = "the preset's"),
    )]
    pub vocabulary: Option<usize>,
    /// Probability of dropout in training: of the embeddings, of the attention weights, and of the
    /// output of each half of a block.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1, "resume" = "warn"))]
    pub dropout: f64,
    /// Write the blocks as a loop. It compiles faster, but less communication overlaps with
    /// compute.
    #[schemars(extend("resume" = "same"))]
    pub scan_layers: bool,
    /// Recompute each block in the backward pass instead of keeping its activations.
    #[schemars(extend("resume" = "same"))]
    pub remat: bool,
    /// Most rows (examples of a microbatch times positions) with logits in memory at once. With
    /// more rows the loss is computed in chunks of equally many, each with its gradients, which
    /// saves memory where vocabulary and microbatch are large. Small chunks take longer: each
    /// reads and writes the embedding's whole gradient.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = MAX_SIZE),
        extend(
            "unit" = "rows",
            "absent" = "all; 4096 if the logits of all take more than 4 GiB",
            "resume" = "same",
        ),
    )]
    pub loss_chunk_rows: Option<usize>,
}

impl GptConfig {
    /// A preset without changes.
    pub fn preset(preset: GptPreset) -> Self {
        Self { preset, ..Self::default() }
    }

    /// The model.
    pub fn model(&self) -> Gpt {
        let Sizes(num_layers, width, num_heads, context, vocabulary) = self.preset.sizes();
        Gpt {
            num_layers: self.num_layers.unwrap_or(num_layers),
            width: self.width.unwrap_or(width),
            num_heads: self.num_heads.unwrap_or(num_heads),
            context: self.context.unwrap_or(context),
            vocabulary: self.vocabulary.unwrap_or(vocabulary),
            dropout: self.dropout,
            scan_layers: self.scan_layers,
            remat: self.remat,
            loss_chunk_rows: self.loss_chunk_rows,
        }
    }
}

impl Architecture for GptConfig {
    /// The vocabulary is the configuration's; the data may have fewer tokens.
    fn build(&self, _objective: Objective) -> Box<dyn Model> {
        Box::new(self.model())
    }

    fn example(&self) -> Vec<(&'static str, TensorType)> {
        let tokens = TensorType::new(DType::I32, &[1]);
        vec![("x", tokens.clone()), ("y", tokens)]
    }

    fn check(&self) -> Vec<InvalidValue> {
        let Gpt { width, num_heads, .. } = self.model();
        let allowed = format!("a number that divides the width, {width}");
        let heads = InvalidValue {
            depends_on: &["preset", "width"],
            ..InvalidValue::new("num_heads", num_heads, allowed)
        };
        let divides = num_heads == 0 || width.is_multiple_of(num_heads);
        (!divides).then_some(heads).into_iter().collect()
    }

    fn resolve(&mut self) {
        let sizes = self.model();
        self.num_layers = Some(sizes.num_layers);
        self.width = Some(sizes.width);
        self.num_heads = Some(sizes.num_heads);
        self.context = Some(sizes.context);
        self.vocabulary = Some(sizes.vocabulary);
    }

    fn remat(&self) -> Option<bool> {
        Some(self.remat)
    }

    fn check_tensor_replicas(&self, num_replicas: usize) -> Result<(), String> {
        let Gpt { width, num_heads, .. } = self.model();
        check_transformer(num_replicas, num_heads, HIDDEN_FACTOR * width)
    }

    fn num_blocks(&self) -> Option<usize> {
        Some(self.model().num_layers)
    }

    fn counterpart(&self) -> Option<Counterpart> {
        Some(Counterpart::gpt2(&self.model()))
    }

    fn folder(&self) -> Option<&Path> {
        self.from.as_deref()
    }

    fn folder_mut(&mut self) -> Option<&mut PathBuf> {
        self.from.as_mut()
    }
}

/// A GPT of known sizes. Parameters are `embed.weight`, `position.weight`,
/// `weight` and `bias` of `blocks.I.{norm1, attn.{query, key, value, out}, norm2, mlp.{up, down}}`
/// and of `norm`; the head is `embed.weight`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt {
    /// Number of transformer blocks.
    pub num_layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Number of attention heads.
    pub num_heads: usize,
    /// Maximum number of positions.
    pub context: usize,
    /// Number of different tokens.
    pub vocabulary: usize,
    /// Rate of dropout.
    pub dropout: f64,
    /// `true` if the blocks are a loop.
    pub scan_layers: bool,
    /// `true` if the backward pass recomputes them.
    pub remat: bool,
    /// Most rows with logits in memory at once; see
    /// [`tied_cross_entropy`](crate::loss::tied_cross_entropy).
    pub loss_chunk_rows: Option<usize>,
}

impl Gpt {
    /// Logits `[b * t, vocabulary]` of what follows each of the tokens, integers `[b, t]`. On a
    /// mesh with the axis `tensor` each replica has the columns of its own entries.
    #[track_caller]
    pub fn logits<'g>(&self, scope: &Scope<'g>, ids_bt: Tensor<'g>) -> Tensor<'g> {
        let weight = ids_bt.tracer().full(DType::F32, &[ids_bt.dim(0)], 1.0);
        let fields = [("x".to_owned(), ids_bt)].into_iter().collect();
        let (x_nd, table) =
            Self::head_inputs(scope, &self.through_blocks(scope, &Batch { fields, weight }));
        table.logits(x_nd)
    }

    /// What the logits are the products of.
    #[track_caller]
    fn head_inputs<'g>(scope: &Scope<'g>, last: &Embedded<'g>) -> (Tensor<'g>, Embedding<'g>) {
        let normal_nd = layer_norm(&scope.at("norm"), last.x);
        (scope.enter_vocabulary(normal_nd), Embedding::of_tied(scope, last.tied[0]))
    }
}

impl Pipelined for Gpt {
    fn stack(&self) -> Stack {
        Stack { num_blocks: self.num_layers, scan: self.scan_layers, remat: self.remat }
    }

    #[track_caller]
    fn embed<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Embedded<'g> {
        let ids_bt = batch.field("x");
        let [b, t] = ids_bt.dims();
        if t > self.context {
            let message = format!("{t} positions are more than the context of {}", self.context);
            ids_bt.reject("gpt", message);
        }
        let table = embedding(&scope.at("embed"), self.vocabulary, self.width, WEIGHTS);
        let position = scope.at("position").varying();
        let positions = position.param("weight", &[self.context, self.width], WEIGHTS);
        let position_td = scope.once(positions.slice_dim(0, 0, t.min(self.context)));

        let x_btd = table.embed(ids_bt);
        let x_btd = x_btd + position_td.broadcast_like(x_btd, &[1, 2]);
        let x_nd = scope.leave_vocabulary(x_btd.reshape(&[b * t, self.width]));
        let x = dropout(&scope.at("embed"), x_nd, self.dropout);
        Embedded { x, given: vec![], tied: vec![table.tied()], num_positions: t }
    }

    #[track_caller]
    fn block<'g>(
        &self,
        scope: &Scope<'g>,
        x_nd: Tensor<'g>,
        _given: &[Tensor<'g>],
        num_positions: usize,
    ) -> Tensor<'g> {
        let rate = self.dropout;
        // Each block writes to the residual stream twice.
        let to_residual = Initializer::Normal { std: STD / (2.0 * self.num_layers as f64).sqrt() };
        let parts = Attention {
            num_positions,
            num_heads: self.num_heads,
            num_kv_heads: self.num_heads,
            causal: true,
            qk_norm: None,
            rotary: None,
            dropout: rate,
            qkv: WEIGHTS,
            out: to_residual,
        };
        let num_hidden = HIDDEN_FACTOR * self.width;
        let normal_nd = layer_norm(&scope.at("norm1"), x_nd);
        let added_nd = attention(&scope.at("attn"), normal_nd, None, parts);
        let x_nd = (x_nd + dropout(&scope.at("attn"), added_nd, rate)).fusion_barrier();
        let normal_nd = layer_norm(&scope.at("norm2"), x_nd);
        let scope = scope.at("mlp");
        let added_nd = feed_forward(&scope, normal_nd, num_hidden, WEIGHTS, to_residual);
        (x_nd + dropout(&scope, added_nd, rate)).fusion_barrier()
    }

    fn is_head_by_row(&self) -> bool {
        true
    }

    #[track_caller]
    fn head<'g>(&self, scope: &Scope<'g>, last: &Embedded<'g>, batch: &Batch<'g>) -> Loss<'g> {
        let (x_nd, table) = Self::head_inputs(scope, last);
        let y_bt = batch.field("y");
        let weight_n = batch.weight_of_positions(y_bt);
        let y_n = y_bt.reshape(&[y_bt.num_elements()]);
        let (vocabulary, chunk_rows) = (self.vocabulary, self.loss_chunk_rows);
        tied_cross_entropy(scope, x_nd, &table, y_n, weight_n, vocabulary, chunk_rows)
    }
}

impl Model for Gpt {
    /// Cross-entropy of the next tokens `y` (integer `[b, t]`) after the tokens `x` (integer
    /// `[b, t]`). Each token has its example's weight, so the loss is a mean over tokens.
    fn loss<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
        self.run(scope, batch)
    }

    fn pipelined(&self) -> Option<&dyn Pipelined> {
        Some(self)
    }

    fn check_example(&self, dtype: DType, dims: &[usize], classes: usize) -> Result<(), Misfit> {
        let Self { context, vocabulary, .. } = self;
        match dims {
            _ if dtype.is_float() => {
                Err(Misfit::Kind { takes: "tokens, i32[positions]".to_owned() })
            }
            [positions] if positions <= context => match classes <= *vocabulary {
                true => Ok(()),
                false => {
                    let takes = format!("at most {vocabulary} tokens, which is model.vocabulary");
                    Err(Misfit::Classes { takes })
                }
            },
            _ => {
                let takes = format!("i32[positions], at most {context}, which is model.context");
                Err(Misfit::Dims { takes })
            }
        }
    }
}
