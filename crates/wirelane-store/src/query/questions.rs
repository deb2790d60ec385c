//! Ready questions, as SQL of SQLite and of ClickHouse.

use super::dialect::{Dialect, Shipped};
use super::functions::Network;
use crate::Table;

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
    /// Missing data, by hour and probe: packets by the ledgers, rows by the notes about files. The time that is asked
    /// for begins and ends with an hour.
    Missing,
}

/// An address or a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer(pub(super) Network);

impl Peer {
    /// Parses `192.0.2.1`, `2001:db8::1` or `10.0.0.0/8`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Peer> {
        Network::parse(text).map(Peer)
    }
}

/// Which ends of flows are summed, and by what.
pub(super) enum By<'a> {
    Address,
    /// Prefix lengths for IPv4 and IPv6.
    Network(u8, u8),
    /// Addresses that talked to an address of this network.
    Peer(&'a Network),
}

/// Sums over both directions of a flow.
const SUMS: &str = "count(*) AS flows, sum(f.packets + coalesce(f.reverse_packets, 0)) AS packets, \
                    sum(f.bytes + coalesce(f.reverse_bytes, 0)) AS bytes";
/// Mean of the quality of calls, of millionths: sums of whole numbers depend on no order.
const MEAN_MOS: &str = "avg(floor(c.mos * 1e6 + 0.5)) / 1e6";

impl Question {
    /// The question to a store in SQL; `limit` is the maximum number of rows.
    pub fn sql(&self, limit: u64) -> String {
        self.in_dialect(Dialect::Store, limit)
    }

    /// The question to ClickHouse.
    pub fn clickhouse(&self, shipped: &Shipped, limit: u64) -> String {
        self.in_dialect(Dialect::ClickHouse(shipped), limit)
    }

