//! Whether a run fits into memory, asked before anything of its size is allocated: of the state
//! before compiling, of the programs by the compiler's figures.

use std::{fmt, fs};

use hlo::{Axis, LeafSpec, Mesh, Tree};

use super::Error;
use crate::data::SystemMemory;
use crate::observe::{PeakMemory, human_bytes, say};
use crate::pjrt::{self, Client, Code, CompiledMemory, Executable, Platform};

/// The most memory that this process has taken so far: of the host, and of one of its devices.
pub(super) fn peak(client: &Client) -> PeakMemory {
    let devices = 0..client.devices().len();
    let of_device = |device| client.memory_stats(device).ok()??.peak_bytes_in_use;
    // Other systems than Linux do not say.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    PeakMemory {
        process_bytes: peak_resident(&status),
        device_bytes: devices.filter_map(of_device).max(),
    }
}

/// The most memory that a process has had, by what Linux says of it.
fn peak_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The memory of one replica, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Need {
    /// The state, and after compiling also the batch.
    state_bytes: u64,
    /// Everything else that a program computes, after compiling.
    temporary_bytes: u64,
    is_measured: bool,
    is_evaluation: bool,
}

/// The memory of a program, by the compiler's figures; `None` if the plugin has none.
///
/// # Errors
/// If the plugin fails otherwise.
pub(super) fn compiled_memory(program: &Executable) -> Result<Option<CompiledMemory>, Error> {
    match program.memory() {
        Ok(memory) => Ok(Some(memory)),
        Err(pjrt::Error::Pjrt { code: Code::Unimplemented, .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Need {
    /// The need of a step that is known before it is compiled: its state. Not all gradients need to
    /// be there at the same time.
    pub fn of_state(leaves: &Tree<LeafSpec>, mesh: &Mesh) -> Self {
        // A leaf that the mesh does not divide is refused elsewhere.
        let bytes =
            |leaf: &LeafSpec| leaf.local_type(mesh).map_or(0, |local| local.num_bytes() as u64);
        let state_bytes = leaves.values().map(bytes).fold(0, u64::saturating_add);
        Self { state_bytes, ..Self::default() }
    }

    /// The need of the program of an evaluation, by the compiler's figures.
    ///
    /// # Errors
    /// As [`Self::of_programs`].
    pub fn of_evaluation(program: &Executable) -> Result<Self, Error> {
        Ok(Self { is_evaluation: true, ..Self::of_programs([program])? })
    }

    /// The need of the largest of some programs, by the compiler's figures. A plugin without
    /// figures needs nothing.
    ///
    /// # Errors
    /// If the plugin fails otherwise.
    pub fn of_programs<'e>(
        programs: impl IntoIterator<Item = &'e Executable>,
    ) -> Result<Self, Error> {
        let mut largest = Self::default();
        for program in programs {
            if let Some(memory) = compiled_memory(program)? {
                largest = std::cmp::max_by_key(largest, Self::of_program(&memory), Self::total);
            }
        }
        Ok(largest)
    }

    fn of_program(memory: &CompiledMemory) -> Self {
        let CompiledMemory { argument_bytes, output_bytes, alias_bytes, temporary_bytes, .. } =
            *memory;
        // Donated arguments are results already.
        let outputs = output_bytes.saturating_sub(alias_bytes);
        Self {
            state_bytes: argument_bytes.saturating_add(outputs),
            temporary_bytes,
            is_measured: true,
            is_evaluation: false,
        }
    }

    fn total(&self) -> u64 {
        self.state_bytes.saturating_add(self.temporary_bytes)
    }
}

/// Refuses what is larger than the memory of a client's devices, and says if it is larger than what
/// is free. Where neither the plugin nor the system says how much there is, everything is accepted.
///
/// # Errors
/// [`Error::Memory`], which says what to change.
pub(super) fn check(client: &Client, mesh: &Mesh, need: Need) -> Result<(), Error> {
    let Some(memory) = Memory::of(client, mesh) else { return Ok(()) };
    if let Some(warning) = memory.check(need)? {
        say(&format!("warning: {warning}"));
    }
    Ok(())
}

/// Where replicas allocate memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Device,
    Host,
    ControlGroup,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "the device",
            Self::Host => "this host, swap included,",
            Self::ControlGroup => "the control group of this process (the limit of its container)",
        })
    }
}

