//! Which collectives of an optimised program are not ordered by data.

use std::collections::{HashMap, HashSet};

use super::hlo_proto::{HloComputation, HloInstruction, HloModule};
use super::schedule::KINDS;

/// The loops (or branches) with collectives inside, each with the name of another collective of the
/// same computation that neither reads what the loop writes nor writes what the loop reads, so that
/// XLA's CPU backend may run them in different orders on different replicas. See
/// [`hlo::rewrites::order_collectives`]. Takes the bytes that
/// [`Compiled::optimized_program`](crate::pjrt::Compiled::optimized_program) returns.
///
/// # Errors
/// If the bytes are not a wrapped `HloModuleProto`.
pub fn unordered_collectives(
    optimized: &[u8],
) -> Result<Vec<(String, String)>, prost::DecodeError> {
    let module = HloModule::decode_optimized(optimized)?;
    let mut found = vec![];
    for computation in &module.computations {
        let data = Data::of(&module, computation);
        let all = &computation.instructions;
        let communicating: Vec<_> = all.iter().filter(|i| communicates(&module, i)).collect();
        for first in communicating.iter().filter(|i| !is_collective(i)) {
            let others = communicating.iter().filter(|other| other.id != first.id);
            let is_ordered = |other: &HloInstruction| {
                data.depends(first.id, other.id) || data.depends(other.id, first.id)
            };
            let unordered = others.filter(|other| !is_ordered(other));
            found.extend(unordered.map(|other| (first.name.clone(), other.name.clone())));
        }
    }
    Ok(found)
}

fn is_collective(instruction: &HloInstruction) -> bool {
    KINDS.iter().any(|(opcode, _)| *opcode == instruction.opcode)
}

/// `true` for a collective, and for an op that runs one.
fn communicates(module: &HloModule, instruction: &HloInstruction) -> bool {
    let called = instruction.called_computation_ids.iter();
    let called = called.filter_map(|id| module.computation(*id));
    is_collective(instruction)
        || called
            .flat_map(|computation| &computation.instructions)
            .any(|inner| communicates(module, inner))
}

/// The instructions of a computation that read what others have written. Tuples and barriers write
/// nothing, and a loop does not write values that it only passes on.
struct Data<'m> {
    module: &'m HloModule,
    by_id: HashMap<i64, &'m HloInstruction>,
}

impl<'m> Data<'m> {
    fn of(module: &'m HloModule, computation: &'m HloComputation) -> Self {
        let by_id = computation.instructions.iter().map(|i| (i.id, i)).collect();
        Self { module, by_id }
    }

    /// `true` if instruction `id` is computed from what `on` has written.
    fn depends(&self, id: i64, on: i64) -> bool {
        let (mut seen, mut open) = (HashSet::new(), vec![id]);
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            let Some(instruction) = self.by_id.get(&id) else { continue };
            let read = match instruction.opcode.as_str() {
                "get-tuple-element" => {
                    vec![self.element(instruction.operand_ids[0], instruction.tuple_index)]
                }
                _ => instruction.operand_ids.clone(),
            };
            if read.contains(&on) {
                return true;
            }
            open.extend(read);
        }
        false
    }

    /// The id of the instruction that writes an element of a tuple.
    fn element(&self, tuple: i64, index: i64) -> i64 {
        let Some(instruction) = self.by_id.get(&tuple) else { return tuple };
        match instruction.opcode.as_str() {
            "tuple" => instruction.operand_ids[index as usize],
            "opt-barrier" => self.element(instruction.operand_ids[0], index),
            "while" if self.passes_on(instruction, index) => {
                self.element(instruction.operand_ids[0], index)
            }
            _ => tuple,
        }
    }

    /// `true` if the body of a loop returns an element of its parameter as it is.
    fn passes_on(&self, of: &HloInstruction, index: i64) -> bool {
        let bodies = of.called_computation_ids.iter().filter_map(|id| self.module.computation(*id));
        bodies.into_iter().any(|body| {
            let by_id = |id: i64| body.instructions.iter().find(|i| i.id == id);
            let returned = by_id(body.root_id)
                .filter(|root| root.opcode == "tuple")
                .and_then(|root| by_id(root.operand_ids[index as usize]));
            returned.is_some_and(|element| {
                let of = element.operand_ids.first().and_then(|id| by_id(*id));
                element.opcode == "get-tuple-element"
                    && element.tuple_index == index
                    && of.is_some_and(|of| of.opcode == "parameter")
            })
        })
    }
}
