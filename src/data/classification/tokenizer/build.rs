//! From a vocabulary and settings to a tokenizer.

use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::{AddedToken, Encoding, Model, PostProcessor, Token, Tokenizer};

use super::class::Class;
use super::settings::{Letters, NAMES, Settings};
use super::{FolderTokenizer, Place, TokenizerClass};
use crate::config::shorten;
use crate::data::Error;

/// The special tokens of BERT, by their names in transformers.
const BERT_SPECIAL: [(&str, &str); 5] = [
    ("unk_token", "[UNK]"),
    ("sep_token", "[SEP]"),
    ("pad_token", "[PAD]"),
    ("cls_token", "[CLS]"),
    ("mask_token", "[MASK]"),
];
/// Names of the token for padding where nothing says which it is.
const PADDING: [&str; 2] = ["[PAD]", "<pad>"];
/// What BERT's tokenizer fixes: the mark of a piece that continues a word, and the longest word
/// that it takes apart.
const CONTINUES: &str = "##";
const MAX_WORD: usize = 100;

/// BERT's tokenizer: a token on each line of the vocabulary, its id the number of the line from 0.
pub(super) fn of_vocab(
    place: &Place<'_>,
    bytes: &[u8],
    settings: Settings,
) -> Result<FolderTokenizer, Error> {
    let vocab = WordPiece::read_bytes(bytes).map_err(|error| place.unusable(error))?;
    let model = WordPiece::builder()
        .vocab(vocab)
        .unk_token(special(&settings, "unk_token"))
        .continuing_subword_prefix(CONTINUES.to_owned())
        .max_input_chars_per_word(MAX_WORD)
        .build()
        .map_err(|error| place.unusable(error))?;
    let tokenizer = bert(place, model, &settings)?;
    finish(place, tokenizer, settings)
}

/// The tokenizer in a `tokenizer.json`, or what its class makes of it.
pub(super) fn of_json(
    place: &Place<'_>,
    tokenizer: Tokenizer,
    json: &Value,
    mut settings: Settings,
) -> Result<FolderTokenizer, Error> {
    let tokenizer = match settings.class {
        Class::Whole => {
            note_contradictions(place, json, &mut settings);
            tokenizer
        }
        Class::Bert { .. } => {
            let ModelWrapper::WordPiece(model) = tokenizer.get_model() else {
                let found = &json["model"]["type"];
                let reason = format!(
                    "its model is {found}, but BERT's tokenizer, which tokenizer_config.json or \
                     config.json asks for, is a WordPiece"
                );
                return Err(place.wrong(place.vocabulary, reason));
            };
            let made = bert(place, model.clone(), &settings)?;
            check_replaced(place, &tokenizer, model, json, &made, &settings)?;
            note_letters(place, json, &mut settings);
            made
        }
    };
    settings.cuts_start = settings
        .cuts_start
        .or_else(|| json["truncation"]["direction"].as_str().map(|direction| direction == "Left"));
    let padding = json["padding"]["pad_token"].as_str();
    if let Some(padding) = padding
        && !settings.special.iter().any(|(name, _)| name == "pad_token")
    {
        settings.special.push(("pad_token".to_owned(), AddedToken::from(padding, true)));
    }
    finish(place, tokenizer, settings)
}

/// A new tokenizer as `BertTokenizer` has it, without added tokens.
fn bert(place: &Place<'_>, model: WordPiece, settings: &Settings) -> Result<Tokenizer, Error> {
    let failed = |error: tokenizers::Error| place.unusable(error);
    let special = |name: &str| {
        let token = special(settings, name);
        let added = settings.added.iter().find(|(_, (added, _))| added.content == token);
        let id = model.token_to_id(&token).or(added.map(|(id, _)| *id));
        let id = id.ok_or_else(|| {
            let is_usual = BERT_SPECIAL.iter().any(|(_, usual)| *usual == token);
            let as_usual = if is_usual { ", as BERT's has" } else { "" };
            place.unusable(format!("it has no line {token}{as_usual}"))
        })?;
        Ok::<_, Error>((token, id))
    };
    let (separator, class) = (special("sep_token")?, special("cls_token")?);
    special("unk_token")?;
    let Letters { do_lower_case, strip_accents, tokenize_chinese_chars } = settings.letters;
    let normalizer = BertNormalizer::new(
        true,
        tokenize_chinese_chars.unwrap_or(true),
        strip_accents,
        do_lower_case.unwrap_or(true),
    );
    let mut tokenizer = Tokenizer::new(model);
    tokenizer
        .with_normalizer(Some(normalizer))
        .map_err(failed)?
        .with_pre_tokenizer(Some(BertPreTokenizer))
        .with_post_processor(Some(BertProcessing::new(separator, class)));
    Ok(tokenizer)
}

