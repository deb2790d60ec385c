//! Taking a filter of ours off its device, and the qdisc with it where we had put it there.
//!
//! Everything that this says to the kernel is written down beforehand: it runs in the cleanup process, which
//! is given the recipe and the two descriptors that it takes, and knows nothing else of the device.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use libbpf_rs::libbpf_sys as sys;
use serde::{Deserialize, Serialize};

use super::messages::{Filter, FilterLocation, Request, read_filter};
use super::presence;
use wirelane_netdev::netlink::read_datagram;

/// How to take one filter off.
pub(crate) struct Removal {
    /// A netlink socket of the device's network namespace.
    socket: OwnedFd,
    /// The instance's `wl_owners`: who else is there.
    owners: OwnedFd,
    recipe: Recipe,
}

/// What is said to the kernel for that.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Recipe {
    /// The program that the filter must have.
    program: u32,
    look: Vec<u8>,
    delete: Vec<u8>,
    /// Lists the filters of both directions, then removes the qdisc; nothing where it is not ours.
    qdisc: Option<([Vec<u8>; 2], Vec<u8>)>,
}

/// Sequence numbers of the requests: each is sent and answered before the next.
const LOOK: u32 = 1;
const DELETE: u32 = 2;
const LIST: [u32; 2] = [3, 4];
const DELETE_QDISC: u32 = 5;

impl Removal {
    /// For a filter with this handle and priority that is `program` (an id). `made_qdisc`: the qdisc goes with
    /// it, unless others have come to use it.
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

    /// As somebody else has written it down, with its [`Removal::descriptors`].
    pub(crate) fn of(recipe: Recipe, [socket, owners]: [OwnedFd; 2]) -> Removal {
        Removal { socket, owners, recipe }
    }

    pub(super) fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The descriptors that it needs.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.socket.as_fd(), self.owners.as_fd()]
    }

    /// Takes the filter off unless a process still uses the instance; false where one does. Under the lock.
    pub(crate) fn run_if_unused(&self) -> io::Result<bool> {
        if presence::anybody(self.owners.as_raw_fd()) {
            return Ok(false);
        }
        let mut ours = false;
        let Recipe { program, look, delete, qdisc } = &self.recipe;
        let found = self.ask(look, LOOK, |filter| ours |= filter.program == Some(*program));
        if let Err(e) = found {
            // No such filter, qdisc or device: nothing is left to do.
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

/// A routing netlink socket that does not wait for an answer for ever.
fn socket() -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd as _;
    // SAFETY: socket(2) takes integers only.
    let fd =
        unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, owned by nobody else.
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

/// Whether a BPF map has an entry here: one system call, no allocation.
pub(super) fn has_entry(map: RawFd, key: u32) -> bool {
    let mut value = 0u64;
    // SAFETY: key and value are live and of the map's sizes (`wl_owners`: 4 and 8 bytes).
    unsafe { sys::bpf_map_lookup_elem(map, (&raw const key).cast(), (&raw mut value).cast()) == 0 }
}
