//! A report of the stored data of a time span: measurements, top talkers, alarms, packet ledgers.
//!
//! ```text
//! store -> ask.rs (questions, as of query/; columns.rs) -> Report: sections of charts and tables
//! Report -> html.rs (chart.rs), text.rs, JSON
//! ```
//!
//! Names in a store come from packets, captures and configurations. They are escaped where they are written: for HTML
//! in `html.rs`, for a terminal in `text.rs`; charts contain only numbers.

mod ask;
mod chart;
mod columns;
mod html;
mod period;
mod text;

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};
use url::Url;
use wirelane::escape::to_json;
use wirelane_export::calendar;

pub use ask::{Progress, ReportSettings, gather};

/// A report of a time span.
#[derive(Clone, Debug)]
pub struct Report {
    /// The store's folder.
    pub store: String,
    /// Start of the time span, in nanoseconds since 1970.
    pub from_ns: i64,
    /// End of the time span.
    pub to_ns: i64,
    /// Seconds of a chart's step.
    pub step_s: u64,
    /// Sections, in order.
    pub sections: Vec<Section>,
}

/// A section of a report.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Heading.
    pub title: String,
    /// Remarks beside, or in place of, numbers.
    pub notes: Vec<String>,
    /// Values over time.
    pub chart: Option<Chart>,
    /// Values in rows.
    pub table: Option<Table>,
}

/// A chart of values over time.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Unit of the values: `bit/s`.
    pub unit: &'static str,
    /// Lines of the chart.
    pub lines: Vec<Line>,
    /// Marked moments, in nanoseconds since 1970.
    pub marks: Vec<i64>,
}

/// One line of a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Name of the line's subject.
    pub name: String,
    /// Start of a step, in nanoseconds since 1970, and the mean over the step. A missing step was not measured.
    pub points: Vec<(i64, f64)>,
}

/// A table of values.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Names of the columns, as in JSON.
    pub columns: Vec<&'static str>,
    /// A cell for each column.
    pub rows: Vec<Vec<Cell>>,
    /// Index of the column that is also drawn as a bar.
    pub bar: Option<usize>,
}

/// One cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Text, as it was stored.
    Text(String),
    /// A whole number.
    Count(i64),
    /// A rate, in the unit of the column's name.
    Rate(f64),
    /// A share, in percent.
    Percent(f64),
    /// A time, in nanoseconds since 1970.
    Time(i64),
    /// Path of a file of the probe.
    File(String),
    /// A value for programs, and its words for people.
    Worded(Value, String),
    /// Unknown value.
    Unknown,
}

impl Cell {
    /// The value as a number, if it is one.
    fn number(&self) -> Option<f64> {
        match self {
            Cell::Count(number) => Some(*number as f64),
            Cell::Rate(number) | Cell::Percent(number) => Some(*number),
            _ => None,
        }
    }

    /// The value for people, unescaped.
    fn shown(&self) -> String {
        match self {
            Cell::Text(text) | Cell::File(text) => text.clone(),
            Cell::Count(number) => grouped(*number),
            Cell::Rate(number) => short(*number),
            Cell::Percent(number) => format!("{number:.2} %"),
            Cell::Time(ns) => moment(*ns),
            Cell::Worded(_, words) => words.clone(),
            Cell::Unknown => "-".to_owned(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Cell::Text(text) | Cell::File(text) => json!(text),
            Cell::Count(number) => json!(number),
            Cell::Rate(number) | Cell::Percent(number) => json!(number),
            Cell::Time(ns) => json!(moment(*ns)),
            Cell::Worded(value, _) => value.clone(),
            Cell::Unknown => Value::Null,
        }
    }
}

impl Report {
    /// The report for people, as lines of a terminal; names are escaped.
    pub fn text(&self) -> String {
        text::write(self)
    }

    /// A self-contained HTML page, without scripts and external resources. `page`: its absolute path, to which links to
    /// files are relative; `None`: they are absolute.
    pub fn html(&self, page: Option<&Path>) -> String {
        html::write(self, page.and_then(|path| Url::from_file_path(path).ok()).as_ref())
    }

