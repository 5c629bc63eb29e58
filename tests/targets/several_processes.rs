//! What several processes give to the real GPU plugin, up to the point where it misses its devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockstep::pjrt::{
    Client, Code, InstallOptions, KeyValueError, KeyValueStore, Plugin, Value, find,
};

use super::install;

/// A store that counts its calls.
#[derive(Default)]
struct Counting {
    num_calls: AtomicUsize,
}

impl Counting {
    fn refuse<T>(&self) -> Result<T, KeyValueError> {
        self.num_calls.fetch_add(1, Ordering::Relaxed);
        Err(KeyValueError { code: Code::NotFound, message: "empty".to_owned() })
    }
}

impl KeyValueStore for Counting {
    fn get(&self, _key: &[u8], _timeout: Duration) -> Result<Vec<u8>, KeyValueError> {
        self.refuse()
    }

    fn try_get(&self, _key: &[u8]) -> Result<Vec<u8>, KeyValueError> {
        self.refuse()
    }

    fn put(&self, _key: &[u8], _value: &[u8]) -> Result<(), KeyValueError> {
        self.refuse()
    }
}

/// The options are checked before the devices are looked for: a wrong name or type is another
/// error.
#[test]
fn the_options_of_several_processes_are_those_of_the_gpu_plugin() {
    install("cuda-compiler");
    let found = find("cuda-compiler", &InstallOptions::from_env().unwrap()).unwrap().unwrap();
    let plugin = Plugin::load(found.path).unwrap();
    let store = Arc::new(Counting::default());
    let open = |options: &[(&str, Value)]| {
        let store: Arc<dyn KeyValueStore> = store.clone();
        Client::new(&plugin, options, Some(store)).map(drop).map_err(|error| error.to_string())
    };
    let ours = [
        ("node_id", Value::Int64(0)),
        ("num_nodes", Value::Int64(1)),
        ("visible_devices", Value::Int64List(vec![0])),
    ];
    if let Err(error) = open(&ours) {
        assert!(error.contains("No visible GPU devices"), "{error}");
        eprintln!("no GPU here: {error}");
    }
    for (name, value) in
        [("node_index", Value::Int64(0)), ("node_id", Value::String("0".to_owned()))]
    {
        let mut wrong = ours.to_vec();
        wrong[0] = (name, value);
        let refused = open(&wrong).unwrap_err();
        assert!(refused.contains(name), "{refused}");
    }
    eprintln!("{} calls of the store", store.num_calls.load(Ordering::Relaxed));
}
