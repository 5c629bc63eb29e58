//! Reading a checkpoint.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use hlo::{Fused, LeafSpec, Literal, OnOtherMesh, Tree, row_paths, row_specs, rows};
use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

use super::blocks::{StoredPiece, Unreadable, WINDOW_BYTES};
use super::manifest::hex;
use super::names::step_of;
use super::objects;
use super::regions::{SavedRow, regions, runs_in, saved_rows};
use super::{
    CheckpointSource, Error, FileRecord, LeafRecord, LocalSource, Location, Manifest, PieceRecord,
    RunRecord, SourceFile,
};

/// A checkpoint with a checked manifest and checked files. Values are checked when they are read.
#[derive(Debug)]
pub struct Checkpoint {
    location: Location,
    manifest: Manifest,
    files: Vec<Box<dyn SourceFile>>,
    specs: Tree<LeafSpec>,
    rows: Tree<SavedRow>,
}

impl Checkpoint {
    /// Reads the manifest, and checks that all files are there and whole.
    ///
    /// # Errors
    /// A directory that is not a checkpoint, or one that is damaged or too new.
    pub fn open(location: impl Into<Location>) -> Result<Self, Error> {
        let location = location.into();
        match &location {
            Location::Path(path) => Self::from_source(path, &LocalSource::new(path)),
            Location::Url(url) => {
                let source = objects::source(url).map_err(Error::io("read", &location))?;
                Self::from_source(&location, &*source)
            }
        }
    }

