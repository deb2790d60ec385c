//! Creates the maps of named sets and patterns while a capture runs, which the capture itself is not allowed to do.
//!
//! ```text
//!   the capturing process, without rights            wl-sets, with CAP_BPF
//!     make: a bloom filter of this size  -------->     checks it, makes the map
//!     fills it, puts it where lanes look <--------     its descriptor
//!     ends, or is killed                 ----X         ends
//! ```
//! A bloom filter cannot be emptied, so a new list needs a new map, and its size is unknown when the capture starts. An
//! attacker who takes over the capturing process can request such maps, and fill them: they have no effect before they
//! are put into maps that the process has anyway. So the check is on their memory: no map is larger than was fixed
//! before the fork, and they are created no faster than lists arrive. The kernel charges their memory to the control
//! group of both processes.
//!
//! A capture that keeps its rights creates the maps itself. So does a capture that is not confined yet.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys as sys;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
};
use wirelane_bpf::members::Member;
use wirelane_bpf::search::{Outputs, Page};
use wirelane_privsep::Capability;
use wirelane_privsep::forked::{self, Rights};

use crate::error::{Error, Result};
use wirelane_rules::{BloomSize, exact_bytes};

/// Maximum time to wait for an answer: the memory of a large map has to be found and cleared.
const LIMIT: Duration = Duration::from_secs(20);
/// Number of maps that may be created at once, and the time after which one more is allowed. A list takes one or two.
const AT_ONCE: u32 = 256;
const ONE_MORE: Duration = Duration::from_millis(100);
/// Bytes of a request and of an answer.
const REQUEST: usize = 16;
const ANSWER: usize = 4;

/// A requested map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A bloom filter.
    Bloom(BloomSize),
    /// A table of this many entries.
    Exact(u32),
    /// Pages of the automata of patterns.
    Pages(u32),
    /// Pages of the automata's outputs.
    Outputs(u32),
}

/// The creator of maps.
#[derive(Debug)]
pub(super) enum MapFactory {
    /// This process.
    Here,
    /// The process that keeps the right to create maps; `None`: it has ended, or did not answer in time.
    Process(Mutex<Option<OwnedFd>>),
}

impl MapFactory {
    /// Starts the process, for maps of at most `most` bytes. To be called while all rights are there, and before memory
    /// is shared with the kernel, which a forked process would hold.
    ///
    /// # Errors
    /// [`Error::Kernel`] where the process cannot be started.
    pub(super) fn start(most: u64) -> Result<MapFactory> {
        let failed = |source| Error::kernel("starting the process that makes named sets (wl-sets)", source);
        let rights = Rights::new(&[Capability::Bpf], &[])?;
        let start = || {
            let (ours, its) = rustix::net::socketpair(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )?;
            // Now, while this is allowed.
            sockopt::set_socket_timeout(&ours, sockopt::Timeout::Recv, Some(LIMIT))?;
            let keep = [its.as_raw_fd()];
            forked::start(c"wl-sets", rights, &keep, move || serve(&its, most))?;
            Ok(ours)
        };
        start().map(|ours| MapFactory::Process(Mutex::new(Some(ours)))).map_err(failed)
    }

    /// Creates a map.
    ///
    /// # Errors
    /// The error that the kernel returned; `UnexpectedEof` where the process has ended.
    pub(super) fn make(&self, wanted: Wanted) -> io::Result<OwnedFd> {
        let socket = match self {
            MapFactory::Here => return create(wanted),
            MapFactory::Process(socket) => socket,
        };
        let mut socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = socket.as_ref().map(|socket| {
            rustix::net::send(socket.as_fd(), &wanted.bytes(), SendFlags::NOSIGNAL)?;
            answer(socket)
        });
        match asked {
            Some(Ok(made)) => made.map_err(io::Error::from_raw_os_error),
            // A late answer would be taken for the answer to the next request.
            Some(Err(_)) | None => {
                *socket = None;
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        }
    }
}

impl Wanted {
    /// Name of the map.
    fn name(self) -> &'static std::ffi::CStr {
        match self {
            Wanted::Bloom(_) => c"wl_bloom",
            Wanted::Exact(_) => c"wl_exact",
            Wanted::Pages(_) => c"wl_search_page",
            Wanted::Outputs(_) => c"wl_search_out",
        }
    }

