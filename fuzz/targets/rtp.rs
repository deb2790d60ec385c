//! RTP: any datagrams are packets or not, whole or cut; any sequence of them comes to a stream whose account is exact.
//!
//! Input: datagrams, each behind its length, the bytes of it that were captured, and the milliseconds since the one before.
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
        // Of its own size, so that ASan sees a read behind its end.
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
