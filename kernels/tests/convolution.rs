//! Convolutions against loops over all their terms.

use kernels::{Convolution, Element, Pool};
use proptest::prelude::*;

/// Small integers: their products and sums are exact.
fn integers(len: usize, seed: usize) -> Vec<f64> {
    (0..len).map(|i| ((i * 7 + seed * 13) % 11) as f64 - 5.0).collect()
}

fn narrowed(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}

fn pool(num_helpers: usize) -> Pool<'static> {
    Pool::new(num_helpers).unwrap()
}

fn kernel_dims(convolution: &Convolution) -> [usize; 4] {
    let [rows, columns] = convolution.kernel;
    [convolution.out_features, convolution.in_features, rows, columns]
}

fn input_len(convolution: &Convolution) -> usize {
    let [rows, columns] = convolution.input;
    convolution.batch * rows * columns * convolution.in_features
}

fn output_len(convolution: &Convolution) -> usize {
    let [rows, columns] = convolution.output;
    convolution.batch * rows * columns * convolution.out_features
}

/// Strides with the dimensions in some order from the innermost, and gaps. Then the length.
fn strides(dims: [usize; 4], order: [usize; 4], gap: usize) -> ([usize; 4], usize) {
    let (mut strides, mut len) = ([0; 4], 1);
    for dim in order {
        strides[dim] = len;
        len *= dims[dim].max(1) + gap;
    }
    (strides, len)
}

