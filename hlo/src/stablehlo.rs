//! Lowering of graphs to StableHLO text.
//!
//! One op per line, numbered in order, so that two dumps can be compared line by line. Source lines
//! follow ops as locations, leaf names follow arguments and results as comments. `vary` and
//! `stop_gradient` print nothing; `threefry` prints the ops that compute it.

mod constant;
mod control;
mod custom_call;
mod host_collective;
mod host_kernel;
mod program;
mod replica_groups;
mod windows;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;

use crate::ops::gather;
use crate::passes::merge_common_subexpressions;
use crate::region::expand;
use crate::rewrites::isolate;
use crate::{
    AxisSet, DType, DotDims, Graph, Literal, Mesh, Node, Op, Origin, Reduction, TensorType, ValueId,
};

pub use host_collective::{HOST_COLLECTIVE_TARGET, HOST_KEEP_TARGET, HOST_REPLICA_ID_TARGET};
pub use host_kernel::{HOST_KERNEL_TARGET, HOST_KERNELS_VERSION};
pub use program::{Program, ProgramInput, ProgramOutput};

use constant::constant;
use host_collective::Collectives;
use replica_groups::{ProgramReplicas, listed, replica_groups};

/// The parts of a program that call functions of the process that runs it, on the CPU backend:
/// custom calls in version 4, the typed FFI, with row-major operands and results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCalls {
    /// Every collective is a call to [`HOST_COLLECTIVE_TARGET`], in a program for so many
    /// processes. Its attributes say what to compute among which replicas.
    ///
    /// With several processes, each runs `num_replicas / num_processes` replicas of the same text,
    /// and a replica asks for its number with a call to [`HOST_REPLICA_ID_TARGET`]. A call to
    /// [`HOST_KEEP_TARGET`] ends the program. The number of processes must divide the replicas of
    /// the mesh.
    pub collectives: Option<usize>,
    /// Products, convolutions of images NHWC, maxima over windows of them, their gradients, sums
    /// over leading dims are calls to [`HOST_KERNEL_TARGET`] if they are large; so are random bits.
    pub kernels: bool,
}

/// What ends a program; regions have other terminators.
const PROGRAM_END: &str = "return";

/// Writes a graph as a StableHLO module named `name`, in replica mode: the replica groups are those
/// of the graph's mesh, and state is donated to its next value.
pub fn lower(graph: &Graph, name: &str) -> Program {
    lower_with_host_calls(graph, name, HostCalls::default())
}

/// [`lower`] with some ops left to the process.
pub fn lower_with_host_calls(graph: &Graph, name: &str, calls: HostCalls) -> Program {
    write(graph, name, ProgramReplicas::OfMesh, calls)
}

/// [`lower`] without communication, for the first `num_replicas` replicas of the mesh, to measure
/// the work of each. Every all_reduce is over one replica, other collectives become local ops of
/// the same shapes. The results are not those of the program.
pub fn lower_isolated(graph: &Graph, name: &str, num_replicas: usize, calls: HostCalls) -> Program {
    let replica_groups = ProgramReplicas::Isolated { num_replicas };
    write(&isolate(&expand(graph)), name, replica_groups, calls)
}

