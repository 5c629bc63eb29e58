//! What a file of tokens should not be: a file with a header, one of another format, one with
//! tokens of another width.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::Error;
use super::files::unreadable;
use super::formats::{HEAD_BYTES, is_text, recognize, refuse};
use crate::config::{TokenType, open_regular};

const EXPECTED: &str = "tokens without a header";

/// Checks that a file is of no known format but the bare tokens.
///
/// # Errors
/// Names the format, and says how to convert it.
pub(super) fn check(
    path: &Path,
    key: &'static str,
    file: &File,
    dtype: TokenType,
) -> Result<(), Error> {
    let num_bytes = file.metadata().map_err(|source| unreadable(path, key, source))?.len();
    let mut head = vec![0; HEAD_BYTES.min(usize::try_from(num_bytes).unwrap_or(HEAD_BYTES))];
    file.read_exact_at(&mut head, 0).map_err(|source| unreadable(path, key, source))?;
    if let Some((found, advice)) = llm_c(&head, num_bytes) {
        let advice = advice + &format!(", and set {key} to NEW");
        return Err(Error::Format { path: path.to_owned(), found, expected: EXPECTED, advice });
    }
    if let Some(format) = recognize(&head, num_bytes) {
        return Err(refuse(path, key, EXPECTED, format));
    }
    if is_text(&head) {
        let advice = "tokenize it first, or train on its bytes with data.source = \"text\"";
        return Err(Error::Format {
            path: path.to_owned(),
            found: "plain text".to_owned(),
            expected: EXPECTED,
            advice: advice.to_owned(),
        });
    }
    check_megatron(path, dtype)
}

/// Bytes of the header of llm.c's files.
const LLM_C_HEADER: u64 = 1024;

/// The files of llm.c (`dev/data/data_common.py` there): 256 numbers of 32 bits, which are a magic
/// number, a version, the number of tokens, and zeros; then the tokens, of 2 bytes in the format
/// for GPT-2 and of 4 bytes in the one for Llama 3. Its files for multiple choice have another
/// magic number.
fn llm_c(head: &[u8], num_bytes: u64) -> Option<(String, String)> {
    let (words, _) = head.get(..LLM_C_HEADER as usize)?.as_chunks::<4>();
    let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
    let [magic, version, num_tokens] = [words.next()?, words.next()?, words.next()?];
    let usual = match magic {
        20_240_520 => 2,
        20_240_801 => 4,
        20_240_522 => {
            let found = "a file of llm.c for multiple choice, such as HellaSwag".to_owned();
            return Some((found, "convert a file with text to NEW".to_owned()));
        }
        _ => return None,
    };
    let of_width = |width: &u64| u64::from(num_tokens) * width == num_bytes - LLM_C_HEADER;
    let width = [2, 4].into_iter().find(of_width).unwrap_or(usual);
    let found = format!(
        "a file of llm.c: it begins with a header of {LLM_C_HEADER} bytes (magic number {magic}, \
         version {version}, {num_tokens} tokens)"
    );
    let advice = format!(
        "write what follows the header to another file (tail -c +{} FILE > NEW), whose tokens of \
         {width} bytes are data.dtype = \"u{}\"",
        LLM_C_HEADER + 1,
        8 * width
    );
    Some((found, advice))
}

/// Megatron's `.bin` files are bare tokens; the `.idx` file beside one says which.
fn check_megatron(path: &Path, dtype: TokenType) -> Result<(), Error> {
    const MAGIC: &[u8] = b"MMIDIDX\0\0";
    let mut head = [0; 18];
    let index = path.with_extension("idx");
    let is_read = index != path
        && open_regular(&index).and_then(|mut file| file.read_exact(&mut head)).is_ok();
    if !is_read || !head.starts_with(MAGIC) {
        return Ok(());
    }
    let (name, needed) = match head[MAGIC.len() + 8] {
        1 => ("uint8", None),
        2 => ("int8", None),
        3 => ("int16", Some(TokenType::U16)),
        4 => ("int32", Some(TokenType::U32)),
        5 => ("int64", None),
        6 | 7 => ("floats", None),
        8 => ("uint16", Some(TokenType::U16)),
        // A newer version than is known here.
        _ => return Ok(()),
    };
    let advice = match needed {
        Some(needed) if needed == dtype => return Ok(()),
        Some(TokenType::U16) => "set data.dtype = \"u16\"",
        Some(TokenType::U32) => "set data.dtype = \"u32\"",
        None => "write its tokens in 2 or 4 bytes each",
    };
    let problem =
        format!("{} beside it says that its tokens are {name}; {advice}", index.display());
    Err(Error::TokenWidth { path: path.to_owned(), problem })
}

