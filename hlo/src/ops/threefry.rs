//! Threefry-2x32 of a grid of counters.

use crate::{DType, Graph, Mesh, Op, Origin, Tensor, TensorType, Tracer};

/// `threefry(key0, key1, counter0, counter1)`: Threefry-2x32 with 20 rounds, in u32.
///
/// Operands are scalars, or `[num_streams]` for several streams, which gives a leading dim. The
/// element at index `i` is of the counter `counter0 + i[0]`,
/// `counter1 + i[1] strides[0] + i[2] strides[1] + ..`, in wrapping arithmetic.
///
/// Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Threefry {
    /// Dims of the grid.
    pub dims: Vec<usize>,
    /// For each dim but the first, the increment of the second word of the counter from one index
    /// to the next.
    pub strides: Vec<u32>,
    /// The number of results: the first word of each element, or both.
    pub num_words: usize,
}

/// Operations on integers for each element: in each of 20 rounds an addition, a rotation (two
/// shifts and an or) and an xor; three additions after every fourth.
pub(crate) const THREEFRY_FLOPS: u64 = 20 * 5 + 5 * 3;

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

/// [`threefry2x32`] in other ops, of u32 tensors of the same shape, except that key words may be
/// scalars.
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

impl Threefry {
    /// The types of the results on these operands.
    pub(crate) fn infer(&self, t: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let streams = t.iter().find(|ty| ty.rank() > 0).map_or(&[][..], |ty| &ty.dims);
        let fits = |ty: &&TensorType| {
            ty.dtype == DType::U32 && (ty.dims.is_empty() || ty.dims == *streams)
        };
        if streams.len() > 1 || streams == [0] || !t.iter().all(fits) {
            return Err("key and counter must be u32, scalars or all of the same number".into());
        }
        if t.iter().any(|ty| ty.varying != t[0].varying) {
            return Err("key and counter must vary over the same axes".into());
        }
        if self.strides.len() != self.dims.len().saturating_sub(1) {
            return Err(format!("{} strides for {} dims", self.strides.len(), self.dims.len()));
        }
        if !(1..=2).contains(&self.num_words) {
            return Err(format!("gives 1 or 2 words, not {}", self.num_words));
        }
        Ok(vec![t[0].with_dims(&[streams, &self.dims].concat()); self.num_words])
    }

    /// The words of each element, from the words of the operands.
    pub(crate) fn interpret(&self, operands: &[&[u32]]) -> Vec<Vec<u32>> {
        let num_streams = operands.iter().map(|words| words.len()).max().unwrap_or(1);
        let size = self.dims.iter().product::<usize>();
        let mut results = vec![Vec::with_capacity(num_streams * size); self.num_words];
        for stream in 0..num_streams {
            let word = |i: usize| operands[i][if operands[i].len() == 1 { 0 } else { stream }];
            for index in 0..size {
                let mut counter = [word(2), word(3)];
                let mut rest = index;
                for (dim, size) in self.dims.iter().enumerate().rev() {
                    let (along, step) = (rest % size, dim.checked_sub(1));
                    let step = step.map_or((0, 1), |dim| (1, self.strides[dim]));
                    counter[step.0] =
                        counter[step.0].wrapping_add((along as u32).wrapping_mul(step.1));
                    rest /= size;
                }
                let words = threefry2x32([word(0), word(1)], counter);
                for (result, word) in results.iter_mut().zip(words) {
                    result.push(word);
                }
            }
        }
        results
    }

    /// The same in other ops, with the operands as inputs.
    pub(crate) fn as_ops(&self, mesh: Mesh, operands: &[&TensorType], origin: Origin) -> Graph {
        let t = Tracer::new(mesh);
        t.at(origin, || {
            let inputs: Vec<_> = operands
                .iter()
                .enumerate()
                .map(|(i, ty)| t.input(format!("{i}"), (*ty).clone()))
                .collect();
            let [key0, key1, counter0, counter1] = inputs[..] else {
                unreachable!("`infer` has checked it")
            };
            let streams = operands.iter().find(|ty| ty.rank() > 0).map(|ty| ty.dims[0]);
            let dims: Vec<_> = streams.into_iter().chain(self.dims.iter().copied()).collect();
            let first = dims.len() - self.dims.len();
            let along = |dim: usize| t.iota(DType::U32, &dims, first + dim);
            let [mut counter0, mut counter1] =
                [counter0, counter1].map(|word| of_streams(word, &dims));
            if !self.dims.is_empty() {
                counter0 = along(0) + counter0;
            }
            for (dim, stride) in self.strides.iter().enumerate() {
                counter1 = along(dim + 1) * f64::from(*stride) + counter1;
            }
            let words = threefry2x32_ops(
                [key0, key1].map(|word| of_streams(word, &dims)),
                [counter0, counter1].map(|word| whole(word, &dims)),
            );
            for (i, word) in words.into_iter().take(self.num_words).enumerate() {
                t.output_varying(format!("{i}"), word, word.varying());
            }
        });
        t.finish().expect("`infer` has checked the operands")
    }
}

/// A word for each stream, or one for all, with `dims`; the first of these is the streams. One word
/// stays a scalar.
#[track_caller]
fn of_streams<'g>(word: Tensor<'g>, dims: &[usize]) -> Tensor<'g> {
    if word.rank() == 0 { word } else { word.broadcast_in_dim(dims, &[0]) }
}

/// The word with `dims`, if it was a scalar.
#[track_caller]
fn whole<'g>(word: Tensor<'g>, dims: &[usize]) -> Tensor<'g> {
    if word.rank() == dims.len() { word } else { word.broadcast_in_dim(dims, &[]) }
}

impl Tracer {
    /// Threefry-2x32 of a key and counters: see [`Threefry`]. Returns as many words as it says.
    #[track_caller]
    pub fn threefry<'g>(
        &'g self,
        threefry: Threefry,
        key: [Tensor<'g>; 2],
        counter: [Tensor<'g>; 2],
    ) -> Vec<Tensor<'g>> {
        let num_words = threefry.num_words;
        let operands = [key, counter].concat();
        let mut words = self.apply_variadic(Op::Threefry(threefry), &operands);
        // After an error there is one for each operand.
        words.truncate(num_words);
        words
    }
}
