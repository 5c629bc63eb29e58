//! What events say.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use super::messages::{
    BoardEvent, BoardTensor, EventValue, EventValues, HParam, HParamKind, HParamsPluginData,
    PluginData, SessionEndInfo, SessionLog, SessionStartInfo, TensorDim, TensorDims, ValueMetadata,
};
use crate::observe::event::eval_field;
use crate::observe::{EvalResult, HistogramBuckets, Status, StepEval, StepLayers, StepMetrics};

/// The metric that is an event's own time.
const TIME: &str = "time";

impl BoardEvent {
    /// The first of a file.
    pub(super) fn version() -> Self {
        Self { file_version: Some("brain.Event:2".to_owned()), ..Self::now(0) }
    }

    /// What other files have of this step and later ones is void.
    pub(super) fn restart(step: u64) -> Self {
        Self { session_log: Some(SessionLog { status: SessionLog::START }), ..Self::now(step) }
    }

    /// The numbers that a line of `metrics.jsonl` has.
    pub(super) fn of_step(step: &StepMetrics) -> Self {
        let written = step.values.iter().filter(|(metric, _)| metric.is_written);
        let numbers = written.filter(|(metric, _)| metric.name != TIME);
        let values = numbers.map(|(metric, value)| scalar(metric.name.to_owned(), value));
        let this = Self::with(step.step, values.collect());
        Self { wall_time: step.values.get(TIME).unwrap_or(this.wall_time), ..this }
    }

    /// The numbers of an evaluation.
    pub(super) fn of_eval(eval: &StepEval) -> Self {
        let StepEval { step, eval } = eval;
        let metrics = eval.metrics.iter().map(|(name, value)| (*name, *value));
        let all = [(EvalResult::LOSS, eval.loss)].into_iter().chain(metrics);
        Self::with(*step, all.map(|(name, value)| scalar(eval_field(name), value)).collect())
    }

    /// The norms of each parameter: `param_norm/NAME`, and so on; and histograms, `params/NAME`.
    pub(super) fn of_layers(layers: &StepLayers) -> Self {
        let of_layer = |(place, name): (usize, &String)| {
            let norms = StepLayers::NORMS.into_iter().zip(layers.of(place));
            let scalars = norms.map(|(norm, value)| scalar(format!("{norm}/{name}"), value));
            scalars.collect::<Vec<_>>()
        };
        let scalars = layers.names.iter().enumerate().flat_map(of_layer);
        let edges = HistogramBuckets::edges();
        let counted = layers.names.iter().zip(layers.counts.chunks(HistogramBuckets::COUNT));
        let histograms =
            counted.map(|(name, counts)| histogram(&format!("params/{name}"), &edges, counts));
        Self::with(layers.step, scalars.chain(histograms).collect())
    }

    /// A configuration, as a text.
    pub(super) fn of_config(toml: &str) -> Self {
        // TensorBoard shows Markdown, where lines that begin with spaces are code.
        let code: String = toml.lines().map(|line| format!("    {line}\n")).collect();
        let tensor = BoardTensor {
            dtype: BoardTensor::STRING,
            tensor_shape: dims(&[1]),
            string_val: vec![code],
            ..BoardTensor::default()
        };
        let value =
            EventValue { tensor: Some(tensor), ..of_plugin("configuration", "text", vec![]) };
        Self::with(0, vec![value])
    }

    /// The same, key by key, to compare runs by.
    pub(super) fn of_hparams(toml: &str) -> Self {
        let mut hparams = BTreeMap::new();
        if let Ok(table) = toml.parse() {
            add_keys("", table, &mut hparams);
        }
        let start = SessionStartInfo { hparams, start_time_secs: unix_secs() };
        let data = HParamsPluginData { session_start_info: Some(start), ..Default::default() };
        Self::with(0, vec![of_hparams_plugin("_hparams_/session_start_info", &data)])
    }

    /// The end of a run. One that was interrupted may go on.
    pub(super) fn of_end(status: Status) -> Option<Self> {
        let status = match status {
            Status::Done => SessionEndInfo::SUCCESS,
            Status::Failed => SessionEndInfo::FAILURE,
            Status::Running | Status::Interrupted => return None,
        };
        let end = SessionEndInfo { status, end_time_secs: unix_secs() };
        let data = HParamsPluginData { session_end_info: Some(end), ..Default::default() };
        Some(Self::with(0, vec![of_hparams_plugin("_hparams_/session_end_info", &data)]))
    }

    fn now(step: u64) -> Self {
        Self { wall_time: unix_secs(), step: step as i64, ..Self::default() }
    }

    fn with(step: u64, value: Vec<EventValue>) -> Self {
        Self { summary: Some(EventValues { value }), ..Self::now(step) }
    }
}

fn scalar(tag: String, value: f64) -> EventValue {
    EventValue { tag, simple_value: Some(value as f32), ..EventValue::default() }
}

/// From the first bucket that has values to the last: left and right end, and how many.
fn histogram(tag: &str, edges: &[f64], counts: &[u32]) -> EventValue {
    let buckets = edges.windows(2).zip(counts).map(|(ends, count)| (ends, *count));
    let buckets: Vec<_> = buckets.skip_while(|(_, count)| *count == 0).collect();
    let num = buckets.iter().rposition(|(_, count)| *count > 0).map_or(0, |last| last + 1);
    let numbers =
        buckets[..num].iter().flat_map(|(ends, count)| [ends[0], ends[1], f64::from(*count)]);
    let tensor = BoardTensor {
        dtype: BoardTensor::DOUBLE,
        tensor_shape: dims(&[num as i64, 3]),
        double_val: numbers.collect(),
        ..BoardTensor::default()
    };
    EventValue { tensor: Some(tensor), ..of_plugin(tag, "histograms", vec![]) }
}

fn dims(sizes: &[i64]) -> Option<TensorDims> {
    Some(TensorDims { dim: sizes.iter().map(|size| TensorDim { size: *size }).collect() })
}

/// A value that a plugin of TensorBoard shows.
fn of_plugin(tag: &str, plugin: &str, content: Vec<u8>) -> EventValue {
    let plugin_data = Some(PluginData { plugin_name: plugin.to_owned(), content });
    let metadata = Some(ValueMetadata { plugin_data });
    EventValue { tag: tag.to_owned(), metadata, ..EventValue::default() }
}

fn of_hparams_plugin(tag: &str, data: &HParamsPluginData) -> EventValue {
    of_plugin(tag, "hparams", data.encode_to_vec())
}

/// Adds `section.key` for every key.
fn add_keys(prefix: &str, table: toml::Table, hparams: &mut BTreeMap<String, HParam>) {
    for (key, value) in table {
        let kind = match value {
            toml::Value::Table(table) => {
                add_keys(&format!("{prefix}{key}."), table, hparams);
                continue;
            }
            toml::Value::Boolean(value) => HParamKind::Bool(value),
            toml::Value::Integer(value) => HParamKind::Number(value as f64),
            toml::Value::Float(value) => HParamKind::Number(value),
            toml::Value::String(value) => HParamKind::String(value),
            other => HParamKind::String(other.to_string()),
        };
        hparams.insert(format!("{prefix}{key}"), HParam { kind: Some(kind) });
    }
}

/// Seconds since 1970.
pub(super) fn unix_secs() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
