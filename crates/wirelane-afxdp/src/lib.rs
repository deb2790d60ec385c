//! AF_XDP sockets (Documentation/networking/af_xdp.rst): sockets over shared memory, their rings, and sending.
//!
//! ```text
//!  umem.rs     the memory that holds packets
//!  socket.rs   one socket: bound to its queue, its statistics
//!  rings.rs    a socket's four rings
//!  sender.rs   sending: frames written into the memory, and handed over
//! ```
//! Zero copy is requested explicitly, and [`XskSocket::is_zero_copy`] reports the mode in use: the kernel's own default
//! falls back silently. Packets in several buffers, shared memory, wake-ups and busy polling are supported.
//!
//! An XDP program, which is not part of this crate, redirects packets into the sockets.

mod error;
pub mod rings;
pub mod sender;
pub mod socket;
pub mod umem;

pub use error::{Error, Result};
pub use sender::Sender;
pub use socket::{Mode, Purpose, XskSocket, is_no};
pub use umem::{FRAME, Umem};

/// Whether the driver writes packets into the UMEM itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// The kernel copies each packet: works with every driver.
    #[default]
    Never,
    /// Zero copy if the driver supports it, otherwise copies.
    Auto,
    /// Zero copy; opening the socket fails if the driver does not support it.
    Require,
}
