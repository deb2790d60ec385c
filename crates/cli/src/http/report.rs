//! What the transactions come to, with the last ledger.

use std::collections::BTreeMap;

use serde::Serialize;
use wirelane_analysis::http::{MARKS, Totals};
use wirelane_export::http::LogCounts;

use crate::table::{amount, printable};

/// What the transactions come to.
#[derive(Debug, Serialize)]
pub struct HttpReport {
    /// Transactions: a request with its response, or one of the two.
    transactions: u64,
    /// Of these, responses without a request.
    without_request: u64,
    /// Requests without a response.
    without_response: u64,
    /// Heads of requests.
    requests: u64,
    /// Heads of final responses.
    responses: u64,
    /// Responses of status 1xx.
    informational: u64,
    /// Connections of TCP.
    connections: u64,
    /// Those in which a head was seen.
    http_connections: u64,
    /// Those that had to go before they were over, as there was no room.
    evicted_connections: u64,
    /// Packets of HTTP with some of a head in them.
    head_packets: u64,
    /// Packets of HTTP without.
    body_packets: u64,
    /// TCP without payload.
    empty_packets: u64,
    /// TCP with payload, of connections of which no head was seen by then.
    foreign_packets: u64,
    /// No TCP, or fragments.
    other_packets: u64,
    /// Segments that were sent again.
    sent_again: u64,
    /// Times that they were not the same.
    conflicts: u64,
    /// Bytes of HTTP connections that belong to no message.
    stray_bytes: u64,
    /// Bytes behind CONNECT and upgrades.
    tunnel_bytes: u64,
    /// Bytes of HTTP connections that were not captured.
    lost_bytes: u64,
    /// Transactions by their marks, where there are any.
    marks: BTreeMap<&'static str, u64>,
    /// What became of them in each log.
    logs: Vec<LogCounts>,
}

impl HttpReport {
    /// Of all workers, and all logs.
    pub fn new(totals: &Totals, logs: Vec<LogCounts>) -> HttpReport {
        let marks = MARKS.iter().zip(totals.by_mark).filter(|(_, number)| *number > 0);
        HttpReport {
            transactions: totals.transactions,
            without_request: totals.without_request,
            without_response: totals.without_response,
            requests: totals.requests,
            responses: totals.responses,
            informational: totals.informational,
            connections: totals.connections,
            http_connections: totals.http_connections,
            evicted_connections: totals.evicted,
            head_packets: totals.head_packets,
            body_packets: totals.body_packets,
            empty_packets: totals.empty_packets,
            foreign_packets: totals.foreign_packets,
            other_packets: totals.other_packets,
            sent_again: totals.again,
            conflicts: totals.conflicts,
            stray_bytes: totals.stray_bytes,
            tunnel_bytes: totals.tunnel_bytes,
            lost_bytes: totals.lost_bytes,
            marks: marks.map(|((_, name), number)| (*name, number)).collect(),
            logs,
        }
    }

    /// As people read it.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{} transactions in {} connections of HTTP ({} of TCP): {} requests, {} responses, {} of status 1xx\n",
            amount(self.transactions),
            amount(self.http_connections),
            amount(self.connections),
            amount(self.requests),
            amount(self.responses),
            amount(self.informational),
        );
        text += &format!(
            "packets: {} with heads, {} with bodies, {} TCP without payload, {} of other connections, {} others\n",
            amount(self.head_packets),
            amount(self.body_packets),
            amount(self.empty_packets),
            amount(self.foreign_packets),
            amount(self.other_packets),
        );
        let marks: Vec<String> =
            self.marks.iter().map(|(name, number)| format!("{} {name}", amount(*number))).collect();
        if !marks.is_empty() {
            text += &format!("marked: {}\n", marks.join(", "));
        }
        for (what, number) in [
            ("bytes of HTTP connections were not captured", self.lost_bytes),
            ("bytes of HTTP connections belong to no message", self.stray_bytes),
            ("bytes passed behind CONNECT and upgrades", self.tunnel_bytes),
            ("connections had to go before they were over: give more --memory", self.evicted_connections),
        ] {
            if number > 0 {
                text += &format!("{} {what}\n", amount(number));
            }
        }
        for log in &self.logs {
            let (lines, bytes) = (amount(log.lines), amount(log.bytes));
            text += &format!("{}: {lines} lines, {bytes} bytes", printable(&log.target));
            if log.unwritten > 0 {
                text += &format!("; {} unwritten", amount(log.unwritten));
            }
            text.push('\n');
        }
        text
    }
}
