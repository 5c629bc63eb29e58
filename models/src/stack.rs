//! A stack of equal blocks: written out, as a scan, kept or computed again.

use hlo::{Tensor, Tree, trace};

use crate::{Parameter, Precision, Scope};

/// How the blocks of a [`stack`] are run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stack {
    /// Number of blocks.
    pub num_blocks: usize,
    /// One block in a loop instead of all in a row: a program of the size of one block, which compiles
    /// sooner, but whose gradients are there only when the loop is through.
    pub scan: bool,
    /// Does the backward pass compute each block again instead of keeping its values?
    pub remat: bool,
}

/// `x` through all blocks, each with its parameters under `INDEX.*` of the scope. The parameters' names
/// and values, and up to rounding the results, are the same however the blocks are run. A parameter of
/// a block in a scan has at least one dim.
///
/// A block in a scan or with remat is a function of its parameters and of x alone: [`Scope::training`]
/// is not there, so it has no dropout.
#[track_caller]
pub fn stack<'g>(
    scope: &Scope<'g>,
    x: Tensor<'g>,
    how: Stack,
    block: impl for<'b> Fn(&Scope<'b>, Tensor<'b>) -> Tensor<'b>,
) -> Tensor<'g> {
    let Stack { num_blocks, scan, remat } = how;
    if num_blocks == 0 {
        return x;
    }
    if !scan && !remat {
        return (0..num_blocks).fold(x, |x, index| block(&scope.at(index), x));
    }
    let precision = scope.precision();
    let declared = parameters(scope, x, &block);
    let run = Bound { block, declared: &declared, precision };
    let params_of = |index: usize| -> Vec<Tensor<'g>> {
        let scope = scope.at(index);
        let params = declared.iter();
        params.map(|(path, p)| scope.param_in_full(path, &p.dims, p.initializer)).collect()
    };
    if !scan {
        return (0..num_blocks).fold(x, |x, index| {
            let inputs = [&[x][..], &params_of(index)].concat();
            x.tracer().remat(&inputs, |inputs| run.on(inputs))[0]
        });
    }
    let blocks: Vec<_> = (0..num_blocks).map(params_of).collect();
    let stacked = |parameter: usize| {
        let params: Vec<_> = blocks.iter().map(|params| params[parameter]).collect();
        // Joined along their own first dim and cut up at once, not given a new dim one by one.
        let dims = [&[num_blocks], &params[0].shape()[..]].concat();
        params[0].concatenate(&params[1..], 0).reshape(&dims)
    };
    let stacks: Vec<_> = (0..declared.len()).map(stacked).collect();
    let (carried, _) = x.tracer().scan(num_blocks, &[], &[x], &stacks, |_, carried, values| {
        let inputs = [carried, values].concat();
        let y = match remat {
            true => inputs[0].tracer().remat(&inputs, |inputs| run.on(inputs)),
            false => run.on(&inputs),
        };
        (y, vec![])
    });
    carried[0]
}

/// A block as a function of tensors: x, and the parameters in the order in which they are declared.
struct Bound<'a, F> {
    block: F,
    declared: &'a Tree<Parameter>,
    precision: Precision,
}

impl<F: for<'b> Fn(&Scope<'b>, Tensor<'b>) -> Tensor<'b>> Bound<'_, F> {
    #[track_caller]
    fn on<'b>(&self, inputs: &[Tensor<'b>]) -> Vec<Tensor<'b>> {
        let paths = self.declared.paths().map(str::to_owned);
        let values = paths.zip(inputs[1..].iter().copied()).collect();
        let scope = Scope::bind(inputs[0].tracer(), self.precision, values, None);
        vec![(self.block)(&scope, inputs[0])]
    }
}

/// What one block declares. An error in it comes up again where the block is run.
fn parameters<'g>(
    scope: &Scope<'g>,
    x: Tensor<'g>,
    block: &impl for<'b> Fn(&Scope<'b>, Tensor<'b>) -> Tensor<'b>,
) -> Tree<Parameter> {
    let mut declared = Tree::new();
    let _ = trace(x.tracer().mesh(), |t| {
        let scope = Scope::declare(t, scope.precision(), x.varying());
        block(&scope, t.input("x", x.ty()));
        declared = scope.parameters();
    });
    declared
}
