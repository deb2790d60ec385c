//! Active flows of one worker.

use ahash::RandomState;
use wirelane::Ip;
use wirelane_bpf::flow::{EndReason, Flow, FlowKey, FlowPacket, KEY_EGRESS, Timeouts, flow_flags};

use super::busiest::{self, Busiest, Watch};
use super::lists::{Link, Links, List, NONE};
use super::record::{FlowRecord, KEY_TURNS, reverse_key};
use super::settings::{CacheSettings, LEAST_MEMORY};
use super::totals::Totals;
use crate::index::{self, Index};

/// Interval of checks for expired flows, on the clock of the packets.
const LOOK_EVERY_NS: u64 = 100_000_000;
/// Number of the longest idle flows that are compared for eviction.
const COMPARED: usize = 16;
/// Number of records in [`FlowCache::finished`] from which on only packets end further flows.
const MOST_FINISHED: usize = 256;
const TCP_FIN: u8 = 0x01;
const TCP_RST: u8 = 0x04;

/// A flow in the cache.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: FlowKey,
    flow: Flow,
    hash: u64,
    /// Link in order of the start of flows.
    age: Link,
    /// Link in order of the last packet, in [`FlowCache::silent`] or [`FlowCache::ended`].
    silence: Link,
    /// Index of the other direction, or [`NONE`]; in a free entry that of the next free one.
    peer: u32,
    /// Whether it is in [`FlowCache::ended`].
    ended: bool,
    /// Whether the other direction began first.
    answers: bool,
}

/// The flows of one worker.
#[derive(Debug)]
pub struct FlowCache {
    settings: CacheSettings,
    random: RandomState,
    table: Index,
    entries: Vec<Entry>,
    most: usize,
    free: u32,
    aged: List,
    silent: List,
    ended: List,
    /// Latest known time, and that of the last check.
    now_ns: u64,
    looked_ns: u64,
    finished: Vec<FlowRecord>,
    totals: Totals,
    /// Baseline of [`FlowCache::busiest`], if enabled.
    watch: Option<Watch>,
}

struct Ages<'a>(&'a mut [Entry]);
struct Silences<'a>(&'a mut [Entry]);

impl Links for Ages<'_> {
    fn link(&mut self, at: u32) -> &mut Link {
        &mut self.0[at as usize].age
    }
}

impl Links for Silences<'_> {
    fn link(&mut self, at: u32) -> &mut Link {
        &mut self.0[at as usize].silence
    }
}

impl FlowCache {
    /// An empty cache. Its hash is seeded at random, so an attacker cannot choose keys that collide.
    pub fn new(settings: CacheSettings) -> FlowCache {
        let most = settings.memory.max(LEAST_MEMORY) / (size_of::<Entry>() + index::BYTES);
        let most = most.min(NONE as usize - 1);
        FlowCache {
            settings,
            random: RandomState::new(),
            table: Index::new(most),
            // All at once: a vector that grows needs memory for both the old and the new one. Memory that is not touched
            // is not allocated.
            entries: Vec::with_capacity(most),
            most,
            free: NONE,
            aged: List::default(),
            silent: List::default(),
            ended: List::default(),
            now_ns: 0,
            looked_ns: 0,
            finished: Vec::new(),
            totals: Totals::default(),
            watch: None,
        }
    }

    /// Capacity in flows.
    pub fn capacity(&self) -> usize {
        self.most
    }

