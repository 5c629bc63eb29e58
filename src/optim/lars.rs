//! Layer-wise adaptive rates of LARS.

use hlo::{LeafSpec, Tensor, Tree};

use super::norm::{param_norm, ratio};
use super::{Context, Decayed, InvalidPattern, Mask, Transformation, of_rows_for};

/// Adds the weight decay and scales each parameter's update to a fraction of the parameter's norm.
///
/// ```text
/// u = (g + decay w) * coefficient |w| / (|g| + decay |w|)      parameters in `adapted`
/// u = g + decay w                                              all others
/// ```
///
/// You, Gitman and Ginsburg, "Large batch training of convolutional networks" (2017), algorithm 1.
///
/// `decayed` says which parameters are decayed. Where a norm is 0, the scale is 1.
///
/// The denominator is the paper's sum of norms, which published recipes were tuned with; optax
/// divides by the norm of the sum, `|g + decay w|`. Without decay the two are the same.
///
/// ```
/// use hlo::{DType, LeafSpec, Literal, Mesh, Tree, interpret, trace};
/// use lockstep::optim::{Context, Mask, Transformation, scale_by_lars};
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     let tree = |values: [f32; 2]| {
///         let leaf = t.constant(Literal::from_slice(&[1, 2], &values));
///         Tree::from_iter([("w".to_owned(), leaf)])
///     };
///     let context = Context {
///         params: tree([6.0, 8.0]),
///         specs: tree([6.0, 8.0]).map(|_, w| LeafSpec::replicated(w.dtype(), &w.shape())),
///         num_updates: t.scalar(DType::U32, 0.0),
///         learning_rate: t.scalar(DType::F32, 1.0),
///     };
///     let link = scale_by_lars(0.001, 0.0, Mask::Matrices.into(), Mask::Matrices);
///     let updates = link.update(tree([0.3, 0.4]), &mut Tree::new(), &context);
///     t.output("u", updates["w"]);
/// })?;
/// // The gradient's direction, with a thousandth of the parameter's norm of 10.
/// let u = interpret(&graph, &[]).unwrap()[0][0].to_f64();
/// assert!((u[0] - 0.006).abs() < 1e-8 && (u[1] - 0.008).abs() < 1e-8);
/// # Ok::<(), hlo::Error>(())
/// ```
pub fn scale_by_lars(
    coefficient: f64,
    decay: f64,
    decayed: Decayed,
    adapted: Mask,
) -> impl Transformation {
    Lars { coefficient, decay, decayed, adapted }
}

struct Lars {
    coefficient: f64,
    decay: f64,
    decayed: Decayed,
    adapted: Mask,
}

impl Transformation for Lars {
    fn check(&self, params: &Tree<LeafSpec>) -> Result<(), InvalidPattern> {
        self.decayed.check(params)?;
        self.adapted.check(params)
    }

    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        _state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>> {
        updates.map(|path, gradient| {
            let (Some(param), Some(spec)) = (context.params.get(path), context.specs.get(path))
            else {
                return *gradient;
            };
            let decays = self.decayed.of_leaf(path, spec, self.decay);
            let plus_decay =
                |sum: Tensor<'g>, of: Tensor<'g>| decays.times(of).map_or(sum, |decay| sum + decay);
            let update = plus_decay(*gradient, *param);
            let scaled = || {
                let [param_norm, gradient_norm] = [*param, *gradient].map(|x| param_norm(x, spec));
                // A zero gradient is not scaled: decay alone gives no direction to trust.
                let by = plus_decay(gradient_norm, param_norm) / self.coefficient;
                let by = gradient_norm.greater(0.0).select(by, gradient_norm);
                update * of_rows_for(ratio(param_norm, by), update)
            };
            self.adapted.of_leaf(path, spec).choose(scaled, update)
        })
    }
}
