//! The VJPs of case, scan and remat.

use std::sync::Arc;

use super::residuals::recomputed;
use super::{Region, Scan};
use crate::grad::{Cotangents, active, vjp_with};
use crate::graph::Output;
use crate::ops::body;
use crate::ops::custom_vjp::Recompute;
use crate::passes::eliminate_dead_code;
use crate::rewriter::Rewriter;
use crate::tensor::Tracer;
use crate::{AxisSet, Binary, Graph, Op, Tensor, ValueId, vjp};

/// The body, recomputed after a barrier on its operands, and its VJP. The cotangents go through the
/// same barrier, so that nothing is recomputed before it is needed, and in a scan the recomputation
/// is not part of the forward pass. Only the `wanted` operands get cotangents.
pub(crate) fn remat_vjp<'g>(
    body: &Region,
    x: &[Tensor<'g>],
    cotangents: &[Option<Tensor<'g>>],
    wanted: &[bool],
) -> Cotangents<'g> {
    let given: Vec<_> = cotangents.iter().flatten().copied().collect();
    let t = given[0].tracer();
    let barred = t.optimization_barrier(&[x, &given].concat());
    let (inputs, mut given) = (&barred[..x.len()], barred[x.len()..].iter().copied());
    let outputs = t.inline(&body.graph, inputs);
    let seeds: Vec<_> = outputs
        .into_iter()
        .zip(cotangents)
        .filter_map(|(output, ct)| Some((output, ct.and_then(|_| given.next())?)))
        .collect();
    let wrt: Vec<_> = inputs.iter().zip(wanted).filter(|(_, w)| **w).map(|(x, _)| *x).collect();
    let mut found = vjp_with(&seeds, &wrt, Recompute::Keep).into_iter();
    Ok(wanted.iter().map(|wanted| if *wanted { found.next() } else { None }).collect())
}

/// A case of the branches' VJPs on the operands and the nonzero cotangents, for the `wanted`
/// operands.
pub(crate) fn case_vjp<'g>(
    branches: &[Arc<Region>],
    operands: &[Tensor<'g>],
    cotangents: &[Option<Tensor<'g>>],
    wanted: &[bool],
) -> Result<Vec<Option<Tensor<'g>>>, String> {
    let [index, x @ ..] = operands else { return Err("takes an index".into()) };
    let t = index.tracer();
    let given: Vec<_> = cotangents.iter().flatten().copied().collect();
    let wanted = &wanted[1..];
    let inputs = [x, &given].concat();
    let types: Vec<_> = inputs.iter().map(Tensor::ty).collect();
    let is_free: Vec<_> = inputs.iter().map(Tensor::is_gradient_free).collect();
    let backward = branches.iter().map(|branch| {
        let graph = body::region(t, &types, &is_free, |inputs| {
            let (x, mut given) = (&inputs[..x.len()], inputs[x.len()..].iter().copied());
            let outputs = inputs[0].tracer().inline(&branch.graph, x);
            let seeds: Vec<_> = outputs
                .into_iter()
                .zip(cotangents)
                .filter_map(|(output, ct)| Some((output, ct.and_then(|_| given.next())?)))
                .collect();
            let wrt: Vec<_> =
                x.iter().zip(wanted).filter(|(_, wanted)| **wanted).map(|(x, _)| *x).collect();
            // The branch has been recomputed for this.
            vjp_with(&seeds, &wrt, Recompute::Keep)
        });
        graph.map(Region::new).map_err(|error| {
            let message = error.message.clone();
            t.keep_first(error);
            message
        })
    });
    let branches = backward.collect::<Result<Vec<_>, _>>()?;
    let found = t.apply_variadic(Op::Case { branches }, &[&[*index], &inputs[..]].concat());
    let mut found = found.into_iter();
    let to_x = wanted.iter().map(|wanted| if *wanted { found.next() } else { None });
    Ok(std::iter::once(None).chain(to_x).collect())
}

