//! `tokens`: tokenized text, a file of little-endian u16 or u32 numbers without a header. Files can
//! be larger than memory: examples are read on demand.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rayon::prelude::*;

use super::files::unreadable;
use super::fingerprint::Fingerprinter;
use super::token_format;
use super::token_scan::TokenScan;
use super::windows::{self, Windows};
use super::{Error, Field, Source};
use crate::config::{self, TokenType, open_regular};

/// One split of a tokenized text. Field `x` is i32 `[context]`, a window of tokens; `y` is i32
/// `[context]`, the token after each of them.
pub struct Tokens {
    file: Arc<TokenFile>,
    windows: Windows,
    vocab_size: usize,
}

struct TokenFile {
    path: PathBuf,
    /// The key that names it.
    key: &'static str,
    file: File,
    dtype: TokenType,
    num_bytes: u64,
    num_tokens: u64,
    scan: OnceLock<TokenScan>,
}

/// Tokens that are looked at together.
const BLOCK_TOKENS: u64 = 1 << 18;
/// Blocks of a large file that are looked at before all others.
const NUM_FIRST: usize = 64;

impl Tokens {
    /// Opens the file, and returns the training split and the evaluation split: all of `eval_path`,
    /// or the end of the file.
    ///
    /// # Errors
    /// A file that cannot be read, ends within a token, has too few tokens, or is of a known format
    /// that is not this one. Ids beyond the vocabulary are found by [`Source::check`].
    pub fn open(config: &config::TokensConfig) -> Result<(Self, Self), Error> {
        let split = |file: &Arc<TokenFile>, windows| Self {
            file: file.clone(),
            windows,
            vocab_size: config.vocab_size,
        };
        let open = |path: &Path, key| TokenFile::open(path, key, config.dtype).map(Arc::new);
        let file = open(&config.path, "data.path")?;
        let eval_file = config.eval_path.as_ref().map(|path| open(path, "data.eval_path"));
        let eval_file = eval_file.transpose()?;
        for file in [Some(&file), eval_file.as_ref()].into_iter().flatten() {
            file.check_format()?;
        }
        let windows = Windows::new(config.context, file.num_tokens);
        let Some(eval_file) = eval_file else {
            let (train, eval) = windows
                .split(config.eval_fraction())
                .ok_or_else(|| file.too_few_tokens(config.context))?;
            return Ok((split(&file, train), split(&file, eval)));
        };
        let eval_windows = Windows::new(config.context, eval_file.num_tokens);
        for (file, windows) in [(&file, &windows), (&eval_file, &eval_windows)] {
            if windows.num_windows() == 0 {
                return Err(file.too_few_tokens(config.context));
            }
        }
        Ok((split(&file, windows), split(&eval_file, eval_windows)))
    }
}

impl Source for Tokens {
    fn num_examples(&self) -> u64 {
        self.windows.num_windows()
    }

    fn num_outputs(&self) -> usize {
        self.vocab_size
    }

    fn fields(&self) -> &[Field] {
        self.windows.fields()
    }

    fn check(&self, tell: &(dyn Fn(&str) + Sync)) -> Result<(), Error> {
        self.file.check(self.vocab_size, tell)
    }

    fn fingerprint(&self) -> Result<Option<u128>, Error> {
        let hash = self.file.scan(&|_| ())?.hash;
        let of_part = Fingerprinter::new("tokens").hashes(&[hash]).numbers(self.windows.extent());
        Ok(Some(of_part.finish()))
    }

