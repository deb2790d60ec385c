//! Parts of a scan: a file until its row groups are known, then each of them.

use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayRef, BooleanArray, Int32Array, RecordBatch, StringArray, new_null_array};
use arrow::compute::{and, or};
use arrow::datatypes::Schema;
use arrow::error::ArrowError;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowPredicateFn, ArrowReaderBuilder, ArrowReaderMetadata, ParquetRecordBatchReaderBuilder, RowFilter,
};
use parquet::file::metadata::RowGroupMetaData;

use super::super::functions::Network;
use super::condition::Verdict;
use super::{Condition, Failure, Scan};
use crate::Table;
use crate::paths::Stored;

/// Rows of a batch.
const TOGETHER: usize = 8192;

/// Receives batches, and returns whether more are wanted.
pub(in super::super) type Each<'e> = dyn FnMut(RecordBatch) -> Result<bool, Failure> + 'e;

/// A part of a scan.
#[derive(Debug)]
pub(in super::super) enum Part {
    /// A file whose footer was not read yet.
    File(usize),
    /// A row group.
    Group { file: usize, metadata: ArrowReaderMetadata, group: usize, is_decided: bool },
}

impl Part {
    /// Position of the file.
    pub(super) fn file(&self) -> usize {
        match self {
            Part::File(file) | Part::Group { file, .. } => *file,
        }
    }
}

/// The parts that nobody has taken yet.
#[derive(Debug)]
pub(in super::super) struct Parts(Mutex<VecDeque<Part>>);

impl Parts {
    pub(super) fn new(files: usize) -> Parts {
        Parts(Mutex::new((0..files).map(Part::File).collect()))
    }

    pub(super) fn next(&self) -> Option<Part> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Puts the row groups of a file in its place.
    pub(in super::super) fn put(&self, groups: Vec<Part>) {
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        groups.into_iter().rev().for_each(|part| parts.push_front(part));
    }
}

/// Reads a part of a file on this machine.
pub(super) fn local(
    scan: &Scan,
    stored: &Stored,
    part: Part,
    parts: &Parts,
    each: &mut Each<'_>,
) -> Result<(), Failure> {
    let open = || File::open(&stored.path).map_err(|error| error.to_string());
    let (file, metadata, group, is_decided) = match part {
        Part::File(file) => {
            let metadata = ArrowReaderMetadata::load(&open()?, Default::default());
            parts.put(scan.groups(stored, file, metadata.map_err(|error| error.to_string())?)?);
            return Ok(());
        }
        Part::Group { metadata, group, is_decided, .. } => (open()?, metadata, group, is_decided),
    };
    let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
    let reader = scan.configured(builder, group, is_decided).build().map_err(|error| error.to_string())?;
    for batch in reader {
        let batch = batch.map_err(|error| error.to_string())?;
        if !each(scan.batch(stored, &batch).map_err(|error| error.to_string())?)? {
            break;
        }
    }
    Ok(())
}

impl Scan {
    /// The row groups of a file that may have rows.
    pub(in super::super) fn groups(
        &self,
        stored: &Stored,
        file: usize,
        metadata: ArrowReaderMetadata,
    ) -> Result<Vec<Part>, String> {
        let names = self.needed().map(|column| self.source.columns[column].name().as_str());
        check_types(self.source.table, metadata.schema(), names)?;
        let mut groups = Vec::new();
        for (group, known) in metadata.metadata().row_groups().iter().enumerate() {
            let verdicts = self.conditions.iter().map(|condition| self.judge(condition, stored, known));
            match verdicts.max().unwrap_or(Verdict::All) {
                Verdict::None => {}
                verdict => {
                    let is_decided = verdict == Verdict::All;
                    groups.push(Part::Group { file, metadata: metadata.clone(), group, is_decided });
                }
            }
        }
        Ok(groups)
    }

    fn judge(&self, condition: &Condition, stored: &Stored, group: &RowGroupMetaData) -> Verdict {
        let name = self.source.columns[condition.column].name();
        match name.as_str() {
            "date" => return condition.judge_text(&date(stored)),
            "hour" => return condition.judge_number(hour(stored).into()),
            _ => {}
        }
        let column =
            group.columns().iter().find(|column| self.is_column(name, column.column_path().string()));
        match column {
            Some(column) => column.statistics().map_or(Verdict::Some, |known| condition.judge(known)),
            // Rows of a file without the column do not have a value.
            None => Verdict::None,
        }
    }

    /// Whether a column of a file is this one, also under its former name.
    fn is_column(&self, name: &str, found: impl AsRef<str>) -> bool {
        found.as_ref() == name || Some(found.as_ref()) == self.source.table.former(name)
    }

    /// Positions of all columns that are read, some twice.
    fn needed(&self) -> impl Iterator<Item = usize> {
        let ends = ["src", "dst"].map(|name| self.source.column(name));
        let ends = ends.into_iter().flatten().filter(|_| self.peer.is_some());
        let checked = self.conditions.iter().map(|condition| condition.column);
        self.wanted.iter().copied().chain(checked).chain(ends)
    }

