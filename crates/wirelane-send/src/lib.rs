//! Sending packets: numbered ones at a stated rate, and captures replayed.
//!
//! ```text
//!            Traffic -> Template (one frame, sums of its constant parts)
//!                           |
//!   thread 0, CPU a: numbers 0, T, 2T, ...      thread 1, CPU b: numbers 1, T+1, ...
//!      live_frames: a program in the kernel        (nothing shared but counters that only
//!      or packet_socket: AF_PACKET, paced           their own thread writes)
//!      by a Pacer
//!                           |
//!                        device  ->  its own counters, read before and after
//! ```
//!
//! What holds:
//! * Packet `n` is the same bytes whichever method or thread sends it.
//! * Each number is handed to the kernel at most once, and the numbers of one thread leave no gap.
//! * The report tells three things apart: what was *asked*, what was *offered* (handed to the kernel), and
//!   what the device says it *sent* and *dropped*. A generator that fell short of its rate says so.

mod account;
mod checksum;
mod cpu;
mod error;
mod generator;
mod interface;
pub mod live_frames;
mod mac;
mod pace;
mod packet_socket;
mod pattern;
mod plan;
mod replay;
mod wake;
mod xsk_socket;

use std::time::Duration;

pub use account::{Interval, Report, ThreadReport};
pub use error::{Error, Result};
pub use generator::{generate, generate_confined};
pub use interface::Interface;
pub use mac::MacAddr;
pub use pace::{Clock, MOST_CATCH_UP, Pacer, Step, SystemClock};
pub use pattern::{
    IMIX, MAGIC, MOST_SIZES, NUMBER_BYTES, Pattern, SMALLEST_FRAME, Template, Traffic, Transport, numbered,
};
pub use plan::Plan;
pub use replay::{Frame, FrameReader, ReplayPlan, ReplayReport, ReplaySpeed, replay, replay_confined};

/// How frames get to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Live frames where they work and the rate is worth it, else a socket; the report says which and why.
    Auto,
    /// XDP live frames, inside the kernel (Linux 5.18, CAP_BPF and CAP_NET_ADMIN).
    Kernel,
    /// An AF_PACKET socket (CAP_NET_RAW).
    Socket,
    /// An AF_XDP socket per thread, the first on TX queue 0, the second on 1 (CAP_NET_RAW).
    Xsk,
}

/// What one thread sends: the numbers `first`, `first + stride`, and so on.
#[derive(Clone, Copy, Debug)]
struct Share {
    first: u64,
    stride: u64,
    /// How many packets; `u64::MAX` for no end.
    limit: u64,
    /// This thread's packets per second; none: full speed.
    pps: Option<f64>,
}

/// How far one thread has come.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Packets handed to the kernel.
    offered: u64,
    /// Times that the kernel had no room and the packet was tried again.
    refused: u64,
    /// Packets that were due and were given up.
    given_up: u64,
    /// Packets that the driver has given back as sent; by zero copy only.
    completed: u64,
    /// When the first packet was made, CLOCK_MONOTONIC.
    first_ns: u64,
    /// When the latest was handed over.
    last_ns: u64,
}

/// How often a waiting thread looks whether it shall stop.
const LOOK_AT_STOP: Duration = Duration::from_millis(50);

/// The device cannot take frames from XDP.
fn refuses_live_frames(device: &str) -> Error {
    Error::BadOption {
        option: "--method",
        reason: format!(
            "{device} takes no frames from inside the kernel (XDP redirect); use --method socket. Where it is one \
             end of a veth pair, its peer needs GRO or an XDP program for that: ethtool -K PEER gro on, in the \
             peer's network namespace"
        ),
    }
}
