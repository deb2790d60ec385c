//! Writing pcap and pcapng.

mod pcap;
mod pcapng;

pub use pcap::{BEFORE_DATA as PCAP_BEFORE_DATA, PcapWriter};
pub use pcapng::{
    BEFORE_DATA as PCAPNG_BEFORE_DATA, Direction, Interface, InterfaceStatistics, PcapngWriter, SectionInfo,
    statistics_block,
};
