//! The greatest elements of windows of images, and their gradient.

use std::ops::Range;

use crate::vectors::vectorized;
use crate::{Element, Pool, Real};

/// A maximum over windows of rows and columns, for each feature. Padding is never the greatest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaxPool {
    /// Number of images.
    pub batch: usize,
    /// Rows and columns of the input.
    pub input: [usize; 2],
    /// Features of input and output.
    pub features: usize,
    /// Rows and columns of the output.
    pub output: [usize; 2],
    /// Rows and columns of a window.
    pub window: [usize; 2],
    /// Distance of windows.
    pub stride: [usize; 2],
    /// Rows and columns of padding before the input. Negative padding takes some away.
    pub low: [i64; 2],
}

impl MaxPool {
    /// `y[n, p, q, f]` is the greatest of `x[n, r, c, f]` for the rows r and columns c in the
    /// window at p, q. It is NaN if one of them is, and negative infinity if there is none. `x` is
    /// `[batch, rows, columns, features]`, `y` likewise.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn run<T: Element>(&self, pool: &Pool<'_>, y: &mut [T], x: &[T]) {
        T::max_pool(self, pool, y, x);
    }

    /// The cotangent of x: that of each element of y is added to the greatest element of its
    /// window, the first if several are equal. The comparison is XLA's, `>=`, which is false for
    /// NaN: an element replaces a NaN before it, and a NaN replaces any element.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn run_gradient<T: Element>(&self, pool: &Pool<'_>, dx: &mut [T], x: &[T], dy: &[T]) {
        T::max_pool_gradient(self, pool, dx, x, dy);
    }

    pub(crate) fn compute<T: Real>(&self, pool: &Pool<'_>, y: &mut [T], x: &[T]) {
        let (features, [rows, columns]) = (self.features, self.output);
        if features * columns == 0 {
            return;
        }
        let y = &mut y[..self.batch * rows * columns * features];
        pool.for_each(y.chunks_exact_mut(columns * features), |index, y| {
            let image = &x[index / rows * self.image_len()..][..self.image_len()];
            let windows = self.windows(index % rows);
            vectorized(
                #[inline(always)]
                || {
                    for (y, window) in y.chunks_exact_mut(features).zip(&windows) {
                        y.fill(T::NEG_INFINITY);
                        for start in self.starts(window) {
                            raise(y, &image[start..][..features]);
                        }
                    }
                },
            );
        });
    }

    pub(crate) fn compute_gradient<T: Real>(
        &self,
        pool: &Pool<'_>,
        dx: &mut [T],
        x: &[T],
        dy: &[T],
    ) {
        let (features, [rows, columns]) = (self.features, self.output);
        let (x_len, y_len) = (self.image_len(), rows * columns * features);
        if x_len == 0 {
            return;
        }
        // Windows overlap, so an image is one task.
        pool.for_each(dx[..self.batch * x_len].chunks_exact_mut(x_len), |index, dx| {
            let (x, dy) = (&x[index * x_len..][..x_len], &dy[index * y_len..][..y_len]);
            let mut greatest = vec![T::default(); features];
            let mut chosen = vec![0u32; features];
            dx.fill(T::default());
            for (row, dy) in dy.chunks_exact((columns * features).max(1)).enumerate() {
                let windows = self.windows(row);
                vectorized(
                    #[inline(always)]
                    || {
                        for (dy, window) in dy.chunks_exact(features).zip(&windows) {
                            for (number, start) in (0..).zip(self.starts(window)) {
                                let x = &x[start..][..features];
                                choose(&mut greatest, &mut chosen, x, number);
                            }
                            for (number, start) in (0..).zip(self.starts(window)) {
                                add_chosen(&mut dx[start..][..features], dy, &chosen, number);
                            }
                        }
                    },
                );
            }
        });
    }

    fn image_len(&self) -> usize {
        self.input[0] * self.input[1] * self.features
    }

    /// Rows and columns of the input in each window of a row of the output.
    fn windows(&self, row: usize) -> Vec<[Range<usize>; 2]> {
        let rows = self.covered(0, row);
        (0..self.output[1]).map(|column| [rows.clone(), self.covered(1, column)]).collect()
    }

    /// The part of the input in a window, along one dimension.
    fn covered(&self, dim: usize, position: usize) -> Range<usize> {
        let first = (position * self.stride[dim]) as i128 - i128::from(self.low[dim]);
        let inside = |at: i128| at.clamp(0, self.input[dim] as i128) as usize;
        inside(first)..inside(first + self.window[dim] as i128)
    }

    /// Where the features of a window's elements start in their image, row by row.
    #[inline(always)]
    fn starts(&self, [rows, columns]: &[Range<usize>; 2]) -> impl Iterator<Item = usize> {
        let (width, features, columns) = (self.input[1], self.features, columns.clone());
        rows.clone().flat_map(move |row| {
            columns.clone().map(move |column| (row * width + column) * features)
        })
    }
}