fn write(graph: &Graph, name: &str, replica_groups: ProgramReplicas, calls: HostCalls) -> Program {
    let collectives = match calls.collectives {
        Some(num_processes) => Collectives::HostCalls { num_sites: 0, num_processes },
        None => Collectives::Ops,
    };
    let graph = &*match expand(graph) {
        // Merges the zeros with which each stack of a loop starts.
        Cow::Owned(expanded) => Cow::Owned(merge_common_subexpressions(&expanded)),
        unchanged => unchanged,
    };
    let num_replicas = replica_groups.num_replicas(graph.mesh());
    let num_processes = collectives.num_processes();
    let mut donated_to: Vec<Option<usize>> = vec![None; graph.inputs().len()];
    for (index, output) in graph.outputs().iter().enumerate() {
        if let Some(input) = output.donated_input {
            donated_to[input] = Some(index);
        }
    }

    let mut writer = Writer::new(*graph.mesh(), replica_groups, collectives, calls.kernels);
    let _ = writeln!(
        writer.text,
        "module @{name} attributes {{mhlo.num_replicas = {} : i32, \
         mhlo.num_partitions = 1 : i32}} {{\n  func.func public @main(",
        num_replicas / num_processes
    );
    let mut names = vec![String::new(); graph.num_values()];
    for (index, input) in graph.inputs().iter().enumerate() {
        let donation = donated_to[index]
            .map_or(String::new(), |output| format!(" {{tf.aliasing_output = {output} : i32}}"));
        let comma = if index + 1 < graph.inputs().len() { "," } else { "" };
        let ty = mlir_type(graph.ty(input.value));
        let _ = writeln!(writer.text, "    %arg{index}: {ty}{donation}{comma} // {}", input.name);
        names[input.value.index()] = format!("%arg{index}");
    }
    writer.text.push_str("  ) -> (\n");
    for (index, output) in graph.outputs().iter().enumerate() {
        let comma = if index + 1 < graph.outputs().len() { "," } else { "" };
        let ty = mlir_type(graph.ty(output.value));
        let _ = writeln!(writer.text, "    {ty}{comma} // {}", output.name);
    }
    writer.text.push_str("  ) {\n");
    writer.region(graph, names, 4, PROGRAM_END);
    writer.text.push_str("  }\n}\n");
    writer.locations();

    Program {
        text: writer.text,
        num_replicas,
        num_processes,
        inputs: graph
            .inputs()
            .iter()
            .zip(donated_to)
            .map(|(input, donated)| ProgramInput {
                name: input.name.clone(),
                ty: graph.ty(input.value).clone(),
                donated: donated.is_some(),
            })
            .collect(),
        outputs: graph
            .outputs()
            .iter()
            .map(|output| ProgramOutput {
                name: output.name.clone(),
                ty: graph.ty(output.value).clone(),
            })
            .collect(),
    }
}

struct Writer {
    text: String,
    mesh: Mesh,
    replica_groups: ProgramReplicas,
    collectives: Collectives,
    kernels: bool,
    num_names: usize,
    locations: HashMap<Origin, usize>,
    location_order: Vec<Origin>,
}

impl Writer {
    fn new(
        mesh: Mesh,
        replica_groups: ProgramReplicas,
        collectives: Collectives,
        kernels: bool,
    ) -> Self {
        Self {
            text: String::new(),
            mesh,
            replica_groups,
            collectives,
            kernels,
            num_names: 0,
            locations: HashMap::new(),
            location_order: vec![],
        }
    }
}

/// The graph or region being written: names of its values, and of the identities of its reductions,
/// which are written once.
struct RegionContext<'a> {
    graph: &'a Graph,
    names: Vec<String>,
    identities: HashMap<(DType, Reduction), String>,
    indent: usize,
}

impl RegionContext<'_> {
    fn name(&self, value: ValueId) -> &str {
        &self.names[value.index()]
    }

    fn list(&self, values: &[ValueId]) -> String {
        values.iter().map(|value| self.name(*value)).collect::<Vec<_>>().join(", ")
    }

    fn types(&self, values: impl IntoIterator<Item = ValueId>) -> String {
        let types: Vec<_> =
            values.into_iter().map(|value| mlir_type(self.graph.ty(value))).collect();
        types.join(", ")
    }

    fn pad(&self) -> String {
        " ".repeat(self.indent)
    }
}

