//! The packet functions of `bpf/lib/`, compiled natively: for engines without a kernel program, and for comparison with
//! the kernel's compilation.

use crate::abi::{
    wl_native_fill_record, wl_native_filter, wl_native_flow_hash, wl_native_is_in_share,
    wl_native_packet_hash, wl_native_parse, wl_native_parse_walk, wl_native_steer, wl_native_steering_hash,
};
use crate::filter::{GONE_OUT, Step};
use crate::layout::{Ip, LinkType, Parsed, RecordHeader};

/// Buckets between flow hash and worker (`WL_BUCKETS`).
pub const BUCKETS: usize = crate::abi::WL_BUCKETS as usize;
/// The option of `wl_parse()` that enters tunnels (`WL_PARSE_TUNNELS`).
pub const PARSE_TUNNELS: u32 = crate::abi::WL_PARSE_TUNNELS;
/// Maximum number of headers that are followed in one packet (`WL_MAX_HEADERS`); beyond, [`crate::layout::flags::DEEP`]
/// is set.
pub const MAX_HEADERS: usize = crate::abi::WL_MAX_HEADERS as usize;
/// The largest offset, in bytes, at which a header may begin (`WL_MAX_OFFSET`).
pub const MAX_OFFSET: usize = crate::abi::WL_MAX_OFFSET as usize;

/// Steering modes (`enum wl_steering`) that choose a worker by the packet's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Steering {
    /// By flow hash, through the table of buckets.
    Flow = crate::abi::WL_STEER_FLOW,
    /// By RX queue: queue n to worker n, wrapping around.
    Queue = crate::abi::WL_STEER_QUEUE,
    /// By the outermost VLAN id, through the table of buckets.
    Vlan = crate::abi::WL_STEER_VLAN,
    /// By the source address, through the table of buckets.
    Source = crate::abi::WL_STEER_SOURCE,
    /// By the destination address, through the table of buckets.
    Destination = crate::abi::WL_STEER_DESTINATION,
}

/// Parses the captured bytes of a packet that begins with a header of type `link`. With `follow_tunnels`, tunnels are
/// entered and [`Parsed::inner`] is filled; [`crate::layout::flags`] tell which fields are valid. Every input has a
/// result. (`wl_parse()`, `bpf/lib/parse.h`)
pub fn parse(link: LinkType, data: &[u8], follow_tunnels: bool) -> Parsed {
    let mut parsed = Parsed::default();
    let options = if follow_tunnels { PARSE_TUNNELS } else { 0 };
    // SAFETY: the pointer and the length are those of one slice, which C only reads within these bounds;
    // `parsed` has the layout of struct wl_parsed.
    unsafe { wl_native_parse(data.as_ptr(), data.len(), link as u8, options, &mut parsed) };
    parsed
}

/// Parses a packet by the general walk only, which [`parse`] uses for packets that are not plain: the results are the
/// same for every packet, and tests compare them. (`wl_parse_walk()`)
pub fn parse_walk(link: LinkType, data: &[u8], follow_tunnels: bool) -> Parsed {
    let mut parsed = Parsed::default();
    let options = if follow_tunnels { PARSE_TUNNELS } else { 0 };
    // SAFETY: as in `parse`.
    unsafe { wl_native_parse_walk(data.as_ptr(), data.len(), link as u8, options, &mut parsed) };
    parsed
}

/// The symmetric flow hash of one network layer: the same for both directions of a conversation, and for all
/// fragments of a datagram (which are hashed by addresses alone). (`wl_flow_hash()`, `bpf/lib/hash.h`)
pub fn flow_hash(ip: &Ip, seed: u32) -> u32 {
    // SAFETY: `ip` is a valid struct wl_ip, and it is only read.
    unsafe { wl_native_flow_hash(ip, seed) }
}

/// The hash of a packet: of its inner headers with `inner` and a tunnel, otherwise of the outer ones, and of its
/// EtherType if it has no network layer. (`wl_packet_hash()`)
pub fn packet_hash(parsed: &Parsed, inner: bool, seed: u32) -> u32 {
    // SAFETY: `parsed` is a valid struct wl_parsed, and it is only read.
    unsafe { wl_native_packet_hash(parsed, inner.into(), seed) }
}

/// Fills the fields of a record header that the parser knows: `hash` (see [`packet_hash`]), `flags` (overwritten: set
/// the flags of records after this), the offsets, `l3`, `proto`, `vlan_tci` and `link`. The others stay as they are.
/// (`wl_fill_record()`, `bpf/lib/record.h`)
pub fn fill_record(record: &mut RecordHeader, parsed: &Parsed, inner: bool, seed: u32) {
    // SAFETY: both are valid and of the layout that C expects; `parsed` is only read, and the two do not
    // overlap, as one is borrowed exclusively.
    unsafe { wl_native_fill_record(record, parsed, inner.into(), seed) };
}

/// The hash that selects the bucket of a packet. (`wl_steering_hash()`, `bpf/lib/steer.h`)
pub fn steering_hash(steering: Steering, parsed: &Parsed, inner: bool, seed: u32) -> u32 {
    // SAFETY: `parsed` is a valid struct wl_parsed, and it is only read.
    unsafe { wl_native_steering_hash(steering as u32, parsed, inner.into(), seed) }
}

/// The worker of a packet, below `workers` (0 without workers); `hash` is the result of [`steering_hash`].
/// (`wl_steer()`, `bpf/lib/steer.h`)
pub fn steer(steering: Steering, buckets: &[u16; BUCKETS], hash: u32, queue: u32, workers: u32) -> u32 {
    // SAFETY: C reads one of the BUCKETS entries, at an index that it masks to below BUCKETS.
    unsafe { wl_native_steer(steering as u32, buckets.as_ptr(), hash, queue, workers) }
}

/// Whether a flow with this [`packet_hash`] is in part `share` of `shares` equal ones.
/// (`wl_is_in_share()`, `bpf/lib/steer.h`)
pub fn is_in_share(hash: u32, share: u32, shares: u32) -> bool {
    // SAFETY: takes numbers.
    unsafe { wl_native_is_in_share(hash, share, shares) != 0 }
}

/// Whether a filter accepts a packet with the captured bytes `data`: its length was `wire_len` bytes, and it was
/// transmitted (`outgoing`) or received. Any steps have a result, after at most as many iterations as there are steps.
/// (`wl_filter_step()`, `bpf/lib/filter.h`)
pub fn filter(steps: &[Step], data: &[u8], wire_len: u32, outgoing: bool) -> bool {
    let count = u32::try_from(steps.len()).unwrap_or(u32::MAX);
    let direction = if outgoing { GONE_OUT } else { 0 };
    // SAFETY: both pointers are those of slices, which C only reads, within the lengths that go with them. Step has
    // the layout of struct wl_step.
    let accepted =
        unsafe { wl_native_filter(steps.as_ptr(), count, data.as_ptr(), data.len(), wire_len, direction) };
    accepted != 0
}
