//! What is used here of Perfetto's messages (`protos/perfetto/trace/perfetto_trace.proto`). Fields
//! have the names that they have there.

use prost::{Message, Oneof};

/// `Trace`: a file. The bytes of several, one after the other, are those of one with all packets.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePackets {
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    /// Nanoseconds, by the clock that the first snapshot explains.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// The same for all packets of a process.
    #[prost(uint32, tag = "10")]
    pub trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

/// Readings of several clocks at the same time.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<ClockReading>,
}

/// `ClockSnapshot.Clock`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockReading {
    #[prost(uint32, tag = "1")]
    pub clock_id: u32,
    #[prost(uint64, tag = "2")]
    pub timestamp: u64,
}

impl ClockReading {
    /// `BUILTIN_CLOCK_REALTIME`: since 1970.
    pub const REALTIME: u32 = 1;
    /// `BUILTIN_CLOCK_BOOTTIME`, in which timestamps are.
    pub const BOOTTIME: u32 = 6;
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub uuid: u64,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    #[prost(int32, optional, tag = "11")]
    pub child_ordering: Option<i32>,
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
}

impl TrackDescriptor {
    /// `EXPLICIT`: by the ranks of the children.
    pub const BY_RANK: i32 = 3;
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, tag = "1")]
    pub pid: i32,
    #[prost(string, tag = "6")]
    pub process_name: String,
}

/// The begin or the end of a slice.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<TraceArg>,
    #[prost(int32, tag = "9")]
    pub r#type: i32,
    #[prost(uint64, tag = "11")]
    pub track_uuid: u64,
    #[prost(string, repeated, tag = "22")]
    pub categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
}

impl TrackEvent {
    /// `TYPE_SLICE_BEGIN`.
    pub const BEGIN: i32 = 1;
    /// `TYPE_SLICE_END`.
    pub const END: i32 = 2;
}

/// `DebugAnnotation`: a value beside a slice, or several with names.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TraceArg {
    #[prost(string, tag = "10")]
    pub name: String,
    #[prost(oneof = "TraceValue", tags = "3, 5, 6")]
    pub value: Option<TraceValue>,
    #[prost(message, repeated, tag = "11")]
    pub dict_entries: Vec<TraceArg>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum TraceValue {
    #[prost(uint64, tag = "3")]
    Count(u64),
    #[prost(double, tag = "5")]
    Number(f64),
    #[prost(string, tag = "6")]
    Text(String),
}

impl TraceArg {
    pub fn new(name: impl Into<String>, value: TraceValue) -> Self {
        Self { name: name.into(), value: Some(value), dict_entries: vec![] }
    }

    pub fn group(name: impl Into<String>, dict_entries: Vec<Self>) -> Self {
        Self { name: name.into(), value: None, dict_entries }
    }
}
