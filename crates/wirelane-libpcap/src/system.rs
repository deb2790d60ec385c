//! The system's libpcap: found as the dynamic linker would find it, without finding ourselves.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uchar, c_uint, c_void};
use std::io::Write as _;
use std::sync::OnceLock;

use crate::abi::{Dumper, Handler, Header, Interface, Pcap, Program, Stats};

/// A table of functions of the system's libpcap, and the code that fills it.
macro_rules! table {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the system's libpcap, by name.
        #[derive(Debug)]
        pub(crate) struct System {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl System {
            /// Looks up every function; the error is the name of a missing one.
            fn of(library: *mut c_void) -> Result<System, &'static str> {
                Ok(System {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: a handle from dlopen or RTLD_NEXT, and a string that ends with a zero.
                        let at = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
                        if at.is_null() {
                            return Err(stringify!($name));
                        }
                        // SAFETY: libpcap's function of that name has that signature (pcap/pcap.h).
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) $(-> $result)?>(at) }
                    },)*
                })
            }
        }
    };
}

crate::functions::all!(table);

/// Environment variable with the path of the system's libpcap, if it is not found.
const VARIABLE: &str = "WIRELANE_SYSTEM_LIBPCAP";
/// The soname that programs are linked to.
const FILE: &str = "libpcap.so.0.8";
/// The soname on other systems.
const OTHER_FILE: &str = "libpcap.so.1";
/// Folders that may contain it.
const FOLDERS: [&str; 6] = [
    concat!("/usr/lib/", env!("WIRELANE_MULTIARCH")),
    concat!("/lib/", env!("WIRELANE_MULTIARCH")),
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
];

/// The system's libpcap.
///
/// If it is missing, the process ends with a message, as the dynamic linker does if it does not find a library: none of
/// the functions here can work without it.
pub(crate) fn system() -> &'static System {
    static SYSTEM: OnceLock<System> = OnceLock::new();
    SYSTEM.get_or_init(|| match find() {
        Ok(system) => system,
        Err(reason) => {
            let _ = writeln!(std::io::stderr(), "wirelane's libpcap: {reason}");
            // SAFETY: ends the process, as the dynamic linker does, with its exit code.
            unsafe { libc::_exit(127) }
        }
    })
}

fn find() -> Result<System, String> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        let path = path.to_string_lossy().into_owned();
        return open(&path).map_err(|reason| format!("{VARIABLE}: {reason}"));
    }
    // SAFETY: a string that ends with a zero. A library after ours in the dynamic linker's order is never this one.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pcap_create".as_ptr()) };
    if !next.is_null()
        && let Ok(system) = System::of(libc::RTLD_NEXT)
    {
        return Ok(system);
    }
    let mut tried = Vec::new();
    for folder in FOLDERS {
        for file in [FILE, OTHER_FILE] {
            match open(&format!("{folder}/{file}")) {
                Ok(system) => return Ok(system),
                Err(reason) => tried.push(reason),
            }
        }
    }
    Err(format!(
        "the system's libpcap was not found, which reads files and compiles filters: install it (Debian: libpcap0.8), or \
         name its file in {VARIABLE}. Tried: {}",
        tried.join("; ")
    ))
}

/// Opens the library at this path.
fn open(path: &str) -> Result<System, String> {
    let own = own_file();
    let same = |a: &str, b: &str| match (std::fs::canonicalize(a), std::fs::canonicalize(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    };
    if own.is_some_and(|own| same(&own, path)) {
        return Err(format!("{path}: that is Wirelane's own"));
    }
    let name = CString::new(path).map_err(|_| "a path with a zero byte".to_owned())?;
    // SAFETY: a string that ends with a zero. Its initialisers are libpcap's, which do nothing.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        // SAFETY: after a failure it is a string, which is valid until the thread's next call.
        let text = unsafe { CStr::from_ptr(libc::dlerror()) };
        return Err(text.to_string_lossy().into_owned());
    }
    System::of(library).map_err(|missing| format!("{path}: it has no {missing}: older than libpcap 1.10?"))
}

/// Path of the file that this code was loaded from.
pub(crate) fn own_file() -> Option<String> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address of this library, and a live structure to write to.
    let found = unsafe { libc::dladdr(std::ptr::from_ref(&OWN).cast(), info.as_mut_ptr()) };
    if found == 0 {
        return None;
    }
    // SAFETY: filled, or zeroed, which is valid for pointers.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a string of the dynamic linker, which is valid as long as the library is loaded.
    Some(unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned())
}

/// A static of ours, whose address identifies this library.
static OWN: u8 = 0;
