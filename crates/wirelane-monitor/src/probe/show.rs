//! Formats results and alarms, for people and for programs.

use wirelane::escape::{printable_lines, to_json};
use wirelane_export::calendar::shown_clock;
use wirelane_probe::{AlarmEvent, Row, Shown};
use wirelane_screen::probe::{cell, list};

use wirelane_screen::table::{amount, counted, printable, rate};

/// Output format of results; `quiet` omits those of intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Rows.
    Table {
        /// Only alarms and totals.
        quiet: bool,
    },
    /// A JSON object per line.
    Json {
        /// Only alarms and totals.
        quiet: bool,
    },
    /// No output.
    Nothing,
}

impl Show {
    /// Formats the result of a measurement.
    pub fn shown(self, shown: &Shown) -> serde_json::Result<String> {
        match self {
            Show::Nothing => Ok(String::new()),
            Show::Table { quiet: true } | Show::Json { quiet: true } if !shown.total => Ok(String::new()),
            // An interval without packets is visible from the time of the next line.
            Show::Table { .. } if shown.packets == 0 => Ok(String::new()),
            Show::Table { .. } => Ok(table(shown)),
            Show::Json { .. } => Ok(to_json(shown)? + "\n"),
        }
    }

    /// Formats an alarm.
    pub fn alarm(self, event: &AlarmEvent, end_ns: u64) -> serde_json::Result<String> {
        match self {
            Show::Nothing => Ok(String::new()),
            Show::Json { .. } => Ok(to_json(event)? + "\n"),
            Show::Table { .. } => {
                let key =
                    if event.key_text.is_empty() { String::new() } else { format!(" {}", event.key_text) };
                let (name, state) = (&event.alarm, event.state.name());
                let value = number(event.value);
                let time = shown_clock(end_ns);
                Ok(printable(&format!("{time} ALARM {name} {state}:{key} {} {value}", event.value_name))
                    .into_owned()
                    + "\n")
            }
        }
    }
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 && value < 1e15 { amount(value as u64) } else { rate(value) }
}

fn table(shown: &Shown) -> String {
    let (start, end) = (shown.interval.start_ns, shown.interval.end_ns);
    let when = if shown.total {
        format!("total {} to {}", shown_clock(start), shown_clock(end))
    } else {
        shown_clock(start)
    };
    let mut text = format!("{} {}: {}", when, shown.measurement, counted(shown.packets, "packet"));
    if let Some(keys) = shown.keys {
        text += &format!(", {}", counted(keys as u64, "key"));
    }
    if shown.without_key > 0 {
        text += &format!(", {} without key", counted(shown.without_key, "packet"));
    }
    if let Some(entropy) = shown.entropy {
        text += &format!(", entropy {entropy:.3} bits");
    }
    text.push('\n');
    let other = shown.other.as_ref().map(|values| Row {
        key: serde_json::Map::new(),
        text: "other".into(),
        sum: shown.other_sum,
        values: values.clone(),
    });
    let rows: Vec<&Row> = shown.rows.iter().chain(&other).collect();
    let Some(first) = rows.first() else { return text };
    let is_column = |name: &&String| first.values.get(*name).is_some_and(|value| cell(value).is_some());
    let names: Vec<&String> = shown.columns.iter().filter(is_column).collect();
    let mut lines: Vec<Vec<String>> =
        vec![std::iter::once(String::new()).chain(names.iter().map(|n| (*n).clone())).collect()];
    for row in &rows {
        let value = |name: &&String| row.values.get(*name).and_then(cell).unwrap_or_default();
        lines.push(std::iter::once(row.text.clone()).chain(names.iter().map(value)).collect());
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=names.len()).map(width).collect();
    for line in &lines {
        let mut row = format!("  {:<width$}", line[0], width = widths[0]);
        for (cell, width) in line.iter().zip(&widths).skip(1) {
            row += &format!("  {cell:>width$}");
        }
        text += row.trim_end();
        text.push('\n');
    }
    for row in rows {
        for name in &shown.columns {
            let Some(value) = row.values.get(name).filter(|value| cell(value).is_none()) else { continue };
            let of = if row.text.is_empty() { String::new() } else { format!("{} ", row.text) };
            text += &format!("  {of}{name}: {}\n", list(value));
        }
    }
    printable_lines(&text).into_owned()
}
