//! The block of a worker on the terminal of its supervisor.
//!
//! A worker writes to a pipe, because lines of all workers and of the supervisor come to one
//! terminal: only one process can know what stands at its bottom, and what has to be drawn again
//! below a line. So the first worker does not draw its block but passes it on, in lines among its
//! others, and the supervisor draws it, in the size and with the colors of its terminal.

use std::io::{self, Write};

use rustix::io::ioctl_fionread;
use serde::{Deserialize, Serialize};

use super::bar::{Bar, with_bottom};
use super::live::LiveView;

/// A line with a block begins with this, as a JSON text in a sequence of them does (RFC 7464). No
/// message does.
const MARK: u8 = 0x1e;

/// What a worker shows at the bottom; nothing, if it has neither.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PassedBlock {
    pub run: Option<LiveView>,
    /// What it waits for, and how long it has.
    pub wait: Option<[String; 2]>,
}

/// Passes a block on to the supervisor, or the end of one.
pub fn pass_block(run: Option<LiveView>, wait: Option<[String; 2]>) {
    let block = PassedBlock { run, wait };
    let mut stderr = io::stderr().lock();
    // Blocks that are not read must not fill the pipe: a terminal that takes nothing for a while
    // would make training wait. The next block has all of this one, but not if it was the end.
    let is_end = block == PassedBlock::default();
    if is_end || ioctl_fionread(&stderr).is_ok_and(|unread| unread == 0) {
        // A supervisor that is gone ends this process.
        let _ = stderr.write_all(&to_line(&block));
    }
}

fn to_line(block: &PassedBlock) -> Vec<u8> {
    let mut line = vec![MARK];
    // Writing to memory cannot fail, and all names of fields are texts.
    let _ = serde_json::to_writer(&mut line, block);
    line.push(b'\n');
    line
}

/// The block in a line, if it is one.
fn from_line(line: &[u8]) -> Option<PassedBlock> {
    serde_json::from_slice(line.strip_prefix(&[MARK])?).ok()
}

/// Shows the block in a line of a worker, until the next one or [`end_passed`]; `false` if it is
/// another line.
pub fn show_passed(line: &[u8]) -> bool {
    let block = from_line(line);
    let is_block = block.is_some();
    match block {
        Some(block) if block != PassedBlock::default() => {
            with_bottom(|bottom| bottom.get_or_insert_with(Bar::of_waits).set_passed(block));
        }
        Some(_) => end_passed(),
        None => {}
    }
    is_block
}

/// Removes the block of a worker, if one is shown.
pub fn end_passed() {
    with_bottom(|bottom| drop(bottom.take()));
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::observe::live::{Live, line};

    #[test]
    fn a_block_comes_through_a_line_as_it_was() {
        let run = Live::new(3, 1320).view(Instant::now());
        let rows = |run: &LiveView| -> Vec<_> {
            run.rows(39, 24).1.iter().map(|parts| line(parts, true)).collect()
        };
        let shown = rows(&run);
        assert!(shown[0].starts_with("3/1320"), "{shown:?}");
        let wait = Some(["reading a\n\u{1e}b".to_owned(), "3s".to_owned()]);
        let passed = to_line(&PassedBlock { run: Some(run), wait: wait.clone() });
        assert_eq!(passed.iter().filter(|byte| **byte == b'\n').count(), 1);
        let read = from_line(&passed).unwrap();
        assert_eq!((rows(&read.run.unwrap()), read.wait), (shown, wait));
        for other in [&b"step 1/2 loss 2.5\n"[..], b"\x1e", b"\x1e{\"run\":", b"{}\n", b""] {
            assert_eq!(from_line(other), None);
        }
    }
}
