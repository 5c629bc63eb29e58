//! How sums travel: by the messages of each algorithm, and in fewer bits, as XLA computes them.

use crate::stacked::{assert_alike, train};

const NUM_STEPS: u64 = 6;
const SMALL: &[&str] = &["model.num_layers=1", "mesh.data=4"];

#[test]
fn sums_by_each_algorithm_train_alike() {
    let direct = train(NUM_STEPS, SMALL);
    for algorithm in [
        &["parallel.all_reduce=ring"][..],
        &["parallel.all_reduce=tree"],
        &["parallel.all_reduce=hierarchical", "parallel.replicas_per_host=2"],
    ] {
        let other = train(NUM_STEPS, &[SMALL, algorithm].concat());
        assert_alike(&format!("{algorithm:?}"), &direct, &other, 1e-10);
    }
}

/// Rounded gradients move a curve, by less than their 8 bits; in every stage of ZeRO, which
/// scatters them, and where all replicas get them.
#[test]
fn narrow_sums_train_almost_alike() {
    let narrow = "parallel.reduce_dtype=bf16";
    let wide = train(NUM_STEPS, SMALL);
    for mesh in [
        &["mesh.data=4"][..],
        &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=1"],
        &["mesh.data=1", "mesh.fsdp=4", "parallel.zero=3"],
    ] {
        let other = train(NUM_STEPS, &[SMALL, mesh, &[narrow]].concat());
        let differences = wide.curve.iter().zip(&other.curve).map(|(a, b)| (a / b - 1.0).abs());
        let worst = differences.fold(0.0, f64::max);
        assert!((1e-9..4e-3).contains(&worst), "{mesh:?}: {worst:e}");
    }
}
