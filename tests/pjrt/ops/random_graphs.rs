//! Random graphs: combinations of ops, fused and reordered by XLA.
//!
//! A graph is a list of random steps. Each step takes randomly chosen tensors from a pool and puts
//! one back, so any list is a valid graph, and a failing list can be shrunk. There are two kinds.
//! **Exact** graphs compute with small integers in f32 and i32. On these, even discontinuous ops
//! (comparisons, floor, conversions) have one right answer for any order of additions, so results
//! must be equal. **Smooth** graphs compute with fractions, use only continuous functions, and are
//! differentiated; results and gradients must be close.

use std::cell::RefCell;
use std::collections::BTreeSet;

use hlo::passes::simplify;
use hlo::{
    Axis, DType, DotDims, Graph, Literal, Mesh, Reduction, Tensor, TensorType, grad, interpret,
    trace, verify,
};
use lockstep::lowering::group_sums;
use proptest::prelude::{Strategy, any};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use super::agreement::{Agreement, disagreement};
use crate::support;

const NUM_CASES: u32 = 64;
const MAX_ELEMENTS: usize = 256;

#[test]
fn random_graphs_agree_between_the_interpreter_and_xla() {
    let config = Config { cases: NUM_CASES, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let recipes = (any::<bool>(), any::<bool>(), proptest::collection::vec(any::<Step>(), 4..28));
    let recipes = recipes.prop_map(|(exact, many, steps)| Recipe { exact, many, steps });
    let ops = RefCell::new(BTreeSet::new());
    let result = TestRunner::new_with_rng(config, rng).run(&recipes, |recipe| {
        let graph = recipe.graph();
        ops.borrow_mut().extend(graph.nodes().iter().map(|node| node.op.name()));
        recipe.check(&graph).map_err(TestCaseError::fail)
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    // The graphs are not trivial: with this seed, all of these ops occur.
    for op in [
        "all_gather",
        "all_reduce",
        "all_to_all",
        "collective_permute",
        "compare",
        "concatenate",
        "convert",
        "dot_general",
        "pad",
        "reduce",
        "reduce_scatter",
        "select",
        "slice",
        "tanh",
        "transpose",
        "vary",
    ] {
        assert!(ops.borrow().contains(op), "no random graph has a {op}");
    }
}

/// The op, and three numbers that select its operands.
type Step = (u8, u8, u8, u8);

#[derive(Clone, Debug)]
struct Recipe {
    exact: bool,
    many: bool,
    steps: Vec<Step>,
}

impl Recipe {
    fn mesh(&self) -> Mesh {
        Mesh::data(if self.many { 4 } else { 1 })
    }

    fn inputs() -> [(&'static str, TensorType); 5] {
        let varying =
            |dtype, dims: &[usize]| TensorType::new(dtype, dims).varying(Axis::Data.into());
        [
            ("x", varying(DType::F32, &[4, 8])),
            ("y", varying(DType::F32, &[8, 4])),
            ("w", TensorType::new(DType::F32, &[4, 8])),
            ("b", TensorType::new(DType::F32, &[8])),
            ("i", varying(DType::I32, &[4, 8])),
        ]
    }

    /// Small integers or fractions.
    fn values(&self) -> Vec<Vec<Literal>> {
        let mesh = self.mesh();
        let value = |index: usize, ty: &TensorType, replica: usize| {
            let stream = (10 * index + mesh.index(replica, ty.varying)) as u32;
            let whole = self.exact || !ty.dtype.is_float();
            let limit = if whole { 3.0 } else { 1.0 };
            let mut values = support::uniform(stream, ty.num_elements(), -limit, limit);
            if whole {
                values.iter_mut().for_each(|value| *value = value.round());
            }
            Literal::from_f64(ty.dtype, &ty.dims, &values)
        };
        let inputs = Self::inputs();
        let on_replicas = |(index, (_, ty)): (usize, &(&str, TensorType))| {
            (0..mesh.num_replicas()).map(|replica| value(index, ty, replica)).collect()
        };
        inputs.iter().enumerate().map(on_replicas).collect()
    }

    fn graph(&self) -> Graph {
        let graph = trace(self.mesh(), |t| {
            let inputs = Self::inputs().map(|(name, ty)| t.input(name, ty));
            let mut pool = inputs.to_vec();
            for step in &self.steps {
                if let Some(tensor) = self.apply(&pool, *step) {
                    pool.push(tensor);
                }
            }
            let results = &pool[pool.len().saturating_sub(4)..];
            for (i, result) in results.iter().enumerate() {
                t.output_varying(format!("result.{i}"), *result, result.varying());
            }
            if !self.exact {
                let sums = results.iter().filter(|result| result.dtype().is_float());
                let losses = sums.map(|result| (*result * *result).sum().vary(Axis::Data));
                let Some(loss) = losses.reduce(|sum, loss| sum + loss) else { return };
                let wrt: Vec<_> = inputs[..4].to_vec();
                for (i, gradient) in grad(loss, &wrt).into_iter().enumerate() {
                    t.output_varying(format!("gradient.{i}"), gradient, wrt[i].varying());
                }
            }
        });
        graph.unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    fn check(&self, graph: &Graph) -> Result<(), String> {
        verify(graph).map_err(|error| error.to_string())?;
        let inputs = self.values();
        let expected = interpret(graph, &inputs).map_err(|error| error.to_string())?;
        let simple = simplify(graph);
        for (pass, graph) in [("simplify", &simple), ("group_sums", &group_sums(&simple, u64::MAX))]
        {
            verify(graph).map_err(|error| format!("{pass}: {error}"))?;
            if interpret(graph, &inputs).map_err(|error| error.to_string())? != expected {
                return Err(format!("{pass} changes the values"));
            }
        }
        let got =
            support::compile(&simple).and_then(|executable| support::run(&executable, &inputs));
        let got = got.map_err(|error| error.to_string())?;
        let agreement = match self.exact {
            true => Agreement::Ulps { ulps: 0.0, floor: 0.0 },
            false => Agreement::Ulps { ulps: 512.0, floor: 1.0 },
        };
        for (output, (got, expected)) in graph.outputs().iter().zip(got.iter().zip(&expected)) {
            for (replica, (got, expected)) in got.iter().zip(expected).enumerate() {
                if let Some(difference) = disagreement(got, expected, agreement) {
                    return Err(format!("{} on replica {replica}: {difference}", output.name));
                }
            }
        }
        Ok(())
    }

    /// The result of one step, if its random numbers select a valid op.
    fn apply<'g>(&self, pool: &[Tensor<'g>], (op, a, b, c): Step) -> Option<Tensor<'g>> {
        let [x, z] = [a, b].map(|n| pool[usize::from(n) % pool.len()]);
        let [b, c] = [b, c].map(usize::from);
        let dims = x.shape();
        let is_float = x.dtype().is_float();
        let dim = (!dims.is_empty()).then(|| b % dims.len());
        let size = x.tracer().mesh().size(Axis::Data);
        // The second operand is a tensor from the pool with the same type as the first.
        let like = |x: Tensor<'g>| {
            let fits = |y: &&Tensor<'g>| (y.dtype(), y.shape()) == (x.dtype(), x.shape());
            let fitting: Vec<_> = pool.iter().filter(fits).collect();
            fitting[c % fitting.len()].vary(x.varying())
        };
        let y = like(x);
        let x = x.vary(y.varying());
        let result = match op % 20 {
            0 if self.exact && is_float => [x.abs(), x.floor(), x.sign(), -x][c % 4],
            0 if is_float => [x.tanh(), x.sine(), x.logistic(), (x.tanh() + 2.0).log()][c % 4],
            0 => [x.abs(), x.sign(), !x, -x][c % 4],
            1 => x + y,
            2 => x - y,
            3 => self.bounded(x * y),
            4 if self.exact => [x.maximum(y), x.minimum(y), x.clamp(-2.0, 3.0)][b % 3],
            5 if self.exact => [x.less(y), x.equal(y), x.greater_equal(y)][b % 3].select(x, y),
            6 if self.exact && is_float => x.convert(DType::I32),
            6 if self.exact => x.clamp(-9.0, 9.0).convert(DType::F32),
            6 if !is_float => x.xor(y),
            7 => self.bounded(x.reduce_sum(&[dim?])),
            8 if self.exact => {
                x.reduce(if c % 2 == 0 { Reduction::Max } else { Reduction::Min }, &[dim?])
            }
            9 => {
                let (mut to, at) = (dims.clone(), b % (dims.len() + 1));
                to.insert(at, 4);
                let kept: Vec<_> = (0..to.len()).filter(|dim| *dim != at).collect();
                x.broadcast_in_dim(&to, &kept)
            }
            10 => x.transpose(&(0..dims.len()).rev().collect::<Vec<_>>()),
            11 => {
                let (dim, z) = (dims.len().checked_sub(1)?, z);
                let to = z.shape().iter().position(|size| *size == dims[dim])?;
                let fits = z.dtype() == x.dtype() && dims.len() + z.rank() <= 5;
                let (x, z) = (x.vary(z.varying()), z.vary(x.varying()));
                self.bounded(fits.then(|| x.dot_general(z, DotDims::contract(&[dim], &[to])))?)
            }
            12 => x.concatenate(&[y], dim?),
            13 => {
                let (dim, mut start, mut stride) = (dim?, vec![0; dims.len()], vec![1; dims.len()]);
                (start[dim], stride[dim]) = (c % dims[dim], 1 + c % 3);
                x.slice(&start, &dims, &stride)
            }
            14 => {
                let (dim, mut low, mut high) = (dim?, vec![0; dims.len()], vec![0; dims.len()]);
                let mut interior = vec![0; dims.len()];
                (low[dim], high[dim], interior[dim]) = (c as i64 % 4 - 1, 1, c % 3);
                x.pad(1.0, &low, &high, &interior)
            }
            15 if x.varying().contains(Axis::Data) => {
                self.bounded(x.all_reduce(Reduction::Sum, Axis::Data))
            }
            16 if x.varying().contains(Axis::Data) && self.exact => {
                x.all_reduce(if c % 2 == 0 { Reduction::Max } else { Reduction::Min }, Axis::Data)
            }
            17 if x.varying().contains(Axis::Data) => x.all_gather(dim?, Axis::Data),
            18 if x.varying().contains(Axis::Data) && dims[dim?].is_multiple_of(size) => {
                match c % 2 {
                    0 => self.bounded(x.reduce_scatter(dim?, Axis::Data)),
                    _ => x.all_to_all(dim?, c % dims.len(), Axis::Data),
                }
            }
            19 if x.varying().contains(Axis::Data) => {
                let ring: Vec<_> = (0..size).map(|i| (i, (i + c) % size)).skip(c % 2).collect();
                if ring.is_empty() { x } else { x.collective_permute(&ring, Axis::Data) }
            }
            _ => x.vary(Axis::Data),
        };
        (result.num_elements() <= MAX_ELEMENTS).then_some(result)
    }

    /// Limits growing values to a range in which f32 represents every integer and errors do not
    /// grow.
    fn bounded<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        match x.dtype().is_float() {
            true if self.exact => x.clamp(-16.0, 16.0),
            true => (x * 0.25).sine(),
            false => x,
        }
    }
}
