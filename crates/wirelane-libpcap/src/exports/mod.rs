//! The exported functions.
//!
//! Functions that do not use our handles are forwarded here; the others are in `open.rs` (creating, configuring and
//! closing handles), `state.rs` (properties of a handle) and `packets.rs` (reading and sending). A panic never leaves a
//! function: Rust aborts the process if one would leave an `extern "C"` function.

mod open;
mod packets;
mod state;

use std::ffi::{c_char, c_int, c_long, c_uchar, c_uint, c_void};

use crate::abi::{Dumper, EtherProtocol, Header, Interface, Pcap, Program};
use crate::system::system;

/// Exports functions that are forwarded to the system's libpcap.
macro_rules! export {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "()`: the system's libpcap's.")]
            ///
            /// # Safety
            /// As the function's manual page says.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the caller's part.
                unsafe { (system().$name)($($argument),*) }
            }
        )*
    };
}

crate::functions::forwarded!(export);

/// `pcap_version`: the version text for programs older than `pcap_lib_version()`; libpcap has not changed it since.
#[unsafe(no_mangle)]
pub static pcap_version: [u8; 7] = *b"1.10.3\0";

macro_rules! ether_protocols {
    ($($name:literal $number:literal,)*) => {
        /// `eproto_db`: names of Ethernet protocols, as in libpcap's nametoaddr.c.
        #[unsafe(no_mangle)]
        pub static eproto_db: [EtherProtocol; 13] = [
            $(EtherProtocol { name: concat!($name, "\0").as_ptr().cast(), number: $number },)*
            EtherProtocol { name: std::ptr::null(), number: 0 },
        ];
    };
}

ether_protocols! {
    "aarp" 0x80f3,
    "arp" 0x0806,
    "atalk" 0x809b,
    "decnet" 0x6003,
    "ip" 0x0800,
    "ip6" 0x86dd,
    "lat" 0x6004,
    "loopback" 0x9000,
    "mopdl" 0x6001,
    "moprc" 0x6002,
    "rarp" 0x8035,
    "sca" 0x6007,
}
