//! Calls: SIP signalling, the RTP streams that it negotiates, and their quality.
//!
//! ```text
//! Record -> Monitor -> IP fragments, TCP segments -> sip -> Call (state, times) -> sdp -> places where media goes
//!                   -> UDP to or from such a place -> Stream (bpf/lib/rtp.h) and RTCP
//!           calls that are over, with their streams -> CallRecord; RTP without signalling -> Stream
//! ```
//!
//! Signalling and media of one call have different addresses and ports, so steering by flow separates them: one monitor
//! has all calls. With several workers, these measure the streams ([`Exchange`]). Statistics are computed by
//! `bpf/lib/rtp.h`.
//!
//! # What is counted
//! Every packet is in exactly one of [`Counts::signalling_packets`], `rtp_packets`, `rtcp_packets`, `fragment_packets`
//! and `other_packets`. Every RTP packet is in exactly one stream that was handed out, or in
//! [`Counts::rtp_left_out`], or [`Counts::rtp_malformed`].
//!
//! # Memory
//! A monitor takes what it is given and no more. Where that is full, these go first: RTP without signalling that has not proved
//! to be any, calls that are over, calls that nobody has answered; then what has been silent longest
//! ([`Ending::Resources`]). So a flood of INVITEs costs each other their places.
mod call;
mod calls;
mod content;
pub mod counts;
mod exchange;
mod expiry;
mod kept;
mod lent;
mod media;
mod monitor;
mod offloaded;
pub mod quality;
pub mod rtcp;
pub mod sdp;
mod settings;
pub mod sip;
mod stream;
mod table;
mod tcp;

pub use call::{Call, CallRecord, Ending, State, Way};
pub use counts::Counts;
pub use exchange::{Exchange, MonitorEnded, WorkerEnd};
pub use kept::{Captured, Keep, Kept};
pub use monitor::{Finished, Monitor, Signal};
pub use settings::{LEAST_MEMORY, Settings};
pub use stream::{Interval, MediaAddress, Party, Reported, Stream};
pub use wirelane_bpf::rtp::RtpStream;
