//! Settings of HTTP tables.

/// The least memory of a table in bytes.
pub const LEAST_MEMORY: usize = 1 << 20;

/// Settings of an HTTP table.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// A connection ends after this time without a packet.
    pub idle_ns: u64,
    /// Maximum memory of connections and held pieces in bytes; at least [`LEAST_MEMORY`].
    pub memory: usize,
    /// Whether to use the headers inside tunnels.
    pub inner: bool,
    /// Names of fields that are stored in addition to [`super::fields::KEPT`], in lower case.
    pub extra: Vec<Box<str>>,
}

impl Default for HttpSettings {
    /// 300 s; 256 MiB; outer headers; no additional fields.
    fn default() -> HttpSettings {
        HttpSettings { idle_ns: 300_000_000_000, memory: 256 << 20, inner: false, extra: Vec::new() }
    }
}
