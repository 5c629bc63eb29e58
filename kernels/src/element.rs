//! The kernels for each element type.

use crate::attention::{Attention, Forward, Gradients, QueriesKeysValues};
use crate::{Convolution, MaxPool, Pool, Product, Real, sum};

/// An element type of kernels.
///
/// Its functions are not generic, so they are compiled with this crate, with all optimisations
/// whatever the crate that calls them is compiled with.
pub trait Element: Real {
    #[doc(hidden)]
    fn multiply(product: &Product, pool: &Pool<'_>, out: &mut [Self], a: &[Self], b: &[Self]);

    #[doc(hidden)]
    fn sum_rows(pool: &Pool<'_>, out: &mut [Self], x: &[Self]);

    #[doc(hidden)]
    fn convolve(
        convolution: &Convolution,
        pool: &Pool<'_>,
        y: &mut [Self],
        x: &[Self],
        weights: (&[Self], [usize; 4]),
    );

    #[doc(hidden)]
    fn kernel_gradient(
        convolution: &Convolution,
        pool: &Pool<'_>,
        dw: (&mut [Self], [usize; 4]),
        x: &[Self],
        dy: &[Self],
    );

    #[doc(hidden)]
    fn max_pool(of: &MaxPool, pool: &Pool<'_>, y: &mut [Self], x: &[Self]);

    #[doc(hidden)]
    fn max_pool_gradient(of: &MaxPool, pool: &Pool<'_>, dx: &mut [Self], x: &[Self], dy: &[Self]);

    #[doc(hidden)]
    fn attend(
        attention: &Attention,
        pool: &Pool<'_>,
        results: [&mut [Self]; 2],
        operands: QueriesKeysValues<'_, Self>,
        mask: Option<&[Self]>,
    );

    #[doc(hidden)]
    fn attention_gradients(
        attention: &Attention,
        pool: &Pool<'_>,
        gradients: Gradients<'_, Self>,
        operands: QueriesKeysValues<'_, Self>,
        forward: Forward<'_, Self>,
        mask: Option<&[Self]>,
    );
}

macro_rules! elements {
    ($($element:ty),*) => {$(
        impl Element for $element {
            fn multiply(
                product: &Product,
                pool: &Pool<'_>,
                out: &mut [Self],
                a: &[Self],
                b: &[Self],
            ) {
                product.compute(pool, out, a, b);
            }

            fn sum_rows(pool: &Pool<'_>, out: &mut [Self], x: &[Self]) {
                sum::compute(pool, out, x);
            }

            fn convolve(
                convolution: &Convolution,
                pool: &Pool<'_>,
                y: &mut [Self],
                x: &[Self],
                weights: (&[Self], [usize; 4]),
            ) {
                convolution.compute(pool, y, x, weights.0, weights.1);
            }

            fn kernel_gradient(
                convolution: &Convolution,
                pool: &Pool<'_>,
                dw: (&mut [Self], [usize; 4]),
                x: &[Self],
                dy: &[Self],
            ) {
                convolution.compute_kernel_gradient(pool, dw.0, dw.1, x, dy);
            }

            fn max_pool(of: &MaxPool, pool: &Pool<'_>, y: &mut [Self], x: &[Self]) {
                of.compute(pool, y, x);
            }

            fn max_pool_gradient(
                of: &MaxPool,
                pool: &Pool<'_>,
                dx: &mut [Self],
                x: &[Self],
                dy: &[Self],
            ) {
                of.compute_gradient(pool, dx, x, dy);
            }

            fn attend(
                attention: &Attention,
                pool: &Pool<'_>,
                [y, lse]: [&mut [Self]; 2],
                operands: QueriesKeysValues<'_, Self>,
                mask: Option<&[Self]>,
            ) {
                attention.compute(pool, y, lse, operands, mask);
            }

            fn attention_gradients(
                attention: &Attention,
                pool: &Pool<'_>,
                gradients: Gradients<'_, Self>,
                operands: QueriesKeysValues<'_, Self>,
                forward: Forward<'_, Self>,
                mask: Option<&[Self]>,
            ) {
                attention.compute_gradients(pool, gradients, operands, forward, mask);
            }
        }
    )*};
}

elements!(f32, f64);
