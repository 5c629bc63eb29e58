//! `mean = mean + (w - mean) (1 - decay) / (1 - decay^t)`

use hlo::{Tensor, TensorType, Tree};

use super::{Context, EMA, Transformation, beside, like_params, one_minus_power};

/// A running mean of the parameters behind each update t = 1, 2, ..; state `ema.PATH`. It changes no
/// update, and must be the last link. Polyak and Juditsky, "Acceleration of stochastic approximation by
/// averaging" (1992), with exponential weights.
///
/// The weights of the parameters behind updates 1 to t are those of `mean = decay mean + (1 - decay) w`,
/// divided by their sum as Adam's are: the initial parameters have none, so that early means are of use.
///
/// ```
/// use hlo::{DType, TensorType, Tree};
/// use lockstep::optim::{Transformation, average_params};
///
/// let params = Tree::from_iter([("w".to_owned(), TensorType::new(DType::F32, &[3]))]);
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
    fn init(&self, params: &Tree<TensorType>) -> Tree<TensorType> {
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
            let t = beside(context.num_updates, *update) + 1.0;
            let weight = (1.0 - self.decay) / one_minus_power(self.decay, t);
            *mean = *mean + (*param + *update - *mean) * weight;
            *update
        })
    }
}