/// A scan in the opposite direction. The body and its VJP are traced in one graph, which is then
/// cut in two: the forward pass does not depend on cotangents, and its values that the backward
/// pass needs are the **residuals**. The forward scan is extended by a stack of each residual;
/// `prepare` then removes the original scan.
///
/// Values are not kept if the backward pass has them anyway (constants, stacks that were read), if
/// they depend on constants alone, or if they are a reshape or a cheap function of kept values.
/// Nothing is carried or stacked for operands that are not `wanted`.
pub(crate) fn scan_vjp<'g>(
    scan: &Scan,
    x: &[Tensor<'g>],
    cotangents: &[Option<Tensor<'g>>],
    wanted: &[bool],
) -> Cotangents<'g> {
    let Some(given) = cotangents.iter().flatten().next() else { return Ok(vec![None; x.len()]) };
    let t = given.tracer();
    let joint = Joint::trace(scan, cotangents, &active_inputs(scan, wanted)).map_err(|error| {
        let message = error.message.clone();
        t.keep_first(error);
        message
    })?;
    let parts = joint.cut();

    let num_results = cotangents.len();
    let residuals = match parts.residuals.is_empty() {
        true => vec![],
        false => {
            let graph = joint.forward(&parts);
            let body = Arc::new(Region { graph, extends: Some(Arc::clone(&scan.body)) });
            let results = t.apply_variadic(Op::Scan(Scan { body, ..scan.clone() }), x);
            results.get(num_results..).ok_or("the forward pass does not fit")?.to_vec()
        }
    };

    let Scan { num_consts, num_carried, .. } = *scan;
    let (consts, rest) = x.split_at(num_consts);
    let (carried, xs) = rest.split_at(num_carried);
    let pick = |tensors: &[Tensor<'g>], which: &[usize]| -> Vec<Tensor<'g>> {
        which.iter().map(|i| tensors[*i]).collect()
    };
    let mut operands = pick(consts, &parts.used_consts);
    let zeros = |i: &usize| consts[*i].full_like(0.0).convert(consts[*i].dtype().accumulation());
    operands.extend(joint.wanted_consts.iter().map(zeros));
    let start = |i: &usize| cotangents[*i].unwrap_or_else(|| carried[*i].full_like(0.0));
    operands.extend(joint.wanted_carried.iter().map(start));
    operands.extend(pick(xs, &parts.used_xs));
    operands.extend(residuals);
    operands.extend(joint.given_ys.iter().filter_map(|j| cotangents[num_carried + j]));
    let backward = Scan {
        body: Region::new(joint.backward(&parts)),
        length: scan.length,
        num_consts: parts.used_consts.len(),
        num_carried: joint.wanted_consts.len() + joint.wanted_carried.len(),
        reverse: !scan.reverse,
    };
    let results = t.apply_variadic(Op::Scan(backward), &operands);

    let mut found = vec![None; x.len()];
    let firsts = [0, num_consts, num_consts + num_carried];
    let wanted = [&joint.wanted_consts, &joint.wanted_carried, &joint.wanted_xs];
    let places =
        firsts.iter().zip(wanted).flat_map(|(first, of)| of.iter().map(move |i| first + i));
    for (place, result) in places.zip(results) {
        found[place] = Some(result.convert(x[place].dtype()));
    }
    Ok(found)
}

/// For each input of the body, `true` if it depends on operands that are `wanted`. A carried value
/// does from some iteration on if its initial value does, or the value that the body returns for
/// it.
fn active_inputs(scan: &Scan, wanted: &[bool]) -> Vec<bool> {
    let body = &scan.body.graph;
    let mut active_inputs = wanted.to_vec();
    loop {
        let wrt = body.inputs().iter().zip(&active_inputs).filter(|(_, is_active)| **is_active);
        let active = active(body, wrt.map(|(input, _)| input.value));
        let before = active_inputs.clone();
        let carried = &mut active_inputs[scan.num_consts..][..scan.num_carried];
        for (carried, next) in carried.iter_mut().zip(body.outputs()) {
            *carried |= active[next.value.index()];
        }
        if active_inputs == before {
            return active_inputs;
        }
    }
}

/// The body and its VJP in one graph. Inputs: the body's, cotangents of `wanted_carried`, of
/// `given_ys`. Outputs: the body's, then cotangents of `wanted_consts`, `wanted_carried` and
/// `wanted_xs`.
pub(super) struct Joint {
    pub(super) graph: Graph,
    num_consts: usize,
    /// Inputs and outputs of the body.
    num_inputs: usize,
    num_outputs: usize,
    first_x: usize,
    wanted_consts: Vec<usize>,
    wanted_carried: Vec<usize>,
    wanted_xs: Vec<usize>,
    given_ys: Vec<usize>,
}

/// How a [`Joint`] is cut.
pub(super) struct Parts {
    /// For each value, `true` if the forward pass computes it.
    is_forward: Vec<bool>,
    /// For each value, `true` if the backward pass computes it.
    is_backward: Vec<bool>,
    pub(super) residuals: Vec<ValueId>,
    pub(super) used_consts: Vec<usize>,
    pub(super) used_xs: Vec<usize>,
}

impl Joint {
    pub(super) fn trace(
        scan: &Scan,
        cotangents: &[Option<Tensor<'_>>],
        is_wanted: &[bool],
    ) -> Result<Self, crate::Error> {
        let body = &scan.body.graph;
        let input_of = |i: usize| body.inputs()[i].value;
        let (num_inputs, num_outputs) = (body.inputs().len(), body.outputs().len());
        let first_x = scan.num_consts + scan.num_carried;
        let wanted = |first: usize, count: usize| -> Vec<usize> {
            (0..count).filter(|i| is_wanted[first + i]).collect()
        };
        let wanted_consts = wanted(0, scan.num_consts);
        let wanted_carried = wanted(scan.num_consts, scan.num_carried);
        let wanted_xs = wanted(first_x, scan.num_xs());
        let given_ys: Vec<_> = (0..num_outputs - scan.num_carried)
            .filter(|j| cotangents[scan.num_carried + j].is_some())
            .collect();

        let t = Tracer::new(*body.mesh());
        let types: Vec<_> = (0..num_inputs).map(|i| body.ty(input_of(i)).clone()).collect();
        let inputs = t.region_inputs(&types, &vec![false; num_inputs]);
        let outputs = t.inline(body, &inputs);
        let seeded = wanted_carried.iter().copied();
        let seeded = seeded.chain(given_ys.iter().map(|j| scan.num_carried + j));
        let seeds: Vec<_> = seeded
            .map(|i| (outputs[i], t.input(format!("cotangent.{i}"), outputs[i].ty())))
            .collect();
        let firsts = [0, scan.num_consts, first_x];
        let which = firsts.iter().zip([&wanted_consts, &wanted_carried, &wanted_xs]);
        let inputs = &inputs;
        let wrt: Vec<_> =
            which.flat_map(|(first, of)| of.iter().map(move |i| inputs[first + i])).collect();
        let found = vjp(&seeds, &wrt);
        for (i, output) in outputs.into_iter().chain(found).enumerate() {
            t.output_varying(format!("output.{i}"), output, AxisSet::ALL);
        }
        Ok(Self {
            graph: eliminate_dead_code(&t.finish()?),
            num_consts: scan.num_consts,
            num_inputs,
            num_outputs,
            first_x,
            wanted_consts,
            wanted_carried,
            wanted_xs,
            given_ys,
        })
    }

    pub(super) fn cut(&self) -> Parts {
        let graph = &self.graph;
        let mut is_forward = vec![false; graph.num_values()];
        let mut is_constant = vec![false; graph.num_values()];
        for node in graph.nodes() {
            let all = |of: &[bool]| node.operands.iter().all(|operand| of[operand.index()]);
            let [forward, constant] = match node.op {
                Op::Input { index } => [index < self.num_inputs, index < self.num_consts],
                _ => [all(&is_forward), all(&is_constant) && !node.op.has_side_effect()],
            };
            for result in node.results() {
                is_forward[result.index()] = forward;
                is_constant[result.index()] = constant;
            }
        }
        let mut is_backward: Vec<_> = is_forward.iter().map(|forward| !forward).collect();
        let mut is_residual = vec![false; graph.num_values()];
        let mut used = vec![false; self.num_inputs];
        let mut require = |value: ValueId, is_backward: &mut [bool]| {
            let node = graph.node_of(value);
            let only_reshapes = matches!(
                node.op,
                Op::BroadcastInDim { .. }
                    | Op::Reshape { .. }
                    | Op::Vary { .. }
                    | Op::Replicated { .. }
                    | Op::StopGradient
            );
            match node.op {
                _ if is_backward[value.index()] => {}
                // Carried values no longer exist in the backward pass.
                Op::Input { index } if index < self.num_consts || index >= self.first_x => {
                    used[index] = true;
                }
                _ if is_constant[value.index()] || only_reshapes => {
                    for result in node.results() {
                        is_backward[result.index()] = true;
                    }
                }
                _ => is_residual[value.index()] = true,
            }
        };
        for output in &graph.outputs()[self.num_outputs..] {
            require(output.value, &mut is_backward);
        }
        for node in graph.nodes().iter().rev() {
            if is_backward[node.result().index()] {
                for operand in &node.operands {
                    require(*operand, &mut is_backward);
                }
            }
        }
        let mut at_hand = is_constant;
        for (index, input) in graph.inputs().iter().enumerate().take(self.num_inputs) {
            at_hand[input.value.index()] |= index < self.num_consts || index >= self.first_x;
        }
        for value in recomputed(graph, &at_hand, &is_residual) {
            is_residual[value.index()] = false;
            is_backward[value.index()] = true;
        }
        // Marks the constants and slices that the backward pass uses.
        for node in graph.nodes().iter().rev() {
            let operands =
                if is_backward[node.result().index()] { &node.operands[..] } else { &[] };
            for operand in operands {
                match graph.node_of(*operand).op {
                    Op::Input { index } if index < self.num_inputs => used[index] = true,
                    _ if at_hand[operand.index()] => is_backward[operand.index()] = true,
                    _ => {}
                }
            }
        }
        let values = graph.nodes().iter().flat_map(|node| node.results());
        Parts {
            residuals: values.filter(|value| is_residual[value.index()]).collect(),
            used_consts: (0..self.num_consts).filter(|i| used[*i]).collect(),
            used_xs: (self.first_x..self.num_inputs)
                .filter(|i| used[*i])
                .map(|i| i - self.first_x)
                .collect(),
            is_forward,
            is_backward,
        }
    }

    /// The body, with the residuals after its results.
    pub(super) fn forward(&self, parts: &Parts) -> Graph {
        let mut copy = Rewriter::new(&self.graph);
        (0..self.num_inputs).for_each(|i| copy.input(i));
        copy_part(&mut copy, &parts.is_forward);
        let body = self.graph.outputs()[..self.num_outputs].iter().map(|output| output.value);
        let outputs = body.chain(parts.residuals.iter().copied());
        let outputs: Vec<_> = outputs.map(|value| copy.get(value)).collect();
        finish(copy, outputs)
    }

    /// The backward pass. Inputs: constants, the sums of the constants' cotangents in f32 or wider,
    /// the carried values' cotangents, slices of `xs`, residuals, cotangents of slices of `ys`.
    pub(super) fn backward(&self, parts: &Parts) -> Graph {
        let mut copy = Rewriter::new(&self.graph);
        parts.used_consts.iter().for_each(|i| copy.input(*i));
        let gradients = &self.graph.outputs()[self.num_outputs..];
        let here = std::panic::Location::caller();
        let sums: Vec<_> = gradients[..self.wanted_consts.len()]
            .iter()
            .map(|gradient| {
                let ty = self.graph.ty(gradient.value);
                let ty = ty.with_dtype(ty.dtype.accumulation());
                copy.copied_mut().input(format!("sum.{}", gradient.name), ty, here)
            })
            .collect();
        let first_seed = self.num_inputs;
        let first_y = first_seed + self.wanted_carried.len();
        (first_seed..first_y).for_each(|i| copy.input(i));
        parts.used_xs.iter().for_each(|i| copy.input(self.first_x + i));
        for residual in &parts.residuals {
            let (ty, name) = (self.graph.ty(*residual).clone(), residual.index());
            let input = copy.copied_mut().input(format!("residual.{name}"), ty, here);
            copy.set(*residual, input);
        }
        (first_y..first_y + self.given_ys.len()).for_each(|i| copy.input(i));
        copy_part(&mut copy, &parts.is_backward);
        let mut outputs: Vec<_> =
            gradients.iter().map(|gradient| copy.get(gradient.value)).collect();
        for ((output, sum), gradient) in outputs.iter_mut().zip(&sums).zip(gradients) {
            let node = self.graph.node_of(gradient.value);
            let add = |more: ValueId| {
                let dtype = copy.copied().ty(*sum).dtype;
                let more = match copy.copied().ty(more).dtype == dtype {
                    true => more,
                    false => copy.push(node, Op::Convert(dtype), &[more]),
                };
                copy.push(node, Op::Binary(Binary::Add), &[*sum, more])
            };
            *output = output.map(add);
        }
        finish(copy, outputs).in_backward()
    }
}

/// Copies the nodes of a part, except those with values that are known already, such as residuals.
fn copy_part(copy: &mut Rewriter<'_>, part: &[bool]) {
    for node in copy.old().nodes() {
        let is_input = matches!(node.op, Op::Input { .. });
        if !is_input && part[node.result().index()] && copy.get(node.result()).is_none() {
            copy.copy(node);
        }
    }
}

fn finish(copy: Rewriter<'_>, outputs: impl IntoIterator<Item = Option<ValueId>>) -> Graph {
    let mut graph = copy.finish_without_outputs();
    for (i, value) in outputs.into_iter().enumerate() {
        let value = value.expect("a part has its outputs");
        let (name, varying) = (format!("output.{i}"), AxisSet::ALL);
        graph.output(Output { name, value, varying, donated_input: None });
    }
    graph
}
