//! An activated handle: reading packets, filters, statistics.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_uchar};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, RwLock};
use std::time::{Duration, Instant};

use wirelane::filter::{Classic, Filter};
use wirelane::{Batch, Capture, Error, Record, Timebase, Worker};

use crate::abi::{self, Header, Stats};
use crate::handle::Handle;
use crate::inject::Sender;
use crate::share::Share;
use crate::system::system;

/// Longest wait in one go: within this time a break is noticed that another thread or a signal handler asked for.
const SLICE: Duration = Duration::from_millis(20);

/// `BPF_RET | BPF_K`: the packet is accepted, or refused where the operand is 0.
const RETURN: u16 = 0x06;

/// A program that waits elsewhere may be told for nothing, and reads without having said that it is not to block
/// (softflowd): it waits no longer than this, and not for the next packet.
const POLLED: Duration = Duration::from_millis(10);

/// Which packets are left out after they were captured, besides by the direction.
#[derive(Debug, Default)]
enum Sieve {
    /// None.
    #[default]
    Open,
    /// A filter that the kernel has by now, for packets up to this stamp: they were captured before.
    Until(Filter, u64),
    /// A program that the kernel does not take, for all.
    Always(Vec<Classic>),
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Live {
    /// Not dropped in a process that was forked: the capture belongs to the one that started it.
    capture: ManuallyDrop<RwLock<Capture>>,
    reader: RefCell<ManuallyDrop<Reader>>,
    pub(crate) sender: Sender,
    _share: Option<Share>,
    pub(crate) dlt: Cell<c_int>,
    pub(crate) is_loopback: bool,
    pub(crate) snap_len: c_int,
    direction: Cell<c_int>,
    sieve: RefCell<Sieve>,
    /// Packets that were captured and left out.
    left_out: Cell<u64>,
    /// How often the process had been forked when it was opened, and when it was used last.
    opened: u32,
    used: Cell<u32>,
    /// What `pcap_get_selectable_fd()` has given.
    descriptor: Cell<Option<RawFd>>,
    /// Whether records are stamped by CLOCK_MONOTONIC, and not by UTC.
    monotonic: bool,
}

#[derive(Debug)]
struct Reader {
    worker: Worker,
    time: Timebase,
}

/// How many forks lie between this process and the one that the library was loaded in: what tells processes apart
/// without a system call.
fn forks() -> u32 {
    static FORKS: AtomicU32 = AtomicU32::new(0);
    static COUNTED: Once = Once::new();
    extern "C" fn forked() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: a function that only adds to a number.
    COUNTED.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(forked));
    });
    FORKS.load(Ordering::Relaxed)
}

/// How long reading waits for the first packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Not at all.
    Never,
    /// Until there is one.
    Forever,
    /// So long.
    For(Duration),
}

/// What one packet is handed to; false ends the reading.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&Header, &[u8]) -> bool;

