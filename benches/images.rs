//! Images per second: JPEGs of typical ImageNet size, decoded and augmented to 224 x 224 on all processors.
//!
//! `cargo bench --bench images -- --seconds 10` prints one line of JSON.

use std::error::Error;
use std::time::{Duration, Instant};

use jpeg_encoder::{ColorType, Encoder};
use lockstep::config::{DataConfig, ImageFolderConfig, OnBroken};
use lockstep::data::{TrainBatches, open};

const WIDTH: usize = 500;
const HEIGHT: usize = 375;
const NUM_FILES: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut seconds = 5;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => seconds = arguments.next().ok_or("a number must follow")?.parse()?,
            "--bench" => {}
            other => return Err(format!("unknown argument {other}").into()),
        }
    }

    let dir = tempfile::tempdir()?;
    std::fs::create_dir(dir.path().join("class"))?;
    let mut num_bytes = 0;
    for number in 0..NUM_FILES {
        let mut bytes = vec![];
        Encoder::new(&mut bytes, 90).encode(
            &pixels(number),
            WIDTH as u16,
            HEIGHT as u16,
            ColorType::Rgb,
        )?;
        num_bytes += bytes.len();
        std::fs::write(dir.path().join(format!("class/{number}.jpg")), bytes)?;
    }
    let config = DataConfig::ImageFolder(ImageFolderConfig {
        path: dir.path().to_owned(),
        eval_path: None,
        eval_fraction: Some(0.1),
        image_size: 224,
        eval_resize: None,
        augment: true,
        on_broken: OnBroken::Stop,
        num_examples: None,
    });
    let batch = 32;
    let batches = TrainBatches::new(open(&config, 0)?.train, 0, batch, 1)?;
    batches.get(0)?;
    let started = Instant::now();
    let mut num_batches = 0;
    while started.elapsed() < Duration::from_secs(seconds) {
        num_batches += 1;
        batches.get(num_batches)?;
    }
    let rate = num_batches as f64 * batch as f64 / started.elapsed().as_secs_f64();
    let processors = std::thread::available_parallelism()?;
    println!(
        "{{\"images_per_sec\": {rate:.1}, \"processors\": {processors}, \"mean_file_bytes\": {}}}",
        num_bytes / NUM_FILES
    );
    Ok(())
}

/// Smooth colours with a little noise: the files are as large as those of photographs.
fn pixels(number: usize) -> Vec<u8> {
    let mut state = number as u32 + 1;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as usize % 24
    };
    let mut pixels = Vec::with_capacity(3 * WIDTH * HEIGHT);
    for place in 0..WIDTH * HEIGHT {
        let (row, column) = (place / WIDTH, place % WIDTH);
        for value in [row, column, row + column + 16 * number] {
            pixels.push((value / 4 % 200 + noise()) as u8);
        }
    }
    pixels
}
