//! From text to tokens, as Hugging Face's `tokenizers` does it.

use std::path::Path;

use tokenizers::{PostProcessor, Tokenizer, TruncationDirection, TruncationParams};

use super::tokenizer::{self, FolderTokenizer};
use crate::data::Error;

/// The tokens of a text or of a pair of texts, with the special tokens around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedText {
    /// Ids of the tokens.
    pub ids: Vec<i32>,
    /// For each token 0, or 1 if it belongs to the second text.
    pub segments: Vec<i32>,
}

/// Turns texts into tokens.
pub struct TextEncoder {
    tokenizer: Tokenizer,
    max_length: usize,
    truncate: bool,
    vocab_size: usize,
    pad_id: i32,
    has_segments: bool,
    model_max_length: Option<usize>,
    about_pairs: Option<String>,
    warnings: Vec<String>,
}

impl TextEncoder {
    /// Opens a `tokenizer.json`, a `vocab.txt` of BERT's WordPiece, or a folder with either, as
    /// `AutoTokenizer` of transformers opens the folder: with what `tokenizer_config.json`,
    /// `special_tokens_map.json`, `added_tokens.json` and `config.json` beside it say of tokens.
    /// `max_length` is in tokens, special ones included. With `truncate`, longer texts lose their
    /// end (or their start, if the files say so), the longer one of a pair first; without it they
    /// are errors. `key` names the path in messages.
    ///
    /// # Errors
    /// A file that is missing, damaged or of another kind, files that contradict each other,
    /// padding that is not in the vocabulary, or a `max_length` that the special tokens alone fill.
    pub fn open(
        path: &Path,
        key: &'static str,
        max_length: usize,
        truncate: bool,
    ) -> Result<Self, Error> {
        let FolderTokenizer {
            mut tokenizer,
            vocabulary,
            vocab_size,
            pad_id,
            has_segments,
            cuts_start,
            model_max_length,
            about_pairs,
            mut warnings,
            ..
        } = tokenizer::open(path, key)?;
        let added = tokenizer.get_post_processor().map_or(0, |post| post.added_tokens(true));
        if max_length <= added {
            return Err(Error::TooFewPositions { max_length, added });
        }
        let direction = match cuts_start {
            true => TruncationDirection::Left,
            false => TruncationDirection::Right,
        };
        let truncation = TruncationParams { max_length, direction, ..TruncationParams::default() };
        tokenizer.with_padding(None).with_truncation(truncate.then_some(truncation)).map_err(
            |error| Error::Tokenizer { path: vocabulary.clone(), key, reason: error.to_string() },
        )?;
        if let Some(most) = model_max_length.filter(|most| truncate && *most < max_length) {
            warnings.push(format!(
                "{}: texts are cut to data.max_length = {max_length} tokens, but model_max_length \
                 beside it is {most}; transformers cuts them to that",
                vocabulary.display()
            ));
        }
        let pad_id = pad_id as i32;
        Ok(Self {
            tokenizer,
            max_length,
            truncate,
            vocab_size,
            pad_id,
            has_segments,
            model_max_length,
            about_pairs,
            warnings,
        })
    }

    /// Tokenizes a text, or two.
    ///
    /// # Errors
    /// What is wrong with the text: it has no token, or more than `max_length` and is not to be
    /// truncated. Also a token or a segment that the tokenizer should not have.
    pub fn encode(&self, text: &str, pair: Option<&str>) -> Result<EncodedText, String> {
        let encoding = match pair {
            Some(pair) => self.tokenizer.encode_fast((text, pair), true),
            None => self.tokenizer.encode_fast(text, true),
        };
        let encoding = encoding.map_err(|error| format!("it cannot be tokenized: {error}"))?;
        let (found, most) = (encoding.len(), self.max_length);
        if found == 0 {
            return Err("the text has no token; remove the row".to_owned());
        }
        if found > most && !self.truncate {
            return Err(format!(
                "the text has {found} tokens, but data.max_length is {most}; set data.truncate = \
                 true to use its beginning, or raise data.max_length"
            ));
        }
        let (ids, segments) = (encoding.get_ids(), encoding.get_type_ids());
        // A post-processor has its own ids of special tokens; the program would read another row of
        // the embedding.
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.vocab_size) {
            let size = self.vocab_size;
            return Err(format!(
                "the tokenizer gives it a token with the id {id}, but its ids are below {size}; \
                 correct data.tokenizer"
            ));
        }
        if let Some(segment) = segments.iter().find(|segment| **segment > 1) {
            return Err(format!(
                "the tokenizer gives it the segment {segment}, but segments are 0 and 1; correct \
                 data.tokenizer"
            ));
        }
        let signed = |values: &[u32]| values.iter().map(|value| *value as i32).collect();
        let segments = match self.has_segments {
            true => signed(segments),
            false => vec![0; segments.len()],
        };
        Ok(EncodedText { ids: signed(ids), segments })
    }

    /// One more than the highest id of a token.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The id that fills the rest of an example.
    pub fn pad_id(&self) -> i32 {
        self.pad_id
    }

    /// Most tokens that the model takes, if a file beside the tokenizer says it.
    pub fn model_max_length(&self) -> Option<usize> {
        self.model_max_length
    }

    /// What to say about the tokenizer's files, and about pairs of texts if there are such.
    pub fn warnings(&self, has_pairs: bool) -> Vec<String> {
        let about_pairs = self.about_pairs.clone().filter(|_| has_pairs);
        self.warnings.iter().cloned().chain(about_pairs).collect()
    }
}
