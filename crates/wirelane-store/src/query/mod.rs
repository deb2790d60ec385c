//! Questions about a store, answered by DataFusion: SQL over its files, in parallel, within a memory limit above which
//! sorting and grouping use temporary files.
//!
//! An unreadable file ends DataFusion's query. If a query fails because of a file before any output was written, the
//! files are read one by one, the damaged ones are left out and named, and the query is run again.

mod dialect;
mod elsewhere;
mod ends;
mod functions;
pub(crate) mod guarded;
mod mistake;
mod noted;
mod questions;
mod remote;
mod show;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::lit_timestamp_nano;
use datafusion::prelude::{DataFrame, Expr, SQLOptions, SessionConfig, SessionContext, coalesce, col, lit};
use futures::StreamExt;

pub use dialect::Shipped;
pub use elsewhere::show;
use ends::Ends;
pub(crate) use guarded::guarded;
pub use questions::{Peer, Question};
pub use remote::Remote;
pub use show::Form;
use show::Shown;
pub(crate) use show::json_lines as json;
use table::Files;

use crate::newer;
use crate::paths::{self, Stored};
use crate::tables::RENAMED;
use crate::{Error, Result, Table};

/// Rows that are held back because a file may turn out to be damaged.
const HELD: usize = 20_000;
/// Maximum attempts for a question.
const ATTEMPTS: usize = 4;
/// Stack in bytes of the threads that plan and execute: SQL can be nested.
const STACK: usize = 16 << 20;

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
enum Failed {
    /// The error is final.
    Finally(Error),
    /// The cause may be a damaged file.
    Perhaps(String),
}

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
    pub fn ask(
        &mut self,
        sql: &str,
        form: Form,
        sink: &mut Sink<'_>,
        named: &mut dyn FnMut(&Path, &str),
    ) -> Result<()> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().thread_stack_size(STACK).enable_all().build();
        let runtime = runtime.map_err(|error| Error::Engine(error.to_string()))?;
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            let files = match &self.remote {
                Some(remote) => runtime.block_on(remote.files(&self.settings))?,
                None => listed(&self.settings.folder)?,
            };
            let files = self.wanted(files)?;
            let mut shown = Shown::new(form, &mut *sink);
            // The decoder may panic on a file that was damaged on purpose.
            let attempt = guarded(|| runtime.block_on(attempt(sql, self, &files, &mut shown)));
            let why = match attempt {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(Failed::Finally(error))) => return Err(error),
                Ok(Err(Failed::Perhaps(why))) => why,
                Err(why) => why,
            };
            let begun = shown.begun();
            let found = table::damaged(&files);
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

/// A session with the tables over these files, and those of what was noted of files.
fn session(
    settings: &AskSettings,
    files: &[(Table, Stored)],
    noted: Option<&noted::Noted>,
    remote: Option<&Remote>,
) -> datafusion::error::Result<SessionContext> {
    let mut config = SessionConfig::new().with_information_schema(true);
    config.options_mut().sql_parser.collect_spans = true;
    // For rows that a condition excludes, only the columns of the condition are decoded.
    config.options_mut().execution.parquet.pushdown_filters = true;
    let pool = Arc::new(FairSpillPool::new(settings.memory_mib << 20));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc()?;
    if let Some(remote) = remote {
        runtime.register_object_store(remote.url().as_ref(), remote.store());
    }
    let session = SessionContext::new_with_config_rt(config, runtime);
    functions::register(&session);
    for table in Table::ALL {
        let its = files.iter().filter(|(of, _)| *of == table).map(|(_, file)| file);
        let mut rows =
            with_names_of_today(table, session.read_table(Arc::new(Files::new(table, its, remote)?))?)?;
        if let Some(from) = settings.from_ns {
            rows = rows.filter(col("end_time").gt_eq(lit_timestamp_nano(from)))?;
        }
        if let Some(to) = settings.to_ns {
            rows = rows.filter(col("end_time").lt(lit_timestamp_nano(to)))?;
        }
        if let Some(probe) = &settings.probe {
            rows = rows.filter(col("probe").eq(lit(probe.as_str())))?;
        }
        if table == Table::Flows {
            session.register_udtf("ends", Arc::new(Ends::new(rows.clone())));
        }
        session.register_table(table.name(), rows.into_view())?;
    }
    if let Some(noted) = noted {
        noted::register(&session, settings, noted)?;
    }
    Ok(session)
}

