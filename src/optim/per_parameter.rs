//! Numbers that differ between parameters: weight decays, and factors of the learning rate.

use hlo::{LeafSpec, Literal, Tensor, Tree, row_paths, rows};

use super::mask::{InvalidPattern, check_matches};
use super::{Context, Mask, Transformation, of_rows_for};
use crate::config::PatternNumbers;

/// Which parameters are decayed, and by how much: those of the mask by the decay of the update
/// rule, those that a pattern matches by its own.
///
/// ```
/// use lockstep::{config::PatternNumbers, optim::{Decayed, Mask}};
/// let own = PatternNumbers::new([("head.*", 0.5)])?;
/// let decayed = Decayed { mask: Mask::Matrices, own };
/// assert_eq!(decayed.decay_of("head.bias", 1, 0.1), 0.5);
/// assert_eq!(decayed.decay_of("embed.weight", 2, 0.1), 0.1);
/// assert_eq!(decayed.decay_of("embed.bias", 1, 0.1), 0.0);
/// # Ok::<(), glob::PatternError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decayed {
    /// The parameters with the rule's decay.
    pub mask: Mask,
    /// Decays that replace the rule's.
    pub own: PatternNumbers,
}

impl From<Mask> for Decayed {
    fn from(mask: Mask) -> Self {
        Self { mask, own: PatternNumbers::default() }
    }
}

impl Decayed {
    /// The decay of the parameter with this path and rank, where the update rule has `decay`.
    pub fn decay_of(&self, path: &str, rank: usize, decay: f64) -> f64 {
        match self.own.of(path) {
            Ok(Some(own)) => own,
            _ if self.mask.includes(path, rank) => decay,
            _ => 0.0,
        }
    }

    /// The decays of the parameters that a leaf holds.
    pub(super) fn of_leaf(&self, path: &str, spec: &LeafSpec, decay: f64) -> LeafNumbers {
        let rank = spec.dims.len() - spec.num_stacked;
        LeafNumbers::new(path, spec, |row| self.decay_of(row, rank, decay))
    }

    /// Checks the patterns.
    ///
    /// # Errors
    /// One that matches no parameter, or two that give a parameter different decays.
    pub(super) fn check(&self, params: &Tree<LeafSpec>) -> Result<(), InvalidPattern> {
        self.mask.check(params)?;
        check_numbers("weight_decays", &self.own, params)
    }
}

/// A number for each parameter that a leaf holds.
pub(super) enum LeafNumbers {
    /// The same for all of them.
    Same(f64),
    /// A number for each row of a stacked leaf: f64 `[stack sizes]`.
    Rows(Literal),
}

impl LeafNumbers {
    fn new(path: &str, spec: &LeafSpec, number: impl Fn(&str) -> f64) -> Self {
        let numbers: Vec<_> = row_paths(path, spec).iter().map(|row| number(row)).collect();
        match numbers[..] {
            [first, ref rest @ ..] if rest.iter().all(|number| *number == first) => {
                Self::Same(first)
            }
            _ => Self::Rows(Literal::from_slice(spec.stack_sizes(), &numbers)),
        }
    }

    /// `x` times the number of each parameter; `None` if all numbers are 0. `x` has the dims of the
    /// leaf, or the stack sizes alone.
    pub fn times<'g>(&self, x: Tensor<'g>) -> Option<Tensor<'g>> {
        match self {
            Self::Same(0.0) => None,
            Self::Same(number) => Some(x * *number),
            Self::Rows(numbers) => {
                let rounded = Literal::from_f64(x.dtype(), numbers.dims(), &numbers.to_f64());
                Some(x * of_rows_for(x.tracer().constant(rounded), x))
            }
        }
    }
}

