//! Random numbers that do not depend on the number of replicas.
//!
//! The bits of an element are threefry2x32 of a key, which follows from (seed, step, path), and of the
//! element's **global** index. So a shard draws its own slice, dropout follows the example and not the
//! replica, and N changes nothing. Everything is ordinary u32 arithmetic, the same on every backend.
//!
//! Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); the values
//! are those of JAX and of the Random123 library.

use std::f64::consts::TAU;

use crate::{DType, Mesh, Sharding, Tensor, Tracer};

const PARITY: u32 = 0x1BD1_1BDA;
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

/// Threefry-2x32 with 20 rounds on the host: the counter's two words, encrypted under the key.
pub fn threefry2x32(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let schedule = [key[0], key[1], key[0] ^ key[1] ^ PARITY];
    let [mut x0, mut x1] = [counter[0].wrapping_add(key[0]), counter[1].wrapping_add(key[1])];
    for group in 0..5usize {
        for rotation in ROTATIONS[group % 2] {
            x0 = x0.wrapping_add(x1);
            x1 = x1.rotate_left(rotation) ^ x0;
        }
        x0 = x0.wrapping_add(schedule[(group + 1) % 3]);
        x1 = x1.wrapping_add(schedule[(group + 2) % 3]).wrapping_add(group as u32 + 1);
    }
    [x0, x1]
}

/// [`threefry2x32`] in a graph: key words are u32 scalars, counter words u32 tensors of one shape.
#[track_caller]
fn threefry2x32_ops<'g>(key: [Tensor<'g>; 2], counter: [Tensor<'g>; 2]) -> [Tensor<'g>; 2] {
    let schedule = [key[0], key[1], key[0].xor(key[1]).xor(f64::from(PARITY))];
    let [mut x0, mut x1] = [counter[0] + key[0], counter[1] + key[1]];
    for group in 0..5usize {
        for rotation in ROTATIONS[group % 2] {
            x0 = x0 + x1;
            let left = x1.shift_left(f64::from(rotation));
            let right = x1.shift_right_logical(f64::from(32 - rotation));
            x1 = left.or(right).xor(x0);
        }
        x0 = x0 + schedule[(group + 1) % 3];
        x1 = x1 + (schedule[(group + 2) % 3] + (group as f64 + 1.0));
    }
    [x0, x1]
}

/// The key of a stream of random numbers: two u32 scalars.
#[derive(Clone, Copy, Debug)]
pub struct Key<'g> {
    words: [Tensor<'g>; 2],
}

impl<'g> Key<'g> {
    /// From a seed in the graph: u32 `[2]`.
    #[track_caller]
    pub fn from_seed(seed: Tensor<'g>) -> Self {
        Self { words: [0, 1].map(|i| seed.slice_dim(0, i, i + 1).reshape(&[])) }
    }

    /// The words, to carry a key through a loop.
    pub fn words(self) -> [Tensor<'g>; 2] {
        self.words
    }

