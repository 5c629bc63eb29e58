//! Where arrays are: in memory, in a `.npy` file, or in an `.npz` archive.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use hlo::Element;
use ndarray::{ArrayView, Dimension};
use zip::{CompressionMethod, ZipArchive};

use super::npy::{ElementType, NpyHeader};
use crate::config::{open_regular, shorten};
use crate::data::Error;
use crate::data::files::unreadable;
use crate::data::memory::memory_budget;

/// An array of which the first dim counts the examples.
#[derive(Debug)]
pub struct StoredArray {
    /// Its name in messages: `the array "x" of PATH`.
    pub place: String,
    /// The type of the elements.
    pub element: ElementType,
    /// The dims of an example.
    pub dims: Vec<usize>,
    /// Number of examples.
    pub num_examples: usize,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Memory(Vec<u8>),
    /// The elements begin at this offset.
    File(File, u64),
}

impl StoredArray {
    /// A copy of an array in memory.
    ///
    /// # Errors
    /// Elements that are no numbers, or none.
    pub fn of<E: Element, D: Dimension>(array: &ArrayView<'_, E, D>) -> Result<Self, Error> {
        let bad = |problem: String| Err(Error::Array { problem });
        let Some(element) = ElementType::of_dtype(E::DTYPE) else {
            return bad(format!("the elements of an array are {}, which is no number", E::DTYPE));
        };
        let (num_examples, dims) = match array.shape() {
            [num_examples, dims @ ..] if !array.is_empty() => (*num_examples, dims.to_vec()),
            shape => return bad(format!("an array has the shape {shape:?}, and no example")),
        };
        // Files are little-endian, and so is every machine that this program is for.
        let mut bytes = Vec::with_capacity(array.len() * size_of::<E>());
        array.iter().for_each(|element| bytes.extend_from_slice(bytemuck::bytes_of(element)));
        let place = "the array".to_owned();
        Ok(Self { place, element, dims, num_examples, bytes: Bytes::Memory(bytes) })
    }

    /// Bytes of an example.
    pub fn example_bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.element.num_bytes()
    }

    /// Reads consecutive examples, as many as `out` has room for.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(&self, first: usize, out: &mut [u8]) -> io::Result<()> {
        let start = first * self.example_bytes();
        match &self.bytes {
            Bytes::Memory(bytes) => out.copy_from_slice(&bytes[start..][..out.len()]),
            Bytes::File(file, offset) => file.read_exact_at(out, offset + start as u64)?,
        }
        Ok(())
    }

    /// Calls `each` with the index of every example and its bytes, in order.
    ///
    /// # Errors
    /// A file that cannot be read, or what `each` returns.
    pub fn scan<E: From<io::Error>>(
        &self,
        mut each: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        const BLOCK_BYTES: usize = 1 << 20;
        let size = self.example_bytes().max(1);
        let in_block = (BLOCK_BYTES / size).max(1);
        let mut block = vec![0; in_block * size];
        for first in (0..self.num_examples).step_by(in_block) {
            let count = in_block.min(self.num_examples - first);
            let block = &mut block[..count * size];
            self.read(first, block)?;
            for (index, bytes) in block.chunks(size).enumerate() {
                each(first + index, bytes)?;
            }
        }
        Ok(())
    }
}

/// The arrays of an `.npz` file, of a folder, or one of a `.npy` file.
pub struct ArrayFiles<'p> {
    path: &'p Path,
    /// The key that names it.
    key: &'static str,
    kind: Kind,
}

enum Kind {
    Single,
    Folder,
    Archive(Box<ZipArchive<BufReader<File>>>, File),
}

impl<'p> ArrayFiles<'p> {
    /// Opens the file or folder that `key` names.
    ///
    /// # Errors
    /// A file that cannot be read, or is of another kind.
    pub fn open(path: &'p Path, key: &'static str) -> Result<Self, Error> {
        let failed = |source| unreadable(path, key, source);
        let extension =
            path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        let kind = match extension.as_deref() {
            _ if path.is_dir() => Kind::Folder,
            Some("npy") => Kind::Single,
            Some("npz") => {
                let file = open_regular(path).map_err(failed)?;
                let elements = file.try_clone().map_err(failed)?;
                let archive = ZipArchive::new(BufReader::new(file)).map_err(|error| {
                    let problem = format!(
                        "it is not a whole .npz file ({error}); write it again or set {key}"
                    );
                    Error::Table { path: path.to_owned(), problem }
                })?;
                Kind::Archive(Box::new(archive), elements)
            }
            _ => {
                std::fs::metadata(path).map_err(failed)?;
                let problem = format!(
                    "it is neither an .npy or .npz file nor a folder with .npy files; set {key} to one"
                );
                return Err(Error::Table { path: path.to_owned(), problem });
            }
        };
        Ok(Self { path, key, kind })
    }

