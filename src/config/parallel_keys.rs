//! Keys of `[parallel]` that do not fit each other, the mesh or the device.

use super::error::KeyErrors;
use super::{
    AutoOr, Backend, Compression, DeviceConfig, KeyError, MeshConfig, OptimizerConfig,
    ParallelConfig, Problem, Sgd, UpdateRule,
};

pub(super) fn check(parallel: &ParallelConfig, mesh: &MeshConfig, errors: &mut KeyErrors) {
    check_sharded(parallel, mesh, errors);
    check_compression(parallel, mesh, errors);
    check_scatter_line(parallel, mesh, errors);
    check_pipeline(parallel, mesh, errors);
    check_context(parallel, mesh, errors);
}

/// Context parallelism needs replicas along `tensor`, and is another cut than that of sequences.
fn check_context(parallel: &ParallelConfig, mesh: &MeshConfig, errors: &mut KeyErrors) {
    if !parallel.is_context() {
        return;
    }
    let mut complain = |other: &str, problem: &str| {
        if errors.none_of(&["parallel.context", other]) {
            let problem = Problem::Inconsistent(problem.to_owned());
            errors.push(KeyError::new("parallel.context", problem));
        }
    };
    if mesh.tensor.unwrap_or(1) == 1 {
        let problem = "rows are cut over mesh.tensor, which is 1; set mesh.tensor to 2 or more, or \
                       leave out parallel.context (--unset parallel.context)";
        complain("mesh.tensor", problem);
    }
    if parallel.sequence != AutoOr::Auto {
        let problem = "rows are cut in layers too, so parallel.sequence says nothing; leave it out \
                       (--unset parallel.sequence)";
        complain("parallel.sequence", problem);
    }
}

/// A stage of ZeRO without sharded state has no meaning: the run would keep whole copies where
/// shards were asked for. Nor has the dtype of gathers without any.
fn check_sharded(parallel: &ParallelConfig, mesh: &MeshConfig, errors: &mut KeyErrors) {
    if parallel.gather_exact.is_some()
        && parallel.gather_dtype.is_none()
        && errors.none_of(&["parallel.gather_dtype", "parallel.gather_exact"])
    {
        let problem = "without parallel.gather_dtype all parameters are gathered as they are; set \
                       that, or leave out parallel.gather_exact (--unset parallel.gather_exact)";
        let problem = Problem::Inconsistent(problem.to_owned());
        errors.push(KeyError::new("parallel.gather_exact", problem));
    }
    let stage = parallel.zero.map(|stage| {
        ("parallel.zero", format!("stage {stage} shards the state over mesh.fsdp replicas"))
    });
    let gathers = parallel.gather_dtype.map(|_| {
        ("parallel.gather_dtype", "parameters are gathered over mesh.fsdp replicas".to_owned())
    });
    for (key, wanted) in stage.into_iter().chain(gathers) {
        if mesh.fsdp == AutoOr::Value(1) && errors.none_of(&["mesh.fsdp", key]) {
            let problem = format!(
                "{wanted}, but mesh.fsdp = 1; set mesh.fsdp to 2 or more or to \"auto\", or leave \
                 out {key} (--unset {key})"
            );
            errors.push(KeyError::new(key, Problem::Inconsistent(problem)));
        }
    }
}

/// Keys of compression belong to one kind of it. It works on sums over `data` in full precision.
fn check_compression(parallel: &ParallelConfig, mesh: &MeshConfig, errors: &mut KeyErrors) {
    let mut complain = |key: &str, others: &[&str], problem: String| {
        if errors.none_of(&[&[key], others].concat()) {
            errors.push(KeyError::new(key, Problem::Inconsistent(problem)));
        }
    };
    let of_kinds = [
        ("parallel.top_k_block", parallel.top_k_block != AutoOr::Auto, Compression::TopK),
        ("parallel.top_k_momentum", parallel.top_k_momentum != AutoOr::Auto, Compression::TopK),
        ("parallel.power_sgd_rank", parallel.power_sgd_rank != AutoOr::Auto, Compression::PowerSgd),
    ];
    for (key, is_set, kind) in of_kinds {
        if is_set && parallel.compression != Some(kind) {
            let problem = format!(
                "only parallel.compression = \"{kind}\" reads it; set that, or leave out {key} \
                 (--unset {key})"
            );
            complain(key, &["parallel.compression"], problem);
        }
    }
    let Some(kind) = parallel.compression else { return };
    if parallel.reduce_dtype.is_some() {
        let problem = format!(
            "parallel.compression = \"{kind}\" says what is sent of gradients; leave out one of \
             the two (--unset parallel.reduce_dtype)"
        );
        complain("parallel.reduce_dtype", &["parallel.compression"], problem);
    }
    let others = [mesh.tensor, mesh.pipeline].into_iter().flatten().any(|size| size > 1);
    let is_other = others || matches!(mesh.fsdp, AutoOr::Value(size) if size > 1);
    if mesh.data == AutoOr::Value(1) && is_other {
        let problem = "only sums over mesh.data are compressed, and mesh.data = 1: nothing would be \
                       saved; set mesh.data to 2 or more, or leave out parallel.compression \
                       (--unset parallel.compression)";
        complain("parallel.compression", &["mesh.data"], problem.to_owned());
    }
}

