//! A file of a table that is being written.
//!
//! The encoder writes to memory, and what it has written is taken to the disk from there: so it never meets a disk that
//! is full, and goes on once there is room. What waits in memory is bounded by whoever owns the file.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression, Encoding, ZstdLevel};
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::metadata::KeyValue;
use datafusion::parquet::file::properties::{WriterProperties, WriterPropertiesPtr};
use datafusion::parquet::schema::types::ColumnPath;

use crate::tables::{Columns, Row, TABLE, Table, VERSION};
use crate::unfinished::Unfinished;

/// Rows that are encoded together.
const TOGETHER: usize = 4096;
/// Rows of a row group: what readers share among their threads, and what waits in memory in any case.
const ROW_GROUP: usize = 128 * 1024;

/// How files of a table are encoded.
pub(crate) fn properties(table: Table) -> WriterPropertiesPtr {
    let pair = |(key, value): (&str, &str)| KeyValue::new(key.to_owned(), value.to_owned());
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("wirelane ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .set_key_value_metadata(Some(vec![pair((TABLE, table.name())), pair(VERSION)]));
    for name in table.series() {
        let column = ColumnPath::from(*name);
        properties = properties
            .set_column_dictionary_enabled(column.clone(), false)
            .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
    }
    for name in table.distinct() {
        properties = properties.set_column_dictionary_enabled(ColumnPath::from(*name), false);
    }
    Arc::new(properties.build())
}

/// What the encoder has written.
#[derive(Debug, Default)]
struct Memory(Vec<u8>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes on their way to a file.
#[derive(Debug)]
struct Disk {
    folder: PathBuf,
    part: Option<Unfinished>,
    waiting: Vec<u8>,
    /// Bytes that are there.
    written: u64,
}

impl Disk {
    /// Takes what waits to the disk; what does not get there waits on.
    fn drain(&mut self) -> io::Result<()> {
        let named = |path: &Path| {
            let path = path.display().to_string();
            move |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"))
        };
        if self.waiting.is_empty() {
            return Ok(());
        }
        let part = match &mut self.part {
            Some(part) => part,
            none => none.insert(Unfinished::create(&self.folder).map_err(named(&self.folder))?),
        };
        let (written, result) = part.write_at(&self.waiting, self.written);
        self.written += written as u64;
        self.waiting.drain(..written);
        result.map_err(named(&part.path()))
    }
}

/// See the head of this file.
pub(crate) struct OpenFile {
    disk: Disk,
    table: Table,
    encoder: ArrowWriter<Memory>,
    columns: Columns,
    /// Rows in it.
    pub(crate) rows: u64,
    /// When its first row came.
    pub(crate) since: Instant,
    /// When its last one did.
    pub(crate) used: Instant,
}

/// A file that is encoded to its end.
pub(crate) struct Ended {
    disk: Disk,
    /// Its table.
    pub(crate) table: Table,
    /// Rows in it.
    pub(crate) rows: u64,
}

impl OpenFile {
    /// An empty one, to lie in this folder. Nothing is made there yet.
    pub(crate) fn new(
        folder: PathBuf,
        table: Table,
        properties: &WriterPropertiesPtr,
    ) -> Result<OpenFile, ParquetError> {
        let columns = Columns::new(table);
        let properties = properties.as_ref().clone();
        let encoder = ArrowWriter::try_new(Memory::default(), columns.schema(), Some(properties))?;
        let disk = Disk { folder, part: None, waiting: Vec::new(), written: 0 };
        let now = Instant::now();
        Ok(OpenFile { disk, table, encoder, columns, rows: 0, since: now, used: now })
    }

    /// Adds a row.
    pub(crate) fn push(&mut self, fill: &mut dyn FnMut(&mut Row<'_>)) -> Result<(), ParquetError> {
        self.columns.push(fill);
        self.rows += 1;
        if self.columns.rows() >= TOGETHER { self.encode() } else { Ok(()) }
    }

    fn encode(&mut self) -> Result<(), ParquetError> {
        self.encoder.write(&self.columns.take()?)
    }

    /// Takes to the disk what is encoded.
    pub(crate) fn drain(&mut self) -> io::Result<()> {
        self.disk.waiting.append(&mut self.encoder.inner_mut().0);
        self.disk.drain()
    }

    /// Bytes that it would have if it ended now, about.
    pub(crate) fn size(&self) -> u64 {
        (self.encoder.bytes_written() + self.encoder.in_progress_size()) as u64
    }

    /// Bytes that wait for the disk.
    pub(crate) fn waiting(&self) -> usize {
        self.disk.waiting.len() + self.encoder.inner().0.len()
    }

    /// Bytes of the row group that is being encoded.
    pub(crate) fn encoding(&self) -> usize {
        self.encoder.memory_size()
    }

    /// Ends the row group, whose bytes wait for the disk from then on.
    pub(crate) fn end_row_group(&mut self) -> Result<(), ParquetError> {
        self.encode()?;
        self.encoder.flush()
    }

    /// Ends it.
    pub(crate) fn end(mut self) -> Result<Ended, ParquetError> {
        self.encode()?;
        let mut rest = self.encoder.into_inner()?;
        self.disk.waiting.append(&mut rest.0);
        Ok(Ended { disk: self.disk, table: self.table, rows: self.rows })
    }
}

impl Ended {
    /// Takes the rest to the disk, makes it durable and gives it its name; its bytes.
    pub(crate) fn finish(&mut self) -> io::Result<u64> {
        self.disk.drain()?;
        let Some(part) = &self.disk.part else { return Ok(0) };
        part.finish()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", part.path().display())))?;
        Ok(self.disk.written)
    }

    /// Bytes that wait for the disk.
    pub(crate) fn waiting(&self) -> usize {
        self.disk.waiting.len()
    }

    /// Whether all of it is written, so that what failed is beyond that.
    pub(crate) fn is_written(&self) -> bool {
        self.disk.waiting.is_empty()
    }

    /// Removes what is there of it.
    pub(crate) fn discard(self) {
        if let Some(part) = self.disk.part {
            part.discard();
        }
    }
}
