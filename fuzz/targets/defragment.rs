//! IP fragments: for any packets in any order, every packet is in one counter, memory is bounded and released, and no
//! fragment of a complete datagram without overlaps is refused.
//!
//! Input: a byte of options (1: IPv6), then fragments: number of one of four datagrams, offset in 8 bytes, flags (1:
//! more follow; the others: tenths of seconds since the previous one), length, and the bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wirelane_analysis::voip::{LEAST_MEMORY, Monitor, Settings};
use wirelane_bpf::layout::LinkType;

/// An IP packet without a link header: a fragment at this offset in 8 bytes.
fn fragment(six: bool, id: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    if six {
        packet.extend([0x60, 0, 0, 0]);
        packet.extend((payload.len() as u16 + 8).to_be_bytes());
        packet.extend([44, 64]);
        packet.extend([0xfd; 15].iter().chain(&[1]).chain(&[0xfd; 15]).chain(&[2]));
        packet.extend([17, 0]);
        packet.extend((offset << 3 | u16::from(more)).to_be_bytes());
        packet.extend([0, 0, 0, id]);
    } else {
        packet.extend([0x45, 0]);
        packet.extend((payload.len() as u16 + 20).to_be_bytes());
        packet.extend([0, id]);
        packet.extend((offset & 0x1fff | u16::from(more) << 13).to_be_bytes());
        packet.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    packet.extend(payload);
    packet
}

fuzz_target!(|data: &[u8]| {
    let [options, rest @ ..] = data else { return };
    let six = options & 1 != 0;
    let mut monitor = Monitor::new(Settings { memory: LEAST_MEMORY, inner: true, ..Settings::default() });
    let (mut rest, mut packets, mut ts_ns) = (rest, 0, 1_000_000_000u64);
    while let [id, offset, flags, length, more @ ..] = rest {
        let (payload, behind) = more.split_at(usize::from(*length).min(more.len()));
        rest = behind;
        ts_ns += u64::from(flags >> 1) * 100_000_000;
        let packet = fragment(six, id & 3, u16::from(*offset), flags & 1 != 0, payload);
        monitor.packet(LinkType::Raw, &packet, ts_ns);
        packets += 1;
        assert!(monitor.memory() <= LEAST_MEMORY, "{}", monitor.memory());
    }
    while monitor.flush() {
        monitor.finished().drain().for_each(drop);
    }
    let counts = monitor.counts();
    assert_eq!((counts.packets(), monitor.memory(), monitor.active()), (packets, 0, 0));

    // The bytes of the input as a datagram that is fragmented as the input defines, in order or reversed, result in one
    // message, like the whole datagram.
    let message = [
        b"OPTIONS sip:a@b SIP/2.0\r\nCall-ID: x\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:b@a>\r\nCSeq: 1 OPTIONS\r\n\
          Content-Length: 0\r\nSubject: "
            .as_slice(),
        &vec![b'x'; usize::from(*options) * 4],
        b"\r\n\r\n",
    ]
    .concat();
    let length = (message.len() as u16 + 8).to_be_bytes();
    let datagram = [&[0x13, 0xc4, 0x13, 0xc4, length[0], length[1], 0, 0], &message[..]].concat();
    let size = 8 * (1 + usize::from(data.get(1).copied().unwrap_or(0) & 63)).max(datagram.len() / 8 / 60 + 1);
    let parts: Vec<(usize, &[u8])> =
        datagram.chunks(size).enumerate().map(|(at, part)| (at * size / 8, part)).collect();
    let mut monitor =
        Monitor::new(Settings { memory: LEAST_MEMORY, all_signals: true, ..Settings::default() });
    let last = parts.len() - 1;
    for turn in 0..parts.len() {
        let at = if options & 2 != 0 { last - turn } else { turn };
        let (offset, part) = parts[at];
        monitor.packet(LinkType::Raw, &fragment(six, 9, offset as u16, at != last, part), 1_000_000_000);
    }
    while monitor.flush() {
        monitor.finished().drain().for_each(drop);
    }
    let counts = monitor.counts();
    assert_eq!(counts.messages, 1, "{} parts of {size} bytes: {counts:?}", parts.len());
    assert_eq!(counts.packets(), parts.len() as u64);
});
