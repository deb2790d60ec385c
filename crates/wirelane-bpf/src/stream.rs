//! RTP streams that are measured in the kernel, `bpf/lib/stream.h`: the layout of a capture program's maps.

pub use crate::abi::{Stream as Measured, StreamAt, StreamKey};
