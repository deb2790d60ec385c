//! Report of `receive`.

use serde::Serialize;
use wirelane_analysis::numbered::{Counts, Measured, Stream, Streams};
use wirelane_screen::table::{Table, amount, counted};

use super::Expected;

/// Streams of numbered packets since the start.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReceiveReport {
    /// Packets of the streams.
    numbered_packets: u64,
    /// Packets without a number.
    other_packets: u64,
    /// Packets of streams beyond the limit.
    left_out_packets: u64,
    streams: Vec<StreamReport>,
}

/// One stream.
#[derive(Clone, Debug, Serialize)]
struct StreamReport {
    stream: u16,
    received: u64,
    lost: u64,
    loss_percent: f64,
    reordered: u64,
    duplicates: u64,
    too_late: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lowest_number: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    highest_number: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<LatencyReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter_ns: Option<f64>,
}

/// Latencies of the first copy of each packet, in nanoseconds.
#[derive(Clone, Debug, Serialize)]
struct LatencyReport {
    packets: u64,
    min_ns: i64,
    mean_ns: f64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: i64,
    negative: u64,
}

impl ReceiveReport {
    pub(super) fn new(streams: &Streams, other: u64, expected: &Expected) -> ReceiveReport {
        let of = |stream: u16| expected.get(&Some(stream)).or(expected.get(&None)).copied();
        let mut reports: Vec<_> =
            streams.iter().map(|(id, stream)| StreamReport::new(id, stream, of(id))).collect();
        for (id, packets) in expected.iter().filter_map(|(id, packets)| Some(((*id)?, *packets))) {
            if reports.iter().all(|report| report.stream != id) {
                reports.push(StreamReport::silent(id, packets));
            }
        }
        reports.sort_by_key(|report| report.stream);
        ReceiveReport {
            numbered_packets: streams.packets(),
            other_packets: other,
            left_out_packets: streams.left_out(),
            streams: reports,
        }
    }

    /// All packets that were looked at.
    pub fn packets(&self) -> u64 {
        self.numbered_packets + self.other_packets + self.left_out_packets
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if !self.streams.is_empty() {
            let mut counts = Table::new([
                "stream",
                "received",
                "lost",
                "loss",
                "reordered",
                "duplicates",
                "too late",
                "numbers",
            ]);
            for stream in &self.streams {
                let numbers = stream.lowest_number.zip(stream.highest_number);
                counts.row([
                    stream.stream.to_string(),
                    amount(stream.received),
                    amount(stream.lost),
                    format!("{:.3} %", stream.loss_percent),
                    amount(stream.reordered),
                    amount(stream.duplicates),
                    amount(stream.too_late),
                    numbers.map_or_else(|| "-".to_owned(), |(low, high)| format!("{low}..{high}")),
                ]);
            }
            text += &counts.to_string();
        }
        if self.streams.iter().any(|stream| stream.latency.is_some()) {
            let mut times = Table::new(["latency", "min", "mean", "p50", "p99", "max", "jitter"]);
            for stream in &self.streams {
                if let Some(latency) = &stream.latency {
                    times.row([
                        stream.stream.to_string(),
                        time(latency.min_ns as f64),
                        time(latency.mean_ns),
                        time(latency.p50_ns as f64),
                        time(latency.p99_ns as f64),
                        time(latency.max_ns as f64),
                        time(stream.jitter_ns.unwrap_or(0.0)),
                    ]);
                }
            }
            text += &times.to_string();
        }
        let negative: u64 =
            self.streams.iter().filter_map(|stream| Some(stream.latency.as_ref()?.negative)).sum();
        if negative > 0 {
            text += &format!(
                "{} arrived before they were sent: the clocks of sender and receiver differ\n",
                counted(negative, "packet")
            );
        }
        if self.left_out_packets > 0 {
            text += &format!("{} of further streams left out\n", counted(self.left_out_packets, "packet"));
        }
        text + &format!(
            "{} with a number, {} without\n",
            counted(self.numbered_packets, "packet"),
            amount(self.other_packets)
        )
    }
}

impl StreamReport {
    fn new(id: u16, stream: &Stream, expected: Option<u64>) -> StreamReport {
        let counts = stream.sequence.counts(expected);
        let measured = stream.latency.measured();
        StreamReport {
            lowest_number: Some(stream.sequence.lowest()),
            highest_number: Some(stream.sequence.highest()),
            bytes: stream.bytes,
            latency: measured.map(LatencyReport::from),
            jitter_ns: measured.map(|measured| measured.jitter_ns),
            ..StreamReport::of(id, counts)
        }
    }

    /// A stream that was expected, and of which nothing came.
    fn silent(id: u16, packets: u64) -> StreamReport {
        StreamReport::of(id, Counts { lost: packets, ..Counts::default() })
    }

    fn of(id: u16, counts: Counts) -> StreamReport {
        let Counts { received, duplicates, reordered, too_late, lost } = counts;
        let expected = (received - duplicates - too_late).saturating_add(lost);
        StreamReport {
            stream: id,
            received,
            lost,
            loss_percent: if expected > 0 { lost as f64 * 100.0 / expected as f64 } else { 0.0 },
            reordered,
            duplicates,
            too_late,
            bytes: 0,
            lowest_number: None,
            highest_number: None,
            latency: None,
            jitter_ns: None,
        }
    }
}

impl From<Measured> for LatencyReport {
    fn from(measured: Measured) -> LatencyReport {
        let Measured { packets, min_ns, mean_ns, p50_ns, p99_ns, max_ns, negative, jitter_ns: _ } = measured;
        LatencyReport { packets, min_ns, mean_ns, p50_ns, p99_ns, max_ns, negative }
    }
}

/// A time with its unit.
fn time(ns: f64) -> String {
    let (value, unit) = match ns.abs() {
        size if size < 1e3 => return format!("{ns:.0} ns"),
        size if size < 1e6 => (ns / 1e3, "us"),
        size if size < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    format!("{value:.3} {unit}")
}
