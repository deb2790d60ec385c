//! Counters of the packets of a recording.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde::Serialize;

use crate::InterfaceStatistics;

/// Counts of a recording. At its end, every packet from its workers is in `written` or in `unwritten`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordingCounts {
    /// Packets in files or in the pipe.
    pub written: u64,
    /// Packets that could not be written.
    pub unwritten: u64,
    /// Bytes of files, as on the disk.
    pub file_bytes: u64,
    /// Complete files with their final names.
    pub files: u64,
    /// Files of the ring that were removed for newer ones.
    pub files_removed: u64,
    /// Errors of writing, and of the steps after it.
    pub write_errors: u64,
}

impl RecordingCounts {
    /// Differences since an earlier state of the same recording. The packets of a file that turned out to be gone are
    /// no longer counted as written: a decreased count is 0 here.
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

/// A counter of several threads; no other data are read in dependence of it.
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

/// Writers that cannot write.
#[derive(Debug, Default)]
struct Failing {
    writers: usize,
    since: Option<SystemTime>,
    error: Option<String>,
}

/// State shared by the threads of a recording. None of it is accessed for each packet.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) counts: Counts,
    /// Set when a write failed and the recording must end.
    pub(crate) ended: AtomicBool,
    first_failure: Mutex<Option<String>>,
    /// Writers that fail now, and since when, with the last error.
    failing: Mutex<Failing>,
    /// Last known statistics of each interface, by key.
    pub(crate) statistics: Mutex<Vec<(u32, InterfaceStatistics)>>,
    /// Number of the next file.
    pub(crate) next_number: AtomicU64,
}

impl Shared {
    /// Counts an error; the first one is reported to the user at the end.
    pub(crate) fn failed(&self, text: &str) {
        self.counts.errors.add(1);
        self.first_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(|| text.to_owned());
    }

    /// A writer cannot write any more.
    pub(crate) fn fails(&self, error: &str) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        failing.writers += 1;
        failing.since.get_or_insert_with(SystemTime::now);
        failing.error = Some(error.to_owned());
    }

    /// A writer that could not write works again.
    pub(crate) fn works(&self) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        failing.writers = failing.writers.saturating_sub(1);
        if failing.writers == 0 {
            failing.since = None;
        }
    }

    /// Time since which a writer fails, and the last error.
    pub(crate) fn failing(&self) -> (Option<SystemTime>, Option<String>) {
        let failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        (failing.since, failing.error.clone())
    }

    /// Moves packets from written to unwritten, because they are not in a file.
    pub(crate) fn take_back(&self, packets: u64) {
        self.counts.unwritten.add(packets);
        self.counts.written.0.fetch_sub(packets, Ordering::Relaxed);
    }

    /// The first error.
    pub(crate) fn first_failure(&self) -> Option<String> {
        self.first_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Current counts.
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
