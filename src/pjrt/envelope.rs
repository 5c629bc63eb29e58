//! The file format of a serialized executable: the plugin's bytes with a header that identifies the
//! program and has a checksum. Plugins do not validate the bytes that they load.

use hlo::Program;
use sha2::{Digest, Sha256};

use super::{Error, Result};

const MAGIC: &[u8] = b"lockstep executable 1\n";
const DIGEST: usize = 32;
const HEADER: usize = MAGIC.len() + 2 * DIGEST;

/// SHA-256 of a program without its source locations.
pub(super) fn digest(program: &Program) -> [u8; DIGEST] {
    Sha256::digest(program.text_without_locations()).into()
}

/// Adds the header: magic, digest of the program, digest of the payload.
pub(super) fn enclose(program: &[u8; DIGEST], payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(program);
    bytes.extend_from_slice(&Sha256::digest(payload));
    bytes.extend_from_slice(payload);
    bytes
}

/// Checks the header and returns the payload.
///
/// # Errors
/// [`Error::Serialized`] if the bytes are damaged or of another program.
pub(super) fn open<'a>(program: &[u8; DIGEST], bytes: &'a [u8]) -> Result<&'a [u8]> {
    let refuse = |reason: &str| Err(Error::Serialized { reason: reason.into() });
    if bytes.len() < HEADER || !bytes.starts_with(MAGIC) {
        return refuse("the bytes do not begin as a serialized executable does");
    }
    let (header, payload) = bytes.split_at(HEADER);
    let (of_program, of_payload) = header[MAGIC.len()..].split_at(DIGEST);
    if Sha256::digest(payload)[..] != *of_payload {
        return refuse("its checksum is wrong");
    }
    if of_program != program {
        return refuse("it was compiled from another program");
    }
    Ok(payload)
}
