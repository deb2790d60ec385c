//! Streams of calls that a monitor has lent to workers, and the packets that workers hand to it ([`super::exchange`]).
//!
//! A stream is lent after its first packet, until its call is over or one of its packets comes to the monitor. Packets of
//! it that are already on their way to the monitor are added here: the worker gets the statistics after the last of them,
//! and holds later packets until then.

use std::collections::VecDeque;
use std::sync::Arc;

use wirelane_bpf::rtp::ReadResult;

use super::call::Way;
use super::exchange::{Exchange, Item, Position, Waiting};
use super::kept::Keep;
use super::media::StreamKey;
use super::monitor::Monitor;
use super::stream::Stream;

/// Maximum number of times that a stream is lent: taking it back searches the packets that wait.
const MOST_LENDINGS: u8 = 16;

/// The worker that has a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Borrower {
    worker: usize,
    slot: u32,
    /// Number of the lending.
    lending: u64,
    /// Whether the worker has the statistics; otherwise the monitor still has packets of the stream.
    has_it: bool,
}

/// A lending whose earlier packets are still with the monitor: those up to this number.
#[derive(Debug)]
struct Pending {
    number: u64,
    at: u32,
    lending: u64,
}

/// Workers of a monitor, and their packets.
#[derive(Debug)]
pub(super) struct Lent {
    exchange: Arc<Exchange>,
    queues: Vec<VecDeque<Waiting<Item>>>,
    pending: Vec<VecDeque<Pending>>,
    lendings: u64,
    /// Number of packets that came to the monitor.
    handled: u64,
    /// Position of the current packet.
    at: Position,
    /// Time in UTC before which packets of lent streams count.
    before_ns: u64,
    /// Bytes of each worker's packets that were processed and that its share still counts.
    processed: Vec<usize>,
}

impl Lent {
    fn new(exchange: Arc<Exchange>) -> Lent {
        let workers = exchange.workers();
        Lent {
            exchange,
            queues: (0..workers).map(|_| VecDeque::new()).collect(),
            pending: (0..workers).map(|_| VecDeque::new()).collect(),
            lendings: 0,
            handled: 0,
            at: (0, 0),
            before_ns: u64::MAX,
            processed: vec![0; workers],
        }
    }

    /// Fetches the packets of all workers. Returns the time before which there are no others: on the capture's clock, and
    /// in UTC.
    fn fetch(&mut self) -> (u64, u64) {
        let mut until: Option<(u64, u64)> = None;
        for (worker, queue) in self.queues.iter_mut().enumerate() {
            let mut share = self.exchange.share(worker);
            share.fetch(queue);
            share.memory -= std::mem::take(&mut self.processed[worker]);
            until = Some(match until {
                // Of workers that have ended, the last packet counts.
                Some(least) if least.0 == u64::MAX && share.until.0 == u64::MAX => least.max(share.until),
                Some(least) => least.min(share.until),
                None => share.until,
            });
        }
        until.unwrap_or_default()
    }

    /// The worker with the earliest packet before this time.
    fn first(&self, until_ns: u64) -> Option<usize> {
        let heads = self.queues.iter().enumerate().filter_map(|(worker, queue)| {
            let position = (queue.front()?.steady_ns, worker);
            (position.0 < until_ns || until_ns == u64::MAX).then_some(position)
        });
        heads.min().map(|(_, worker)| worker)
    }
}

impl Monitor {
    /// Has workers of this exchange measure streams. Call before the first packet, and then [`Monitor::turn`] only.
    pub fn exchange(&mut self, exchange: &Arc<Exchange>) {
        self.lent = Some(Lent::new(Arc::clone(exchange)));
    }

    /// Processes the packets of the workers, as far as no worker can have an earlier one. True: [`Monitor::finished`] is
    /// full; take it and call this again.
    #[must_use = "there may be more packets"]
    pub fn turn(&mut self) -> bool {
        let Some(lent) = &mut self.lent else { return false };
        let (until_ns, until_utc_ns) = lent.fetch();
        loop {
            let Some(lent) = &mut self.lent else { return false };
            let first = lent.first(until_ns);
            let head = first.and_then(|worker| Some((worker, lent.queues[worker].front()?)));
            let (position, ts_ns) = match head {
                Some((worker, head)) => ((head.steady_ns, worker), head.ts_ns),
                None => ((until_ns, 0), until_utc_ns),
            };
            lent.at = position;
            if self.is_due(ts_ns) {
                // Streams that are taken back now have packets that come before this one.
                self.pass(ts_ns);
            } else if let Some(worker) = first {
                self.next_packet(worker);
            } else {
                break;
            }
            if self.finished.is_full() {
                return true;
            }
        }
        if let Some(lent) = &self.lent {
            lent.exchange.publish(until_ns);
        }
        false
    }

    /// Number of packets that workers have handed to the monitor, and that it has processed.
    pub fn handled(&self) -> u64 {
        self.lent.as_ref().map_or(0, |lent| lent.handled)
    }

    fn next_packet(&mut self, worker: usize) {
        let Some(lent) = &mut self.lent else { return };
        let Some(Waiting { ts_ns, packets, content, .. }) = lent.queues[worker].pop_front() else { return };
        lent.processed[worker] += content.memory();
        lent.handled += 1;
        match content {
            Item::Packet { link, bytes, length } => {
                self.at_hand.length = length;
                self.add_packet(link, &bytes, ts_ns, packets);
            }
            Item::Rtp { key, packet } => {
                self.arrive(ts_ns);
                self.at_hand.whole = true;
                let way = Way { from: key.from, to: key.to, tcp: false, ts_ns };
                let class = self.rtp(ReadResult::Ok, &packet, &way);
                self.at_hand.heard = None;
                self.count(class, packets);
            }
        }
        self.hand_over(worker);
    }

