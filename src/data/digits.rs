//! Handwritten digits: 1797 real 8x8 images (see `examples/data/ATTRIBUTION.md`).

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;
use hlo::DType;

use super::files::unreadable;
use super::fingerprint::Fingerprinter;
use super::source::checked_index;
use super::{Error, Field, Source};
use crate::config::open_regular;

const NUM_PIXELS: usize = 64;
const MAX_PIXEL: u8 = 16;
const NUM_CLASSES: usize = 10;
const NUM_EXAMPLES: usize = 1797;
/// Upper limit for the unpacked bytes, more than a hundred times those of the rows. A small gzip
/// file can unpack to gigabytes.
const MAX_BYTES: u64 = 64 << 20;
/// Every fifth row is a test row, beginning with the first. The file is ordered by writer: rows at
/// its end would be by writers that training has not seen, a harder task than that of a random
/// split.
const TEST_EVERY: usize = 5;

/// One split of the digits. Field `x` is f32 `[64]`, row-major pixels scaled to 0..1; `y` is i32
/// `[]`, 0 to 9.
pub struct Digits {
    rows: Arc<Rows>,
    /// The split's rows in the file.
    ids: Vec<usize>,
    fields: [Field; 2],
}

struct Rows {
    /// [examples, 64], 0 to 1.
    pixels: Vec<f32>,
    labels: Vec<i32>,
}

impl Digits {
    /// Reads the file, gzipped CSV: each line has 64 pixels (0 to 16) and a label (0 to 9). Returns
    /// the training split (1437 rows) and the test split (360 rows).
    ///
    /// # Errors
    /// If the file cannot be read, is not gzip or is truncated, or a line is not such a row.
    pub fn load(path: &Path) -> Result<(Self, Self), Error> {
        let rows = Arc::new(Rows::load(path)?);
        let split = |is_test: bool| Self {
            rows: rows.clone(),
            ids: (0..NUM_EXAMPLES).filter(|row| (row % TEST_EVERY == 0) == is_test).collect(),
            fields: [
                Field { name: "x", dtype: DType::F32, dims: vec![NUM_PIXELS] },
                Field { name: "y", dtype: DType::I32, dims: vec![] },
            ],
        };
        Ok((split(false), split(true)))
    }
}

impl Source for Digits {
    fn num_examples(&self) -> u64 {
        self.ids.len() as u64
    }

