//! One monitor with several workers.
//!
//! ```text
//! worker -> WorkerEnd: RTP of a stream that the worker has -> held until the monitor has passed its time -> Stream
//!                      every other packet that may matter  -> Monitor::turn, merged by time
//! ```
//!
//! Signalling, RTCP and the first packet of each stream go to the monitor, in the order of time over all workers. The
//! monitor lends the streams of calls to the worker whose packets they are, and takes them back when their call is over.
//! A worker adds a packet to its stream only when the monitor has processed everything before that packet, so the results
//! are those of one monitor that sees all packets ([`lent`](super::lent)).
//!
//! A share is locked by its worker once for [`BATCH`] packets, and by the monitor when it fetches packets and lends
//! streams or takes them back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use ahash::RandomState;
use hashbrown::HashMap;
use wirelane::{LinkType, Record, flags};
use wirelane_bpf::native;
use wirelane_bpf::rtp::{ReadResult, RtpPacket};

use super::content::{self, Content, is_sip_port};
use super::kept::Keep;
use super::media::StreamKey;
use super::settings::Settings;
use super::stream::Stream;
use super::table::Table;
use super::tcp::{MOST as MOST_PATHS, Path};
use super::{rtcp, sip};

/// Packets that a worker gathers before it locks its share.
const BATCH: usize = 64;
/// Time for which a worker waits for the monitor before it looks again.
const WAIT: Duration = Duration::from_millis(1);

/// Place of a packet in the order of time, on the clock of the capture; then by worker.
pub(super) type Position = (u64, usize);

/// A packet that waits for the monitor, or for its own stream.
#[derive(Debug)]
pub(super) struct Waiting<C> {
    /// Number in its worker's order.
    pub(super) number: u64,
    /// Time on the capture's clock, which orders packets.
    pub(super) steady_ns: u64,
    /// Time in UTC.
    pub(super) ts_ns: u64,
    /// Packets on the wire.
    pub(super) packets: u64,
    pub(super) content: C,
}

/// Content of a packet for the monitor.
#[derive(Debug)]
pub(super) enum Item {
    /// A packet, whole.
    Packet { link: LinkType, bytes: Vec<u8>, length: u32 },
    /// A valid RTP packet.
    Rtp { key: StreamKey, packet: RtpPacket },
}

/// A packet of a stream that a worker has: its slot, and the header.
type Held = (u32, RtpPacket);

/// A slot for a stream that is lent.
#[derive(Debug, Default)]
struct Slot {
    /// `None`: free, or still with the monitor, which has to process earlier packets of the stream.
    stream: Option<Box<Stream>>,
    /// Number of held packets of the stream.
    held: usize,
}

impl Item {
    /// Memory in bytes while it waits.
    pub(super) fn memory(&self) -> usize {
        size_of::<Waiting<Item>>() + if let Item::Packet { bytes, .. } = self { bytes.len() } else { 0 }
    }
}

/// State that one worker and the monitor share.
#[derive(Debug)]
pub(super) struct Share {
    worker: usize,
    /// Slots of the streams that were lent to the worker.
    index: HashMap<StreamKey, u32, RandomState>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    held: VecDeque<Waiting<Held>>,
    items: VecDeque<Waiting<Item>>,
    /// Bytes of packets for the monitor that it has not processed.
    pub(super) memory: usize,
    /// Number of the worker's packets so far.
    pub(super) number: u64,
    /// The worker's later packets are not earlier than this: time on the capture's clock, and in UTC.
    pub(super) until: (u64, u64),
    /// RTP packets that were added to lent streams.
    rtp_packets: u64,
    /// Packets that are of no interest to the monitor.
    other_packets: u64,
}

/// Connects a monitor with its workers.
#[derive(Debug)]
pub struct Exchange {
    shares: Vec<Mutex<Share>>,
    /// The monitor has processed all packets before this time. Release in [`Exchange::publish`], after the shares were
    /// changed; Acquire in [`WorkerEnd::flush`], before held packets are added to their streams.
    done_ns: AtomicU64,
    /// Whether the monitor is gone. Relaxed: nothing depends on it.
    ended: AtomicBool,
    monitor: OnceLock<Thread>,
    /// Maximum bytes of packets that wait, for each worker.
    budget: usize,
}

