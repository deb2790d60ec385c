//! Packet buffer (pre-trigger buffer): workers keep the last packets and hand them over when an order asks for them.
//!
//! ```text
//!   an alarm -> Orders::post -> each worker: what its ring has of that time, and then what comes -> Caught, one of each worker
//! ```
//!
//! A worker checks for orders before it buffers a packet, so each requested packet is recorded once, whether it arrived
//! before or after the order. A worker that ends leaves its ring with the orders, for later orders.

mod ring;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use ring::Head;
use ring::Ring;

/// Packets out of order are still recorded if they are at most this late.
const LATE_NS: u64 = 1_000_000_000;
/// Bytes per packet in a file in addition to its data.
const ASIDE: u64 = 44;

/// Packets that an order requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Number of the plan that has the rule.
    pub generation: u64,
    /// Earliest time, UTC nanoseconds since 1970.
    pub from_ns: u64,
    /// Latest time.
    pub to_ns: u64,
    /// Index of the rule whose packets are requested; `None`: all buffered packets.
    pub rule: Option<usize>,
    /// Maximum bytes that all workers together may use for it.
    pub most: u64,
}

/// Packets that a worker recorded for an order.
#[derive(Debug, Default)]
pub struct Caught {
    /// Number of the order.
    pub order: u64,
    /// Packets, in order of arrival.
    pub heads: Vec<Head>,
    /// Their data, concatenated.
    pub bytes: Vec<u8>,
    /// Packets that exceeded the limit of the order.
    pub left_out: u64,
    /// Whether earlier packets may be missing: they were evicted, or the configuration has changed.
    pub is_cut: bool,
}

/// An order, and its remaining bytes.
#[derive(Debug)]
struct Order {
    number: u64,
    wanted: Wanted,
    /// Relaxed: a sum on which no other data depends.
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

    /// Packets of a ring that match the order.
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

/// Receiver of recorded packets.
pub type Sink = Box<dyn Fn(Caught) + Send + Sync>;

/// Orders of a capture.
pub struct Orders {
    /// Number of orders so far. Release when it is incremented, after the order is stored; the partner is the Acquire
    /// of a worker that checks for new orders.
    posted: AtomicU64,
    inner: Mutex<Inner>,
    sink: Sink,
}

struct Inner {
    /// Orders that not all workers have accepted, by number.
    waiting: Vec<Arc<Order>>,
    /// Number of the next order of each worker.
    taken: Vec<u64>,
    /// Rings of workers that have ended, each with the number of the worker's plan.
    left: Vec<Option<(Ring, u64)>>,
}

impl std::fmt::Debug for Orders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Orders").field("posted", &self.posted).finish_non_exhaustive()
    }
}

impl Orders {
    /// No orders yet, for this number of workers. Each worker hands over one [`Caught`] for each order.
    pub fn new(workers: usize, sink: Sink) -> Orders {
        let left = (0..workers).map(|_| None).collect();
        let inner = Inner { waiting: Vec::new(), taken: vec![0; workers], left };
        Orders { posted: AtomicU64::new(0), inner: Mutex::new(inner), sink }
    }

    /// Posts an order and returns its number.
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

    /// Number of orders that not all workers have accepted.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Orders that a worker has not seen.
    fn take(&mut self, worker: usize, posted: u64) -> Vec<Arc<Order>> {
        let Some(taken) = self.taken.get_mut(worker) else { return Vec::new() };
        let from = std::mem::replace(taken, posted);
        let new = self.waiting.iter().filter(|order| order.number >= from).cloned().collect();
        let least = self.taken.iter().copied().min().unwrap_or(posted);
        self.waiting.retain(|order| order.number >= least);
        new
    }
}

/// Packet buffer of a worker, and its open orders.
#[derive(Debug)]
pub(crate) struct Catching {
    orders: Arc<Orders>,
    worker: usize,
    generation: u64,
    ring: Option<Ring>,
    /// Number of orders that it has seen.
    seen: u64,
    open: Vec<(Arc<Order>, Caught)>,
    /// Latest known time.
    now_ns: u64,
}

impl Catching {
    /// With a ring of this many bytes.
    pub fn new(orders: Arc<Orders>, worker: usize, generation: u64, most: usize) -> Catching {
        let ring = Some(Ring::new(most));
        Catching { orders, worker, generation, ring, seen: 0, open: Vec::new(), now_ns: 0 }
    }

    /// Whether it has neither packets nor orders.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.ring.is_none() && self.open.is_empty()
    }

    /// Accepts new orders.
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

    /// Buffers a packet, and records it for open orders that match. `fits`: one bit for each matching rule; `None`: no
    /// recording needs the packet.
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

    /// Advances the time to this: completes orders whose time is over.
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

    /// Switches to another plan: earlier packets were not matched against its rules, so the ring starts empty.
    pub fn replace(&mut self, generation: u64, most: usize) {
        self.look();
        self.open.iter_mut().for_each(|(_, caught)| caught.is_cut = true);
        let open = std::mem::take(&mut self.open);
        self.hand_over(open);
        (self.generation, self.ring) = (generation, Some(Ring::new(most)));
    }

    /// Ends after the last packet. Later orders are served from the ring that is left with the orders.
    pub fn finish(&mut self) {
        if self.ring.is_none() {
            return;
        }
        let orders = Arc::clone(&self.orders);
        // Locked until the ring is left, so that no order is posted in between.
        let mut inner = orders.lock();
        let posted = orders.posted.load(Ordering::Acquire);
        let new = inner.take(self.worker, posted);
        self.begin(new);
        let open = std::mem::take(&mut self.open);
        self.hand_over(open);
        let ring = self.ring.take().map(|ring| (ring, self.generation));
        // No order waits for this worker any more.
        if let Some(taken) = inner.taken.get_mut(self.worker) {
            *taken = u64::MAX;
        }
        if let Some(left) = inner.left.get_mut(self.worker) {
            *left = ring;
        }
    }
}

/// Also runs if a worker fails: a receiver that waits for its packets gets them.
impl Drop for Catching {
    fn drop(&mut self) {
        self.finish();
    }
}
