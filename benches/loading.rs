//! `loading CONFIG.toml [--seconds 5]`: makes the training batches of a configuration in host
//! memory on all processors, as training does ahead of its steps, and prints in one line of JSON
//! how long opening the data took and how many examples a second the batches have.
//! `peers/data_loading.py` runs it beside PyTorch's `DataLoader`.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use lockstep::config::Config;
use lockstep::data::{TrainBatches, open};

fn main() -> Result<(), Box<dyn Error>> {
    let mut seconds = 5.0;
    let mut path = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => seconds = arguments.next().ok_or("a number must follow")?.parse()?,
            "--bench" => {}
            _ => path = Some(argument),
        }
    }
    let Some(path) = path else {
        println!("run by benches/peers/data_loading.py");
        return Ok(());
    };
    let config = Config::load(Path::new(&path), &[])?;
    let batch = config.global_batch(1)?;
    let started = Instant::now();
    let splits = open(&config)?;
    let open_secs = started.elapsed().as_secs_f64();
    let batches = TrainBatches::new(splits.train, 0, batch, 1)?;
    // Opens the files, and starts the threads.
    batches.get(0)?;
    let started = Instant::now();
    let mut num_batches = 0;
    while started.elapsed() < Duration::from_secs_f64(seconds) {
        num_batches += 1;
        batches.get(num_batches)?;
    }
    let rate = (num_batches * batch as u64) as f64 / started.elapsed().as_secs_f64();
    println!("{{\"open_secs\": {open_secs:.3}, \"examples_per_sec\": {rate:.1}}}");
    Ok(())
}
