//! Speed of convolutions:
//! `convolutions [batch of ResNet-20] [number of helpers] [rounds] [batch of ResNet-50]`.
fn main() {
    let arguments: Vec<usize> =
        std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let argument = |index: usize, default| arguments.get(index).copied().unwrap_or(default);
    let (batch, num_helpers, rounds) = (argument(0, 128), argument(1, 1), argument(2, 9));
    let pool = Pool::new(num_helpers).expect("threads");
    println!("GFLOP/s on {} threads: forward, input gradient, kernel gradient", num_helpers + 1);
    for (network, layers) in
        [("ResNet-20", resnet20(batch)), ("ResNet-50", resnet50(argument(3, 8)))]
    {
        if layers.iter().all(|layer| layer.batch == 0) {
            continue;
        }
        let mut total = [0.0; 3];
        for (index, layer) in layers.iter().enumerate() {
            let seconds = layer.measure(&pool, rounds);
            let flops = layer.forward().flops() as f64 * 1e-9;
            println!("{layer:?} {:4.0?}", seconds.map(|seconds| flops / seconds));
            for (pass, seconds) in seconds.into_iter().enumerate() {
                // The input of the first layer needs no gradient.
                if index > 0 || pass != 1 {
                    total[pass] += seconds * layer.count as f64;
                }
            }
        }
        let sum: f64 = total.iter().sum();
        println!("{network}: {:.2} ms of {:.2?}\n", sum * 1e3, total.map(|seconds| seconds * 1e3));
    }
}

use std::fmt::{Debug, Formatter, Result};
use std::time::Instant;

use kernels::{Convolution, Pool};

/// `count` layers of `[in_features, out_features, size of the input, kernel, stride]`.
struct Layer {
    batch: usize,
    dims: [usize; 5],
    count: usize,
}

impl Debug for Layer {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let [i, o, size, kernel, stride] = self.dims;
        write!(
            f,
            "{:2} x {i:4} -> {o:4}, {size:3} x {size:3}, kernel {kernel}, stride {stride}:",
            self.count
        )
    }
}

impl Layer {
    fn forward(&self) -> Convolution {
        let [in_features, out_features, size, kernel, stride] = self.dims;
        Convolution {
            batch: self.batch,
            input: [size; 2],
            in_features,
            output: [size.div_ceil(stride); 2],
            out_features,
            kernel: [kernel; 2],
            stride: [stride; 2],
            low: [(kernel as i64 - 1) / 2; 2],
            base_dilation: [1; 2],
        }
    }

    /// The fastest of some rounds, in seconds. The kernel's memory is `[out, in, rows, columns]`.
    fn measure(&self, pool: &Pool, rounds: usize) -> [f64; 3] {
        let forward = self.forward();
        let [i, o, size, k, _] = self.dims;
        let backward = Convolution {
            input: forward.output,
            in_features: o,
            output: forward.input,
            out_features: i,
            stride: [1; 2],
            low: forward.low.map(|low| k as i64 - 1 - low),
            base_dilation: forward.stride,
            ..forward.clone()
        };
        let values = |len: usize| -> Vec<f32> { (0..len).map(|i| (i % 13) as f32 - 6.0).collect() };
        // As the buffers of a runtime are: at the start of a cache line.
        let values = |len: usize| -> (usize, Vec<f32>) {
            let values = values(len + 16);
            (values.as_ptr().align_offset(64), values)
        };
        let (start, mut x) = values(self.batch * size * size * i);
        let x = &mut x[start..];
        let (start, mut w) = values(o * i * k * k);
        let w = &mut w[start..];
        let (start, mut y) = values(self.batch * forward.output[0] * forward.output[1] * o);
        let y = &mut y[start..];
        let strides = [i * k * k, k * k, k, 1];
        // The reversal of the kernel costs nothing here: it is the caller's.
        let exchanged = [k * k, i * k * k, k, 1];
        let mut seconds = [(); 3].map(|()| Vec::new());
        for _ in 0..rounds {
            let start = Instant::now();
            forward.run(pool, y, x, w, strides);
            seconds[0].push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            backward.run(pool, x, y, w, exchanged);
            seconds[1].push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            forward.run_kernel_gradient(pool, w, strides, x, y);
            seconds[2].push(start.elapsed().as_secs_f64());
            // Values must not become infinite.
            x.iter_mut()
                .chain(w.iter_mut())
                .chain(y.iter_mut())
                .enumerate()
                .for_each(|(i, value)| *value = (i % 13) as f32 - 6.0);
        }
        seconds.map(|mut seconds| {
            seconds.sort_by(f64::total_cmp);
            seconds[0]
        })
    }
}

fn resnet20(batch: usize) -> Vec<Layer> {
    layers(
        batch,
        &[
            (1, [3, 16, 32, 3, 1]),
            (6, [16, 16, 32, 3, 1]),
            (1, [16, 32, 32, 3, 2]),
            (1, [16, 32, 32, 1, 2]),
            (5, [32, 32, 16, 3, 1]),
            (1, [32, 64, 16, 3, 2]),
            (1, [32, 64, 16, 1, 2]),
            (5, [64, 64, 8, 3, 1]),
        ],
    )
}

fn resnet50(batch: usize) -> Vec<Layer> {
    layers(
        batch,
        &[
            (1, [3, 64, 224, 7, 2]),
            (1, [64, 64, 56, 1, 1]),
            (3, [64, 64, 56, 3, 1]),
            (4, [64, 256, 56, 1, 1]),
            (2, [256, 64, 56, 1, 1]),
            (1, [256, 128, 56, 1, 1]),
            (1, [128, 128, 56, 3, 2]),
            (1, [256, 512, 56, 1, 2]),
            (4, [128, 512, 28, 1, 1]),
            (3, [512, 128, 28, 1, 1]),
            (3, [128, 128, 28, 3, 1]),
            (1, [512, 256, 28, 1, 1]),
            (1, [256, 256, 28, 3, 2]),
            (1, [512, 1024, 28, 1, 2]),
            (6, [256, 1024, 14, 1, 1]),
            (5, [1024, 256, 14, 1, 1]),
            (5, [256, 256, 14, 3, 1]),
            (1, [1024, 512, 14, 1, 1]),
            (1, [512, 512, 14, 3, 2]),
            (1, [1024, 2048, 14, 1, 2]),
            (3, [512, 2048, 7, 1, 1]),
            (2, [2048, 512, 7, 1, 1]),
            (2, [512, 512, 7, 3, 1]),
        ],
    )
}

fn layers(batch: usize, layers: &[(usize, [usize; 5])]) -> Vec<Layer> {
    layers.iter().map(|&(count, dims)| Layer { batch, dims, count }).collect()
}
