//! The memory of a group's rings: a BPF array of segments, and a ring's part of it.

use std::sync::Arc;

use libbpf_rs::{MapHandle, MapType};
use wirelane_bpf::instance::{ELEMENT, SEGMENT};

use super::group::Token;
use super::memory::Mapping;
use crate::error::{Error, Result};

/// The records of one ring.
#[derive(Debug)]
pub(crate) struct RingMemory {
    data: Arc<Mapping>,
    first: usize,
    segments: usize,
    /// Keeps the ring's words ours as long as its records are read.
    _place: Arc<Token>,
}

impl RingMemory {
    /// The ring of `segments` segments from segment `first` on, in a group's data.
    pub(super) fn new(data: Arc<Mapping>, first: usize, segments: usize, place: Arc<Token>) -> RingMemory {
        RingMemory { data, first, segments, _place: place }
    }

    /// `unread` bytes at `position`, within one segment: the bytes (with the slack after them, into which the last
    /// record may spill), and the number of bytes in which records start.
    pub(crate) fn run(&self, position: u64, unread: u64) -> (&[u8], usize) {
        let position = position as usize;
        let offset = position % SEGMENT;
        let segment = self.first + (position / SEGMENT) % self.segments;
        let start_within = (SEGMENT - offset).min(unread as usize);
        let bytes = (ELEMENT - offset).min(unread as usize);
        // SAFETY: the bytes lie between the reader's position and a head that was loaded with Acquire, so the
        // lane has finished them and will not write here again before the reader releases them (the lane
        // checks the tail before it reserves; bytes in slack belong to the same records).
        (unsafe { self.data.bytes(segment * ELEMENT + offset, bytes) }, start_within)
    }
}

/// The map of a group's rings: readers' ends, and the segments.
pub(super) fn create_data(elements: usize, rings: usize, segments: usize) -> Result<MapHandle> {
    let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: libbpf_rs::libbpf_sys::BPF_F_MMAPABLE | libbpf_rs::libbpf_sys::BPF_F_INNER_MAP,
        ..Default::default()
    };
    MapHandle::create(MapType::Array, Some("wl_ring"), 4, ELEMENT as u32, elements as u32, &opts)
        .map_err(|e| {
            let (all, each) = ((elements * ELEMENT) >> 20, (segments * SEGMENT) >> 20);
            Error::bpf(
                format!(
                    "allocating {all} MiB for {rings} rings of {each} MiB (reduce it with a smaller --ring-size \
                     or fewer workers; a control group's memory limit counts too)"
                ),
                e,
            )
        })
}