/// The special token of this name, or BERT's.
fn special(settings: &Settings, name: &str) -> String {
    let found = settings.special.iter().find(|(other, _)| other == name);
    let usual = || BERT_SPECIAL.iter().find(|(other, _)| *other == name).map(|(_, token)| *token);
    found.map_or_else(|| usual().unwrap_or_default().to_owned(), |(_, token)| token.content.clone())
}

/// Refuses a `tokenizer.json` with parts that `BertTokenizer` replaces by others: transformers 5
/// does so, and 4 does not.
fn check_replaced(
    place: &Place<'_>,
    theirs: &Tokenizer,
    model: &WordPiece,
    json: &Value,
    made: &Tokenizer,
    settings: &Settings,
) -> Result<(), Error> {
    let normalizer = &json["normalizer"];
    let same = |key: &str, usual: &str| json[key]["type"] == usual;
    let part = if !same("normalizer", "BertNormalizer") || normalizer["clean_text"] != true {
        "normalizer"
    } else if !same("pre_tokenizer", "BertPreTokenizer") {
        "pre_tokenizer"
    } else if (&*model.continuing_subword_prefix, model.max_input_chars_per_word)
        != (CONTINUES, MAX_WORD)
        || model.unk_token != special(settings, "unk_token")
    {
        "model"
    } else if around(theirs) != around(made) {
        "post_processor"
    } else {
        return Ok(());
    };
    let reason = format!(
        "its {part} is not BertTokenizer's, the class of the folder: transformers 5 replaces it, \
         earlier versions keep it; set tokenizer_class to \"PreTrainedTokenizerFast\" in \
         tokenizer_config.json to keep it"
    );
    Err(place.wrong(place.vocabulary, reason))
}

/// The ids and segments of a text, and of a pair, each of one token, with the special tokens around
/// them.
fn around(tokenizer: &Tokenizer) -> Option<[(Vec<u32>, Vec<u32>); 2]> {
    let text = || Encoding::from_tokens(vec![Token::new(0, String::new(), (0, 0))], 0);
    let post = tokenizer.get_post_processor()?;
    let of = |pair: Option<Encoding>| {
        let done = post.process(text(), pair, true).ok()?;
        Some((done.get_ids().to_vec(), done.get_type_ids().to_vec()))
    };
    Some([of(None)?, of(Some(text()))?])
}

/// Says where `tokenizer.json` treats letters in another way than its class does, which wins.
fn note_letters(place: &Place<'_>, json: &Value, settings: &mut Settings) {
    let found = &json["normalizer"];
    let Letters { do_lower_case, strip_accents, tokenize_chinese_chars } = settings.letters;
    for (key, value, name) in [
        ("lowercase", Some(do_lower_case.unwrap_or(true)), "do_lower_case"),
        ("strip_accents", strip_accents, "strip_accents"),
        (
            "handle_chinese_chars",
            Some(tokenize_chinese_chars.unwrap_or(true)),
            "tokenize_chinese_chars",
        ),
    ] {
        let value = Value::from(value);
        if found[key] != value {
            settings.warnings.push(format!(
                "{}: normalizer.{key} is {}, but {name} of the tokenizer's class is {value}, which \
                 is used, as by transformers",
                place.vocabulary.display(),
                found[key]
            ));
        }
    }
}

/// Says which settings beside a `tokenizer.json` have no effect because it is taken as it is.
fn note_contradictions(place: &Place<'_>, json: &Value, settings: &mut Settings) {
    let normalizer = &json["normalizer"];
    let is_bert = normalizer["type"] == "BertNormalizer";
    let Letters { do_lower_case, strip_accents, tokenize_chinese_chars } = settings.letters;
    let letters = [
        ("do_lower_case", do_lower_case, &normalizer["lowercase"]),
        ("strip_accents", strip_accents, &normalizer["strip_accents"]),
        ("tokenize_chinese_chars", tokenize_chinese_chars, &normalizer["handle_chinese_chars"]),
    ];
    let space =
        ("add_prefix_space", settings.add_prefix_space, &json["pre_tokenizer"]["add_prefix_space"]);
    let letters = letters.into_iter().filter(|_| is_bert);
    for (key, value, found) in letters.chain([space]) {
        if let Some(value) = value
            && found.as_bool().is_some_and(|found| found != value)
        {
            settings.warnings.push(format!(
                "{}: {key} = {value} beside it has no effect: the file says {found}, and is used \
                 as it is",
                place.vocabulary.display()
            ));
        }
    }
}

