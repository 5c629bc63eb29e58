//! The cells of text files with named columns: `.csv`, `.tsv` and `.jsonl`, each also with `.gz`.

use std::borrow::Cow;
use std::cell::Cell as Shared;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use serde_json::{Map, Value};

use crate::config::{open_regular, shorten};
use crate::data::Error;
use crate::data::files::unreadable;
use crate::data::formats::{self, HEAD_BYTES};

/// Most bytes of a row: a quote that is never closed would take in the rest of the file.
const MAX_ROW_BYTES: usize = 1 << 24;
/// Follows a file, to tell whether its last record ended.
const SENTINEL: &str = "\n\u{0}end of file";
/// Words that stand for an empty cell, as pandas and R write and read them.
const MISSING: [&str; 9] = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None"];

/// What stands in a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell<'a> {
    /// Nothing.
    Missing,
    /// A number.
    Number(f64),
    /// Text, which may be that of a number.
    Text(Cow<'a, str>),
}

impl<'a> Cell<'a> {
    /// The cell with this text.
    pub fn of_text(text: &'a str) -> Self {
        match text.trim() {
            text if MISSING.contains(&text) => Self::Missing,
            text => Self::Text(text.into()),
        }
    }

    /// The number in it, if it has one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Missing => None,
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
        }
    }

    /// Its text.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Missing => "".into(),
            Self::Number(number) => number.to_string().into(),
            Self::Text(text) => text.as_ref().into(),
        }
    }
}

/// Who gets the rows of a file.
pub trait RowSink {
    /// Chooses columns, once, before the rows.
    ///
    /// # Errors
    /// What is wrong with the columns of this file.
    fn columns(&mut self, names: &[String]) -> Result<Vec<usize>, String>;

    /// Takes the cells of the chosen columns of the row on a line.
    ///
    /// # Errors
    /// What is wrong with it.
    fn row(&mut self, line: usize, cells: &[Cell<'_>]) -> Result<(), RowFault>;
}

/// What is wrong with rows.
#[derive(Debug)]
pub struct RowFault {
    /// The line, if it is not the last that was read.
    pub line: Option<usize>,
    /// The column's name, if it is one of them.
    pub column: Option<String>,
    /// What is wrong, and what to change.
    pub problem: String,
}

impl RowFault {
    /// An error of a file.
    pub fn at(self, path: &Path, line: usize) -> Error {
        let column = self.column.map(|name| format!("column {:?}: ", shorten(&name)));
        Error::Row {
            path: path.to_owned(),
            line: self.line.unwrap_or(line),
            problem: column.unwrap_or_default() + &self.problem,
        }
    }
}

/// The formats, by the ends of their names.
pub const EXTENSIONS: &str = ".csv, .tsv, .jsonl (each also with .gz at the end) or .parquet; set";

/// Reads a text file.
///
/// # Errors
/// A file that cannot be read or is no such table, and what the sink refuses.
pub fn read(path: &Path, key: &'static str, sink: &mut dyn RowSink) -> Result<(), Error> {
    let lower = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let plain = lower.strip_suffix(".gz");
    let extension = plain.unwrap_or(&lower).rsplit_once('.').map_or("", |(_, extension)| extension);
    let file = open_regular(path).map_err(|source| unreadable(path, key, source))?;
    let num_bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let mut file = BufReader::with_capacity(1 << 18, file);
    let failed = |source| unreadable(path, key, source);
    let reader: Box<dyn Read> = match plain {
        None => {
            let head = file.fill_buf().map_err(failed)?;
            let head = &head[..head.len().min(HEAD_BYTES)];
            if let Some(format) = formats::recognize(head, num_bytes) {
                return Err(formats::refuse(path, key, "a table", format));
            }
            Box::new(file)
        }
        Some(_) => Box::new(MultiGzDecoder::new(file)),
    };
    let mut reader = BufReader::with_capacity(1 << 18, reader);
    let head = reader.fill_buf().map_err(failed)?;
    if head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]) {
        let problem = "it is UTF-16; save it as UTF-8".to_owned();
        return Err(Error::Table { path: path.to_owned(), problem });
    }
    if head.starts_with("\u{feff}".as_bytes()) {
        reader.consume(3);
    }
    let file = TextFile { path, key };
    match extension {
        "csv" => file.csv(reader, None, sink),
        "tsv" => file.csv(reader, Some(b'\t'), sink),
        "jsonl" | "ndjson" => file.jsonl(reader, sink),
        _ => {
            let problem = format!("its name must end in {EXTENSIONS} {key} to such a file");
            Err(Error::Table { path: path.to_owned(), problem })
        }
    }
}

