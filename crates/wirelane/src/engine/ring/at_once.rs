//! Changes of arrays of maps at the same time.

use std::sync::{Mutex, PoisonError};

use rustix::process::Resource;

use crate::error::Result;

/// Bytes of the stack of a thread that makes one system call.
const STACK: usize = 256 << 10;

/// Applies `change` to several entries of arrays of maps in parallel: every change waits for all running programs, and
/// changes that wait at the same time wait for the same programs.
///
/// A thread reserves address space (64 MiB with glibc): where that is limited, one change follows the other.
pub(super) fn at_once<T: Send>(
    mut entries: impl Iterator<Item = T>,
    change: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    if rustix::process::getrlimit(Resource::As).current.is_some() {
        return entries.try_for_each(change);
    }
    let entries: Vec<Mutex<Option<T>>> = entries.map(|entry| Mutex::new(Some(entry))).collect();
    let change = |entry: &Mutex<Option<T>>| {
        let entry = entry.lock().unwrap_or_else(PoisonError::into_inner).take();
        entry.map_or(Ok(()), &change)
    };
    let change = &change;
    std::thread::scope(|scope| {
        let begin =
            |entry| std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, move || change(entry));
        let threads: Vec<_> = entries.iter().map(|entry| (entry, begin(entry))).collect();
        threads.into_iter().try_for_each(|(entry, thread)| match thread.map(|thread| thread.join()) {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            // Without room for another thread, one after the other.
            Err(_) => change(entry),
        })
    })
}
