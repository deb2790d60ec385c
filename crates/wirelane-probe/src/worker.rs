//! A worker: counts packets in tables, which are handed over at the end of each interval.
//!
//! Packets arrive in order, or nearly so: a packet of a closed interval is counted in the oldest open one. Flow parts,
//! the kernel's sums of packets, arrive seconds later and for several intervals at a time; each part belongs to exactly
//! one interval. Intervals stay open until all of their parts are known to have arrived. The worker also sums packets
//! for measurements that could be made in the kernel (`parts`), and counts the sums at the end of the interval.

use std::collections::VecDeque;
use std::sync::Arc;

use wirelane::{Ip, PluginCounts, PluginLine, Record, flags, ip_flags, l3};
use wirelane_bpf::evaluate::{self, NoExact};
use wirelane_bpf::flow::{Flow, FlowKey, KEY_EGRESS, KEY_PORTS, NO_VLAN};
use wirelane_bpf::layout::{NO_OFFSET, Parsed, RecordHeader};
use wirelane_bpf::native;
use wirelane_bpf::rules::{Facts, LiveCounts};

use crate::cell::Counted;
use crate::key::Seen;
use crate::packet_buffer::{Catching, Head, Orders};
use crate::plan::{Plan, Switches};
use crate::table::Table;

#[cfg(test)]
mod accounts;
mod app_detect;
mod parts;
mod segments;

use app_detect::AppDetection;
use parts::{Common, Part, Parts};
use segments::Followed;

/// Counts of one worker in one interval.
#[derive(Debug)]
pub struct Closed {
    /// Index of the worker.
    pub(crate) worker: usize,
    /// Plan by which it was counted; in `at` the generation of the plan and the number of the interval.
    pub(crate) plan: Arc<Plan>,
    pub(crate) at: (u64, u64),
    /// All intervals before this position have been handed over; later results are of this plan and interval, or later.
    pub(crate) reached: (u64, u64),
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Packets of an earlier interval that are counted in this one.
    pub(crate) late: u64,
    /// Tables by measurement; `None` for measurements that were not active.
    pub(crate) tables: Vec<Option<Table>>,
    /// Whether the worker counts the rest of this interval, and the intervals after it, by another plan.
    pub(crate) goes_on: bool,
    /// Plug-in counters at the end of the interval, if there are plug-ins.
    pub(crate) counted: Vec<PluginLine>,
}

/// Receiver of tables that are handed over; returns false if there is no receiver any more.
pub type Outlet = Box<dyn FnMut(Closed) -> bool + Send>;

/// An interval that is being counted.
struct Open {
    interval: u64,
    /// Rules that are switched off and match no packet, one bit each.
    idle: u32,
    tables: Vec<Option<Table>>,
    packets: u64,
    bytes: u64,
    late: u64,
}

impl Open {
    /// Empty tables for the measurements that are active now.
    fn new(plan: &Plan, interval: u64) -> Open {
        let active = plan.active();
        let of = plan.config.measurements.iter().zip(&plan.shapes).enumerate();
        let tables = of.map(|(place, (measurement, shape))| {
            // Plug-in counters are read from the kernel and have no packets.
            (active & 1 << place != 0 && measurement.plugin.is_none())
                .then(|| Table::new(shape, measurement.keys))
        });
        Open { interval, idle: plan.idle_rules(), tables: tables.collect(), packets: 0, bytes: 0, late: 0 }
    }
}

/// Measurements of one worker. No other thread reads or writes them.
pub struct Worker {
    index: usize,
    switches: Arc<Switches>,
    outlet: Outlet,
    inner: bool,
    generation: u64,
    plan: Arc<Plan>,
    /// Open intervals in order; empty before the first packet; one if packets are counted directly.
    open: VecDeque<Open>,
    /// Intervals before this one are closed.
    floor: u64,
    /// Counters that the rule evaluation requires; the values are not used.
    hits: [LiveCounts; 1],
    parsed: Parsed,
    followed: Followed,
    /// Sums of packets of the last open interval that are not yet in its tables.
    parts: Parts,
    applications: AppDetection,
    plugins: Option<PluginCounts>,
    catching: Option<Catching>,
}

impl Worker {
    /// A worker without counts. With `inner` it parses the headers inside tunnels.
    pub fn new(index: usize, switches: Arc<Switches>, inner: bool, outlet: Outlet) -> Worker {
        let (generation, plan) = switches.now();
        Worker {
            index,
            switches,
            outlet,
            inner,
            generation,
            plan,
            open: VecDeque::new(),
            floor: 0,
            hits: [LiveCounts::default()],
            parsed: Parsed::default(),
            followed: Followed::default(),
            parts: Parts::new(),
            applications: AppDetection::default(),
            plugins: None,
            catching: None,
        }
    }