#[inline(always)]
fn raise<T: Real>(y: &mut [T], x: &[T]) {
    for (y, x) in y.iter_mut().zip(x) {
        let replaces = *y < *x || x.is_nan();
        *y = if replaces { *x } else { *y };
    }
}

/// Number 0 replaces whatever `greatest` and `chosen` have.
#[inline(always)]
fn choose<T: Real>(greatest: &mut [T], chosen: &mut [u32], x: &[T], number: u32) {
    for ((greatest, chosen), x) in greatest.iter_mut().zip(chosen).zip(x) {
        let stays = number > 0 && *greatest >= *x;
        *greatest = if stays { *greatest } else { *x };
        *chosen = if stays { *chosen } else { number };
    }
}

#[inline(always)]
fn add_chosen<T: Real>(dx: &mut [T], dy: &[T], chosen: &[u32], number: u32) {
    for ((dx, dy), chosen) in dx.iter_mut().zip(dy).zip(chosen) {
        *dx += if *chosen == number { *dy } else { T::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool_of(input: [usize; 2], output: [usize; 2], stride: usize, low: i64) -> MaxPool {
        MaxPool {
            batch: 2,
            input,
            features: 3,
            output,
            window: [3, 2],
            stride: [stride; 2],
            low: [low; 2],
        }
    }

    /// Both, element by element.
    fn expected(of: &MaxPool, x: &[f64], dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let [height, width] = of.input;
        let (mut y, mut dx) = (vec![], vec![0.0; x.len()]);
        for (at, dy) in dy.iter().enumerate() {
            let (feature, place) = (at % of.features, at / of.features);
            let (column, row) = (place % of.output[1], place / of.output[1] % of.output[0]);
            let image = place / of.output[1] / of.output[0];
            let mut found = vec![];
            for (i, j) in (0..of.window[0]).flat_map(|i| (0..of.window[1]).map(move |j| (i, j))) {
                let r = (row * of.stride[0] + i) as i64 - of.low[0];
                let c = (column * of.stride[1] + j) as i64 - of.low[1];
                if (0..height as i64).contains(&r) && (0..width as i64).contains(&c) {
                    let place = (image * height + r as usize) * width + c as usize;
                    found.push(place * of.features + feature);
                }
            }
            let any_nan = found.iter().any(|i| x[*i].is_nan());
            let greatest = found.iter().map(|i| x[*i]).fold(f64::NEG_INFINITY, f64::max);
            y.push(if any_nan { f64::NAN } else { greatest });
            if let Some(chosen) = found.into_iter().reduce(|a, b| if x[a] >= x[b] { a } else { b })
            {
                dx[chosen] += dy;
            }
        }
        (y, dx)
    }

    #[test]
    fn maxima_and_gradients_are_those_of_each_window_alone() {
        let cases = [
            pool_of([7, 9], [4, 5], 2, 1),
            pool_of([5, 4], [3, 3], 1, 0),
            // Windows in padding only, and rows that are cut off.
            pool_of([2, 2], [3, 3], 4, 4),
            pool_of([6, 6], [2, 2], 1, -2),
            pool_of([0, 4], [0, 3], 1, 0),
        ];
        for of in cases {
            let len = |dims: [usize; 2]| of.batch * dims[0] * dims[1] * of.features;
            // With equals, infinities and NaN.
            let special = |i: usize| match i % 41 {
                7 => f64::NAN,
                11 => f64::NEG_INFINITY,
                _ => (i * 31 % 17) as f64 - 8.0,
            };
            let x: Vec<f64> = (0..len(of.input)).map(special).collect();
            let dy: Vec<f64> = (0..len(of.output)).map(|i| (i * 13 % 29) as f64 - 14.0).collect();
            let (y_expected, dx_expected) = expected(&of, &x, &dy);
            for num_helpers in [0, 2] {
                let pool = Pool::new(num_helpers).unwrap();
                let (mut y, mut dx) = (vec![7.0; dy.len()], vec![7.0; x.len()]);
                of.run(&pool, &mut y, &x);
                of.run_gradient(&pool, &mut dx, &x, &dy);
                let same = |a: &[f64], b: &[f64]| {
                    a.iter().zip(b).all(|(a, b)| a == b || a.is_nan() && b.is_nan())
                };
                assert!(same(&y, &y_expected), "{of:?}\n{y:?}\n{y_expected:?}");
                assert!(same(&dx, &dx_expected), "{of:?}\n{dx:?}\n{dx_expected:?}");
            }
        }
    }
}
