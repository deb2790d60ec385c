//! The system's libpcap: found as the dynamic linker would find it, without finding ourselves.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uchar, c_uint, c_void};
use std::io::Write as _;
use std::sync::OnceLock;

use crate::abi::{Dumper, Handler, Header, Interface, Pcap, Program, Stats};

/// A table of functions of the system's libpcap, and how it is filled.
macro_rules! table {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the system's libpcap, by their names.
        #[derive(Debug)]
        pub(crate) struct System {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl System {
            /// Looks every function up; the error is the name of one that is not there.
            fn of(library: *mut c_void) -> Result<System, &'static str> {
                Ok(System {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: a handle of dlopen's or RTLD_NEXT, and a string that ends with a zero.
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

/// The variable that names the system's libpcap where it is not found.
const VARIABLE: &str = "WIRELANE_SYSTEM_LIBPCAP";
/// Its file, as programs ask for it.
const FILE: &str = "libpcap.so.0.8";
/// Other systems' names of it.
const OTHER_FILE: &str = "libpcap.so.1";
/// Where it may be.
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
/// Where there is none the process ends with a message, as it does where the dynamic linker does not find a library: there
/// is no function here that could do without.
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
    // SAFETY: a string that ends with a zero. What comes behind us in the order of the dynamic linker is never us.
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
        // SAFETY: after a failure it is a string, which stays until the thread's next call.
        let text = unsafe { CStr::from_ptr(libc::dlerror()) };
        return Err(text.to_string_lossy().into_owned());
    }
    System::of(library).map_err(|missing| format!("{path}: it has no {missing}: older than libpcap 1.10?"))
}

/// The file that this code was loaded from.
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
    // SAFETY: a string of the dynamic linker's, which stays as long as the library is loaded.
    Some(unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned())
}

/// Something of ours that has an address.
static OWN: u8 = 0;
