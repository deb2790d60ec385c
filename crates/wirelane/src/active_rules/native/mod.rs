//! Rules of engines that evaluate them in the worker: `xsk`, `packet` and `file`.
//!
//! ```text
//!  mod.rs    the sets that workers evaluate by, and their counters; a worker's view of them: Evaluator
//!  table.rs  the table of exact-match rules
//! ```
//!
//! A worker picks a change up with its next batch, and publishes the number of the set that it evaluates by as long as
//! it does: so a thread that has made a change waits until no worker evaluates by the previous set, as the kernel waits
//! for its programs.

mod table;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wirelane_bpf::evaluate::{ExactTable, Inserted, Packet, evaluate};
use wirelane_bpf::rules::{Counts, Evaluated, ExactKey, ExactValue, Facts, FlatSet, LiveCounts, verdict};

use self::table::{Pinned, Table};
use super::capacity::RulesCapacity;
use super::entry;
use super::pending::PendingRuleset;
use super::target::{InsertOutcome, Page, Target};
use crate::error::Result;
use wirelane_rules::add_counts as add;

/// Value of [`Worker::evaluating`] for a worker that evaluates by no set.
const NONE: u64 = 0;

/// The sets of one version, by device name; the empty name stands for all devices that rules do not name.
type Sets = BTreeMap<String, Arc<FlatSet>>;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct NativeRules {
    /// Name of the device; empty where packets are of several, as in a file.
    device: String,
    room: RulesCapacity,
    sets: Mutex<Arc<Sets>>,
    prepared: Mutex<Arc<Sets>>,
    /// Number of switches of sets: the only word that a worker polls.
    switched: AtomicU64,
    workers: Vec<Worker>,
    table: Table,
    /// Latest packet time, where packets carry their own time, as in a file.
    packet_time: Option<AtomicU64>,
}

/// State of one evaluating worker.
#[derive(Debug)]
struct Worker {
    counts: Box<[LiveCounts]>,
    /// Number of switches of the set that the worker evaluates by at the moment, plus one; [`NONE`]: not evaluating.
    evaluating: AtomicU64,
}

impl NativeRules {
    /// Rules for a device whose packets are evaluated by `workers` workers; an empty name: for all interfaces of a
    /// file, whose packets carry their own time.
    pub(crate) fn new(device: &str, workers: usize, room: RulesCapacity) -> Arc<NativeRules> {
        let worker = || Worker {
            counts: (0..room.slots()).map(|_| LiveCounts::default()).collect(),
            evaluating: AtomicU64::new(NONE),
        };
        Arc::new(NativeRules {
            device: device.to_owned(),
            // A worker evaluates the named set as it was read: it takes no kernel memory.
            room: RulesCapacity { sets: usize::MAX, ..room },
            sets: Mutex::default(),
            prepared: Mutex::default(),
            switched: AtomicU64::new(0),
            workers: (0..workers).map(|_| worker()).collect(),
            table: Table::new(room.exact),
            packet_time: device.is_empty().then(AtomicU64::default),
        })
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Target for NativeRules {
    fn device(&self) -> &str {
        &self.device
    }

    fn room(&self) -> RulesCapacity {
        self.room
    }

    fn prepare(&self, draft: &PendingRuleset) -> Result<()> {
        // For a file: one set for each name that rules use, and one for all others.
        let mut names = vec![self.device.as_str()];
        if self.device.is_empty() {
            names.extend(draft.devices());
        }
        let compile =
            |name: &str| Ok((name.to_owned(), Arc::new(draft.compile(name, &[], &[], &self.room)?)));
        let sets = names.into_iter().map(compile).collect::<Result<Sets>>()?;
        if draft.inserts() {
            self.table.reserve();
        }
        *locked(&self.prepared) = Arc::new(sets);
        Ok(())
    }

    fn switch(&self) {
        *locked(&self.sets) = Arc::clone(&locked(&self.prepared));
        // SeqCst: pairs with Evaluator::begin. Either the worker sees this, or its `evaluating` is seen by `settle`.
        self.switched.fetch_add(1, Ordering::SeqCst);
    }

    fn settle(&self) -> Result<()> {
        let now = self.switched.load(Ordering::SeqCst) + 1;
        for worker in &self.workers {
            // SeqCst: as above. A batch takes microseconds, and some milliseconds when reading a file.
            while ![NONE, now].contains(&worker.evaluating.load(Ordering::SeqCst)) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        Ok(())
    }

    fn counts(&self, slot: usize) -> Counts {
        let mut sum = Counts::default();
        let lines = self.workers.iter().filter_map(|worker| worker.counts.get(slot));
        lines.for_each(|line| add(&mut sum, &line.read()));
        sum
    }

    fn clear(&self, slot: usize) {
        self.workers.iter().filter_map(|worker| worker.counts.get(slot)).for_each(LiveCounts::clear);
    }

    fn put(&self, key: &ExactKey, rule: &ExactValue) -> Result<InsertOutcome> {
        Ok(self.table.put(key, rule, |_| false))
    }

    fn take(&self, key: &ExactKey) -> Result<Option<ExactValue>> {
        Ok(self.table.take(key))
    }

    fn get(&self, key: &ExactKey) -> Result<Option<ExactValue>> {
        Ok(self.table.get(key))
    }

    fn page(&self, from: Option<u32>) -> Result<Page> {
        Ok(self.table.page(from))
    }

    fn now_ns(&self) -> u64 {
        // Relaxed: the time orders no other data.
        self.packet_time.as_ref().map_or_else(crate::clock::monotonic_ns, |time| time.load(Ordering::Relaxed))
    }
}

/// A worker's view of the rules of one device.
#[derive(Debug)]
pub(crate) struct Evaluator {
    of: Arc<NativeRules>,
    worker: usize,
    /// Number of switches at which `sets` was read.
    seen: u64,
    sets: Arc<Sets>,
    found: Found,
}

/// The exact-match rule that a packet has hit: a copy, which the evaluator changes, until the entry is unpinned.
#[derive(Debug, Default)]
struct Found {
    pinned: Option<(Pinned, ExactValue)>,
    copy: ExactValue,
}

/// Lookups of the evaluator in the table, for one packet.
struct Asked<'a> {
    table: &'a Table,
    found: &'a mut Found,
    now_ns: u64,
}

impl Found {
    /// Unpins the entry and adds the new counts to it.
    fn let_go(&mut self, table: &Table) {
        if let Some((pinned, before)) = self.pinned.take() {
            table.let_go(pinned, &before, &self.copy);
        }
    }
}

impl ExactTable for Asked<'_> {
    fn find(&mut self, key: &ExactKey) -> Option<&mut ExactValue> {
        self.found.let_go(self.table);
        let (pinned, value) = self.table.pin(key)?;
        self.found.pinned = Some((pinned, value));
        self.found.copy = value;
        Some(&mut self.found.copy)
    }

    fn insert(&mut self, key: &ExactKey, value: &ExactValue) -> Inserted {
        // Unpin first: the holder of the table's lock may wait for the entry that we have pinned.
        self.found.let_go(self.table);
        match self.table.put(key, value, |other| entry::has_expired(other, self.now_ns)) {
            InsertOutcome::Done => Inserted::Yes,
            InsertOutcome::Exists => Inserted::Late,
            InsertOutcome::Full => Inserted::Full,
        }
    }
}

impl Evaluator {
    /// A view for the worker with this number. A worker may have several views, and evaluates by one at a time.
    pub(crate) fn new(of: Arc<NativeRules>, worker: usize) -> Evaluator {
        Evaluator { of, worker, seen: u64::MAX, sets: Arc::default(), found: Found::default() }
    }

