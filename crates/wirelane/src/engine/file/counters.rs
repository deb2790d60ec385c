//! Counters per interface of a file: packets read, and packets yielded to the application.

use std::sync::{Arc, Mutex, PoisonError};

use wirelane_pcapng::FileInterface;

use crate::tally::DeviceTally;

/// Counts of one interface of a capture file. Once the file has ended and every batch has been read to its
/// end, `read` and `analysed` are equal; before, the difference is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Packets that were read from the file.
    pub read_packets: u64,
    /// Bytes of `read_packets` on the wire.
    pub read_bytes: u64,
    /// Packets that a filter or a rule has refused.
    pub filtered_packets: u64,
    /// Packets that a rule has only counted.
    pub absorbed_packets: u64,
    /// Packets that batches have yielded.
    pub analysed_packets: u64,
    /// Bytes of `analysed_packets` on the wire.
    pub analysed_bytes: u64,
}

/// One interface and its counters, written by the worker that reads the file, readable from any thread.
#[derive(Debug)]
pub(crate) struct InterfaceLine {
    pub(crate) interface: FileInterface,
    read: DeviceTally,
    filtered: DeviceTally,
    absorbed: DeviceTally,
    pub(super) analysed: DeviceTally,
}

impl InterfaceLine {
    /// The current counters.
    pub(crate) fn counters(&self) -> InterfaceCounters {
        // Read the analysed counts first: they follow the read ones.
        let (analysed_packets, analysed_bytes) = self.analysed.sum();
        let (filtered_packets, _) = self.filtered.sum();
        let (absorbed_packets, _) = self.absorbed.sum();
        let (read_packets, read_bytes) = self.read.sum();
        InterfaceCounters {
            read_packets,
            read_bytes,
            filtered_packets,
            absorbed_packets,
            analysed_packets,
            analysed_bytes,
        }
    }
}

/// The lines of all interfaces so far, for the ledger. The list grows as the file is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct InterfaceLines(Arc<Mutex<Vec<Arc<InterfaceLine>>>>);

impl InterfaceLines {
    /// A copy of the current list.
    pub(crate) fn now(&self) -> Vec<Arc<InterfaceLine>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Outcome of a packet that was read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Became {
    /// The packet is in the current batch.
    Wanted,
    /// A filter or a rule has refused the packet.
    Filtered,
    /// A rule has only counted the packet.
    Absorbed,
}

/// The counters of all interfaces, for the worker that writes them.
#[derive(Debug, Default)]
pub(super) struct Counters {
    each: Vec<Arc<InterfaceLine>>,
    pub(super) lines: InterfaceLines,
}

impl Counters {
    /// The counters of this interface.
    pub(super) fn of(&self, interface: usize) -> InterfaceCounters {
        self.each.get(interface).map(|line| line.counters()).unwrap_or_default()
    }

    /// The counters of analysed packets of this interface.
    pub(super) fn analysed(&self, interface: usize) -> Option<&DeviceTally> {
        self.each.get(interface).map(|line| &line.analysed)
    }

    /// Adds lines for interfaces that have been described since the last call.
    pub(super) fn follow(&mut self, interfaces: &[FileInterface]) {
        if self.each.len() == interfaces.len() {
            return;
        }
        let mut lines = self.lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        for interface in &interfaces[self.each.len()..] {
            let line = Arc::new(InterfaceLine {
                interface: interface.clone(),
                read: DeviceTally::new(1),
                filtered: DeviceTally::new(1),
                absorbed: DeviceTally::new(1),
                analysed: DeviceTally::new(1),
            });
            self.each.push(Arc::clone(&line));
            lines.push(line);
        }
    }

    /// Counts a packet that was read from this interface, which has a line. It stands for `packets` packets on the wire
    /// with `bytes` bytes.
    pub(super) fn read(&mut self, interface: usize, (packets, bytes): (u32, u64), what: Became) {
        let line = &self.each[interface];
        // In this order: a refused packet has been read.
        line.read.count(0, packets, bytes);
        match what {
            Became::Wanted => {}
            Became::Filtered => line.filtered.count(0, packets, bytes),
            Became::Absorbed => line.absorbed.count(0, packets, bytes),
        }
    }
}
