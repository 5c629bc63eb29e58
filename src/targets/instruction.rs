//! The instructions of an optimised program, with their source lines.

use std::collections::HashMap;

use super::hlo_proto::HloModule;

/// An instruction of an optimised program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Its name, unique in the program.
    pub name: String,
    /// XLA's name for the op: `fusion`, `dot`, `all-reduce`.
    pub opcode: String,
    /// Types of its operands, as in `f32[2,3]`.
    pub operands: Vec<String>,
    /// Type of its result.
    pub result: String,
    /// `FILE:LINE` of the op it was lowered from; for a fusion, of its last op.
    pub source: Option<String>,
}

/// All instructions of the program that
/// [`Compiled::optimized_program`](crate::pjrt::Compiled::optimized_program) returns, including
/// those in fusions and loop bodies.
///
/// # Errors
/// If the bytes are not a wrapped `HloModuleProto`.
pub fn instructions(optimized: &[u8]) -> Result<Vec<Instruction>, prost::DecodeError> {
    let module = HloModule::decode_optimized(optimized)?;
    let all = || module.computations.iter().flat_map(|computation| &computation.instructions);
    let types: HashMap<i64, String> =
        all().map(|i| (i.id, i.shape.as_ref().map(|s| s.text()).unwrap_or_default())).collect();
    let type_of = |id: &i64| types.get(id).cloned().unwrap_or_default();
    let instructions = all().map(|i| Instruction {
        name: i.name.clone(),
        opcode: i.opcode.clone(),
        operands: i.operand_ids.iter().map(type_of).collect(),
        result: type_of(&i.id),
        source: i.metadata.as_ref().and_then(|metadata| {
            let (file, line) = (&metadata.source_file, metadata.source_line);
            (!file.is_empty()).then(|| format!("{file}:{line}"))
        }),
    });
    Ok(instructions.collect())
}
