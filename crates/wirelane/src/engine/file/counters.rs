//! What was read from each interface of a file, and what of it the application has seen.

use std::cell::Cell;

use crate::batch::Tally;

/// Counts of one interface of a capture file. Once the file has ended and every batch has been read to its
/// end, `read` and `analysed` are equal; before, the difference is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Packets that were read from the file.
    pub read_packets: u64,
    /// Their bytes on the wire.
    pub read_bytes: u64,
    /// Packets that batches have yielded.
    pub analysed_packets: u64,
    /// Their bytes on the wire.
    pub analysed_bytes: u64,
}

/// The counters of all interfaces.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// The interface of the current batch.
    current: usize,
    each: Vec<Cell<InterfaceCounters>>,
}

impl Counters {
    /// The counters of this interface.
    pub(super) fn of(&self, interface: usize) -> InterfaceCounters {
        self.each.get(interface).map(Cell::get).unwrap_or_default()
    }

    /// A packet of this interface has been read into the current batch.
    pub(super) fn read(&mut self, interface: usize, wire_bytes: u32) {
        if interface >= self.each.len() {
            self.each.resize(interface + 1, Cell::default());
        }
        self.current = interface;
        let counters = self.each[interface].get_mut();
        counters.read_packets += 1;
        counters.read_bytes += u64::from(wire_bytes);
    }
}

impl Tally for Counters {
    fn count(&self, _queue: u16, wire_bytes: u32) {
        let cell = &self.each[self.current];
        let mut counters = cell.get();
        counters.analysed_packets += 1;
        counters.analysed_bytes += u64::from(wire_bytes);
        cell.set(counters);
    }
}
