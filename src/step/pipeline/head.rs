//! The head in a tick: on rows of the last result, a part on each stage, or whole on the last.

use hlo::random::Key;
use hlo::{Axis, DType, Tensor, Tree, vjp};
use models::{Batch, Embedded};

use super::carry::{Carry, TickInputs};
use super::tick::Tick;
use super::turn::{Turn, stage};

impl Tick<'_, '_> {
    /// `true` if each stage computes the head for a part of the rows.
    pub(super) fn splits_head(&self) -> bool {
        self.pipeline.model.is_head_by_row()
    }

    /// A part of the rows of the last stage's x for each stage: `[ceil(rows / P), ..]`; zeros where
    /// rows are missing.
    #[track_caller]
    pub(super) fn to_all<'b>(&self, x: Tensor<'b>) -> Tensor<'b> {
        let num_stages = self.schedule().num_stages();
        let rows = x.dim(0).div_ceil(num_stages);
        let padded = x.pad_end(0, rows * num_stages);
        let piece = |stage: usize| padded.slice_dim(0, stage * rows, (stage + 1) * rows);
        let own = piece(num_stages - 1);
        (0..num_stages - 1).fold(own, |received, stage| {
            let sent = piece(stage);
            let sent = sent.collective_permute(&[(num_stages - 1, stage)], Axis::Pipeline);
            let is_for = self::stage(x.tracer()).equal(stage as f64);
            is_for.select(sent, received)
        })
    }

    /// All rows on the last stage, from the part that each stage has.
    #[track_caller]
    pub(super) fn to_last<'b>(&self, rows: Tensor<'b>) -> Tensor<'b> {
        let last = self.schedule().num_stages() - 1;
        let pieces =
            (0..last).map(|stage| rows.collective_permute(&[(stage, last)], Axis::Pipeline));
        let pieces: Vec<_> = pieces.chain([rows]).collect();
        pieces[0].concatenate(&pieces[1..], 0).slice_dim(0, 0, self.x.dims[0])
    }

    /// The head on x, in ticks that have one: adds to the sums and returns the gradient of x.
    #[track_caller]
    pub(super) fn head<'b>(
        &self,
        turn: Turn<'b>,
        x: Tensor<'b>,
        carry: &mut Carry<'b>,
    ) -> Tensor<'b> {
        let t = x.tracer();
        let batch = carry.given.batch(self.step, turn.microbatch);
        let TickInputs { outer, key, first_example, .. } = &carry.given;
        let [high, low] = key.words();
        let sums: Vec<_> = self.of_head.iter().map(|path| carry.outer_sums[&**path]).collect();
        let inputs = [
            &[carry.loss, carry.weight, x, high, low, *first_example, turn.microbatch],
            &sums[..],
            &outer.values().copied().collect::<Vec<_>>(),
            &batch.fields.values().copied().collect::<Vec<_>>(),
        ]
        .concat();
        let (outer, fields) = (outer.map(|_, _| ()), batch.fields.map(|_, _| ()));
        let is_on = turn.exists.and(turn.chunk.equal(0.0));
        let num_sums = self.of_head.len();
        let results = t.case(
            (!is_on).convert(DType::U32),
            &inputs,
            &[&|inputs| self.head_on(&outer, &fields, inputs), &|inputs| {
                let [loss, weight, x] = [inputs[0], inputs[1], inputs[2]];
                [&[loss, weight, x.full_like(0.0)], &inputs[7..][..num_sums]].concat()
            }],
        );
        carry.loss = results[0];
        carry.weight = results[1];
        for (path, sum) in self.of_head.iter().zip(&results[3..]) {
            carry.outer_sums.insert(path, *sum);
        }
        results[2]
    }

    /// A tick with a head: the next loss, weight, the gradient of x, the next sums.
    #[track_caller]
    fn head_on<'b>(
        &self,
        outer: &Tree<()>,
        fields: &Tree<()>,
        inputs: &[Tensor<'b>],
    ) -> Vec<Tensor<'b>> {
        let (step, model) = (self.step, self.pipeline.model);
        let ([loss, weight, x, high, low, first_example, microbatch], rest) =
            inputs.split_first_chunk().unwrap_or_else(|| unreachable!("as given"));
        let t = x.tracer();
        let (sums, rest) = rest.split_at(self.of_head.len());
        let mut rest = rest.iter().copied();
        let mut next = || rest.next().unwrap_or_else(|| unreachable!("as given"));
        let given = TickInputs {
            outer: outer.map(|_, ()| next()),
            blocks: vec![],
            key: Key::from_words([*high, *low]),
            first_example: *first_example,
            fields: Tree::new(),
        };
        let fields = fields.map(|_, ()| next());
        let weights = step.spec.weights(t, || given.first_example(step, *microbatch));
        let batch = Batch { fields, weight: weights };
        let scope = given.scope(step, *microbatch);
        let first = model.embed(&scope, &batch);
        let is_last = stage(t).equal((self.schedule().num_stages() - 1) as f64);
        let counts = |x: Tensor<'b>| match self.splits_head() {
            true => x,
            false => is_last.select(x, x.full_like(0.0)),
        };
        let x = counts(*x);
        let loss_of = |x: Tensor<'b>| match self.splits_head() {
            true => {
                let batch = self.rows(&batch, x.dim(0));
                model.head(&scope, &Embedded { x, num_positions: 1, ..first.clone() }, &batch)
            }
            false => model.head(&scope, &Embedded { x, ..first.clone() }, &batch),
        };
        let found = loss_of(x);
        let wrt: Vec<_> = self.of_head.iter().map(|path| given.outer[&**path]).collect();
        let cotangent = counts(found.sum.full_like(1.0));
        let gradients = vjp(&[(found.sum, cotangent)], &[&[x], &wrt[..]].concat());
        let add = |sum: Tensor<'b>, more: Tensor<'b>| {
            sum + counts(more.vary(sum.varying())).convert(sum.dtype())
        };
        let sums =
            sums.iter().zip(&gradients[1..]).map(|(sum, more)| *sum + more.convert(sum.dtype()));
        [add(*loss, found.sum), add(*weight, found.weight), gradients[0]]
            .into_iter()
            .chain(sums)
            .collect()
    }

    /// The examples of one position that this stage's rows of the last result are: `num_rows`, of
    /// each replica along `tensor` where these have pieces of the rows.
    #[track_caller]
    fn rows<'b>(&self, batch: &Batch<'b>, num_rows: usize) -> Batch<'b> {
        let num_pieces = self.step.spec.plan.num_row_pieces();
        let num_stages = self.schedule().num_stages();
        let own = |x_bt: Tensor<'b>| {
            let x_pn = x_bt.reshape(&[num_pieces, x_bt.num_elements() / num_pieces]);
            let x_pn = x_pn.pad_end(1, num_rows * num_stages);
            let x_psn = x_pn.reshape(&[num_pieces, num_stages, num_rows]).transpose(&[1, 0, 2]);
            let x_pn = x_psn.index_leading(x_bt.tracer().replica_id(Axis::Pipeline));
            x_pn.reshape(&[num_pieces * num_rows])
        };
        let num_examples = batch.weight.dim(0);
        let of_positions = |x: &Tensor<'b>| x.shape() == [num_examples, self.num_positions];
        let fields = batch.fields.iter().filter(|(_, x)| of_positions(x)).map(|(name, x)| {
            let x = own(*x);
            (name.to_owned(), x.reshape(&[x.num_elements(), 1]))
        });
        let weight_bt = batch.weight.broadcast_in_dim(&[num_examples, self.num_positions], &[0]);
        Batch { fields: fields.collect(), weight: own(weight_bt) }
    }
}
