//! HEP v3, the protocol of HOMER (sipcapture/HEP, revision 37): a packet, its addresses and time, and its call, in
//! chunks.

use std::net::IpAddr;

use wirelane_analysis::voip::{Signal, Stream, Way};

use super::lines::stream_text;

/// Payload protocols.
const SIP: u8 = 1;
const RTP_REPORT: u8 = 0x22;

fn chunk(out: &mut Vec<u8>, kind: u16, data: &[u8]) {
    // Vendor 0: the protocol's standard chunks.
    out.extend([0, 0]);
    out.extend(kind.to_be_bytes());
    // Lengths fit: payloads come from packets, and are limited to that.
    out.extend(((data.len() + 6) as u16).to_be_bytes());
    out.extend(data);
}

/// Maximum bytes of a payload: a datagram's, less the other chunks.
const MOST_PAYLOAD: usize = 64_000;

fn message(
    way: &Way,
    protocol: u8,
    agent: u32,
    payload: &[u8],
    correlation: &str,
    mos: Option<f64>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 160);
    out.extend(b"HEP3\0\0");
    let family = match way.from.0 {
        IpAddr::V4(_) => 2,
        IpAddr::V6(_) => 10,
    };
    chunk(&mut out, 1, &[family]);
    chunk(&mut out, 2, &[if way.tcp { 6 } else { 17 }]);
    for (address, v4, v6) in [(way.from.0, 3, 5), (way.to.0, 4, 6)] {
        match address {
            IpAddr::V4(address) => chunk(&mut out, v4, &address.octets()),
            IpAddr::V6(address) => chunk(&mut out, v6, &address.octets()),
        }
    }
    chunk(&mut out, 7, &way.from.1.to_be_bytes());
    chunk(&mut out, 8, &way.to.1.to_be_bytes());
    chunk(&mut out, 9, &((way.ts_ns / 1_000_000_000) as u32).to_be_bytes());
    chunk(&mut out, 10, &((way.ts_ns % 1_000_000_000 / 1000) as u32).to_be_bytes());
    chunk(&mut out, 11, &[protocol]);
    chunk(&mut out, 12, &agent.to_be_bytes());
    chunk(&mut out, 17, correlation.as_bytes());
    if let Some(mos) = mos {
        chunk(&mut out, 0x20, &((mos * 100.0).round() as u16).to_be_bytes());
    }
    chunk(&mut out, 15, &payload[..payload.len().min(MOST_PAYLOAD)]);
    let length = out.len() as u16;
    out[4..6].copy_from_slice(&length.to_be_bytes());
    out
}

/// A SIP message.
pub(super) fn signal(signal: &Signal, agent: u32) -> Vec<u8> {
    message(&signal.way, SIP, agent, &signal.bytes, &signal.call_id, None)
}

/// The report of a stream as JSON, after the end of its call; with its MOS, times 100.
pub(super) fn stream(stream: &Stream, call_id: &str, agent: u32) -> Vec<u8> {
    let way = Way { from: stream.from, to: stream.to, tcp: false, ts_ns: stream.rtp.last_ns };
    let mos = stream.quality().map(|quality| quality.mos);
    message(&way, RTP_REPORT, agent, &stream_text(stream), call_id, mos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_by_ipv6_has_its_chunks() {
        let way = Way {
            from: ("2001:db8::1".parse().unwrap(), 5060),
            to: ("2001:db8::2".parse().unwrap(), 5061),
            tcp: true,
            ts_ns: 1_700_000_000_123_456_789,
        };
        let bytes = signal(&Signal { way, bytes: b"BYE".to_vec(), call_id: "x".into() }, 7);
        assert_eq!(
            (&bytes[..4], usize::from(u16::from_be_bytes([bytes[4], bytes[5]]))),
            (&b"HEP3"[..], bytes.len())
        );
        let mut rest = &bytes[6..];
        let mut chunks = Vec::new();
        while let [_, _, high, low, length_high, length_low, ..] = *rest {
            let length = usize::from(u16::from_be_bytes([length_high, length_low]));
            chunks.push((u16::from_be_bytes([high, low]), rest[6..length].to_vec()));
            rest = &rest[length..];
        }
        assert!(rest.is_empty());
        let kinds: Vec<u16> = chunks.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 17, 15]);
        let of = |kind: u16| chunks.iter().find(|(known, _)| *known == kind).unwrap().1.clone();
        assert_eq!((of(1), of(2), of(11)), (vec![10], vec![6], vec![1]));
        assert_eq!(
            (of(9), of(10)),
            (1_700_000_000u32.to_be_bytes().to_vec(), 123_456u32.to_be_bytes().to_vec())
        );
        assert_eq!((of(15), of(17)), (b"BYE".to_vec(), b"x".to_vec()));
    }
}
