//! Rows of `.tsv`, `.csv` and `.jsonl` files, with named columns.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use crate::config::{open_regular, shorten};
use crate::data::Error;
use crate::data::files::unreadable;
use crate::data::formats::{self, HEAD_BYTES};

/// Follows a CSV file, to tell whether its last record ended: a quote that is not closed would take
/// this in.
const SENTINEL: &str = "\n\u{0}end of file";

/// One row of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextRow {
    /// The line on which it begins, from 1.
    pub line: usize,
    /// Its cells in the requested columns, in the requested order.
    pub cells: Vec<String>,
}

/// Reads the named columns of all rows of a UTF-8 file. Its extension is its format:
/// - `.tsv`: cells between tabs; quotes are ordinary characters, as in GLUE's files. The first line
///   names the columns.
/// - `.csv`: cells between commas, which may be in double quotes (RFC 4180). The first line names
///   the columns.
/// - `.jsonl`: an object on each line, its values strings or whole numbers.
///
/// A byte order mark and blank lines are skipped; lines may end in CR LF.
///
/// # Errors
/// A file that cannot be read, or that has another format; a column that is missing or named twice;
/// a row with more or fewer cells than the first line. `key` names the file in messages.
pub fn read_text_rows(
    path: &Path,
    key: &'static str,
    columns: &[&str],
) -> Result<Vec<TextRow>, Error> {
    let parse = match path.extension().and_then(|extension| extension.to_str()) {
        Some("tsv") => tsv,
        Some("csv") => csv,
        Some("jsonl") => jsonl,
        _ => {
            let problem =
                format!("its name must end in .tsv, .csv or .jsonl; set {key} to such a file");
            return Err(Error::Table { path: path.to_owned(), problem });
        }
    };
    let mut bytes = vec![];
    let mut file = open_regular(path).map_err(|source| unreadable(path, key, source))?;
    file.read_to_end(&mut bytes).map_err(|source| unreadable(path, key, source))?;
    if let Some(format) =
        formats::recognize(&bytes[..bytes.len().min(HEAD_BYTES)], bytes.len() as u64)
    {
        return Err(formats::refuse(path, key, "a table of texts", format));
    }
    let text =
        str::from_utf8(&bytes).map_err(|error| not_utf8(path, &bytes, error.valid_up_to()))?;
    parse(path, text.strip_prefix('\u{feff}').unwrap_or(text), columns)
}

fn not_utf8(path: &Path, bytes: &[u8], offset: usize) -> Error {
    let before = &bytes[..offset];
    let start = memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1);
    let problem = format!(
        "byte {} of the line is not UTF-8; convert the file, for example with iconv",
        offset - start + 1
    );
    Error::Row {
        path: path.to_owned(),
        line: memchr::memchr_iter(b'\n', before).count() + 1,
        problem,
    }
}

fn tsv(path: &Path, text: &str, columns: &[&str]) -> Result<Vec<TextRow>, Error> {
    let mut lines = text.lines().zip(1..);
    let header = lines.next().map_or("", |(line, _)| line);
    let header: Vec<_> = header.split('\t').collect();
    let header = Header::new(path, &header, columns)?;
    // In a table of one column, a blank line is an empty cell.
    let is_row = |line: &str| !line.is_empty() || header.len == 1;
    let rows = lines.filter(|(line, _)| is_row(line));
    rows.map(|(row, line)| header.row(path, line, &row.split('\t').collect::<Vec<_>>())).collect()
}

