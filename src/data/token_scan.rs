//! Reads a file of tokens once from end to end: its largest tokens, and its fingerprint. What was
//! found in a large file is remembered in the user's cache, for as long as the file is not changed.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::fingerprint::Fingerprinter;
use crate::config::{TokenType, cache_dir};

/// Bytes that a thread reads at a time: they stay in its processor's cache until they have been
/// looked at. A whole number of pairs of tokens.
const BLOCK_BYTES: u64 = 1 << 20;
/// Smaller files are read again each time.
const REMEMBERED_BYTES: u64 = 16 << 20;
/// After this time the user is told what takes so long.
const SILENT: Duration = Duration::from_secs(3);

/// What a file of tokens holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenScan {
    /// Hash of all bytes.
    pub hash: u128,
    /// The largest tokens at even and at odd places.
    pub max: [u32; 2],
}

/// The file in the cache.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    path: PathBuf,
    token_bytes: usize,
    num_bytes: u64,
    inode: u64,
    /// When contents, and when anything about the file was changed, in nanoseconds. The second
    /// cannot be set back.
    modified: i128,
    changed: i128,
    hash: String,
    max: [u32; 2],
}

impl TokenScan {
    /// Scans a file, unless it is remembered. `tell` gets a line if that takes long.
    ///
    /// # Errors
    /// A file that cannot be read. What cannot be remembered is no error.
    pub fn of(
        path: &Path,
        file: &File,
        dtype: TokenType,
        tell: &(dyn Fn(&str) + Sync),
    ) -> io::Result<Self> {
        let dir = cache_dir().map(|dir| dir.join("scanned"));
        let is_large = file.metadata()?.len() >= REMEMBERED_BYTES;
        match dir.filter(|_| is_large) {
            Some(dir) => Self::remembered_in(&dir, path, file, dtype, tell),
            None => scan(path, file, dtype, tell),
        }
    }

    fn remembered_in(
        dir: &Path,
        path: &Path,
        file: &File,
        dtype: TokenType,
        tell: &(dyn Fn(&str) + Sync),
    ) -> io::Result<Self> {
        let absolute = path.canonicalize()?;
        let before = Remembered::new(&absolute, dtype, &file.metadata()?);
        let name = xxh3_128(format!("{} {}", dtype.num_bytes(), absolute.display()).as_bytes());
        let record = dir.join(format!("{name:032x}.json"));
        if let Some(found) = before.find_in(&record) {
            return Ok(found);
        }
        // Of several processes that start at the same time, one reads the file.
        let lock = Lock::wait(&record.with_extension("lock"), before.num_bytes);
        if let Some(found) = before.find_in(&record) {
            return Ok(found);
        }
        let found = scan(path, file, dtype, tell)?;
        let after = Remembered::new(&absolute, dtype, &file.metadata()?);
        // A change within the resolution of its clock would not be seen.
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let is_settled = age.as_nanos() as i128 - after.changed > 2_000_000_000;
        if after == before && is_settled {
            let hash = format!("{:032x}", found.hash);
            // Without it, the next start takes longer.
            let _ = Remembered { hash, max: found.max, ..after }.write(&record);
        }
        drop(lock);
        Ok(found)
    }
}

impl Remembered {
    fn new(path: &Path, dtype: TokenType, metadata: &Metadata) -> Self {
        let nanos = |secs: i64, nanos: i64| i128::from(secs) * 1_000_000_000 + i128::from(nanos);
        Self {
            path: path.to_owned(),
            token_bytes: dtype.num_bytes(),
            num_bytes: metadata.len(),
            inode: metadata.ino(),
            modified: nanos(metadata.mtime(), metadata.mtime_nsec()),
            changed: nanos(metadata.ctime(), metadata.ctime_nsec()),
            hash: String::new(),
            max: [0; 2],
        }
    }

    /// What is remembered of the same, unchanged file.
    fn find_in(&self, record: &Path) -> Option<TokenScan> {
        let found: Self = serde_json::from_slice(&fs::read(record).ok()?).ok()?;
        let (hash, max) = (u128::from_str_radix(&found.hash, 16).ok()?, found.max);
        (Self { hash: String::new(), max: [0; 2], ..found } == *self)
            .then_some(TokenScan { hash, max })
    }

    fn write(&self, record: &Path) -> io::Result<()> {
        let dir = record.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(dir)?;
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        serde_json::to_writer(&mut file, self)?;
        file.persist(record)?;
        Ok(())
    }
}

