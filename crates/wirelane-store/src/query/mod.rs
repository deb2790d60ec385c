//! Questions about a store. Ready ones about flows are answered by a scan of our own on all processors ([`groups`]), all
//! others by SQLite over virtual tables ([`rows`]).
//!
//! ```text
//! files -> scan -+-> groups -------------------+-> cells -> show
//!                +-> rows -> SQLite (engine) --+
//! ```
//!
//! An unreadable file ends a query. If a query fails because of a file before any output was written, the files are read
//! one by one, the damaged ones are left out and named, and the query is run again.

mod cell;
mod dialect;
mod elsewhere;
mod engine;
#[cfg(test)]
mod fixture;
mod functions;
mod groups;
pub(crate) mod guarded;
mod mistake;
mod noted;
mod questions;
#[cfg(feature = "remote")]
mod remote;
mod rows;
mod scan;
mod show;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub(crate) use cell::json_lines as json;
use cell::{Column, Row};
pub use dialect::Shipped;
pub use elsewhere::show;
use engine::Engine;
use groups::Without;
pub(crate) use guarded::guarded;
pub use questions::{Peer, Question};
#[cfg(feature = "remote")]
pub use remote::Remote;
use scan::Source;
pub use show::Form;
use show::Shown;

use crate::newer;
use crate::paths::{self, Stored};
use crate::{Error, Result, Table};

/// A store in a bucket, of which this build has none (feature `remote`).
#[cfg(not(feature = "remote"))]
#[derive(Clone, Debug)]
pub enum Remote {}

#[cfg(not(feature = "remote"))]
impl Remote {
    fn files(&self, _: &AskSettings) -> Result<Vec<(Table, Stored)>> {
        match *self {}
    }

    fn noted(&self, _: &AskSettings) -> Result<noted::Noted> {
        match *self {}
    }
}

/// Rows that are held back because a file may turn out to be damaged.
const HELD: usize = 20_000;
/// Maximum attempts for a question.
const ATTEMPTS: usize = 4;

/// Settings of queries.
#[derive(Clone, Debug)]
pub struct AskSettings {
    /// The store's folder.
    pub folder: PathBuf,
    /// Memory limit in MiB.
    pub memory_mib: usize,
    /// Restricts to rows that ended at this time or later, in nanoseconds since 1970.
    pub from_ns: Option<i64>,
    /// Restricts to rows that ended before this time.
    pub to_ns: Option<i64>,
    /// Restricts to rows of this probe.
    pub probe: Option<String>,
}

/// Answers questions about a store.
#[derive(Debug)]
pub struct Asker {
    settings: AskSettings,
    /// The bucket, if it is not a folder.
    remote: Option<Remote>,
    /// Unreadable files, and the reasons.
    damaged: BTreeMap<PathBuf, String>,
}

/// Receives the bytes of answers.
pub type Sink<'a> =
    dyn FnMut(&[u8]) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> + 'a;

/// Result of a failed attempt.
#[derive(Debug)]
enum Failed {
    /// The error is final.
    Finally(Error),
    /// The cause may be a damaged file.
    Perhaps(String),
}

/// An answer, or a failure, and whether a part of the answer was written.
type Attempt<T> = std::result::Result<T, (Failed, bool)>;

impl Asker {
    /// Opens the store.
    ///
    /// # Errors
    /// [`Error::NoStore`].
    pub fn open(settings: AskSettings) -> Result<Asker> {
        let failed = |path: &Path, error: std::io::Error| Error::NoStore {
            path: settings.folder.clone(),
            reason: format!("{}: {error}", path.display()),
        };
        std::fs::read_dir(&settings.folder).map_err(|error| failed(&settings.folder, error))?;
        let folders = Table::ALL.map(|table| settings.folder.join(table.name()));
        if !folders.iter().any(|folder| folder.is_dir()) {
            let reason = format!("none of these folders exists: {}", tables());
            return Err(Error::NoStore { path: settings.folder.clone(), reason });
        }
        Ok(Asker { settings, remote: None, damaged: BTreeMap::new() })
    }

    /// Opens a store in a bucket; the folder of the settings is not used.
    pub fn remote(settings: AskSettings, remote: Remote) -> Asker {
        Asker { settings, remote: Some(remote), damaged: BTreeMap::new() }
    }

    /// Files that were left out because they are unreadable, and the reasons.
    pub fn damaged(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.damaged.iter().map(|(path, why)| (path.as_path(), why.as_str()))
    }