/// Adds the tokens beyond the vocabulary, as transformers does: those with an id in the order of
/// ids, then special ones that are not there yet.
fn finish(
    place: &Place<'_>,
    mut tokenizer: Tokenizer,
    settings: Settings,
) -> Result<FolderTokenizer, Error> {
    let failed = |error: tokenizers::Error| place.unusable(error);
    let is_bert = matches!(settings.class, Class::Bert { .. });
    let usual = BERT_SPECIAL.into_iter().filter(|_| is_bert);
    let usual = usual.map(|(name, _)| (name, AddedToken::from(special(&settings, name), true)));
    let given = settings.special.iter().map(|(name, token)| (&**name, token.clone()));
    let named: Vec<_> = given.chain(usual).collect();
    let mut tokens = vec![];
    for (token, _) in settings.added.values() {
        let is_named = named.iter().any(|(_, other)| other.content == token.content);
        tokens.push(token.clone().special(token.special || is_named));
    }
    let is_known = |tokens: &[AddedToken], content: &str| {
        tokens.iter().any(|token| token.content == content)
            || tokenizer.get_added_vocabulary().get_vocab().contains_key(content)
    };
    // One of the usual names without a token in any file gets an id, but models have no row for it:
    // a text with it is refused.
    let mut without_row = vec![];
    let mut unordered = vec![];
    for (name, token) in named {
        if !is_known(&tokens, &token.content) {
            if tokenizer.token_to_id(&token.content).is_none() {
                let is_usual = NAMES.contains(&name);
                let list = if is_usual { &mut without_row } else { &mut unordered };
                list.push(token.content.clone());
            }
            tokens.push(token);
        }
    }
    if unordered.len() > 1 {
        let reason = format!(
            "the ids of the special tokens {} are in no file; list them in added_tokens_decoder of \
             tokenizer_config.json",
            shorten(&unordered.join(", "))
        );
        return Err(place.wrong(place.vocabulary, reason));
    }
    for token in &settings.more_special {
        if !is_known(&tokens, &token.content) {
            tokens.push(token.clone());
        }
    }
    tokenizer.add_tokens(tokens).map_err(failed)?;
    for (id, (token, path)) in &settings.added {
        let found = tokenizer.token_to_id(&token.content);
        if found != Some(*id) {
            let found = found.map_or("none".to_owned(), |id| id.to_string());
            return Err(place.wrong(
                path,
                format!(
                    "{:?} has the id {id}, but transformers gives it {found}: ids must go on where \
                     the vocabulary ends",
                    shorten(&token.content)
                ),
            ));
        }
    }
    tokenizer.set_encode_special_tokens(settings.splits_special);
    let ids = tokenizer.get_vocab(true).into_iter();
    let ids = ids.filter(|(token, _)| !without_row.contains(token)).map(|(_, id)| id);
    let vocab_size = ids.max().map_or(0, |id| id as usize + 1);
    if vocab_size == 0 || i32::try_from(vocab_size).is_err() {
        return Err(place.unusable(format!("it has a vocabulary of {vocab_size} tokens")));
    }
    let saved = tokenizer.get_padding().map(|padding| padding.pad_id);
    if let Some(id) = saved.filter(|id| *id as usize >= vocab_size) {
        let reason = format!("padding has the id {id}, but ids are below {vocab_size}");
        return Err(place.unusable(reason));
    }
    let padding = settings.special.iter().find(|(name, _)| name == "pad_token");
    let padding = padding.map(|(_, token)| &*token.content).into_iter().chain(PADDING);
    let ids = padding.filter_map(|name| tokenizer.token_to_id(name));
    let pad_id = saved.into_iter().chain(ids).find(|id| (*id as usize) < vocab_size);
    let has_segments = match settings.class {
        Class::Bert { has_segments } => settings.has_segments.unwrap_or(has_segments),
        Class::Whole => settings.has_segments.unwrap_or(true),
    };
    let is_whole = settings.class == Class::Whole;
    let usual_name = if is_whole { "PreTrainedTokenizerFast" } else { "BertTokenizer" };
    let class = TokenizerClass {
        name: (!settings.is_named_in_config).then_some(usual_name),
        has_segments: (is_whole && settings.has_segments.is_none()).then_some(has_segments),
    };
    let is_doubtful = is_whole
        && settings.is_named
        && settings.has_segments.is_none()
        && settings.model_type.as_deref() != Some("distilbert");
    let about_pairs = is_doubtful.then(|| {
        format!(
            "{}: the second text of a pair has the segment 1, as in transformers up to 4; 5 gives \
             the model no segments unless model_input_names of tokenizer_config.json has \
             \"token_type_ids\"",
            place.vocabulary.display()
        )
    });
    Ok(FolderTokenizer {
        tokenizer,
        vocabulary: place.vocabulary.to_owned(),
        vocab_size,
        pad_id: pad_id.unwrap_or_default(),
        has_segments,
        cuts_start: settings.cuts_start.unwrap_or_default(),
        model_max_length: settings.model_max_length,
        class,
        about_pairs,
        warnings: settings.warnings,
    })
}
