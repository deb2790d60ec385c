//! Values that are counted per key.

use wirelane_bpf::sketch::{CLASSES, Distinct, Top, class};

use crate::config::{Field, Measurement, Value};
use crate::key::{Key, Seen, is_forward, of_field};

/// Maximum number of distinct Ethernet addresses of a key.
pub(crate) const MACS: usize = 4;
/// Sets of a top-list sketch: 64 of 8 entries, 32 KiB.
const TOP_SETS: usize = 64;

/// Layout shared by all cells of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub distinct: Vec<Field>,
    pub tops: Vec<Field>,
    pub bits: u32,
    /// Number of bins of an interval; 0: no peak is measured.
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

    /// Whether it counts more than packets and bytes.
    fn has_more(&self) -> bool {
        let flags = [self.lengths, self.gaps, self.one_way, self.macs, self.tcp];
        !self.distinct.is_empty() || !self.tops.is_empty() || self.bins > 0 || flags.contains(&true)
    }

    /// Maximum bytes of this number of cells, plus the cell for the rest.
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

/// Fields of a packet that are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted<'p> {
    pub seen: Seen<'p>,
    /// Number of packets; a sum of more than one has only the fields that its packets share.
    pub packets: u64,
    pub bytes: u64,
    pub ts_ns: u64,
    /// Start of the interval.
    pub start_ns: u64,
    /// ARP sender.
    pub mac: Option<[u8; 6]>,
    /// For a TCP segment with payload: whether all of that payload has been seen before.
    pub segment: Option<bool>,
    pub seed: u64,
}

/// Counters of one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    pub packets: u64,
    pub bytes: u64,
    pub more: Option<Box<More>>,
}

/// Counters that only some measurements need.
#[derive(Clone, Debug, Default)]
pub(crate) struct More {
    pub distinct: Vec<Distinct>,
    pub tops: Vec<Top>,
    /// Packets and bytes of each bin; the last bin has packets outside of all others.
    bins: Vec<(u64, u64)>,
    /// Maximum of a bin in closed intervals.
    pub peak: (u64, u64),
    pub lengths: Vec<u64>,
    pub gaps: Vec<u64>,
    last_ns: u64,
    /// Packets whose source is the first end in canonical order.
    pub forward: u64,
    pub macs: Vec<[u8; 6]>,
    pub segments: u64,
    pub retransmissions: u64,
}

impl Cell {
    /// All counters at 0.
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

    /// Adds the counters of another worker, or of another interval.
    pub fn merge(&mut self, other: &Cell) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        if let (Some(ours), Some(theirs)) = (&mut self.more, &other.more) {
            ours.merge(theirs);
        }
    }

    /// Closes the interval: keeps the maximum of its bins.
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

    /// Adds an Ethernet address, unless the set is full.
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

/// Keys of a field with the highest counts: each with its upper bound, and the share of that which may belong to other
/// keys.
pub(crate) fn greatest(top: &Top, most: usize) -> Vec<(Key, u64, u64)> {
    let mut entries: Vec<_> = top.entries().map(|entry| (entry.key, entry.count, entry.error)).collect();
    entries.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    entries.truncate(most);
    entries
}
