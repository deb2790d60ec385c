//! libpcap's functions in front of the system's, for `LD_PRELOAD`. It has no soname: one that is libpcap's would keep the
//! system's libpcap from being loaded for the program.

#[expect(unused_imports, reason = "its exported functions are what this library is")]
use wirelane_libpcap as functions;