    fn bytes(self) -> [u8; REQUEST] {
        let words = match self {
            Wanted::Bloom(size) => [1, size.hashes, size.bits.ilog2(), 0],
            Wanted::Exact(entries) => [2, entries, 0, 0],
            Wanted::Pages(pages) => [3, pages, 0, 0],
            Wanted::Outputs(pages) => [4, pages, 0, 0],
        };
        let mut bytes = [0; REQUEST];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// The requested map, if it is permitted.
    fn read(bytes: &[u8], most: u64) -> Option<Wanted> {
        let bytes: &[u8; REQUEST] = bytes.try_into().ok()?;
        let mut words =
            bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        let words = [words.next()?, words.next()?, words.next()?, words.next()?];
        let (wanted, bytes) = match words {
            [1, hashes, power, 0] => {
                let size = BloomSize::sound(hashes, power)?;
                (Wanted::Bloom(size), size.bytes())
            }
            [2, entries @ 1..=u32::MAX, 0, 0] => (Wanted::Exact(entries), exact_bytes(entries.into())),
            [3, pages @ 1..=u32::MAX, 0, 0] => {
                (Wanted::Pages(pages), u64::from(pages) * size_of::<Page>() as u64)
            }
            [4, pages @ 1..=u32::MAX, 0, 0] => {
                (Wanted::Outputs(pages), u64::from(pages) * size_of::<Outputs>() as u64)
            }
            _ => return None,
        };
        (bytes <= most).then_some(wanted)
    }
}

/// Creates a map with the rights of this process.
fn create(wanted: Wanted) -> io::Result<OwnedFd> {
    let mut opts =
        sys::bpf_map_create_opts { sz: size_of::<sys::bpf_map_create_opts>() as _, ..Default::default() };
    let member = size_of::<Member>() as u32;
    let name = wanted.name();
    let (kind, key, value, entries) = match wanted {
        Wanted::Bloom(size) => {
            opts.map_extra = size.hashes.into();
            (sys::BPF_MAP_TYPE_BLOOM_FILTER, 0, member, size.max_entries())
        }
        Wanted::Exact(entries) => {
            opts.map_flags = sys::BPF_F_NO_PREALLOC;
            (sys::BPF_MAP_TYPE_HASH, member, size_of::<u32>() as u32, entries)
        }
        Wanted::Pages(pages) => {
            opts.map_flags = sys::BPF_F_INNER_MAP;
            (sys::BPF_MAP_TYPE_ARRAY, size_of::<u32>() as u32, size_of::<Page>() as u32, pages)
        }
        Wanted::Outputs(pages) => {
            opts.map_flags = sys::BPF_F_INNER_MAP;
            (sys::BPF_MAP_TYPE_ARRAY, size_of::<u32>() as u32, size_of::<Outputs>() as u32, pages)
        }
    };
    // SAFETY: a string that ends with a zero and options of the size that they say, both live.
    let made = unsafe { sys::bpf_map_create(kind, name.as_ptr(), key, value, entries, &raw const opts) };
    if made < 0 {
        return Err(io::Error::from_raw_os_error(-made));
    }
    // SAFETY: a new descriptor, owned by nothing else.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// Why a map was not created, for messages.
pub(super) fn why(error: &io::Error) -> &'static str {
    match (error.kind(), error.raw_os_error()) {
        (_, Some(libc::ENOMEM)) => "it is too large for memory",
        (_, Some(libc::EAGAIN)) => "too many changes of sets at once; try again in a few seconds",
        (io::ErrorKind::UnexpectedEof, _) => {
            "the helper that creates sets (wl-sets) has ended; start the capture again to change sets"
        }
        _ => "the kernel refused to create it",
    }
}

/// Main loop of the process: creates maps until the capture ends.
fn serve(socket: &OwnedFd, most: u64) {
    let mut allowance = Allowance { left: AT_ONCE, next: Instant::now() + ONE_MORE };
    let mut request = [0; REQUEST + 1];
    loop {
        let length = match rustix::net::recv(socket, &mut request[..], RecvFlags::empty()) {
            Ok((0, _)) => return,
            Ok((length, _)) => length,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        };
        let made = match Wanted::read(&request[..length], most) {
            None => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            Some(_) if !allowance.take(Instant::now()) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            Some(wanted) => create(wanted),
        };
        if reply(socket, &made).is_err() {
            return;
        }
    }
}

/// Sends the result of a request: 0 and the descriptor, or the error's number.
fn reply(socket: &OwnedFd, made: &io::Result<OwnedFd>) -> io::Result<()> {
    let errno = made.as_ref().err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::EIO));
    let message = errno.to_ne_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    let descriptor = made.as_ref().ok().map(|map| [map.as_fd()]);
    if let Some(descriptor) = &descriptor
        && !along.push(SendAncillaryMessage::ScmRights(descriptor))
    {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&message)], &mut along, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the result of a request in the capture: the map, or an error's number.
