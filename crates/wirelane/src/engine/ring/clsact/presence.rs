//! Users of an instance that is attached by a clsact filter.
//!
//! A process is present while a socket of its own is in `wl_owners`, after the groups' slots; the kernel removes the
//! socket when it is closed, however the process ends (as for the slots, see `engine/ring/group.rs`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, libbpf_sys as sys};
use wirelane_bpf::instance::MAX_GROUPS;

use super::removal::has_entry;
use crate::error::{Error, Result};

/// Maximum number of processes that use one instance at a time; one that captures as several groups counts several
/// times.
const MOST: u32 = 128;
/// Position of their entries in `wl_owners`, after the groups.
const FIRST: u32 = MAX_GROUPS as u32;
/// Entries that `wl_owners` must have.
pub(crate) const OWNERS: u32 = FIRST + MOST;

/// One process's use of an instance, from creation to drop.
#[derive(Debug)]
pub(super) struct Presence {
    // In this order: a process that sees the socket in `wl_owners` may rely on the entry being held.
    _socket: OwnedFd,
    _peer: UnixDatagram,
    /// Two descriptors of `wl_entry`, one numbered below the socket's and one above. A killed process's
    /// descriptors are closed in the order of their numbers, up or down: the socket is gone before the last
    /// of these either way.
    entry: [OwnedFd; 2],
}

impl Presence {
    /// Marks this process as present. `entry` holds the capture program (`wl_entry`). The caller holds the lock.
    pub(super) fn begin(owners: &MapHandle, entry: BorrowedFd<'_>, device: &str) -> Result<Presence> {
        let failed = |e| Error::kernel("making a token of this process", e);
        let (socket, peer) = UnixDatagram::pair().map_err(failed)?;
        let below = duplicate(entry, 0).map_err(failed)?;
        let socket = duplicate(socket.as_fd(), below.as_raw_fd() + 1).map_err(failed)?;
        let above = duplicate(entry, socket.as_raw_fd() + 1).map_err(failed)?;
        let token = (socket.as_raw_fd() as u64).to_ne_bytes();
        for place in FIRST..OWNERS {
            match owners.update(&place.to_ne_bytes(), &token, MapFlags::NO_EXIST) {
                Ok(()) => return Ok(Presence { _socket: socket, _peer: peer, entry: [below, above] }),
                Err(e) if e.kind() == libbpf_rs::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::bpf("registering with the capture program", e)),
            }
        }
        Err(Error::TooManyGroups { device: device.to_owned(), limit: MOST })
    }

    /// The descriptor of `wl_entry`.
    pub(super) fn entry(&self) -> BorrowedFd<'_> {
        self.entry[0].as_fd()
    }
}

/// The id of the program in a `wl_entry`.
pub(super) fn entry_of(entry: BorrowedFd<'_>) -> io::Result<u32> {
    let (key, mut id) = (0u32, 0u32);
    // SAFETY: key and value are live and of the map's sizes (4 bytes each).
    let status =
        unsafe { sys::bpf_map_lookup_elem(entry.as_raw_fd(), (&raw const key).cast(), (&raw mut id).cast()) };
    if status == 0 { Ok(id) } else { Err(io::Error::from_raw_os_error(-status)) }
}

/// Puts a program into a `wl_entry`.
pub(super) fn set_entry(entry: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let (key, fd) = (0u32, program.as_raw_fd());
    // SAFETY: key and value are live and of the map's sizes (4 bytes each).
    let status = unsafe {
        sys::bpf_map_update_elem(entry.as_raw_fd(), (&raw const key).cast(), (&raw const fd).cast(), 0)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-status)) }
}

/// Whether any process is present, by the descriptor of `wl_owners`. Does not allocate.
pub(super) fn anybody(owners: RawFd) -> bool {
    (FIRST..OWNERS).any(|place| has_entry(owners, place))
}

/// Another descriptor of the same file, with a number of at least `least`.
fn duplicate(fd: BorrowedFd<'_>, least: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl(2) with integers only, on a live descriptor.
    let new = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
    if new < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}
