//! `idx`: images and labels in the format of MNIST.
//!
//! ```text
//! images   00 00 08 03  N  H  W  then N x H x W bytes        labels   00 00 08 01  N  then N bytes
//! ```
//! Sizes are 32-bit and big-endian; a file may be gzipped. Y. LeCun, C. Cortes and C. Burges, "The
//! MNIST database of handwritten digits" (1998). Both files are held in memory, as bytes.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use hlo::DType;

use super::files::unreadable;
use super::fingerprint::Fingerprinter;
use super::source::checked_index;
use super::{Error, Field, Source};
use crate::config::{self, open_regular};

/// One split. Field `x` is f32 `[1, H, W]`, or `[H * W]` if `flat` is configured, scaled to 0..1;
/// `y` is i32 `[]`.
pub struct Idx {
    pixels: Vec<u8>,
    labels: Vec<u8>,
    num_classes: usize,
    fields: [Field; 2],
}

impl Idx {
    /// Reads the four files of a folder: training split and evaluation split.
    ///
    /// # Errors
    /// A file that is missing, is not IDX or does not have the size that its header gives;
    /// different numbers of images and labels; a label that is not a class; splits with images of
    /// different sizes.
    pub fn load(config: &config::IdxConfig) -> Result<(Self, Self), Error> {
        let keys = ["data.path or data.train_images", "data.path or data.train_labels"];
        let train = Self::split(config, [&config.train_images, &config.train_labels], keys)?;
        let keys = ["data.path or data.eval_images", "data.path or data.eval_labels"];
        let eval = Self::split(config, [&config.eval_images, &config.eval_labels], keys)?;
        let ([train_x, _], [eval_x, _]) = (&train.fields, &eval.fields);
        if train_x != eval_x {
            return Err(Error::Mismatch {
                path: config.path.join(&config.eval_images),
                found: format!("images of {:?}", eval_x.dims),
                other: config.path.join(&config.train_images),
                expected: format!("images of {:?}", train_x.dims),
            });
        }
        Ok((train, eval))
    }

    /// Reads the split of two files, images and labels. `keys` name them in errors.
    fn split(
        config: &config::IdxConfig,
        [images, labels]: [&str; 2],
        keys: [&'static str; 2],
    ) -> Result<Self, Error> {
        let images = IdxFile::find(&config.path, images, keys[0]);
        let labels = IdxFile::find(&config.path, labels, keys[1]);
        let (images_path, labels_path) = (images.path.clone(), labels.path.clone());
        let ([num_images, height, width], pixels) = images.read::<3>()?;
        let ([num_labels], labels) = labels.read::<1>()?;
        if num_images != num_labels {
            return Err(Error::Mismatch {
                path: labels_path,
                found: format!("{num_labels} labels"),
                other: images_path,
                expected: format!("{num_images} images"),
            });
        }
        if pixels.is_empty() {
            return Err(Error::NoExamples { path: images_path });
        }
        if let Some(index) = labels.iter().position(|label| usize::from(*label) >= config.classes) {
            return Err(Error::LabelByte {
                path: labels_path,
                offset: header_bytes(1) + index,
                found: labels[index],
                max: config.classes - 1,
            });
        }
        let dims = if config.flat { vec![height * width] } else { vec![1, height, width] };
        let fields = [
            Field { name: "x", dtype: DType::F32, dims },
            Field { name: "y", dtype: DType::I32, dims: vec![] },
        ];
        Ok(Self { pixels, labels, num_classes: config.classes, fields })
    }
}

impl Source for Idx {
    fn num_examples(&self) -> u64 {
        self.labels.len() as u64
    }