    /// Gives a worker the streams that were lent to it and of which no packet is left here.
    fn hand_over(&mut self, worker: usize) {
        let Some(lent) = &mut self.lent else { return };
        let next = lent.queues[worker].front().map_or(u64::MAX, |item| item.number);
        while lent.pending[worker].front().is_some_and(|pending| pending.number < next) {
            let Some(pending) = lent.pending[worker].pop_front() else { return };
            let Some(stream) = self.streams.get_mut(pending.at) else { continue };
            if let Some(borrower) = stream.borrower.filter(|borrower| borrower.lending == pending.lending) {
                lent.exchange.share(worker).give(borrower.slot, stream.for_worker());
                stream.borrower = Some(Borrower { has_it: true, ..borrower });
            }
        }
    }

    /// Lends a stream of a call to the worker whose packet was added to it.
    pub(super) fn lend(&mut self, at: u32) {
        // Packets that are stored have to come here.
        let keeps = self.settings.keep == Keep::All;
        let (Some(lent), Some(stream)) = (&mut self.lent, self.streams.get_mut(at)) else { return };
        let call = stream.call.and_then(|call| self.calls.get(call));
        let ends = call.is_none_or(|call| call.state.is_over());
        // Other fragments may come to other workers.
        let is_whole = self.at_hand.whole;
        if keeps || ends || !is_whole || stream.borrower.is_some() || stream.lendings == MOST_LENDINGS {
            return;
        }
        stream.lendings += 1;
        lent.lendings += 1;
        let (worker, lending) = (lent.at.1, lent.lendings);
        let key = StreamKey { from: stream.from, to: stream.to, ssrc: stream.rtp.ssrc };
        let mut share = lent.exchange.share(worker);
        // With these, all packets of the stream that do not wait for it are here.
        share.fetch(&mut lent.queues[worker]);
        let slot = share.reserve(key);
        stream.borrower = Some(Borrower { worker, slot, lending, has_it: false });
        lent.pending[worker].push_back(Pending { number: share.number, at, lending });
    }

    /// Takes a stream back before one of its packets is added here.
    pub(super) fn own(&mut self, at: u32) {
        let borrower = self.streams.get(at).and_then(|stream| stream.borrower);
        // Otherwise it is still here, and this is a packet from before the lending.
        if borrower.is_some_and(|borrower| borrower.has_it) {
            self.take_back(at);
        }
    }

    /// Takes a stream back: its next packets come here.
    pub(super) fn take_back(&mut self, at: u32) {
        let (Some(lent), Some(stream)) = (&mut self.lent, self.streams.get_mut(at)) else { return };
        let Some(borrower) = stream.borrower else { return };
        let key = StreamKey { from: stream.from, to: stream.to, ssrc: stream.rtp.ssrc };
        stream.borrower = None;
        let queue = &mut lent.queues[borrower.worker];
        let mut share = lent.exchange.share(borrower.worker);
        if let Some(measured) = share.take_back(&key, borrower.slot, lent.at, lent.before_ns) {
            stream.adopt(&measured);
        }
        share.fetch(queue);
        queue.make_contiguous().sort_by_key(|item| item.number);
    }

    /// Takes the streams of a call back once it is over.
    pub(super) fn take_back_of_ended(&mut self, at: u32) {
        if self.lent.is_none() {
            return;
        }
        let Some(call) = self.calls.get(at).filter(|call| call.state.is_over()) else { return };
        call.streams.clone().into_iter().for_each(|at| self.take_back(at));
    }

    /// Updates the statistics of a stream that a worker has.
    pub(super) fn look_lent(&mut self, at: u32) {
        let (Some(lent), Some(stream)) = (&self.lent, self.streams.get_mut(at)) else { return };
        if let Some(borrower) = stream.borrower.filter(|borrower| borrower.has_it)
            && let Some(measured) =
                lent.exchange.share(borrower.worker).stream(borrower.slot, lent.at, lent.before_ns)
        {
            stream.adopt(measured);
        }
    }

    /// Tells the worker that has a stream about changed payload types.
    pub(super) fn tell_types(&mut self, at: u32) {
        let (Some(lent), Some(stream)) = (&self.lent, self.streams.get(at)) else { return };
        if let Some(borrower) = stream.borrower.filter(|borrower| borrower.has_it)
            && let Some(copy) =
                lent.exchange.share(borrower.worker).stream(borrower.slot, lent.at, lent.before_ns)
        {
            copy.adopt_types(stream);
        }
    }

    /// A stream with its current statistics.
    pub(super) fn current(&self, at: u32) -> Option<Stream> {
        let mut stream = self.streams.get(at)?.clone();
        if let (Some(lent), Some(borrower)) = (&self.lent, stream.borrower.filter(|borrower| borrower.has_it))
            && let Some(measured) =
                lent.exchange.share(borrower.worker).stream(borrower.slot, lent.at, lent.before_ns)
        {
            stream.adopt(measured);
        }
        Some(stream)
    }

    /// Packets of lent streams count before this time only.
    pub(super) fn packets_before(&mut self, ts_ns: u64) {
        if let Some(lent) = &mut self.lent {
            lent.before_ns = ts_ns;
        }
    }

    /// Memory of a stream in bytes.
    pub(super) fn stream_cost(&self) -> usize {
        Stream::cost() + if self.lent.is_some() { Stream::cost() } else { 0 }
    }

    /// RTP packets, and other packets, that only workers have seen.
    pub(super) fn counted_by_workers(&self) -> [u64; 2] {
        let Some(lent) = &self.lent else { return [0; 2] };
        let counts = (0..lent.exchange.workers())
            .map(|worker| lent.exchange.share(worker).counted(lent.at, lent.before_ns));
        counts.fold([0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
    }
}
