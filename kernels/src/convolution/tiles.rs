//! The innermost loops of convolutions: tiles of a result that are kept in the processor's
//! registers.

use std::cmp::Reverse;

use pulp::{Arch, Simd, WithSimd};

use super::pack::LANE;
use crate::Scalar;
use crate::vectors::lanes;

/// The properties of the processor that tiles depend on.
#[derive(Clone, Copy, Debug)]
pub struct Processor {
    /// Elements of a vector.
    pub lanes: usize,
    /// Number of vector registers.
    pub registers: usize,
}

impl Processor {
    pub fn new<T: Scalar>() -> Self {
        struct Query<T>(std::marker::PhantomData<T>);
        impl<T: Scalar> WithSimd for Query<T> {
            type Output = Processor;
            #[inline(always)]
            fn with_simd<S: Simd>(self, _simd: S) -> Processor {
                Processor { lanes: lanes::<T, S>(), registers: S::REGISTER_COUNT }
            }
        }
        Arch::new().dispatch(Query::<T>(std::marker::PhantomData))
    }

    /// Vectors of a panel of output features: 1 or 2.
    pub fn panel_vectors(self, out_features: usize) -> usize {
        if out_features <= self.lanes { 1 } else { 2 }
    }

    /// The positions of a tile, for rows of so many: the fewest idle ones, then the fewest tiles.
    pub fn tile_positions(self, positions: usize, vectors: usize) -> usize {
        // Besides the sums, each vector of weights takes a register, and inputs some: with fewer,
        // sums are moved to memory.
        let fitting = |m: &usize| m * vectors + vectors + 4 < self.registers;
        let cost = |m: usize| positions.div_ceil(m) * (m * vectors + 2);
        let best = SIZES.into_iter().filter(fitting).min_by_key(|m| (cost(*m), Reverse(*m)));
        best.unwrap_or(SIZES[0])
    }
}

/// The positions that a tile may have.
const SIZES: [usize; 8] = [2, 4, 6, 7, 8, 12, 14, 16];

/// Where a tap of the kernel finds its inputs and weights, for a group of channels.
#[derive(Clone, Copy, Debug)]
pub struct Tap {
    /// Offset from the packed input of an output position, for the tap.
    pub input: usize,
    /// Offset in a panel of packed weights.
    pub weights: usize,
    /// Number of channels of the group: at most [`LANE`].
    pub channels: usize,
}

/// Some rows of output positions, of some output features:
/// `out[position, feature] = sum(input[position + tap, channel] * weights[tap, channel, feature])`.
#[derive(Debug)]
pub struct Forward<'a, T> {
    /// The packed input, from that of the first position.
    pub input: &'a [T],
    /// Distance between rows of positions in the input.
    pub input_row: usize,
    /// A panel.
    pub weights: &'a [T],
    pub taps: &'a [Tap],
    pub rows: usize,
    pub columns: usize,
    /// The result from that of the first position, and its distances between rows and columns.
    pub out: &'a mut [T],
    pub out_row: usize,
    pub out_column: usize,
    /// Output features, at most a panel of them.
    pub features: usize,
}

