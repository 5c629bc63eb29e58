//! Reads the collectives of a scheduled program: which there are, which overlap with other work, and how many
//! matmuls each one spans. This is overlap in the schedule; nothing is run.
//!
//! Compilers express it in three ways:
//! * a plain collective is synchronous;
//! * `async-start`, `async-update`, `async-done` (or `all-reduce-start` and `-done`) overlap with everything
//!   scheduled between the last start or update and the done. A start may be hoisted to the top of the
//!   program while the transfer begins at the update, so the last one counts. NVIDIA's backend marks those
//!   that it runs synchronously anyway with `is_sync`;
//! * on v5e there is a fusion `async-collective-start`, then fusions that contain a matmul and a step of the
//!   collective, then `async-collective-done`.

use std::collections::{HashMap, HashSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::hlo_proto::{HloComputation, HloInstruction, HloModule};

/// One collective of an optimised program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collective {
    /// StableHLO's name: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`,
    /// `collective_permute`, `send`.
    pub kind: String,
    /// Bytes of its operands on one replica. For an all_reduce, bytes of its result if that is larger: TPU
    /// compilers take operands rounded to bf16 and sum them in f32.
    pub bytes: u64,
    /// Replicas per group.
    pub group_size: usize,
    /// Number of groups.
    pub num_groups: usize,
    /// `true` if it runs asynchronously.
    pub asynchronous: bool,
    /// Matmuls and convolutions scheduled while it runs.
    pub overlapped_matmuls: usize,
}

impl Collective {
    /// `true` if it overlaps with a matmul.
    pub fn is_overlapped(&self) -> bool {
        self.asynchronous && self.overlapped_matmuls > 0
    }
}

const KINDS: [(&str, &str); 6] = [
    ("all-reduce", "all_reduce"),
    ("all-gather", "all_gather"),
    ("reduce-scatter", "reduce_scatter"),
    ("all-to-all", "all_to_all"),
    ("collective-permute", "collective_permute"),
    ("send", "send"),
];

/// The collectives of a program for `num_replicas`, in the order in which they end.
pub(super) fn collectives(module: &HloModule, num_replicas: usize) -> Vec<Collective> {
    let mut walk = Walk { module, num_replicas, found: vec![], seen: HashSet::new() };
    walk.sequence(module.entry_computation_id);
    walk.found
}

struct Walk<'m> {
    module: &'m HloModule,
    num_replicas: usize,
    found: Vec<Collective>,
    /// Loop bodies and other computations that have been visited.
    seen: HashSet<i64>,
}

/// A collective that has been started.
struct Open {
    collectives: Vec<Collective>,
    /// Matmuls scheduled before it runs.
    since: usize,
    waits: bool,
}

impl Walk<'_> {
    fn sequence(&mut self, computation: i64) {
        let module = self.module;
        let Some(computation) = module.computation(computation) else { return };
        if !self.seen.insert(computation.id) {
            return;
        }
        let operands: HashMap<i64, &HloInstruction> =
            computation.instructions.iter().map(|i| (i.id, i)).collect();
        let mut open: HashMap<i64, Open> = HashMap::new();
        let mut num_matmuls = 0;
        for instruction in module.scheduled(computation) {
            let inside = self.inside(computation, instruction);
            let first = instruction.operand_ids.first().copied().unwrap_or(-1);
            let is_matmul = self.is_matmul(instruction);
            match Role::of(instruction, &inside) {
                // A step of a started collective inside a matmul's fusion.
                Role::Bare if is_matmul && !open.is_empty() => {}
                Role::Start => {
                    let waits = is_sync(instruction);
                    let started = Open { collectives: inside, since: num_matmuls, waits };
                    open.insert(instruction.id, started);
                }
                Role::Update => {
                    if let Some(mut started) = open.remove(&first) {
                        started.since = num_matmuls;
                        open.insert(instruction.id, started);
                    }
                }
                Role::Done => {
                    let started = first_open(&mut open, instruction, &operands);
                    if let Some(Open { collectives, since, waits }) = started {
                        self.end(collectives, !waits, num_matmuls - since);
                    }
                }
                Role::Bare => self.end(inside, false, 0),
                Role::Other => {}
            }
            num_matmuls += usize::from(is_matmul);
            if matches!(instruction.opcode.as_str(), "while" | "conditional" | "call") {
                for called in &instruction.called_computation_ids {
                    self.sequence(*called);
                }
            }
        }
    }

    fn end(&mut self, collectives: Vec<Collective>, asynchronous: bool, overlapped_matmuls: usize) {
        let ended = collectives.into_iter().map(|collective| Collective {
            asynchronous,
            overlapped_matmuls: if asynchronous { overlapped_matmuls } else { 0 },
            ..collective
        });
        self.found.extend(ended);
    }

    /// The collectives that an instruction is, or that the computations it calls contain.
    fn inside(&self, of: &HloComputation, instruction: &HloInstruction) -> Vec<Collective> {
        if let Some(collective) = self.read(of, instruction) {
            return vec![collective];
        }
        if matches!(instruction.opcode.as_str(), "while" | "conditional" | "call") {
            return vec![];
        }
        let called = instruction.called_computation_ids.iter();
        let called = called.filter_map(|id| self.module.computation(*id));
        called
            .flat_map(|called| called.instructions.iter().flat_map(|i| self.inside(called, i)))
            .collect()
    }

    fn read(&self, of: &HloComputation, instruction: &HloInstruction) -> Option<Collective> {
        let opcode = instruction.opcode.as_str();
        let base = opcode.strip_suffix("-start").unwrap_or(opcode);
        let kind = KINDS.iter().find(|row| row.0 == base)?.1;
        let operand = |id: &i64| of.instructions.iter().find(|operand| operand.id == *id);
        let bytes = |operand: &HloInstruction| operand.shape.as_ref().map_or(0, |s| s.bytes());
        let operands: u64 = instruction.operand_ids.iter().filter_map(operand).map(bytes).sum();
        let sums = if base == "all-reduce" { bytes(instruction) } else { 0 };
        let (num_groups, group_size) = instruction.groups().unwrap_or((1, self.num_replicas));
        Some(Collective {
            kind: kind.to_owned(),
            bytes: operands.max(sums),
            group_size,
            num_groups,
            asynchronous: false,
            overlapped_matmuls: 0,
        })
    }

    /// `true` for dots, convolutions, and library calls and fusions that contain them.
    fn is_matmul(&self, instruction: &HloInstruction) -> bool {
        let target = &instruction.custom_call_target;
        match instruction.opcode.as_str() {
            "dot" | "convolution" => true,
            "custom-call" => target.contains("cublas") || target.contains("cudnn"),
            "fusion" => {
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

/// The started collective that a done belongs to, found by following its operands.
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
