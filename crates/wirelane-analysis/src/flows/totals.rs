//! Sums over flows.

use super::record::FlowRecord;

/// Totals of the records of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Flows; a biflow counts once.
    pub flows: u64,
    /// Packets.
    pub packets: u64,
    /// Bytes, as IP headers state them.
    pub bytes: u64,
    /// Bytes on the wire.
    pub wire_bytes: u64,
    /// Flows by [`EndReason`]; the first counter is unused.
    pub by_reason: [u64; 6],
}

impl std::ops::AddAssign<&FlowRecord> for Totals {
    fn add_assign(&mut self, record: &FlowRecord) {
        self.flows += 1;
        self.packets += record.packets();
        self.bytes += record.bytes();
        self.wire_bytes += record.wire_bytes();
        self.by_reason[record.reason as usize] += 1;
    }
}
