//! Connections of one worker, with their totals.

use std::collections::VecDeque;

use ahash::RandomState;
use wirelane::{HttpOffload, Ip, Record, SkippedBytes, Timebase, ip_flags};
use wirelane_bpf::flow::{FlowKey, FlowPacket};
use wirelane_bpf::http::HttpHalf;

use super::connection::{Connection, SOON_NS};
use super::entry::{Entry, Silences};
use super::segment::{SYN, Segment};
use super::settings::{HttpSettings, LEAST_MEMORY};
use super::totals::{Totals, reason_mark};
use super::transaction::{Mark, Transaction};
use crate::Outbox;
use crate::flows::lists::{Link, List, NONE};
use crate::flows::{FlowReader, FlowRecord, reverse_key};
use crate::fragments::{Fragments, Joined};
use crate::index::{self, Index};
use wirelane_bpf::flow::EndReason;

/// Time for which a finished connection is kept, for retransmissions.
const LINGER_NS: u64 = 5_000_000_000;
/// Interval of checks for due connections, on the clock of the packets.
const LOOK_EVERY_NS: u64 = 50_000_000;

/// IP protocol number.
const TCP: u8 = 6;

/// The connections of one worker.
#[derive(Debug)]
pub struct HttpTable {
    settings: HttpSettings,
    reader: FlowReader,
    fragments: Fragments,
    random: RandomState,
    table: Index,
    entries: Vec<Entry>,
    most: usize,
    room: usize,
    /// Maximum memory of messages of one connection, which also limits the results of one packet.
    messages_most: usize,
    used: usize,
    free: Vec<u32>,
    silent: List,
    over: List,
    due: VecDeque<(u64, u32, u32)>,
    now_ns: u64,
    looked_ns: u64,
    finished: Outbox<Transaction>,
    totals: Totals,
    /// With in-kernel selection: source of skipped bytes that were not reported before a connection ended.
    offloaded: Option<(HttpOffload, Timebase)>,
}

impl HttpTable {
    /// An empty table. Its hash is seeded at random, so an attacker cannot choose connections that collide.
    pub fn new(settings: HttpSettings) -> HttpTable {
        let memory = settings.memory.max(LEAST_MEMORY);
        // A third for connections, a part for fragments, and the rest for held pieces.
        let most = (memory / 3 / (size_of::<Entry>() + index::BYTES)).min(NONE as usize - 1);
        HttpTable {
            reader: FlowReader::new(settings.inner),
            fragments: Fragments::new((memory / 16).max(256 << 10)),
            random: RandomState::new(),
            table: Index::new(most),
            // All at once, as for flows: memory that is not touched is not allocated.
            entries: Vec::with_capacity(most),
            most,
            room: memory - memory / 3 - memory / 16,
            messages_most: (memory / 16).clamp(64 << 10, 16 << 20),
            used: 0,
            free: Vec::new(),
            silent: List::default(),
            over: List::default(),
            due: VecDeque::new(),
            now_ns: 0,
            looked_ns: 0,
            finished: Outbox::default(),
            totals: Totals::default(),
            offloaded: None,
            settings,
        }
    }

    /// Enables queries for skipped bytes of a connection that ends without another packet, with in-kernel selection.
    pub fn ask(&mut self, offloaded: HttpOffload, time: Timebase) {
        self.offloaded = Some((offloaded, time));
    }

    /// Finished transactions that were not taken yet: take them after each packet once a batch is full.
    pub fn finished(&mut self) -> &mut Outbox<Transaction> {
        &mut self.finished
    }

    /// Totals of all packets and messages.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Number of connections, including finished ones that are still kept.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are no connections.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Memory that is held for connections, without the entries, in bytes.
    pub fn held(&self) -> usize {
        self.used
    }

    /// Processes a packet. `ts_ns`: its time in UTC.
    pub fn record(&mut self, record: &Record<'_>, ts_ns: u64) {
        let (ip, packet) = self.reader.read(record, ts_ns);
        let (ip, packet) = (*ip, packet);
        self.now_ns = self.now_ns.max(ts_ns);
        if self.now_ns - self.looked_ns.min(self.now_ns) >= LOOK_EVERY_NS {
            self.look();
        }
        self.totals.packets += u64::from(record.segments());
        self.totals.wire_bytes += record.wire_bytes();
        if ip.flags & ip_flags::FRAGMENT != 0 {
            return self.fragment(record, ip, &packet, ts_ns);
        }
        match Segment::of(record, &ip, ts_ns) {
            Some(segment) => self.segment(&ip, &packet, &segment, record.segments().into()),
            None => self.totals.other_packets += u64::from(record.segments()),
        }
    }