fn answer(socket: &OwnedFd) -> io::Result<std::result::Result<OwnedFd, i32>> {
    let mut bytes = [0; ANSWER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut along = RecvAncillaryBuffer::new(&mut space);
    let length = loop {
        let mut into = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, &mut into, &mut along, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received.bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    };
    let mut descriptors = along.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    match (length, i32::from_ne_bytes(bytes), descriptors.next()) {
        (ANSWER, 0, Some(map)) => Ok(Ok(map)),
        (ANSWER, errno @ 1.., None) => Ok(Err(errno)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Rate limit for maps: checked here, and not only in the requesting process, since this process has the right.
#[derive(Debug)]
struct Allowance {
    left: u32,
    /// Time when the next map is added.
    next: Instant,
}

impl Allowance {
    fn take(&mut self, now: Instant) -> bool {
        if now >= self.next {
            let more = 1 + ((now - self.next).as_millis() / ONE_MORE.as_millis()) as u32;
            self.left = self.left.saturating_add(more).min(AT_ONCE);
            self.next += ONE_MORE * more;
        }
        let may = self.left > 0;
        self.left -= u32::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::super::has;
    use super::*;

    #[test]
    fn what_is_asked_for_is_checked() {
        const MOST: u64 = 1 << 20;
        let size = |hashes, bits| Wanted::Bloom(BloomSize { hashes, bits });
        let pages = [Wanted::Pages(1), Wanted::Pages(15), Wanted::Outputs(1), Wanted::Outputs(1024)];
        for wanted in
            [size(1, 64), size(15, 8 << 20), Wanted::Exact(1), Wanted::Exact(7000)].into_iter().chain(pages)
        {
            assert_eq!(Wanted::read(&wanted.bytes(), MOST), Some(wanted));
        }
        for refused in
            [size(0, 64), size(16, 64), size(1, 32), size(1, 16 << 20), Wanted::Exact(0), Wanted::Exact(8000)]
                .into_iter()
                .chain([Wanted::Pages(0), Wanted::Pages(16), Wanted::Outputs(0), Wanted::Outputs(1025)])
        {
            assert_eq!(Wanted::read(&refused.bytes(), MOST), None, "{refused:?}");
        }
        assert_eq!(Wanted::read(&[1; REQUEST], u64::MAX), None);
        assert_eq!(Wanted::read(&size(1, 64).bytes()[1..], u64::MAX), None);
    }

    #[test]
    fn maps_are_made_no_faster_than_lists_come() {
        let start = Instant::now();
        let mut allowance = Allowance { left: AT_ONCE, next: start + ONE_MORE };
        // Requests without a pause, for a minute.
        let taken = (0..60_000u64).filter(|at| allowance.take(start + Duration::from_millis(*at))).count();
        assert_eq!(taken, AT_ONCE as usize + 599);
        // No requests for an hour.
        let later = start + Duration::from_secs(3600);
        assert_eq!((0..1000).filter(|_| allowance.take(later)).count(), AT_ONCE as usize);
    }

    /// The process has the right that it needs, hands maps over, and ends with its capture.
    #[test]
    fn the_process_makes_maps_and_no_others() {
        if !nix::unistd::geteuid().is_root() || std::env::var_os("WIRELANE_UNPRIVILEGED").is_some() {
            println!("left out: the_process_makes_maps_and_no_others (needs root)");
            return;
        }
        let map_factory = MapFactory::start(1 << 20).unwrap();
        let sizes = [Wanted::Bloom(BloomSize { hashes: 5, bits: 1 << 12 }), Wanted::Exact(100)];
        for wanted in sizes {
            let map = map_factory.make(wanted).unwrap();
            let member = Member::address([192, 0, 2, 1].into());
            let key = Some(&member).filter(|_| wanted == sizes[1]);
            assert!(!has(&map, key, &member).unwrap(), "empty, and of its kind: {wanted:?}");
        }
        let refused = map_factory.make(Wanted::Bloom(BloomSize { hashes: 5, bits: 1 << 32 })).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        // A process that does not answer gets no further requests.
        let MapFactory::Process(socket) = &map_factory else { unreachable!("it was started") };
        let ours = socket.lock().unwrap().take().unwrap();
        rustix::net::shutdown(&ours, rustix::net::Shutdown::Both).unwrap();
        *socket.lock().unwrap() = Some(ours);
        for _ in 0..2 {
            assert_eq!(map_factory.make(sizes[0]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
