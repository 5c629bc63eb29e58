//! Parameter files of other programs: one table per format maps names and layouts, for reading and
//! for writing.
//!
//! In a table `*` is a number, the same on both sides, and `+` is one more than ours. Belongs to
//! the trace phase: nothing here reads or writes a file.
//!
//! ```
//! use models::{ForeignFormat, Layout};
//!
//! let format = ForeignFormat::recognize(["transformer.wte.weight"]).unwrap();
//! let tensor = format.tensor("blocks.3.attn.out.weight").unwrap();
//! assert_eq!((&*tensor.name, tensor.layout), ("h.3.attn.c_proj.weight", Layout::Transposed));
//! ```

mod encoder;
mod gpt2;
mod torchvision;

use std::borrow::Cow;

use hlo::Fused;
use serde::Serialize;

use crate::encoder::{Encoder, EncoderFamily};
use crate::gpt::Gpt;
use encoder::{BERT, DISTILBERT, EncoderFields};
use gpt2::{GPT2, Gpt2Config};
use torchvision::TORCHVISION_RESNET;

/// The order of a tensor's dims in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The same as ours.
    Same,
    /// A matrix with our columns as rows: `[in, out]`.
    Transposed,
}

/// Where the values of one of our parameters stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignTensor {
    /// The name of the tensor.
    pub name: String,
    /// The order of its dims.
    pub layout: Layout,
    /// The part of the tensor that is our parameter, if it holds several.
    pub fused: Option<Fused>,
}

/// A Python library with models that compute the same as ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Hugging Face's transformers.
    Transformers,
    /// torchvision.
    Torchvision,
}

/// The names that another program gives to the parameters of one of our models.
#[derive(Debug)]
pub struct ForeignFormat {
    /// Its name in messages, with the article.
    pub name: &'static str,
    /// The library with models of these names.
    pub library: Library,
    /// A prefix that all names may have. The library writes it.
    prefix: &'static str,
    /// Our path, their name.
    rows: &'static [(&'static str, &'static str, Layout)],
    /// The same for heads on top of the model; their names have no prefix. A file may lack them, or
    /// have others.
    heads: &'static [(&'static str, &'static str, Layout)],
    /// Paths of ours in `rows` that a file may lack or have too many of, as if they were in
    /// `heads`.
    optional: &'static [&'static str],
    /// Tensors in a file that are not parameters: masks, counters.
    ignored: &'static [&'static str],
    /// Tensors that have two names; a file may have either or both.
    pub tied: &'static [Tied],
}

/// A tensor that has a second name.
#[derive(Debug)]
pub struct Tied {
    /// Its second name.
    pub copy: &'static str,
    /// The name that it has in the table. If a file has both, the values must be equal.
    pub of: &'static str,
    /// Our parameter that a model has if it uses the second name; `None` if every model does.
    used_with: Option<&'static str>,
}

/// A model of another library that computes the same as one of ours from the same parameters.
#[derive(Clone, Debug)]
pub struct Counterpart {
    /// The names of its parameters.
    pub format: &'static ForeignFormat,
    /// Its `config.json`, if it is a model of transformers.
    pub config: Option<TransformersConfig>,
}

/// `config.json`: the fields that describe one of our models. The others have defaults that fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum TransformersConfig {
    /// GPT-2.
    Gpt2(Gpt2Config),
    /// BERT and DistilBERT.
    Encoder(EncoderFields),
}

impl TransformersConfig {
    /// The keys that decide what is computed: a file for the same model has the same values, or
    /// leaves them out. Rates of dropout and ids of tokens are not among them.
    pub fn computed_with(&self) -> &'static [&'static str] {
        match self {
            Self::Gpt2(_) => &Gpt2Config::COMPUTED_WITH,
            Self::Encoder(fields) => fields.computed_with(),
        }
    }

    /// Other values of a key that mean the same.
    pub fn synonyms(&self, key: &str) -> &'static [&'static str] {
        match self {
            Self::Gpt2(_) if key == "activation_function" => &Gpt2Config::SAME_ACTIVATION,
            Self::Encoder(_) if key == "hidden_act" || key == "activation" => {
                &EncoderFields::SAME_ACTIVATION
            }
            _ => &[],
        }
    }

    /// The token that ends a text, if it is known: what `generation_config.json` is about.
    pub fn eos_token_id(&self) -> Option<usize> {
        match self {
            Self::Gpt2(config) => config.eos_token_id(),
            Self::Encoder(_) => None,
        }
    }
}

impl Counterpart {
    pub(crate) fn gpt2(model: &Gpt) -> Self {
        Self { format: &GPT2, config: Some(TransformersConfig::Gpt2(Gpt2Config::of(model))) }
    }

