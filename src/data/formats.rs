//! Files that are of another kind than the configuration says, recognized by their first bytes.

use std::path::Path;

use super::Error;

/// Bytes at the start of a file that are looked at.
pub(super) const HEAD_BYTES: usize = 4096;

/// A kind of file, and how to make of it what a source reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    /// Its name, with an article.
    pub name: &'static str,
    /// What to do, as the end of a sentence.
    pub advice: &'static str,
}

/// The place of the bytes that identify a format.
type Magic = (usize, &'static [u8], Format);

const GZIP: &str = "compressed with gzip";
const BZIP2: &str = "compressed with bzip2";
const UNPACK: &str = "unpack it, and name the file that was in it";
const WRITE: &str = "write what is in it as the bare values";

/// Formats with fixed bytes. Two bytes can be any token, so the short ones have more of the header
/// that always follows.
const MAGICS: [Magic; 30] = [
    (0, b"\x93NUMPY", of("a NumPy array with a header (.npy)", NUMPY)),
    (0, b"\x1f\x8b\x08", of(GZIP, "unpack it with gunzip")),
    (0, b"\x28\xb5\x2f\xfd", of("compressed with zstd", "unpack it with zstd -d")),
    (0, b"\xfd7zXZ\0", of("compressed with xz", "unpack it with unxz")),
    (0, b"\x04\x22\x4d\x18", of("compressed with lz4", "unpack it with lz4 -d")),
    (4, b"1AY&SY", of(BZIP2, "unpack it with bunzip2")),
    (0, b"7z\xbc\xaf\x27\x1c", of("a 7z archive", UNPACK)),
    (0, b"PK\x03\x04", of("a zip archive (.zip, .npz, or .pt of PyTorch)", UNPACK)),
    (257, b"ustar", of("a tar archive", UNPACK)),
    (0, b"PAR1", of("a Parquet file", WRITE)),
    (0, b"ARROW1\0\0", of("an Arrow file", WRITE)),
    (0, b"\x89HDF\r\n\x1a\n", of("an HDF5 file", WRITE)),
    (0, b"CDF\x01", of("a NetCDF file", WRITE)),
    (0, b"CDF\x02", of("a NetCDF file", WRITE)),
    (0, b"GGUF", of("a GGUF file, which holds a model", "name a file with data")),
    (0, b"SQLite format 3\0", of("an SQLite database", WRITE)),
    (0, b"Obj\x01\x04", of("an Avro file", WRITE)),
    (0, b"SEQ\x06", of("a Hadoop sequence file", WRITE)),
    (
        0,
        b"MMIDIDX\0\0",
        of("the index of a Megatron data set (.idx)", "name the .bin file beside it"),
    ),
    (
        0,
        b"TNTIDX\0\0",
        of("the index of a fairseq data set (.idx)", "name the .bin file beside it"),
    ),
    (0, b"\x80\x02}q", of("a pickle of Python", WRITE)),
    (0, b"\x80\x03}q", of("a pickle of Python", WRITE)),
    (0, b"\x89PNG\r\n\x1a\n", of("a PNG image", IMAGES)),
    (0, b"\xff\xd8\xff\xe0", of("a JPEG image", IMAGES)),
    (0, b"\xff\xd8\xff\xe1", of("a JPEG image", IMAGES)),
    (0, b"GIF89a", of("a GIF image", IMAGES)),
    (0, b"%PDF-", of("a PDF document", "extract its text, for example with pdftotext")),
    (0, b"\x7fELF\x02\x01\x01", of("a program (ELF)", "name a file with data")),
    (
        0,
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        of("a Microsoft Office document", "save it as plain text"),
    ),
    (8, b"WEBPVP8", of("a WebP image", IMAGES)),
];
const NUMPY: &str = "write its values without it: numpy.load(FILE).astype(\"<u2\").tofile(NEW), or \
                     \"<u4\" for data.dtype = \"u32\"";
const IMAGES: &str = "for images there is data.source = \"image_folder\"";

const fn of(name: &'static str, advice: &'static str) -> Format {
    Format { name, advice }
}

/// The format of a file that is not plain text or bare numbers. `head` is its start, of at most
/// [`HEAD_BYTES`] bytes; it has `num_bytes` in all.
pub(super) fn recognize(head: &[u8], num_bytes: u64) -> Option<Format> {
    let has = |(at, magic, _): &&Magic| head.get(*at..).is_some_and(|rest| rest.starts_with(magic));
    let length = |at: usize| {
        let bytes = head.get(at..)?.first_chunk::<8>()?;
        u64::from_le_bytes(*bytes).checked_add(at as u64 + 8)
    };
    let fits = |at| length(at).is_some_and(|end| end <= num_bytes);
    if let Some((.., format)) = MAGICS.iter().find(has) {
        // What else their headers have: two bytes of gzip and three of bzip2 are too few.
        return match format.name {
            GZIP => head.get(3).is_none_or(|flags| *flags < 0x20),
            BZIP2 => head.starts_with(b"BZh"),
            _ => true,
        }
        .then_some(*format);
    }
    // A length of 8 bytes, and a header of that length in JSON.
    if head.get(8..).is_some_and(|header| header.starts_with(b"{\"")) && fits(0) {
        return Some(of("a safetensors file", WRITE));
    }
    let is_pickle = [b"\x80\x04\x95", b"\x80\x05\x95"].iter().any(|start| head.starts_with(*start));
    (is_pickle && fits(3)).then_some(of("a pickle of Python", WRITE))
}

/// `true` if bytes are UTF-8 without control characters, and too many for that to be chance.
pub(super) fn is_text(head: &[u8]) -> bool {
    const ENOUGH: usize = 32;
    // The last character may be cut off.
    let text = match str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            str::from_utf8(&head[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let is_plain = |letter: char| !letter.is_control() || matches!(letter, '\t' | '\n' | '\r');
    text.len() >= ENOUGH && text.chars().all(is_plain)
}

/// `true` if bytes begin with the byte order mark of UTF-16.
pub(super) fn is_utf16(head: &[u8]) -> bool {
    head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff])
}

/// An error for a file that is named as data of another kind.
pub(super) fn refuse(
    path: &Path,
    key: &'static str,
    expected: &'static str,
    format: Format,
) -> Error {
    Error::Format {
        path: path.to_owned(),
        found: format.name.to_owned(),
        expected,
        advice: format!("{}, and set {key} to that", format.advice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_recognized_by_what_writers_of_them_write() {
        let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        std::io::Write::write_all(&mut gzip, b"text").unwrap();
        let gzip = gzip.finish().unwrap();
        let tensors = [(
            "w",
            safetensors::tensor::TensorView::new(safetensors::Dtype::U8, vec![1], &[7]).unwrap(),
        )];
        let tensors = safetensors::serialize(tensors, None).unwrap();
        let mut tar = vec![0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        let cases: [(&[u8], Option<&str>); 12] = [
            (&gzip, Some("compressed with gzip")),
            (&tensors, Some("a safetensors file")),
            (&tar, Some("a tar archive")),
            (b"\x93NUMPY\x01\0v\0{'descr': '<u2'", Some("a NumPy array with a header (.npy)")),
            (b"BZh91AY&SY\x12", Some("compressed with bzip2")),
            (b"abcd1AY&SY\x12", None),
            (b"PAR1\x15\x04", Some("a Parquet file")),
            (b"MMIDIDX\0\0\x01", Some("the index of a Megatron data set (.idx)")),
            // Tokens with bytes that begin like gzip or BOM.
            (b"\x1f\x8b\x01\x02", None),
            (b"", None),
            (b"plain text", None),
            (b"\x05\0\0\0\0\0\0\0{\"a\"", None),
        ];
        for (head, expected) in cases {
            let found = recognize(head, head.len() as u64).map(|format| format.name);
            assert_eq!(found, expected, "{head:?}");
        }
        let places: Vec<_> = MAGICS.iter().map(|(at, magic, _)| (at, magic)).collect();
        for (index, place) in places.iter().enumerate() {
            assert!(!places[..index].contains(place), "{place:?} twice");
        }
    }

    #[test]
    fn text_is_told_from_tokens() {
        let text = "Tokens are numbers, but this is a text: \u{e4}\u{f6}\u{fc}\n".as_bytes();
        assert!(is_text(text));
        // Cut inside the last letter.
        assert!(is_text(&text[..text.len() - 2]));
        assert!(!is_text(&text[..20]), "too short to tell");
        let tokens: Vec<u8> =
            (0..64u16).flat_map(|token| (token * 700 + 40).to_le_bytes()).collect();
        assert!(!is_text(&tokens));
        assert!(is_utf16(b"\xff\xfea\0") && !is_utf16(b"a\0"));
    }
}
