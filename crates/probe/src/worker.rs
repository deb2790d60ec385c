//! A worker's part: packets into tables, which are handed over at the end of each interval.

use std::sync::Arc;

use wirelane::{Ip, Record, flags, ip_flags, l3};
use wirelane_datapath::judge::{self, NoPrecise};
use wirelane_datapath::layout::{NO_OFFSET, Parsed};
use wirelane_datapath::native;
use wirelane_datapath::rules::{Facts, LiveCounts};

use crate::cell::Counted;
use crate::key::Seen;
use crate::plan::{Plan, Switches};
use crate::table::Table;

mod segments;

use segments::Followed;

/// What one worker has counted in one interval.
#[derive(Debug)]
pub struct Closed {
    /// The worker.
    pub(crate) worker: usize,
    /// The plan by which it was counted, and that plan's number and the interval's.
    pub(crate) plan: Arc<Plan>,
    pub(crate) at: (u64, u64),
    /// Everything before this has been handed over; what is still to come is of this plan and interval, or later ones.
    pub(crate) reached: (u64, u64),
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Packets of an earlier interval, which are counted in this one.
    pub(crate) late: u64,
    /// By measurement; none of those that were not active.
    pub(crate) tables: Vec<Option<Table>>,
}

/// What takes tables that are handed over; false: nobody does any more.
pub type Outlet = Box<dyn FnMut(Closed) -> bool + Send>;

/// One worker's measurements. Nobody else reads or writes them.
pub struct Worker {
    index: usize,
    switches: Arc<Switches>,
    outlet: Outlet,
    inner: bool,
    generation: u64,
    plan: Arc<Plan>,
    /// The interval that is being counted; `None` before the first packet.
    interval: Option<u64>,
    tables: Vec<Option<Table>>,
    packets: u64,
    bytes: u64,
    late: u64,
    /// The bits of rules are found by counting: one counter, of no use otherwise.
    hits: [LiveCounts; 1],
    parsed: Parsed,
    followed: Followed,
}

impl Worker {
    /// A worker that has counted nothing. With `inner` it looks at the headers inside tunnels.
    pub fn new(index: usize, switches: Arc<Switches>, inner: bool, outlet: Outlet) -> Worker {
        let (generation, plan) = switches.now();
        Worker {
            index,
            switches,
            outlet,
            inner,
            generation,
            plan,
            interval: None,
            tables: Vec::new(),
            packets: 0,
            bytes: 0,
            late: 0,
            hits: [LiveCounts::default()],
            parsed: Parsed::default(),
            followed: Followed::default(),
        }
    }

    fn interval_of(&self, utc_ns: u64) -> u64 {
        utc_ns / self.plan.config.interval_ns
    }

    /// Begins an interval with empty tables, by what is active now.
    fn begin(&mut self, interval: u64) {
        let (active, plan) = (self.plan.active(), &self.plan);
        let of = plan.config.measurements.iter().zip(&plan.shapes).enumerate();
        self.tables.clear();
        self.tables.extend(of.map(|(place, (measurement, shape))| {
            (active & 1 << place != 0).then(|| Table::new(shape, measurement.keys))
        }));
        (self.packets, self.bytes, self.late) = (0, 0, 0);
        self.interval = Some(interval);
    }

    /// Hands the tables over. False: nobody takes them.
    fn close(&mut self, reached: (u64, u64)) -> bool {
        let Some(interval) = self.interval.take() else { return true };
        (self.outlet)(Closed {
            worker: self.index,
            plan: Arc::clone(&self.plan),
            at: (self.generation, interval),
            reached,
            packets: self.packets,
            bytes: self.bytes,
            late: self.late,
            tables: std::mem::take(&mut self.tables),
        })
    }

    /// It is this late, UTC in nanoseconds: intervals that are over end, also where no packets come. False: nobody
    /// takes results any more.
    pub fn tick(&mut self, utc_ns: u64) -> bool {
        let now = self.interval_of(utc_ns);
        match self.interval {
            Some(interval) if interval >= now => true,
            Some(_) => {
                let goes_on = self.close((self.generation, now));
                self.begin(now);
                goes_on
            }
            None => {
                self.begin(now);
                true
            }
        }
    }