    /// Begins the evaluation of packets by the returned set, until [`Evaluator::end`]; for a file, of packets of this
    /// interface. Do not block in between.
    pub(crate) fn begin(&mut self, interface: &str) -> Option<Arc<FlatSet>> {
        let Evaluator { of, worker, seen, sets, .. } = self;
        let evaluating = &of.workers[*worker].evaluating;
        loop {
            let switched = of.switched.load(Ordering::SeqCst);
            // SeqCst, all three: pairs with NativeRules::switch and settle.
            evaluating.store(switched + 1, Ordering::SeqCst);
            if of.switched.load(Ordering::SeqCst) == switched {
                if *seen != switched {
                    // Once for each change.
                    *sets = Arc::clone(&locked(&of.sets));
                    *seen = switched;
                }
                // An interface that no rule names has the set of the empty name, which is the first. A device has one
                // set only.
                return sets.get(interface).or_else(|| sets.values().next()).map(Arc::clone);
            }
        }
    }

    /// Ends the evaluation that [`Evaluator::begin`] began.
    pub(crate) fn end(&mut self) {
        // Release: pairs with the SeqCst in NativeRules::settle, so that `settle` sees all counts.
        self.of.workers[self.worker].evaluating.store(NONE, Ordering::Release);
    }

    /// Evaluates a packet by this set. Call between [`Evaluator::begin`] and [`Evaluator::end`].
    pub(crate) fn evaluate(&mut self, set: &FlatSet, packet: Packet<'_>, facts: &Facts) -> Evaluated {
        if let Some(time) = &self.of.packet_time
            // Times in files may go back; rule time does not.
            && time.fetch_max(facts.now_ns, Ordering::Relaxed) == 0
            && facts.now_ns != 0
        {
            self.of.table.begin(facts.now_ns);
        }
        let mut asked = Asked { table: &self.of.table, found: &mut self.found, now_ns: facts.now_ns };
        let counts = &self.of.workers[self.worker].counts;
        let evaluated = evaluate(set, counts, &mut asked, packet, facts);
        self.found.let_go(&self.of.table);
        evaluated
    }
}

/// Outcome for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Delivered, truncated to at most this many bytes.
    Delivered { at_most: usize },
    /// A digest is delivered.
    Digested,
    /// Counted as `filtered` in the ledger.
    Filtered,
    /// Counted as `absorbed` in the ledger.
    Absorbed,
}

/// The outcome for an evaluator's verdict.
pub(crate) fn fate(evaluated: &Evaluated) -> Fate {
    match evaluated.verdict as u8 {
        verdict::DROP => Fate::Filtered,
        // Without egress devices, no rule redirects.
        verdict::ABSORB | verdict::REDIRECT => Fate::Absorbed,
        verdict::DIGEST => Fate::Digested,
        _ if evaluated.truncate == 0 => Fate::Delivered { at_most: usize::MAX },
        _ => Fate::Delivered { at_most: evaluated.truncate as usize },
    }
}