impl Share {
    fn new(worker: usize) -> Share {
        Share {
            worker,
            index: HashMap::with_hasher(RandomState::new()),
            slots: Vec::new(),
            free: Vec::new(),
            held: VecDeque::new(),
            items: VecDeque::new(),
            memory: 0,
            number: 0,
            until: (0, 0),
            rtp_packets: 0,
            other_packets: 0,
        }
    }

    /// Reserves a slot: later packets of the stream are held.
    pub(super) fn reserve(&mut self, key: StreamKey) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        self.index.insert(key, slot);
        slot
    }

    /// Puts a stream into its slot.
    pub(super) fn give(&mut self, slot: u32, stream: Box<Stream>) {
        self.slots[slot as usize].stream = Some(stream);
    }

    /// The stream in a slot, as it is at this position.
    pub(super) fn stream(&mut self, slot: u32, at: Position, before_ns: u64) -> Option<&mut Stream> {
        self.advance(at, before_ns);
        self.slots[slot as usize].stream.as_deref_mut()
    }

    /// RTP packets of lent streams up to this position, and packets that are of no interest to the monitor.
    pub(super) fn counted(&mut self, at: Position, before_ns: u64) -> [u64; 2] {
        self.advance(at, before_ns);
        [self.rtp_packets, self.other_packets]
    }

    /// Takes a stream back as it is at this position. Its later packets become packets for the monitor.
    pub(super) fn take_back(
        &mut self,
        key: &StreamKey,
        slot: u32,
        at: Position,
        before_ns: u64,
    ) -> Option<Box<Stream>> {
        self.advance(at, before_ns);
        self.index.remove(key);
        self.free.push(slot);
        let Slot { stream, held } = std::mem::take(&mut self.slots[slot as usize]);
        if held > 0 {
            let (its, others): (VecDeque<_>, VecDeque<_>) =
                std::mem::take(&mut self.held).into_iter().partition(|held| held.content.0 == slot);
            self.held = others;
            for Waiting { number, steady_ns, ts_ns, packets, content: (_, packet) } in its {
                let content = Item::Rtp { key: *key, packet };
                self.memory += content.memory();
                self.items.push_back(Waiting { number, steady_ns, ts_ns, packets, content });
            }
        }
        stream
    }

    /// Moves the packets for the monitor, which sorts them: those of a stream that was taken back are not in order.
    pub(super) fn fetch(&mut self, queue: &mut VecDeque<Waiting<Item>>) {
        queue.append(&mut self.items);
    }

    /// Adds the held packets before this position, and before this time in UTC, to their streams.
    fn advance(&mut self, at: Position, before_ns: u64) {
        while let Some(held) = self.held.front()
            && (held.steady_ns, self.worker) < at
            && held.ts_ns < before_ns
        {
            let (slot, packet) = held.content;
            // The monitor gives a stream before it passes the first packet that is held for it.
            let slot = &mut self.slots[slot as usize];
            slot.held -= 1;
            if let Some(stream) = &mut slot.stream {
                stream.take(&packet, held.ts_ns);
                self.rtp_packets += held.packets;
            }
            self.held.pop_front();
        }
    }

    fn waiting(&self) -> usize {
        self.memory + self.held.len() * size_of::<Waiting<Held>>()
    }
}

impl Exchange {
    /// An exchange for this many workers, with this memory in bytes for packets that wait.
    pub fn new(workers: usize, memory: usize) -> Arc<Exchange> {
        let budget = (memory / workers.max(1)).max(256 << 10);
        Arc::new(Exchange {
            shares: (0..workers).map(|worker| Mutex::new(Share::new(worker))).collect(),
            done_ns: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            monitor: OnceLock::new(),
            budget,
        })
    }

    /// Makes the current thread the one that is woken for packets: it calls [`Monitor::turn`](super::Monitor::turn).
    pub fn serve(&self) {
        // A second thread is never woken, and looks by itself.
        let _ = self.monitor.set(std::thread::current());
    }

