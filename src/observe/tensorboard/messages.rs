//! What is used here of the messages of TensorBoard (`tensorboard/compat/proto/event.proto`,
//! `summary.proto`, `tensor.proto`, and `plugins/hparams/*.proto`) and of `google.protobuf.Value`.
//! Fields have the names that they have there.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

/// `Event`: an element of a file.
#[derive(Clone, PartialEq, Message)]
pub(super) struct BoardEvent {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    /// Index of the step.
    #[prost(int64, tag = "2")]
    pub step: i64,
    /// The first event has it.
    #[prost(string, optional, tag = "3")]
    pub file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub summary: Option<EventValues>,
    #[prost(message, optional, tag = "7")]
    pub session_log: Option<SessionLog>,
}

/// `Summary`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EventValues {
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<EventValue>,
}

/// `Summary.Value`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EventValue {
    #[prost(string, tag = "1")]
    pub tag: String,
    /// Written if it is 0, too: it is one of several fields that a value may have.
    #[prost(float, optional, tag = "2")]
    pub simple_value: Option<f32>,
    #[prost(message, optional, tag = "8")]
    pub tensor: Option<BoardTensor>,
    #[prost(message, optional, tag = "9")]
    pub metadata: Option<ValueMetadata>,
}

/// `SummaryMetadata`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueMetadata {
    #[prost(message, optional, tag = "1")]
    pub plugin_data: Option<PluginData>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PluginData {
    #[prost(string, tag = "1")]
    pub plugin_name: String,
    #[prost(bytes = "vec", tag = "2")]
    pub content: Vec<u8>,
}

/// `TensorProto`, of texts or numbers.
#[derive(Clone, PartialEq, Message)]
pub(super) struct BoardTensor {
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub tensor_shape: Option<TensorDims>,
    #[prost(double, repeated, tag = "6")]
    pub double_val: Vec<f64>,
    #[prost(string, repeated, tag = "8")]
    pub string_val: Vec<String>,
}

impl BoardTensor {
    /// `DT_DOUBLE`.
    pub const DOUBLE: i32 = 2;
    /// `DT_STRING`.
    pub const STRING: i32 = 7;
}

/// `TensorShapeProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorDims {
    #[prost(message, repeated, tag = "2")]
    pub dim: Vec<TensorDim>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorDim {
    #[prost(int64, tag = "1")]
    pub size: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionLog {
    #[prost(int32, tag = "1")]
    pub status: i32,
}

impl SessionLog {
    /// The session starts at this step: what was written of later ones is void.
    pub const START: i32 = 1;
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HParamsPluginData {
    #[prost(int32, tag = "1")]
    pub version: i32,
    #[prost(message, optional, tag = "3")]
    pub session_start_info: Option<SessionStartInfo>,
    #[prost(message, optional, tag = "4")]
    pub session_end_info: Option<SessionEndInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionStartInfo {
    #[prost(btree_map = "string, message", tag = "1")]
    pub hparams: BTreeMap<String, HParam>,
    #[prost(double, tag = "5")]
    pub start_time_secs: f64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionEndInfo {
    #[prost(int32, tag = "1")]
    pub status: i32,
    #[prost(double, tag = "2")]
    pub end_time_secs: f64,
}

impl SessionEndInfo {
    /// `STATUS_SUCCESS`.
    pub const SUCCESS: i32 = 1;
    /// `STATUS_FAILURE`.
    pub const FAILURE: i32 = 2;
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HParam {
    #[prost(oneof = "HParamKind", tags = "2, 3, 4")]
    pub kind: Option<HParamKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum HParamKind {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    String(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
}
