//! A stack of equal blocks: unrolled or as a scan, with or without rematerialization.

use hlo::random::Key;
use hlo::{Axis, DType, Literal, Tensor, TensorType, Tree, trace};

use crate::scope::UseBelow;
use crate::stages::Stages;
use crate::{LayerOptions, Parameter, Precision, RunningMean, Scope, Training};

/// How the blocks of a [`stack`] are run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stack {
    /// Number of blocks.
    pub num_blocks: usize,
    /// `true` runs the block in a loop instead of unrolling it. The program has the size of one
    /// block and compiles faster, but communication in the loop overlaps only within its iteration,
    /// and gradients of all blocks are complete only when the loop ends.
    pub scan: bool,
    /// `true` if the backward pass recomputes each block instead of keeping its activations
    /// (activation checkpointing).
    pub remat: bool,
}

/// Applies all blocks to `x`, each with its parameters under `INDEX.` of the scope. A scan declares
/// a parameter or running mean of all blocks once, stacked along a leading dim, under `*.`. Values
/// of parameters, random numbers, observations of running means and, up to rounding, results do not
/// depend on how the blocks are run.
///
/// On a mesh with the axis `pipeline`, each replica along it has a part of the blocks, which are
/// stacked, and sends its result to the next; see [`Stages`].
#[track_caller]
pub fn stack<'g>(
    scope: &Scope<'g>,
    x: Tensor<'g>,
    how: Stack,
    block: impl for<'b> Fn(&Scope<'b>, Tensor<'b>) -> Tensor<'b>,
) -> Tensor<'g> {
    stack_with(scope, x, &[], how, |scope, x, _| block(scope, x))
}

/// [`stack`] of blocks that all read the same `given` tensors, such as a mask, besides their own
/// input.
#[track_caller]
pub fn stack_with<'g>(
    scope: &Scope<'g>,
    x: Tensor<'g>,
    given: &[Tensor<'g>],
    how: Stack,
    block: impl for<'b> Fn(&Scope<'b>, Tensor<'b>, &[Tensor<'b>]) -> Tensor<'b>,
) -> Tensor<'g> {
    let Stack { num_blocks, scan, remat } = how;
    if num_blocks == 0 {
        return x;
    }
    if x.tracer().mesh().size(Axis::Pipeline) > 1 {
        return Stages::new(scope, x, given, how, &block).one_after_the_other(scope, x, given);
    }
    if !scan && !remat {
        let run = |x: Tensor<'g>, index| block(&scope.block(index), x.block_boundary(), given);
        return (0..num_blocks).fold(x, run).block_boundary();
    }
    let run = TracedBlock::new(scope, x, given, scan, &block);
    let shared = [given, &run.shared_inputs(scope)].concat();
    if !scan {
        let y = (0..num_blocks).fold(x, |x, index| {
            let number = x.tracer().scalar(DType::U32, index as f64);
            let leaves = run.leaves(&scope.at(index), None);
            let inputs = [&[x.block_boundary()], &shared[..], &[number], &leaves].concat();
            let results = x.tracer().remat(&inputs, |inputs| run.on(inputs));
            run.observe(&scope.at(index), &results[1..]);
            results[0]
        });
        return y.block_boundary();
    }
    let all_blocks = scope.at(ANY_BLOCK);
    let numbers: Vec<_> = (0..num_blocks as u32).collect();
    let mut stacks = vec![x.tracer().constant(Literal::from_slice(&[num_blocks], &numbers))];
    stacks.extend(run.leaves(&all_blocks, Some(num_blocks)));
    let (carried, observed) = x.tracer().scan(
        num_blocks,
        &shared,
        &[x.block_boundary()],
        &stacks,
        |shared, carried, values| {
            let inputs = [carried, shared, values].concat();
            let mut results = match remat {
                true => inputs[0].tracer().remat(&inputs, |inputs| run.on(inputs)),
                false => run.on(&inputs),
            };
            let observed = results.split_off(1);
            (results, observed)
        },
    );
    run.observe(&all_blocks, &observed);
    carried[0].block_boundary()
}

/// Stands for a block's index in the paths of stacked parameters.
pub(crate) const ANY_BLOCK: char = '*';

/// A block as a function of tensors: x; what is given to all blocks; if it draws random numbers,
/// the two words of a key and the index of the first example; the block's index; parameters and
/// running means in order of declaration. It returns y and its observations of running means.
pub(crate) struct TracedBlock<F> {
    block: F,
    precision: Precision,
    pub(crate) params: Tree<Parameter>,
    pub(crate) running_means: Tree<RunningMean>,
    observed: Vec<String>,
    /// In training: number of examples on this replica, and the axes over which the batch is split.
    training: Option<(usize, hlo::AxisSet)>,
    num_given: usize,
    pub(crate) is_random: bool,
    /// Applied inside the body. All blocks share one body, so blocks that are not scanned have the
    /// first block's path.
    param_use: Option<UseBelow>,
    options: LayerOptions,
}

