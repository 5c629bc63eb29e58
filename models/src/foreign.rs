//! Parameter files of other programs: one table per format maps names and layouts.
//!
//! In a table `*` is a number, the same on both sides, and `+` is one more than ours. Belongs to the trace
//! phase: nothing here reads a file.
//!
//! ```
//! use models::{ForeignFormat, Layout};
//!
//! let format = ForeignFormat::recognize(["transformer.wte.weight"]).unwrap();
//! let (name, layout) = format.tensor("blocks.3.attn.qkv.weight").unwrap();
//! assert_eq!((&*name, layout), ("h.3.attn.c_attn.weight", Layout::Transposed));
//! ```

/// The order of a tensor's dims in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The same as ours.
    Same,
    /// A matrix whose rows are our columns: `[in, out]`.
    Transposed,
}

/// The names that another program gives to the parameters of one of our models.
#[derive(Debug)]
pub struct ForeignFormat {
    /// Its name in messages, with the article.
    pub name: &'static str,
    /// A prefix that all names may have.
    prefix: &'static str,
    /// Our path, their name.
    rows: &'static [(&'static str, &'static str, Layout)],
    /// Tensors in a file that are not parameters: masks, counters.
    ignored: &'static [&'static str],
    /// An optional tensor, and the one that it must be equal to.
    pub tied: Option<(&'static str, &'static str)>,
}

use Layout::{Same, Transposed};

/// `GPT2LMHeadModel` and `GPT2Model` of Hugging Face's transformers: its `Conv1D` multiplies from the right.
static GPT2: ForeignFormat = ForeignFormat {
    name: "a Hugging Face GPT-2",
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
    ignored: &["h.*.attn.bias", "h.*.attn.masked_bias"],
    tied: Some(("lm_head.weight", "wte.weight")),
};

/// The ResNets of torchvision.
static TORCHVISION_RESNET: ForeignFormat = ForeignFormat {
    name: "a torchvision ResNet",
    prefix: "",
    rows: &[
        ("stem.conv.weight", "conv1.weight", Same),
        ("stem.norm.weight", "bn1.weight", Same),
        ("stem.norm.bias", "bn1.bias", Same),
        ("stem.norm.mean", "bn1.running_mean", Same),
        ("stem.norm.variance", "bn1.running_var", Same),
        ("stages.*.blocks.*.conv*.weight", "layer+.*.conv*.weight", Same),
        ("stages.*.blocks.*.norm*.weight", "layer+.*.bn*.weight", Same),
        ("stages.*.blocks.*.norm*.bias", "layer+.*.bn*.bias", Same),
        ("stages.*.blocks.*.norm*.mean", "layer+.*.bn*.running_mean", Same),
        ("stages.*.blocks.*.norm*.variance", "layer+.*.bn*.running_var", Same),
        ("stages.*.blocks.*.shortcut.conv.weight", "layer+.*.downsample.0.weight", Same),
        ("stages.*.blocks.*.shortcut.norm.weight", "layer+.*.downsample.1.weight", Same),
        ("stages.*.blocks.*.shortcut.norm.bias", "layer+.*.downsample.1.bias", Same),
        ("stages.*.blocks.*.shortcut.norm.mean", "layer+.*.downsample.1.running_mean", Same),
        ("stages.*.blocks.*.shortcut.norm.variance", "layer+.*.downsample.1.running_var", Same),
        ("head.weight", "fc.weight", Same),
        ("head.bias", "fc.bias", Same),
    ],
    ignored: &[
        "bn1.num_batches_tracked",
        "layer*.*.bn*.num_batches_tracked",
        "layer*.*.downsample.1.num_batches_tracked",
    ],
    tied: None,
};

impl ForeignFormat {
    /// All formats.
    pub const ALL: [&'static ForeignFormat; 2] = [&GPT2, &TORCHVISION_RESNET];

    /// The format that one of these names belongs to.
    pub fn recognize<'a>(
        names: impl IntoIterator<Item = &'a str>,
    ) -> Option<&'static ForeignFormat> {
        let of = |name: &str| Self::ALL.into_iter().find(|format| format.has_parameter(name));
        names.into_iter().find_map(of)
    }

    /// Name, without the prefix, and layout of our parameter `path`.
    pub fn tensor(&self, path: &str) -> Option<(String, Layout)> {
        self.rows
            .iter()
            .find_map(|(ours, theirs, layout)| Some((fill(theirs, &numbers(ours, path)?), *layout)))
    }

    /// A name in a file without the prefix.
    pub fn without_prefix<'a>(&self, name: &'a str) -> &'a str {
        name.strip_prefix(self.prefix).unwrap_or(name)
    }

    /// `true` if the tensor is not a parameter.
    pub fn is_ignored(&self, name: &str) -> bool {
        let name = self.without_prefix(name);
        self.ignored.iter().any(|pattern| numbers(pattern, name).is_some())
    }

    fn has_parameter(&self, name: &str) -> bool {
        let name = self.without_prefix(name);
        let is = |theirs: &str| numbers(&theirs.replace('+', "*"), name).is_some();
        self.rows.iter().any(|(_, theirs, _)| is(theirs))
    }
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
            let mut names: Vec<_> = format.rows.iter().map(|(_, theirs, _)| *theirs).collect();
            assert!(format.rows.iter().all(|(ours, theirs, _)| count(ours) == count(theirs)));
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), format.rows.len());
        }
    }

    #[test]
    fn numbers_are_read_and_written() {
        let name = |path| TORCHVISION_RESNET.tensor(path).map(|(name, _)| name);
        let expected = Some("layer3.10.bn2.running_var".to_owned());
        assert_eq!(name("stages.2.blocks.10.norm2.variance"), expected);
        assert_eq!(name("stages.2.blocks..norm2.variance"), None);
        assert_eq!(name("stages.2.blocks.10.norm2.variances"), None);
        assert!(TORCHVISION_RESNET.is_ignored("layer1.0.downsample.1.num_batches_tracked"));
        assert!(GPT2.is_ignored("transformer.h.11.attn.bias"));
        assert!(!GPT2.is_ignored("h.11.attn.c_attn.bias"));
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
