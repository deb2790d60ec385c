//! The ring protocol under loom: the real [`Reader`] against a model of the lane, in every interleaving and
//! with every value that the memory model lets a load return.
//!
//! [`Lane`] does the same steps as `bpf/ring.h`, in its order; a change there is made here too. Sizes are in cells
//! instead of bytes, and segments are of two cells, so that a few records fill, wrap and spill. Data cells are loom's
//! `UnsafeCell`s: a read that is not ordered after the write it sees (a torn or stale record), or a write that is not
//! ordered after the last read (an overwritten one), fails the model by itself. The tests also check that records are
//! whole, in order, none lost and none read twice.
//!
//! Differences between the kernel side's ordering and the language's memory model:
//!
//! * `wl_publish()` on x86 is a plain store behind a compiler barrier. x86 does not reorder a store with
//!   older stores or older loads (Intel SDM volume 3, 9.2.2; AMD APM volume 2, 7.2), which is all that a
//!   Release store asks for, and x86 compilers emit the same instruction for it. Modelled as Release.
//! * `wl_publish()` elsewhere is an atomic exchange, fully ordered in BPF. Modelled as an AcqRel exchange,
//!   which is weaker, so what holds here holds there.
//! * `wl_ring_reserve()` loads the tail and branches on it: a control dependency, which every architecture
//!   keeps between a load and later stores (Documentation/memory-barriers.txt). The language has no such
//!   thing; modelled as Acquire, which also orders later loads. The lane has no later loads of the data.
//!
//! [`Rules`] breaks one of these at a time: `mutations` shows that the model then fails, so that a pass is meaningful.

mod bell;
mod mutations;
mod records;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use wirelane_bpf::instance::AWAKE;

use super::reader::{Reader, SharedWord};

/// Cells of a segment; the byte ring has `WL_SEGMENT` bytes.
const SEGMENT: u64 = 2;
/// Cells after a segment: the longest record less one.
const SLACK: u64 = 1;

/// Publication of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Publish {
    /// x86's plain store (Release), or a broken one.
    Store(Ordering),
    /// The exchange of all other architectures.
    Exchange,
}

/// Assumptions of the protocol. The default is the protocol; tests of the model change one of them.
#[derive(Clone, Copy, Debug)]
struct Rules {
    publish: Publish,
    /// Ordering of the lane's load of the tail.
    tail: Ordering,
    /// Cells of room that the lane assumes in addition to the ring's.
    extra_room: u64,
    /// Whether the lane publishes the head before it has written the record.
    head_first: bool,
    /// Cells written between two publications of the head. The lane also publishes a record that comes late after the
    /// last publication; that is like a smaller number here.
    publish_every: u64,
    /// Whether the reader's Acquire loads of the published head and of the head, and its Release, are Relaxed.
    relaxed_published: bool,
    relaxed_peek: bool,
    relaxed_release: bool,
    /// Whether the worker releases cells before it has read them.
    release_first: bool,
    /// Full fences between publishing and loading `wake_at`, and between arming and loading the head. The real lane has
    /// none.
    fences: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            publish: Publish::Store(Ordering::Release),
            tail: Ordering::Acquire,
            extra_room: 0,
            head_first: false,
            publish_every: 2,
            relaxed_published: false,
            relaxed_peek: false,
            relaxed_release: false,
            release_first: false,
            fences: false,
        }
    }
}

/// State shared by lane and worker.
struct Ring {
    segments: u64,
    cells: Vec<UnsafeCell<u64>>,
    head: Arc<AtomicU64>,
    public_head: Arc<AtomicU64>,
    tail: Arc<AtomicU64>,
    wake_at: Arc<AtomicU64>,
    rung: AtomicBool,
}

impl Ring {
    fn new(segments: u64) -> Arc<Ring> {
        let word = |value| Arc::new(AtomicU64::new(value));
        Arc::new(Ring {
            segments,
            cells: (0..segments * (SEGMENT + SLACK)).map(|_| UnsafeCell::new(0)).collect(),
            head: word(0),
            public_head: word(0),
            tail: word(0),
            wake_at: word(AWAKE),
            rung: AtomicBool::new(false),
        })
    }

    /// The cell that a record at `position` has at `index`: contiguous, into the slack where need be.
    fn cell(&self, position: u64, index: u64) -> &UnsafeCell<u64> {
        let segment = (position / SEGMENT) & (self.segments - 1);
        &self.cells[(segment * (SEGMENT + SLACK) + position % SEGMENT + index) as usize]
    }
}

/// Content of a record's cell: the record's number, its size and the cell's index in it.
fn content(number: u64, size: u64, index: u64) -> u64 {
    number << 8 | size << 4 | index
}

/// The writer's half: `bpf/ring.h`. Its private words are `struct wl_ring`'s first line; `head` is private too, except
/// that the reader peeks at it.
struct Lane {
    ring: Arc<Ring>,
    rules: Rules,
    head: u64,
    cached_tail: u64,
    published: u64,
    rung_for: u64,
    bells: u64,
    /// Numbers of the records that fitted into the ring.
    delivered: Vec<u64>,
}

