//! Accumulation by a pipeline: the microbatches pass the stages along the axis `pipeline`, several
//! at a time.
//!
//! A tick has three parts. What a part sends travels during the next, so no stage waits for it:
//!
//! ```text
//! 1  the gradient of the last tick to the previous stage,   forward pass of a chunk
//!    rows of the last result to all stages
//! 2                                                         head on these rows
//! 3  the result to the next stage,                          backward pass of a chunk
//!    the gradients of the rows to the last stage
//! ```
//! Which pass a stage runs at a tick is computed from the tick and the stage, as
//! [`PipelineSchedule`] says. A stage that is idle runs a pass all the same, like all replicas; its
//! values are selected away.

use std::collections::BTreeMap;

use hlo::random::Key;
use hlo::{Axis, AxisSet, DType, Literal, Reduction, Tensor, TensorType, Tracer, Tree, VjpHalves};
use hlo::vjp;
use models::{Batch, Embedded, Pipelined, Scope, Stages, Training};

use super::DeclaredStep;
use super::accumulate::{Accumulate, Sequential, Sums};
use super::declare::StepParam;
use super::inputs::StepInputs;
use crate::parallel::{Phase, PipelineSchedule};

/// Microbatches in the order of a schedule.
pub(super) struct Pipeline<'m> {
    pub model: &'m dyn Pipelined,
    pub schedule: PipelineSchedule,
}

impl Accumulate for Pipeline<'_> {
    fn sums<'g>(
        &self,
        step: &DeclaredStep<'_>,
        inputs: &StepInputs<'g>,
        params: &Tree<StepParam<'g>>,
        is_training: bool,
    ) -> Sums<'g> {
        if !is_training {
            return Sequential.sums(step, inputs, params, false);
        }
        let t = inputs.step.tracer();
        let given = Given::new(step, inputs, params);
        let Some(tick) = Tick::new(self, step, &given) else {
            // The trace has an error.
            return Sequential.sums(step, inputs, params, true);
        };
        let mut carry = tick.start(given);
        for Phase { start, num_ticks, forward, backward } in self.schedule.phases() {
            if num_ticks == 0 {
                continue;
            }
            let values = t.fori_loop(num_ticks as u32, &carry.values(), |index, values| {
                let number = index.convert(DType::I32) + start as f64;
                let carry = carry.with(values);
                tick.run(number, carry, forward, backward).values()
            });
            carry = carry.with(&values);
        }
        tick.finish(params, &carry)
    }
}

/// What all ticks read.
#[derive(Clone)]
struct Given<'g> {
    /// Parameters of embedding and head, under their paths in the model.
    outer: Tree<Tensor<'g>>,
    /// This stage's rows of the parameters of blocks, `[v, n, ..]`.
    blocks: Vec<Tensor<'g>>,
    key: Key<'g>,
    /// Of the first microbatch.
    first_example: Tensor<'g>,
    /// The fields of the batch, cut into microbatches: `[num_microbatches, microbatch, ..]`.
    fields: Tree<Tensor<'g>>,
}

