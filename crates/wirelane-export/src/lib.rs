//! Outputs in the formats of existing tools.
//!
//! * [`PcapngWriter`]: one interface per virtual device, nanoseconds, drop counts in statistics blocks.
//! * [`PcapWriter`]: classic pcap with nanoseconds, for one link type.
//! * [`Recording`]: the files of a capture: rotated, kept within limits, compressed, finished atomically, with a thread
//!   and files for each worker, and with counts of written and unwritten packets.
//! * [`flows`]: flows to collectors and files: NetFlow 5 and 9, IPFIX, JSON lines, CSV.
//! * [`http`]: HTTP transactions in the formats of servers' logs.
//! * [`voip`]: calls to HEP receivers and files: HEP v3, JSON lines, CSV, pcapng.
//! * [`EventFiles`]: packets around events, a pcapng file each, with a digest beside it.
//! * [`alarms`]: alarms of probes to files, collectors and syslog.
//! * [`metrics`]: metrics for Prometheus.
//! * [`pipeline`]: from the records of a capture's workers to flows, transactions and calls, and to these outputs.
//! * [`AppendFile`]: a file of lines or messages that survives full disks and logrotate.
//! * [`limit`]: write limits of outputs under hostile traffic.
//! * [`Output`]: the file, pipe or standard output of the writers, opened so that nothing is overwritten by accident
//!   and packets are readable only for their owner.
//!
//! Writers take any [`std::io::Write`], allocate nothing per packet and make several small writes for each: the
//! destination should be buffered, as [`Output`] is.

pub mod alarms;
pub mod append;
pub mod calendar;
pub mod error;
pub mod events;
pub mod flows;
pub mod folder;
pub mod http;
pub mod limit;
pub mod metrics;
pub mod output;
mod parts;
pub mod pipeline;
pub mod recorder;
mod state;
pub mod voip;
pub mod words;

pub use append::{AppendCounts, AppendFile};
pub use calendar::clock;
pub use error::{Error, Result};
pub use events::{EventFile, EventFiles, EventPacket};
pub use limit::{LEAST_RATE, Limiter, OnWire, OutputLimit};
pub use output::{Output, OutputOptions};
pub use recorder::{Recording, RecordingOptions};
pub use state::OutputState;
pub use wirelane_pcapng::{
    Aggregate, Direction, Interface, InterfaceStatistics, PcapWriter, PcapngWriter, SectionInfo,
};
