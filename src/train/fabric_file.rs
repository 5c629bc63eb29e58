//! A fabric file, and what a run takes from it.

use std::path::{Path, PathBuf};

use hlo::Mesh;
use hlo::rewrites::{ReplicaSums, SumsBySize};

use crate::config::{AllReduceConfig, ParallelConfig, read_regular};
use crate::lowering::Lowering;
use crate::targets::cost::MeasuredFabric;

/// Larger files are none that this program has written.
const MAX_BYTES: u64 = 16 << 20;

/// A file that is no fabric file.
#[derive(Debug, thiserror::Error)]
#[error(
    "the fabric file {} cannot be used: {reason}; `lockstep bench --collectives --to FILE` writes \
     one",
    path.display()
)]
pub struct FabricFileError {
    path: PathBuf,
    reason: String,
}

/// Reads a fabric file.
///
/// # Errors
/// A file that cannot be read, is none, or has values that no measurement gives.
pub fn read_fabric(path: &Path) -> Result<MeasuredFabric, FabricFileError> {
    let error = |reason: String| FabricFileError { path: path.to_owned(), reason };
    let bytes = read_regular(path, MAX_BYTES).map_err(|source| error(source.to_string()))?;
    MeasuredFabric::parse(&bytes).map_err(error)
}

/// Sets how sums over replicas are written: a function of the configuration, the mesh and the
/// fabric file alone, so that it is the same for any division over processes.
///
/// # Errors
/// Of [`read_fabric`].
pub(super) fn choose_all_reduces(
    lowering: &mut Lowering,
    parallel: &ParallelConfig,
    mesh: &Mesh,
) -> Result<(), FabricFileError> {
    // Of one process; several are set apart when they have found each other.
    lowering.replicas_per_host = parallel.replicas_per_host.or(mesh.num_replicas());
    let algorithm = parallel.all_reduce.algorithm();
    lowering.all_reduce = algorithm.map_or(ReplicaSums::Direct, ReplicaSums::By);
    // Read even if nothing follows from it here, so that a bad file is known at once.
    let Some(fabric) = parallel.fabric.as_deref().map(read_fabric).transpose()? else {
        return Ok(());
    };
    let group_size = mesh.num_replicas();
    let changes = fabric.all_reduces_by_size(group_size);
    if parallel.all_reduce == AllReduceConfig::Auto && !changes.is_empty() {
        lowering.all_reduce = ReplicaSums::BySize(SumsBySize::new(group_size, &changes));
        lowering.replicas_per_host = parallel.replicas_per_host.or(fabric.replicas_per_host);
    }
    Ok(())
}

/// What a run takes from its fabric file, in a line for the user; `None` if it has none.
pub(super) fn describe_fabric(parallel: &ParallelConfig, lowering: &Lowering) -> Option<String> {
    let path = parallel.fabric.as_ref()?.display();
    Some(match (parallel.all_reduce, lowering.all_reduce) {
        (AllReduceConfig::Auto, ReplicaSums::BySize(_)) => {
            format!("sums over replicas, as {path} says: {}", lowering.all_reduce)
        }
        (AllReduceConfig::Auto, _) => format!(
            "sums over replicas are direct: {path} was measured with another number of devices"
        ),
        _ => format!("parallel.all_reduce is set, so nothing is taken from {path}"),
    })
}
