//! Tables for the question what is missing in a store: `shipments` (files of the store, those that retention removed before
//! they were shipped, and killed writers, as a place to ask has them), `probes` and `hours`.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::prelude::SessionContext;

use super::{AskSettings, Remote};
use crate::Error;
use crate::shipping::{self, described};

/// Microseconds of an hour.
const HOUR_US: i64 = 3_600_000_000;

/// Files and rows by probe, hour and kind.
pub(super) type Noted = BTreeMap<(Option<String>, i64, &'static str), (i64, i64)>;

/// Reads the footers of all files, and what retention has noted, if a query asks for it; in a bucket, what shippers have
/// noted.
pub(super) async fn of(
    sql: &str,
    settings: &AskSettings,
    remote: Option<&Remote>,
) -> crate::Result<Option<Noted>> {
    if !sql.contains("shipments") {
        return Ok(None);
    }
    let noted = match remote {
        Some(remote) => remote.noted(settings).await?,
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

/// Registers the tables.
pub(super) fn register(session: &SessionContext, settings: &AskSettings, noted: &Noted) -> Result<()> {
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
    let rows: Vec<_> = noted.iter().filter(|((_, hour, _), _)| hours.contains(hour)).collect();
    let text = |name: &str| Field::new(name, DataType::Utf8, true);
    let time = Field::new("hour", DataType::Timestamp(TimeUnit::Microsecond, None), false);
    let number = |name: &str| Field::new(name, DataType::Int64, false);
    let times = |hours: &mut dyn Iterator<Item = i64>| -> ArrayRef {
        Arc::new(TimestampMicrosecondArray::from_iter_values(hours.map(|hour| hour * HOUR_US)))
    };
    let shipments: [(Field, ArrayRef); 5] = [
        (
            text("probe"),
            Arc::new(rows.iter().map(|((probe, ..), _)| probe.as_deref()).collect::<StringArray>()),
        ),
        (time.clone(), times(&mut rows.iter().map(|((_, hour, _), _)| *hour))),
        (text("kind"), Arc::new(rows.iter().map(|((.., kind), _)| Some(*kind)).collect::<StringArray>())),
        (number("files"), Arc::new(rows.iter().map(|(_, (files, _))| *files).collect::<Int64Array>())),
        (number("rows"), Arc::new(rows.iter().map(|(_, (_, rows))| *rows).collect::<Int64Array>())),
    ];
    table(session, "shipments", shipments.into())?;
    table(session, "probes", vec![(text("probe"), Arc::new(StringArray::from(probes)))])?;
    table(session, "hours", vec![(time, times(&mut hours.clone()))])
}

fn table(session: &SessionContext, name: &str, columns: Vec<(Field, ArrayRef)>) -> Result<()> {
    let (fields, columns): (Vec<Field>, Vec<ArrayRef>) = columns.into_iter().unzip();
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns)?;
    session.register_table(name, Arc::new(MemTable::try_new(schema, vec![vec![batch]])?))?;
    Ok(())
}