/// Multiplies the updates of each parameter by a factor of its own.
///
/// ```text
/// u = factor * layer_decay^(number of layers above) * u
/// ```
///
/// Layer-wise decay: Clark, Luong, Le and Manning, "ELECTRA: pre-training text encoders as
/// discriminators rather than generators" (2020), appendix B.
///
/// `factors` gives the factor of each pattern of paths, which is 1 for all other parameters.
/// Parameters before the first block, such as embeddings, are layer 0; the blocks follow in order,
/// and no layer is above the parameters after the last block. The updates must contain the learning
/// rate, so this is the last link of an update rule.
///
/// ```
/// use lockstep::{config::PatternNumbers, optim::scale_rates};
/// use hlo::{DType, LeafSpec, Tree};
///
/// let leaf = |path: &str| (path.to_owned(), LeafSpec::replicated(DType::F32, &[3]));
/// let params = ["embed.w", "blocks.0.w", "blocks.1.w", "head.w"].map(leaf).into_iter().collect();
/// let link = scale_rates(PatternNumbers::new([("head.*", 10.0)])?, 0.5);
/// assert_eq!(link.factors(&params).values().collect::<Vec<_>>(), [&0.125, &0.25, &0.5, &10.0]);
/// # Ok::<(), glob::PatternError>(())
/// ```
pub fn scale_rates(factors: PatternNumbers, layer_decay: f64) -> RateFactors {
    RateFactors { factors, layer_decay }
}

/// See [`scale_rates`].
#[derive(Clone, Debug)]
pub struct RateFactors {
    factors: PatternNumbers,
    layer_decay: f64,
}

impl RateFactors {
    /// The factor of each parameter. Stacked leaves appear as their rows.
    pub fn factors(&self, params: &Tree<LeafSpec>) -> Tree<f64> {
        let rows = rows(params);
        let paths: Vec<_> = rows.paths().collect();
        // The blocks in order: one is what its path has up to its last number.
        let mut blocks: Vec<&str> = vec![];
        for block in paths.iter().filter_map(|path| block_of(path)) {
            if !blocks.contains(&block) {
                blocks.push(block);
            }
        }
        let first_block = paths.iter().position(|path| block_of(path).is_some());
        let num_layers_above = |index: usize, path: &str| match block_of(path) {
            Some(block) => {
                let place = blocks.iter().position(|other| *other == block).unwrap_or_default();
                blocks.len() - place
            }
            None if first_block.is_some_and(|first| index < first) => blocks.len() + 1,
            None => 0,
        };
        let factor = |(index, path): (usize, &&str)| {
            let own = self.factors.of(path).ok().flatten().unwrap_or(1.0);
            let above = i32::try_from(num_layers_above(index, path)).unwrap_or(i32::MAX);
            ((*path).to_owned(), own * self.layer_decay.powi(above))
        };
        paths.iter().enumerate().map(factor).collect()
    }
}

/// `blocks.3` of `blocks.3.attn.weight`.
fn block_of(path: &str) -> Option<&str> {
    let mut end = None;
    let mut start = 0;
    for part in path.split('.') {
        let after = start + part.len();
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            end = Some(after);
        }
        start = after + 1;
    }
    end.map(|end| &path[..end])
}

impl Transformation for RateFactors {
    fn check(&self, params: &Tree<LeafSpec>) -> Result<(), InvalidPattern> {
        check_numbers("lr_factors", &self.factors, params)
    }

    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        _state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>> {
        let factors = self.factors(&context.specs);
        updates.map(|path, update| {
            let Some(spec) = context.specs.get(path) else { return *update };
            let factor = |row: &str| factors.get(row).copied().unwrap_or(1.0);
            match LeafNumbers::new(path, spec, factor) {
                LeafNumbers::Same(1.0) => *update,
                numbers => numbers.times(*update).unwrap_or(*update),
            }
        })
    }
}

/// Checks that every pattern matches a parameter, and that none has two numbers.
fn check_numbers(
    key: &'static str,
    numbers: &PatternNumbers,
    params: &Tree<LeafSpec>,
) -> Result<(), InvalidPattern> {
    check_matches(key, &numbers.patterns(), params)?;
    for path in rows(params).paths() {
        if let Err(patterns) = numbers.of(path) {
            return Err(InvalidPattern::Ambiguous {
                key,
                path: path.to_owned(),
                patterns: patterns.map(str::to_owned),
            });
        }
    }
    Ok(())
}
