//! `cifar10`: the binary version of CIFAR-10.
//!
//! ```text
//! label (1 byte, 0 to 9), 32 x 32 bytes of red, 32 x 32 of green, 32 x 32 of blue;   label, ...
//! ```
//! A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009). Augmentation
//! follows He et al., "Deep Residual Learning for Image Recognition" (2015), section 4.2: pad each
//! side with 4 black pixels, take a random crop of 32 x 32, and flip it horizontally with
//! probability 1/2.

use std::path::Path;

use hlo::DType;

use super::augment::Draws;
use super::files::unreadable;
use super::fingerprint::Fingerprinter;
use super::source::checked_index;
use super::{Error, Field, Source};
use crate::config::{self, read_regular};

const NUM_CLASSES: usize = 10;
const SIDE: usize = 32;
const PADDING: usize = 4;
const NUM_PIXELS: usize = SIDE * SIDE;
const IMAGE_BYTES: usize = 3 * NUM_PIXELS;
const RECORD_BYTES: usize = 1 + IMAGE_BYTES;

const TRAIN_FILES: [&str; 5] = [
    "data_batch_1.bin",
    "data_batch_2.bin",
    "data_batch_3.bin",
    "data_batch_4.bin",
    "data_batch_5.bin",
];
const TEST_FILES: [&str; 1] = ["test_batch.bin"];

/// Mean and standard deviation of the training pixels per color, with black 0 and white 1.
const MEAN: [f32; 3] = [0.4914, 0.4822, 0.4465];
const STD: [f32; 3] = [0.2470, 0.2435, 0.2616];

/// One split. Field `x` is f32 `[3, 32, 32]`, normalized so that each color has mean 0 and variance
/// 1 over the training images; `y` is i32 `[]`, 0 to 9. If an epoch is given, a training image is
/// augmented.
pub struct Cifar10 {
    records: Vec<u8>,
    /// `None` if images are not augmented.
    augment_seed: Option<u64>,
    fields: [Field; 2],
}

impl Cifar10 {
    /// Mean and standard deviation of each color, of images with black 0 and white 1.
    pub const NORMALIZATION: [(f32, f32); 3] =
        [(MEAN[0], STD[0]), (MEAN[1], STD[1]), (MEAN[2], STD[2])];

    /// Reads the six files of a folder: training split and test split.
    ///
    /// # Errors
    /// A file that is missing, ends within an image or has none, or a label above 9.
    pub fn load(config: &config::Cifar10Config, seed: u64) -> Result<(Self, Self), Error> {
        let augment_seed = config.augment.then_some(seed);
        let split = |names: &[&str], augment_seed| {
            let mut records = vec![];
            for name in names {
                records.extend(read(&config.path.join(name))?);
            }
            let fields = [
                Field { name: "x", dtype: DType::F32, dims: vec![3, SIDE, SIDE] },
                Field { name: "y", dtype: DType::I32, dims: vec![] },
            ];
            Ok(Self { records, augment_seed, fields })
        };
        Ok((split(&TRAIN_FILES, augment_seed)?, split(&TEST_FILES, None)?))
    }
}

impl Source for Cifar10 {
    fn num_examples(&self) -> u64 {
        (self.records.len() / RECORD_BYTES) as u64
    }

