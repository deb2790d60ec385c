//! A table of results, for people and for programs.

use std::fmt::Display;

use crate::summary::Spread;

/// A table with a heading and a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Title.
    pub title: String,
    /// Note about its interpretation.
    pub note: String,
    /// Names of the columns.
    pub heads: Vec<String>,
    /// Rows with one cell per column.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(title: &str, note: impl Into<String>, heads: &[&str]) -> Table {
        let heads = heads.iter().map(|head| (*head).to_owned()).collect();
        Table { title: title.to_owned(), note: note.into(), heads, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: &[&dyn Display]) {
        self.rows.push(cells.iter().map(ToString::to_string).collect());
    }

    /// Readable Markdown: the first column is aligned to the left, the others to the right.
    pub fn markdown(&self) -> String {
        let lines = || std::iter::once(&self.heads).chain(&self.rows);
        let width =
            |column: usize| lines().map(|line| line[column].chars().count()).max().unwrap_or(0).max(3);
        let widths: Vec<usize> = (0..self.heads.len()).map(width).collect();
        let row = |cells: &Vec<String>| {
            let cell = |(at, (cell, width)): (usize, (&String, &usize))| match at {
                0 => format!(" {cell:<width$} |"),
                _ => format!(" {cell:>width$} |"),
            };
            let cells: String = cells.iter().zip(&widths).enumerate().map(cell).collect();
            format!("|{cells}\n")
        };
        let rule: String = widths
            .iter()
            .enumerate()
            .map(|(at, width)| {
                if at == 0 {
                    format!(" {} |", "-".repeat(*width))
                } else {
                    format!(" {}: |", "-".repeat(width - 1))
                }
            })
            .collect();
        let rows: String = self.rows.iter().map(row).collect();
        format!("## {}\n\n{}\n\n{}|{rule}\n{rows}", self.title, self.note, row(&self.heads))
    }

    /// CSV; no cell contains commas.
    pub fn csv(&self) -> String {
        let lines = std::iter::once(&self.heads).chain(&self.rows);
        lines
            .map(|line| line.iter().map(|cell| cell.replace(',', ";")).collect::<Vec<_>>().join(",") + "\n")
            .collect()
    }
}

/// Median, and `LOW to HIGH`, with this many digits.
pub(super) fn spread(value: Spread, digits: usize) -> [String; 2] {
    [format!("{:.digits$}", value.median), format!("{:.digits$} to {:.digits$}", value.low, value.high)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_have_a_cell_for_each_column() {
        let mut table = Table::new("Title", "Note.", &["name", "n"]);
        table.row(&[&"a, b", &1]);
        table.row(&[&"longer", &1234]);
        let rows = "| name   |    n |\n| ------ | ---: |\n| a, b   |    1 |\n| longer | 1234 |\n";
        assert_eq!(table.markdown(), format!("## Title\n\nNote.\n\n{rows}"));
        assert_eq!(table.csv(), "name,n\na; b,1\nlonger,1234\n");
    }
}
