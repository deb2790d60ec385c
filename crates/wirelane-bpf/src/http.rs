//! Recognising HTTP/1 as `bpf/lib/http.h` does, compiled natively; the C header is the source of these structs.

pub use crate::abi::{HttpHalf, HttpWay, SkippedBytes};
use crate::abi::{
    NativeSegment, wl_native_http_first, wl_native_http_line, wl_native_http_packet, wl_native_http_way,
    wl_native_http_way_begin,
};

/// Bytes of a head that are followed at most (`WL_HTTP_HEAD_MOST`).
pub const HEAD_MOST: usize = crate::abi::WL_HTTP_HEAD_MOST as usize;

/// What some bytes begin (`enum wl_http_first`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum First {
    /// Nothing of HTTP/1.
    Nothing = crate::abi::WL_HTTP_NOTHING,
    /// A request: a known method and a blank.
    Request = crate::abi::WL_HTTP_REQUEST,
    /// A response: `HTTP/1.`.
    Response = crate::abi::WL_HTTP_RESPONSE,
    /// They are too few to say.
    Short = crate::abi::WL_HTTP_SHORT,
}

/// What has been read of a head's line (`enum wl_http_line`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line(u8);

impl Line {
    /// Within a line (`WL_HTTP_LINE_TEXT`).
    pub const TEXT: Line = Line(0);
    /// At the beginning of a line (`WL_HTTP_LINE_EMPTY`).
    pub const EMPTY: Line = Line(1);
    /// Behind a line's carriage return that nothing stands before (`WL_HTTP_LINE_EMPTY_CR`).
    pub const EMPTY_CR: Line = Line(2);
    /// Behind an empty line (`WL_HTTP_LINE_END`).
    pub const END: Line = Line(3);

    /// Its number in C.
    pub fn code(self) -> u8 {
        self.0
    }
}

/// A segment of TCP, all of whose payload is there, as [`HttpWay::segment`] gets it.
#[derive(Clone, Copy, Debug)]
pub struct WholeSegment<'a> {
    /// Its time in nanoseconds.
    pub now_ns: u64,
    /// Its sequence number.
    pub seq: u32,
    /// What it acknowledges, with ACK among the flags.
    pub ack: u32,
    /// TCP's flags.
    pub flags: u8,
    /// Its payload.
    pub payload: &'a [u8],
}

/// What these bytes begin; eight tell. (`wl_http_first()`)
pub fn first(bytes: &[u8]) -> First {
    // SAFETY: the pointer and the length are those of one slice, which C only reads within these bounds.
    match unsafe { wl_native_http_first(bytes.as_ptr(), bytes.len()) } {
        1 => First::Request,
        2 => First::Response,
        3 => First::Short,
        _ => First::Nothing,
    }
}

/// Goes on in a head: how many of these bytes belong to it. Where it ends within them, `line` is [`Line::END`].
/// (`wl_http_line()`)
pub fn head_end(line: &mut Line, bytes: &[u8]) -> usize {
    // SAFETY: as in `first`; beside reading these bytes, C writes the one byte that `line` is.
    unsafe { wl_native_http_line(&mut line.0, bytes.as_ptr(), bytes.len()) }
}

impl HttpHalf {
    /// Whether this packet has some of a head in it, or what may become one: then whoever follows heads has to see it. All
    /// else is bodies. `stated`: bytes of payload from `seq` on, of which `bytes` were captured, as many or fewer.
    /// (`wl_http_begin()`, `wl_http_walk()`, `wl_http_end()`)
    pub fn packet(&mut self, seq: u32, stated: u32, bytes: &[u8]) -> bool {
        // SAFETY: as in `first`; `self` has the layout of struct wl_http_half, and
        // is all that is written.
        unsafe { wl_native_http_packet(self, seq, stated, bytes.as_ptr(), bytes.len()) != 0 }
    }
}

impl HttpWay {
    /// A direction that was not seen from its beginning on: its first segment that is seen has this sequence number.
    /// Where it begins with a SYN, any will do.
    pub fn new(seq: u32, now_ns: u64) -> HttpWay {
        let mut way = HttpWay::default();
        // SAFETY: C writes to the struct behind the pointer, and to nothing
        // else.
        unsafe { wl_native_http_way_begin(&mut way, seq, now_ns) };
        way
    }

    /// What a lane does with the next segment. `None`: it is offloaded. Else it comes up, and what has been skipped before
    /// it is told, if [`SkippedBytes::bytes`] is not 0; its key is empty. (`wl_http_look()` and what it stands before.)
    pub fn segment(&mut self, segment: &WholeSegment<'_>) -> Option<SkippedBytes> {
        let mut told = SkippedBytes::default();
        let WholeSegment { now_ns, seq, ack, flags, payload } = *segment;
        // What is longer is no segment of TCP.
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let native = NativeSegment { now_ns, seq, ack, flags: flags.into(), length };
        // SAFETY: the pointers are to structs that bindgen has made of C's, and to a slice that is
        // read up to its length; C keeps none of them.
        let up = unsafe { wl_native_http_way(self, &native, payload.as_ptr(), &mut told) };
        (up != 0).then_some(told)
    }
}
