//! `Tensor<'g>`: a copyable handle on a value of a graph that is being traced.
//!
//! Tracing does not return `Result`. The [`Tracer`] keeps the first error with its op, operand
//! types and the caller's line; ops on a tensor without a value, as an error leaves it, do nothing;
//! [`trace`] returns the error.
//!
//! **Operands that vary over different axes**: `vary` is applied automatically to values computed
//! from constants, integers and `pred` alone, since no gradient flows into them. Other float values
//! need an explicit `vary`, which says that gradients are summed over the replicas.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::graph::Output;
use crate::infer::{check_size, takes_any_varying};
use crate::region;
use crate::{AxisSet, DType, Error, Graph, Literal, Mesh, Op, Origin, TensorType, ValueId};

/// Traces `f` into a graph for the replicas of `mesh`.
///
/// ```
/// use hlo::{DType, Mesh, TensorType, trace};
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[8, 4]));
///     t.output("y", (x * 2.0).reduce_sum(&[1]));
/// })?;
/// assert_eq!(graph.ty(graph.outputs()[0].value), &TensorType::new(DType::F32, &[8]));
///
/// let error = trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[8, 4]));
///     let y = t.input("y", TensorType::new(DType::F32, &[4, 8]));
///     t.output("z", x + y);
/// });
/// assert!(error.unwrap_err().to_string().starts_with("add(f32[8, 4], f32[4, 8]) at "));
/// # Ok::<(), hlo::Error>(())
/// ```
///
/// # Errors
/// The first error, usually an op with operands that do not fit.
pub fn trace(mesh: Mesh, f: impl FnOnce(&Tracer)) -> Result<Graph, Error> {
    let tracer = Tracer::new(mesh);
    f(&tracer);
    tracer.finish()
}

/// Records ops into a graph.
#[derive(Debug)]
pub struct Tracer {
    graph: RefCell<Graph>,
    error: RefCell<Option<Error>>,
    /// While gradients are traced: the location of the op that is differentiated.
    location: Cell<Option<&'static Location<'static>>>,
    is_backward: Cell<bool>,
}

/// A value of the graph that a tracer records.
#[derive(Clone, Copy)]
pub struct Tensor<'g> {
    tracer: &'g Tracer,
    /// `None` after an error.
    value: Option<ValueId>,
}

impl Tracer {
    pub(crate) fn new(mesh: Mesh) -> Self {
        Self {
            graph: RefCell::new(Graph::new(mesh)),
            error: RefCell::new(None),
            location: Cell::new(None),
            is_backward: Cell::new(false),
        }
    }

    /// A tracer for the body of an op that `self` records.
    pub(crate) fn within(&self) -> Self {
        let inner = Self::new(self.mesh());
        inner.is_backward.set(self.is_backward.get());
        inner
    }

    pub(crate) fn finish(self) -> Result<Graph, Error> {
        match self.error.into_inner() {
            Some(error) => Err(error),
            None => Ok(self.graph.into_inner()),
        }
    }

    /// The mesh of the graph.
    pub fn mesh(&self) -> Mesh {
        *self.graph.borrow().mesh()
    }