impl<'g> Given<'g> {
    #[track_caller]
    fn new(
        step: &DeclaredStep<'_>,
        inputs: &StepInputs<'g>,
        params: &Tree<StepParam<'g>>,
    ) -> Self {
        let spec = &step.spec;
        let (mut outer, mut blocks) = (Tree::new(), vec![]);
        for (path, param) in params.iter() {
            let value = param.once_per_step.unwrap_or(param.tensor);
            if step.params[path].is_pipelined {
                let [chunks, _, more @ ..] = &value.shape()[..] else { continue };
                blocks.push(value.reshape(&[&[*chunks], more].concat()));
            } else {
                outer.insert(path, value.vary(Axis::Pipeline));
            }
        }
        let cut = |x: &Tensor<'g>| {
            let sizes = [&[spec.num_microbatches, spec.microbatch], &x.shape()[1..]].concat();
            x.reshape(&sizes)
        };
        Self {
            outer,
            blocks,
            key: inputs.training.key,
            first_example: inputs.training.first_example,
            fields: inputs.batch.fields.map(|_, x| cut(x).stop_gradient()),
        }
    }

    fn values(&self) -> impl Iterator<Item = Tensor<'g>> {
        let Self { outer, blocks, key, first_example, fields } = self;
        let rest = key.words().into_iter().chain([*first_example]);
        outer.values().chain(blocks).copied().chain(rest).chain(fields.values().copied())
    }

    /// The same with these values.
    fn with<'b>(&self, values: &mut impl Iterator<Item = Tensor<'b>>) -> Given<'b> {
        let mut next = || values.next().unwrap_or_else(|| unreachable!("as many as before"));
        Given {
            outer: self.outer.map(|_, _| next()),
            blocks: self.blocks.iter().map(|_| next()).collect(),
            key: Key::from_words([next(), next()]),
            first_example: next(),
            fields: self.fields.map(|_, _| next()),
        }
    }

    /// The examples of a microbatch.
    #[track_caller]
    fn batch(&self, step: &DeclaredStep<'_>, microbatch: Tensor<'g>) -> Batch<'g> {
        let fields = self.fields.map(|_, x| x.index_leading(microbatch));
        Batch { fields, weight: step.spec.ones(microbatch.tracer(), step.spec.microbatch) }
    }

    /// The scope of embedding and head for a microbatch.
    #[track_caller]
    fn scope(&self, step: &DeclaredStep<'_>, microbatch: Tensor<'g>) -> Scope<'g> {
        let spec = &step.spec;
        let training = Training {
            key: self.key,
            first_example: self.first_example + microbatch * spec.microbatch as f64,
            num_examples: spec.microbatch,
            batch_axes: spec.plan.batch_axes(),
        };
        let t = microbatch.tracer();
        Scope::bind(t, spec.precision, self.outer.clone(), Some(training))
            .with_options(spec.layer_options())
    }
}

/// What the ticks carry.
struct Carry<'g> {
    given: Given<'g>,
    /// Sums over examples, and over the stages when all are added up.
    loss: Tensor<'g>,
    weight: Tensor<'g>,
    outer_sums: Tree<Tensor<'g>>,
    block_sums: Vec<Tensor<'g>>,
    /// What this stage received from the previous one.
    x: Tensor<'g>,
    /// Results for the head, `[results, ..]`.
    results: Tensor<'g>,
    /// The gradient to send to the previous stage.
    of_x: Tensor<'g>,
    /// On the last stage, the gradient of the result of the last block.
    of_result: Tensor<'g>,
    /// The residuals of each microbatch that is kept, `[slots, ..]`.
    kept: Vec<Tensor<'g>>,
}

impl<'g> Carry<'g> {
    fn values(&self) -> Vec<Tensor<'g>> {
        let Self { given, loss, weight, outer_sums, block_sums, .. } = self;
        let rest = [*loss, *weight, self.x, self.results, self.of_x, self.of_result];
        let sums = outer_sums.values().chain(block_sums).chain(&self.kept).copied();
        given.values().chain(rest).chain(sums).collect()
    }

    /// Another carry of the same structure.
    fn with<'b>(&self, values: &[Tensor<'b>]) -> Carry<'b> {
        let mut values = values.iter().copied();
        let given = self.given.with(&mut values);
        let mut next = || values.next().unwrap_or_else(|| unreachable!("as many as before"));
        let [loss, weight, x, results, of_x, of_result] = std::array::from_fn(|_| next());
        Carry {
            given,
            loss,
            weight,
            x,
            results,
            of_x,
            of_result,
            outer_sums: self.outer_sums.map(|_, _| next()),
            block_sums: self.block_sums.iter().map(|_| next()).collect(),
            kept: self.kept.iter().map(|_| next()).collect(),
        }
    }
}

/// A pass of this stage: u32 scalars, and a `pred` that is false where the stage is idle.
#[derive(Clone, Copy)]
struct Turn<'g> {
    microbatch: Tensor<'g>,
    chunk: Tensor<'g>,
    exists: Tensor<'g>,
}

/// The program of a tick.
struct Tick<'m, 's> {
    pipeline: &'m Pipeline<'m>,
    step: &'s DeclaredStep<'s>,
    stages: Stages<'m>,
    halves: VjpHalves,
    /// Which of the rows of a chunk are trained.
    trains_rows: Vec<bool>,
    /// The parameters of the embedding, and of the head, that are trained.
    of_embedding: Vec<String>,
    of_head: Vec<String>,
    /// The types of the rows of a chunk.
    rows: Vec<TensorType>,
    /// The type of what stages send.
    x: TensorType,
    num_positions: usize,
    slots: Vec<usize>,
}

