//! Metrics of a probe. Names are those of the configuration; keys are never labels, because they come from packets.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use wirelane_probe::{AlarmEvent, Entry, Shown, State};

/// Label with the name of a measurement or an alarm.
type Name = [(&'static str, String); 1];
/// Labels with a name and a value column.
type Value = [(&'static str, String); 2];
/// A floating-point gauge.
type Real = Gauge<f64, AtomicU64>;

/// Metrics of measurements and alarms.
#[derive(Clone, Debug, Default)]
pub struct ProbeMetrics {
    packets: Family<Name, Counter>,
    bytes: Family<Name, Counter>,
    end: Family<Name, Real>,
    value: Family<Value, Real>,
    highest: Family<Value, Real>,
    alarms: Family<Value, Counter>,
    raised: Family<Name, Gauge>,
}

impl ProbeMetrics {
    /// Registers the metrics, without values.
    pub fn new(registry: &mut Registry) -> ProbeMetrics {
        let metrics = ProbeMetrics::default();
        let its = &metrics;
        let help = "Packets that a measurement is about, of all intervals that are over";
        registry.register("wirelane_probe_packets", help, its.packets.clone());
        registry.register("wirelane_probe_bytes", "Their bytes on the wire", its.bytes.clone());
        let help = "The end of the last interval of a measurement, UTC since 1970: what its values are of";
        registry.register("wirelane_probe_interval_end_seconds", help, its.end.clone());
        let help = "A value of a measurement in its last interval; where it has a key, keys and entropy";
        registry.register("wirelane_probe_value", help, its.value.clone());
        let help = "The highest value of any key in the last interval, of the first value that is asked for";
        registry.register("wirelane_probe_highest", help, its.highest.clone());
        let help = "Times that an alarm was raised or cleared, for any key";
        registry.register("wirelane_probe_alarms", help, its.alarms.clone());
        let help = "Keys for which an alarm is raised now";
        registry.register("wirelane_probe_alarms_raised", help, its.raised.clone());
        metrics
    }

    /// Counts a result.
    pub fn take(&self, entry: &Entry) {
        match entry {
            Entry::Measured(shown) => self.measured(shown),
            Entry::Alarm(alarm, _) => self.alarm(alarm),
            Entry::Ledger(_) => {}
        }
    }

    fn measured(&self, shown: &Shown) {
        let name = || [("measurement", shown.measurement.clone())];
        let of = |value: &str| [("measurement", shown.measurement.clone()), ("value", value.to_owned())];
        self.packets.get_or_create(&name()).inc_by(shown.packets);
        self.bytes.get_or_create(&name()).inc_by(shown.bytes);
        self.end.get_or_create(&name()).set(shown.interval.end_ns as f64 / 1e9);
        let of_all = [("keys", shown.keys.map(|keys| keys as f64)), ("entropy", shown.entropy)];
        for (value, number) in of_all.into_iter().filter_map(|(value, number)| Some((value, number?))) {
            self.value.get_or_create(&of(value)).set(number);
        }
        let number = |row: &wirelane_probe::Row, column: &str| row.values.get(column)?.as_f64();
        if shown.keys.is_none() {
            let row = shown.rows.first();
            for column in &shown.columns {
                if let Some(number) = row.and_then(|row| number(row, column)) {
                    self.value.get_or_create(&of(column)).set(number);
                }
            }
            // Values of a plug-in, under the names of its counters.
            let counters = row.and_then(|row| row.values.get("counters")?.as_object());
            for (name, number) in counters.into_iter().flatten() {
                self.value.get_or_create(&of(name)).set(number.as_f64().unwrap_or(0.0));
            }
        } else if let Some(column) = shown.first.as_ref() {
            // Rows are sorted by this value. In an interval without keys the highest value is 0.
            let highest = shown.rows.first().and_then(|row| number(row, column)).unwrap_or(0.0);
            self.highest.get_or_create(&of(column)).set(highest);
        }
    }

    fn alarm(&self, alarm: &AlarmEvent) {
        let state = [("alarm", alarm.alarm.clone()), ("state", alarm.state.name().to_owned())];
        self.alarms.get_or_create(&state).inc();
        let raised = self.raised.get_or_create_owned(&[("alarm", alarm.alarm.clone())]);
        match alarm.state {
            State::Raised => raised.inc(),
            State::Cleared => raised.dec(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use wirelane_probe::Interval;

    fn shown(measurement: &str, keys: Option<usize>, rows: serde_json::Value) -> Entry {
        let row = |values: &serde_json::Value| wirelane_probe::Row {
            key: serde_json::Map::new(),
            text: String::new(),
            sum: (0, 0),
            values: values.as_object().unwrap().clone(),
        };
        Entry::Measured(Shown {
            measurement: measurement.to_owned(),
            total: false,
            start: String::new(),
            end: String::new(),
            packets: 7,
            bytes: 700,
            keys,
            without_key: 0,
            entropy: keys.map(|_| 1.5),
            error_percent: None,
            rows: rows.as_array().unwrap().iter().map(row).collect(),
            other: None,
            other_sum: (0, 0),
            columns: vec!["pps".to_owned()],
            first: Some("pps".to_owned()),
            interval: Interval { start_ns: 0, end_ns: 2_500_000_000 },
        })
    }

    #[test]
    fn values_are_of_the_last_interval_and_counters_of_all() {
        let mut registry = Registry::default();
        let metrics = ProbeMetrics::new(&mut registry);
        metrics.take(&shown("all", None, serde_json::json!([{ "pps": 3.5 }])));
        metrics.take(&shown("all", None, serde_json::json!([{ "pps": 4.5, "lengths": { "64-127": 1 } }])));
        metrics.take(&shown("keyed", Some(2), serde_json::json!([{ "pps": 9.0 }, { "pps": 1.0 }])));
        let alarm = |state| {
            let alarm = AlarmEvent {
                alarm: "flood".to_owned(),
                measurement: "keyed".to_owned(),
                state,
                key: serde_json::Map::new(),
                key_text: "192.0.2.1".to_owned(),
                value_name: "pps".to_owned(),
                value: 9.0,
                time: String::new(),
                end_ns: 0,
            };
            Entry::Alarm(alarm, None)
        };
        for state in [State::Raised, State::Raised, State::Cleared] {
            metrics.take(&alarm(state));
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "wirelane_probe_packets_total{measurement=\"all\"} 14",
            "wirelane_probe_bytes_total{measurement=\"keyed\"} 700",
            "wirelane_probe_interval_end_seconds{measurement=\"all\"} 2.5",
            "wirelane_probe_value{measurement=\"all\",value=\"pps\"} 4.5",
            "wirelane_probe_value{measurement=\"keyed\",value=\"keys\"} 2.0",
            "wirelane_probe_value{measurement=\"keyed\",value=\"entropy\"} 1.5",
            "wirelane_probe_highest{measurement=\"keyed\",value=\"pps\"} 9.0",
            "wirelane_probe_alarms_total{alarm=\"flood\",state=\"raised\"} 2",
            "wirelane_probe_alarms_total{alarm=\"flood\",state=\"cleared\"} 1",
            "wirelane_probe_alarms_raised{alarm=\"flood\"} 1",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is not in:\n{text}");
        }
        assert!(!text.contains("192.0.2.1") && !text.contains("lengths"), "{text}");
    }

    #[test]
    fn what_a_plug_in_counts_is_a_value_by_its_name() {
        let mut registry = Registry::default();
        let metrics = ProbeMetrics::new(&mut registry);
        for queries in [3, 8] {
            let counters = serde_json::json!([{ "counters": { "queries": queries, "lower half": 0 } }]);
            metrics.take(&shown("dns", None, counters));
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "wirelane_probe_value{measurement=\"dns\",value=\"queries\"} 8.0",
            "wirelane_probe_value{measurement=\"dns\",value=\"lower half\"} 0.0",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is not in:\n{text}");
        }
    }
}
