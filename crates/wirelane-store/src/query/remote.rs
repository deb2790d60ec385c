//! A store in a bucket: see `wirelane ship --to s3://`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path as StorePath;
use object_store::{Error as StoreError, ObjectMeta, ObjectStore, ObjectStoreExt as _};
use parquet::arrow::ParquetRecordBatchStreamBuilder;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::arrow::async_reader::ParquetObjectReader;
use serde::Deserialize;
use tokio::runtime::Runtime;

use super::AskSettings;
use super::noted::Noted;
use super::scan::{Each, Failure, Part, Parts, Scan};
use crate::newer::version_of;
use crate::paths::{HOUR_NS, Stored};
use crate::shipping::hour_of;
use crate::tables::SCHEMA;
use crate::{Error, Result, Table};

/// Folder of what describes batches.
const SHIPMENTS: &str = "shipments";

/// A folder in a bucket.
#[derive(Clone, Debug)]
pub struct Remote {
    store: Arc<dyn ObjectStore>,
    /// Runs the requests; several threads may wait for theirs.
    runtime: Arc<Runtime>,
    /// Bucket and prefix, for messages.
    name: String,
    prefix: String,
}

/// A line of what describes a batch.
#[derive(Deserialize)]
struct Line {
    probe: String,
    /// Seconds since 1970.
    hour: i64,
    kind: String,
    files: i64,
    rows: i64,
}

