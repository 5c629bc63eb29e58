//! Threefry-2x32: random bits of keys and counters.
//!
//! Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).

use crate::Pool;
use crate::vectors::vectorized;

const PARITY: u32 = 0x1BD1_1BDA;
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

/// Elements of a task.
const TASK: usize = 1 << 14;

/// The two words of a counter, encrypted under the key.
#[inline(always)]
pub(crate) fn threefry2x32(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let schedule = [key[0], key[1], key[0] ^ key[1] ^ PARITY];
    let [mut x0, mut x1] = [counter[0].wrapping_add(key[0]), counter[1].wrapping_add(key[1])];
    for group in 0..5 {
        for rotation in ROTATIONS[group % 2] {
            x0 = x0.wrapping_add(x1);
            x1 = x1.rotate_left(rotation) ^ x0;
        }
        x0 = x0.wrapping_add(schedule[(group + 1) % 3]);
        x1 = x1.wrapping_add(schedule[(group + 2) % 3]).wrapping_add(group as u32 + 1);
    }
    [x0, x1]
}

/// Random bits of several streams, each of a grid of counters. A counter's first word grows by 1
/// along the first dim, the second by `strides[i]` along dim `i + 1`.
#[derive(Clone, Copy, Debug)]
pub struct RandomBits<'a> {
    /// Two words of the key and two of the first counter: one for all streams, or one for each.
    pub words: [&'a [u32]; 4],
    /// Dims of the grid.
    pub dims: &'a [usize],
    /// One for each dim but the first.
    pub strides: &'a [u32],
}

impl RandomBits<'_> {
    /// Writes the first word of each element, and the second word to `second` if it is not empty.
    ///
    /// # Panics
    /// If operands, dims and results do not fit each other.
    pub fn run(self, pool: &Pool<'_>, first: &mut [u32], second: &mut [u32]) {
        let Self { words, dims, strides } = self;
        let size = dims.iter().product::<usize>();
        let num_streams = words.iter().map(|words| words.len()).max().unwrap_or(1);
        let is_given = |words: &&[u32]| words.len() == 1 || words.len() == num_streams;
        assert!(words.iter().all(is_given), "operands of different numbers of streams");
        assert_eq!(
            strides.len(),
            dims.len().saturating_sub(1),
            "a stride for each dim but the first"
        );
        assert_eq!(first.len(), num_streams * size, "elements of the result");
        assert!(
            second.is_empty() || second.len() == first.len(),
            "both results have equally many elements"
        );
        if first.is_empty() {
            return;
        }
        let mut seconds = second.chunks_mut(TASK);
        let chunks =
            first.chunks_mut(TASK).map(|first| (first, seconds.next().unwrap_or_default()));
        pool.for_each(chunks, |task, (first, second)| {
            vectorized(
                #[inline(always)]
                || {
                    let mut done = 0;
                    while done < first.len() {
                        let index = task * TASK + done;
                        let [key, counter, step] = self.element(index / size, index % size);
                        let row = dims.last().map_or(1, |row| row - index % row);
                        let row = row.min(first.len() - done);
                        let nth = |i: usize| {
                            let along = |word: usize| {
                                counter[word].wrapping_add((i as u32).wrapping_mul(step[word]))
                            };
                            threefry2x32(key, [along(0), along(1)])
                        };
                        let out = &mut first[done..done + row];
                        if second.is_empty() {
                            for (i, out) in out.iter_mut().enumerate() {
                                *out = nth(i)[0];
                            }
                        } else {
                            let second = &mut second[done..done + row];
                            for (i, (first, second)) in out.iter_mut().zip(second).enumerate() {
                                [*first, *second] = nth(i);
                            }
                        }
                        done += row;
                    }
                },
            );
        });
    }

    /// The key and the counter of an element of a stream, and what the counter grows by along the
    /// last dim.
    #[inline(always)]
    fn element(self, stream: usize, mut index: usize) -> [[u32; 2]; 3] {
        let word = |i: usize| match self.words[i] {
            [one] => *one,
            many => many[stream],
        };
        let (key, mut counter) = ([word(0), word(1)], [word(2), word(3)]);
        for (dim, size) in self.dims.iter().enumerate().rev() {
            let along = (index % size) as u32;
            match dim {
                0 => counter[0] = counter[0].wrapping_add(along),
                _ => {
                    counter[1] = counter[1].wrapping_add(along.wrapping_mul(self.strides[dim - 1]))
                }
            }
            index /= size;
        }
        let step = self.strides.last().map_or([1, 0], |stride| [0, *stride]);
        [key, counter, step]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of the authors' library.
    #[test]
    fn random_numbers_are_those_of_the_published_vectors() {
        assert_eq!(threefry2x32([0, 0], [0, 0]), [0x6B20_0159, 0x99BA_4EFE]);
        assert_eq!(threefry2x32([u32::MAX; 2], [u32::MAX; 2]), [0x1CB9_96FC, 0xBB00_2BE7]);
        assert_eq!(
            threefry2x32([0x1319_8A2E, 0x0370_7344], [0x243F_6A88, 0x85A3_08D3]),
            [0xC492_3A9C, 0x483D_F7A0]
        );
    }

    #[test]
    fn bits_are_those_of_each_counter_whatever_the_number_of_threads() {
        for (dims, strides) in [
            (&[][..], &[][..]),
            (&[70_001], &[]),
            (&[5, 7001], &[1]),
            (&[3, 40, 300], &[u32::MAX, 5]),
            (&[0, 4], &[1]),
        ] {
            for many in [[false; 4], [true, true, false, false], [false, false, true, true]] {
                let words = [0, 1, 2, 3].map(|i| {
                    let num_words = if many[i] { 3 } else { 1 };
                    (0..num_words).map(|j| u32::MAX - (i * 7 + j) as u32).collect::<Vec<_>>()
                });
                let num_streams = if many == [false; 4] { 1 } else { 3 };
                let size: usize = dims.iter().product();
                let mut expected = [vec![], vec![]];
                for stream in 0..num_streams {
                    let word = |i: usize| words[i][stream.min(words[i].len() - 1)];
                    for index in 0..size {
                        let (mut rest, mut counter) = (index, [word(2), word(3)]);
                        for dim in (0..dims.len()).rev() {
                            let along = (rest % dims[dim]) as u32;
                            let stride = if dim == 0 { 1 } else { strides[dim - 1] };
                            let to = &mut counter[usize::from(dim > 0)];
                            *to = to.wrapping_add(along.wrapping_mul(stride));
                            rest /= dims[dim];
                        }
                        let bits = threefry2x32([word(0), word(1)], counter);
                        expected.iter_mut().zip(bits).for_each(|(all, bits)| all.push(bits));
                    }
                }
                let words = words.each_ref().map(Vec::as_slice);
                let bits = RandomBits { words, dims, strides };
                for num_helpers in [0, 2] {
                    let pool = Pool::new(num_helpers).unwrap();
                    let mut found = [vec![0; num_streams * size], vec![0; num_streams * size]];
                    let [first, second] = &mut found;
                    bits.run(&pool, first, second);
                    assert_eq!(found, expected, "{dims:?}");
                    found[0].fill(0);
                    bits.run(&pool, &mut found[0], &mut []);
                    assert_eq!(found[0], expected[0], "{dims:?}");
                }
            }
        }
    }
}
