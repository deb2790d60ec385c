//! Packets around an event: what workers keep of the last ones, and hand over when they are ordered.
//!
//! ```text
//!   an alarm -> Orders::post -> each worker: what its ring has of that time, and then what comes -> Caught, one of each worker
//! ```
//!
//! A worker looks for orders before it keeps a packet, so that each packet of the time that is asked for is caught once,
//! whether it came before the order or after. A worker that ends leaves its ring with the orders, for those that come then.

mod ring;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use ring::Head;
use ring::Ring;

/// Packets that come out of their order are still caught if they are this late.
const LATE_NS: u64 = 1_000_000_000;
/// What a packet takes in a file beside its bytes.
const ASIDE: u64 = 44;

/// What is to be caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The number of the plan that the rule is one of.
    pub generation: u64,
    /// Packets of this time and later ones, UTC nanoseconds since 1970.
    pub from_ns: u64,
    /// Packets of this time and earlier ones.
    pub to_ns: u64,
    /// Packets of this rule, by its place; `None`: all packets that are kept.
    pub rule: Option<usize>,
    /// Bytes that all workers together may take for it.
    pub most: u64,
}

/// What a worker has caught.
#[derive(Debug, Default)]
pub struct Caught {
    /// The number of the order.
    pub order: u64,
    /// Packets, in the order in which they came.
    pub heads: Vec<Head>,
    /// Their bytes, one behind the other.
    pub bytes: Vec<u8>,
    /// Packets for which there was no room.
    pub left_out: u64,
    /// Some that had come before may be missing: they had made place for others, or the configuration is another one.
    pub is_cut: bool,
}

/// An order, and the bytes that are left of it.
#[derive(Debug)]
struct Order {
    number: u64,
    wanted: Wanted,
    /// Relaxed: a sum that nothing else depends on.
    room: AtomicU64,
}

impl Order {
    fn asks_for(&self, ts_ns: u64, fits: u32) -> bool {
        let Wanted { from_ns, to_ns, rule, .. } = self.wanted;
        (from_ns..=to_ns).contains(&ts_ns) && rule.is_none_or(|rule| fits & 1 << rule != 0)
    }

    fn add(&self, caught: &mut Caught, head: &Head, parts: [&[u8]; 2]) {
        let size = u64::from(head.captured) + ASIDE;
        let taken =
            self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(size));
        if taken.is_err() {
            caught.left_out += 1;
            return;
        }
        caught.heads.push(*head);
        parts.into_iter().for_each(|part| caught.bytes.extend_from_slice(part));
    }

    /// What a ring has of it.
    fn of_ring(&self, ring: &Ring, generation: u64) -> Caught {
        let mut caught = Caught { order: self.number, ..Caught::default() };
        if self.wanted.generation != generation {
            caught.is_cut = true;
            return caught;
        }
        caught.is_cut = ring.lacks(self.wanted.from_ns);
        for (head, fits, parts) in ring.packets() {
            if self.asks_for(head.ts_ns, fits) {
                self.add(&mut caught, head, parts);
            }
        }
        caught
    }
}

/// Takes what has been caught.
pub type Sink = Box<dyn Fn(Caught) + Send + Sync>;

/// The orders of a capture.
pub struct Orders {
    /// How many there have been. Release where it is raised, behind the order; the partner is the Acquire of a worker that
    /// looks whether there are new ones.
    posted: AtomicU64,
    inner: Mutex<Inner>,
    sink: Sink,
}

struct Inner {
    /// Those that not all workers have taken, by their numbers.
    waiting: Vec<Arc<Order>>,
    /// Of each worker the number of the next order that it takes.
    taken: Vec<u64>,
    /// What workers have left that have ended, with the number of their plan.
    left: Vec<Option<(Ring, u64)>>,
}

impl std::fmt::Debug for Orders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Orders").field("posted", &self.posted).finish_non_exhaustive()
    }
}

impl Orders {
    /// None yet, for so many workers. Each of them hands one [`Caught`] over for each order.
    pub fn new(workers: usize, sink: Sink) -> Orders {
        let left = (0..workers).map(|_| None).collect();
        let inner = Inner { waiting: Vec::new(), taken: vec![0; workers], left };
        Orders { posted: AtomicU64::new(0), inner: Mutex::new(inner), sink }
    }

