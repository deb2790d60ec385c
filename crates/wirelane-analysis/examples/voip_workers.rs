//! CPU time per RTP packet of one monitor that sees all packets, and of a worker and a monitor that share the work:
//! `cargo run --release -p wirelane-analysis --example voip_workers`.

use std::time::{Duration, Instant};

use wirelane::LinkType;
use wirelane_analysis::voip::{Exchange, Monitor, Settings, WorkerEnd};

/// Packets of each stream; 20 ms lie between two of them.
const PACKETS: u64 = 60;
/// Packets of each stream before the measurement.
const BEFORE: u64 = 20;
const ROUNDS: usize = 7;
const START_NS: u64 = 1_700_000_000_000_000_000;

fn udp([from, to]: [[u8; 4]; 2], [source, destination]: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((28 + payload.len() as u16).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(from);
    packet.extend(to);
    packet.extend([source, destination, 8 + payload.len() as u16, 0].map(u16::to_be_bytes).concat());
    packet.extend(payload);
    packet
}

/// Address and port where a side of a call receives media.
fn place(call: u32, caller: bool) -> ([u8; 4], u16) {
    let [_, high, low, _] = (call << 8).to_be_bytes();
    ([10, u8::from(caller), high, low], 20_000)
}

/// Messages that set up calls, and their RTP packets with their times, in order.
struct Traffic {
    messages: Vec<Vec<u8>>,
    packets: Vec<(u64, Vec<u8>)>,
    /// Number of the first packet that is measured.
    first: usize,
}

/// The traffic of this many calls.
fn traffic(calls: u32) -> Traffic {
    let message = |start: &str, call: u32, caller: bool| {
        let ([a, b, c, d], port) = place(call, caller);
        let body = format!(
            "v=0\r\no=- 1 1 IN IP4 {a}.{b}.{c}.{d}\r\ns=-\r\nc=IN IP4 {a}.{b}.{c}.{d}\r\nt=0 0\r\nm=audio {port} RTP/AVP 0\r\n"
        );
        let message = format!(
            "{start}\r\nVia: SIP/2.0/UDP h\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:b@c>;tag=2\r\nCall-ID: {call}\r\n\
             CSeq: 1 INVITE\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        udp([[192, 0, 2, 1], [192, 0, 2, 2]], [5060; 2], message.as_bytes())
    };
    let messages = (0..calls).flat_map(|call| {
        [message("INVITE sip:b SIP/2.0", call, true), message("SIP/2.0 200 OK", call, false)]
    });
    let between_ns = 20_000_000 / u64::from(2 * calls);
    let packets = (0..PACKETS).flat_map(|number| {
        (0..2 * calls).map(move |stream| {
            let (from, to) = (place(stream / 2, stream % 2 == 0), place(stream / 2, stream % 2 == 1));
            let mut payload = vec![0x80, 0];
            payload.extend((number as u16).to_be_bytes());
            payload.extend((number as u32 * 160).to_be_bytes());
            payload.extend((stream + 1).to_be_bytes());
            payload.resize(172, 0);
            let at_ns = 1_000_000_000 + number * 20_000_000 + u64::from(stream) * between_ns;
            (at_ns, udp([from.0, to.0], [from.1, to.1], &payload))
        })
    });
    let first = BEFORE as usize * 2 * calls as usize;
    Traffic { messages: messages.collect(), packets: packets.collect(), first }
}

fn settings() -> Settings {
    Settings { memory: 4 << 30, ..Settings::default() }
}

/// Nanoseconds per packet.
fn by_one(traffic: &Traffic) -> f64 {
    let (warm, measured) = traffic.packets.split_at(traffic.first);
    let mut monitor = Monitor::new(settings());
    traffic.messages.iter().for_each(|message| monitor.packet(LinkType::Raw, message, START_NS));
    for (at_ns, packet) in warm {
        monitor.packet(LinkType::Raw, packet, START_NS + at_ns);
    }
    let began = Instant::now();
    for (at_ns, packet) in measured {
        monitor.packet(LinkType::Raw, packet, START_NS + at_ns);
    }
    let took = began.elapsed();
    assert_eq!(monitor.counts().rtp_packets, traffic.packets.len() as u64);
    took.as_nanos() as f64 / measured.len() as f64
}

/// Nanoseconds per packet of the worker, and of the monitor.
fn by_both(traffic: &Traffic) -> [f64; 2] {
    let exchange = Exchange::new(1, 1 << 30);
    let mut monitor = Monitor::new(settings());
    monitor.exchange(&exchange);
    let mut end = WorkerEnd::new(&exchange, 0, &settings());
    for message in &traffic.messages {
        end.packet(LinkType::Raw, message, 0, START_NS).expect("the monitor is here");
    }
    let (warm, measured) = traffic.packets.split_at(traffic.first);
    let mut took = [Duration::ZERO; 2];
    for part in [warm, measured] {
        took = [Duration::ZERO; 2];
        // The monitor looks after each millisecond of packets.
        for packets in part.chunk_by(|one, next| one.0 / 1_000_000 == next.0 / 1_000_000) {
            let began = Instant::now();
            for (at_ns, packet) in packets {
                end.packet(LinkType::Raw, packet, *at_ns, START_NS + at_ns).expect("the monitor is here");
            }
            end.flush().expect("the monitor is here");
            let flushed = Instant::now();
            while monitor.turn() {}
            took[0] += flushed - began;
            took[1] += flushed.elapsed();
        }
    }
    drop(end);
    while monitor.turn() {}
    assert_eq!(monitor.counts().rtp_packets, traffic.packets.len() as u64);
    took.map(|took| took.as_nanos() as f64 / measured.len() as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    for calls in [50, 20_000] {
        let traffic = traffic(calls);
        let mut rounds = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            let [worker, monitor] = by_both(&traffic);
            for (all, one) in rounds.iter_mut().zip([by_one(&traffic), worker, monitor]) {
                all.push(one);
            }
        }
        let [one, worker, monitor] = rounds.map(median);
        println!(
            "{} streams: one monitor {one:.0} ns per packet; a worker {worker:.0} ns, and the monitor {monitor:.1} ns",
            2 * calls
        );
    }
}
