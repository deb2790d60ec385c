//! Tables for people: the first column and words left-aligned, numbers right-aligned.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::termios::tcgetwinsize;

pub use wirelane::escape::printable;

/// Preferred maximum width in columns: a wider table uses smaller gaps.
const WIDTH: usize = 100;

/// [`WIDTH`], or the columns of the terminal.
static FITS: AtomicUsize = AtomicUsize::new(WIDTH);

/// Fits tables to the terminal, if standard output is one.
pub fn fit_terminal() {
    if let Ok(size) = tcgetwinsize(std::io::stdout())
        && size.ws_col > 0
    {
        // Relaxed: a number that stands for itself.
        FITS.store(WIDTH.min(size.ws_col.into()), Ordering::Relaxed);
    }
}

/// Maximum width of running text, unless a word is longer.
const TEXT_WIDTH: usize = 80;

/// Rows of text under a header.
pub struct Table<const N: usize> {
    rows: Vec<[String; N]>,
    /// Index of the first column of words after the numbers.
    words: usize,
}

impl<const N: usize> Table<N> {
    /// An empty table.
    pub fn new(header: [&str; N]) -> Table<N> {
        Table { rows: vec![header.map(str::to_owned)], words: N }
    }

    /// The table with words in its columns from this one on, counted from 0.
    pub fn words_from(mut self, column: usize) -> Table<N> {
        self.words = column;
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let gap =
            if widths.iter().sum::<usize>() + 2 * (N - 1) > FITS.load(Ordering::Relaxed) { 1 } else { 2 };
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
                match column {
                    0 => write!(line, "{cell:<width$}")?,
                    _ if column >= self.words => write!(line, "{:gap$}{cell:<width$}", "")?,
                    _ => write!(line, "{:gap$}{cell:>width$}", "")?,
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Breaks a text into lines that end before column 80, the first of which starts at `indent`.
pub fn wrap(text: &str, indent: usize) -> String {
    let mut wrapped = String::new();
    let mut column = indent;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > indent && column + 1 + length > TEXT_WIDTH {
            let _ = write!(wrapped, "\n{:indent$}", "");
            column = indent;
        } else if column > indent {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += length;
    }
    wrapped
}

/// A whole number with thousands separators: `1,234,567`.
pub fn amount(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at != 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with a noun: `1 file`, `1,000 files`. The noun takes an `s` for its plural.
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", amount(n), if n == 1 { "" } else { "s" })
}

/// A rate with three digits: `999`, `12.3k`, `1.49M`, `100G`.
pub fn rate(per_second: f64) -> String {
    let (mut value, mut unit) = (per_second, "");
    for larger in ["k", "M", "G"] {
        // A value that would be rounded to 1000 belongs to the next unit.
        if value >= 999.5 {
            (value, unit) = (value / 1e3, larger);
        }
    }
    let decimals = match value {
        v if unit.is_empty() && v.fract() == 0.0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_their_thousands_apart() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(amount(n), text);
        }
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!([0, 1, 1_000].map(|n| counted(n, "file")), ["0 files", "1 file", "1,000 files"]);
    }

    #[test]
    fn rates_are_short() {
        for (n, text) in [
            (0.0, "0"),
            (12.0, "12"),
            (0.25, "0.25"),
            (999.4, "999"),
            (999.7, "1.00k"),
            (9_999.9, "10.0k"),
            (99_993.0, "100k"),
            (999_999.0, "1.00M"),
            (1000.0, "1.00k"),
            (12_345.0, "12.3k"),
            (1_488_095.0, "1.49M"),
            (1e11, "100G"),
            (2e12, "2000G"),
        ] {
            assert_eq!(rate(n), text);
        }
    }

    #[test]
    fn columns_of_a_wide_table_are_closer() {
        let wide = |width: usize| {
            let mut table = Table::new(["a", "b", "c"]);
            table.row(["x".repeat(width), "1".into(), "2".into()]);
            table.to_string().lines().last().unwrap().len()
        };
        // Two columns of one character and the gaps beside the first column.
        assert_eq!(wide(94), 100);
        assert_eq!(wide(95), 99);
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["", "n"]);
        table.row(["eth1@0".into(), "7".into()]);
        table.row(["x".into(), "1,000".into()]);
        assert_eq!(table.to_string(), "            n\neth1@0      7\nx       1,000\n");
    }
}
