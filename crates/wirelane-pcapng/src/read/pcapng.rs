//! The pcapng format: blocks, and sections with their own byte order and interfaces (draft-ietf-opsawg-pcapng). Section
//! numbers below refer to that draft.

use super::decode::{MAX_ITEM, Order, Packet, Step};
use super::interface::FileInterface;
use super::options::{Options, code};
use super::time::TimestampResolution;
use crate::Aggregate;

/// Section Header Block. The number reads the same in both byte orders.
pub(super) const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
/// Packet Block, obsolete (appendix A), but still written by old tools.
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// Type, length, and the length again at the end: the smallest possible block.
const MIN_BLOCK: usize = 12;
/// Maximum number of interfaces of one file, all sections together: a record has 16 bits for the index.
const MAX_INTERFACES: usize = 1 << 16;

/// Decoder of the blocks of one file.
#[derive(Debug)]
pub(super) struct Decoder {
    order: Order,
    /// Index of the section's first interface among those of all sections.
    section_start: usize,
    /// Length of a block whose body was skipped, and whose trailing length field is still to be read.
    skipped: Option<u32>,
}

impl Decoder {
    /// A decoder for a file that begins with a Section Header Block.
    pub(super) fn new() -> Decoder {
        Decoder { order: Order::Little, section_start: 0, skipped: None }
    }

    /// The next step, for bytes that start at a block. New interfaces are appended.
    pub(super) fn step(&mut self, bytes: &[u8], interfaces: &mut Vec<FileInterface>) -> Step {
        if let Some(length) = self.skipped {
            return self.end_of_skipped(bytes, length);
        }
        if bytes.len() < MIN_BLOCK {
            return Step::need(MIN_BLOCK, "a block");
        }
        let kind = self.order.u32(bytes, 0);
        let order = match kind {
            SECTION => match section_order(bytes) {
                Some(order) => order,
                None => {
                    return Step::damage(format!(
                        "a section header with byte-order magic {:#010x} instead of {BYTE_ORDER_MAGIC:#x}",
                        self.order.u32(bytes, 8)
                    ));
                }
            },
            _ => self.order,
        };
        let length = order.u32(bytes, 4);
        if (length as usize) < MIN_BLOCK {
            return Step::damage(format!(
                "a block of type {kind:#x} and length {length}, less than the {MIN_BLOCK} bytes that every block has"
            ));
        }
        if !length.is_multiple_of(4) {
            return Step::damage(format!(
                "a block of type {kind:#x} and length {length}, which is not a multiple of 4"
            ));
        }
        let fixed = match kind {
            SECTION => 24,
            INTERFACE => 16,
            OBSOLETE_PACKET | ENHANCED_PACKET => 28,
            SIMPLE_PACKET => 12,
            // Names, statistics, secrets, custom blocks and unknown future types contain nothing for a record.
            _ => {
                self.skipped = Some(length);
                return Step::Skip { bytes: u64::from(length) - 4, block: length.into() };
            }
        };
        let length = length as usize;
        if length < fixed + 4 {
            return Step::damage(format!(
                "a block of type {kind:#x} and length {length}, less than the {} bytes that its type needs",
                fixed + 4
            ));
        }
        if length > MAX_ITEM {
            return Step::damage(format!(
                "a block of type {kind:#x} and length {length}, more than the {MAX_ITEM} bytes that one may have"
            ));
        }
        if bytes.len() < length {
            return Step::need(length, "a block");
        }
        let repeated = order.u32(bytes, length - 4);
        if repeated as usize != length {
            return Step::damage(mismatch(length, repeated));
        }
        let block = &bytes[..length - 4];
        match kind {
            SECTION => self.section(block, order, interfaces.len()),
            INTERFACE => self.interface(block, interfaces),
            _ => self.packet(kind, block, interfaces),
        }
    }

    /// Checks the trailing length field of a skipped block.
    fn end_of_skipped(&mut self, bytes: &[u8], length: u32) -> Step {
        let back = u64::from(length) - 4;
        if bytes.len() < 4 {
            return Step::Need { bytes: 4, what: "a block", back };
        }
        let repeated = self.order.u32(bytes, 0);
        if repeated != length {
            return Step::Damage { back, reason: mismatch(length as usize, repeated) };
        }
        self.skipped = None;
        Step::Skip { bytes: 4, block: length.into() }
    }

    /// Section Header Block (4.1).
    fn section(&mut self, block: &[u8], order: Order, known_interfaces: usize) -> Step {
        match (order.u16(block, 12), order.u16(block, 14)) {
            // Some writers put 1.2; libpcap and Wireshark read it as 1.0, as the draft specifies.
            (1, 0 | 2) => {}
            (major, minor) => {
                return Step::damage(format!("pcapng version {major}.{minor} is not supported; 1.0 is"));
            }
        }
        self.order = order;
        self.section_start = known_interfaces;
        Step::skip_block(block.len() + 4)
    }

