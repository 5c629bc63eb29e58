//! The fields of XLA's `HloModuleProto` that are needed, named as in `hlo.proto` and
//! `xla_data.proto`. Other fields are skipped.

use std::collections::{BTreeSet, HashMap};

use prost::Message;

/// The format that PJRT calls `hlo_with_config`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HloModuleProtoWithConfig {
    #[prost(message, optional, tag = "1")]
    pub hlo_module: Option<HloModule>,
}

/// `xla.HloModuleProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HloModule {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "3")]
    pub computations: Vec<HloComputation>,
    #[prost(int64, tag = "6")]
    pub entry_computation_id: i64,
    #[prost(message, optional, tag = "7")]
    pub schedule: Option<HloSchedule>,
}

/// `xla.HloScheduleProto`: the order of instructions by computation id.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HloSchedule {
    #[prost(map = "int64, message", tag = "1")]
    pub sequences: HashMap<i64, InstructionSequence>,
}

/// `xla.HloScheduleProto.InstructionSequence`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InstructionSequence {
    #[prost(int64, repeated, tag = "1")]
    pub instruction_ids: Vec<i64>,
}

/// `xla.HloComputationProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HloComputation {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub instructions: Vec<HloInstruction>,
    #[prost(int64, tag = "5")]
    pub id: i64,
    #[prost(int64, tag = "6")]
    pub root_id: i64,
}

/// `xla.HloInstructionProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HloInstruction {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub opcode: String,
    #[prost(message, optional, tag = "3")]
    pub shape: Option<HloShape>,
    #[prost(message, optional, tag = "7")]
    pub metadata: Option<OpMetadata>,
    #[prost(message, optional, tag = "8")]
    pub literal: Option<HloLiteral>,
    #[prost(int64, tag = "9")]
    pub parameter_number: i64,
    #[prost(string, tag = "11")]
    pub fusion_kind: String,
    #[prost(int64, tag = "13")]
    pub tuple_index: i64,
    #[prost(string, tag = "28")]
    pub custom_call_target: String,
    #[prost(int64, tag = "35")]
    pub id: i64,
    #[prost(int64, repeated, tag = "36")]
    pub operand_ids: Vec<i64>,
    #[prost(int64, repeated, tag = "38")]
    pub called_computation_ids: Vec<i64>,
    #[prost(bytes = "vec", tag = "43")]
    pub backend_config: Vec<u8>,
    #[prost(message, repeated, tag = "49")]
    pub replica_groups: Vec<ReplicaGroup>,
    #[prost(message, repeated, tag = "52")]
    pub source_target_pairs: Vec<SourceTarget>,
    #[prost(string, tag = "63")]
    pub comparison_direction: String,
    #[prost(message, optional, tag = "87")]
    pub collective_device_list: Option<CollectiveDeviceList>,
}

/// `xla.LiteralProto`: the value of a constant.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HloLiteral {
    #[prost(uint32, repeated, tag = "6")]
    pub u32s: Vec<u32>,
}

/// `xla.OpMetadata`: the source of an instruction.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OpMetadata {
    #[prost(string, tag = "2")]
    pub op_name: String,
    #[prost(string, tag = "3")]
    pub source_file: String,
    #[prost(int32, tag = "4")]
    pub source_line: i32,
}

/// `xla.ReplicaGroup`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ReplicaGroup {
    #[prost(int64, repeated, tag = "1")]
    pub replica_ids: Vec<i64>,
}

/// `xla.SourceTarget`: who sends to whom in a collective_permute.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct SourceTarget {
    #[prost(int64, tag = "1")]
    pub source: i64,
    #[prost(int64, tag = "2")]
    pub target: i64,
}

/// `xla.CollectiveDeviceListProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CollectiveDeviceList {
    #[prost(message, repeated, tag = "1")]
    pub replica_groups: Vec<ReplicaGroup>,
    #[prost(message, optional, tag = "2")]
    pub iota_replica_group_list: Option<IotaReplicaGroupList>,
}