    fn in_dialect(&self, to: Dialect<'_>, limit: u64) -> String {
        let flows = to.rows("flows");
        let calls = to.rows("calls");
        let streams = to.rows("streams");
        let transactions = to.rows("transactions");
        // Grouped by the columns themselves, whose texts are made for the groups only.
        let by = |columns: &[(&str, &str)], condition: &str| {
            let shown: Vec<String> =
                columns.iter().map(|(column, name)| format!("{column} AS {name}")).collect();
            let (shown, keys, order) = (shown.join(", "), keys(columns.len()), order(1..=columns.len()));
            format!(
                "SELECT {shown}, {SUMS} FROM {flows} AS f {condition} GROUP BY {keys} ORDER BY bytes DESC, {order} LIMIT {limit}"
            )
        };
        match self {
            Question::Talkers => ends(to, &By::Address, "address", limit),
            Question::Networks { bits4, bits6 } => ends(to, &By::Network(*bits4, *bits6), "network", limit),
            Question::Ports => by(
                &[("f.protocol", "protocol"), (to.lower(), "port"), ("f.application", "application")],
                "WHERE f.src_port IS NOT NULL",
            ),
            Question::Pairs => format!(
                "SELECT {} AS src, {} AS dst, {SUMS} FROM {flows} AS f WHERE f.src IS NOT NULL GROUP BY f.src, f.dst \
                 ORDER BY bytes DESC, 1, 2 LIMIT {limit}",
                to.address("f.src"),
                to.address("f.dst")
            ),
            Question::Applications => by(&[("f.application", "application")], ""),
            Question::Protocols => by(&[("f.protocol", "protocol"), ("f.ether_type", "ether_type")], ""),
            Question::Devices => by(&[("f.device", "device"), ("f.direction", "direction")], ""),
            Question::OverTime { step } => format!(
                "SELECT {} AS time, {SUMS} FROM {flows} AS f GROUP BY 1 ORDER BY 1",
                to.step("f.end_time", *step)
            ),
            Question::WorstCalls => format!(
                "SELECT c.start_time AS start_time, c.mos AS mos, c.from_uri AS from_uri, c.to_uri AS to_uri, c.state AS state, \
                 c.status AS status, c.duration_ns / 1e9 AS seconds, c.lost AS lost, c.expected AS expected, \
                 c.capture_lost AS capture_lost, c.call_id AS call_id FROM {calls} AS c WHERE c.mos IS NOT NULL \
                 ORDER BY c.mos, c.start_ns, c.call_id LIMIT {limit}"
            ),
            Question::WorstStreams => format!(
                "SELECT s.start_time AS start_time, s.mos AS mos, {} AS src, s.src_port AS src_port, {} AS dst, \
                 s.dst_port AS dst_port, s.codec AS codec, s.lost AS lost, s.expected AS expected, \
                 s.jitter_mean_ms AS jitter_mean_ms, s.capture_lost AS capture_lost, s.call_id AS call_id \
                 FROM {streams} AS s WHERE s.mos IS NOT NULL ORDER BY s.mos, s.start_ns, s.ssrc, 4 NULLS LAST, 6 NULLS LAST LIMIT {limit}",
                to.address("s.src"),
                to.address("s.dst")
            ),
            Question::CallStatus => format!(
                "SELECT c.state AS state, c.status AS status, count(*) AS calls, \
                 avg(c.post_dial_delay_ns) / 1e6 AS post_dial_delay_ms, avg(c.talk_ns) / 1e9 AS talk_seconds, \
                 {MEAN_MOS} AS mos FROM {calls} AS c GROUP BY 1, 2 ORDER BY calls DESC, 1 NULLS LAST, 2 NULLS LAST LIMIT {limit}"
            ),
            Question::Hosts => format!(
                "SELECT coalesce(t.host, {}) AS host, count(*) AS transactions, \
                 count(*) FILTER (WHERE t.status >= 400) AS failed, sum(t.response_body) AS bytes, \
                 avg(t.ttfb_ns) / 1e6 AS ttfb_ms FROM {transactions} AS t GROUP BY 1 \
                 ORDER BY transactions DESC, 1 NULLS LAST LIMIT {limit}",
                to.address("t.server")
            ),
            Question::Slowest => format!(
                "SELECT t.start_time AS start_time, t.duration_ns / 1e6 AS ms, t.ttfb_ns / 1e6 AS ttfb_ms, {} AS client, \
                 t.method AS method, t.host AS host, t.uri AS uri, t.status AS status, t.response_body AS response_body, \
                 t.marks AS marks FROM {transactions} AS t ORDER BY t.duration_ns DESC, t.start_ns, \
                 t.client_port, 5 NULLS LAST, 6 NULLS LAST, 7 NULLS LAST, 8 NULLS LAST LIMIT {limit}",
                to.address("t.client")
            ),
            Question::HttpStatus => format!(
                "SELECT t.status AS status, count(*) AS transactions, sum(t.response_body) AS bytes, \
                 avg(t.ttfb_ns) / 1e6 AS ttfb_ms FROM {transactions} AS t GROUP BY 1 \
                 ORDER BY transactions DESC, 1 NULLS LAST LIMIT {limit}"
            ),
            Question::WhoTalkedTo(Peer(peer)) => {
                let by = By::Peer(peer);
                format!(
                    "SELECT {} AS address, sum(e.flows) AS flows, sum(e.sent) AS sent_bytes, sum(e.received) AS received_bytes, \
                     min(e.first) AS first_time, max(e.last) AS last_time FROM {} AS e \
                     GROUP BY e.address ORDER BY sent_bytes + received_bytes DESC, 1 NULLS LAST LIMIT {limit}",
                    to.end(&by),
                    to.ends(&by)
                )
            }
            Question::Missing => missing(to),
        }
    }
}

/// These positions of columns in ascending order, NULL last.
fn order(columns: std::ops::RangeInclusive<usize>) -> String {
    columns.map(|column| format!("{column} NULLS LAST")).collect::<Vec<_>>().join(", ")
}

/// The positions of the first columns.
fn keys(number: usize) -> String {
    (1..=number).map(|key| key.to_string()).collect::<Vec<_>>().join(", ")
}