impl<F: for<'b> Fn(&Scope<'b>, Tensor<'b>, &[Tensor<'b>]) -> Tensor<'b>> TracedBlock<F> {
    /// Traces one block to discover its parameters and state. An error in it is ignored here;
    /// running the block reports it.
    #[track_caller]
    pub(crate) fn new(
        scope: &Scope<'_>,
        x: Tensor<'_>,
        given: &[Tensor<'_>],
        scan: bool,
        block: F,
    ) -> Self {
        let (num_given, options) = (given.len(), scope.options());
        let given_types: Vec<_> = given.iter().map(|given| given.ty()).collect();
        let precision = scope.precision();
        let in_training = scope.training();
        let (mut params, mut running_means, mut observed) = Default::default();
        let graph = trace(x.tracer().mesh(), |t| {
            let word = || TensorType::new(DType::U32, &[]);
            let training = in_training.map(|given| Training {
                key: Key::from_words([0, 1].map(|i| t.input(format!("key.{i}"), word()))),
                first_example: t.input("first_example", given.first_example.ty()),
                num_examples: given.num_examples,
                batch_axes: given.batch_axes,
            });
            // Which parameters vary over `tensor`, too, follows from their marks.
            let varying = x.varying().minus(Axis::Tensor.into());
            let scope = match training {
                Some(training) => Scope::declare_in_training(t, precision, varying, training),
                None => Scope::declare(t, precision, varying),
            };
            let scope = scope.with_options(options);
            let x = t.input("x", x.ty());
            let given = given_types.iter().enumerate();
            let given = given.map(|(index, ty)| t.input(format!("given.{index}"), ty.clone()));
            block(&scope, x, &given.collect::<Vec<_>>());
            (params, running_means) = (scope.parameters(), scope.running_means());
            observed = scope.observed().paths().map(str::to_owned).collect();
        });
        // The words of the key and the first example come first.
        let is_random = in_training.is_some()
            && graph.is_ok_and(|graph| {
                let random: Vec<_> = graph.inputs()[..3].iter().map(|input| input.value).collect();
                graph.nodes().iter().any(|node| node.operands.iter().any(|x| random.contains(x)))
            });
        let training = in_training.map(|given| (given.num_examples, given.batch_axes));
        let body = if scan { scope.at(ANY_BLOCK) } else { scope.at(0) };
        let param_use = body.child_param_use();
        Self {
            block,
            precision,
            params,
            running_means,
            observed,
            training,
            num_given,
            is_random,
            param_use,
            options,
        }
    }

    /// The inputs shared by all blocks: the words of the stack's key and the index of the first
    /// example; none if blocks draw no random numbers.
    #[track_caller]
    pub(crate) fn shared_inputs<'g>(&self, scope: &Scope<'g>) -> Vec<Tensor<'g>> {
        let training = scope.training().filter(|_| self.is_random);
        let (Some(training), Some(key)) = (training, scope.random_key("")) else { return vec![] };
        let [high, low] = key.words();
        vec![high, low, training.first_example]
    }

    /// The parameters and running means of the block with this scope, or those of `num_blocks`
    /// blocks stacked.
    #[track_caller]
    fn leaves<'g>(&self, scope: &Scope<'g>, num_blocks: Option<usize>) -> Vec<Tensor<'g>> {
        let stacked = |dims: &[usize]| -> Vec<usize> {
            num_blocks.into_iter().chain(dims.iter().copied()).collect()
        };
        let more = usize::from(num_blocks.is_some());
        let params = self.params.iter().map(|(path, p)| {
            let (dims, num_stacked) = (stacked(&p.dims), p.num_stacked + more);
            scope.bound_param(path, Parameter { dims, num_stacked, ..p.clone() })
        });
        let means = self.running_means.iter().map(|(path, m)| {
            let (dims, num_stacked) = (stacked(&m.dims), m.num_stacked + more);
            scope.declare_mean(path, RunningMean { dims, num_stacked, ..m.clone() })
        });
        params.chain(means).collect()
    }

    #[track_caller]
    pub(crate) fn on<'b>(&self, inputs: &[Tensor<'b>]) -> Vec<Tensor<'b>> {
        let (x, rest) = (inputs[0], &inputs[1..]);
        let t = x.tracer();
        let (given, rest) = rest.split_at(self.num_given);
        let (random, rest) = rest.split_at(if self.is_random { 3 } else { 0 });
        let (index, leaves) = (rest[0], &rest[1..]);
        let training = self.training.map(|(num_examples, batch_axes)| {
            let zero = t.scalar(DType::U32, 0.0);
            let (key, first_example) = match *random {
                [high, low, first] => (Key::from_words([high, low]).fold_in(index), first),
                _ => (Key::from_words([zero; 2]), zero),
            };
            Training { key, first_example, num_examples, batch_axes }
        });
        let (params, means) = leaves.split_at(self.params.len());
        let tree = |paths: Vec<String>, values: &[Tensor<'b>]| -> Tree<Tensor<'b>> {
            paths.into_iter().zip(values.iter().copied()).collect()
        };
        let params = tree(self.params.paths().map(str::to_owned).collect(), params);
        let means = tree(self.running_means.paths().map(str::to_owned).collect(), means);
        let scope = Scope::bind(t, self.precision, params, training)
            .with_model_state(means)
            .with_param_use_below(self.param_use.clone())
            .with_options(self.options);
        let y = (self.block)(&scope, x, given);
        let observed = scope.observed();
        let observed = self.observed.iter().filter_map(|path| observed.get(path).copied());
        std::iter::once(y).chain(observed).collect()
    }

    /// Records the observations of the block with this scope.
    #[track_caller]
    fn observe<'g>(&self, scope: &Scope<'g>, observed: &[Tensor<'g>]) {
        for (path, value) in self.observed.iter().zip(observed) {
            scope.observe(path, *value);
        }
    }
}
