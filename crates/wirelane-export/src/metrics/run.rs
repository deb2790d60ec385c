//! Metrics of a run: its workers and its outputs. Names of outputs are those of the user's options.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::OutputState;

/// Label with the number of a worker.
type Worker = [(&'static str, String); 1];
/// Labels with the analysis and the name of an output.
type Output = [(&'static str, String); 2];
/// Labels of an output, and what became of its records.
type Outcome = [(&'static str, String); 3];
/// Label with the target of a shipped store.
type Target = [(&'static str, String); 1];

/// Metrics of workers and outputs.
#[derive(Clone, Debug, Default)]
pub struct RunMetrics {
    busy: Family<Worker, Gauge<f64, AtomicU64>>,
    works: Family<Output, Gauge>,
    records: Family<Outcome, Counter>,
    waiting: Family<Output, Gauge>,
}

impl RunMetrics {
    /// Registers the metrics, without values.
    pub fn new(registry: &mut Registry) -> RunMetrics {
        let metrics = RunMetrics::default();
        let its = &metrics;
        let help = "Part of the last interval in which a worker handled packets, from 0 to 1";
        registry.register("wirelane_worker_busy", help, its.busy.clone());
        let help = "1: the last attempt to write to an output has succeeded, 0: it has failed";
        registry.register("wirelane_output_works", help, its.works.clone());
        registry.register("wirelane_output_records", "Records of an output", its.records.clone());
        let help = "Bytes that wait to be written to an output";
        registry.register("wirelane_output_waiting_bytes", help, its.waiting.clone());
        metrics
    }

    /// Sets the load of a worker, from 0 to 1.
    pub fn worker(&self, worker: usize, busy: f64) {
        self.busy.get_or_create(&[("worker", worker.to_string())]).set(busy);
    }

    /// Sets the state of an output of an analysis.
    pub fn output(&self, analysis: &str, state: &OutputState) {
        let labels = || [("analysis", analysis.to_owned()), ("output", state.target.clone())];
        self.works.get_or_create(&labels()).set(i64::from(state.works));
        self.waiting.get_or_create(&labels()).set(i64::try_from(state.waiting_bytes).unwrap_or(i64::MAX));
        let records = [("written", state.written), ("lost", state.lost), ("suppressed", state.suppressed)];
        for (outcome, number) in records {
            let [analysis, output] = labels();
            let counter = self.records.get_or_create(&[analysis, output, ("outcome", outcome.to_owned())]);
            counter.inner().store(number, Ordering::Relaxed);
        }
    }
}

/// Metrics of shipping a store.
#[derive(Clone, Debug, Default)]
pub struct ShipMetrics {
    lag: Family<Target, Gauge<f64, AtomicU64>>,
    retries: Family<Target, Counter>,
}

impl ShipMetrics {
    /// Registers the metrics, without values.
    pub fn new(registry: &mut Registry) -> ShipMetrics {
        let metrics = ShipMetrics::default();
        let help = "Age of the oldest complete file that is not shipped, in seconds";
        registry.register("wirelane_ship_lag_seconds", help, metrics.lag.clone());
        registry.register("wirelane_ship_retries", "Repeated requests", metrics.retries.clone());
        metrics
    }

    /// Sets the values of a target.
    pub fn set(&self, target: &str, lag_s: f64, retries: u64) {
        let label = || [("target", target.to_owned())];
        self.lag.get_or_create(&label()).set(lag_s);
        self.retries.get_or_create(&label()).inner().store(retries, Ordering::Relaxed);
    }
}
