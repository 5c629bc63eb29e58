//! The blocks of a model as the stages of a pipeline: what each replica along the axis `pipeline`
//! has of them.

use hlo::{Axis, DType, LeafSpec, Reduction, Tensor};

use crate::stack::{ANY_BLOCK, TracedBlock};
use crate::{Parameter, Scope, Stack};

/// A block as a function of the scope of its parameters, of x, and of what all blocks read.
type BlockFn<'m> = dyn for<'b> Fn(&Scope<'b>, Tensor<'b>, &[Tensor<'b>]) -> Tensor<'b> + 'm;

/// The blocks of a model, cut into stages: with P stages of v chunks of n blocks each, chunk r of
/// stage s is the blocks from `(r P + s) n` on. So an example passes all stages v times, always to
/// the next and from the last to the first. With more chunks stages wait less for each other.
/// Narayanan et al., "Efficient large-scale language model training on GPU clusters using
/// Megatron-LM" (2021), section 2.2.
///
/// Each parameter of a block is a leaf with the dims `[v, P, n]` before its own, of which the
/// second is cut over the axis.
pub struct Stages<'m> {
    block: TracedBlock<Box<BlockFn<'m>>>,
    num_chunks: usize,
    num_stages: usize,
    blocks_per_chunk: usize,
    scan: bool,
    remat: bool,
}

impl<'m> Stages<'m> {
    /// Traces one block of a stack with this scope to discover its parameters; x and `given` are
    /// those of the first block.
    #[track_caller]
    pub fn new(
        scope: &Scope<'_>,
        x: Tensor<'_>,
        given: &[Tensor<'_>],
        how: Stack,
        block: impl for<'b> Fn(&Scope<'b>, Tensor<'b>, &[Tensor<'b>]) -> Tensor<'b> + 'm,
    ) -> Self {
        let block: Box<BlockFn<'m>> = Box::new(block);
        let x = x.vary(Axis::Pipeline);
        let block = TracedBlock::new(scope, x, given, true, block);
        let num_stages = x.tracer().mesh().size(Axis::Pipeline);
        let num_chunks = scope.options().pipeline_chunks.max(1);
        if !block.running_means.is_empty() {
            x.reject("pipeline", "blocks with running means cannot be cut into stages");
        }
        if !how.num_blocks.is_multiple_of(num_chunks * num_stages) {
            let message = format!(
                "{num_stages} stages of {num_chunks} chunks do not divide {} blocks",
                how.num_blocks
            );
            x.reject("pipeline", message);
        }
        let blocks_per_chunk = (how.num_blocks / (num_chunks * num_stages)).max(1);
        let scan = how.scan && blocks_per_chunk > 1;
        Self { block, num_chunks, num_stages, blocks_per_chunk, scan, remat: how.remat }
    }

    /// The parameters of a block, in the order of [`Self::leaves`].
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.block.params.paths()
    }

    /// The path, below the scope of the blocks, of the leaf of a parameter of a block.
    pub fn leaf_path(parameter: &str) -> String {
        format!("{ANY_BLOCK}.{parameter}")
    }

    /// This stage's rows of each parameter, `[v, n, ..]`, from the scope of the blocks.
    #[track_caller]
    pub fn leaves<'g>(&self, scope: &Scope<'g>) -> Vec<Tensor<'g>> {
        let sizes = [self.num_chunks, self.num_stages, self.blocks_per_chunk];
        let scope = scope.at(ANY_BLOCK);
        let leaf = |(path, of_block): (&str, &Parameter)| {
            let dims = [&sizes[..], &of_block.dims].concat();
            let num_stacked = LeafSpec::PIPELINE_DIMS;
            let leaf = Parameter { dims, num_stacked, is_pipelined: true, ..of_block.clone() };
            Self::of_stage(scope.bound_param(path, leaf))
        };
        self.block.params.iter().map(leaf).collect()
    }

    /// This stage's rows of a leaf, `[v, n, ..]`, from what it has of the leaf, `[v, 1, n, ..]`.
    #[track_caller]
    pub fn of_stage(leaf: Tensor<'_>) -> Tensor<'_> {
        match &leaf.shape()[..] {
            [chunks, _, more @ ..] => leaf.reshape(&[&[*chunks], more].concat()),
            // The trace has an error.
            _ => leaf,
        }
    }

    /// The rows of a chunk, a u32 scalar, from this stage's rows of each parameter: of each the
    /// rows of all blocks, `[n, ..]`, where blocks are scanned; elsewhere those of the first block,
    /// then those of the second, and so on.
    #[track_caller]
    pub fn rows<'g>(&self, leaves: &[Tensor<'g>], chunk: Tensor<'g>) -> Vec<Tensor<'g>> {
        let of_chunk = |leaf: &Tensor<'g>| match leaf.dim(0) {
            1 => leaf.reshape(&leaf.shape()[1..]),
            _ => leaf.index_leading(chunk),
        };
        let stacks: Vec<_> = leaves.iter().map(of_chunk).collect();
        if self.scan {
            return stacks;
        }
        let row = |stack: &Tensor<'g>, block| {
            stack.slice_dim(0, block, block + 1).reshape(&stack.shape()[1..])
        };
        let blocks = 0..self.blocks_per_chunk;
        blocks.flat_map(|block| stacks.iter().map(move |stack| row(stack, block))).collect()
    }

    /// For each of [`Self::rows`], the index of its parameter.
    pub fn parameter_of_rows(&self) -> impl Iterator<Item = usize> {
        let times = if self.scan { 1 } else { self.blocks_per_chunk };
        (0..times).flat_map(|_| 0..self.block.params.len())
    }

    /// What a stage has of a leaf, `[v, 1, n, ..]`, from its rows: `[v, ..]` before what
    /// [`Self::rows`] returns.
    #[track_caller]
    pub fn leaf_of_rows<'g>(&self, rows: &[Tensor<'g>]) -> Tensor<'g> {
        let of_blocks = |rows: &Tensor<'g>| {
            let (dims, start) = (rows.shape(), if self.scan { 2 } else { 1 });
            let num_blocks = if self.scan { self.blocks_per_chunk } else { 1 };
            rows.reshape(&[&[self.num_chunks, 1, num_blocks], &dims[start..]].concat())
        };
        let rows: Vec<_> = rows.iter().map(of_blocks).collect();
        rows[0].concatenate(&rows[1..], 2)
    }

    /// What all chunks read besides x, `given` and their parameters, from the scope of the blocks:
    /// if blocks draw random numbers, the two words of a key and the index of the first example.
    #[track_caller]
    pub fn shared<'g>(&self, scope: &Scope<'g>) -> Vec<Tensor<'g>> {
        self.block.shared_inputs(scope)
    }

    /// This stage's chunk with index `chunk`, a u32 scalar, and these [`Self::rows`], on x.
    #[track_caller]
    pub fn chunk<'g>(
        &self,
        rows: &[Tensor<'g>],
        x: Tensor<'g>,
        given: &[Tensor<'g>],
        shared: &[Tensor<'g>],
        chunk: Tensor<'g>,
    ) -> Tensor<'g> {
        let t = x.tracer();
        let of_chunk = t.replica_id(Axis::Pipeline) + chunk * self.num_stages as f64;
        let first = of_chunk * self.blocks_per_chunk as f64;
        let inputs = [&[x, first], given, shared, rows].concat();
        let num_shared = 2 + given.len() + shared.len();
        match self.remat {
            true => t.remat(&inputs, |inputs| vec![self.blocks(inputs, num_shared)])[0],
            false => self.blocks(&inputs, num_shared),
        }
    }

    /// The blocks of a chunk on x, the first of the inputs: the number of the first block follows,
    /// then what all blocks read, then rows of parameters.
    #[track_caller]
    fn blocks<'b>(&self, inputs: &[Tensor<'b>], num_shared: usize) -> Tensor<'b> {
        let (shared, rows) = inputs.split_at(num_shared);
        let (x, first, shared) = (shared[0], shared[1], &shared[2..]);
        if !self.scan {
            let rows = rows.chunks(self.block.params.len().max(1)).enumerate();
            return rows.fold(x, |x, (place, rows)| {
                let number = first + place as f64;
                self.block.on(&[&[x], shared, &[number], rows].concat())[0]
            });
        }
        let t = x.tracer();
        let places = t.iota(DType::U32, &[self.blocks_per_chunk], 0);
        let numbers = places + first.broadcast_like(places, &[]);
        let stacks = [&[numbers], rows].concat();
        let (carried, _) =
            t.scan(self.blocks_per_chunk, shared, &[x], &stacks, |shared, x, values| {
                (self.block.on(&[x, shared, values].concat()), vec![])
            });
        carried[0]
    }

    /// The result of all blocks for one batch, the same on all stages. One chunk works at a time:
    /// for training see the schedules of a pipeline.
    #[track_caller]
    pub(crate) fn one_after_the_other<'g>(
        &self,
        scope: &Scope<'g>,
        x: Tensor<'g>,
        given: &[Tensor<'g>],
    ) -> Tensor<'g> {
        let t = x.tracer();
        let shared = self.shared(scope);
        let consts = [given, &shared, &self.leaves(scope)].concat();
        let num_turns = self.num_chunks * self.num_stages;
        let turns = t.iota(DType::U32, &[num_turns], 0);
        let x = x.vary(Axis::Pipeline);
        let (carried, _) = t.scan(num_turns, &consts, &[x], &[turns], |consts, x, turn| {
            (vec![self.turn(consts, given.len(), shared.len(), x[0], turn[0])], vec![])
        });
        // The last stage has sent it to the first.
        let is_first = t.replica_id(Axis::Pipeline).equal(0.0);
        let y = is_first.select(carried[0], carried[0].full_like(0.0));
        y.all_reduce(Reduction::Sum, Axis::Pipeline)
    }

    /// What a stage receives after a turn.
    #[track_caller]
    fn turn<'b>(
        &self,
        consts: &[Tensor<'b>],
        num_given: usize,
        num_shared: usize,
        x: Tensor<'b>,
        turn: Tensor<'b>,
    ) -> Tensor<'b> {
        let (given, rest) = consts.split_at(num_given);
        let (shared, leaves) = rest.split_at(num_shared);
        let chunk = turn / self.num_stages as f64;
        let rows = self.rows(leaves, chunk);
        self.chunk(&rows, x, given, shared, chunk).collective_permute(
            &(0..self.num_stages).map(|s| (s, (s + 1) % self.num_stages)).collect::<Vec<_>>(),
            Axis::Pipeline,
        )
    }
}