    /// A reader of the wanted columns of the rows that meet the conditions.
    pub(in super::super) fn configured<T>(
        &self,
        builder: ArrowReaderBuilder<T>,
        group: usize,
        is_decided: bool,
    ) -> ArrowReaderBuilder<T> {
        let mask = |columns: &[usize]| {
            let names: Vec<&str> =
                columns.iter().map(|column| self.source.columns[*column].name().as_str()).collect();
            let found = builder.parquet_schema().columns().iter().enumerate();
            let leaves = found
                .filter(|(_, found)| names.iter().any(|name| self.is_column(name, found.path().string())));
            ProjectionMask::leaves(builder.parquet_schema(), leaves.map(|(leaf, _)| leaf))
        };
        let wanted = mask(&self.wanted);
        let checked: Vec<usize> =
            if is_decided { Vec::new() } else { self.conditions.iter().map(|it| it.column).collect() };
        let ends: Vec<usize> = ["src", "dst"].iter().filter_map(|name| self.source.column(name)).collect();
        let mut filters: Vec<Box<dyn parquet::arrow::arrow_reader::ArrowPredicate>> = Vec::new();
        if !checked.is_empty() {
            let scan = self.clone();
            let rows = move |batch: RecordBatch| scan.meeting(&batch);
            filters.push(Box::new(ArrowPredicateFn::new(mask(&checked), rows)));
        }
        if let Some(peer) = self.peer {
            filters
                .push(Box::new(ArrowPredicateFn::new(mask(&ends), move |batch| with_end_in(&batch, &peer))));
        }
        let builder = builder.with_batch_size(TOGETHER).with_row_groups(vec![group]).with_projection(wanted);
        if filters.is_empty() { builder } else { builder.with_row_filter(RowFilter::new(filters)) }
    }

    /// Rows that meet all conditions.
    fn meeting(&self, batch: &RecordBatch) -> Result<BooleanArray, ArrowError> {
        let mut met = BooleanArray::from(vec![true; batch.num_rows()]);
        for condition in &self.conditions {
            let name = self.source.columns[condition.column].name();
            // Those of the names of folders were decided.
            if let Some(column) = self.found(batch, name) {
                met = and(&met, &condition.rows(column)?)?;
            }
        }
        // A comparison with NULL is NULL, which is not met.
        Ok(met)
    }

    fn found<'b>(&self, batch: &'b RecordBatch, name: &str) -> Option<&'b ArrayRef> {
        let named = |name: &str| batch.column_by_name(name);
        named(name).or_else(|| named(self.source.table.former(name)?))
    }

    /// The wanted columns, in their order, of rows as a file has them.
    pub(in super::super) fn batch(
        &self,
        stored: &Stored,
        batch: &RecordBatch,
    ) -> Result<RecordBatch, ArrowError> {
        let rows = batch.num_rows();
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.wanted.len());
        for wanted in &self.wanted {
            let field = &self.source.columns[*wanted];
            columns.push(match (self.found(batch, field.name()), field.name().as_str()) {
                (Some(column), "schema_version") if column.null_count() > 0 => {
                    let versions = arrow::compute::cast(column, field.data_type())?;
                    let versions =
                        arrow::array::cast::as_primitive_array::<arrow::datatypes::Int32Type>(&versions);
                    Arc::new(versions.iter().map(|version| version.or(Some(1))).collect::<Int32Array>())
                }
                (Some(column), _) => ArrayRef::clone(column),
                (None, "date") => Arc::new(StringArray::from(vec![date(stored); rows])),
                (None, "hour") => Arc::new(Int32Array::from(vec![hour(stored); rows])),
                (None, "schema_version") => Arc::new(Int32Array::from(vec![1; rows])),
                (None, _) => new_null_array(field.data_type(), rows),
            });
        }
        let fields: Vec<_> = self
            .wanted
            .iter()
            .map(|wanted| self.source.columns[*wanted].clone().with_nullable(true))
            .collect();
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
    }
}

/// Rows of flows with an end in this network.
fn with_end_in(batch: &RecordBatch, peer: &Network) -> Result<BooleanArray, ArrowError> {
    let mut met = BooleanArray::from(vec![false; batch.num_rows()]);
    let one = peer.address().to_string();
    for column in batch.columns() {
        let column = arrow::compute::cast(column, &arrow::datatypes::DataType::Utf8)?;
        let texts = arrow::array::cast::as_string_array(&column);
        let is_met = |text: Option<&str>| match text {
            // Comparing text is faster than parsing it, and files contain addresses in this one form.
            Some(text) if peer.is_one() => text == one,
            Some(text) => text.parse().is_ok_and(|address| peer.contains(address)),
            None => false,
        };
        met = or(&met, &texts.iter().map(|text| Some(is_met(text))).collect())?;
    }
    Ok(met)
}

/// Date of a file's hour, as in the name of its folder.
fn date(stored: &Stored) -> String {
    let date = chrono::DateTime::from_timestamp(stored.hour.saturating_mul(3600), 0);
    date.map(|date| date.format("%Y-%m-%d").to_string()).unwrap_or_default()
}

/// Hour of the day of a file.
fn hour(stored: &Stored) -> i32 {
    stored.hour.rem_euclid(24) as i32
}

/// Checks that columns of a file have the types that the table has.
fn check_types<'n>(table: Table, found: &Schema, names: impl Iterator<Item = &'n str>) -> Result<(), String> {
    let schema = table.schema();
    for name in names {
        for name in [Some(name), table.former(name)].into_iter().flatten() {
            let today = schema
                .fields()
                .iter()
                .find(|field| field.name() == name || table.former(field.name()) == Some(name));
            let (Ok(found), Some(field)) = (found.field_with_name(name), today) else { continue };
            if found.data_type() != field.data_type() {
                return Err(format!("its column {name} is {}, not {}", found.data_type(), field.data_type()));
            }
        }
    }
    Ok(())
}

/// Reads a whole file, and checks that its columns are those of its table.
pub(super) fn check(table: Table, path: &Path) -> Result<(), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| error.to_string())?;
    check_types(table, reader.schema(), table.schema().fields().iter().map(|field| field.name().as_str()))?;
    for batch in reader.build().map_err(|error| error.to_string())? {
        batch.map_err(|error| error.to_string())?;
    }
    Ok(())
}