impl Remote {
    /// A store below this prefix of a bucket, which `store` reads.
    ///
    /// # Errors
    /// [`Error::Engine`] if no thread can be started.
    pub fn new(store: Arc<dyn ObjectStore>, bucket: &str, prefix: &str) -> Result<Remote> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = Arc::new(runtime.map_err(|error| Error::Engine(error.to_string()))?);
        Ok(Remote { store, runtime, name: format!("s3://{bucket}/{prefix}"), prefix: prefix.to_owned() })
    }

    /// Reads a part of a file.
    pub(super) fn read(
        &self,
        scan: &Scan,
        stored: &Stored,
        part: Part,
        parts: &Parts,
        each: &mut Each<'_>,
    ) -> std::result::Result<(), Failure> {
        let location = StorePath::parse(stored.path.to_string_lossy()).map_err(|error| error.to_string())?;
        let mut reader =
            ParquetObjectReader::new(Arc::clone(&self.store), location).with_file_size(stored.size);
        self.runtime.block_on(async {
            let (metadata, group, is_decided) = match part {
                Part::File(file) => {
                    let metadata = ArrowReaderMetadata::load_async(&mut reader, Default::default()).await;
                    let metadata = metadata.map_err(|error| error.to_string())?;
                    parts.put(scan.groups(stored, file, metadata)?);
                    return Ok(());
                }
                Part::Group { metadata, group, is_decided, .. } => (metadata, group, is_decided),
            };
            let builder = ParquetRecordBatchStreamBuilder::new_with_metadata(reader, metadata);
            let rows = scan.configured(builder, group, is_decided).build();
            let mut rows = rows.map_err(|error| error.to_string())?;
            while let Some(batch) = rows.next().await {
                let batch = batch.map_err(|error| error.to_string())?;
                if !each(scan.batch(stored, &batch).map_err(|error| error.to_string())?)? {
                    break;
                }
            }
            Ok(())
        })
    }

    fn failed(&self, error: &StoreError) -> Error {
        let error = error.to_string().lines().collect::<Vec<_>>().join(" ");
        Error::Engine(format!("{}: {error}", self.name))
    }

    /// Objects in a folder and those below it.
    fn objects(&self, folder: &str) -> Result<Vec<ObjectMeta>> {
        let whole =
            if self.prefix.is_empty() { folder.to_owned() } else { format!("{}/{folder}", self.prefix) };
        let found: std::result::Result<Vec<_>, _> =
            self.runtime.block_on(self.store.list(Some(&StorePath::from(whole))).try_collect());
        found.map_err(|error| self.failed(&error))
    }

    /// The files of the requested time span and probe.
    pub(super) fn files(&self, settings: &AskSettings) -> Result<Vec<(Table, Stored)>> {
        let of_probe = settings.probe.as_ref().map(|probe| format!("probe={probe}"));
        let mut files = Vec::new();
        for table in Table::ALL {
            let folder = match &of_probe {
                Some(probe) => format!("{}/{probe}", table.name()),
                None => table.name().to_owned(),
            };
            for object in self.objects(&folder)? {
                let path = PathBuf::from(object.location.as_ref());
                let Some(hour) =
                    hour_of(&path).filter(|_| path.extension().is_some_and(|end| end == "parquet"))
                else {
                    continue;
                };
                files.push((table, Stored { hour, path, size: object.size, ours: true }));
            }
        }
        files.sort();
        for table in Table::ALL {
            let its = files.iter().filter(|(of, _)| *of == table);
            // Names begin with the time of their making.
            let newest = its.max_by_key(|(_, file)| (file.hour, file.path.file_name()));
            if let Some((_, file)) = newest {
                self.refuse_newer(file)?;
            }
        }
        Ok(files)
    }

    /// Refuses a file that a newer version has written.
    fn refuse_newer(&self, file: &Stored) -> Result<()> {
        let location = StorePath::parse(file.path.to_string_lossy())
            .map_err(|error| Error::Engine(error.to_string()))?;
        let mut reader =
            ParquetObjectReader::new(Arc::clone(&self.store), location).with_file_size(file.size);
        // A damaged file is an error of the query.
        let loaded = self.runtime.block_on(ArrowReaderMetadata::load_async(&mut reader, Default::default()));
        let Ok(metadata) = loaded else {
            return Ok(());
        };
        match version_of(metadata.metadata().file_metadata()) {
            Some((theirs, by)) if theirs > SCHEMA as u32 => {
                Err(Error::Newer { path: file.path.clone(), by, theirs, ours: SCHEMA as u32 })
            }
            _ => Ok(()),
        }
    }

    /// Notes of shippers about their batches.
    pub(super) fn noted(&self, settings: &AskSettings) -> Result<Noted> {
        let hour = |ns: i64| ns.div_euclid(HOUR_NS as i64);
        let days = [settings.from_ns, settings.to_ns].map(|ns| ns.map(|ns| hour(ns).div_euclid(24)));
        let mut noted = Noted::new();
        for object in self.objects(SHIPMENTS)? {
            let day = day_of(Path::new(object.location.as_ref()));
            let is_wanted = day.is_none_or(|day| {
                days[0].is_none_or(|from| day >= from) && days[1].is_none_or(|to| day <= to)
            });
            if !is_wanted {
                continue;
            }
            let found = async { self.store.get(&object.location).await?.bytes().await };
            let bytes = self.runtime.block_on(found).map_err(|error| self.failed(&error))?;
            for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let line: Line = serde_json::from_slice(line)
                    .map_err(|error| Error::Engine(format!("{}: {error}", object.location)))?;
                let kind = match line.kind.as_str() {
                    "shipped" => "shipped",
                    "unshipped" => "unshipped",
                    "interrupted" => "interrupted",
                    _ => "damaged",
                };
                if settings.probe.as_ref().is_none_or(|probe| *probe == line.probe) {
                    let sums = noted.entry((Some(line.probe), line.hour.div_euclid(3600), kind)).or_default();
                    *sums = (sums.0 + line.files, sums.1 + line.rows);
                }
            }
        }
        Ok(noted)
    }
}

/// Day since 1970 of what describes a batch.
fn day_of(path: &Path) -> Option<i64> {
    let date = path.parent()?.file_name()?.to_str()?.strip_prefix("date=")?;
    let date = chrono::NaiveDate::parse_from_str(date, "%Y-%m-%d").ok()?;
    Some(date.and_hms_opt(0, 0, 0)?.and_utc().timestamp().div_euclid(86_400))
}