impl Lane {
    fn new(ring: &Arc<Ring>, rules: Rules) -> Lane {
        Lane {
            ring: Arc::clone(ring),
            rules,
            head: 0,
            cached_tail: 0,
            published: 0,
            rung_for: 0,
            bells: 0,
            delivered: Vec::new(),
        }
    }

    /// `wl_copy()`: reserve, write, commit.
    fn offer(&mut self, number: u64, size: u64) {
        if !self.reserve(size) {
            return;
        }
        if self.rules.head_first {
            self.publish_to(&self.ring.head, self.head + size);
        }
        for index in 0..size {
            // SAFETY: loom checks that no other thread accesses the cell meanwhile; that is the subject of the test.
            self.ring.cell(self.head, index).with_mut(|cell| unsafe { *cell = content(number, size, index) });
        }
        self.delivered.push(number);
        self.commit(size);
    }

    /// `wl_ring_reserve()`
    fn reserve(&mut self, size: u64) -> bool {
        let capacity = self.ring.segments * SEGMENT + self.rules.extra_room;
        if (self.head + size).wrapping_sub(self.cached_tail) > capacity {
            let tail = self.ring.tail.load(self.rules.tail);
            if self.head.wrapping_sub(tail) > capacity {
                return false;
            }
            self.cached_tail = tail;
            if (self.head + size).wrapping_sub(tail) > capacity {
                return false;
            }
        }
        true
    }

    /// `wl_ring_commit()`
    fn commit(&mut self, size: u64) {
        self.head += size;
        self.publish_to(&self.ring.head, self.head);
        if self.head - self.published >= self.rules.publish_every {
            self.publish();
        }
    }

    /// `wl_ring_publish()`
    fn publish(&mut self) {
        self.published = self.head;
        self.publish_to(&self.ring.public_head, self.head);
        if self.rules.fences {
            fence(Ordering::SeqCst);
        }
        let wake_at = self.ring.wake_at.load(Ordering::Relaxed);
        if wake_at == AWAKE || (self.head.wrapping_sub(wake_at) as i64) < 0 || wake_at == self.rung_for {
            return;
        }
        self.rung_for = wake_at;
        self.bells += 1;
        // The kernel's wait queue orders all accesses before the wake-up before those of the woken thread.
        self.ring.rung.store(true, Ordering::Release);
    }

    /// `wl_publish()`
    fn publish_to(&self, index: &AtomicU64, value: u64) {
        match self.rules.publish {
            Publish::Store(order) => index.store(value, order),
            Publish::Exchange => {
                index.swap(value, Ordering::AcqRel);
            }
        }
    }
}

/// One shared word of the real reader, under loom.
struct ModelWord {
    word: Arc<AtomicU64>,
    relaxed: bool,
}

impl SharedWord for ModelWord {
    fn load(&self, order: Ordering) -> u64 {
        self.word.load(if self.relaxed { Ordering::Relaxed } else { order })
    }
    fn store(&self, value: u64, order: Ordering) {
        self.word.store(value, if self.relaxed { Ordering::Relaxed } else { order });
    }
}

/// The worker: the real reader, and the steps of `RingMemory::run` and `Batch` with its positions.
struct Worker {
    ring: Arc<Ring>,
    rules: Rules,
    reader: Reader<ModelWord>,
    /// Numbers of the records that were read.
    read: Vec<u64>,
}

impl Worker {
    fn new(ring: &Arc<Ring>, rules: Rules) -> Worker {
        let word = |word: &Arc<AtomicU64>, relaxed| ModelWord { word: Arc::clone(word), relaxed };
        let reader = Reader::new(
            word(&ring.head, rules.relaxed_peek),
            word(&ring.public_head, rules.relaxed_published),
            word(&ring.tail, rules.relaxed_release),
            word(&ring.wake_at, false),
        );
        Worker { ring: Arc::clone(ring), rules, reader, read: Vec::new() }
    }

    /// Reads the records up to the published head, or with `peek` up to the last one, as far as they start in one
    /// segment. False: there were no records.
    fn turn(&mut self, peek: bool) -> bool {
        let unread = if peek { self.reader.peek() } else { self.reader.published() };
        if unread == 0 {
            return false;
        }
        let start = self.reader.position();
        let end = start + unread.min(SEGMENT - start % SEGMENT);
        if self.rules.release_first {
            self.reader.release(unread);
        }
        let mut position = start;
        while position < end {
            position += self.read_record(position);
        }
        if !self.rules.release_first {
            self.reader.release(position - start);
        }
        true
    }

    /// The size of the record at this position, which must be whole.
    fn read_record(&mut self, position: u64) -> u64 {
        // SAFETY: loom checks that no other thread writes to the cell meanwhile; that is the subject of the test.
        let read = |index| self.ring.cell(position, index).with(|cell| unsafe { *cell });
        let first = read(0);
        let (number, size) = (first >> 8, first >> 4 & 0xf);
        assert!((1..=SLACK + 1).contains(&size), "no record starts at {position}: {first:#x}");
        for index in 0..size {
            assert_eq!(read(index), content(number, size, index), "record {number} is torn");
        }
        self.read.push(number);
        size
    }

    /// Reads all records, once the lane has ended.
    fn drain(&mut self) {
        while self.turn(true) {}
    }
}
