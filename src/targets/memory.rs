//! Memory use of a compiled step.

use hlo::{TensorType, Tree};
use serde::Serialize;

use super::worker::Answer;
use super::{Chip, Family};
use crate::pjrt::CompiledMemory;
use crate::step::StateSection;

/// Memory of one device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Parameters and running means.
    pub parameters_bytes: u64,
    /// The optimizer's state.
    pub optimizer_bytes: u64,
    /// Intermediate values: activations, gradients, workspace.
    pub temporaries_bytes: u64,
    /// The largest sum of whole gathered parameters that are in memory at once, which is part of
    /// the temporaries.
    pub gathered_bytes: u64,
    /// Peak use: the compiler's, on GPUs at least arguments, outputs and temporaries without what
    /// they share.
    pub peak_bytes: u64,
    /// The memory that a program may use, by the table of chips.
    pub limit_bytes: u64,
    /// The memory of the device.
    pub device_bytes: u64,
    /// The device's memory as the plugin describes it. On a TPU, programs may use all of it.
    pub described_bytes: Option<u64>,
}

/// The fraction of a GPU's memory that the plugin allocates by default.
pub(super) const GPU_MEMORY_FRACTION: f64 = 0.75;

impl Memory {
    /// The part that is known from the state's types before compiling.
    pub(super) fn of_state(state: &Tree<TensorType>, chip: &Chip, gpu_fraction: f64) -> Self {
        let bytes = |sections: &[StateSection]| -> u64 {
            let is_in = |path: &str| {
                StateSection::of(path).is_some_and(|(section, _)| sections.contains(&section))
            };
            state.iter().filter(|(path, _)| is_in(path)).map(|(_, ty)| ty.num_bytes() as u64).sum()
        };
        Self {
            parameters_bytes: bytes(&[StateSection::Params, StateSection::ModelState]),
            optimizer_bytes: bytes(&[StateSection::OptState, StateSection::Comm]),
            limit_bytes: limit(chip, gpu_fraction),
            device_bytes: chip.memory_bytes,
            ..Self::default()
        }
    }

    /// Adds the compiler's memory analysis.
    pub(super) fn compiled(self, answer: &Answer, chip: &Chip) -> Self {
        let CompiledMemory {
            argument_bytes,
            output_bytes,
            alias_bytes,
            temporary_bytes,
            peak_bytes,
            ..
        } = answer.memory;
        let sum = (argument_bytes + output_bytes + temporary_bytes).saturating_sub(alias_bytes);
        let peak_bytes = match chip.family {
            // libtpu's includes everything, and it refuses what does not fit.
            Family::Tpu(_) if peak_bytes > 0 => peak_bytes,
            // The CUDA compiler's can be less than the temporaries alone, which are one allocation.
            _ => peak_bytes.max(sum),
        };
        Self {
            temporaries_bytes: temporary_bytes,
            peak_bytes,
            described_bytes: answer.limit_bytes,
            ..self
        }
    }

    /// Parses an out-of-memory error of the compiler: `Ran out of memory .. the total memory
    /// required for HLO temporaries (20.78G) exceeds available HBM (15.75G)`.
    pub(super) fn refused(self, message: &str) -> Option<Self> {
        if !message.contains("CompileTimeHbmOom") && !message.contains("RESOURCE_EXHAUSTED") {
            return None;
        }
        let state = self.parameters_bytes + self.optimizer_bytes;
        let mut sizes = message.split('(').skip(1).filter_map(gibibytes);
        let (needed, available) = (sizes.next()?, sizes.next()?);
        Some(Self {
            temporaries_bytes: needed,
            peak_bytes: needed.saturating_add(state).max(available.max(self.limit_bytes) + 1),
            ..self
        })
    }

    /// `true` if the peak is within the limit.
    pub fn fits(&self) -> bool {
        self.peak_bytes <= self.limit_bytes
    }
}

/// The memory of a chip that a program may use by default.
pub(super) fn usable(chip: &Chip) -> u64 {
    limit(chip, GPU_MEMORY_FRACTION)
}

/// The part of a device's memory that a program may use.
fn limit(chip: &Chip, gpu_fraction: f64) -> u64 {
    match &chip.family {
        Family::Tpu(tpu) => tpu.usable_bytes,
        Family::Gpu(_) => (chip.memory_bytes as f64 * gpu_fraction) as u64,
    }
}

/// `20.78G) exceeds` -> bytes.
fn gibibytes(text: &str) -> Option<u64> {
    let (number, _) = text.split_once(')')?;
    let unit = number.chars().last()?;
    let factor = match unit {
        'T' => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        'G' => 1024.0 * 1024.0 * 1024.0,
        'M' => 1024.0 * 1024.0,
        'K' => 1024.0,
        _ => return None,
    };
    let number: f64 = number.trim_end_matches(unit).parse().ok()?;
    Some((number * factor) as u64)
}

/// Bytes for people: `15.75 GiB`.
pub fn gib(bytes: u64) -> String {
    let bytes = bytes as f64;
    if bytes >= 0.1 * 1024f64.powi(3) {
        format!("{:.2} GiB", bytes / 1024f64.powi(3))
    } else {
        format!("{:.2} MiB", bytes / 1024f64.powi(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// The step of GPT-2 124M with 128 examples and remat on an H100, as the CUDA compiler reported
    /// it.
    #[test]
    fn the_peak_is_at_least_what_is_allocated() {
        let memory = CompiledMemory {
            argument_bytes: 2 * GIB,
            output_bytes: 2 * GIB,
            alias_bytes: 2 * GIB,
            temporary_bytes: 64 * GIB,
            peak_bytes: 56 * GIB,
            ..CompiledMemory::default()
        };
        let answer = Answer { devices: vec![], memory, limit_bytes: Some(80 * GIB) };
        let on = |name: &str| {
            let chip = Chip::named(name).unwrap();
            let memory = Memory { limit_bytes: usable(chip), ..Memory::default() };
            memory.compiled(&answer, chip)
        };
        assert_eq!((on("h100").peak_bytes, on("h100").fits()), (66 * GIB, false));
        assert_eq!((on("v5p").peak_bytes, on("v5p").fits()), (56 * GIB, true));
    }

    #[test]
    fn a_refusal_is_read() {
        let message = "PJRT_Compile: RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: the total \
                       memory required for HLO temporaries (20.78G) exceeds available HBM (15.75G)";
        let limit_bytes = usable(Chip::named("v5e").unwrap());
        let state = Memory {
            parameters_bytes: GIB,
            optimizer_bytes: 2 * GIB,
            limit_bytes,
            ..Memory::default()
        };
        let memory = state.refused(message).unwrap();
        // The compiler's number is rounded.
        assert_eq!(
            (gib(memory.limit_bytes), memory.limit_bytes),
            ("15.75 GiB".into(), limit_bytes)
        );
        assert!(memory.temporaries_bytes > 22 * 1_000_000_000 && !memory.fits(), "{memory:?}");
        assert_eq!(state.refused("INVALID_ARGUMENT: no (1.0G) such (2.0G)"), None);
    }
}
