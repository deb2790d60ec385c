//! Settings of a flow cache.

use wirelane_bpf::flow::Timeouts;

/// Minimum memory of a cache in bytes: some hundred flows.
pub const LEAST_MEMORY: usize = 64 << 10;

/// Settings of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheSettings {
    /// Timeouts of flows.
    pub timeouts: Timeouts,
    /// Maximum memory in bytes; at least [`LEAST_MEMORY`].
    pub memory: usize,
    /// Whether both directions of a conversation are one flow (RFC 5103).
    pub biflow: bool,
}

impl Default for CacheSettings {
    /// 60 s, 15 s, and 2 s for the last ACKs of TCP; 64 MiB; a flow for each direction.
    fn default() -> CacheSettings {
        let timeouts =
            Timeouts { active_ns: 60_000_000_000, idle_ns: 15_000_000_000, ended_ns: 2_000_000_000 };
        CacheSettings { timeouts, memory: 64 << 20, biflow: false }
    }
}