impl<'m, 's> Tick<'m, 's> {
    /// `None` if the model does not trace.
    #[track_caller]
    fn new(pipeline: &'m Pipeline<'m>, step: &'s DeclaredStep<'s>, given: &Given<'_>) -> Option<Self> {
        let (model, schedule) = (pipeline.model, pipeline.schedule);
        let t = given.first_example.tracer();
        // Only the types of these values matter.
        let turn = turn(schedule, t.scalar(DType::I32, 0.0) - stage(t));
        let scope = given.scope(step, turn.microbatch);
        let batch = given.batch(step, turn.microbatch);
        let first = model.embed(&scope, &batch);
        let (num_positions, num_given) = (first.num_positions, first.given.len());
        let scope_of_blocks = scope.at("blocks");
        let stages = Stages::new(
            &scope_of_blocks,
            first.x,
            &first.given,
            model.stack(),
            move |scope, x, given| model.block(scope, x, given, num_positions),
        );
        let is_trained = |path: &str| !step.freezes(path);
        let paths: Vec<_> = stages
            .parameters()
            .map(|name| format!("blocks.{}", Stages::leaf_path(name)))
            .collect();
        let trains_rows: Vec<_> =
            stages.parameter_of_rows().map(|index| is_trained(&paths[index])).collect();
        let types = |tensors: &[Tensor<'_>]| tensors.iter().map(Tensor::ty).collect::<Vec<_>>();
        let rows = stages.rows(&given.blocks, turn.chunk);
        let shared = for_chunk(&first, &stages, &scope_of_blocks, turn);
        let x = first.x.ty();
        let halves = VjpHalves::trace(
            t,
            &types(&rows),
            &trains_rows,
            &x,
            &types(&shared),
            |rows, x, given| {
                let (given, shared) = given.split_at(num_given);
                let (chunk, shared) = shared.split_last().unwrap_or_else(|| unreachable!());
                stages.chunk(rows, x, given, shared, *chunk)
            },
        )?;
        let loss = model.head(&scope, &first, &batch);
        let trained = |of: Tensor<'_>| -> Vec<String> {
            let outer = given.outer.iter().filter(|(path, _)| is_trained(path));
            outer.filter(|(_, x)| of.depends_on(**x)).map(|(path, _)| path.to_owned()).collect()
        };
        Some(Self {
            pipeline,
            step,
            of_embedding: trained(first.x),
            of_head: trained(loss.sum),
            stages,
            halves,
            trains_rows,
            rows: types(&rows),
            x,
            num_positions,
            slots: schedule.slots(),
        })
    }

    fn schedule(&self) -> PipelineSchedule {
        self.pipeline.schedule
    }

    /// The slots of all chunks, and one for the values of idle passes where slots are not used
    /// again before they are free.
    fn num_slots(&self) -> usize {
        self.slots.iter().sum::<usize>() + usize::from(self.has_idle_slot())
    }

    fn has_idle_slot(&self) -> bool {
        self.slots.contains(&self.schedule().num_microbatches())
    }

    /// The number of results kept for the head, and one for the results of other chunks.
    fn num_results(&self) -> usize {
        match self.schedule().num_results() {
            1 => 1,
            more => more + 1,
        }
    }

