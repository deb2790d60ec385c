//! How calls are followed.

use super::kept::Keep;

/// The least memory of a monitor in bytes: buffers for fragments and TCP take part of it.
pub const LEAST_MEMORY: usize = 1 << 20;

/// How a monitor works. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes for calls, streams, TCP connections and fragments; [`LEAST_MEMORY`] where that is more.
    pub memory: usize,
    /// Look at the headers inside tunnels.
    pub inner: bool,
    /// Take for RTP what looks like it, and no call has announced.
    pub heuristic: bool,
    /// A message of a call that is not known waits this long for that call's INVITE: where several rings bring packets, an
    /// answer may be faster. 0, where packets come in order: not at all.
    pub reorder_ns: u64,
    /// A call that is over waits this long for what is late.
    pub linger_ns: u64,
    /// A call that nobody answers is over after this silence.
    pub waiting_ns: u64,
    /// An answered call is over after this silence, where it had no media.
    pub quiet_ns: u64,
    /// The same, where it had.
    pub talking_ns: u64,
    /// A stream of no call is over after this silence.
    pub stream_ns: u64,
    /// Quality is evaluated for parts of this length.
    pub interval_ns: u64,
    /// Only calls whose From has one of these in it, whatever the case of ASCII letters; empty: any.
    pub from: Vec<String>,
    /// The same of To.
    pub to: Vec<String>,
    /// Only calls with one of these Call-IDs; empty: any.
    pub call_ids: Vec<String>,
    /// Whether messages are handed out, to be sent on.
    pub signals: bool,
    /// Also those of no call.
    pub all_signals: bool,
    /// Whether the packets of calls are handed out, to be kept.
    pub keep: Keep,
}

impl Default for Settings {
    /// 64 MiB; 5 s, 180 s (timer C of RFC 3261), an hour, 5 minutes, 30 s; parts of 10 s.
    fn default() -> Settings {
        const SECOND: u64 = 1_000_000_000;
        Settings {
            memory: 64 << 20,
            inner: false,
            heuristic: false,
            reorder_ns: 0,
            linger_ns: 5 * SECOND,
            waiting_ns: 180 * SECOND,
            quiet_ns: 3600 * SECOND,
            talking_ns: 300 * SECOND,
            stream_ns: 30 * SECOND,
            interval_ns: 10 * SECOND,
            from: Vec::new(),
            to: Vec::new(),
            call_ids: Vec::new(),
            signals: false,
            all_signals: false,
            keep: Keep::Nothing,
        }
    }
}
