//! How long the results of all_gathers are in memory.

use std::collections::HashMap;

use super::collective::Collective;
use super::hlo_proto::HloInstruction;

/// A gathered value of a sequence of instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gathered {
    /// Where its all_gather starts.
    pub start: usize,
    /// The instruction that returns it.
    pub value: i64,
    /// Its size.
    pub bytes: u64,
    /// `true` if it is no longer in memory after the instruction at `start`, such as the peak
    /// inside a loop.
    pub ends: bool,
}

impl Gathered {
    /// The results of the all_gathers among `collectives`, which `instruction` returns.
    pub fn of(
        collectives: &[Collective],
        start: usize,
        instruction: &HloInstruction,
    ) -> Option<Self> {
        let gathers = collectives.iter().filter(|collective| collective.kind == "all_gather");
        let bytes = gathers.map(Collective::whole_bytes).sum();
        (bytes > 0).then_some(Self { start, value: instruction.id, bytes, ends: false })
    }
}

/// Instructions that return their operand, or a copy of it.
const SAME_VALUE: [&str; 9] = [
    "bitcast",
    "copy",
    "copy-done",
    "copy-start",
    "get-tuple-element",
    "opt-barrier",
    "reshape",
    "transpose",
    "tuple",
];

/// The largest sum of the values that are in memory at once, each from the start of its all_gather
/// to its last use.
pub(super) fn peak_bytes(sequence: &[&HloInstruction], gathered: &[Gathered]) -> u64 {
    let mut last_use: Vec<usize> = gathered.iter().map(|value| value.start).collect();
    let mut holds: HashMap<i64, Vec<usize>> = HashMap::new();
    for (index, value) in gathered.iter().enumerate().filter(|(_, value)| !value.ends) {
        holds.entry(value.value).or_default().push(index);
    }
    for (at, instruction) in sequence.iter().enumerate() {
        let used = instruction.operand_ids.iter().filter_map(|id| holds.get(id)).flatten();
        let used: Vec<usize> = used.copied().collect();
        for index in &used {
            last_use[*index] = last_use[*index].max(at);
        }
        if SAME_VALUE.contains(&instruction.opcode.as_str()) && !used.is_empty() {
            holds.entry(instruction.id).or_default().extend(used);
        }
    }
    let mut change = vec![0i128; sequence.len() + 1];
    for (value, last) in gathered.iter().zip(last_use) {
        change[value.start] += i128::from(value.bytes);
        change[last + 1] -= i128::from(value.bytes);
    }
    let mut now = 0;
    let peak = change.into_iter().map(|bytes| {
        now += bytes;
        now
    });
    peak.max().and_then(|peak| u64::try_from(peak).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_in_memory_from_its_gather_to_its_last_use_through_copies() {
        let instruction = |id: i64, opcode: &str, operand_ids: &[i64]| HloInstruction {
            id,
            opcode: opcode.into(),
            operand_ids: operand_ids.to_vec(),
            ..HloInstruction::default()
        };
        let rows = [
            instruction(1, "all-gather", &[]),
            instruction(2, "bitcast", &[1]),
            instruction(3, "all-gather", &[]),
            instruction(4, "dot", &[2]),
            instruction(5, "dot", &[3]),
            instruction(6, "all-gather", &[]),
            instruction(7, "dot", &[6]),
        ];
        let sequence: Vec<_> = rows.iter().collect();
        let gathered = [(0, 1, 10), (2, 3, 20), (5, 6, 25)];
        let gathered =
            gathered.map(|(start, value, bytes)| Gathered { start, value, bytes, ends: false });
        // The first two overlap; the third starts after both.
        assert_eq!(peak_bytes(&sequence, &gathered), 30);
        let looped = Gathered { start: 3, value: 4, bytes: 7, ends: true };
        assert_eq!(peak_bytes(&sequence, &[&gathered[..], &[looped]].concat()), 37);
        assert_eq!(peak_bytes(&sequence, &[]), 0);
    }
}
