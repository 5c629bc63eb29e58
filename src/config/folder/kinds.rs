//! The keys of a `config.json` that are read, and those that must have a certain value.

/// An architecture as transformers names it.
pub(super) struct FolderKind {
    pub model_type: &'static str,
    /// `model.name`.
    pub name: &'static str,
    /// The preset with the sizes that hold where the file has none, if that is not the usual
    /// preset.
    pub preset: Option<&'static str>,
    /// Key of the file, key of `[model]`: whole numbers from 1 on.
    pub sizes: &'static [(&'static str, &'static str)],
    /// Key of the file, key of `[model]`: shares.
    pub rates: &'static [(&'static str, &'static str)],
    /// Keys that must have a value, if they are there: it decides what is computed.
    pub fixed: &'static [(&'static str, &'static [&'static str])],
}

/// Keys that must have one of these values in every architecture, if they are there.
pub(super) const FIXED: [(&str, &[&str]); 6] = [
    ("is_decoder", &["false", "null"]),
    ("is_encoder_decoder", &["false", "null"]),
    ("add_cross_attention", &["false", "null"]),
    ("quantization_config", &["null"]),
    // Code that comes with the folder.
    ("auto_map", &["null"]),
    ("pruned_heads", &["{}", "null"]),
];

pub(super) const KINDS: [FolderKind; 3] = [
    FolderKind {
        model_type: "bert",
        name: "bert",
        preset: None,
        sizes: &[
            ("vocab_size", "vocabulary"),
            ("hidden_size", "width"),
            ("num_hidden_layers", "num_layers"),
            ("num_attention_heads", "num_heads"),
            ("intermediate_size", "num_hidden"),
            ("max_position_embeddings", "context"),
        ],
        rates: &[
            ("hidden_dropout_prob", "dropout"),
            ("attention_probs_dropout_prob", "attention_dropout"),
            ("classifier_dropout", "classifier_dropout"),
        ],
        fixed: &[
            ("hidden_act", &["\"gelu\"", "\"gelu_python\""]),
            ("type_vocab_size", &["2"]),
            ("layer_norm_eps", &["1e-12"]),
            ("position_embedding_type", &["\"absolute\"", "null"]),
        ],
    },
    FolderKind {
        model_type: "distilbert",
        name: "distilbert",
        preset: None,
        sizes: &[
            ("vocab_size", "vocabulary"),
            ("dim", "width"),
            ("n_layers", "num_layers"),
            ("n_heads", "num_heads"),
            ("hidden_dim", "num_hidden"),
            ("max_position_embeddings", "context"),
        ],
        rates: &[
            ("dropout", "dropout"),
            ("attention_dropout", "attention_dropout"),
            ("seq_classif_dropout", "classifier_dropout"),
        ],
        fixed: &[("activation", &["\"gelu\"", "\"gelu_python\""])],
    },
    FolderKind {
        model_type: "gpt2",
        name: "gpt",
        preset: Some("gpt2-124m"),
        sizes: &[
            ("vocab_size", "vocabulary"),
            ("n_embd", "width"),
            ("n_layer", "num_layers"),
            ("n_head", "num_heads"),
            ("n_positions", "context"),
        ],
        rates: &[("resid_pdrop", "dropout")],
        fixed: &[
            (
                "activation_function",
                &[
                    "\"gelu_new\"",
                    "\"gelu_pytorch_tanh\"",
                    "\"gelu_python_tanh\"",
                    "\"gelu_fast\"",
                    "\"gelu_accurate\"",
                ],
            ),
            ("layer_norm_epsilon", &["1e-5"]),
            ("scale_attn_weights", &["true"]),
            ("scale_attn_by_inverse_layer_idx", &["false"]),
            ("tie_word_embeddings", &["true"]),
        ],
    },
];
