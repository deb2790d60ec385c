//! Ready questions, as SQL.

use super::functions::Network;

/// A ready question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Addresses, by bytes sent.
    Talkers,
    /// Service ports, by bytes: the lower one of the two ports of a flow.
    Ports,
    /// Pairs of addresses, by bytes.
    Pairs,
    /// Networks, by bytes that their addresses sent.
    Networks {
        /// Prefix length for IPv4.
        bits4: u8,
        /// Prefix length for IPv6.
        bits6: u8,
    },
    /// Applications, by bytes.
    Applications,
    /// Protocols, by bytes.
    Protocols,
    /// Devices, by bytes.
    Devices,
    /// Flows, packets and bytes by time step, at the end of each flow.
    OverTime {
        /// Length of a step in seconds.
        step: u64,
    },
    /// Peers of an address or of a network.
    WhoTalkedTo(Peer),
    /// Calls with the worst quality, by their worst stream.
    WorstCalls,
    /// Streams with the worst quality, of calls or not.
    WorstStreams,
    /// Calls by final status.
    CallStatus,
    /// Hosts, by the transactions that they were asked for.
    Hosts,
    /// The slowest transactions.
    Slowest,
    /// Transactions by response status.
    HttpStatus,
}

/// An address or a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Only digits, hexadecimal letters, dots, colons and a slash.
    text: String,
}

impl Peer {
    /// Parses `192.0.2.1`, `2001:db8::1` or `10.0.0.0/8`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Peer> {
        Some(Peer { text: Network::parse(text)?.to_string() })
    }
}

/// Sums over both directions of a flow.
const SUMS: &str = "count(*) AS flows, sum(packets + coalesce(reverse_packets, 0)) AS packets, \
                    sum(bytes + coalesce(reverse_bytes, 0)) AS bytes";

impl Question {
    /// The question in SQL; `limit` is the maximum number of rows.
    pub fn sql(&self, limit: u64) -> String {
        let by = |columns: &[&str], condition: &str| {
            let keys = (1..=columns.len()).map(|key| key.to_string()).collect::<Vec<_>>().join(", ");
            let columns = columns.join(", ");
            format!(
                "SELECT {columns}, {SUMS} FROM flows {condition} GROUP BY {keys} ORDER BY bytes DESC, {keys} LIMIT {limit}"
            )
        };
        match self {
            Question::Talkers => ends("address", "", limit),
            Question::Networks { bits4, bits6 } => ends("network", &format!("{bits4}, {bits6}"), limit),
            Question::Ports => by(
                &["protocol", "least(src_port, dst_port) AS port", "application"],
                "WHERE src_port IS NOT NULL",
            ),
            Question::Pairs => by(&["src", "dst"], "WHERE src IS NOT NULL"),
            Question::Applications => by(&["application"], ""),
            Question::Protocols => by(&["protocol", "ether_type"], ""),
            Question::Devices => by(&["device", "direction"], ""),
            Question::OverTime { step } => format!(
                "SELECT date_bin(INTERVAL '{step} seconds', end_time) AS time, {SUMS} FROM flows GROUP BY 1 ORDER BY 1"
            ),
            Question::WorstCalls => format!(
                "SELECT start_time, mos, from_uri, to_uri, state, status, duration_ns / 1e9 AS seconds, lost, expected, \
                 capture_lost, call_id FROM calls WHERE mos IS NOT NULL ORDER BY mos, start_ns, call_id LIMIT {limit}"
            ),
            Question::WorstStreams => format!(
                "SELECT start_time, mos, src, src_port, dst, dst_port, codec, lost, expected, jitter_mean_ms, \
                 capture_lost, call_id FROM streams WHERE mos IS NOT NULL ORDER BY mos, start_ns, ssrc LIMIT {limit}"
            ),
            Question::CallStatus => format!(
                "SELECT state, status, count(*) AS calls, avg(post_dial_delay_ns) / 1e6 AS post_dial_delay_ms, \
                 avg(talk_ns) / 1e9 AS talk_seconds, avg(mos) AS mos FROM calls GROUP BY 1, 2 \
                 ORDER BY calls DESC, 1, 2 LIMIT {limit}"
            ),
            Question::Hosts => format!(
                "SELECT coalesce(host, server) AS host, count(*) AS transactions, \
                 count(*) FILTER (WHERE status >= 400) AS failed, sum(response_body) AS bytes, \
                 avg(ttfb_ns) / 1e6 AS ttfb_ms FROM transactions GROUP BY 1 ORDER BY transactions DESC, 1 LIMIT {limit}"
            ),
            Question::Slowest => format!(
                "SELECT start_time, duration_ns / 1e6 AS ms, ttfb_ns / 1e6 AS ttfb_ms, client, method, host, uri, status, \
                 response_body, marks FROM transactions ORDER BY duration_ns DESC, start_ns, client_port LIMIT {limit}"
            ),
            Question::HttpStatus => format!(
                "SELECT status, count(*) AS transactions, sum(response_body) AS bytes, avg(ttfb_ns) / 1e6 AS ttfb_ms \
                 FROM transactions GROUP BY 1 ORDER BY transactions DESC, 1 LIMIT {limit}"
            ),
            Question::WhoTalkedTo(peer) => format!(
                "SELECT address, sum(flows) AS flows, sum(sent) AS sent_bytes, sum(received) AS received_bytes, \
                 min(first) AS first_time, max(last) AS last_time FROM ends('{}') \
                 GROUP BY address ORDER BY sent_bytes + received_bytes DESC, address LIMIT {limit}",
                peer.text
            ),
        }
    }
}

/// Both ends of all flows, by address or an attribute of it ([`super::ends`]).
fn ends(name: &str, by: &str, limit: u64) -> String {
    format!(
        "SELECT address AS {name}, sum(flows) AS flows, sum(sent) AS sent_bytes, sum(received) AS received_bytes \
         FROM ends({by}) GROUP BY 1 ORDER BY sent_bytes DESC, 1 LIMIT {limit}"
    )
}
