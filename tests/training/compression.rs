//! Trainings that send a part of the gradients, and parameters in few bits.

use std::sync::Arc;

use hlo::{AxisSet, DType, LeafSpec, Tensor};
use lockstep::parallel::{ParallelPlan, Synchronize};
use lockstep::train::Run;

use crate::stacked::{Trained, assert_alike, train, train_as};

const SMALL: &[&str] = &["model.num_layers=1", "mesh.data=4"];
const INT8: &str = "parallel.reduce_dtype=int8";
const SGD: [&str; 2] = ["optimizer.name=sgd", "schedule.peak=0.3"];
const TOP_K: &str = "parallel.compression=top_k";
const POWER_SGD: &str = "parallel.compression=power_sgd";

/// A scheme that forgets what it has not sent.
#[derive(Debug)]
struct Forgetful(Arc<dyn Synchronize>);

impl Synchronize for Forgetful {
    fn comm(&self, param: &LeafSpec, plan: &ParallelPlan) -> Vec<(&'static str, LeafSpec)> {
        self.0.comm(param, plan)
    }

    fn sum<'g>(
        &self,
        local: Tensor<'g>,
        axes: AxisSet,
        comm: &[Tensor<'g>],
    ) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        let (sum, mut next) = self.0.sum(local, axes, comm);
        if let Some(residual) = next.first_mut() {
            *residual = residual.full_like(0.0);
        }
        (sum, next)
    }
}

/// A scheme where one in a hundred gradients of a replica does not arrive. A replica that knows
/// sends it later.
#[derive(Debug)]
struct Dropping {
    scheme: Arc<dyn Synchronize>,
    is_known: bool,
}

impl Synchronize for Dropping {
    fn comm(&self, param: &LeafSpec, plan: &ParallelPlan) -> Vec<(&'static str, LeafSpec)> {
        self.scheme.comm(param, plan)
    }

    fn sum<'g>(
        &self,
        local: Tensor<'g>,
        axes: AxisSet,
        comm: &[Tensor<'g>],
    ) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        // As good as random, and another on each replica and in each step.
        let digits = local.abs().sum() * 1e4;
        let whole = digits.convert(DType::U32).convert(digits.dtype());
        let is_dropped = (digits - whole).less(0.01);
        let nothing = local.full_like(0.0);
        let (sum, mut next) = self.scheme.sum(is_dropped.select(nothing, local), axes, comm);
        if let (true, Some(residual)) = (self.is_known, next.first_mut()) {
            *residual = *residual + is_dropped.select(local, nothing).reshape(&residual.shape());
        }
        (sum, next)
    }
}

/// The mean loss of the last 20 steps.
fn last_losses(trained: &Trained) -> f64 {
    let losses: Vec<_> = trained.curve.iter().step_by(2).collect();
    losses.iter().rev().take(20).copied().sum::<f64>() / 20.0
}

/// The losses of training with all of the gradients, with a scheme, and without its error feedback.
fn losses(sets: &[&str], scheme: &[&str]) -> [f64; 3] {
    const NUM_STEPS: u64 = 150;
    let plain = [SMALL, sets].concat();
    let compressed = [&plain, scheme].concat();
    let forgetful = train_as(NUM_STEPS, &compressed, |run| {
        run.synchronize = Arc::new(Forgetful(run.synchronize.clone()));
    });
    [train(NUM_STEPS, &plain), train(NUM_STEPS, &compressed), forgetful].map(|of| last_losses(&of))
}

/// Nothing is dropped in lockstep: sums that do not arrive end the generation. Error feedback would
/// carry it.
#[test]
#[ignore = "trains for a minute; of the full set"]
fn error_feedback_makes_up_for_what_does_not_arrive() {
    const NUM_STEPS: u64 = 150;
    for (sets, scheme) in [(&[][..], INT8), (&[][..], POWER_SGD), (&SGD[..], TOP_K)] {
        let sets = [SMALL, sets, &[scheme]].concat();
        let dropping = |is_known| {
            let change = |run: &mut Run| {
                let scheme = run.synchronize.clone();
                run.synchronize = Arc::new(Dropping { scheme, is_known });
            };
            last_losses(&train_as(NUM_STEPS, &sets, change))
        };
        let complete = last_losses(&train(NUM_STEPS, &sets));
        let found @ [known, unknown] = [dropping(true), dropping(false)];
        println!("{scheme}: {complete} {found:?}");
        assert!(known != complete && unknown != known, "{scheme}: nothing was dropped");
        assert!(known < 1.01 * complete, "{scheme}: {found:?}");
    }
}

