//! Loops and barriers.

use std::panic::Location;
use std::sync::Arc;

use crate::op::Regions;
use crate::{AxisSet, DType, Error, Graph, Op, Tensor, Tracer};

impl Tracer {
    /// Repeats `body` on the carried values while `cond` holds. Both see outer values only if they are
    /// carried. Not reverse-differentiable: take gradients inside the body.
    #[track_caller]
    pub fn while_loop<'g>(
        &'g self,
        init: &[Tensor<'g>],
        cond: impl for<'b> Fn(&[Tensor<'b>]) -> Tensor<'b>,
        body: impl for<'b> Fn(&[Tensor<'b>]) -> Vec<Tensor<'b>>,
    ) -> Vec<Tensor<'g>> {
        self.loop_over(init, None, Location::caller(), |carried| vec![cond(carried)], body)
    }

    /// Runs `body(i, carried)` for `i` (u32 scalar) in `0..trip_count`.
    #[track_caller]
    pub fn fori_loop<'g>(
        &'g self,
        trip_count: u32,
        init: &[Tensor<'g>],
        body: impl for<'b> Fn(Tensor<'b>, &[Tensor<'b>]) -> Vec<Tensor<'b>>,
    ) -> Vec<Tensor<'g>> {
        let mut counted = vec![self.scalar(DType::U32, 0.0)];
        counted.extend_from_slice(init);
        let results = self.loop_over(
            &counted,
            Some(trip_count.into()),
            Location::caller(),
            |carried| vec![carried[0].less(f64::from(trip_count))],
            |carried| {
                let mut next = vec![carried[0] + 1.0];
                next.extend(body(carried[0], &carried[1..]));
                next
            },
        );
        results[1..].to_vec()
    }

    fn loop_over<'g>(
        &'g self,
        init: &[Tensor<'g>],
        trip_count: Option<u64>,
        location: &'static Location<'static>,
        cond: impl for<'b> Fn(&[Tensor<'b>]) -> Vec<Tensor<'b>>,
        body: impl for<'b> Fn(&[Tensor<'b>]) -> Vec<Tensor<'b>>,
    ) -> Vec<Tensor<'g>> {
        let mut carried = init.to_vec();
        // A carried value that starts as a constant may vary once the body has added to it: then its
        // start is handed over too. Each round adds an axis somewhere, so this ends.
        let regions = loop {
            let regions = self.region(&carried, &cond).and_then(|cond| {
                let body = self.region(&carried, &body)?;
                Ok(Regions { cond, body })
            });
            match regions {
                Ok(regions) if self.vary_like_results(&mut carried, &regions.body) => {}
                Ok(regions) => break regions,
                Err(error) => {
                    self.keep_first(error);
                    return vec![self.poison(); init.len()];
                }
            }
        };
        self.at(location, || {
            self.apply_variadic(Op::While { regions: Arc::new(regions), trip_count }, &carried)
        })
    }

    /// Traces a loop's region: a graph whose inputs have the types of the carried values.
    fn region(
        &self,
        starts: &[Tensor<'_>],
        f: &impl for<'b> Fn(&[Tensor<'b>]) -> Vec<Tensor<'b>>,
    ) -> Result<Graph, Error> {
        let tracer = Tracer::new(self.mesh());
        let carried = tracer.carried_inputs(starts);
        for (i, result) in f(&carried).into_iter().enumerate() {
            tracer.output_varying(format!("carried.{i}"), result, AxisSet::ALL);
        }
        tracer.finish()
    }

    /// Makes starts of carried values through which no gradient flows vary like what the body
    /// returns for them. Was there anything to do?
    fn vary_like_results<'g>(&'g self, carried: &mut [Tensor<'g>], body: &Graph) -> bool {
        let mut changed = false;
        for (start, output) in carried.iter_mut().zip(body.outputs()) {
            let missing = body.ty(output.value).varying.minus(start.varying());
            if !missing.is_empty() && start.is_gradient_free() {
                *start = start.vary(missing);
                changed = true;
            }
        }
        changed
    }

    /// The tensors, unchanged; nothing is moved, merged or fused across.
    #[track_caller]
    pub fn optimization_barrier<'g>(&'g self, tensors: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
        self.apply_variadic(Op::OptimizationBarrier, tensors)
    }
}

impl<'g> Tensor<'g> {
    /// The tensor, unchanged; so is its cotangent. Says that it is cheaper to write it to memory once than
    /// to compute it in each of its users, which a backend that fuses without limit would do.
    /// [`crate::formulate::without_fusion_barriers`] takes the hint away for the others.
    #[must_use]
    #[track_caller]
    pub fn fusion_barrier(self) -> Tensor<'g> {
        self.tracer().apply(Op::FusionBarrier, &[self])
    }
}
