//! Where `wirelane voip` and `wirelane http` take what they find: into a store, to be asked in SQL, into a capture file for
//! each call, and to Prometheus.
mod metrics;
mod saved;
mod scenes;
mod screen;
mod stored;