    /// Processes an IP fragment. The packet that completes a datagram counts as that datagram, those before it as
    /// others.
    fn fragment(&mut self, record: &Record<'_>, mut ip: Ip, packet: &FlowPacket, ts_ns: u64) {
        let end = usize::from(ip.l3_off) + ip.l3_len as usize;
        let data = record.data();
        let there = &data[..end.min(data.len())];
        if ip.proto == TCP
            && let Some(Joined::Whole(datagram)) = self.fragments.packet(&ip, there, end, ts_ns)
            && let Some(segment) = Segment::of_datagram(&datagram, &mut ip, ts_ns)
        {
            self.segment(&ip, packet, &segment, record.segments().into());
        } else {
            self.totals.other_packets += u64::from(record.segments());
        }
    }

    /// Processes bytes of a direction that stayed in the kernel, the last of them at this time in UTC. They are not
    /// packets of this process, and bytes that are reported twice count once.
    pub fn offloaded(&mut self, told: &SkippedBytes, last_ns: u64) {
        let key = FlowKey { device: 0, flags: 0, ..told.key };
        let Some(reverse) = reverse_key(&key) else { return };
        let dir = usize::from((key.src, key.src_port) > (reverse.src, reverse.src_port));
        let key = if dir == 0 { key } else { reverse };
        let hash = self.random.hash_one(key);
        let found = self.table.find(hash, |at| self.entries[at as usize].key == key);
        // An unknown connection begins with its next packet.
        let Some(at) = found else { return };
        self.now_ns = self.now_ns.max(last_ns);
        let entry = &mut self.entries[at as usize];
        entry.last_ns = entry.last_ns.max(last_ns);
        let order = self.totals.packets;
        entry.connection.offloaded(dir, told.from, told.bytes, last_ns, order, &self.settings.extra);
        self.after(at);
    }

    /// Processes a segment, or an aggregate of this many packets on the wire.
    fn segment(&mut self, ip: &Ip, packet: &FlowPacket, segment: &Segment<'_>, packets: u64) {
        // The two directions may arrive on different devices.
        let mut key = FlowKey::of(ip, packet);
        (key.device, key.flags) = (0, 0);
        let Some(reverse) = reverse_key(&key) else {
            self.totals.other_packets += packets;
            return;
        };
        let dir = usize::from((key.src, key.src_port) > (reverse.src, reverse.src_port));
        let key = if dir == 0 { key } else { reverse };
        let hash = self.random.hash_one(key);
        let mut at = self.table.find(hash, |at| self.entries[at as usize].key == key).unwrap_or(NONE);
        if at != NONE && self.entries[at as usize].connection.is_another(dir, segment) {
            self.remove(at, EndReason::Ended);
            at = NONE;
        }
        if at == NONE {
            at = self.begin(hash, key);
        }
        let order = self.totals.packets;
        let entry = &mut self.entries[at as usize];
        entry.last_ns = segment.ts_ns;
        if segment.flags & SYN != 0 {
            entry.halves[dir] = HttpHalf::default();
        }
        let part = segment.len > 0 && entry.halves[dir].packet(segment.seq, segment.len, segment.data);
        entry.connection.packet(dir, segment, order, &self.settings.extra);
        let is_http = entry.connection.exchanges.client.is_some();
        self.totals.count(segment, packets, is_http, part);
        if is_http && !entry.counted {
            entry.counted = true;
            self.totals.http_connections += 1;
        }
        if !is_http && !entry.sealed {
            entry.sealed = self.totals.seal(packet.application);
        }
        self.after(at);
    }

    /// Updates the lists after a connection has advanced.
    fn after(&mut self, at: u32) {
        let connection = &mut self.entries[at as usize].connection;
        if connection.has_ended() && !connection.reset {
            self.end(at, EndReason::Ended);
        } else {
            self.settle(at, None);
            self.wait(at);
        }
        let list = if self.entries[at as usize].connection.over { &mut self.over } else { &mut self.silent };
        let links = &mut Silences(&mut self.entries);
        list.remove(links, at);
        list.push(links, at);
        while self.used > self.room && !self.table.is_empty() {
            self.evict();
        }
    }

