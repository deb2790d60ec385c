//! A ring of a worker, and the condition for its next record in time order.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wirelane_bpf::layout::{RECORD_HEADER, RecordHeader};

use super::data::RingMemory;
use super::flows::LaneFlows;
use super::memory::Word;
use super::reader::Reader;
use super::source::Shared;
use crate::record::DeviceNumber;
use crate::tally::DeviceTally;

/// One ring of a worker.
#[derive(Debug)]
pub(crate) struct LaneEnd {
    pub(crate) reader: Reader<Word>,
    pub(crate) memory: RingMemory,
    pub(crate) device: DeviceNumber,
    pub(crate) tally: Arc<DeviceTally>,
    /// All workers that the lane writes to, by number; empty where buckets do not move.
    pub(crate) peers: Vec<Peer>,
    pub(crate) barrier: Option<Barrier>,
    /// The lane's flow cache for the worker.
    pub(crate) flows: Option<LaneFlows>,
    /// The packet that the lane is processing (`wl_mark.in_flight`).
    pub(crate) mark: Word,
}

/// A worker that the same lane writes to.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The peer's read position in its ring of this lane.
    pub(crate) tail: Word,
    pub(crate) shared: Arc<Shared>,
}

/// Condition for the next record of a ring (bpf/balance.h).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Barrier {
    worker: usize,
    position: u64,
}

impl LaneEnd {
    /// Whether the next record has to wait for another worker. Passes barriers whose condition is met.
    pub(super) fn is_blocked(&mut self) -> bool {
        let Some(Barrier { worker, position }) = self.barrier else { return false };
        let fallen = self.peers.get(worker).is_none_or(|peer| {
            // Acquire, the tail: pairs with the Release of the peer's Reader::release, so that its processing of the
            // records is done. Acquire, `ended`: the same with the peer's end.
            peer.tail.load(Ordering::Acquire) >= position || peer.shared.ended.load(Ordering::Acquire)
        });
        if fallen {
            self.barrier = None;
            self.reader.release(RECORD_HEADER as u64);
        }
        !fallen
    }

    /// Whether a half of the flow cache comes next. Skips empty halves.
    pub(super) fn half_is_due(&mut self) -> bool {
        let Some(flows) = &mut self.flows else { return false };
        while flows.is_due(&self.reader) {
            if flows.half().count() > 0 {
                return true;
            }
            flows.advance(0);
        }
        false
    }

    /// Accounts for a batch that ended at a barrier, which comes next, or before another epoch of the flow cache.
    pub(super) fn meet_barrier(&mut self) {
        if let Some(flows) = &mut self.flows {
            return flows.meet(&self.reader);
        }
        let (bytes, _) = self.memory.run(self.reader.position(), RECORD_HEADER as u64);
        // RecordHeader begins with ts_ns; `hash` holds the worker's number.
        let position = bytes.as_chunks::<8>().0.first().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let at = offset_of!(RecordHeader, hash);
        let worker =
            bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes);
        self.barrier = Some(Barrier { worker: worker as usize, position });
    }
}