impl<T: Scalar> Forward<'_, T> {
    /// Computes with tiles of `positions`, one of [`SIZES`], and panels of `vectors`, 1 or 2.
    pub fn run(self, positions: usize, vectors: usize) {
        let arch = Arch::new();
        match (positions, vectors) {
            (2, 1) => arch.dispatch(ForwardTiles::<T, 2, 1>(self)),
            (4, 1) => arch.dispatch(ForwardTiles::<T, 4, 1>(self)),
            (6, 1) => arch.dispatch(ForwardTiles::<T, 6, 1>(self)),
            (7, 1) => arch.dispatch(ForwardTiles::<T, 7, 1>(self)),
            (8, 1) => arch.dispatch(ForwardTiles::<T, 8, 1>(self)),
            (12, 1) => arch.dispatch(ForwardTiles::<T, 12, 1>(self)),
            (14, 1) => arch.dispatch(ForwardTiles::<T, 14, 1>(self)),
            (16, 1) => arch.dispatch(ForwardTiles::<T, 16, 1>(self)),
            (2, 2) => arch.dispatch(ForwardTiles::<T, 2, 2>(self)),
            (4, 2) => arch.dispatch(ForwardTiles::<T, 4, 2>(self)),
            (6, 2) => arch.dispatch(ForwardTiles::<T, 6, 2>(self)),
            (7, 2) => arch.dispatch(ForwardTiles::<T, 7, 2>(self)),
            (8, 2) => arch.dispatch(ForwardTiles::<T, 8, 2>(self)),
            (12, 2) => arch.dispatch(ForwardTiles::<T, 12, 2>(self)),
            (14, 2) => arch.dispatch(ForwardTiles::<T, 14, 2>(self)),
            _ => unreachable!("no tiles of {positions} positions and {vectors} vectors"),
        }
    }
}

struct ForwardTiles<'a, T, const M: usize, const N: usize>(Forward<'a, T>);