/// The memory that replicas of this process allocate from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    place: Place,
    /// All memory, used or not.
    total_bytes: u64,
    /// The memory that others do not use now, if that is known.
    free_bytes: Option<u64>,
    /// Replicas that share it.
    num_replicas: u64,
    is_sharded: bool,
}

impl Memory {
    /// The memory of the devices of a client: on the CPU backend, all replicas of this process
    /// share that of the host. `None` if the plugin or the system does not say how much there is.
    fn of(client: &Client, mesh: &Mesh) -> Option<Self> {
        let is_sharded = mesh.size(Axis::Fsdp) > 1;
        if client.platform() != Platform::Cpu {
            let total_bytes = client.memory_stats(0).ok()??.bytes_limit?;
            let place = Place::Device;
            return Some(Self {
                place,
                total_bytes,
                free_bytes: None,
                num_replicas: 1,
                is_sharded,
            });
        }
        let num_replicas = client.devices().len().min(mesh.num_replicas()) as u64;
        of_host(&SystemMemory::now()?, num_replicas, is_sharded)
    }

    /// Refuses what is larger than the memory. The answer is a warning if a compiled program needs
    /// more than is free.
    fn check(&self, need: Need) -> Result<Option<String>, Error> {
        let needed = need.total().saturating_mul(self.num_replicas);
        if needed > self.total_bytes {
            let message = format!(
                "{}, but {} has {}; {}",
                self.describe(need, needed),
                self.place,
                human_bytes(self.total_bytes),
                self.advice(need)
            );
            return Err(Error::Memory { message });
        }
        let is_too_much = |free: &u64| need.is_measured && needed > *free;
        let Some(free) = self.free_bytes.filter(is_too_much) else { return Ok(None) };
        let (needs, advice) = (self.describe(need, needed), self.advice(need));
        Ok(Some(format!(
            "{needs}, and only {} of memory are free here; if the run ends without a message, the \
             system has killed it: {advice}",
            human_bytes(free)
        )))
    }

    fn describe(&self, need: Need, needed: u64) -> String {
        let (state, temporaries) =
            (human_bytes(need.state_bytes), human_bytes(need.temporary_bytes));
        let parts = match (need.is_evaluation, need.is_measured) {
            (true, _) => {
                format!(", {state} of parameters and batch and {temporaries} of temporaries")
            }
            (false, true) => {
                format!(", {state} of state and batch and {temporaries} of temporaries")
            }
            (false, false) if self.num_replicas == 1 => " for its state".to_owned(),
            (false, false) => format!(", {state} of state"),
        };
        let what = if need.is_evaluation { "the evaluation" } else { "the step" };
        let at_least = if need.is_measured { "" } else { " at least" };
        match self.num_replicas {
            1 => format!("{what} needs{at_least} {} of memory{parts}", human_bytes(needed)),
            replicas => format!(
                "{what} needs{at_least} {} of memory{parts} on each of {replicas} replicas",
                human_bytes(needed)
            ),
        }
    }

    /// Advice that makes the larger part smaller.
    fn advice(&self, need: Need) -> &'static str {
        let is_shared = self.num_replicas > 1;
        if need.is_evaluation {
            return "use a smaller batch, fewer replicas (mesh.data), or a smaller model";
        }
        match (need.state_bytes >= need.temporary_bytes, self.is_sharded, is_shared) {
            (true, false, true) => {
                "shard the state over these replicas (mesh.fsdp, parallel.zero = 3), use fewer of \
                 them, or a smaller model"
            }
            (true, false, false) => {
                "shard the state over several devices (mesh.fsdp, parallel.zero = 3), or use a \
                 smaller model"
            }
            (true, true, _) => {
                "shard the state over more devices (mesh.fsdp), or use a smaller model"
            }
            (false, ..) => {
                "use a smaller batch, or more microbatches (train.num_microbatches, or a smaller \
                 train.microbatch), or recompute activations (model.remat = true) where the model can"
            }
        }
    }
}

