//! Which parameters a link acts on.

use std::borrow::Cow;

use hlo::{LeafSpec, Literal, Tensor, Tree, row_paths, rows};

use super::{Context, of_stage};
use crate::config::Patterns;

/// A subset of the parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mask {
    /// Parameters of rank 2 or more, which excludes biases and the scales of normalization layers.
    /// Decaying these hurts (He et al., "Bag of tricks for image classification", 2019, section
    /// 3.1), and their norms are too small for adaptive rates (You et al., 2017).
    #[default]
    Matrices,
    /// All parameters except those with a path that matches.
    Except {
        /// The configuration key that holds the patterns, for messages.
        key: &'static str,
        /// Patterns of the excluded paths.
        patterns: Patterns,
    },
}

impl Mask {
    /// [`Self::Except`] the paths that match `patterns`; [`Self::Matrices`] for `None`.
    pub fn new(key: &'static str, patterns: Option<&Patterns>) -> Self {
        match patterns {
            Some(patterns) => Self::Except { key, patterns: patterns.clone() },
            None => Self::Matrices,
        }
    }

    /// `true` if the mask includes the parameter with this path and rank.
    ///
    /// ```
    /// use lockstep::{config::Patterns, optim::Mask};
    /// assert!(!Mask::Matrices.includes("head.bias", 1));
    /// let all_but_head = Mask::new("key", Some(&Patterns::new(["head.*"])?));
    /// assert!(all_but_head.includes("norm.bias", 1) && !all_but_head.includes("head.weight", 2));
    /// # Ok::<(), glob::PatternError>(())
    /// ```
    pub fn includes(&self, path: &str, rank: usize) -> bool {
        match self {
            Self::Matrices => rank >= 2,
            Self::Except { patterns, .. } => !patterns.matches(path),
        }
    }

    /// `true` if the mask includes all parameters that a leaf holds.
    pub fn includes_all(&self, path: &str, spec: &LeafSpec) -> bool {
        matches!(self.of_leaf(path, spec), Included::All)
    }

    /// Which of the parameters that a leaf holds the mask includes.
    pub(super) fn of_leaf(&self, path: &str, spec: &LeafSpec) -> Included {
        let rank = spec.dims.len() - spec.num_stacked;
        let rows: Vec<_> =
            row_paths(path, spec).iter().map(|path| self.includes(path, rank)).collect();
        match rows.iter().filter(|is_included| **is_included).count() {
            0 => Included::None,
            all if all == rows.len() => Included::All,
            _ => Included::Rows(Literal::pred(spec.stack_sizes(), &rows)),
        }
    }

    /// Replaces the update of each included parameter by `f(update, parameter, leaf)`, where `f`
    /// acts on each row of a stacked leaf separately.
    pub(super) fn map<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        context: &Context<'g>,
        f: impl Fn(Tensor<'g>, Tensor<'g>, &LeafSpec) -> Tensor<'g>,
    ) -> Tree<Tensor<'g>> {
        updates.map(|path, update| match (context.params.get(path), context.specs.get(path)) {
            (Some(param), Some(spec)) => {
                self.of_leaf(path, spec).choose(|| f(*update, *param, spec), *update)
            }
            _ => *update,
        })
    }

    /// Checks that every pattern matches a parameter, that is, a row of one of the leaves. One that
    /// matches none is probably misspelled, and parameters meant to be excluded would be decayed
    /// silently.
    ///
    /// # Errors
    /// The pattern, and the parameters with the most similar paths.
    pub fn check(&self, params: &Tree<LeafSpec>) -> Result<(), InvalidPattern> {
        let Self::Except { key, patterns } = self else { return Ok(()) };
        check_matches(key, patterns, params)
    }
}

/// Checks that every pattern matches a parameter.
pub(super) fn check_matches(
    key: &'static str,
    patterns: &Patterns,
    params: &Tree<LeafSpec>,
) -> Result<(), InvalidPattern> {
    let params = rows(params);
    let paths: Vec<_> = params.paths().collect();
    match patterns.unmatched(&paths) {
        Some(pattern) => Err(InvalidPattern::Unmatched {
            key,
            pattern: pattern.to_owned(),
            nearest: nearest(pattern, &paths),
        }),
        None => Ok(()),
    }
}

