//! Fills in the fields of a file's packet that the kernel program fills in live capture: by the same C functions,
//! compiled natively. No other place does so.

use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::layout::{Parsed, RecordHeader, flags};
use wirelane_bpf::native;
use wirelane_bpf::rules::{Evaluated, Facts};

use crate::active_rules::Evaluator;
use wirelane_bpf::layout::LinkType;

/// Fixed seed, so that results of different runs compare; hash flooding is not a concern for a file.
const SEED: u32 = 0;

/// Fills the parsed fields (flow hash, offsets, network layer, protocol, VLAN tag, the parser's flags) of a header
/// whose `link`, `cap_len` and own flags are set already, from the captured bytes. Returns the parse result.
pub(super) fn annotate(header: &mut RecordHeader, data: &[u8]) -> Parsed {
    let own = header.flags;
    let parsed = native::parse(LinkType::from_code(header.link), data, true);
    native::fill_record(header, &parsed, false, SEED);
    header.flags |= own;
    parsed
}

/// Evaluates the active rules for a packet of the interface `device`.
pub(super) fn evaluate(
    evaluate: &mut Evaluator,
    device: &str,
    packet: Packet<'_>,
    header: &RecordHeader,
) -> Evaluated {
    let facts = Facts {
        now_ns: header.ts_ns,
        wire_len: header.wire_len,
        queue: header.queue.into(),
        egress: (header.flags & flags::EGRESS != 0).into(),
        seed: SEED,
        ..Facts::default()
    };
    let set = evaluate.begin(device);
    let evaluated = set.map_or_else(Evaluated::default, |set| evaluate.evaluate(&set, packet, &facts));
    evaluate.end();
    evaluated
}
