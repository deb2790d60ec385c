//! Error messages of SQL, with their position and a suggestion.

use datafusion::common::{Column, SchemaError};
use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::parser::ParserError;

use super::Failed;
use crate::Error;

/// Converts an error of the engine.
pub(super) fn failed(error: &DataFusionError, memory_mib: usize) -> Failed {
    let found = position(error);
    let sql = |message: String, at: Option<(u64, u64)>, hint: Option<String>| {
        Failed::Finally(Error::Sql { message, at: at.or(found), hint })
    };
    match error.find_root() {
        DataFusionError::SQL(parser, _) => {
            let (message, at) = parser_message(parser);
            sql(message, at, None)
        }
        DataFusionError::SchemaError(schema, _) => {
            let (message, hint) = schema_message(schema);
            sql(message, None, hint)
        }
        DataFusionError::Plan(message) | DataFusionError::NotImplemented(message) => {
            let (message, hint) = plan_message(message);
            sql(message, None, hint)
        }
        DataFusionError::ResourcesExhausted(reason) => {
            let reason = reason.lines().next().unwrap_or_default().to_owned();
            Failed::Finally(Error::Memory { mib: memory_mib, reason })
        }
        other => Failed::Perhaps(other.strip_backtrace().lines().next().unwrap_or_default().to_owned()),
    }
}

/// Position of the error, as the engine reports it.
fn position(error: &DataFusionError) -> Option<(u64, u64)> {
    let start = error.diagnostic()?.span?.start;
    (start.line > 0).then_some((start.line, start.column))
}

/// Splits a parser message, which contains the position.
fn parser_message(error: &ParserError) -> (String, Option<(u64, u64)>) {
    let message = match error {
        ParserError::TokenizerError(message) | ParserError::ParserError(message) => message.clone(),
        ParserError::RecursionLimitExceeded => "it is nested too deeply".to_owned(),
    };
    let place = message.rsplit_once(" at Line: ").and_then(|(text, place)| {
        let (line, column) = place.split_once(", Column: ")?;
        Some((text.to_owned(), (line.parse().ok()?, column.trim().parse().ok()?)))
    });
    match place {
        Some((text, at)) => (text, Some(at)),
        None => (message, None),
    }
}

/// Rewrites the message without the lists of all columns that the engine appends, which do not help.
fn schema_message(error: &SchemaError) -> (String, Option<String>) {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => {
            let valid: Vec<&str> = valid_fields.iter().map(Column::name).collect();
            let hint = match closest(&field.name, &valid) {
                Some(close) => format!("did you mean '{close}'?"),
                None if valid.len() < 12 && !valid.is_empty() => format!("there are {}", valid.join(", ")),
                None => "DESCRIBE with a table's name lists its columns".to_owned(),
            };
            (format!("there is no column '{}'", field.name), Some(hint))
        }
        other => (other.to_string(), None),
    }
}

fn plan_message(message: &str) -> (String, Option<String>) {
    let (first, rest) = message.split_once('\n').unwrap_or((message, ""));
    if let Some(table) = between(first, "table '", "' not found") {
        let table = table.rsplit('.').next().unwrap_or(table);
        return (
            format!("there is no table '{table}'"),
            Some(format!("the tables of a store are {}", super::tables())),
        );
    }
    if first.contains("not supported: ") || first.starts_with("DDL ") || first.starts_with("DML ") {
        return (first.to_owned(), Some("a store is read-only: begin with SELECT or WITH".into()));
    }
    let hint = rest.lines().map(str::trim).find(|line| line.starts_with("Did you mean"));
    (first.trim_end_matches(['.', ' ']).to_owned(), hint.map(|hint| hint.replacen('D', "d", 1)))
}

fn between<'a>(text: &'a str, before: &str, behind: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    rest.split_once(behind).map(|(found, _)| found)
}

/// The most similar name, if it is similar enough.
fn closest<'a>(name: &str, among: &[&'a str]) -> Option<&'a str> {
    let name = name.to_lowercase();
    // Names in other tools and in our other exports.
    let known = match name.as_str() {
        "start" | "first" | "begin" => Some("start_time"),
        "end" | "last" | "time" | "timestamp" => Some("end_time"),
        "source" | "src_ip" | "srcaddr" => Some("src"),
        "destination" | "dst_ip" | "dstaddr" => Some("dst"),
        "proto" => Some("protocol"),
        "duration" => Some("duration_ns"),
        _ => None,
    };
    let among = among.iter().copied();
    if let Some(found) = among.clone().find(|other| Some(*other) == known) {
        return Some(found);
    }
    let (distance, found) = among.map(|other| (distance(&name, other), other)).min()?;
    (distance <= 1 + name.len() / 4).then_some(found)
}

/// Edit distance: letters to add, remove or replace, or to swap with their neighbours.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let mut least = (rows[i][j] + usize::from(a != b)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_name_is_proposed_where_it_is_close() {
        let schema = crate::Table::Flows.schema();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        for (wrong, right) in [
            ("scr", Some("src")),
            ("byte", Some("bytes")),
            ("dstport", Some("dst_port")),
            ("start", Some("start_time")),
            ("proto", Some("protocol")),
            ("Packets", Some("packets")),
            ("frobnicate", None),
        ] {
            assert_eq!(closest(wrong, &names), right, "{wrong}");
        }
    }
}
