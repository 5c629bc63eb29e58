//! A custom model in the training loop: a small network with a residual connection.
//!
//!     cargo run --release --example custom_model -- runs/custom
//!
//! The directory is optional. With one, the state is saved there every 100 steps, and the same
//! command continues a run that was interrupted.
//!
//! Data, batch, optimizer and schedule are those of `examples/digits.toml`: 64 = 16 examples * 1
//! microbatch * 4 replicas. Only the model differs. It is written for one device and runs on four.

use std::path::{Path, PathBuf};

use lockstep::checkpoint::CheckpointDir;
use lockstep::config::Config;
use lockstep::train::Resume;
use lockstep::{data, train};
use models::layers::{layer_norm, linear};
use models::loss::cross_entropy;
use models::{Batch, Initializer, Loss, Scope};

/// `x = relu(W x); x = x + relu(norm(W' x)); logits = W'' x`
fn residual_mlp<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    let width = 128;
    let he = Initializer::he_normal;
    let x = batch.field("x");
    let x = linear(&scope.at("stem"), x, width, he(x.dim(1))).maximum(0.0);
    let branch = linear(&scope.at("branch"), x, width, he(width));
    let x = x + layer_norm(&scope.at("norm"), branch).maximum(0.0);
    let logits = linear(&scope.at("head"), x, 10, Initializer::lecun_normal(width));
    cross_entropy(logits, batch.field("y"), batch.weight)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits.toml");
    let mut config = Config::load(&file, &[])?;
    config.checkpoint.every_steps = 100;
    let splits = data::open(&config)?;
    let job = train::Job { config: &config, model: &residual_mlp, splits: &splits };
    let out = std::env::args_os().nth(1).map(PathBuf::from);
    let resume = if out.is_some() { Resume::Newest } else { Resume::Never };
    let options = train::Options { out, resume, ..train::Options::default() };
    let outcome = train::train(&job, &options)?.success()?;
    println!("test accuracy {:.4}", outcome.summary.eval_accuracy.unwrap_or(f64::NAN));
    if let Some(out) = options.out {
        let newest = CheckpointDir::open(out.join(&config.checkpoint.dir))?;
        let weight = newest.leaf("params.head.weight")?;
        println!("{} has the state after {} steps", newest.location(), newest.run().step);
        println!("the weight of the head is {}{:?}", weight.dtype(), weight.dims());
    }
    Ok(())
}
