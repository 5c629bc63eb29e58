//! A running mean of the parameters.

use hlo::{LeafSpec, Tensor, Tree};

use super::{Context, EMA, Transformation, like_params, one_minus_power, scalar_for};

/// Keeps a running mean of the parameters after each update; the updates stay unchanged.
///
/// ```text
/// mean = mean + (w - mean) (1 - decay) / (1 - decay^t)      t = 1, 2, .. counts updates
/// ```
///
/// Polyak and Juditsky, "Acceleration of stochastic approximation by averaging" (1992), with
/// exponential weights.
///
/// The state is `ema.PATH`. This must be the last link, because `w` is the parameter plus the
/// update that the link receives. The weights are those of `mean = decay mean + (1 - decay) w` with
/// the bias correction of Adam: the initial parameters have no weight, so early means are useful.
///
/// ```
/// use hlo::{DType, LeafSpec, Tree};
/// use lockstep::optim::{Transformation, average_params};
///
/// let params = Tree::from_iter([("w".to_owned(), LeafSpec::replicated(DType::F32, &[3]))]);
/// let state = average_params(0.999).init(&params);
/// assert_eq!(state.paths().collect::<Vec<_>>(), ["ema.w"]);
/// ```
pub fn average_params(decay: f64) -> impl Transformation {
    Ema { decay }
}

struct Ema {
    decay: f64,
}

impl Transformation for Ema {
    fn init(&self, params: &Tree<LeafSpec>) -> Tree<LeafSpec> {
        like_params(EMA, params)
    }

    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>> {
        updates.map(|path, update| {
            let mean = state.get_mut(&format!("{EMA}.{path}"));
            let (Some(mean), Some(param)) = (mean, context.params.get(path)) else {
                update.reject("ema", format!("there is no state for `{path}`"));
                return *update;
            };
            let t = scalar_for(context.num_updates, *update) + 1.0;
            let weight = (1.0 - self.decay) / one_minus_power(self.decay, t);
            *mean = *mean + (*param + *update - *mean) * weight;
            *update
        })
    }
}
