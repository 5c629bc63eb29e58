//! Runs graphs on the real CPU plugin, and generates fixed pseudo-random inputs.

#![allow(dead_code, reason = "each test target uses its part")]

use std::sync::{Arc, OnceLock};

use hlo::random::threefry2x32;
use hlo::{Graph, Literal, lower};
use lockstep::kernels::CpuKernels;
use lockstep::pjrt::{
    Arg, Client, CompileOptions, Executable, InstallOptions, OverrideValue, Plugin, Result,
    find_or_install,
};

/// One client with four devices for all tests of a target.
pub fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let options = InstallOptions::from_env().unwrap();
        let found = find_or_install("cpu", &options, |line| eprintln!("{line}")).unwrap();
        let client = Client::cpu(&Plugin::load(&found.path).unwrap(), 4).unwrap();
        client.use_host_kernels(|| Arc::new(CpuKernels::default())).unwrap();
        client
    })
}

/// Compiles a graph with StableHLO's exact semantics. By default, XLA's CPU backend keeps bf16
/// values in f32 between ops.
pub fn compile(graph: &Graph) -> Result<Executable> {
    let exact = ("xla_allow_excess_precision".to_owned(), OverrideValue::Bool(false));
    let options = CompileOptions { overrides: [exact].into(), ..CompileOptions::default() };
    client().compile(&lower(graph, "test"), &options)
}

/// Like `hlo::interpret`, on the plugin: `inputs[i][r]` is input `i` on replica `r`; outputs
/// likewise.
pub fn run(executable: &Executable, inputs: &[Vec<Literal>]) -> Result<Vec<Vec<Literal>>> {
    let mut arguments = vec![];
    for input in inputs {
        let literals: Vec<_> = input.iter().cloned().map(Arc::new).collect();
        let buffers = client().upload_on(executable.placement(), &literals)?;
        arguments.push(Arg::Donate(buffers));
    }
    let outputs = executable.execute(arguments)?.outputs;
    let replicas = 0..executable.num_replicas();
    outputs.iter().map(|output| replicas.clone().map(|r| output.read(r)).collect()).collect()
}

/// `count` numbers in `[low, high)`, different for each `stream`.
pub fn uniform(stream: u32, count: usize, low: f64, high: f64) -> Vec<f64> {
    let word = |i: usize| threefry2x32([0x7e57, stream], [0, i as u32])[0];
    (0..count).map(|i| low + (high - low) * f64::from(word(i)) / 2f64.powi(32)).collect()
}