/// A reason to believe that tokens have another width.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    /// What is wrong, and what to change.
    pub problem: String,
    /// No tokenizer makes such tokens.
    pub is_certain: bool,
}

/// Fewer tokens show no pattern.
const ENOUGH: u64 = 32;

/// Judges by the largest tokens at even and at odd places: ids of twice the width have a second
/// half that is 0, or very small.
pub(super) fn doubt(dtype: TokenType, [even, odd]: [u32; 2], num_tokens: u64) -> Option<Doubt> {
    let (bytes, wider) = match dtype {
        TokenType::U16 => (4, "set data.dtype = \"u32\""),
        TokenType::U32 => (
            8,
            "write them in 4 bytes each: numpy.fromfile(FILE, \"<i8\").astype(\"<u4\").tofile(NEW)",
        ),
    };
    let is_zero =
        |place: &str| format!("{place} token is 0, as where tokens have {bytes} bytes; {wider}");
    // Ids of 18 bits, in tokens with lower halves of any size.
    const MAX_SECOND: u32 = 3;
    const MIN_FIRST: u32 = 255;
    match (even, odd) {
        _ if num_tokens < ENOUGH => None,
        (0, 0) => Some(Doubt {
            problem: "all tokens are 0; was the file filled?".to_owned(),
            is_certain: false,
        }),
        (_, 0) => Some(Doubt { problem: is_zero("every second"), is_certain: true }),
        (MIN_FIRST.., ..=MAX_SECOND) if dtype == TokenType::U16 => Some(Doubt {
            problem: format!(
                "every second token is at most {odd}, as where tokens have {bytes} bytes; if they \
                 have, {wider}"
            ),
            is_certain: false,
        }),
        _ => None,
    }
}