impl<T: Scalar, const M: usize, const N: usize> WithSimd for ForwardTiles<'_, T, M, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Forward { input, taps, weights, features, .. } = self.0;
        let lanes = lanes::<T, S>();
        for row in 0..self.0.rows {
            for first in (0..self.0.columns).step_by(M) {
                let input = &input[row * self.0.input_row + first * LANE..];
                let mut sums = [[T::splat(simd, T::default()); N]; M];
                for tap in taps {
                    let weights = &weights[tap.weights..][..tap.channels * N * lanes];
                    let groups = input[tap.input..].as_chunks::<LANE>().0;
                    let groups = groups.first_chunk::<M>().expect("room for a tile");
                    let weights = T::vectors::<S>(weights).as_chunks::<N>().0;
                    for (channel, weights) in (0..LANE).zip(weights) {
                        for (sums, group) in sums.iter_mut().zip(groups) {
                            let x = T::splat(simd, group[channel]);
                            for (sum, weights) in sums.iter_mut().zip(weights) {
                                *sum = T::mul_add(simd, x, *weights, *sum);
                            }
                        }
                    }
                }
                let out = &mut self.0.out[row * self.0.out_row + first * self.0.out_column..];
                // Not `zip`: an iterator over sums would keep them in memory.
                for j in 0..M {
                    if first + j < self.0.columns {
                        let out = &mut out[j * self.0.out_column..][..features];
                        if features == N * lanes {
                            for (out, sum) in T::vectors_mut::<S>(out).iter_mut().zip(sums[j]) {
                                *out = sum;
                            }
                        } else {
                            for (out, sum) in out.chunks_mut(lanes).zip(sums[j]) {
                                T::store_part(simd, out, sum);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Adds to a block of a kernel's gradient, over some rows of positions:
/// `sums[channel, feature] += sum(input[position, channel] * cotangent[position, feature])`.
#[derive(Debug)]
pub struct Gradient<'a, T> {
    /// The packed input for the tap, from that of the first position, and the distance between its
    /// rows.
    pub input: &'a [T],
    pub input_row: usize,
    /// A panel of the cotangent, and the distance between its positions.
    pub cotangent: &'a [T],
    pub cotangent_column: usize,
    pub rows: usize,
    pub columns: usize,
    /// [`LANE`] channels of a panel.
    pub sums: &'a mut [T],
    /// Channels that count: at most [`LANE`].
    pub channels: usize,
}

impl<T: Scalar> Gradient<'_, T> {
    /// Computes with panels of `vectors`, 1 or 2, and as many channels at a time as there are
    /// registers for.
    pub fn run(mut self, processor: Processor, vectors: usize) {
        let arch = Arch::new();
        let mut first = 0;
        while first < self.channels {
            let rest = self.channels - first;
            let many = processor.registers > 16;
            // The first channel of a block is a multiple of its size, so that blocks end within the
            // group.
            let size = match vectors {
                1 if many && rest > 12 => arch.dispatch(GradientTile::<T, 16, 1>(&mut self, first)),
                1 if many && rest > 8 => arch.dispatch(GradientTile::<T, 12, 1>(&mut self, first)),
                1 if rest > 4 => arch.dispatch(GradientTile::<T, 8, 1>(&mut self, first)),
                1 => arch.dispatch(GradientTile::<T, 4, 1>(&mut self, first)),
                _ if many && rest > 4 => arch.dispatch(GradientTile::<T, 8, 2>(&mut self, first)),
                _ => arch.dispatch(GradientTile::<T, 4, 2>(&mut self, first)),
            };
            first += size;
        }
    }
}

struct GradientTile<'a, 'b, T, const M: usize, const N: usize>(&'a mut Gradient<'b, T>, usize);

impl<T: Scalar, const M: usize, const N: usize> WithSimd for GradientTile<'_, '_, T, M, N> {
    /// `M`.
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> usize {
        let Self(gradient, first) = self;
        let width = N * lanes::<T, S>();
        let block = &mut gradient.sums[first * width..];
        let block = T::vectors_mut::<S>(block).as_chunks_mut::<N>().0;
        let block = block.first_chunk_mut::<M>().expect("room for a block");
        let mut sums = *block;
        let columns = gradient.columns;
        for row in 0..gradient.rows {
            let input = &gradient.input[row * gradient.input_row..][..columns * LANE];
            let stride = gradient.cotangent_column;
            let cotangent = gradient.cotangent[row * columns * stride..].chunks(stride);
            for (input, cotangent) in input.as_chunks::<LANE>().0.iter().zip(cotangent) {
                let cotangent = T::vectors::<S>(&cotangent[..width]);
                let cotangent = cotangent.first_chunk::<N>().expect("a panel's vectors");
                let input = input[first..].first_chunk::<M>().expect("a block within a group");
                for (sums, x) in sums.iter_mut().zip(input) {
                    let x = T::splat(simd, *x);
                    for (sum, cotangent) in sums.iter_mut().zip(cotangent) {
                        *sum = T::mul_add(simd, x, *cotangent, *sum);
                    }
                }
            }
        }
        *block = sums;
        M
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fit_the_registers_and_the_positions() {
        for registers in [16, 32] {
            let processor = Processor { lanes: 8, registers };
            for vectors in [1, 2] {
                for positions in 1..100 {
                    let tile = processor.tile_positions(positions, vectors);
                    assert!(SIZES.contains(&tile) && (tile + 1) * vectors < registers);
                }
            }
        }
        let wide = Processor { lanes: 16, registers: 32 };
        let tiles = |vectors| [8, 14, 16, 32, 56].map(|n| wide.tile_positions(n, vectors));
        assert_eq!(tiles(1), [8, 14, 16, 16, 14]);
        assert_eq!(tiles(2), [8, 7, 8, 8, 8]);
    }

    #[test]
    fn few_registers_give_the_same_gradient() {
        let actual = Processor::new::<f64>();
        for vectors in [1, 2] {
            let width = vectors * actual.lanes;
            let input: Vec<f64> = (0..5 * LANE).map(|i| (i % 7) as f64 - 3.0).collect();
            let cotangent: Vec<f64> = (0..5 * width).map(|i| (i % 5) as f64 - 2.0).collect();
            let sums = [16, 32].map(|registers| {
                let mut sums = vec![1.0; LANE * width];
                let gradient = Gradient {
                    input: &input,
                    input_row: 0,
                    cotangent: &cotangent,
                    cotangent_column: width,
                    rows: 1,
                    columns: 5,
                    sums: &mut sums,
                    channels: LANE,
                };
                gradient.run(Processor { registers, ..actual }, vectors);
                sums
            });
            assert!(sums[0].iter().any(|sum| *sum != 1.0));
            assert_eq!(sums[0], sums[1]);
        }
    }
}