    /// Answers SQL. `named` is called for each file that is left out.
    ///
    /// # Errors
    /// [`Error::Sql`], [`Error::Memory`], [`Error::Cut`] if something fails after the answer has begun,
    /// [`Error::Output`] with the error of `sink`, [`Error::Engine`].
    pub fn ask<'s>(
        &mut self,
        sql: &str,
        form: Form,
        sink: &'s mut Sink<'s>,
        named: &mut dyn FnMut(&Path, &str),
    ) -> Result<()> {
        let mut shown = Shown::new(form, sink);
        self.attempts(named, |asker, files| {
            asker.run(sql, files, &mut shown).map_err(|failed| (failed, shown.begun()))
        })
    }

    /// Answers a ready question with at most `limit` rows, as [`Self::ask`] does.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn answer<'s>(
        &mut self,
        question: &Question,
        limit: u64,
        form: Form,
        sink: &'s mut Sink<'s>,
        named: &mut dyn FnMut(&Path, &str),
    ) -> Result<()> {
        let mut shown = Shown::new(form, sink);
        self.attempts(named, |asker, files| {
            let failed = |error| (Failed::Finally(error), true);
            let source = asker.source(Table::Flows, files);
            match groups::answer(question, limit, &source, asker.memory()) {
                Ok((columns, rows)) => {
                    shown.rows(&columns, &rows).and_then(|()| shown.end(&columns)).map_err(failed)
                }
                Err(Without::File(why)) => Err((Failed::Perhaps(why), false)),
                Err(Without::Sql) => {
                    let answered = asker.run(&question.sql(limit), files, &mut shown);
                    answered.map_err(|failed| (failed, shown.begun()))
                }
            }
        })
    }

    /// Number of rows of a table, the first start, the last end and the longest duration in nanoseconds; `None`: no rows.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub(crate) fn span(
        &mut self,
        table: Table,
        named: &mut dyn FnMut(&Path, &str),
    ) -> Result<Option<[i64; 4]>> {
        self.attempts(named, |asker, files| {
            let span = groups::span(&asker.source(table, files));
            span.map_err(|without| (asker.without(without), false))
        })
    }

    /// Number, flows and bytes of each step of this length in which flows have ended.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::Engine`].
    pub(crate) fn steps(
        &mut self,
        step_ns: i64,
        named: &mut dyn FnMut(&Path, &str),
    ) -> Result<Vec<[i64; 3]>> {
        self.attempts(named, |asker, files| {
            let steps = groups::steps(step_ns, &asker.source(Table::Flows, files), asker.memory());
            steps.map_err(|without| (asker.without(without), false))
        })
    }

    fn source(&self, table: Table, files: &[(Table, Stored)]) -> Source {
        Source::new(table, files, &self.settings, self.remote.as_ref())
    }

    /// The failure of a question that SQLite is not asked.
    fn without(&self, without: Without) -> Failed {
        match without {
            Without::File(why) => Failed::Perhaps(why),
            Without::Sql => mistake::too_large(self.settings.memory_mib, "sums by time"),
        }
    }

    /// Memory limit in bytes.
    fn memory(&self) -> usize {
        self.settings.memory_mib << 20
    }

    /// Runs a query, again without those files that turn out to be damaged. `attempt` returns whether a part of the answer
    /// was written before a failure.
    fn attempts<T>(
        &mut self,
        named: &mut dyn FnMut(&Path, &str),
        mut attempt: impl FnMut(&Asker, &[(Table, Stored)]) -> Attempt<T>,
    ) -> Result<T> {
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            let files = match &self.remote {
                Some(remote) => remote.files(&self.settings)?,
                None => listed(&self.settings.folder)?,
            };
            let files = self.wanted(files)?;
            let (why, begun) = match attempt(self, &files) {
                Ok(answer) => return Ok(answer),
                Err((Failed::Finally(error), _)) => return Err(error),
                Err((Failed::Perhaps(why), begun)) => (why, begun),
            };
            let found = if self.remote.is_none() { scan::damaged(&files) } else { Vec::new() };
            // The next attempt does not list files that have been removed meanwhile.
            let gone = self.remote.is_none() && files.iter().any(|(_, file)| !file.path.exists());
            if found.is_empty() && !gone {
                return Err(Error::Engine(why));
            }
            for (path, why) in found {
                named(&path, &why);
                self.damaged.insert(path, why);
            }
            if begun {
                let reason = format!("{why}; ask again, and what cannot be read is left out");
                return Err(Error::Cut { reason });
            }
            last = why;
        }
        Err(Error::Engine(format!("the files of the store keep changing: {last}")))
    }

    /// Runs SQL once.
    fn run(
        &self,
        sql: &str,
        files: &[(Table, Stored)],
        shown: &mut Shown<'_>,
    ) -> std::result::Result<(), Failed> {
        let noted = noted::of(sql, &self.settings, self.remote.as_ref()).map_err(Failed::Finally)?;
        let engine = Engine::new(&self.settings, files, noted.as_ref(), self.remote.as_ref());
        let engine = engine.map_err(|error| Failed::Finally(Error::Engine(error.to_string())))?;
        let mut last: Vec<Column> = Vec::new();
        engine.run(sql, &mut |columns: &[Column], rows: &[Row]| {
            last = columns.to_vec();
            if rows.is_empty() { Ok(()) } else { shown.rows(columns, rows) }
        })?;
        shown.end(&last).map_err(Failed::Finally)
    }

    /// Files in the requested time span.
    fn wanted(&self, mut files: Vec<(Table, Stored)>) -> Result<Vec<(Table, Stored)>> {
        let hour = |ns: i64| ns.div_euclid(paths::HOUR_NS as i64);
        let (from, to) =
            (self.settings.from_ns.map(hour), self.settings.to_ns.map(|to| hour(to.saturating_sub(1))));
        let wanted = |file: &Stored| {
            from.is_none_or(|from| file.hour >= from)
                && to.is_none_or(|to| file.hour <= to)
                && !self.damaged.contains_key(&file.path)
        };
        files.retain(|(_, file)| wanted(file));
        if self.remote.is_none() {
            for table in Table::ALL {
                newer::refuse(files.iter().filter(|(of, _)| *of == table).map(|(_, file)| file))?;
            }
        }
        Ok(files)
    }
}

