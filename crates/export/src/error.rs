//! Errors of outputs, for the person at the keyboard.

use std::io;
use std::path::PathBuf;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Writing failed. Errors of an [`crate::Output`] name the path.
    #[error(transparent)]
    Write(#[from] io::Error),
    /// An output file could not be opened.
    #[error("{path} cannot be written: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The output exists, and overwriting was not asked for.
    #[error("{path} exists already; give another name, or ask for it to be overwritten (--overwrite)")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The output is a symbolic link.
    #[error(
        "{path} is a symbolic link, which is not followed so that nobody can redirect a recording; \
         give the name that it points to, or - for standard output"
    )]
    SymbolicLink {
        /// The link.
        path: PathBuf,
    },
    /// The output is something that a recording cannot go to.
    #[error("{path} is {kind}; a recording goes to a file, a pipe or standard output")]
    NotAnOutput {
        /// The path.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
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
        /// What was given.
        id: u32,
        /// How many there are.
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
