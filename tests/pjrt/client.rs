//! Clients and their devices.

use std::sync::Arc;
use std::time::Duration;

use hlo::Mesh;
use lockstep::cluster::device_order;
use lockstep::pjrt::{
    Client, Code, CompileOptions, CpuWaits, Error, KeyValueError, KeyValueStore, OverrideValue,
    Value,
};

use crate::programs::{accumulate, client, plugin};

#[test]
fn a_cpu_client_has_the_devices_asked_for() {
    let client = client(3);
    assert_eq!((client.platform_name(), client.process_index()), ("cpu", 0));
    assert!(!client.platform_version().is_empty());
    let ids: Vec<i32> = client.devices().iter().map(|device| device.id).collect();
    assert_eq!(ids, [0, 1, 2]);
    // With one process all devices are addressable; those that only bring workers are in neither
    // list.
    let global: Vec<i32> = client.global_devices().iter().map(|device| device.id).collect();
    assert_eq!(global, ids);
    let ordered: Vec<i32> = device_order(client.global_devices(), &Mesh::SINGLE)
        .iter()
        .map(|device| device.id)
        .collect();
    assert_eq!(ordered, ids);
    let addressable =
        device_order(client.devices().iter().map(|device| &device.description), &Mesh::SINGLE);
    assert_eq!(addressable.len(), 3);
    assert_eq!(client.placement().pairs(), [(0, 0), (1, 1), (2, 2)]);
    assert_eq!(client.devices()[1].process_index, 0);
    assert!(!client.devices()[1].kind.is_empty());
    assert!(!client.devices()[1].debug_string.is_empty());
    assert_eq!(client.memory_stats(0).unwrap(), None);
    assert!(client.memory_stats(3).is_err());
}

#[test]
fn options_that_the_plugin_would_abort_on_or_ignore_are_refused() {
    let refused = |options: &[(&str, Value)]| match Client::new(&plugin(), options, None) {
        Err(Error::ClientOption { name, .. }) => name,
        other => panic!("{options:?} gave {other:?}"),
    };
    refused(&[("cpu_device_count", Value::String("4".into()))]);
    refused(&[("cpu_device_count", Value::Int64(0))]);
    refused(&[("cpu_device_count", Value::Int64(-1))]);
    assert_eq!(
        refused(&[("cpu_device_count", Value::Int64(2)), ("memory_fraction", Value::Float(0.5))]),
        "memory_fraction"
    );
    assert!(Client::cpu(&plugin(), 0).is_err());
}

/// A run of several replicas could wait for ever: see `src/pjrt/cpu.rs`.
#[test]
fn xnnpack_is_refused_by_a_client_without_workers_for_it() {
    let overrides = [("xla_cpu_use_xnnpack".to_owned(), OverrideValue::Bool(true))].into();
    let options = CompileOptions { overrides, ..CompileOptions::default() };
    let compile = |client: &Client| client.compile(&accumulate(2, 4), &options);
    let error = compile(&client(2)).unwrap_err();
    assert!(matches!(error, Error::TooFewWorkers { .. }), "{error}");
    let larger = Client::cpu_with(&plugin(), 2, CpuWaits::XnnFusions).unwrap();
    assert_eq!(larger.devices().len(), 2);
    compile(&larger).unwrap();
}

struct NoStore;

impl KeyValueStore for NoStore {
    fn get(&self, _: &[u8], _: Duration) -> Result<Vec<u8>, KeyValueError> {
        self.try_get(&[])
    }

    fn try_get(&self, _: &[u8]) -> Result<Vec<u8>, KeyValueError> {
        Err(KeyValueError { code: Code::NotFound, message: "an empty store".into() })
    }

    fn put(&self, _: &[u8], _: &[u8]) -> Result<(), KeyValueError> {
        Ok(())
    }
}

#[test]
fn a_key_value_store_lives_as_long_as_the_client() {
    let store = Arc::new(NoStore);
    let client = Client::new(&plugin(), &[], Some(store.clone())).unwrap();
    assert_eq!(Arc::strong_count(&store), 2);
    drop(client);
    assert_eq!(Arc::strong_count(&store), 1);
}

#[test]
fn clients_live_beside_each_other_and_may_move_between_threads() {
    fn thread_safe<T: Send + Sync>() {}
    thread_safe::<Client>();
    thread_safe::<lockstep::pjrt::Executable>();
    thread_safe::<lockstep::pjrt::Buffers>();
    thread_safe::<lockstep::pjrt::Completion>();
    let counts: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (1..4).map(|count| scope.spawn(move || client(count).devices().len())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(counts, [1, 2, 3]);
}
