//! The RTP streams that a capture's lanes measure (`bpf/streams.h` describes the protocol): one table, and one array of
//! slots, for all its devices.
//!
//! | word | written by | ordering here | its partner |
//! | --- | --- | --- | --- |
//! | `handed` | [`Streams::give`], [`Streams::revoke`] | Release | the volatile load in `wl_stream_add()`, before its exchange |
//! | `generation` | [`Streams::open`], [`Streams::close`] | SeqCst | the load in `wl_stream_add()`, behind its exchange |
//! | `turn` | lanes | SeqCst, Acquire | the exchanges of `wl_stream_enter()` and `wl_stream_leave()` |
//! | `rtp`, `taken` | lanes, and `give` | Relaxed | ordered by `turn`, and by the ring's head |

use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{ErrorKind, MapCore as _, MapFlags, MapHandle, MapType};
use wirelane_bpf::rtp::RtpStream;
use wirelane_bpf::stream::{Measured, StreamAt, StreamKey};

use super::instance::Instance;
use super::memory::Mapping;
use crate::error::{Error, Result};

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Streams {
    table: MapHandle,
    places: MapHandle,
    memory: Mapping,
    room: usize,
    free: Mutex<Free>,
}

/// Unused slots.
#[derive(Debug, Default)]
struct Free {
    /// Slots that have been used before.
    used: Vec<u32>,
    /// The first slot that was never used.
    fresh: u32,
    /// The generation that was assigned last.
    generation: u32,
}

/// A stream's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamSlot {
    at: u32,
}

/// Distance of the first numbers of two streams: a packet of an ended stream never has a number of the next one.
const APART: u64 = 1 << 16;

/// The bytes of a key or a value.
fn bytes<T>(of: &T) -> &[u8] {
    // SAFETY: StreamKey and StreamAt, the only types that this is called with, are plain integers without padding (the
    // layout tests of wirelane-bpf check this), and live as long as the slice.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(of).cast::<u8>(), size_of::<T>()) }
}

