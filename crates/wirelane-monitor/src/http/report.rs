//! Final report of `http`, with the ledger.

use std::collections::BTreeMap;

use serde::Serialize;
use wirelane::ledger::Counters;
use wirelane_analysis::http::{MARKS, Totals};
use wirelane_export::http::LogCounts;

use super::show::Logged;
use crate::shares::Printed;
use crate::store::Stored;
use wirelane_screen::table::{amount, counted, printable};

/// Totals of the transactions.
#[derive(Debug, Serialize)]
pub struct HttpReport {
    /// Transactions: a request with its response, or one of them.
    transactions: u64,
    /// Responses without a request.
    without_request: u64,
    /// Requests without a response.
    without_response: u64,
    /// Request heads.
    requests: u64,
    /// Heads of final responses.
    responses: u64,
    /// Responses with status 1xx.
    informational: u64,
    /// TCP connections.
    connections: u64,
    /// Connections in which a head was seen.
    http_connections: u64,
    /// Connections that began with TLS, which is not analysed; unknown if they stay in the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_connections: Option<u64>,
    /// Connections that began with HTTP/2, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    http2_connections: Option<u64>,
    /// Connections that were evicted before their end, for lack of space.
    evicted_connections: u64,
    /// HTTP packets that contain a part of a head.
    head_packets: u64,
    /// HTTP packets without a part of a head.
    body_packets: u64,
    /// Packets that stayed in the kernel, with --analysis kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    packets_offloaded: Option<u64>,
    /// Wire bytes of these packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_offloaded: Option<u64>,
    /// TCP packets without payload.
    empty_packets: u64,
    /// TCP packets with payload, of connections without a head so far.
    foreign_packets: u64,
    /// Packets other than TCP, or fragments.
    other_packets: u64,
    /// Retransmitted segments.
    sent_again: u64,
    /// Number of retransmissions with different contents.
    conflicts: u64,
    /// Bytes of HTTP connections that do not belong to a message.
    stray_bytes: u64,
    /// Bytes after CONNECT and upgrades.
    tunnel_bytes: u64,
    /// Bytes of HTTP connections that were not captured.
    lost_bytes: u64,
    /// Number of transactions by mark, if there are any.
    marks: BTreeMap<&'static str, u64>,
    /// Results in each log.
    logs: Vec<LogCounts>,
    /// Results at each collector.
    exports: Vec<Exported>,
    /// Results of the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<Stored>,
    /// Results of standard output.
    #[serde(skip_serializing_if = "Option::is_none")]
    standard_output: Option<Printed>,
}

/// Results of the transactions at one collector, or in one IPFIX file.
#[derive(Debug, Serialize)]
struct Exported {
    /// The target, as the user wrote it.
    target: String,
    /// Sent transactions. Over UDP, sent means accepted by the network.
    transactions: u64,
    /// Transactions beyond the output's write limit.
    suppressed: u64,
    /// Transactions that were given up.
    unsent: u64,
    messages: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl HttpReport {
    /// Creates the report from all workers, all logs, collectors and the store. `below`: the whole ledger, if packets
    /// stayed in the kernel.
    pub fn new(
        totals: &Totals,
        below: Option<&Counters>,
        Logged { counts: logs, exported, stored: store, printed, .. }: Logged,
    ) -> HttpReport {
        let exports = exported.into_iter().map(|counts| Exported {
            target: counts.target,
            transactions: counts.flows,
            suppressed: counts.suppressed_flows,
            unsent: counts.unsent_flows + counts.not_exportable,
            messages: counts.messages,
            bytes: counts.bytes,
            error: counts.error,
        });
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
            tls_connections: below.is_none().then_some(totals.tls_connections),
            http2_connections: below.is_none().then_some(totals.http2_connections),
            evicted_connections: totals.evicted,
            head_packets: totals.head_packets,
            body_packets: totals.body_packets,
            packets_offloaded: below.map(|total| total.offloaded),
            bytes_offloaded: below.map(|total| total.offloaded_bytes),
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
            exports: exports.collect(),
            store,
            standard_output: printed,
        }
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{} in {} of HTTP ({} of TCP): {}, {}, {} of status 1xx\n",
            counted(self.transactions, "transaction"),
            counted(self.http_connections, "connection"),
            amount(self.connections),
            counted(self.requests, "request"),
            counted(self.responses, "response"),
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
        if let (Some(packets), Some(bytes)) = (self.packets_offloaded, self.bytes_offloaded) {
            text += &format!(
                "{} of {} stayed in the kernel\n",
                counted(packets, "packet"),
                counted(bytes, "byte")
            );
        }
        let marks: Vec<String> =
            self.marks.iter().map(|(name, number)| format!("{} {name}", amount(*number))).collect();
        if !marks.is_empty() {
            text += &format!("marked: {}\n", marks.join(", "));
        }
        for (noun, what, number) in [
            ("byte", "of HTTP connections not captured", self.lost_bytes),
            ("byte", "of HTTP connections outside of messages", self.stray_bytes),
            ("byte", "after CONNECT and upgrades", self.tunnel_bytes),
            ("connection", "of TLS not read", self.tls_connections.unwrap_or(0)),
            ("connection", "of HTTP/2 not read", self.http2_connections.unwrap_or(0)),
            ("connection", "dropped, as memory was full: give more --memory", self.evicted_connections),
        ] {
            if number > 0 {
                text += &format!("{} {what}\n", counted(number, noun));
            }
        }
        for log in &self.logs {
            let (lines, bytes) = (counted(log.lines, "line"), counted(log.bytes, "byte"));
            text += &format!("{}: {lines}, {bytes}", printable(&log.target));
            for (what, number) in [("suppressed", log.suppressed), ("unwritten", log.unwritten)] {
                if number > 0 {
                    text += &format!("; {} {what}", amount(number));
                }
            }
            text.push('\n');
        }
        for export in &self.exports {
            let sent = counted(export.transactions, "transaction");
            let messages = counted(export.messages, "message");
            text += &format!("{}: {sent} in {messages}", printable(&export.target));
            for (what, number) in [("suppressed", export.suppressed), ("unsent", export.unsent)] {
                if number > 0 {
                    text += &format!("; {} {what}", amount(number));
                }
            }
            text.push('\n');
        }
        text += &self.standard_output.as_ref().map(Printed::text).unwrap_or_default();
        text + &self.store.as_ref().map(Stored::text).unwrap_or_default()
    }
}
