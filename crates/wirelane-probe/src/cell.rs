//! Values that are counted per key.

use wirelane_bpf::sketch::{CLASSES, Distinct, Top, class};

use crate::config::{Field, Measurement, Value};
use crate::key::{Key, Seen, is_forward, of_field};

/// Ethernet addresses that are told apart.
pub(crate) const MACS: usize = 4;
/// Sets of a sketch of the greatest: 64 of 8 entries, 32 KiB.
const TOP_SETS: usize = 64;

/// What a measurement's cells have, which is the same of all of them.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub distinct: Vec<Field>,
    pub tops: Vec<Field>,
    pub bits: u32,
    /// Bins of an interval; 0: peaks are not asked for.
    pub bins: usize,
    pub bin_ns: u64,
    pub lengths: bool,
    pub gaps: bool,
    pub one_way: bool,
    pub macs: bool,
    pub tcp: bool,
}

impl Shape {
    pub fn new(of: &Measurement, interval_ns: u64) -> Shape {
        let has = |values: &[Value]| of.values.iter().any(|value| values.contains(value));
        let peaks = has(&[Value::PeakPackets, Value::PeakBytes]);
        Shape {
            distinct: of.values.iter().filter_map(|value| value.distinct()).collect(),
            tops: of.values.iter().filter_map(|value| value.top()).collect(),
            bits: of.precision,
            bins: if peaks { (interval_ns / of.bin_ns.max(1)) as usize } else { 0 },
            bin_ns: of.bin_ns.max(1),
            lengths: has(&[Value::Lengths]),
            gaps: has(&[Value::Gaps]),
            one_way: has(&[Value::OneWay]),
            macs: has(&[Value::Macs]),
            tcp: has(&[Value::Segments, Value::Retransmissions, Value::RetransmittedPercent]),
        }
    }

    /// Whether more than packets and bytes is counted.
    fn has_more(&self) -> bool {
        let flags = [self.lengths, self.gaps, self.one_way, self.macs, self.tcp];
        !self.distinct.is_empty() || !self.tops.is_empty() || self.bins > 0 || flags.contains(&true)
    }

    /// Bytes that the cells of so many keys and of the rest take.
    pub fn most_bytes(&self, keys: usize) -> usize {
        let more = size_of::<More>()
            + self.distinct.len() * (1 << self.bits)
            + self.tops.len() * TOP_SETS * 8 * 64
            + self.bins * 16
            + if self.lengths { CLASSES * 8 } else { 0 }
            + if self.gaps { CLASSES * 8 } else { 0 };
        let cell = size_of::<Key>() + size_of::<Cell>() + if self.has_more() { more } else { 0 };
        (keys + 1).saturating_mul(cell)
    }
}

/// What is known of a packet when it is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted<'p> {
    pub seen: Seen<'p>,
    /// More than one where they have been added up; only what is the same of all of them is known then.
    pub packets: u64,
    pub bytes: u64,
    pub ts_ns: u64,
    /// Of its interval, when that began.
    pub start_ns: u64,
    /// ARP's sender.
    pub mac: Option<[u8; 6]>,
    /// It is a TCP segment with payload; whether all of that has been seen.
    pub segment: Option<bool>,
    pub seed: u64,
}

/// The numbers of one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    pub packets: u64,
    pub bytes: u64,
    pub more: Option<Box<More>>,
}

/// What only some measurements ask for.
#[derive(Clone, Debug, Default)]
pub(crate) struct More {
    pub distinct: Vec<Distinct>,
    pub tops: Vec<Top>,
    /// Packets and bytes of each bin; what belongs to none of them is in the last.
    bins: Vec<(u64, u64)>,
    /// The most of a bin, of intervals that are over.
    pub peak: (u64, u64),
    pub lengths: Vec<u64>,
    pub gaps: Vec<u64>,
    last_ns: u64,
    /// Packets whose source comes first in the order of the two ends.
    pub forward: u64,
    pub macs: Vec<[u8; 6]>,
    pub segments: u64,
    pub retransmissions: u64,
}

impl Cell {
    /// Nothing counted yet.
    pub fn new(shape: &Shape) -> Cell {
        let classes = |wanted: bool| if wanted { vec![0; CLASSES] } else { Vec::new() };
        let more = shape.has_more().then(|| {
            Box::new(More {
                distinct: shape.distinct.iter().map(|_| Distinct::new(shape.bits)).collect(),
                tops: shape.tops.iter().map(|_| Top::new(TOP_SETS)).collect(),
                bins: vec![(0, 0); shape.bins],
                lengths: classes(shape.lengths),
                gaps: classes(shape.gaps),
                macs: Vec::with_capacity(if shape.macs { MACS } else { 0 }),
                ..More::default()
            })
        });
        Cell { packets: 0, bytes: 0, more }
    }

