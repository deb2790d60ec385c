//! Results of storing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Serialize, Serializer};

use crate::Error;
use crate::tables::Table;

/// Numbers of rows by table.
pub(crate) type Rows = BTreeMap<Table, u64>;

/// Results of storing.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StoreCounts {
    /// The store.
    pub store: String,
    /// Rows in complete files on the disk, by table name.
    #[serde(flatten, serialize_with = "by_name")]
    pub rows: Rows,
    /// Rows that are not in any file: no space, no permission, or a disk that is too slow. Under `unwritten_flows`, and
    /// so on.
    #[serde(flatten, serialize_with = "by_unwritten")]
    pub unwritten: Rows,
    /// Files written.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Files that retention removed by age or total size.
    pub removed_files: u64,
    /// Bytes of the removed files.
    pub removed_bytes: u64,
    /// Rows of removed files that had not been shipped to every target.
    #[serde(skip_serializing_if = "is_zero")]
    pub unshipped_rows: u64,
    /// Removed unfinished files of dead writers.
    pub cleared_files: u64,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip)]
    pub(crate) first_error: Option<String>,
    /// Time of the first failure since the store was written to last.
    #[serde(skip)]
    pub(crate) failing: Option<SystemTime>,
}

fn by_name<S: Serializer>(rows: &Rows, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_map(rows.iter().map(|(table, rows)| (table.name(), rows)))
}

fn by_unwritten<S: Serializer>(rows: &Rows, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_map(rows.iter().map(|(table, rows)| (table.unwritten(), rows)))
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl StoreCounts {
    pub(crate) fn new(folder: &Path, tables: &[Table]) -> StoreCounts {
        let none: Rows = tables.iter().map(|table| (*table, 0)).collect();
        let store = folder.display().to_string();
        StoreCounts { store, rows: none.clone(), unwritten: none, ..StoreCounts::default() }
    }

    /// The error of a store with unwritten rows.
    pub fn failure(&self) -> Option<Error> {
        let first = self.first_error.clone().unwrap_or_default();
        let lacks = self.unwritten.iter().filter(|(_, rows)| **rows > 0);
        let lacks: Vec<String> = lacks.map(|(table, rows)| format!("{rows} {}", table.name())).collect();
        let (what, path) = (lacks.join(" and "), PathBuf::from(&self.store));
        (!lacks.is_empty()).then_some(Error::Unwritten { what, path, first })
    }

    pub(crate) fn unwritten(&mut self, table: Table, rows: u64) {
        *self.unwritten.entry(table).or_default() += rows;
    }

    pub(crate) fn failed(&mut self, why: String) {
        if self.error.as_ref() != Some(&why) {
            tracing::warn!("store {}: {why}", self.store);
            self.first_error.get_or_insert_with(|| why.clone());
            self.error = Some(why);
        }
    }
}
