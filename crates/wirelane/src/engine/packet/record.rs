//! Records made of packets in place.

use wirelane_bpf::evaluate;
use wirelane_bpf::layout::{LinkType, NO_OFFSET, Parsed, RecordHeader, Tail, flags, record_kind};
use wirelane_bpf::native;
use wirelane_bpf::rules::{Facts, FlatSet};

use super::block::{self, Packet};
use crate::active_rules::{Evaluator, Fate, fate};
use crate::batch::{Digests, Slot};
use wirelane_filter::View;

/// Parameters of the records of a socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipe {
    pub(super) link: LinkType,
    pub(super) queue: u16,
    /// Flags that all records get.
    pub(super) flags: u16,
    pub(super) inner: bool,
    pub(super) snap_len: usize,
    pub(super) seed: u32,
}

/// Result of [`record`].
pub(super) enum Made {
    Slot(Slot),
    /// A filter or a rule refuses the packet.
    Refused,
    /// A rule only counts the packet.
    Absorbed,
}

/// Sizes of an aggregate (GRO, GSO), from its `struct virtio_net_hdr` and its headers.
#[derive(Clone, Copy, Debug)]
struct Aggregate {
    /// Payload of each of the aggregate's packets on the wire except the last.
    segment_size: u16,
    /// Bytes before the payload, which each of the packets has.
    headers: u16,
    segments: u32,
    /// Bytes that the headers of the further segments add to the length.
    more_bytes: u32,
}

impl Aggregate {
    /// The sizes of an aggregate; `None`: the packet is one on the wire. As `wl_count_segments()` in bpf/account.h.
    fn of(packet: &Packet, parsed: &Parsed) -> Option<Aggregate> {
        let tunnel = parsed.flags & flags::TUNNEL != 0;
        let headers = match if tunnel { parsed.inner.payload_off } else { parsed.outer.payload_off } {
            NO_OFFSET => 0,
            offset => offset,
        };
        let tail = Tail { tag: 0, segment_size: packet.segment_size, headers };
        let segments = tail.segments(packet.length);
        let more_bytes = (tail.wire_bytes(packet.length) - u64::from(packet.length)) as u32;
        (segments > 1).then_some(Aggregate {
            segment_size: packet.segment_size,
            headers,
            segments,
            more_bytes,
        })
    }
}

/// Makes a record of a packet: parsed in place, its tag reinserted. Also returns the number of packets on the wire.
///
/// # Safety
/// The packet's block stays ours for as long as the slot exists, and there is no reference to the packet.
pub(super) unsafe fn record(
    mut packet: Packet,
    recipe: &Recipe,
    wanted: &View,
    evaluate: Option<(&mut Evaluator, &FlatSet)>,
    now_ns: u64,
    digests: &mut Digests,
) -> (Made, u32) {
    if recipe.link == LinkType::Ethernet {
        // SAFETY: the caller's part.
        unsafe { block::put_tag_back(&mut packet) };
    }
    // SAFETY: the caller's part.
    let data = unsafe { block::bytes(&packet) };
    let egress = recipe.flags & flags::EGRESS != 0;
    let accepted = wanted.accepts(data, packet.length, egress);
    if !accepted && packet.segment_size == 0 {
        return (Made::Refused, 1);
    }
    let parsed: Parsed = native::parse(recipe.link, data, true);
    let aggregate = if packet.segment_size == 0 { None } else { Aggregate::of(&packet, &parsed) };
    let segments = aggregate.map_or(1, |aggregate| aggregate.segments);
    if !accepted {
        return (Made::Refused, segments);
    }
    let mut captured = data.len().min(recipe.snap_len);
    let evaluated = evaluate.map(|(evaluate, set)| {
        let facts = Facts {
            now_ns,
            wire_len: packet.length,
            queue: recipe.queue.into(),
            egress: egress.into(),
            seed: recipe.seed,
            more_packets: segments - 1,
            more_bytes: aggregate.map_or(0, |aggregate| aggregate.more_bytes),
        };
        evaluate.evaluate(set, evaluate::Packet { parsed: &parsed, data, inner: recipe.inner }, &facts)
    });
    let mut digested = false;
    if let Some(evaluated) = &evaluated {
        match fate(evaluated) {
            Fate::Delivered { at_most } => captured = captured.min(at_most),
            Fate::Digested => digested = true,
            Fate::Filtered => return (Made::Refused, segments),
            Fate::Absorbed => return (Made::Absorbed, segments),
        }
    }
    let mut header = RecordHeader {
        ts_ns: packet.ns,
        cap_len: captured as u32,
        wire_len: packet.length,
        queue: recipe.queue,
        kind: record_kind::PACKET,
        ..RecordHeader::default()
    };
    native::fill_record(&mut header, &parsed, recipe.inner, recipe.seed);
    header.flags |= recipe.flags;
    if captured < packet.length as usize {
        header.flags |= flags::SNAPPED;
    }
    if packet.gso && packet.segment_size == 0 {
        header.flags |= flags::GSO;
    }
    let slot = if digested {
        digests.slot(header, &parsed)
    } else {
        // SAFETY: `captured` bytes are there, and stay (the caller's part).
        unsafe { Slot::new(header, packet.data) }
    };
    let slot = evaluated.map_or(slot, |evaluated| slot.evaluated(&evaluated));
    let slot = match aggregate {
        Some(Aggregate { segment_size, headers, .. }) => slot.aggregated(segment_size, headers),
        None => slot,
    };
    (Made::Slot(slot), segments)
}
