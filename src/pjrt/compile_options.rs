//! Compile options, and their encoding as XLA's `CompileOptionsProto`.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use hlo::Program;
use prost::Message;

use super::{Client, DeviceDescription, Error, OverrideValue, Platform, Result, cpu};

/// Options of one compilation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompileOptions {
    /// The device id of each replica, over all processes. By default the first of
    /// [`Client::global_devices`] in their order. It is always sent: plugins' own defaults differ
    /// (a TPU's is a ring).
    pub device_assignment: Option<Vec<i32>>,
    /// XLA options by name, as in `XLA_FLAGS` but only for this compilation; and
    /// `optimization_level`, `"O0"` to `"O3"`.
    pub overrides: BTreeMap<String, OverrideValue>,
}

/// The override that is not one of `XLA_FLAGS`, and its values as
/// `xla.ExecutionOptions.EffortLevel`.
const OPTIMIZATION_LEVEL: &str = "optimization_level";
const LEVELS: [(&str, i32); 4] = [("O0", 9), ("O1", 19), ("O2", 29), ("O3", 39)];

impl CompileOptions {
    /// The bytes that PJRT takes, for replicas on these of a client's devices.
    ///
    /// # Errors
    /// [`Error::TooFewWorkers`], [`Error::CompileOption`].
    pub(super) fn encode_for(&self, client: &Client, assignment: &[i32]) -> Result<Vec<u8>> {
        let overrides = match client.platform() {
            Platform::Cpu => Cow::Owned(cpu::overrides(&self.overrides, client.cpu_waits())?),
            _ => Cow::Borrowed(&self.overrides),
        };
        encode(&overrides, &client.plugin_ids(assignment))
    }

    /// The device ids that a program's replicas run on, over all processes.
    ///
    /// # Errors
    /// [`Error::TooFewDevices`], [`Error::DeviceAssignment`].
    pub(super) fn assignment(&self, client: &Client, program: &Program) -> Result<Vec<i32>> {
        let assignment = self.assignment_on(client.global_devices(), program.num_replicas)?;
        let is_addressable = |id: &&i32| client.devices().iter().any(|device| device.id == **id);
        let num_here = assignment.iter().filter(is_addressable).count();
        let refused = |reason: String| {
            Err(Error::DeviceAssignment { assignment: assignment.clone(), reason })
        };
        if num_here == 0 {
            return refused("none of these devices belongs to this process".to_owned());
        }
        if client.is_one_of_several() && num_here != program.replicas_per_process() {
            return refused(format!(
                "{num_here} of these devices belong to this process, but the program is written \
                 for {} in each",
                program.replicas_per_process()
            ));
        }
        Ok(assignment)
    }

    /// The device ids that `num_replicas` replicas run on, of these devices.
    fn assignment_on(
        &self,
        devices: &[DeviceDescription],
        num_replicas: usize,
    ) -> Result<Vec<i32>> {
        let assignment = match &self.device_assignment {
            Some(assignment) => assignment.clone(),
            None => devices.iter().take(num_replicas).map(|device| device.id).collect(),
        };
        if num_replicas == 0 || num_replicas > devices.len() {
            return Err(Error::TooFewDevices { needed: num_replicas, available: devices.len() });
        }
        let invalid = |reason: String| {
            Err(Error::DeviceAssignment { assignment: assignment.clone(), reason })
        };
        if assignment.len() != num_replicas {
            return invalid(format!("the program has {num_replicas} replicas"));
        }
        check_distinct(&assignment)?;
        let known: HashSet<i32> = devices.iter().map(|device| device.id).collect();
        match assignment.iter().find(|id| !known.contains(id)) {
            Some(id) => invalid(format!("there is no device {id}")),
            None => Ok(assignment),
        }
    }

    /// The bytes that PJRT takes, for absent devices.
    pub(super) fn encode_on(
        &self,
        devices: &[DeviceDescription],
        num_replicas: usize,
    ) -> Result<Vec<u8>> {
        encode(&self.overrides, &self.assignment_on(devices, num_replicas)?)
    }
}

