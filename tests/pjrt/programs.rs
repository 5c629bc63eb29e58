//! Programs written out by hand, and the plugin that they run on.

use std::sync::OnceLock;

use hlo::{DType, Program, ProgramInput, ProgramOutput, TensorType};
use lockstep::pjrt::{Client, FoundPlugin, InstallOptions, Plugin, find_or_install};

pub fn found() -> &'static FoundPlugin {
    static FOUND: OnceLock<FoundPlugin> = OnceLock::new();
    FOUND.get_or_init(|| {
        let options = InstallOptions::from_env().unwrap();
        find_or_install("cpu", &options, |line| eprintln!("{line}")).unwrap()
    })
}

pub fn plugin() -> Plugin {
    Plugin::load(&found().path).unwrap()
}

pub fn client(num_devices: usize) -> Client {
    Client::cpu(&plugin(), num_devices).unwrap()
}

/// A module with one `@main` of `arguments` and `results`, both f32, each given as dims; the inputs
/// with an index in `donated` go into the result with the same index.
pub fn program(
    num_replicas: usize,
    arguments: &[&[usize]],
    results: &[&[usize]],
    donated: &[usize],
    body: &str,
) -> Program {
    let argument_list: Vec<String> = arguments
        .iter()
        .enumerate()
        .map(|(index, dims)| {
            let attribute = if donated.contains(&index) {
                format!(" {{tf.aliasing_output = {index} : i32}}")
            } else {
                String::new()
            };
            format!("%a{index}: {}{attribute}", tensor(dims))
        })
        .collect();
    let result_list: Vec<String> = results.iter().map(|dims| tensor(dims)).collect();
    let text = format!(
        "module @test attributes {{mhlo.num_replicas = {num_replicas} : i32, mhlo.num_partitions = \
         1 : i32}} {{\nfunc.func public @main({}) -> ({}) {{\n{body}\n}}\n}}\n",
        argument_list.join(", "),
        result_list.join(", ")
    );
    let ty = |dims: &&[usize]| TensorType::new(DType::F32, dims);
    Program {
        text,
        num_replicas,
        num_processes: 1,
        inputs: arguments
            .iter()
            .enumerate()
            .map(|(index, dims)| ProgramInput {
                name: format!("in.{index}"),
                ty: ty(dims),
                donated: donated.contains(&index),
            })
            .collect(),
        outputs: results
            .iter()
            .enumerate()
            .map(|(index, dims)| ProgramOutput { name: format!("out.{index}"), ty: ty(dims) })
            .collect(),
    }
}

fn tensor(dims: &[usize]) -> String {
    let dims: String = dims.iter().map(|dim| format!("{dim}x")).collect();
    format!("tensor<{dims}f32>")
}

/// `sum over replicas of x`, for `x: f32[dims]`, over groups like `[[0,1,2,3]]`.
pub fn all_reduce(num_replicas: usize, dim: usize) -> Program {
    let group: Vec<String> = (0..num_replicas).map(|replica| replica.to_string()).collect();
    let body = format!(
        r#"  %r = "stablehlo.all_reduce"(%a0) <{{replica_groups = dense<[[{}]]> : tensor<1x{num_replicas}xi64>}}> ({{
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %s = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %s : tensor<f32> }}) : (tensor<{dim}xf32>) -> tensor<{dim}xf32>
  return %r : tensor<{dim}xf32>"#,
        group.join(",")
    );
    program(num_replicas, &[&[dim]], &[&[dim]], &[], &body)
}

/// `(state + sum over replicas of x, x)`: the state is donated, and the replicas meet.
pub fn accumulate(num_replicas: usize, dim: usize) -> Program {
    let group: Vec<String> = (0..num_replicas).map(|replica| replica.to_string()).collect();
    let body = format!(
        r#"  %r = "stablehlo.all_reduce"(%a1) <{{replica_groups = dense<[[{}]]> : tensor<1x{num_replicas}xi64>}}> ({{
    ^bb0(%x: tensor<f32>, %y: tensor<f32>):
      %s = stablehlo.add %x, %y : tensor<f32>
      stablehlo.return %s : tensor<f32> }}) : (tensor<{dim}xf32>) -> tensor<{dim}xf32>
  %n = stablehlo.add %a0, %r : tensor<{dim}xf32>
  return %n, %r : tensor<{dim}xf32>, tensor<{dim}xf32>"#,
        group.join(",")
    );
    program(num_replicas, &[&[dim], &[dim]], &[&[dim], &[dim]], &[0], &body)
}
