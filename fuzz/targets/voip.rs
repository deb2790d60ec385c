//! Calls: any packets in any order result in calls and streams, each exactly once, within the memory limit; the parsers
//! of SIP, SDP, RTP and RTCP accept any bytes.
//!
//! Input: the link type, a byte of options (1: RTP without signalling, 2: as if live), then packets: their length (two
//! bytes), milliseconds since the previous one, their bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wirelane_analysis::voip::{Finished, Keep, LEAST_MEMORY, Monitor, Settings, rtcp, sdp, sip};
use wirelane_bpf::layout::LinkType;
use wirelane_bpf::rtp::RtpPacket;

fuzz_target!(|data: &[u8]| {
    let [link, options, rest @ ..] = data else { return };
    let link = LinkType::from_code(*link);
    for whole in [false, true] {
        if let Ok(message) = sip::parse(rest, whole) {
            assert!(message.head_len <= rest.len() && !message.call_id.is_empty());
            assert!(!sip::text(message.call_id).chars().any(char::is_control));
        }
    }
    if let Some(described) = sdp::parse(rest) {
        assert!(described.media.len() <= sdp::MOST_MEDIA);
    }
    let _ = rtcp::parse(rest);
    let _ = RtpPacket::read(rest, rest.len() + usize::from(*options));

    let settings = Settings {
        memory: LEAST_MEMORY,
        inner: true,
        heuristic: options & 1 != 0,
        reorder_ns: if options & 2 != 0 { 50_000_000 } else { 0 },
        signals: true,
        all_signals: true,
        keep: Keep::All,
        ..Settings::default()
    };
    let mut monitor = Monitor::new(settings);
    let mut finished = Vec::new();
    let (mut rest, mut packets, mut ts_ns) = (rest, 0, 1_000_000_000);
    while let [low, high, ms, more @ ..] = rest {
        let (packet, more) = more.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(more.len()));
        // Exact allocation, so that ASan detects a read beyond its end.
        let packet: Box<[u8]> = packet.into();
        ts_ns += u64::from(*ms) * 1_000_000;
        monitor.packet(link, &packet, ts_ns);
        assert!(monitor.memory() <= LEAST_MEMORY / 4 * 3);
        finished.extend(monitor.finished().drain());
        (rest, packets) = (more, packets + 1);
    }
    while monitor.flush() {
        finished.extend(monitor.finished().drain());
    }
    finished.extend(monitor.finished().drain());
    let counts = monitor.counts();
    assert_eq!((counts.packets(), monitor.memory() + monitor.held(), monitor.active()), (packets, 0, 0));
    let (mut rtp, mut calls, mut streams) = (0, 0, 0);
    for one in finished {
        let its = match one {
            Finished::Call(record) => {
                calls += 1;
                record.streams
            }
            Finished::Stream(stream, _) => vec![*stream],
            Finished::Signal(_) | Finished::Kept(_) => continue,
        };
        for stream in its {
            streams += 1;
            rtp += stream.rtp.packets;
            assert_eq!(stream.rtp.received() + stream.rtp.lost, stream.rtp.expected());
            assert!(stream.quality().is_none_or(|quality| (1.0..=4.5).contains(&quality.mos)));
        }
    }
    assert_eq!(rtp + counts.rtp_left_out + counts.rtp_malformed, counts.rtp_packets);
    assert_eq!((calls, streams), (counts.calls, counts.streams));
});