    pub(crate) fn encoder(model: &Encoder) -> Self {
        let format = match model.family {
            EncoderFamily::Bert => &BERT,
            EncoderFamily::DistilBert => &DISTILBERT,
        };
        Self { format, config: Some(TransformersConfig::Encoder(EncoderFields::of(model))) }
    }

    pub(crate) fn torchvision_resnet() -> Self {
        Self { format: &TORCHVISION_RESNET, config: None }
    }
}

impl ForeignFormat {
    /// All formats.
    pub const ALL: [&'static ForeignFormat; 4] = [&GPT2, &BERT, &DISTILBERT, &TORCHVISION_RESNET];

    /// The format that most of these names belong to, if any does.
    pub fn recognize<'a>(
        names: impl IntoIterator<Item = &'a str>,
    ) -> Option<&'static ForeignFormat> {
        let names: Vec<_> = names.into_iter().collect();
        let count = |format: &&'static ForeignFormat| {
            names.iter().filter(|name| format.has_parameter(name)).count()
        };
        Self::ALL.into_iter().filter(|format| count(format) > 0).max_by_key(count)
    }

    /// The tensor with our parameter `path`, under its name without the prefix.
    pub fn tensor(&self, path: &str) -> Option<ForeignTensor> {
        self.find(path, "")
    }

    /// The tensor with our parameter `path`, under the name that the library itself writes.
    pub fn full_name(&self, path: &str) -> Option<ForeignTensor> {
        self.find(path, self.prefix)
    }

    fn find(&self, path: &str, prefix: &str) -> Option<ForeignTensor> {
        let whole = |path: &str| {
            let prefixed = |(name, layout)| (format!("{prefix}{name}"), layout);
            find(self.rows, path).map(prefixed).or_else(|| find(self.heads, path))
        };
        if let Some((name, layout)) = whole(path) {
            return Some(ForeignTensor { name, layout, fused: None });
        }
        let fused = Fused::of(path)?;
        let (name, layout) = whole(&fused.path)?;
        Some(ForeignTensor { name, layout, fused: Some(fused) })
    }

    /// A name in a file without the prefix, as [`Self::tensor`] has it. Files of early versions
    /// have `gamma` and `beta`.
    pub fn without_prefix<'a>(&self, name: &'a str) -> Cow<'a, str> {
        let name = name.strip_prefix(self.prefix).unwrap_or(name);
        let early = [("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")];
        let renamed = early.into_iter().find_map(|(early, now)| {
            Some(Cow::Owned(format!("{}{now}", name.strip_suffix(early)?)))
        });
        renamed.unwrap_or(Cow::Borrowed(name))
    }

    /// `true` if our parameter `path` stands on top of the model, so that a file may lack it: one
    /// that was trained for something else.
    pub fn is_of_head(&self, path: &str) -> bool {
        self.optional.contains(&path) || find(self.heads, path).is_some()
    }

    /// `true` if a tensor of a file belongs to what stands on top of another model than the one
    /// with `ours`. Names of the model itself have the prefix in a file that `has_prefixes`, and
    /// names of heads have none.
    pub fn is_of_other_head(&self, name: &str, ours: &[&str], has_prefixes: bool) -> bool {
        let is_bare = has_prefixes && !name.starts_with(self.prefix);
        let name = self.without_prefix(name);
        if let Some(tied) = self.tied.iter().find(|tied| tied.copy == name) {
            return tied.used_with.is_some_and(|parameter| !ours.contains(&parameter));
        }
        let optional = self.rows.iter().filter(|(path, _, _)| self.optional.contains(path));
        let mut heads = optional.chain(self.heads);
        let is_ours = |path: &&str| self.tensor(path).is_some_and(|theirs| theirs.name == name);
        if ours.iter().any(is_ours) {
            return false;
        }
        let is_unknown = || !self.has_parameter(&name) && !self.is_ignored(&name);
        heads.any(|(_, theirs, _)| numbers(theirs, &name).is_some()) || is_bare && is_unknown()
    }

    /// `true` if names begin with the prefix that the library writes.
    pub fn has_prefixes<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> bool {
        !self.prefix.is_empty() && names.into_iter().any(|name| name.starts_with(self.prefix))
    }

    /// `true` if the tensor is not a parameter.
    pub fn is_ignored(&self, name: &str) -> bool {
        let name = self.without_prefix(name);
        self.ignored.iter().any(|pattern| numbers(pattern, &name).is_some())
    }

    /// `true` if a name is one of the model's own parameters, not of a head.
    pub fn has_parameter(&self, name: &str) -> bool {
        let name = self.without_prefix(name);
        let is = |theirs: &str| numbers(&theirs.replace('+', "*"), &name).is_some();
        self.rows.iter().any(|(_, theirs, _)| is(theirs))
    }
}

