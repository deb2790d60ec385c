//! A packet socket with a ring (packet(7), Documentation/networking/packet_mmap.rst): TPACKET_V3, one per RX queue
//! and worker.
//!
//! This file and `block.rs` contain the unsafe code of the engine.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::classic::Filter;
use crate::error::{Error, Result};

/// Room that the kernel leaves before a packet, beyond its own needs: a VLAN tag is reinserted there.
pub(super) const RESERVE: u32 = 8;
/// Bytes of a block: the longest packet fits, with room to spare. Not larger, since a block that is handed over before
/// it is full still occupies its whole size: at low packet rates, the ring lasts for `retire_ms` times the number of
/// blocks.
const BLOCK: usize = 256 << 10;
/// Frame size for the kernel, which uses it in TPACKET_V3 only for checks.
const FRAME: usize = 2048;
/// Maximum number of sockets in a fanout group (`PACKET_FANOUT_MAX`, net/packet/internal.h).
pub(super) const MOST_SOCKETS: usize = 1 << 16;

/// Counts of one socket since it began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Packets that the socket's filter accepted.
    pub(super) seen: u64,
    /// Of `seen`, packets that were lost.
    pub(super) lost: u64,
    /// Of `lost`, aggregates that the kernel could not describe in a `struct virtio_net_hdr`.
    pub(super) undescribed: u64,
}

/// Division of a socket's ring into blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingShape {
    pub(super) block: usize,
    pub(super) blocks: usize,
    /// Milliseconds after which a block is handed over even if it is not full.
    pub(super) retire_ms: u32,
}

impl RingShape {
    /// A ring of this many bytes, at least two blocks.
    pub(super) fn of(bytes: usize, immediate: bool) -> RingShape {
        RingShape { block: BLOCK, blocks: (bytes / BLOCK).max(2), retire_ms: if immediate { 1 } else { 4 } }
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    device: String,
    shape: RingShape,
    /// The ring, mapped for reading and writing: blocks are returned through it.
    ring: NonNull<u8>,
    counts: Mutex<Counts>,
    /// Whether a `struct virtio_net_hdr` precedes each packet.
    tells_segments: bool,
    /// The reader's count of [`Counts::undescribed`].
    undescribed: AtomicU64,
}

// SAFETY: the ring is memory that the kernel changes anyway; all access goes through `block.rs`, which has one reader.
unsafe impl Send for Socket {}
// SAFETY: as above.
unsafe impl Sync for Socket {}

impl Socket {
    /// A socket on this device that accepts nothing yet.
    ///
    /// # Errors
    /// [`Error::Kernel`] with the refused operation.
    pub(super) fn open(device: &str, ifindex: u32, shape: RingShape) -> Result<Socket> {
        let refused = |e: io::Error| {
            let many = e.raw_os_error() == Some(libc::EMFILE);
            let hint = if many {
                " (one per RX queue and worker: ulimit -n says how many there may be)"
            } else {
                ""
            };
            Error::kernel(format!("opening a packet socket on {device}{hint}"), e)
        };
        // Protocol 0: no packet is received before the filter is attached.
        // SAFETY: socket(2) takes integers only.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(refused(io::Error::last_os_error()));
        }
        // SAFETY: just opened, owned by nothing else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        attach_filter(&fd, &Filter::nothing()).map_err(refused)?;
        set(&fd, libc::SOL_PACKET, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as i32))
            .map_err(refused)?;
        set(&fd, libc::SOL_PACKET, libc::PACKET_RESERVE, &RESERVE).map_err(refused)?;
        let tells_segments = tell_segments(&fd);
        let request = libc::tpacket_req3 {
            tp_block_size: shape.block as u32,
            tp_block_nr: shape.blocks as u32,
            tp_frame_size: FRAME as u32,
            tp_frame_nr: (shape.block / FRAME * shape.blocks) as u32,
            tp_retire_blk_tov: shape.retire_ms,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set(&fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &request).map_err(|e| {
            let bytes = shape.block * shape.blocks;
            Error::kernel(format!("making a packet socket's ring of {bytes} bytes on {device}"), e)
        })?;
        let ring = map(&fd, shape.block * shape.blocks).map_err(refused)?;
        let socket = Socket {
            fd,
            device: device.to_owned(),
            shape,
            ring,
            counts: Mutex::new(Counts::default()),
            tells_segments,
            undescribed: AtomicU64::new(0),
        };
        // SAFETY: `sockaddr_ll` is plain integers; all zero is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = ifindex as i32;
        // SAFETY: pointer and length are those of a live sockaddr_ll, which is only read.
        let status = unsafe {
            libc::bind(socket.raw(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
        };
        if status < 0 {
            return Err(refused(io::Error::last_os_error()));
        }
        Ok(socket)
    }

    /// The descriptor of the socket.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The raw descriptor, for poll(2).
    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Division of the ring into blocks.
    pub(super) fn shape(&self) -> RingShape {
        self.shape
    }

    /// The start of the ring: `blocks` times `block` bytes, mapped for as long as the socket lives.
    pub(super) fn ring(&self) -> NonNull<u8> {
        self.ring
    }

    /// Whether a `struct virtio_net_hdr` precedes each packet.
    pub(super) fn tells_segments(&self) -> bool {
        self.tells_segments
    }

    /// Counts a record without a packet: the kernel had reserved room for it, and then could not describe it. To be
    /// called only by the one reader.
    #[cold]
    pub(super) fn count_undescribed(&self) {
        // One writer: a load and a store. Relaxed: readers want the value only.
        self.undescribed.store(self.undescribed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Evaluates by this filter, from the next packet on.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(super) fn filter(&self, program: &[libc::sock_filter]) -> Result<()> {
        attach_filter(&self.fd, program).map_err(|e| {
            Error::kernel(format!("setting the filter of a packet socket on {}", self.device), e)
        })
    }

    /// Creates a fanout group of up to `members` sockets with this one as its first; returns the group's number.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(super) fn found_group(&self, members: usize) -> Result<u16> {
        let unique = libc::PACKET_FANOUT_FLAG_UNIQUEID;
        self.fanout(0, unique, members)?;
        let mut group = 0u32;
        get(&self.fd, libc::SOL_PACKET, libc::PACKET_FANOUT, &mut group)
            .map_err(|e| Error::kernel("asking for the number of a group of packet sockets", e))?;
        Ok(group as u16)
    }

    /// Joins this group as its next member.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(super) fn join_group(&self, group: u16, members: usize) -> Result<()> {
        self.fanout(group, 0, members)
    }

    fn fanout(&self, group: u16, flags: u32, members: usize) -> Result<()> {
        // struct fanout_args: in little-endian order the id comes first, in big-endian order the type.
        let kind = (libc::PACKET_FANOUT_CBPF | flags) as u16;
        let halves = if cfg!(target_endian = "little") { [group, kind] } else { [kind, group] };
        #[repr(C)]
        struct FanoutArgs {
            halves: [u16; 2],
            max_num_members: u32,
        }
        let arguments = FanoutArgs { halves, max_num_members: members as u32 };
        set(&self.fd, libc::SOL_PACKET, libc::PACKET_FANOUT, &arguments).map_err(|e| {
            Error::kernel(format!("joining packet sockets on {} to a group (PACKET_FANOUT)", self.device), e)
        })
    }

    /// Sets the program by which the socket's group chooses among its members.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(super) fn choose_by(&self, program: &[libc::sock_filter]) -> Result<()> {
        let program = fprog(program);
        set(&self.fd, libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, &program).map_err(|e| {
            Error::kernel(format!("steering packet sockets on {} (PACKET_FANOUT_DATA)", self.device), e)
        })
    }

    /// The counts since the beginning.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(super) fn counts(&self) -> Result<Counts> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: see count_undescribed(). Read this first: records that the reader finds were counted as lost by the
        // kernel before.
        counts.undescribed = self.undescribed.load(Ordering::Relaxed);
        // struct tpacket_stats_v3: packets (lost ones included), lost ones, number of queue freezes. Reading sets them
        // to zero.
        let mut since = [0u32; 3];
        get(&self.fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut since)
            .map_err(|e| Error::kernel(format!("reading what a packet socket on {} lost", self.device), e))?;
        counts.seen += u64::from(since[0]);
        counts.lost += u64::from(since[1]);
        Ok(*counts)
    }

