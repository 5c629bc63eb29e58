//! Differentiable loops, and rematerialisation.

use super::body::{Carried, region};
use crate::region::{Region, Scan};
use crate::{Op, Tensor, Tracer};

impl Tracer {
    /// Runs `body(consts, carried, slices) -> (carried, ys)` `length` times, with slice `i` of each
    /// of `xs` `[length, ..]` in iteration `i`. Returns the last carried values, and the `ys` of
    /// all iterations stacked to `[length, ..]`. The body sees outer values only through its
    /// arguments, and must return at least one value.
    ///
    /// Its gradient is a scan in the opposite direction, for which the forward pass keeps the
    /// residuals of every iteration; with [`Self::remat`] in the body, only the carried values.
    ///
    /// ```
    /// use hlo::{DType, Literal, Mesh, TensorType, grad, interpret, trace};
    ///
    /// // y = x * w0 * w1 * w2
    /// let graph = trace(Mesh::SINGLE, |t| {
    ///     let x = t.input("x", TensorType::new(DType::F64, &[]));
    ///     let w = t.input("w", TensorType::new(DType::F64, &[3]));
    ///     let (y, _) = t.scan(3, &[], &[x], &[w], |_, x, w| (vec![x[0] * w[0]], vec![]));
    ///     t.output("gradient", grad(y[0], &[w])[0]);
    /// })?;
    /// let inputs = [vec![Literal::scalar(2.0)], vec![Literal::from_slice(&[3], &[3.0, 4.0, 5.0])]];
    /// assert_eq!(interpret(&graph, &inputs).unwrap()[0][0].to_f64(), [40.0, 30.0, 24.0]);
    /// # Ok::<(), hlo::Error>(())
    /// ```
    #[track_caller]
    pub fn scan<'g>(
        &'g self,
        length: usize,
        consts: &[Tensor<'g>],
        init: &[Tensor<'g>],
        xs: &[Tensor<'g>],
        body: impl for<'b> Fn(
            &[Tensor<'b>],
            &[Tensor<'b>],
            &[Tensor<'b>],
        ) -> (Vec<Tensor<'b>>, Vec<Tensor<'b>>),
    ) -> (Vec<Tensor<'g>>, Vec<Tensor<'g>>) {
        let location = std::panic::Location::caller();
        let (num_consts, num_carried) = (consts.len(), init.len());
        let num_ys = std::cell::Cell::new(0);
        let mut carried = Carried::new(init);
        let graph = loop {
            let operands = [consts, &carried.starts, xs].concat();
            let free = |tensors: &[Tensor<'g>]| -> Vec<_> {
                tensors.iter().map(Tensor::is_gradient_free).collect()
            };
            let is_free = [free(consts), carried.is_free.clone(), free(xs)].concat();
            // The body is traced even after this error, since it determines the number of results.
            if xs.iter().any(|x| x.shape().first() != Some(&length)) {
                let message = format!("the first dim of each of `xs` must be {length}");
                self.fail("scan", xs, message);
            }
            let (whole, cut) = operands.split_at(num_consts + num_carried);
            let slice = |x: &Tensor<'g>| x.ty().with_dims(x.shape().get(1..).unwrap_or_default());
            let types: Vec<_> = whole.iter().map(Tensor::ty).chain(cut.iter().map(slice)).collect();
            let traced = region(self, &types, &is_free, |inputs| {
                let (consts, rest) = inputs.split_at(num_consts);
                let (carried, slices) = rest.split_at(num_carried);
                let (mut next, ys) = body(consts, carried, slices);
                num_ys.set(ys.len());
                if next.len() != num_carried {
                    let message = format!(
                        "the body returns {} carried values, but {num_carried} are carried",
                        next.len()
                    );
                    self.at(location, || self.fail("scan", &operands, message));
                }
                next.extend(ys);
                next
            });
            let graph = match traced {
                Ok(graph) => graph,
                Err(error) => {
                    self.keep_first(error);
                    return (vec![self.poison(); num_carried], vec![self.poison(); num_ys.get()]);
                }
            };
            if !carried.follow(&graph) {
                break graph;
            }
        };
        let operands = [consts, &carried.starts, xs].concat();
        let body = Region::new(graph);
        let op = Op::Scan(Scan { body, length, num_consts, num_carried, reverse: false });
        let mut results = self.apply_variadic(op, &operands);
        results.resize(num_carried + num_ys.get(), self.poison());
        let ys = results.split_off(num_carried);
        (results, ys)
    }

    /// `body(x)`. Only `x` is kept for the backward pass, which recomputes the rest. This saves
    /// memory at the cost of time; values and gradients are bitwise the same.
    ///
    /// ```
    /// use hlo::{DType, Mesh, TensorType, grad, trace};
    ///
    /// let graph = trace(Mesh::SINGLE, |t| {
    ///     let x = t.input("x", TensorType::new(DType::F32, &[4]));
    ///     let y = t.remat(&[x], |x| vec![x[0].exponential().sine()]);
    ///     t.output("gradient", grad(y[0].sum(), &[x])[0]);
    /// })?;
    /// assert_eq!(hlo::count(&hlo::passes::simplify(&graph)).transcendentals, 2 * 4);
    /// # Ok::<(), hlo::Error>(())
    /// ```
    #[track_caller]
    pub fn remat<'g>(
        &'g self,
        x: &[Tensor<'g>],
        body: impl for<'b> FnOnce(&[Tensor<'b>]) -> Vec<Tensor<'b>>,
    ) -> Vec<Tensor<'g>> {
        let types: Vec<_> = x.iter().map(Tensor::ty).collect();
        let is_free: Vec<_> = x.iter().map(Tensor::is_gradient_free).collect();
        let mut num_results = 0;
        let traced = region(self, &types, &is_free, |x| {
            let results = body(x);
            num_results = results.len();
            results
        });
        let mut results = match traced {
            Ok(graph) => self.apply_variadic(Op::Remat(Region::new(graph)), x),
            Err(error) => {
                self.keep_first(error);
                vec![]
            }
        };
        results.resize(num_results, self.poison());
        results
    }
}
