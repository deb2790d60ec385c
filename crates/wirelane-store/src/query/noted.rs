//! Tables for the question what is missing in a store: `shipments` (files of the store, those that retention removed before
//! they were shipped, and killed writers, as a place to ask has them), `probes` and `hours`.

use std::collections::BTreeMap;

use rusqlite::{Connection, Result, params};

use super::cell::time;
use super::{AskSettings, Remote};
use crate::Error;
use crate::shipping::{self, described};

/// Microseconds of an hour.
const HOUR_US: i64 = 3_600_000_000;

/// Files and rows by probe, hour and kind.
pub(super) type Noted = BTreeMap<(Option<String>, i64, &'static str), (i64, i64)>;

/// Reads the footers of all files, and what retention has noted, if a query asks for it; in a bucket, what shippers have
/// noted.
pub(super) fn of(sql: &str, settings: &AskSettings, remote: Option<&Remote>) -> crate::Result<Option<Noted>> {
    if !sql.contains("shipments") {
        return Ok(None);
    }
    let noted = match remote {
        Some(remote) => remote.noted(settings)?,
        None => noted(settings).map_err(|error| Error::Engine(error.to_string()))?,
    };
    Ok(Some(noted))
}

fn noted(settings: &AskSettings) -> std::io::Result<Noted> {
    let mut noted = Noted::new();
    let mut add = |probe: Option<String>, hour: i64, kind: &'static str, rows: u64| {
        let sums = noted.entry((probe, hour, kind)).or_default();
        *sums = (sums.0 + 1, sums.1.saturating_add_unsigned(rows));
    };
    for (_, file) in shipping::listed(&settings.folder)? {
        match described(&file.path) {
            Some(found) => add(found.probe, file.hour, "shipped", found.rows),
            // One that was removed meanwhile is not damaged.
            None if file.path.exists() => add(None, file.hour, "damaged", 0),
            None => {}
        }
    }
    for taken in shipping::taken(&settings.folder)?.into_iter().chain(shipping::killed(&settings.folder)?) {
        add(taken.probe, taken.hour, taken.cause.name(), taken.rows.unwrap_or(0));
    }
    noted.retain(|(probe, ..), _| settings.probe.is_none() || *probe == settings.probe);
    Ok(noted)
}

/// Makes the tables.
pub(super) fn register(connection: &Connection, settings: &AskSettings, noted: &Noted) -> Result<()> {
    let mut probes: Vec<Option<&str>> = noted
        .iter()
        .filter(|((_, _, kind), _)| *kind != "damaged")
        .map(|((probe, ..), _)| probe.as_deref())
        .collect();
    probes.dedup();
    let hour = |ns: i64| ns.div_euclid(HOUR_US * 1000);
    let from = settings.from_ns.map(hour).or(noted.keys().map(|(_, hour, _)| *hour).min());
    let to = settings.to_ns.map(hour).or(noted.keys().map(|(_, hour, _)| *hour + 1).max());
    let hours = from.unwrap_or(0)..to.unwrap_or(0);
    let text = |hour: i64| time(hour.saturating_mul(HOUR_US), ' ');
    connection.execute_batch(
        "BEGIN; CREATE TABLE shipments(probe TEXT, hour TIMESTAMP TEXT, kind TEXT, files INTEGER, rows INTEGER); \
         CREATE TABLE probes(probe TEXT); CREATE TABLE hours(hour TIMESTAMP TEXT);",
    )?;
    let mut insert = connection.prepare("INSERT INTO shipments VALUES (?, ?, ?, ?, ?)")?;
    for ((probe, hour, kind), (files, rows)) in noted {
        if hours.contains(hour) {
            insert.execute(params![probe, text(*hour), kind, files, rows])?;
        }
    }
    let mut insert = connection.prepare("INSERT INTO probes VALUES (?)")?;
    for probe in probes {
        insert.execute([probe])?;
    }
    let mut insert = connection.prepare("INSERT INTO hours VALUES (?)")?;
    for hour in hours {
        insert.execute([text(hour)])?;
    }
    connection.execute_batch("COMMIT")
}
