//! Removal of a filter of ours from its device, and of the qdisc where we created it.
//!
//! All requests to the kernel are prepared in advance: this runs in the broker, which receives the recipe and
//! the two descriptors that it needs, and knows nothing else of the device.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use libbpf_rs::libbpf_sys as sys;
use serde::{Deserialize, Serialize};

use super::messages::{Filter, FilterLocation, Request, read_filter};
use super::presence;
use wirelane_netdev::netlink::read_datagram;

/// The removal of one filter.
pub(crate) struct Removal {
    /// A netlink socket of the device's network namespace.
    socket: OwnedFd,
    /// The instance's `wl_owners`, which shows its other users.
    owners: OwnedFd,
    recipe: Recipe,
}

/// The prepared requests of a removal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Recipe {
    /// Id of the program that the filter must have.
    program: u32,
    look: Vec<u8>,
    delete: Vec<u8>,
    /// Lists the filters of both directions, then removes the qdisc; `None` where the qdisc is not ours.
    qdisc: Option<([Vec<u8>; 2], Vec<u8>)>,
}

/// Sequence numbers of the requests: each is sent and answered before the next.
const LOOK: u32 = 1;
const DELETE: u32 = 2;
const LIST: [u32; 2] = [3, 4];
const DELETE_QDISC: u32 = 5;

impl Removal {
    /// The removal of a filter with this handle and priority that has `program` (an id). `made_qdisc`: the qdisc is
    /// removed too, unless it has other users.
    pub(super) fn new(
        place: FilterLocation,
        (handle, priority): (u32, u16),
        program: u32,
        made_qdisc: bool,
        owners: OwnedFd,
    ) -> io::Result<Removal> {
        let list = |egress, sequence| Request::filters(FilterLocation { egress, ..place }).bytes(sequence);
        let recipe = Recipe {
            program,
            look: Request::filter(place, handle, priority).bytes(LOOK),
            delete: Request::delete_filter(place, handle, priority).bytes(DELETE),
            qdisc: made_qdisc.then(|| {
                let lists = [list(false, LIST[0]), list(true, LIST[1])];
                (lists, Request::delete_qdisc(place.ifindex).bytes(DELETE_QDISC))
            }),
        };
        Ok(Removal { socket: socket()?, owners, recipe })
    }

    /// A removal from a recipe of another process, with its [`Removal::descriptors`].
    pub(crate) fn of(recipe: Recipe, [socket, owners]: [OwnedFd; 2]) -> Removal {
        Removal { socket, owners, recipe }
    }

    pub(super) fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The descriptors that the removal needs.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.socket.as_fd(), self.owners.as_fd()]
    }

    /// Removes the filter unless a process still uses the instance; false where one does. The caller holds the lock.
    pub(crate) fn run_if_unused(&self) -> io::Result<bool> {
        if presence::anybody(self.owners.as_raw_fd()) {
            return Ok(false);
        }
        let mut ours = false;
        let Recipe { program, look, delete, qdisc } = &self.recipe;
        let found = self.ask(look, LOOK, |filter| ours |= filter.program == Some(*program));
        if let Err(e) = found {
            // No such filter, qdisc or device: the removal is complete.
            let gone = matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::ENODEV));
            return if gone { Ok(true) } else { Err(e) };
        }
        if !ours {
            return Ok(true);
        }
        self.ask(delete, DELETE, |_| {})?;
        let Some((lists, delete)) = qdisc else { return Ok(true) };
        let mut others = false;
        for (list, sequence) in lists.iter().zip(LIST) {
            self.ask(list, sequence, |_| others = true)?;
        }
        if !others {
            self.ask(delete, DELETE_QDISC, |_| {})?;
        }
        Ok(true)
    }

    /// Sends a request and reads the whole answer.
    fn ask(&self, request: &[u8], sequence: u32, mut each: impl FnMut(&Filter<'_>)) -> io::Result<()> {
        let socket = self.socket.as_raw_fd();
        // SAFETY: a live buffer of this length, only read.
        let sent = unsafe { libc::send(socket, request.as_ptr().cast(), request.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        // A dump's messages grow with the reader's buffer up to 32 KiB.
        let mut answer = [0u8; 32 * 1024];
        loop {
            // SAFETY: a live buffer of this length, exclusively borrowed.
            let got = unsafe { libc::recv(socket, answer.as_mut_ptr().cast(), answer.len(), 0) };
            if got < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
            let ended = read_datagram(&answer[..got as usize], sequence, &mut |body: &[u8]| {
                if let Some(filter) = read_filter(body) {
                    each(&filter);
                }
            })?;
            if ended {
                return Ok(());
            }
        }
    }
}

/// A routing netlink socket with a time-out for answers.
fn socket() -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd as _;
    // SAFETY: socket(2) takes integers only.
    let fd =
        unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, owned by nothing else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let limit = libc::timeval { tv_sec: 5, tv_usec: 0 };
    // SAFETY: a live value of the size stated, only read.
    let status = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const limit).cast(),
            size_of_val(&limit) as libc::socklen_t,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// Whether a BPF map has an entry with this key: one system call, no allocation.
pub(super) fn has_entry(map: RawFd, key: u32) -> bool {
    let mut value = 0u64;
    // SAFETY: key and value are live and of the map's sizes (`wl_owners`: 4 and 8 bytes).
    unsafe { sys::bpf_map_lookup_elem(map, (&raw const key).cast(), (&raw mut value).cast()) == 0 }
}
