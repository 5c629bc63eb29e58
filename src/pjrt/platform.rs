//! Which platform a plugin is for.

/// The kind of device behind a client, as its plugin names it. What is written or compiled differently for
/// one depends on this, never on the name or path by which the plugin was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Platform {
    /// XLA on the host's processors.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
    /// Google TPUs.
    Tpu,
    /// Any other.
    Other,
}

impl Platform {
    /// From what `PJRT_Client_PlatformName` gives.
    pub fn from_name(name: &str) -> Self {
        match name {
            "cpu" => Self::Cpu,
            "cuda" => Self::Cuda,
            "tpu" => Self::Tpu,
            _ => Self::Other,
        }
    }
}
