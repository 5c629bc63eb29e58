//! XLA options for each chip that overlap collectives with matmuls.
//!
//! By default TPU compilers combine all all_reduces into a few that do not overlap with anything.
//! These options were chosen by compiling and reading the schedule; nothing was run on the
//! hardware. Fractions are the share of the gradients' bytes in reductions that overlap with
//! matmuls or convolutions. `compile.overrides` of the configuration takes precedence. Experiments,
//! on 12 layers with 24 gradients of 16 MiB and on GPT-2 124M:
//!
//! | chip | options | what the schedule showed |
//! |---|---|---|
//! | all TPUs | defaults | two to four combined all_reduces, all synchronous |
//! | all TPUs | `xla_jf_auto_cross_replica_sharding=true`, a default in replica mode | the update becomes reduce_scatter and all_gather, all synchronous |
//! | v5e | one of `xla_enable_async_all_reduce` and `..fuse_all_reduce` alone | synchronous: both are needed |
//! | v5e | both, uncombined | 19 of 24 inside matmul fusions |
//! | v5e | both, combiner at 4 MiB | the matrices of GPT-2's blocks each inside a matmul's fusion; norms and biases in one, and the embedding, synchronous: 0.68; ResNet-50 has smaller kernels, and many are combined and synchronous: 0.59 |
//! | v5e | both, combiner at 1 MiB | ResNet-50: 0.85, all kernels of 2 MiB and more but one inside a convolution's fusion |
//! | v5e | buckets made by hand, flat or as tuples | synchronous: only single operands are fused |
//! | v5p, v6e | all_reduces offloaded to SparseCore, combiner at 64 MiB | 6 asynchronous, 5 over matmuls; GPT-2: all but the embedding over matmuls, 0.69 |
//! | TPU7x | combiner at 64 MiB; the offload is its default | asynchronous |
//! | all but v5e | `xla_tpu_enable_async_collective_fusion` | refused by the compiler |
//! | H100 | defaults: combiner at 30 MiB, latency hiding scheduler | every bucket asynchronous, all but the embedding's over matmuls |
//! | H100 | combiner at 1 GiB | one all_reduce, nothing to overlap |
//! | H100 | optimization level O1 | the default's program, also of blocks in a loop with sharded state |
//! | A100, L4 | defaults | synchronous: before compute capability 9.0 the latency hiding scheduler is off |
//! | A100 | the latency hiding scheduler | asynchronous, but one at a time, each to the end of the step: GPT-2: 0.06 |
//! | A100 | the same, up to 4 or 32 collectives at a time | GPT-2: 0.23, 0.94 |
//! | B200 | defaults | GPT-2: 0.69, as on the H100 |
//! | GB200 | defaults; up to 4 or 32 at a time | GPT-2: 0.06; 0.23, 0.94: XLA has no measurements of its matmuls, and takes times of the same few sizes as on the A100 |
//! | v4 | SparseCore offload, or `xla_enable_async_all_reduce`, each with the combiner at 4 MiB | synchronous: no option found |
//!
//! With sharded state at stage 3: fractions of gathered and of scattered bytes beside matmuls, of a
//! GPT with 6 blocks of width 2048 on 16 devices, one sequence of 1024 tokens each unless it is
//! said otherwise. `tests/targets/sharded.rs` holds the chosen ones.
//!
//! | chip | options | what the schedule showed |
//! |---|---|---|
//! | H100 | defaults (width 1600, 4 sequences) | gathers 0.24; scatters combined into few, 0.23 |
//! | H100 | combiners at 0 (width 1600, 4 sequences) | 0.33 and 0.97: one collective at a time is hidden, and the other three gathers of a block are not |
//! | H100 | combiner of gathers at 1 GiB (width 1600, 4 sequences) | one gather for all blocks: barriers do not reach the combiner |
//! | H100 | combiners at 4 MiB, four collectives at a time (12 blocks, 4 hosts, `fsdp = 8`) | 0.97 and 0.94 |
//! | L4 | the same at stage 2, 32 at a time (DistilBERT, 2 hosts of 4, `fsdp = 8`): the combiner of scatters counts shards, so 4 MiB are the gradients of a block | gathers 0.61; one scatter a block, all at the end: 0 |
//! | L4 | the combiner of scatters at 4 MiB over the number of shards | 0.61 and 0.96 |
//! | v5p | the five SparseCore options | 0.94 and 0.93, all scatters native |
//! | v5p | the same (width 1600, so shards are not whole tiles) | 0.58 and 0.58: scatters of odd shards are synchronous, that of the embedding is an all_reduce |
//! | v6e | the five SparseCore options | 0.78 and 0.91; with 4 sequences 0.95 and 0.90 |
//! | v5e | none found: a scatter over two dims of the torus is an all_reduce | 0.42, and 0.25 of the all_reduces |
//! | v5e | the same, width 1024 and 3 blocks of 8 heads | 0.81, and 0.62 of the all_reduces; temporaries 0.20 GiB |
//! | v5e | the same, with a scatter per dim (`parallel.scatter_line = 4`) | 0.87; scatters native and synchronous, but for a fiftieth of their bytes; 0.17 GiB |
//!
//! With a pipeline: a GPT with 8 blocks of width 2048 on 2 x 4 stages, 8 microbatches of 1024
//! tokens. `tests/targets/pipeline.rs` holds the chosen ones.
//!
//! | chip | options | what the schedule showed of ticks with both passes |
//! |---|---|---|
//! | H100 | defaults | one permute at a time; those of the gradients of rows are synchronous |
//! | H100 | the latency hiding scheduler, four at a time | all permutes beside matmuls |
//! | v5p | those of data parallelism | all permutes beside matmuls |

