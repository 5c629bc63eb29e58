//! Which of transformers' tokenizers a folder is for.

use crate::config::shorten;

/// How a tokenizer comes from its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// BERT's, made anew from the vocabulary and the settings. Parts of a `tokenizer.json` other
    /// than the vocabulary and the added tokens are replaced.
    Bert {
        /// `true` if its models get segments.
        has_segments: bool,
    },
    /// What `tokenizer.json` describes, with more tokens.
    Whole,
}

/// Classes that are BERT's tokenizer under another name, without `Fast` at their end, and whether
/// their models get segments.
const BERT: [(&str, bool); 8] = [
    ("BertTokenizer", true),
    ("ConvBertTokenizer", true),
    ("DistilBertTokenizer", false),
    ("ElectraTokenizer", true),
    ("LayoutLMTokenizer", true),
    ("LxmertTokenizer", true),
    ("MobileBertTokenizer", true),
    ("SqueezeBertTokenizer", true),
];
/// Values of `model_type` that stand for BERT's tokenizer where no class is named.
const BERT_MODELS: [&str; 9] = [
    "bert",
    "convbert",
    "distilbert",
    "electra",
    "ernie",
    "layoutlm",
    "megatron-bert",
    "nezha",
    "squeezebert",
];
/// Classes that take a `tokenizer.json` as it is, without `Fast` at their end.
const WHOLE: [&str; 3] = ["PreTrainedTokenizer", "PythonBackend", "TokenizersBackend"];

impl Class {
    /// The class for the name in `tokenizer_class` and for a `model_type`. `is_whole` if there is a
    /// `tokenizer.json`.
    ///
    /// # Errors
    /// A vocabulary of another kind than BERT's.
    pub fn of(
        named: Option<&str>,
        model_type: Option<&str>,
        is_whole: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Self, String> {
        let class = named.map(|name| name.strip_suffix("Fast").unwrap_or(name));
        if let Some((_, has_segments)) = BERT.iter().find(|(name, _)| Some(*name) == class) {
            return Ok(Self::Bert { has_segments: *has_segments });
        }
        let what = match (named, model_type) {
            (Some(name), _) => format!("tokenizer_class is {:?}", shorten(name)),
            (None, Some(name)) if BERT_MODELS.contains(&name) => {
                return Ok(Self::Bert { has_segments: true });
            }
            (None, Some(name)) => {
                format!("config.json beside it has model_type {:?}", shorten(name))
            }
            (None, None) if is_whole => return Ok(Self::Whole),
            (None, None) => return Ok(Self::Bert { has_segments: true }),
        };
        if !is_whole {
            return Err(format!(
                "{what}, but without a tokenizer.json only BERT's vocab.txt is read; save the \
                 tokenizer again with a tokenizer.json"
            ));
        }
        if class.is_some_and(|class| !WHOLE.contains(&class)) {
            warnings.push(format!(
                "{what}: tokenizer.json is used as it is, which that class may change"
            ));
        }
        Ok(Self::Whole)
    }
}
