//! Parameters that other files hold as one: the queries, keys and values of attention.
//!
//! Files of other programs, and older files of this one, have one parameter `qkv` in place of
//! `query`, `key` and `value`: its rows are the queries, then as many keys, then as many values.
//!
//! ```
//! use hlo::Fused;
//!
//! let fused = Fused::of("blocks.3.attn.key.weight").unwrap();
//! assert_eq!((&*fused.path, fused.rows(768)), ("blocks.3.attn.qkv.weight", 256..512));
//! assert_eq!(Fused::of("blocks.3.attn.out.weight"), None);
//! ```

use std::ops::Range;

/// The place of a parameter in a fused one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fused {
    /// The path of the fused parameter.
    pub path: String,
    /// Which of the parts it is, from 0.
    pub part: usize,
}

/// The name of a fused parameter in a path, and those of its parts.
const FUSED: &str = "qkv";
const PARTS: [&str; 3] = ["query", "key", "value"];

impl Fused {
    /// The number of parts of a fused parameter.
    pub const NUM_PARTS: usize = PARTS.len();

    /// The place of the parameter at `path`; `None` if no file has it fused.
    pub fn of(path: &str) -> Option<Self> {
        let part = PARTS.iter().position(|part| path.split('.').any(|name| name == *part))?;
        let names = path.split('.').map(|name| if name == PARTS[part] { FUSED } else { name });
        Some(Self { path: names.collect::<Vec<_>>().join("."), part })
    }

    /// The paths of the parts of the fused parameter at `path`, if it is one.
    pub fn parts(path: &str) -> Option<[String; 3]> {
        path.split('.').any(|name| name == FUSED).then(|| {
            PARTS.map(|part| {
                let names = path.split('.').map(|name| if name == FUSED { part } else { name });
                names.collect::<Vec<_>>().join(".")
            })
        })
    }

    /// Which of the `num_rows` rows of the fused parameter it is. Empty if these are no multiple of
    /// the number of parts.
    pub fn rows(&self, num_rows: usize) -> Range<usize> {
        let size = if num_rows.is_multiple_of(PARTS.len()) { num_rows / PARTS.len() } else { 0 };
        self.part * size..(self.part + 1) * size
    }
}
