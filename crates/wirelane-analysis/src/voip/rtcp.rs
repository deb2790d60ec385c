//! RTCP (RFC 3550, 6): sender and receiver reports.

/// A sender report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// SSRC of the sender.
    pub ssrc: u32,
    /// Middle 32 bits of its NTP time, which receivers return.
    pub ntp_middle: u32,
    /// Packets that it has sent.
    pub packets: u32,
}

/// A receiver report block about a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// SSRC of the stream.
    pub ssrc: u32,
    /// Fraction lost since the last report, in 1/256.
    pub fraction: u8,
    /// Packets lost since the start; negative if there were duplicates.
    pub lost: i32,
    /// Interarrival jitter in units of the timestamp.
    pub jitter: u32,
    /// Middle 32 bits of the NTP time of the last sender report; 0: none.
    pub last_sr: u32,
    /// Delay since that sender report, in 1/65536 s.
    pub delay: u32,
}

/// Contents of a compound packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Sender reports.
    pub sent: Vec<Sent>,
    /// Receiver report blocks.
    pub received: Vec<Received>,
    /// Whether a participant leaves.
    pub bye: bool,
}

/// Whether the second byte is in the range of RTCP rather than RTP (RFC 5761, 4).
pub fn may_be(payload: &[u8]) -> bool {
    matches!(payload, [first, 192..=223, ..] if first >> 6 == 2)
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

/// Parses a compound packet. `None`: a length in it is wrong, or it does not begin as required (RFC 3550, A.2; or a
/// single packet with RFC 5506: a report or feedback).
pub fn parse(data: &[u8]) -> Option<Reports> {
    let mut reports = Reports::default();
    let mut rest = data;
    if !may_be(data) {
        return None;
    }
    while !rest.is_empty() {
        let [first, kind, high, low, ..] = rest else { return None };
        let length = 4 * (usize::from(u16::from_be_bytes([*high, *low])) + 1);
        if first >> 6 != 2 || !(192..=223).contains(kind) {
            return None;
        }
        let packet = rest.get(..length)?;
        let count = usize::from(first & 0x1f);
        let blocks = match kind {
            200 => {
                reports.sent.push(Sent {
                    ssrc: word(packet, 4)?,
                    ntp_middle: word(packet, 8)? << 16 | word(packet, 12)? >> 16,
                    packets: word(packet, 20)?,
                });
                28
            }
            201 => {
                word(packet, 4)?;
                8
            }
            203 => {
                reports.bye = true;
                length
            }
            _ => length,
        };
        for block in 0..count {
            let at = blocks + 24 * block;
            if at >= length {
                // Count fields of other packet types have other meanings.
                if matches!(kind, 200 | 201) {
                    return None;
                }
                break;
            }
            let loss = word(packet, at + 4)?;
            reports.received.push(Received {
                ssrc: word(packet, at)?,
                fraction: (loss >> 24) as u8,
                // A signed number of 24 bits.
                lost: ((loss << 8) as i32) >> 8,
                jitter: word(packet, at + 12)?,
                last_sr: word(packet, at + 16)?,
                delay: word(packet, at + 20)?,
            });
        }
        rest = &rest[length..];
    }
    Some(reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_report_with_a_block_and_a_bye() {
        let mut data = vec![0x81, 200, 0, 12];
        for word in [1u32, 0x0001_2345, 0x6789_0000, 99, 7, 700, 2, 0x80ff_fffe, 5, 30, 0x2345_6789, 65_536] {
            data.extend(word.to_be_bytes());
        }
        data.extend([0x81, 203, 0, 1, 0, 0, 0, 1]);
        let reports = parse(&data).unwrap();
        assert_eq!(reports.sent, [Sent { ssrc: 1, ntp_middle: 0x2345_6789, packets: 7 }]);
        let received =
            Received { ssrc: 2, fraction: 0x80, lost: -2, jitter: 30, last_sr: 0x2345_6789, delay: 65_536 };
        assert_eq!((reports.received, reports.bye), (vec![received], true));
        for length in 1..data.len() {
            if length != 52 {
                assert_eq!(parse(&data[..length]), None, "{length}");
            }
        }
    }
}
