//! The packet functions of `bpf/lib/`, compiled natively: for engines without a kernel program, and for
//! comparing with what the kernel's compilation finds.

use std::ffi::{CStr, c_char, c_int};

use crate::filter::{GONE_OUT, Step};
use crate::layout::{Ip, LinkType, Parsed, RecordHeader};

/// Buckets between flow hash and worker (`WL_BUCKETS`).
pub const BUCKETS: usize = 512;
/// The option of `wl_parse()` that enters tunnels (`WL_PARSE_TUNNELS`).
pub const PARSE_TUNNELS: u32 = 0x01;
/// Headers that are followed in one packet (`WL_MAX_HEADERS`); beyond, [`crate::layout::flags::DEEP`] is set.
pub const MAX_HEADERS: usize = 20;
/// The furthest offset, in bytes, at which a header may begin (`WL_MAX_OFFSET`).
pub const MAX_OFFSET: usize = 0x0fff;

/// How the worker of a packet is chosen (`enum wl_steering`), where what is in the packet decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Steering {
    /// By flow hash, through the table of buckets.
    Flow = 0,
    /// By RX queue: queue n to worker n, wrapping around.
    Queue = 1,
    /// By the outermost VLAN id, through the table of buckets.
    Vlan = 4,
    /// By the source address, through the table of buckets.
    Source = 5,
    /// By the destination address, through the table of buckets.
    Destination = 6,
}

/// Size and place of a struct, or of a field in it, as the C compiler laid it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// `struct.field`, or the name of a struct for the whole of it.
    pub name: &'static str,
    /// Bytes from the start of the struct.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

#[repr(C)]
struct RawField {
    name: *const c_char,
    offset: u32,
    size: u32,
}

#[repr(C)]
struct RawConstant {
    name: *const c_char,
    value: u64,
}

unsafe extern "C" {
    fn wl_native_parse(data: *const u8, length: usize, link: u8, options: u32, out: *mut Parsed);
    fn wl_native_parse_walk(data: *const u8, length: usize, link: u8, options: u32, out: *mut Parsed);
    fn wl_native_flow_hash(ip: *const Ip, seed: u32) -> u32;
    fn wl_native_packet_hash(parsed: *const Parsed, inner: c_int, seed: u32) -> u32;
    fn wl_native_fill_record(record: *mut RecordHeader, parsed: *const Parsed, inner: c_int, seed: u32);
    fn wl_native_steering_hash(steering: u32, parsed: *const Parsed, inner: c_int, seed: u32) -> u32;
    fn wl_native_steer(steering: u32, buckets: *const u16, hash: u32, queue: u32, workers: u32) -> u32;
    fn wl_native_is_in_share(hash: u32, share: u32, shares: u32) -> c_int;
    fn wl_native_filter(
        steps: *const Step,
        count: u32,
        data: *const u8,
        length: usize,
        wire_len: u32,
        direction: u32,
    ) -> u32;
    fn wl_native_layout() -> *const RawField;
    fn wl_native_constants() -> *const RawConstant;
    fn wl_native_flow_layout() -> *const RawField;
    fn wl_native_flow_constants() -> *const RawConstant;
    fn wl_native_http_layout() -> *const RawField;
    fn wl_native_http_constants() -> *const RawConstant;
    fn wl_native_rtp_layout() -> *const RawField;
    fn wl_native_rtp_constants() -> *const RawConstant;
}

/// Parses the captured bytes of a packet that begins with a header of type `link`. With `follow_tunnels`,
/// tunnels are entered and [`Parsed::inner`] is filled; see [`crate::layout::flags`] for what is valid.
/// Every input has a result. (`wl_parse()`, `bpf/lib/parse.h`)
pub fn parse(link: LinkType, data: &[u8], follow_tunnels: bool) -> Parsed {
    let mut parsed = Parsed::default();
    let options = if follow_tunnels { PARSE_TUNNELS } else { 0 };
    // SAFETY: the pointer and the length are those of one slice, which C only reads within these bounds;
    // `parsed` has the layout of struct wl_parsed, which a test compares field by field.
    unsafe { wl_native_parse(data.as_ptr(), data.len(), link as u8, options, &mut parsed) };
    parsed
}

/// The same by the general way alone, which [`parse`] takes for packets that are not plain: what the two find is the
/// same for every packet, and tests hold them together. (`wl_parse_walk()`)
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

/// The hash of a packet: of its inner headers with `inner` and a tunnel, else of the outer ones, and of its
/// EtherType where there is no network layer. (`wl_packet_hash()`)
pub fn packet_hash(parsed: &Parsed, inner: bool, seed: u32) -> u32 {
    // SAFETY: `parsed` is a valid struct wl_parsed, and it is only read.
    unsafe { wl_native_packet_hash(parsed, inner.into(), seed) }
}