/// Counts the bytes that were read since a row began, and fails beyond [`MAX_ROW_BYTES`].
struct Limited<R> {
    inner: R,
    since_row: Rc<Shared<usize>>,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let num_bytes = self.inner.read(buffer)?;
        self.since_row.set(self.since_row.get() + num_bytes);
        match self.since_row.get() <= MAX_ROW_BYTES {
            true => Ok(num_bytes),
            false => Err(io::Error::other(TOO_LONG)),
        }
    }
}

const TOO_LONG: &str = "the row is longer than 16 MiB: is a double quote opened and not closed?";

struct TextFile<'p> {
    path: &'p Path,
    key: &'static str,
}

impl TextFile<'_> {
    fn at(&self, line: usize, problem: String) -> Error {
        Error::Row { path: self.path.to_owned(), line, problem }
    }

    fn csv(
        &self,
        mut reader: impl BufRead,
        delimiter: Option<u8>,
        sink: &mut dyn RowSink,
    ) -> Result<(), Error> {
        let head = reader.fill_buf().map_err(|source| self.unreadable(source))?;
        let delimiter = delimiter.unwrap_or_else(|| delimiter_of(head));
        // Where `\r` ends a record, the reader counts the line of the next one too low. The `\r` at
        // the end of a cell is trimmed.
        let terminator = match head.contains(&b'\n') {
            true => ::csv::Terminator::Any(b'\n'),
            false => ::csv::Terminator::CRLF,
        };
        let since_row = Rc::new(Shared::new(0));
        let limited = Limited { inner: reader, since_row: since_row.clone() };
        let mut reader = ::csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(delimiter)
            .terminator(terminator)
            .from_reader(limited.chain(SENTINEL.as_bytes()));
        let mut record = ::csv::ByteRecord::new();
        let mut header: Option<(usize, Vec<usize>)> = None;
        let mut names = vec![];
        let mut ended = false;
        loop {
            let line = reader.position().line() as usize;
            since_row.set(0);
            match reader.read_byte_record(&mut record) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => match error.into_kind() {
                    ::csv::ErrorKind::Io(source) if source.to_string() == TOO_LONG => {
                        return Err(self.at(line, TOO_LONG.to_owned()));
                    }
                    ::csv::ErrorKind::Io(source) => return Err(self.unreadable(source)),
                    other => return Err(self.at(line, format!("not CSV: {other:?}"))),
                },
            }
            // Where blank lines were skipped, this is behind them.
            let line = record.position().map_or(line, |position| position.line() as usize);
            if record.len() == 1 && record.get(0) == Some(&SENTINEL.as_bytes()[1..]) {
                ended = true;
                break;
            }
            if record
                .iter()
                .next_back()
                .is_some_and(|cell| cell.ends_with(&SENTINEL.as_bytes()[1..]))
            {
                let problem = "a double quote is opened and never closed; close it, or double a \
                               quote inside of quotes";
                return Err(self.at(line, problem.to_owned()));
            }
            if record.len() == 1 && record.get(0) == Some(b"\r") {
                continue;
            }
            let Some((num_columns, wanted)) = &header else {
                for cell in &record {
                    let name = str::from_utf8(cell).map_err(|_| {
                        self.at(line, "the names of the columns are not UTF-8".to_owned())
                    })?;
                    names.push(name.trim().to_owned());
                }
                let wanted = sink.columns(&names).map_err(|problem| self.at(line, problem))?;
                header = Some((names.len(), wanted));
                continue;
            };
            if record.len() != *num_columns {
                let (found, expected) = (record.len(), *num_columns);
                return Err(Error::NumColumns {
                    path: self.path.to_owned(),
                    line,
                    found,
                    expected,
                });
            }
            let mut cells = Vec::with_capacity(wanted.len());
            for column in wanted {
                let cell = record.get(*column).unwrap_or_default();
                let text = str::from_utf8(cell).map_err(|_| {
                    let problem = format!(
                        "column {:?} is not UTF-8; convert the file, for example with iconv",
                        shorten(&names[*column])
                    );
                    self.at(line, problem)
                })?;
                cells.push(Cell::of_text(text));
            }
            sink.row(line, &cells).map_err(|fault| fault.at(self.path, line))?;
        }
        debug_assert!(ended);
        match header {
            Some(_) => Ok(()),
            None => {
                let problem = format!("it is empty; set {} to a file with rows", self.key);
                Err(Error::Table { path: self.path.to_owned(), problem })
            }
        }
    }

    fn jsonl(&self, mut reader: impl BufRead, sink: &mut dyn RowSink) -> Result<(), Error> {
        let mut text = vec![];
        let mut header: Option<(Vec<String>, Vec<usize>)> = None;
        let mut line = 0;
        loop {
            text.clear();
            line += 1;
            let most = MAX_ROW_BYTES as u64 + 1;
            let num_bytes = (&mut reader)
                .take(most)
                .read_until(b'\n', &mut text)
                .map_err(|source| self.unreadable(source))?;
            if num_bytes == 0 {
                break;
            }
            if num_bytes as u64 == most {
                return Err(self.at(line, "the row is longer than 16 MiB".to_owned()));
            }
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let object: Map<String, Value> = serde_json::from_slice(&text).map_err(|error| {
                self.at(line, format!("column {}: not a JSON object: {error}", error.column()))
            })?;
            if header.is_none() {
                let names: Vec<_> = object.keys().cloned().collect();
                let wanted = sink.columns(&names).map_err(|problem| self.at(line, problem))?;
                header = Some((names, wanted));
            }
            let Some((names, wanted)) = &header else { unreachable!("it was set above") };
            let mut cells = Vec::with_capacity(wanted.len());
            for column in wanted {
                cells.push(match object.get(&names[*column]) {
                    None | Some(Value::Null) => Cell::Missing,
                    Some(Value::Bool(value)) => Cell::Number(f64::from(u8::from(*value))),
                    Some(Value::Number(number)) => {
                        Cell::Number(number.as_f64().unwrap_or(f64::NAN))
                    }
                    Some(Value::String(text)) => Cell::of_text(text),
                    Some(Value::Array(_) | Value::Object(_)) => {
                        let problem = format!(
                            "column {:?}: it is a list or an object, but must be a number or a \
                             text",
                            shorten(&names[*column])
                        );
                        return Err(self.at(line, problem));
                    }
                });
            }
            sink.row(line, &cells).map_err(|fault| fault.at(self.path, line))?;
        }
        match header {
            Some(_) => Ok(()),
            None => {
                let problem = format!("it is empty; set {} to a file with rows", self.key);
                Err(Error::Table { path: self.path.to_owned(), problem })
            }
        }
    }

    fn unreadable(&self, source: io::Error) -> Error {
        unreadable(self.path, self.key, source)
    }
}

/// The most frequent of comma, semicolon and tab in the first line; the comma if there are none.
fn delimiter_of(head: &[u8]) -> u8 {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let count = |delimiter: u8| line.iter().filter(|byte| **byte == delimiter).count();
    [b'\t', b';', b','].into_iter().max_by_key(|delimiter| count(*delimiter)).unwrap_or(b',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delimiter_is_that_of_the_first_line() {
        assert_eq!(delimiter_of(b"a;b;c\n1,5;2,5;3\n"), b';');
        assert_eq!(delimiter_of(b"a,b\n"), b',');
        assert_eq!(delimiter_of(b"a\tb\n"), b'\t');
        assert_eq!(delimiter_of(b"a\n"), b',');
        assert_eq!(delimiter_of(b""), b',');
    }

    #[test]
    fn words_of_other_programs_stand_for_nothing() {
        for word in ["", " ", "NA", "NaN", "null", " None "] {
            assert_eq!(Cell::of_text(word), Cell::Missing, "{word:?}");
        }
        assert_eq!(Cell::of_text(" 1e3 ").number(), Some(1000.0));
        assert_eq!(Cell::of_text("1,5").number(), None);
    }
}
