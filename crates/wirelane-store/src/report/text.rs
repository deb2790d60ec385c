//! The report as text for a terminal.

use wirelane::escape::printable;

use super::columns::words;
use super::{Cell, Chart, Report, Table, short};

/// Maximum blocks in a row.
const BLOCKS_WIDE: usize = 60;
/// From low to high; zero and not measured are shown differently.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Maximum characters of a text cell.
const WIDEST: usize = 60;

/// Formats the report.
pub(super) fn write(report: &Report) -> String {
    let mut text = format!("{}, of the store {}\n", report.period(), printable(&report.store));
    for section in &report.sections {
        text += &format!("\n{}\n", printable(&section.title));
        for note in &section.notes {
            text += &format!("  {}\n", printable(note));
        }
        if let Some(chart) = &section.chart {
            put_chart(&mut text, chart, report);
        }
        if let Some(table) = &section.table {
            put_table(&mut text, table);
        }
    }
    text
}

/// Each line of a chart: the maximum over its steps, and a block for each step, or for several.
fn put_chart(text: &mut String, chart: &Chart, report: &Report) {
    let step_ns = (report.step_s.max(1) as i64).saturating_mul(1_000_000_000);
    let first = report.from_ns.div_euclid(step_ns);
    let steps = (report.to_ns.saturating_sub(1).div_euclid(step_ns) - first + 1).clamp(1, 1 << 20) as usize;
    let each = steps.div_ceil(BLOCKS_WIDE);
    let width = chart.lines.iter().map(|line| cut(&line.name).chars().count()).max().unwrap_or(0);
    for line in &chart.lines {
        let mut places: Vec<Option<f64>> = vec![None; steps.div_ceil(each)];
        for (at, value) in &line.points {
            let step = at.div_euclid(step_ns) - first;
            let place = usize::try_from(step).ok().and_then(|step| places.get_mut(step / each));
            if let Some(place) = place {
                *place = Some(place.unwrap_or(0.0).max(*value));
            }
        }
        let most = places.iter().flatten().copied().fold(0.0, f64::max);
        let block = |value: &Option<f64>| match value {
            None => ' ',
            Some(value) if *value <= 0.0 || most <= 0.0 => '_',
            Some(value) => BLOCKS[((value / most * 8.0).ceil() as usize).clamp(1, 8) - 1],
        };
        let blocks: String = places.iter().map(block).collect();
        let name = cut(&line.name);
        *text += &format!("  {name:<width$}  most {} {}  {}\n", short(most), chart.unit, blocks.trim_end());
    }
}

fn put_table(text: &mut String, table: &Table) {
    let head: Vec<String> = table.columns.iter().map(|name| words(name)).collect();
    // The end of a path is what distinguishes it.
    let shown = |cell: &Cell| match cell {
        Cell::File(path) => printable(path).into_owned(),
        cell => cut(&cell.shown()),
    };
    let rows = table.rows.iter().map(|row| row.iter().map(shown).collect());
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    let is_number = |at: usize| table.rows.iter().any(|row| row[at].number().is_some());
    for row in &rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            line += &if is_number(at) { format!("  {pad}{cell}") } else { format!("  {cell}{pad}") };
        }
        *text += line.trim_end();
        text.push('\n');
    }
}

/// A text, cut to the width of a column.
fn cut(text: &str) -> String {
    let safe = printable(text);
    match safe.char_indices().nth(WIDEST) {
        Some((end, _)) => format!("{}...", &safe[..end]),
        None => safe.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Line, Section};

    #[test]
    fn a_line_has_a_block_for_each_step_and_tables_line_up() {
        let s = 1_000_000_000;
        let points = vec![(0, 8.0), (s, 4.0), (2 * s, 0.0), (9 * s, 0.1)];
        let section = Section {
            title: "Traffic\u{1b}[2J".to_owned(),
            notes: Vec::new(),
            chart: Some(Chart {
                unit: "bit/s",
                lines: vec![Line { name: "all".to_owned(), points }],
                marks: Vec::new(),
            }),
            table: Some(Table {
                columns: vec!["name", "bytes"],
                rows: vec![
                    vec![Cell::Text("x".repeat(70)), Cell::Count(1)],
                    vec![Cell::Text("\u{7}".to_owned()), Cell::Count(1000)],
                ],
                bar: None,
            }),
        };
        let text = Report::of(section).text();
        assert!(text.contains("\nTraffic\\u{1b}[2J\n"), "{text}");
        assert!(text.contains("  all  most 8 bit/s  █▄_      ▁\n"), "{text}");
        assert!(text.contains(&format!("  {}...      1\n", "x".repeat(60))), "{text}");
        assert!(text.contains("  \\u{7}") && text.lines().any(|line| line.ends_with("  1,000")), "{text}");
    }
}
