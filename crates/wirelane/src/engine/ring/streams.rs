//! The RTP streams that a capture's lanes measure (`bpf/streams.h`, where the order of things is): one table,
//! and one array of places, for all its devices.
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

/// Places that are nobody's.
#[derive(Debug, Default)]
struct Free {
    /// Those that have been somebody's.
    used: Vec<u32>,
    /// The first that never was.
    fresh: u32,
    /// The last one that was given.
    generation: u32,
}

/// A stream's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamSlot {
    at: u32,
}

/// How far apart the first numbers of two streams are: a packet of one that has ended is none of the next.
const APART: u64 = 1 << 16;

/// The bytes of a key or a value.
fn bytes<T>(of: &T) -> &[u8] {
    // SAFETY: StreamKey and StreamAt, the only types that this is called with, are plain integers without padding (the
    // layout tests of wirelane-bpf say so), and live as long as the slice.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(of).cast::<u8>(), size_of::<T>()) }
}

impl Streams {
    /// Room for so many.
    ///
    /// # Errors
    /// What the kernel said.
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

    /// Puts both where the lanes of an instance find them. The kernel waits for running programs.
    ///
    /// # Errors
    /// What the kernel said.
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

    /// Makes a place for a stream. The number that is before its first one; `None`: there is no room.
    ///
    /// # Errors
    /// What the kernel said.
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
        // 0 is nobody's.
        free.generation = free.generation.checked_add(1).unwrap_or(1);
        let (place, generation) = (StreamSlot { at }, free.generation);
        let first = u64::from(generation) * APART;
        // No lane is here. Relaxed: the generation is written last.
        self.word(place, offset_of!(Measured, number)).store(first, Ordering::Relaxed);
        self.word(place, offset_of!(Measured, handed)).store(first.wrapping_sub(1), Ordering::Relaxed);
        self.word(place, offset_of!(Measured, taken)).store(0, Ordering::Relaxed);
        self.word(place, offset_of!(Measured, generation)).store(generation.into(), Ordering::SeqCst);
        let there = StreamAt { place: at, generation };
        // In the place of one that the kernel could not be rid of, should there be such.
        match self.table.update(bytes(key), bytes(&there), MapFlags::ANY) {
            Ok(()) => Ok(Some((place, first))),
            Err(e) => {
                self.word(place, offset_of!(Measured, generation)).store(0, Ordering::SeqCst);
                free.used.push(at);
                if e.kind() == ErrorKind::TooBig { Ok(None) } else { Err(Error::bpf("adding a stream", e)) }
            }
        }
    }

    /// What the stream has come to with the packet of this number; lanes go on from there, with packets from before
    /// `until_ns`. Only for who has added that packet.
    pub(crate) fn give(&self, place: StreamSlot, rtp: &RtpStream, number: u64, until_ns: u64) {
        let start = place.at as usize * size_of::<Measured>() + offset_of!(Measured, rtp);
        // SAFETY: plain integers without padding, of a size that is a multiple of 8 (the layout test says so).
        unsafe { self.memory.write(start, std::slice::from_ref(rtp)) };
        self.word(place, offset_of!(Measured, until_ns)).store(until_ns, Ordering::Relaxed);
        // Release: a lane that finds it finds what is above.
        self.word(place, offset_of!(Measured, handed)).store(number, Ordering::Release);
    }

    /// The next packet of the stream is to come up.
    pub(crate) fn revoke(&self, place: StreamSlot) {
        let handed = self.word(place, offset_of!(Measured, handed));
        // Half of all numbers away. Release: as in `give`.
        let other = self.word(place, offset_of!(Measured, number)).load(Ordering::Relaxed) ^ 1 << 63;
        handed.store(other, Ordering::Release);
    }

    /// What the stream has come to, and how many packets did not come up; between two packets.
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
            // SAFETY: within `rtp`, which is plain integers (every pattern of bits is one) and 8-aligned.
            unsafe { words.add(at).write(value) };
        }
        (rtp, self.word(place, offset_of!(Measured, taken)).load(Ordering::Relaxed))
    }

    /// Takes the stream's place away: no lane touches it any more. What [`Streams::read`] gives, for the last time.
    ///
    /// # Errors
    /// What the kernel said; the place is free all the same.
    pub(crate) fn close(&self, place: StreamSlot, key: &StreamKey) -> (RtpStream, u64, Result<()>) {
        let deleted = match self.table.delete(bytes(key)) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::bpf("removing a stream", e)),
            _ => Ok(()),
        };
        // SeqCst: a lane that has its turn after this finds it; one that had it before is waited for by `read`.
        self.word(place, offset_of!(Measured, generation)).store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let (rtp, taken) = self.read(place);
        self.free().used.push(place.at);
        (rtp, taken, deleted)
    }
}