impl Live {
    pub(crate) fn new(
        mut capture: Capture,
        sender: Sender,
        share: Option<Share>,
        dlt: c_int,
        snap_len: c_int,
        is_loopback: bool,
    ) -> Result<Live, Error> {
        let monotonic = capture.engine() == "ring";
        let worker = capture.workers().into_iter().next().ok_or_else(|| Error::Kernel {
            action: "starting the capture".into(),
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        let time = worker.timebase();
        let forks = forks();
        Ok(Live {
            capture: ManuallyDrop::new(RwLock::new(capture)),
            reader: RefCell::new(ManuallyDrop::new(Reader { worker, time })),
            sender,
            _share: share,
            dlt: Cell::new(dlt),
            is_loopback,
            snap_len,
            direction: Cell::new(abi::BOTH),
            sieve: RefCell::default(),
            left_out: Cell::new(0),
            opened: forks,
            used: Cell::new(forks),
            descriptor: Cell::new(None),
            monotonic,
        })
    }

    /// Ends it. In a process that was forked from the opener, only this process's part.
    pub(crate) fn close(mut self) {
        if forks() == self.opened {
            // SAFETY: `self` is not used after this; the reader goes before the capture that it reads.
            unsafe {
                ManuallyDrop::drop(self.reader.get_mut());
                ManuallyDrop::drop(&mut self.capture);
            }
        }
    }

    fn capture(&self) -> std::sync::RwLockReadGuard<'_, Capture> {
        self.capture.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Goes on in a process that was forked from the one that used it before.
    fn follow_fork(&self) -> Result<(), Error> {
        let forks = forks();
        if self.used.replace(forks) == forks {
            return Ok(());
        }
        self.capture.write().unwrap_or_else(std::sync::PoisonError::into_inner).adopt()
    }

    /// Hands up to `most` packets to `sink`, of one batch or more until there is one; how many there were, or libpcap's
    /// number for why there are none.
    pub(crate) fn read(&self, handle: &Handle, most: u64, wait: Wait, sink: Sink<'_>) -> c_int {
        if handle.take_break() {
            return abi::ERROR_BREAK;
        }
        let Ok(mut reader) = self.reader.try_borrow_mut() else {
            return handle.fail(abi::ERROR, "the handle is being read already");
        };
        if let Err(error) = self.follow_fork() {
            return handle.fail(abi::ERROR, &error.to_string());
        }
        let Reader { worker, time } = &mut **reader;
        let nano = handle.options.borrow().precision == abi::PRECISION_NANO;
        let wait = match wait {
            Wait::Forever if self.descriptor.get().is_some() => Wait::For(POLLED),
            wait => wait,
        };
        let mut end = None;
        let mut first = true;
        loop {
            let slice = match wait {
                // Most often there is something, and no clock need be looked at.
                _ if std::mem::take(&mut first) => Duration::ZERO,
                Wait::Never => Duration::ZERO,
                Wait::Forever => SLICE,
                Wait::For(time) => {
                    let end: &mut Instant = end.get_or_insert_with(|| Instant::now() + time);
                    SLICE.min(end.saturating_duration_since(Instant::now()))
                }
            };
            let batch = match worker.next_batch(slice) {
                Ok(Some(batch)) => batch,
                Ok(None) => return handle.fail(abi::ERROR, "The interface disappeared"),
                Err(error) => return handle.fail(abi::ERROR, &error.to_string()),
            };
            let nothing = batch.is_empty();
            match self.pass(handle, batch, time, nano, most, sink) {
                Ok(0) => {}
                Ok(count) => return count,
                Err(status) => return status,
            }
            if handle.take_break() {
                return abi::ERROR_BREAK;
            }
            let over = match wait {
                Wait::Never => nothing,
                Wait::Forever => false,
                Wait::For(_) => nothing && end.is_some_and(|end: Instant| Instant::now() >= end),
            };
            if over {
                return 0;
            }
        }
    }

    /// Hands a batch's packets to `sink`.
    fn pass(
        &self,
        handle: &Handle,
        batch: Batch<'_>,
        time: &Timebase,
        nano: bool,
        most: u64,
        sink: Sink<'_>,
    ) -> Result<c_int, c_int> {
        let mut count = 0;
        for record in batch {
            if !self.is_wanted(&record) {
                self.left_out.set(self.left_out.get() + 1);
                continue;
            }
            let utc = time.utc_ns(&record);
            let fraction = utc % 1_000_000_000;
            let header = Header {
                seconds: (utc / 1_000_000_000) as libc::time_t,
                fraction: (if nano { fraction } else { fraction / 1000 }) as libc::suseconds_t,
                captured: record.data().len() as u32,
                length: record.wire_len(),
            };
            let more = sink(&header, record.data());
            count += 1;
            if handle.take_break() {
                return Err(abi::ERROR_BREAK);
            }
            if !more || count as u64 >= most {
                break;
            }
        }
        Ok(count)
    }

    /// Whether the program gets a packet that was captured.
    fn is_wanted(&self, record: &Record<'_>) -> bool {
        match self.direction.get() {
            abi::IN if record.is_egress() => return false,
            abi::OUT if !record.is_egress() => return false,
            _ => {}
        }
        match &*self.sieve.borrow() {
            Sieve::Open => true,
            Sieve::Until(filter, stamp) => {
                record.header().ts_ns > *stamp
                    || filter.accepts(record.data(), record.wire_len(), record.is_egress())
            }
            Sieve::Always(program) => {
                let (data, length) = (record.data(), record.wire_len());
                // SAFETY: libpcap has found the program valid (`set_filter`), so it stays within it and the bytes.
                unsafe {
                    (system().bpf_filter)(program.as_ptr().cast(), data.as_ptr(), length, data.len() as u32)
                        != 0
                }
            }
        }
    }

    /// Judges by this program from now on: in the kernel, or where that does not take it, here.
    pub(crate) fn set_filter(&self, handle: &Handle, program: &[Classic]) -> c_int {
        // SAFETY: a live program of this length, which is only read.
        let valid = !program.is_empty()
            && unsafe { (system().bpf_validate)(program.as_ptr().cast(), program.len() as c_int) } != 0;
        if !valid {
            return handle.fail(abi::ERROR, "BPF program is not valid");
        }
        // Of everything nothing need be asked.
        let everything = matches!(program, [Classic { code: RETURN, k: 1.., .. }]);
        let sieve = match Filter::of_program(program) {
            Ok(_) if everything => match self.capture().set_filter("") {
                Ok(()) => Sieve::Open,
                Err(error) => return handle.fail(abi::ERROR, &error.to_string()),
            },
            Ok(filter) => match self.capture().set_compiled_filter(&filter) {
                // What was captured until now was not judged by it.
                Ok(()) => Sieve::Until(filter, self.now()),
                Err(error) => return handle.fail(abi::ERROR, &error.to_string()),
            },
            Err(refusal) => {
                tracing::info!("filtering outside of the kernel: {refusal}");
                // Everything comes here from now on.
                if let Err(error) = self.capture().set_filter("") {
                    return handle.fail(abi::ERROR, &error.to_string());
                }
                Sieve::Always(program.to_vec())
            }
        };
        *self.sieve.borrow_mut() = sieve;
        0
    }

    /// The time that records are stamped with.
    fn now(&self) -> u64 {
        let clock =
            if self.monotonic { rustix::time::ClockId::Monotonic } else { rustix::time::ClockId::Realtime };
        let now = rustix::time::clock_gettime(clock);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    /// Only packets of this direction from now on.
    pub(crate) fn set_direction(&self, direction: c_int) {
        self.direction.set(direction);
    }

    /// A descriptor that is readable while there may be something to read.
    pub(crate) fn descriptor(&self, handle: &Handle) -> c_int {
        if let Some(fd) = self.descriptor.get() {
            return fd;
        }
        let Ok(mut reader) = self.reader.try_borrow_mut() else {
            return handle.fail(abi::ERROR, "the handle is being read");
        };
        match reader.worker.readiness() {
            Ok(fd) => {
                let fd = fd.as_raw_fd();
                self.descriptor.set(Some(fd));
                fd
            }
            Err(error) => handle.fail(abi::ERROR, &error.to_string()),
        }
    }

    /// libpcap's three numbers, from the ledger: what passed the filter (dropped or not), what of it found no room, and
    /// what the device itself has dropped.
    pub(crate) fn stats(&self) -> Result<Stats, Error> {
        let total = self.capture().ledger()?.total;
        let passed = total.shed + total.lost + total.delivered;
        Ok(Stats {
            received: passed.wrapping_sub(self.left_out.get()) as u32,
            dropped: (total.lost + total.shed) as u32,
            dropped_by_device: total.nic_missed.unwrap_or(0) as u32,
        })
    }
}

/// Hands a packet to a program's function.
pub(crate) fn to_handler(
    handler: unsafe extern "C" fn(*mut c_uchar, *const Header, *const c_uchar),
    user: *mut c_uchar,
) -> impl FnMut(&Header, &[u8]) -> bool {
    move |header, bytes| {
        // SAFETY: the program's own function, with what libpcap promises it: both stay until it returns.
        unsafe { handler(user, header, bytes.as_ptr()) };
        true
    }
}