impl Writer {
    /// Writes a graph's nodes, then the terminator with its outputs.
    fn region(&mut self, graph: &Graph, names: Vec<String>, indent: usize, terminator: &str) {
        let mut context = RegionContext { graph, names, identities: HashMap::new(), indent };
        for node in graph.nodes() {
            self.node(&mut context, node);
        }
        let is_program = terminator == PROGRAM_END;
        if is_program
            && self.collectives.num_processes() > 1
            && let Some((call, last)) = host_collective::keep(&context)
        {
            self.line(&context, last, &call);
        }
        let outputs: Vec<_> = graph.outputs().iter().map(|output| output.value).collect();
        let pad = context.pad();
        let _ = match outputs.is_empty() {
            true => writeln!(self.text, "{pad}{terminator}"),
            false => writeln!(
                self.text,
                "{pad}{terminator} {} : {}",
                context.list(&outputs),
                context.types(outputs.iter().copied())
            ),
        };
    }

    fn node(&mut self, context: &mut RegionContext<'_>, node: &Node) {
        match &node.op {
            Op::Input { .. } => return,
            Op::Vary { .. } | Op::Replicated { .. } | Op::StopGradient | Op::BlockBoundary => {
                context.names[node.result().index()] = context.name(node.operands[0]).to_owned();
                return;
            }
            // Nothing to do in groups of one, and XLA would not fuse across it.
            Op::AllReduce { groups, .. } if groups.size(&self.mesh) == Ok(1) => {
                for (result, operand) in node.results().zip(&node.operands) {
                    context.names[result.index()] = context.name(*operand).to_owned();
                }
                return;
            }
            Op::ReplicaId { axes } => {
                context.names[node.result().index()] = self.replica_id(context, node, *axes);
                return;
            }
            _ => {}
        }
        let body = match &node.op {
            Op::While { .. } => self.while_body(context, node),
            Op::Case { branches } => self.case_body(context, node, branches),
            Op::Reduce { reduction: Reduction::Sum, dims }
                if self.kernels && host_kernel::has_sum(context, node, dims) =>
            {
                host_kernel::sum(context, node)
            }
            Op::Reduce { reduction, dims } => {
                let dtype = context.graph.ty(node.operands[0]).dtype;
                let identity = self.identity(context, node, dtype, *reduction);
                format!(
                    "stablehlo.reduce({} init: {identity}) applies stablehlo.{} across dimensions \
                     = {dims:?} : ({}, {}) -> {}",
                    context.name(node.operands[0]),
                    reduction.name(),
                    context.types([node.operands[0]]),
                    mlir_type(&TensorType::new(dtype, &[])),
                    context.types(node.results())
                )
            }
            Op::ReduceWindow { reduction: Reduction::Max, window }
            | Op::SelectAndScatter { window }
                if self.kernels && host_kernel::has_max_pool(context, node, window) =>
            {
                host_kernel::max_pool(context, node, window)
            }
            Op::ReduceWindow { reduction, window } => {
                let dtype = context.graph.ty(node.operands[0]).dtype;
                let identity = self.identity(context, node, dtype, *reduction);
                windows::reduce_window(context, node, *reduction, window, &identity)
            }
            Op::Threefry(threefry) if self.kernels => {
                host_kernel::threefry(context, node, threefry)
            }
            Op::Threefry(threefry) => {
                let types: Vec<_> =
                    node.operands.iter().map(|operand| context.graph.ty(*operand)).collect();
                let as_ops = threefry.as_ops(self.mesh, &types, node.location);
                return self.inline(context, node, &merge_common_subexpressions(&as_ops));
            }
            Op::SelectAndScatter { window } => {
                let dtype = context.graph.ty(node.operands[0]).dtype;
                let zero = self.identity(context, node, dtype, Reduction::Sum);
                windows::select_and_scatter(context, node, window, &zero)
            }
            Op::Convolution(forward) => {
                let kernel = host_kernel::image_convolution(context, node, forward);
                match kernel.filter(|_| self.kernels) {
                    Some(kind) => host_kernel::convolution(context, node, forward, kind),
                    None => self.accumulated(context, node, |wide| {
                        windows::convolution(context, node, forward, wide)
                    }),
                }
            }
            Op::DotGeneral(dims) => {
                let kernel = self.kernels && host_kernel::has_dot(context, node, dims);
                self.accumulated(context, node, |wide| match kernel {
                    true => host_kernel::dot_general(context, node, dims, wide),
                    false => dot_general(context, node, dims, wide),
                })
            }
            op => match &mut self.collectives {
                Collectives::HostCalls { num_sites, .. } if op.groups().is_some() => {
                    *num_sites += 1;
                    let site = *num_sites - 1;
                    let groups_of = |groups| self.replica_groups.list(&self.mesh, groups);
                    host_collective::host_collective(context, node, groups_of, site)
                }
                _ => expression(context, node, &self.mesh, self.replica_groups),
            },
        };
        let results: Vec<_> = node.results().collect();
        let name = self.fresh();
        match &results[..] {
            [one] => context.names[one.index()] = name.clone(),
            many => {
                for (i, result) in many.iter().enumerate() {
                    context.names[result.index()] = format!("{name}#{i}");
                }
            }
        }
        let arity = if results.len() == 1 { String::new() } else { format!(":{}", results.len()) };
        self.line(context, node, &format!("{name}{arity} = {body}"));
    }

