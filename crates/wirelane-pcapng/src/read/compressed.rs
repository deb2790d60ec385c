//! Reading of files that are compressed with zstd or gzip.
//!
//! Only regular files: a pipe must be polled before it is read, and a decoder in between cannot be polled. The formats
//! limit the decoder's memory: zstd rejects windows of more than 128 MiB.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Progress of reading a file; a copy can be moved to another thread.
#[derive(Clone, Debug)]
pub struct FileProgress {
    read: Arc<AtomicU64>,
    total: u64,
}

impl FileProgress {
    pub(super) fn new(total: u64) -> FileProgress {
        FileProgress { read: Arc::default(), total }
    }

    /// Bytes of the file that have been read; for a compressed file, compressed bytes.
    pub fn read(&self) -> u64 {
        // Relaxed: the number is for display only.
        self.read.load(Ordering::Relaxed)
    }

    /// Size of the file in bytes when it was opened.
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// A file that counts the bytes that are read from it.
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

/// A reader of the (decompressed) contents, and the name of the compression, detected from the first bytes.
pub(super) fn reader(
    mut file: File,
    progress: FileProgress,
) -> io::Result<(Box<dyn Read + Send>, Option<&'static str>)> {
    // Standard input may be at any offset of its file.
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

/// The error message for damaged compressed data.
pub(super) fn damage(with: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            format!("the {with} data ends in the middle: the file is cut, and what came before has been read")
        }
        _ => format!("the {with} data is damaged from here on: {error}"),
    }
}
