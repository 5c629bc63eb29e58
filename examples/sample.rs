//! Samples text from a trained byte-level GPT.
//!
//!     cargo run --release -- train examples/gpt-bytes.toml --out runs/gpt-bytes
//!     cargo run --release --example sample -- runs/gpt-bytes/params.safetensors "pub fn "
//!
//! A program on one device computes the logits at every position of a window. The host samples the
//! next byte at temperature 0.8, and runs the program again.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use hlo::random::threefry2x32;
use hlo::{DType, Literal, TensorType, lower};
use lockstep::pjrt::{Arg, Client, CompileOptions, InstallOptions, Plugin, find_or_install};
use lockstep::step::trace_forward;
use lockstep::train::params_file;
use models::Precision;
use models::gpt::{GptConfig, GptPreset};

const NUM_BYTES: usize = 600;
const TEMPERATURE: f64 = 0.8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let usage = "usage: sample params.safetensors [PROMPT]";
    let path = std::env::args().nth(1).ok_or(usage)?;
    let prompt = std::env::args().nth(2).unwrap_or("//! ".to_owned());
    let model = GptConfig::preset(GptPreset::Bytes).model();
    let precision = Precision::uniform(DType::F32);
    let ids_type = TensorType::new(DType::I32, &[1, model.context]);

    let forward = trace_forward(precision, &ids_type, |scope, ids| model.logits(scope, ids))?;
    let found = find_or_install("cpu", &InstallOptions::from_env()?, |text| eprintln!("{text}"))?;
    let client = Client::cpu(&Plugin::load(found.path)?, 1)?;
    let program = lower(&forward.graph, "logits");
    let program = client.compile(&program, &CompileOptions::default())?;
    let params = params_file::open(Path::new(&path), &forward.leaves)?.read_all()?;
    let params = forward.arguments(&params)?;
    let params = params.into_iter().map(|literal| client.upload(&[Arc::new(literal)]));
    let params = params.collect::<Result<Vec<_>, _>>()?;

    let mut text = prompt.into_bytes();
    let mut out = std::io::stdout().lock();
    out.write_all(&text)?;
    for index in 0..NUM_BYTES as u32 {
        let window = &text[text.len().saturating_sub(model.context)..];
        let mut ids = Literal::zeros(DType::I32, &[1, model.context]);
        for (id, byte) in ids.as_mut_slice::<i32>().iter_mut().zip(window) {
            *id = i32::from(*byte);
        }
        let mut args: Vec<_> = params.iter().map(Arg::Borrow).collect();
        args.push(Arg::Donate(client.upload(&[Arc::new(ids)])?));
        let logits = program.execute(args)?.outputs[0].read(0)?;
        // The window is followed by padding, which causal attention masks.
        let row = window.len().saturating_sub(1) * model.vocabulary;
        let logits = &logits.as_slice::<f32>()[row..row + model.vocabulary];
        text.push(draw(logits, threefry2x32([0, 0], [0, index])[0]));
        out.write_all(&text[text.len() - 1..])?;
        out.flush()?;
    }
    writeln!(out)?;
    Ok(())
}

/// Samples an index from softmax(logits / temperature), with 32 random bits.
fn draw(logits: &[f32], bits: u32) -> u8 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: &f32| (f64::from(logit - max) / TEMPERATURE).exp();
    let total: f64 = logits.iter().map(weight).sum();
    let mut left = total * f64::from(bits) / 2f64.powi(32);
    let picked = logits.iter().position(|logit| {
        left -= weight(logit);
        left < 0.0
    });
    picked.unwrap_or(logits.len() - 1) as u8
}
