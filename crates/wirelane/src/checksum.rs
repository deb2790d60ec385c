//! Checksums of TCP and UDP that the sender has left to the card.
//!
//! A host whose card computes checksums fills the field with the sum over the pseudo-header (RFC 9293, section 3.1; RFC
//! 8200, section 8.1) and hands the packet on (`CHECKSUM_PARTIAL`, include/linux/skbuff.h). tc sees such packets on
//! every device, since the kernel computes missing checksums only after tc. A file with them is misread by programs
//! that skip packets with a wrong checksum, as Suricata does by default.

use wirelane_bpf::layout::{NO_OFFSET, flags, l3};

use std::ops::Range;

use crate::Record;

/// A checksum to write in place of one that was left to the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// Offset of the checksum in [`Record::data`].
    pub at: usize,
    /// Bytes of the checksum.
    pub bytes: [u8; 2],
}

/// A checksum that was left to the card, before the sum over the packet is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingChecksum {
    at: usize,
    covered: Range<usize>,
    /// Sum over the pseudo-header, without the content of the field.
    start: u64,
    protocol: u8,
}

impl MissingChecksum {
    /// The part of [`Record::data`] that the checksum covers: pass its sum to [`MissingChecksum::of`].
    pub fn covered(&self) -> Range<usize> {
        self.covered.clone()
    }

    /// The checksum, from the sum over [`MissingChecksum::covered`] ([`copy_with_sum`]).
    pub fn of(&self, sum: u64) -> Checksum {
        let value = match !fold(self.start + sum) {
            // 0 means that UDP has no checksum.
            0 if self.protocol == UDP => 0xffff,
            value => value,
        };
        Checksum { at: self.at, bytes: value.to_be_bytes() }
    }
}

/// Bytes that are copied before they are added: they are still in the first-level cache then. A multiple of 4.
const COPY_BLOCK: usize = 8 << 10;

/// Appends bytes, and returns the sum of their 16-bit words for [`MissingChecksum::of`]. Reads memory once.
pub fn copy_with_sum(bytes: &[u8], to: &mut Vec<u8>) -> u64 {
    let mut all = 0;
    for block in bytes.chunks(COPY_BLOCK) {
        to.extend_from_slice(block);
        all += sum(block);
    }
    all
}

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Sum of 16-bit words in network order, one's complement (RFC 1071). An odd byte at the end is the upper half of a word.
///
/// Words are added in the machine's order and swapped at the end (RFC 1071, section 2 B). Additions wrap, because checks for
/// overflow keep the compiler from using vectors: 2^32 words would have to be added for one.
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let whole = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from(u32::from_ne_bytes(*word))));
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    u64::from(u16::from_be(fold(whole + u64::from(u32::from_ne_bytes(last)))))
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The sum over the pseudo-header of an IP packet, whose transport header is of this protocol, and the bytes that follow
/// its IP headers.
fn pseudo_header(version: u8, network: &[u8], to_transport: usize, protocol: u8) -> Option<(u64, usize)> {
    let half =
        |at: usize| network.get(at..at + 2).map(|bytes| usize::from(bytes[0]) << 8 | usize::from(bytes[1]));
    let (addresses, end) = match version {
        l3::IPV4 => (network.get(12..20)?, half(2)?),
        l3::IPV6 => (network.get(8..40)?, half(4)? + 40),
        _ => return None,
    };
    let length = end.checked_sub(to_transport)?;
    Some((sum(addresses) + u64::from(protocol) + length as u64, length))
}

impl Record<'_> {
    /// The checksum of a whole TCP or UDP packet whose sender has left it to the card. `None`: as of
    /// [`Record::open_checksum`].
    #[inline]
    pub fn missing_checksum(&self) -> Option<Checksum> {
        let missing = self.open_checksum()?;
        Some(missing.of(sum(self.data().get(missing.covered())?)))
    }

    /// The same before the sum over the packet is known. `None`: the packet has its checksum, needs none, or was not
    /// captured whole.
    #[inline]
    pub fn open_checksum(&self) -> Option<MissingChecksum> {
        let header = self.header();
        let field = match header.proto {
            TCP => 16,
            UDP => 6,
            _ => return None,
        };
        if header.l4_off == NO_OFFSET || header.l3_off >= header.l4_off || header.flags & flags::FRAGMENT != 0
        {
            return None;
        }
        let (network, transport) = (usize::from(header.l3_off), usize::from(header.l4_off));
        let at = transport + field;
        let there = u16::from_be_bytes(self.data().get(at..at + 2)?.try_into().ok()?);
        let (pseudo, length) =
            pseudo_header(header.l3, self.data().get(network..)?, transport - network, header.proto)?;
        if there != fold(pseudo) {
            return None;
        }
        let covered = transport..transport + length;
        self.data().get(covered.clone())?;
        // The content of the field counts as 0.
        Some(MissingChecksum { at, covered, start: pseudo + u64::from(!there), protocol: header.proto })
    }
}

#[cfg(test)]
mod tests {
    use super::{COPY_BLOCK, copy_with_sum, fold, sum};

    #[test]
    fn sums_are_those_of_16_bit_words() {
        let bytes: Vec<u8> = (0..2000u32).map(|n| (n * n + n / 7) as u8).collect();
        for end in 0..bytes.len() {
            let bytes = &bytes[end / 3..end];
            let words =
                bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0)));
            assert_eq!(fold(sum(bytes)), fold(words.sum()), "{} bytes", bytes.len());
        }
    }

    #[test]
    fn copies_have_the_sum_of_the_bytes() {
        let bytes: Vec<u8> = (0..3 * COPY_BLOCK as u32 + 5).map(|n| (n * n + n / 7) as u8).collect();
        for length in [0, 1, 2, 1447, COPY_BLOCK - 1, COPY_BLOCK, COPY_BLOCK + 1, bytes.len()] {
            let mut copy = vec![7];
            let all = copy_with_sum(&bytes[..length], &mut copy);
            assert_eq!((fold(all), &copy[1..]), (fold(sum(&bytes[..length])), &bytes[..length]), "{length}");
        }
    }
}
