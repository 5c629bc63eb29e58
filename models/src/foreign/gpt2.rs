//! GPT-2 as Hugging Face's transformers has it: `GPT2LMHeadModel` and `GPT2Model`.

use serde::Serialize;

use super::Layout::{Same, Transposed};
use super::{ForeignFormat, Library, Tied};
use crate::gpt::Gpt;
use crate::layers::LAYER_NORM_EPSILON;

/// Its `Conv1D` multiplies from the right, so matrices are transposed.
pub(super) static GPT2: ForeignFormat = ForeignFormat {
    name: "a Hugging Face GPT-2",
    library: Library::Transformers,
    prefix: "transformer.",
    rows: &[
        ("embed.weight", "wte.weight", Same),
        ("position.weight", "wpe.weight", Same),
        ("blocks.*.norm1.weight", "h.*.ln_1.weight", Same),
        ("blocks.*.norm1.bias", "h.*.ln_1.bias", Same),
        ("blocks.*.attn.qkv.weight", "h.*.attn.c_attn.weight", Transposed),
        ("blocks.*.attn.qkv.bias", "h.*.attn.c_attn.bias", Same),
        ("blocks.*.attn.out.weight", "h.*.attn.c_proj.weight", Transposed),
        ("blocks.*.attn.out.bias", "h.*.attn.c_proj.bias", Same),
        ("blocks.*.norm2.weight", "h.*.ln_2.weight", Same),
        ("blocks.*.norm2.bias", "h.*.ln_2.bias", Same),
        ("blocks.*.mlp.up.weight", "h.*.mlp.c_fc.weight", Transposed),
        ("blocks.*.mlp.up.bias", "h.*.mlp.c_fc.bias", Same),
        ("blocks.*.mlp.down.weight", "h.*.mlp.c_proj.weight", Transposed),
        ("blocks.*.mlp.down.bias", "h.*.mlp.c_proj.bias", Same),
        ("norm.weight", "ln_f.weight", Same),
        ("norm.bias", "ln_f.bias", Same),
    ],
    heads: &[],
    optional: &[],
    ignored: &["h.*.attn.bias", "h.*.attn.masked_bias"],
    tied: &[Tied { copy: "lm_head.weight", of: "wte.weight", used_with: None }],
};

/// The vocabulary of GPT-2's own tokenizer, and its token for the end of a text, which also starts
/// one.
const TOKENIZER: (usize, usize) = (50257, 50256);

/// `config.json`: the fields of transformers' `GPT2Config` that describe one of our models. The
/// others have defaults that fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gpt2Config {
    architectures: [&'static str; 1],
    model_type: &'static str,
    vocab_size: usize,
    n_positions: usize,
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    n_inner: usize,
    activation_function: &'static str,
    layer_norm_epsilon: f64,
    scale_attn_weights: bool,
    scale_attn_by_inverse_layer_idx: bool,
    embd_pdrop: f64,
    attn_pdrop: f64,
    resid_pdrop: f64,
    tie_word_embeddings: bool,
    bos_token_id: Option<usize>,
    eos_token_id: Option<usize>,
}

impl Gpt2Config {
    /// The keys that decide what is computed.
    pub const COMPUTED_WITH: [&'static str; 12] = [
        "model_type",
        "vocab_size",
        "n_positions",
        "n_embd",
        "n_layer",
        "n_head",
        "n_inner",
        "activation_function",
        "layer_norm_epsilon",
        "scale_attn_weights",
        "scale_attn_by_inverse_layer_idx",
        "tie_word_embeddings",
    ];

    /// The other names that transformers has for the tanh form of GELU.
    pub const SAME_ACTIVATION: [&'static str; 4] =
        ["gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"];

    /// Token ids are given only for the vocabulary of GPT-2's own tokenizer: no other one says what
    /// its ids mean.
    pub(crate) fn of(model: &Gpt) -> Self {
        // Every field is named: a new one must be expressed here, or the model has no counterpart.
        let Gpt {
            num_layers,
            width,
            num_heads,
            context,
            vocabulary,
            dropout,
            scan_layers: _,
            remat: _,
            loss_chunk_rows: _,
        } = *model;
        let (size, end_of_text) = TOKENIZER;
        let end_of_text = (vocabulary == size).then_some(end_of_text);
        Self {
            architectures: ["GPT2LMHeadModel"],
            model_type: "gpt2",
            vocab_size: vocabulary,
            n_positions: context,
            n_embd: width,
            n_layer: num_layers,
            n_head: num_heads,
            n_inner: 4 * width,
            activation_function: "gelu_new",
            layer_norm_epsilon: LAYER_NORM_EPSILON,
            scale_attn_weights: true,
            scale_attn_by_inverse_layer_idx: false,
            embd_pdrop: dropout,
            attn_pdrop: dropout,
            resid_pdrop: dropout,
            tie_word_embeddings: true,
            bos_token_id: end_of_text,
            eos_token_id: end_of_text,
        }
    }

    /// The token that ends a text, if it is known: what `generation_config.json` is about.
    pub fn eos_token_id(&self) -> Option<usize> {
        self.eos_token_id
    }
}
