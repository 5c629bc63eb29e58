//! Reads the collectives of a scheduled program: which there are, which overlap with other work,
//! and how many matmuls each one spans. This is overlap in the schedule; nothing is run.
//!
//! Compilers express it in three ways:
//! * a plain collective is synchronous;
//! * `async-start`, `async-update`, `async-done` (or `all-reduce-start` and `-done`) overlap with
//!   everything scheduled between the last start or update and the done. A start may be hoisted to
//!   the top of the program while the transfer begins at the update, so the last one counts.
//!   NVIDIA's backend marks those that it runs synchronously anyway with `is_sync`;
//! * on v5e there is a fusion `async-collective-start`, then fusions that contain a step of the
//!   collective and other work, such as a matmul or a softmax, then `async-collective-done`. Each
//!   of them repeats the op.

use std::collections::{HashMap, HashSet, VecDeque};

use super::collective::{Collective, CollectivePhase};
use super::hlo_proto::{HloComputation, HloInstruction, HloModule, OpMetadata, ReplicaGroups};
use super::lifetimes::{Gathered, peak_bytes};

/// The name of the computations in which TPU compilers write a reduce_scatter as an all_reduce and
/// a slice, and which they emit as one op.
const TPU_SCATTER: &str = "all-reduce-scatter";

/// The name of the computations that hold a step of a started collective on v5e.
const TPU_STEP: &str = "async_collective_fusion";

pub(super) const KINDS: [(&str, &str); 6] = [
    ("all-reduce", "all_reduce"),
    ("all-gather", "all_gather"),
    ("reduce-scatter", "reduce_scatter"),
    ("all-to-all", "all_to_all"),
    ("collective-permute", "collective_permute"),
    ("send", "send"),
];

/// The collectives of a scheduled program.
pub(super) struct ScheduledCollectives {
    /// In the order in which they end.
    pub collectives: Vec<Collective>,
    /// The largest sum of the results of all_gathers that are in memory at once.
    pub gathered_bytes: u64,
    /// `true` if a collective is in a loop with an unknown trip count, which is counted as 1.
    pub has_unknown_loops: bool,
}

/// The largest sum of the results of all_gathers that are in memory at once, in the program that
/// [`Compiled::optimized_program`](crate::pjrt::Compiled::optimized_program) returns.
///
/// # Errors
/// If the bytes are not a wrapped `HloModuleProto`.
pub fn gathered_bytes(optimized: &[u8], num_replicas: usize) -> Result<u64, prost::DecodeError> {
    Ok(read(&HloModule::decode_optimized(optimized)?, num_replicas).gathered_bytes)
}

/// Reads the schedule of a program for `num_replicas`.
pub(super) fn read(module: &HloModule, num_replicas: usize) -> ScheduledCollectives {
    let mut walk = Walk {
        module,
        num_replicas,
        found: vec![],
        seen: HashSet::new(),
        times: 1,
        in_loop: 0,
        num_loops: 0,
        in_branch: false,
        in_unknown_loop: false,
        has_unknown_loops: false,
    };
    let gathered_bytes = walk.sequence(module.entry_computation_id);
    let has_unknown_loops = walk.has_unknown_loops;
    ScheduledCollectives { collectives: walk.found, gathered_bytes, has_unknown_loops }
}

struct Walk<'m> {
    module: &'m HloModule,
    num_replicas: usize,
    found: Vec<Collective>,
    /// Loop bodies and other computations that have been visited.
    seen: HashSet<i64>,
    /// Executions of the computation that is visited.
    times: u64,
    /// The outermost loop that is visited, from 1; 0 outside of all.
    in_loop: usize,
    num_loops: usize,
    in_branch: bool,
    in_unknown_loop: bool,
    has_unknown_loops: bool,
}

/// A collective that has been started.
struct Open {
    collectives: Vec<Collective>,
    /// Where in the sequence it starts.
    start: usize,
    /// Matmuls scheduled before it runs.
    since: usize,
    waits: bool,
}