    /// Ends connections that are due at this time, also without packets. True: [`HttpTable::finished`] is full; take it
    /// and call this again with the same time.
    #[must_use = "there may be more to end"]
    pub fn tick(&mut self, now_ns: u64) -> bool {
        if now_ns < self.now_ns && self.now_ns - now_ns > self.settings.idle_ns {
            // The clock was set back: no waiting connection is due by the old time.
            for at in 0..self.entries.len() {
                self.entries[at].last_ns = self.entries[at].last_ns.min(now_ns);
            }
            for due in &mut self.due {
                due.0 = due.0.min(now_ns);
            }
        }
        self.now_ns = now_ns;
        self.look()
    }

    /// Ends all connections at the end of a capture, in steps. True: [`HttpTable::finished`] is full; take it and call
    /// this again.
    #[must_use = "there may be more to end"]
    pub fn flush(&mut self) -> bool {
        self.fragments.finish();
        if self.look() {
            return true;
        }
        while let Some(at) = [self.over.first(), self.silent.first()].into_iter().find(|at| *at != NONE) {
            if self.finished.is_full() {
                return true;
            }
            self.remove(at, EndReason::Forced);
        }
        false
    }

    /// Ends connections that are due. True: there may be more, after the results are taken.
    fn look(&mut self) -> bool {
        // Connections that are scheduled again are not due in this pass, even at the end of time.
        for _ in 0..self.due.len() {
            if self.finished.is_full() {
                return true;
            }
            let Some((due, at, generation)) = self.due.front().copied() else { break };
            if due > self.now_ns {
                break;
            }
            self.due.pop_front();
            let entry = &mut self.entries[at as usize];
            if entry.free || entry.generation != generation {
                continue;
            }
            entry.connection.queued = false;
            entry.connection.look(self.now_ns, &self.settings.extra);
            if entry.connection.has_ended() {
                if !entry.connection.over {
                    self.end(at, EndReason::Ended);
                }
                continue;
            }
            self.settle(at, None);
            self.wait(at);
        }
        if self.expire(true, LINGER_NS, EndReason::Ended)
            || self.expire(false, self.settings.idle_ns, EndReason::Idle)
        {
            return true;
        }
        self.looked_ns = self.now_ns;
        false
    }

    /// Schedules a connection that waits for bytes, unless it is scheduled already.
    fn wait(&mut self, at: u32) {
        let entry = &mut self.entries[at as usize];
        if !entry.connection.waits() || std::mem::replace(&mut entry.connection.queued, true) {
            return;
        }
        // Removed connections are dropped from the list before they accumulate, even if the time does not advance.
        if self.due.len() >= 2 * self.most {
            let entries = &self.entries;
            self.due.retain(|(_, at, generation)| {
                let entry = &entries[*at as usize];
                !entry.free && entry.generation == *generation
            });
        }
        let generation = self.entries[at as usize].generation;
        self.due.push_back((self.now_ns.saturating_add(SOON_NS), at, generation));
    }

    /// Removes connections of a list that were idle for this long. True: there may be more.
    fn expire(&mut self, over: bool, ns: u64, reason: EndReason) -> bool {
        loop {
            let at = if over { self.over.first() } else { self.silent.first() };
            if at == NONE || self.now_ns.saturating_sub(self.entries[at as usize].last_ns) < ns {
                return false;
            }
            if self.finished.is_full() {
                return true;
            }
            self.remove(at, reason);
        }
    }

