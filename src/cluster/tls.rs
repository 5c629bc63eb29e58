//! The certificates with which a job's coordinator is reached, if it has one instead of the key
//! that follows from the token.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

/// Files with certificates, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authority that has signed the coordinator's certificate; all processes need it. `None`:
    /// it has no certificate.
    pub authority: Option<PathBuf>,
    /// The coordinator's certificate, where it runs, with the names or addresses by which it is
    /// reached.
    pub certificate: Option<PathBuf>,
    /// The certificate's private key.
    pub key: Option<PathBuf>,
}

/// What [`TlsFiles`] contain.
#[derive(Clone, Default)]
pub struct Tls {
    /// The authority; `None`: without certificates.
    pub authority: Option<Vec<u8>>,
    /// Certificate and key of the coordinator.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Without the key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { authority, identity } = self;
        f.debug_struct("Tls")
            .field("authority", &authority.is_some())
            .field("identity", &identity.is_some())
            .finish()
    }
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is something else.
    #[error("{} has no {label} in PEM (`-----BEGIN {label}-----`)", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// What it should have.
        label: &'static str,
    },
    /// A part is missing.
    #[error(
        "with certificates all processes need the authority's certificate (tls_ca), and the one that runs \
         the coordinator also its own certificate and key (tls_certificate and tls_key); {missing} \
         is missing"
    )]
    Missing {
        /// The key of the configuration.
        missing: &'static str,
    },
}

impl TlsFiles {
    /// Reads the files. `runs_coordinator`: this process needs a certificate of its own.
    ///
    /// # Errors
    /// If a file is missing, unreadable or something else.
    pub fn read(&self, runs_coordinator: bool) -> Result<Tls, TlsError> {
        let missing = |missing| TlsError::Missing { missing };
        let Some(authority) = &self.authority else {
            return match self.certificate.is_some() || self.key.is_some() {
                true => Err(missing("tls_ca")),
                false => Ok(Tls::default()),
            };
        };
        let authority = Some(pem(authority, "CERTIFICATE")?);
        if !runs_coordinator {
            return Ok(Tls { authority, identity: None });
        }
        let certificate = self.certificate.as_ref().ok_or(missing("tls_certificate"))?;
        let key = self.key.as_ref().ok_or(missing("tls_key"))?;
        let identity = Some((pem(certificate, "CERTIFICATE")?, pem(key, "PRIVATE KEY")?));
        Ok(Tls { authority, identity })
    }
}

fn pem(path: &Path, label: &'static str) -> Result<Vec<u8>, TlsError> {
    let text = fs::read(path);
    let text = text.map_err(|source| TlsError::Read { path: path.to_path_buf(), source })?;
    // `RSA PRIVATE KEY` is one too.
    let end = format!("{label}-----");
    let is_pem = String::from_utf8_lossy(&text)
        .lines()
        .any(|line| line.starts_with("-----BEGIN ") && line.trim_end().ends_with(&end));
    match is_pem {
        true => Ok(text),
        false => Err(TlsError::NotPem { path: path.to_path_buf(), label }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/tls");
        let file = |name: &str| Some(folder.join(name));
        let (authority, certificate, key) =
            (file("authority.pem"), file("certificate.pem"), file("key.pem"));
        let files = |authority, certificate, key| TlsFiles { authority, certificate, key };
        let whole = files(authority.clone(), certificate.clone(), key.clone());
        let tls = whole.read(true).unwrap();
        assert!(tls.authority.is_some() && tls.identity.is_some());
        assert!(!format!("{tls:?}").contains("PRIVATE"));
        assert!(whole.read(false).unwrap().identity.is_none());
        assert!(TlsFiles::default().read(true).unwrap().authority.is_none());
        for (files, expected) in [
            (files(None, certificate.clone(), None), "tls_ca is missing"),
            (files(authority.clone(), None, key.clone()), "tls_certificate is missing"),
            (files(authority.clone(), certificate.clone(), None), "tls_key is missing"),
            (files(authority.clone(), key.clone(), key.clone()), "key.pem has no CERTIFICATE"),
            (files(authority.clone(), certificate.clone(), certificate.clone()), "no PRIVATE KEY"),
            (files(file("absent.pem"), None, None), "absent.pem"),
        ] {
            let error = files.read(true).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
