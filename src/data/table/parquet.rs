//! The cells of `.parquet` files: columns of a row group at a time, a block of rows each.

use std::path::Path;

use parquet::basic::{ConvertedType, LogicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;

use super::cells::{Cell, RowSink};
use crate::config::{open_regular, shorten};
use crate::data::Error;
use crate::data::files::unreadable;

/// Rows that are read at a time.
const BLOCK: usize = 8192;

/// Reads a file.
///
/// # Errors
/// A file that cannot be read or is damaged, a column that holds neither numbers nor texts, and
/// what the sink refuses.
pub fn read(path: &Path, key: &'static str, sink: &mut dyn RowSink) -> Result<(), Error> {
    let table = |problem: String| Error::Table { path: path.to_owned(), problem };
    let damaged = |error: ParquetError| {
        table(format!("it is not a whole Parquet file ({error}); write it again or set {key}"))
    };
    let failed = |source| unreadable(path, key, source);
    let file = open_regular(path).map_err(failed)?;
    let file_bytes = file.metadata().map_err(failed)?.len();
    let reader = SerializedFileReader::new(file).map_err(damaged)?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let names: Vec<_> = schema.columns().iter().map(|column| column.path().string()).collect();
    let wanted = sink.columns(&names).map_err(table)?;
    let kinds = wanted
        .iter()
        .map(|column| {
            let descriptor = schema.column(*column);
            kind_of(&descriptor).map_err(|problem| {
                table(format!("column {:?} {problem}", shorten(&names[*column])))
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut row = 0;
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).map_err(damaged)?;
        for column in &wanted {
            // The library panics on places before the file's start.
            let column = group.metadata().column(*column);
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let range = u64::try_from(start).ok().zip(u64::try_from(column.compressed_size()).ok());
            let end = range.and_then(|(start, size)| start.checked_add(size));
            if end.is_none_or(|end| end > file_bytes) {
                let problem = "a column is not inside of the file".to_owned();
                return Err(damaged(ParquetError::General(problem)));
            }
        }
        let mut readers = wanted
            .iter()
            .map(|column| group.get_column_reader(*column))
            .collect::<Result<Vec<_>, _>>()
            .map_err(damaged)?;
        let mut left = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
        while left > 0 {
            let num_rows = left.min(BLOCK);
            let mut columns = Vec::with_capacity(wanted.len());
            for (reader, kind) in readers.iter_mut().zip(&kinds) {
                let cells = cells_of(reader, *kind, num_rows).map_err(damaged)?;
                if cells.len() != num_rows {
                    return Err(table(format!(
                        "a column has fewer rows than the file says; write it again or set {key}"
                    )));
                }
                columns.push(cells.into_iter());
            }
            for _ in 0..num_rows {
                row += 1;
                let cells: Vec<_> = columns.iter_mut().filter_map(Iterator::next).collect();
                sink.row(row, &cells).map_err(|fault| {
                    let fault_row = fault.line.unwrap_or(row);
                    let column = fault.column.map(|name| format!(", column {name:?}"));
                    table(format!(
                        "row {fault_row}{}: {}",
                        column.unwrap_or_default(),
                        fault.problem
                    ))
                })?;
            }
            left -= num_rows;
        }
    }
    Ok(())
}

/// How a stored value becomes a cell.
#[derive(Clone, Copy)]
enum Kind {
    Number,
    Unsigned,
    /// A whole number with this many digits behind the point.
    Decimal(i32),
    Half,
    Text,
}

fn kind_of(column: &ColumnDescriptor) -> Result<Kind, String> {
    use parquet::basic::Type;
    if column.max_rep_level() > 0 || column.path().parts().len() > 1 {
        return Err("is a list or a structure; make columns of it".to_owned());
    }
    let dated = "is a date or a time; make a number or a text of it".to_owned();
    match (column.logical_type_ref(), column.converted_type()) {
        (Some(LogicalType::Date | LogicalType::Time { .. } | LogicalType::Timestamp { .. }), _) => {
            return Err(dated);
        }
        (
            _,
            ConvertedType::DATE
            | ConvertedType::TIME_MILLIS
            | ConvertedType::TIME_MICROS
            | ConvertedType::TIMESTAMP_MILLIS
            | ConvertedType::TIMESTAMP_MICROS,
        ) => return Err(dated),
        _ => {}
    }
    let is_unsigned = matches!(
        column.converted_type(),
        ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::UINT_64
    );
    match column.physical_type() {
        Type::INT32 | Type::INT64 if column.converted_type() == ConvertedType::DECIMAL => {
            Ok(Kind::Decimal(column.type_scale()))
        }
        Type::INT32 | Type::INT64 if is_unsigned => Ok(Kind::Unsigned),
        Type::BOOLEAN | Type::INT32 | Type::INT64 | Type::FLOAT | Type::DOUBLE => Ok(Kind::Number),
        Type::BYTE_ARRAY if column.converted_type() == ConvertedType::DECIMAL => {
            Err("has decimal numbers of any size; make floats of them".to_owned())
        }
        Type::BYTE_ARRAY => Ok(Kind::Text),
        Type::FIXED_LEN_BYTE_ARRAY
            if matches!(column.logical_type_ref(), Some(LogicalType::Float16)) =>
        {
            Ok(Kind::Half)
        }
        Type::INT96 => Err(dated),
        Type::FIXED_LEN_BYTE_ARRAY => Err("has bytes; make a number or a text of them".to_owned()),
    }
}

/// The next cells of a column.
fn cells_of(
    reader: &mut ColumnReader,
    kind: Kind,
    num_rows: usize,
) -> Result<Vec<Cell<'static>>, ParquetError> {
    let decimal = |number: f64| match kind {
        Kind::Decimal(scale) => number / 10f64.powi(scale),
        _ => number,
    };
    match reader {
        ColumnReader::BoolColumnReader(reader) => {
            values(reader, num_rows, |value| Ok(Cell::Number(f64::from(u8::from(value)))))
        }
        ColumnReader::Int32ColumnReader(reader) => values(reader, num_rows, |value| {
            Ok(Cell::Number(match kind {
                Kind::Unsigned => f64::from(value as u32),
                _ => decimal(f64::from(value)),
            }))
        }),
        ColumnReader::Int64ColumnReader(reader) => values(reader, num_rows, |value| {
            Ok(Cell::Number(match kind {
                Kind::Unsigned => value as u64 as f64,
                _ => decimal(value as f64),
            }))
        }),
        ColumnReader::FloatColumnReader(reader) => {
            values(reader, num_rows, |value| Ok(number(f64::from(value))))
        }
        ColumnReader::DoubleColumnReader(reader) => {
            values(reader, num_rows, |value| Ok(number(value)))
        }
        ColumnReader::ByteArrayColumnReader(reader) => {
            values(reader, num_rows, |value: ByteArray| {
                let text = str::from_utf8(value.data())
                    .map_err(|_| ParquetError::General("a text is not UTF-8".to_owned()))?;
                Ok(match Cell::of_text(text) {
                    Cell::Text(text) => Cell::Text(text.into_owned().into()),
                    _ => Cell::Missing,
                })
            })
        }
        ColumnReader::FixedLenByteArrayColumnReader(reader) => {
            values(reader, num_rows, |value| match value.data() {
                [low, high] => Ok(number(half::f16::from_le_bytes([*low, *high]).to_f64())),
                _ => Err(ParquetError::General("a half float has 2 bytes".to_owned())),
            })
        }
        ColumnReader::Int96ColumnReader(_) => {
            Err(ParquetError::General("a date is no number".to_owned()))
        }
    }
}

/// pandas writes NaN for an empty cell.
fn number(number: f64) -> Cell<'static> {
    if number.is_nan() { Cell::Missing } else { Cell::Number(number) }
}

/// The next values of a column, and the empty cells between them.
fn values<D: DataType>(
    reader: &mut ColumnReaderImpl<D>,
    num_rows: usize,
    cell: impl Fn(D::T) -> Result<Cell<'static>, ParquetError>,
) -> Result<Vec<Cell<'static>>, ParquetError> {
    let (mut values, mut levels) = (Vec::with_capacity(num_rows), vec![]);
    let mut num_read = 0;
    while num_read < num_rows {
        let (records, ..) =
            reader.read_records(num_rows - num_read, Some(&mut levels), None, &mut values)?;
        if records == 0 {
            break;
        }
        num_read += records;
    }
    let mut values = values.into_iter();
    if levels.is_empty() {
        return values.map(cell).collect();
    }
    let of_level = |level: &i16| match level {
        0 => Ok(Cell::Missing),
        _ => values.next().map_or(Ok(Cell::Missing), &cell),
    };
    levels.iter().map(of_level).collect()
}
