//! Output of answers for people and programs.

use std::borrow::Cow;

use jiff::Timestamp;
use wirelane::escape::{csv_cell, printable};
use wirelane_export::calendar;

use super::Sink;
use super::cell::{Cell, Column, Kind, Row, json_line};
use crate::{Error, Result};

/// Output format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Columns under a header, for people: control characters for the terminal are escaped.
    Table,
    /// A JSON object per line; NULL values are omitted, and unsafe characters become `\uXXXX`.
    Json,
    /// CSV (RFC 4180, with LF line ends) under a header; NULL values are empty, unsafe characters are escaped, and
    /// texts that a spreadsheet would execute are prefixed with an apostrophe.
    Csv,
}

/// State of writing an answer.
pub(super) struct Shown<'a> {
    form: Form,
    sink: &'a mut Sink<'a>,
    /// Widths of a table's columns and whether they have numbers, once its header was written.
    layout: Option<Vec<(usize, bool)>>,
}

impl<'a> Shown<'a> {
    pub(super) fn new(form: Form, sink: &'a mut Sink<'a>) -> Shown<'a> {
        Shown { form, sink, layout: None }
    }

    /// Whether anything was written.
    pub(super) fn begun(&self) -> bool {
        self.layout.is_some()
    }

    /// Writes rows. The first ones determine the widths of a table's columns; wider cells in later rows stand out.
    pub(super) fn rows(&mut self, columns: &[Column], rows: &[Row]) -> Result<()> {
        let mut text = Vec::new();
        match self.form {
            Form::Json => {
                self.layout.get_or_insert_default();
                for row in rows {
                    json_line(columns.iter().map(|column| &*column.name), row, &mut text);
                }
            }
            Form::Csv => {
                if self.layout.is_none() {
                    line(columns.iter().map(|column| csv_cell(&column.name)), &mut text);
                }
                self.layout.get_or_insert_default();
                for row in rows {
                    line(row.iter().map(for_programs), &mut text);
                }
            }
            Form::Table => self.table(columns, rows, &mut text),
        }
        (self.sink)(&text).map_err(Error::Output)
    }

    fn table(&mut self, columns: &[Column], rows: &[Row], text: &mut Vec<u8>) {
        let mut shown: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(for_people).collect()).collect();
        if self.layout.is_none() {
            shown.insert(0, columns.iter().map(|column| printable(&column.name).into_owned()).collect());
            let of = |(at, column): (usize, &Column)| {
                let width = shown.iter().map(|row| row[at].chars().count()).max().unwrap_or_default();
                (width, is_number(column, rows.iter().map(|row| &row[at])))
            };
            self.layout = Some(columns.iter().enumerate().map(of).collect());
        }
        for row in shown {
            let mut line = String::new();
            for (cell, (width, is_number)) in row.iter().zip(self.layout.as_deref().unwrap_or_default()) {
                let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
                let (left, right) = if *is_number { (&*pad, "") } else { ("", &*pad) };
                line.extend([left, cell, right, "  "]);
            }
            text.extend_from_slice(line.trim_end().as_bytes());
            text.push(b'\n');
        }
    }

    /// Ends the answer; one without rows gets a header.
    pub(super) fn end(&mut self, columns: &[Column]) -> Result<()> {
        if self.begun() { Ok(()) } else { self.rows(columns, &[]) }
    }
}

/// Whether a column has numbers, which are aligned on the right.
fn is_number<'r>(column: &Column, cells: impl Iterator<Item = &'r Cell<'static>>) -> bool {
    match column.kind {
        Kind::Number => true,
        Kind::Any => {
            let mut known = cells.filter(|cell| !matches!(cell, Cell::Null)).peekable();
            known.peek().is_some() && known.all(Cell::is_number)
        }
        _ => false,
    }
}

fn line<'c>(cells: impl Iterator<Item = Cow<'c, str>>, text: &mut Vec<u8>) {
    text.extend_from_slice(cells.collect::<Vec<_>>().join(",").as_bytes());
    text.push(b'\n');
}

/// A cell of CSV.
fn for_programs<'c>(cell: &'c Cell<'_>) -> Cow<'c, str> {
    match cell {
        // Numbers may begin with a sign that would make a text a formula: -inf.
        cell if cell.is_number() => cell.text(),
        Cell::Text(text) => csv_cell(text),
        cell => cell.text(),
    }
}

/// A cell of a table. Times for people are in the local time zone if it is set, with their distance to UTC.
fn for_people(cell: &Cell<'_>) -> String {
    if let (Cell::Time(us), Some(zone)) = (cell, calendar::local())
        && let Ok(time) = Timestamp::from_microsecond(*us)
    {
        return time.to_zoned_datetime(zone.clone()).strftime("%Y-%m-%d %H:%M:%S%.f%:z").to_string();
    }
    match cell {
        Cell::Null => "-".to_owned(),
        cell => printable(&cell.text()).into_owned(),
    }
}