#[test]
#[ignore = "trains for a minute; of the full set"]
fn error_feedback_makes_up_for_what_is_not_sent() {
    // Momentum before the sum would remember something too.
    let top_k = [TOP_K, "parallel.top_k_momentum=false", "parallel.top_k_block=32"];
    for (sets, scheme) in [(&[][..], &[POWER_SGD][..]), (&SGD[..], &top_k)] {
        let found @ [plain, with, without] = losses(sets, scheme);
        println!("{scheme:?}: {found:?}");
        assert!(with < 1.06 * plain && without > 1.1 * plain, "{scheme:?}: {found:?}");
    }
}

/// Gradients of parameters so small that they are sent in full have the momentum that SGD would
/// give them, and weight decay has it too.
#[test]
fn momentum_before_the_sum_is_that_of_the_optimizer() {
    let small = ["model.width=8", "model.num_heads=1", "mesh.data=2", "optimizer.name=sgd"];
    for more in [&[][..], &["optimizer.nesterov=true", "optimizer.weight_decay=0.1"]] {
        let sets = [&small, more, &["schedule.peak=0.3"][..]].concat();
        let plain = train(8, &sets);
        let sent = train(8, &[&sets, &[TOP_K][..]].concat());
        // The norm is another one: that of gradients with momentum.
        for (step, (a, b)) in plain.curve.iter().zip(&sent.curve).enumerate().step_by(2) {
            assert!((a / b - 1.0).abs() < 1e-10, "step {}: {a} {b}", step / 2);
        }
        assert!((plain.curve[13] / sent.curve[13] - 1.0).abs() > 0.1, "no momentum is sent");
    }
}

/// Stacked blocks, and leaves that are cut over other axes or are in stages: the same training.
#[test]
fn all_meshes_train_alike() {
    let scan = "model.scan_layers=true";
    for (scheme, mesh) in [
        (INT8, &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=3", scan][..]),
        (TOP_K, &["mesh.data=2", "mesh.pipeline=3", "train.num_microbatches=4"]),
        (POWER_SGD, &["mesh.data=2", "mesh.tensor=2"]),
        (POWER_SGD, &["mesh.data=2", "mesh.fsdp=2", scan]),
    ] {
        let plain = train(8, &["mesh.data=2"]);
        let other = train(8, &[mesh, &[scheme]].concat());
        let ratios = plain.curve.iter().zip(&other.curve).step_by(2).map(|(a, b)| b / a);
        let ratios: Vec<_> = ratios.collect();
        assert!((ratios[0] - 1.0).abs() < 1e-12, "{scheme} {mesh:?}: {ratios:?}");
        let worst = ratios.iter().fold(0.0, |worst: f64, ratio| worst.max((ratio - 1.0).abs()));
        assert!((1e-9..0.04).contains(&worst), "{scheme} {mesh:?}: {ratios:?}");
    }
}

/// Rounded alike in each stage, so the curve is one; another than that of exact parameters.
/// Evaluation has exact ones.
#[test]
fn gathers_in_8_bits_train_almost_alike() {
    let exact = train(6, &[SMALL, &["mesh.data=2", "mesh.fsdp=2"]].concat());
    for (dtype, largest) in [("int8", 1e-2), ("f8e4m3", 5e-2)] {
        let dtype = format!("parallel.gather_dtype={dtype}");
        let of_stage = |zero: &'static str, more: &[&str]| {
            let sets = ["mesh.data=2", "mesh.fsdp=2", &*dtype, zero];
            train(6, &[SMALL, &sets, more].concat())
        };
        let first = of_stage("parallel.zero=1", &[]);
        let worst = exact.curve.iter().zip(&first.curve).map(|(a, b)| (a / b - 1.0).abs());
        let worst = worst.fold(0.0, f64::max);
        println!("{dtype}: {worst:e}");
        assert!((1e-6..largest).contains(&worst), "{dtype}: {worst:e}");
        for zero in ["parallel.zero=2", "parallel.zero=3"] {
            assert_alike(zero, &first, &of_stage(zero, &[]), 1e-9);
        }
        // All that is cut, so nothing is rounded.
        let none = of_stage("parallel.zero=3", &["parallel.gather_exact=['*']"]);
        assert_alike(&dtype, &exact, &none, 1e-9);
    }
}