/// What may be wrong with a token that is not in the vocabulary.
pub(super) fn hint(dtype: TokenType, token: u32, vocab_size: usize) -> String {
    let halves = [token & 0xffff, token >> 16];
    let fit = |token: u32| (token as usize) < vocab_size;
    if dtype == TokenType::U32 && token > 0xffff && halves.into_iter().all(fit) {
        let [a, b] = halves;
        return format!(
            "in 2 bytes each these would be {a} and {b}: is data.dtype = \"u16\" meant?"
        );
    }
    let swapped = token.swap_bytes();
    if dtype == TokenType::U32 && fit(swapped) {
        return format!("big endian it would be {swapped}, but tokens are little endian");
    }
    "does data.dtype match the file, and data.vocab_size its tokenizer?".to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn message(dir: &Path, bytes: &[u8], dtype: TokenType) -> Option<String> {
        let path = dir.join("a.bin");
        fs::write(&path, bytes).unwrap();
        let checked = check(&path, "data.path", &File::open(&path).unwrap(), dtype);
        checked.err().map(|error| error.to_string())
    }

    fn llm_c_file(magic: u32, version: u32, width: usize) -> Vec<u8> {
        let mut words = [0u32; 256];
        words[..3].copy_from_slice(&[magic, version, 40]);
        let header = words.into_iter().flat_map(u32::to_le_bytes);
        header.chain(std::iter::repeat_n(7, 40 * width)).collect()
    }

    #[test]
    fn a_header_of_llm_c_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for (magic, version, width, expected) in [
            (20_240_520, 1, 2, "u16"),
            (20_240_801, 7, 4, "u32"),
            // Files with the first magic number and wider tokens are around, too.
            (20_240_520, 1, 4, "u32"),
        ] {
            let file = llm_c_file(magic, version, width);
            let message = message(dir.path(), &file, TokenType::U16).unwrap();
            for expected in [
                "a.bin is a file of llm.c: it begins with a header of 1024 bytes",
                &format!("magic number {magic}, version {version}, 40 tokens"),
                "tail -c +1025 FILE > NEW",
                &format!("data.dtype = \"{expected}\""),
                "set data.path to NEW",
            ] {
                assert!(message.contains(expected), "{expected}: {message}");
            }
        }
        let choices = message(dir.path(), &llm_c_file(20_240_522, 1, 2), TokenType::U16).unwrap();
        assert!(choices.contains("multiple choice"), "{choices}");
        assert_eq!(message(dir.path(), &llm_c_file(20_240_521, 1, 2), TokenType::U16), None);
    }

    #[test]
    fn other_formats_and_text_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let text = "a text that nobody has tokenized yet\n".repeat(20);
        for (bytes, expected) in [
            (
                &b"\x93NUMPY\x01\0 and more"[..],
                "a NumPy array with a header (.npy), not tokens without a header; write",
            ),
            (b"PAR1", "is a Parquet file"),
            (text.as_bytes(), "is plain text, not tokens without a header; tokenize it first"),
        ] {
            let message = message(dir.path(), bytes, TokenType::U16).unwrap();
            assert!(message.contains(expected), "{expected}: {message}");
        }
        let tokens: Vec<u8> = (0..2000u16).flat_map(u16::to_le_bytes).collect();
        assert_eq!(message(dir.path(), &tokens, TokenType::U16), None);
        assert_eq!(message(dir.path(), &[], TokenType::U16), None);
    }

    #[test]
    fn the_index_of_megatron_says_how_wide_tokens_are() {
        let dir = tempfile::tempdir().unwrap();
        let index: PathBuf = dir.path().join("a.idx");
        let write = |code: u8| {
            let head = [b"MMIDIDX\0\0", &1u64.to_le_bytes()[..], &[code], &[0; 16]].concat();
            fs::write(&index, head).unwrap();
        };
        for (code, dtype, expected) in [
            (8, TokenType::U16, None),
            (4, TokenType::U32, None),
            (99, TokenType::U16, None),
            (8, TokenType::U32, Some("uint16; set data.dtype = \"u16\"")),
            (4, TokenType::U16, Some("int32; set data.dtype = \"u32\"")),
            (5, TokenType::U32, Some("int64; write its tokens in 2 or 4 bytes")),
        ] {
            write(code);
            let found = message(dir.path(), &[7; 400], dtype);
            match expected {
                None => assert_eq!(found, None),
                Some(expected) => assert!(found.unwrap().contains(expected), "{code}"),
            }
        }
        fs::write(&index, "not an index").unwrap();
        assert_eq!(message(dir.path(), &[7; 400], TokenType::U16), None);
    }

    #[test]
    fn halves_of_wider_tokens_are_doubted() {
        use TokenType::{U16, U32};
        let of = |dtype, max, num_tokens| {
            doubt(dtype, max, num_tokens).map(|doubt| (doubt.is_certain, doubt.problem))
        };
        let certain = |dtype, expected: &str| {
            let (is_certain, problem) = of(dtype, [50_000, 0], 1000).unwrap();
            assert!(is_certain && problem.contains(expected), "{problem}");
        };
        certain(U16, "set data.dtype = \"u32\"");
        certain(U32, "astype(\"<u4\")");
        let (is_certain, problem) = of(U16, [65_535, 1], 1000).unwrap();
        assert!(!is_certain && problem.contains("at most 1"), "{problem}");
        let (is_certain, problem) = of(U16, [0, 0], 1000).unwrap();
        assert!(!is_certain && problem.contains("all tokens are 0"), "{problem}");
        for (dtype, max, num_tokens) in [
            (U16, [50_000, 0], 31),
            (U16, [50_000, 49_000], 1000),
            (U16, [3, 3], 1000),
            (U16, [200, 3], 1000),
            (U32, [128_000, 3], 1000),
        ] {
            assert_eq!(of(dtype, max, num_tokens), None, "{max:?}");
        }
        assert!(hint(U32, 7 << 16 | 9, 100).contains("would be 9 and 7: is data.dtype = \"u16\""));
        assert!(hint(U32, 7 << 24, 100).contains("big endian it would be 7"));
        assert!(hint(U16, 900, 100).contains("does data.dtype match"));
    }
}
