//! libpcap's functions as a library with that name, for `-lpcap`, `LD_LIBRARY_PATH` and similar uses.

#[expect(unused_imports, reason = "its exported functions are what this library is")]
use wirelane_libpcap as functions;