    /// Waits for packets, at most for this time.
    pub fn wait(&self, longest: Duration) {
        std::thread::park_timeout(longest);
    }

    /// Time before which all packets of all workers are here, on the capture's clock.
    pub fn until_ns(&self) -> u64 {
        (0..self.workers()).map(|worker| self.share(worker).until.0).min().unwrap_or(u64::MAX)
    }

    /// Whether all workers have ended. The next turn of the monitor then has the last packets.
    pub fn has_ended(&self) -> bool {
        self.until_ns() == u64::MAX
    }

    /// Ends all workers, also those that never began.
    pub fn close(&self) {
        (0..self.workers()).for_each(|worker| self.share(worker).until.0 = u64::MAX);
    }

    /// Tells workers that nobody reads their packets.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn workers(&self) -> usize {
        self.shares.len()
    }

    pub(super) fn share(&self, worker: usize) -> MutexGuard<'_, Share> {
        self.shares[worker].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn publish(&self, done_ns: u64) {
        self.done_ns.store(done_ns, Ordering::Release);
    }
}

/// A packet that a worker has gathered.
#[derive(Debug)]
enum Gathered {
    Item(Item),
    Other,
}

/// A worker's end of an [`Exchange`].
#[derive(Debug)]
pub struct WorkerEnd {
    exchange: Arc<Exchange>,
    worker: usize,
    inner: bool,
    /// Whether RTP packets go to the monitor as they are.
    keeps: bool,
    gathered: Vec<Waiting<Gathered>>,
    /// Directions of TCP connections that began with a SIP message, on other ports than those of SIP.
    paths: Table<Path, ()>,
}

/// Error: the monitor has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MonitorEnded;

impl WorkerEnd {
    /// The end of this worker of a monitor with these settings.
    pub fn new(exchange: &Arc<Exchange>, worker: usize, settings: &Settings) -> WorkerEnd {
        WorkerEnd {
            exchange: Arc::clone(exchange),
            worker,
            inner: settings.inner,
            keeps: settings.keep == Keep::All,
            gathered: Vec::with_capacity(BATCH),
            paths: Table::new(),
        }
    }

    /// Adds a record with this time on the capture's clock, and in UTC. Records come in the order of the first.
    ///
    /// # Errors
    /// If the monitor has ended.
    pub fn record(&mut self, record: &Record<'_>, steady_ns: u64, ts_ns: u64) -> Result<(), MonitorEnded> {
        let packets = record.segments().into();
        self.add(record.link_type(), record.data(), record.wire_len(), [steady_ns, ts_ns, packets])
    }

    /// Adds a packet of this link type, in the same way.
    ///
    /// # Errors
    /// If the monitor has ended.
    pub fn packet(
        &mut self,
        link: LinkType,
        data: &[u8],
        steady_ns: u64,
        ts_ns: u64,
    ) -> Result<(), MonitorEnded> {
        self.add(link, data, data.len() as u32, [steady_ns, ts_ns, 1])
    }

    fn add(
        &mut self,
        link: LinkType,
        data: &[u8],
        length: u32,
        [steady_ns, ts_ns, packets]: [u64; 3],
    ) -> Result<(), MonitorEnded> {
        let content = self.sort(link, data, length);
        self.gathered.push(Waiting { number: 0, steady_ns, ts_ns, packets, content });
        if self.gathered.len() < BATCH { Ok(()) } else { self.flush() }
    }

    fn sort(&mut self, link: LinkType, data: &[u8], length: u32) -> Gathered {
        let parsed = native::parse(link, data, self.inner);
        let inside = self.inner && parsed.flags & flags::TUNNEL != 0;
        let matters = match content::read(if inside { &parsed.inner } else { &parsed.outer }, data) {
            Content::Other => false,
            Content::Fragment { .. } => true,
            Content::Datagram { from, to, payload, len } if content::is_media(payload) => {
                let (result, packet) = RtpPacket::read(payload, len);
                if result == ReadResult::Ok && !rtcp::may_be(payload) && !self.keeps {
                    return Gathered::Item(Item::Rtp {
                        key: StreamKey { from, to, ssrc: packet.ssrc },
                        packet,
                    });
                }
                true
            }
            Content::Datagram { from, to, payload, .. } => {
                !payload.is_empty() && (is_sip_port(from.1) || is_sip_port(to.1) || sip::begins(payload))
            }
            Content::Segment { from, to, payload, .. } => {
                is_sip_port(from.1) || is_sip_port(to.1) || self.is_followed(Path { from, to }, payload)
            }
        };
        match matters {
            true => Gathered::Item(Item::Packet { link, bytes: data.to_vec(), length }),
            false => Gathered::Other,
        }
    }

