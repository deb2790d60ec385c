//! An expression for a file whose interfaces may have several link types, which become known while it is read.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Filter, Origin};
use crate::Result;
use wirelane_bpf::linktype;

/// The link types that an expression is compiled for before those of the file are known, so that names are resolved
/// while the process still has the rights: those that are parsed, PPP (9, 50, 51), and 802.11 (105, 127, 163).
const USUAL: [u32; 16] = [
    linktype::ETHERNET,
    linktype::RAW,
    linktype::LINUX_SLL,
    linktype::LINUX_SLL2,
    linktype::NULL,
    linktype::LOOP,
    linktype::IPV4,
    linktype::IPV6,
    12,
    14,
    9,
    50,
    51,
    105,
    127,
    163,
];

/// Time limit for compiling for link types that may occur: a long expression takes seconds for each.
const LONGEST_START: Duration = Duration::from_millis(200);
/// Time limit for finding a link type that accepts the expression at all.
const LONGEST_TRIAL: Duration = Duration::from_secs(2);

/// Filter of the packets of a file. The default accepts all packets.
#[derive(Clone, Debug, Default)]
pub struct FileFilter {
    text: String,
    compiled: HashMap<u32, Arc<Filter>>,
}

impl FileFilter {
    /// Compiles an expression; an empty one accepts all packets. Rare link types are compiled when their first packet
    /// is read: call this before rights are dropped if the expression contains names.
    ///
    /// # Errors
    /// [`Error`] if the expression is invalid for every usual link type.
    pub fn compile(expression: &str) -> Result<FileFilter> {
        let mut filter = FileFilter { text: expression.trim().to_owned(), compiled: HashMap::new() };
        if filter.text.is_empty() {
            return Ok(filter);
        }
        // One valid link type is enough: an error for another link type is reported when a packet of it is read.
        let mut first_refusal = None;
        let start = Instant::now();
        for link in USUAL {
            let most = if filter.compiled.is_empty() { LONGEST_TRIAL } else { LONGEST_START };
            if start.elapsed() > most {
                break;
            }
            match Filter::try_of(expression, link, Origin::File) {
                Ok(compiled) => {
                    filter.compiled.insert(link, Arc::new(compiled));
                }
                Err(_) => first_refusal = first_refusal.or(Some(link)),
            }
        }
        match first_refusal {
            Some(link) if filter.compiled.is_empty() => {
                Filter::of(expression, link, Origin::File).map(|_| filter)
            }
            _ => Ok(filter),
        }
    }

    /// The expression.
    pub fn expression(&self) -> &str {
        &self.text
    }

    /// The filter for packets of this link type; `None` accepts all packets.
    fn of(&mut self, link_number: u32) -> Result<Option<Arc<Filter>>> {
        if self.text.is_empty() {
            return Ok(None);
        }
        Ok(Some(match self.compiled.entry(link_number) {
            Entry::Occupied(filter) => Arc::clone(filter.get()),
            Entry::Vacant(place) => {
                Arc::clone(place.insert(Arc::new(Filter::of(&self.text, link_number, Origin::File)?)))
            }
        }))
    }
}

/// The filter of a file that is being read; it may be changed by another thread.
#[derive(Debug, Default)]
pub struct FileInUse {
    changes: AtomicU64,
    filter: Mutex<FileFilter>,
}

impl FileInUse {
    /// A shared filter that starts with this one.
    pub fn new(filter: FileFilter) -> FileInUse {
        FileInUse { changes: AtomicU64::new(0), filter: Mutex::new(filter) }
    }

    /// Replaces the filter; the reader uses the new one from its next batch on.
    pub fn set(&self, filter: FileFilter) {
        *self.filter.lock().unwrap_or_else(PoisonError::into_inner) = filter;
        // Release: pairs with the Acquire in FileView::refresh.
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// The reader's view of a [`FileInUse`].
#[derive(Debug, Default)]
pub struct FileView {
    of: Arc<FileInUse>,
    seen: u64,
    /// By interface, in the order of first use.
    filters: Vec<Option<Option<Arc<Filter>>>>,
}

impl FileView {
    /// A view of this filter; it is first read by the first [`FileView::refresh`].
    pub fn new(of: Arc<FileInUse>) -> FileView {
        FileView { of, seen: 0, filters: Vec::new() }
    }

    /// Checks for a change of the filter; called once per batch.
    pub fn refresh(&mut self) {
        // Acquire: pairs with the Release in FileInUse::set.
        let changes = self.of.changes.load(Ordering::Acquire);
        if changes != self.seen {
            self.seen = changes;
            self.filters.clear();
        }
    }

    /// Whether the filter accepts a packet of this interface with this link type ([`Filter::accepts`]).
    ///
    /// # Errors
    /// [`Error`] if the expression is invalid for the link type.
    pub fn accepts(
        &mut self,
        (interface, link_number): (usize, u32),
        data: &[u8],
        wire_len: u32,
        outgoing: bool,
    ) -> Result<bool> {
        if self.filters.len() <= interface {
            self.filters.resize(interface + 1, None);
        }
        let place = &mut self.filters[interface];
        let filter = match place {
            Some(filter) => filter,
            None => {
                let mut all = self.of.filter.lock().unwrap_or_else(PoisonError::into_inner);
                place.insert(all.of(link_number)?)
            }
        };
        Ok(filter.as_ref().is_none_or(|filter| filter.accepts(data, wire_len, outgoing)))
    }
}