/// The rows of a table whose files may have been written before a column was renamed, or before rows had a schema version.
fn with_names_of_today(table: Table, mut rows: DataFrame) -> datafusion::error::Result<DataFrame> {
    rows = rows.with_column("schema_version", coalesce(vec![col("schema_version"), lit(1)]))?;
    for (_, former, now) in RENAMED.iter().filter(|(of, ..)| *of == table) {
        let names = rows.schema().fields().iter().map(|field| field.name()).filter(|name| name != former);
        let columns: Vec<Expr> = names
            .map(|name| match name == now {
                true => coalesce(vec![col(*now), col(*former)]).alias(*now),
                false => col(name),
            })
            .collect();
        rows = rows.select(columns)?;
    }
    Ok(rows)
}

/// Runs the query once.
async fn attempt(
    sql: &str,
    asker: &Asker,
    files: &[(Table, Stored)],
    shown: &mut Shown<'_>,
) -> std::result::Result<(), Failed> {
    let (settings, remote) = (&asker.settings, asker.remote.as_ref());
    let failed = |error: DataFusionError| mistake::failed(&error, settings.memory_mib);
    let noted = noted::of(sql, settings, remote).await.map_err(Failed::Finally)?;
    let session = session(settings, files, noted.as_ref(), remote).map_err(failed)?;
    // Only queries are allowed: nothing is created, changed or written.
    let allowed = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    let answer = session.sql_with_options(sql, allowed).await.map_err(failed)?;
    let schema: SchemaRef = Arc::new(answer.schema().as_arrow().clone());
    let mut rows = answer.execute_stream().await.map_err(failed)?;
    let mut held: Vec<RecordBatch> = Vec::new();
    let mut count = 0;
    while let Some(batch) = rows.next().await {
        let batch = batch.map_err(failed)?;
        count += batch.num_rows();
        held.push(batch);
        if count >= HELD || shown.begun() {
            shown.rows(&schema, &held).map_err(Failed::Finally)?;
            held.clear();
        }
    }
    shown.rows(&schema, &held).and_then(|()| shown.end(&schema)).map_err(Failed::Finally)
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Array, ArrayRef, Int32Array};
    use datafusion::arrow::compute::cast;
    use datafusion::arrow::datatypes::Schema;
    use datafusion::parquet::arrow::ArrowWriter;

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
        let session = session(&settings, &files, None, None).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let rows = runtime.block_on(async { session.sql(sql).await.unwrap().collect().await.unwrap() });
        let column = datafusion::arrow::compute::concat_batches(&rows[0].schema(), &rows).unwrap();
        let numbers = column.column(0).as_any().downcast_ref::<Int32Array>().unwrap();
        assert_eq!(numbers.values(), &[6, 17]);
        assert_eq!(numbers.null_count(), 0);
        let sql = "SELECT schema_version FROM flows WHERE probe IS NULL ORDER BY schema_version";
        let rows = runtime.block_on(async { session.sql(sql).await.unwrap().collect().await.unwrap() });
        let column = datafusion::arrow::compute::concat_batches(&rows[0].schema(), &rows).unwrap();
        assert_eq!(column.column(0).as_any().downcast_ref::<Int32Array>().unwrap().values(), &[1, 1]);
        let former = runtime.block_on(session.sql("SELECT proto FROM flows"));
        assert!(former.is_err(), "the former name is not offered");
    }
}