fn csv(path: &Path, text: &str, columns: &[&str]) -> Result<Vec<TextRow>, Error> {
    let bytes = text.as_bytes().chain(SENTINEL.as_bytes());
    let mut reader =
        ::csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bytes);
    let mut records = vec![];
    // The reader counts lines too low where `\r\n` ends them.
    let (mut counted, mut num_lines) = (0, 0);
    for record in reader.records() {
        let record = record.map_err(|error| Error::Table {
            path: path.to_owned(),
            problem: format!("it is not CSV: {error}"),
        })?;
        let start = record.position().map_or(0, |position| position.byte() as usize);
        let start = start.min(text.len());
        let line_ends = text[start..].bytes().take_while(|byte| [b'\r', b'\n'].contains(byte));
        let start = start + line_ends.count();
        num_lines += text[counted..start].bytes().filter(|byte| *byte == b'\n').count();
        counted = start;
        let line = num_lines + 1;
        records.push((line, record));
    }
    // Without an open quote, the last record is the sentinel alone.
    let last =
        records.pop().filter(|(_, record)| record.len() != 1 || record.get(0) != SENTINEL.get(1..));
    if let Some((line, _)) = last {
        let problem = "a double quote is opened and never closed; close it, double a quote inside \
                       of quotes, or name the file .tsv if tabs separate its columns";
        return Err(Error::Row { path: path.to_owned(), line, problem: problem.to_owned() });
    }
    let mut records =
        records.iter().map(|(line, record)| (*line, record.iter().collect::<Vec<_>>()));
    let header = records.next().map_or(vec![""], |(_, header)| header);
    let header = Header::new(path, &header, columns)?;
    records.map(|(line, cells)| header.row(path, line, &cells)).collect()
}

fn jsonl(path: &Path, text: &str, columns: &[&str]) -> Result<Vec<TextRow>, Error> {
    let lines = text.lines().zip(1..).filter(|(text, _)| !text.trim().is_empty());
    let row = |(text, line): (&str, usize)| {
        let problem = |problem| Error::Row { path: path.to_owned(), line, problem };
        let object: Map<String, Value> = serde_json::from_str(text).map_err(|error| {
            problem(format!("column {}: not a JSON object: {error}", error.column()))
        })?;
        let cell = |column: &&str| match object.get(*column) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Number(number)) if number.is_i64() || number.is_u64() => {
                Ok(number.to_string())
            }
            Some(other) => Err(problem(format!(
                "{column:?} is {}, but must be a string or a whole number",
                shorten(&other.to_string())
            ))),
            None => Err(problem(missing(column, object.keys().map(String::as_str)))),
        };
        Ok(TextRow { line, cells: columns.iter().map(cell).collect::<Result<_, _>>()? })
    };
    lines.map(row).collect()
}

/// Which cells of a row are wanted.
struct Header {
    len: usize,
    wanted: Vec<usize>,
}

impl Header {
    fn new(path: &Path, names: &[&str], columns: &[&str]) -> Result<Self, Error> {
        let problem = |problem| Error::Row { path: path.to_owned(), line: 1, problem };
        let mut different = BTreeSet::new();
        if let Some(name) = names.iter().find(|name| !different.insert(**name)) {
            let text = format!("two columns are named {:?}; rename one", shorten(name));
            return Err(problem(text));
        }
        let place = |column: &&str| {
            let place = names.iter().position(|name| name == column);
            place.ok_or_else(|| problem(missing(column, names.iter().copied())))
        };
        let wanted = columns.iter().map(place).collect::<Result<_, _>>()?;
        Ok(Self { len: names.len(), wanted })
    }

    fn row(&self, path: &Path, line: usize, cells: &[&str]) -> Result<TextRow, Error> {
        let (found, expected) = (cells.len(), self.len);
        if found != expected {
            return Err(Error::NumColumns { path: path.to_owned(), line, found, expected });
        }
        let cells = self.wanted.iter().map(|place| cells[*place].to_owned()).collect();
        Ok(TextRow { line, cells })
    }
}

/// Says which column is missing, and which there are.
fn missing<'a>(column: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.map(|name| format!("{name:?}")).collect();
    format!(
        "there is no column {column:?}; the columns are {}; set data.text, data.text_pair or \
         data.label",
        shorten(&names.join(", "))
    )
}
