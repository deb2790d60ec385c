//! Table of exact-match rules for engines that evaluate them in the worker; rules change while workers look them up.
//!
//! A rule is in one of two buckets that its key selects, of eight entries each. Finding it takes no lock: a worker
//! **pins** the entry, checks that it has not changed, uses it, counts its packets and unpins it. The writer of an
//! entry holds the lock, marks the entry as changing, and waits for workers that have it pinned: its counts are then
//! final. A worker takes the lock only for a packet that makes a rule.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use wirelane_bpf::rules::{ExactKey, ExactValue};

use crate::active_rules::{InsertOutcome as Outcome, Page};

/// Entries of a bucket.
const WAYS: usize = 8;
/// Buckets of a page.
const PAGE: u32 = 512;

/// States of an entry, in the lower bits of its version.
const EMPTY: u64 = 0;
const CHANGING: u64 = 1;
const THERE: u64 = 2;
const STATE: u64 = 3;

/// One rule, or empty. All fields are read and written as independent words; the version orders them.
#[derive(Debug, Default)]
struct Entry {
    /// The entry's state, and above that the number of its changes.
    version: AtomicU64,
    /// Number of workers that use the entry now.
    pins: AtomicU32,
    key: [AtomicU64; 7],
    /// Fields that are constant while the rule is in the table.
    fixed: [AtomicU64; 5],
    packets: AtomicU64,
    bytes: AtomicU64,
    first_ns: AtomicU64,
    last_ns: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// One byte of the hash of each entry's key; 0: empty. A hint, by which most entries are skipped unread.
    tags: AtomicU64,
    entries: [Entry; WAYS],
}

#[derive(Debug)]
pub(super) struct Table {
    /// Maximum number of rules.
    room: usize,
    /// Allocated with the first rule, or with the first set by which packets can make one.
    buckets: OnceLock<Box<[Bucket]>>,
    used: AtomicUsize,
    /// Serializes changes of entries.
    lock: Mutex<()>,
    hasher: RandomState,
}

/// The words of a key.
fn words(key: &ExactKey) -> [u64; 7] {
    let (src, dst) = (key.src.as_chunks::<8>().0, key.dst.as_chunks::<8>().0);
    let word = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    [
        word(src.first()),
        word(src.get(1)),
        word(dst.first()),
        word(dst.get(1)),
        u64::from(key.src_port)
            | u64::from(key.dst_port) << 16
            | u64::from(key.vlan) << 32
            | u64::from(key.proto) << 48
            | u64::from(key.l3) << 56,
        u64::from(key.mpls) | u64::from(key.tunnel) << 32,
        key.shape.into(),
    ]
}

/// The key of these words.
fn key_of(words: [u64; 7]) -> ExactKey {
    let address = |first: u64, second: u64| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&first.to_ne_bytes());
        bytes[8..].copy_from_slice(&second.to_ne_bytes());
        bytes
    };
    let [src, src2, dst, dst2, small, ids, shape] = words;
    ExactKey {
        src: address(src, src2),
        dst: address(dst, dst2),
        src_port: small as u16,
        dst_port: (small >> 16) as u16,
        vlan: (small >> 32) as u16,
        proto: (small >> 48) as u8,
        l3: (small >> 56) as u8,
        mpls: ids as u32,
        tunnel: (ids >> 32) as u32,
        shape: shape as u32,
    }
}

