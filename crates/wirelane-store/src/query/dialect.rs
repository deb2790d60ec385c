//! Differences between SQLite's SQL over a store and ClickHouse's over the tables to which stores are shipped.
//!
//! ClickHouse resolves an alias of the list of columns everywhere in a query, so shared SQL qualifies each column by the
//! alias of its table. No setting is needed, so that an account that may not change settings (`readonly = 1`) can ask.

use super::functions::Network;
use super::questions::By;

/// A database of ClickHouse to which stores are shipped, and the rows that are asked for.
#[derive(Clone, Debug, Default)]
pub struct Shipped {
    /// Name of the database.
    pub database: String,
    /// Restricts to rows that ended at this time or later, in nanoseconds since 1970.
    pub from_ns: Option<i64>,
    /// Restricts to rows that ended before this time.
    pub to_ns: Option<i64>,
    /// Restricts to rows of this probe.
    pub probe: Option<String>,
}

/// The database that answers a question.
#[derive(Clone, Copy, Debug)]
pub(super) enum Dialect<'a> {
    /// A store, whose session restricts the rows.
    Store,
    /// A database of ClickHouse.
    ClickHouse(&'a Shipped),
}

/// A text as SQL of ClickHouse.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Whether an address of ClickHouse is one of IPv4.
fn is_four(address: &str) -> String {
    format!("({address} BETWEEN toIPv6('::ffff:0.0.0.0') AND toIPv6('::ffff:255.255.255.255'))")
}

impl Shipped {
    /// A table with the selected rows, as far as `bounds` restricts them.
    fn rows(&self, table: &str, bounds: Option<&str>) -> String {
        let bound = |relation: &str, ns: Option<i64>| {
            let (column, ns) = (bounds?, ns?);
            Some(format!("{column} {relation} fromUnixTimestamp64Nano(toInt64({ns}))"))
        };
        let conditions: Vec<String> = bound(">=", self.from_ns)
            .into_iter()
            .chain(bound("<", self.to_ns))
            .chain(self.probe.as_ref().map(|probe| format!("probe = {}", quoted(probe))))
            .collect();
        let table = format!("{}.{table}", self.database);
        match conditions.is_empty() {
            true => table,
            false => format!("(SELECT * FROM {table} WHERE {})", conditions.join(" AND ")),
        }
    }

    /// The hours for which there should be rows.
    fn hours(&self) -> String {
        let second = |ns: Option<i64>, otherwise: &str| match ns {
            Some(ns) => format!("toUInt32({})", ns.div_euclid(1_000_000_000)),
            None => {
                format!("toUInt32((SELECT {otherwise}(hour) FROM {}))", self.rows("shipments", None))
            }
        };
        let end = if self.to_ns.is_some() { 0 } else { 1 };
        format!(
            "(SELECT toDateTime(arrayJoin(range({}, {} + {end}, 3600)), 'UTC') AS hour)",
            second(self.from_ns, "min"),
            second(self.to_ns, "max")
        )
    }
}

