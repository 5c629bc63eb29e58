//! The header of a `.npy` file: which elements follow, and how many.
//!
//! ```text
//! 93 N U M P Y  major minor  length (u16; u32 from version 2)  {'descr': '<f4', 'fortran_order':
//! False, 'shape': (60000, 28, 28), }  padding  elements
//! ```
//! NumPy's documentation, `numpy.lib.format`.

use std::io::{self, Read};

use half::f16;
use hlo::DType;

use crate::config::shorten;

const MAGIC: &[u8] = b"\x93NUMPY";
/// Most bytes of a header: one of numbers has a few dozen.
const MAX_HEADER_BYTES: usize = 1 << 16;

/// The type of an element, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    Bool,
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F16,
    F32,
    F64,
}

impl ElementType {
    /// NumPy's names of the types.
    const NAMES: [(&str, Self); 12] = [
        ("b1", Self::Bool),
        ("u1", Self::U8),
        ("u2", Self::U16),
        ("u4", Self::U32),
        ("u8", Self::U64),
        ("i1", Self::I8),
        ("i2", Self::I16),
        ("i4", Self::I32),
        ("i8", Self::I64),
        ("f2", Self::F16),
        ("f4", Self::F32),
        ("f8", Self::F64),
    ];

    fn of_descr(descr: &str) -> Result<Self, String> {
        let (order, name) = descr.split_at_checked(1).unwrap_or_default();
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        match (order, found) {
            ("|" | "<" | "=", Some((_, element))) => Ok(*element),
            (">", Some((_, element))) => {
                Err(format!("it is big-endian ({descr}); save x.astype(\"<{}\")", element.name()))
            }
            _ => Err(format!(
                "its dtype is {}, but the elements must be bool, int8 to int64, uint8 to uint64 or \
                 float16 to float64; convert it with x.astype(\"float32\"){}",
                shorten(&format!("{descr:?}")),
                if name.starts_with('O') { "; such an object array is a pickle" } else { "" }
            )),
        }
    }

    /// That of a dtype; `None` if NumPy has none like it, or it is no number.
    pub fn of_dtype(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::U8 => Self::U8,
            DType::U32 => Self::U32,
            DType::U64 => Self::U64,
            DType::I8 => Self::I8,
            DType::I32 => Self::I32,
            DType::I64 => Self::I64,
            DType::F16 => Self::F16,
            DType::F32 => Self::F32,
            DType::F64 => Self::F64,
            DType::Bf16 | DType::Pred => return None,
        })
    }

    /// NumPy's name.
    pub fn name(self) -> &'static str {
        let known = Self::NAMES.iter().find(|(_, element)| *element == self);
        known.map_or("", |(name, _)| name)
    }

    /// Bytes of an element.
    pub fn num_bytes(self) -> usize {
        self.name().as_bytes().last().map_or(1, |digit| usize::from(digit - b'0'))
    }

    /// `true` for whole numbers and bool.
    pub fn is_whole(self) -> bool {
        !matches!(self, Self::F16 | Self::F32 | Self::F64)
    }

    /// Calls `each` with every element, rounded to f64.
    pub fn decode(self, bytes: &[u8], mut each: impl FnMut(f64)) {
        macro_rules! all {
            ($ty:ty) => {
                for bytes in bytes.as_chunks().0 {
                    each(<$ty>::from_le_bytes(*bytes) as f64);
                }
            };
        }
        match self {
            Self::Bool => bytes.iter().for_each(|byte| each(f64::from(u8::from(*byte != 0)))),
            Self::U8 => all!(u8),
            Self::U16 => all!(u16),
            Self::U32 => all!(u32),
            Self::U64 => all!(u64),
            Self::I8 => all!(i8),
            Self::I16 => all!(i16),
            Self::I32 => all!(i32),
            Self::I64 => all!(i64),
            Self::F16 => {
                bytes.as_chunks().0.iter().for_each(|two| each(f16::from_le_bytes(*two).to_f64()));
            }
            Self::F32 => all!(f32),
            Self::F64 => all!(f64),
        }
    }
}

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
pub struct NpyHeader {
    /// The type of the elements.
    pub element: ElementType,
    /// The dims, row-major.
    pub dims: Vec<usize>,
    /// Bytes in front of the elements.
    pub num_bytes: usize,
}

