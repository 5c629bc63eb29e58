//! Models of equal blocks between an embedding and a head: what a pipeline divides into stages.

use hlo::Tensor;

use crate::{Batch, Loss, Scope, Stack, stack_with};

/// What [`Pipelined::embed`] makes of a batch.
#[derive(Clone, Debug)]
pub struct Embedded<'g> {
    /// The input of the first block. The result of each block has its type.
    pub x: Tensor<'g>,
    /// What all blocks read besides, such as a mask.
    pub given: Vec<Tensor<'g>>,
    /// Parameters that the head uses too, such as a tied embedding.
    pub tied: Vec<Tensor<'g>>,
    /// Positions of an example.
    pub num_positions: usize,
}

/// A model as an embedding, a block that is repeated, and a head. Its loss follows from these
/// three: [`Pipelined::run`].
pub trait Pipelined {
    /// How the blocks are run; their scope is `blocks`.
    fn stack(&self) -> Stack;

    /// The input of the first block.
    fn embed<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Embedded<'g>;

    /// One block, with the scope of its own parameters, on `x` of [`Embedded`]'s type. `given` and
    /// `num_positions` as there.
    fn block<'g>(
        &self,
        scope: &Scope<'g>,
        x: Tensor<'g>,
        given: &[Tensor<'g>],
        num_positions: usize,
    ) -> Tensor<'g>;

    /// `true` if [`Self::head`] treats each row of x by itself, so that it can be given any rows as
    /// examples of one position.
    fn is_head_by_row(&self) -> bool {
        false
    }

    /// The loss, from what [`Self::embed`] returned with the result of the last block in place of
    /// `x`.
    fn head<'g>(&self, scope: &Scope<'g>, last: &Embedded<'g>, batch: &Batch<'g>) -> Loss<'g>;

    /// Embedding and all blocks: what the head gets.
    #[track_caller]
    fn through_blocks<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Embedded<'g> {
        let first = self.embed(scope, batch);
        let num_positions = first.num_positions;
        let blocks = scope.at("blocks");
        let x = stack_with(&blocks, first.x, &first.given, self.stack(), |scope, x, given| {
            self.block(scope, x, given, num_positions)
        });
        Embedded { x, ..first }
    }

    /// The loss of the whole model.
    #[track_caller]
    fn run<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
        self.head(scope, &self.through_blocks(scope, batch), batch)
    }
}
