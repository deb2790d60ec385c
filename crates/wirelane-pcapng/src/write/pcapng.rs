//! pcapng (draft-ietf-opsawg-pcapng): one section, little endian, nanoseconds.
//!
//! A recording is a Section Header Block, an Interface Description Block per virtual device, an Enhanced Packet Block
//! per packet, and an Interface Statistics Block per interface at its end (or from time to time), so that a reader sees
//! the lost packets as well as the captured ones.

use std::io::Write;

use crate::{Aggregate, Error, Result};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// Longest packet in bytes: the length of its whole block must fit 32 bits.
const MAX_PACKET: usize = u32::MAX as usize - 256;
/// Bytes of a packet's block before the packet data.
pub const BEFORE_DATA: usize = 28;
/// `if_tsresol`: units of 10^-9 s.
const NANOSECONDS: u8 = 9;

/// Codes of options (sections 4.1 to 4.6 of the draft); most have another meaning in each type of block.
mod code {
    pub(super) const END: u16 = 0;
    pub(super) const COMMENT: u16 = 1;
    pub(super) const SHB_HARDWARE: u16 = 2;
    pub(super) const SHB_OS: u16 = 3;
    pub(super) const SHB_USERAPPL: u16 = 4;
    pub(super) const IF_NAME: u16 = 2;
    pub(super) const IF_DESCRIPTION: u16 = 3;
    pub(super) const IF_SPEED: u16 = 8;
    pub(super) const IF_TSRESOL: u16 = 9;
    pub(super) const IF_FILTER: u16 = 11;
    pub(super) const IF_HARDWARE: u16 = 15;
    pub(super) const EPB_FLAGS: u16 = 2;
    pub(super) const ISB_STARTTIME: u16 = 2;
    pub(super) const ISB_ENDTIME: u16 = 3;
    pub(super) const ISB_IFRECV: u16 = 4;
    pub(super) const ISB_IFDROP: u16 = 5;
    pub(super) const ISB_FILTERACCEPT: u16 = 6;
    pub(super) const ISB_OSDROP: u16 = 7;
    pub(super) const ISB_USRDELIV: u16 = 8;
}

/// Metadata of a section. Empty texts are omitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct SectionInfo<'a> {
    /// The machine, `shb_hardware`.
    pub hardware: &'a str,
    /// The operating system, `shb_os`.
    pub os: &'a str,
    /// The application, `shb_userappl`.
    pub application: &'a str,
    /// Further remarks, `opt_comment`.
    pub comment: &'a str,
}

/// Description of an interface. Empty texts are omitted; texts longer than 65,535 bytes are cut.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interface<'a> {
    /// `if_name`: the virtual device, as in `eth1@2`.
    pub name: &'a str,
    /// `if_description`.
    pub description: &'a str,
    /// `if_hardware`: for example driver and card.
    pub hardware: &'a str,
    /// `if_filter`: the capture filter, as a tcpdump expression.
    pub filter: &'a str,
    /// LINKTYPE number of its packets ([`wirelane_bpf::linktype`]).
    pub link_number: u32,
    /// Snap length in bytes; 0: no limit.
    pub snap_len: u32,
    /// `if_speed` in bits per second, where it is known.
    pub speed_bps: Option<u64>,
}

/// Packet counts of an interface. Counts that are `None` are omitted: unknown is not zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct InterfaceStatistics {
    /// Time of the counts, in UTC nanoseconds.
    pub at_ns: u64,
    /// Start of the capture, in UTC nanoseconds.
    pub start_ns: Option<u64>,
    /// End of the capture, in UTC nanoseconds.
    pub end_ns: Option<u64>,
    /// `isb_ifrecv`: packets that the interface received.
    pub received: Option<u64>,
    /// `isb_ifdrop`: packets that the interface dropped for lack of resources.
    pub dropped: Option<u64>,
    /// `isb_filteraccept`: packets that the filter accepted.
    pub filter_accepted: Option<u64>,
    /// `isb_osdrop`: packets that were dropped on their way to user space.
    pub os_drop: Option<u64>,
    /// `isb_usrdeliv`: packets that were delivered to user space.
    pub delivered: Option<u64>,
}

/// Direction of a packet, `epb_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the device.
    Inbound,
    /// Out of the device.
    Outbound,
}

/// Writes a pcapng file.
#[derive(Debug)]
pub struct PcapngWriter<W> {
    output: W,
    interfaces: u32,
    /// Buffer in which blocks other than packets are built.
    block: Vec<u8>,
}