/// A file that only one process holds at a time.
struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    /// Waits for as long as another process may need to read `num_bytes` from a slow disk. `None`
    /// if the file system has no locks, or the other process takes longer: then both read.
    fn wait(path: &Path, num_bytes: u64) -> Option<Self> {
        const SLOW: u64 = 50_000_000;
        fs::create_dir_all(path.parent()?).ok()?;
        let file = File::create(path).ok()?;
        let until = Instant::now() + Duration::from_secs(10 + num_bytes / SLOW);
        loop {
            match file.try_lock() {
                Ok(()) => return Some(Self { path: path.to_owned(), file }),
                Err(fs::TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // What is left of it does no harm.
        let _ = fs::remove_file(&self.path);
        let _ = self.file.unlock();
    }
}

fn scan(
    path: &Path,
    file: &File,
    dtype: TokenType,
    tell: &(dyn Fn(&str) + Sync),
) -> io::Result<TokenScan> {
    let num_bytes = file.metadata()?.len();
    let (begun, num_read, has_told) = (Instant::now(), AtomicU64::new(0), AtomicBool::new(false));
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let tell_progress = |more: u64| {
        let read = num_read.fetch_add(more, Ordering::Relaxed) + more;
        if begun.elapsed() > SILENT && !has_told.swap(true, Ordering::Relaxed) {
            let left = begun.elapsed().as_secs_f64() * (num_bytes as f64 / read as f64 - 1.0);
            tell(&format!(
                "reading all {:.1} GiB of {} once, to check its tokens: about {left:.0} s more",
                gib(num_bytes),
                path.display()
            ));
        }
    };
    let of_block = |buffer: &mut Vec<u8>, block: u64| {
        let start = block * BLOCK_BYTES;
        buffer.resize(BLOCK_BYTES.min(num_bytes - start) as usize, 0);
        file.read_exact_at(buffer, start)?;
        tell_progress(buffer.len() as u64);
        Ok((xxh3_128(buffer), largest(buffer, dtype)))
    };
    let blocks = (0..num_bytes.div_ceil(BLOCK_BYTES)).into_par_iter().map_init(Vec::new, of_block);
    let blocks = blocks.collect::<io::Result<Vec<_>>>()?;
    if has_told.into_inner() {
        let speed = num_bytes as f64 / 1e9 / begun.elapsed().as_secs_f64();
        tell(&format!("read {} at {speed:.2} GB/s; what was found is remembered", path.display()));
    }
    let (hashes, maxima): (Vec<_>, Vec<_>) = blocks.into_iter().unzip();
    let larger = |a: [u32; 2], b: [u32; 2]| [a[0].max(b[0]), a[1].max(b[1])];
    Ok(TokenScan {
        hash: Fingerprinter::new("bytes").numbers([num_bytes]).hashes(&hashes).finish(),
        max: maxima.into_iter().fold([0; 2], larger),
    })
}

/// The largest tokens at even and at odd places.
fn largest(bytes: &[u8], dtype: TokenType) -> [u32; 2] {
    match dtype {
        TokenType::U16 => largest_of(bytes, u16::from_le_bytes),
        TokenType::U32 => largest_of(bytes, u32::from_le_bytes),
    }
}

fn largest_of<T: Copy + Default + Ord + Into<u32>, const BYTES: usize>(
    bytes: &[u8],
    token: fn([u8; BYTES]) -> T,
) -> [u32; 2] {
    // As many independent maxima as make the loop one of vectors.
    const LANES: usize = 64;
    let mut lanes = [T::default(); LANES];
    for row in bytes.as_chunks::<BYTES>().0.chunks(LANES) {
        for (lane, bytes) in lanes.iter_mut().zip(row) {
            *lane = (*lane).max(token(*bytes));
        }
    }
    let max = |first: usize| lanes.iter().skip(first).step_by(2).max().copied();
    [0, 1].map(|first| max(first).unwrap_or_default().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_tokens_are_those_of_a_plain_loop() {
        let mut state = 1u32;
        for dtype in [TokenType::U16, TokenType::U32] {
            for num_tokens in (0..70).chain([1000, 4096, 4099]) {
                let token = |_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    if dtype == TokenType::U16 { state >> 16 } else { state }
                };
                let tokens: Vec<u32> = (0..num_tokens).map(token).collect();
                let bytes = |token: &u32| token.to_le_bytes()[..dtype.num_bytes()].to_vec();
                let bytes: Vec<u8> = tokens.iter().flat_map(bytes).collect();
                let max = |first: usize| tokens.iter().skip(first).step_by(2).max().copied();
                let expected = [max(0).unwrap_or(0), max(1).unwrap_or(0)];
                assert_eq!(largest(&bytes, dtype), expected, "{num_tokens} {dtype:?}");
            }
        }
    }

    #[test]
    fn a_scan_is_remembered_until_the_file_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, cache) = (dir.path().join("a.bin"), dir.path().join("cache"));
        let tokens = |first: u16| -> Vec<u8> {
            [first, 2, 3, 4].into_iter().flat_map(u16::to_le_bytes).collect()
        };
        fs::write(&path, tokens(1)).unwrap();
        let of = || {
            let file = File::open(&path).unwrap();
            TokenScan::remembered_in(&cache, &path, &file, TokenType::U16, &|_| ()).unwrap()
        };
        let records = || fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path());
        let first = of();
        assert_eq!(first.max, [3, 4]);
        assert_eq!(records().count(), 0, "a file this new may change unseen");
        // Remembered, as if it had been settled: what is in the record is what is returned.
        let absolute = path.canonicalize().unwrap();
        let record = |max| {
            let known = Remembered::new(&absolute, TokenType::U16, &fs::metadata(&path).unwrap());
            Remembered { hash: "7".to_owned(), max, ..known }
        };
        let name = xxh3_128(format!("2 {}", absolute.display()).as_bytes());
        let place = cache.join(format!("{name:032x}.json"));
        record([8, 9]).write(&place).unwrap();
        assert_eq!(of(), TokenScan { hash: 7, max: [8, 9] });
        assert_eq!(records().collect::<Vec<_>>(), std::slice::from_ref(&place), "no lock is left");
        // Other contents of the same size, with the time of the first.
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, tokens(9)).unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert_eq!(of().max, [9, 4]);
        fs::write(&place, "damaged").unwrap();
        assert_eq!(of().max, [9, 4]);
    }
}
