//! pcap and pcapng, read and written.
//!
//! A capture file is an untrusted input. It may be cut, damaged, or made to hurt; it may also be a pipe that is
//! written while it is read. The rules of the reader are:
//!
//! * What is whole before the first damage is given; then comes [`Error::CaptureFile`] with the byte at which the
//!   damaged packet or block starts. Nothing after it is guessed.
//! * A length in the file never makes memory grow; arriving bytes do. A packet or block of more than 16 MiB is
//!   refused, and blocks that carry nothing for a packet are stepped over without being kept.
//! * No allocation per packet: bytes are read into one window, and a packet is looked at there.
//! * Interfaces of all sections are counted through, from 0.
//!
//! ```text
//! file --read--> Input (window) --Decoder::step--> Packet --Reader::data--> its bytes
//!                  input.rs        pcap.rs, pcapng.rs
//! ```
//!
//! The decoders are our own because a packet must cost no allocation, an error must say what is wrong in words, and
//! obsolete and big-endian variants must be read as libpcap reads them. The tests hold them against the
//! `pcap-parser` crate, tcpdump and capinfos.
//!
//! Writers take any [`std::io::Write`], allocate nothing per packet and make several small writes for each: what they
//! write to should be buffered.
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
    FileInput, FileInterface, FileProgress, MAX_ITEM, Packet, Reached, Reader, TimestampResolution,
};
pub use write::{
    Direction, Interface, InterfaceStatistics, PCAP_BEFORE_DATA, PCAPNG_BEFORE_DATA, PcapWriter,
    PcapngWriter, SectionInfo, statistics_block,
};
