//! An activated handle: reading packets, filters, statistics.
//!
//! libpcap's manual allows other threads only to break a loop. Here they may also set a filter or a direction and read
//! statistics while one thread reads: everything that the reader checks for each packet is atomic, and no lock is held
//! while the program's function runs, which may do all of that too. Two concurrent readers are refused.

use std::ffi::{c_int, c_uchar};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use wirelane::filter::{Classic, Filter};
use wirelane::{Batch, Capture, Checksum, Error, Record, Timebase, Worker};

use crate::abi::{self, Header, Stats};
use crate::handle::Handle;
use crate::inject::Sender;
use crate::share::Share;
use crate::system::system;

/// Maximum length of one wait: a break requested by another thread or a signal handler is noticed within this time. It
/// is also the maximum time that packets are batched for a program that has set a timeout, instead of being delivered
/// immediately.
pub(crate) const SLICE: Duration = Duration::from_millis(20);

/// `BPF_RET | BPF_K`: the packet is accepted, or refused where the operand is 0.
const RETURN: u16 = 0x06;

/// A program that polls the descriptor may be woken without packets, and may read without setting the handle
/// non-blocking (softflowd): then reading waits at most this long, and not for the next packet.
const POLLED: Duration = Duration::from_millis(10);

/// Packets that are dropped after capture, besides those of the other direction.
#[derive(Debug, Default)]
enum Sieve {
    /// Drops no packets.
    #[default]
    Open,
    /// A filter that is active in the kernel now, for packets up to this time stamp: they were captured before it was
    /// set.
    Until(Filter, u64),
    /// A program that the kernel does not accept, for all packets.
    Always(Vec<Classic>),
}

/// Properties of an opened handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    /// Link type.
    pub(crate) dlt: c_int,
    pub(crate) snap_len: c_int,
    /// Whether times are in nanoseconds instead of microseconds.
    pub(crate) nano: bool,
    pub(crate) is_loopback: bool,
}

/// An activated handle; see the module documentation.
#[derive(Debug)]
pub(crate) struct Live {
    /// Not dropped in a forked child process: the capture belongs to the process that started it.
    capture: ManuallyDrop<RwLock<Capture>>,
    reader: Mutex<ManuallyDrop<Reader>>,
    pub(crate) sender: Sender,
    _share: Option<Share>,
    opened: Opened,
    dlt: AtomicI32,
    direction: AtomicI32,
    sieve: Mutex<Arc<Sieve>>,
    /// Held while a filter is set.
    setting: Mutex<()>,
    /// Number of changes of the sieve: incremented after each change.
    sieves: AtomicU32,
    /// Packets that were captured and dropped by the sieve or direction. Written by the reader.
    left_out: AtomicU64,
    /// Fork count of the process when the handle was opened, and when it was used last.
    forks: u32,
    used: AtomicU32,
    /// Descriptor returned by `pcap_get_selectable_fd()`; negative before the first call.
    descriptor: AtomicI32,
    /// Whether records have CLOCK_MONOTONIC time stamps instead of UTC.
    monotonic: bool,
}

#[derive(Debug)]
struct Reader {
    worker: Worker,
    time: Timebase,
    /// The handle's sieve, as of change number `sieves`.
    sieve: Arc<Sieve>,
    sieves: u32,
    /// The last packet whose checksum the sender had left to the card, with its checksum filled in.
    whole: Vec<u8>,
}

/// Locks a mutex whose data remain consistent after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of forks between the process that loaded the library and this one: distinguishes processes without a system
/// call.
fn forks() -> u32 {
    static FORKS: AtomicU32 = AtomicU32::new(0);
    static COUNTED: Once = Once::new();
    extern "C" fn forked() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: a function that only increments a number.
    COUNTED.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(forked));
    });
    FORKS.load(Ordering::Relaxed)
}

/// Maximum time that a read waits for the first packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Do not wait.
    Never,
    /// Wait until there is a packet.
    Forever,
    /// Wait for this time.
    For(Duration),
}

/// Receives each packet; false ends the reading.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&Header, &[u8]) -> bool;

