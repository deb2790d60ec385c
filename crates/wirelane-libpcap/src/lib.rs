//! libpcap's functions over Wirelane's engines: programs that were written for libpcap capture by them without a change.
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
//! Two libraries are made of this: `dropin/` with libpcap's soname, and `preload/` without. Both export what Debian's
//! libpcap 1.10.3 does and nothing else.
//!
//! **Whose a handle is** it says itself: ours begins with a word that is no address, and libpcap's with the address of a
//! function. It has to, because the system's libpcap calls its own functions through the dynamic linker, which finds ours.
//! What is not about live capture by our engines is not done here: files, compiling filters, names, and the devices that
//! are no network devices are the system's libpcap's.
//!
//! **In a process that is forked** from the one that opened a handle, the handle can be used further, as libpcap's can:
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