    fn read(&self, example: u64, _epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error> {
        let range = self.windows.tokens_of(example)?;
        let tokens = self.file.read(range.start, (range.end - range.start) as usize)?;
        // The file may have been changed since it was checked.
        self.file.check_tokens(range.start, &tokens, self.vocab_size)?;
        // The configuration limits the vocabulary to i32.
        let tokens: Vec<_> = tokens.into_iter().map(|token| token as i32).collect();
        windows::write(&tokens, out);
        Ok(())
    }
}

impl TokenFile {
    fn open(path: &Path, key: &'static str, dtype: TokenType) -> Result<Self, Error> {
        let opened = open_regular(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (num_bytes, file) = opened.map_err(|source| unreadable(path, key, source))?;
        let (path, num_tokens) = (path.to_owned(), num_bytes / dtype.num_bytes() as u64);
        Ok(Self { path, key, file, dtype, num_bytes, num_tokens, scan: OnceLock::new() })
    }

    /// Checks what its beginning and its size say.
    fn check_format(&self) -> Result<(), Error> {
        token_format::check(&self.path, self.key, &self.file, self.dtype)?;
        let token_bytes = self.dtype.num_bytes() as u64;
        if self.num_bytes.is_multiple_of(token_bytes) {
            return Ok(());
        }
        Err(Error::NotWhole {
            path: self.path.clone(),
            found: self.num_bytes,
            unit: format!("{token_bytes}-byte tokens"),
            key: "data.dtype",
        })
    }

    /// What is in the file. It is read when this is asked for the first time.
    fn scan(&self, tell: &(dyn Fn(&str) + Sync)) -> Result<&TokenScan, Error> {
        if let Some(found) = self.scan.get() {
            return Ok(found);
        }
        let found = TokenScan::of(&self.path, &self.file, self.dtype, tell);
        let found = found.map_err(|source| unreadable(&self.path, self.key, source))?;
        Ok(self.scan.get_or_init(|| found))
    }

    /// Checks all tokens. Says only the first time what is doubtful.
    fn check(&self, vocab_size: usize, tell: &(dyn Fn(&str) + Sync)) -> Result<(), Error> {
        let is_new = self.scan.get().is_none();
        let num_blocks = self.num_tokens.div_ceil(BLOCK_TOKENS) as usize;
        if is_new && num_blocks > NUM_FIRST {
            // What is wrong everywhere is found without reading the whole of a large file.
            self.find_token(vocab_size, num_blocks.div_ceil(NUM_FIRST))?;
        }
        let [even, odd] = self.scan(tell)?.max;
        if even.max(odd) as usize >= vocab_size {
            self.find_token(vocab_size, 1)?;
        }
        match token_format::doubt(self.dtype, [even, odd], self.num_tokens) {
            Some(doubt) if doubt.is_certain => {
                Err(Error::TokenWidth { path: self.path.clone(), problem: doubt.problem })
            }
            Some(doubt) if is_new => {
                tell(&format!("warning: {}: {}", self.path.display(), doubt.problem));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Finds the first token that is not in the vocabulary, in every `step`th block.
    fn find_token(&self, vocab_size: usize, step: usize) -> Result<(), Error> {
        let check = |block: u64| {
            let first = block * BLOCK_TOKENS;
            let tokens = self.read(first, BLOCK_TOKENS.min(self.num_tokens - first) as usize)?;
            self.check_tokens(first, &tokens, vocab_size)
        };
        let blocks = (0..self.num_tokens.div_ceil(BLOCK_TOKENS) as usize).into_par_iter();
        let checked = blocks.step_by(step).map(|block| check(block as u64));
        checked.find_first(Result::is_err).unwrap_or(Ok(()))
    }

    /// Checks tokens, the first of them number `first` of the file.
    fn check_tokens(&self, first: u64, tokens: &[u32], vocab_size: usize) -> Result<(), Error> {
        match tokens.iter().position(|token| *token as usize >= vocab_size) {
            None => Ok(()),
            Some(index) => Err(Error::Token {
                path: self.path.clone(),
                offset: (first + index as u64) * self.dtype.num_bytes() as u64,
                found: tokens[index],
                vocab_size,
                hint: token_format::hint(self.dtype, tokens[index], vocab_size),
            }),
        }
    }

    fn read(&self, first: u64, count: usize) -> Result<Vec<u32>, Error> {
        let size = self.dtype.num_bytes();
        let mut bytes = vec![0; count * size];
        let read = self.file.read_exact_at(&mut bytes, first * size as u64);
        read.map_err(|source| unreadable(&self.path, self.key, source))?;
        Ok(match self.dtype {
            TokenType::U16 => {
                let (words, _) = bytes.as_chunks();
                words.iter().map(|word| u32::from(u16::from_le_bytes(*word))).collect()
            }
            TokenType::U32 => {
                let (words, _) = bytes.as_chunks();
                words.iter().map(|word| u32::from_le_bytes(*word)).collect()
            }
        })
    }

    fn too_few_tokens(&self, context: usize) -> Error {
        let (path, found, window) = (self.path.clone(), self.num_tokens, context as u64 + 1);
        Error::TooFewTokens { path, key: self.key, found, window }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn config(path: PathBuf, dtype: TokenType) -> config::TokensConfig {
        let (vocab_size, context) = (1000, 2);
        config::TokensConfig {
            path,
            eval_path: None,
            eval_fraction: None,
            dtype,
            vocab_size,
            context,
            num_examples: None,
        }
    }

    fn read(source: &Tokens, id: u64) -> Result<(Vec<i32>, Vec<i32>), String> {
        let (mut x, mut y) = (vec![0; 2], vec![0; 2]);
        let mut out = [bytemuck::cast_slice_mut(&mut x), bytemuck::cast_slice_mut(&mut y)];
        source.read(id, None, &mut out).map_err(|error| error.to_string())?;
        Ok((x, y))
    }

    fn u16s(tokens: &[u16]) -> Vec<u8> {
        tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
    }

    #[test]
    fn both_widths_are_read_and_split() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        let wide: Vec<_> = (990u32..1000).flat_map(u32::to_le_bytes).collect();
        let narrow = u16s(&(990..1000).collect::<Vec<_>>());
        for (bytes, dtype) in [(wide, TokenType::U32), (narrow, TokenType::U16)] {
            fs::write(&path, bytes).unwrap();
            let (train, eval) = Tokens::open(&config(path.clone(), dtype)).unwrap();
            assert_eq!((train.num_examples(), eval.num_examples()), (2, 1));
            assert_eq!(train.num_outputs(), 1000);
            assert_eq!(read(&train, 1), Ok((vec![993, 994], vec![994, 995])));
            assert_eq!(read(&eval, 0), Ok((vec![996, 997], vec![997, 998])));
            assert!(read(&eval, 1).unwrap_err().contains("example 1"));
        }
    }

    #[test]
    fn a_file_for_evaluation_leaves_the_other_whole() {
        let dir = tempfile::tempdir().unwrap();
        let [path, eval_path] = ["a.bin", "b.bin"].map(|name| dir.path().join(name));
        fs::write(&path, u16s(&[1, 2, 3, 4, 5, 6])).unwrap();
        fs::write(&eval_path, u16s(&[7, 8, 9])).unwrap();
        let mut config = config(path, TokenType::U16);
        config.eval_path = Some(eval_path.clone());
        let (train, eval) = Tokens::open(&config).unwrap();
        assert_eq!((train.num_examples(), eval.num_examples()), (2, 1));
        assert_eq!(read(&eval, 0), Ok((vec![7, 8], vec![8, 9])));
        fs::write(&eval_path, u16s(&[7, 8])).unwrap();
        let message = Tokens::open(&config).err().unwrap().to_string();
        assert!(message.contains("b.bin holds 2 tokens"), "{message}");
        assert!(message.contains("set data.eval_path to more"), "{message}");
        fs::remove_file(&eval_path).unwrap();
        let message = Tokens::open(&config).err().unwrap().to_string();
        assert!(
            message.contains("b.bin: ") && message.ends_with("set data.eval_path"),
            "{message}"
        );
    }

    #[test]
    fn bad_files_are_named_with_the_offset() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        let open = |bytes: &[u8], dtype| {
            fs::write(&path, bytes).unwrap();
            Tokens::open(&config(path.clone(), dtype))
        };
        let message = |bytes: &[u8], dtype| open(bytes, dtype).err().unwrap().to_string();
        let error = message(&[0; 21], TokenType::U16);
        assert!(error.contains("21 bytes") && error.contains("2-byte tokens"), "{error}");
        let error = message(&[0; 22], TokenType::U32);
        assert!(error.contains("4-byte tokens") && error.contains("data.dtype"), "{error}");
        // What it is, and not that it ends within a token.
        let error = message(b"\x93NUMPY\x01\0v", TokenType::U16);
        assert!(error.contains("a.bin is a NumPy array"), "{error}");
        assert!(message(&[], TokenType::U16).contains("holds 0 tokens"));
        assert!(message(&[0; 10], TokenType::U16).contains("holds 5 tokens"));
        let error = |path: &str| {
            Tokens::open(&config(path.into(), TokenType::U16)).err().unwrap().to_string()
        };
        assert!(error("/").contains("cannot read the data file /: is a directory"));
        assert!(error("/dev/zero").contains("/dev/zero: it is a device, not a regular file"));

        let (train, _) = open(&u16s(&[1, 2, 3, 4, 1000, 6, 7, 8, 9]), TokenType::U16).unwrap();
        assert!(read(&train, 0).is_ok());
        let error = read(&train, 1).unwrap_err();
        assert!(error.contains("a.bin, offset 8: token 1000"), "{error}");
        assert!(error.contains("data.vocab_size is 1000"), "{error}");

        // Cut off after it was opened.
        fs::write(&path, [0; 4]).unwrap();
        assert!(read(&train, 0).unwrap_err().contains("a.bin"));
    }

    /// All tokens are looked at, also those that no window has yet asked for.
    #[test]
    fn wrong_tokens_are_found_before_they_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        let told = std::sync::Mutex::new(vec![]);
        let tell = |text: &str| told.lock().unwrap().push(text.to_owned());
        let check = |bytes: &[u8], dtype| {
            fs::write(&path, bytes).unwrap();
            let (train, eval) = Tokens::open(&config(path.clone(), dtype)).unwrap();
            let checked = train.check(&tell).and_then(|()| eval.check(&tell));
            checked.map_err(|error| error.to_string())
        };
        let mut tokens: Vec<u16> = (0..1000).collect();
        assert_eq!(check(&u16s(&tokens), TokenType::U16), Ok(()));
        tokens[700] = 1000;
        let error = check(&u16s(&tokens), TokenType::U16).unwrap_err();
        assert!(error.contains("a.bin, offset 1400: token 1000, but data.vocab_size"), "{error}");
        let wide: Vec<u8> = (0..500u32).flat_map(u32::to_le_bytes).collect();
        let error = check(&wide, TokenType::U16).unwrap_err();
        assert!(error.contains("every second token is 0") && error.contains("\"u32\""), "{error}");
        let narrow = u16s(&(500..1000).collect::<Vec<_>>());
        let error = check(&narrow, TokenType::U32).unwrap_err();
        assert!(error.contains("offset 0") && error.contains("would be 500 and 501"), "{error}");
        assert_eq!(told.lock().unwrap().len(), 0);
        let doubtful: Vec<u16> = (0..500).flat_map(|token| [token + 300, token % 2]).collect();
        assert_eq!(check(&u16s(&doubtful), TokenType::U16), Ok(()));
        let told = told.into_inner().unwrap();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("warning: ") && told[0].contains("at most 1"), "{}", told[0]);
    }

    #[test]
    fn fingerprints_are_those_of_the_file_and_of_the_part() {
        let dir = tempfile::tempdir().unwrap();
        let [here, there] = ["a.bin", "b.bin"].map(|name| dir.path().join(name));
        let prints = |path: &Path, tokens: &[u16]| {
            fs::write(path, u16s(tokens)).unwrap();
            let (train, eval) = Tokens::open(&config(path.to_owned(), TokenType::U16)).unwrap();
            [train, eval].map(|part| part.fingerprint().unwrap().unwrap())
        };
        let first = prints(&here, &[1; 90]);
        assert_ne!(first[0], first[1]);
        assert_eq!(prints(&there, &[1; 90]), first);
        assert_ne!(prints(&here, &[1; 91])[0], first[0]);
        assert_ne!(prints(&here, &[2; 90])[0], first[0]);
    }

    /// Only what is read has to be there: a file with a hole of 6 GB before its end.
    #[test]
    fn files_may_be_larger_than_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        let file = File::create(&path).unwrap();
        let start = 6_000_000_000u64;
        file.write_all_at(&u16s(&[1, 2, 3]), start).unwrap();
        let (_, eval) = Tokens::open(&config(path, TokenType::U16)).unwrap();
        assert_eq!(read(&eval, eval.num_examples() - 1), Ok((vec![1, 2], vec![2, 3])));
    }
}