    /// Whether a segment is of a connection that began with a SIP message.
    fn is_followed(&mut self, path: Path, data: &[u8]) -> bool {
        if let Some(at) = self.paths.find(&path) {
            self.paths.touch(at, 0);
            return true;
        }
        let begins = !data.is_empty() && sip::begins(data);
        if begins {
            if self.paths.len() >= MOST_PATHS
                && let Some(oldest) = self.paths.first(0)
            {
                self.paths.remove(oldest);
            }
            self.paths.insert(path, (), 0);
        }
        begins
    }

    /// Hands on what was gathered, and adds packets to the streams of this worker. Waits for the monitor if too many
    /// packets wait for it.
    ///
    /// # Errors
    /// If the monitor has ended.
    pub fn flush(&mut self) -> Result<(), MonitorEnded> {
        let until = self.gathered.last().map(|last| (last.steady_ns, last.ts_ns));
        let mut waiting = self.hand_on(until);
        while waiting > self.exchange.budget {
            if self.exchange.ended.load(Ordering::Relaxed) {
                return Err(MonitorEnded);
            }
            self.wake();
            std::thread::sleep(WAIT);
            waiting = self.hand_on(None);
        }
        Ok(())
    }

    /// Hands on what was gathered, and that all later packets are of this time on the capture's clock, and in UTC, or
    /// later.
    ///
    /// # Errors
    /// If the monitor has ended.
    pub fn caught_up(&mut self, steady_ns: u64, ts_ns: u64) -> Result<(), MonitorEnded> {
        self.flush()?;
        self.hand_on(Some((steady_ns, ts_ns)));
        // Others may have waited for this worker.
        self.wake();
        Ok(())
    }

    /// Returns the bytes of packets that wait.
    fn hand_on(&mut self, until: Option<(u64, u64)>) -> usize {
        let mut share = self.exchange.share(self.worker);
        let Share { index, slots, held, items, memory, number, other_packets, .. } = &mut *share;
        let before = items.len();
        for Waiting { steady_ns, ts_ns, packets, content, .. } in self.gathered.drain(..) {
            *number += 1;
            let number = *number;
            let Gathered::Item(content) = content else {
                *other_packets += packets;
                continue;
            };
            if let Item::Rtp { key, packet } = &content
                && let Some(slot) = index.get(key)
            {
                slots[*slot as usize].held += 1;
                held.push_back(Waiting { number, steady_ns, ts_ns, packets, content: (*slot, *packet) });
                continue;
            }
            *memory += content.memory();
            items.push_back(Waiting { number, steady_ns, ts_ns, packets, content });
        }
        let came = items.len() > before;
        share.until = share.until.max(until.unwrap_or_default());
        // Acquire: pairs with Exchange::publish(). Streams that were lent before that time are in the share.
        let done_ns = self.exchange.done_ns.load(Ordering::Acquire);
        share.advance((done_ns, 0), u64::MAX);
        let waiting = share.waiting();
        drop(share);
        if came {
            self.wake();
        }
        waiting
    }

    fn wake(&self) {
        if let Some(monitor) = self.exchange.monitor.get() {
            monitor.unpark();
        }
    }
}

impl Drop for WorkerEnd {
    fn drop(&mut self) {
        let last_ns = self.gathered.last().map_or(0, |last| last.ts_ns);
        let last_ns = last_ns.max(self.exchange.share(self.worker).until.1);
        self.hand_on(Some((u64::MAX, last_ns)));
        self.wake();
    }
}