    /// The carry before the first tick.
    #[track_caller]
    fn start<'g>(&self, given: Given<'g>) -> Carry<'g> {
        let (spec, t) = (&self.step.spec, given.first_example.tracer());
        let varying = spec.plan.batch_axes() | Axis::Pipeline.into();
        let zeros = |dtype: DType, dims: &[usize], varying: AxisSet| {
            t.full(dtype, dims, 0.0).vary(varying)
        };
        let sum = |x: &TensorType| zeros(x.dtype.accumulation(), &x.dims, x.varying);
        let none = zeros(spec.precision.params, &[], varying);
        let stacked = |ty: &TensorType, number: usize| {
            zeros(ty.dtype, &[&[number], &ty.dims[..]].concat(), ty.varying)
        };
        let x = zeros(self.x.dtype, &self.x.dims, self.x.varying);
        let is_wanted = |path: &str| self.of_embedding.iter().chain(&self.of_head).any(|p| p == path);
        let outer = given.outer.iter().filter(|(path, _)| is_wanted(path));
        let num_chunks = self.schedule().num_chunks();
        let of_chunks = |row: &TensorType| row.with_dims(&[&[num_chunks], &row.dims[..]].concat());
        let trained = self.rows.iter().zip(&self.trains_rows).filter(|(_, trains)| **trains);
        let kept = self.halves.residuals().iter();
        Carry {
            loss: none,
            weight: none,
            outer_sums: outer.map(|(path, x)| (path.to_owned(), sum(&x.ty()))).collect(),
            block_sums: trained.map(|(row, _)| sum(&of_chunks(row))).collect(),
            x,
            results: stacked(&self.x, self.num_results()),
            of_x: x,
            of_result: x,
            kept: kept.map(|ty| stacked(ty, self.num_slots())).collect(),
            given,
        }
    }

    /// The tick with this number, an i32 scalar, with forward and backward passes or without.
    #[track_caller]
    fn run<'b>(
        &self,
        number: Tensor<'b>,
        mut carry: Carry<'b>,
        forward: bool,
        backward: bool,
    ) -> Carry<'b> {
        let (schedule, t) = (self.schedule(), number.tracer());
        let last = schedule.num_stages() - 1;

        let of_y = match backward {
            true => self.to_neighbour(carry.of_x, false),
            false => carry.of_x,
        };
        let for_head = turn(schedule, number - (schedule.start() - 1) as f64);
        let result = self.result(&carry, for_head);
        let head_x = if self.splits_head() { self.to_all(result) } else { result };
        let y = match forward {
            true => self.forward(number, &mut carry),
            false => carry.x,
        };
        let barred = t.optimization_barrier(&[y, head_x]);
        let (y, head_x) = (barred[0], barred[1]);

        let of_head_x = self.head(for_head, head_x, &mut carry);

        let barred = t.optimization_barrier(&[y, of_head_x, of_y, carry.of_result]);
        let [y, of_head_x, of_y, of_result] = std::array::from_fn(|i| barred[i]);
        if forward {
            carry.x = self.to_neighbour(y, true);
        }
        carry.of_result =
            if self.splits_head() { self.to_last(of_head_x) } else { of_head_x };
        if backward {
            let place = number - (schedule.start() + last) as f64 + stage(t);
            carry.of_x = self.backward(turn(schedule, place), of_y, of_result, &mut carry);
        }
        carry
    }

    /// Sends to the next stage, or to the previous one. Without chunks, nothing goes from one end to
    /// the other.
    #[track_caller]
    fn to_neighbour<'b>(&self, x: Tensor<'b>, next: bool) -> Tensor<'b> {
        let (num_stages, is_ring) = (self.schedule().num_stages(), self.schedule().num_chunks() > 1);
        let num_pairs = if is_ring { num_stages } else { num_stages - 1 };
        let pair = |stage: usize| (stage, (stage + 1) % num_stages);
        let pairs = (0..num_pairs).map(pair).map(|(a, b)| if next { (a, b) } else { (b, a) });
        x.collective_permute(&pairs.collect::<Vec<_>>(), Axis::Pipeline)
    }

    /// This stage's forward pass: its result.
    #[track_caller]
    fn forward<'b>(&self, number: Tensor<'b>, carry: &mut Carry<'b>) -> Tensor<'b> {
        let (schedule, t) = (self.schedule(), number.tracer());
        let turn = turn(schedule, number - stage(t));
        let scope = carry.given.scope(self.step, turn.microbatch);
        let batch = carry.given.batch(self.step, turn.microbatch);
        let first = self.pipeline.model.embed(&scope, &batch);
        let begins = turn.chunk.equal(0.0).and(stage(t).equal(0.0));
        let x = begins.broadcast_like(first.x, &[]).select(first.x, carry.x);
        let rows = self.stages.rows(&carry.given.blocks, turn.chunk);
        let shared = for_chunk(&first, &self.stages, &scope.at("blocks"), turn);
        let (y, residuals) = self.halves.forward(&rows, x, &shared);
        let slot = self.slot(turn);
        for (kept, residual) in carry.kept.iter_mut().zip(residuals) {
            *kept = written(*kept, residual, slot);
        }
        let num_results = self.num_results();
        let place = match num_results {
            1 => turn.microbatch.full_like(0.0),
            _ => {
                let is_last = turn.chunk.equal((schedule.num_chunks() - 1) as f64);
                let idle = turn.microbatch.full_like((num_results - 1) as f64);
                let place = remainder(turn.microbatch, num_results - 1);
                turn.exists.and(is_last).select(place, idle)
            }
        };
        carry.results = written(carry.results, y, place);
        y
    }

    /// The result of the last block that the head is to use, on the last stage.
    #[track_caller]
    fn result<'b>(&self, carry: &Carry<'b>, turn: Turn<'b>) -> Tensor<'b> {
        let place = match self.num_results() {
            1 => turn.microbatch.full_like(0.0),
            number => remainder(turn.microbatch, number - 1),
        };
        at(carry.results, place)
    }

    /// Where the values of a pass are kept.
    #[track_caller]
    fn slot<'b>(&self, turn: Turn<'b>) -> Tensor<'b> {
        let t = turn.chunk.tracer();
        let of_chunk = |values: &[usize]| {
            let values: Vec<_> = values.iter().map(|value| *value as u32).collect();
            t.constant(Literal::from_slice(&[values.len()], &values)).index_leading(turn.chunk)
        };
        let starts = (0..self.slots.len()).map(|chunk| self.slots[..chunk].iter().sum());
        let starts: Vec<usize> = starts.collect();
        let (start, number) = (of_chunk(&starts), of_chunk(&self.slots));
        let slot = start + (turn.microbatch - turn.microbatch / number * number);
        match self.has_idle_slot() {
            true => turn.exists.select(slot, slot.full_like((self.num_slots() - 1) as f64)),
            false => slot,
        }
    }

    /// `true` if each stage computes the head for a part of the rows.
    fn splits_head(&self) -> bool {
        self.pipeline.model.is_head_by_row()
    }

    /// A part of the rows of the last stage's x for each stage: `[ceil(rows / P), ..]`; zeros where
    /// rows are missing.
    #[track_caller]
    fn to_all<'b>(&self, x: Tensor<'b>) -> Tensor<'b> {
        let num_stages = self.schedule().num_stages();
        let rows = x.dim(0).div_ceil(num_stages);
        let padded = padded(x, 0, rows * num_stages);
        let piece = |stage: usize| padded.slice_dim(0, stage * rows, (stage + 1) * rows);
        let own = piece(num_stages - 1);
        (0..num_stages - 1).fold(own, |received, stage| {
            let sent = piece(stage);
            let sent = sent.collective_permute(&[(num_stages - 1, stage)], Axis::Pipeline);
            let is_for = self::stage(x.tracer()).equal(stage as f64);
            is_for.broadcast_like(sent, &[]).select(sent, received)
        })
    }

    /// All rows on the last stage, from the part that each stage has.
    #[track_caller]
    fn to_last<'b>(&self, rows: Tensor<'b>) -> Tensor<'b> {
        let last = self.schedule().num_stages() - 1;
        let pieces = (0..last).map(|stage| rows.collective_permute(&[(stage, last)], Axis::Pipeline));
        let pieces: Vec<_> = pieces.chain([rows]).collect();
        pieces[0].concatenate(&pieces[1..], 0).slice_dim(0, 0, self.x.dims[0])
    }

    /// The head on x, in ticks that have one: adds to the sums and returns the gradient of x.
    #[track_caller]
    fn head<'b>(&self, turn: Turn<'b>, x: Tensor<'b>, carry: &mut Carry<'b>) -> Tensor<'b> {
        let t = x.tracer();
        let batch = carry.given.batch(self.step, turn.microbatch);
        let Given { outer, key, first_example, .. } = &carry.given;
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
        let given = Given {
            outer: outer.map(|_, ()| next()),
            blocks: vec![],
            key: Key::from_words([*high, *low]),
            first_example: *first_example,
            fields: Tree::new(),
        };
        let fields = fields.map(|_, ()| next());
        let batch = Batch { fields, weight: step.spec.ones(t, step.spec.microbatch) };
        let scope = given.scope(step, *microbatch);
        let first = model.embed(&scope, &batch);
        let is_last = stage(t).equal((self.schedule().num_stages() - 1) as f64);
        let counts = |x: Tensor<'b>| match self.splits_head() {
            true => x,
            false => is_last.broadcast_like(x, &[]).select(x, x.full_like(0.0)),
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
        let sums = sums.iter().zip(&gradients[1..]).map(|(sum, more)| *sum + more.convert(sum.dtype()));
        [add(*loss, found.sum), add(*weight, found.weight), gradients[0]]
            .into_iter()
            .chain(sums)
            .collect()
    }

    /// The examples of one position that this stage's rows of the last result are: `num_rows`, of
    /// each replica along `tensor` where these have pieces of the rows.
    #[track_caller]
    fn rows<'b>(&self, batch: &Batch<'b>, num_rows: usize) -> Batch<'b> {
        let plan = self.step.spec.plan;
        let num_pieces = if plan.sequence { plan.mesh.size(Axis::Tensor) } else { 1 };
        let num_stages = self.schedule().num_stages();
        let own = |x_bt: Tensor<'b>| {
            let x_pn = x_bt.reshape(&[num_pieces, x_bt.num_elements() / num_pieces]);
            let x_pn = padded(x_pn, 1, num_rows * num_stages);
            let x_psn = x_pn.reshape(&[num_pieces, num_stages, num_rows]).transpose(&[1, 0, 2]);
            let x_pn = x_psn.index_leading(x_bt.tracer().replica_id(Axis::Pipeline));
            x_pn.reshape(&[num_pieces * num_rows])
        };
        let num_examples = batch.weight.dim(0);
        let of_positions =
            |x: &Tensor<'b>| x.shape() == [num_examples, self.num_positions];
        let fields = batch.fields.iter().filter(|(_, x)| of_positions(x)).map(|(name, x)| {
            let x = own(*x);
            (name.to_owned(), x.reshape(&[x.num_elements(), 1]))
        });
        let weight_bt =
            batch.weight.broadcast_in_dim(&[num_examples, self.num_positions], &[0]);
        Batch { fields: fields.collect(), weight: own(weight_bt) }
    }

    /// This stage's backward pass, from the gradient that it received: the gradient of its x. Adds
    /// to the sums. `turn` counts chunks from the last.
    #[track_caller]
    fn backward<'b>(
        &self,
        turn: Turn<'b>,
        of_y: Tensor<'b>,
        of_result: Tensor<'b>,
        carry: &mut Carry<'b>,
    ) -> Tensor<'b> {
        let (schedule, t) = (self.schedule(), of_y.tracer());
        let last_chunk = (schedule.num_chunks() - 1) as f64;
        let ends = turn.chunk.equal(0.0).and(stage(t).equal((schedule.num_stages() - 1) as f64));
        let of_y = ends.broadcast_like(of_y, &[]).select(of_result, of_y);
        let turn = Turn { chunk: last_chunk - turn.chunk, ..turn };
        let scope = carry.given.scope(self.step, turn.microbatch);
        let batch = carry.given.batch(self.step, turn.microbatch);
        let first = self.pipeline.model.embed(&scope, &batch);
        let shared = for_chunk(&first, &self.stages, &scope.at("blocks"), turn);
        let rows = self.stages.rows(&carry.given.blocks, turn.chunk);
        let sums: Vec<_> = carry.block_sums.iter().map(|sums| at(*sums, turn.chunk)).collect();
        let slot = self.slot(turn);
        let kept: Vec<_> = carry.kept.iter().map(|kept| at(*kept, slot)).collect();
        let (next, of_x) = self.halves.backward(&rows, &sums, &shared, &kept, of_y);
        let sums = sums.into_iter().zip(next);
        for (all, (before, next)) in carry.block_sums.iter_mut().zip(sums) {
            let next = turn.exists.broadcast_like(next, &[]).select(next, before);
            *all = written(*all, next, turn.chunk);
        }
        let begins = turn.exists.and(turn.chunk.equal(0.0)).and(stage(t).equal(0.0));
        let of_first =
            begins.broadcast_like(of_x, &[]).select(of_x, of_x.full_like(0.0));
        let wrt: Vec<_> =
            self.of_embedding.iter().map(|path| carry.given.outer[&**path]).collect();
        let gradients = vjp(&[(first.x, of_first)], &wrt);
        for (path, gradient) in self.of_embedding.iter().zip(gradients) {
            let sum = carry.outer_sums[&**path];
            carry.outer_sums.insert(path, sum + gradient.convert(sum.dtype()));
        }
        of_x
    }

    /// The sums of the step.
    #[track_caller]
    fn finish<'g>(&self, params: &Tree<StepParam<'g>>, carry: &Carry<'g>) -> Sums<'g> {
        let trained = self.stages.parameter_of_rows().zip(&self.trains_rows);
        let trained = trained.filter(|(_, trains)| **trains).map(|(parameter, _)| parameter);
        let mut rows: BTreeMap<usize, Vec<Tensor<'g>>> = BTreeMap::new();
        for (parameter, sum) in trained.zip(&carry.block_sums) {
            rows.entry(parameter).or_default().push(*sum);
        }
        let mut parameters = 0..;
        let gradient = |(path, param): (&str, &StepParam<'g>)| {
            let sum = match self.step.params[path].is_pipelined {
                true => parameters
                    .next()
                    .and_then(|parameter| rows.get(&parameter))
                    .map(|rows| self.stages.leaf_of_rows(rows)),
                false => carry.outer_sums.get(path).copied(),
            };
            let of = param.tensor;
            sum.map(|sum| sum.convert(of.dtype())).unwrap_or_else(|| of.full_like(0.0))
        };
        let [loss, weight] =
            [carry.loss, carry.weight].map(|sum| sum.all_reduce(Reduction::Sum, Axis::Pipeline));
        let gradients = params.iter().map(gradient).collect();
        Sums { loss, weight, gradients, observed: vec![] }
    }
}

