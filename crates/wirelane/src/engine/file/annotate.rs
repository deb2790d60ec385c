//! The one place where a packet of a file gets the fields that the kernel program fills in live capture: by the
//! same C functions, compiled natively.

use wirelane_datapath::layout::RecordHeader;
use wirelane_datapath::native;

use crate::LinkType;

/// Files are hashed alike in every run, so that results compare; nobody floods a worker through a file.
const SEED: u32 = 0;

/// Fills the parsed fields (flow hash, offsets, network layer, protocol, VLAN tag, the parser's flags) of a
/// header whose `link`, `cap_len` and own flags are set already, from the captured bytes.
pub(super) fn annotate(header: &mut RecordHeader, data: &[u8]) {
    let own = header.flags;
    let parsed = native::parse(LinkType::from_code(header.link), data, true);
    native::fill_record(header, &parsed, false, SEED);
    header.flags |= own;
}
