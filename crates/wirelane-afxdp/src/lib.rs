//! AF_XDP sockets (Documentation/networking/af_xdp.rst): sockets over shared memory, their rings, and sending.
//!
//! ```text
//!  umem.rs     the memory that holds packets
//!  socket.rs   one socket: bound to its queue, its statistics
//!  rings.rs    a socket's four rings
//!  sender.rs   sending: frames written into the memory, and handed over
//! ```
//! Zero copy is asked for explicitly, and what was got is told ([`XskSocket::is_zero_copy`]): the kernel's own default falls
//! back silently. Packets in several buffers, shared memory, wake-ups and busy polling are there.
//!
//! What puts packets into the sockets is an XDP program, which is not part of this crate.

mod error;
pub mod rings;
pub mod sender;
pub mod socket;
pub mod umem;

pub use error::{Error, Result};
pub use sender::Sender;
pub use socket::{Mode, Purpose, XskSocket, is_no};
pub use umem::{FRAME, Umem};

/// Whether the card's driver is to put packets into our memory itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroCopy {
    /// The kernel copies: works with every driver.
    #[default]
    Never,
    /// Where the driver can.
    Auto,
    /// Or the capture fails.
    Require,
}