    /// Counts a packet.
    #[inline]
    pub fn add(&mut self, shape: &Shape, packet: &Counted<'_>) {
        let first = self.packets == 0;
        self.packets += packet.packets;
        self.bytes += packet.bytes;
        if let Some(more) = &mut self.more {
            more.add(shape, packet, first);
        }
    }

    /// Adds what another worker, or another interval, has counted.
    pub fn merge(&mut self, other: &Cell) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        if let (Some(ours), Some(theirs)) = (&mut self.more, &other.more) {
            ours.merge(theirs);
        }
    }

    /// The interval is over: of its bins the greatest stays.
    pub fn end(&mut self) {
        if let Some(more) = &mut self.more {
            let bins = std::mem::take(&mut more.bins);
            more.peak.0 = bins.iter().map(|bin| bin.0).chain([more.peak.0]).max().unwrap_or(0);
            more.peak.1 = bins.iter().map(|bin| bin.1).chain([more.peak.1]).max().unwrap_or(0);
        }
    }
}

impl More {
    fn add(&mut self, shape: &Shape, packet: &Counted<'_>, first: bool) {
        for (sketch, field) in self.distinct.iter_mut().zip(&shape.distinct) {
            if let Some(key) = of_field(*field, &packet.seen) {
                sketch.add(wirelane_bpf::sketch::key_hash(&key, packet.seed));
            }
        }
        for (top, field) in self.tops.iter_mut().zip(&shape.tops) {
            if let Some(key) = of_field(*field, &packet.seen) {
                top.add(&key, wirelane_bpf::sketch::key_hash(&key, packet.seed), packet.packets);
            }
        }
        if let Some(last) = self.bins.len().checked_sub(1) {
            let bin = packet.ts_ns.saturating_sub(packet.start_ns) / shape.bin_ns;
            let bin = &mut self.bins[usize::try_from(bin).unwrap_or(last).min(last)];
            bin.0 += 1;
            bin.1 += packet.bytes;
        }
        if shape.lengths {
            self.lengths[class(packet.bytes)] += 1;
        }
        if shape.gaps {
            if !first {
                self.gaps[class(packet.ts_ns.saturating_sub(self.last_ns))] += 1;
            }
            self.last_ns = packet.ts_ns;
        }
        if shape.one_way {
            self.forward += if is_forward(&packet.seen) { packet.packets } else { 0 };
        }
        if let Some(mac) = packet.mac.filter(|_| shape.macs) {
            self.mac(mac);
        }
        if let Some(again) = packet.segment.filter(|_| shape.tcp) {
            self.segments += 1;
            self.retransmissions += u64::from(again);
        }
    }

    /// One more Ethernet address, where there is room for it.
    pub fn mac(&mut self, mac: [u8; 6]) {
        if !self.macs.contains(&mac) && self.macs.len() < MACS {
            self.macs.push(mac);
        }
    }

    fn merge(&mut self, other: &More) {
        for (ours, theirs) in self.distinct.iter_mut().zip(&other.distinct) {
            ours.merge(theirs);
        }
        for (ours, theirs) in self.tops.iter_mut().zip(&other.tops) {
            ours.merge(theirs);
        }
        for (ours, theirs) in self.bins.iter_mut().zip(&other.bins) {
            ours.0 += theirs.0;
            ours.1 += theirs.1;
        }
        self.peak = (self.peak.0.max(other.peak.0), self.peak.1.max(other.peak.1));
        for (ours, theirs) in [(&mut self.lengths, &other.lengths), (&mut self.gaps, &other.gaps)] {
            for (ours, theirs) in ours.iter_mut().zip(theirs) {
                *ours += theirs;
            }
        }
        self.forward += other.forward;
        other.macs.iter().for_each(|mac| self.mac(*mac));
        self.segments += other.segments;
        self.retransmissions += other.retransmissions;
    }
}

/// The keys with most among those of a field, with what they had at most, and of that what may be others'.
pub(crate) fn greatest(top: &Top, most: usize) -> Vec<(Key, u64, u64)> {
    let mut entries: Vec<_> = top.entries().map(|entry| (entry.key, entry.count, entry.error)).collect();
    entries.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    entries.truncate(most);
    entries
}