    /// Takes another plan up where there is one, between two packets. False: nobody takes results any more.
    pub fn pause(&mut self) -> bool {
        if !self.switches.is_behind(self.generation) {
            return true;
        }
        let (generation, plan) = self.switches.now();
        let interval = self.interval;
        // Intervals of the new plan may be of another length.
        let start_ns = interval.map(|interval| interval.saturating_mul(self.plan.config.interval_ns));
        let goes_on = match start_ns {
            Some(start_ns) => self.close((generation, start_ns / plan.config.interval_ns)),
            None => true,
        };
        (self.generation, self.plan) = (generation, plan);
        if let Some(start_ns) = start_ns {
            self.begin(self.interval_of(start_ns));
        }
        goes_on
    }

    /// There will be no more packets. False: nobody takes results any more.
    pub fn finish(&mut self) -> bool {
        if self.interval.is_none() {
            self.begin(0);
        }
        self.close((u64::MAX, u64::MAX))
    }

    /// Counts a packet, whose time is this, UTC in nanoseconds. False: nobody takes results any more.
    #[inline]
    pub fn record(&mut self, record: &Record<'_>, utc_ns: u64) -> bool {
        let mut goes_on = true;
        let at = self.interval_of(utc_ns);
        match self.interval {
            Some(interval) if at == interval => {}
            Some(interval) if at < interval => self.late += 1,
            Some(_) => {
                goes_on = self.close((self.generation, at));
                self.begin(at);
            }
            None => self.begin(at),
        }
        self.count(record, utc_ns);
        goes_on
    }

    fn count(&mut self, record: &Record<'_>, utc_ns: u64) {
        let header = record.header();
        self.packets += 1;
        self.bytes += u64::from(header.wire_len);
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
        let plan = &*self.plan;
        let interval = self.interval.unwrap_or_default();
        let packet = Counted {
            seen: Seen {
                ip,
                vlan: (self.parsed.flags & flags::VLAN != 0).then_some(self.parsed.vlan_tci[0] & 0xfff),
                queue: header.queue,
                device: record.device() as u16,
            },
            bytes: header.wire_len.into(),
            ts_ns: utc_ns,
            start_ns: interval.saturating_mul(plan.config.interval_ns),
            mac: if plan.macs { arp_sender(record.data(), ip) } else { None },
            segment: if plan.tcp { self.followed.segment(ip, header.wire_len) } else { None },
            seed: plan.seed,
        };
        let facts = Facts {
            now_ns: utc_ns,
            wire_len: header.wire_len,
            queue: header.queue.into(),
            egress: u32::from(record.is_egress()),
            seed: 0,
        };
        let seen = judge::Packet { parsed: &self.parsed, data: record.data(), inner: self.inner };
        // Of each rule, whether it has been asked, and what it said.
        let (mut asked, mut fits) = (0u32, 0u32);
        let of = plan.config.measurements.iter().zip(&plan.shapes).zip(&mut self.tables);
        for ((measurement, shape), table) in of {
            let Some(table) = table else { continue };
            if let Some(rule) = measurement.rule {
                let bit = 1 << rule;
                if asked & bit == 0 {
                    asked |= bit;
                    let judged = judge::judge(&plan.rules[rule], &self.hits, &mut NoPrecise, seen, &facts);
                    fits |= if judged.hits > 0 { bit } else { 0 };
                }
                if fits & bit == 0 {
                    continue;
                }
            }
            table.add(measurement, shape, &packet);
        }
    }
}

/// Flags of a record that are about the headers of its digest.
const KNOWN_OF_DIGESTS: u16 = flags::VLAN;

/// The Ethernet address that an ARP packet gives for its sender (RFC 826), of Ethernet and IPv4. A probe for an address that
/// is not taken yet (RFC 5227) gives none.
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

/// Whether TCP's fields are there.
fn is_tcp(ip: &Ip) -> bool {
    ip.flags & ip_flags::TCP != 0 && ip.flags & ip_flags::FRAGMENT == 0
}
