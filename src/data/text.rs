//! `text`: a file, or the concatenated files of a folder, as a sequence of bytes.
//!
//! A token is a byte, 0 to 255, so that no preparation is needed and no token is unknown. All of it
//! is held in memory; larger text can be tokenized once and read as `tokens`.

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::files::{ListedFile, list, unreadable};
use super::fingerprint::Fingerprinter;
use super::formats::{self, HEAD_BYTES};
use super::windows::{self, Windows};
use super::{Error, Field, Source};
use crate::config::{self, open_regular};

const NUM_BYTES: usize = 256;
const KEY: &str = "data.path";

/// One split of a text. Field `x` is i32 `[context]`, a window of bytes; `y` is i32 `[context]`,
/// the byte after each of them.
pub struct Text {
    bytes: Arc<Vec<u8>>,
    windows: Windows,
    /// What to say of the files, once.
    doubts: Mutex<Vec<String>>,
}

impl Text {
    /// Reads the files, and returns the training split and the evaluation split, which is the end
    /// of the text.
    ///
    /// # Errors
    /// A path that cannot be read, a folder with no file of the given extensions, a file that is
    /// compressed or of another format that is no text, or a text shorter than two windows.
    pub fn load(config: &config::TextConfig) -> Result<(Self, Self), Error> {
        let mut bytes = vec![];
        let paths = list(&config.path, KEY, &config.extensions)?;
        if paths.is_empty() {
            let (path, extensions) = (config.path.clone(), config.extensions.clone());
            return Err(Error::NoFiles { path, extensions });
        }
        let (num_files, mut others) = (paths.len(), vec![]);
        for ListedFile { path, num_bytes } in paths {
            let start = bytes.len();
            let read = open_regular(&path).and_then(|mut file| file.read_to_end(&mut bytes));
            read.map_err(|source| unreadable(&path, KEY, source))?;
            let head = &bytes[start..bytes.len().min(start + HEAD_BYTES)];
            match formats::recognize(head, num_bytes) {
                Some(format) if path == config.path => {
                    return Err(formats::refuse(&path, KEY, "a text", format));
                }
                Some(format) => others.push((path, format.name)),
                None if formats::is_utf16(head) => others.push((path, "text in UTF-16")),
                None => {}
            }
        }
        let windows = Windows::new(config.context, bytes.len() as u64);
        let (train, eval) =
            windows.split(config.eval_fraction).ok_or_else(|| Error::TooFewTokens {
                path: config.path.clone(),
                key: KEY,
                found: bytes.len() as u64,
                window: config.context as u64 + 1,
            })?;
        let bytes = Arc::new(bytes);
        let doubts = Mutex::new(doubts(num_files, &others));
        let train = Self { bytes: bytes.clone(), windows: train, doubts };
        Ok((train, Self { bytes, windows: eval, doubts: Mutex::default() }))
    }
}

