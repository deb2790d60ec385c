//! Files that are compressed with zstd or gzip are read as what they hold.
//!
//! Only regular files: a pipe must be asked whether it has something before it is read, and a decoder in between does
//! not know. What decompresses is bounded by the formats: zstd refuses windows of more than 128 MiB.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How far a file has been read, for whoever waits; a copy can go with another thread.
#[derive(Clone, Debug)]
pub struct FileProgress {
    read: Arc<AtomicU64>,
    total: u64,
}

impl FileProgress {
    pub(super) fn new(total: u64) -> FileProgress {
        FileProgress { read: Arc::default(), total }
    }

    /// Bytes of the file that have been read; of a compressed one, compressed bytes.
    pub fn read(&self) -> u64 {
        // Relaxed: a number to look at.
        self.read.load(Ordering::Relaxed)
    }

    /// Bytes that the file had when it was opened.
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// A file that counts what is read of it.
struct Counted {
    file: File,
    progress: FileProgress,
}

impl Read for Counted {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        self.progress.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// What the file holds, and what it is compressed with, by its first bytes.
pub(super) fn reader(
    mut file: File,
    progress: FileProgress,
) -> io::Result<(Box<dyn Read + Send>, Option<&'static str>)> {
    // Standard input may stand anywhere in its file.
    let here = file.stream_position()?;
    let mut magic = Vec::new();
    (&mut file).take(4).read_to_end(&mut magic)?;
    file.seek(SeekFrom::Start(here))?;
    let counted = Counted { file, progress };
    Ok(match magic[..] {
        [0x28, 0xb5, 0x2f, 0xfd] => {
            let decoder = zstd::stream::read::Decoder::new(counted)?;
            (Box::new(decoder), Some("zstd"))
        }
        [0x1f, 0x8b, ..] => {
            let decoder = flate2::bufread::MultiGzDecoder::new(BufReader::with_capacity(64 << 10, counted));
            (Box::new(decoder), Some("gzip"))
        }
        _ => (Box::new(counted), None),
    })
}

/// What is said where decompressing fails.
pub(super) fn damage(with: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            format!("the {with} data ends in the middle: the file is cut, and what came before has been read")
        }
        _ => format!("the {with} data is damaged from here on: {error}"),
    }
}