    /// The names of all arrays, in alphabetical order.
    pub fn names(&self) -> Vec<String> {
        let stem = |name: &str| name.strip_suffix(".npy").map(str::to_owned);
        let mut names: Vec<_> = match &self.kind {
            Kind::Single => return vec![],
            Kind::Folder => {
                let entries = std::fs::read_dir(self.path).into_iter().flatten().flatten();
                entries.filter_map(|entry| stem(&entry.file_name().to_string_lossy())).collect()
            }
            Kind::Archive(archive, _) => {
                archive.file_names().flatten().filter_map(|name| stem(&name)).collect()
            }
        };
        names.sort();
        names
    }

    /// `true` for a `.npy` file, which has no names.
    pub fn is_single(&self) -> bool {
        matches!(self.kind, Kind::Single)
    }

    /// Whether there is such an array. A single one has any name.
    pub fn has(&self, name: &str) -> bool {
        self.is_single() || self.names().iter().any(|other| other == name)
    }

    /// An array; `key` names it.
    ///
    /// # Errors
    /// A missing or damaged array, or one without examples.
    pub fn array(&mut self, name: &str, key: &str) -> Result<StoredArray, Error> {
        if !self.has(name) {
            let problem = format!(
                "there is no array {:?}; it has {}; set {key}",
                shorten(name),
                shorten(&format!("{:?}", self.names()))
            );
            return Err(Error::Table { path: self.path.to_owned(), problem });
        }
        let member = format!("{name}.npy");
        let path = match &self.kind {
            Kind::Folder => self.path.join(&member),
            Kind::Single | Kind::Archive(..) => self.path.to_owned(),
        };
        let bad = |problem: String| Error::Table {
            path: path.clone(),
            problem: format!("array {:?}: {problem}", shorten(name)),
        };
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::Other | io::ErrorKind::InvalidData => {
                bad(format!("{source}; write it again"))
            }
            _ => unreadable(&path, self.key, source),
        };
        let (header, bytes) = match &mut self.kind {
            Kind::Single | Kind::Folder => {
                let mut file = open_regular(&path).map_err(failed)?;
                let header = NpyHeader::read(&mut file).map_err(failed)?.map_err(bad)?;
                let found = file.metadata().map_err(failed)?.len();
                check_size(&header, found).map_err(bad)?;
                let start = header.num_bytes as u64;
                (header, Bytes::File(file, start))
            }
            Kind::Archive(archive, elements) => {
                read_member(archive, elements, &member).map_err(failed)?.map_err(bad)?
            }
        };
        let Some((num_examples, dims)) = header.dims.split_first() else {
            return Err(bad("it is a single number; its first dim must count examples".to_owned()));
        };
        if *num_examples == 0 || dims.contains(&0) {
            return Err(bad(format!("its shape is {:?}: it has no element", header.dims)));
        }
        Ok(StoredArray {
            place: format!("the array {:?} of {}", shorten(name), self.path.display()),
            element: header.element,
            dims: dims.to_vec(),
            num_examples: *num_examples,
            bytes,
        })
    }
}

/// An array of an archive: in its file if it is not compressed, in memory otherwise.
fn read_member(
    archive: &mut ZipArchive<BufReader<File>>,
    elements: &File,
    name: &str,
) -> io::Result<Result<(NpyHeader, Bytes), String>> {
    let mut member = archive.by_name(name)?;
    let (stored, size) = (member.compression() == CompressionMethod::Stored, member.size());
    let header = match NpyHeader::read(&mut member)? {
        Ok(header) => header,
        Err(problem) => return Ok(Err(problem)),
    };
    // What is unpacked is as long as both say: a small archive cannot fill the memory.
    if let Err(problem) = check_size(&header, size) {
        return Ok(Err(problem));
    }
    if stored && let Some(start) = member.data_start() {
        if elements.metadata()?.len() < start + size {
            return Ok(Err("the archive ends within it; write it again".to_owned()));
        }
        let start = start + header.num_bytes as u64;
        return Ok(Ok((header, Bytes::File(elements.try_clone()?, start))));
    }
    let num_bytes = size - header.num_bytes as u64;
    let budget = memory_budget();
    if num_bytes > budget {
        return Ok(Err(format!(
            "it is compressed and takes {} MiB, but {} MiB of memory are left for it; save it with \
             numpy.savez, which does not compress, or as a .npy file",
            num_bytes >> 20,
            budget >> 20
        )));
    }
    let mut bytes = vec![];
    member.take(num_bytes).read_to_end(&mut bytes)?;
    match bytes.len() as u64 == num_bytes {
        true => Ok(Ok((header, Bytes::Memory(bytes)))),
        false => Ok(Err("it ends before its last element; write it again".to_owned())),
    }
}

/// Whether a file has as many bytes as its header says.
fn check_size(header: &NpyHeader, found: u64) -> Result<(), String> {
    let NpyHeader { element, dims, num_bytes } = header;
    let elements = dims.iter().try_fold(1u64, |size, dim| size.checked_mul(*dim as u64));
    let found = found.saturating_sub(*num_bytes as u64);
    match elements.and_then(|count| count.checked_mul(element.num_bytes() as u64)) {
        Some(size) if size == found => Ok(()),
        size => Err(format!(
            "its shape is {dims:?} of {}, which takes {} bytes, but it has {found}; write it again",
            element.name(),
            size.map_or("too many".to_owned(), |size| size.to_string())
        )),
    }
}
