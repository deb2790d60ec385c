//! Totals over the packets and messages of a worker.

use wirelane_bpf::flow::{EndReason, applications};

use super::connection::Connection;
use super::segment::Segment;
use super::transaction::{MARKS, Mark, Transaction};

/// Totals of packets and messages. Every packet is in one of the five `*_packets`, every request and every response in
/// one transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets.
    pub packets: u64,
    /// Bytes on the wire.
    pub wire_bytes: u64,
    /// Packets without TCP, or fragments.
    pub other_packets: u64,
    /// TCP without payload.
    pub empty_packets: u64,
    /// Packets with payload of connections without a head so far.
    pub foreign_packets: u64,
    /// HTTP packets with bytes of a head, or of a possible head: those that in-kernel selection delivers.
    pub head_packets: u64,
    /// HTTP packets with only body bytes, or retransmissions.
    pub body_packets: u64,
    /// Connections.
    pub connections: u64,
    /// Connections with a head.
    pub http_connections: u64,
    /// Connections that began with TLS, which is not read.
    pub tls_connections: u64,
    /// Connections that began with the preface of HTTP/2 (RFC 9113, 3.4), which is not read either.
    pub http2_connections: u64,
    /// Connections that were evicted before they were over.
    pub evicted: u64,
    /// Retransmitted segments.
    pub again: u64,
    /// Number of times that retransmitted bytes differed from the first ones.
    pub conflicts: u64,
    /// Bytes of HTTP connections outside of messages: neither head nor body.
    pub stray_bytes: u64,
    /// Bytes after CONNECT and upgrades.
    pub tunnel_bytes: u64,
    /// Bytes of HTTP connections that were not captured: within messages, and between them.
    pub lost_bytes: u64,
    /// Heads of requests.
    pub requests: u64,
    /// Heads of responses, except 1xx.
    pub responses: u64,
    /// 1xx responses.
    pub informational: u64,
    /// Transactions.
    pub transactions: u64,
    /// Transactions without a request.
    pub without_request: u64,
    /// Transactions without a response.
    pub without_response: u64,
    /// Transactions by mark, in the order of [`MARKS`].
    pub by_mark: [u64; MARKS.len()],
}

/// Adds the fields of two structs.
macro_rules! add {
    ($one:ident, $other:ident: $($field:ident)*) => { $($one.$field += $other.$field;)* };
}

impl std::ops::AddAssign<&Totals> for Totals {
    fn add_assign(&mut self, other: &Totals) {
        add!(self, other: packets wire_bytes other_packets empty_packets foreign_packets head_packets body_packets
            connections http_connections tls_connections http2_connections evicted again conflicts stray_bytes tunnel_bytes lost_bytes requests responses
            informational transactions without_request without_response);
        for (sum, more) in self.by_mark.iter_mut().zip(other.by_mark) {
            *sum += more;
        }
    }
}

impl Totals {
    /// Whether every packet is in one counter, and every request and response in one transaction.
    pub fn balance(&self) -> bool {
        let packets = self.other_packets
            + self.empty_packets
            + self.foreign_packets
            + self.head_packets
            + self.body_packets;
        packets == self.packets
            && self.requests + self.without_request == self.transactions
            && self.responses + self.without_response == self.transactions
    }

    pub(super) fn count(&mut self, segment: &Segment<'_>, packets: u64, is_http: bool, part: bool) {
        let place = match (segment.len, is_http, part) {
            (0, ..) => &mut self.empty_packets,
            (_, false, _) => &mut self.foreign_packets,
            (_, true, true) => &mut self.head_packets,
            (_, true, false) => &mut self.body_packets,
        };
        *place += packets;
    }

    /// Counts a connection by the application protocol of a packet if that is TLS or HTTP/2; returns whether it is.
    pub(super) fn seal(&mut self, application: u8) -> bool {
        match application {
            applications::TLS => self.tls_connections += 1,
            applications::HTTP2 => self.http2_connections += 1,
            _ => return false,
        }
        true
    }

    /// Adds the counters of a connection since the last call.
    pub(super) fn settle(&mut self, connection: &mut Connection) {
        let is_http = connection.exchanges.client.is_some();
        for strays in connection.take_strays() {
            if is_http {
                self.stray_bytes += strays.unknown;
                self.lost_bytes += strays.lost;
                self.tunnel_bytes += strays.tunnel;
            }
        }
        let (requests, responses) = std::mem::take(&mut connection.exchanges.heads);
        self.requests += requests;
        self.responses += responses;
        self.informational += std::mem::take(&mut connection.exchanges.informational);
        self.again += std::mem::take(&mut connection.again);
    }

    pub(super) fn add(&mut self, transaction: &Transaction) {
        self.transactions += 1;
        self.without_request += u64::from(transaction.request.is_none());
        self.without_response += u64::from(transaction.response.is_none());
        for message in [&transaction.request, &transaction.response].into_iter().flatten() {
            self.lost_bytes += message.missing;
        }
        for (sum, (mark, _)) in self.by_mark.iter_mut().zip(MARKS) {
            *sum += u64::from(transaction.marks.has(mark));
        }
    }
}

/// Mark of a premature end.
pub(super) fn reason_mark(reason: EndReason) -> Option<Mark> {
    match reason {
        EndReason::Idle => Some(Mark::Timeout),
        EndReason::Resources => Some(Mark::Evicted),
        EndReason::Forced => Some(Mark::Forced),
        EndReason::Active | EndReason::Ended => None,
    }
}
