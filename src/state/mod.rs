//! The training state on the devices: `params.*`, `model_state.*`, `opt_state.*` and the counters.
//!
//! A [`State`] has the [`LeafSpec`] of each leaf, so no code derives a global shape from a local
//! buffer. It gathers whole leaves for parameter files, copies pieces for checkpoints, and fills
//! leaves from values that are read piece by piece, on any mesh.

mod fingerprint;
mod shards;

use std::sync::Arc;

use hlo::{LeafSpec, Literal, Mesh, Tree};

use crate::pjrt::{self, Buffers, Client, Pending, Placement};

pub use fingerprint::fingerprint;

/// The leaves of a run, on the devices, after some number of steps.
pub struct State {
    client: Client,
    placement: Placement,
    mesh: Mesh,
    specs: Tree<LeafSpec>,
    /// In the order of the specs. Empty after [`Self::take`] until [`Self::put`].
    buffers: Vec<Buffers>,
    num_steps: u64,
}

/// Why a leaf cannot be read or replaced.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state has no leaf at this path, or the value does not fit the leaf.
    #[error("the leaf `{path}` of the state: {reason}")]
    Leaf {
        /// Its path.
        path: String,
        /// The mismatch.
        reason: String,
    },
    /// A transfer failed, or the launch that computes the leaf.
    #[error(transparent)]
    Pjrt(#[from] pjrt::Error),
}

impl State {
    /// The state before the first step: `buffers` in the order of `specs`.
    pub fn new(
        client: Client,
        placement: Placement,
        mesh: Mesh,
        specs: Tree<LeafSpec>,
        buffers: Vec<Buffers>,
    ) -> Self {
        Self { client, placement, mesh, specs, buffers, num_steps: 0 }
    }

    /// A state with leaves made of the pieces that `read` returns, given the path and specification
    /// of a leaf and what [`Self::fill`] says of a piece.
    ///
    /// # Errors
    /// A piece with another dtype or other dims, or an upload that fails; and the errors of `read`.
    pub fn read<E: From<Error>>(
        client: Client,
        placement: Placement,
        mesh: Mesh,
        specs: Tree<LeafSpec>,
        mut read: impl FnMut((&str, &LeafSpec), &[usize], &[usize]) -> Result<Literal, E>,
    ) -> Result<Self, E> {
        let mut state = Self::new(client, placement, mesh, specs, vec![]);
        let buffers = state.specs.iter().map(|(path, spec)| {
            state.upload((path, spec), |start, dims| read((path, spec), start, dims))
        });
        state.buffers = buffers.collect::<Result<_, E>>()?;
        Ok(state)
    }

    /// The specification of each leaf, in order.
    pub fn specs(&self) -> &Tree<LeafSpec> {
        &self.specs
    }

    /// The replicas.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Steps that have been launched on it.
    pub fn num_steps(&self) -> u64 {
        self.num_steps
    }

    /// The leaf at `path`.
    pub fn get(&self, path: &str) -> Option<&Buffers> {
        self.specs.index_of(path).and_then(|index| self.buffers.get(index))
    }

