//! Errors of capture files.

use std::io;
use std::path::PathBuf;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A capture file is damaged, or the file is not a capture file. Everything before the offset has been read.
    #[error("{path}: at byte {offset}: {reason}")]
    CaptureFile {
        /// The file.
        path: PathBuf,
        /// Offset in bytes of the first item that cannot be read.
        offset: u64,
        /// The reason.
        reason: String,
    },
    /// A file could not be opened or read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Files of several that are damaged; all others were read to their ends.
    #[error(
        "{failed} of {files} files could not be read to the end, the others were:{}",
        listed(errors, *failed)
    )]
    Damaged {
        /// Number of these files.
        failed: usize,
        /// Number of all files.
        files: usize,
        /// The errors of the first of them.
        errors: Vec<Error>,
    },
    /// An option has an invalid value.
    #[error("{option}: {reason}")]
    BadOption {
        /// The name of the option in the library or on the command line.
        option: &'static str,
        /// The reason, with the expected value.
        reason: String,
    },
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] io::Error),
    /// A pcap file has one link type, and this packet has another.
    #[error(
        "a pcap file holds one link type, this one {first}, and a packet has {second}; write pcapng instead"
    )]
    SecondLinkType {
        /// LINKTYPE number of the file.
        first: u32,
        /// LINKTYPE number of the packet.
        second: u32,
    },
    /// The format has too few bits for the link type.
    #[error("link type {number} does not fit pcapng, whose link types end at 65535")]
    LinkType {
        /// LINKTYPE number.
        number: u32,
    },
    /// The format has too few bits for the time.
    #[error(
        "the time {ts_ns} ns does not fit pcap, whose seconds since 1970 end in 2106; write pcapng instead"
    )]
    Time {
        /// UTC nanoseconds.
        ts_ns: u64,
    },
    /// A packet or statistics of an interface that was not added.
    #[error("interface {id} has not been added; there are {interfaces}")]
    NoInterface {
        /// The id as given.
        id: u32,
        /// The number of interfaces.
        interfaces: u32,
    },
    /// More bytes than a packet can have.
    #[error("a packet of {len} bytes is longer than a capture file can hold")]
    PacketTooLong {
        /// Captured bytes.
        len: usize,
    },
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A line for each error, and one for those that are not listed.
fn listed(errors: &[Error], failed: usize) -> String {
    let mut text: String = errors.iter().map(|error| format!("\n  {error}")).collect();
    if failed > errors.len() {
        text += &format!("\n  ... and {} more", failed - errors.len());
    }
    text
}