    /// Clears the error that the device left, for example when it was set down: poll(2) would keep reporting it.
    pub(super) fn take_error(&self) {
        let mut error = 0i32;
        // The maintenance thread reports device events; the number is not needed.
        let _ = get(&self.fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping from mmap; readers hold the socket, so none is left.
        unsafe { libc::munmap(self.ring.as_ptr().cast(), self.shape.block * self.shape.blocks) };
    }
}

/// Requests a `struct virtio_net_hdr` before each packet, which has the segment size of aggregates. The kernel does not
/// capture packets that it cannot describe: before Linux 6.2 these are aggregates of UDP, so it is not requested there;
/// since then they are aggregates of SCTP, and of UDP by fragmentation (UFO), which old guests send.
fn tell_segments(fd: &OwnedFd) -> bool {
    wirelane_bpf::kernel::at_least(6, 2) && set(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32).is_ok()
}

fn map(fd: &OwnedFd, bytes: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

fn fprog(program: &[libc::sock_filter]) -> libc::sock_fprog {
    // The kernel only reads it.
    libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() }
}

fn attach_filter(fd: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &fprog(program))
}

fn set<T>(fd: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: `value` is valid for reads of its size, and each caller passes the option's own type. Pointers in it
    // (sock_fprog) lead to arrays of the length stated beside them, which outlive the call.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn get<T>(fd: &OwnedFd, level: i32, option: i32, value: &mut T) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is exclusively borrowed and of the length stated; callers pass integers, for which every bit
    // pattern that the kernel writes is valid.
    let status = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, option, std::ptr::from_mut(value).cast(), &raw mut length)
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