/// What to say if files of a folder are no plain text: they may be there on purpose.
fn doubts(num_files: usize, others: &[(PathBuf, &'static str)]) -> Vec<String> {
    const MAX_NAMED: usize = 3;
    if others.is_empty() {
        return vec![];
    }
    let name = |(path, format): &(PathBuf, _)| format!("{} is {format}", path.display());
    let mut named: Vec<_> = others.iter().take(MAX_NAMED).map(name).collect();
    if others.len() > MAX_NAMED {
        named.push(format!("and {} more", others.len() - MAX_NAMED));
    }
    vec![format!(
        "warning: {} of {num_files} files are not plain text, and their bytes are taken as they \
         are: {}; data.extensions chooses files",
        others.len(),
        named.join(", ")
    )]
}

impl Source for Text {
    fn num_examples(&self) -> u64 {
        self.windows.num_windows()
    }

    fn num_outputs(&self) -> usize {
        NUM_BYTES
    }

    fn fields(&self) -> &[Field] {
        self.windows.fields()
    }

    fn check(&self, tell: &(dyn Fn(&str) + Sync)) -> Result<(), Error> {
        let mut doubts = self.doubts.lock().unwrap_or_else(PoisonError::into_inner);
        doubts.drain(..).for_each(|doubt| tell(&doubt));
        Ok(())
    }

    fn fingerprint(&self) -> Result<Option<u128>, Error> {
        let part = self.windows.extent();
        let all = Fingerprinter::new("text").bytes(&self.bytes).numbers(part);
        Ok(Some(all.finish()))
    }

    fn read(&self, example: u64, _epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error> {
        let tokens = self.windows.tokens_of(example)?;
        let bytes = &self.bytes[tokens.start as usize..tokens.end as usize];
        let tokens: Vec<_> = bytes.iter().map(|byte| i32::from(*byte)).collect();
        windows::write(&tokens, out);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn config(path: &Path, context: usize) -> config::TextConfig {
        config::TextConfig {
            path: path.to_owned(),
            extensions: vec![],
            context,
            eval_fraction: 0.1,
            num_examples: None,
        }
    }

    fn read(source: &Text, id: u64) -> (Vec<i32>, Vec<i32>) {
        let context = source.fields()[0].dims[0];
        let (mut x, mut y) = (vec![0; context], vec![0; context]);
        let mut out = [bytemuck::cast_slice_mut(&mut x), bytemuck::cast_slice_mut(&mut y)];
        source.read(id, None, &mut out).unwrap();
        (x, y)
    }

    #[test]
    fn files_follow_each_other_and_windows_run_across_them() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("b"), [4, 5, 6, 7, 255]).unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/z"), [0, 1, 2, 3]).unwrap();
        let (train, eval) = Text::load(&config(dir.path(), 2)).unwrap();
        assert_eq!((train.num_examples(), eval.num_examples()), (2, 1));
        assert_eq!(train.num_outputs(), 256);
        assert_eq!(read(&train, 0), (vec![0, 1], vec![1, 2]));
        assert_eq!(read(&train, 1), (vec![3, 4], vec![4, 5]));
        assert_eq!(read(&eval, 0), (vec![6, 7], vec![7, 255]));
        let message = train.read(2, None, &mut [&mut [0; 8], &mut [0; 8]]).unwrap_err().to_string();
        assert!(message.contains("example 2"), "{message}");
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let message = Text::load(&config(dir.path(), 2)).err().unwrap().to_string();
        assert!(message.contains("holds no file"), "{message}");
        fs::write(dir.path().join("a"), [0; 5]).unwrap();
        let message = Text::load(&config(dir.path(), 2)).err().unwrap().to_string();
        assert!(message.contains("5 tokens") && message.contains("data.context"), "{message}");
        let mut only_md = config(dir.path(), 2);
        only_md.extensions = vec!["md".to_owned()];
        let message = Text::load(&only_md).err().unwrap().to_string();
        assert!(message.contains("ends in .md") && message.contains("extensions"), "{message}");
        let message = Text::load(&config(Path::new("/no/text"), 2)).err().unwrap().to_string();
        assert!(message.contains("/no/text"), "{message}");
        let message = Text::load(&config(Path::new("/dev/zero"), 2)).err().unwrap().to_string();
        assert!(message.contains("/dev/zero: it is a device, not a regular file"), "{message}");
    }

    #[test]
    fn files_that_are_no_text_are_refused_or_named() {
        let dir = tempfile::tempdir().unwrap();
        let text = "plain text ".repeat(20);
        let names = ["a.txt", "b.gz", "c.utf16"];
        let contents = [text.as_bytes(), b"\x1f\x8b\x08\0 and more", b"\xff\xfea\0b\0"];
        names.iter().zip(contents).for_each(|(name, bytes)| {
            fs::write(dir.path().join(name), bytes).unwrap();
        });
        let gzip = dir.path().join("b.gz");
        let message = Text::load(&config(&gzip, 2)).err().unwrap().to_string();
        assert!(
            message.contains("b.gz is compressed with gzip, not a text; unpack it with gunzip")
        );
        let (train, eval) = Text::load(&config(dir.path(), 2)).unwrap();
        let told = Mutex::new(vec![]);
        for source in [&train, &eval, &train] {
            source.check(&|text: &str| told.lock().unwrap().push(text.to_owned())).unwrap();
        }
        let told = told.into_inner().unwrap();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("warning: 2 of 3 files are not plain text"), "{}", told[0]);
        assert!(told[0].contains("c.utf16 is text in UTF-16; data.extensions"), "{}", told[0]);
        let (only_text, _) = Text::load(&config(&dir.path().join("a.txt"), 2)).unwrap();
        only_text.check(&|text: &str| panic!("{text}")).unwrap();
    }

    #[test]
    fn fingerprints_are_those_of_the_bytes_and_of_the_part() {
        let dir = tempfile::tempdir().unwrap();
        let [here, there] = ["a", "b"].map(|name| dir.path().join(name));
        let prints = |path: &Path, bytes: &[u8]| {
            fs::write(path, bytes).unwrap();
            let (train, eval) = Text::load(&config(path, 2)).unwrap();
            [train, eval].map(|part| part.fingerprint().unwrap().unwrap())
        };
        let first = prints(&here, &[1; 90]);
        assert_ne!(first[0], first[1]);
        assert_eq!(prints(&there, &[1; 90]), first);
        assert_ne!(prints(&here, &[1; 91])[0], first[0]);
        assert_ne!(prints(&here, &[2; 90])[0], first[0]);
    }
}