    /// Number of active flows.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are no active flows.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Requested memory in bytes.
    pub fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.table.memory()
    }

    /// Records of ended flows that were not taken yet. Take them after each packet: while 256 of them wait, timeouts do
    /// not end flows.
    pub fn finished(&mut self) -> &mut Vec<FlowRecord> {
        &mut self.finished
    }

    /// Totals of all records that were handed out.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Enables [`FlowCache::busiest`], which takes 16 bytes for each flow of the capacity, in addition to the memory
    /// limit.
    pub fn watch(&mut self) {
        self.watch = Some(Watch::default());
    }

    /// At most this many flows, each of one direction, with the most traffic since the last call, and the sum of the
    /// others; empty unless enabled. Visits only flows with traffic since then.
    pub fn busiest(&mut self, most: usize) -> Busiest {
        let Some(mut watch) = self.watch.take() else { return Busiest::default() };
        let mut busy = watch.take_gone();
        let mut seen = Vec::new();
        for list in [self.silent, self.ended] {
            let mut at = list.last();
            while at != NONE {
                let Entry { key, flow, peer, .. } = &self.entries[at as usize];
                let flow = watch.since(at, key, flow);
                let quiet = |peer: u32| {
                    let Entry { key, flow, .. } = &self.entries[peer as usize];
                    watch.since(peer, key, flow).packets == 0
                };
                // No earlier flow has had packets since the last call: a packet moves both directions of its flow to
                // the end.
                if flow.packets == 0 && (*peer == NONE || quiet(*peer)) {
                    break;
                }
                if flow.packets > 0 {
                    busy.flows.push(flow);
                    seen.push(at);
                }
                at = List::before(&mut Silences(&mut self.entries), at);
            }
        }
        for at in seen {
            watch.looked(at, &self.entries[at as usize].flow);
        }
        busy.flows = busiest::together(busy.flows);
        busy.keep(most);
        self.watch = Some(watch);
        busy
    }

    /// Adds a packet with these headers ([`super::FlowReader::read`]).
    #[inline]
    pub fn packet(&mut self, ip: &Ip, packet: &FlowPacket) {
        self.pass(packet.ts_ns);
        let key = FlowKey::of(ip, packet);
        let hash = self.random.hash_one(key);
        let mut at = self.find(hash, &key);
        if at != NONE {
            let over = match self.entries[at as usize].peer {
                NONE => self.entries[at as usize].flow.cut(ip, packet.ts_ns, &self.settings.timeouts),
                _ => self.both(at).cut(ip, packet.ts_ns, &self.settings.timeouts),
            };
            if let Some(reason) = over {
                self.end(at, reason);
                at = NONE;
            }
        }
        if at == NONE {
            at = self.begin(hash, key, packet.ts_ns);
        }
        self.entries[at as usize].flow.update(ip, packet);
        self.touch(at);
    }

    /// Adds a flow part that a smaller cache has evicted; it continues the known flow. It does not advance the time, as
    /// parts of other flows may be held back for longer: call [`FlowCache::tick`] with a time that no later part
    /// precedes.
    pub fn part(&mut self, key: &FlowKey, part: &Flow) {
        let hash = self.random.hash_one(key);
        let mut at = self.find(hash, key);
        if at != NONE
            && let Some(reason) = self.both(at).cut_by_part(part, &self.settings.timeouts)
        {
            self.end(at, reason);
            at = NONE;
        }
        if at == NONE {
            at = self.begin(hash, *key, part.first_ns);
            self.entries[at as usize].flow = *part;
        } else {
            self.entries[at as usize].flow.join(part);
        }
        self.touch(at);
    }

    /// Changes the timeouts, also of the flows that are there.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) {
        self.settings.timeouts = timeouts;
    }

    /// Ends flows that are due at this time, also without packets. If the clock was set back, flows follow the new
    /// time. True: 256 flows wait in [`FlowCache::finished`]; take them and call this again with the same time.
    #[must_use = "there may be more to end"]
    pub fn tick(&mut self, now_ns: u64) -> bool {
        if now_ns < self.now_ns && self.now_ns - now_ns > self.settings.timeouts.idle_ns {
            while self.aged.first() != NONE {
                if self.is_full() {
                    return true;
                }
                self.end(self.aged.first(), EndReason::Idle);
            }
        }
        self.now_ns = now_ns;
        self.look()
    }

    /// Ends all flows at the end of a capture, in steps: 256 flows wait in [`FlowCache::finished`] after each except
    /// the last. True: take them and call this again.
    #[must_use = "there may be more to end"]
    pub fn flush(&mut self) -> bool {
        while self.aged.first() != NONE {
            if self.is_full() {
                return true;
            }
            let at = self.aged.first();
            // The flow may be due already, behind others that are not.
            let due = self.both(at).expired(self.now_ns, &self.settings.timeouts);
            self.end(at, due.unwrap_or(EndReason::Forced));
        }
        false
    }

    /// Whether the maximum number of records waits.
    fn is_full(&self) -> bool {
        self.finished.len() >= MOST_FINISHED
    }

    fn pass(&mut self, ts_ns: u64) {
        self.now_ns = self.now_ns.max(ts_ns);
        if self.now_ns - self.looked_ns.min(self.now_ns) >= LOOK_EVERY_NS {
            self.look();
        }
    }

    /// Ends flows that are due. True: there may be more, after the records are taken.
    fn look(&mut self) -> bool {
        while !self.is_full() && self.end_if_due(self.ended) {}
        while !self.is_full() && self.end_if_due(self.silent) {}
        while !self.is_full() && self.end_if_due(self.aged) {}
        if self.is_full() {
            return true;
        }
        self.looked_ns = self.now_ns;
        false
    }

    /// Ends the first flow of a list if it is due.
    fn end_if_due(&mut self, list: List) -> bool {
        let at = list.first();
        if at == NONE {
            return false;
        }
        match self.both(at).expired(self.now_ns, &self.settings.timeouts) {
            Some(reason) => {
                self.end(at, reason);
                true
            }
            None => false,
        }
    }

    fn find(&self, hash: u64, key: &FlowKey) -> u32 {
        self.table.find(hash, |at| self.entries[at as usize].key == *key).unwrap_or(NONE)
    }

    /// A new entry without packets.
    fn begin(&mut self, hash: u64, key: FlowKey, ts_ns: u64) -> u32 {
        let mut peer = self.peer_of(&key, ts_ns);
        if self.table.len() >= self.most {
            let out = self.lightest();
            // The other direction may be the flow to evict.
            if peer != NONE && (out == peer || self.entries[out as usize].peer == peer) {
                peer = NONE;
            }
            self.end(out, EndReason::Resources);
        }
        let entry = Entry {
            key,
            flow: Flow::default(),
            hash,
            age: Link::default(),
            silence: Link::default(),
            peer,
            ended: false,
            answers: peer != NONE,
        };
        let at = match self.free {
            NONE => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
            at => {
                self.free = self.entries[at as usize].peer;
                self.entries[at as usize] = entry;
                at
            }
        };
        if peer != NONE {
            self.entries[peer as usize].peer = at;
        }
        if let Some(watch) = &mut self.watch {
            watch.begin(at);
        }
        self.aged.push(&mut Ages(&mut self.entries), at);
        self.silent.push(&mut Silences(&mut self.entries), at);
        let entries = &self.entries;
        self.table.insert(hash, at, |at| entries[at as usize].hash);
        at
    }

    /// Other direction of a new flow, if biflows are enabled and that one has no peer yet.
    fn peer_of(&mut self, key: &FlowKey, ts_ns: u64) -> u32 {
        if !self.settings.biflow {
            return NONE;
        }
        let Some(reverse) = reverse_key(key) else { return NONE };
        if reverse == *key {
            return NONE;
        }
        // The other direction has the opposite direction on a host's device, and the same direction on a mirror port.
        let turned = FlowKey { flags: reverse.flags ^ KEY_EGRESS, ..reverse };
        let free = [turned, reverse].into_iter().find_map(|key| {
            let at = self.find(self.random.hash_one(key), &key);
            (at != NONE && self.entries[at as usize].peer == NONE).then_some(at)
        });
        let Some(at) = free else { return NONE };
        // It has expired but was not checked yet.
        if let Some(reason) = self.entries[at as usize].flow.expired(ts_ns, &self.settings.timeouts) {
            self.end(at, reason);
            return NONE;
        }
        at
    }

    /// Flow to evict: the first that TCP has ended, otherwise the lightest of those that were idle longest. The cache
    /// is not empty.
    fn lightest(&mut self) -> u32 {
        let list = if self.ended.first() == NONE { self.silent } else { self.ended };
        let mut at = list.first();
        let (mut lightest, mut least) = (at, u64::MAX);
        for _ in 0..COMPARED {
            if at == NONE {
                break;
            }
            let entry = &self.entries[at as usize];
            let other = match entry.peer {
                NONE => 0,
                peer => self.entries[peer as usize].flow.wire_bytes,
            };
            if entry.flow.wire_bytes.saturating_add(other) < least {
                (lightest, least) = (at, entry.flow.wire_bytes.saturating_add(other));
            }
            at = List::after(&mut Silences(&mut self.entries), at);
        }
        lightest
    }

    /// Moves the flow of a packet to the end of its list.
    fn touch(&mut self, at: u32) {
        let ended = match self.entries[at as usize].peer {
            NONE => self.entries[at as usize].flow.has_ended(),
            _ => self.both(at).has_ended(),
        };
        self.put_last(at, ended);
        match self.entries[at as usize].peer {
            NONE => {}
            peer => self.put_last(peer, ended),
        }
    }

    fn put_last(&mut self, at: u32, ended: bool) {
        let before = std::mem::replace(&mut self.entries[at as usize].ended, ended);
        let links = &mut Silences(&mut self.entries);
        let list = if before { &mut self.ended } else { &mut self.silent };
        list.remove(links, at);
        let list = if ended { &mut self.ended } else { &mut self.silent };
        list.push(links, at);
    }

    /// Flow to which the timeouts of an entry apply: one direction, or the sum of both. A biflow has ended if it was
    /// reset, or if both directions were closed.
    fn both(&self, at: u32) -> Flow {
        let entry = &self.entries[at as usize];
        if entry.peer == NONE {
            return entry.flow;
        }
        let (flow, other) = (&entry.flow, &self.entries[entry.peer as usize].flow);
        if other.packets == 0 || flow.packets == 0 {
            return if flow.packets == 0 { *other } else { *flow };
        }
        let closed = flow.tcp_flags & other.tcp_flags & TCP_FIN;
        Flow {
            first_ns: flow.first_ns.min(other.first_ns),
            last_ns: flow.last_ns.max(other.last_ns),
            tcp_flags: closed | ((flow.tcp_flags | other.tcp_flags) & TCP_RST),
            ..*flow
        }
    }

    /// Removes an entry with its other direction, and hands out the record.
    fn end(&mut self, at: u32, reason: EndReason) {
        let peer = self.entries[at as usize].peer;
        let entry = self.take(at);
        let mut record = FlowRecord { key: entry.key, flow: entry.flow, reverse: None, reason };
        if peer != NONE {
            let other = self.take(peer);
            let (forward, back) = if initiates(&entry, &other) { (entry, other) } else { (other, entry) };
            record = FlowRecord { key: forward.key, flow: forward.flow, reverse: Some(back.flow), reason };
            if (forward.key.flags ^ back.key.flags) & KEY_EGRESS != 0 {
                record.key.flags |= KEY_TURNS;
            }
        }
        self.totals += &record;
        self.finished.push(record);
    }

    fn take(&mut self, at: u32) -> Entry {
        let entry = self.entries[at as usize];
        if let Some(watch) = &mut self.watch {
            watch.end(at, &entry.key, &entry.flow);
        }
        self.aged.remove(&mut Ages(&mut self.entries), at);
        let list = if entry.ended { &mut self.ended } else { &mut self.silent };
        list.remove(&mut Silences(&mut self.entries), at);
        self.table.remove(entry.hash, at);
        self.entries[at as usize].peer = self.free;
        self.free = at;
        entry
    }
}

/// Whether the first of two directions is that of the initiator: the sender of the SYN, otherwise of the first packet.
fn initiates(one: &Entry, other: &Entry) -> bool {
    let asked = |entry: &Entry| entry.flow.flags & (flow_flags::SYN | flow_flags::SYNACK) == flow_flags::SYN;
    let answered = |entry: &Entry| entry.flow.flags & flow_flags::SYNACK != 0;
    match (asked(one) || answered(other), asked(other) || answered(one)) {
        (true, false) => true,
        (false, true) => false,
        // Flow parts may arrive in another order than their packets.
        _ if one.flow.first_ns != other.flow.first_ns => one.flow.first_ns < other.flow.first_ns,
        _ => !one.answers,
    }
}
