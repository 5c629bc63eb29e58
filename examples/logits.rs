//! A model's logits for a given input, to compare a checkpoint with the program that it comes from.
//!
//!     cargo run --release --example logits -- \
//!         examples/gpt2-124m.toml model.safetensors in.safetensors out.safetensors
//!
//! The input file holds `x`: tokens, i32 `[b, t]`, for a GPT; images, f32 `[n, c, h, w]`, for a
//! ResNet. The output file holds `logits`. The checkpoint is Lockstep's own, or that of a Hugging
//! Face GPT-2 or a torchvision ResNet. Running means are used as in evaluation, and everything is
//! f32.

use std::path::Path;
use std::sync::Arc;

use hlo::{DType, Literal, TensorType, Tree, lower};
use lockstep::config::{self, Config};
use lockstep::data;
use lockstep::pjrt::{Arg, Client, CompileOptions, InstallOptions, Plugin, find_or_install};
use lockstep::step::trace_forward;
use lockstep::train::params_file;
use models::resnet::ResNet;
use models::{Precision, Scope};
use safetensors::{Dtype, SafeTensors};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [config, checkpoint, input, output] = &arguments[..] else {
        return Err("usage: logits CONFIG CHECKPOINT INPUT OUTPUT".into());
    };
    let config = Config::load(Path::new(config), &[])?;
    let x = read_x(Path::new(input))?;
    let ty = TensorType::new(x.dtype(), x.dims());
    let f32s = Precision::uniform(DType::F32);
    let forward = match &config.model {
        config::ModelConfig::Gpt(gpt) => {
            let model = gpt.model();
            trace_forward(f32s, &ty, |scope: &Scope<'_>, x| model.logits(scope, x))?
        }
        config::ModelConfig::ResNet(resnet) => {
            let splits = data::open(&config)?;
            let objective = splits.train.num_outputs().into();
            let model = ResNet { config: resnet.clone(), objective };
            trace_forward(f32s, &ty, |scope: &Scope<'_>, x| model.logits(scope, x))?
        }
        _ => return Err("logits: the model is neither a gpt nor a resnet".into()),
    };
    let leaves = params_file::open(Path::new(checkpoint), &forward.leaves)?.read_all()?;

    let found = find_or_install("cpu", &InstallOptions::from_env()?, |text| eprintln!("{text}"))?;
    let client = Client::cpu(&Plugin::load(found.path)?, 1)?;
    let program = client.compile(&lower(&forward.graph, "logits"), &CompileOptions::default())?;
    let values = forward.arguments(&leaves)?.into_iter().chain([x]);
    let upload = |value: Literal| client.upload(&[Arc::new(value)]).map(Arg::Donate);
    let arguments = values.map(upload).collect::<Result<Vec<_>, _>>()?;
    let logits = program.execute(arguments)?.outputs[0].read(0)?;
    params_file::save(Path::new(output), &Tree::from_iter([("logits".to_owned(), logits)]))?;
    Ok(())
}

fn read_x(path: &Path) -> Result<Literal, Box<dyn std::error::Error>> {
    let bytes = std::fs::read(path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    let view = file.tensor("x")?;
    let dtype = match view.dtype() {
        Dtype::I32 => DType::I32,
        Dtype::F32 => DType::F32,
        other => return Err(format!("x is {other:?}, but tokens are I32 and images F32").into()),
    };
    let mut x = Literal::zeros(dtype, view.shape());
    x.bytes_mut().copy_from_slice(view.data());
    Ok(x)
}
