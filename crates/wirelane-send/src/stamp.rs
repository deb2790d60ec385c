//! Numbers and times in the payload of generated packets.
//!
//! ```text
//! numbered:  "WLn1" | number 8
//! stamped:   "WLn2" | number 8 | time of sending 8, UTC in ns | stream 2
//! ```
//!
//! All integers are big-endian. They begin after the UDP or TCP header; zeros follow.

/// The four bytes in front of the number of a packet without a time.
pub const MAGIC: [u8; 4] = *b"WLn1";

/// The four bytes in front of the number of a packet with a time and a stream.
pub const STAMP_MAGIC: [u8; 4] = *b"WLn2";

/// Bytes of magic and number.
pub const NUMBER_BYTES: usize = MAGIC.len() + size_of::<u64>();

/// Bytes of magic, number, time and stream.
pub const STAMP_BYTES: usize = NUMBER_BYTES + size_of::<u64>() + size_of::<u16>();

/// Number, stream and time of a generated packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The packet's number in its stream, from 0.
    pub number: u64,
    /// The stream; 0 for packets without one.
    pub stream: u16,
    /// UTC nanoseconds since 1970 by the sender's clock, read just before the packet was handed to the kernel; `None`
    /// for packets without a time.
    pub sent_ns: Option<u64>,
}

impl Stamp {
    /// Reads the stamp from a packet's transport payload; `None` for a packet of another sender.
    pub fn read(payload: &[u8]) -> Option<Stamp> {
        let (magic, rest) = payload.split_first_chunk::<4>()?;
        let (number, rest) = rest.split_first_chunk::<8>()?;
        let number = u64::from_be_bytes(*number);
        match *magic {
            MAGIC => Some(Stamp { number, stream: 0, sent_ns: None }),
            STAMP_MAGIC => {
                let (time, rest) = rest.split_first_chunk::<8>()?;
                let stream = rest.first_chunk::<2>()?;
                let sent_ns = Some(u64::from_be_bytes(*time));
                Some(Stamp { number, stream: u16::from_be_bytes(*stream), sent_ns })
            }
            _ => None,
        }
    }
}

/// The number of a generated packet, read from its transport payload; `None` if the packet has no number.
pub fn numbered(payload: &[u8]) -> Option<u64> {
    Stamp::read(payload).map(|stamp| stamp.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_stamps_are_read() {
        let mut payload = MAGIC.to_vec();
        payload.extend_from_slice(&7_u64.to_be_bytes());
        assert_eq!(Stamp::read(&payload), Some(Stamp { number: 7, stream: 0, sent_ns: None }));
        assert_eq!(Stamp::read(&payload[..11]), None);
        payload[..4].copy_from_slice(&STAMP_MAGIC);
        payload.extend_from_slice(&99_u64.to_be_bytes());
        payload.extend_from_slice(&258_u16.to_be_bytes());
        assert_eq!(Stamp::read(&payload), Some(Stamp { number: 7, stream: 258, sent_ns: Some(99) }));
        for cut in 0..STAMP_BYTES {
            assert_eq!(Stamp::read(&payload[..cut]), None, "{cut}");
        }
        payload[0] ^= 1;
        assert_eq!(numbered(&payload), None);
    }
}