/// Which parameters of a leaf a [`Mask`] includes.
pub(super) enum Included {
    /// All of them.
    All,
    /// None of them.
    None,
    /// Some rows of a stacked leaf: `pred [stack sizes]`.
    Rows(Literal),
}

impl Included {
    /// `included()` for the parameters that are included, and `other` for the rest. Both have the
    /// dims of the leaf, or the stack sizes alone.
    pub fn choose<'g>(
        &self,
        included: impl FnOnce() -> Tensor<'g>,
        other: Tensor<'g>,
    ) -> Tensor<'g> {
        match self {
            Self::All => included(),
            Self::None => other,
            Self::Rows(rows) => {
                let included = included();
                let stacked: Vec<_> = (0..rows.dims().len()).collect();
                let rows = of_stage(other.tracer().constant(rows.clone()), other);
                let rows = rows.vary(other.varying());
                rows.broadcast_like(other, &stacked).select(included, other)
            }
        }
    }
}

/// Patterns that do not fit the model's parameters. Keys outside the section `optimizer` are named
/// in full.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// A pattern that matches no parameter.
    #[error(
        "{}: the pattern {pattern:?} matches no parameter; the nearest are {}",
        full_key(key), nearest.join(", ")
    )]
    Unmatched {
        /// The configuration key that holds it.
        key: &'static str,
        /// The pattern as given.
        pattern: String,
        /// The most similar parameter paths, best first.
        nearest: Vec<String>,
    },
    /// A parameter with two numbers.
    #[error(
        "optimizer.{key}: `{path}` matches {:?} and {:?}, which have different numbers; make one \
         of the patterns narrower",
        patterns[0], patterns[1]
    )]
    Ambiguous {
        /// The configuration key that holds them.
        key: &'static str,
        /// The parameter.
        path: String,
        /// The two patterns.
        patterns: [String; 2],
    },
    /// No parameter is left to train.
    #[error(
        "optimizer.freeze: its patterns match every parameter, so that nothing is trained; leave \
         some out"
    )]
    AllFrozen,
}

fn full_key(key: &str) -> Cow<'_, str> {
    if key.contains('.') { key.into() } else { format!("optimizer.{key}").into() }
}

/// The three paths that are spelled most like the pattern.
fn nearest(pattern: &str, paths: &[&str]) -> Vec<String> {
    let letters: String = pattern.chars().filter(|letter| !"*?[]!".contains(*letter)).collect();
    // A pattern is usually part of a path, so it is compared with substrings of its length.
    let similarity = |path: &str| {
        let lengths = letters.chars().count();
        let starts = path.char_indices().map(|(start, _)| &path[start..]);
        let parts = starts.map(|rest| rest.chars().take(lengths).collect::<String>());
        parts
            .map(|part| strsim::normalized_damerau_levenshtein(&letters, &part))
            .fold(0.0, f64::max)
    };
    let mut ranked: Vec<_> = paths.iter().map(|path| (similarity(path), *path)).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    ranked.into_iter().take(3).map(|(_, path)| format!("`{path}`")).collect()
}

#[cfg(test)]
mod tests {
    use hlo::DType;

    use super::*;

    #[test]
    fn a_pattern_without_a_match_names_the_nearest_parameters() {
        let paths = ["embed.weight", "blocks.0.norm1.weight", "blocks.0.norm1.bias", "head.bias"];
        let leaf = |path: &&str| ((*path).to_owned(), LeafSpec::replicated(DType::F32, &[2]));
        let params: Tree<_> = paths.iter().map(leaf).collect();
        let check = |patterns: &[&str]| {
            let patterns = Patterns::new(patterns.iter().copied()).unwrap();
            Mask::new("weight_decay_exclude", Some(&patterns)).check(&params)
        };
        assert_eq!(check(&["*.bias", "*.norm?.weight", "embed*"]), Ok(()));
        assert_eq!(check(&[]), Ok(()));
        let error = check(&["*.bias", "*.nrom1.*"]).unwrap_err().to_string();
        assert!(error.contains("\"*.nrom1.*\" matches no parameter"), "{error}");
        assert!(
            error.contains("nearest are `blocks.0.norm1.weight`, `blocks.0.norm1.bias`"),
            "{error}"
        );
        assert_eq!(Mask::Matrices.check(&Tree::new()), Ok(()));
    }
}