/// `xla.IotaReplicaGroupListProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct IotaReplicaGroupList {
    #[prost(int64, tag = "1")]
    pub num_replica_groups: i64,
    #[prost(int64, tag = "2")]
    pub num_devices_per_group: i64,
    #[prost(int64, repeated, tag = "3")]
    pub iota_reshape_dims: Vec<i64>,
    #[prost(int32, repeated, tag = "4")]
    pub iota_transpose_perm: Vec<i32>,
}

/// `xla.ShapeProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HloShape {
    /// `xla.PrimitiveType`.
    #[prost(int32, tag = "2")]
    pub element_type: i32,
    #[prost(int64, repeated, tag = "3")]
    pub dimensions: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    pub tuple_shapes: Vec<HloShape>,
}

/// `xla.PrimitiveType`: number, name, bytes per element.
const PRIMITIVE_TYPES: [(i32, &str, u64); 17] = [
    (1, "pred", 1),
    (2, "s8", 1),
    (3, "s16", 2),
    (4, "s32", 4),
    (5, "s64", 8),
    (6, "u8", 1),
    (7, "u16", 2),
    (8, "u32", 4),
    (9, "u64", 8),
    (10, "f16", 2),
    (11, "f32", 4),
    (12, "f64", 8),
    (15, "c64", 8),
    (16, "bf16", 2),
    (18, "c128", 16),
    (19, "f8e5m2", 1),
    (20, "f8e4m3fn", 1),
];

const TUPLE: i32 = 13;

impl HloShape {
    /// Bytes of the array, or of all arrays of a tuple; 0 for tokens and opaque values.
    pub fn bytes(&self) -> u64 {
        if self.element_type == TUPLE {
            return self.tuple_shapes.iter().map(HloShape::bytes).sum();
        }
        let element = PRIMITIVE_TYPES.iter().find(|row| row.0 == self.element_type);
        let size = element.map_or(0, |row| row.2);
        let dims = self.dimensions.iter().map(|dim| u64::try_from(*dim).unwrap_or(0));
        dims.fold(size, u64::saturating_mul)
    }

    /// `f32[2,3]`, `(f32[2], s32[])`.
    pub fn text(&self) -> String {
        if self.element_type == TUPLE {
            let parts: Vec<_> = self.tuple_shapes.iter().map(HloShape::text).collect();
            return format!("({})", parts.join(", "));
        }
        let name = PRIMITIVE_TYPES.iter().find(|row| row.0 == self.element_type);
        let name = name.map_or("opaque", |row| row.1);
        let dims: Vec<_> = self.dimensions.iter().map(i64::to_string).collect();
        format!("{name}[{}]", dims.join(","))
    }
}

impl HloModule {
    /// Decodes what PJRT returns.
    pub fn decode_optimized(bytes: &[u8]) -> Result<Self, prost::DecodeError> {
        let module = HloModuleProtoWithConfig::decode(bytes)?.hlo_module;
        Ok(module.unwrap_or_default())
    }

    /// The computation with this id.
    pub fn computation(&self, id: i64) -> Option<&HloComputation> {
        self.computations.iter().find(|computation| computation.id == id)
    }

    /// The number of iterations of a `while`, if it is known: by the compiler, or from a condition
    /// of the form that `hlo` writes, `counter < constant` of a u32 counter that starts at 0 and is
    /// incremented by 1.
    pub fn trip_count(&self, of: &HloInstruction) -> Option<u64> {
        let from_condition = || {
            let called = of.called_computation_ids.iter().filter_map(|id| self.computation(*id));
            called.filter_map(HloComputation::compared_with).next()
        };
        of.known_trip_count().or_else(from_condition)
    }