    /// Interface Description Block (4.2).
    fn interface(&mut self, block: &[u8], interfaces: &mut Vec<FileInterface>) -> Step {
        if interfaces.len() == MAX_INTERFACES {
            return Step::damage(format!(
                "more than {MAX_INTERFACES} interfaces; split the file (editcap -c) to read the rest"
            ));
        }
        let (mut name, mut description): (&[u8], &[u8]) = (b"", b"");
        let (mut resolution, mut offset_s) = (TimestampResolution::Decimal(6), 0);
        for option in Options::new(block, 16, self.order) {
            let option = match option {
                Ok(option) => option,
                Err(reason) => return Step::damage(format!("an interface description with {reason}")),
            };
            match (option.code, option.value) {
                (code::IF_NAME, value) => name = value,
                (code::IF_DESCRIPTION, value) => description = value,
                (code::IF_TSRESOL, &[byte]) => resolution = TimestampResolution::from_option(byte),
                (code::IF_TSOFFSET, value) if value.len() == 8 => {
                    let [first, second] = [0, 4].map(|at| u64::from(self.order.u32(value, at)));
                    offset_s = match self.order {
                        Order::Little => second << 32 | first,
                        Order::Big => first << 32 | second,
                    }
                    .cast_signed();
                }
                (code::IF_TSRESOL | code::IF_TSOFFSET, value) => {
                    return Step::damage(format!(
                        "an interface description whose time option {} has {} bytes instead of {}",
                        option.code,
                        value.len(),
                        if option.code == code::IF_TSRESOL { 1 } else { 8 }
                    ));
                }
                _ => {}
            }
        }
        let link_number = u32::from(self.order.u16(block, 8));
        let snap_len = self.order.u32(block, 12);
        interfaces
            .push(FileInterface::new(link_number, snap_len, resolution, offset_s).named(name, description));
        Step::skip_block(block.len() + 4)
    }

    /// Enhanced Packet Block (4.3), Simple Packet Block (4.4), Packet Block (appendix A).
    fn packet(&self, kind: u32, block: &[u8], interfaces: &[FileInterface]) -> Step {
        let at = |at| self.order.u32(block, at);
        let (index, data_at) = match kind {
            SIMPLE_PACKET => (0, 12),
            // 16 bits of interface, then 16 bits of dropped packets.
            OBSOLETE_PACKET => (usize::from(self.order.u16(block, 8)), 28),
            _ => (at(8) as usize, 28),
        };
        let index_of_all = self.section_start.saturating_add(index);
        let Some(interface) = interfaces.get(index_of_all) else {
            let described = interfaces.len() - self.section_start;
            return Step::damage(format!(
                "a packet of interface {index}, and its section has described {described} before it"
            ));
        };
        let (cap_len, wire_len, ts_ns) = match kind {
            SIMPLE_PACKET => {
                let limit = if interface.snap_len == 0 { u32::MAX } else { interface.snap_len };
                (at(8).min(limit), at(8), 0)
            }
            _ => {
                let units = u64::from(at(12)) << 32 | u64::from(at(16));
                (at(20), at(24), interface.clock.nanoseconds(units))
            }
        };
        let room = block.len() - data_at;
        if cap_len as usize > room {
            return Step::damage(format!(
                "a packet of {cap_len} captured bytes in a block that has room for {room}"
            ));
        }
        let data = data_at..data_at + cap_len as usize;
        let (egress, aggregate) = match kind {
            ENHANCED_PACKET => self.said_of(block, data.end, wire_len),
            _ => (false, None),
        };
        Step::Packet(Packet {
            size: block.len() + 4,
            egress,
            aggregate,
            data,
            wire_len,
            ts_ns,
            interface: u16::try_from(index_of_all).unwrap_or(u16::MAX),
        })
    }

    /// Whether `epb_flags` (4.3.1) marks the packet as outbound, and the aggregate in a comment written by Wirelane.
    /// Damaged options are ignored: the packet is complete without them.
    fn said_of(&self, block: &[u8], data_end: usize, wire_len: u32) -> (bool, Option<Aggregate>) {
        const DIRECTION: u32 = 0b11;
        const OUTBOUND: u32 = 0b10;
        let (mut outbound, mut aggregate) = (None, None);
        let options = Options::new(block, data_end.next_multiple_of(4), self.order);
        for option in options.map_while(std::result::Result::ok) {
            match option.code {
                code::EPB_FLAGS if option.value.len() == 4 => {
                    outbound.get_or_insert(self.order.u32(option.value, 0) & DIRECTION == OUTBOUND);
                }
                code::COMMENT => {
                    aggregate = aggregate.or_else(|| Aggregate::from_comment(option.value, wire_len))
                }
                _ => {}
            }
        }
        (outbound.unwrap_or_default(), aggregate)
    }
}

/// The byte order that a section header declares.
fn section_order(bytes: &[u8]) -> Option<Order> {
    [Order::Little, Order::Big].into_iter().find(|order| order.u32(bytes, 8) == BYTE_ORDER_MAGIC)
}

fn mismatch(length: usize, repeated: u32) -> String {
    format!("a block that has length {length} at its start and {repeated} at its end")
}
