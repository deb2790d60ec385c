//! Outputs of `wirelane voip` and `wirelane http`: a store for SQL, a capture file for each call, and metrics for
//! Prometheus.
mod metrics;
mod saved;
pub mod scenes;
mod screen;
mod stored;