impl Live {
    pub(crate) fn new(
        mut capture: Capture,
        sender: Sender,
        share: Option<Share>,
        opened: Opened,
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
            reader: Mutex::new(ManuallyDrop::new(Reader {
                worker,
                time,
                sieve: Arc::default(),
                sieves: 0,
                whole: Vec::new(),
            })),
            sender,
            _share: share,
            opened,
            dlt: AtomicI32::new(opened.dlt),
            direction: AtomicI32::new(abi::BOTH),
            sieve: Mutex::default(),
            setting: Mutex::default(),
            sieves: AtomicU32::new(0),
            left_out: AtomicU64::new(0),
            forks,
            used: AtomicU32::new(forks),
            descriptor: AtomicI32::new(-1),
            monotonic,
        })
    }

    /// Ends the capture. In a child forked from the opener, releases only this process's part.
    pub(crate) fn close(mut self) {
        if forks() == self.forks {
            // SAFETY: `self` is not used after this; the reader is dropped before the capture that it reads.
            unsafe {
                ManuallyDrop::drop(self.reader.get_mut().unwrap_or_else(PoisonError::into_inner));
                ManuallyDrop::drop(&mut self.capture);
            }
        }
    }

    pub(crate) fn opened(&self) -> Opened {
        self.opened
    }

    // Relaxed, here and below: each of these values is independent of the others.
    pub(crate) fn dlt(&self) -> c_int {
        self.dlt.load(Ordering::Relaxed)
    }

    pub(crate) fn set_dlt(&self, dlt: c_int) {
        self.dlt.store(dlt, Ordering::Relaxed);
    }

    fn capture(&self) -> std::sync::RwLockReadGuard<'_, Capture> {
        self.capture.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Adopts the capture in a child forked from the process that used it last.
    fn follow_fork(&self) -> Result<(), Error> {
        let forks = forks();
        if self.used.load(Ordering::Relaxed) == forks {
            return Ok(());
        }
        self.used.store(forks, Ordering::Relaxed);
        self.capture.write().unwrap_or_else(std::sync::PoisonError::into_inner).adopt()
    }

    /// Hands up to `most` packets to `sink`, from one batch, or from later ones while there are no packets; returns the
    /// number of packets, or libpcap's status for an error.
    pub(crate) fn read(&self, handle: &Handle, most: u64, wait: Wait, sink: Sink<'_>) -> c_int {
        if handle.take_break() {
            return abi::ERROR_BREAK;
        }
        let mut reader = match self.reader.try_lock() {
            Ok(reader) => reader,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return handle.fail(abi::ERROR, "the handle is being read already");
            }
        };
        if let Err(error) = self.follow_fork() {
            return handle.fail(abi::ERROR, &error.to_string());
        }
        let Reader { worker, time, sieve, sieves, whole } = &mut **reader;
        let wait = match wait {
            Wait::Forever if self.descriptor.load(Ordering::Relaxed) >= 0 => Wait::For(POLLED),
            wait => wait,
        };
        let mut end = None;
        let mut first = true;
        loop {
            let slice = match wait {
                // Packets are usually available at once; then no clock is read.
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
            match self.pass(handle, batch, (time, sieve, sieves, whole), most, sink) {
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
        (time, sieve, sieves, whole): (&Timebase, &mut Arc<Sieve>, &mut u32, &mut Vec<u8>),
        most: u64,
        sink: Sink<'_>,
    ) -> Result<c_int, c_int> {
        let mut count = 0;
        for record in batch {
            // Acquire: pairs with the Release of `put_sieve`.
            let changed = self.sieves.load(Ordering::Acquire);
            if changed != *sieves {
                (*sieve, *sieves) = (Arc::clone(&lock(&self.sieve)), changed);
            }
            if !self.is_wanted(sieve, &record) {
                // Relaxed: a counter with a single writer at a time.
                self.left_out.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let utc = time.utc_ns(&record);
            let fraction = utc % 1_000_000_000;
            let header = Header {
                seconds: (utc / 1_000_000_000) as libc::time_t,
                fraction: (if self.opened.nano { fraction } else { fraction / 1000 }) as libc::suseconds_t,
                captured: record.data().len() as u32,
                length: record.wire_len(),
            };
            // libpcap gets packets after the kernel has computed the checksums that the card does not compute.
            let data = match record.missing_checksum() {
                Some(Checksum { at, bytes }) => {
                    whole.clear();
                    whole.extend_from_slice(record.data());
                    whole[at..at + bytes.len()].copy_from_slice(&bytes);
                    &whole[..]
                }
                None => record.data(),
            };
            let more = sink(&header, data);
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

    /// Whether a captured packet is delivered to the program.
    fn is_wanted(&self, sieve: &Sieve, record: &Record<'_>) -> bool {
        match self.direction.load(Ordering::Relaxed) {
            abi::IN if record.is_egress() => return false,
            abi::OUT if !record.is_egress() => return false,
            _ => {}
        }
        match sieve {
            Sieve::Open => true,
            Sieve::Until(filter, stamp) => {
                record.header().ts_ns > *stamp
                    || filter.accepts(record.data(), record.wire_len(), record.is_egress())
            }
            Sieve::Always(program) => {
                let (data, length) = (record.data(), record.wire_len());
                // SAFETY: libpcap has found the program valid (`set_filter`), so it stays within the program and the
                // bytes.
                unsafe {
                    (system().bpf_filter)(program.as_ptr().cast(), data.as_ptr(), length, data.len() as u32)
                        != 0
                }
            }
        }
    }

    /// Sets the filter program: in the kernel if it accepts the program, else here.
    pub(crate) fn set_filter(&self, handle: &Handle, program: &[Classic]) -> c_int {
        // SAFETY: a live program of this length, which is only read.
        let valid = !program.is_empty()
            && unsafe { (system().bpf_validate)(program.as_ptr().cast(), program.len() as c_int) } != 0;
        if !valid {
            return handle.fail(abi::ERROR, "BPF program is not valid");
        }
        // Serializes threads that set a filter at the same time.
        let _setting = lock(&self.setting);
        // A program that accepts everything does not need to be evaluated.
        let everything = matches!(program, [Classic { code: RETURN, k: 1.., .. }]);
        let sieve = match Filter::of_program(program) {
            Ok(_) if everything => match self.capture().set_filter("") {
                Ok(()) => Sieve::Open,
                Err(error) => return handle.fail(abi::ERROR, &error.to_string()),
            },
            Ok(filter) => match self.capture().set_compiled_filter(&filter) {
                // Packets captured until now were not evaluated by the new filter.
                Ok(()) => Sieve::Until(filter, self.now()),
                Err(error) => return handle.fail(abi::ERROR, &error.to_string()),
            },
            Err(refusal) => {
                tracing::info!("filtering outside of the kernel: {refusal}");
                // The kernel accepts every packet from now on, so the reader must evaluate the program before that.
                let before = self.put_sieve(Arc::new(Sieve::Always(program.to_vec())));
                if let Err(error) = self.capture().set_filter("") {
                    self.put_sieve(before);
                    return handle.fail(abi::ERROR, &error.to_string());
                }
                return 0;
            }
        };
        self.put_sieve(Arc::new(sieve));
        0
    }

    /// Replaces the sieve from the reader's next packet on; returns the previous one.
    fn put_sieve(&self, sieve: Arc<Sieve>) -> Arc<Sieve> {
        let before = std::mem::replace(&mut *lock(&self.sieve), sieve);
        // Release: pairs with the Acquire in `pass`, which then finds the sieve.
        self.sieves.fetch_add(1, Ordering::Release);
        before
    }

    /// The current time on the clock of the records.
    fn now(&self) -> u64 {
        let clock =
            if self.monotonic { rustix::time::ClockId::Monotonic } else { rustix::time::ClockId::Realtime };
        let now = rustix::time::clock_gettime(clock);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    /// Restricts reading to packets of this direction.
    pub(crate) fn set_direction(&self, direction: c_int) {
        self.direction.store(direction, Ordering::Relaxed);
    }

    /// A descriptor that is readable while there may be something to read.
    pub(crate) fn descriptor(&self, handle: &Handle) -> c_int {
        let known = self.descriptor.load(Ordering::Relaxed);
        if known >= 0 {
            return known;
        }
        let Ok(mut reader) = self.reader.try_lock() else {
            return handle.fail(abi::ERROR, "the handle is being read");
        };
        match reader.worker.readiness() {
            Ok(fd) => {
                let fd = fd.as_raw_fd();
                self.descriptor.store(fd, Ordering::Relaxed);
                fd
            }
            Err(error) => handle.fail(abi::ERROR, &error.to_string()),
        }
    }

    /// libpcap's three counters, from the ledger: packets that passed the filter (dropped or not), those of them that
    /// were dropped for lack of space, and packets that the device itself dropped.
    pub(crate) fn stats(&self) -> Result<Stats, Error> {
        let total = self.capture().ledger()?.total;
        let passed = total.shed + total.lost + total.delivered;
        Ok(Stats {
            received: passed.wrapping_sub(self.left_out.load(Ordering::Relaxed)) as u32,
            dropped: (total.lost + total.shed) as u32,
            dropped_by_device: total.nic_missed.unwrap_or(0) as u32,
        })
    }
}

/// Passes packets to a program's callback.
pub(crate) fn to_handler(
    handler: unsafe extern "C" fn(*mut c_uchar, *const Header, *const c_uchar),
    user: *mut c_uchar,
) -> impl FnMut(&Header, &[u8]) -> bool {
    move |header, bytes| {
        // SAFETY: the program's own function, with libpcap's guarantees: both pointers are valid until it returns.
        unsafe { handler(user, header, bytes.as_ptr()) };
        true
    }
}