    /// A named input.
    #[track_caller]
    pub fn input(&self, name: impl Into<String>, ty: TensorType) -> Tensor<'_> {
        if let Err(message) = check_size(&ty) {
            self.fail("input", &[], message);
            return self.poison();
        }
        let location = self.origin(Location::caller());
        let value = self.graph.borrow_mut().input(name, ty, location);
        Tensor { tracer: self, value: Some(value) }
    }

    /// A named output that does not vary between replicas.
    #[track_caller]
    pub fn output(&self, name: impl Into<String>, tensor: Tensor<'_>) {
        self.output_with(name, tensor, AxisSet::EMPTY, None);
    }

    /// A named output that may vary over `varying`.
    #[track_caller]
    pub fn output_varying(&self, name: impl Into<String>, tensor: Tensor<'_>, varying: AxisSet) {
        self.output_with(name, tensor, varying, None);
    }

    /// Outputs the next value of the state leaf with the input of this name. The value has the same
    /// dtype and dims, varies over no other axes, and reuses the input's memory.
    #[track_caller]
    pub fn next_state(&self, name: &str, tensor: Tensor<'_>) {
        let found = {
            let graph = self.graph.borrow();
            let index = graph.inputs().iter().position(|input| input.name == name);
            index.map(|index| (index, graph.ty(graph.inputs()[index].value).varying))
        };
        match found {
            Some((index, varying)) => self.output_with(name, tensor, varying, Some(index)),
            None => self.fail("next_state", &[tensor], format!("no input is named `{name}`")),
        }
    }

    #[track_caller]
    fn output_with(
        &self,
        name: impl Into<String>,
        tensor: Tensor<'_>,
        varying: AxisSet,
        donated_input: Option<usize>,
    ) {
        if let Some([value]) = self.values_of("output", &[tensor]).as_deref() {
            let (name, value) = (name.into(), *value);
            self.graph.borrow_mut().output(Output { name, value, varying, donated_input });
        }
    }

    /// A constant.
    #[track_caller]
    pub fn constant(&self, literal: Literal) -> Tensor<'_> {
        self.apply(Op::Constant(Arc::new(literal)), &[])
    }

    /// A rank-0 constant. A float is rounded, but must not overflow to infinity; an integer must be
    /// whole and in range, a `pred` 0 or 1.
    #[track_caller]
    pub fn scalar(&self, dtype: DType, value: f64) -> Tensor<'_> {
        if let Err(message) = dtype.holds(value) {
            self.fail("constant", &[], message);
            return self.poison();
        }
        self.constant(Literal::from_f64(dtype, &[], &[value]))
    }

    /// A tensor filled with `value`; for its range see [`Self::scalar`].
    #[track_caller]
    pub fn full(&self, dtype: DType, dims: &[usize], value: f64) -> Tensor<'_> {
        self.scalar(dtype, value).broadcast_in_dim(dims, &[])
    }

    /// A tensor with the index along `dim` as its elements.
    #[track_caller]
    pub fn iota(&self, dtype: DType, dims: &[usize], dim: usize) -> Tensor<'_> {
        self.apply(Op::Iota { dtype, dims: dims.to_vec(), dim }, &[])
    }

    /// Records an op with one result.
    #[track_caller]
    pub(crate) fn apply<'g>(&'g self, op: Op, operands: &[Tensor<'g>]) -> Tensor<'g> {
        let first = self.record(op, operands);
        Tensor { tracer: self, value: first }
    }

    /// Records an op with several results; after an error returns one tensor without a value per
    /// operand.
    #[track_caller]
    pub(crate) fn apply_variadic<'g>(&'g self, op: Op, operands: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
        match self.record(op, operands) {
            Some(first) => {
                let graph = self.graph.borrow();
                let values = graph.node_of(first).results();
                values.map(|value| Tensor { tracer: self, value: Some(value) }).collect()
            }
            None => vec![Tensor { tracer: self, value: None }; operands.len()],
        }
    }

    #[track_caller]
    fn record(&self, op: Op, operands: &[Tensor<'_>]) -> Option<ValueId> {
        let location = self.origin(Location::caller());
        let mut values = self.values_of(op.name(), operands)?;
        let mut graph = self.graph.borrow_mut();
        if !takes_any_varying(&op) {
            vary_gradient_free(&mut graph, &mut values, location);
        }
        match graph.push(op, &values, location) {
            Ok(value) => Some(value),
            Err(error) => {
                drop(graph);
                self.keep_first(error);
                None
            }
        }
    }

    /// The values of tensors of this tracer; `None` if one has no value or belongs to another
    /// tracer.
    #[track_caller]
    pub(crate) fn values_of(
        &self,
        op: &'static str,
        tensors: &[Tensor<'_>],
    ) -> Option<Vec<ValueId>> {
        match self.owns(op, tensors) {
            true => tensors.iter().map(|tensor| tensor.value).collect(),
            false => None,
        }
    }

    /// `true` if all tensors belong to this tracer. If not, records an error of `op`: value ids of
    /// another graph would refer to unrelated values here. Tracers are identified by their address,
    /// which tensors keep borrowed.
    #[track_caller]
    pub(crate) fn owns(&self, op: &'static str, tensors: &[Tensor<'_>]) -> bool {
        let Some(foreign) = tensors.iter().find(|tensor| !std::ptr::eq(tensor.tracer, self)) else {
            return true;
        };
        let message = "the value belongs to another graph; the body of a loop, case, remat or \
                       custom_vjp sees outer values only as arguments: pass it as an operand";
        self.fail(op, &[*foreign], message.into());
        false
    }

    /// Records an error unless there is one already.
    #[track_caller]
    pub(crate) fn fail(&self, op: &'static str, operands: &[Tensor<'_>], message: String) {
        let operands = operands.iter().map(Tensor::ty).collect();
        let location = self.origin(Location::caller()).line;
        self.keep_first(Error { op, operands, message, location });
    }

    pub(crate) fn keep_first(&self, error: Error) {
        self.error.borrow_mut().get_or_insert(error);
    }

    fn origin(&self, caller: &'static Location<'static>) -> Origin {
        let line = self.location.get().unwrap_or(caller);
        Origin { line, is_backward: self.is_backward.get() }
    }

    /// Runs `f` and records `location`, not the callers' lines, as the location of every op.
    pub(crate) fn at<T>(&self, location: impl Into<Origin>, f: impl FnOnce() -> T) -> T {
        let Origin { line, is_backward } = location.into();
        let before = self.location.replace(Some(line));
        let result = if is_backward { self.in_backward(f) } else { f() };
        self.location.set(before);
        result
    }

    /// Runs `f` and records every op as part of the backward pass.
    pub fn in_backward<T>(&self, f: impl FnOnce() -> T) -> T {
        let before = self.is_backward.replace(true);
        let result = f();
        self.is_backward.set(before);
        result
    }

    pub(crate) fn graph(&self) -> std::cell::Ref<'_, Graph> {
        self.graph.borrow()
    }

    pub(crate) fn graph_mut(&self) -> std::cell::RefMut<'_, Graph> {
        self.graph.borrow_mut()
    }

    /// Inputs of a region; no gradient flows into those for which `is_free` is true.
    pub(crate) fn region_inputs(&self, types: &[TensorType], is_free: &[bool]) -> Vec<Tensor<'_>> {
        let input = |(i, (ty, is_free)): (usize, (&TensorType, &bool))| {
            let input = self.input(format!("input.{i}"), ty.clone());
            if let (true, Some(value)) = (*is_free, input.value) {
                self.graph.borrow_mut().mark_gradient_free(value);
            }
            input
        };
        types.iter().zip(is_free).enumerate().map(input).collect()
    }

    /// Records the nodes of `graph` with these tensors in place of its inputs; they must have the
    /// types of the inputs. Returns the graph's outputs.
    #[track_caller]
    pub fn inline<'g>(&'g self, graph: &Graph, inputs: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
        let poison = vec![self.poison(); graph.outputs().len()];
        let Some(values) = self.values_of("inline", inputs) else { return poison };
        if let Err(message) = takes(graph, inputs, &self.mesh()) {
            self.fail("inline", inputs, message);
            return poison;
        }
        let outputs =
            region::inline(&mut self.graph.borrow_mut(), graph, &values, self.is_backward.get());
        outputs.into_iter().map(|value| self.tensor(value)).collect()
    }

    pub(crate) fn tensor(&self, value: ValueId) -> Tensor<'_> {
        Tensor { tracer: self, value: Some(value) }
    }

    pub(crate) fn poison(&self) -> Tensor<'_> {
        Tensor { tracer: self, value: None }
    }
}

