//! From text to tokens, as Hugging Face's `tokenizers` does it.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::{AddedToken, PostProcessor, Tokenizer, TruncationParams};

use crate::data::Error;
use crate::data::files::unreadable;

/// The special tokens of BERT.
const UNKNOWN: &str = "[UNK]";
const CLASS: &str = "[CLS]";
const SEPARATOR: &str = "[SEP]";
const PADDING: &str = "[PAD]";
const MASKED: &str = "[MASK]";

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
}

/// The keys of `tokenizer_config.json` that a `vocab.txt` needs.
#[derive(Deserialize)]
#[serde(default)]
struct BertSettings {
    do_lower_case: bool,
    strip_accents: Option<bool>,
    tokenize_chinese_chars: bool,
}

impl Default for BertSettings {
    fn default() -> Self {
        Self { do_lower_case: true, strip_accents: None, tokenize_chinese_chars: true }
    }
}

impl TextEncoder {
    /// Opens a `tokenizer.json`, a `vocab.txt` of BERT's WordPiece, or a folder with either. `tokenizer_config.json`
    /// beside a `vocab.txt` says whether letters become lower case (`do_lower_case`, by default true). `max_length` is in
    /// tokens, special ones included. With `truncate`, longer texts lose their end, the longer one of a pair first;
    /// without it they are errors. `key` names the path in messages.
    ///
    /// # Errors
    /// A file that is missing, damaged or of another kind, padding that is not in the vocabulary, or a `max_length` that
    /// the special tokens alone fill.
    pub fn open(
        path: &Path,
        key: &'static str,
        max_length: usize,
        truncate: bool,
    ) -> Result<Self, Error> {
        let file = file_of(path, key)?;
        let problem = |reason: String| Error::Tokenizer { path: file.clone(), key, reason };
        let mut tokenizer = match file.extension().is_some_and(|extension| extension == "txt") {
            true => of_vocab(&file, key)?,
            false => {
                let bytes = read(&file, key)?;
                Tokenizer::from_bytes(bytes).map_err(|error| problem(error.to_string()))?
            }
        };
        let ids = tokenizer.get_vocab(true).into_values();
        let vocab_size = ids.max().map_or(0, |id| id as usize + 1);
        if vocab_size == 0 || i32::try_from(vocab_size).is_err() {
            return Err(problem(format!("it has a vocabulary of {vocab_size} tokens")));
        }
        let padding = tokenizer.get_padding().map(|padding| padding.pad_id);
        let named = || [PADDING, "<pad>"].iter().find_map(|name| tokenizer.token_to_id(name));
        let pad_id = padding.or_else(named).unwrap_or_default();
        if pad_id as usize >= vocab_size {
            let reason = format!("padding has the id {pad_id}, but ids are below {vocab_size}");
            return Err(problem(reason));
        }
        let added = tokenizer.get_post_processor().map_or(0, |post| post.added_tokens(true));
        if max_length <= added {
            return Err(Error::TooFewPositions { max_length, added });
        }
        let truncation = TruncationParams { max_length, ..TruncationParams::default() };
        tokenizer
            .with_padding(None)
            .with_truncation(truncate.then_some(truncation))
            .map_err(|error| problem(error.to_string()))?;
        Ok(Self { tokenizer, max_length, truncate, vocab_size, pad_id: pad_id as i32 })
    }

    /// Tokenizes a text, or two.
    ///
    /// # Errors
    /// What is wrong with the text: it has no token, or more than `max_length` and is not to be truncated. Also a token or
    /// a segment that the tokenizer should not have.
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
                "the text has {found} tokens, but data.max_length is {most}; set data.truncate = true \
                 to use its beginning, or raise data.max_length"
            ));
        }
        let (ids, segments) = (encoding.get_ids(), encoding.get_type_ids());
        // A post-processor has its own ids of special tokens; the program would read another row of the embedding.
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.vocab_size) {
            let size = self.vocab_size;
            return Err(format!(
                "the tokenizer gives it a token with the id {id}, but its ids are below {size}; correct data.tokenizer"
            ));
        }
        if let Some(segment) = segments.iter().find(|segment| **segment > 1) {
            return Err(format!(
                "the tokenizer gives it the segment {segment}, but segments are 0 and 1; correct data.tokenizer"
            ));
        }
        let signed = |values: &[u32]| values.iter().map(|value| *value as i32).collect();
        Ok(EncodedText { ids: signed(ids), segments: signed(segments) })
    }

    /// One more than the highest id of a token.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The id that fills the rest of an example.
    pub fn pad_id(&self) -> i32 {
        self.pad_id
    }
}

/// The file itself, or the first of those in a folder.
fn file_of(path: &Path, key: &'static str) -> Result<PathBuf, Error> {
    let metadata = fs::metadata(path).map_err(|source| unreadable(path, key, source))?;
    if !metadata.is_dir() {
        return Ok(path.to_owned());
    }
    let files = ["tokenizer.json", "vocab.txt"].map(|name| path.join(name));
    files.into_iter().find(|file| file.is_file()).ok_or_else(|| Error::Tokenizer {
        path: path.to_owned(),
        key,
        reason: "the folder has neither tokenizer.json nor vocab.txt".to_owned(),
    })
}

fn read(path: &Path, key: &'static str) -> Result<Vec<u8>, Error> {
    let unreadable = |source| unreadable(path, key, source);
    let mut file = crate::config::open_regular(path).map_err(unreadable)?;
    let mut bytes = vec![];
    std::io::Read::read_to_end(&mut file, &mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// BERT's tokenizer: a token on each line of the vocabulary, its id the number of the line from 0.
fn of_vocab(path: &Path, key: &'static str) -> Result<Tokenizer, Error> {
    let problem = |reason: String| Error::Tokenizer { path: path.to_owned(), key, reason };
    let bytes = read(path, key)?;
    let vocab = WordPiece::read_bytes(&bytes).map_err(|error| problem(error.to_string()))?;
    let special = |name: &str| {
        let id = vocab.get(name).copied();
        let id = id.ok_or_else(|| problem(format!("it has no line {name}, as BERT's has")))?;
        Ok::<_, Error>((name.to_owned(), id))
    };
    let (separator, class) = (special(SEPARATOR)?, special(CLASS)?);
    special(UNKNOWN)?;
    let settings = path.with_file_name("tokenizer_config.json");
    let settings = match settings.is_file() {
        true => serde_json::from_slice(&read(&settings, key)?).map_err(|error| {
            let reason = error.to_string();
            Error::Tokenizer { path: settings, key, reason }
        })?,
        false => BertSettings::default(),
    };
    let added: Vec<_> = [UNKNOWN, SEPARATOR, CLASS, PADDING, MASKED]
        .into_iter()
        .filter(|name| vocab.contains_key(*name))
        .map(|name| AddedToken::from(name, true))
        .collect();
    let model = WordPiece::builder()
        .vocab(vocab)
        .unk_token(UNKNOWN.to_owned())
        .build()
        .map_err(|error| problem(error.to_string()))?;
    let BertSettings { do_lower_case, strip_accents, tokenize_chinese_chars } = settings;
    let normalizer =
        BertNormalizer::new(true, tokenize_chinese_chars, strip_accents, do_lower_case);
    let mut tokenizer = Tokenizer::new(model);
    tokenizer
        .with_normalizer(Some(normalizer))
        .map_err(|error| problem(error.to_string()))?
        .with_pre_tokenizer(Some(BertPreTokenizer))
        .with_post_processor(Some(BertProcessing::new(separator, class)));
    tokenizer.add_special_tokens(added).map_err(|error| problem(error.to_string()))?;
    Ok(tokenizer)
}
