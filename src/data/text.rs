//! `text`: a file, or the concatenated files of a folder, as a sequence of bytes.
//!
//! A token is a byte, 0 to 255, so that no preparation is needed and no token is unknown. All of it is held in memory;
//! larger text can be tokenized once and read as `tokens`.

use std::io::Read;
use std::sync::Arc;

use super::files::{list, unreadable};
use super::windows::{self, Windows};
use super::{Error, Field, Source};
use crate::config::{self, open_regular};

const NUM_BYTES: usize = 256;
const KEY: &str = "data.path";

/// One split of a text. Field `x` is i32 `[context]`, a window of bytes; `y` is i32 `[context]`, the byte after each of them.
pub struct Text {
    bytes: Arc<Vec<u8>>,
    windows: Windows,
}

impl Text {
    /// Reads the files, and returns the training split and the evaluation split, which is the end of the text.
    ///
    /// # Errors
    /// A path that cannot be read, a folder with no file of the given extensions, or a text shorter than two windows.
    pub fn load(config: &config::TextConfig) -> Result<(Self, Self), Error> {
        let mut bytes = vec![];
        let paths = list(&config.path, KEY, &config.extensions)?;
        if paths.is_empty() {
            let (path, extensions) = (config.path.clone(), config.extensions.clone());
            return Err(Error::NoFiles { path, extensions });
        }
        for path in paths {
            let read = open_regular(&path).and_then(|mut file| file.read_to_end(&mut bytes));
            read.map_err(|source| unreadable(&path, KEY, source))?;
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
        Ok((Self { bytes: bytes.clone(), windows: train }, Self { bytes, windows: eval }))
    }
}

impl Source for Text {
    fn num_examples(&self) -> u64 {
        self.windows.num_windows()
    }

    fn num_classes(&self) -> usize {
        NUM_BYTES
    }

    fn fields(&self) -> &[Field] {
        self.windows.fields()
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
        assert_eq!(train.num_classes(), 256);
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
}