    /// Writes the nodes of a graph in place of a node, with the node's operands as inputs.
    fn inline(&mut self, context: &mut RegionContext<'_>, node: &Node, graph: &Graph) {
        let mut names = vec![String::new(); graph.num_values()];
        for (input, operand) in graph.inputs().iter().zip(&node.operands) {
            names[input.value.index()] = context.name(*operand).to_owned();
        }
        let identities = HashMap::new();
        let mut inner = RegionContext { graph, names, identities, indent: context.indent };
        for node in graph.nodes() {
            self.node(&mut inner, node);
        }
        for (result, output) in node.results().zip(graph.outputs()) {
            context.names[result.index()] = inner.name(output.value).to_owned();
        }
    }

    /// Writes an op that sums products in f32 where the graph has a narrower float, and converts
    /// the result: no backend accumulates in the narrow dtype. `write` takes the result type.
    fn accumulated(
        &mut self,
        context: &RegionContext<'_>,
        node: &Node,
        write: impl Fn(&str) -> String,
    ) -> String {
        let narrow = context.graph.ty(node.result());
        let wide = narrow.with_dtype(narrow.dtype.accumulation());
        let (narrow, wide) = (mlir_type(narrow), mlir_type(&wide));
        let code = write(&wide);
        if narrow == wide {
            return code;
        }
        let name = self.fresh();
        self.line(context, node, &format!("{name} = {code}"));
        format!("stablehlo.convert {name} : ({wide}) -> {narrow}")
    }

    fn line(&mut self, context: &RegionContext<'_>, node: &Node, code: &str) {
        let location = self.location(node.location);
        let _ = writeln!(self.text, "{}{code} loc(#loc{location})", context.pad());
    }

    fn fresh(&mut self) -> String {
        self.num_names += 1;
        format!("%{}", self.num_names - 1)
    }