    fn num_outputs(&self) -> usize {
        self.num_classes
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn fingerprint(&self) -> Result<Option<u128>, Error> {
        let all = Fingerprinter::new("idx").bytes(&self.pixels).bytes(&self.labels);
        Ok(Some(all.finish()))
    }

    fn read(&self, example: u64, _epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error> {
        let index = checked_index(example, self.num_examples())?;
        let size = self.pixels.len() / self.labels.len();
        let pixels = &self.pixels[index * size..][..size];
        let (words, _) = out[0].as_chunks_mut();
        for (word, pixel) in words.iter_mut().zip(pixels) {
            *word = (f32::from(*pixel) / 255.0).to_ne_bytes();
        }
        out[1].copy_from_slice(&i32::from(self.labels[index]).to_ne_bytes());
        Ok(())
    }
}

/// Element type: unsigned bytes, the only one for images and labels.
const U8: u8 = 0x08;

const fn header_bytes(num_dims: usize) -> usize {
    4 + 4 * num_dims
}

/// A file; `.gz` may follow its name.
struct IdxFile {
    path: PathBuf,
    /// The key that names it.
    key: &'static str,
}

impl IdxFile {
    fn find(folder: &Path, name: &str, key: &'static str) -> Self {
        let (plain, zipped) = (folder.join(name), folder.join(format!("{name}.gz")));
        let path = if !plain.exists() && zipped.exists() { zipped } else { plain };
        Self { path, key }
    }

    /// Returns the sizes in the header and the bytes after it. Reads no more bytes than the sizes
    /// give, however much a gzip file unpacks to.
    fn read<const DIMS: usize>(&self) -> Result<([usize; DIMS], Vec<u8>), Error> {
        let unreadable = |source| unreadable(&self.path, self.key, source);
        let file = open_regular(&self.path).map_err(unreadable)?;
        let file_bytes = file.metadata().map_err(unreadable)?.len();
        let mut file = BufReader::new(file);
        if file.fill_buf().map_err(unreadable)?.starts_with(&[0x1f, 0x8b]) {
            let gzip = |source| Error::Gzip { path: self.path.clone(), source };
            self.parse(MultiGzDecoder::new(file), None, gzip)
        } else {
            self.parse(file, Some(file_bytes), unreadable)
        }
    }

    /// Reads header and data; `num_bytes` is the size of the whole, if it is known.
    fn parse<const DIMS: usize>(
        &self,
        mut bytes: impl Read,
        num_bytes: Option<u64>,
        failed: impl Fn(std::io::Error) -> Error,
    ) -> Result<([usize; DIMS], Vec<u8>), Error> {
        let mut header = vec![];
        bytes.by_ref().take(header_bytes(DIMS) as u64).read_to_end(&mut header).map_err(&failed)?;
        let magic = [0, 0, U8, DIMS as u8];
        let found = &header[..header.len().min(4)];
        if found != magic {
            let (path, found) = (self.path.clone(), found.to_vec());
            return Err(Error::Magic { path, key: self.key, found, expected: magic.to_vec() });
        }
        let wrong_size = |found: u64, expected: u128| Error::NumBytes {
            path: self.path.clone(),
            found: num_bytes.unwrap_or(found),
            expected,
        };
        if header.len() < header_bytes(DIMS) {
            return Err(wrong_size(header.len() as u64, header_bytes(DIMS) as u128));
        }
        let (words, _) = header[4..].as_chunks();
        let mut dims = [0; DIMS];
        for (dim, word) in dims.iter_mut().zip(words) {
            *dim = u32::from_be_bytes(*word) as usize;
        }
        // At most three factors of 32 bits do not overflow 128 bits.
        let size: u128 = dims.iter().map(|dim| *dim as u128).product();
        let expected = header.len() as u128 + size;
        if num_bytes.is_some_and(|found| u128::from(found) != expected) {
            return Err(wrong_size(0, expected));
        }
        let mut data = vec![];
        let wanted = u64::try_from(size).unwrap_or(u64::MAX).saturating_add(1);
        bytes.take(wanted).read_to_end(&mut data).map_err(&failed)?;
        if data.len() as u128 != size {
            return Err(wrong_size((header.len() + data.len()) as u64, expected));
        }
        Ok((dims, data))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    const NAMES: [&str; 4] = [
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ];

    fn idx(dims: &[u32], data: &[u8]) -> Vec<u8> {
        let header = [0, 0, 8, dims.len() as u8];
        let dims = dims.iter().flat_map(|dim| dim.to_be_bytes());
        header.into_iter().chain(dims).chain(data.iter().copied()).collect()
    }

    /// Two training images of 2 x 3 and one for evaluation.
    fn good() -> [Vec<u8>; 4] {
        [
            idx(&[2, 2, 3], &[0, 51, 102, 153, 204, 255, 1, 2, 3, 4, 5, 6]),
            idx(&[2], &[9, 0]),
            idx(&[1, 2, 3], &[255; 6]),
            idx(&[1], &[4]),
        ]
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(vec![], Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn load(files: &[(&str, Vec<u8>)], flat: bool) -> Result<(Idx, Idx), String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        let [train_images, train_labels, eval_images, eval_labels] = NAMES.map(str::to_owned);
        let path = dir.path().to_owned();
        let config = config::IdxConfig {
            path,
            train_images,
            train_labels,
            eval_images,
            eval_labels,
            classes: 10,
            flat,
            num_examples: None,
        };
        Idx::load(&config).map_err(|error| error.to_string())
    }

    fn read_example(source: &Idx, id: u64) -> (Vec<f32>, i32) {
        let (mut x, mut y) = ([0f32; 6], [0]);
        let mut out = [bytemuck::cast_slice_mut(&mut x), bytemuck::cast_slice_mut(&mut y)];
        source.read(id, None, &mut out).unwrap();
        (x.to_vec(), y[0])
    }

    #[test]
    fn plain_and_gzipped_files_hold_the_same_images() {
        let plain: Vec<_> = NAMES.into_iter().zip(good()).collect();
        let zipped: Vec<_> = plain.iter().map(|(name, bytes)| (*name, gzip(bytes))).collect();
        let names = NAMES.map(|name| format!("{name}.gz"));
        let renamed: Vec<_> = names
            .iter()
            .zip(&zipped)
            .map(|(name, (_, bytes))| (&name[..], bytes.clone()))
            .collect();
        for files in [plain, zipped, renamed] {
            let (train, eval) = load(&files, false).unwrap();
            assert_eq!((train.num_examples(), eval.num_examples()), (2, 1));
            assert_eq!((train.num_outputs(), &train.fields()[0].dims[..]), (10, &[1, 2, 3][..]));
            assert_eq!(read_example(&train, 0), (vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0], 9));
            assert_eq!(read_example(&train, 1).1, 0);
            assert_eq!(read_example(&eval, 0), (vec![1.0; 6], 4));
            let (train, _) = load(&files, true).unwrap();
            assert_eq!(train.fields()[0].dims, [6]);
        }
    }

    #[test]
    fn bad_files_are_named() {
        let [images, labels, _, _] = good();
        let flipped = |bytes: &[u8], at: usize, value: u8| {
            let mut bytes = bytes.to_vec();
            bytes[at] = value;
            bytes
        };
        let with_more = [&images[..], &[0]].concat();
        let cases = [
            (
                0,
                flipped(&images, 2, 0x0d),
                "begins with 00 00 0d 03, but should begin with 00 00 08 03",
            ),
            (0, labels.clone(), "begins with 00 00 08 01"),
            (0, vec![], "begins with nothing"),
            (0, images[..9].to_vec(), "has 9 bytes, but 16 are expected from its header"),
            (0, images[..27].to_vec(), "has 27 bytes, but 28 are expected from its header"),
            (0, with_more, "has 29 bytes"),
            (0, idx(&[u32::MAX; 3], &[0]), "but 79228162458924105385300197391"),
            (0, idx(&[0, 2, 3], &[]), "2 labels"),
            (0, gzip(&images)[..20].to_vec(), "not a whole gzip file"),
            (0, gzip(&[&images[..], &[0; 1 << 20]].concat()), "but 28 are expected"),
            (1, labels[..9].to_vec(), "train-labels-idx1-ubyte has 9 bytes"),
            (1, idx(&[3], &[1, 2, 3]), "3 labels"),
            (1, idx(&[2], &[1, 10]), "offset 9: label 10, but classes are 0 to 9"),
            (2, idx(&[1, 3, 3], &[0; 9]), "[1, 3, 3]"),
        ];
        for (place, bytes, expected) in cases {
            let mut files: Vec<_> = NAMES.into_iter().zip(good()).collect();
            files[place].1 = bytes;
            let message = load(&files, false).err().expect(expected);
            assert!(message.contains(expected), "{expected}: {message}");
        }
        let mut files: Vec<_> = NAMES.into_iter().zip(good()).collect();
        files[2].1 = idx(&[0, 2, 3], &[]);
        files[3].1 = idx(&[0], &[]);
        let message = load(&files, false).err().unwrap();
        assert!(message.contains("t10k-images-idx3-ubyte holds no example"), "{message}");
        files.pop();
        let message = load(&files, false).err().unwrap();
        assert!(message.contains("t10k-labels-idx1-ubyte: "), "{message}");
        assert!(message.ends_with("set data.path or data.eval_labels"), "{message}");
    }
}