    /// The instructions in scheduled order, or in stored order where there is no schedule, as
    /// inside fusions.
    pub fn scheduled<'a>(&self, computation: &'a HloComputation) -> Vec<&'a HloInstruction> {
        let sequence =
            self.schedule.as_ref().and_then(|schedule| schedule.sequences.get(&computation.id));
        let Some(sequence) = sequence else { return computation.instructions.iter().collect() };
        let by_id: HashMap<i64, &HloInstruction> = computation
            .instructions
            .iter()
            .map(|instruction| (instruction.id, instruction))
            .collect();
        sequence.instruction_ids.iter().filter_map(|id| by_id.get(id).copied()).collect()
    }
}

impl HloComputation {
    /// The u32 constant that the result says an element of the operand is less than.
    fn compared_with(&self) -> Option<u64> {
        let by_id = |id: i64| self.instructions.iter().find(|i| i.id == id);
        let root = by_id(self.root_id)?;
        let operands: Vec<_> = root.operand_ids.iter().filter_map(|id| by_id(*id)).collect();
        let [counter, limit] = operands[..] else { return None };
        let is_counted = root.opcode == "compare"
            && root.comparison_direction == "LT"
            && counter.opcode == "get-tuple-element";
        match limit.literal.as_ref()?.u32s[..] {
            [limit] if is_counted => Some(limit.into()),
            _ => None,
        }
    }
}

/// The replica groups of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplicaGroups {
    pub num_groups: usize,
    /// The replicas of the first group.
    pub first: Vec<usize>,
}

impl HloInstruction {
    /// A collective's replica groups, if they are given.
    pub fn groups(&self) -> Option<ReplicaGroups> {
        let listed = |groups: &[ReplicaGroup]| {
            let ids = &groups.first()?.replica_ids;
            let first = ids.iter().map(|id| usize::try_from(*id).unwrap_or(0)).collect();
            Some(ReplicaGroups { num_groups: groups.len(), first })
        };
        let list = self.collective_device_list.as_ref();
        listed(&self.replica_groups)
            .or_else(|| list.and_then(|list| listed(&list.replica_groups)))
            .or_else(|| list?.iota_replica_group_list.as_ref()?.groups())
            .or_else(|| self.connected())
    }

    /// The replicas that the pairs of a collective_permute connect.
    fn connected(&self) -> Option<ReplicaGroups> {
        let mut groups: Vec<BTreeSet<usize>> = vec![];
        for SourceTarget { source, target } in &self.source_target_pairs {
            let pair = [source, target].map(|id| usize::try_from(*id).unwrap_or(0));
            let touches = |group: &mut BTreeSet<usize>| pair.iter().any(|id| group.contains(id));
            let joined: Vec<_> = groups.extract_if(.., touches).collect();
            groups.push(joined.into_iter().flatten().chain(pair).collect());
        }
        groups.sort();
        let first = groups.first()?.iter().copied().collect();
        Some(ReplicaGroups { num_groups: groups.len(), first })
    }

    /// The number of iterations of a `while`, if the compiler says so.
    fn known_trip_count(&self) -> Option<u64> {
        let config: serde_json::Value = serde_json::from_slice(&self.backend_config).ok()?;
        let count = config.get("known_trip_count")?.get("n")?;
        count.as_u64().or_else(|| count.as_str()?.parse().ok())
    }
}