impl Walk<'_> {
    /// Visits a computation. Returns the most bytes of gathered values that are in memory at once.
    fn sequence(&mut self, computation: i64) -> u64 {
        let module = self.module;
        let Some(computation) = module.computation(computation) else { return 0 };
        if !self.seen.insert(computation.id) {
            return 0;
        }
        let operands: HashMap<i64, &HloInstruction> =
            computation.instructions.iter().map(|i| (i.id, i)).collect();
        let mut open: HashMap<i64, Open> = HashMap::new();
        let mut num_matmuls = 0;
        let sequence = module.scheduled(computation);
        let mut gathered = vec![];
        for (at, instruction) in sequence.iter().copied().enumerate() {
            let inside = self.inside(computation, instruction, None);
            let first = instruction.operand_ids.first().copied().unwrap_or(-1);
            let is_matmul = self.is_matmul(instruction);
            match Role::of(instruction, &inside) {
                // A step of a started collective.
                Role::Bare if self.is_step(instruction) && !open.is_empty() => {}
                Role::Bare if is_matmul && !open.is_empty() => {}
                Role::Start => {
                    let waits = is_sync(instruction);
                    let started =
                        Open { collectives: inside, start: at, since: num_matmuls, waits };
                    open.insert(instruction.id, started);
                }
                Role::Update => {
                    if let Some(mut started) = open.remove(&first) {
                        started.since = num_matmuls;
                        open.insert(instruction.id, started);
                    }
                }
                Role::Done => {
                    // Other ops, such as copies, are only done with what they name.
                    let started = match open.remove(&first) {
                        None if instruction.opcode == "fusion" => {
                            first_open(&mut open, instruction, &operands)
                        }
                        started => started,
                    };
                    if let Some(Open { collectives, start, since, waits }) = started {
                        gathered.extend(Gathered::of(&collectives, start, instruction));
                        self.end(collectives, !waits, num_matmuls - since);
                    }
                }
                Role::Bare => {
                    gathered.extend(Gathered::of(&inside, at, instruction));
                    self.end(inside, false, 0);
                }
                Role::Other => {}
            }
            num_matmuls += usize::from(is_matmul);
            if matches!(instruction.opcode.as_str(), "while" | "conditional" | "call") {
                let bytes = self.called(instruction);
                gathered.push(Gathered { start: at, value: instruction.id, bytes, ends: true });
            }
        }
        peak_bytes(&sequence, &gathered)
    }

    /// Visits the computations that an instruction calls, as often as it runs them.
    fn called(&mut self, instruction: &HloInstruction) -> u64 {
        let (times, in_unknown_loop) = (self.times, self.in_unknown_loop);
        let (in_loop, in_branch) = (self.in_loop, self.in_branch);
        self.in_branch |= instruction.opcode == "conditional";
        if instruction.opcode == "while" {
            if in_loop == 0 {
                self.num_loops += 1;
                self.in_loop = self.num_loops;
            }
            let trip_count = self.module.trip_count(instruction);
            self.in_unknown_loop |= trip_count.is_none();
            self.times = times.saturating_mul(trip_count.unwrap_or(1));
        }
        let called = instruction.called_computation_ids.iter();
        let bytes = called.map(|called| self.sequence(*called)).max().unwrap_or(0);
        (self.times, self.in_unknown_loop) = (times, in_unknown_loop);
        (self.in_loop, self.in_branch) = (in_loop, in_branch);
        bytes
    }

    fn end(&mut self, collectives: Vec<Collective>, asynchronous: bool, overlapped_matmuls: usize) {
        self.has_unknown_loops |= self.in_unknown_loop && !collectives.is_empty();
        let (count, in_loop, in_branch) = (self.times, self.in_loop, self.in_branch);
        let ended = collectives.into_iter().map(|collective| Collective {
            count,
            in_loop,
            in_branch,
            asynchronous,
            overlapped_matmuls: if asynchronous { overlapped_matmuls } else { 0 },
            ..collective
        });
        self.found.extend(ended);
    }

    /// The collectives that an instruction is, or that the computations it calls contain. `wrapper`
    /// is the metadata of the instruction that calls `of`.
    fn inside(
        &self,
        of: &HloComputation,
        instruction: &HloInstruction,
        wrapper: Option<&OpMetadata>,
    ) -> Vec<Collective> {
        let has_name = |metadata: &&OpMetadata| {
            !(metadata.op_name.is_empty() && metadata.source_file.is_empty())
        };
        let metadata = instruction.metadata.as_ref().filter(has_name).or(wrapper);
        if let Some(collective) = self.read(of, instruction, metadata) {
            return vec![collective];
        }
        if matches!(instruction.opcode.as_str(), "while" | "conditional" | "call") {
            return vec![];
        }
        let called = instruction.called_computation_ids.iter();
        let called = called.filter_map(|id| self.module.computation(*id));
        called
            .flat_map(|called| {
                called.instructions.iter().flat_map(|i| self.inside(called, i, metadata))
            })
            .collect()
    }

    fn read(
        &self,
        of: &HloComputation,
        instruction: &HloInstruction,
        metadata: Option<&OpMetadata>,
    ) -> Option<Collective> {
        let opcode = instruction.opcode.as_str();
        let base = opcode.strip_suffix("-start").unwrap_or(opcode);
        let is_scatter = base == "all-reduce" && of.name.starts_with(TPU_SCATTER);
        let kind = KINDS.iter().find(|row| row.0 == base)?.1;
        let kind = if is_scatter { "reduce_scatter" } else { kind };
        let operand = |id: &i64| of.instructions.iter().find(|operand| operand.id == *id);
        let bytes = |operand: &HloInstruction| operand.shape.as_ref().map_or(0, |s| s.bytes());
        let operands: u64 = instruction.operand_ids.iter().filter_map(operand).map(bytes).sum();
        let sums = if base == "all-reduce" { bytes(instruction) } else { 0 };
        // Without groups all replicas take part.
        let all = || ReplicaGroups { num_groups: 1, first: (0..self.num_replicas).collect() };
        let ReplicaGroups { num_groups, first } = instruction.groups().unwrap_or_else(all);
        Some(Collective {
            kind: kind.to_owned(),
            phase: CollectivePhase::of(kind, metadata),
            bytes: operands.max(sums),
            count: 1,
            group_size: first.len(),
            num_groups,
            axes: vec![],
            group: first,
            asynchronous: false,
            overlapped_matmuls: 0,
            in_loop: 0,
            in_branch: false,
        })
    }

    /// `true` for a fusion of a step of a started collective with other work.
    fn is_step(&self, instruction: &HloInstruction) -> bool {
        let called = instruction.called_computation_ids.iter();
        let mut called = called.filter_map(|id| self.module.computation(*id));
        instruction.opcode == "fusion" && called.any(|called| called.name.starts_with(TPU_STEP))
    }

    /// `true` for dots, convolutions, and library calls, fusions, loops and branches that contain
    /// them: a collective that is open during a loop runs beside what is in it.
    fn is_matmul(&self, instruction: &HloInstruction) -> bool {
        let target = &instruction.custom_call_target;
        match instruction.opcode.as_str() {
            "dot" | "convolution" => true,
            "custom-call" => target.contains("cublas") || target.contains("cudnn"),
            "fusion" | "while" | "conditional" | "call" => {
                let called = instruction.called_computation_ids.iter();
                let mut called = called.filter_map(|id| self.module.computation(*id));
                called.any(|called| called.instructions.iter().any(|i| self.is_matmul(i)))
            }
            _ => false,
        }
    }
}