impl Entry {
    // Relaxed throughout: the version, or the lock, orders the words of an entry.
    fn key(&self) -> [u64; 7] {
        self.key.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    fn value(&self) -> ExactValue {
        let [made_ns, small, sample, tag, ages] =
            self.fixed.each_ref().map(|word| word.load(Ordering::Relaxed));
        ExactValue {
            packets: self.packets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            first_ns: self.first_ns.load(Ordering::Relaxed),
            last_ns: self.last_ns.load(Ordering::Relaxed),
            made_ns,
            id: small as u32,
            verdict: (small >> 32) as u8,
            flags: (small >> 40) as u8,
            truncate: sample as u32,
            sample: (sample >> 32) as u32,
            tag: tag as u32,
            idle_s: ages as u32,
            hard_s: (ages >> 32) as u32,
            ..ExactValue::default()
        }
    }

    fn set(&self, key: &[u64; 7], value: &ExactValue) {
        for (word, to) in self.key.iter().zip(key) {
            word.store(*to, Ordering::Relaxed);
        }
        let fixed = [
            value.made_ns,
            u64::from(value.id) | u64::from(value.verdict) << 32 | u64::from(value.flags) << 40,
            u64::from(value.truncate) | u64::from(value.sample) << 32,
            value.tag.into(),
            u64::from(value.idle_s) | u64::from(value.hard_s) << 32,
        ];
        for (word, to) in self.fixed.iter().zip(fixed) {
            word.store(to, Ordering::Relaxed);
        }
        self.packets.store(value.packets, Ordering::Relaxed);
        self.bytes.store(value.bytes, Ordering::Relaxed);
        self.first_ns.store(value.first_ns, Ordering::Relaxed);
        self.last_ns.store(value.last_ns, Ordering::Relaxed);
    }

    /// Changes the entry and leaves it in state `to`. The caller holds the lock.
    fn change(&self, to: u64, change: impl FnOnce(&Entry)) {
        let next = (self.version.load(Ordering::Relaxed) & !STATE) + STATE + 1;
        // SeqCst: pairs with `pin`. Either the worker's pin is seen here, or the worker sees this.
        self.version.store(next | CHANGING, Ordering::SeqCst);
        while self.pins.load(Ordering::SeqCst) != 0 {
            // A pin lasts for the evaluation of one packet.
            std::thread::yield_now();
        }
        change(self);
        // Release: pairs with the Acquire in `pin`, so that a worker that finds the entry finds all of it.
        self.version.store(next | to, Ordering::Release);
    }

    /// Pins the entry if it has this key. A pinned entry does not change until [`Entry::unpin`].
    fn pin(&self, key: &[u64; 7]) -> bool {
        // Acquire: pairs with the Release in `change`.
        let version = self.version.load(Ordering::Acquire);
        if version & STATE != THERE || self.key() != *key {
            return false;
        }
        // SeqCst, both: see `change`.
        self.pins.fetch_add(1, Ordering::SeqCst);
        if self.version.load(Ordering::SeqCst) == version {
            return true;
        }
        // It changed between the two loads: it was removed or replaced.
        self.unpin();
        false
    }

    fn unpin(&self) {
        // Release: pairs with the SeqCst in `change`, so that the counts are seen there.
        self.pins.fetch_sub(1, Ordering::Release);
    }
}

/// An entry that a worker has pinned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pinned {
    bucket: usize,
    way: usize,
}

impl Table {
    pub(super) fn new(room: usize) -> Table {
        Table {
            room,
            buckets: OnceLock::new(),
            used: AtomicUsize::new(0),
            lock: Mutex::new(()),
            hasher: RandomState::new(),
        }
    }

    /// Allocates the buckets. With fewer than three of four entries in use, a key nearly always finds room.
    pub(super) fn reserve(&self) -> &[Bucket] {
        self.buckets.get_or_init(|| {
            let buckets = (self.room * 4 / 3).div_ceil(WAYS).next_power_of_two().max(2);
            (0..buckets).map(|_| Bucket::default()).collect()
        })
    }

    /// The two buckets of a key, and its tag.
    fn places(&self, buckets: &[Bucket], key: &[u64; 7]) -> ([usize; 2], u8) {
        let hash = self.hasher.hash_one(key);
        let mask = buckets.len() - 1;
        let first = hash as usize & mask;
        let second = (hash >> 28) as usize & mask;
        // Bits that do not select the bucket; 0 stands for no entry.
        ([first, second], (hash >> 56) as u8 | 1)
    }

    /// Entries of a bucket that may have this tag.
    fn tagged(bucket: &Bucket, tag: u8) -> impl Iterator<Item = usize> {
        // Relaxed: a hint. A worker that misses an entry during its insertion looked before it was there.
        let tags = bucket.tags.load(Ordering::Relaxed).to_ne_bytes();
        (0..WAYS).filter(move |way| tags[*way] == tag)
    }

    /// The current entry of a key, pinned.
    pub(super) fn pin(&self, key: &ExactKey) -> Option<(Pinned, ExactValue)> {
        let buckets = self.buckets.get()?;
        let words = words(key);
        let (places, tag) = self.places(buckets, &words);
        for bucket in places {
            for way in Table::tagged(&buckets[bucket], tag) {
                let entry = &buckets[bucket].entries[way];
                if entry.pin(&words) {
                    return Some((Pinned { bucket, way }, entry.value()));
                }
            }
        }
        None
    }