    /// A JSON object per section, one per line.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Object<'r> {
            section: &'r str,
            from: String,
            to: String,
            #[serde(skip_serializing_if = "<[String]>::is_empty")]
            notes: &'r [String],
            #[serde(skip_serializing_if = "Option::is_none")]
            unit: Option<&'static str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            step_s: Option<u64>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            lines: Vec<Value>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            rows: Vec<Value>,
        }
        let mut text = String::new();
        for section in &self.sections {
            let chart = section.chart.as_ref();
            let line = |line: &Line| {
                let points: Vec<Value> = line
                    .points
                    .iter()
                    .map(|(ns, value)| json!({ "time": moment(*ns), "value": value }))
                    .collect();
                json!({ "name": line.name, "points": points })
            };
            let rows = section.table.iter().flat_map(|table| {
                table.rows.iter().map(|row| {
                    let named = table.columns.iter().zip(row);
                    named.map(|(name, cell)| ((*name).to_owned(), cell.json())).collect::<Value>()
                })
            });
            let object = Object {
                section: &section.title,
                from: moment(self.from_ns),
                to: moment(self.to_ns),
                notes: &section.notes,
                unit: chart.map(|chart| chart.unit),
                step_s: chart.map(|_| self.step_s),
                lines: chart.iter().flat_map(|chart| chart.lines.iter().map(line)).collect(),
                rows: rows.collect(),
            };
            // Numbers are finite, and keys are text: JSON can represent everything.
            text += &to_json(&object).unwrap_or_default();
            text.push('\n');
        }
        text
    }

    /// The time span in words.
    fn period(&self) -> String {
        let zone = match calendar::local() {
            None => "UTC".to_owned(),
            Some(zone) => {
                zone.iana_name().map_or("local time".to_owned(), |name| format!("local time ({name})"))
            }
        };
        format!("{} to {} {zone}", moment(self.from_ns), moment(self.to_ns))
    }
}

/// A time, to the second, or finer if it has a fraction.
fn moment(ns: i64) -> String {
    let whole = ns.rem_euclid(1_000_000_000) == 0;
    at_time(ns, if whole { "%Y-%m-%d %H:%M:%S" } else { "%Y-%m-%d %H:%M:%S%.3f" })
}

/// A time in this form of strftime.
fn at_time(ns: i64, form: &str) -> String {
    calendar::shown(u64::try_from(ns).unwrap_or(0)).strftime(form).to_string()
}

/// A whole number with thousands separators.
fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = if number < 0 { "-".to_owned() } else { String::new() };
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with three digits: `12.3k`.
fn short(number: f64) -> String {
    let (mut value, mut unit) = (number, "");
    for larger in ["k", "M", "G", "T"] {
        if value.abs() >= 999.5 {
            (value, unit) = (value / 1e3, larger);
        }
    }
    let decimals = match value.abs() {
        v if v.fract() == 0.0 && unit.is_empty() => 0,
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
    fn numbers_and_times_are_as_people_read_them() {
        for (cell, text) in [
            (Cell::Count(1_234_567), "1,234,567"),
            (Cell::Count(-1000), "-1,000"),
            (Cell::Rate(0.0), "0"),
            (Cell::Rate(0.25), "0.25"),
            (Cell::Rate(12_345.0), "12.3k"),
            (Cell::Rate(999_999.0), "1.00M"),
            (Cell::Percent(12.345), "12.35 %"),
            (Cell::Time(1_772_366_400_000_000_000), "2026-03-01 12:00:00"),
            (Cell::Time(1_772_366_400_250_000_000), "2026-03-01 12:00:00.250"),
            (Cell::Worded(json!(6), "TCP".to_owned()), "TCP"),
            (Cell::Unknown, "-"),
        ] {
            assert_eq!(cell.shown(), text, "{cell:?}");
        }
    }
}
