//! An AF_XDP socket: open, bind to a queue, map its rings, read its statistics.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::rings::{Descriptor, Offsets, Ring};
use super::umem::{FRAME, Umem};
use crate::ZeroCopy;
use crate::{Error, Result};

// linux/if_xdp.h
const XDP_SHARED_UMEM: u16 = 1 << 0;
const XDP_COPY: u16 = 1 << 1;
const XDP_ZEROCOPY: u16 = 1 << 2;
const XDP_USE_NEED_WAKEUP: u16 = 1 << 3;
const XDP_USE_SG: u16 = 1 << 4;
const XDP_OPTIONS_ZEROCOPY: u32 = 1;
const PGOFF_RX: i64 = 0;
const PGOFF_TX: i64 = 0x8000_0000;
const PGOFF_FILL: i64 = 0x1_0000_0000;
const PGOFF_COMPLETION: i64 = 0x1_8000_0000;

/// The kernel closes a socket of a process that has just ended in the background; a busy queue is retried for this
/// long.
const TEARDOWN: Duration = Duration::from_secs(3);

/// Flags with which a socket is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Request zero copy, otherwise copies.
    zero_copy: bool,
    /// Packets in several buffers.
    pub multi_buffer: bool,
}

impl Mode {
    /// The modes to try, the best first.
    pub fn to_try(zero_copy: ZeroCopy) -> Vec<Mode> {
        let copies: &[bool] = match zero_copy {
            ZeroCopy::Never => &[false],
            ZeroCopy::Auto => &[true, false],
            ZeroCopy::Require => &[true],
        };
        let buffers: &[bool] = if wirelane_bpf::kernel::at_least(6, 6) { &[true, false] } else { &[false] };
        let mode = |zero_copy| buffers.iter().map(move |&multi_buffer| Mode { zero_copy, multi_buffer });
        copies.iter().flat_map(|&zero_copy| mode(zero_copy)).collect()
    }
}

/// Configuration of a socket.
#[derive(Clone, Copy, Debug)]
pub struct Purpose<'a> {
    /// The name of the device, for messages.
    pub device: &'a str,
    /// The device's index.
    pub ifindex: u32,
    /// The RX queue or TX queue.
    pub queue: u32,
    /// Entries of the RX ring, a power of two; 0: no RX ring.
    pub rx: u32,
    /// Entries of the TX ring, a power of two; 0: no TX ring.
    pub tx: u32,
    /// Entries of the fill and completion rings, powers of two.
    pub frames: u32,
    /// A bound socket of the same device whose UMEM this one shares.
    pub shares: Option<&'a XskSocket>,
}

/// An AF_XDP socket, with its rings and its memory.
#[derive(Debug)]
pub struct XskSocket {
    // Rings before the socket and the memory, though the order does not matter to the kernel.
    /// Received packets; `None` for a socket that only sends.
    pub rx: Option<Ring<Descriptor>>,
    /// Packets to send; `None` for a socket that only receives.
    pub tx: Option<Ring<Descriptor>>,
    /// Frames for the kernel to fill, by address.
    pub fill: Ring<u64>,
    /// Frames that have been sent.
    pub completion: Ring<u64>,
    fd: OwnedFd,
    /// The memory that holds the packets.
    pub umem: Arc<Umem>,
}

/// `struct xdp_statistics`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Statistics {
    /// Packets dropped for other reasons than a full RX ring, such as a lack of free frames.
    pub rx_dropped: u64,
    rx_invalid_descs: u64,
    tx_invalid_descs: u64,
    /// Packets lost because the RX ring was full.
    pub rx_ring_full: u64,
    rx_fill_ring_empty_descs: u64,
    tx_ring_empty_descs: u64,
}

/// `struct xdp_umem_reg` as of Linux 5.4.
#[repr(C)]
struct UmemRegistration {
    address: u64,
    length: u64,
    chunk_size: u32,
    headroom: u32,
    flags: u32,
    padding: u32,
}

