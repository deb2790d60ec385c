//! Counters of the packets of a recording.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::InterfaceStatistics;

/// A recording in numbers. Every packet that its workers gave it is, at its end, in `written` or in `unwritten`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordingCounts {
    /// Packets that are in files, or in the pipe.
    pub written: u64,
    /// Packets that could not be written.
    pub unwritten: u64,
    /// Bytes of files, as they lie on the disk.
    pub file_bytes: u64,
    /// Files that are whole and have their names.
    pub files: u64,
    /// Files of the ring that made room for newer ones.
    pub files_removed: u64,
    /// Things that went wrong: writes, and what comes after them.
    pub write_errors: u64,
}

impl RecordingCounts {
    /// What happened since an earlier state of the same recording. Packets of a file that turned out to be gone are
    /// not written any more: a count that fell is 0 here.
    pub fn since(&self, earlier: &RecordingCounts) -> RecordingCounts {
        RecordingCounts {
            written: self.written.saturating_sub(earlier.written),
            unwritten: self.unwritten - earlier.unwritten,
            file_bytes: self.file_bytes - earlier.file_bytes,
            files: self.files - earlier.files,
            files_removed: self.files_removed - earlier.files_removed,
            write_errors: self.write_errors - earlier.write_errors,
        }
    }
}

/// A counter of several threads, which nothing else is read on the strength of.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) written: Count,
    pub(crate) unwritten: Count,
    pub(crate) bytes: Count,
    pub(crate) files: Count,
    pub(crate) removed: Count,
    pub(crate) errors: Count,
}

/// What the threads of a recording share. Nothing of it is touched for each packet.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) counts: Counts,
    /// A write failed and the recording is to end.
    pub(crate) ended: AtomicBool,
    first_failure: Mutex<Option<String>>,
    /// What each interface has seen, by key, as it was last told.
    pub(crate) statistics: Mutex<Vec<(u32, InterfaceStatistics)>>,
    /// The number of the next file.
    pub(crate) next_number: AtomicU64,
}

impl Shared {
    /// One more thing went wrong; the first is what the user is told at the end.
    pub(crate) fn failed(&self, text: &str) {
        self.counts.errors.add(1);
        self.first_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(|| text.to_owned());
    }

    /// Packets that were counted as written are not there.
    pub(crate) fn take_back(&self, packets: u64) {
        self.counts.unwritten.add(packets);
        self.counts.written.0.fetch_sub(packets, Ordering::Relaxed);
    }

    /// The first thing that went wrong.
    pub(crate) fn first_failure(&self) -> Option<String> {
        self.first_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The numbers now.
    pub(crate) fn now(&self) -> RecordingCounts {
        RecordingCounts {
            written: self.counts.written.get(),
            unwritten: self.counts.unwritten.get(),
            file_bytes: self.counts.bytes.get(),
            files: self.counts.files.get(),
            files_removed: self.counts.removed.get(),
            write_errors: self.counts.errors.get(),
        }
    }
}