    /// Buffers the last packets for these orders, and records the packets that they request.
    pub fn catch(&mut self, orders: Arc<Orders>) {
        let most = self.plan.kept.map_or(0, |kept| kept.buffer);
        self.catching = Some(Catching::new(orders, self.index, self.plan.origin(), most));
    }

    /// Adds the counters of these plug-ins to the result of each interval.
    pub fn plugins(&mut self, plugins: Option<PluginCounts>) {
        self.plugins = plugins;
    }

    fn interval_of(&self, utc_ns: u64) -> u64 {
        utc_ns / self.plan.config.interval_ns
    }

    /// Begins an interval after all others.
    fn begin(&mut self, interval: u64) {
        self.open.push_back(Open::new(&self.plan, interval));
    }

    /// Hands over all intervals of this plan before this position, which receive no further packets. Returns false if
    /// there is no receiver any more.
    fn close(&mut self, reached: (u64, u64)) -> bool {
        let mut is_taken = true;
        let goes_on = self.generation < reached.0 && reached.0 < u64::MAX;
        if self.open.back().is_some_and(|last| (self.generation, last.interval) < reached) {
            self.settle();
        }
        while let Some(first) = self.open.front()
            && (self.generation, first.interval) < reached
        {
            let next = self.open.get(1).map_or(reached, |next| (self.generation, next.interval).min(reached));
            let Some(Open { interval, tables, packets, bytes, late, .. }) = self.open.pop_front() else {
                break;
            };
            is_taken &= (self.outlet)(Closed {
                worker: self.index,
                plan: Arc::clone(&self.plan),
                at: (self.generation, interval),
                reached: next,
                packets,
                bytes,
                late,
                tables,
                goes_on,
                counted: self.plugins.as_ref().map(PluginCounts::read).unwrap_or_default(),
            });
        }
        if reached.0 == self.generation {
            self.floor = self.floor.max(reached.1);
        }
        is_taken
    }

    /// Advances the time to this, UTC in nanoseconds: closes intervals that are over, even without packets. Returns
    /// false if there is no receiver any more.
    pub fn tick(&mut self, utc_ns: u64) -> bool {
        let now = self.interval_of(utc_ns);
        let goes_on = self.close((self.generation, now));
        if self.open.is_empty() {
            self.begin(now);
        }
        if let Some(catching) = &mut self.catching {
            catching.look();
            catching.tick(utc_ns);
        }
        goes_on
    }

    /// Switches to the active plan if it has changed. Returns false if there is no receiver any more.
    pub fn pause(&mut self) -> bool {
        if !self.switches.is_behind(self.generation) {
            return true;
        }
        let (generation, plan) = self.switches.now();
        // The intervals of the new plan may have another length.
        let start_ns =
            self.open.front().map(|open| open.interval.saturating_mul(self.plan.config.interval_ns));
        let length_ns = plan.config.interval_ns;
        let goes_on = start_ns.is_none_or(|start_ns| self.close((generation, start_ns / length_ns)));
        if let Some(catching) = self.catching.as_mut().filter(|_| plan.origin() != self.plan.origin()) {
            catching.replace(plan.origin(), plan.kept.map_or(0, |kept| kept.buffer));
        }
        (self.generation, self.plan) = (generation, plan);
        self.floor = start_ns.map_or(0, |start_ns| start_ns / length_ns);
        if start_ns.is_some() {
            self.begin(self.floor);
        }
        goes_on
    }

    /// Closes all intervals after the last packet. Returns false if there is no receiver any more.
    pub fn finish(&mut self) -> bool {
        if self.open.is_empty() {
            self.begin(0);
        }
        let goes_on = self.close((u64::MAX, u64::MAX));
        if let Some(catching) = &mut self.catching {
            catching.finish();
        }
        goes_on
    }

    /// Counts a packet with this time, UTC in nanoseconds. Returns false if there is no receiver any more.
    #[inline]
    pub fn record(&mut self, record: &Record<'_>, utc_ns: u64) -> bool {
        let mut goes_on = true;
        let at = self.interval_of(utc_ns);
        match self.open.back_mut() {
            Some(open) if at == open.interval => {}
            Some(open) if at < open.interval => open.late += 1,
            Some(_) => {
                goes_on = self.close((self.generation, at));
                self.begin(at);
            }
            None => self.begin(at),
        }
        self.count(record, utc_ns, self.open.len() - 1);
        goes_on
    }

    /// Counts a packet that was delivered in addition to flow parts, in the interval of this time, UTC in nanoseconds.
    pub fn whole(&mut self, record: &Record<'_>, utc_ns: u64) {
        let place = self.open_at(utc_ns, 1);
        self.count(record, utc_ns, place);
    }

