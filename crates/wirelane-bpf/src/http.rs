//! Detection of HTTP/1 as in `bpf/lib/http.h`, compiled natively; the C header is the source of these structs.

pub use crate::abi::{HttpHalf, HttpWay, SkippedBytes};
use crate::abi::{
    NativeSegment, wl_native_http_first, wl_native_http_line, wl_native_http_packet, wl_native_http_way,
    wl_native_http_way_begin,
};

/// Maximum length of a head that is followed, in bytes (`WL_HTTP_HEAD_MOST`).
pub const HEAD_MOST: usize = crate::abi::WL_HTTP_HEAD_MOST as usize;

/// Classification of the first bytes of a payload (`enum wl_http_first`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum First {
    /// Not HTTP/1.
    Nothing = crate::abi::WL_HTTP_NOTHING,
    /// A request: a known method and a blank.
    Request = crate::abi::WL_HTTP_REQUEST,
    /// A response: `HTTP/1.`.
    Response = crate::abi::WL_HTTP_RESPONSE,
    /// Too few bytes to decide.
    Short = crate::abi::WL_HTTP_SHORT,
}

/// State of reading a line of a head (`enum wl_http_line`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line(u8);

impl Line {
    /// Within a line (`WL_HTTP_LINE_TEXT`).
    pub const TEXT: Line = Line(0);
    /// At the beginning of a line (`WL_HTTP_LINE_EMPTY`).
    pub const EMPTY: Line = Line(1);
    /// Behind the carriage return of a line without text (`WL_HTTP_LINE_EMPTY_CR`).
    pub const EMPTY_CR: Line = Line(2);
    /// Behind an empty line (`WL_HTTP_LINE_END`).
    pub const END: Line = Line(3);

    /// Its number in C.
    pub fn code(self) -> u8 {
        self.0
    }
}

/// A TCP segment with its complete payload, as passed to [`HttpWay::segment`].
#[derive(Clone, Copy, Debug)]
pub struct WholeSegment<'a> {
    /// Its time, in nanoseconds.
    pub now_ns: u64,
    /// Its sequence number.
    pub seq: u32,
    /// Its acknowledgement number, valid with ACK among the flags.
    pub ack: u32,
    /// TCP's flags.
    pub flags: u8,
    /// Its payload.
    pub payload: &'a [u8],
}

/// Classifies the first bytes of a payload; eight are sufficient. (`wl_http_first()`)
pub fn first(bytes: &[u8]) -> First {
    // SAFETY: the pointer and the length are those of one slice, which C only reads within these bounds.
    match unsafe { wl_native_http_first(bytes.as_ptr(), bytes.len()) } {
        1 => First::Request,
        2 => First::Response,
        3 => First::Short,
        _ => First::Nothing,
    }
}

/// Continues reading a head: returns how many of these bytes belong to it. If it ends within them, `line` is
/// [`Line::END`]. (`wl_http_line()`)
pub fn head_end(line: &mut Line, bytes: &[u8]) -> usize {
    // SAFETY: as in `first`; apart from reading these bytes, C writes the one byte that `line` is.
    unsafe { wl_native_http_line(&mut line.0, bytes.as_ptr(), bytes.len()) }
}

impl HttpHalf {
    /// Whether this packet contains part of a head, or bytes that may become one, and has to be delivered to the parser
    /// of heads. Everything else is bodies. `stated`: bytes of payload from `seq` on, of which `bytes` were captured,
    /// as many or fewer. (`wl_http_begin()`, `wl_http_walk()`, `wl_http_end()`)
    pub fn packet(&mut self, seq: u32, stated: u32, bytes: &[u8]) -> bool {
        // SAFETY: as in `first`; `self` has the layout of struct wl_http_half, and
        // is all that is written.
        unsafe { wl_native_http_packet(self, seq, stated, bytes.as_ptr(), bytes.len()) != 0 }
    }
}

impl HttpWay {
    /// A direction that was not seen from its beginning: its first visible segment has this sequence number. If it
    /// begins with a SYN, any number is valid.
    pub fn new(seq: u32, now_ns: u64) -> HttpWay {
        let mut way = HttpWay::default();
        // SAFETY: C writes to the struct behind the pointer, and to nothing
        // else.
        unsafe { wl_native_http_way_begin(&mut way, seq, now_ns) };
        way
    }

    /// Processes the next segment as a lane does. `None`: it is offloaded. Otherwise it is delivered, and the bytes
    /// skipped before it are returned, if [`SkippedBytes::bytes`] is not 0; its key is empty. (`wl_http_look()` and the
    /// code around it.)
    pub fn segment(&mut self, segment: &WholeSegment<'_>) -> Option<SkippedBytes> {
        let mut told = SkippedBytes::default();
        let WholeSegment { now_ns, seq, ack, flags, payload } = *segment;
        // A longer payload cannot be a TCP segment.
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let native = NativeSegment { now_ns, seq, ack, flags: flags.into(), length };
        // SAFETY: the pointers are to structs that bindgen has generated from C's, and to a slice that is read up to
        // its length; C keeps none of them.
        let up = unsafe { wl_native_http_way(self, &native, payload.as_ptr(), &mut told) };
        (up != 0).then_some(told)
    }
}
