//! A configuration in a job with a varying number of hosts: it is that of all of them, and says for
//! fewer how the same training goes on.

use hlo::{Axis, Mesh};

use super::{AutoOr, Backend, BatchError, BatchSize, BatchSplit, Config};

/// A configuration that does not say how fewer hosts go on with it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RosterError {
    /// The replicas cannot be divided.
    #[error(
        "the mesh has {num_replicas} replicas, which the {full_processes} processes of all hosts \
         (--hosts, --processes-per-host) cannot share evenly; set mesh.data so that the \
         replicas are a multiple of {full_processes}"
    )]
    UnevenProcesses {
        /// Replicas of the whole mesh.
        num_replicas: usize,
        /// Processes of all hosts.
        full_processes: usize,
    },
    /// Too few processes for the axes other than `data`.
    #[error(
        "{num_processes} processes of {full_processes} cannot hold a mesh whose other axes than \
         data have {others} replicas"
    )]
    TooFew {
        /// Processes that are there.
        num_processes: usize,
        /// Processes of all hosts.
        full_processes: usize,
        /// Replicas along the other axes.
        others: usize,
    },
    /// Nobody knows how many replicas all hosts have.
    #[error(
        "the batch must not depend on the number of hosts: set train.global_batch and \
         train.microbatch, or mesh.data to the replicas of all hosts"
    )]
    UnknownBatch,
    /// The batch of all hosts cannot be divided.
    #[error(transparent)]
    Batch(#[from] BatchError),
}

impl Config {
    /// The mesh with all hosts, which have so many processes; `None` if it depends on their
    /// devices.
    fn full_mesh(&self, full_processes: usize) -> Result<Option<Mesh>, RosterError> {
        let is_cpu = self.device.backend == Backend::Cpu;
        if !is_cpu && self.mesh.fixed().is_none() {
            return Ok(None);
        }
        let mesh = self.mesh.on_virtual_devices(full_processes);
        let num_replicas = mesh.num_replicas();
        match num_replicas.is_multiple_of(full_processes) {
            true => Ok(Some(mesh)),
            false => Err(RosterError::UnevenProcesses { num_replicas, full_processes }),
        }
    }

    /// The number of processes of each generation must be a multiple of it, because axes other than
    /// `data` keep their sizes. `full_processes` are those of all hosts.
    ///
    /// # Errors
    /// If these cannot share the replicas, or the batch of fewer hosts would be another one.
    pub fn process_multiple(&self, full_processes: usize) -> Result<usize, RosterError> {
        self.clone().fit_roster(full_processes, full_processes)?;
        Ok(self.full_mesh(full_processes)?.map_or(1, |mesh| {
            let others = mesh.num_replicas() / mesh.size(Axis::Data);
            let of_process = mesh.num_replicas() / full_processes;
            others / greatest_common_divisor(others, of_process)
        }))
    }

    /// Makes the configuration of all hosts one for those that are there: each process keeps its
    /// replicas, the axis `data` shrinks, and the batch is the same microbatches.
    ///
    /// # Errors
    /// As [`Self::process_multiple`]; if the processes are too few for the other axes.
    pub fn fit_roster(
        &mut self,
        full_processes: usize,
        num_processes: usize,
    ) -> Result<(), RosterError> {
        let Some(mesh) = self.full_mesh(full_processes)? else {
            let has_batch = matches!(self.train.batch, BatchSize::Global(_));
            return match has_batch && self.train.microbatch.is_some() {
                true => Ok(()),
                false => Err(RosterError::UnknownBatch),
            };
        };
        let (train, shards) = (&mut self.train, mesh.num_batch_shards());
        let split = BatchSplit::new(train.batch, train.microbatches(), shards)?;
        train.batch = BatchSize::Global(split.global_batch());
        train.microbatch = Some(split.microbatch());
        train.num_microbatches = AutoOr::Auto;
        let data = mesh.size(Axis::Data) * num_processes;
        if !data.is_multiple_of(full_processes) {
            let others = mesh.num_replicas() / mesh.size(Axis::Data);
            return Err(RosterError::TooFew { num_processes, full_processes, others });
        }
        self.mesh.data = AutoOr::Value(data / full_processes);
        self.mesh.fsdp = AutoOr::Value(mesh.size(Axis::Fsdp));
        Ok(())
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(mesh: &str, train: &str) -> Config {
        let text = format!(
            "[model]\nname = \"mlp\"\nhidden = [8]\n[data]\nsource = \"digits\"\npath = \
             \"digits.csv\"\n[optimizer]\nname = \"sgd\"\n[schedule]\nname = \
             \"constant\"\npeak = 0.1\n[train]\nsteps = 8\n{train}\n[mesh]\n{mesh}\n"
        );
        Config::parse(&text, "a.toml".as_ref(), &[]).unwrap()
    }

    #[test]
    fn the_axis_data_and_the_batch_follow_the_processes() {
        for (mesh, train, full, now, expected) in [
            ("data = 4", "global_batch = 64", 4, 3, (3, 1, 64, 16)),
            ("data = 8", "global_batch = 64", 4, 3, (6, 1, 64, 8)),
            ("data = \"auto\"", "batch_per_replica = 6", 4, 1, (1, 1, 24, 6)),
            ("data = 4\nfsdp = 2", "global_batch = 64\nnum_microbatches = 2", 8, 6, (3, 2, 64, 4)),
            ("data = 4", "global_batch = 24\nmicrobatch = 4", 4, 4, (4, 1, 24, 4)),
        ] {
            let mut config = config(mesh, train);
            config.fit_roster(full, now).unwrap();
            let microbatch = config.train.microbatch.unwrap();
            let BatchSize::Global(batch) = config.train.batch else { panic!() };
            let AutoOr::Value(fsdp) = config.mesh.fsdp else { panic!() };
            let AutoOr::Value(data) = config.mesh.data else { panic!() };
            assert_eq!((data, fsdp, batch, microbatch), expected, "{mesh} {train} {now} of {full}");
        }
    }

    #[test]
    fn generations_have_whole_copies_of_the_other_axes() {
        let multiple = |mesh: &str, full| config(mesh, "global_batch = 64").process_multiple(full);
        assert_eq!(multiple("data = 4", 4).unwrap(), 1);
        assert_eq!(multiple("data = 4\nfsdp = 2", 8).unwrap(), 2);
        assert_eq!(multiple("data = 4\nfsdp = 2", 4).unwrap(), 1);
        assert_eq!(multiple("data = 2\nfsdp = 2\ntensor = 3", 6).unwrap(), 3);
        let error = multiple("data = 4", 8).unwrap_err().to_string();
        assert!(error.contains("4 replicas, which the 8 processes"), "{error}");
        let error = config("data = 4\nfsdp = 2", "global_batch = 64").fit_roster(8, 3).unwrap_err();
        assert!(error.to_string().contains("3 processes of 8"), "{error}");
    }
}
