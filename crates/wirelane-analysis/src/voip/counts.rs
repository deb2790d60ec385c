//! Counters of a VoIP monitor.

use super::call::State;
use super::sip::Fault;

/// Methods that are counted by name; others are one more.
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

/// What has become of packets, messages and calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets of SIP: datagrams, and segments of its TCP connections.
    pub signalling_packets: u64,
    /// Packets of RTP.
    pub rtp_packets: u64,
    /// Packets of RTCP.
    pub rtcp_packets: u64,
    /// Fragments of IP datagrams that waited for the rest; the last one is what the datagram is.
    pub fragment_packets: u64,
    /// All others.
    pub other_packets: u64,
    /// SIP messages, those that came again too.
    pub messages: u64,
    /// Requests by [`METHODS`]; the last: any other method.
    pub requests: [u64; METHODS.len() + 1],
    /// Responses by the first digit of their status.
    pub responses: [u64; 7],
    /// Messages of calls that were the same as one before.
    pub retransmitted: u64,
    /// Messages that are malformed, and how, by [`FAULTS`].
    pub faults: [u64; FAULTS.len()],
    /// Messages of which the capture has not all bytes, and which could not be read for that.
    pub cut_messages: u64,
    /// Messages of calls that are not known: they had begun before the capture, or their place was needed.
    pub unknown_call_messages: u64,
    /// Messages of no call: REGISTER, OPTIONS, SUBSCRIBE and others, with their answers.
    pub no_call_messages: u64,
    /// Calls that were handed out.
    pub calls: u64,
    /// Calls that were not chosen.
    pub calls_left_out: u64,
    /// Calls by [`State`], of those that were handed out.
    pub states: [u64; State::ALL.len()],
    /// Of these, calls whose From and To are the same.
    pub self_calls: u64,
    /// Of these, calls whose place was needed.
    pub calls_evicted: u64,
    /// Streams that were handed out, of calls or not.
    pub streams: u64,
    /// Of these, streams of no call.
    pub streams_without_call: u64,
    /// Of these, streams whose place was needed.
    pub streams_evicted: u64,
    /// RTP packets that are in no stream: of a call with too many, or of streams whose call was not handed out.
    pub rtp_left_out: u64,
    /// Of the packets of RTP, those that were added to their streams in the kernel.
    pub rtp_absorbed: u64,
    /// RTP packets that came up out of turn, and waited.
    pub rtp_held: u64,
    /// Streams that were measured in the kernel, in part at least.
    pub streams_offloaded: u64,
    /// Streams of calls that found no room there, and were measured in user space.
    pub streams_without_room: u64,
    /// Places of media without a rule in the kernel, as it had no room; their packets came up.
    pub places_without_rule: u64,
    /// RTP packets with broken headers.
    pub rtp_malformed: u64,
    /// RTCP packets that could not be read.
    pub rtcp_malformed: u64,
    /// Media of descriptions beyond those that are kept.
    pub media_left_out: u64,
    /// Gaps in TCP connections that were never filled.
    pub tcp_gaps: u64,
    /// TCP connections that were given up for want of room.
    pub tcp_evicted: u64,
    /// Fragmented datagrams that were never whole, or contradict themselves.
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

    /// Messages that are malformed.
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