impl XskSocket {
    /// Opens and binds a socket in this mode.
    ///
    /// # Errors
    /// The kernel's error, with the step in the text: [`is_no`] tells whether another mode is worth trying.
    pub fn open(purpose: Purpose<'_>, umem: &Arc<Umem>, mode: Mode) -> Result<XskSocket> {
        let deadline = Instant::now() + TEARDOWN;
        loop {
            match XskSocket::open_once(purpose, umem, mode) {
                Err(e) if errno(&e) == Some(libc::EBUSY) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(e) if errno(&e) == Some(libc::EBUSY) => {
                    return Err(Error::Unsupported {
                        what: format!("an AF_XDP socket on RX queue {} of {}", purpose.queue, purpose.device),
                        needs: "the queue for itself, and another process has one there".into(),
                        instead: "stop it (ss --xdp shows it), or use --engine ring".into(),
                    });
                }
                result => return result,
            }
        }
    }

    fn open_once(purpose: Purpose<'_>, umem: &Arc<Umem>, mode: Mode) -> Result<XskSocket> {
        let refused = |what: &str| {
            let text = format!("{what} an AF_XDP socket of {}@{}", purpose.device, purpose.queue);
            move |e| Error::kernel(text, e)
        };
        // SAFETY: socket(2) takes integers only.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::EAFNOSUPPORT) {
                return Err(Error::Unsupported {
                    what: "an AF_XDP socket".into(),
                    needs: "a kernel with CONFIG_XDP_SOCKETS".into(),
                    instead: "--engine ring or packet".into(),
                });
            }
            return Err(refused("opening")(error));
        }
        // SAFETY: just opened, and owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        if purpose.shares.is_none() {
            let (address, length) = umem.extent();
            let registration = UmemRegistration {
                address,
                length,
                chunk_size: FRAME as u32,
                headroom: 0,
                flags: 0,
                padding: 0,
            };
            set(&fd, libc::XDP_UMEM_REG, &registration).map_err(|e| memory_error(e, length))?;
        }
        for (option, entries) in [
            (libc::XDP_UMEM_FILL_RING, purpose.frames),
            (libc::XDP_UMEM_COMPLETION_RING, purpose.frames),
            (libc::XDP_RX_RING, purpose.rx),
            (libc::XDP_TX_RING, purpose.tx),
        ] {
            if entries > 0 {
                set(&fd, option, &entries).map_err(refused("making the rings of"))?;
            }
        }
        let mut offsets = Offsets::default();
        get(&fd, libc::XDP_MMAP_OFFSETS, &mut offsets).map_err(refused("looking at the rings of"))?;
        let mapping = || refused("mapping the rings of");
        let some = |entries: u32| (entries > 0).then_some(entries);
        let socket = XskSocket {
            rx: some(purpose.rx)
                .map(|entries| Ring::map(&fd, PGOFF_RX, offsets.rx, entries))
                .transpose()
                .map_err(mapping())?,
            tx: some(purpose.tx)
                .map(|entries| Ring::map(&fd, PGOFF_TX, offsets.tx, entries))
                .transpose()
                .map_err(mapping())?,
            fill: Ring::map(&fd, PGOFF_FILL, offsets.fill, purpose.frames).map_err(mapping())?,
            completion: Ring::map(&fd, PGOFF_COMPLETION, offsets.completion, purpose.frames)
                .map_err(mapping())?,
            fd,
            umem: Arc::clone(umem),
        };
        socket.bind(&purpose, mode).map_err(refused("binding"))?;
        Ok(socket)
    }

    fn bind(&self, purpose: &Purpose<'_>, mode: Mode) -> io::Result<()> {
        let mut address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            // With shared memory, the mode of the first socket applies.
            sxdp_flags: XDP_SHARED_UMEM,
            sxdp_ifindex: purpose.ifindex,
            sxdp_queue_id: purpose.queue,
            sxdp_shared_umem_fd: 0,
        };
        match purpose.shares {
            Some(first) => address.sxdp_shared_umem_fd = first.fd.as_raw_fd() as u32,
            None => {
                address.sxdp_flags = if mode.zero_copy { XDP_ZEROCOPY } else { XDP_COPY }
                    | XDP_USE_NEED_WAKEUP
                    | if mode.multi_buffer { XDP_USE_SG } else { 0 };
            }
        }
        // SAFETY: pointer and length are those of a live sockaddr_xdp, which is only read.
        let status = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Whether the driver writes to our memory itself.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn is_zero_copy(&self) -> Result<bool> {
        let mut options = 0u32;
        get(&self.fd, libc::XDP_OPTIONS, &mut options)
            .map_err(|e| Error::kernel("asking for an AF_XDP socket's mode", e))?;
        Ok(options & XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// Counters of the socket since it was opened.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn statistics(&self) -> Result<Statistics> {
        let mut statistics = Statistics::default();
        get(&self.fd, libc::XDP_STATISTICS, &mut statistics)
            .map_err(|e| Error::kernel("reading what an AF_XDP socket lost", e))?;
        Ok(statistics)
    }

    /// The descriptor, for poll(2).
    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Busy-polls the card from our own system calls, for `microseconds` at a time
    /// (Documentation/networking/af_xdp.rst, SO_PREFER_BUSY_POLL). Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn poll_busily(&self, microseconds: u32) -> Result<()> {
        const BUDGET: i32 = 64;
        for (option, value) in [
            (libc::SO_PREFER_BUSY_POLL, 1),
            (libc::SO_BUSY_POLL, microseconds as i32),
            (libc::SO_BUSY_POLL_BUDGET, BUDGET),
        ] {
            set_at(&self.fd, libc::SOL_SOCKET, option, &value)
                .map_err(|e| Error::kernel("setting an AF_XDP socket to busy polling", e))?;
        }
        Ok(())
    }

    /// Wakes the kernel's receive path: after frames were added to the fill ring, or to busy-poll.
    pub fn kick_rx(&self) {
        // SAFETY: no buffer is passed. The result does not matter: recvfrom(2) never returns a packet of an AF_XDP
        // socket.
        unsafe {
            libc::recvfrom(
                self.raw(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
    }

    /// Wakes the driver for the fill and the TX ring, also for a socket without an RX ring, for which recvfrom(2) does
    /// nothing: poll(2) performs the wake-ups that the driver has requested.
    pub fn wake(&self) {
        let mut poll = libc::pollfd { fd: self.raw(), events: libc::POLLIN | libc::POLLOUT, revents: 0 };
        // SAFETY: one live struct; the call does not wait.
        unsafe { libc::poll(&raw mut poll, 1, 0) };
    }

    /// Makes the kernel send the packets in the TX ring.
    ///
    /// # Errors
    /// The kernel's error, unless it only lacks space at the moment.
    pub fn kick_tx(&self) -> io::Result<()> {
        // SAFETY: no buffer is passed.
        let sent =
            unsafe { libc::sendto(self.raw(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => Ok(()),
            _ => Err(error),
        }
    }

    /// Clears the error that the device left on the socket, for example when it was set down: poll(2) would report it
    /// again.
    pub fn take_error(&self) {
        let mut error = 0i32;
        // The maintenance thread reports device events; the error number is not needed here.
        let _ = get_at(&self.fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
    }
}

impl AsFd for XskSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The errno of a kernel error.
pub fn errno(error: &Error) -> Option<i32> {
    match error {
        Error::Kernel { source, .. } => source.raw_os_error(),
        _ => None,
    }
}

/// Whether the error means that the driver or the kernel version does not support the request.
pub fn is_no(error: &Error) -> bool {
    matches!(errno(error), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EPROTONOSUPPORT))
}

fn memory_error(source: io::Error, bytes: u64) -> Error {
    let text = if matches!(source.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM)) {
        format!(
            "locking {bytes} bytes of memory for packets (allow more by ulimit -l, grant CAP_IPC_LOCK, or ask for less \
             by --ring-size)"
        )
    } else {
        format!("registering {bytes} bytes of memory for packets")
    };
    Error::kernel(text, source)
}

fn set<T>(fd: &OwnedFd, option: i32, value: &T) -> io::Result<()> {
    set_at(fd, libc::SOL_XDP, option, value)
}

fn set_at<T>(fd: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: `value` is valid for reads of its size, and each caller passes the option's own type. The memory that a
    // UMEM registration names is mapped.
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

fn get<T>(fd: &OwnedFd, option: i32, value: &mut T) -> io::Result<()> {
    get_at(fd, libc::SOL_XDP, option, value)
}

fn get_at<T>(fd: &OwnedFd, level: i32, option: i32, value: &mut T) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is exclusively borrowed and of the length stated; callers pass structs of integers, for which
    // every bit pattern that the kernel writes is valid.
    let status = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, option, std::ptr::from_mut(value).cast(), &raw mut length)
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
