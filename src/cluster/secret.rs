//! The secret that the processes of a job share. It never goes over a connection: keys follow from
//! it.

use std::path::{Path, PathBuf};
use std::{env, fmt, fs, io};

/// Bytes of a random secret.
const NUM_BYTES: usize = 32;
/// A shorter secret could be guessed.
const MIN_BYTES: usize = 16;

/// A secret shared by the processes of a job. Written as hexadecimal digits in files and
/// environment variables.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

/// Why a secret cannot be read. Messages do not contain it.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Not hexadecimal digits.
    #[error(
        "the token must be hexadecimal digits (two per byte, at least 32); `openssl rand -hex 32` \
         prints some"
    )]
    NotHexadecimal,
    /// Too short.
    #[error(
        "the token has {num_bytes} bytes, at least {MIN_BYTES} are needed; `openssl rand -hex 32` \
         prints a good one"
    )]
    TooShort {
        /// Its length.
        num_bytes: usize,
    },
    /// The environment variable is not set, or not text.
    #[error("environment variable {name}: {error}")]
    Variable {
        /// The variable.
        name: String,
        /// What is wrong.
        error: env::VarError,
    },
    /// The file cannot be read.
    #[error("cannot read the token from {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system reported.
        error: io::Error,
    },
}

impl Secret {
    /// A new secret of 32 random bytes.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn random() -> io::Result<Self> {
        random_bytes().map(|bytes| Self(bytes.to_vec()))
    }

    /// The secret with these bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Reads a secret of hexadecimal digits. White space around them is ignored.
    ///
    /// # Errors
    /// Other characters, or fewer than 16 bytes.
    pub fn from_hex(text: &str) -> Result<Self, SecretError> {
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|x| u8::try_from(x).ok());
        let (pairs, rest) = text.trim().as_bytes().as_chunks::<2>();
        let byte = |[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        match bytes {
            Some(bytes) if rest.is_empty() && bytes.len() >= MIN_BYTES => Ok(Self(bytes)),
            Some(bytes) if rest.is_empty() => Err(SecretError::TooShort { num_bytes: bytes.len() }),
            _ => Err(SecretError::NotHexadecimal),
        }
    }

    /// Reads a secret of hexadecimal digits from a file.
    ///
    /// # Errors
    /// A file that cannot be read, and those of [`Self::from_hex`].
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let text = fs::read_to_string(path);
        Self::from_hex(&text.map_err(|error| SecretError::File { path: path.into(), error })?)
    }

    /// Reads a secret of hexadecimal digits from an environment variable.
    ///
    /// # Errors
    /// A variable that is not set, and those of [`Self::from_hex`].
    pub fn from_env(name: &str) -> Result<Self, SecretError> {
        let without_contents = |error| match error {
            env::VarError::NotUnicode(_) => SecretError::NotHexadecimal,
            error => SecretError::Variable { name: name.to_owned(), error },
        };
        Self::from_hex(&env::var(name).map_err(without_contents)?)
    }

    /// The secret in hexadecimal digits, for a file or an environment variable.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Its bytes, from which keys follow.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Bytes that nobody can predict.
///
/// # Errors
/// If the system has none.
pub fn random_bytes() -> io::Result<[u8; NUM_BYTES]> {
    let mut bytes = [0; NUM_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_read_and_errors_do_not_show_them() {
        let secret = Secret::random().unwrap();
        assert_ne!(secret, Secret::random().unwrap());
        assert_eq!(Secret::from_hex(&format!(" {}\n", secret.hex())).unwrap(), secret);
        assert_eq!(Secret::from_hex(&secret.hex().to_uppercase()).unwrap(), secret);
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), secret.hex()).unwrap();
        assert_eq!(Secret::from_file(file.path()).unwrap(), secret);
        for (text, expected) in [
            ("correct horse battery staple", "hexadecimal"),
            ("0123456789abcdef0123456789abcdef0", "hexadecimal"),
            ("é123456789abcdef0123456789abcdef", "hexadecimal"),
            ("+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1", "hexadecimal"),
            ("0123456789abcdef", "8 bytes"),
            ("", "0 bytes"),
        ] {
            let error = Secret::from_hex(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
        let error = Secret::from_env("LOCKSTEP_NO_SUCH_VARIABLE").unwrap_err().to_string();
        assert!(error.contains("LOCKSTEP_NO_SUCH_VARIABLE"), "{error}");
    }
}
