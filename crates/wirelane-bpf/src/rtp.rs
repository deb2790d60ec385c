//! RTP statistics of `bpf/lib/rtp.h`, compiled natively; the C header is the source of these structs.

/// Sequence numbers that are remembered (`WL_RTP_WINDOW`).
pub const WINDOW: usize = 256;
/// Numbers that may be missing in a stream that goes on (`WL_RTP_DROPOUT`).
pub const DROPOUT: u32 = 3000;
/// Classes of loss bursts: 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64 and more lost packets (`WL_RTP_BURSTS`).
pub const BURSTS: usize = 8;
/// Events whose codes are kept (`WL_RTP_DTMF`).
pub const DTMF: usize = 32;
/// Payload types that are known of a stream (`WL_RTP_PAYLOADS`).
pub const PAYLOADS: usize = 8;
/// [`RtpStream::media_pt`] before there was media (`WL_RTP_NO_TYPE`).
pub const NO_TYPE: u8 = 0xff;
/// A timestamp that is further from its arrival jumps, in nanoseconds (`WL_RTP_JUMP_NS`).
pub const JUMP_NS: u64 = 1_000_000_000;
/// A distance in time, at most (`WL_RTP_MOST_NS`).
pub const MOST_NS: u64 = 1 << 55;

/// What reading a header came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ReadResult {
    /// It is RTP.
    Ok = 0,
    /// It is not: too short, or another version.
    Not = 1,
    /// Header extension, sources or padding take more than there is.
    Malformed = 2,
    /// Not captured as far as the header goes.
    Cut = 3,
}

/// Bits of [`RtpPacket::flags`].
pub mod packet_flags {
    /// The marker bit.
    pub const MARKER: u8 = 0x01;
    /// The fields of an event are valid, if it is one.
    pub const EVENT: u8 = 0x02;
}

/// Values of [`RtpPayload::kind`].
pub mod kind {
    /// Audio, video, text.
    pub const MEDIA: u8 = 1;
    /// telephone-event (RFC 4733).
    pub const DIGIT: u8 = 2;
    /// Comfort noise (RFC 3389).
    pub const NOISE: u8 = 3;
}

/// Bits of [`RtpStream::flags`].
pub mod stream_flags {
    /// [`super::RtpStream::seq_ns`] and [`super::RtpStream::seq_ts`] are valid.
    pub const TIMED: u8 = 0x01;
    /// [`super::RtpStream::bad_seq`] is valid.
    pub const STRAYED: u8 = 0x02;
    /// [`super::RtpStream::digit_ts`] is valid.
    pub const DIGITS: u8 = 0x04;
    /// [`super::RtpStream::min_delta_ns`] is valid.
    pub const REGULAR: u8 = 0x08;
    /// [`super::RtpStream::min_jitter_ns`] is valid.
    pub const JITTER: u8 = 0x10;
}

/// An RTP header (`struct wl_rtp_packet`), in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RtpPacket {
    /// Timestamp.
    pub ts: u32,
    /// Synchronisation source.
    pub ssrc: u32,
    /// Sequence number.
    pub seq: u16,
    /// Bytes of payload, without padding.
    pub payload_len: u16,
    /// Payload type.
    pub pt: u8,
    /// See [`packet_flags`].
    pub flags: u8,
    /// Code of an event.
    pub event: u8,
    /// Whether the event has ended.
    pub event_end: u8,
    /// Its duration, in units of the timestamp.
    pub event_duration: u16,
    #[doc(hidden)]
    pub pad: [u16; 3],
}

/// What a payload type means (`struct wl_rtp_payload`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RtpPayload {
    /// Rate of the timestamp in Hz; 0 where it is not known.
    pub clock: u32,
    /// The payload type.
    pub pt: u8,
    /// See [`kind`]; 0: nothing is here.
    pub kind: u8,
    #[doc(hidden)]
    pub pad: u16,
}