    /// As [`Self::open`], with the files of `source`. Errors name `location`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_source(
        location: impl Into<Location>,
        source: &dyn CheckpointSource,
    ) -> Result<Self, Error> {
        let path: &Location = &location.into();
        let text = read_whole(source, Manifest::FILE).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory if has_lost_manifest(path) => {
                Error::Incomplete { path: path.clone() }
            }
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                Error::NotACheckpoint { path: path.clone(), hint: hint(path) }
            }
            _ => Error::io("read", path.join(Manifest::FILE))(error),
        })?;
        let manifest = Manifest::from_text(&text, path)?;
        let damaged = |reason: String| Error::Damaged { path: path.clone(), reason };
        let specs = manifest.specs().map_err(damaged)?;
        let open = |record: &FileRecord| open_file(path, source, record);
        let files = manifest.files.par_iter().map(open).collect::<Result<_, _>>()?;
        let rows = saved_rows(&specs);
        Ok(Self { location: path.clone(), manifest, files, specs, rows })
    }

    /// Where it is.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// `true` if it is one of the checkpoints in a place.
    pub fn is_in(&self, dir: &Location) -> bool {
        self.location.is_in(dir)
    }

    /// Everything but the values.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The run that it belongs to.
    pub fn run(&self) -> &RunRecord {
        &self.manifest.run
    }

    /// The leaves as they were declared.
    pub fn specs(&self) -> &Tree<LeafSpec> {
        &self.specs
    }

    /// Reads a whole leaf, as it was saved.
    ///
    /// # Errors
    /// A leaf that is not there, or damaged bytes.
    pub fn leaf(&self, path: &str) -> Result<Literal, Error> {
        let spec = self.specs.get(path).ok_or_else(|| self.missing(path))?;
        self.read(path, spec, &vec![0; spec.dims.len()], &spec.dims)
    }

    /// Reads from the leaf `path`, which this run declares as `spec`, the rectangle of these `dims`
    /// that starts at `start`. The leaf may have been saved in any pieces, as rows of a stack or as
    /// a stack of rows. Only the blocks that hold its bytes are read, each once.
    ///
    /// # Errors
    /// A leaf that was not saved or has another dtype or other dims, a rectangle that is not in it,
    /// damaged bytes, or files that cannot be read.
    pub fn read(
        &self,
        path: &str,
        spec: &LeafSpec,
        start: &[usize],
        dims: &[usize],
    ) -> Result<Literal, Error> {
        let declared = Tree::from_iter([(path.to_owned(), spec.clone())]);
        self.check_rows(&declared)?;
        let is_inside = |((start, size), whole): ((&usize, &usize), &usize)| {
            start.checked_add(*size).is_some_and(|end| end <= *whole)
        };
        let rank = spec.dims.len();
        if (start.len(), dims.len()) != (rank, rank)
            || !start.iter().zip(dims).zip(&spec.dims).all(is_inside)
        {
            return Err(self.misfit(format!(
                "{dims:?} elements at {start:?} are not in `{path}`, which is {}",
                spec.global_type()
            )));
        }
        if let Some(saved) = self.on_another_mesh(path, spec) {
            return match spec.on_other_mesh {
                OnOtherMesh::SumThenSplit => {
                    self.shares((path, spec), &saved, spec.row().dims[0], start, dims)
                }
                OnOtherMesh::Mean => self.shares((path, spec), &saved, saved.dims[0], start, dims),
                OnOtherMesh::Exact | OnOtherMesh::Restart => Ok(Literal::zeros(spec.dtype, dims)),
            };
        }
        let regions = regions(&self.specs, &self.rows, (path, spec), start, dims);
        let mut by_leaf = BTreeMap::<_, Vec<_>>::new();
        for region in regions.map_err(|row| self.missing(&row))? {
            by_leaf.entry(region.leaf).or_default().push(region);
        }
        let mut values = Literal::zeros(spec.dtype, dims);
        for (leaf, regions) in by_leaf {
            let record = &self.manifest.leaves[leaf];
            for piece in &record.pieces {
                let runs = runs_in(piece, &regions, spec.dtype.size_bytes());
                let read = self.stored(piece).read(&runs, values.bytes_mut());
                read.map_err(|error| self.unreadable(record, piece, error))?;
            }
        }
        Ok(values)
    }

    /// Checks that the leaves that were saved are those that `specs` declare. A stack may have been
    /// saved as its rows, rows as a stack, and several [fused](Fused).
    ///
    /// # Errors
    /// A leaf that was not saved, has another dtype or other dims, or is not declared.
    pub fn check_fits(&self, specs: &Tree<LeafSpec>) -> Result<(), Error> {
        self.check_rows(specs)?;
        let declared = rows(specs);
        let is_used = |path: &str| {
            let parts = || Fused::parts(path).into_iter().flatten();
            declared.get(path).is_some() || parts().any(|part| declared.get(&part).is_some())
        };
        match self.rows.iter().find(|(path, row)| !row.is_part && !is_used(path)) {
            None => Ok(()),
            Some((path, _)) => {
                Err(self.misfit(format!("it has a leaf `{path}`, which this run does not have")))
            }
        }
    }

    /// Checks that all rows of `declared` were saved, and are equal.
    fn check_rows(&self, declared: &Tree<LeafSpec>) -> Result<(), Error> {
        for (path, spec) in row_specs(declared).iter() {
            let found = &self.rows.get(path).ok_or_else(|| self.missing(path))?.spec;
            let dims = |spec: &LeafSpec| match spec.on_other_mesh {
                OnOtherMesh::Exact => spec.dims.clone(),
                OnOtherMesh::SumThenSplit | OnOtherMesh::Mean => {
                    spec.dims.get(1..).unwrap_or_default().to_vec()
                }
                OnOtherMesh::Restart => vec![],
            };
            let found_dims = dims(&LeafSpec { on_other_mesh: spec.on_other_mesh, ..found.clone() });
            if (found.dtype, found_dims) != (spec.dtype, dims(spec)) {
                return Err(self.misfit(format!(
                    "`{path}` is {} there, but {} in this run",
                    found.global_type(),
                    spec.global_type()
                )));
            }
        }
        Ok(())
    }

    /// Reads everything, and so checks all values.
    ///
    /// # Errors
    /// The first damage in the order of the leaves, or a file that cannot be read.
    pub fn verify(&self) -> Result<(), Error> {
        self.verify_files(|_| true)
    }

    /// As [`Self::verify`], but only the files with these indices.
    ///
    /// # Errors
    /// As [`Self::verify`].
    pub fn verify_files(&self, is_wanted: impl Fn(usize) -> bool) -> Result<(), Error> {
        let pieces = self
            .manifest
            .leaves
            .iter()
            .flat_map(|leaf| leaf.pieces.iter().map(move |piece| (leaf, piece)))
            .filter(|(_, piece)| is_wanted(piece.file));
        let windows: Vec<_> = pieces
            .flat_map(|(leaf, piece)| {
                let windows = self.stored(piece).all_windows();
                windows.into_iter().map(move |window| (leaf, piece, window))
            })
            .collect();
        let failure = windows
            .par_iter()
            .map_init(Vec::new, |buffer, (leaf, piece, window)| {
                buffer.resize(window.len(), 0);
                let read = self.stored(piece).read_blocks(window.start, buffer);
                read.map_err(|error| self.unreadable(leaf, piece, error)).err()
            })
            .find_first(Option::is_some);
        failure.flatten().map_or(Ok(()), Err)
    }

    fn stored<'a>(&'a self, piece: &'a PieceRecord) -> StoredPiece<'a> {
        // A block is not longer than its piece.
        let block_bytes = self.manifest.files[piece.file].block_bytes.min(piece.num_bytes);
        StoredPiece {
            file: &*self.files[piece.file],
            record: piece,
            block_bytes: (block_bytes as usize).max(1),
            window_bytes: WINDOW_BYTES,
        }
    }

    fn unreadable(&self, leaf: &LeafRecord, piece: &PieceRecord, error: Unreadable) -> Error {
        let name = &self.manifest.files[piece.file].name;
        let damaged = |reason: String| Error::Damaged {
            path: self.location.clone(),
            reason: format!("`{}` in {name} {reason}", leaf.path),
        };
        match error {
            Unreadable::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                damaged("is cut off".to_owned())
            }
            Unreadable::Io(error) => Error::io("read", self.location.join(name))(error),
            Unreadable::Changed(range) => damaged(format!(
                "has other bytes than were written, between {} and {} of the file",
                range.start, range.end
            )),
        }
    }

    /// What a row of the leaf was when it was saved, if its dims depend on the mesh and are others
    /// now.
    fn on_another_mesh(&self, path: &str, spec: &LeafSpec) -> Option<LeafSpec> {
        let saved = &self.rows.get(row_paths(path, spec).first()?)?.spec;
        let differs = spec.on_other_mesh != OnOtherMesh::Exact && saved.dims != spec.row().dims;
        differs.then(|| saved.clone())
    }

    /// The rectangle of a leaf that gives each of its replicas the sum over those of `saved`, a row
    /// as it was saved, divided by `num_shares`.
    fn shares(
        &self,
        (path, spec): (&str, &LeafSpec),
        saved: &LeafSpec,
        num_shares: usize,
        start: &[usize],
        dims: &[usize],
    ) -> Result<Literal, Error> {
        // The dim that counts replicas.
        let at = spec.num_stacked;
        let num_saved = saved.dims[0];
        let with = |sizes: &[usize], size| [&sizes[..at], &[size], &sizes[at + 1..]].concat();
        let as_saved = LeafSpec {
            dims: with(&spec.dims, num_saved),
            on_other_mesh: OnOtherMesh::Exact,
            ..spec.clone()
        };
        let all = self.read(path, &as_saved, &with(start, 0), &with(dims, num_saved))?.to_f64();
        let size: usize = dims[at + 1..].iter().product();
        let mut shares = vec![];
        for of_row in all.chunks((num_saved * size).max(1)) {
            let terms = |i| of_row.iter().skip(i).step_by(size.max(1));
            let share = |i| terms(i).sum::<f64>() / num_shares as f64;
            let of_replica: Vec<f64> = (0..size).map(share).collect();
            shares.extend(of_replica.repeat(dims[at]));
        }
        Ok(Literal::from_f64(spec.dtype, dims, &shares))
    }

    fn missing(&self, path: &str) -> Error {
        self.misfit(format!("it has no leaf `{path}`, which this run needs"))
    }

    fn misfit(&self, reason: String) -> Error {
        Error::Misfit { path: self.location.clone(), reason }
    }
}

