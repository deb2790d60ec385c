//! A table for DataFusion: its files, and the columns from their folder names.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::ScalarValue;
use datafusion::datasource::TableType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::object_store::ObjectMeta;
use datafusion::object_store::path::Path as StorePath;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::physical_plan::ExecutionPlan;

use super::Remote;
use super::guarded::guarded;
use crate::Table;
use crate::paths::Stored;
use crate::tables::RENAMED;

/// Files of a table.
#[derive(Debug)]
pub(super) struct Files {
    schema: TableSchema,
    files: Vec<PartitionedFile>,
    place: ObjectStoreUrl,
}

impl Files {
    /// `remote`: the bucket of the files; `None`: they are of this machine.
    pub(super) fn new<'a>(
        table: Table,
        files: impl Iterator<Item = &'a Stored>,
        remote: Option<&Remote>,
    ) -> Result<Files> {
        // Text columns are read as views, without copying.
        let columns = table.schema();
        // A column that a file does not have is NULL: one of each pair has the value.
        let former = RENAMED.iter().filter(|(of, ..)| *of == table).filter_map(|(_, former, now)| {
            let field = columns.field_with_name(now).ok()?.clone();
            Some(Arc::new(field.with_name(*former).with_nullable(true)))
        });
        let former: Vec<FieldRef> = former.collect();
        let viewed = columns
            .fields()
            .iter()
            .chain(&former)
            .map(|field| match field.data_type() {
                DataType::Utf8 => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8View)),
                _ => Arc::clone(field),
            })
            .collect::<Vec<FieldRef>>();
        let folders =
            [Field::new("date", DataType::Date32, false), Field::new("hour", DataType::Int32, false)];
        let folders = folders.into_iter().map(Arc::new).collect();
        let schema = TableSchema::new(Arc::new(Schema::new(viewed)), folders);
        let files = files.map(|file| partitioned(file, remote.is_some())).collect::<Result<Vec<_>>>()?;
        let place = remote.map_or_else(ObjectStoreUrl::local_filesystem, |remote| remote.url().clone());
        Ok(Files { schema, files, place })
    }
}

fn partitioned(file: &Stored, is_remote: bool) -> Result<PartitionedFile> {
    let location = match is_remote {
        true => StorePath::parse(file.path.to_string_lossy()),
        false => StorePath::from_absolute_path(std::path::absolute(&file.path)?),
    };
    let location = location.map_err(|error| DataFusionError::External(Box::new(error)))?;
    let last_modified = chrono::DateTime::default();
    let meta = ObjectMeta { location, last_modified, size: file.size, e_tag: None, version: None };
    let (day, hour) = (file.hour.div_euclid(24), file.hour.rem_euclid(24));
    let values = vec![ScalarValue::Date32(Some(day as i32)), ScalarValue::Int32(Some(hour as i32))];
    Ok(PartitionedFile::new_from_meta(meta).with_partition_values(values))
}

#[async_trait]
impl TableProvider for Files {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.schema.table_schema())
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let source = ParquetSource::new(self.schema.clone());
        // Threads get files of about the same total size; DataFusion splits large ones.
        let threads = state.config().target_partitions().max(1);
        let mut groups: Vec<(u64, Vec<PartitionedFile>)> = vec![(0, Vec::new()); threads];
        for file in &self.files {
            if let Some((bytes, group)) = groups.iter_mut().min_by_key(|(bytes, _)| *bytes) {
                *bytes += file.object_meta.size;
                group.push(file.clone());
            }
        }
        let groups = groups.into_iter().filter(|(_, group)| !group.is_empty());
        let groups = groups.map(|(_, group)| FileGroup::new(group)).collect();
        let config = FileScanConfigBuilder::new(self.place.clone(), Arc::new(source))
            .with_file_groups(groups)
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .build();
        Ok(DataSourceExec::from_data_source(config))
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        // Files and row groups are skipped by the filters; rows are filtered again.
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }
}

/// Files that cannot be read completely, and the reasons; without those that were removed meanwhile.
pub(super) fn damaged(files: &[(Table, Stored)]) -> Vec<(PathBuf, String)> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            // Relaxed: the counter hands out indexes and orders nothing; the lock and the scope's end do.
            scope.spawn(|| {
                while let Some((table, file)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let read = guarded(|| read(*table, &file.path)).and_then(|read| read);
                    let Err(why) = read else { continue };
                    if file.path.exists() {
                        found.lock().unwrap_or_else(PoisonError::into_inner).push((file.path.clone(), why));
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort();
    found
}

/// Reads a whole file, and checks that its columns are those of its table.
fn read(table: Table, path: &Path) -> std::result::Result<(), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| error.to_string())?;
    for field in table.schema().fields() {
        if let Ok(found) = reader.schema().field_with_name(field.name())
            && found.data_type() != field.data_type()
        {
            return Err(format!(
                "its column {} is {}, not {}",
                field.name(),
                found.data_type(),
                field.data_type()
            ));
        }
    }
    for batch in reader.build().map_err(|error| error.to_string())? {
        batch.map_err(|error| error.to_string())?;
    }
    Ok(())
}
