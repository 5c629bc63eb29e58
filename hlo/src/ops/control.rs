//! Loops and barriers.

use std::panic::Location;
use std::sync::Arc;

use super::body::{Carried, region};
use crate::op::Regions;
use crate::{DType, Op, Tensor, Tracer};

impl Tracer {
    /// Repeats `body` on the carried values while `cond` holds. Both see outer values only if they
    /// are carried. Not reverse-differentiable: use [`Self::scan`], or take gradients inside the
    /// body.
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
        let mut carried = Carried::new(init);
        let regions = loop {
            let types: Vec<_> = carried.starts.iter().map(Tensor::ty).collect();
            let regions = region(self, &types, &carried.is_free, &cond).and_then(|cond| {
                let body = region(self, &types, &carried.is_free, &body)?;
                Ok(Regions { cond, body })
            });
            match regions {
                Ok(regions) if carried.follow(&regions.body) => {}
                Ok(regions) => break regions,
                Err(error) => {
                    self.keep_first(error);
                    return vec![self.poison(); init.len()];
                }
            }
        };
        self.at(location, || {
            self.apply_variadic(
                Op::While { regions: Arc::new(regions), trip_count },
                &carried.starts,
            )
        })
    }

    /// The tensors, unchanged; compilers move, merge and fuse nothing across.
    #[track_caller]
    pub fn optimization_barrier<'g>(&'g self, tensors: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
        self.apply_variadic(Op::OptimizationBarrier, tensors)
    }
}

impl<'g> Tensor<'g> {
    /// The tensor, unchanged; so is its cotangent. A hint that writing it to memory once is cheaper
    /// than computing it in each of its users, as a backend that fuses without limit would.
    /// [`crate::rewrites::without_fusion_barriers`] removes the hint for other backends.
    #[must_use]
    #[track_caller]
    pub fn fusion_barrier(self) -> Tensor<'g> {
        self.tracer().apply(Op::FusionBarrier, &[self])
    }

    /// The tensor, unchanged; so is its cotangent. Marks where one block of a model ends and the
    /// next begins, in the backward pass too. [`crate::rewrites::tie_gathers`] times the gathers of
    /// parameters by it; [`crate::rewrites::without_block_boundaries`] removes the mark.
    #[must_use]
    #[track_caller]
    pub fn block_boundary(self) -> Tensor<'g> {
        self.tracer().apply(Op::BlockBoundary, &[self])
    }
}