/// Fills the fields of a record header that the parser knows: `hash` (as of [`packet_hash`]), `flags` (whole:
/// set the flags of records after this), the offsets, `l3`, `proto`, `vlan_tci` and `link`. The others stay
/// as they are. (`wl_fill_record()`, `bpf/lib/record.h`)
pub fn fill_record(record: &mut RecordHeader, parsed: &Parsed, inner: bool, seed: u32) {
    // SAFETY: both are valid and of the layout that C expects; `parsed` is only read, and the two do not
    // overlap, as one is borrowed exclusively.
    unsafe { wl_native_fill_record(record, parsed, inner.into(), seed) };
}

/// What the bucket of a packet is chosen by. (`wl_steering_hash()`, `bpf/lib/steer.h`)
pub fn steering_hash(steering: Steering, parsed: &Parsed, inner: bool, seed: u32) -> u32 {
    // SAFETY: `parsed` is a valid struct wl_parsed, and it is only read.
    unsafe { wl_native_steering_hash(steering as u32, parsed, inner.into(), seed) }
}

/// The worker of a packet, below `workers` (0 where there are none); `hash` is what [`steering_hash`] gave.
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

/// Whether a filter accepts a packet, of which `data` is there: it was `wire_len` bytes long, and was on its way out
/// (`outgoing`) or in. Any steps have a result, and none takes more turns than there are steps.
/// (`wl_filter_step()`, `bpf/lib/filter.h`)
pub fn filter(steps: &[Step], data: &[u8], wire_len: u32, outgoing: bool) -> bool {
    let count = u32::try_from(steps.len()).unwrap_or(u32::MAX);
    let direction = if outgoing { GONE_OUT } else { 0 };
    // SAFETY: both pointers are those of slices, which C only reads, within the lengths that go with them. Step has
    // the layout of struct wl_step, which a test compares field by field.
    let accepted =
        unsafe { wl_native_filter(steps.as_ptr(), count, data.as_ptr(), data.len(), wire_len, direction) };
    accepted != 0
}

/// The shared structs as the C compiler laid them out, for comparing with [`crate::layout`] and
/// [`crate::instance`].
pub fn layout() -> Vec<Field> {
    // SAFETY: C returns a static table that ends with an entry whose name is null.
    fields(unsafe { wl_native_layout() })
}

/// The constants of `bpf/` that Rust repeats, by their names in C, as the C compiler evaluates them.
pub fn constants() -> Vec<(&'static str, u64)> {
    // SAFETY: as in `layout`.
    values(unsafe { wl_native_constants() })
}

/// The same as [`layout`] for the structs of flows ([`crate::flow`]).
pub fn flow_layout() -> Vec<Field> {
    // SAFETY: as in `layout`.
    fields(unsafe { wl_native_flow_layout() })
}

/// The same as [`constants`] for those of flows.
pub fn flow_constants() -> Vec<(&'static str, u64)> {
    // SAFETY: as in `layout`.
    values(unsafe { wl_native_flow_constants() })
}

/// The same as [`layout`] for the struct of [`crate::http`].
pub fn http_layout() -> Vec<Field> {
    // SAFETY: as in `layout`.
    fields(unsafe { wl_native_http_layout() })
}

/// The same as [`constants`] for those of [`crate::http`].
pub fn http_constants() -> Vec<(&'static str, u64)> {
    // SAFETY: as in `layout`.
    values(unsafe { wl_native_http_constants() })
}

/// The same as [`layout`] for the structs of RTP statistics.
pub fn rtp_layout() -> Vec<Field> {
    // SAFETY: as in `layout`.
    fields(unsafe { wl_native_rtp_layout() })
}

/// The same as [`constants`] for those of RTP statistics.
pub fn rtp_constants() -> Vec<(&'static str, u64)> {
    // SAFETY: as in `layout`.
    values(unsafe { wl_native_rtp_constants() })
}

fn fields(of: *const RawField) -> Vec<Field> {
    // SAFETY: only called with what C's functions of tables return.
    let fields = unsafe { table(of, |field| field.name) };
    fields
        .map(|(name, field)| Field { name, offset: field.offset as usize, size: field.size as usize })
        .collect()
}

fn values(of: *const RawConstant) -> Vec<(&'static str, u64)> {
    // SAFETY: as in `fields`.
    let constants = unsafe { table(of, |constant| constant.name) };
    constants.map(|(name, constant)| (name, constant.value)).collect()
}

/// The entries of a table of C's, with their names.
///
/// # Safety
/// `entry` points to a static table whose last entry has a null name; all other names are static strings.
unsafe fn table<T: 'static>(
    mut entry: *const T,
    name: impl Fn(&T) -> *const c_char,
) -> impl Iterator<Item = (&'static str, &'static T)> {
    std::iter::from_fn(move || {
        // SAFETY: the table is static, and is not left: `entry` moves on only from an entry with a name.
        let this: &'static T = unsafe { &*entry };
        let name = name(this);
        if name.is_null() {
            return None;
        }
        // SAFETY: names are string literals: static, and ended by a zero byte (the caller's part).
        let name = unsafe { CStr::from_ptr(name) };
        // SAFETY: this entry was not the last one, so the next is within the table.
        entry = unsafe { entry.add(1) };
        Some((name.to_str().unwrap_or("(not UTF-8)"), this))
    })
}
