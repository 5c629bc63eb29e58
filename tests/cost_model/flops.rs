//! FLOPs of a step's matmuls and convolutions, which predictions start from, against closed
//! formulas.

use std::path::Path;

use lockstep::config::Config;
use lockstep::data;
use lockstep::pjrt::Platform;
use lockstep::step;
use lockstep::targets::cost::Work;
use lockstep::train::{Run, mesh_on_host};

/// Counted for one replica, with a batch of `batch`.
fn counted(example: &str, batch: usize, sets: &[&str]) -> f64 {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example);
    let key = if example.starts_with("gpt2") { "batch_per_replica" } else { "global_batch" };
    let batch = format!("train.{key}={batch}");
    let sets = [&["mesh.data=1", &batch], sets].concat();
    let sets: Vec<_> = sets.iter().map(|set| set.to_string()).collect();
    let config = Config::load(&path, &sets).unwrap();
    let splits = data::open(&config).unwrap();
    let model = config.model.build(splits.train.num_outputs());
    let run = Run::new(&config, &splits, mesh_on_host(&config), Platform::Cuda).unwrap();
    let graph = step::trace_step(&run.spec(&*model).declare().unwrap()).unwrap();
    Work::of(&graph, 4).matmul_flops()
}

fn check(what: &str, found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.01, "{what}: {found:.4e}, not {expected:.4e}");
}

/// A layer from `a` to `b` features takes `2 a b` FLOPs for an example, its gradient with respect
/// to the weights as many, and that with respect to its input, too, except for the first layer.
#[test]
fn of_an_mlp() {
    let layers = [64.0 * 256.0, 256.0 * 256.0, 256.0 * 10.0];
    let sum: f64 = layers.iter().sum();
    check("digits", counted("digits.toml", 32, &[]), 2.0 * 32.0 * (3.0 * sum - layers[0]));
}

/// With `N = 12 L d^2` weights in the blocks, a token takes `2 N` FLOPs for them, `4 L T d` for the
/// scores of attention and what they weigh, and `2 V d` for the head; the backward pass twice as
/// much. Narayanan et al. (2021), appendix.
#[test]
fn of_a_gpt() {
    for (preset, num_layers, width) in [("gpt2-124m", 12.0, 768.0), ("gpt2-1558m", 48.0, 1600.0)] {
        let (context, vocabulary, batch) = (1024.0, 50257.0, 2);
        let per_token = num_layers * (24.0 * width * width + 4.0 * context * width);
        let tokens = batch as f64 * context;
        let expected = 3.0 * tokens * (per_token + 2.0 * vocabulary * width);
        for scan in ["model.scan_layers=false", "model.scan_layers=true"] {
            let preset_set = format!("model.preset={preset}");
            let sets = [&*preset_set, scan, "model.remat=false"];
            check(preset, counted("gpt2-124m.toml", batch, &sets), expected);
        }
    }
}

/// A convolution, without its products with padding: FLOPs of the outputs along a dim of `size`
/// elements.
fn taps(size: usize, kernel: usize, stride: usize) -> f64 {
    let before = (kernel - 1) / 2;
    let inside = |out: usize| {
        (0..kernel).filter(|tap| (before..size + before).contains(&(out * stride + tap))).count()
    };
    (0..size.div_ceil(stride)).map(inside).sum::<usize>() as f64
}

/// FLOPs of a convolution of one image.
fn convolution(size: usize, kernel: usize, stride: usize, from: usize, to: usize) -> f64 {
    2.0 * taps(size, kernel, stride).powi(2) * (from * to) as f64
}

/// He et al. (2016), table 1, with the stride in the second convolution of a block (v1.5).
#[test]
fn of_resnet50() {
    let first = convolution(224, 7, 2, 3, 64);
    let mut forward = first;
    let (mut size, mut channels) = (56, 64);
    for (stage, num_blocks) in [3, 4, 6, 3].into_iter().enumerate() {
        let width = 64 << stage;
        for block in 0..num_blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            forward += convolution(size, 1, 1, channels, width);
            forward += convolution(size, 3, stride, width, width);
            if block == 0 {
                forward += convolution(size, 1, stride, channels, 4 * width);
            }
            size /= stride;
            forward += convolution(size, 1, 1, width, 4 * width);
            channels = 4 * width;
        }
    }
    forward += 2.0 * 2048.0 * 1000.0;
    // 4.1 billion multiplications and additions without padding, as published.
    assert!((7.7e9..8.3e9).contains(&forward), "{forward:e}");
    check("resnet50", counted("resnet50-imagenet.toml", 32, &[]), 32.0 * (3.0 * forward - first));
}

/// He et al. (2016), section 4.2.
#[test]
fn of_resnet20() {
    let first = convolution(32, 3, 1, 3, 16);
    let mut forward = first;
    let (mut size, mut channels) = (32, 16);
    for (stage, width) in [16, 32, 64].into_iter().enumerate() {
        for block in 0..3 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            forward += convolution(size, 3, stride, channels, width);
            size /= stride;
            forward += convolution(size, 3, 1, width, width);
            channels = width;
        }
    }
    forward += 2.0 * 64.0 * 10.0;
    check("resnet20", counted("resnet20-synthetic.toml", 64, &[]), 64.0 * (3.0 * forward - first));
}