impl Streams {
    /// Table and memory for `room` streams.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(crate) fn new(room: usize) -> Result<Streams> {
        let mib = (room * size_of::<Measured>()).div_ceil(1 << 20);
        let what =
            || format!("making room for {room} RTP streams, {mib} MiB (reduce it with a smaller --streams)");
        let count =
            u32::try_from(room).map_err(|_| Error::kernel(what(), std::io::ErrorKind::OutOfMemory.into()))?;
        let opts = |map_flags| sys::bpf_map_create_opts {
            sz: size_of::<sys::bpf_map_create_opts>() as _,
            map_flags,
            ..Default::default()
        };
        let (key, value) = (size_of::<StreamKey>() as u32, size_of::<StreamAt>() as u32);
        let sparse = opts(sys::BPF_F_NO_PREALLOC);
        let table = MapHandle::create(MapType::Hash, Some("wl_stream"), key, value, count, &sparse)
            .map_err(|e| Error::bpf(what(), e))?;
        let shared = opts(sys::BPF_F_MMAPABLE | sys::BPF_F_INNER_MAP);
        let size = size_of::<Measured>() as u32;
        let places = MapHandle::create(MapType::Array, Some("wl_measure"), 4, size, count, &shared)
            .map_err(|e| Error::bpf(what(), e))?;
        let memory = Mapping::new(places.as_fd(), 0, room * size_of::<Measured>(), true)
            .map_err(|e| Error::kernel(format!("mapping {mib} MiB of RTP streams"), e))?;
        Ok(Streams { table, places, memory, room, free: Mutex::default() })
    }

    /// Puts the table and the memory into the maps of an instance, for its lanes. The kernel waits for running
    /// programs.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(super) fn hand_over(&self, instance: &Instance, group: usize) -> Result<()> {
        let key = (group as u32).to_ne_bytes();
        for (maps, map) in [(&instance.streams, &self.table), (&instance.measured, &self.places)] {
            maps.update(&key, &map.as_fd().as_raw_fd().to_ne_bytes(), MapFlags::ANY)
                .map_err(|e| Error::bpf("handing streams to the capture program", e))?;
        }
        Ok(())
    }

    fn word(&self, place: StreamSlot, offset: usize) -> &AtomicU64 {
        self.memory.word(place.at as usize * size_of::<Measured>() + offset)
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a slot for a stream. Returns it with the number before the stream's first packet; `None`: no slot is
    /// free.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(crate) fn open(&self, key: &StreamKey) -> Result<Option<(StreamSlot, u64)>> {
        let mut free = self.free();
        let at = match free.used.pop() {
            Some(at) => at,
            None if (free.fresh as usize) < self.room => {
                free.fresh += 1;
                free.fresh - 1
            }
            None => return Ok(None),
        };
        // Generation 0 means unused.
        free.generation = free.generation.checked_add(1).unwrap_or(1);
        let (place, generation) = (StreamSlot { at }, free.generation);
        let first = u64::from(generation) * APART;
        // No lane uses the slot. Relaxed: the generation is written last.
        self.word(place, offset_of!(Measured, number)).store(first, Ordering::Relaxed);
        self.word(place, offset_of!(Measured, handed)).store(first.wrapping_sub(1), Ordering::Relaxed);
        self.word(place, offset_of!(Measured, taken)).store(0, Ordering::Relaxed);
        self.word(place, offset_of!(Measured, generation)).store(generation.into(), Ordering::SeqCst);
        let there = StreamAt { place: at, generation };
        // Replaces a stale entry that the kernel could not remove, should there be one.
        match self.table.update(bytes(key), bytes(&there), MapFlags::ANY) {
            Ok(()) => Ok(Some((place, first))),
            Err(e) => {
                self.word(place, offset_of!(Measured, generation)).store(0, Ordering::SeqCst);
                free.used.push(at);
                if e.kind() == ErrorKind::TooBig { Ok(None) } else { Err(Error::bpf("adding a stream", e)) }
            }
        }
    }

    /// Hands the stream's state over to the lanes, as it is after the packet of this number; they continue from there,
    /// with packets from before `until_ns`. To be called only by the worker that has added that packet.
    pub(crate) fn give(&self, place: StreamSlot, rtp: &RtpStream, number: u64, until_ns: u64) {
        let start = place.at as usize * size_of::<Measured>() + offset_of!(Measured, rtp);
        // SAFETY: plain integers without padding, of a size that is a multiple of 8 (the layout test checks this).
        unsafe { self.memory.write(start, std::slice::from_ref(rtp)) };
        self.word(place, offset_of!(Measured, until_ns)).store(until_ns, Ordering::Relaxed);
        // Release: a lane that sees this number sees the writes above.
        self.word(place, offset_of!(Measured, handed)).store(number, Ordering::Release);
    }

    /// Requests the delivery of the stream's next packet.
    pub(crate) fn revoke(&self, place: StreamSlot) {
        let handed = self.word(place, offset_of!(Measured, handed));
        // A number half the range away. Release: as in `give`.
        let other = self.word(place, offset_of!(Measured, number)).load(Ordering::Relaxed) ^ 1 << 63;
        handed.store(other, Ordering::Release);
    }

    /// The stream's state, and the number of packets that stayed in the kernel; a consistent copy between two packets.
    pub(crate) fn read(&self, place: StreamSlot) -> (RtpStream, u64) {
        let turn = self.word(place, offset_of!(Measured, turn));
        loop {
            // Acquire: pairs with the exchange that has made it even.
            let before = turn.load(Ordering::Acquire);
            if before & 1 == 0 {
                let found = self.copy(place);
                fence(Ordering::Acquire);
                if turn.load(Ordering::Relaxed) == before {
                    return found;
                }
            }
            std::hint::spin_loop();
        }
    }

    fn copy(&self, place: StreamSlot) -> (RtpStream, u64) {
        let mut rtp = RtpStream::default();
        let words = (&raw mut rtp).cast::<u64>();
        for at in 0..size_of::<RtpStream>() / 8 {
            let value = self.word(place, offset_of!(Measured, rtp) + at * 8).load(Ordering::Relaxed);
            // SAFETY: within `rtp`, which is plain integers (every bit pattern is valid) and 8-aligned.
            unsafe { words.add(at).write(value) };
        }
        (rtp, self.word(place, offset_of!(Measured, taken)).load(Ordering::Relaxed))
    }

    /// Frees the stream's slot: no lane uses it any more. Returns the final result of [`Streams::read`].
    ///
    /// # Errors
    /// The error that the kernel returned; the slot is free all the same.
    pub(crate) fn close(&self, place: StreamSlot, key: &StreamKey) -> (RtpStream, u64, Result<()>) {
        let deleted = match self.table.delete(bytes(key)) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::bpf("removing a stream", e)),
            _ => Ok(()),
        };
        // SeqCst: a lane whose turn begins after this sees it; `read` waits for a lane whose turn began before.
        self.word(place, offset_of!(Measured, generation)).store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let (rtp, taken) = self.read(place);
        self.free().used.push(place.at);
        (rtp, taken, deleted)
    }
}