    /// Counts the packets of a flow part from this device, made with [`wirelane::KernelFlows::intervals`], in the
    /// interval of this time, UTC in nanoseconds.
    pub fn part(&mut self, key: &FlowKey, flow: &Flow, device: u16, utc_ns: u64) {
        let place = self.open_at(utc_ns, flow.packets);
        let plan = &*self.plan;
        let open = &mut self.open[place];
        open.packets += flow.packets;
        open.bytes += flow.wire_bytes;
        let vlan = (key.vlan != NO_VLAN).then_some(key.vlan);
        let is_egress = key.flags & KEY_EGRESS != 0;
        let common = Common::new(&headers(key), vlan, is_egress, (flow.queue, device));
        let part = Part { common, packets: flow.packets, bytes: flow.wire_bytes };
        // Packets for all other measurements are delivered one by one and are not in any part.
        add_part(plan, open, &self.hits, &part, plan.of_parts);
    }

    /// Index of the open interval of this UTC time in ns; this many packets are late if their interval is closed.
    fn open_at(&mut self, utc_ns: u64, packets: u64) -> usize {
        let at = self.interval_of(utc_ns);
        let late = at < self.floor;
        let at = at.max(self.floor);
        let place = match self.open.binary_search_by_key(&at, |open| open.interval) {
            Ok(place) => place,
            Err(place) => {
                if place == self.open.len() {
                    // The pending sums belong to the interval that was the last so far.
                    self.settle();
                }
                self.open.insert(place, Open::new(&self.plan, at));
                place
            }
        };
        self.open[place].late += if late { packets } else { 0 };
        place
    }

    /// Adds the pending sums to the tables of the last open interval.
    fn settle(&mut self) {
        let Some(open) = self.open.back_mut() else { return };
        let (plan, hits) = (&*self.plan, &self.hits);
        self.parts.drain(|part| add_part(plan, open, hits, part, plan.of_parts));
    }

    /// Counts a packet in the open interval at this index.
    fn count(&mut self, record: &Record<'_>, utc_ns: u64, place: usize) {
        let header = record.header();
        let last = place + 1 == self.open.len();
        let Some(open) = self.open.get_mut(place) else { return };
        let (packets, bytes) = (u64::from(record.segments()), record.wire_bytes());
        open.packets += packets;
        open.bytes += bytes;
        let plan = &*self.plan;
        let is_kept = self.catching.is_some() && plan.kept.is_some();
        let is_added_up = plan.of_parts == plan.all && !is_kept;
        let mut add_up = |common: Common, header: &RecordHeader| {
            if last {
                self.parts.add(&common, header.hash, (packets, bytes))
            } else {
                Some(Part { common, packets, bytes })
            }
        };
        if is_added_up
            && !self.inner
            && let Some(common) = Common::of_record(record)
        {
            if let Some(part) = add_up(common, header) {
                add_part(plan, open, &self.hits, &part, plan.of_parts);
            }
            return;
        }
        match record.digest() {
            Some(digest) => {
                self.parsed =
                    Parsed { outer: *digest, flags: header.flags & KNOWN_OF_DIGESTS, ..Parsed::default() };
                self.parsed.vlan_tci[0] = header.vlan_tci;
            }
            None => self.parsed = native::parse(record.link_type(), record.data(), self.inner),
        }
        let inside = self.inner && self.parsed.flags & flags::TUNNEL != 0;
        let ip = if inside { &self.parsed.inner } else { &self.parsed.outer };
        let vlan = (self.parsed.flags & flags::VLAN != 0).then_some(self.parsed.vlan_tci[0] & 0xfff);
        let device = record.device() as u16;
        if plan.of_parts != 0 {
            let common = Common::new(ip, vlan, record.is_egress(), (record.queue(), device));
            if let Some(part) = add_up(common, header) {
                add_part(plan, open, &self.hits, &part, plan.of_parts);
            }
            if is_added_up {
                return;
            }
        }
        let packet = Counted {
            seen: Seen {
                ip,
                vlan,
                queue: record.queue(),
                device,
                application: if plan.applications {
                    self.applications.of(record.data(), header.wire_len, ip)
                } else {
                    None
                },
            },
            packets,
            bytes,
            ts_ns: utc_ns,
            start_ns: open.interval.saturating_mul(plan.config.interval_ns),
            mac: if plan.macs { arp_sender(record.data(), ip) } else { None },
            segment: if plan.tcp { self.followed.segment(ip, header.wire_len) } else { None },
            seed: plan.seed,
        };
        let facts = Facts {
            now_ns: utc_ns,
            wire_len: header.wire_len,
            queue: record.queue().into(),
            egress: u32::from(record.is_egress()),
            more_packets: record.segments() - 1,
            more_bytes: (bytes - u64::from(header.wire_len)) as u32,
            seed: 0,
        };
        let seen = evaluate::Packet { parsed: &self.parsed, data: record.data(), inner: self.inner };
        let recorded = plan.kept.map_or(0, |kept| kept.rules);
        let fits = add(plan, open, &self.hits, (seen, &facts), &packet, (!plan.of_parts, recorded));
        if let (Some(catching), Some(kept)) = (&mut self.catching, &plan.kept) {
            let head = Head {
                ts_ns: utc_ns,
                captured: record.data().len() as u32,
                wire_len: header.wire_len,
                device,
                queue: record.queue(),
                egress: record.is_egress(),
            };
            let is_kept = kept.all || fits & kept.rules != 0;
            catching.packet(head, is_kept.then_some(fits), record.data());
        }
    }
}

