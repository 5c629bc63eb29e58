//! SHA-256 hashes of files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

/// The hash of a file's contents in hexadecimal.
pub(super) fn sha256_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            return Ok(hex(&hasher.finalize()));
        }
        hasher.update(&chunk[..read]);
    }
}

/// Formats bytes as lower-case hexadecimal digits.
pub(in crate::pjrt) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