    /// Paths and leaves, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Buffers)> {
        self.specs.paths().zip(&self.buffers)
    }

    /// The leaves, in order.
    pub fn leaves(&self) -> impl ExactSizeIterator<Item = &Buffers> {
        self.buffers.iter()
    }

    /// Takes the leaves out, to donate them to a launch that computes the next ones.
    pub fn take(&mut self) -> Vec<Buffers> {
        std::mem::take(&mut self.buffers)
    }

    /// Stores the leaves after `num_steps` more steps.
    pub fn put(&mut self, leaves: Vec<Buffers>, num_steps: u64) {
        self.buffers = leaves;
        self.num_steps += num_steps;
    }

    /// `true` if the replicas of this process hold all of a leaf.
    pub fn is_here(&self, spec: &LeafSpec) -> bool {
        shards::holders(spec, &self.mesh, self.placement.replicas()).is_some()
    }

    /// Starts the transfer of a whole leaf to the host.
    ///
    /// # Errors
    /// If the state has no leaf at `path`, or a transfer cannot be started.
    pub fn gather(&self, path: &str) -> Result<PendingLeaf<'_>, Error> {
        let (Some(spec), Some(buffers)) = (self.specs.get(path), self.get(path)) else {
            return Err(no_such_leaf(path));
        };
        let holders = shards::holders(spec, &self.mesh, self.placement.replicas());
        let holders = holders
            .ok_or_else(|| does_not_fit(path, "another process holds a part of it".to_owned()))?;
        let pieces = holders.into_iter().map(|replica| Ok((replica, buffers.to_host(replica)?)));
        Ok(PendingLeaf { spec, mesh: &self.mesh, pieces: pieces.collect::<Result<_, Error>>()? })
    }

    /// Copies the pieces of a leaf that this process holds first of all processes to the host, each
    /// once: their first elements in the whole leaf, and their values. The transfers of all leaves
    /// should be started before the first is waited for.
    ///
    /// # Errors
    /// If the state has no leaf at `path`, or a transfer cannot be started.
    pub fn pieces(&self, path: &str) -> Result<PendingPieces, Error> {
        let (Some(spec), Some(buffers)) = (self.specs.get(path), self.get(path)) else {
            return Err(no_such_leaf(path));
        };
        let local = spec.local_type(&self.mesh);
        let local = local.map_err(|error| does_not_fit(path, error.to_string()))?;
        // The processes that hold the same piece leave it to the one of the first such replica.
        let holders = shards::held(spec, &self.mesh, 0..self.mesh.num_replicas()).into_iter();
        let holders =
            holders.filter(|holder| self.placement.replicas().any(|here| here == *holder));
        let pieces = holders.filter_map(|replica| {
            let (start, dims) = shards::place(spec, &self.mesh, replica, &local.dims);
            let is_padding = dims != local.dims && dims.contains(&0);
            (!is_padding).then(|| Ok((start, dims, buffers.to_host(replica)?)))
        });
        Ok(PendingPieces(pieces.collect::<Result<_, Error>>()?))
    }

    /// Declares that the leaves are those after `num_steps` steps, when all have been replaced.
    pub fn set_num_steps(&mut self, num_steps: u64) {
        self.num_steps = num_steps;
    }

    /// Replaces a leaf by `whole`, which has the leaf's global dims.
    ///
    /// # Errors
    /// If the state has no leaf at `path`, the dtype or dims differ from the leaf's, or an upload
    /// fails.
    pub fn scatter(&mut self, path: &str, whole: &Literal) -> Result<(), Error> {
        let spec = self.specs.get(path).ok_or_else(|| no_such_leaf(path))?;
        if (whole.dtype(), whole.dims()) != (spec.dtype, &spec.dims[..]) {
            let found = format!("{}{:?}", whole.dtype(), whole.dims());
            return Err(does_not_fit(path, format!("it is {}, not {found}", spec.global_type())));
        }
        self.fill(path, |start, dims| Ok(whole.slice(start, dims)))
    }

    /// Replaces a leaf by the pieces that `read` returns, given the index of a piece's first
    /// element in the whole leaf, for each dim, and its dims. It is called once for each piece that
    /// this process holds.
    ///
    /// # Errors
    /// If the state has no leaf at `path`, a piece has another dtype or other dims, or an upload
    /// fails; and the errors of `read`.
    pub fn fill<E: From<Error>>(
        &mut self,
        path: &str,
        read: impl FnMut(&[usize], &[usize]) -> Result<Literal, E>,
    ) -> Result<(), E> {
        let index = self.specs.index_of(path).ok_or_else(|| no_such_leaf(path))?;
        self.buffers[index] = self.upload((path, &self.specs[path]), read)?;
        Ok(())
    }

    /// A leaf from its pieces.
    fn upload<E: From<Error>>(
        &self,
        (path, spec): (&str, &LeafSpec),
        mut read: impl FnMut(&[usize], &[usize]) -> Result<Literal, E>,
    ) -> Result<Buffers, E> {
        let ty = spec.local_type(&self.mesh);
        let ty = ty.map_err(|error| does_not_fit(path, error.to_string()))?;
        let axes = spec.sharding.varying();
        let mut pieces = vec![None; self.mesh.group_size(axes)];
        let mut of_replicas = vec![];
        for replica in self.placement.replicas() {
            let piece: &mut Option<Arc<Literal>> = &mut pieces[self.mesh.index(replica, axes)];
            if piece.is_none() {
                let (start, dims) = shards::place(spec, &self.mesh, replica, &ty.dims);
                let values = match dims.contains(&0) {
                    true => Literal::zeros(ty.dtype, &dims),
                    false => read(&start, &dims)?,
                };
                if (values.dtype(), values.dims()) != (ty.dtype, &dims[..]) {
                    let reason = format!("a piece must be {}{dims:?}", ty.dtype);
                    return Err(does_not_fit(path, reason).into());
                }
                *piece = Some(Arc::new(shards::padded(values, &ty.dims)));
            }
            of_replicas.extend(piece.clone());
        }
        Ok(self.client.upload_on(&self.placement, &of_replicas).map_err(Error::from)?)
    }

    /// Replaces a leaf by one piece per replica. The pieces may differ where the leaf must be the
    /// same, to test that the lockstep proof detects it.
    ///
    /// # Errors
    /// If the state has no leaf at `path`, a dtype or dims differ from the leaf's local type, or an
    /// upload fails.
    pub fn replace(&mut self, path: &str, per_replica: &[Arc<Literal>]) -> Result<(), Error> {
        let index = self.specs.index_of(path).ok_or_else(|| no_such_leaf(path))?;
        let ty = self.specs[path].local_type(&self.mesh);
        let ty = ty.map_err(|error| does_not_fit(path, error.to_string()))?;
        let fits = |x: &Arc<Literal>| x.dtype() == ty.dtype && x.dims() == ty.dims;
        if !per_replica.iter().all(fits) || per_replica.len() != self.mesh.num_replicas() {
            return Err(does_not_fit(path, format!("it needs one {ty} per replica")));
        }
        let addressable: Vec<_> =
            self.placement.replicas().map(|replica| per_replica[replica].clone()).collect();
        self.buffers[index] = self.client.upload_on(&self.placement, &addressable)?;
        Ok(())
    }
}