    /// Computes the replica's index along `axes` from its number.
    fn replica_id(&mut self, context: &RegionContext<'_>, node: &Node, axes: AxisSet) -> String {
        let whole = self.mesh.group_size(axes) == self.mesh.num_replicas();
        let id = self.fresh();
        if !whole && self.mesh.group_size(axes) == 1 {
            self.line(context, node, &format!("{id} = stablehlo.constant dense<0> : tensor<ui32>"));
            return id;
        }
        let number = match self.collectives.num_processes() {
            1 => "stablehlo.replica_id : tensor<ui32>",
            // The op gives the number among the replicas of the process.
            _ => &format!(
                "stablehlo.custom_call @{HOST_REPLICA_ID_TARGET}() {{api_version = 4 : i32}} : () \
                 -> tensor<ui32>"
            ),
        };
        self.line(context, node, &format!("{id} = {number}"));
        if whole {
            return id;
        }
        let mut index: Option<String> = None;
        for axis in axes.iter() {
            let size = self.mesh.size(axis);
            let divided = self.u32_op(context, node, "divide", &id, self.mesh.stride(axis));
            let along = self.u32_op(context, node, "remainder", &divided, size);
            index = Some(match index {
                None => along,
                Some(outer) => {
                    let outer = self.u32_op(context, node, "multiply", &outer, size);
                    let sum = self.fresh();
                    let code = format!("{sum} = stablehlo.add {outer}, {along} : tensor<ui32>");
                    self.line(context, node, &code);
                    sum
                }
            });
        }
        index.unwrap_or(id)
    }

    fn u32_op(
        &mut self,
        context: &RegionContext<'_>,
        node: &Node,
        op: &str,
        x: &str,
        by: usize,
    ) -> String {
        let (constant, result) = (self.fresh(), self.fresh());
        let code = format!("{constant} = stablehlo.constant dense<{by}> : tensor<ui32>");
        self.line(context, node, &code);
        let code = format!("{result} = stablehlo.{op} {x}, {constant} : tensor<ui32>");
        self.line(context, node, &code);
        result
    }

    /// The name of the constant that a reduction starts from.
    fn identity(
        &mut self,
        context: &mut RegionContext<'_>,
        node: &Node,
        dtype: DType,
        reduction: Reduction,
    ) -> String {
        if let Some(name) = context.identities.get(&(dtype, reduction)) {
            return name.clone();
        }
        let name = self.fresh();
        let value = identity(dtype, reduction);
        let code = format!("{name} = {}", constant(&value));
        self.line(context, node, &code);
        context.identities.insert((dtype, reduction), name.clone());
        name
    }

    fn location(&mut self, location: Origin) -> usize {
        let next = self.location_order.len();
        *self.locations.entry(location).or_insert_with(|| {
            self.location_order.push(location);
            next
        })
    }

    fn locations(&mut self) {
        for (index, Origin { line, is_backward }) in self.location_order.iter().enumerate() {
            let (file, line, column) = (line.file(), line.line(), line.column());
            let place = format!("{file:?}:{line}:{column}");
            let _ = match is_backward {
                true => writeln!(self.text, "#loc{index} = loc({:?}({place}))", Origin::BACKWARD),
                false => writeln!(self.text, "#loc{index} = loc({place})"),
            };
        }
    }
}

