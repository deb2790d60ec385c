//! Ready questions, as SQL.

use std::net::IpAddr;

use super::functions::Network;

/// A ready question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Addresses, by the bytes that they have sent.
    Talkers,
    /// Ports of services, by bytes: of the two ports of a flow, the lower one.
    Ports,
    /// Pairs of addresses, by bytes.
    Pairs,
    /// Networks of so many bits, by the bytes that their addresses have sent.
    Networks {
        /// Of IPv4.
        bits4: u8,
        /// Of IPv6.
        bits6: u8,
    },
    /// Applications, by bytes.
    Applications,
    /// Protocols, by bytes.
    Protocols,
    /// Devices, by bytes.
    Devices,
    /// Flows, packets and bytes of flows that ended in the same so many seconds.
    OverTime {
        /// Seconds.
        step: u64,
    },
    /// With whom an address, or all of a network, has talked.
    WhoTalkedTo(Peer),
    /// The calls that sounded worst, by their worst stream.
    WorstCalls,
    /// The streams that sounded worst, of calls or not.
    WorstStreams,
    /// Calls by how they have ended.
    CallStatus,
    /// Hosts, by the transactions that were asked of them.
    Hosts,
    /// The transactions that took longest.
    Slowest,
    /// Transactions by the statuses of their responses.
    HttpStatus,
}

/// An address or a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    text: String,
    is_network: bool,
}

impl Peer {
    /// Reads `192.0.2.1`, `2001:db8::1` or `10.0.0.0/8`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Peer> {
        // Files have addresses in the one form that this writes, whatever the user wrote.
        match text.parse::<IpAddr>() {
            Ok(address) => Some(Peer { text: address.to_string(), is_network: false }),
            Err(_) => Some(Peer { text: Network::parse(text)?.to_string(), is_network: true }),
        }
    }

    /// Whether a column is of it. Nothing but digits, letters of addresses, points, colons and a slash is in the text.
    fn is(&self, column: &str) -> String {
        match self.is_network {
            true => format!("in_network({column}, '{}')", self.text),
            false => format!("{column} = '{}'", self.text),
        }
    }
}

/// What both directions of a flow come to.
const SUMS: &str = "count(*) AS flows, sum(packets + coalesce(reverse_packets, 0)) AS packets, \
                    sum(bytes + coalesce(reverse_bytes, 0)) AS bytes";

impl Question {
    /// The question in SQL; `limit`: rows of the answer.
    pub fn sql(&self, limit: u64) -> String {
        let by = |columns: &[&str], condition: &str| {
            let keys = (1..=columns.len()).map(|key| key.to_string()).collect::<Vec<_>>().join(", ");
            let columns = columns.join(", ");
            format!(
                "SELECT {columns}, {SUMS} FROM flows {condition} GROUP BY {keys} ORDER BY bytes DESC, {keys} LIMIT {limit}"
            )
        };
        match self {
            Question::Talkers => ends("address", "address", limit),
            Question::Networks { bits4, bits6 } => {
                ends("network", &format!("network(address, {bits4}, {bits6})"), limit)
            }
            Question::Ports => by(
                &["proto", "least(src_port, dst_port) AS port", "application"],
                "WHERE src_port IS NOT NULL",
            ),
            Question::Pairs => by(&["src", "dst"], "WHERE src IS NOT NULL"),
            Question::Applications => by(&["application"], ""),
            Question::Protocols => by(&["proto", "ether_type"], ""),
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
            Question::WhoTalkedTo(peer) => {
                let (from, to) = (peer.is("src"), peer.is("dst"));
                format!(
                    "SELECT address, sum(flows) AS flows, sum(sent) AS sent_bytes, sum(received) AS received_bytes, \
                     min(first) AS first_time, max(last) AS last_time FROM (\
                     SELECT src AS address, count(*) AS flows, sum(bytes) AS sent, sum(coalesce(reverse_bytes, 0)) AS \
                     received, min(start_time) AS first, max(end_time) AS last FROM flows WHERE {to} GROUP BY src \
                     UNION ALL SELECT dst, count(*), sum(coalesce(reverse_bytes, 0)), sum(bytes), min(start_time), \
                     max(end_time) FROM flows WHERE {from} GROUP BY dst) \
                     GROUP BY address ORDER BY sent_bytes + received_bytes DESC, address LIMIT {limit}"
                )
            }
        }
    }
}

/// Both ends of all flows, by something about their addresses.
fn ends(name: &str, key: &str, limit: u64) -> String {
    format!(
        "SELECT {key} AS {name}, sum(flows) AS flows, sum(sent) AS sent_bytes, sum(received) AS received_bytes FROM (\
         SELECT src AS address, count(*) AS flows, sum(bytes) AS sent, sum(coalesce(reverse_bytes, 0)) AS received \
         FROM flows WHERE src IS NOT NULL GROUP BY src \
         UNION ALL SELECT dst, count(*), sum(coalesce(reverse_bytes, 0)), sum(bytes) \
         FROM flows WHERE dst IS NOT NULL GROUP BY dst) \
         GROUP BY 1 ORDER BY sent_bytes DESC, 1 LIMIT {limit}"
    )
}
