//! A file of a table that is being written.
//!
//! The encoder writes to memory, and the encoded bytes are written to the disk from there: so the encoder never sees a
//! full disk, and continues once there is space. The owner of the file bounds the bytes that wait in memory.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{WriterProperties, WriterPropertiesPtr};
use parquet::schema::types::ColumnPath;

use crate::tables::{Columns, PROBE, Row, SCHEMA, TABLE, Table, VERSION};
use crate::unfinished::Unfinished;

/// Number of rows that are encoded together.
const TOGETHER: usize = 4096;
/// Rows of a row group: the unit that readers share among their threads, and that waits in memory in any case.
const ROW_GROUP: usize = 128 * 1024;

/// Encoding properties for the files of a table that this probe writes.
pub(crate) fn properties(table: Table, probe: &str) -> WriterPropertiesPtr {
    let pair = |(key, value): (&str, &str)| KeyValue::new(key.to_owned(), value.to_owned());
    let metadata = [(TABLE, table.name()), (VERSION, &SCHEMA.to_string()), (PROBE, probe)].map(pair).to_vec();
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("wirelane ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .set_key_value_metadata(Some(metadata));
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

/// Output buffer of the encoder.
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

/// Encoded bytes to be written to a file.
#[derive(Debug)]
struct Disk {
    folder: PathBuf,
    part: Option<Unfinished>,
    waiting: Vec<u8>,
    /// Bytes that are already in the file.
    written: u64,
}

impl Disk {
    /// Writes the waiting bytes to the disk; on an error the unwritten rest continues to wait.
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

/// An open file of a table; see the module documentation.
pub(crate) struct OpenFile {
    disk: Disk,
    table: Table,
    encoder: ArrowWriter<Memory>,
    columns: Columns,
    /// Rows in the file.
    pub(crate) rows: u64,
    /// Time of the first row.
    pub(crate) since: Instant,
    /// Time of the last row.
    pub(crate) used: Instant,
}

/// A completely encoded file, not yet completely on the disk.
pub(crate) struct Ended {
    disk: Disk,
    /// Table of the file.
    pub(crate) table: Table,
    /// Rows in the file.
    pub(crate) rows: u64,
}

impl OpenFile {
    /// An empty file for this folder. Nothing is created on the disk yet.
    pub(crate) fn new(folder: PathBuf, table: Table, probe: &Arc<str>) -> Result<OpenFile, ParquetError> {
        let columns = Columns::new(table, Arc::clone(probe));
        let properties = properties(table, probe).as_ref().clone();
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

    /// Writes the encoded bytes to the disk.
    pub(crate) fn drain(&mut self) -> io::Result<()> {
        self.disk.waiting.append(&mut self.encoder.inner_mut().0);
        self.disk.drain()
    }

    /// Approximate size in bytes if the file ended now.
    pub(crate) fn size(&self) -> u64 {
        (self.encoder.bytes_written() + self.encoder.in_progress_size()) as u64
    }

    /// Bytes that wait to be written to the disk.
    pub(crate) fn waiting(&self) -> usize {
        self.disk.waiting.len() + self.encoder.inner().0.len()
    }

    /// Memory in bytes of the row group that is being encoded.
    pub(crate) fn encoding(&self) -> usize {
        self.encoder.memory_size()
    }

    /// Ends the row group; its bytes then wait to be written to the disk.
    pub(crate) fn end_row_group(&mut self) -> Result<(), ParquetError> {
        self.encode()?;
        self.encoder.flush()
    }

    /// Ends the encoding of the file.
    pub(crate) fn end(mut self) -> Result<Ended, ParquetError> {
        self.encode()?;
        let mut rest = self.encoder.into_inner()?;
        self.disk.waiting.append(&mut rest.0);
        Ok(Ended { disk: self.disk, table: self.table, rows: self.rows })
    }
}

impl Ended {
    /// Writes the rest to the disk, makes the file durable, gives it its final name and returns its size in bytes.
    pub(crate) fn finish(&mut self) -> io::Result<u64> {
        self.disk.drain()?;
        let Some(part) = &self.disk.part else { return Ok(0) };
        part.finish()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", part.path().display())))?;
        Ok(self.disk.written)
    }

    /// Bytes that wait to be written to the disk.
    pub(crate) fn waiting(&self) -> usize {
        self.disk.waiting.len()
    }

    /// Whether all bytes are written, so that an error occurred after writing.
    pub(crate) fn is_written(&self) -> bool {
        self.disk.waiting.is_empty()
    }

    /// Removes the unfinished file.
    pub(crate) fn discard(self) {
        if let Some(part) = self.disk.part {
            part.discard();
        }
    }
}
