//! The generator: numbered packets at a stated rate, and captures replayed.
//!
//! ```text
//!            Traffic -> Template (one frame, sums of its constant parts)
//!                           |
//!   thread 0, CPU a: numbers 0, T, 2T, ...      thread 1, CPU b: numbers 1, T+1, ...
//!      Pacer: how many packets are due?            (nothing shared but counters that only
//!      Sender: LiveFrames (kernel) or               their own thread writes)
//!              PacketSocket (AF_PACKET)
//!                           |
//!                        device  ->  its own counters, read before and after
//! ```
//!
//! What holds:
//! * Packet `n` is the same bytes whichever method or thread sends it ([`pattern`]).
//! * Each number is handed to the kernel at most once, and the numbers of one thread leave no gap.
//! * The report tells three things apart: what was *asked*, what was *offered* (handed to the kernel), and
//!   what the device says it *sent* and *dropped*. A generator that fell short of its rate says so.

mod account;
mod checksum;
mod generator;
mod interface;
mod kernel;
mod live_frames;
mod mac;
mod pace;
mod packet_socket;
mod pattern;
mod replay;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use account::{Interval, Report, ThreadReport};
pub use generator::{Plan, allowed_cpus, generate};
pub use interface::Interface;
pub use mac::MacAddr;
pub use pace::{Clock, MOST_CATCH_UP, Pacer, Step, SystemClock};
pub use pattern::{
    IMIX, MAGIC, MOST_SIZES, NUMBER_BYTES, Pattern, SMALLEST_FRAME, Template, Traffic, Transport, numbered,
};
pub use replay::{Frame, FrameReader, ReplayPlan, ReplayReport, ReplaySpeed, replay};

use crate::{Error, Result};

/// How frames get to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Live frames where they work and the rate is worth it, else a socket; the report says which and why.
    Auto,
    /// XDP live frames, inside the kernel (Linux 5.18, CAP_BPF and CAP_NET_ADMIN).
    Kernel,
    /// An AF_PACKET socket (CAP_NET_RAW).
    Socket,
}

/// The numbers that one thread sends: `first`, `first + stride`, and so on.
#[derive(Clone, Copy, Debug)]
struct Share {
    first: u64,
    stride: u64,
}

/// What a call to [`Sender::send`] did.
#[derive(Clone, Copy, Debug, Default)]
struct Handed {
    /// Packets that the kernel took.
    packets: u64,
    /// Times that it had no room and the packet was tried again.
    refused: u64,
}

/// One thread's way to the device.
trait Sender {
    /// The most packets that one call handles.
    fn most(&self) -> u64;
    /// Hands over the next packets; fewer than asked for only when `stop` was set meanwhile.
    fn send(&mut self, at_most: u64, stop: &AtomicBool) -> Result<Handed>;
}

/// How often a waiting thread looks whether it shall stop.
const LOOK_AT_STOP: Duration = Duration::from_millis(50);

/// The device cannot take frames from XDP.
fn refuses_live_frames(device: &str) -> Error {
    Error::BadOption {
        option: "--method",
        reason: format!(
            "{device} takes no frames from inside the kernel (XDP redirect); use --method socket. On a veth pair \
             both ends need GRO or an XDP program for it: ethtool -K {device} gro on, and the same for its peer \
             in the peer's network namespace"
        ),
    }
}
