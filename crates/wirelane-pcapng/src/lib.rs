//! pcap and pcapng, read and written.
//!
//! A capture file is an untrusted input. It may be truncated, damaged or malicious; it may also be a pipe that is
//! written while it is read. The rules of the reader are:
//!
//! * Everything before the first damage is returned; then follows [`Error::CaptureFile`] with the offset of the
//!   damaged packet or block. Nothing after it is guessed.
//! * A length field in the file never allocates memory; arriving bytes do. A packet or block of more than 16 MiB is
//!   rejected, and blocks without packet data are skipped without being stored.
//! * No allocation per packet: bytes are read into one window, and a packet is a view into it.
//! * Interfaces of all sections are numbered consecutively, from 0.
//!
//! ```text
//! file --read--> Input (window) --Decoder::step--> Packet --Reader::data--> its bytes
//!                  input.rs        pcap.rs, pcapng.rs
//! ```
//!
//! The decoders are our own because a packet must cost no allocation, an error must explain in words why the file is
//! rejected, and obsolete and big-endian variants must be read as libpcap reads them. The tests compare them with the
//! `pcap-parser` crate, tcpdump and capinfos.
//!
//! Writers take any [`std::io::Write`], allocate nothing per packet and make several small writes for each: the output
//! should be buffered.
//!
//! ```
//! use std::time::Duration;
//! use wirelane_pcapng::{Direction, Interface, PcapngWriter, Reached, Reader, SectionInfo};
//!
//! let mut writer = PcapngWriter::new(Vec::new(), &SectionInfo::default())?;
//! let eth0 = writer.add_interface(&Interface { name: "eth0", link_number: 1, ..Interface::default() })?;
//! writer.write_packet(eth0, 1_000, &[0; 60], 60, Some(Direction::Inbound))?;
//!
//! let mut reader = Reader::from_reader(std::io::Cursor::new(writer.finish()?), "memory")?;
//! while let Reached::Packet(packet) = reader.advance(Duration::ZERO)? {
//!     assert_eq!((packet.ts_ns, reader.data(&packet).len()), (1_000, 60));
//!     reader.consume(&packet);
//! }
//! # Ok::<(), wirelane_pcapng::Error>(())
//! ```

mod aggregate;
mod error;
mod read;
mod write;

pub use aggregate::Aggregate;
pub use error::{Error, Result};
pub use read::{
    FileInput, FileInterface, FileProgress, MAX_ITEM, MergedReader, Packet, Reached, Reader,
    TimestampResolution,
};
pub use write::{
    Direction, Interface, InterfaceStatistics, PCAP_BEFORE_DATA, PCAPNG_BEFORE_DATA, PcapWriter,
    PcapngWriter, SectionInfo, statistics_block,
};
