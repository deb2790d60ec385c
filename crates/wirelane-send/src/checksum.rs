//! The Internet checksum (RFC 1071), in the two steps of a generator: the constant part of a header is summed once, the
//! variable part is added for every packet.

/// Adds the 16-bit big-endian words of `bytes` to `sum`; an odd last byte counts as the high half of a word.
pub fn add_bytes(sum: u32, bytes: &[u8]) -> u32 {
    let (words, odd) = bytes.as_chunks::<2>();
    let sum = words.iter().fold(u64::from(sum), |sum, word| sum + u64::from(u16::from_be_bytes(*word)));
    let sum = odd.first().map_or(sum, |last| sum + (u64::from(*last) << 8));
    // Two folds bring any 48-bit sum under 2^17; the result stays congruent modulo 0xffff.
    let once = (sum & 0xffff_ffff) + (sum >> 32);
    ((once & 0xffff) + (once >> 16)) as u32
}

/// Folds a sum into 16 bits and complements it: the value of a checksum field.
pub fn finish(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    let twice = (once & 0xffff) + (once >> 16);
    !(twice as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071, section 3: the words 0001 f203 f4f5 f6f7 sum to ddf2.
    #[test]
    fn rfc_1071_example() {
        let sum = add_bytes(0, &[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(finish(sum), !0xddf2);
    }

    #[test]
    fn odd_byte_is_padded_with_zero() {
        assert_eq!(finish(add_bytes(0, &[0x12, 0x34, 0x56])), finish(add_bytes(0, &[0x12, 0x34, 0x56, 0])));
    }

    #[test]
    fn a_long_run_of_ones_does_not_overflow() {
        assert_eq!(finish(add_bytes(0xffff_ffff, &[0xff; 131_072])), 0);
    }
}
