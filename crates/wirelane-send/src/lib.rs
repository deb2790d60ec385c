//! Packet generation and replay: numbered packets at a requested rate, and captures sent again.
//!
//! ```text
//!            Traffic -> Template (one frame, sums of its constant parts); Streams: several of them by weight
//!                           |
//!   thread 0, CPU a: numbers 0, T, 2T, ...      thread 1, CPU b: numbers 1, T+1, ...
//!      live_frames: a program in the kernel        (nothing shared but counters that only
//!      or packet_socket: AF_PACKET, paced           their own thread writes)
//!      by a Pacer
//!                           |
//!                        device  ->  its own counters, read before and after
//! ```
//!
//! Invariants:
//! * Packet `n` has the same bytes with every method and thread, except for the time of sending in stamped packets.
//! * Each number is handed to the kernel at most once, and the numbers of one thread have no gap.
//! * The report distinguishes three values: *asked* (requested), *offered* (handed to the kernel), and *sent* and
//!   *dropped* (the device's counters). It also states if the generator did not reach its rate.

mod account;
mod checksum;
mod cpu;
mod error;
mod generator;
mod interface;
mod layers;
pub mod live_frames;
mod mac;
mod pace;
mod packet;
mod packet_socket;
mod pattern;
mod plan;
mod replay;
mod rewrite;
mod sides;
mod stamp;
mod streams;
mod template;
mod wake;
mod xsk_socket;

use std::time::Duration;

pub use account::{Interval, Report, ThreadReport};
pub use error::{Error, Result};
pub use generator::{generate, generate_confined};
pub use interface::{Counters, Gauge, Interface};
pub use mac::MacAddr;
pub use pace::{Clock, MOST_CATCH_UP, Pacer, Step, SystemClock};
pub use packet::{Packet, Sizes, Vlans, streams_of};
pub use pattern::{DST, IMIX, MOST_SIZES, MOST_TAGS, Pattern, SMALLEST_FRAME, SRC, Traffic, Transport};
pub use plan::Plan;
pub use replay::{
    DeviceReport, Frame, FrameReader, ReplayPlan, ReplayReport, ReplaySpeed, replay, replay_confined,
};
pub use rewrite::{MapAddress, MapPort, Rewrite};
pub use stamp::{MAGIC, NUMBER_BYTES, STAMP_BYTES, Stamp, numbered};
pub use streams::{MOST_STREAMS, MOST_WEIGHT};
pub use template::Template;

/// Path of the frames to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Live frames if they work and the rate is high enough, otherwise a socket; the report has the choice and the
    /// reason.
    Auto,
    /// XDP live frames, inside the kernel (Linux 5.18, CAP_BPF and CAP_NET_ADMIN).
    Kernel,
    /// An AF_PACKET socket (CAP_NET_RAW).
    Socket,
    /// An AF_XDP socket per thread, the first on TX queue 0, the second on 1 (CAP_NET_RAW).
    Xsk,
}

/// Share of one thread: the numbers `first`, `first + stride`, and so on.
#[derive(Clone, Copy, Debug)]
struct Share {
    first: u64,
    stride: u64,
    /// Number of packets; `u64::MAX` for no limit.
    limit: u64,
    /// Packets per second of this thread; `None`: full speed.
    pps: Option<f64>,
}

impl Share {
    /// The flows of this thread among all: the first one, of which every `stride`-th follows, and their number. So each
    /// flow is sent by one thread, in order.
    fn flows(&self, all: u32) -> (u64, u64) {
        let first = self.first % self.stride;
        (first, u64::from(all).saturating_sub(first).div_ceil(self.stride))
    }
}

/// Progress of one thread.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Packets handed to the kernel.
    offered: u64,
    /// Number of retries because the kernel had no space for a packet.
    refused: u64,
    /// Packets that were due and were skipped.
    given_up: u64,
    /// Packets that the driver has completed; only with zero copy.
    completed: u64,
    /// Time of the first packet, CLOCK_MONOTONIC.
    first_ns: u64,
    /// Time of the latest packet.
    last_ns: u64,
}

/// Interval at which a waiting thread checks whether it has to stop.
const LOOK_AT_STOP: Duration = Duration::from_millis(50);

/// Error for a device that does not accept frames from XDP.
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
