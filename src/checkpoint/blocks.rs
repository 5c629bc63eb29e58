//! Reading parts of a piece by whole blocks, with a comparison of their checksums.

use std::ops::Range;

use hlo::ContiguousRun;
use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

use super::manifest::hex;
use super::{PieceRecord, SourceFile};

/// About how many bytes are read at a time: several blocks, so that a request to an object store is
/// worth its latency.
pub const WINDOW_BYTES: usize = 8 << 20;

/// A piece in its file.
pub struct StoredPiece<'a> {
    pub file: &'a dyn SourceFile,
    pub record: &'a PieceRecord,
    pub block_bytes: usize,
    /// Bytes that are read at a time, if blocks are not larger.
    pub window_bytes: usize,
}

/// Why a piece cannot be read.
pub enum Unreadable {
    /// The file cannot be read.
    Io(std::io::Error),
    /// The bytes in this range of the file are not those that were written.
    Changed(Range<u64>),
}

impl StoredPiece<'_> {
    /// Reads what `runs` cover, which count bytes from the start of the piece and in `out`, do not
    /// overlap and are sorted by where they are read. Only the blocks that they touch are read,
    /// each once.
    pub fn read(&self, runs: &[ContiguousRun], out: &mut [u8]) -> Result<(), Unreadable> {
        let mut rest = runs.to_vec();
        if let &[run] = runs {
            // Whole blocks go to their place without a copy.
            let end = run.from + run.len;
            let is_last = end == self.num_bytes();
            let first = run.from.next_multiple_of(self.block_bytes).min(end);
            let last = if is_last { end } else { end - end % self.block_bytes }.max(first);
            let body = &mut out[run.to + first - run.from..][..last - first];
            let window = self.whole_blocks();
            body.par_chunks_mut(window)
                .enumerate()
                .try_for_each(|(index, bytes)| self.read_blocks(first + index * window, bytes))?;
            let part = |range: Range<usize>| ContiguousRun {
                from: range.start,
                to: run.to + range.start - run.from,
                len: range.len(),
            };
            rest = [part(run.from..first), part(last..end)].to_vec();
            rest.retain(|run| run.len > 0);
        }
        let windows = self.windows(&rest);
        // As many buffers as threads.
        for batch in windows.chunks(rayon::current_num_threads().max(1)) {
            let read = |window: &Range<usize>| {
                let mut bytes = vec![0; window.len()];
                self.read_blocks(window.start, &mut bytes).map(|()| bytes)
            };
            let read: Vec<_> = batch.par_iter().map(read).collect::<Result<_, _>>()?;
            for (window, bytes) in batch.iter().zip(read) {
                copy_runs(&rest, window, &bytes, out);
            }
        }
        Ok(())
    }

    /// The windows of the whole piece.
    pub fn all_windows(&self) -> Vec<Range<usize>> {
        let len = self.num_bytes();
        self.windows(&[ContiguousRun { from: 0, to: 0, len }])
    }

    /// Reads whole blocks that begin at byte `start` of the piece, and compares their checksums.
    pub fn read_blocks(&self, start: usize, bytes: &mut [u8]) -> Result<(), Unreadable> {
        let offset = self.record.offset + start as u64;
        self.file.read_exact_at(bytes, offset).map_err(Unreadable::Io)?;
        let first = start / self.block_bytes;
        for (index, block) in bytes.chunks(self.block_bytes).enumerate() {
            if hex(xxh3_128(block)) != self.record.checksums[first + index] {
                let at = offset + (index * self.block_bytes) as u64;
                return Err(Unreadable::Changed(at..at + block.len() as u64));
            }
        }
        Ok(())
    }

    /// The blocks that `runs` touch, in ranges of bytes of the piece that are read at once.
    fn windows(&self, runs: &[ContiguousRun]) -> Vec<Range<usize>> {
        let mut needed: Vec<Range<usize>> = vec![];
        for run in runs.iter().filter(|run| run.len > 0) {
            let start = run.from - run.from % self.block_bytes;
            let end = (run.from + run.len).next_multiple_of(self.block_bytes).min(self.num_bytes());
            match needed.last_mut() {
                Some(last) if start <= last.end => last.end = last.end.max(end),
                _ => needed.push(start..end),
            }
        }
        let cut = |range: Range<usize>| {
            let starts = range.clone().step_by(self.whole_blocks());
            starts.map(move |start| start..range.end.min(start + self.whole_blocks()))
        };
        needed.into_iter().flat_map(cut).collect()
    }

    /// Bytes of the blocks that are read at a time.
    fn whole_blocks(&self) -> usize {
        (self.window_bytes / self.block_bytes).max(1) * self.block_bytes
    }

    fn num_bytes(&self) -> usize {
        self.record.num_bytes as usize
    }
}

