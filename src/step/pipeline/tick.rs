//! The program of a tick.

use std::collections::BTreeMap;

use hlo::{Axis, AxisSet, DType, Literal, Reduction, Tensor, TensorType, Tree, VjpHalves, vjp};
use models::{Embedded, Scope, Stages};

use super::Pipeline;
use super::carry::{Carry, TickInputs};
use super::turn::{Turn, at, stage, turn, written};
use crate::parallel::PipelineSchedule;
use crate::step::DeclaredStep;
use crate::step::accumulate::Sums;
use crate::step::declare::StepParam;

/// The program of a tick.
pub(super) struct Tick<'m, 's> {
    pub(super) pipeline: &'m Pipeline<'m>,
    pub(super) step: &'s DeclaredStep<'s>,
    pub(super) stages: Stages<'m>,
    pub(super) halves: VjpHalves,
    /// Which of the rows of a chunk are trained.
    pub(super) trains_rows: Vec<bool>,
    /// The parameters of the embedding, and of the head, that are trained.
    pub(super) of_embedding: Vec<String>,
    pub(super) of_head: Vec<String>,
    /// The types of the rows of a chunk.
    pub(super) rows: Vec<TensorType>,
    /// The type of what stages send.
    pub(super) x: TensorType,
    pub(super) num_positions: usize,
    pub(super) slots: Vec<usize>,
}

impl<'m, 's> Tick<'m, 's> {
    /// `None` if the model does not trace.
    #[track_caller]
    pub(super) fn new(
        pipeline: &'m Pipeline<'m>,
        step: &'s DeclaredStep<'s>,
        given: &TickInputs<'_>,
    ) -> Option<Self> {
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
        let paths: Vec<_> =
            stages.parameters().map(|name| format!("blocks.{}", Stages::leaf_path(name))).collect();
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

    pub(super) fn schedule(&self) -> PipelineSchedule {
        self.pipeline.schedule
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
    pub(super) fn start<'g>(&self, given: TickInputs<'g>) -> Carry<'g> {
        let (spec, t) = (&self.step.spec, given.first_example.tracer());
        let varying = spec.plan.batch_axes() | Axis::Pipeline.into();
        let zeros =
            |dtype: DType, dims: &[usize], varying: AxisSet| t.full(dtype, dims, 0.0).vary(varying);
        let sum = |x: &TensorType| zeros(x.dtype.accumulation(), &x.dims, x.varying);
        let none = zeros(spec.precision.params, &[], varying);
        let stacked = |ty: &TensorType, number: usize| {
            zeros(ty.dtype, &[&[number], &ty.dims[..]].concat(), ty.varying)
        };
        let x = zeros(self.x.dtype, &self.x.dims, self.x.varying);
        let is_wanted =
            |path: &str| self.of_embedding.iter().chain(&self.of_head).any(|p| p == path);
        let outer = given.outer.iter().filter(|(path, _)| is_wanted(path));
        let schedule = self.schedule();
        let num_chunks = schedule.num_chunks();
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
            kept: kept.map(|ty| stacked(ty, schedule.num_slots())).collect(),
            given,
        }
    }

    /// The tick with this number, an i32 scalar, with forward and backward passes or without.
    #[track_caller]
    pub(super) fn run<'b>(
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
        carry.of_result = if self.splits_head() { self.to_last(of_head_x) } else { of_head_x };
        if backward {
            let place = number - (schedule.start() + last) as f64 + stage(t);
            carry.of_x = self.backward(turn(schedule, place), of_y, of_result, &mut carry);
        }
        carry
    }

    /// Sends to the next stage, or to the previous one. Without chunks, nothing goes from one end
    /// to the other.
    #[track_caller]
    fn to_neighbour<'b>(&self, x: Tensor<'b>, next: bool) -> Tensor<'b> {
        let (num_stages, is_ring) =
            (self.schedule().num_stages(), self.schedule().num_chunks() > 1);
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
        let x = begins.select(first.x, carry.x);
        let rows = self.stages.rows(&carry.given.blocks, turn.chunk);
        let shared = for_chunk(&first, &self.stages, &scope.at("blocks"), turn);
        let (y, residuals) = self.halves.forward(&rows, x, &shared);
        let slot = self.slot(turn.pass);
        for (kept, residual) in carry.kept.iter_mut().zip(residuals) {
            *kept = written(*kept, residual, slot);
        }
        let num_results = self.num_results();
        let place = match num_results {
            1 => turn.microbatch.full_like(0.0),
            _ => {
                let is_last = turn.chunk.equal((schedule.num_chunks() - 1) as f64);
                let idle = turn.microbatch.full_like((num_results - 1) as f64);
                let place = turn.microbatch.remainder((num_results - 1) as f64);
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
            number => turn.microbatch.remainder((number - 1) as f64),
        };
        at(carry.results, place)
    }

    /// Where the values of a forward pass are kept.
    #[track_caller]
    fn slot<'b>(&self, pass: Tensor<'b>) -> Tensor<'b> {
        let slots: Vec<_> = self.slots.iter().map(|slot| *slot as u32).collect();
        pass.tracer().constant(Literal::from_slice(&[slots.len()], &slots)).index_leading(pass)
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
        let ends = turn.chunk.equal(0.0).and(stage(t).equal((schedule.num_stages() - 1) as f64));
        let of_y = ends.select(of_result, of_y);
        let turn = turn.reversed(schedule);
        let scope = carry.given.scope(self.step, turn.microbatch);
        let batch = carry.given.batch(self.step, turn.microbatch);
        let first = self.pipeline.model.embed(&scope, &batch);
        let shared = for_chunk(&first, &self.stages, &scope.at("blocks"), turn);
        let rows = self.stages.rows(&carry.given.blocks, turn.chunk);
        let sums: Vec<_> = carry.block_sums.iter().map(|sums| at(*sums, turn.chunk)).collect();
        let slot = self.slot(turn.pass);
        let kept: Vec<_> = carry.kept.iter().map(|kept| at(*kept, slot)).collect();
        let (next, of_x) = self.halves.backward(&rows, &sums, &shared, &kept, of_y);
        let sums = sums.into_iter().zip(next);
        for (all, (before, next)) in carry.block_sums.iter_mut().zip(sums) {
            let next = turn.exists.select(next, before);
            *all = written(*all, next, turn.chunk);
        }
        let begins = turn.exists.and(turn.chunk.equal(0.0)).and(stage(t).equal(0.0));
        let of_first = begins.select(of_x, of_x.full_like(0.0));
        let wrt: Vec<_> = self.of_embedding.iter().map(|path| carry.given.outer[&**path]).collect();
        let gradients = vjp(&[(first.x, of_first)], &wrt);
        for (path, gradient) in self.of_embedding.iter().zip(gradients) {
            let sum = carry.outer_sums[&**path];
            carry.outer_sums.insert(path, sum + gradient.convert(sum.dtype()));
        }
        of_x
    }

    /// The sums of the step.
    #[track_caller]
    pub(super) fn finish<'g>(&self, params: &Tree<StepParam<'g>>, carry: &Carry<'g>) -> Sums<'g> {
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
        Sums { loss, weight, gradients, observed: vec![], squares: None }
    }
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
