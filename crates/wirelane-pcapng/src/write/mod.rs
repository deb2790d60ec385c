//! Writing pcap and pcapng.

mod pcap;
mod pcapng;

pub use pcap::PcapWriter;
pub use pcapng::{Direction, Interface, InterfaceStatistics, PcapngWriter, SectionInfo, statistics_block};
