//! Multi-core packet capture for stock Linux: every RX queue of a device, several applications on one device, and
//! an account of every packet.
//!
//! # The problem
//! A card distributes received packets over several RX queues, and the kernel polls them on several cores. A capture
//! that funnels them into one socket loses this advantage: the cores contend for one lock, and in the end it is unknown
//! which packets were lost where. Kernel modules have solved this, and break at each new kernel.
//!
//! # The path of a packet
//! ```text
//! RX queue -> XDP or tc program: parse once -> for each group: steer -> ring (the only copy)  -> host stack
//!                                                                        |
//!                                        Worker::next_batch -> Batch -> Record, read in place
//!                                                                        |
//!                         Capture::ledger: seen = filtered + absorbed + shed + lost + delivered
//! ```
//! * A **virtual device** is one RX queue opened like a device: `eth1@2`. `eth1@0-3` are four, `eth1` is all of them;
//!   [`Selector`] parses these names and [`Device`] describes the devices.
//! * A [`Builder`] starts a [`Capture`]: an eBPF program is attached to the device's hook, or the one that is already
//!   there gets one more **group**. Groups of one process or of many each get their own copy, and the end of one group,
//!   for whatever reason, does not affect the others.
//! * Between each **lane** (an RX queue, or a CPU under generic XDP and tc) and each [`Worker`] there is one **ring**
//!   with one writer and one reader. The program copies the packet into it once; the worker reads it there. No step
//!   takes a lock, allocates, or makes a system call per packet.
//! * **Steering** chooses the worker, by flow (both directions of a conversation go to one worker) or by RX queue, so
//!   the number of workers is independent of the number of queues.
//! * Packets go on to the host's stack as usual, unless [`Builder::exclusive`] keeps them from it.
//! * The **[`Ledger`]** records the outcome of every packet, for each virtual device and each worker. Its sums hold
//!   exactly at every close, under any load. A worker that is too slow loses packets, and they are counted.
//!
//! Other [engines](Engine) give the same records: packet sockets where BPF is not allowed, AF_XDP for exclusive use of
//! a device. A pcap or pcapng file ([`Capture::open_file`]) gives the same records and the same ledger without any
//! privilege, and the crate `wirelane-send` generates numbered packets to measure all this.
//!
//! # Example
//! The file `examples/count.rs`; it needs root and runs with `cargo run --release --example count -- eth1`.
//! ```no_run
#![doc = include_str!("../examples/count.rs")]
//! ```
//!
//! # Requirements
//! Linux 6.1 or newer with type information (BTF), and for live capture root or the capabilities in
//! [`privilege::Capability::CAPTURE`]. The [`Error`] names missing requirements.

mod active_rules;
pub mod application;
mod backend;
mod balance;
mod batch;
mod broker;
mod builder;
mod capture;
pub mod checksum;
mod choose;
mod clock;
mod egress_devices;
mod engine;
mod error;
pub mod escape;
mod file;
mod flow_cache;
pub mod groups;
mod headers;
mod hook;
mod http_heads;
mod interfaces;
mod kernel;
pub mod ledger;
mod live;
mod load;
mod maintenance;
mod meter;
mod offloads;
mod polling;
mod record;
mod rules_startup;
mod said;
mod settings;
mod sockets;
mod state;
mod tally;
mod watch;
mod worker;

pub use active_rules::{
    Changed, ExactLine, Hits, PacketToExplain, PluginLine, RuleLine, RuleStats, RulesCapacity, Searches,
};
pub use balance::BalanceReport;
pub use batch::Batch;
pub use builder::Builder;
pub use capture::{Capture, PluginCounts};
pub use checksum::Checksum;
pub use device::{Device, Selector, XdpMode};
pub use egress_devices::EgressLine;
pub use engine::file::{FileOptions, FileSource, InterfaceCounters};
pub use engine::ring::memory::keep_over_fork as keep_captures_over_fork;
pub use error::{Error, Result};
pub use flow_cache::{FlowCacheLine, Intervals, KernelFlows};
pub use headers::Headers;
pub use hook::HookPoint;
pub use http_heads::{HttpOffload, KernelHttp, PendingSkips};
pub use interfaces::{CaptureDevice, Interface, Interfaces};
pub use kernel::{Feature, KernelFeatures};
pub use ledger::Ledger;
pub use load::spin;
pub use meter::{Hand, Meter, StreamEnds};
pub use record::Record;
pub use settings::{
    Balance, Clock, DEFAULT_RING_SIZE, Direction, Engine, HookChoice, Steering, Watermarks, ZeroCopy,
};
pub use state::{STEERING_PROGRAM, StateEntry, StateReader};
pub use watch::Ending;
pub use wirelane_bpf::flow::Timeouts as FlowTimeouts;
pub use wirelane_bpf::flow_cache::FlowPart;
pub use wirelane_bpf::http::SkippedBytes;
pub use wirelane_bpf::layout::{Ip, LinkType, RecordHeader, flags, ip_flags, l3};
pub use wirelane_bpf::linktype;
pub use wirelane_control as control;
pub use wirelane_filter as filter;
pub use wirelane_netdev as device;
pub use wirelane_netdev::topology;
pub use wirelane_pcapng::{FileInput, FileInterface, FileProgress, TimestampResolution};
pub use wirelane_privsep::{Error as SandboxError, capability as privilege, sandbox};
pub use wirelane_rules as rules;
pub use wirelane_tune as tune;
pub use worker::{Timebase, Worker};