impl<W: Write> PcapngWriter<W> {
    /// Writes the section header.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn new(output: W, info: &SectionInfo<'_>) -> Result<PcapngWriter<W>> {
        let mut writer = PcapngWriter { output, interfaces: 0, block: Vec::new() };
        writer.begin(SECTION);
        writer.put(&BYTE_ORDER_MAGIC.to_le_bytes());
        writer.put(&1u16.to_le_bytes());
        writer.put(&0u16.to_le_bytes());
        // The section's length is unknown until its end.
        writer.put(&u64::MAX.to_le_bytes());
        writer.text(code::COMMENT, info.comment);
        writer.text(code::SHB_HARDWARE, info.hardware);
        writer.text(code::SHB_OS, info.os);
        writer.text(code::SHB_USERAPPL, info.application);
        writer.end()?;
        Ok(writer)
    }

    /// Describes an interface and returns its id, counted from 0.
    ///
    /// # Errors
    /// [`Error::LinkType`], with nothing written, or [`Error::Write`].
    pub fn add_interface(&mut self, interface: &Interface<'_>) -> Result<u32> {
        let link_number = u16::try_from(interface.link_number)
            .map_err(|_| Error::LinkType { number: interface.link_number })?;
        self.begin(INTERFACE);
        self.put(&link_number.to_le_bytes());
        self.put(&[0; 2]);
        self.put(&interface.snap_len.to_le_bytes());
        self.text(code::IF_NAME, interface.name);
        self.text(code::IF_DESCRIPTION, interface.description);
        if let Some(speed) = interface.speed_bps {
            self.option(code::IF_SPEED, &[&speed.to_le_bytes()]);
        }
        self.option(code::IF_TSRESOL, &[&[NANOSECONDS]]);
        if !interface.filter.is_empty() {
            // A byte 0 marks an expression, as opposed to bytecode.
            self.option(code::IF_FILTER, &[&[0], cut(interface.filter, usize::from(u16::MAX) - 1)]);
        }
        self.text(code::IF_HARDWARE, interface.hardware);
        self.end()?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Writes a packet of an interface: UTC nanoseconds, captured bytes, length on the wire in bytes, and the
    /// direction, if known.
    ///
    /// # Errors
    /// [`Error::NoInterface`] and [`Error::PacketTooLong`], with nothing written, or [`Error::Write`].
    pub fn write_packet(
        &mut self,
        interface: u32,
        ts_utc_ns: u64,
        data: &[u8],
        wire_len: u32,
        direction: Option<Direction>,
    ) -> Result<()> {
        self.write_aggregate(interface, ts_utc_ns, data, wire_len, direction, None)
    }

    /// As [`PcapngWriter::write_packet`], with a comment that marks an aggregate.
    ///
    /// # Errors
    /// As for [`PcapngWriter::write_packet`].
    pub fn write_aggregate(
        &mut self,
        interface: u32,
        ts_utc_ns: u64,
        data: &[u8],
        wire_len: u32,
        direction: Option<Direction>,
        aggregate: Option<Aggregate>,
    ) -> Result<()> {
        self.check(interface)?;
        if data.len() > MAX_PACKET {
            return Err(Error::PacketTooLong { len: data.len() });
        }
        // Padding, then options: epb_flags (4 bytes of header, 4 of value), a comment, and the end of options.
        let mut tail = [0; 3 + 8 + 4 + Aggregate::COMMENT + 4 + 4];
        let padding = data.len().next_multiple_of(4) - data.len();
        let mut tail_len = padding;
        if let Some(direction) = direction {
            let flags: u32 = if direction == Direction::Inbound { 1 } else { 2 };
            tail[tail_len..tail_len + 2].copy_from_slice(&code::EPB_FLAGS.to_le_bytes());
            tail[tail_len + 2..tail_len + 4].copy_from_slice(&4u16.to_le_bytes());
            tail[tail_len + 4..tail_len + 8].copy_from_slice(&flags.to_le_bytes());
            tail_len += 8;
        }
        if let Some(aggregate) = aggregate {
            let (comment, len) = aggregate.comment();
            tail[tail_len..tail_len + 2].copy_from_slice(&code::COMMENT.to_le_bytes());
            tail[tail_len + 2..tail_len + 4].copy_from_slice(&(len as u16).to_le_bytes());
            tail[tail_len + 4..tail_len + 4 + len].copy_from_slice(&comment[..len]);
            tail_len += 4 + len.next_multiple_of(4);
        }
        if tail_len > padding {
            // The end of options is four bytes of 0.
            tail_len += 4;
        }
        let block_len = (28 + data.len() + tail_len + 4) as u32;
        tail[tail_len..tail_len + 4].copy_from_slice(&block_len.to_le_bytes());
        let mut header = [0; BEFORE_DATA];
        for (field, value) in header.chunks_exact_mut(4).zip([
            ENHANCED_PACKET,
            block_len,
            interface,
            (ts_utc_ns >> 32) as u32,
            ts_utc_ns as u32,
            data.len() as u32,
            wire_len,
        ]) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        self.output.write_all(&header)?;
        self.output.write_all(data)?;
        self.output.write_all(&tail[..tail_len + 4])?;
        Ok(())
    }

    /// Writes the packet counts of an interface.
    ///
    /// # Errors
    /// [`Error::NoInterface`], with nothing written, or [`Error::Write`].
    pub fn write_statistics(&mut self, interface: u32, statistics: &InterfaceStatistics) -> Result<()> {
        self.check(interface)?;
        self.begin(STATISTICS);
        self.put(&interface.to_le_bytes());
        self.put(&time(statistics.at_ns));
        for (code, time_ns) in
            [(code::ISB_STARTTIME, statistics.start_ns), (code::ISB_ENDTIME, statistics.end_ns)]
        {
            if let Some(time_ns) = time_ns {
                self.option(code, &[&time(time_ns)]);
            }
        }
        for (code, count) in [
            (code::ISB_IFRECV, statistics.received),
            (code::ISB_IFDROP, statistics.dropped),
            (code::ISB_FILTERACCEPT, statistics.filter_accepted),
            (code::ISB_OSDROP, statistics.os_drop),
            (code::ISB_USRDELIV, statistics.delivered),
        ] {
            if let Some(count) = count {
                self.option(code, &[&count.to_le_bytes()]);
            }
        }
        self.end()
    }

    /// The output.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.output
    }

    /// Flushes buffered data, so that a reader at the other end of a pipe gets it.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn flush(&mut self) -> Result<()> {
        Ok(self.output.flush()?)
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn finish(mut self) -> Result<W> {
        self.flush()?;
        Ok(self.output)
    }

    fn check(&self, interface: u32) -> Result<()> {
        match interface < self.interfaces {
            true => Ok(()),
            false => Err(Error::NoInterface { id: interface, interfaces: self.interfaces }),
        }
    }

    /// Starts a block whose options, if any, come last.
    fn begin(&mut self, kind: u32) {
        self.block.clear();
        self.put(&kind.to_le_bytes());
        self.put(&[0; 4]);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
    }

    /// Appends an option whose value is the concatenation of these parts, at most 65,535 bytes.
    fn option(&mut self, code: u16, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.put(&code.to_le_bytes());
        self.put(&(len as u16).to_le_bytes());
        for part in parts {
            self.put(part);
        }
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    /// Appends a text option, unless it is empty.
    fn text(&mut self, code: u16, text: &str) {
        if !text.is_empty() {
            self.option(code, &[cut(text, usize::from(u16::MAX))]);
        }
    }

    /// Ends the block's options and writes it.
    fn end(&mut self) -> Result<()> {
        self.option(code::END, &[]);
        let len = (self.block.len() + 4) as u32;
        self.block[4..8].copy_from_slice(&len.to_le_bytes());
        self.put(&len.to_le_bytes());
        Ok(self.output.write_all(&self.block)?)
    }
}

/// A block with the packet counts of an interface, for a section in which the interface has been described.
/// # Errors
/// None: writing to a `Vec` does not fail.
pub fn statistics_block(interface: u32, statistics: &InterfaceStatistics) -> Result<Vec<u8>> {
    let mut writer = PcapngWriter { output: Vec::new(), interfaces: u32::MAX, block: Vec::new() };
    writer.write_statistics(interface, statistics)?;
    Ok(writer.output)
}

/// The text's bytes, cut at a character boundary if it is too long.
fn cut(text: &str, limit: usize) -> &[u8] {
    let end = (0..=text.len().min(limit)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text.as_bytes()[..end]
}

/// A time in the format of statistics: the upper 32 bits, then the lower ones.
fn time(ns: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&((ns >> 32) as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&(ns as u32).to_le_bytes());
    bytes
}