/// An op of one line, without the `=` and what precedes it.
fn expression(
    context: &RegionContext<'_>,
    node: &Node,
    mesh: &Mesh,
    groups_of: ProgramReplicas,
) -> String {
    let name = node.op.name();
    let operands = context.list(&node.operands);
    let result = context.types(node.results());
    let signature = || format!("({}) -> {result}", context.types(node.operands.iter().copied()));
    match &node.op {
        Op::Constant(literal) => constant(literal),
        Op::Iota { dim, .. } => format!("stablehlo.iota dim = {dim} : {result}"),
        Op::Unary(crate::Unary::IsFinite) | Op::Convert(_) | Op::BitcastConvert(_) => {
            format!("stablehlo.{name} {operands} : {}", signature())
        }
        Op::Unary(crate::Unary::Erf) => format!("chlo.erf {operands} : {result} -> {result}"),
        Op::Unary(_) | Op::Binary(_) => format!("stablehlo.{name} {operands} : {result}"),
        Op::Compare(direction) => {
            let dtype = context.graph.ty(node.operands[0]).dtype;
            let kind = match dtype {
                dtype if dtype.is_float() => "FLOAT",
                dtype if dtype.is_unsigned() || dtype == DType::Pred => "UNSIGNED",
                _ => "SIGNED",
            };
            format!("stablehlo.compare {}, {operands}, {kind} : {}", direction.name(), signature())
        }
        Op::Select => {
            let types = context.types([node.operands[0], node.operands[1]]);
            format!("stablehlo.select {operands} : {types}")
        }
        Op::Clamp | Op::Reshape { .. } => format!("stablehlo.{name} {operands} : {}", signature()),
        Op::BroadcastInDim { broadcast_dims: dims, .. } | Op::Transpose { permutation: dims } => {
            format!("stablehlo.{name} {operands}, dims = {dims:?} : {}", signature())
        }
        Op::Slice { start, limit, strides } => {
            let ranges: Vec<_> = (0..start.len())
                .map(|dim| format!("{}:{}:{}", start[dim], limit[dim], strides[dim]))
                .collect();
            format!("stablehlo.slice {operands} [{}] : {}", ranges.join(", "), signature())
        }
        Op::DynamicSlice { sizes } => {
            format!("stablehlo.dynamic_slice {operands}, sizes = {sizes:?} : {}", signature())
        }
        Op::DynamicUpdateSlice => {
            format!("stablehlo.dynamic_update_slice {operands} : {}", signature())
        }
        Op::Pad { low, high, interior } => format!(
            "stablehlo.pad {operands}, low = {low:?}, high = {high:?}, interior = {interior:?} : \
             {}",
            signature()
        ),
        Op::Concatenate { dim } => {
            format!("stablehlo.concatenate {operands}, dim = {dim} : {}", signature())
        }
        Op::Gather { num_batch } => {
            let [x, indices] = [0, 1].map(|i| context.graph.ty(node.operands[i]));
            let attributes = gather::gather_attributes(x, indices, *num_batch);
            format!("\"stablehlo.gather\"({operands}) <{{{attributes}}}> : {}", signature())
        }
        Op::Scatter { num_batch } => {
            let [x, indices] = [0, 1].map(|i| context.graph.ty(node.operands[i]));
            let attributes = gather::scatter_attributes(x, indices, *num_batch);
            let reducer = reducer(Reduction::Sum, x.dtype);
            format!(
                "\"stablehlo.scatter\"({operands}) <{{{attributes}}}> {reducer} : {}",
                signature()
            )
        }
        Op::TopK { k } => {
            let x = context.types(node.operands.iter().copied());
            format!("chlo.top_k({operands}, k = {k}) : {x} -> ({result})")
        }
        Op::CustomCall(call) => custom_call::custom_call(context, node, call),
        Op::FusionBarrier | Op::OptimizationBarrier => {
            format!("stablehlo.optimization_barrier {operands} : {result}")
        }
        Op::AllReduce { reduction, groups } => {
            let results = if node.results().len() == 1 { result } else { format!("({result})") };
            format!(
                "\"stablehlo.all_reduce\"({operands}) <{{{}}}> {} : ({}) -> {results}",
                replica_groups(&groups_of.list(mesh, *groups)),
                reducer(*reduction, context.graph.ty(node.operands[0]).dtype),
                context.types(node.operands.iter().copied()),
            )
        }
        Op::Reverse { dims } => format!("stablehlo.reverse {operands}, dims = {dims:?} : {result}"),
        Op::AllGather { dim, groups } => format!(
            "\"stablehlo.all_gather\"({operands}) <{{all_gather_dim = {dim} : i64, {}}}> : {}",
            replica_groups(&groups_of.list(mesh, *groups)),
            signature()
        ),
        Op::ReduceScatter { dim, groups } => format!(
            "\"stablehlo.reduce_scatter\"({operands}) <{{{}, scatter_dimension = {dim} : i64}}> {} \
             : {}",
            replica_groups(&groups_of.list(mesh, *groups)),
            reducer(Reduction::Sum, context.graph.ty(node.operands[0]).dtype),
            signature()
        ),
        Op::AllToAll { split_dim, concat_dim, groups } => {
            let listed = groups_of.list(mesh, *groups);
            format!(
                "\"stablehlo.all_to_all\"({operands}) <{{concat_dimension = {concat_dim} : i64, \
                 {}, split_count = {} : i64, split_dimension = {split_dim} : i64}}> : {}",
                replica_groups(&listed),
                listed[0].len(),
                signature()
            )
        }
        Op::CollectivePermute { pairs, groups } => {
            let groups = listed(mesh, *groups);
            let pairs: Vec<_> = groups
                .iter()
                .flat_map(|group| pairs.iter().map(|(from, to)| vec![group[*from], group[*to]]))
                .collect();
            format!(
                "\"stablehlo.collective_permute\"({operands}) <{{source_target_pairs = \
                 dense<{pairs:?}> : tensor<{}x2xi64>}}> : {}",
                pairs.len(),
                signature()
            )
        }
        Op::Scan(_) | Op::Remat(_) | Op::CustomVjp(_) => {
            unreachable!("replaced by `expand`")
        }
        Op::Input { .. }
        | Op::Reduce { .. }
        | Op::DotGeneral(_)
        | Op::Convolution(_)
        | Op::ReduceWindow { .. }
        | Op::SelectAndScatter { .. }
        | Op::While { .. }
        | Op::Case { .. }
        | Op::ReplicaId { .. }
        | Op::Vary { .. }
        | Op::Replicated { .. }
        | Op::BlockBoundary
        | Op::StopGradient
        | Op::Threefry(_) => unreachable!("written by `Writer::node`"),
    }
}

