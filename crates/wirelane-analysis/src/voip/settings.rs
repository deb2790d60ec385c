//! Settings of a VoIP monitor.

use super::kept::Keep;

/// The least memory of a monitor in bytes: buffers for fragments and TCP take part of it.
pub const LEAST_MEMORY: usize = 1 << 20;

/// Settings of a monitor. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Memory limit in bytes for calls, streams, TCP connections and fragments; at least [`LEAST_MEMORY`].
    pub memory: usize,
    /// Whether to parse the headers inside tunnels.
    pub inner: bool,
    /// Whether to accept packets as RTP that look like it, although no call announced them.
    pub heuristic: bool,
    /// Time for which a message of an unknown call waits for the INVITE: with several rings, a response may be
    /// delivered before it. 0, if packets are in order: no wait.
    pub reorder_ns: u64,
    /// Time for which a finished call waits for late packets.
    pub linger_ns: u64,
    /// An unanswered call is over after this time without messages.
    pub waiting_ns: u64,
    /// An answered call without media is over after this time without messages.
    pub quiet_ns: u64,
    /// An answered call with media is over after this time without packets.
    pub talking_ns: u64,
    /// A stream without a call is over after this time without packets.
    pub stream_ns: u64,
    /// Length of intervals for quality.
    pub interval_ns: u64,
    /// Only calls whose From contains one of these, ignoring ASCII case; empty: any.
    pub from: Vec<String>,
    /// The same for To.
    pub to: Vec<String>,
    /// Only calls with one of these Call-IDs; empty: any.
    pub call_ids: Vec<String>,
    /// Whether messages are handed out, for export.
    pub signals: bool,
    /// Also messages without a call.
    pub all_signals: bool,
    /// Packets of calls that are handed out, for storage.
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
