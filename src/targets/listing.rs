//! A readable listing of an optimised program, with computations in the order in which they run.

use std::collections::HashMap;
use std::fmt::Write;

use hlo::counted;

use super::hlo_proto::{HloComputation, HloModule, ReplicaGroups};

/// The computations, entry first, with instructions in scheduled order if there is one. Attributes
/// are limited to those that show what overlaps: fusion kinds, called computations, custom call
/// targets and replica groups.
pub(super) fn listing(module: &HloModule) -> String {
    let names: HashMap<i64, &str> =
        module.computations.iter().map(|called| (called.id, called.name.as_str())).collect();
    let mut out = format!("module {}\n", module.name);
    let entry = |called: &&HloComputation| called.id == module.entry_computation_id;
    let rest = module.computations.iter().rev().filter(|called| !entry(called));
    for computation in module.computations.iter().filter(entry).chain(rest) {
        write_computation(&mut out, module, computation, &names);
    }
    out
}

fn write_computation(
    out: &mut String,
    module: &HloModule,
    computation: &HloComputation,
    names: &HashMap<i64, &str>,
) {
    let is_entry = computation.id == module.entry_computation_id;
    let title = if is_entry { "entry" } else { "computation" };
    // Writing to a String cannot fail.
    let _ = writeln!(out, "\n{title} {} {{", computation.name);
    let of: HashMap<i64, &str> =
        computation.instructions.iter().map(|i| (i.id, i.name.as_str())).collect();
    for instruction in module.scheduled(computation) {
        let shape = instruction.shape.as_ref().map(|shape| shape.text()).unwrap_or_default();
        let operands: Vec<_> =
            instruction.operand_ids.iter().map(|id| of.get(id).copied().unwrap_or("?")).collect();
        let root = if instruction.id == computation.root_id { "root " } else { "" };
        let (name, opcode) = (&instruction.name, &instruction.opcode);
        let _ = write!(out, "  {root}{name} = {shape} {opcode}({})", operands.join(", "));
        match opcode.as_str() {
            "parameter" => drop(write!(out, ", number {}", instruction.parameter_number)),
            "get-tuple-element" => drop(write!(out, ", index {}", instruction.tuple_index)),
            "fusion" => drop(write!(out, ", kind {}", instruction.fusion_kind)),
            "custom-call" => drop(write!(out, ", target {}", instruction.custom_call_target)),
            _ => {}
        }
        if let Some(ReplicaGroups { num_groups, first }) = instruction.groups() {
            let _ = write!(out, ", {} of {}", counted(num_groups, "group"), first.len());
        }
        let called = instruction.called_computation_ids.iter().filter_map(|id| names.get(id));
        for name in called {
            let _ = write!(out, ", calls {name}");
        }
        out.push('\n');
    }
    out.push_str("}\n");
}
