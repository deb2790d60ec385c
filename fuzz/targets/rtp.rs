//! RTP: any datagrams are packets or not, whole or truncated; any sequence of them results in a stream with an exact
//! account.
//!
//! Input: datagrams, each after its length, the number of captured bytes, and the milliseconds since the previous one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wirelane_bpf::rtp::{ReadResult, RtpPacket, RtpStream};

fuzz_target!(|data: &[u8]| {
    let mut stream = RtpStream::default();
    let (mut rest, mut packets, mut ts_ns) = (data, 0u64, 1_000_000_000u64);
    while let [length, captured, ms, more @ ..] = rest {
        let (datagram, behind) = more.split_at(usize::from(*length).min(more.len()));
        rest = behind;
        ts_ns += u64::from(*ms) * 1_000_000;
        // Exact allocation, so that ASan detects a read beyond its end.
        let seen: Box<[u8]> = datagram[..datagram.len().min(usize::from(*captured))].into();
        let (result, packet) = RtpPacket::read(&seen, datagram.len());
        if result != ReadResult::Ok {
            continue;
        }
        assert!(usize::from(packet.payload_len) <= datagram.len() && datagram[0] >> 6 == 2);
        stream.update(&packet, ts_ns);
        packets += 1;
        assert_eq!(stream.packets, packets);
    }
    stream.finish();
    assert_eq!(stream.packets, packets);
    if packets > 0 {
        assert_eq!(stream.received() + stream.lost, stream.expected(), "{stream:?}");
    }
});
