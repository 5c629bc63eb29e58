//! The forms of a parameter in a step.
//!
//! A parameter has four forms: in the *state*, sharded as its layout says; in a *step*
//! ([`ParallelPlan::for_step`], once, before the microbatches), where gradients are accumulated in
//! this form; in a *microbatch* ([`ParallelPlan::for_microbatch`]); and at a *use* by a layer
//! ([`ParallelPlan::for_use`], wherever the model requests the parameter, including in the body of
//! a scan or remat). The gradient's collectives are the vector-Jacobian products of the last three
//! functions, so no model can omit them.
//!
//! Only dims over `fsdp` are gathered. Gradients are summed in the parameters' dtype: a
//! reduce_scatter over `fsdp`, and once per step an all_reduce of the shard over `data`. Gathers
//! are in the dtype to which layers round the parameter.

use hlo::{Axis, AxisSet, DType, Sharding, Tensor};

use crate::config::GatherDType;

use super::ParallelPlan;
use super::narrow::narrow_scatter;
use super::quantized::quantized_gather;

/// When the shards of a parameter over `fsdp` are gathered: the stages of ZeRO, by which tensors a
/// step holds whole. Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory optimizations toward
/// training trillion parameter models" (2020), section 5. M is the number of microbatches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GatherAt {
    /// Stage 1. Parameters and gradients are whole during a step: one gather and one scatter per
    /// step.
    #[default]
    Step,
    /// Stage 2. Parameters are whole, gradients are scattered in each microbatch and accumulated as
    /// shards: one gather and M scatters per step.
    Microbatch,
    /// Stage 3. A parameter is gathered where a layer uses it, in the forward and again in the
    /// backward pass, and its gradient is scattered there: 2 M gathers and M scatters per step.
    Use,
}

impl GatherAt {
    /// What a stage of ZeRO is: 1, 2 or 3.
    pub fn of_zero_stage(stage: usize) -> Self {
        match stage {
            2 => Self::Microbatch,
            3 => Self::Use,
            _ => Self::Step,
        }
    }

    /// The stage of ZeRO that this is.
    pub fn zero_stage(self) -> usize {
        match self {
            Self::Step => 1,
            Self::Microbatch => 2,
            Self::Use => 3,
        }
    }
}

/// The element types in which a layer uses a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UseDTypes {
    /// Element type of the tensor that the layer gets.
    pub used_in: DType,
    /// Element type to which its values may be rounded before that, and in which they are therefore
    /// gathered.
    pub rounded_to: DType,
    /// `true` if [`ParallelPlan::gather_dtype`] does not apply to it.
    pub is_sent_exactly: bool,
}