impl IotaReplicaGroupList {
    /// The numbers from 0 in an array of `iota_reshape_dims`, transposed, are the replicas group by
    /// group.
    fn groups(&self) -> Option<ReplicaGroups> {
        let size = |value: i64| usize::try_from(value).ok();
        let (num_groups, group_size) =
            (size(self.num_replica_groups)?, size(self.num_devices_per_group)?);
        let dims: Option<Vec<usize>> = self.iota_reshape_dims.iter().map(|d| size(*d)).collect();
        let dims = dims.filter(|dims| !dims.is_empty())?;
        let stride = |dim: usize| dims.get(dim + 1..).map(|rest| rest.iter().product::<usize>());
        let mut order: Vec<usize> = self
            .iota_transpose_perm
            .iter()
            .map(|dim| usize::try_from(*dim).ok().filter(|dim| *dim < dims.len()))
            .collect::<Option<_>>()?;
        if order.is_empty() {
            order = (0..dims.len()).collect();
        }
        let replica = |position: usize| -> Option<usize> {
            let mut rest = position;
            order.iter().rev().try_fold(0, |replica, dim| {
                let at = rest.checked_rem(dims[*dim])?;
                rest /= dims[*dim];
                Some(replica + at * stride(*dim)?)
            })
        };
        let first: Option<Vec<usize>> = (0..group_size).map(replica).collect();
        Some(ReplicaGroups { num_groups, first: first? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_their_short_form() {
        let iota = |dims: &[i64], permutation: &[i32], shape: [i64; 2]| {
            let list = IotaReplicaGroupList {
                num_replica_groups: shape[0],
                num_devices_per_group: shape[1],
                iota_reshape_dims: dims.to_vec(),
                iota_transpose_perm: permutation.to_vec(),
            };
            list.groups().unwrap()
        };
        // [2,4]<=[8]: {0,1,2,3}, {4,5,6,7}
        let neighbours = iota(&[8], &[0], [2, 4]);
        assert_eq!(neighbours, ReplicaGroups { num_groups: 2, first: vec![0, 1, 2, 3] });
        // [4,2]<=[2,4]T(1,0): {0,4}, {1,5}, ..
        let strided = iota(&[2, 4], &[1, 0], [4, 2]);
        assert_eq!(strided, ReplicaGroups { num_groups: 4, first: vec![0, 4] });
    }

    /// A pipeline of 3 stages and 2 replicas each.
    #[test]
    fn groups_of_a_permute_are_what_its_pairs_connect() {
        let pairs = [(2, 4), (0, 2), (3, 5), (1, 3)];
        let pairs = pairs.map(|(source, target)| SourceTarget { source, target });
        let permute =
            HloInstruction { source_target_pairs: pairs.to_vec(), ..HloInstruction::default() };
        let expected = ReplicaGroups { num_groups: 2, first: vec![0, 2, 4] };
        assert_eq!(permute.groups(), Some(expected));
        assert_eq!(HloInstruction::default().groups(), None);
    }

    #[test]
    fn trip_counts_are_read_from_the_configuration() {
        let with = |config: &str| HloInstruction {
            backend_config: config.as_bytes().to_vec(),
            ..HloInstruction::default()
        };
        let known = |config: &str| HloModule::default().trip_count(&with(config));
        assert_eq!(known(r#"{"known_trip_count":{"n":"12"}}"#), Some(12));
        assert_eq!(known("{}"), None);
        assert_eq!(known(""), None);
    }

    #[test]
    fn trip_counts_are_read_from_the_condition() {
        let instruction = |id: i64, opcode: &str, operand_ids: &[i64]| HloInstruction {
            id,
            opcode: opcode.into(),
            operand_ids: operand_ids.to_vec(),
            ..HloInstruction::default()
        };
        let trips = |direction: &str| {
            let limit = HloInstruction {
                literal: Some(HloLiteral { u32s: vec![6] }),
                ..instruction(3, "constant", &[])
            };
            let compare = HloInstruction {
                comparison_direction: direction.into(),
                ..instruction(4, "compare", &[2, 3])
            };
            let condition = HloComputation {
                id: 7,
                root_id: 4,
                instructions: vec![
                    instruction(1, "parameter", &[]),
                    instruction(2, "get-tuple-element", &[1]),
                    limit,
                    compare,
                ],
                ..HloComputation::default()
            };
            let module = HloModule { computations: vec![condition], ..HloModule::default() };
            let looped = HloInstruction {
                called_computation_ids: vec![5, 7],
                ..instruction(9, "while", &[])
            };
            module.trip_count(&looped)
        };
        assert_eq!(trips("LT"), Some(6));
        assert_eq!(trips("NE"), None);
    }
}
