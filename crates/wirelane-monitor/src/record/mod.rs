//! Recordings: the merge of workers' files, commands for finished files, progress.

pub mod analysis;
pub mod merge;
pub mod post_rotate;
pub mod progress;
pub mod timed;

use std::sync::{Mutex, MutexGuard, PoisonError};

use wirelane::Record;
use wirelane_export::Aggregate;

/// The packets on the wire of a record that is an aggregate.
#[inline]
pub fn aggregate(record: &Record<'_>) -> Option<Aggregate> {
    let (segment_size, headers) = record.segment_size();
    (segment_size != 0).then(|| Aggregate { packets: record.segments(), headers, segment_size })
}

/// Locks, whoever panicked with the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