    /// From words that were carried through a loop.
    pub fn from_words(words: [Tensor<'g>; 2]) -> Self {
        Self { words }
    }

    /// Another key for each number (a u32 scalar, such as the step).
    #[must_use]
    #[track_caller]
    pub fn fold_in(self, number: Tensor<'g>) -> Self {
        Self { words: threefry2x32_ops(self.words, [number.full_like(0.0), number]) }
    }

    /// Another key for each path.
    #[must_use]
    #[track_caller]
    pub fn fold_in_path(self, path: &str) -> Self {
        let t = self.words[0].tracer();
        let hash = path_hash(path).map(|word| t.scalar(DType::U32, f64::from(word)));
        Self { words: threefry2x32_ops(self.words, hash) }
    }

    /// Two u32 tensors of random bits for the window's elements.
    #[must_use]
    #[track_caller]
    pub fn bits(self, window: &Window<'g>) -> [Tensor<'g>; 2] {
        let t = self.words[0].tracer();
        threefry2x32_ops(self.words, window.counter(t))
    }

    /// Uniform in `[0, 1)`, on a grid of 2^-24 (f64: 2^-53).
    #[must_use]
    #[track_caller]
    pub fn uniform(self, window: &Window<'g>, dtype: DType) -> Tensor<'g> {
        let bits = self.bits(window);
        match dtype {
            DType::F64 => unit_f64(bits[0], bits[1]),
            _ => unit_f32(bits[0]).convert(dtype),
        }
    }

    /// Standard normal, by the method of Box and Muller from the element's two words:
    /// `sqrt(-2 ln(1 - u)) cos(2 pi v)`.
    #[must_use]
    #[track_caller]
    pub fn normal(self, window: &Window<'g>, dtype: DType) -> Tensor<'g> {
        let bits = self.bits(window);
        let [u, v] = match dtype {
            DType::F64 => bits.map(|word| word.convert(DType::F64) * 2f64.powi(-32)),
            _ => bits.map(unit_f32),
        };
        let radius = ((1.0 - u).log() * -2.0).sqrt();
        (radius * (v * TAU).cosine()).convert(dtype)
    }

    /// `pred`: true with the given probability.
    #[must_use]
    #[track_caller]
    pub fn bernoulli(self, probability: f64, window: &Window<'g>) -> Tensor<'g> {
        self.uniform(window, DType::F32).less(probability)
    }
}

/// The upper 24 bits as a fraction.
#[track_caller]
fn unit_f32(word: Tensor<'_>) -> Tensor<'_> {
    word.shift_right_logical(8.0).convert(DType::F32) * 2f64.powi(-24)
}

/// 27 and 26 bits as a fraction of 53.
#[track_caller]
fn unit_f64<'g>(high: Tensor<'g>, low: Tensor<'g>) -> Tensor<'g> {
    let high = high.shift_right_logical(5.0).convert(DType::F64) * 2f64.powi(26);
    let low = low.shift_right_logical(6.0).convert(DType::F64);
    (high + low) * 2f64.powi(-53)
}

/// FNV-1a of 64 bits.
fn path_hash(path: &str) -> [u32; 2] {
    let hash = path.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    [(hash >> 32) as u32, hash as u32]
}

/// Which elements of a global tensor are drawn here.
#[derive(Clone, Debug)]
pub struct Window<'g> {
    global: Vec<usize>,
    local: Vec<usize>,
    /// The global index at which each dim starts; `None` is 0.
    start: Vec<Option<Tensor<'g>>>,
}

impl<'g> Window<'g> {
    /// All elements.
    pub fn whole(dims: &[usize]) -> Self {
        Self { global: dims.to_vec(), local: dims.to_vec(), start: vec![None; dims.len()] }
    }

    /// `dims[0]` rows from row `start` (a u32 scalar) on, of a tensor with any number of rows.
    pub fn rows(start: Tensor<'g>, dims: &[usize]) -> Self {
        let mut window = Self::whole(dims);
        if let Some(first) = window.start.first_mut() {
            *first = Some(start);
        }
        window
    }

    /// This replica's shard of a tensor of the given global dims.
    ///
    /// # Errors
    /// A dim that does not divide.
    #[track_caller]
    pub fn shard(
        t: &'g Tracer,
        global: &[usize],
        sharding: &Sharding,
    ) -> Result<Self, crate::UnevenShard> {
        let mesh: Mesh = t.mesh();
        let local = sharding.local_shape(global, &mesh)?;
        let start = sharding
            .dims()
            .iter()
            .zip(&local)
            .map(|(axes, size)| (!axes.is_empty()).then(|| t.replica_id(*axes) * *size as f64));
        Ok(Self { global: global.to_vec(), start: start.collect(), local })
    }

    /// Size of each dim here.
    pub fn dims(&self) -> &[usize] {
        &self.local
    }

    /// The counter of each element: its index along dim 0, and its row-major index over the others.
    #[track_caller]
    fn counter(&self, t: &'g Tracer) -> [Tensor<'g>; 2] {
        let along = |dim: usize| {
            let index = t.iota(DType::U32, &self.local, dim);
            self.start[dim].map_or(index, |start| index + start)
        };
        let zeros = || t.full(DType::U32, &self.local, 0.0);
        let rest = (1..self.local.len()).fold(None, |rest: Option<Tensor<'g>>, dim| {
            let index = along(dim);
            Some(rest.map_or(index, |outer| outer * self.global[dim] as f64 + index))
        });
        [if self.local.is_empty() { zeros() } else { along(0) }, rest.unwrap_or_else(zeros)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of Random123 1.14 (`kat_vectors`, threefry2x32 with 20 rounds).
    const KNOWN: [([u32; 2], [u32; 2], [u32; 2]); 3] = [
        ([0, 0], [0, 0], [0x6b20_0159, 0x99ba_4efe]),
        ([u32::MAX, u32::MAX], [u32::MAX, u32::MAX], [0x1cb9_96fc, 0xbb00_2be7]),
        ([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3], [0xc492_3a9c, 0x483d_f7a0]),
    ];

    #[test]
    fn threefry_on_the_host_matches_the_published_vectors() {
        for (key, counter, expected) in KNOWN {
            assert_eq!(threefry2x32(key, counter), expected);
        }
    }
}
