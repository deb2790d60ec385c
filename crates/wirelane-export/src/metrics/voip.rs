//! Metrics of calls and their streams.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use wirelane_analysis::voip::{CallRecord, Finished, State, Stream};

use super::{Label, seconds};

/// Bucket bounds of MOS values.
const MOS: [f64; 8] = [1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.2, 4.4];
/// Bucket bounds of the shares of lost packets.
const LOSS: [f64; 8] = [0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2];
/// Bucket bounds of jitter, in seconds.
const JITTER: [f64; 8] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1];
/// Bucket bounds of delays until an answer, in seconds.
const DELAY: [f64; 9] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0];

/// Metrics of calls and streams.
#[derive(Clone, Debug)]
pub struct VoipMetrics {
    active: Gauge,
    calls: Family<Label, Counter>,
    answered: Counter,
    failed: Family<Label, Counter>,
    delay: Histogram,
    mos: Histogram,
    loss: Histogram,
    jitter: Histogram,
    streams: Family<Label, Counter>,
    rtp: Family<Label, Counter>,
}

/// Status classes.
const CLASSES: [&str; 7] = ["0xx", "1xx", "2xx", "3xx", "4xx", "5xx", "6xx"];

impl VoipMetrics {
    /// Registers the metrics, all zero.
    pub fn new(registry: &mut Registry) -> VoipMetrics {
        let metrics = VoipMetrics {
            active: Gauge::default(),
            calls: Family::default(),
            answered: Counter::default(),
            failed: Family::default(),
            delay: Histogram::new(DELAY),
            mos: Histogram::new(MOS),
            loss: Histogram::new(LOSS),
            jitter: Histogram::new(JITTER),
            streams: Family::default(),
            rtp: Family::default(),
        };
        let its = &metrics;
        registry.register("wirelane_voip_calls_active", "Calls that go on", its.active.clone());
        registry.register("wirelane_voip_calls", "Calls that were handed out, by state", its.calls.clone());
        registry.register(
            "wirelane_voip_calls_answered",
            "Of these, calls that were answered",
            its.answered.clone(),
        );
        let help = "Of these, calls that failed or were challenged, by the class of the status";
        registry.register("wirelane_voip_calls_failed", help, its.failed.clone());
        let help = "From the INVITE to the first answer but 100";
        registry.register("wirelane_voip_post_dial_delay_seconds", help, its.delay.clone());
        let help = "Mean opinion scores of streams whose codec the model knows (G.107)";
        registry.register("wirelane_voip_stream_mos", help, its.mos.clone());
        let help = "Lost packets of streams over expected ones";
        registry.register("wirelane_voip_stream_loss_ratio", help, its.loss.clone());
        let help = "Mean jitter of streams (RFC 3550)";
        registry.register("wirelane_voip_stream_jitter_seconds", help, its.jitter.clone());
        let help = "RTP streams that were handed out, of calls and of none";
        registry.register("wirelane_voip_streams", help, its.streams.clone());
        let help = "RTP packets of these streams: packets = expected - lost + duplicate + stray";
        registry.register("wirelane_voip_rtp_packets", help, its.rtp.clone());
        // Counters without events are exported as 0, instead of missing.
        for state in State::ALL {
            let _ = its.calls.get_or_create(&[("state", state.name())]);
        }
        for class in &CLASSES[3..] {
            let _ = its.failed.get_or_create(&[("class", class)]);
        }
        for call in ["yes", "no"] {
            let _ = its.streams.get_or_create(&[("call", call)]);
        }
        metrics
    }

    /// Sets the number of active calls.
    pub fn active(&self, calls: u64) {
        self.active.set(calls as i64);
    }

    /// Counts ended calls and streams.
    pub fn take(&self, finished: &[Finished]) {
        for one in finished {
            match one {
                Finished::Call(record) => self.call(record),
                Finished::Stream(stream, _) => self.stream(stream, "no"),
                Finished::Signal(_) | Finished::Kept(_) => {}
            }
        }
    }

    fn call(&self, record: &CallRecord) {
        let call = &record.call;
        self.calls.get_or_create(&[("state", call.state.name())]).inc();
        self.answered.inc_by(u64::from(call.answer_ns.is_some()));
        if matches!(call.state, State::Failed | State::Challenged) {
            let class = CLASSES.get(usize::from(call.status / 100)).unwrap_or(&CLASSES[0]);
            self.failed.get_or_create(&[("class", class)]).inc();
        }
        if let Some(ns) = call.post_dial_delay_ns() {
            self.delay.observe(seconds(ns));
        }
        record.streams.iter().for_each(|stream| self.stream(stream, "yes"));
    }

    fn stream(&self, stream: &Stream, call: &'static str) {
        let rtp = &stream.rtp;
        self.streams.get_or_create(&[("call", call)]).inc();
        for (name, number) in [
            ("packets", rtp.packets),
            ("expected", rtp.expected()),
            ("lost", rtp.lost),
            ("duplicate", rtp.duplicate),
            ("out_of_order", rtp.out_of_order),
            ("stray", rtp.stray),
        ] {
            self.rtp.get_or_create(&[("count", name)]).inc_by(number);
        }
        if rtp.expected() > 0 {
            self.loss.observe(rtp.lost as f64 / rtp.expected() as f64);
        }
        if let Some(ns) = rtp.jitter_sum_ns.checked_div(rtp.jitters) {
            self.jitter.observe(seconds(ns));
        }
        if let Some(quality) = stream.quality() {
            self.mos.observe(quality.mos);
        }
    }
}
