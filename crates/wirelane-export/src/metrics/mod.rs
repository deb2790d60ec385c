//! Prometheus metrics: the current counts as text, served by HTTP.
//!
//! ```text
//! ledger, calls, transactions, probes -> counters and histograms (atomics) -> Registry -> Endpoint: a thread -> GET /metrics
//! ```
//!
//! The text format is OpenMetrics 1.0, which Prometheus requests. Labels have a bounded number of values, whatever
//! packets contain: data from the network are never labels.
//!
//! The endpoint is bound to a loopback address, or requires TLS and a token (`secured.rs`). It serves up to 64 clients
//! at a time, each within two seconds (`connection.rs`).

mod connection;
mod endpoint;
mod http;
mod probe;
mod run;
mod secured;
mod voip;

use std::sync::atomic::Ordering;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
pub use prometheus_client::registry::Registry;
use wirelane::ledger::Counters;
use wirelane::{Ledger, PluginLine};

#[doc(hidden)]
pub use endpoint::converse;
pub use endpoint::{Endpoint, Serving};
pub use http::HttpMetrics;
pub use probe::ProbeMetrics;
pub use run::{RunMetrics, ShipMetrics};
pub use secured::{Secured, Sources, Token};
pub use voip::VoipMetrics;

/// One label: its name and value.
type Label = [(&'static str, &'static str); 1];

/// Labels with the name of a plug-in, which the user has given, and with an outcome or the name of a counter.
type OfPlugin = [(&'static str, String); 2];

/// Ledger of a capture, and its plug-ins.
#[derive(Clone, Debug, Default)]
pub struct LedgerMetrics {
    packets: Family<Label, Counter>,
    bytes: Counter,
    plugin_packets: Family<OfPlugin, Counter>,
    plugin_records: Family<OfPlugin, Counter>,
    plugin_counters: Family<OfPlugin, Counter>,
}

impl LedgerMetrics {
    /// Registers the metrics, all zero.
    pub fn new(registry: &mut Registry) -> LedgerMetrics {
        let metrics = LedgerMetrics::default();
        let help =
            "Packets by the columns of the ledger: seen = filtered + absorbed + shed + lost + delivered";
        registry.register("wirelane_packets", help, metrics.packets.clone());
        registry.register(
            "wirelane_bytes",
            "Wire bytes of the packets that were analysed",
            metrics.bytes.clone(),
        );
        let help = "Packets that a plug-in was asked about, that matched, and that it was not asked about as it is too slow";
        registry.register("wirelane_plugin_packets", help, metrics.plugin_packets.clone());
        let help = "Records of a plug-in: written to a ring, and lost";
        registry.register("wirelane_plugin_records", help, metrics.plugin_records.clone());
        let help = "Counters of a plug-in, by the names that it gives them";
        registry.register("wirelane_plugin_counter", help, metrics.plugin_counters.clone());
        metrics.packets(&Counters::default());
        metrics
    }

    /// Sets the metrics from the ledger. Readers read the columns one by one, so relaxed order is sufficient.
    pub fn set(&self, ledger: &Ledger) {
        self.packets(&ledger.total);
        for PluginLine { name, asked, matched, refused, records, unwritten, counters, .. } in &ledger.plugins
        {
            let set = |family: &Family<OfPlugin, Counter>, label, value: &str, number: u64| {
                let counter = family.get_or_create(&[("plugin", name.clone()), (label, value.to_owned())]);
                counter.inner().store(number, Ordering::Relaxed);
            };
            for (outcome, number) in [("asked", *asked), ("matched", *matched), ("refused", *refused)] {
                set(&self.plugin_packets, "outcome", outcome, number);
            }
            for (outcome, number) in [("written", *records), ("lost", *unwritten)] {
                set(&self.plugin_records, "outcome", outcome, number);
            }
            for (counter, number) in counters {
                set(&self.plugin_counters, "counter", counter, *number);
            }
        }
    }

    fn packets(&self, counters: &Counters) {
        let columns = [
            ("seen", Some(counters.seen)),
            ("filtered", Some(counters.filtered)),
            ("absorbed", Some(counters.absorbed)),
            ("shed", Some(counters.shed)),
            ("lost", Some(counters.lost)),
            ("delivered", Some(counters.delivered)),
            ("analysed", Some(counters.analysed)),
            ("nic_missed", counters.nic_missed),
        ];
        for (name, number) in columns {
            // An unknown number is not exported as 0.
            if let Some(number) = number {
                let counter = self.packets.get_or_create(&[("column", name)]);
                counter.inner().store(number, Ordering::Relaxed);
            }
        }
        self.bytes.inner().store(counters.bytes, Ordering::Relaxed);
    }
}

/// Nanoseconds in seconds, the unit of times in Prometheus.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
