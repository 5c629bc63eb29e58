//! placeholder for the first build
/// x
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct InstallError;
