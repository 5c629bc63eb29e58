//! The fields of XLA's `HloModuleProto` that are needed, named as in `hlo.proto` and `xla_data.proto`. Other
//! fields are skipped.

use std::collections::HashMap;

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
    #[prost(message, optional, tag = "87")]
    pub collective_device_list: Option<CollectiveDeviceList>,
}

/// `xla.OpMetadata`: the source of an instruction.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OpMetadata {
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

    /// The instructions in scheduled order, or in stored order where there is no schedule, as inside
    /// fusions.
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

impl HloInstruction {
    /// Number and size of a collective's replica groups, if they are given.
    pub fn groups(&self) -> Option<(usize, usize)> {
        let listed = |groups: &[ReplicaGroup]| {
            groups.first().map(|group| (groups.len(), group.replica_ids.len()))
        };
        let list = self.collective_device_list.as_ref();
        let iota = || {
            let iota = list?.iota_replica_group_list.as_ref()?;
            let size = usize::try_from(iota.num_devices_per_group).ok()?;
            Some((usize::try_from(iota.num_replica_groups).ok()?, size))
        };
        listed(&self.replica_groups)
            .or_else(|| list.and_then(|list| listed(&list.replica_groups)))
            .or_else(iota)
    }
}