/// Adds a part of this interval to the tables of these measurements.
fn add_part(plan: &Plan, open: &mut Open, hits: &[LiveCounts; 1], part: &Part, of: u64) {
    let parsed = part.common.parsed();
    let start_ns = open.interval.saturating_mul(plan.config.interval_ns);
    let packet = Counted {
        seen: Seen {
            ip: &parsed.outer,
            vlan: part.common.vlan(),
            queue: part.common.queue,
            device: part.common.device,
            // Measurements by application are not made from parts.
            application: None,
        },
        packets: part.packets,
        bytes: part.bytes,
        ts_ns: start_ns,
        start_ns,
        mac: None,
        segment: None,
        seed: plan.seed,
    };
    let egress = u32::from(part.common.is_egress);
    let facts =
        Facts { now_ns: start_ns, wire_len: 0, queue: part.common.queue.into(), egress, ..Facts::default() };
    let seen = evaluate::Packet { parsed: &parsed, data: &[], inner: false };
    add(plan, open, hits, (seen, &facts), &packet, (of, 0));
}

/// Adds a packet, or a sum of packets, to the tables of those of these measurements whose rule it matches. Returns one
/// bit for each rule that matches, of the rules of these measurements and of recordings.
#[inline]
fn add(
    plan: &Plan,
    open: &mut Open,
    hits: &[LiveCounts; 1],
    (seen, facts): (evaluate::Packet<'_>, &Facts),
    packet: &Counted<'_>,
    (wanted, mut recorded): (u64, u32),
) -> u32 {
    // Bits of evaluated rules and of rules that match; idle rules count as evaluated and do not match.
    let (mut asked, mut fits) = (open.idle, 0u32);
    let mut ask = |rule: usize, fits: &mut u32| {
        let bit = 1 << rule;
        if asked & bit == 0 {
            asked |= bit;
            let evaluated = evaluate::evaluate(&plan.rules[rule], hits, &mut NoExact, seen, facts);
            *fits |= if evaluated.hits > 0 { bit } else { 0 };
        }
        *fits & bit != 0
    };
    let of = plan.config.measurements.iter().zip(&plan.shapes).zip(&mut open.tables);
    for (place, ((measurement, shape), table)) in of.enumerate() {
        let Some(table) = table.as_mut().filter(|_| wanted & 1 << place != 0) else { continue };
        if measurement.rule.is_none_or(|rule| ask(rule, &mut fits)) {
            table.add(measurement, shape, packet);
        }
    }
    while recorded != 0 {
        ask(recorded.trailing_zeros() as usize, &mut fits);
        recorded &= recorded - 1;
    }
    fits
}

/// Headers of the packets of a flow part.
fn headers(key: &FlowKey) -> Ip {
    let ports = (key.flags & KEY_PORTS != 0).then_some((key.src_port, key.dst_port));
    headers_of((key.src, key.dst), ports, (key.l3, key.proto))
}

fn headers_of((src, dst): ([u8; 16], [u8; 16]), ports: Option<(u16, u16)>, (l3, proto): (u8, u8)) -> Ip {
    let (src_port, dst_port) = ports.unwrap_or_default();
    Ip {
        src,
        dst,
        src_port,
        dst_port,
        l3,
        proto,
        flags: if ports.is_some() { ip_flags::PORTS } else { 0 },
        l3_off: NO_OFFSET,
        l4_off: NO_OFFSET,
        payload_off: NO_OFFSET,
        ..Ip::default()
    }
}

/// Flags of a record that describe the headers in its digest.
const KNOWN_OF_DIGESTS: u16 = flags::VLAN;

/// Ethernet address of the sender in an ARP packet for Ethernet and IPv4 (RFC 826). A probe for an unused address (RFC
/// 5227) has none.
fn arp_sender(data: &[u8], ip: &Ip) -> Option<[u8; 6]> {
    if ip.l3 != l3::ARP || ip.src[..4] == [0; 4] || ip.l3_off == NO_OFFSET {
        return None;
    }
    let arp = data.get(usize::from(ip.l3_off)..)?;
    if arp.get(..6)? != [0, 1, 8, 0, 6, 4] {
        return None;
    }
    arp.get(8..14)?.try_into().ok()
}