fn read_whole(source: &dyn CheckpointSource, name: &str) -> io::Result<Vec<u8>> {
    let file = source.open(name)?;
    let num_bytes = usize::try_from(file.num_bytes()).map_err(io::Error::other)?;
    let mut bytes = vec![0; num_bytes];
    file.read_exact_at(&mut bytes, 0).map(|()| bytes)
}

/// `true` for a directory with the name of a checkpoint. It gets that name after its manifest.
fn has_lost_manifest(location: &Location) -> bool {
    let is_dir = matches!(location, Location::Path(path) if path.is_dir());
    is_dir && step_of(location.name()).is_some()
}

/// A hint for the user if a place has no manifest.
fn hint(location: &Location) -> &'static str {
    match location {
        Location::Path(path) if path.to_string_lossy().contains("://") => {
            "; URLs begin with s3://, gs:// or az://"
        }
        Location::Path(path) if !path.is_dir() => "; there is no such directory",
        Location::Path(path) if path.join("checkpoints").is_dir() => {
            "; did you mean the directory checkpoints in it?"
        }
        Location::Path(_) => " (a save that did not finish, or another directory)",
        Location::Url(_) => ", and no checkpoints below it",
    }
}

/// Opens a file, and checks its size and its header.
fn open_file(
    path: &Location,
    source: &dyn CheckpointSource,
    record: &FileRecord,
) -> Result<Box<dyn SourceFile>, Error> {
    let damaged = |reason: String| Error::Damaged {
        path: path.clone(),
        reason: format!("{} {reason}", record.name),
    };
    // A name, not a path that leads elsewhere.
    if Path::new(&record.name).file_name() != Some(record.name.as_ref()) {
        return Err(damaged("is not the name of a file".to_owned()));
    }
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => damaged(format!("cannot be opened: {error}")),
        _ => Error::io("read", path.join(&record.name))(error),
    };
    let file = source.open(&record.name).map_err(failed)?;
    if file.num_bytes() != record.num_bytes {
        let (found, expected) = (file.num_bytes(), record.num_bytes);
        return Err(damaged(format!("has {found} bytes instead of {expected}")));
    }
    // At most the size of the file, as the manifest has been checked.
    let mut header = vec![0; usize::try_from(record.header_bytes).unwrap_or_default()];
    file.read_exact_at(&mut header, 0).map_err(failed)?;
    match hex(xxh3_128(&header)) == record.header_checksum {
        true => Ok(file),
        false => Err(damaged("has another header than was written".to_owned())),
    }
}
