//! Momentum.

use hlo::{LeafSpec, Tensor, Tree};

use super::{Context, Transformation, like_params};

/// Adds up the updates with weights that decay by `mu` a step.
///
/// ```text
/// m = mu m + u
/// u = m             heavy ball
/// u = u + mu m      Nesterov
/// ```
///
/// Polyak, "Some methods of speeding up the convergence of iteration methods" (1964); Sutskever,
/// Martens, Dahl and Hinton, "On the importance of initialization and momentum in deep learning"
/// (2013).
///
/// The state is `momentum.PATH` (m), or nothing if `mu` is 0. There is no dampening, as is the
/// default in PyTorch.
///
/// ```
/// use hlo::{DType, LeafSpec, Tree};
/// use lockstep::optim::{Transformation, momentum};
///
/// let params = Tree::from_iter([("w".to_owned(), LeafSpec::replicated(DType::F32, &[3]))]);
/// assert_eq!(momentum(0.9, false).init(&params).paths().collect::<Vec<_>>(), ["momentum.w"]);
/// assert!(momentum(0.0, false).init(&params).is_empty());
/// ```
pub fn momentum(mu: f64, nesterov: bool) -> impl Transformation {
    Momentum { mu, nesterov }
}

struct Momentum {
    mu: f64,
    nesterov: bool,
}

impl Transformation for Momentum {
    fn init(&self, params: &Tree<LeafSpec>) -> Tree<LeafSpec> {
        if self.mu == 0.0 { Tree::new() } else { like_params("momentum", params) }
    }

    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        state: &mut Tree<Tensor<'g>>,
        _context: &Context<'g>,
    ) -> Tree<Tensor<'g>> {
        updates.map(|path, update| match state.get_mut(&format!("momentum.{path}")) {
            Some(m) => {
                *m = *m * self.mu + *update;
                if self.nesterov { *update + *m * self.mu } else { *m }
            }
            None => *update,
        })
    }
}
