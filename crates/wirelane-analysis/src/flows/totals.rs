//! Sums over flows.

use super::record::FlowRecord;

/// What a cache has handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Flows; of both directions together, one.
    pub flows: u64,
    /// Their packets.
    pub packets: u64,
    /// Their bytes, as IP headers state them.
    pub bytes: u64,
    /// Their wire bytes.
    pub wire_bytes: u64,
    /// Flows by [`EndReason`]; the first is of none.
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
