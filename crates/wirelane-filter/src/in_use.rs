//! Filters of a running capture that are evaluated by the workers: changed by one thread, read by others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Filter;

/// A filter that may be changed while workers use it.
#[derive(Debug, Default)]
pub struct InUse {
    /// Number of changes: the only field that a worker reads per batch if nothing has changed.
    changes: AtomicU64,
    filter: Mutex<Option<Arc<Filter>>>,
}

impl InUse {
    /// A shared filter; `None` accepts all packets.
    pub fn new(filter: Option<Filter>) -> InUse {
        InUse { changes: AtomicU64::new(0), filter: Mutex::new(filter.map(Arc::new)) }
    }

    /// Replaces the filter; workers use the new one from their next batch on.
    pub fn set(&self, filter: Option<Filter>) {
        let mut current = self.filter.lock().unwrap_or_else(PoisonError::into_inner);
        *current = filter.map(Arc::new);
        // Release: pairs with the Acquire in View::refresh. (The lock alone would do: a worker that sees the number
        // takes it.)
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// A worker's view of an [`InUse`].
#[derive(Debug)]
pub struct View {
    of: Arc<InUse>,
    seen: u64,
    filter: Option<Arc<Filter>>,
}

impl View {
    /// A view of this filter; it is first read by the first [`View::refresh`].
    pub fn new(of: Arc<InUse>) -> View {
        View { of, seen: u64::MAX, filter: None }
    }

    /// Checks for a change of the filter; called once per batch. Takes the lock only after a change.
    pub fn refresh(&mut self) {
        // Acquire: pairs with the Release in InUse::set.
        let changes = self.of.changes.load(Ordering::Acquire);
        if changes != self.seen {
            self.filter = self.of.filter.lock().unwrap_or_else(PoisonError::into_inner).clone();
            self.seen = changes;
        }
    }

    /// Whether the filter of the last [`View::refresh`] accepts the packet ([`Filter::accepts`]).
    pub fn accepts(&self, data: &[u8], wire_len: u32, outgoing: bool) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.accepts(data, wire_len, outgoing))
    }
}