    fn begin(&mut self, hash: u64, key: FlowKey) -> u32 {
        if self.table.len() >= self.most {
            self.evict();
        }
        self.totals.connections += 1;
        let mut entry = Entry {
            key,
            hash,
            connection: Connection::new(self.messages_most),
            halves: [HttpHalf::default(); 2],
            memory: 0,
            last_ns: self.now_ns,
            number: 0,
            silence: Link::default(),
            generation: 0,
            free: false,
            counted: false,
            sealed: false,
            conflict: false,
        };
        let at = match self.free.pop() {
            Some(at) => {
                entry.generation = self.entries[at as usize].generation.wrapping_add(1);
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        let entries = &self.entries;
        self.table.insert(hash, at, |at| entries[at as usize].hash);
        self.silent.push(&mut Silences(&mut self.entries), at);
        at
    }

    /// Evicts a connection: a finished one, otherwise the one that was idle longest.
    fn evict(&mut self) {
        let at = if self.over.first() == NONE { self.silent.first() } else { self.over.first() };
        if at == NONE {
            return;
        }
        if !self.entries[at as usize].connection.over {
            self.totals.evicted += 1;
        }
        self.remove(at, EndReason::Resources);
    }

    /// Ends a connection, which is kept for a while.
    fn end(&mut self, at: u32, reason: EndReason) {
        let entry = &mut self.entries[at as usize];
        if entry.connection.over {
            return;
        }
        let by_itself = entry.connection.finish(self.now_ns, &self.settings.extra);
        self.settle(at, Some(if by_itself { EndReason::Ended } else { reason }));
        let links = &mut Silences(&mut self.entries);
        self.silent.remove(links, at);
        self.over.push(links, at);
    }

    /// Processes the skipped bytes of a connection that the kernel has not reported.
    fn take_untold(&mut self, at: u32) {
        let Some((offloaded, time)) = &self.offloaded else { return };
        let order = self.totals.packets;
        let entry = &mut self.entries[at as usize];
        if entry.connection.over || entry.connection.exchanges.client.is_none() {
            return;
        }
        let Some(reverse) = reverse_key(&entry.key) else { return };
        for (dir, key) in [entry.key, reverse].iter().enumerate() {
            for untold in offloaded.untold(key) {
                let last_ns = time.utc_of_steady_ns(untold.last_ns);
                let connection = &mut entry.connection;
                connection.offloaded(dir, untold.from, untold.bytes, last_ns, order, &self.settings.extra);
            }
        }
    }

    fn remove(&mut self, at: u32, reason: EndReason) {
        if reason != EndReason::Ended {
            self.take_untold(at);
        }
        self.end(at, reason);
        self.over.remove(&mut Silences(&mut self.entries), at);
        let entry = &mut self.entries[at as usize];
        // A finished connection may hold pieces that arrived after its end.
        self.used -= std::mem::take(&mut entry.memory);
        entry.free = true;
        self.table.remove(entry.hash, at);
        self.free.push(at);
    }

    /// Hands out the finished exchanges of a connection and updates the totals. `ended`: reason, if it has ended.
    fn settle(&mut self, at: u32, ended: Option<EndReason>) {
        let entry = &mut self.entries[at as usize];
        let connection = &mut entry.connection;
        self.totals.settle(connection);
        let conflict = connection.take_conflict();
        self.totals.conflicts += u64::from(conflict);
        entry.conflict |= conflict;
        while let Some(finished) = connection.exchanges.pop() {
            entry.number += 1;
            let mut marks = finished.marks;
            let broken = [Mark::NoResponse, Mark::RequestUnfinished, Mark::ResponseUnfinished];
            if broken.iter().any(|mark| marks.has(*mark)) {
                if let Some(mark) = ended.and_then(reason_mark) {
                    marks.set(mark);
                }
                if connection.reset {
                    marks.set(Mark::Reset);
                }
            }
            if std::mem::take(&mut entry.conflict) {
                marks.set(Mark::Conflict);
            }
            let client = connection.exchanges.client.unwrap_or(0);
            let record = FlowRecord {
                key: entry.key,
                flow: Default::default(),
                reverse: None,
                reason: ended.unwrap_or(EndReason::Ended),
            };
            let (Some(source), Some(destination)) = (record.source(), record.destination()) else { continue };
            let ends = [(source, record.source_port()), (destination, record.destination_port())];
            let transaction = Transaction {
                client: ends[client],
                server: ends[1 - client],
                vlan: record.vlan(),
                number: entry.number,
                request: finished.request,
                response: finished.response,
                informational: finished.informational,
                marks,
            };
            self.totals.add(&transaction);
            let memory = transaction.memory();
            self.finished.push(transaction, memory);
        }
        let memory = if ended.is_some() { 0 } else { connection.memory() };
        self.used = self.used - entry.memory + memory;
        entry.memory = memory;
    }
}