/// Name and layout of our parameter `path` by a table.
fn find(rows: &[(&'static str, &'static str, Layout)], path: &str) -> Option<(String, Layout)> {
    let of = |(ours, theirs, layout): &(&str, &str, Layout)| {
        Some((fill(theirs, &numbers(ours, path)?), *layout))
    };
    rows.iter().find_map(of)
}

/// The numbers in `name` in place of each `*` of the pattern; `None` if it does not match.
fn numbers(pattern: &str, name: &str) -> Option<Vec<u32>> {
    let mut pieces = pattern.split('*');
    let mut rest = name.strip_prefix(pieces.next()?)?;
    let mut numbers = vec![];
    for piece in pieces {
        let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let digits = rest.strip_suffix(after)?;
        numbers.push(digits.parse().ok()?);
        rest = after.strip_prefix(piece)?;
    }
    rest.is_empty().then_some(numbers)
}

fn fill(pattern: &str, numbers: &[u32]) -> String {
    let mut numbers = numbers.iter();
    let mut next = |more: u32| numbers.next().map_or(String::new(), |n| (n + more).to_string());
    let piece = |c: char| match c {
        '*' => next(0),
        '+' => next(1),
        c => c.to_string(),
    };
    pattern.chars().map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_a_row_have_as_many_numbers_and_no_name_stands_twice() {
        for format in ForeignFormat::ALL {
            let count = |pattern: &str| pattern.matches(['*', '+']).count();
            let rows = [format.rows, format.heads].concat();
            let mut names: Vec<_> = rows.iter().map(|(_, theirs, _)| *theirs).collect();
            assert!(rows.iter().all(|(ours, theirs, _)| count(ours) == count(theirs)));
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), rows.len());
        }
    }

    #[test]
    fn numbers_are_read_and_written() {
        let name = |path| TORCHVISION_RESNET.tensor(path).map(|tensor| tensor.name);
        let expected = Some("layer3.10.bn2.running_var".to_owned());
        assert_eq!(name("stages.2.blocks.10.norm2.variance"), expected);
        assert_eq!(name("stages.2.blocks..norm2.variance"), None);
        assert_eq!(name("stages.2.blocks.10.norm2.variances"), None);
        assert!(TORCHVISION_RESNET.is_ignored("layer1.0.downsample.1.num_batches_tracked"));
        assert!(GPT2.is_ignored("transformer.h.11.attn.bias"));
        assert!(!GPT2.is_ignored("h.11.attn.c_attn.bias"));
    }

    #[test]
    fn what_is_written_is_recognized_and_read_as_the_same_tensor() {
        for (format, path) in [
            (&GPT2, "blocks.11.mlp.down.weight"),
            (&GPT2, "blocks.11.attn.value.bias"),
            (&BERT, "blocks.3.attn.query.weight"),
            (&DISTILBERT, "blocks.3.norm2.bias"),
            (&TORCHVISION_RESNET, "stages.2.blocks.1.shortcut.norm.mean"),
        ] {
            let written = format.full_name(path).unwrap();
            let read = ForeignFormat::recognize([&*written.name]).unwrap();
            assert_eq!(read.name, format.name);
            let name = read.without_prefix(&written.name).into_owned();
            assert_eq!(read.tensor(path), Some(ForeignTensor { name, ..written }));
        }
        assert_eq!(GPT2.full_name("norm.bias").unwrap().name, "transformer.ln_f.bias");
        assert_eq!(GPT2.full_name("head.weight"), None);
        assert_eq!(BERT.full_name("pooler.bias").unwrap().name, "bert.pooler.dense.bias");
        assert_eq!(BERT.full_name("classifier.bias").unwrap().name, "classifier.bias");
        let early = "bert.encoder.layer.2.output.LayerNorm.gamma";
        assert_eq!(BERT.without_prefix(early), "encoder.layer.2.output.LayerNorm.weight");
    }

    #[test]
    fn formats_are_recognized_by_their_names() {
        let name =
            |names: &[&str]| ForeignFormat::recognize(names.to_vec()).map(|format| format.name);
        assert_eq!(name(&["other", "wte.weight"]), Some(GPT2.name));
        assert_eq!(name(&["layer1.0.conv1.weight"]), Some(TORCHVISION_RESNET.name));
        assert_eq!(name(&["embed.weight", "layer1.conv1.weight"]), None);
    }
}
