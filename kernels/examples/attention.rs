//! Times attention on the shapes of some models:
//! `cargo run --release -p lockstep-kernels --example attention`.

use std::time::Instant;

use kernels::{Attention, Dropout, Forward, Gradients, Pool, QueriesKeysValues};

fn main() {
    let dropout = Dropout { rate: 0.1, key: [1, 2], first_example: 0, first_head: 0 };
    // Examples, positions, heads, causal, dropout.
    let cases = [
        ("GPT", 8, 256, 4, true, None),
        ("GPT, 1024 positions", 2, 1024, 4, true, None),
        ("GPT-2 124M", 1, 256, 12, true, None),
        ("GPT-2 124M", 1, 1024, 12, true, None),
        ("encoder", 32, 128, 4, false, None),
        ("encoder, dropout", 32, 128, 4, false, Some(dropout)),
    ];
    println!("ms: forward and backward on 1 thread, and on 2\n");
    for (name, batch, num_positions, num_heads, causal, dropout) in cases {
        let (num_kv_heads, head_width) = (num_heads, 64);
        let attention = Attention {
            batch,
            num_positions,
            num_heads,
            num_kv_heads,
            head_width,
            causal,
            dropout,
        };
        let (rows, width) = (batch * num_positions, num_heads * head_width);
        let numbers = |len: usize| (0..len).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0);
        let [q, k, v] = [0, 1, 2].map(|part| {
            numbers(3 * rows * width)
                .skip(part * rows * width)
                .take(rows * width)
                .collect::<Vec<f32>>()
        });
        let cotangent: Vec<f32> = numbers(rows * width).collect();
        let operands = QueriesKeysValues { queries: &q[..], keys: &k, values: &v };
        let (mut y, mut lse) = (vec![0f32; rows * width], vec![0f32; rows * num_heads]);
        let mut gradients = [(); 3].map(|()| vec![0f32; rows * width]);
        print!("{name:20} {batch:3} x {num_positions:4}");
        for num_helpers in [0, 1] {
            let Ok(pool) = Pool::new(num_helpers) else { continue };
            let forward = median_ms(|| attention.forward(&pool, &mut y, &mut lse, operands, None));
            let backward = median_ms(|| {
                let forward = Forward { y: &y, lse: &lse, cotangent: &cotangent };
                let [queries, keys, values] = gradients.each_mut().map(Vec::as_mut_slice);
                let out = Gradients { queries, keys, values };
                attention.backward(&pool, out, operands, forward, None);
            });
            print!(" {forward:7.2} {backward:7.2}");
        }
        println!();
    }
}

fn median_ms(mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..21)
        .map(|_| {
            let started = Instant::now();
            run();
            started.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
