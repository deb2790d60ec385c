//! libpcap's functions on Wirelane's engines: programs written for libpcap capture with Wirelane without a change.
//!
//! ```text
//!   program -> pcap_...() of ours -+- a handle of ours? -> handle -> wirelane::Capture
//!                                  '- else              -> the same function of the system's libpcap
//!
//!  functions.rs  the signatures, for macros
//!  abi.rs        libpcap's types and numbers
//!  system.rs     the system's libpcap, found and opened
//!  names.rs      which devices are ours
//!  handle.rs     a handle of ours: what was asked for, and what it is once it is activated
//!  activate.rs   starting the capture, and what its errors are in libpcap's words
//!  share.rs      groups that several processes join: eth1:ids/4
//!  read.rs       dispatch, loop, next; stats
//!  inject.rs     sending
//!  list.rs       virtual devices for pcap_findalldevs()
//!  exports/      the exported functions: thin, with all that C demands
//! ```
//!
//! Two libraries are built from this crate: `dropin/` with libpcap's soname, and `preload/` without. Both export
//! exactly the functions that Debian's libpcap 1.10.3 exports.
//!
//! **The owner of a handle** is visible in its first word: our handles begin with a word that is not an address, and
//! libpcap's with the address of a function. This is needed because the system's libpcap calls its own functions
//! through the dynamic linker, which finds ours. Everything except live capture by our engines is left to the system's
//! libpcap: files, compiling filters, names, and devices that are not network devices.
//!
//! **In a child process** that was forked after a handle was opened, the handle can still be used, as with libpcap:
//! many programs become daemons after they have opened it.

mod abi;
mod activate;
mod exports;
mod functions;
mod handle;
mod inject;
mod list;
mod names;
mod read;
mod share;
mod system;