fn encode(overrides: &BTreeMap<String, OverrideValue>, assignment: &[i32]) -> Result<Vec<u8>> {
    let level = overrides.get(OPTIMIZATION_LEVEL).map(|value| {
        let mut levels = LEVELS.into_iter();
        let known = levels.find(|(name, _)| *value == OverrideValue::String((*name).to_owned()));
        known.map(|(_, level)| level).ok_or_else(|| Error::CompileOption {
            name: OPTIMIZATION_LEVEL.to_owned(),
            reason: format!("it is one of {:?}", LEVELS.map(|(name, _)| name)),
        })
    });
    let num_replicas = assignment.len();
    let devices = ComputationDevice {
        replica_device_ids: assignment.iter().map(|id| i64::from(*id)).collect(),
    };
    let options = CompileOptionsProto {
        executable_build_options: Some(ExecutableBuildOptionsProto {
            device_ordinal: -1,
            num_replicas: num_replicas as i64,
            num_partitions: 1,
            device_assignment: Some(DeviceAssignmentProto {
                replica_count: num_replicas as i32,
                computation_count: 1,
                computation_devices: vec![devices],
            }),
            optimization_level: level.transpose()?.unwrap_or_default(),
        }),
        env_option_overrides: overrides
            .iter()
            .filter(|(name, _)| *name != OPTIMIZATION_LEVEL)
            .map(|(name, value)| (name.clone(), OptionOverrideProto { value: Some(value.into()) }))
            .collect(),
    };
    Ok(options.encode_to_vec())
}

fn check_distinct(assignment: &[i32]) -> Result<()> {
    let mut seen = HashSet::new();
    match assignment.iter().find(|id| !seen.insert(**id)) {
        Some(id) => Err(Error::DeviceAssignment {
            assignment: assignment.to_vec(),
            reason: format!("device {id} stands in it twice"),
        }),
        None => Ok(()),
    }
}

/// `xla.CompileOptionsProto`, as far as it is used here.
#[derive(Clone, PartialEq, Message)]
struct CompileOptionsProto {
    #[prost(message, optional, tag = "3")]
    executable_build_options: Option<ExecutableBuildOptionsProto>,
    #[prost(btree_map = "string, message", tag = "7")]
    env_option_overrides: BTreeMap<String, OptionOverrideProto>,
}

/// `xla.ExecutableBuildOptionsProto`. A device ordinal other than -1 would pin the program to it.
#[derive(Clone, PartialEq, Message)]
struct ExecutableBuildOptionsProto {
    #[prost(int64, tag = "1")]
    device_ordinal: i64,
    #[prost(int64, tag = "4")]
    num_replicas: i64,
    #[prost(int64, tag = "5")]
    num_partitions: i64,
    #[prost(message, optional, tag = "9")]
    device_assignment: Option<DeviceAssignmentProto>,
    /// 0: the compiler's default.
    #[prost(int32, tag = "24")]
    optimization_level: i32,
}

/// `xla.DeviceAssignmentProto`.
#[derive(Clone, PartialEq, Message)]
struct DeviceAssignmentProto {
    #[prost(int32, tag = "1")]
    replica_count: i32,
    #[prost(int32, tag = "2")]
    computation_count: i32,
    #[prost(message, repeated, tag = "3")]
    computation_devices: Vec<ComputationDevice>,
}

/// `xla.DeviceAssignmentProto.ComputationDevice`: the devices of one partition, by replica.
#[derive(Clone, PartialEq, Message)]
struct ComputationDevice {
    #[prost(int64, repeated, tag = "1")]
    replica_device_ids: Vec<i64>,
}

/// `xla.OptionOverrideProto`.
#[derive(Clone, PartialEq, Message)]
struct OptionOverrideProto {
    #[prost(oneof = "OverrideProto", tags = "1, 2, 3, 4")]
    value: Option<OverrideProto>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum OverrideProto {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

impl From<&OverrideValue> for OverrideProto {
    fn from(value: &OverrideValue) -> Self {
        match value {
            OverrideValue::String(value) => OverrideProto::String(value.clone()),
            OverrideValue::Bool(value) => OverrideProto::Bool(*value),
            OverrideValue::Int(value) => OverrideProto::Int(*value),
            OverrideValue::Double(value) => OverrideProto::Double(*value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optimization_level_is_a_field_and_no_override() {
        let encoded = |level: &str| {
            let level = OverrideValue::String(level.to_owned());
            let others = [("xla_a".to_owned(), OverrideValue::Bool(true))];
            let overrides = others.into_iter().chain([(OPTIMIZATION_LEVEL.to_owned(), level)]);
            encode(&overrides.collect(), &[0, 1])
        };
        let options = CompileOptionsProto::decode(&*encoded("O1").unwrap()).unwrap();
        let names: Vec<_> = options.env_option_overrides.into_keys().collect();
        assert_eq!(names, ["xla_a"]);
        assert_eq!(options.executable_build_options.unwrap().optimization_level, 19);
        let error = encoded("1").unwrap_err().to_string();
        assert!(error.contains("optimization_level") && error.contains("\"O3\""), "{error}");
    }
}
