//! Counters of a VoIP monitor.

use super::call::State;
use super::sip::Fault;

/// Methods that are counted by name; all others share one counter.
pub const METHODS: [&str; 14] = [
    "INVITE",
    "ACK",
    "BYE",
    "CANCEL",
    "OPTIONS",
    "REGISTER",
    "PRACK",
    "SUBSCRIBE",
    "NOTIFY",
    "PUBLISH",
    "INFO",
    "REFER",
    "MESSAGE",
    "UPDATE",
];

/// Names of faults, in the order of [`Counts::faults`].
pub const FAULTS: [&str; 4] = ["start_line", "head", "header", "length"];

/// Counters of packets, messages and calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// SIP packets: datagrams, and segments of SIP connections.
    pub signalling_packets: u64,
    /// RTP packets.
    pub rtp_packets: u64,
    /// RTCP packets.
    pub rtcp_packets: u64,
    /// Fragments of IP datagrams that waited for the rest; the last one counts as the packet that the datagram is.
    pub fragment_packets: u64,
    /// All other packets.
    pub other_packets: u64,
    /// SIP messages, including repetitions.
    pub messages: u64,
    /// Requests by [`METHODS`]; the last: any other method.
    pub requests: [u64; METHODS.len() + 1],
    /// Responses by the first digit of their status.
    pub responses: [u64; 7],
    /// Messages of calls that repeat an earlier one.
    pub retransmitted: u64,
    /// Malformed messages by [`FAULTS`].
    pub faults: [u64; FAULTS.len()],
    /// Messages that could not be read because the capture does not have all of their bytes.
    pub cut_messages: u64,
    /// Messages of unknown calls, which began before the capture or were evicted.
    pub unknown_call_messages: u64,
    /// Messages without a call: REGISTER, OPTIONS, SUBSCRIBE and others, with their responses.
    pub no_call_messages: u64,
    /// Calls that were handed out.
    pub calls: u64,
    /// Calls that the settings do not select.
    pub calls_left_out: u64,
    /// Calls that were handed out, by [`State`].
    pub states: [u64; State::ALL.len()],
    /// Of these, calls whose From and To are the same.
    pub self_calls: u64,
    /// Of these, calls that were evicted.
    pub calls_evicted: u64,
    /// Streams that were handed out, with or without a call.
    pub streams: u64,
    /// Of these, streams without a call.
    pub streams_without_call: u64,
    /// Of these, streams that were evicted.
    pub streams_evicted: u64,
    /// RTP packets without a stream: of a call with too many streams, or of streams whose call was not handed out.
    pub rtp_left_out: u64,
    /// RTP packets that were added to their streams in the kernel.
    pub rtp_absorbed: u64,
    /// Of these, RTP packets that were delivered, too, for other analyses.
    pub rtp_beside: u64,
    /// RTP packets that were delivered while lanes owned the stream, and were held.
    pub rtp_held: u64,
    /// Streams that were measured in the kernel, at least in part.
    pub streams_offloaded: u64,
    /// Streams of calls that found no room in the kernel, and were measured in user space.
    pub streams_without_room: u64,
    /// Places of media without a rule in the kernel, for lack of room; their packets were delivered to user space.
    pub places_without_rule: u64,
    /// RTP packets with broken headers.
    pub rtp_malformed: u64,
    /// RTCP packets that could not be parsed.
    pub rtcp_malformed: u64,
    /// Media of descriptions beyond the limit.
    pub media_left_out: u64,
    /// Gaps in TCP connections that were never filled.
    pub tcp_gaps: u64,
    /// TCP connections that were evicted for lack of memory.
    pub tcp_evicted: u64,
    /// Fragmented datagrams that were incomplete or inconsistent.
    pub datagrams_given_up: u64,
}

impl Counts {
    /// All packets.
    pub fn packets(&self) -> u64 {
        self.signalling_packets
            + self.rtp_packets
            + self.rtcp_packets
            + self.fragment_packets
            + self.other_packets
    }

    /// Malformed messages.
    pub fn malformed(&self) -> u64 {
        self.faults.iter().sum()
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        self.faults[fault as usize] += 1;
    }

    pub(super) fn request(&mut self, method: &[u8]) {
        let at = METHODS.iter().position(|known| known.as_bytes() == method).unwrap_or(METHODS.len());
        self.requests[at] += 1;
    }
}
