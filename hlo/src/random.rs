//! Random numbers that do not depend on the number of replicas.
//!
//! The bits of an element are threefry2x32 of a key, which depends on (seed, step, path), and of
//! the element's **global** index. So a shard draws its own slice, dropout depends on the example
//! and not on the replica, and the values do not depend on N. Everything is ordinary u32
//! arithmetic, the same on every backend.
//!
//! Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); the
//! values are those of JAX and of the Random123 library.

use std::f64::consts::TAU;

use crate::{DType, LeafSpec, Literal, Tensor, Threefry, Tracer, UnevenShard};

pub use crate::ops::threefry::threefry2x32;

/// The key of a stream of random numbers: two u32 scalars. Or the keys of several streams that are
/// drawn in one computation: two u32 `[num_streams]`.
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

    /// Derives a key from a number (a u32 scalar, such as the step).
    #[must_use]
    #[track_caller]
    pub fn fold_in(self, number: Tensor<'g>) -> Self {
        self.derived([number.full_like(0.0), number]).computed_once()
    }

    /// Derives a key from a path.
    #[must_use]
    #[track_caller]
    pub fn fold_in_path(self, path: &str) -> Self {
        let t = self.words[0].tracer();
        // The barrier gives the keys of all paths the same kernel.
        let hash =
            path_hash(path).map(|word| t.scalar(DType::U32, f64::from(word)).fusion_barrier());
        self.derived(hash).computed_once()
    }

    /// The key, or keys, of a counter.
    #[track_caller]
    fn derived(self, counter: [Tensor<'g>; 2]) -> Self {
        let scalar = Threefry { dims: vec![], strides: vec![], num_words: 2 };
        Self { words: self.both_words(scalar, counter) }
    }

    #[track_caller]
    fn both_words(self, threefry: Threefry, counter: [Tensor<'g>; 2]) -> [Tensor<'g>; 2] {
        let words = self.words[0].tracer().threefry(threefry, self.words, counter);
        [words[0], words[1]]
    }

    /// Keeps XLA's CPU backend from deriving the key again in each kernel that draws from it, and
    /// for each element.
    #[track_caller]
    fn computed_once(self) -> Self {
        Self { words: self.words.map(Tensor::fusion_barrier) }
    }

    /// The keys of [`Self::fold_in_path`] for several paths, to draw several streams in one
    /// computation.
    #[must_use]
    #[track_caller]
    pub fn fold_in_paths(self, paths: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let t = self.words[0].tracer();
        let hashes: Vec<_> = paths.into_iter().map(|path| path_hash(path.as_ref())).collect();
        let hashes = [0, 1].map(|i| {
            let words: Vec<_> = hashes.iter().map(|hash| hash[i]).collect();
            t.constant(Literal::from_slice(&[words.len()], &words))
        });
        self.derived(hashes)
    }

    /// Two u32 tensors of random bits for the slice's elements. Keys of several streams give a
    /// leading dim, `[num_streams, ..]`, here and in the distributions.
    #[must_use]
    #[track_caller]
    pub fn bits(self, slice: &GlobalSlice<'g>) -> [Tensor<'g>; 2] {
        self.both_words(slice.threefry(2), slice.first_counter(self.words[0].tracer()))
    }

    /// The first of the two tensors of [`Self::bits`].
    #[track_caller]
    fn first_bits(self, slice: &GlobalSlice<'g>) -> Tensor<'g> {
        let t = self.words[0].tracer();
        t.threefry(slice.threefry(1), self.words, slice.first_counter(t))[0]
    }

    /// Uniform in `[0, 1)`, in multiples of a step that the dtype represents exactly: 2^-53 for
    /// f64, 2^-24 for f32, 2^-11 for f16, 2^-8 for bf16.
    #[track_caller]
    pub fn uniform(self, slice: &GlobalSlice<'g>, dtype: DType) -> Tensor<'g> {
        // A finer step would round up to 1.
        let num_bits = match dtype {
            DType::F64 => {
                let [high, low] = self.bits(slice);
                return unit_f64(high, low);
            }
            DType::F16 => 11,
            DType::Bf16 => 8,
            _ => 24,
        };
        unit(self.first_bits(slice), num_bits).convert(dtype)
    }

    /// Standard normal, by the Box-Muller transform of the element's two words:
    /// `sqrt(-2 ln(1 - u)) cos(2 pi v)`.
    #[must_use]
    #[track_caller]
    pub fn normal(self, slice: &GlobalSlice<'g>, dtype: DType) -> Tensor<'g> {
        let bits = self.bits(slice);
        let [u, v] = match dtype {
            DType::F64 => bits.map(|word| word.convert(DType::F64) * 2f64.powi(-32)),
            _ => bits.map(|word| unit(word, 24)),
        };
        let radius = ((1.0 - u).log() * -2.0).sqrt();
        (radius * (v * TAU).cosine()).convert(dtype)
    }

    /// `pred`: true with the given probability.
    #[must_use]
    #[track_caller]
    pub fn bernoulli(self, probability: f64, slice: &GlobalSlice<'g>) -> Tensor<'g> {
        self.uniform(slice, DType::F32).less(probability)
    }
}

/// The upper `num_bits` (at most 24) bits as a fraction in `[0, 1)`, in f32.
#[track_caller]
fn unit(word: Tensor<'_>, num_bits: u32) -> Tensor<'_> {
    let upper = word.shift_right_logical(f64::from(32 - num_bits)).convert(DType::F32);
    upper * 0.5f64.powi(num_bits as i32)
}

/// The upper 27 and 26 bits of two words as a fraction of 53 bits, in f64.
#[track_caller]
fn unit_f64<'g>(high: Tensor<'g>, low: Tensor<'g>) -> Tensor<'g> {
    let high = high.shift_right_logical(5.0).convert(DType::F64) * 2f64.powi(26);
    let low = low.shift_right_logical(6.0).convert(DType::F64);
    (high + low) * 2f64.powi(-53)
}

/// 64-bit FNV-1a.
fn path_hash(path: &str) -> [u32; 2] {
    let hash = path.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    [(hash >> 32) as u32, hash as u32]
}

/// The elements of a global tensor that are drawn on this replica.
#[derive(Clone, Debug)]
pub struct GlobalSlice<'g> {
    global: Vec<usize>,
    local: Vec<usize>,
    /// The global index at which each dim starts; `None` is 0.
    start: Vec<Option<Tensor<'g>>>,
}

impl<'g> GlobalSlice<'g> {
    /// All elements.
    pub fn whole(dims: &[usize]) -> Self {
        Self { global: dims.to_vec(), local: dims.to_vec(), start: vec![None; dims.len()] }
    }

    /// `dims[0]` rows, starting at row `start` (a u32 scalar), of a tensor with any number of rows.
    pub fn rows(start: Tensor<'g>, dims: &[usize]) -> Self {
        let mut slice = Self::whole(dims);
        if let Some(first) = slice.start.first_mut() {
            *first = Some(start);
        }
        slice
    }

    /// `dims` elements from `start` on (u32 scalars; `None` is 0) of a tensor that has any number
    /// of rows and the other `global` dims.
    pub fn from(start: &[Option<Tensor<'g>>], dims: &[usize], global: &[usize]) -> Self {
        Self { global: global.to_vec(), local: dims.to_vec(), start: start.to_vec() }
    }

    /// This replica's piece of a leaf, with its padding.
    ///
    /// # Errors
    /// If a dim does not divide.
    pub fn shard(t: &'g Tracer, leaf: &LeafSpec) -> Result<Self, UnevenShard> {
        let local = leaf.local_type(&t.mesh())?.dims;
        let cut = leaf.sharding.dims().iter().zip(&local);
        let start =
            cut.map(|(axes, size)| (!axes.is_empty()).then(|| t.replica_id(*axes) * *size as f64));
        Ok(Self { global: leaf.dims.clone(), start: start.collect(), local })
    }

    /// The index of its first element along a dim: a u32 scalar, or `None` for 0.
    pub fn start(&self, dim: usize) -> Option<Tensor<'g>> {
        self.start[dim]
    }

    /// The same elements, with all dims after the first flattened to one. Unchanged if the slice is
    /// cut along one of these dims.
    #[must_use]
    pub fn as_rows(self) -> Self {
        if self.local.len() < 2 || self.start.iter().skip(1).any(Option::is_some) {
            return self;
        }
        let product = |dims: &[usize]| dims.iter().fold(1, |n: usize, dim| n.saturating_mul(*dim));
        let rows = |dims: &[usize]| vec![dims[0], product(&dims[1..])];
        Self {
            global: rows(&self.global),
            local: rows(&self.local),
            start: vec![self.start[0], None],
        }
    }

    /// Size of each dim on this replica.
    pub fn dims(&self) -> &[usize] {
        &self.local
    }

    /// The counters of the elements: the index along dim 0, and the row-major index over the
    /// others.
    fn threefry(&self, num_words: usize) -> Threefry {
        Threefry { dims: self.local.clone(), strides: self.strides(), num_words }
    }

    /// Distances of the row-major index over all dims but the first, in u32.
    fn strides(&self) -> Vec<u32> {
        let mut strides = vec![];
        let mut stride = 1u32;
        for size in self.global.iter().skip(1).rev() {
            strides.push(stride);
            stride = stride.wrapping_mul(*size as u32);
        }
        strides.reverse();
        strides
    }

    /// The counter of the first element.
    #[track_caller]
    fn first_counter(&self, t: &'g Tracer) -> [Tensor<'g>; 2] {
        let zero = || t.scalar(DType::U32, 0.0);
        let others = self.start.iter().skip(1).zip(self.strides());
        let others = others.filter_map(|(start, stride)| Some((*start)? * f64::from(stride)));
        let row = self.start.first().copied().flatten();
        [row.unwrap_or_else(zero), others.reduce(|a, b| a + b).unwrap_or_else(zero)]
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use super::*;
    use crate::{Axis, AxisSet, Mesh, Sharding, TensorType, interpret, trace};

    /// Known answers of Random123 1.14 (`kat_vectors`, threefry2x32 with 20 rounds).
    const KNOWN: [([u32; 2], [u32; 2], [u32; 2]); 3] = [
        ([0, 0], [0, 0], [0x6b20_0159, 0x99ba_4efe]),
        ([u32::MAX, u32::MAX], [u32::MAX, u32::MAX], [0x1cb9_96fc, 0xbb00_2be7]),
        ([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3], [0xc492_3a9c, 0x483d_f7a0]),
    ];

    /// Draws with the key of `seed`. Returns each replica's values.
    fn draw(
        mesh: Mesh,
        seed: [u32; 2],
        f: impl for<'g> FnOnce(&'g Tracer, Key<'g>) -> Tensor<'g>,
    ) -> Vec<Literal> {
        let graph = trace(mesh, |t| {
            let key = Key::from_seed(t.input("seed", TensorType::new(DType::U32, &[2])));
            t.output_varying("drawn", f(t, key), AxisSet::ALL);
        });
        let seed = vec![Literal::from_slice(&[2], &seed); mesh.num_replicas()];
        interpret(&graph.unwrap(), &[seed]).unwrap().remove(0)
    }

    #[test]
    fn threefry_on_the_host_matches_the_published_vectors() {
        for (key, counter, expected) in KNOWN {
            assert_eq!(threefry2x32(key, counter), expected);
        }
    }

    /// The interpreter computes it on the host; other backends get ops.
    #[test]
    fn threefry_in_other_ops_equals_threefry_on_the_host() {
        for (streams, dims, strides) in [
            ([false; 4], vec![], vec![]),
            ([true, true, false, false], vec![7], vec![]),
            ([true, true, false, false], vec![], vec![]),
            ([false, false, true, true], vec![], vec![]),
            ([false; 4], vec![3, 5], vec![1]),
            ([true; 4], vec![2, 3, 4], vec![u32::MAX, 9]),
        ] {
            for num_words in [1, 2] {
                let threefry = Threefry { dims: dims.clone(), strides: strides.clone(), num_words };
                let types = streams
                    .map(|many| TensorType::new(DType::U32, if many { &[5][..] } else { &[] }));
                let as_ops =
                    threefry.as_ops(Mesh::SINGLE, &types.each_ref(), Location::caller().into());
                let words: Vec<Vec<u32>> = (0..4)
                    .zip(streams)
                    .map(|(i, many)| {
                        let word = |j| threefry2x32([5, i], [0, j])[0];
                        (0..if many { 5 } else { 1 }).map(word).collect()
                    })
                    .collect();
                let literals: Vec<_> = types
                    .iter()
                    .zip(&words)
                    .map(|(ty, words)| vec![Literal::from_slice(&ty.dims, words)])
                    .collect();
                let drawn = interpret(&as_ops, &literals).unwrap();
                let drawn: Vec<_> =
                    drawn.iter().map(|word| word[0].as_slice::<u32>().to_vec()).collect();
                let words: Vec<_> = words.iter().map(Vec::as_slice).collect();
                assert_eq!(drawn, threefry.interpret(&words), "{threefry:?}");
            }
        }
    }

    #[test]
    fn an_element_has_the_bits_of_its_global_index() {
        let drawn =
            draw(Mesh::SINGLE, [1, 2], |_, key| key.bits(&GlobalSlice::whole(&[2, 3, 4]))[0]);
        let counter = |i: u32| [i / 12, i % 12];
        let expected: Vec<_> = (0..24).map(|i| threefry2x32([1, 2], counter(i))[0]).collect();
        assert_eq!(drawn[0].as_slice::<u32>(), expected);
    }

    #[test]
    fn shards_are_pieces_of_what_one_replica_draws() {
        let data = AxisSet::from(Axis::Data);
        let both = AxisSet::of(&[Axis::Data, Axis::Tensor]);
        let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Tensor, 2)]);
        let global = [4, 6, 3];
        for sharding in [
            Sharding::replicated(3),
            Sharding::leading(3, both),
            Sharding::new(&[data, Axis::Tensor.into(), AxisSet::EMPTY]),
            Sharding::new(&[AxisSet::EMPTY, data, AxisSet::EMPTY]),
        ] {
            for dtype in [DType::F32, DType::F64, DType::Bf16] {
                let leaf = LeafSpec::new(dtype, &global, sharding.clone());
                let whole = draw(Mesh::SINGLE, [3, 4], |_, key| {
                    key.normal(&GlobalSlice::whole(&global), dtype)
                });
                let whole = whole[0].to_f64();
                let shards = draw(mesh, [3, 4], |t, key| {
                    key.normal(&GlobalSlice::shard(t, &leaf).unwrap(), dtype)
                });
                for (replica, shard) in shards.iter().enumerate() {
                    let local = sharding.local_shape(&global, &mesh).unwrap();
                    let first: Vec<_> = (sharding.dims().iter().zip(&local))
                        .map(|(axes, size)| mesh.index(replica, *axes) * size)
                        .collect();
                    let mut expected = vec![];
                    for i in first[0]..first[0] + local[0] {
                        for j in first[1]..first[1] + local[1] {
                            let row = (i * global[1] + j) * global[2] + first[2];
                            expected.extend_from_slice(&whole[row..row + local[2]]);
                        }
                    }
                    assert_eq!(shard.to_f64(), expected, "{sharding:?} {dtype} replica {replica}");
                }
            }
        }
    }

    #[test]
    fn rows_of_the_batch_are_the_same_on_any_number_of_replicas() {
        let of = |num_replicas: usize| -> Vec<f64> {
            let drawn = draw(Mesh::data(num_replicas), [7, 8], |t, key| {
                let local = 8 / num_replicas;
                let first = t.replica_id(Axis::Data) * local as f64;
                let key = key.fold_in(t.scalar(DType::U32, 3.0)).fold_in_path("blocks.0.dropout");
                key.bernoulli(0.5, &GlobalSlice::rows(first, &[local, 5]))
            });
            drawn.iter().flat_map(Literal::to_f64).collect()
        };
        let one = of(1);
        assert!(one.contains(&0.0) && one.contains(&1.0));
        for num_replicas in [2, 4, 8] {
            assert_eq!(of(num_replicas), one, "{num_replicas} replicas");
        }
    }

    #[test]
    fn seed_step_and_path_each_change_the_bits() {
        let bits = |seed, step: f64, path: &str| {
            draw(Mesh::SINGLE, seed, |t, key| {
                let key = key.fold_in(t.scalar(DType::U32, step)).fold_in_path(path);
                key.bits(&GlobalSlice::whole(&[4]))[0]
            })
        };
        let all = [
            bits([0, 1], 0.0, "a"),
            bits([1, 0], 0.0, "a"),
            bits([0, 1], 1.0, "a"),
            bits([0, 1], 0.0, "b"),
            bits([0, 1], 0.0, "a.b"),
        ];
        for (i, some) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other != some), "stream {i} equals an earlier one");
        }
        assert_eq!(all[0], bits([0, 1], 0.0, "a"));
    }

    #[test]
    fn streams_drawn_together_equal_those_of_their_paths() {
        let paths = ["a", "b", "a.b"];
        for dims in [&[][..], &[5], &[2, 3, 4]] {
            let together = draw(Mesh::SINGLE, [1, 2], |_, key| {
                key.fold_in_paths(paths).normal(&GlobalSlice::whole(dims).as_rows(), DType::F32)
            });
            let alone = paths.map(|path| {
                let drawn = draw(Mesh::SINGLE, [1, 2], |_, key| {
                    key.fold_in_path(path).normal(&GlobalSlice::whole(dims), DType::F32)
                });
                drawn[0].to_f64()
            });
            assert_eq!(together[0].to_f64(), alone.concat(), "{dims:?}");
        }
    }

    const NUM_SAMPLES: usize = 1 << 15;

    #[test]
    fn rows_with_too_many_elements_are_an_error() {
        let error = trace(Mesh::SINGLE, |t| {
            let key = Key::from_words([t.scalar(DType::U32, 0.0); 2]);
            let [bits, _] = key.bits(&GlobalSlice::whole(&[2, usize::MAX, 2]).as_rows());
            t.output("bits", bits);
        });
        assert!(error.unwrap_err().message.contains("more than 2^40 elements"));
    }

    /// The tolerance is four standard errors, which a correct generator exceeds for one seed in 16
    /// 000.
    fn assert_mean(what: &str, values: &[f64], mean: f64, variance: f64) {
        let found = values.iter().sum::<f64>() / values.len() as f64;
        let limit = 4.0 * (variance / values.len() as f64).sqrt();
        assert!((found - mean).abs() < limit, "{what}: the mean is {found}, not {mean}");
    }

    #[test]
    fn uniform_numbers_fill_the_half_open_interval() {
        for (dtype, grid) in
            [(DType::F64, 53), (DType::F32, 24), (DType::F16, 11), (DType::Bf16, 8)]
        {
            let drawn = draw(Mesh::SINGLE, [0, 9], |_, key| {
                key.uniform(&GlobalSlice::whole(&[NUM_SAMPLES]), dtype)
            });
            let values = drawn[0].to_f64();
            let steps = |value: &f64| value * 2f64.powi(grid);
            assert!(values.iter().all(|value| (0.0..1.0).contains(value)), "{dtype}");
            assert!(values.iter().all(|value| steps(value).fract() == 0.0), "{dtype}");
            // The upper end of the interval is reached.
            assert!(values.iter().any(|value| *value > 0.99), "{dtype}");
            let middle = 0.5 - 0.5f64.powi(grid + 1);
            assert_mean(&format!("{dtype}"), &values, middle, 1.0 / 12.0);
            let squares: Vec<_> = values.iter().map(|value| (value - middle).powi(2)).collect();
            assert_mean(&format!("{dtype}, squared"), &squares, 1.0 / 12.0, 1.0 / 180.0);
        }
    }

    #[test]
    fn normal_numbers_have_the_moments_of_the_normal_distribution() {
        for dtype in [DType::F64, DType::F32] {
            let drawn = draw(Mesh::SINGLE, [0, 10], |_, key| {
                key.normal(&GlobalSlice::whole(&[NUM_SAMPLES]), dtype)
            });
            let values = drawn[0].to_f64();
            let power = |n: i32| values.iter().map(|x| x.powi(n)).collect::<Vec<_>>();
            assert_mean("x", &power(1), 0.0, 1.0);
            assert_mean("x^2", &power(2), 1.0, 2.0);
            assert_mean("x^3", &power(3), 0.0, 15.0);
            assert_mean("x^4", &power(4), 3.0, 96.0);
            let neighbours: Vec<_> = values.windows(2).map(|pair| pair[0] * pair[1]).collect();
            assert_mean("neighbours' product", &neighbours, 0.0, 1.0);
        }
    }

    #[test]
    fn bernoulli_is_true_with_its_probability() {
        for probability in [0.0, 0.1, 0.5, 0.9, 1.0] {
            let drawn = draw(Mesh::SINGLE, [0, 11], |_, key| {
                key.bernoulli(probability, &GlobalSlice::whole(&[NUM_SAMPLES]))
            });
            let values = drawn[0].to_f64();
            if probability == 0.0 || probability == 1.0 {
                assert!(values.iter().all(|value| *value == probability));
            } else {
                let variance = probability * (1.0 - probability);
                assert_mean("bernoulli", &values, probability, variance);
            }
        }
    }
}