    fn num_outputs(&self) -> usize {
        NUM_CLASSES
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn fingerprint(&self) -> Result<Option<u128>, Error> {
        Ok(Some(Fingerprinter::new("cifar10").bytes(&self.records).finish()))
    }

    fn read(&self, example: u64, epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error> {
        let index = checked_index(example, self.num_examples())?;
        let record = &self.records[index * RECORD_BYTES..][..RECORD_BYTES];
        let view = match (self.augment_seed, epoch) {
            (Some(seed), Some(epoch)) => View::random(&mut Draws::new(seed, epoch, example)),
            _ => View::WHOLE,
        };
        view.write(&record[1..], out[0]);
        out[1].copy_from_slice(&i32::from(record[0]).to_ne_bytes());
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let records =
        read_regular(path, u64::MAX).map_err(|source| unreadable(path, "data.path", source))?;
    let path = || path.to_owned();
    if !records.len().is_multiple_of(RECORD_BYTES) {
        return Err(Error::NotWhole {
            path: path(),
            found: records.len() as u64,
            unit: format!("{RECORD_BYTES}-byte images"),
            key: "data.path",
        });
    }
    if records.is_empty() {
        return Err(Error::NoExamples { path: path() });
    }
    for (index, record) in records.chunks_exact(RECORD_BYTES).enumerate() {
        if usize::from(record[0]) >= NUM_CLASSES {
            let (offset, found, max) = (index * RECORD_BYTES, record[0], NUM_CLASSES - 1);
            return Err(Error::LabelByte { path: path(), offset, found, max });
        }
    }
    Ok(records)
}

/// A crop of a padded image.
struct View {
    /// The first row and column, in the padded image.
    top: usize,
    left: usize,
    mirrored: bool,
}

impl View {
    const WHOLE: Self = Self { top: PADDING, left: PADDING, mirrored: false };

    fn random(draws: &mut Draws) -> Self {
        const NUM_PLACES: u32 = 2 * PADDING as u32 + 1;
        let [top, left] = [0; 2].map(|_| draws.below(NUM_PLACES) as usize);
        Self { top, left, mirrored: draws.coin() }
    }

    fn write(&self, image: &[u8], out: &mut [u8]) {
        let (words, _) = out.as_chunks_mut();
        for (place, word) in words.iter_mut().enumerate() {
            let (colour, row, column) = (place / NUM_PIXELS, place / SIDE % SIDE, place % SIDE);
            let column = if self.mirrored { SIDE - 1 - column } else { column };
            let inside = |index: usize| index.checked_sub(PADDING).filter(|index| *index < SIDE);
            let pixel = match (inside(row + self.top), inside(column + self.left)) {
                (Some(row), Some(column)) => image[colour * NUM_PIXELS + row * SIDE + column],
                _ => 0,
            };
            let value = (f32::from(pixel) / 255.0 - MEAN[colour]) / STD[colour];
            *word = value.to_ne_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;

    use ndarray::{Array1, Array4};

    use super::*;
    use crate::data::{ArrayLabels, Arrays, LikeTraining};

    /// Image `index` of a file: its label, and pixels that name colour, row and column.
    fn record(index: usize) -> Vec<u8> {
        let pixel =
            |place: usize| ((place / NUM_PIXELS * 80 + place % NUM_PIXELS + index) % 256) as u8;
        [(index % 10) as u8].into_iter().chain((0..IMAGE_BYTES).map(pixel)).collect()
    }

    fn write_all(folder: &Path) {
        for (index, name) in TRAIN_FILES.iter().chain(&TEST_FILES).enumerate() {
            let records: Vec<_> = (2 * index..2 * index + 2).flat_map(record).collect();
            fs::write(folder.join(name), records).unwrap();
        }
    }

    fn load(path: PathBuf, augment: bool, seed: u64) -> Result<(Cifar10, Cifar10), String> {
        let config = config::Cifar10Config { path, augment, num_examples: None };
        Cifar10::load(&config, seed).map_err(|error| error.to_string())
    }

    fn read_example(source: &Cifar10, id: u64, epoch: Option<u64>) -> (Vec<f32>, i32) {
        let (mut x, mut y) = (vec![0f32; IMAGE_BYTES], [0]);
        let mut out = [bytemuck::cast_slice_mut(&mut x), bytemuck::cast_slice_mut(&mut y)];
        source.read(id, epoch, &mut out).unwrap();
        (x, y[0])
    }

    /// The bytes that normalised pixels were.
    fn bytes_of(x: &[f32]) -> Vec<u8> {
        let byte = |(place, value): (usize, &f32)| {
            let colour = place / NUM_PIXELS;
            ((value * STD[colour] + MEAN[colour]) * 255.0).round() as u8
        };
        x.iter().enumerate().map(byte).collect()
    }

    #[test]
    fn images_are_read_in_the_order_of_the_files() {
        let dir = tempfile::tempdir().unwrap();
        write_all(dir.path());
        let (train, test) = load(dir.path().to_owned(), true, 0).unwrap();
        assert_eq!((train.num_examples(), test.num_examples(), train.num_outputs()), (10, 2, 10));
        for (source, id, expected) in [(&train, 0, 0), (&train, 7, 7), (&test, 1, 11)] {
            let (x, y) = read_example(source, id, None);
            assert_eq!(y, expected as i32 % 10);
            assert_eq!(bytes_of(&x), record(expected)[1..]);
        }
        let (x, _) = read_example(&train, 0, None);
        assert_eq!(x[0], -0.4914 / 0.2470);
        // Evaluation is exact: the test split has nothing random, whatever it is read for.
        assert_eq!(read_example(&test, 1, Some(3)), read_example(&test, 1, None));
        let (plain, _) = load(dir.path().to_owned(), false, 0).unwrap();
        assert_eq!(read_example(&plain, 7, Some(3)), read_example(&train, 7, None));
    }

    #[test]
    fn arrays_of_images_are_normalised_alike() {
        let dir = tempfile::tempdir().unwrap();
        write_all(dir.path());
        let (train, _) = load(dir.path().to_owned(), false, 0).unwrap();
        let pixel = |(id, colour, row, column): (usize, usize, usize, usize)| {
            f32::from(record(id)[1 + colour * NUM_PIXELS + row * SIDE + column]) / 255.0
        };
        let images = Array4::from_shape_fn((10, 3, SIDE, SIDE), pixel);
        let classes = Array1::zeros(10);
        let arrays = Arrays::new(images.view(), ArrayLabels::Classes(classes.view(), 10)).unwrap();
        let train = Arc::new(train);
        let alike = LikeTraining::new(Arc::new(arrays), train.clone()).unwrap();
        let alike = alike.normalized(&Cifar10::NORMALIZATION);
        for id in 0..10 {
            let mut x = vec![0f32; IMAGE_BYTES];
            alike.read(id, None, &mut [bytemuck::cast_slice_mut(&mut x), &mut [0; 4]]).unwrap();
            let (expected, _) = read_example(&train, id, None);
            assert!(x.iter().zip(&expected).all(|(x, expected)| (x - expected).abs() < 1e-6));
        }
    }

    #[test]
    fn crops_are_windows_of_the_image_in_black() {
        let view = View { top: 0, left: 8, mirrored: false };
        let seen_through = |view: &View, image: &[u8]| {
            let mut x = vec![0f32; IMAGE_BYTES];
            view.write(image, bytemuck::cast_slice_mut(&mut x));
            bytes_of(&x)
        };
        let image: Vec<_> = (0..IMAGE_BYTES).map(|place| 1 + (place % 250) as u8).collect();
        let seen = seen_through(&view, &image);
        for (row, column, expected) in
            [(0, 0, 0), (3, 9, 0), (4, 0, image[4]), (31, 27, image[27 * 32 + 31]), (31, 28, 0)]
        {
            assert_eq!(seen[row * SIDE + column], expected, "{row}, {column}");
        }
        let mirrored = seen_through(&View { mirrored: true, ..view }, &image);
        for (row, mirrored) in seen.chunks(SIDE).zip(mirrored.chunks(SIDE)) {
            assert!(row.iter().eq(mirrored.iter().rev()));
        }
    }

    #[test]
    fn changes_follow_from_seed_epoch_and_id() {
        let dir = tempfile::tempdir().unwrap();
        write_all(dir.path());
        let (train, _) = load(dir.path().to_owned(), true, 0).unwrap();
        let (other, _) = load(dir.path().to_owned(), true, 1).unwrap();
        let epochs: Vec<_> = (0..8).map(|epoch| read_example(&train, 2, Some(epoch)).0).collect();
        assert_eq!(epochs[5], read_example(&train, 2, Some(5)).0);
        let num_same =
            |a: &[Vec<f32>], b: &[Vec<f32>]| a.iter().zip(b).filter(|(a, b)| a == b).count();
        assert!(num_same(&epochs[1..], &epochs[..7]) <= 1);
        let others: Vec<_> = (0..8).map(|epoch| read_example(&other, 2, Some(epoch)).0).collect();
        assert!(num_same(&epochs, &others) <= 1);
    }

    #[test]
    fn bad_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut wrong = record(3);
        wrong[0] = 10;
        let cases = [
            (
                "data_batch_3.bin",
                record(1)[..3072].to_vec(),
                "has 3072 bytes, which is not a whole",
            ),
            ("data_batch_5.bin", [record(1), wrong].concat(), "offset 3073: label 10"),
            ("test_batch.bin", vec![], "holds no example"),
        ];
        for (name, bytes, expected) in cases {
            write_all(dir.path());
            fs::write(dir.path().join(name), bytes).unwrap();
            let message = load(dir.path().to_owned(), true, 0).err().unwrap();
            assert!(message.contains(name) && message.contains(expected), "{message}");
        }
        write_all(dir.path());
        fs::remove_file(dir.path().join("data_batch_2.bin")).unwrap();
        let message = load(dir.path().to_owned(), true, 0).err().unwrap();
        assert!(message.contains("data_batch_2.bin") && message.contains("data.path"), "{message}");
    }
}
