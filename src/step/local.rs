//! Local steps: replicas along `data` train on their own, and meet in an outer step now and then.
//!
//! ```text
//! round begins:  p_d = p
//! each step:     p_d = p_d + update(gradient on the replica's own examples)
//! round ends:    delta = p - mean over d of p_d
//!                v = mu v + delta
//!                p = p - eta (delta + mu v)
//! ```
//! Douillard et al., "DiLoCo: Distributed low-communication training of language models" (2023),
//! algorithm 1, with the momentum of Nesterov as Sutskever, Martens, Dahl and Hinton write it ("On
//! the importance of initialization and momentum in deep learning", 2013).
//!
//! Parameters and running means in the state are those of the last outer step, the same on all
//! replicas: evaluation, files and the proof read them. What a replica has of its own, `p_d` and
//! the optimizer's state, are leaves with a dim over `data`. No save comes in the middle of a
//! round, so that `p_d` means nothing to a run that is continued. The optimizer's state does:
//! replicas of another mesh get its mean.

use hlo::{
    Axis, AxisSet, DType, Graph, LeafSpec, OnOtherMesh, Reduction, Sharding, Tensor, Tree,
    unconditional_collectives,
};

use super::finite::first_nonfinite;
use super::inputs::StepInputs;
use super::{DeclaredStep, NUM_SKIPPED, STEP, StateSection, StepError, StepSpec};
use crate::config::OnNonfinite;

/// How replicas along `data` train on their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalSteps {
    /// Steps from one outer step to the next.
    pub every: u64,
    /// The learning rate `eta` of outer steps.
    pub learning_rate: f64,
    /// Their momentum `mu`.
    pub momentum: f64,
}

impl LocalSteps {
    /// The learning rate of outer steps that Douillard et al. found best.
    pub const LEARNING_RATE: f64 = 0.7;
    /// Their momentum.
    pub const MOMENTUM: f64 = 0.9;
}

/// The kind of leaf that holds a replica's own parameter or running mean.
const OWN: &str = "own";
/// The kind of leaf that holds `v`.
const OUTER_MOMENTUM: &str = "outer_momentum";
/// The updates that each replica has skipped: u32 `[data]`.
const OWN_SKIPPED: &str = "own_skipped";

fn own_path(name: &str) -> String {
    StateSection::Comm.path(format_args!("{OWN}.{name}"))
}

fn momentum_path(name: &str) -> String {
    StateSection::Comm.path(format_args!("{OUTER_MOMENTUM}.{name}"))
}

fn skipped_path() -> String {
    StateSection::Comm.path(OWN_SKIPPED)
}

/// A leaf of the optimizer's state, of which each replica has its own.
pub(super) fn of_each_replica(spec: &StepSpec<'_>, leaf: &LeafSpec) -> LeafSpec {
    leaf.of_each_replica(&spec.plan.mesh, Axis::Data, OnOtherMesh::Mean)
}

/// What is kept beside parameters, running means and the optimizer's state.
pub(super) fn comm(
    spec: &StepSpec<'_>,
    params: &Tree<LeafSpec>,
    model_state: &Tree<LeafSpec>,
) -> Tree<LeafSpec> {
    let mesh = &spec.plan.mesh;
    let trained = || params.iter().filter(|(path, leaf)| !spec.optimizer.freezes(path, leaf));
    let own = trained().chain(model_state.iter()).map(|(name, leaf)| {
        let own = leaf.of_each_replica(mesh, Axis::Data, OnOtherMesh::Restart);
        (format!("{OWN}.{name}"), own)
    });
    let momenta = trained().map(|(name, leaf)| (format!("{OUTER_MOMENTUM}.{name}"), leaf.clone()));
    let mut comm: Tree<_> = own.chain(momenta).collect();
    let cut = Sharding::new(&[Axis::Data.into()]);
    let skipped = LeafSpec::new(DType::U32, &[mesh.size(Axis::Data)], cut);
    comm.insert(OWN_SKIPPED, LeafSpec { on_other_mesh: OnOtherMesh::Mean, ..skipped });
    comm
}

