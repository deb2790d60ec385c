//! RTP statistics: the kernel's compilation of `bpf/lib/rtp.h` against the native one, packet by packet.

use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, OpenObject, ProgramInput};
use wirelane_bpf::rtp::{ReadResult, RtpPacket, RtpPayload, RtpStream, kind, packet_flags};
use wirelane_bpf::skel::rtp_probe::{RtpProbeSkel, RtpProbeSkelBuilder};

/// Maximum number of packets of one run (`PROBE_PACKETS`).
const AT_ONCE: usize = 64;

/// `struct probe_packet`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Timed {
    packet: RtpPacket,
    ts_ns: u64,
}

/// `struct probe_run`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Run {
    stream: RtpStream,
    count: u64,
    packets: [Timed; AT_ONCE],
}

/// `struct probe_read`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    off: u32,
    len: u32,
    result: u32,
    pad: u32,
    packet: RtpPacket,
}

fn load(what: &str) -> Option<RtpProbeSkel<'static>> {
    if std::env::var_os("WIRELANE_UNPRIVILEGED").is_some_and(|value| value == "1") {
        println!("left out: {what} (WIRELANE_UNPRIVILEGED=1: no kernel program is loaded)");
        return None;
    }
    let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let open = RtpProbeSkelBuilder::default().open(object).expect("the embedded BPF object is valid");
    Some(open.load().unwrap_or_else(|error| {
        panic!("the kernel did not load rtp_probe.bpf.c: {error}. This test needs root; set WIRELANE_UNPRIVILEGED=1")
    }))
}

fn bytes<T: Copy>(of: &T) -> &[u8] {
    // SAFETY: the structs above, integers without padding, borrowed for as long as the slice.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(of).cast(), size_of::<T>()) }
}

fn value<T: Copy>(bytes: &[u8]) -> T {
    assert_eq!(bytes.len(), size_of::<T>());
    // SAFETY: as long as the struct, for which any bytes are a value; the read asks for no alignment.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// Pseudo-random numbers, the same every time (xorshift64*).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn once_in(&mut self, many: u64) -> bool {
        self.next().is_multiple_of(many)
    }
}

/// Packets of a stream with all kinds of events.
fn packets(dice: &mut Dice, many: usize) -> Vec<Timed> {
    let (mut seq, mut ts, mut now) = (dice.next() as u16, dice.next() as u32, 1 + dice.next() % (1 << 60));
    let mut all: Vec<Timed> = Vec::new();
    while all.len() < many {
        // Lost packets: few, many, or enough for a restart of the sender.
        let step = match dice.next() % 400 {
            0..4 => 2 + dice.next() % 5,
            4 => 200 + dice.next() % 200,
            5 => 2990 + dice.next() % 20,
            6 => dice.next() % 65_536,
            _ => 1,
        };
        seq = seq.wrapping_add(step as u16);
        ts = ts.wrapping_add(160 * step as u32);
        if dice.once_in(300) {
            ts = dice.next() as u32;
        }
        now += 20_000_000 + dice.next() % 3_000_000;
        if dice.once_in(500) {
            now -= 1_000_000_000;
        }
        let pt = match dice.next() % 40 {
            0 => 101,
            1 => 13,
            2 => 8,
            3 => 77,
            _ => 0,
        };
        let packet = RtpPacket {
            ts,
            ssrc: 7,
            seq,
            payload_len: (dice.next() % 300) as u16,
            pt,
            flags: if dice.once_in(50) { packet_flags::MARKER } else { 0 } | packet_flags::EVENT,
            event: (dice.next() % 16) as u8,
            ..RtpPacket::default()
        };
        all.push(Timed { packet, ts_ns: now });
        if dice.once_in(60) {
            all.push(Timed { packet, ts_ns: now + 1000 });
        }
        if dice.once_in(40) {
            let (here, there) = (all.len() - 1, all.len() - 1 - (dice.next() as usize % all.len().min(300)));
            let moved = all.remove(there).packet;
            let ts_ns = all.get(here.saturating_sub(1)).map_or(now, |last| last.ts_ns + 5);
            all.push(Timed { packet: moved, ts_ns });
        }
    }
    all
}