    /// Posts an order; its number.
    pub fn post(&self, wanted: Wanted) -> u64 {
        let mut inner = self.lock();
        let number = self.posted.load(Ordering::Relaxed);
        let order = Arc::new(Order { number, wanted, room: AtomicU64::new(wanted.most) });
        for (ring, generation) in inner.left.iter().flatten() {
            (self.sink)(order.of_ring(ring, *generation));
        }
        inner.waiting.push(order);
        self.posted.store(number + 1, Ordering::Release);
        number
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The orders that a worker has not seen.
    fn take(&mut self, worker: usize, posted: u64) -> Vec<Arc<Order>> {
        let Some(taken) = self.taken.get_mut(worker) else { return Vec::new() };
        let from = std::mem::replace(taken, posted);
        let new = self.waiting.iter().filter(|order| order.number >= from).cloned().collect();
        let least = self.taken.iter().copied().min().unwrap_or(posted);
        self.waiting.retain(|order| order.number >= least);
        new
    }
}

/// A worker's part.
#[derive(Debug)]
pub(crate) struct Catching {
    orders: Arc<Orders>,
    worker: usize,
    generation: u64,
    ring: Option<Ring>,
    /// Orders that it has looked at.
    seen: u64,
    open: Vec<(Arc<Order>, Caught)>,
    /// The latest time that it knows of.
    now_ns: u64,
}

impl Catching {
    /// With room for so many bytes.
    pub fn new(orders: Arc<Orders>, worker: usize, generation: u64, most: usize) -> Catching {
        let ring = Some(Ring::new(most));
        Catching { orders, worker, generation, ring, seen: 0, open: Vec::new(), now_ns: 0 }
    }

    /// Takes new orders up.
    #[inline]
    pub fn look(&mut self) {
        if self.orders.posted.load(Ordering::Acquire) != self.seen {
            let new = {
                let mut inner = self.orders.lock();
                self.seen = self.orders.posted.load(Ordering::Relaxed);
                inner.take(self.worker, self.seen)
            };
            self.begin(new);
        }
    }

    fn begin(&mut self, new: Vec<Arc<Order>>) {
        let Some(ring) = &self.ring else { return };
        let generation = self.generation;
        self.open.extend(new.into_iter().map(|order| {
            let caught = order.of_ring(ring, generation);
            (order, caught)
        }));
    }

    /// Keeps a packet, and catches it where it is asked for. `fits`: a bit for each rule that it fits; `None`: it is of no
    /// use.
    #[inline]
    pub fn packet(&mut self, head: Head, fits: Option<u32>, data: &[u8]) {
        self.look();
        self.keep(head, fits, data);
        self.tick(head.ts_ns);
    }

    #[inline]
    fn keep(&mut self, head: Head, fits: Option<u32>, data: &[u8]) {
        let Some(fits) = fits else { return };
        for (order, caught) in &mut self.open {
            if order.wanted.generation == self.generation && order.asks_for(head.ts_ns, fits) {
                order.add(caught, &head, [data, &[]]);
            }
        }
        if let Some(ring) = &mut self.ring {
            ring.push(head, fits, data);
        }
    }

    /// It is this late: orders whose time is over are done.
    #[inline]
    pub fn tick(&mut self, utc_ns: u64) {
        self.now_ns = self.now_ns.max(utc_ns);
        let now_ns = self.now_ns;
        if self.open.iter().any(|(order, _)| now_ns > order.wanted.to_ns.saturating_add(LATE_NS)) {
            let is_over = |order: &Order| now_ns > order.wanted.to_ns.saturating_add(LATE_NS);
            let (done, open) =
                std::mem::take(&mut self.open).into_iter().partition(|(order, _)| is_over(order));
            self.open = open;
            self.hand_over(done);
        }
    }

    fn hand_over(&self, done: Vec<(Arc<Order>, Caught)>) {
        done.into_iter().for_each(|(_, caught)| (self.orders.sink)(caught));
    }

    /// Another plan is in force, by whose rules nothing before was looked at.
    pub fn replace(&mut self, generation: u64, most: usize) {
        self.look();
        self.open.iter_mut().for_each(|(_, caught)| caught.is_cut = true);
        let open = std::mem::take(&mut self.open);
        self.hand_over(open);
        (self.generation, self.ring) = (generation, Some(Ring::new(most)));
    }

    /// There are no more packets. What is ordered from now on is caught out of what is left here.
    pub fn finish(&mut self) {
        if self.ring.is_none() {
            return;
        }
        let orders = Arc::clone(&self.orders);
        // Held until the ring is left, so that no order comes in between.
        let mut inner = orders.lock();
        let posted = orders.posted.load(Ordering::Acquire);
        let new = inner.take(self.worker, posted);
        self.begin(new);
        let open = std::mem::take(&mut self.open);
        self.hand_over(open);
        let ring = self.ring.take().map(|ring| (ring, self.generation));
        // Nothing waits for it any more.
        if let Some(taken) = inner.taken.get_mut(self.worker) {
            *taken = u64::MAX;
        }
        if let Some(left) = inner.left.get_mut(self.worker) {
            *left = ring;
        }
    }
}

/// Also of a worker that fails: whoever waits for what it has caught gets that.
impl Drop for Catching {
    fn drop(&mut self) {
        self.finish();
    }
}