fn no_such_leaf(path: &str) -> Error {
    does_not_fit(path, "the state has no such leaf".to_owned())
}

fn does_not_fit(path: &str, reason: String) -> Error {
    Error::Leaf { path: path.to_owned(), reason }
}

/// A whole leaf on its way to the host.
pub struct PendingLeaf<'s> {
    spec: &'s LeafSpec,
    mesh: &'s Mesh,
    pieces: Vec<(usize, Pending)>,
}

/// The pieces of a leaf on their way to the host.
pub struct PendingPieces(Vec<(Vec<usize>, Vec<usize>, Pending)>);

impl PendingPieces {
    /// Waits for the pieces.
    ///
    /// # Errors
    /// If a transfer failed, or the launch that computes the leaf.
    pub fn wait(self) -> Result<Vec<(Vec<usize>, Literal)>, Error> {
        let wait = |(start, dims, piece): (_, Vec<_>, Pending)| {
            Ok((start, shards::without_padding(piece.wait()?, &dims)))
        };
        self.0.into_iter().map(wait).collect()
    }
}

impl PendingLeaf<'_> {
    /// Waits for the leaf.
    ///
    /// # Errors
    /// If a transfer failed, or the launch that computes the leaf.
    pub fn wait(self) -> Result<Literal, Error> {
        let wait = |(replica, piece): (usize, Pending)| Ok::<_, Error>((replica, piece.wait()?));
        let mut pieces: Vec<_> = self.pieces.into_iter().map(wait).collect::<Result<_, _>>()?;
        match pieces.len() {
            1 => Ok(pieces.swap_remove(0).1),
            _ => Ok(shards::join(self.spec, self.mesh, pieces)),
        }
    }
}
