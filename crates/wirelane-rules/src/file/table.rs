//! Comma-separated values (RFC 4180), with comments on lines that begin with `#`.

use csv::{ReaderBuilder, StringRecord};

use super::position::{Lines, Position};

/// A table that is read row by row.
pub(super) struct Csv<'t> {
    text: &'t str,
    lines: Lines<'t>,
    reader: csv::Reader<&'t [u8]>,
    row: StringRecord,
}

impl<'t> Csv<'t> {
    /// The table in the text of this file.
    pub fn new(text: &'t str, file: u32) -> Csv<'t> {
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .comment(Some(b'#'))
            .from_reader(text.as_bytes());
        Csv { text, lines: Lines::new(file, text), reader, row: StringRecord::new() }
    }

    /// Advances to the next row; returns whether there is one.
    pub fn advance(&mut self) -> bool {
        // Reading from memory with rows of any length cannot fail; an unreadable row would count as the end.
        self.reader.read_record(&mut self.row).unwrap_or(false)
    }

    /// The fields of the row.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.row.iter()
    }

    /// One field of the row, from 0.
    pub fn field(&self, number: usize) -> Option<&str> {
        self.row.get(number)
    }

    /// Position of this field of the row; the end of the row if it has no such field.
    pub fn place(&self, number: usize) -> Position {
        let start = self.row.position().map_or(0, |position| position.byte() as usize);
        let bytes = self.text.as_bytes();
        let mut at = start.min(bytes.len());
        // Comments and empty lines that were skipped before the row belong to its recorded position.
        while let Some(b'#' | b'\n' | b'\r') = bytes.get(at) {
            at += match (bytes[at], bytes[at..].iter().position(|byte| *byte == b'\n')) {
                (b'#', Some(end)) => end + 1,
                (b'#', None) => bytes.len() - at,
                _ => 1,
            };
        }
        let (mut left, mut quoted) = (number, false);
        while left > 0 && at < bytes.len() {
            match bytes[at] {
                b'"' => quoted = !quoted,
                b',' if !quoted => left -= 1,
                b'\n' | b'\r' if !quoted => break,
                _ => {}
            }
            at += 1;
        }
        self.lines.place(at)
    }
}
