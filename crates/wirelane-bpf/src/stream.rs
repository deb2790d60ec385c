//! RTP streams that are measured in the kernel, `bpf/lib/stream.h`: the layout of a capture program's maps.

use crate::rtp::RtpStream;

/// What makes packets one stream (`struct wl_stream_key`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StreamKey {
    /// Source address, as in [`crate::layout::Ip`].
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
    /// Source port, in network byte order.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Synchronisation source.
    pub ssrc: u32,
    /// See [`crate::layout::l3`].
    pub l3: u32,
}

/// Where a stream is measured (`struct wl_stream_at`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StreamAt {
    /// Number of its place.
    pub place: u32,
    /// That the place has while it is this stream's.
    pub generation: u32,
}

/// A place (`struct wl_stream`). `bpf/streams.h` says who writes what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Measured {
    /// Odd: a lane is at it.
    pub turn: u64,
    /// Of the last packet that went up; goes into its record.
    pub number: u64,
    /// Packets that did not go up.
    pub taken: u64,
    #[doc(hidden)]
    pub pad: [u64; 5],
    /// See [`StreamAt::generation`].
    pub generation: u64,
    /// The number of the last packet that user space has added.
    pub handed: u64,
    /// Packets from then on go up.
    pub until_ns: u64,
    #[doc(hidden)]
    pub pad2: [u64; 5],
    /// What the packets come to.
    pub rtp: RtpStream,
    #[doc(hidden)]
    pub pad3: [u64; 1],
}
