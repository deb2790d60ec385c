//! Marks aggregates of GRO and GSO by a comment of their packet (`opt_comment`), which every reader shows.

use std::io::Write as _;

/// The packets on the wire that an aggregate stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aggregate {
    /// Packets on the wire.
    pub packets: u32,
    /// Bytes of headers before the payload, in each of them.
    pub headers: u16,
    /// Payload bytes of each of them except the last.
    pub segment_size: u16,
}

impl Aggregate {
    /// Longest comment, in bytes.
    pub(crate) const COMMENT: usize = 88;

    /// The comment that marks an aggregate, and its length.
    pub(crate) fn comment(&self) -> ([u8; Aggregate::COMMENT], usize) {
        let mut text = [0; Aggregate::COMMENT];
        let mut rest = &mut text[..];
        let Aggregate { packets, headers, segment_size } = self;
        let written = write!(
            rest,
            "aggregate of {packets} packets, each of {headers} bytes of headers and at most {segment_size} of payload"
        );
        debug_assert!(written.is_ok());
        let len = Aggregate::COMMENT - rest.len();
        (text, len)
    }

    /// Parses the comment of an aggregate; `None` if it does not match the length of the packet.
    pub(crate) fn from_comment(comment: &[u8], wire_len: u32) -> Option<Aggregate> {
        let text = std::str::from_utf8(comment.strip_prefix(b"aggregate of ")?).ok()?;
        let (packets, text) = text.split_once(" packets, each of ")?;
        let (headers, text) = text.split_once(" bytes of headers and at most ")?;
        // The kernel limits the packets of an aggregate (GSO_MAX_SEGS).
        let packets: u16 = packets.parse().ok()?;
        let (headers, segment_size): (u16, u16) =
            (headers.parse().ok()?, text.strip_suffix(" of payload")?.parse().ok()?);
        let payload = wire_len.checked_sub(headers.into())?;
        let agrees = segment_size != 0 && payload.div_ceil(segment_size.into()).max(1) == u32::from(packets);
        agrees.then_some(Aggregate { packets: packets.into(), headers, segment_size })
    }
}
