//! `m = mu m + u`, result `m` (Nesterov: `u + mu m`)

use hlo::{LeafSpec, Tensor, Tree};

use super::{Context, Transformation, like_params};

/// Heavy-ball momentum without dampening, as in PyTorch; state `momentum.PATH`, none if `mu` is 0.
/// Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum in
/// deep learning" (2013).
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
