//! How connections are followed.

/// The least memory of a table in bytes.
pub const LEAST_MEMORY: usize = 1 << 20;

/// How connections are followed.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// A connection ends after this time without a packet.
    pub idle_ns: u64,
    /// Bytes that connections and what is held of them take at most; [`LEAST_MEMORY`] where that is more.
    pub memory: usize,
    /// By the headers inside tunnels.
    pub inner: bool,
    /// Names of fields that are kept beside [`super::fields::KEPT`], in lower case.
    pub extra: Vec<Box<str>>,
}

impl Default for HttpSettings {
    /// 300 s; 256 MiB; the outer headers; no fields.
    fn default() -> HttpSettings {
        HttpSettings { idle_ns: 300_000_000_000, memory: 256 << 20, inner: false, extra: Vec::new() }
    }
}