use std::collections::BTreeMap;

use hlo::{Axis, Mesh};

use super::{Chip, Family};
use crate::pjrt::OverrideValue;

/// One option.
#[derive(Clone, Copy)]
enum Setting {
    Bool(bool),
    Int(i64),
}
use Setting::{Bool, Int};

const MIB: i64 = 1 << 20;

/// Options of every TPU.
const TPU: [(&str, Setting); 1] = [("xla_jf_auto_cross_replica_sharding", Bool(false))];
const V5E: [(&str, Setting); 3] = [
    ("xla_enable_async_all_reduce", Bool(true)),
    ("xla_tpu_enable_async_collective_fusion_fuse_all_reduce", Bool(true)),
    ("xla_jf_crs_combiner_threshold_in_bytes", Int(MIB)),
];
const SPARSE_CORE: [(&str, Setting); 2] = [
    ("xla_tpu_enable_sparse_core_collective_offload_all_reduce", Bool(true)),
    ("xla_jf_crs_combiner_threshold_in_bytes", Int(64 * MIB)),
];
const TPU7X: [(&str, Setting); 1] = [("xla_jf_crs_combiner_threshold_in_bytes", Int(64 * MIB))];
/// Where state is sharded. With all five, a reduce_scatter is native and asynchronous over any
/// number of the torus's dims; with fewer nothing changes.
const SPARSE_CORE_SHARDED: [(&str, Setting); 5] = [
    ("xla_tpu_enable_sparse_core_collective_offload_all_gather", Bool(true)),
    ("xla_tpu_enable_sparse_core_collective_offload_2d_all_gather", Bool(true)),
    ("xla_tpu_enable_sparse_core_collective_offload_3d_all_gather", Bool(true)),
    ("xla_tpu_enable_sparse_core_collective_offload_reduce_scatter", Bool(true)),
    ("xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter", Bool(true)),
];
/// Off by default before compute capability 9.0, where no collective is asynchronous without it.
const LATENCY_HIDING: (&str, Setting) = ("xla_gpu_enable_latency_hiding_scheduler", Bool(true));
/// Where XLA does not know the times of matmuls, it keeps a collective open to the end of the step,
/// so that only as many as are allowed at a time overlap.
const ALL_AT_A_TIME: (&str, Setting) =
    ("xla_gpu_experimental_parallel_collective_overlap_limit", Int(32));
const BEFORE_HOPPER: [(&str, Setting); 2] = [LATENCY_HIDING, ALL_AT_A_TIME];
const GB200: [(&str, Setting); 1] = [ALL_AT_A_TIME];
const GPU_SHARDED: [(&str, Setting); 2] = [
    ("xla_gpu_all_gather_combine_threshold_bytes", Int(4 * MIB)),
    ("xla_gpu_experimental_parallel_collective_overlap_limit", Int(4)),
];
/// Counts the bytes of results, which are shards: so it is this size over the number of shards.
const SCATTER_COMBINER: (&str, i64) = ("xla_gpu_reduce_scatter_combine_threshold_bytes", 4 * MIB);

