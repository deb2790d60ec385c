//! Cells of answers: their types, and their text for people and programs.

use std::borrow::Cow;
use std::fmt::Write as _;

use arrow::array::cast::AsArray as _;
use arrow::array::types::{Float64Type, Int32Type, Int64Type, TimestampMicrosecondType};
use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit};
use arrow::error::ArrowError;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use wirelane::escape::json;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell<'a> {
    /// NULL.
    Null,
    Int(i64),
    Real(f64),
    Flag(bool),
    Text(Cow<'a, str>),
    /// Microseconds since 1970.
    Time(i64),
}

/// Type of a column, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Number,
    Text,
    Flag,
    Time,
    /// An expression, whose type is that of its values.
    Any,
}

/// A column of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: Kind,
}

impl Column {
    pub(super) fn new(name: &str, kind: Kind) -> Column {
        Column { name: name.to_owned(), kind }
    }
}

/// Rows, and the columns that they have.
pub(super) type Row = Vec<Cell<'static>>;

impl Cell<'_> {
    /// The same value with text of its own.
    pub(super) fn into_owned(self) -> Cell<'static> {
        match self {
            Cell::Text(text) => Cell::Text(Cow::Owned(text.into_owned())),
            Cell::Null => Cell::Null,
            Cell::Int(number) => Cell::Int(number),
            Cell::Real(number) => Cell::Real(number),
            Cell::Flag(flag) => Cell::Flag(flag),
            Cell::Time(us) => Cell::Time(us),
        }
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self, Cell::Int(_) | Cell::Real(_))
    }

    /// Text for people and for CSV; NULL is empty.
    pub(super) fn text(&self) -> Cow<'_, str> {
        match self {
            Cell::Null => Cow::Borrowed(""),
            Cell::Int(number) => Cow::Owned(number.to_string()),
            Cell::Real(number) => Cow::Owned(format!("{number:?}")),
            Cell::Flag(flag) => Cow::Borrowed(if *flag { "true" } else { "false" }),
            Cell::Text(text) => Cow::Borrowed(text),
            Cell::Time(us) => Cow::Owned(time(*us, ' ')),
        }
    }

    /// Appends `"name":value,`; nothing for NULL and for numbers that JSON does not have.
    fn json(&self, name: &str, line: &mut String) {
        let start = line.len();
        // Text is always serializable, and writing to a string does not fail.
        line.push_str(&serde_json::to_string(name).unwrap_or_default());
        line.push(':');
        let written = match self {
            Cell::Int(number) => write!(line, "{number}").is_ok(),
            Cell::Real(number) if number.is_finite() => {
                line.push_str(&serde_json::to_string(number).unwrap_or_default());
                true
            }
            Cell::Flag(flag) => write!(line, "{flag}").is_ok(),
            Cell::Text(text) => {
                line.push_str(&serde_json::to_string(&**text).unwrap_or_default());
                true
            }
            Cell::Time(us) => write!(line, "\"{}\"", time(*us, 'T')).is_ok(),
            Cell::Null | Cell::Real(_) => false,
        };
        match written {
            true => line.push(','),
            false => line.truncate(start),
        }
    }
}

/// A JSON object on a line; NULL values are omitted, and unsafe characters become `\uXXXX`.
pub(super) fn json_line<'c>(names: impl Iterator<Item = &'c str>, cells: &[Cell<'_>], out: &mut Vec<u8>) {
    let mut line = String::from("{");
    for (name, cell) in names.zip(cells) {
        cell.json(name, &mut line);
    }
    if line.ends_with(',') {
        line.pop();
    }
    line.push('}');
    out.extend_from_slice(json(&line).as_bytes());
    out.push(b'\n');
}

/// A JSON object per line for each row.
pub(crate) fn json_lines(batches: &[&RecordBatch]) -> Result<Vec<u8>, ArrowError> {
    let mut text = Vec::new();
    for batch in batches {
        let columns = batch.columns().iter().map(plain).collect::<Result<Vec<_>, _>>()?;
        let schema = batch.schema();
        for row in 0..batch.num_rows() {
            let cells: Vec<Cell<'_>> = columns.iter().map(|column| cell(column, row)).collect();
            json_line(schema.fields().iter().map(|field| field.name().as_str()), &cells, &mut text);
        }
    }
    Ok(text)
}

