//! The platform of a plugin.

/// The kind of a client's devices, as named by its plugin. Whatever is lowered or compiled
/// differently depends on this. While the plugin is still opening, `train` takes it from the
/// configured backend if that is a name and not a path (`platform_on_host`).
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
    /// From the result of `PJRT_Client_PlatformName`.
    pub fn from_name(name: &str) -> Self {
        match name {
            "cpu" => Self::Cpu,
            "cuda" => Self::Cuda,
            "tpu" => Self::Tpu,
            _ => Self::Other,
        }
    }
}