impl ParallelPlan {
    /// The tensor of a step, from the one in the state: a parameter, or the stack of the
    /// parameters of all scanned blocks, sharded as `sharding` says. Its type varies over `axes`,
    /// along which replicas use it for other activations.
    ///
    /// `vary` comes before the gather, so that their VJPs run in the reverse order: reduce_scatter
    /// over `fsdp`, then all_reduce of only a shard over `data`.
    #[track_caller]
    pub fn for_step<'g>(
        &self,
        in_state: Tensor<'g>,
        sharding: &Sharding,
        axes: AxisSet,
    ) -> Tensor<'g> {
        let shard = in_state.vary(axes);
        match self.gather_at {
            GatherAt::Step => gather(shard, sharding),
            GatherAt::Microbatch | GatherAt::Use => shard,
        }
    }

    /// The gradient with respect to the shard that [`Self::for_step`] makes its result of, from the
    /// gradient with respect to the latter. It still is each replica's own.
    pub fn gradient_of_shard<'g>(&self, of_step: Tensor<'g>, sharding: &Sharding) -> Tensor<'g> {
        match self.gather_at {
            GatherAt::Step => self.scatter(of_step, sharding),
            GatherAt::Microbatch | GatherAt::Use => of_step,
        }
    }

    /// The whole parameter, rounded as its use allows, if it is computed once per step and without
    /// a gradient. [`Self::for_microbatch`] then takes only the gradient from the step's tensor,
    /// and only the value from this one. [`GatherAt::Step`] needs it only where the dtypes differ:
    /// the step's tensor is whole.
    #[track_caller]
    pub fn once_per_step<'g>(
        &self,
        in_state: Tensor<'g>,
        sharding: &Sharding,
        axes: AxisSet,
        dtypes: UseDTypes,
    ) -> Option<Tensor<'g>> {
        let is_wanted = match self.gather_at {
            GatherAt::Step => {
                self.sent_in(dtypes).is_some() || dtypes.rounded_to != in_state.dtype()
            }
            GatherAt::Microbatch => true,
            GatherAt::Use => false,
        };
        let shard = || in_state.stop_gradient().vary(axes).convert(dtypes.rounded_to);
        (is_wanted && is_cut(sharding)).then(|| self.gather_rounded(shard(), sharding, dtypes))
    }

    /// The tensor of a microbatch, from that of the step.
    #[track_caller]
    pub fn for_microbatch<'g>(
        &self,
        in_step: Tensor<'g>,
        once_per_step: Option<Tensor<'g>>,
        sharding: &Sharding,
        dtypes: UseDTypes,
    ) -> Tensor<'g> {
        let Some(whole) = once_per_step else { return in_step };
        let is_step_whole = self.gather_at == GatherAt::Step;
        in_step.tracer().custom_vjp(
            &[in_step, whole],
            |x| vec![x[1].convert(dtypes.used_in)],
            |x, _, gradient| {
                let wide = gradient[0].convert(x[0].dtype());
                let to_step = if is_step_whole { wide } else { self.scatter(wide, sharding) };
                vec![to_step, x[1].full_like(0.0)]
            },
        )[0]
    }

    /// The parameter as a layer gets it, from the tensor of the microbatch: the same tensor, unless
    /// parameters are gathered at their use.
    #[track_caller]
    pub fn for_use<'g>(
        &self,
        in_microbatch: Tensor<'g>,
        sharding: &Sharding,
        dtypes: UseDTypes,
    ) -> Tensor<'g> {
        if !self.gathers_at_use() || !is_cut(sharding) {
            return in_microbatch;
        }
        in_microbatch.tracer().custom_vjp_recomputed(
            &[in_microbatch],
            |shard| {
                let rounded = shard[0].convert(dtypes.rounded_to);
                let whole = self.gather_rounded(rounded, sharding, dtypes);
                vec![whole.convert(dtypes.used_in)]
            },
            |shard, _, gradient| {
                vec![self.scatter(gradient[0].convert(shard[0].dtype()), sharding)]
            },
        )[0]
    }

    /// The tensor with its dims over `fsdp` whole, as layers use it. Its gradient goes straight to
    /// the shards, whatever was rounded.
    #[track_caller]
    fn gather_rounded<'g>(
        &self,
        shard: Tensor<'g>,
        sharding: &Sharding,
        dtypes: UseDTypes,
    ) -> Tensor<'g> {
        match self.sent_in(dtypes) {
            None => gather(shard, sharding),
            Some(dtype) => fsdp_dims(sharding)
                .fold(shard, |x, dim| quantized_gather(x, dim, Axis::Fsdp.into(), dtype)),
        }
    }

    fn sent_in(&self, dtypes: UseDTypes) -> Option<GatherDType> {
        self.gather_dtype.filter(|_| !dtypes.is_sent_exactly)
    }

    /// The sum over the replicas that hold the shards over `fsdp`; each replica keeps its shard of
    /// it. The VJP of [`gather`].
    #[track_caller]
    fn scatter<'g>(&self, whole: Tensor<'g>, sharding: &Sharding) -> Tensor<'g> {
        fsdp_dims(sharding).rev().fold(whole, |x, dim| match self.reduce_dtype {
            None => x.reduce_scatter(dim, Axis::Fsdp),
            Some(dtype) => narrow_scatter(x, dim, Axis::Fsdp.into(), dtype),
        })
    }

    /// `true` if [`Self::for_use`] gathers.
    pub fn gathers_at_use(&self) -> bool {
        self.gather_at == GatherAt::Use && self.is_sharded()
    }
}

/// The dims that are cut over `fsdp`.
fn fsdp_dims(sharding: &Sharding) -> impl DoubleEndedIterator<Item = usize> {
    let dims = sharding.dims().iter().enumerate();
    dims.filter(|(_, axes)| axes.contains(Axis::Fsdp)).map(|(dim, _)| dim)
}

fn is_cut(sharding: &Sharding) -> bool {
    fsdp_dims(sharding).next().is_some()
}

/// The tensor with its dims over `fsdp` whole, from shards.
#[track_caller]
fn gather<'g>(shard: Tensor<'g>, sharding: &Sharding) -> Tensor<'g> {
    fsdp_dims(sharding).fold(shard, |x, dim| x.all_gather(dim, Axis::Fsdp))
}