/// The options of a chip by name, for a step on this mesh.
pub fn defaults(chip: &Chip, mesh: &Mesh) -> BTreeMap<String, OverrideValue> {
    let is_sharded = mesh.size(Axis::Fsdp) > 1;
    let of_chip: &[(&str, Setting)] = match (chip.name, &chip.family) {
        ("v5e", _) => &V5E,
        ("v5p" | "v6e", _) if is_sharded => &SPARSE_CORE_SHARDED,
        ("v5p" | "v6e", _) => &SPARSE_CORE,
        ("tpu7x", _) => &TPU7X,
        (_, Family::Gpu(_)) if is_sharded => &GPU_SHARDED,
        _ => &[],
    };
    let of_family: &[(&str, Setting)] = match &chip.family {
        Family::Tpu(_) => &TPU,
        Family::Gpu(_) => &[],
    };
    // All that a stage of a pipeline sends at once, one to each other stage, runs at a time.
    let num_stages = mesh.size(Axis::Pipeline);
    let limit = ALL_AT_A_TIME.0;
    let of_stages = match &chip.family {
        Family::Gpu(_) if num_stages > 1 => {
            vec![LATENCY_HIDING, (limit, Int(num_stages.max(4) as i64))]
        }
        _ => vec![],
    };
    // Last, because they replace the limit of sharded state.
    let of_scheduler: &[(&str, Setting)] = match &chip.family {
        Family::Gpu(gpu) if gpu.architecture.compute_capability < (9, 0) => &BEFORE_HOPPER,
        Family::Gpu(_) if chip.name == "gb200" => &GB200,
        _ => &[],
    };
    let settings = of_family.iter().chain(of_chip).chain(&of_stages).chain(of_scheduler).copied();
    let of_shards = (is_sharded && matches!(chip.family, Family::Gpu(_))).then(|| {
        let (name, bytes) = SCATTER_COMBINER;
        (name, Int(bytes / mesh.size(Axis::Fsdp) as i64))
    });
    let values = settings.chain(of_shards).map(|(name, setting)| {
        let value = match setting {
            Bool(value) => OverrideValue::Bool(value),
            Int(value) => OverrideValue::Int(value),
        };
        (name.to_owned(), value)
    });
    values.collect()
}

/// The options of a chip, overridden by the user's.
pub fn with_overrides(
    chip: &Chip,
    mesh: &Mesh,
    overrides: &BTreeMap<String, OverrideValue>,
) -> BTreeMap<String, OverrideValue> {
    let mut options = defaults(chip, mesh);
    options.extend(overrides.iter().map(|(name, value)| (name.clone(), value.clone())));
    options
}

/// The size in bytes up to which the chip's compiler is taken to combine collectives of a kind
/// (StableHLO's name). On v5p and v6e with sharded state no option sets it.
pub fn bucket_bytes(chip: &Chip, kind: &str) -> u64 {
    match (chip.name, &chip.family, kind) {
        ("v5e", ..) => 1 << 20,
        (_, Family::Gpu(_), "all_reduce") => 30 << 20,
        (_, Family::Gpu(_), _) => 4 << 20,
        _ => 64 << 20,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// XLA's combiner compares results, which are shards, so the gradients of a scatter are as many
    /// times larger.
    #[test]
    fn scatters_on_gpus_are_combined_to_the_same_size_of_gradients_for_any_number_of_shards() {
        let threshold = |name: &str, fsdp: usize| {
            let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Fsdp, fsdp)]);
            match defaults(Chip::named(name).unwrap(), &mesh).get(SCATTER_COMBINER.0) {
                Some(OverrideValue::Int(bytes)) => Some(bytes * fsdp as i64),
                _ => None,
            }
        };
        for chip in ["l4", "a100", "h100", "b200"] {
            assert_eq!(
                [1, 8, 64].map(|fsdp| threshold(chip, fsdp)),
                [None, Some(4 * MIB), Some(4 * MIB)]
            );
        }
        assert_eq!(threshold("v5e", 8), None);
    }
}