/// The column in a type that [`cell`] reads.
pub(super) fn plain(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let to = match column.data_type() {
        DataType::Boolean | DataType::Int32 | DataType::Int64 | DataType::Float64 | DataType::Utf8 => {
            return Ok(ArrayRef::clone(column));
        }
        kind if kind.is_integer() => DataType::Int64,
        kind if kind.is_numeric() => DataType::Float64,
        DataType::Timestamp(..) => DataType::Timestamp(TimeUnit::Microsecond, None),
        _ => DataType::Utf8,
    };
    cast(column, &to)
}

/// Value in a row of a [`plain`] column.
pub(super) fn cell(column: &ArrayRef, row: usize) -> Cell<'_> {
    if column.is_null(row) {
        return Cell::Null;
    }
    match column.data_type() {
        DataType::Boolean => Cell::Flag(column.as_boolean().value(row)),
        DataType::Int32 => Cell::Int(column.as_primitive::<Int32Type>().value(row).into()),
        DataType::Int64 => Cell::Int(column.as_primitive::<Int64Type>().value(row)),
        DataType::Float64 => Cell::Real(column.as_primitive::<Float64Type>().value(row)),
        DataType::Timestamp(..) => Cell::Time(column.as_primitive::<TimestampMicrosecondType>().value(row)),
        DataType::Utf8 => Cell::Text(Cow::Borrowed(column.as_string::<i32>().value(row))),
        _ => Cell::Null,
    }
}

/// Text of a time in UTC, as `2026-11-23 12:00:00.5`, with 0, 3 or 6 decimals: texts sort as times do. Times that a calendar
/// does not have are numbers.
pub(super) fn time(us: i64, separator: char) -> String {
    let Ok(moment) = Timestamp::from_microsecond(us) else { return us.to_string() };
    let at = moment.to_zoned_datetime(TimeZone::UTC).datetime();
    let mut text = format!(
        "{:04}-{:02}-{:02}{separator}{:02}:{:02}:{:02}",
        at.year(),
        at.month(),
        at.day(),
        at.hour(),
        at.minute(),
        at.second()
    );
    // Writing to a string does not fail.
    let _ = match us.rem_euclid(1_000_000) {
        0 => Ok(()),
        rest if rest % 1000 == 0 => write!(text, ".{:03}", rest / 1000),
        rest => write!(text, ".{rest:06}"),
    };
    text
}

/// Microseconds since 1970 of a text of [`time`], or of one that a person writes: with `T`, or a date alone.
pub(super) fn parse_time(text: &str) -> Option<i64> {
    let at: DateTime = text.parse().ok()?;
    Some(at.to_zoned_datetime(TimeZone::UTC).ok()?.timestamp().as_microsecond())
}

/// Whether a text is one of [`time`].
pub(super) fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 19 && bytes[4] == b'-' && bytes[10] == b' ' && bytes[13] == b':'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        for (us, text) in [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59.999999"),
            (1_500_000, "1970-01-01 00:00:01.500"),
            (1_764_547_200_000_001, "2025-12-01 00:00:00.000001"),
        ] {
            assert_eq!(time(us, ' '), text);
            assert_eq!(parse_time(text), Some(us), "{text}");
            assert_eq!(parse_time(&time(us, 'T')), Some(us), "{text}");
            assert!(is_time(text), "{text}");
        }
        assert_eq!(parse_time("1970-01-02"), Some(86_400_000_000));
        assert_eq!((parse_time("yesterday"), is_time("GET /2026-11-23 12:00")), (None, false));
        assert_eq!(time(i64::MAX, ' '), i64::MAX.to_string());
    }

    #[test]
    fn a_line_is_json_without_what_json_does_not_have() {
        let cells = [
            Cell::Int(-1),
            Cell::Null,
            Cell::Real(3.0),
            Cell::Real(f64::NAN),
            Cell::Flag(true),
            Cell::Text("a\"\u{1b}\u{202e}".into()),
            Cell::Time(0),
        ];
        let mut line = Vec::new();
        json_line(["a", "b", "c", "d", "e", "f", "g"].into_iter(), &cells, &mut line);
        let text = r#"{"a":-1,"c":3.0,"e":true,"f":"a\"\u001b\u202e","g":"1970-01-01T00:00:00"}"#;
        assert_eq!(String::from_utf8(line).unwrap(), format!("{text}\n"));
        let mut empty = Vec::new();
        json_line(["a"].into_iter(), &[Cell::Null], &mut empty);
        assert_eq!(empty, b"{}\n");
    }
}
