//! Adam's scaling of the updates.

use hlo::{LeafSpec, Tensor, Tree};

use super::{Context, Transformation, like_params, one_minus_power, scalar_for};

/// Divides the mean of the updates by the root of the mean of their squares.
///
/// ```text
/// m = beta1 m + (1 - beta1) u
/// v = beta2 v + (1 - beta2) u^2
/// u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)      t = 1, 2, .. counts updates
/// ```
///
/// Kingma and Ba, "Adam: a method for stochastic optimization" (2015), algorithm 1.
///
/// The state is `first_moment.PATH` (m) and `second_moment.PATH` (v). As in PyTorch and optax,
/// epsilon is added after the bias correction.
///
/// ```
/// use hlo::{DType, LeafSpec, Tree};
/// use lockstep::optim::{Transformation, scale_by_adam};
///
/// let params = Tree::from_iter([("w".to_owned(), LeafSpec::replicated(DType::F32, &[3]))]);
/// let state = scale_by_adam(0.9, 0.999, 1e-8).init(&params);
/// assert_eq!(state.paths().collect::<Vec<_>>(), ["first_moment.w", "second_moment.w"]);
/// ```
pub fn scale_by_adam(beta1: f64, beta2: f64, epsilon: f64) -> impl Transformation {
    Adam { beta1, beta2, epsilon }
}

struct Adam {
    beta1: f64,
    beta2: f64,
    epsilon: f64,
}

impl Transformation for Adam {
    fn init(&self, params: &Tree<LeafSpec>) -> Tree<LeafSpec> {
        let mut state = like_params("first_moment", params);
        state.extend(like_params("second_moment", params));
        state
    }

    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>> {
        updates.map(|path, update| {
            let mut decayed = |name: &str, beta: f64, value: Tensor<'g>| {
                let average = state.get_mut(&format!("{name}.{path}"))?;
                *average = *average * beta + value * (1.0 - beta);
                let t = scalar_for(context.num_updates, *update) + 1.0;
                Some(*average / one_minus_power(beta, t))
            };
            let first = decayed("first_moment", self.beta1, *update);
            let second = decayed("second_moment", self.beta2, *update * *update);
            match (first, second) {
                (Some(first), Some(second)) => first / (second.sqrt() + self.epsilon),
                _ => {
                    update.reject("adam", format!("there is no state for `{path}`"));
                    *update
                }
            }
        })
    }
}