impl ParallelConfig {
    /// The rule that has its momentum before the sums of `compression = "top_k"` instead of after
    /// them; `None` for the others, and where `top_k_momentum` is `false`. Norms of gradients with
    /// momentum are not those that are clipped.
    pub fn momentum_before_sums<'a>(&self, optimizer: &'a OptimizerConfig) -> Option<&'a Sgd> {
        let UpdateRule::Sgd(sgd) = &optimizer.rule else { return None };
        let fits = self.compression == Some(Compression::TopK)
            && sgd.momentum > 0.0
            && sgd.momentum_correction
            && optimizer.clip_grad_norm.is_none();
        (fits && self.top_k_momentum.or(true)).then_some(sgd)
    }
}

/// Momentum before sums is that of one update rule.
pub(super) fn check_momentum(
    parallel: &ParallelConfig,
    optimizer: &OptimizerConfig,
    errors: &mut KeyErrors,
) {
    let (key, compression) = ("parallel.top_k_momentum", "parallel.compression");
    let is_asked = parallel.top_k_momentum == AutoOr::Value(true)
        && parallel.compression == Some(Compression::TopK);
    if is_asked
        && parallel.momentum_before_sums(optimizer).is_none()
        && errors.none_of(&[key, compression])
    {
        let problem = "only optimizer.name = \"sgd\" has its momentum before the sum, with \
                       optimizer.momentum above 0, optimizer.momentum_correction = true and \
                       without optimizer.clip_grad_norm; set these, or leave out \
                       parallel.top_k_momentum (--unset parallel.top_k_momentum)";
        errors.push(KeyError::new(key, Problem::Inconsistent(problem.to_owned())));
    }
}

/// Keys of a pipeline without one have no meaning, and stages need whole parameters.
fn check_pipeline(parallel: &ParallelConfig, mesh: &MeshConfig, errors: &mut KeyErrors) {
    let num_stages = mesh.pipeline.unwrap_or(1);
    let mut complain = |key: &str, problem: String| {
        if errors.none_of(&["mesh.pipeline", key]) {
            errors.push(KeyError::new(key, Problem::Inconsistent(problem)));
        }
    };
    if num_stages > 1 {
        if parallel.zero == Some(3) {
            let problem = format!(
                "stage 3 gathers parameters at each use, but with mesh.pipeline = {num_stages} \
                 passes of several microbatches overlap, which use them all the time; set it to 1"
            );
            complain("parallel.zero", problem);
        }
        return;
    }
    for key in parallel.pipeline_keys() {
        let problem = format!(
            "there are no stages: mesh.pipeline = 1; set mesh.pipeline to 2 or more, or leave out \
             {key} (--unset {key})"
        );
        complain(key, problem);
    }
}

/// With `mesh.fsdp = "auto"` the number of replicas is not known yet.
fn check_scatter_line(parallel: &ParallelConfig, mesh: &MeshConfig, errors: &mut KeyErrors) {
    if let (AutoOr::Value(line), AutoOr::Value(fsdp)) = (parallel.scatter_line, mesh.fsdp)
        && line > 1
        && !fsdp.is_multiple_of(line)
        && errors.none_of(&["mesh.fsdp", "parallel.scatter_line"])
    {
        let problem = format!(
            "{line} replicas of a line do not divide mesh.fsdp = {fsdp}; set a divisor of \
             mesh.fsdp, or \"auto\""
        );
        errors.push(KeyError::new("parallel.scatter_line", Problem::Inconsistent(problem)));
    }
}

/// Other backends have collectives of their own. What a plugin given by path is, is known when it
/// is loaded.
pub(super) fn check_host_collectives(
    parallel: &ParallelConfig,
    device: &DeviceConfig,
    errors: &mut KeyErrors,
) {
    if parallel.host_collectives == AutoOr::Value(true)
        && matches!(device.backend, Backend::Cuda | Backend::Tpu)
        && errors.none_of(&["device.backend", "parallel.host_collectives"])
    {
        let problem = format!(
            "only the backend \"cpu\" has them, and device.backend = \"{}\"; leave out \
             parallel.host_collectives (--unset parallel.host_collectives)",
            device.backend
        );
        let key = "parallel.host_collectives";
        errors.push(KeyError::new(key, Problem::Inconsistent(problem)));
    }
}