/// The files of a folder. A table that was never written has none.
fn listed(folder: &Path) -> Result<Vec<(Table, Stored)>> {
    crate::shipping::listed(folder).map_err(|error| Error::Engine(error.to_string()))
}

/// The names of all tables, as a list for people.
fn tables() -> String {
    Table::ALL.map(Table::name).join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int32Array, RecordBatch};
    use arrow::compute::cast;
    use arrow::datatypes::Schema;
    use parquet::arrow::ArrowWriter;

    use super::cell::Cell;

    use super::*;

    /// A file of schema 1 with a row, in which each column has this number; the last columns have these names instead.
    fn file(path: &Path, number: i32, renamed: &[(&str, &str)]) {
        let table = Table::Flows.schema();
        let name = |name: &str| {
            renamed.iter().find(|(_, now)| *now == name).map_or(name.to_owned(), |pair| pair.0.to_owned())
        };
        let former =
            table.fields().iter().filter(|field| !["probe", "schema_version"].contains(&&**field.name()));
        let fields: Vec<_> =
            former.map(|field| field.as_ref().clone().with_name(name(field.name()))).collect();
        let value: ArrayRef = Arc::new(Int32Array::from(vec![number]));
        let columns: Vec<ArrayRef> =
            fields.iter().map(|field| cast(&value, field.data_type()).unwrap()).collect();
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
        let mut writer = ArrowWriter::try_new(std::fs::File::create(path).unwrap(), schema, None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn files_from_before_a_column_was_renamed_have_its_values() {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<_> = [("old", 6, &[("proto", "protocol")][..]), ("new", 17, &[])]
            .into_iter()
            .map(|(name, number, renamed)| {
                let path = folder.path().join(name).with_extension("parquet");
                file(&path, number, renamed);
                let size = path.metadata().unwrap().len();
                (Table::Flows, Stored { path, size, hour: 0, ours: true })
            })
            .collect();
        let folder = folder.path().to_owned();
        let settings = AskSettings { folder, memory_mib: 64, from_ns: None, to_ns: None, probe: None };
        let sql = "SELECT protocol FROM flows WHERE protocol > 5 ORDER BY packets";
        let engine = Engine::new(&settings, &files, None, None).unwrap();
        let asked = |sql: &str| {
            let mut found = Vec::new();
            let ran = engine.run(sql, &mut |_, rows| {
                found.extend(rows.iter().map(|row| row[0].clone()));
                Ok(())
            });
            ran.map(|()| found)
        };
        assert_eq!(asked(sql).unwrap(), [Cell::Int(6), Cell::Int(17)]);
        let sql = "SELECT schema_version FROM flows WHERE probe IS NULL ORDER BY schema_version";
        assert_eq!(asked(sql).unwrap(), [Cell::Int(1), Cell::Int(1)]);
        assert_eq!(asked("SELECT count(*) FROM flows WHERE schema_version = 1").unwrap(), [Cell::Int(2)]);
        assert!(asked("SELECT proto FROM flows").is_err(), "the former name is not offered");
    }
}