/// Checks that the graph can be inlined with these inputs.
fn takes(graph: &Graph, inputs: &[Tensor<'_>], mesh: &Mesh) -> Result<(), String> {
    if graph.mesh() != mesh {
        return Err("the graph was traced for another mesh".into());
    }
    if graph.inputs().len() != inputs.len() {
        let (wanted, given) = (graph.inputs().len(), inputs.len());
        return Err(format!("the graph takes {wanted} inputs, not {given}"));
    }
    let given = inputs.iter().map(Tensor::ty);
    let wanted = graph.inputs().iter().map(|input| (&input.name, graph.ty(input.value)));
    match wanted.zip(given).find(|((_, wanted), given)| *wanted != given) {
        Some(((name, wanted), given)) => Err(format!("input `{name}` is {wanted}, not {given}")),
        None => Ok(()),
    }
}

/// Applies `vary` to operands into which no gradient flows, so that all vary over the same axes.
fn vary_gradient_free(graph: &mut Graph, values: &mut [ValueId], location: Origin) {
    let all = values.iter().fold(AxisSet::EMPTY, |all, value| all | graph.ty(*value).varying);
    for value in values {
        let ty = graph.ty(*value);
        let missing = all.minus(ty.varying);
        if !missing.is_empty() && graph.is_gradient_free(*value) {
            let op = Op::Vary { axes: missing };
            *value = graph.push(op, &[*value], location).expect("vary adds missing axes");
        }
    }
}

impl<'g> Tensor<'g> {
    /// The tracer that records this tensor's graph.
    pub fn tracer(&self) -> &'g Tracer {
        self.tracer
    }

    pub(crate) fn value(&self) -> Option<ValueId> {
        self.value
    }

    /// Type; `f32[]` after an error.
    pub fn ty(&self) -> TensorType {
        match self.value {
            Some(value) => self.tracer.graph().ty(value).clone(),
            None => TensorType::new(DType::F32, &[]),
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.ty().dtype
    }

    /// The axes over which the value may differ between replicas.
    pub fn varying(&self) -> AxisSet {
        self.ty().varying
    }

    /// `true` if the value is computed from constants, integers and `pred` alone. Then no gradient
    /// flows through it to parameters, and `vary` is applied to it automatically. Gradients with
    /// respect to it are still possible.
    pub fn is_gradient_free(&self) -> bool {
        self.value.is_some_and(|value| self.tracer.graph().is_gradient_free(value))
    }

    /// Number of dims.
    pub fn rank(&self) -> usize {
        self.ty().rank()
    }

    /// The dims as a `Vec`; prefer [`Self::dims`] if the rank is known.
    pub fn shape(&self) -> Vec<usize> {
        self.ty().dims
    }

    /// The dims, as an array of length `N`. All ones after an error. If the rank is not `N`,
    /// records an error.
    #[track_caller]
    pub fn dims<const N: usize>(&self) -> [usize; N] {
        let dims = self.shape();
        match <[usize; N]>::try_from(dims) {
            Ok(dims) => dims,
            Err(dims) => {
                self.reject("dims", format!("has {} dims, but {N} are needed", dims.len()));
                [1; N]
            }
        }
    }

    /// Size of one dim; 1 after an error. If there is no such dim, records an error.
    #[track_caller]
    pub fn dim(&self, dim: usize) -> usize {
        match self.shape().get(dim) {
            Some(size) => *size,
            None => {
                self.reject("dim", format!("there is no dim {dim}"));
                1
            }
        }
    }

    /// Product of the dims.
    pub fn num_elements(&self) -> usize {
        self.ty().num_elements()
    }

    /// A tensor of this tensor's type filled with `value`; for its range see [`Tracer::scalar`].
    #[track_caller]
    pub fn full_like(&self, value: f64) -> Tensor<'g> {
        let ty = self.ty();
        self.tracer.full(ty.dtype, &ty.dims, value).vary(ty.varying)
    }

    /// Records an error about this tensor unless there is one already: for layers that check more
    /// than the ops do.
    #[track_caller]
    pub fn reject(&self, op: &'static str, message: impl Into<String>) {
        if self.value.is_some() {
            self.tracer.fail(op, &[*self], message.into());
        }
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            Some(value) => write!(f, "%{}: {}", value.index(), self.ty()),
            None => f.write_str("(no value)"),
        }
    }
}
