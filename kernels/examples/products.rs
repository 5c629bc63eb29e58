//! Times products of the shapes of a training step:
//! `cargo run --release -p lockstep-kernels --example products`.

use std::time::Instant;

use kernels::{Pool, Product};

fn main() {
    let shapes = [
        ("GPT, forward", [2048, 1024, 256]),
        ("GPT, forward", [2048, 256, 1024]),
        ("GPT, projection", [2048, 256, 256]),
        ("GPT, weight gradient", [1024, 256, 2048]),
        ("GPT, weight gradient", [256, 256, 2048]),
        ("MLP", [1024, 1024, 784]),
        ("MLP", [1024, 1024, 1024]),
    ];
    println!("GFLOP/s by number of threads; a and b stored by rows, or t: by columns\n");
    for (name, [m, n, k]) in shapes {
        for (a_by, b_by) in [("", ""), ("", "t"), ("t", "")] {
            let a_strides = if a_by == "t" { [1, m] } else { [k, 1] };
            let b_strides = if b_by == "t" { [1, k] } else { [n, 1] };
            let strides = [a_strides, b_strides, [n, 1]];
            let Some(product) = Product::new([m, n, k], strides, vec![]) else { continue };
            let (a, b) = (vec![0.5f32; m * k], vec![0.25f32; k * n]);
            let mut out = vec![0f32; m * n];
            let rates = [0, 1].map(|num_helpers| {
                let Ok(pool) = Pool::new(num_helpers) else { return f64::NAN };
                let mut secs: Vec<f64> = (0..15)
                    .map(|_| {
                        let started = Instant::now();
                        product.run(&pool, &mut out, &a, &b);
                        started.elapsed().as_secs_f64()
                    })
                    .collect();
                secs.sort_by(f64::total_cmp);
                product.flops() as f64 / secs[secs.len() / 2] / 1e9
            });
            let [one, two] = rates;
            println!("{name:22} {m:5}{a_by:1} x {n:5}{b_by:1} x {k:5} {one:6.0} {two:6.0}");
        }
    }
}
