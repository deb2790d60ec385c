//! Bell: wakes a sleeping worker by a BPF ring buffer of which only the wake-up is used.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use libbpf_rs::{MapHandle, MapType};

use super::memory::Mapping;
use crate::error::{Error, Result};

/// Size of the buffer: a multiple of every page size, as the kernel requires.
const SIZE: usize = 65536;

/// One worker's bell on one device.
#[derive(Debug)]
pub(crate) struct Bell {
    fd: OwnedFd,
    /// The consumer's position: the one word of the buffer that user space writes.
    consumer: Mapping,
    producer: Mapping,
}

impl Bell {
    /// A new bell, not yet in an instance's map.
    pub(crate) fn new() -> Result<Bell> {
        let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let map = MapHandle::create(MapType::RingBuf, Some("wl_bell"), 0, 0, SIZE as u32, &opts)
            .map_err(|e| Error::bpf("creating a worker's bell", e))?;
        // SAFETY: sysconf has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        // The layout of the kernel's ring buffer: a page with the consumer's position, a page with the
        // producer's, then the data (Documentation/bpf/ringbuf.rst).
        let consumer = Mapping::new(map.as_fd(), 0, page, true);
        let producer = Mapping::new(map.as_fd(), page, page, false);
        let fd = map.as_fd().try_clone_to_owned();
        match (consumer, producer, fd) {
            (Ok(consumer), Ok(producer), Ok(fd)) => Ok(Bell { fd, consumer, producer }),
            (Err(e), _, _) | (_, Err(e), _) | (_, _, Err(e)) => {
                Err(Error::kernel("mapping a worker's bell", e))
            }
        }
    }

    /// Silences the bell after it has rung, so that it can ring again.
    pub(super) fn silence(&self) {
        // Acquire pairs with the kernel's store-release of the producer position; Release hands the slots
        // back to the kernel's load-acquire (kernel/bpf/ringbuf.c).
        let rung = self.producer.word(0).load(Ordering::Acquire);
        self.consumer.word(0).store(rung, Ordering::Release);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sleeps until one of the bells rings or the time is up. True: a bell rang.
pub(crate) fn sleep(bells: &[Bell], polls: &mut Vec<libc::pollfd>, time: Duration) -> io::Result<bool> {
    polls.clear();
    polls.extend(bells.iter().map(|bell| libc::pollfd {
        fd: bell.fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }));
    let time = libc::timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: pointer and length of a live vector; the time-out outlives the call; no signal mask.
    let ready = unsafe { libc::ppoll(polls.as_mut_ptr(), polls.len() as _, &time, std::ptr::null()) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) };
    }
    let mut rang = false;
    for (bell, poll) in bells.iter().zip(polls.iter()) {
        if poll.revents != 0 {
            bell.silence();
            rang = true;
        }
    }
    Ok(rang)
}