/// Battery: I10
#[test]
fn the_kernel_counts_what_native_code_counts() {
    let Some(skel) = load("the kernel's RTP statistics") else { return };
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut seen = RtpStream::default();
    for _ in 0..60 {
        let mut native = RtpStream::default();
        for (at, (pt, kind, clock)) in
            [(0, kind::MEDIA, 8000), (101, kind::DIGIT, 8000), (13, kind::NOISE, 8000), (8, kind::MEDIA, 0)]
                .into_iter()
                .enumerate()
        {
            native.payload[at] = RtpPayload { clock, pt, kind, ..RtpPayload::default() };
        }
        let mut kernel = native;
        for part in packets(&mut dice, 1500).chunks(AT_ONCE) {
            let mut run =
                Run { stream: kernel, count: part.len() as u64, packets: [Timed::default(); AT_ONCE] };
            run.packets[..part.len()].copy_from_slice(part);
            let key = 0u32.to_ne_bytes();
            skel.maps.probe_run.update(&key, bytes(&run), MapFlags::ANY).unwrap();
            let input = ProgramInput { data_in: Some(&[0; 64]), ..Default::default() };
            assert_eq!(skel.progs.wl_rtp_probe.test_run(input).unwrap().return_value, 2);
            let found = skel.maps.probe_run.lookup(&key, MapFlags::ANY).unwrap().unwrap();
            kernel = value::<Run>(&found).stream;
            part.iter().for_each(|timed| native.update(&timed.packet, timed.ts_ns));
            assert_eq!(kernel, native);
        }
        native.finish();
        assert_eq!(native.packets - native.duplicate - native.stray, native.expected() - native.lost);
        seen.duplicate += native.duplicate;
        seen.out_of_order += native.out_of_order;
        seen.stray += native.stray;
        seen.lost += native.lost;
        seen.restarts += native.restarts;
        seen.digits += native.digits;
        seen.timestamp_jumps += native.timestamp_jumps;
        seen.noise += native.noise;
        seen.payload_changes += native.payload_changes;
    }
    // Every kind of event has occurred.
    for number in [seen.duplicate, seen.out_of_order, seen.stray, seen.lost] {
        assert!(number > 500, "{seen:?}");
    }
    for number in [seen.restarts, seen.digits, seen.timestamp_jumps, seen.noise, seen.payload_changes] {
        assert!(number > 50, "{seen:?}");
    }
}

#[test]
fn the_kernel_reads_the_headers_that_native_code_reads() {
    let Some(skel) = load("the kernel's RTP headers") else { return };
    let mut dice = Dice(42);
    let mut results = [0u32; 4];
    for _ in 0..4000 {
        let off = (dice.next() % 64) as usize;
        let len = (dice.next() % 80) as usize;
        let mut data: Vec<u8> = (0..(off + len).max(64)).map(|_| dice.next() as u8).collect();
        if len > 0 && !dice.once_in(8) {
            // Of version 2, with few sources, an extension of a few words, padding of a few bytes.
            data[off] = 0x80 | data[off] & 0x33;
            let last = off + len - 1;
            data[last] %= 16;
            if data.len() > off + 15 {
                data[off + 14] = 0;
                data[off + 15] %= 8;
            }
        }
        let read = Read { off: off as u32, len: len as u32, ..Read::default() };
        let key = 0u32.to_ne_bytes();
        skel.maps.probe_read.update(&key, bytes(&read), MapFlags::ANY).unwrap();
        let input = ProgramInput { data_in: Some(&data), ..Default::default() };
        assert_eq!(skel.progs.wl_rtp_read_probe.test_run(input).unwrap().return_value, 2);
        let found: Read = value(&skel.maps.probe_read.lookup(&key, MapFlags::ANY).unwrap().unwrap());
        let (result, packet) = RtpPacket::read(&data[off..], len);
        assert_eq!(found.result, result as u32, "{off} {len} {data:02x?}");
        if matches!(result, ReadResult::Ok | ReadResult::Malformed) {
            assert_eq!(found.packet, packet, "{off} {len} {data:02x?}");
        }
        results[result as usize] += 1;
    }
    assert!(results[..3].iter().all(|number| *number > 100), "{results:?}");
}