/// This replica's stage, an i32 scalar.
#[track_caller]
fn stage(t: &Tracer) -> Tensor<'_> {
    t.replica_id(Axis::Pipeline).convert(DType::I32)
}

/// The pass with this index, an i32 scalar, in the order in which a stage runs its passes; see
/// [`PipelineSchedule`].
#[track_caller]
fn turn<'b>(schedule: PipelineSchedule, index: Tensor<'b>) -> Turn<'b> {
    let (stages, chunks) = (schedule.num_stages(), schedule.num_chunks());
    let num_passes = (chunks * schedule.num_microbatches()) as f64;
    let exists = index.greater_equal(0.0).and(index.less(num_passes));
    // After the last pass a stage goes on to microbatches that do not exist, so that it does not
    // write where it keeps the values of others.
    let index = index.maximum(0.0).convert(DType::U32);
    let group = index / (chunks * stages) as f64;
    let in_group = remainder(index, chunks * stages);
    let chunk = in_group / stages as f64;
    let microbatch = group * stages as f64 + remainder(in_group, stages);
    Turn { microbatch, chunk, exists }
}

#[track_caller]
fn remainder(x: Tensor<'_>, by: usize) -> Tensor<'_> {
    x - x / by as f64 * by as f64
}

/// What a chunk reads besides its parameters and x.
#[track_caller]
fn for_chunk<'b>(
    first: &Embedded<'b>,
    stages: &Stages<'_>,
    blocks: &Scope<'b>,
    turn: Turn<'b>,
) -> Vec<Tensor<'b>> {
    [&first.given[..], &stages.shared(blocks), &[turn.chunk]].concat()
}

/// The value at an index of a stack.
#[track_caller]
fn at<'b>(stack: Tensor<'b>, index: Tensor<'b>) -> Tensor<'b> {
    match stack.dim(0) {
        1 => stack.reshape(&stack.shape()[1..]),
        _ => stack.index_leading(index),
    }
}

/// A stack with another value at an index.
#[track_caller]
fn written<'b>(stack: Tensor<'b>, value: Tensor<'b>, index: Tensor<'b>) -> Tensor<'b> {
    let value = value.reshape(&[&[1], &value.shape()[..]].concat());
    if stack.dim(0) == 1 {
        return value;
    }
    let mut start = vec![index.full_like(0.0); value.rank()];
    start[0] = index;
    stack.dynamic_update_slice(value, &start)
}

/// x with zeros after its own along a dim.
#[track_caller]
fn padded(x: Tensor<'_>, dim: usize, size: usize) -> Tensor<'_> {
    let mut high = vec![0; x.rank()];
    high[dim] = (size - x.dim(dim)) as i64;
    let (low, interior) = (vec![0; high.len()], vec![0; high.len()]);
    if high[dim] == 0 { x } else { x.pad(0.0, &low, &high, &interior) }
}