impl NpyHeader {
    /// Reads the start of a file.
    ///
    /// # Errors
    /// A reading error; or what is wrong with the file.
    pub fn read(from: &mut impl Read) -> io::Result<Result<Self, String>> {
        let mut start = [0; 8];
        if let Err(error) = from.read_exact(&mut start) {
            return match error.kind() {
                io::ErrorKind::UnexpectedEof => Ok(Err(NOT_NPY.to_owned())),
                _ => Err(error),
            };
        }
        if !start.starts_with(MAGIC) {
            return Ok(Err(NOT_NPY.to_owned()));
        }
        let (wide, length) = match start[6] {
            1 => (false, 2),
            2 | 3 => (true, 4),
            major => return Ok(Err(format!("its format has version {major}, not 1 to 3"))),
        };
        let mut length_bytes = [0; 4];
        let mut text = vec![];
        from.read_exact(&mut length_bytes[..length]).map_err(cut_off)?;
        let num_bytes = u32::from_le_bytes(length_bytes) as usize;
        if num_bytes > MAX_HEADER_BYTES {
            let problem = format!("its header has {num_bytes} bytes, more than any of numbers");
            return Ok(Err(problem));
        }
        from.take(num_bytes as u64).read_to_end(&mut text)?;
        if text.len() < num_bytes {
            return Ok(Err("it ends within its header; write it again".to_owned()));
        }
        let num_bytes = num_bytes + if wide { 12 } else { 10 };
        Ok(str::from_utf8(&text)
            .map_err(|_| "its header is not UTF-8".to_owned())
            .and_then(parse)
            .map(|(element, dims)| Self { element, dims, num_bytes }))
    }
}

/// A `.npy` file with floats of these dims, row-major.
pub fn npy_file(dims: &[usize], values: &[f32]) -> Vec<u8> {
    const START: usize = MAGIC.len() + 4;
    let dims: String = dims.iter().map(|dim| format!("{dim}, ")).collect();
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({dims}), }}");
    // The elements begin at a multiple of 64 bytes, behind a newline.
    let end = (START + text.len() + 1).next_multiple_of(64) - START - 1;
    text = format!("{text:end$}\n");
    let mut file = [MAGIC, &[1, 0], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat();
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    file
}

const NOT_NPY: &str = "it is no .npy file; write it with numpy.save";

fn cut_off(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::other("it ends within its header"),
        _ => error,
    }
}