/// The leaves that a replica's own step reads, under the paths and with the dims of a step without
/// local steps: its own, which are those of the last outer step where a round begins.
pub(super) fn begin<'g>(step: &DeclaredStep<'_>, leaves: &Tree<Tensor<'g>>) -> Tree<Tensor<'g>> {
    let begins = is_multiple(leaves[STEP], step);
    let of_replica = |(path, leaf): (&str, &Tensor<'g>)| {
        let own = match StateSection::of(path)? {
            (StateSection::Params | StateSection::ModelState, name) => {
                let outer = leaf.vary(Axis::Data);
                match leaves.get(&own_path(name)) {
                    Some(own) => {
                        begins.vary(outer.varying()).select(outer, own.reshape(&leaf.shape()))
                    }
                    // It is not trained.
                    None => outer,
                }
            }
            (StateSection::OptState, _) => {
                let num_stacked = step.leaves()[path].num_stacked;
                let mut dims = leaf.shape();
                dims.remove(num_stacked);
                leaf.reshape(&dims)
            }
            (StateSection::Comm, _) => return None,
            (StateSection::Counters, NUM_SKIPPED) => leaves[&*skipped_path()].reshape(&[]),
            (StateSection::Counters, _) => *leaf,
        };
        Some((path.to_owned(), own))
    };
    leaves.iter().filter_map(of_replica).collect()
}

/// Sets the next state from a replica's `own` leaves after its step: the code of the first one that
/// was not finite and the number of updates that it has skipped come with them. Every so many steps
/// the replicas take an outer step. Returns the code and the number with that step.
pub(super) fn end<'g>(
    step: &DeclaredStep<'_>,
    local_steps: &LocalSteps,
    inputs: &StepInputs<'g>,
    own: &Tree<Tensor<'g>>,
    (nonfinite_leaf, num_skipped): (Tensor<'g>, Tensor<'g>),
) -> (Tensor<'g>, Tensor<'g>) {
    let (t, leaves) = (inputs.step.tracer(), &inputs.leaves);
    let outer = OuterStep::new(step, local_steps);
    let number = inputs.step + 1.0;
    let ends = is_multiple(number, step).convert(DType::I32);
    let operands = outer.operands(leaves, own, num_skipped);
    let results = t.case(ends, &operands, &[&|x| outer.not_yet(x), &|x| outer.taken(x)]);
    let (outer_leaves, nonfinite_outer) = outer.named(&results);
    let failed = nonfinite_outer.greater(0.0).convert(DType::U32);
    let num_skipped = num_skipped + failed.vary(num_skipped.varying());
    let is_own = nonfinite_leaf.greater(0.0);
    let nonfinite_outer = nonfinite_outer.vary(nonfinite_leaf.varying());
    let nonfinite_leaf = is_own.select(nonfinite_leaf, nonfinite_outer);

    for (path, leaf) in leaves.iter() {
        let own_value = |path: &str| own.get(path).map(|own| own.reshape(&leaf.shape()));
        let own_leaf = || {
            let name = path.strip_prefix(&*own_path(""))?;
            let sections = [StateSection::Params, StateSection::ModelState];
            sections.into_iter().find_map(|section| own_value(&section.path(name)))
        };
        let next = match StateSection::of(path) {
            Some((StateSection::OptState, _)) => own_value(path),
            _ if path == STEP => Some(number),
            _ if path == skipped_path() => Some(num_skipped.reshape(&[1])),
            _ => outer_leaves.get(path).copied().or_else(own_leaf),
        };
        // What is not trained stays as it is.
        t.next_state(path, next.unwrap_or(*leaf));
    }
    (nonfinite_leaf, num_skipped)
}

/// `true` if a number of steps is one after which replicas have met.
fn is_multiple<'g>(num_steps: Tensor<'g>, step: &DeclaredStep<'_>) -> Tensor<'g> {
    let every = step.spec.local_steps.map_or(1, |local_steps| local_steps.every);
    num_steps.remainder(every as f64).equal(0.0)
}

/// An outer step, as a function of lists of tensors: what the branch of a case takes and returns.
struct OuterStep<'a> {
    local_steps: &'a LocalSteps,
    /// Those that take the step together.
    num_workers: usize,
    stops: bool,
    /// The names of trained parameters, and their places among the leaves of the state.
    params: Vec<(&'a str, usize)>,
    /// The names of running means.
    means: Vec<&'a str>,
}

impl<'a> OuterStep<'a> {
    fn new(step: &'a DeclaredStep<'_>, local_steps: &'a LocalSteps) -> Self {
        let of_section = |(place, path): (usize, &'a str)| {
            let (section, name) = StateSection::of(path)?;
            (section == StateSection::Params && !step.freezes(name)).then_some((name, place))
        };
        Self {
            local_steps,
            num_workers: step.mesh().size(Axis::Data),
            stops: step.spec.on_nonfinite == OnNonfinite::Stop,
            params: step.leaves().paths().enumerate().filter_map(of_section).collect(),
            means: step.running_means.paths().collect(),
        }
    }