/// Copies the parts of `runs` that lie in a window.
fn copy_runs(runs: &[ContiguousRun], window: &Range<usize>, bytes: &[u8], out: &mut [u8]) {
    let first = runs.partition_point(|run| run.from + run.len <= window.start);
    for run in runs[first..].iter().take_while(|run| run.from < window.end) {
        let from = run.from.max(window.start);
        let len = (run.from + run.len).min(window.end) - from;
        let to = run.to + from - run.from;
        out[to..to + len].copy_from_slice(&bytes[from - window.start..][..len]);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug)]
    struct InMemory {
        bytes: Vec<u8>,
        read: Mutex<Vec<(u64, usize)>>,
    }

    impl SourceFile for InMemory {
        fn num_bytes(&self) -> u64 {
            self.bytes.len() as u64
        }

        fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
            self.read.lock().unwrap().push((offset, bytes.len()));
            bytes.copy_from_slice(&self.bytes[offset as usize..][..bytes.len()]);
            Ok(())
        }
    }

    /// A piece of 45 bytes after a header of 3, in blocks of 8; two blocks are read at a time.
    #[test]
    fn the_touched_blocks_are_read_once_and_compared() {
        let run = |from, to, len| ContiguousRun { from, to, len };
        let bytes: Vec<u8> = (0..48).collect();
        let checksums: Vec<_> = bytes[3..].chunks(8).map(|block| hex(xxh3_128(block))).collect();
        for (runs, mut expected) in [
            (vec![], vec![]),
            (vec![run(0, 0, 45)], vec![(0, 16), (16, 16), (32, 13)]),
            (vec![run(8, 0, 16)], vec![(8, 16)]),
            (vec![run(9, 1, 30)], vec![(8, 8), (16, 16), (32, 8)]),
            (vec![run(2, 5, 3)], vec![(0, 8)]),
            (vec![run(44, 0, 1)], vec![(40, 5)]),
            (vec![run(1, 9, 2), run(5, 0, 2), run(30, 3, 6)], vec![(0, 8), (24, 16)]),
            (vec![run(7, 0, 2), run(20, 30, 20)], vec![(0, 16), (16, 16), (32, 8)]),
        ] {
            let file = InMemory { bytes: bytes.clone(), read: Mutex::default() };
            let record = PieceRecord {
                file: 0,
                tensor: String::new(),
                start: vec![0],
                dims: vec![45],
                offset: 3,
                num_bytes: 45,
                checksums: checksums.clone(),
            };
            let piece =
                StoredPiece { file: &file, record: &record, block_bytes: 8, window_bytes: 20 };
            let mut out = vec![255; 50];
            assert!(piece.read(&runs, &mut out).is_ok());
            let mut by_hand = vec![255; 50];
            for run in &runs {
                by_hand[run.to..run.to + run.len]
                    .copy_from_slice(&bytes[3 + run.from..][..run.len]);
            }
            assert_eq!(out, by_hand, "{runs:?}");
            let mut read = std::mem::take(&mut *file.read.lock().unwrap());
            read.sort_unstable();
            expected.iter_mut().for_each(|(offset, _)| *offset += 3);
            assert_eq!(read, expected, "{runs:?}");
            // Byte 21 is in the third block of the piece.
            let mut bytes = bytes.clone();
            bytes[21] ^= 4;
            let file = InMemory { bytes, read: Mutex::default() };
            let piece = StoredPiece { file: &file, ..piece };
            let touches = |run: &ContiguousRun| run.from < 24 && run.from + run.len > 16;
            match piece.read(&runs, &mut out) {
                Ok(()) => assert!(!runs.iter().any(touches), "{runs:?}"),
                Err(Unreadable::Changed(range)) => {
                    assert!(runs.iter().any(touches), "{runs:?}");
                    assert_eq!(range, 19..27);
                }
                Err(Unreadable::Io(error)) => panic!("{error}"),
            }
        }
    }
}
