//! A handle of ours (`pcap_t`).

use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::abi::{self, ERRBUF, Header, Pcap};
use crate::names::Wanted;
use crate::read::Live;
use crate::system::system;

/// First word of our handles: it is not an address on any machine, and a `pcap_t` of libpcap begins with the address of
/// a function.
const MAGIC: u64 = 0xbad0_77e1_a9e0_ca97;

/// A closed handle, which can never be activated.
struct Kept(*mut Handle);

// SAFETY: everything that was bound to a thread was taken out when the handle was closed.
unsafe impl Send for Kept {}

/// First word of our closed handles.
const CLOSED: u64 = 0xbad0_77e1_a9e0_c105;
/// Number of closed handles whose memory is kept. libpcap's manual leaves the use of a closed handle undefined; here
/// the handles that were closed last refuse everything, as a handle that is not activated does. tcpdump breaks the loop
/// of a handle that it has closed, if writing its last packets fails at its end.
const KEPT: usize = 16;

/// Options that were set before the handle was activated.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The parsed device name; an error is reported when the handle is activated, as libpcap does.
    pub(crate) device: Result<Wanted, String>,
    pub(crate) snap_len: c_int,
    pub(crate) promiscuous: bool,
    pub(crate) immediate: bool,
    pub(crate) monitor: bool,
    /// Timeout in milliseconds.
    pub(crate) timeout: c_int,
    /// Buffer size in bytes; 0: we choose.
    pub(crate) buffer: c_int,
    pub(crate) precision: c_int,
    pub(crate) protocol: c_int,
}

/// A handle; see the module documentation. The magic word comes first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Handle {
    magic: u64,
    /// Set by [`Handle::break_loop`]: from signal handlers, and by other threads.
    broken: AtomicBool,
    pub(crate) options: RefCell<Options>,
    /// See [`Handle::is_nonblocking`]; other threads may read it.
    nonblocking: AtomicBool,
    /// Set when the handle is activated.
    pub(crate) live: OnceCell<Live>,
    error: UnsafeCell<[c_char; ERRBUF]>,
    /// The header that `pcap_next_ex()` points to.
    pub(crate) header: UnsafeCell<Header>,
    /// A handle of the system's libpcap that captures nothing, with the same link type: it compiles filters and opens
    /// dump files.
    twin: Cell<*mut Pcap>,
}

/// The handle, if it is one of ours, including recently closed ones.
///
/// # Safety
/// `pcap` is null, or a handle of ours or the system's libpcap that is not closed, or one of our [`KEPT`] handles that
/// were closed last; it stays so while the result is used.
pub(crate) unsafe fn ours<'a>(pcap: *mut Pcap) -> Option<&'a Handle> {
    if pcap.is_null() {
        return None;
    }
    // SAFETY: both kinds of handles begin with a word, aligned as pointers are.
    if !matches!(unsafe { pcap.cast::<u64>().read() }, MAGIC | CLOSED) {
        return None;
    }
    // SAFETY: nothing else begins with these words; handles are shared, and borrowed mutably only while they are
    // closed.
    Some(unsafe { &*pcap.cast::<Handle>() })
}

impl Handle {
    /// Creates a handle that is not activated; [`Handle::close`] frees it.
    pub(crate) fn create(device: Result<Wanted, String>) -> *mut Pcap {
        let handle = Handle {
            magic: MAGIC,
            broken: AtomicBool::new(false),
            options: RefCell::new(Options {
                device,
                snap_len: abi::LONGEST,
                promiscuous: false,
                immediate: false,
                monitor: false,
                timeout: 0,
                buffer: 0,
                precision: abi::PRECISION_MICRO,
                protocol: 0,
            }),
            nonblocking: AtomicBool::new(false),
            live: OnceCell::new(),
            error: UnsafeCell::new([0; ERRBUF]),
            header: UnsafeCell::new(Header { seconds: 0, fraction: 0, captured: 0, length: 0 }),
            twin: Cell::new(std::ptr::null_mut()),
        };
        Box::into_raw(Box::new(handle)).cast()
    }