    /// Parameters, their momenta, running means and the number of skipped updates, as they were
    /// after the last outer step; then own parameters, running means and number.
    fn operands<'g>(
        &self,
        leaves: &Tree<Tensor<'g>>,
        own: &Tree<Tensor<'g>>,
        num_skipped: Tensor<'g>,
    ) -> Vec<Tensor<'g>> {
        let outer = self.paths().map(|path| leaves[&*path]);
        let params = self.params.iter().map(|(name, _)| StateSection::Params.path(name));
        let means = self.means.iter().map(|name| StateSection::ModelState.path(name));
        let own = params.chain(means).map(|path| own[&*path]);
        outer.chain(own).chain([num_skipped]).collect()
    }

    /// The paths of what an outer step changes.
    fn paths(&self) -> impl Iterator<Item = String> {
        let params = self.params.iter().map(|(name, _)| StateSection::Params.path(name));
        let momenta = self.params.iter().map(|(name, _)| momentum_path(name));
        let means = self.means.iter().map(|name| StateSection::ModelState.path(name));
        params.chain(momenta).chain(means).chain([NUM_SKIPPED.to_owned()])
    }

    /// The results by the paths of leaves, and the last one.
    fn named<'g>(&self, results: &[Tensor<'g>]) -> (Tree<Tensor<'g>>, Tensor<'g>) {
        let leaves = self.paths().zip(results.iter().copied()).collect();
        (leaves, results[results.len() - 1])
    }

    /// The results of a step after which replicas go on by themselves.
    fn not_yet<'b>(&self, x: &[Tensor<'b>]) -> Vec<Tensor<'b>> {
        let num_leaves = 2 * self.params.len() + self.means.len() + 1;
        let none = x[0].tracer().scalar(DType::I32, 0.0);
        x[..num_leaves].iter().copied().chain([none]).collect()
    }

    /// The results of a step after which replicas meet.
    fn taken<'b>(&self, x: &[Tensor<'b>]) -> Vec<Tensor<'b>> {
        let LocalSteps { learning_rate, momentum, .. } = *self.local_steps;
        let (t, axes) = (x[0].tracer(), AxisSet::from(Axis::Data));
        let (params, rest) = x.split_at(self.params.len());
        let (momenta, rest) = rest.split_at(self.params.len());
        let (means, rest) = rest.split_at(self.means.len());
        let (num_skipped, rest) = (rest[0], &rest[1..]);
        let (own_params, rest) = rest.split_at(self.params.len());
        let (own_means, own_skipped) = rest.split_at(self.means.len());

        let deltas = params.iter().zip(own_params).map(|(outer, own)| outer.vary(axes) - *own);
        let summed: Vec<_> = deltas.chain(own_means.iter().copied()).collect();
        let sums = t.all_reduce(&summed, Reduction::Sum, axes);
        let averages: Vec<_> = sums.iter().map(|sum| *sum / self.num_workers as f64).collect();
        let (deltas, next_means) = averages.split_at(self.params.len());
        let all_skipped = own_skipped[0].convert(DType::I32).all_reduce(Reduction::Sum, axes);

        let next_momenta: Vec<_> =
            momenta.iter().zip(deltas).map(|(v, delta)| *v * momentum + *delta).collect();
        let next_params = params
            .iter()
            .zip(deltas)
            .zip(&next_momenta)
            .map(|((p, delta), v)| *p - (*delta + *v * momentum) * learning_rate);
        let next_params: Vec<_> = next_params.collect();
        let named = self.params.iter().zip(&next_params);
        let named = named.map(|((name, _), next)| (StateSection::Params.path(name), *next));
        let among_params = first_nonfinite(t, &named.collect(), AxisSet::EMPTY);
        let none = t.scalar(DType::I32, 0.0);
        let coded = (1..).zip(&self.params).fold(none, |coded, (code, (_, place))| {
            let of_leaf = none.full_like(*place as f64 + 1.0);
            among_params.equal(f64::from(code)).select(of_leaf, coded)
        });
        let is_finite = among_params.equal(0.0);
        let apply = match self.stops {
            true => is_finite.and(all_skipped.equal(0.0)),
            false => is_finite,
        };
        let before = params.iter().chain(momenta).chain(means);
        let next = next_params.iter().chain(&next_momenta).chain(next_means);
        let chosen = next.zip(before).map(|(next, before)| apply.select(*next, *before));
        let counted = all_skipped.convert(num_skipped.dtype());
        chosen.chain([counted, coded]).collect()
    }
}

/// Checks that replicas which train on their own do not wait for each other in each step: only in
/// an outer step, a branch of a case.
pub(super) fn check(graph: &Graph, own_axes: AxisSet) -> Result<(), StepError> {
    match unconditional_collectives(graph).intersection(own_axes).is_empty() {
        true => Ok(()),
        false => Err(StepError::LocalCollective),
    }
}