/// The control group if it has less than the host. Whether it may use the host's swap is not known,
/// so that is not counted.
fn of_host(system: &SystemMemory, num_replicas: u64, is_sharded: bool) -> Option<Memory> {
    let (place, total_bytes, free_bytes) = match system.in_group() {
        Some((limit, free)) => (Place::ControlGroup, limit, free),
        None => {
            let total = system.host_total.checked_add(system.host_swap)?;
            (Place::Host, total, system.host_available)
        }
    };
    Some(Memory { place, total_bytes, free_bytes: Some(free_bytes), num_replicas, is_sharded })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn host(num_replicas: u64) -> Memory {
        Memory {
            place: Place::Host,
            total_bytes: 24 * GIB,
            free_bytes: Some(20 * GIB),
            num_replicas,
            is_sharded: false,
        }
    }

    fn need(state: u64, temporaries: u64) -> Need {
        let (state_bytes, temporary_bytes) = (state * GIB, temporaries * GIB);
        Need { state_bytes, temporary_bytes, is_measured: true, is_evaluation: false }
    }

    #[test]
    fn the_peak_of_a_process_is_what_linux_says() {
        let status = "Name:\tlockstep\nVmPeak:\t  900 kB\nVmHWM:\t    1234 kB\nVmRSS:\t 12 kB\n";
        assert_eq!(peak_resident(status), Some(1234 * 1024));
        for other in ["", "VmHWM:\t12 pages\n", "VmHWM:\tmany kB\n"] {
            assert_eq!(peak_resident(other), None);
        }
    }

    #[test]
    fn what_is_larger_than_the_memory_is_refused_and_what_is_not_free_is_warned_of() {
        assert!(matches!(host(1).check(need(10, 10)), Ok(None)));
        let warning = host(1).check(need(10, 12)).unwrap().unwrap();
        assert!(warning.contains("only 20.00 GiB of memory are free"), "{warning}");
        assert!(warning.contains("train.num_microbatches"), "{warning}");
        let refused = host(4).check(need(6, 1)).unwrap_err().to_string();
        assert_eq!(
            refused,
            "the step needs 28.00 GiB of memory, 6.00 GiB of state and batch and 1.00 GiB of \
             temporaries on each of 4 replicas, but this host, swap included, has 24.00 GiB; shard \
             the state over these replicas (mesh.fsdp, parallel.zero = 3), use fewer of them, or a \
             smaller model"
        );
        let device = Memory { place: Place::Device, free_bytes: None, is_sharded: true, ..host(1) };
        let refused = device.check(need(30, 0)).unwrap_err().to_string();
        assert!(refused.contains("but the device has 24.00 GiB; shard the state over more"));
        // No sum wraps.
        assert!(host(u64::MAX).check(need(1, 1)).is_err());
    }

    #[test]
    fn the_advice_for_an_evaluation_is_of_evaluations() {
        let need = Need { is_evaluation: true, ..need(30, 1) };
        let refused = host(1).check(need).unwrap_err().to_string();
        assert!(
            refused.starts_with("the evaluation needs 31.00 GiB of memory, 30.00 GiB of param")
        );
        assert!(
            refused
                .ends_with("use a smaller batch, fewer replicas (mesh.data), or a smaller model")
        );
    }

    #[test]
    fn a_container_has_its_limit_without_the_swap_of_the_host() {
        let readings = |group| {
            let (host_total, host_swap, host_available) = (24 * GIB, 8 * GIB, 20 * GIB);
            let system = SystemMemory { host_total, host_swap, host_available, group };
            let memory = of_host(&system, 2, false).unwrap();
            (memory.place, memory.total_bytes / GIB, memory.free_bytes.unwrap() / GIB)
        };
        assert_eq!(readings(None), (Place::Host, 32, 20));
        assert_eq!(readings(Some((10 * GIB, 3 * GIB))), (Place::ControlGroup, 10, 7));
        // Others on the host have allocated more.
        assert_eq!(readings(Some((22 * GIB, GIB))), (Place::ControlGroup, 22, 20));
        // A limit that is none.
        assert_eq!(readings(Some((u64::MAX, GIB))), (Place::Host, 32, 20));
        let here = SystemMemory::now().unwrap();
        assert!(here.host_total > GIB && here.host_available <= here.host_total);
    }
}