/// Parses the dictionary.
fn parse(text: &str) -> Result<(ElementType, Vec<usize>), String> {
    let value = |key: &str| {
        let quoted = [format!("'{key}'"), format!("\"{key}\"")];
        let place = quoted.iter().find_map(|key| Some(text.find(key)? + key.len()));
        let rest = place.and_then(|place| text[place..].trim_start().strip_prefix(':'));
        rest.map(str::trim_start).ok_or_else(|| format!("its header has no {key}"))
    };
    let descr = value("descr")?;
    let quote = descr.chars().next().filter(|quote| *quote == '\'' || *quote == '"');
    let Some((descr, _)) = quote.and_then(|quote| descr[1..].split_once(quote)) else {
        return Err("its elements are structures; save each field as an array".to_owned());
    };
    let element = ElementType::of_descr(descr)?;
    match value("fortran_order")? {
        order if order.starts_with("False") => {}
        order if order.starts_with("True") => {
            return Err("it is stored by columns (Fortran order); save \
                        numpy.ascontiguousarray(x)"
                .to_owned());
        }
        _ => return Err("its header says neither True nor False for fortran_order".to_owned()),
    }
    let shape = value("shape")?;
    let shape = shape.strip_prefix('(').and_then(|shape| shape.split_once(')'));
    let dims: Option<Vec<usize>> = shape.and_then(|(dims, _)| {
        let dims = dims.split(',').map(str::trim).filter(|dim| !dim.is_empty());
        dims.map(|dim| dim.parse().ok()).collect()
    });
    Ok((element, dims.ok_or("the shape in its header is no tuple of whole numbers")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(text: &str, version: u8) -> Result<NpyHeader, String> {
        let mut file = MAGIC.to_vec();
        file.extend([version, 0]);
        match version {
            1 => file.extend((text.len() as u16).to_le_bytes()),
            _ => file.extend((text.len() as u32).to_le_bytes()),
        }
        file.extend(text.as_bytes());
        NpyHeader::read(&mut &file[..]).unwrap()
    }

    #[test]
    fn what_numpy_writes_is_read() {
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }          \n";
        let expected = NpyHeader { element: ElementType::F32, dims: vec![3, 4], num_bytes: 67 };
        let found = header(text, 1).unwrap();
        assert_eq!(found, NpyHeader { num_bytes: 10 + text.len(), ..expected });
        assert_eq!(header(text, 2).unwrap().num_bytes, 12 + text.len());
        let text = "{'descr': '|u1', 'fortran_order': False, 'shape': (7,), }";
        assert_eq!(header(text, 3).unwrap().dims, [7]);
        let text = "{'descr': '|b1', 'fortran_order': False, 'shape': (), }";
        assert_eq!(header(text, 1).unwrap().dims, [0; 0]);
    }

    #[test]
    fn what_is_written_is_read() {
        let file = npy_file(&[2, 1], &[0.5, -1.0]);
        let header = NpyHeader::read(&mut &file[..]).unwrap().unwrap();
        assert_eq!(
            header,
            NpyHeader { element: ElementType::F32, dims: vec![2, 1], num_bytes: 128 }
        );
        assert_eq!(file.len(), 128 + 8);
    }

    #[test]
    fn what_is_no_array_of_numbers_is_refused() {
        let of = |descr: &str, order: &str, shape: &str| {
            format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}")
        };
        for (text, expected) in [
            (of("'>f8'", "False", "(2,)"), "big-endian"),
            (of("'|O'", "False", "(2,)"), "object array"),
            (of("'<U5'", "False", "(2,)"), "dtype is \"<U5\""),
            (of("'<c8'", "False", "(2,)"), "dtype"),
            (of("''", "False", "(2,)"), "dtype"),
            (of("'é'", "False", "(2,)"), "dtype"),
            (of("[('a', '<f4')]", "False", "(2,)"), "structures"),
            (of("'<f4'", "True", "(2, 3)"), "Fortran"),
            (of("'<f4'", "Maybe", "(2, 3)"), "neither"),
            (of("'<f4'", "False", "(-2, 3)"), "tuple of whole numbers"),
            (of("'<f4'", "False", "(99999999999999999999,)"), "tuple of whole numbers"),
            (of("'<f4'", "False", "2"), "tuple of whole numbers"),
            ("{}".to_owned(), "no descr"),
            (String::new(), "no descr"),
        ] {
            let error = header(&text, 1).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(header("", 9).unwrap_err().contains("version 9"));
        let mut short: &[u8] = b"\x93NUMPY\x01\0\xff\x00{'descr'";
        assert!(NpyHeader::read(&mut short).unwrap().unwrap_err().contains("ends within"));
        assert!(NpyHeader::read(&mut &b"PK"[..]).unwrap().is_err());
        let mut huge: &[u8] = b"\x93NUMPY\x02\0\xff\xff\xff\xff";
        assert!(NpyHeader::read(&mut huge).unwrap().unwrap_err().contains("4294967295 bytes"));
    }

    #[test]
    fn elements_of_every_type_are_numbers() {
        let decoded = |element: ElementType, bytes: &[u8]| {
            let mut values = vec![];
            element.decode(bytes, |value| values.push(value));
            values
        };
        assert_eq!(decoded(ElementType::Bool, &[0, 1, 2]), [0.0, 1.0, 1.0]);
        assert_eq!(decoded(ElementType::I8, &[255]), [-1.0]);
        assert_eq!(decoded(ElementType::U16, &[1, 1]), [257.0]);
        assert_eq!(decoded(ElementType::I64, &(-5i64).to_le_bytes()), [-5.0]);
        assert_eq!(decoded(ElementType::F16, &f16::from_f64(0.5).to_le_bytes()), [0.5]);
        assert_eq!(decoded(ElementType::F32, &1.5f32.to_le_bytes()), [1.5]);
        for (_, element) in ElementType::NAMES {
            assert_eq!(decoded(element, &vec![0; element.num_bytes()]), [0.0], "{element:?}");
        }
    }
}