/// What the packets of a stream come to (`struct wl_rtp_stream`). A new one is all zero but [`RtpStream::payload`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RtpStream {
    /// Packets: all of them, duplicates and strays too.
    pub packets: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Packets that came again.
    pub duplicate: u64,
    /// Packets that came late, and were not lost for that.
    pub out_of_order: u64,
    /// Packets whose number belongs nowhere: too late, or far ahead.
    pub stray: u64,
    /// Packets whose header contradicts itself; they are in no other number.
    pub malformed: u64,
    /// Numbers that have left the window without a packet; of all, after [`RtpStream::finish`].
    pub lost: u64,
    /// Numbers that should have come before the sender began anew for the last time.
    pub expected: u64,
    /// The first number, with cycles.
    pub base: u64,
    /// The highest number, with cycles.
    pub highest: u64,
    /// The first number that is still in the window.
    pub left: u64,
    /// A bit for each number in the window.
    pub window: [u64; WINDOW / 64],
    /// Time of the first packet, in nanoseconds.
    pub first_ns: u64,
    /// The latest time.
    pub last_ns: u64,
    /// Arrival of the last packet whose timestamp did not step back.
    pub seq_ns: u64,
    /// How many deltas [`RtpStream::delta_ns`] is the sum of.
    pub deltas: u64,
    /// Sum of the times between packets.
    pub delta_ns: u64,
    /// The least of them.
    pub min_delta_ns: u64,
    /// The greatest of them.
    pub max_delta_ns: u64,
    /// How many values [`RtpStream::jitter_sum_ns`] is the sum of.
    pub jitters: u64,
    /// Sum of the jitter at every packet.
    pub jitter_sum_ns: u64,
    /// The jitter now (RFC 3550, A.8), times 16.
    pub jitter16_ns: u64,
    /// The least jitter.
    pub min_jitter_ns: u64,
    /// The greatest jitter.
    pub max_jitter_ns: u64,
    /// Transit of the last packet less that of the first.
    pub transit_ns: i64,
    /// The least of it.
    pub min_transit_ns: i64,
    /// The greatest of it.
    pub max_transit_ns: i64,
    /// A bit for each payload type that came.
    pub payload_types: [u64; 2],
    /// Synchronisation source.
    pub ssrc: u32,
    /// Timestamp of the packet of [`RtpStream::seq_ns`].
    pub seq_ts: u32,
    /// Timestamp of the last event.
    pub digit_ts: u32,
    /// Numbers that are lost in a row, up to the window.
    pub run: u32,
    /// Runs of lost packets.
    pub bursts: u32,
    /// The longest of them.
    pub longest_burst: u32,
    /// How many of each length: see [`BURSTS`].
    pub burst: [u32; BURSTS],
    /// How often the sender began anew with another number.
    pub restarts: u32,
    /// Packets with the marker bit.
    pub markers: u32,
    /// Timestamps further than [`JUMP_NS`] from their arrival, without a marker.
    pub timestamp_jumps: u32,
    /// Changes from one payload type of media to another.
    pub payload_changes: u32,
    /// Packets of comfort noise.
    pub noise: u32,
    /// Events (RFC 4733).
    pub digits: u32,
    /// Codes of the first [`DTMF`] of them.
    pub digit: [u8; DTMF],
    /// What payload types mean.
    pub payload: [RtpPayload; PAYLOADS],
    /// The number that would make a stray the first of a new sequence.
    pub bad_seq: u16,
    /// Payload type of the last packet.
    pub pt: u8,
    /// That of the last media, or [`NO_TYPE`].
    pub media_pt: u8,
    /// [`kind`] of the last packet.
    pub last_kind: u8,
    /// See [`stream_flags`].
    pub flags: u8,
    #[doc(hidden)]
    pub pad: u16,
}

unsafe extern "C" {
    fn wl_native_rtp_read(data: *const u8, captured: u32, off: u32, len: u32, out: *mut RtpPacket) -> u32;
    fn wl_native_rtp_update(stream: *mut RtpStream, packet: *const RtpPacket, ts_ns: u64);
    fn wl_native_rtp_finish(stream: *mut RtpStream);
}

impl RtpPacket {
    /// Reads the header of a datagram's payload, which had `len` bytes, of which `captured` are there. With
    /// [`ReadResult::Malformed`] the fixed header is valid. (`wl_rtp_read()`)
    pub fn read(captured: &[u8], len: usize) -> (ReadResult, RtpPacket) {
        let mut packet = RtpPacket::default();
        let there = captured.len().min(0xffff) as u32;
        let len = len.min(0xffff) as u32;
        // SAFETY: the pointer is that of a slice of at least `there` bytes, which C only reads within them; `packet` is
        // live and has the layout of C's struct, which a test compares field by field.
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
    /// Adds a packet that came at this time. (`wl_rtp_update()`)
    #[inline]
    pub fn update(&mut self, packet: &RtpPacket, ts_ns: u64) {
        // SAFETY: both are live and have the layouts of C's structs, which a test compares field by field; only the
        // stream is written, and the two do not overlap, as one is borrowed exclusively.
        unsafe { wl_native_rtp_update(self, packet, ts_ns) };
    }

    /// The stream is over: what has not come by now is lost. More than once does no harm. (`wl_rtp_finish()`)
    pub fn finish(&mut self) {
        // SAFETY: as in `update`.
        unsafe { wl_native_rtp_finish(self) };
    }

    /// Numbers that should have come by now. (`wl_rtp_expected()`)
    pub fn expected(&self) -> u64 {
        if self.packets == 0 { 0 } else { self.expected + (self.highest - self.base + 1) }
    }

    /// Numbers that have come: packets without duplicates and strays.
    pub fn received(&self) -> u64 {
        self.packets - self.duplicate - self.stray
    }

    /// The jitter now, in nanoseconds (RFC 3550, A.8).
    pub fn jitter_ns(&self) -> u64 {
        self.jitter16_ns >> 4
    }

    /// What a payload type means, where that is known.
    pub fn payload_of(&self, pt: u8) -> Option<&RtpPayload> {
        self.payload.iter().find(|payload| payload.kind != 0 && payload.pt == pt)
    }
}
