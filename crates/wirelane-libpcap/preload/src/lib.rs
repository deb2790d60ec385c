//! libpcap's functions before the system's, for `LD_PRELOAD`. The library has no soname: with libpcap's soname, the
//! system's libpcap would not be loaded for the program.

#[expect(unused_imports, reason = "its exported functions are what this library is")]
use wirelane_libpcap as functions;
