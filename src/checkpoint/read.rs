//! Reading a checkpoint.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hlo::{LeafSpec, Literal, Tree, join_rows, row_paths, row_specs, split_rows};
use xxhash_rust::xxh3::xxh3_128;

use super::manifest::hex;
use super::{Error, LeafRecord, Manifest, PieceRecord, RunRecord};

/// A checkpoint on disk, whose manifest and files have been checked. Values are checked when they are read.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
    files: Vec<File>,
    specs: Tree<LeafSpec>,
}

impl Checkpoint {
    /// Reads the manifest, and checks that all files are there and whole.
    ///
    /// # Errors
    /// A directory that is not a checkpoint, or one that is damaged or too new.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let read = fs::read(path.join(Manifest::FILE));
        let text = read.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                let hint = match path {
                    _ if !path.is_dir() => "; there is no such directory",
                    _ if path.join("checkpoints").is_dir() => {
                        "; did you mean the directory checkpoints in it?"
                    }
                    _ => " (a save that did not finish, or another directory)",
                };
                Error::NotACheckpoint { path: path.to_owned(), hint }
            }
            _ => Error::io("read", &path.join(Manifest::FILE))(error),
        })?;
        let manifest = Manifest::from_text(&text, path)?;
        let damaged = |reason: String| Error::Damaged { path: path.to_owned(), reason };
        let specs = manifest.specs().map_err(damaged)?;
        let mut files = vec![];
        for record in &manifest.files {
            let in_file = |reason: String| damaged(format!("{} {reason}", record.name));
            // A name, not a path that leads elsewhere.
            if Path::new(&record.name).file_name() != Some(record.name.as_ref()) {
                return Err(in_file("is not the name of a file".to_owned()));
            }
            let file = File::open(path.join(&record.name));
            let file = file.map_err(|error| in_file(format!("cannot be opened: {error}")))?;
            let size = file.metadata().map_err(|error| in_file(error.to_string()))?.len();
            if size != record.num_bytes {
                return Err(in_file(format!("has {size} bytes instead of {}", record.num_bytes)));
            }
            // At most the size of the file, as the manifest has been checked.
            let mut header = vec![0; usize::try_from(record.header_bytes).unwrap_or_default()];
            file.read_exact_at(&mut header, 0).map_err(|error| in_file(error.to_string()))?;
            if hex(xxh3_128(&header)) != record.header_checksum {
                return Err(in_file("has another header than was written".to_owned()));
            }
            files.push(file);
        }
        Ok(Self { path: path.to_owned(), manifest, files, specs })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `true` if it is one of the checkpoints in a directory.
    pub fn is_in(&self, dir: &Path) -> bool {
        let parent = self.path.parent().and_then(|parent| fs::canonicalize(parent).ok());
        parent.is_some() && parent == fs::canonicalize(dir).ok()
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

    /// Reads a whole leaf.
    ///
    /// # Errors
    /// A leaf that is not there, or damaged bytes.
    pub fn leaf(&self, path: &str) -> Result<Literal, Error> {
        let index = self.specs.index_of(path).ok_or_else(|| self.missing(path))?;
        let record = &self.manifest.leaves[index];
        let mut whole = Literal::zeros(self.specs[path].dtype, &record.dims);
        for piece in &record.pieces {
            if piece.dims == record.dims {
                self.read_piece(record, piece, whole.bytes_mut())?;
                continue;
            }
            let mut values = Literal::zeros(whole.dtype(), &piece.dims);
            self.read_piece(record, piece, values.bytes_mut())?;
            paste(&mut whole, &values, &piece.start);
        }
        Ok(whole)
    }

    /// Reads the leaves that `specs` declare, and hands each to `put` as a whole. A stack may have been saved as its rows,
    /// and rows as a stack. Everything is read once; one leaf is in memory at a time, with its rows.
    ///
    /// # Errors
    /// Before the first `put`: a leaf that was not saved, has another dtype or other dims, or is not declared. Later:
    /// damaged bytes, and the errors of `put`.
    pub fn restore<E: From<Error>>(
        &self,
        specs: &Tree<LeafSpec>,
        mut put: impl FnMut(&str, &Literal) -> Result<(), E>,
    ) -> Result<(), E> {
        self.check_fits(specs)?;
        for (path, spec) in self.specs.iter() {
            if specs.get(path).is_some() {
                put(path, &self.leaf(path)?)?;
            } else if spec.num_stacked > 0 {
                let stack = Tree::from_iter([(path.to_owned(), spec.clone())]);
                let values = Tree::from_iter([(path.to_owned(), self.leaf(path)?)]);
                for (row, value) in split_rows(&stack, values) {
                    put(&row, &value)?;
                }
            }
        }
        let stacks = specs.iter().filter(|(path, _)| self.specs.get(path).is_none());
        for (path, spec) in stacks.filter(|(_, spec)| spec.num_stacked > 0) {
            let rows = row_paths(path, spec).into_iter();
            let rows: Tree<Literal> = rows
                .map(|row| Ok((row.clone(), self.leaf(&row)?)))
                .collect::<Result<_, Error>>()?;
            let joined = join_rows(path, spec, &rows);
            let joined = joined.map_err(|misfit| self.misfit(misfit.to_string()))?;
            put(path, &*joined.ok_or_else(|| self.missing(path))?)?;
        }
        Ok(())
    }

    /// Checks that the leaves that were saved are those that `specs` declare, row by row.
    fn check_fits(&self, specs: &Tree<LeafSpec>) -> Result<(), Error> {
        let (saved, declared) = (row_specs(&self.specs), row_specs(specs));
        for (path, spec) in declared.iter() {
            let found = saved.get(path).ok_or_else(|| self.missing(path))?;
            if (found.dtype, &found.dims) != (spec.dtype, &spec.dims) {
                return Err(self.misfit(format!(
                    "`{path}` is {} there, but {} in this run",
                    found.global_type(),
                    spec.global_type()
                )));
            }
        }
        if let Some(path) = saved.paths().find(|path| declared.get(path).is_none()) {
            return Err(
                self.misfit(format!("it has a leaf `{path}`, which this run does not have"))
            );
        }
        // Blocks in loops are stacked in one way only.
        let is_known = |(path, spec): (&str, &LeafSpec)| {
            let rows = row_paths(path, spec);
            self.specs.get(path).is_some()
                || (spec.num_stacked > 0 && rows.iter().all(|row| self.specs.get(row).is_some()))
                || spec.num_stacked == 0
        };
        match specs.iter().all(is_known) {
            true => Ok(()),
            false => Err(self.misfit("its blocks are stacked in another way".to_owned())),
        }
    }

    /// Reads everything, and so checks all values.
    ///
    /// # Errors
    /// The first damage that is found.
    pub fn verify(&self) -> Result<(), Error> {
        for record in &self.manifest.leaves {
            for piece in &record.pieces {
                let num_bytes = usize::try_from(piece.num_bytes).unwrap_or_default();
                self.read_piece(record, piece, &mut vec![0; num_bytes])?;
            }
        }
        Ok(())
    }

    fn read_piece(
        &self,
        leaf: &LeafRecord,
        piece: &PieceRecord,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let name = &self.manifest.files[piece.file].name;
        let damaged = |reason: String| Error::Damaged {
            path: self.path.clone(),
            reason: format!("`{}` in {name} {reason}", leaf.path),
        };
        let read = self.files[piece.file].read_exact_at(bytes, piece.offset);
        read.map_err(|error| damaged(format!("cannot be read: {error}")))?;
        match hex(xxh3_128(bytes)) == piece.checksum {
            true => Ok(()),
            false => Err(damaged("has other bytes than were written".to_owned())),
        }
    }

    fn missing(&self, path: &str) -> Error {
        self.misfit(format!("it has no leaf `{path}`, which this run needs"))
    }

    fn misfit(&self, reason: String) -> Error {
        Error::Misfit { path: self.path.clone(), reason }
    }
}

/// Copies a piece to its place in the whole leaf.
fn paste(whole: &mut Literal, piece: &Literal, start: &[usize]) {
    let (dims, size) = (whole.dims().to_vec(), piece.dtype().size_bytes());
    let row = piece.dims().last().copied().unwrap_or(1) * size;
    let num_rows = piece.num_bytes().checked_div(row).unwrap_or(0);
    for index in 0..num_rows {
        let (mut rest, mut element, mut stride) = (index, 0, 1);
        for dim in (0..dims.len()).rev() {
            let is_inner = dim + 1 == dims.len();
            let at = if is_inner { 0 } else { rest % piece.dims()[dim] };
            rest = if is_inner { rest } else { rest / piece.dims()[dim] };
            element += (start[dim] + at) * stride;
            stride *= dims[dim];
        }
        let to = element * size;
        let from = &piece.bytes()[index * row..(index + 1) * row];
        whole.bytes_mut()[to..to + row].copy_from_slice(from);
    }
}
