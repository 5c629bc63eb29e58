//! Fingerprints: hashes by which the same examples are recognized, wherever their files are and
//! whenever they were copied.

use std::path::Path;

use rayon::prelude::*;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::files::ListedFile;
use crate::config::open_regular;

/// Bytes that are hashed at a time, by one thread.
const BLOCK_BYTES: usize = 1 << 20;

/// Hashes what a part of a data set consists of: XXH3-128 of all values in the order in which they
/// are added. Like any hash that is not cryptographic, it finds what has changed by accident, not
/// by intent.
pub(super) struct Fingerprinter(Xxh3);

impl Fingerprinter {
    /// `kind` keeps sources apart that consist of the same values.
    pub fn new(kind: &str) -> Self {
        Self(Xxh3::new()).bytes(kind.as_bytes())
    }

    /// Adds numbers.
    pub fn numbers(mut self, numbers: impl IntoIterator<Item = u64>) -> Self {
        numbers.into_iter().for_each(|number| self.0.update(&number.to_le_bytes()));
        self
    }

    /// Adds bytes and their number. Several threads hash them, a block each.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self = self.numbers([bytes.len() as u64]);
        if bytes.len() <= BLOCK_BYTES {
            self.0.update(bytes);
            return self;
        }
        let hashes: Vec<_> = bytes.par_chunks(BLOCK_BYTES).map(xxh3_128).collect();
        self.hashes(&hashes)
    }

    /// Adds hashes.
    pub fn hashes(mut self, hashes: &[u128]) -> Self {
        hashes.iter().for_each(|hash| self.0.update(&hash.to_le_bytes()));
        self
    }

    /// Adds the files of a folder: the path below `root` and the size of each, and the first
    /// [`SAMPLE_BYTES`] of at most [`NUM_SAMPLES`], spread evenly over them. To read all of a
    /// folder of images would take as long as an epoch.
    pub fn files(mut self, root: &Path, files: &[&ListedFile]) -> std::io::Result<Self> {
        for file in files {
            let name = file.path.strip_prefix(root).unwrap_or(&file.path);
            self = self.bytes(name.as_os_str().as_encoded_bytes()).numbers([file.num_bytes]);
        }
        let num_samples = files.len().min(NUM_SAMPLES);
        let sampled = (0..num_samples).into_par_iter().map(|sample| {
            // The first file, the last one, and those between at equal distances.
            let place = sample * files.len().saturating_sub(1) / (num_samples - 1).max(1);
            let file = open_regular(&files[place].path)?;
            let mut bytes = vec![];
            std::io::Read::read_to_end(&mut std::io::Read::take(file, SAMPLE_BYTES), &mut bytes)?;
            Ok(xxh3_128(&bytes))
        });
        let hashes = sampled.collect::<std::io::Result<Vec<_>>>()?;
        Ok(self.hashes(&hashes))
    }

    /// The hash.
    pub fn finish(self) -> u128 {
        self.0.digest128()
    }
}

/// Most files of a folder that are looked into.
const NUM_SAMPLES: usize = 256;
/// Most bytes that are read of each of them.
const SAMPLE_BYTES: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_value_and_its_place_count() {
        let of = |parts: &[&[u8]]| {
            let start = Fingerprinter::new("a");
            parts.iter().fold(start, |all, part| all.bytes(part)).finish()
        };
        let long = vec![1; 3 * BLOCK_BYTES + 5];
        let mut changed = long.clone();
        *changed.last_mut().unwrap() = 2;
        let different = [
            of(&[]),
            of(&[b""]),
            of(&[b"ab"]),
            of(&[b"a", b"b"]),
            of(&[b"b", b"a"]),
            of(&[&long]),
            of(&[&changed]),
            of(&[&long[1..]]),
            Fingerprinter::new("b").finish(),
        ];
        for (index, one) in different.iter().enumerate() {
            assert!(different[..index].iter().all(|other| other != one), "{index}");
        }
        assert_eq!(of(&[&long]), of(&[&long.clone()]));
    }

    #[test]
    fn files_count_by_name_size_and_beginning() {
        let [here, there] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let of = |dir: &Path, names: &[&str]| {
            let listed = |name: &&str| ListedFile {
                path: dir.join(name),
                num_bytes: fs::metadata(dir.join(name)).unwrap().len(),
            };
            let files: Vec<_> = names.iter().map(listed).collect();
            let files: Vec<_> = files.iter().collect();
            Fingerprinter::new("a").files(dir, &files).unwrap().finish()
        };
        for dir in [here.path(), there.path()] {
            ["a", "b", "c"].iter().for_each(|name| fs::write(dir.join(name), name).unwrap());
        }
        let names = ["a", "b"];
        let first = of(here.path(), &names);
        assert_eq!(of(there.path(), &names), first);
        assert_ne!(of(here.path(), &["a", "c"]), first);
        assert_ne!(of(here.path(), &["a"]), first);
        fs::write(there.path().join("b"), "x").unwrap();
        assert_ne!(of(there.path(), &names), first);
        fs::write(there.path().join("b"), "bb").unwrap();
        assert_ne!(of(there.path(), &names), first);
        fs::remove_file(there.path().join("b")).unwrap();
        let gone = ListedFile { path: there.path().join("b"), num_bytes: 1 };
        assert!(Fingerprinter::new("a").files(there.path(), &[&gone]).is_err());
    }
}
