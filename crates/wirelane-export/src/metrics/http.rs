//! Metrics of HTTP transactions.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use wirelane_analysis::http::Transaction;

use super::seconds;

/// Methods that are counted by name (RFC 9110, RFC 5789); others are `other`, because clients may invent any number.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
/// Status classes.
const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];
/// Bucket bounds of times, in seconds.
const TIMES: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Two labels.
type Labels = [(&'static str, &'static str); 2];

/// Metrics of HTTP transactions.
#[derive(Clone, Debug)]
pub struct HttpMetrics {
    transactions: Family<Labels, Counter>,
    duration: Histogram,
    first_byte: Histogram,
    bytes: Counter,
    missing: Counter,
}

impl HttpMetrics {
    /// Registers the metrics, all zero.
    pub fn new(registry: &mut Registry) -> HttpMetrics {
        let metrics = HttpMetrics {
            transactions: Family::default(),
            duration: Histogram::new(TIMES),
            first_byte: Histogram::new(TIMES),
            bytes: Counter::default(),
            missing: Counter::default(),
        };
        let its = &metrics;
        let help = "HTTP transactions, by method and class of the status; none: no such message was seen";
        registry.register("wirelane_http_transactions", help, its.transactions.clone());
        let help = "From the first byte of the request to the last of the response";
        registry.register("wirelane_http_duration_seconds", help, its.duration.clone());
        let help = "From the last byte of the request to the first of the response";
        registry.register("wirelane_http_first_byte_seconds", help, its.first_byte.clone());
        registry.register(
            "wirelane_http_response_body_bytes",
            "Bytes of bodies of responses",
            its.bytes.clone(),
        );
        let help = "Bytes of requests and responses that were not captured";
        registry.register("wirelane_http_missing_bytes", help, its.missing.clone());
        metrics
    }

    /// Counts transactions.
    pub fn take(&self, transactions: &[Transaction]) {
        for transaction in transactions {
            let (request, response) = (&transaction.request, &transaction.response);
            let known = |method: &[u8]| METHODS.iter().find(|known| known.as_bytes() == method).copied();
            let method = request.as_ref().map_or("none", |request| known(&request.method).unwrap_or("other"));
            let class = response.as_ref().map_or(0, |response| usize::from(response.status / 100));
            let class = CLASSES.get(class).copied().unwrap_or("other");
            self.transactions.get_or_create(&[("method", method), ("class", class)]).inc();
            if request.is_some() && response.is_some() {
                self.duration.observe(seconds(transaction.end_ns().saturating_sub(transaction.start_ns())));
            }
            if let Some(ns) = transaction.first_byte_ns() {
                self.first_byte.observe(seconds(ns));
            }
            self.bytes.inc_by(response.as_ref().map_or(0, |response| response.body));
            for message in [request, response].into_iter().flatten() {
                self.missing.inc_by(message.missing);
            }
        }
    }
}
