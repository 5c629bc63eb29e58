//! A digest of parameters.

use hlo::{Literal, Tree};
use sha2::{Digest, Sha256};

/// SHA-256, in hex, of the paths and bits of whole leaves, in order. It does not depend on the
/// mesh.
pub fn fingerprint(leaves: &Tree<Literal>) -> String {
    let mut hash = Sha256::new();
    for (path, literal) in leaves.iter() {
        hash.update((path.len() as u64).to_le_bytes());
        hash.update(path);
        hash.update(literal.bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