/// The role of an instruction for the collectives in it.
enum Role {
    Start,
    Update,
    Done,
    Bare,
    Other,
}

impl Role {
    fn of(instruction: &HloInstruction, inside: &[Collective]) -> Self {
        let opcode = instruction.opcode.as_str();
        let is_fusion = opcode == "fusion";
        let is_named = |name: &str| is_fusion && instruction.name.starts_with(name);
        match opcode {
            "async-update" => Role::Update,
            "async-done" => Role::Done,
            _ if opcode.ends_with("-done") || is_named("async-collective-done") => Role::Done,
            _ if inside.is_empty() => Role::Other,
            "async-start" => Role::Start,
            _ if opcode.ends_with("-start") || is_named("async-collective-start") => Role::Start,
            _ => Role::Bare,
        }
    }
}

/// The started collective that a fusion ends, found by following its operands.
fn first_open(
    open: &mut HashMap<i64, Open>,
    done: &HloInstruction,
    operands: &HashMap<i64, &HloInstruction>,
) -> Option<Open> {
    // Nearest first: what is fused with one collective may depend on another.
    let mut pending: VecDeque<i64> = done.operand_ids.iter().copied().collect();
    let mut seen = HashSet::new();
    while let Some(id) = pending.pop_front() {
        if let Some(found) = open.remove(&id) {
            return Some(found);
        }
        if seen.insert(id)
            && let Some(instruction) = operands.get(&id)
        {
            pending.extend(&instruction.operand_ids);
        }
    }
    None
}