    /// Ends the capture, and frees the handle once [`KEPT`] others have been closed. Does nothing if the handle is
    /// closed.
    ///
    /// # Safety
    /// `pcap` is one of our handles, as for [`ours`], and nothing else uses it.
    pub(crate) unsafe fn close(pcap: *mut Pcap) {
        static CLOSED_HANDLES: Mutex<VecDeque<Kept>> = Mutex::new(VecDeque::new());
        let pcap = pcap.cast::<Handle>();
        // SAFETY: made by `create`, and not freed; nothing else uses it (the caller's part).
        let handle = unsafe { &mut *pcap };
        if std::mem::replace(&mut handle.magic, CLOSED) == CLOSED {
            return;
        }
        if let Some(live) = handle.live.take() {
            live.close();
        }
        handle.set_twin(std::ptr::null_mut());
        handle.options.get_mut().device = Err("the handle has been closed".into());
        let mut kept = CLOSED_HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(Kept(pcap));
        let free = if kept.len() > KEPT { kept.pop_front() } else { None };
        if let Some(Kept(oldest)) = free {
            // SAFETY: made by `create`, and freed once: only here, because it is no longer in the list.
            drop(unsafe { Box::from_raw(oldest) });
        }
    }

    /// Ends reading, now or at the next attempt. Only a store: it is called from signal handlers.
    pub(crate) fn break_loop(&self) {
        // Relaxed: the flag orders nothing.
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Whether reads return immediately instead of waiting.
    pub(crate) fn is_nonblocking(&self) -> bool {
        // Relaxed, as below: the flag is independent of other data.
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Whether reading is to end; resets the request.
    pub(crate) fn take_break(&self) -> bool {
        self.broken.load(Ordering::Relaxed) && self.broken.swap(false, Ordering::Relaxed)
    }

    /// Sets the error message, and returns `status`.
    pub(crate) fn fail(&self, status: c_int, reason: &str) -> c_int {
        // SAFETY: the buffer is read by the caller between calls, and written only here.
        unsafe { write_error(self.error.get().cast(), reason) };
        status
    }

    /// libpcap's error for operations that need an activated handle.
    pub(crate) fn not_activated(&self) -> c_int {
        self.fail(abi::ERROR_NOT_ACTIVATED, "This handle hasn't been activated yet")
    }

    /// The last error message.
    pub(crate) fn error(&self) -> *mut c_char {
        self.error.get().cast()
    }

    /// The handle of the system's libpcap; see the field `twin`.
    pub(crate) fn twin(&self) -> *mut Pcap {
        self.twin.get()
    }

    /// Replaces the twin and closes the previous one.
    pub(crate) fn set_twin(&self, twin: *mut Pcap) {
        let before = self.twin.replace(twin);
        if !before.is_null() {
            // SAFETY: the system's handle, used only by us.
            unsafe { (system().pcap_close)(before) };
        }
    }

    /// Takes over the error message of the twin.
    pub(crate) fn twins_error(&self) {
        // SAFETY: a handle of the system's, whose text ends with a zero and is valid until its next use.
        let text = unsafe { CStr::from_ptr((system().pcap_geterr)(self.twin())) };
        self.fail(abi::ERROR, &text.to_string_lossy());
    }
}

/// Writes a message into a buffer of libpcap's size, truncated if it is too long.
///
/// # Safety
/// The buffer is null, or has [`ERRBUF`] bytes that nothing else uses.
pub(crate) unsafe fn write_error(buffer: *mut c_char, reason: &str) {
    if buffer.is_null() {
        return;
    }
    let mut end = reason.len().min(ERRBUF - 1);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let text = CString::new(reason[..end].replace(['\0', '\n'], " ")).unwrap_or_default();
    let bytes = text.as_bytes_with_nul();
    // SAFETY: at most ERRBUF bytes, into a buffer of that size.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, bytes.len()) };
}
