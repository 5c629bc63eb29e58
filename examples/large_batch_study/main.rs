//! The effect of large batches on training, and remedies: two small tasks with batches B, 4B and
//! 16B for the same number of epochs, with and without a scaled rate, warm-up and LARS, several
//! seeds each.
//!
//!     cargo run --release --example large_batch_study -- docs
//!
//! prints a table, and draws `large-batch-study.svg` into the given folder. Batch: 16, 64 or 256
//! examples * 1 microbatch * 1 replica; the number of replicas would change nothing.
//! `docs/large-batch.md` has the results.

mod figure;
mod table;
mod tasks;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use lockstep::config::Config;
use lockstep::{data, train};
use tasks::{Arm, Task};

/// The batch at which the rates were found.
const BASE_BATCH: usize = 16;
/// Batches, as multiples of it.
const FACTORS: [usize; 3] = [1, 4, 16];
/// Seeds of the data order and the initial parameters.
const SEEDS: [u64; 3] = [0, 1, 2];

/// The result of one run.
struct Outcome {
    /// Fraction of the test set that is misclassified.
    error: f64,
    /// Mean training loss of the last step; infinity if it is not finite.
    loss: f64,
}

/// All seeds of one setting; cells are in the order of tasks, arms and batches.
struct Cell {
    task: &'static str,
    arm: &'static str,
    outcomes: Vec<Outcome>,
}

impl Cell {
    /// Mean and standard deviation of the test error.
    fn error(&self) -> (f64, f64) {
        let count = self.outcomes.len() as f64;
        let mean = self.outcomes.iter().map(|outcome| outcome.error).sum::<f64>() / count;
        let squares = self.outcomes.iter().map(|outcome| (outcome.error - mean).powi(2));
        (mean, (squares.sum::<f64>() / (count - 1.0)).sqrt())
    }

    /// Mean of the last training losses.
    fn loss(&self) -> f64 {
        self.outcomes.iter().map(|outcome| outcome.loss).sum::<f64>() / self.outcomes.len() as f64
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let out: PathBuf = std::env::args().nth(1).ok_or("usage: large_batch_study FOLDER")?.into();
    let started = Instant::now();
    let mut cells = vec![];
    for task in Task::ALL {
        for arm in Arm::ALL {
            for factor in FACTORS {
                let outcomes = SEEDS.iter().map(|seed| run(task, arm, factor, *seed));
                let outcomes = outcomes.collect::<Result<_, _>>()?;
                cells.push(Cell { task: task.name(), arm: arm.name(), outcomes });
            }
        }
    }
    println!("{}", table::markdown(&cells));
    figure::save(&out.join("large-batch-study.svg"), &cells)?;
    println!("{} runs in {:.0} s", cells.len() * SEEDS.len(), started.elapsed().as_secs_f64());
    Ok(())
}

fn run(task: Task, arm: Arm, factor: usize, seed: u64) -> Result<Outcome, Box<dyn Error>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits.toml");
    let mut sets = arm.sets(task, BASE_BATCH);
    sets.push(format!("train.seed={seed}"));
    sets.push(format!("train.global_batch={}", BASE_BATCH * factor));
    let config = Config::load(&file, &sets)?;
    let splits = data::open(&config)?;
    let model = task.model();
    let job = train::Job { config: &config, model: &*model, splits: &splits };
    // A run that diverges is a result here.
    let summary = train::train(&job, &train::Options::default())?.summary;
    let accuracy = summary.eval_accuracy.ok_or("the run was not evaluated")?;
    let loss = summary.final_loss.filter(|loss| loss.is_finite()).unwrap_or(f64::INFINITY);
    Ok(Outcome { error: 1.0 - accuracy, loss })
}