/// `true` if NVIDIA's backend runs it on the compute stream.
fn is_sync(instruction: &HloInstruction) -> bool {
    let config: Option<serde_json::Value> =
        serde_json::from_slice(&instruction.backend_config).ok();
    let is_sync = |config: serde_json::Value| {
        config.get("collective_backend_config")?.get("is_sync")?.as_bool()
    };
    config.and_then(is_sync).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::super::hlo_proto::HloShape;
    use super::*;

    fn instruction(
        id: i64,
        name: &str,
        operand_ids: &[i64],
        called_computation_ids: &[i64],
    ) -> HloInstruction {
        HloInstruction {
            id,
            name: name.to_owned(),
            opcode: if called_computation_ids.is_empty() { name } else { "fusion" }.to_owned(),
            operand_ids: operand_ids.to_vec(),
            called_computation_ids: called_computation_ids.to_vec(),
            ..HloInstruction::default()
        }
    }

    /// 32 bytes of bf16.
    fn shard(id: i64) -> HloInstruction {
        let shape = HloShape { element_type: 16, dimensions: vec![2, 8], ..HloShape::default() };
        HloInstruction { shape: Some(shape), ..instruction(id, "parameter", &[], &[]) }
    }

    /// A computation of a shard.
    fn fused(id: i64, name: &str, opcodes: &[&str]) -> HloComputation {
        let first = 100 * id;
        let work = opcodes.iter().zip(first + 1..);
        let work = work.map(|(opcode, id)| instruction(id, opcode, &[first], &[]));
        let instructions = std::iter::once(shard(first)).chain(work).collect();
        HloComputation { name: name.to_owned(), id, instructions, root_id: first }
    }

    #[test]
    fn steps_of_a_gather_are_no_gathers_of_their_own() {
        let entry = vec![
            shard(1),
            instruction(2, "async-collective-start", &[1], &[20]),
            instruction(3, "fusion.1", &[2], &[21]),
            // The result of the other work is copied while the collective runs.
            instruction(9, "copy-start", &[3], &[]),
            instruction(10, "copy-done", &[9], &[]),
            instruction(4, "fusion.2", &[3], &[22]),
            instruction(5, "async-collective-done", &[4], &[23]),
            instruction(6, "fusion.3", &[5], &[24]),
            instruction(7, "all-gather", &[1], &[]),
            instruction(8, "dot", &[7], &[]),
        ];
        let entry = HloComputation { name: "main".into(), id: 10, instructions: entry, root_id: 8 };
        let computations = vec![
            entry,
            fused(20, "fused_computation.1", &["all-gather"]),
            fused(21, "async_collective_fusion.1", &["all-gather", "exponential"]),
            fused(22, "async_collective_fusion.2", &["all-gather", "convolution"]),
            fused(23, "fused_computation.2", &["all-gather"]),
            fused(24, "fused_computation.3", &["convolution"]),
        ];
        let module = HloModule { computations, entry_computation_id: 10, ..HloModule::default() };
        let ScheduledCollectives { collectives, gathered_bytes, .. } = read(&module, 16);
        let read = |c: &Collective| (c.bytes, c.asynchronous, c.overlapped_matmuls);
        let found: Vec<_> = collectives.iter().map(read).collect();
        assert_eq!(found, [(32, true, 1), (32, false, 0)]);
        // The second starts after the last use of the first.
        assert_eq!(gathered_bytes, 16 * 32);
    }
}
