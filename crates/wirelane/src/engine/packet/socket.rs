//! A packet socket with a ring (packet(7), Documentation/networking/packet_mmap.rst): TPACKET_V3, one per RX queue
//! and worker.
//!
//! This file and `block.rs` hold the unsafe code of the engine.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::classic::Filter;
use crate::error::{Error, Result};

/// Room that the kernel leaves before a packet, beyond what it needs itself: a VLAN tag is put back there.
pub(super) const RESERVE: u32 = 8;
/// Bytes of a block: the longest packet fits, with room. No more, since a block that is handed over before it is full
/// takes its whole room: while packets are few, the ring lasts for `retire_ms` times the number of blocks.
const BLOCK: usize = 256 << 10;
/// The kernel wants to know how large a frame is, and does not use it in TPACKET_V3 but for checks.
const FRAME: usize = 2048;
/// Most sockets of a fanout group (`PACKET_FANOUT_MAX`, net/packet/internal.h).
pub(super) const MOST_SOCKETS: usize = 1 << 16;

/// What one socket has counted since it began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Packets that its filter accepted.
    pub(super) seen: u64,
    /// Of these, packets that were lost.
    pub(super) lost: u64,
    /// Of the lost ones, aggregates that the kernel could not describe in a `struct virtio_net_hdr`.
    pub(super) undescribed: u64,
}

/// How the ring of a socket is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingShape {
    pub(super) block: usize,
    pub(super) blocks: usize,
    /// After this time a block is handed over though it is not full.
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
    /// The ring, mapped for reading and writing: blocks are handed back through it.
    ring: NonNull<u8>,
    counts: Mutex<Counts>,
    /// A `struct virtio_net_hdr` lies before each packet.
    tells_segments: bool,
    /// What the reader has found of [`Counts::undescribed`].
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
    /// [`Error::Kernel`] with what was refused.
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
        // Protocol 0: nothing comes in before the filter stands.
        // SAFETY: socket(2) takes integers only.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(refused(io::Error::last_os_error()));
        }
        // SAFETY: just opened, owned by nobody else.
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

    /// The descriptor.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The same for poll(2).
    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// How the ring is cut.
    pub(super) fn shape(&self) -> RingShape {
        self.shape
    }

    /// The start of the ring: `blocks` times `block` bytes, mapped for as long as the socket lives.
    pub(super) fn ring(&self) -> NonNull<u8> {
        self.ring
    }

    /// Whether a `struct virtio_net_hdr` lies before each packet.
    pub(super) fn tells_segments(&self) -> bool {
        self.tells_segments
    }

    /// Counts a record without a packet: the kernel had reserved room for it, and then could not describe it. For the one
    /// reader.
    #[cold]
    pub(super) fn count_undescribed(&self) {
        // One writer: a load and a store. Relaxed: whoever counts wants the value only.
        self.undescribed.store(self.undescribed.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// From the next packet on this filter decides.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(super) fn filter(&self, program: &[libc::sock_filter]) -> Result<()> {
        attach_filter(&self.fd, program).map_err(|e| {
            Error::kernel(format!("setting the filter of a packet socket on {}", self.device), e)
        })
    }

    /// Founds a fanout group of up to `members` sockets with this one as its first; the group's number.
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

    /// Gives the socket's group the program that chooses among its members.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(super) fn choose_by(&self, program: &[libc::sock_filter]) -> Result<()> {
        let program = fprog(program);
        set(&self.fd, libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, &program).map_err(|e| {
            Error::kernel(format!("steering packet sockets on {} (PACKET_FANOUT_DATA)", self.device), e)
        })
    }

    /// What was counted since the beginning.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(super) fn counts(&self) -> Result<Counts> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: see count_undescribed(). Read first: the kernel has counted as lost what the reader finds.
        counts.undescribed = self.undescribed.load(Ordering::Relaxed);
        // struct tpacket_stats_v3: packets (lost ones included), lost ones, times that the queue froze. Reading
        // sets them to zero.
        let mut since = [0u32; 3];
        get(&self.fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut since)
            .map_err(|e| Error::kernel(format!("reading what a packet socket on {} lost", self.device), e))?;
        counts.seen += u64::from(since[0]);
        counts.lost += u64::from(since[1]);
        Ok(*counts)
    }

    /// Takes the error that the device left, as when it was set down: poll(2) would go on reporting it.
    pub(super) fn take_error(&self) {
        let mut error = 0i32;
        // The maintenance thread tells about devices; there is nothing to do with the number.
        let _ = get(&self.fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: exactly what mmap gave; readers hold the socket, so none is left.
        unsafe { libc::munmap(self.ring.as_ptr().cast(), self.shape.block * self.shape.blocks) };
    }
}

/// Asks for a `struct virtio_net_hdr` before each packet, which says of aggregates how long their segments are. The kernel
/// does not capture packets that it cannot describe: before Linux 6.2 these are aggregates of UDP, so that there none is
/// asked for; since then they are aggregates of SCTP, and of UDP by fragmentation (UFO), which old guests send.
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
