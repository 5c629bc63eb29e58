//! Which parameters are sharded, which are whole and why, and what a replica holds of the state.

use std::fmt;

use hlo::{Axis, LeafSpec, Tree};

use super::{ParallelPlan, WhyWhole};

/// A parameter of a sharded run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamReport {
    /// Its dims and sharding.
    pub spec: LeafSpec,
    /// Why it is whole; `None` if it is sharded.
    pub why_whole: Option<WhyWhole>,
    /// Bytes of the piece on one replica.
    pub local_bytes: usize,
}

impl fmt::Display for ParamReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spec, why_whole, local_bytes } = self;
        match why_whole {
            None => write!(f, "{spec}, {local_bytes} bytes on each replica"),
            Some(why) => write!(f, "{spec}, {local_bytes} bytes, whole: {why}"),
        }
    }
}

/// Totals over some of the parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafTotals {
    /// Number of leaves.
    pub num_leaves: usize,
    /// Bytes of the whole leaves.
    pub bytes: usize,
}

/// How the state of a run is sharded on a mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardingReport {
    /// Size of `fsdp`, the axis that parameters are sharded over.
    pub num_shards: usize,
    /// The parameters.
    pub params: Tree<ParamReport>,
    /// Bytes of all leaves of the state, each counted once.
    pub state_bytes: usize,
    /// Bytes of the state on one replica.
    pub local_state_bytes: usize,
}

impl ShardingReport {
    /// The report on `params`, parameters by their paths, which are among the leaves of `state`.
    pub fn new(params: &Tree<LeafSpec>, state: &Tree<LeafSpec>, plan: &ParallelPlan) -> Self {
        let mesh = &plan.mesh;
        let num_shards = mesh.size(Axis::Fsdp);
        // A leaf that the mesh does not divide is refused elsewhere.
        let local = |leaf: &LeafSpec| leaf.local_type(mesh).map_or(0, |local| local.num_bytes());
        let why_whole = |leaf: &LeafSpec| {
            let row = leaf.row();
            let tensor = row.sharding.dims().iter().position(|axes| axes.contains(Axis::Tensor));
            plan.layout(&row.dims, tensor).why_whole
        };
        let param = |_: &str, leaf: &LeafSpec| ParamReport {
            spec: leaf.clone(),
            why_whole: why_whole(leaf),
            local_bytes: local(leaf),
        };
        Self {
            num_shards,
            params: params.map(param),
            state_bytes: state.values().map(LeafSpec::num_bytes).sum(),
            local_state_bytes: state.values().map(local).sum(),
        }
    }

    /// The parameters that are sharded.
    pub fn sharded(&self) -> LeafTotals {
        self.total(|why| why.is_none())
    }

    /// The parameters that are whole.
    pub fn whole(&self) -> LeafTotals {
        self.total(|why| why.is_some())
    }

    /// The parameters that are whole, by reason. Reasons without parameters are omitted.
    pub fn whole_by_reason(&self) -> Vec<(WhyWhole, LeafTotals)> {
        let mut reasons: Vec<WhyWhole> = vec![];
        for why in self.params.values().filter_map(|param| param.why_whole) {
            if !reasons.contains(&why) {
                reasons.push(why);
            }
        }
        let total = |reason| (reason, self.total(|why| why == Some(reason)));
        reasons.into_iter().map(total).collect()
    }

    fn total(&self, is_counted: impl Fn(Option<WhyWhole>) -> bool) -> LeafTotals {
        let counted = self.params.values().filter(|param| is_counted(param.why_whole));
        counted.fold(LeafTotals::default(), |total, param| LeafTotals {
            num_leaves: total.num_leaves + 1,
            bytes: total.bytes + param.spec.num_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::GatherAt;
    use hlo::{AxisSet, DType, Mesh, Sharding};

    #[test]
    fn every_parameter_is_sharded_or_says_why_not() {
        let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Fsdp, 4)]);
        let plan = ParallelPlan::new(mesh, GatherAt::Step);
        let whole = |dims: &[usize]| LeafSpec::replicated(DType::F32, dims);
        let columns = Sharding::new(&[AxisSet::EMPTY, Axis::Fsdp.into()]);
        let mut params = Tree::new();
        params.insert("matrix", LeafSpec::new(DType::F32, &[30, 64], columns));
        params.insert("bias", whole(&[4096]));
        params.insert("small", whole(&[8, 8]));
        params.insert("odd", whole(&[33, 35]));
        let mut state = params.clone().prefixed("params");
        state.extend(params.clone().prefixed("momentum"));
        state.insert("step", LeafSpec::replicated(DType::U32, &[]));
        let report = ShardingReport::new(&params, &state, &plan);
        let lines: Vec<_> = report.params.values().map(ParamReport::to_string).collect();
        let expected = [
            "f32[30, 64]{dim 1 over {fsdp}}, 1920 bytes on each replica",
            "f32[4096], 16384 bytes, whole: a vector of fewer than 65536 elements",
            "f32[8, 8], 256 bytes, whole: fewer than 1024 elements",
            "f32[33, 35], 4620 bytes, whole: no dim that 4 divides",
        ];
        assert_eq!(lines, expected);
        assert_eq!(report.sharded(), LeafTotals { num_leaves: 1, bytes: 7680 });
        let whole = 16384 + 256 + 4620;
        assert_eq!(report.whole(), LeafTotals { num_leaves: 3, bytes: whole });
        let reasons = report.whole_by_reason();
        assert_eq!(
            reasons.iter().map(|(_, total)| total.bytes).collect::<Vec<_>>(),
            [16384, 256, 4620]
        );
        assert_eq!(report.state_bytes, 2 * (7680 + whole) + 4);
        assert_eq!(report.local_state_bytes, 2 * (7680 / 4 + whole) + 4);
    }

    #[test]
    fn rows_of_a_stack_have_the_reason_of_one_block() {
        let plan = ParallelPlan::new(Mesh::new(&[(Axis::Fsdp, 4)]), GatherAt::Step);
        let bias = LeafSpec::replicated(DType::F32, &[1600]).stacked(&[48]);
        let params = Tree::from_iter([("blocks.*.bias".to_owned(), bias)]);
        let report = ShardingReport::new(&params, &Tree::new(), &plan);
        let why = report.params["blocks.*.bias"].why_whole.map(|why| why.to_string());
        assert_eq!(why.as_deref(), Some("a vector of fewer than 65536 elements"));
    }
}
