//! Times of the ops of a step, summed by op and by kind.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use super::launch_log::ThunkLaunch;
use crate::observe::median;
use crate::targets::Instruction;

/// The times of a step's ops, which run one after the other on one processor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpTimes {
    /// All ops together.
    pub total_ms: f64,
    /// Number of ops that a step runs; an op in a loop counts once per iteration.
    pub num_launches: usize,
    /// By kind, the longest first.
    pub kinds: Vec<Share>,
    /// By op, the longest first. Ops that the log does not distinguish are counted as one: kernels
    /// that share their code, dots of the same sizes.
    pub ops: Vec<OpTime>,
}

/// The time of all ops of a kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// XLA's name of the kind.
    pub kind: String,
    /// Median over the steps.
    pub ms: f64,
    /// Number of such ops that a step runs.
    pub num_launches: usize,
}

/// The time of all launches of an op in a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpTime {
    /// XLA's name of the kind.
    pub kind: String,
    /// The kernel's name, or the types of operands and result.
    pub op: String,
    /// Median over the steps.
    pub ms: f64,
    /// Number of launches in a step.
    pub num_launches: usize,
    /// `FILE:LINE` of each place in the code that the op comes from.
    pub sources: Vec<String>,
}

impl OpTimes {
    /// Sums the launches of some steps; `None` if there are none. `instructions` are those of the
    /// program.
    pub(super) fn new(steps: &[Vec<ThunkLaunch>], instructions: &[Instruction]) -> Option<Self> {
        let names: Vec<Vec<(String, String)>> =
            steps.iter().map(|step| step.iter().map(name).collect()).collect();
        let num_launches = steps.first().filter(|step| !step.is_empty())?.len();
        let by_op = sums(steps, &names, |name| name.clone());
        let by_kind = sums(steps, &names, |(kind, _)| kind.clone());
        let totals: Vec<f64> =
            steps.iter().map(|step| step.iter().map(|launch| launch.secs * 1e3).sum()).collect();
        let ops = by_op.into_iter().map(|((kind, op), (ms, num_launches))| {
            let sources = sources(&kind, &op, instructions);
            OpTime { kind, op, ms, num_launches, sources }
        });
        let kinds =
            by_kind.into_iter().map(|(kind, (ms, num_launches))| Share { kind, ms, num_launches });
        Some(Self {
            total_ms: median(&totals)?,
            num_launches,
            kinds: kinds.collect(),
            ops: ops.collect(),
        })
    }
}

/// For each key, the median of its milliseconds over the steps, and its number of launches in the
/// first step; the longest first.
fn sums<K: Clone + Eq + Ord + std::hash::Hash>(
    steps: &[Vec<ThunkLaunch>],
    names: &[Vec<(String, String)>],
    key: impl Fn(&(String, String)) -> K,
) -> Vec<(K, (f64, usize))> {
    let mut sums: HashMap<K, (Vec<f64>, usize)> = HashMap::new();
    for (index, (step, names)) in steps.iter().zip(names).enumerate() {
        for (launch, name) in step.iter().zip(names) {
            let zeros = || (vec![0.0; steps.len()], 0);
            let (ms, num_launches) = sums.entry(key(name)).or_insert_with(zeros);
            ms[index] += launch.secs * 1e3;
            *num_launches += usize::from(index == 0);
        }
    }
    let medians = sums.into_iter();
    let mut medians: Vec<_> =
        medians.map(|(key, (ms, count))| (key, (median(&ms).unwrap_or(0.0), count))).collect();
    medians.sort_by(|(a, (x, _)), (b, (y, _))| y.total_cmp(x).then_with(|| a.cmp(b)));
    medians
}

/// Kind and name of an op. A kernel has a name, which begins with `wrapped_` for a single
/// instruction; other kernels are fusions. Other ops are distinguished by their types.
fn name(launch: &ThunkLaunch) -> (String, String) {
    const KERNEL: &str = "Launch host kernel ";
    if let Some(rest) = launch.head.strip_prefix(KERNEL) {
        let name = rest.split_whitespace().next().unwrap_or(rest);
        let kind = name.strip_prefix("wrapped_").map(|op| op.split('.').next().unwrap_or(op));
        return (kind.unwrap_or("fusion").to_owned(), name.to_owned());
    }
    let kind = launch.kind.replace('_', "-");
    let mut types: Vec<&str> = launch.details.iter().filter_map(|line| value_type(line)).collect();
    let op = match types.len() {
        0 => launch.head.clone(),
        1..=4 => {
            let result = types.pop().unwrap_or_default();
            format!("{} -> {result}", types.join(" * "))
        }
        many => format!("{} values", many / 2),
    };
    (kind, op)
}

/// `  lhs: f32[2048,256]{1,0} in slice {..` -> `f32[2048,256]`.
fn value_type(detail: &str) -> Option<&str> {
    let (_, rest) = detail.split_once(": ")?;
    let (ty, _) = rest.split_once(" in slice ")?;
    Some(ty.split('{').next().unwrap_or(ty))
}

/// The places in the code that an op comes from, found by its name, or by the types of its operands
/// and result.
fn sources(kind: &str, op: &str, instructions: &[Instruction]) -> Vec<String> {
    let is_meant = |instruction: &&Instruction| {
        let types = format!("{} -> {}", instruction.operands.join(" * "), instruction.result);
        instruction.name == op || (instruction.opcode == kind && types == op)
    };
    let found = instructions.iter().filter(is_meant);
    let found: BTreeSet<_> = found.filter_map(|instruction| instruction.source.clone()).collect();
    found.into_iter().collect()
}
