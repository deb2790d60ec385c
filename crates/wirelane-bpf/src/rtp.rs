//! RTP statistics of `bpf/lib/rtp.h`, compiled natively; the C header is the source of these structs.

pub use crate::abi::{RtpPacket, RtpPayload, RtpStream};
use crate::abi::{wl_native_rtp_finish, wl_native_rtp_read, wl_native_rtp_update};

/// Sequence numbers that are tracked (`WL_RTP_WINDOW`).
pub const WINDOW: usize = crate::abi::WL_RTP_WINDOW as usize;
/// Largest gap within a stream (`WL_RTP_DROPOUT`).
pub const DROPOUT: u32 = crate::abi::WL_RTP_DROPOUT;
/// Classes of loss bursts: 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64 and more lost packets (`WL_RTP_BURSTS`).
pub const BURSTS: usize = crate::abi::WL_RTP_BURSTS as usize;
/// Number of events whose codes are stored (`WL_RTP_DTMF`).
pub const DTMF: usize = crate::abi::WL_RTP_DTMF as usize;
/// Payload types that are stored per stream (`WL_RTP_PAYLOADS`).
pub const PAYLOADS: usize = crate::abi::WL_RTP_PAYLOADS as usize;
/// [`RtpStream::media_pt`] before the first media packet (`WL_RTP_NO_TYPE`).
pub const NO_TYPE: u8 = crate::abi::WL_RTP_NO_TYPE as u8;
/// A larger deviation of a timestamp from its arrival is a jump, in nanoseconds (`WL_RTP_JUMP_NS`).
pub const JUMP_NS: u64 = crate::abi::WL_RTP_JUMP_NS as u64;
/// Maximum distance in time, in nanoseconds (`WL_RTP_MOST_NS`).
pub const MOST_NS: u64 = crate::abi::WL_RTP_MOST_NS;

/// Result of reading a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ReadResult {
    /// A valid RTP header.
    Ok = crate::abi::WL_RTP_OK,
    /// Not RTP: too short, or another version.
    Not = crate::abi::WL_RTP_NOT,
    /// Header extension, sources or padding exceed the packet.
    Malformed = crate::abi::WL_RTP_MALFORMED,
    /// The header was not captured completely.
    Cut = crate::abi::WL_RTP_CUT,
}

/// Bits of [`RtpPacket::flags`].
pub mod packet_flags {
    /// The marker bit.
    pub const MARKER: u8 = crate::abi::WL_RTP_MARKER as u8;
    /// The fields of an event are valid, if it is one.
    pub const EVENT: u8 = crate::abi::WL_RTP_EVENT as u8;
}

/// Values of [`RtpPayload::kind`].
pub mod kind {
    /// Audio, video, text.
    pub const MEDIA: u8 = crate::abi::WL_RTP_MEDIA as u8;
    /// telephone-event (RFC 4733).
    pub const DIGIT: u8 = crate::abi::WL_RTP_DIGIT as u8;
    /// Comfort noise (RFC 3389).
    pub const NOISE: u8 = crate::abi::WL_RTP_NOISE as u8;
}

/// Bits of [`RtpStream::flags`].
pub mod stream_flags {
    /// [`super::RtpStream::seq_ns`] and [`super::RtpStream::seq_ts`] are valid.
    pub const TIMED: u8 = crate::abi::WL_RTP_TIMED as u8;
    /// [`super::RtpStream::bad_seq`] is valid.
    pub const STRAYED: u8 = crate::abi::WL_RTP_STRAYED as u8;
    /// [`super::RtpStream::digit_ts`] is valid.
    pub const DIGITS: u8 = crate::abi::WL_RTP_DIGITS as u8;
    /// [`super::RtpStream::min_delta_ns`] is valid.
    pub const REGULAR: u8 = crate::abi::WL_RTP_REGULAR as u8;
    /// [`super::RtpStream::min_jitter_ns`] is valid.
    pub const JITTER: u8 = crate::abi::WL_RTP_JITTER as u8;
}

impl RtpPacket {
    /// Reads the header of a datagram's payload, which had `len` bytes, of which `captured` are available. With
    /// [`ReadResult::Malformed`] the fixed header is valid. (`wl_rtp_read()`)
    pub fn read(captured: &[u8], len: usize) -> (ReadResult, RtpPacket) {
        let mut packet = RtpPacket::default();
        let there = captured.len().min(0xffff) as u32;
        let len = len.min(0xffff) as u32;
        // SAFETY: the pointer is that of a slice of at least `there` bytes, which C only reads within them; `packet` is
        // live and has the layout of C's struct.
        let result = unsafe { wl_native_rtp_read(captured.as_ptr(), there, 0, len, &mut packet) };
        let result = match result {
            0 => ReadResult::Ok,
            2 => ReadResult::Malformed,
            3 => ReadResult::Cut,
            _ => ReadResult::Not,
        };
        (result, packet)
    }
}

impl RtpStream {
    /// Adds a packet that arrived at this time. (`wl_rtp_update()`)
    #[inline]
    pub fn update(&mut self, packet: &RtpPacket, ts_ns: u64) {
        // SAFETY: both are live and have the layouts of C's structs; only the
        // stream is written, and the two do not overlap, as one is borrowed exclusively.
        unsafe { wl_native_rtp_update(self, packet, ts_ns) };
    }

    /// Ends the stream: numbers that have not arrived by now are lost. Idempotent. (`wl_rtp_finish()`)
    pub fn finish(&mut self) {
        // SAFETY: as in `update`.
        unsafe { wl_native_rtp_finish(self) };
    }

    /// Number of packets expected so far. (`wl_rtp_expected()`)
    pub fn expected(&self) -> u64 {
        if self.packets == 0 { 0 } else { self.expected + (self.highest - self.base + 1) }
    }

    /// Number of packets received, without duplicates and strays.
    pub fn received(&self) -> u64 {
        self.packets - self.duplicate - self.stray
    }

    /// The current jitter in nanoseconds (RFC 3550, A.8).
    pub fn jitter_ns(&self) -> u64 {
        self.jitter16_ns >> 4
    }

    /// The meaning of a payload type, if it is known.
    pub fn payload_of(&self, pt: u8) -> Option<&RtpPayload> {
        self.payload.iter().find(|payload| payload.kind != 0 && payload.pt == pt)
    }
}