impl Dialect<'_> {
    /// A table.
    pub(super) fn rows(&self, table: &str) -> String {
        match self {
            Dialect::Store => table.to_owned(),
            Dialect::ClickHouse(shipped) => shipped.rows(table, Some("end_time")),
        }
    }

    /// Notes of shippers and of retention, by probe and hour.
    pub(super) fn shipments(&self) -> String {
        match self {
            Dialect::Store => "shipments".to_owned(),
            Dialect::ClickHouse(shipped) => shipped.rows("shipments", Some("hour")),
        }
    }

    /// All probes, also those without rows in the time that is asked for.
    pub(super) fn probes(&self) -> String {
        match self {
            Dialect::Store => "probes".to_owned(),
            Dialect::ClickHouse(shipped) => {
                format!("(SELECT DISTINCT probe FROM {})", shipped.rows("shipments", None))
            }
        }
    }

    /// All hours of the time that is asked for.
    pub(super) fn hours(&self) -> String {
        match self {
            Dialect::Store => "hours".to_owned(),
            Dialect::ClickHouse(shipped) => shipped.hours(),
        }
    }

    /// The text of an address, in the form that stores have.
    pub(super) fn address(&self, column: &str) -> String {
        match self {
            Dialect::Store => column.to_owned(),
            Dialect::ClickHouse(_) => {
                // Behind '::ffff:'.
                format!("if({}, substring(toString({column}), 8), toString({column}))", is_four(column))
            }
        }
    }

    /// The lower one of the two ports of a flow `f`.
    pub(super) fn lower(&self) -> &'static str {
        match self {
            Dialect::Store => "min(f.src_port, f.dst_port)",
            Dialect::ClickHouse(_) => "least(f.src_port, f.dst_port)",
        }
    }

    /// The beginning of the hour that contains a time.
    pub(super) fn hour(&self, time: &str) -> String {
        match self {
            Dialect::Store => self.step(time, 3600),
            Dialect::ClickHouse(_) => format!("date_trunc('hour', {time})"),
        }
    }

    /// The beginning of the step of so many seconds that contains a time.
    pub(super) fn step(&self, time: &str, seconds: u64) -> String {
        match self {
            Dialect::Store => format!("step({time}, {seconds})"),
            Dialect::ClickHouse(_) => {
                format!("toDateTime64(toStartOfInterval({time}, INTERVAL {seconds} SECOND), 6, 'UTC')")
            }
        }
    }

    /// Both ends of all flows: a table with the columns address, flows, sent, received, and for [`By::Peer`] first and
    /// last.
    pub(super) fn ends(&self, by: &By<'_>) -> String {
        let shipped = match self {
            Dialect::Store => {
                let end = |own: &str, other: &str, sent: &str, received: &str| {
                    let address = match by {
                        By::Network(bits4, bits6) => format!("network({own}, {bits4}, {bits6})"),
                        _ => own.to_owned(),
                    };
                    let peer = match by {
                        By::Peer(peer) => format!(" AND in_network({other}, '{peer}')"),
                        _ => String::new(),
                    };
                    format!(
                        "SELECT {address} AS address, 1 AS flows, {sent} AS sent, {received} AS received, \
                         start_time AS first, end_time AS last FROM flows WHERE {own} IS NOT NULL{peer}"
                    )
                };
                let back = "coalesce(reverse_bytes, 0)";
                let (there, here) = (end("src", "dst", "bytes", back), end("dst", "src", back, "bytes"));
                return format!("({there} UNION ALL {here})");
            }
            Dialect::ClickHouse(shipped) => shipped,
        };
        let address = match by {
            By::Network(bits4, bits6) => {
                let bits = format!("if({}, {}, {bits6})", is_four("x.own"), 96 + bits4);
                format!("tupleElement(IPv6CIDRToRange(assumeNotNull(x.own), toUInt8({bits})), 1)")
            }
            _ => "assumeNotNull(x.own)".to_owned(),
        };
        let peer = match by {
            By::Peer(peer) => format!(" AND {}", within("x.other", peer)),
            _ => String::new(),
        };
        format!(
            "(SELECT {address} AS address, 1 AS flows, x.sent AS sent, x.received AS received, x.start_time AS first, \
             x.end_time AS last FROM (SELECT tupleElement(e, 1) AS own, tupleElement(e, 2) AS other, tupleElement(e, 3) AS \
             sent, tupleElement(e, 4) AS received, f.start_time AS start_time, f.end_time AS end_time FROM {} AS f ARRAY JOIN \
             [tuple(f.src, f.dst, f.bytes, ifNull(f.reverse_bytes, 0)), tuple(f.dst, f.src, ifNull(f.reverse_bytes, 0), \
             f.bytes)] AS e) AS x WHERE x.own IS NOT NULL{peer})",
            shipped.rows("flows", Some("end_time"))
        )
    }

    /// The text of an end of [`Self::ends`].
    pub(super) fn end(&self, by: &By<'_>) -> String {
        let text = self.address("e.address");
        match (self, by) {
            (Dialect::ClickHouse(_), By::Network(bits4, bits6)) => {
                format!("concat({text}, if({}, '/{bits4}', '/{bits6}'))", is_four("e.address"))
            }
            _ => text,
        }
    }
}

/// Whether an address of ClickHouse is in a network.
fn within(address: &str, network: &Network) -> String {
    let (first, last) = (network.address(), network.last());
    match network.address().is_ipv4() {
        true => format!("({address} BETWEEN toIPv6('::ffff:{first}') AND toIPv6('::ffff:{last}'))"),
        false => {
            format!("({address} BETWEEN toIPv6('{first}') AND toIPv6('{last}') AND NOT {})", is_four(address))
        }
    }
}