/// Both ends of all flows, by address or an attribute of it .
fn ends(to: Dialect<'_>, by: &By<'_>, name: &str, limit: u64) -> String {
    format!(
        "SELECT {} AS {name}, sum(e.flows) AS flows, sum(e.sent) AS sent_bytes, sum(e.received) AS received_bytes \
         FROM {} AS e GROUP BY e.address ORDER BY sent_bytes DESC, 1 NULLS LAST LIMIT {limit}",
        to.end(by),
        to.ends(by)
    )
}

/// A number that is NULL, with its type, in both dialects.
const NONE: &str = "nullif(0, 0)";

/// Arrived rows, ledgers and notes about files, and a row for each probe and hour, summed.
fn missing(to: Dialect<'_>) -> String {
    let mut parts: Vec<String> = Table::ALL
        .into_iter()
        .map(|table| {
            format!(
                "SELECT t.probe AS probe, {} AS hour, {NONE} AS seen, {NONE} AS lost, \
                 {NONE} AS shed, {NONE} AS nic_missed, 0 AS noted, 0 AS unshipped, 0 AS damaged, 0 AS interrupted, {NONE} AS unstored, \
                 count(*) AS arrived FROM {} AS t GROUP BY 1, 2",
                to.hour("t.end_time"),
                to.rows(table.name())
            )
        })
        .collect();
    parts.push(format!(
        "SELECT l.probe, {}, sum(l.seen), sum(l.lost), sum(l.shed), sum(l.nic_missed), 0, 0, 0, 0, sum(l.unstored), 0 \
         FROM {} AS l GROUP BY 1, 2",
        to.hour("l.end_time"),
        to.rows("ledgers")
    ));
    let sum =
        |kind: &str, column: &str| format!("sum(CASE WHEN s.kind = '{kind}' THEN s.{column} ELSE 0 END)");
    parts.push(format!(
        "SELECT s.probe, s.hour, {NONE}, {NONE}, {NONE}, {NONE}, {}, {}, {}, {}, {NONE}, 0 FROM {} AS s GROUP BY 1, 2",
        sum("shipped", "rows"),
        sum("unshipped", "rows"),
        sum("damaged", "files"),
        sum("interrupted", "files"),
        to.shipments()
    ));
    parts.push(format!(
        "SELECT p.probe, h.hour, {NONE}, {NONE}, {NONE}, {NONE}, 0, 0, 0, 0, {NONE}, 0 FROM {} AS p CROSS JOIN {} AS h",
        to.probes(),
        to.hours()
    ));
    format!(
        "SELECT m.probe AS probe, m.hour AS hour, sum(m.seen) AS seen, sum(m.lost) AS lost, sum(m.shed) AS shed, \
         sum(m.nic_missed) AS nic_missed, sum(m.unshipped) AS unshipped, sum(m.damaged) AS damaged_files, \
         sum(m.interrupted) AS interrupted, sum(m.unstored) AS unstored, \
         sum(m.noted) AS noted, sum(m.arrived) AS arrived, \
         CASE WHEN sum(m.arrived) + sum(m.noted) + sum(m.unshipped) + sum(m.damaged) + sum(m.interrupted) = 0 THEN 'quiet' \
         WHEN sum(m.arrived) < sum(m.noted) OR sum(m.unshipped) > 0 OR sum(m.damaged) > 0 OR coalesce(sum(m.unstored), 0) > 0 THEN 'rows missing' \
         WHEN sum(m.interrupted) > 0 THEN 'interrupted' \
         WHEN coalesce(sum(m.lost), 0) + coalesce(sum(m.shed), 0) + coalesce(sum(m.nic_missed), 0) > 0 THEN 'packets lost' \
         ELSE 'complete' END AS state FROM ({}) AS m GROUP BY 1, 2 ORDER BY 2, 1 NULLS LAST",
        parts.join(" UNION ALL ")
    )
}