    fn num_outputs(&self) -> usize {
        NUM_CLASSES
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn fingerprint(&self) -> Result<Option<u128>, Error> {
        let all = Fingerprinter::new("digits").bytes(bytemuck::cast_slice(&self.rows.pixels));
        let all = all.bytes(bytemuck::cast_slice(&self.rows.labels));
        Ok(Some(all.numbers(self.ids.iter().map(|id| *id as u64)).finish()))
    }

    fn read(&self, example: u64, _epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error> {
        let row = self.ids[checked_index(example, self.num_examples())?];
        let pixels = &self.rows.pixels[row * NUM_PIXELS..][..NUM_PIXELS];
        out[0].copy_from_slice(bytemuck::cast_slice(pixels));
        out[1].copy_from_slice(&self.rows.labels[row].to_ne_bytes());
        Ok(())
    }
}

impl Rows {
    fn load(path: &Path) -> Result<Self, Error> {
        let file = open_regular(path).map_err(|source| unreadable(path, "data.path", source))?;
        let decoder = MultiGzDecoder::new(BufReader::new(file)).take(MAX_BYTES);
        let mut rows = Self { pixels: vec![], labels: vec![] };
        for (index, line) in BufReader::new(decoder).lines().enumerate() {
            let text = line.map_err(|source| Error::Gzip { path: path.to_owned(), source })?;
            rows.push(&text, index + 1, path)?;
        }
        let found = rows.labels.len();
        if found != NUM_EXAMPLES {
            return Err(Error::NumRows { path: path.to_owned(), found, expected: NUM_EXAMPLES });
        }
        Ok(rows)
    }

    fn push(&mut self, text: &str, line: usize, path: &Path) -> Result<(), Error> {
        let path = || path.to_owned();
        let columns: Vec<_> = text.split(',').map(str::trim).collect();
        if columns.len() != NUM_PIXELS + 1 {
            let (found, expected) = (columns.len(), NUM_PIXELS + 1);
            return Err(Error::NumColumns { path: path(), line, found, expected });
        }
        let (pixels, label) = (&columns[..NUM_PIXELS], columns[NUM_PIXELS]);
        for (index, pixel) in pixels.iter().enumerate() {
            let value = pixel.parse().ok().filter(|value: &u8| *value <= MAX_PIXEL);
            let value = value.ok_or_else(|| Error::Pixel {
                path: path(),
                line,
                column: index + 1,
                found: pixel.to_string(),
                max: MAX_PIXEL,
            })?;
            self.pixels.push(f32::from(value) / f32::from(MAX_PIXEL));
        }
        let value = label.parse().ok().filter(|value: &u8| usize::from(*value) < NUM_CLASSES);
        let value = value.ok_or_else(|| Error::Label {
            path: path(),
            line,
            found: label.to_string(),
            max: NUM_CLASSES - 1,
        })?;
        self.labels.push(i32::from(value));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn shipped() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv.gz")
    }

    fn error_of(bytes: &[u8]) -> String {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        Digits::load(file.path()).err().expect("an error").to_string()
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(vec![], Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn the_shipped_file_has_the_fixed_split() {
        let (train, test) = Digits::load(&shipped()).unwrap();
        assert_eq!((train.num_examples(), test.num_examples()), (1437, 360));
        assert_eq!(train.num_outputs(), 10);
        let (mut x, mut y) = ([0f32; 64], [0i32]);
        let mut read = |source: &Digits, id| {
            let mut out = [bytemuck::cast_slice_mut(&mut x), bytemuck::cast_slice_mut(&mut y)];
            source.read(id, None, &mut out).map(|()| (x[2] * 16.0, y[0]))
        };
        // Rows 0, 1 and 1795 of the file.
        assert_eq!(read(&test, 0).unwrap(), (5.0, 0));
        assert_eq!(read(&train, 0).unwrap(), (0.0, 1));
        assert_eq!(read(&test, 359).unwrap().1, 9);
        assert!(read(&test, 360).unwrap_err().to_string().contains("example 360"));
    }

    #[test]
    fn bad_files_are_named_with_the_line() {
        let good = format!("{}7\n", "0,".repeat(64));
        let with = |bad: &str| gzip(&format!("{good}{bad}\n{good}"));
        let whole = std::fs::read(shipped()).unwrap();
        let cases = [
            (b"0,1,2\n".to_vec(), "not a whole gzip file"),
            (vec![], "not a whole gzip file"),
            (gzip(""), "0 rows"),
            (whole[..whole.len() / 2].to_vec(), "not a whole gzip file"),
            (gzip(&good), "has 1 row, but the set has 1797"),
            (with("1,2,3"), "line 2: 3 columns, but a row has 65"),
            (with(""), "line 2: 1 column, but"),
            (with(&format!("{}7", "17,".repeat(64))), "line 2, column 1: found \"17\""),
            (with(&format!("0,a,{}7", "0,".repeat(62))), "line 2, column 2: found \"a\""),
            (with(&format!("{}10", "0,".repeat(64))), "line 2: found label \"10\""),
            (with(&format!("{}-1", "0,".repeat(64))), "line 2: found label \"-1\""),
        ];
        for (bytes, expected) in cases {
            let message = error_of(&bytes);
            assert!(message.contains(expected), "{expected}: {message}");
        }
        let error = Digits::load(Path::new("/no/digits.csv.gz")).err().unwrap().to_string();
        assert!(error.contains("/no/digits.csv.gz") && error.contains("data.path"), "{error}");
        let error = Digits::load(Path::new("/")).err().unwrap().to_string();
        assert!(error.contains("cannot read the data file /: is a directory"), "{error}");
    }
}
