//! Error messages of SQL, with their position and a suggestion.

use rusqlite::ErrorCode;

use super::Failed;
use crate::{Error, Table};

/// First words of statements of other databases, or that would write.
const WRITING: [&str; 22] = [
    "alter", "analyze", "attach", "begin", "commit", "copy", "create", "delete", "detach", "drop", "export",
    "grant", "insert", "merge", "pragma", "reindex", "replace", "set", "truncate", "update", "use", "vacuum",
];
const READ_ONLY: &str = "a store is read-only: begin with SELECT or WITH";

/// An answer that does not fit into memory.
pub(super) fn too_large(memory_mib: usize, reason: &str) -> Failed {
    Failed::Finally(Error::Memory { mib: memory_mib, reason: reason.to_owned() })
}

pub(super) fn wrong(message: impl Into<String>, at: Option<(u64, u64)>, hint: Option<String>) -> Failed {
    Failed::Finally(Error::Sql { message: message.into(), at, hint })
}

/// Converts an error of SQLite.
pub(super) fn failed(error: &rusqlite::Error, sql: &str, memory_mib: usize) -> Failed {
    let read_only = |what: &str| wrong(format!("{what} is not supported"), None, Some(READ_ONLY.to_owned()));
    let first = sql.split_whitespace().next().unwrap_or_default().trim_end_matches(';');
    match error {
        rusqlite::Error::SqlInputError { msg, offset, .. } => {
            if msg.contains("syntax error") && WRITING.contains(&first.to_lowercase().as_str()) {
                return read_only(&first.to_uppercase());
            }
            let at = usize::try_from(*offset).ok().map(|offset| position(sql, offset));
            let (message, hint) = explained(msg, sql);
            wrong(message, at, hint)
        }
        rusqlite::Error::SqliteFailure(code, message) => match code.code {
            ErrorCode::AuthorizationForStatementDenied => read_only(&first.to_uppercase()),
            ErrorCode::OutOfMemory => too_large(memory_mib, "SQLite"),
            ErrorCode::DiskFull | ErrorCode::SystemIoFailure | ErrorCode::CannotOpen => {
                let reason = message.clone().unwrap_or_else(|| code.to_string());
                Failed::Finally(Error::Engine(format!("a temporary file cannot be written: {reason}")))
            }
            _ => {
                let message = message.clone().unwrap_or_else(|| code.to_string());
                let at = match message.strip_prefix("no such table: ") {
                    Some(name) => word(sql, name),
                    None => (message == "incomplete input").then_some(sql.len()),
                };
                let at = at.map(|offset| position(sql, offset));
                let (message, hint) = explained(&message, sql);
                wrong(message, at, hint)
            }
        },
        rusqlite::Error::NulError(_) => wrong("SQL contains a NUL character", None, None),
        other => wrong(other.to_string(), None, None),
    }
}

/// Line and column, both from 1, of a byte of a text.
fn position(sql: &str, offset: usize) -> (u64, u64) {
    let before = sql.get(..offset).unwrap_or(sql);
    let line = before.matches('\n').count() as u64 + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() as u64 + 1;
    (line, column)
}

/// Offset of a name that SQLite does not place.
fn word(sql: &str, name: &str) -> Option<usize> {
    let is_part =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    let places = sql.match_indices(name).map(|(at, _)| at);
    let mut alone = places.filter(|at| {
        !is_part(sql[..*at].chars().next_back()) && !is_part(sql[at + name.len()..].chars().next())
    });
    alone.next()
}

/// SQLite's message in the words of this program, and what may be meant.
fn explained(message: &str, sql: &str) -> (String, Option<String>) {
    if let Some(name) = message.strip_prefix("no such column: ") {
        // SQLite also asks whether a name in double quotes is a text.
        let name = name.split(" - ").next().unwrap_or(name).trim_matches('"');
        let column = name.rsplit('.').next().unwrap_or(name);
        let names = names(sql);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let hint = match closest(column, &names) {
            Some(close) => format!("did you mean '{close}'?"),
            None => "DESCRIBE with a table's name lists its columns".to_owned(),
        };
        return (format!("there is no column '{name}'"), Some(hint));
    }
    if let Some(name) = message.strip_prefix("no such table: ") {
        let hint = format!("the tables of a store are {}", super::tables());
        return (format!("there is no table '{name}'"), Some(hint));
    }
    if let Some(name) = message.strip_prefix("no such function: ") {
        let hint = "functions are those of SQLite, network(), in_network() and step()";
        return (format!("there is no function '{name}'"), Some(hint.to_owned()));
    }
    (message.to_owned(), None)
}

/// Names of columns of the tables that a query names.
fn names(sql: &str) -> Vec<String> {
    let words: Vec<&str> =
        sql.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').collect();
    let named = Table::ALL.into_iter().filter(|table| words.contains(&table.name()));
    let schemas = named.map(Table::schema).collect::<Vec<_>>();
    let fields = schemas.iter().flat_map(|schema| schema.fields());
    fields.map(|field| field.name().clone()).chain(["date", "hour"].map(str::to_owned)).collect()
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
    let (distance, found) = among.map(|other| (strsim::osa_distance(&name, other), other)).min()?;
    (distance <= 1 + name.len() / 4).then_some(found)
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
