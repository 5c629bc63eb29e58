//! Where the values of a table are: in memory or, if they are more than it should hold, in a file
//! without a name.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use crate::config::cache_dir;

/// Bytes that are written at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// Rows of equally many f64.
pub struct StoredRows {
    num_columns: usize,
    num_rows: usize,
    /// Those in memory: all, or what is not yet written.
    values: Vec<f64>,
    /// Most values in memory.
    budget: usize,
    file: Option<File>,
}

impl StoredRows {
    /// None yet. `budget` is the number of bytes that may be in memory.
    pub fn new(num_columns: usize, budget: u64) -> Self {
        let budget = usize::try_from(budget / 8).unwrap_or(usize::MAX);
        Self { num_columns, num_rows: 0, values: vec![], budget, file: None }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.num_rows
    }

    /// Adds a row.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn push(&mut self, row: &[f64]) -> io::Result<()> {
        self.values.extend_from_slice(row);
        self.num_rows += 1;
        match self.file {
            None if self.values.len() > self.budget => {
                let dir = cache_dir().unwrap_or_else(std::env::temp_dir);
                std::fs::create_dir_all(&dir)?;
                self.file = Some(tempfile::tempfile_in(dir)?);
                self.write()
            }
            Some(_) if self.values.len() * 8 >= BLOCK_BYTES => self.write(),
            _ => Ok(()),
        }
    }

    /// Ends the adding of rows.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn finish(&mut self) -> io::Result<()> {
        self.values.shrink_to_fit();
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(bytemuck::cast_slice(&self.values))?;
            self.values.clear();
        }
        Ok(())
    }

    /// Reads a row of a table that is finished.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(&self, row: usize, out: &mut [f64]) -> io::Result<()> {
        let first = row * self.num_columns;
        match &self.file {
            None => out.copy_from_slice(&self.values[first..][..self.num_columns]),
            Some(file) => {
                file.read_exact_at(bytemuck::cast_slice_mut(out), first as u64 * 8)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_same_in_memory_and_in_a_file() {
        for budget in [0, 100, 1 << 20, 1 << 30] {
            let mut rows = StoredRows::new(3, budget);
            for row in 0..100_000 {
                rows.push(&[f64::from(row), 0.5, -f64::from(row)]).unwrap();
            }
            rows.finish().unwrap();
            assert_eq!(rows.file.is_some(), budget < 1 << 22, "{budget}");
            let mut out = [0.0; 3];
            for row in [0, 1, 54_321, 99_999] {
                rows.read(row, &mut out).unwrap();
                assert_eq!(out, [row as f64, 0.5, -(row as f64)]);
            }
        }
    }
}