fn dot_general(context: &RegionContext<'_>, node: &Node, dims: &DotDims, result: &str) -> String {
    let batching = match dims.lhs_batch.is_empty() {
        true => String::new(),
        false => format!("batching_dims = {:?} x {:?}, ", dims.lhs_batch, dims.rhs_batch),
    };
    format!(
        "stablehlo.dot_general {}, {batching}contracting_dims = {:?} x {:?} : ({}) -> {result}",
        context.list(&node.operands),
        dims.lhs_contracting,
        dims.rhs_contracting,
        context.types(node.operands.iter().copied()),
    )
}

/// The region of a collective that reduces, on one line.
fn reducer(reduction: Reduction, dtype: DType) -> String {
    let ty = mlir_type(&TensorType::new(dtype, &[]));
    format!(
        "({{ ^bb0(%x: {ty}, %y: {ty}): %r = stablehlo.{} %x, %y : {ty} stablehlo.return %r : {ty} \
         }})",
        reduction.name()
    )
}

/// The identity element of a reduction.
pub(crate) fn identity(dtype: DType, reduction: Reduction) -> Literal {
    macro_rules! limit {
        ($which:ident, $float:expr) => {
            match dtype {
                DType::I64 => Literal::scalar(i64::$which),
                DType::I32 => Literal::scalar(i32::$which),
                DType::I8 => Literal::scalar(i8::$which),
                DType::U64 => Literal::scalar(u64::$which),
                DType::U32 => Literal::scalar(u32::$which),
                DType::U8 => Literal::scalar(u8::$which),
                float_or_pred => Literal::from_f64(float_or_pred, &[], &[$float]),
            }
        };
    }
    match reduction {
        Reduction::Sum | Reduction::Or => Literal::zeros(dtype, &[]),
        Reduction::And => Literal::from_f64(dtype, &[], &[1.0]),
        Reduction::Max => limit!(MIN, f64::NEG_INFINITY),
        Reduction::Min => limit!(MAX, f64::INFINITY),
    }
}

/// `tensor<8x64xf32>`.
fn mlir_type(ty: &TensorType) -> String {
    let mut out = String::from("tensor<");
    for dim in &ty.dims {
        let _ = write!(out, "{dim}x");
    }
    out.push_str(ty.dtype.mlir());
    out.push('>');
    out
}