    /// Unpins an entry, after adding the counts of `hit`, a copy of its value, since `before`.
    pub(super) fn let_go(&self, pinned: Pinned, before: &ExactValue, hit: &ExactValue) {
        let Some(buckets) = self.buckets.get() else { return };
        let entry = &buckets[pinned.bucket].entries[pinned.way];
        if hit.packets != before.packets {
            // Relaxed: several workers add; the pin orders the additions before a change.
            entry.packets.fetch_add(hit.packets - before.packets, Ordering::Relaxed);
            entry.bytes.fetch_add(hit.bytes - before.bytes, Ordering::Relaxed);
            let _ = entry.first_ns.compare_exchange(0, hit.last_ns, Ordering::Relaxed, Ordering::Relaxed);
            entry.last_ns.fetch_max(hit.last_ns, Ordering::Relaxed);
        }
        entry.unpin();
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bucket and way of a key's entry. The caller holds the lock.
    fn find(&self, buckets: &[Bucket], words: &[u64; 7]) -> Option<(usize, usize)> {
        let (places, tag) = self.places(buckets, words);
        places.into_iter().find_map(|bucket| {
            let is = |way: &usize| {
                let entry = &buckets[bucket].entries[*way];
                entry.version.load(Ordering::Relaxed) & STATE == THERE && entry.key() == *words
            };
            Table::tagged(&buckets[bucket], tag).find(is).map(|way| (bucket, way))
        })
    }

    /// Adds a rule. An entry with the same key for which `yields` is true is replaced.
    pub(super) fn put(
        &self,
        key: &ExactKey,
        rule: &ExactValue,
        yields: impl Fn(&ExactValue) -> bool,
    ) -> Outcome {
        let buckets = self.reserve();
        let words = words(key);
        let _lock = self.lock();
        if let Some((bucket, way)) = self.find(buckets, &words) {
            let entry = &buckets[bucket].entries[way];
            if !yields(&entry.value()) {
                return Outcome::Exists;
            }
            entry.change(THERE, |entry| entry.set(&words, rule));
            return Outcome::Done;
        }
        if self.used.load(Ordering::Relaxed) >= self.room {
            return Outcome::Full;
        }
        let (places, tag) = self.places(buckets, &words);
        let free = |bucket: &Bucket| {
            bucket.tags.load(Ordering::Relaxed).to_ne_bytes().iter().filter(|tag| **tag == 0).count()
        };
        // The emptier bucket, so that both stay far from full.
        let [first, second] = places;
        let at = if free(&buckets[second]) > free(&buckets[first]) { second } else { first };
        let bucket = &buckets[at];
        let mut tags = bucket.tags.load(Ordering::Relaxed).to_ne_bytes();
        let Some(way) = tags.iter().position(|tag| *tag == 0) else { return Outcome::Full };
        bucket.entries[way].change(THERE, |entry| entry.set(&words, rule));
        tags[way] = tag;
        bucket.tags.store(u64::from_ne_bytes(tags), Ordering::Relaxed);
        self.used.fetch_add(1, Ordering::Relaxed);
        Outcome::Done
    }

    /// Removes a rule; returns its final value.
    pub(super) fn take(&self, key: &ExactKey) -> Option<ExactValue> {
        let buckets = self.buckets.get()?;
        let words = words(key);
        let _lock = self.lock();
        let (at, way) = self.find(buckets, &words)?;
        let bucket = &buckets[at];
        let mut last = None;
        bucket.entries[way].change(EMPTY, |entry| last = Some(entry.value()));
        let mut tags = bucket.tags.load(Ordering::Relaxed).to_ne_bytes();
        tags[way] = 0;
        bucket.tags.store(u64::from_ne_bytes(tags), Ordering::Relaxed);
        self.used.fetch_sub(1, Ordering::Relaxed);
        last
    }

    /// Starts the clock: rules that were inserted before count as made now.
    pub(super) fn begin(&self, now_ns: u64) {
        let Some(buckets) = self.buckets.get() else { return };
        let _lock = self.lock();
        let entries = buckets.iter().flat_map(|bucket| &bucket.entries);
        let there = |entry: &&Entry| entry.version.load(Ordering::Relaxed) & STATE == THERE;
        for entry in entries.filter(there).filter(|entry| entry.value().made_ns == 0) {
            entry.change(THERE, |entry| entry.fixed[0].store(now_ns, Ordering::Relaxed));
        }
    }

    /// A copy of the current value of a rule.
    pub(super) fn get(&self, key: &ExactKey) -> Option<ExactValue> {
        let buckets = self.buckets.get()?;
        let _lock = self.lock();
        self.find(buckets, &words(key)).map(|(bucket, way)| buckets[bucket].entries[way].value())
    }

    /// Some rules, from the beginning or from the end of another page.
    pub(super) fn page(&self, from: Option<u32>) -> Page {
        let Some(buckets) = self.buckets.get() else { return Page::default() };
        let _lock = self.lock();
        let from = from.unwrap_or(0);
        let to = from.saturating_add(PAGE).min(buckets.len() as u32);
        let some = buckets.get(from as usize..to as usize).unwrap_or_default();
        let entries = some.iter().flat_map(|bucket| &bucket.entries);
        let there = entries.filter(|entry| entry.version.load(Ordering::Relaxed) & STATE == THERE);
        let rules = there.map(|entry| (key_of(entry.key()), entry.value())).collect();
        Page { rules, next: ((to as usize) < buckets.len()).then_some(to) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::AtomicBool;

    use super::Outcome::{Done, Exists, Full};
    use super::*;

    fn key(number: u32) -> ExactKey {
        let mut src = [0; 16];
        src[..4].copy_from_slice(&number.to_be_bytes());
        ExactKey { src, dst_port: number as u16, l3: 4, shape: 9, ..ExactKey::default() }
    }

    fn rule(id: u32) -> ExactValue {
        ExactValue { id, verdict: 2, made_ns: id.into(), ..ExactValue::default() }
    }

    #[test]
    fn words_keep_every_field() {
        let key = ExactKey {
            src: std::array::from_fn(|at| at as u8),
            dst: std::array::from_fn(|at| 0xff - at as u8),
            src_port: 0x1234,
            dst_port: 0xfedc,
            vlan: 0x1000,
            proto: 0x81,
            l3: 6,
            mpls: 0xfffff,
            tunnel: u32::MAX,
            shape: 0x7fff_01ff,
        };
        assert_eq!(key_of(words(&key)), key);
        let value = ExactValue {
            packets: 1,
            bytes: 2,
            first_ns: 3,
            last_ns: 4,
            made_ns: 5,
            id: u32::MAX,
            verdict: 3,
            flags: 0x1f,
            truncate: u32::MAX,
            sample: 7,
            tag: u32::MAX,
            idle_s: u32::MAX,
            hard_s: 9,
            ..ExactValue::default()
        };
        let entry = Entry::default();
        entry.set(&words(&key), &value);
        assert_eq!((key_of(entry.key()), entry.value()), (key, value));
    }

    #[test]
    fn rules_are_found_until_they_are_taken_and_no_more_fit_than_there_is_room_for() {
        const ROOM: u32 = 5000;
        let table = Table::new(ROOM as usize);
        assert!(table.pin(&key(0)).is_none() && table.take(&key(0)).is_none());
        for number in 0..ROOM {
            assert_eq!(table.put(&key(number), &rule(number + 1), |_| false), Done, "{number}");
        }
        assert_eq!(table.put(&key(ROOM), &rule(1), |_| true), Full);
        assert_eq!(table.put(&key(3), &rule(99), |_| false), Exists);
        assert_eq!(table.put(&key(3), &rule(99), |other| other.id == 4), Done);
        let mut seen = HashMap::new();
        let mut from = None;
        loop {
            let page = table.page(from);
            for (key, value) in page.rules {
                assert!(seen.insert(key, value.id).is_none(), "twice");
            }
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        assert_eq!((seen.len(), seen[&key(3)], seen[&key(4)]), (ROOM as usize, 99, 5));
        for number in 0..ROOM {
            let (pinned, value) = table.pin(&key(number)).unwrap();
            let hit = ExactValue { packets: 1, bytes: 60, first_ns: 7, last_ns: 7, ..value };
            table.let_go(pinned, &value, &hit);
            let last = table.take(&key(number)).unwrap();
            assert_eq!((last.packets, last.bytes, last.first_ns, last.last_ns), (1, 60, 7, 7));
        }
        assert!(table.page(None).rules.is_empty());
        assert_eq!(table.put(&key(ROOM), &rule(1), |_| false), Done, "there is room again");
    }

    /// Workers hit rules that are removed and reinserted all the time: each hit is counted, in its rule.
    #[test]
    fn what_is_taken_out_has_counted_every_hit() {
        const KEYS: u32 = 4;
        let table = Table::new(64);
        let over = AtomicBool::new(false);
        for number in 0..KEYS {
            table.put(&key(number), &rule(number + 1), |_| false);
        }
        let (hits, taken) = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut hits = [0u64; KEYS as usize];
                        while !over.load(Ordering::Relaxed) {
                            for number in 0..KEYS {
                                let Some((pinned, value)) = table.pin(&key(number)) else { continue };
                                assert_eq!(value.id, number + 1);
                                let hit = ExactValue { packets: value.packets + 1, last_ns: 1, ..value };
                                table.let_go(pinned, &value, &hit);
                                hits[number as usize] += 1;
                            }
                        }
                        hits
                    })
                })
                .collect();
            let mut taken = [0u64; KEYS as usize];
            for turn in 0..20_000 {
                let number = turn % KEYS;
                taken[number as usize] += table.take(&key(number)).unwrap().packets;
                assert_eq!(table.put(&key(number), &rule(number + 1), |_| false), Done);
            }
            over.store(true, Ordering::Relaxed);
            let mut hits = [0u64; KEYS as usize];
            for worker in workers {
                for (sum, more) in hits.iter_mut().zip(worker.join().unwrap()) {
                    *sum += more;
                }
            }
            (hits, taken)
        });
        for number in 0..KEYS {
            let left = table.take(&key(number)).unwrap().packets;
            assert_eq!(taken[number as usize] + left, hits[number as usize], "of rule {number}");
        }
        assert!(hits.iter().any(|hits| *hits > 0));
    }
}