/// Calls `term` with the offsets in `x`, `y` and the kernel of each product.
fn for_each_term(
    convolution: &Convolution,
    strides: [usize; 4],
    mut term: impl FnMut(usize, usize, usize),
) {
    let Convolution { batch, input, in_features, output, out_features, kernel, .. } = *convolution;
    let seen = |axis: usize, position: usize, tap: usize| {
        let place = (position * convolution.stride[axis] + tap) as i64 - convolution.low[axis];
        let dilation = convolution.base_dilation[axis] as i64;
        let index = usize::try_from(place).ok()? / dilation as usize;
        (place % dilation == 0 && index < input[axis]).then_some(index)
    };
    for n in 0..batch {
        for p in 0..output[0] {
            for q in 0..output[1] {
                for kh in 0..kernel[0] {
                    for kw in 0..kernel[1] {
                        let (Some(r), Some(c)) = (seen(0, p, kh), seen(1, q, kw)) else { continue };
                        for i in 0..in_features {
                            for o in 0..out_features {
                                term(
                                    ((n * input[0] + r) * input[1] + c) * in_features + i,
                                    ((n * output[0] + p) * output[1] + q) * out_features + o,
                                    o * strides[0]
                                        + i * strides[1]
                                        + kh * strides[2]
                                        + kw * strides[3],
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

fn features() -> impl Strategy<Value = usize> {
    prop_oneof![0..4usize, 4..40usize, Just(16), Just(32), Just(64)]
}

fn convolutions() -> impl Strategy<Value = Convolution> {
    let pair = |low: usize, high: usize| [low..high, low..high];
    (
        (0..4usize, features(), features(), pair(0, 10), pair(0, 21)),
        (pair(1, 5), pair(1, 4), [-3..5i64, -3..5i64], pair(1, 4)),
    )
        .prop_map(|((batch, in_features, out_features, input, output), rest)| {
            let (kernel, stride, low, base_dilation) = rest;
            let output = if output[0] % 5 == 0 { input } else { output };
            Convolution {
                batch,
                input,
                in_features,
                output,
                out_features,
                kernel,
                stride,
                low,
                base_dilation,
            }
        })
}

fn orders() -> impl Strategy<Value = [usize; 4]> {
    Just(vec![0, 1, 2, 3]).prop_shuffle().prop_map(|order| [order[0], order[1], order[2], order[3]])
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn a_convolution_is_the_sum_of_its_terms(
        convolution in convolutions(), order in orders(), gap in 0..3usize, num_helpers in 0..3usize,
    ) {
        let (strides, len) = strides(kernel_dims(&convolution), order, gap);
        let (x, weights) = (integers(input_len(&convolution), 1), integers(len, 2));
        let mut expected = vec![0.0; output_len(&convolution)];
        for_each_term(&convolution, strides, |x_at, y_at, w_at| expected[y_at] += x[x_at] * weights[w_at]);
        let pool = pool(num_helpers);
        let mut y = vec![f64::NAN; expected.len()];
        convolution.run(&pool, &mut y, &x, &weights, strides);
        prop_assert_eq!(&y, &expected);
        let mut y = vec![f32::NAN; expected.len()];
        convolution.run(&pool, &mut y, &narrowed(&x), &narrowed(&weights), strides);
        prop_assert_eq!(y, narrowed(&expected));
    }

    #[test]
    fn the_gradient_of_a_kernel_is_the_sum_of_its_terms(
        convolution in convolutions(), order in orders(), gap in 0..3usize, num_helpers in 0..3usize,
    ) {
        let convolution = Convolution { base_dilation: [1, 1], ..convolution };
        let dims = kernel_dims(&convolution);
        let (strides, len) = strides(dims, order, gap);
        let (x, dy) = (integers(input_len(&convolution), 1), integers(output_len(&convolution), 2));
        // Elements in gaps keep their values.
        let mut expected = vec![77.0; len];
        for index in 0..dims.iter().product() {
            let mut rest: usize = index;
            let at = (0..4).map(|dim| {
                let index = rest % dims[dim];
                rest /= dims[dim];
                index * strides[dim]
            });
            expected[at.sum::<usize>()] = 0.0;
        }
        let before: Vec<f64> = expected.iter().map(|value| if *value == 0.0 { f64::NAN } else { *value }).collect();
        for_each_term(&convolution, strides, |x_at, y_at, w_at| expected[w_at] += x[x_at] * dy[y_at]);
        let pool = pool(num_helpers);
        let mut dw = before.clone();
        convolution.run_kernel_gradient(&pool, &mut dw, strides, &x, &dy);
        prop_assert_eq!(&dw, &expected);
        let mut dw = narrowed(&before);
        convolution.run_kernel_gradient(&pool, &mut dw, strides, &narrowed(&x), &narrowed(&dy));
        prop_assert_eq!(dw, narrowed(&expected));
    }

    #[test]
    fn gradients_are_adjoint(
        convolution in convolutions(), order in orders(),
    ) {
        let forward = Convolution { base_dilation: [1, 1], ..convolution };
        let dims = kernel_dims(&forward);
        let (strides, len) = strides(dims, order, 0);
        let (x, weights) = (integers(input_len(&forward), 1), integers(len, 2));
        let dy = integers(output_len(&forward), 3);
        let pool = pool(0);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();

        let mut y = vec![0.0; dy.len()];
        forward.run(&pool, &mut y, &x, &weights, strides);
        let mut dw = vec![0.0; len];
        forward.run_kernel_gradient(&pool, &mut dw, strides, &x, &dy);
        prop_assert_eq!(dot(&y, &dy), dot(&weights, &dw));

        // The kernel reversed, and its features exchanged.
        let mut reversed = weights.clone();
        for index in 0..dims.iter().product() {
            let mut rest: usize = index;
            let indices = dims.map(|dim| { let index = rest % dim; rest /= dim; index });
            let at = |indices: [usize; 4]| (0..4).map(|dim| indices[dim] * strides[dim]).sum::<usize>();
            let [o, i, row, column] = indices;
            reversed[at([o, i, dims[2] - 1 - row, dims[3] - 1 - column])] = weights[at(indices)];
        }
        let backward = Convolution {
            input: forward.output,
            in_features: forward.out_features,
            output: forward.input,
            out_features: forward.in_features,
            stride: [1, 1],
            low: [0, 1].map(|axis| forward.kernel[axis] as i64 - 1 - forward.low[axis]),
            base_dilation: forward.stride,
            ..forward.clone()
        };
        let exchanged = [strides[1], strides[0], strides[2], strides[3]];
        let mut dx = vec![0.0; x.len()];
        backward.run(&pool, &mut dx, &dy, &reversed, exchanged);
        prop_assert_eq!(dot(&y, &dy), dot(&x, &dx));
    }
}

/// Convolutions of several tasks, and of blocks that do not fit the cache.
fn large() -> Vec<Convolution> {
    let convolution =
        |batch, size, [in_features, out_features]: [usize; 2], kernel, stride| Convolution {
            batch,
            input: [size; 2],
            in_features,
            output: [size.div_ceil(stride); 2],
            out_features,
            kernel: [kernel; 2],
            stride: [stride; 2],
            low: [(kernel as i64 - 1) / 2; 2],
            base_dilation: [1; 2],
        };
    vec![
        convolution(30, 32, [16, 16], 3, 1),
        convolution(8, 64, [3, 24], 7, 2),
        convolution(3, 40, [40, 33], 3, 2),
        convolution(8, 28, [64, 96], 1, 1),
        convolution(2, 7, [300, 200], 3, 1),
        Convolution {
            base_dilation: [2; 2],
            output: [64; 2],
            ..convolution(4, 32, [48, 40], 3, 1)
        },
    ]
}

/// The results of a convolution, and the gradient of its kernel if there is one.
fn results<T: Element>(
    convolution: &Convolution,
    num_helpers: usize,
    value: impl Fn(usize) -> T,
) -> (Vec<T>, Vec<T>) {
    let (strides, len) = strides(kernel_dims(convolution), [3, 2, 1, 0], 0);
    let values = |len: usize, seed: usize| (0..len).map(|i| value(i + seed)).collect::<Vec<_>>();
    let (x, weights) = (values(input_len(convolution), 1), values(len, 2));
    let dy = values(output_len(convolution), 3);
    let pool = pool(num_helpers);
    let mut y = vec![T::default(); dy.len()];
    convolution.run(&pool, &mut y, &x, &weights, strides);
    let mut dw = vec![T::default(); len];
    if convolution.base_dilation == [1, 1] {
        convolution.run_kernel_gradient(&pool, &mut dw, strides, &x, &dy);
    }
    (y, dw)
}

#[test]
fn large_convolutions_are_the_sums_of_their_terms() {
    let value = |i: usize| ((i * 7 + i / 11 * 3) % 5) as i64 - 2;
    for convolution in large() {
        let (strides, len) = strides(kernel_dims(&convolution), [3, 2, 1, 0], 0);
        let (mut y, mut dw) = (vec![0; output_len(&convolution)], vec![0; len]);
        let has_gradient = convolution.base_dilation == [1, 1];
        for_each_term(&convolution, strides, |x_at, y_at, w_at| {
            y[y_at] += value(x_at + 1) * value(w_at + 2);
            dw[w_at] += if has_gradient { value(x_at + 1) * value(y_at + 3) } else { 0 };
        });
        let narrow = results(&convolution, 1, |i| value(i) as f32);
        assert!(narrow.0.iter().zip(&y).all(|(a, b)| *a == *b as f32), "{convolution:?}");
        assert!(narrow.1.iter().zip(&dw).all(|(a, b)| *a == *b as f32), "{convolution:?}");
        let wide = results(&convolution, 1, |i| value(i) as f64);
        assert!(wide.0.iter().zip(&y).all(|(a, b)| *a == *b as f64), "{convolution:?}");
        assert!(wide.1.iter().zip(&dw).all(|(a, b)| *a == *b as f64), "{convolution:?}");
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for convolution in large() {
        let value = |i: usize| ((i * 2_654_435_761) % 1000) as f32 / 1000.0 - 0.5;
        let computed = [0, 1, 3].map(|num_helpers| results(&convolution, num_helpers, value));
        assert!(computed[0].0.iter().any(|y| *y != 0.0));
        assert!(computed.iter().all(|results| *results == computed[0]), "{convolution:?}");
    }
}

#[test]
#[should_panic(expected = "elements of the gradient share a place")]
fn elements_of_a_gradient_must_be_apart() {
    let convolution = Convolution { batch: 1, ..large()[0].clone() };
    let (x, dy) = (vec![0f32; input_len(&convolution)], vec![0f32; output_len(&convolution)]);
    convolution.run_kernel_gradient(&pool(0), &mut [0.0; 9999], [9, 9, 3, 1], &x, &dy);
}
