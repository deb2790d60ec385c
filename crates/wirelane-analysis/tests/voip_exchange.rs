//! A monitor with several workers has the results of one that sees all packets, to the last field, however packets are
//! divided among workers, and whoever is ahead of whom.

use std::collections::VecDeque;

use proptest::prelude::*;
use wirelane::LinkType;
use wirelane_analysis::voip::{
    CallRecord, Counts, Exchange, Finished, Keep, Monitor, Settings, Stream, WorkerEnd,
};

const START_NS: u64 = 1_700_000_000_000_000_000;
const WORKERS: usize = 3;

/// Event of a call, or beside calls.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A message; with a description of this variant.
    Request(&'static str, Option<u8>),
    Response(u16, Option<u8>),
    /// Packets of a stream, 20 ms apart, of which every n-th is lost: from the caller or the callee, with this SSRC.
    Rtp {
        packets: u8,
        lost: u8,
        from_caller: bool,
        ssrc: u8,
        kind: u8,
    },
    /// An RTP packet whose header says more than there is.
    Broken {
        from_caller: bool,
        ssrc: u8,
    },
    /// A sender report.
    Rtcp {
        from_caller: bool,
        ssrc: u8,
    },
    /// An RTP packet in two fragments.
    Fragments {
        from_caller: bool,
        ssrc: u8,
    },
    /// A message over TCP, in two segments, on ports that are not those of SIP.
    Tcp(&'static str),
    /// A datagram of no call that begins as RTP does.
    Stranger(u8),
    /// HTTP.
    Web,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    call: u8,
    event: Event,
    wait_ms: u32,
    scatter: u8,
}

fn event() -> impl Strategy<Value = Event> {
    let description = prop::option::weighted(0.8, 0..4u8);
    let side = any::<bool>();
    prop_oneof![
        4 => description.clone().prop_map(|with| Event::Request("INVITE", with)),
        4 => (prop_oneof![Just(180u16), Just(183), Just(200), Just(200), Just(486)], description)
            .prop_map(|(code, with)| Event::Response(code, with)),
        1 => Just(Event::Request("ACK", None)),
        2 => Just(Event::Request("BYE", None)),
        1 => Just(Event::Request("CANCEL", None)),
        1 => Just(Event::Request("OPTIONS", None)),
        12 => (1..40u8, 2..20u8, side, 0..3u8, 0..4u8).prop_map(|(packets, lost, from_caller, ssrc, kind)| {
            Event::Rtp { packets, lost, from_caller, ssrc, kind }
        }),
        1 => (side, 0..3u8).prop_map(|(from_caller, ssrc)| Event::Broken { from_caller, ssrc }),
        2 => (side, 0..3u8).prop_map(|(from_caller, ssrc)| Event::Rtcp { from_caller, ssrc }),
        1 => (side, 0..3u8).prop_map(|(from_caller, ssrc)| Event::Fragments { from_caller, ssrc }),
        1 => prop_oneof![Just("INVITE"), Just("BYE")].prop_map(Event::Tcp),
        1 => any::<u8>().prop_map(Event::Stranger),
        1 => Just(Event::Web),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let wait = prop_oneof![8 => 0..30u32, 3 => 30..2000u32, 1 => 2000..8000u32, 1 => 8000..400_000u32];
    let call = 0..4u8;
    (call, event(), wait, any::<u8>()).prop_map(|(call, event, wait_ms, scatter)| Step {
        call,
        event,
        wait_ms,
        scatter,
    })
}

fn ip(proto: u8, id: u16, fragment: u16, [from, to]: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((20 + payload.len() as u16).to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, proto, 0, 0, 10, 0, 0, from, 10, 0, 0, to]);
    packet.extend(payload);
    packet
}

fn udp([from, to]: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    [&[from.to_be_bytes(), to.to_be_bytes(), length.to_be_bytes(), [0; 2]].concat(), payload].concat()
}

fn tcp([from, to]: [u16; 2], seq: u32, payload: &[u8]) -> Vec<u8> {
    let mut header = [from.to_be_bytes(), to.to_be_bytes()].concat();
    header.extend(seq.to_be_bytes());
    header.extend([0, 0, 0, 0, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    [&header, payload].concat()
}

/// Host and port where a side of a call receives media. Variant 3 is the same for all calls.
fn place(call: u8, caller: bool, variant: u8) -> (u8, u16) {
    let host = if variant == 3 { 50 } else { 10 + call * 2 } + u8::from(caller);
    (host, 6000 + u16::from(variant.min(1)) * 10)
}

fn message(start: &str, method: &str, call: u8, number: usize, described: Option<(bool, u8)>) -> Vec<u8> {
    let body = described.map_or(String::new(), |(caller, variant)| {
        let (host, port) = place(call, caller, variant);
        let types = ["0 8", "8 101", "96", "0"][usize::from(variant)];
        format!(
            "v=0\r\no=- 1 1 IN IP4 10.0.0.{host}\r\ns=-\r\nc=IN IP4 10.0.0.{host}\r\nt=0 0\r\nm=audio {port} RTP/AVP \
             {types}\r\na=rtpmap:96 opus/48000/2\r\na=rtpmap:101 telephone-event/8000\r\n"
        )
    });
    format!(
        "{start}\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK{number}\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:b@c>;tag=2\r\n\
         Call-ID: {call}\r\nCSeq: {} {method}\r\nContent-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}",
        number + 1,
        body.len()
    )
    .into_bytes()
}

/// A packet, its time, and the worker to which it goes.
#[derive(Clone, Debug)]
struct Packet {
    bytes: Vec<u8>,
    ts_ns: u64,
    worker: usize,
}

/// The packets of a script. `scatters`: packets of one stream go to several workers.
fn packets(steps: &[Step], scatters: bool) -> Vec<Packet> {
    let mut all = Vec::new();
    let mut now_ns = START_NS;
    let mut seqs = [0u16; 64];
    for (number, step) in steps.iter().enumerate() {
        let call = step.call;
        now_ns += u64::from(step.wait_ms) * 1_000_000;
        let stream = |from_caller: bool, ssrc: u8| {
            // The variants of a call's ends go with its streams' SSRC.
            let (from, to) = (place(call, from_caller, ssrc), place(call, !from_caller, ssrc));
            let id = u32::from(call) << 8 | u32::from(ssrc) << 4 | u32::from(from_caller) | 0x1000;
            (from, to, id, usize::from(call * 8 + ssrc * 2 + u8::from(from_caller)))
        };
        let rtp = |seq: u16, id: u32, first: u8, kind: u8| {
            let mut packet = vec![first, kind];
            packet.extend(seq.to_be_bytes());
            packet.extend((u32::from(seq) * 160).to_be_bytes());
            packet.extend(id.to_be_bytes());
            packet.extend([7; 20]);
            packet
        };
        let mut put = |bytes: Vec<u8>, at_ns: u64, flow: usize, part: usize| {
            let worker = if scatters { usize::from(step.scatter) + part } else { flow } % WORKERS;
            all.push(Packet { bytes, ts_ns: at_ns, worker });
        };
        match step.event {
            Event::Request(method, with) => {
                let bytes = message(
                    &format!("{method} sip:b SIP/2.0"),
                    method,
                    call,
                    number,
                    with.map(|v| (true, v)),
                );
                put(ip(17, 0, 0, [1, 2], &udp([5060, 5060], &bytes)), now_ns, 0, 0);
            }
            Event::Response(code, with) => {
                let start = format!("SIP/2.0 {code} X");
                let bytes = message(&start, "INVITE", call, number, with.map(|v| (false, v)));
                put(ip(17, 0, 0, [2, 1], &udp([5060, 5060], &bytes)), now_ns, 0, 0);
            }
            Event::Tcp(method) => {
                let bytes = message(&format!("{method} sip:b SIP/2.0"), method, call, number, None);
                let (head, tail) = bytes.split_at(60);
                let ports = [7000 + number as u16, 8000];
                put(ip(6, 0, 0, [3, 4], &tcp(ports, 1, head)), now_ns, number, 0);
                // Both of one connection go to one worker in any case.
                put(ip(6, 0, 0, [3, 4], &tcp(ports, 61, tail)), now_ns + 1_000_000, number, 0);
            }
            Event::Rtp { packets, lost, from_caller, ssrc, kind } => {
                let (from, to, id, flow) = stream(from_caller, ssrc);
                for packet in 0..packets {
                    seqs[flow] = seqs[flow].wrapping_add(1);
                    if packet % lost == lost - 1 {
                        continue;
                    }
                    let payload = rtp(seqs[flow], id, 0x80, [0, 8, 96, 101][usize::from(kind)]);
                    let bytes = ip(17, 0, 0, [from.0, to.0], &udp([from.1, to.1], &payload));
                    let jitter = u64::from(packet) * 7919 % 5_000_000;
                    put(
                        bytes,
                        now_ns + u64::from(packet) * 20_000_000 + jitter,
                        flow,
                        usize::from(packet) / 3,
                    );
                }
            }
            Event::Broken { from_caller, ssrc } => {
                let (from, to, id, flow) = stream(from_caller, ssrc);
                // The header states 15 contributing sources; the packet is too short for them.
                let payload = rtp(seqs[flow], id, 0x8f, 0);
                put(ip(17, 0, 0, [from.0, to.0], &udp([from.1, to.1], &payload)), now_ns, flow, 0);
            }
            Event::Rtcp { from_caller, ssrc } => {
                let (from, to, id, flow) = stream(from_caller, ssrc);
                let mut payload = vec![0x80, 200, 0, 6];
                payload.extend(id.to_be_bytes());
                payload.extend([0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]);
                put(ip(17, 0, 0, [from.0, to.0], &udp([from.1, to.1], &payload)), now_ns, flow, 0);
            }
            Event::Fragments { from_caller, ssrc } => {
                let (from, to, id, flow) = stream(from_caller, ssrc);
                seqs[flow] = seqs[flow].wrapping_add(1);
                let whole = udp([from.1, to.1], &rtp(seqs[flow], id, 0x80, 0));
                let (head, tail) = whole.split_at(24);
                put(ip(17, number as u16, 0x2000, [from.0, to.0], head), now_ns, 1, 0);
                put(ip(17, number as u16, 3, [from.0, to.0], tail), now_ns + 500_000, 1, 1);
            }
            Event::Stranger(byte) => {
                let payload = rtp(1, u32::from(byte), 0x80, 0);
                put(ip(17, 0, 0, [90, 91], &udp([9000, u16::from(byte)], &payload)), now_ns, 2, 0);
            }
            Event::Web => {
                put(ip(6, 0, 0, [92, 93], &tcp([40_000, 80], 1, b"GET / HTTP/1.1\r\n\r\n")), now_ns, 1, 0)
            }
        }
    }
    all.sort_by_key(|packet| (packet.ts_ns, packet.worker));
    all
}

fn stream(stream: &Stream) -> String {
    let types: Vec<u8> = stream.payload_types().collect();
    format!(
        "{:?} {:?} {:?} {:?} {:?} {} {} {:?} {:?} {types:?} {}",
        stream.from,
        stream.to,
        stream.rtp,
        stream.reported,
        stream.toward,
        stream.learned,
        stream.media,
        stream.intervals,
        stream.quality(),
        stream.codec()
    )
}

/// Results in words, without state that is not a result.
fn results(monitor: &mut Monitor, all: &mut Vec<String>) {
    while let Some(finished) = monitor.finished().take() {
        all.extend(finished.into_iter().map(|one| match one {
            Finished::Call(record) => {
                let CallRecord { call, streams, ending } = *record;
                let streams: Vec<String> = streams.iter().map(stream).collect();
                let (places, last_ns) = (call.state, call.last_ns);
                format!(
                    "{} {} {places:?} {last_ns} {:?} {:?} {} {} {} {} {ending:?} {streams:#?}",
                    call.serial,
                    call.call_id,
                    call.answer_ns,
                    call.end_ns,
                    call.messages,
                    call.rtp_left_out + call.rtp_malformed,
                    call.ssrc_changes,
                    call.ssrc_collisions
                )
            }
            Finished::Stream(one, ending) => format!("alone {ending:?} {}", stream(&one)),
            other => format!("{other:?}"),
        }));
    }
}

fn end(mut monitor: Monitor, mut all: Vec<String>) -> (Vec<String>, Counts) {
    while monitor.flush() {
        results(&mut monitor, &mut all);
    }
    results(&mut monitor, &mut all);
    // Calls that end at the same time are handed out in any order.
    all.sort();
    assert_eq!((monitor.memory(), monitor.held(), monitor.active()), (0, 0, 0));
    (all, monitor.counts())
}

fn by_one(packets: &[Packet], settings: &Settings) -> (Vec<String>, Counts) {
    let mut monitor = Monitor::new(settings.clone());
    let mut all = Vec::new();
    for packet in packets {
        monitor.packet(LinkType::Raw, &packet.bytes, packet.ts_ns);
        results(&mut monitor, &mut all);
    }
    end(monitor, all)
}

fn by_several(packets: &[Packet], settings: &Settings, schedule: &[u8]) -> (Vec<String>, Counts) {
    let exchange = Exchange::new(WORKERS, 64 << 20);
    let mut monitor = Monitor::new(settings.clone());
    monitor.exchange(&exchange);
    let mut ends: Vec<WorkerEnd> =
        (0..WORKERS).map(|worker| WorkerEnd::new(&exchange, worker, settings)).collect();
    let mut queues: Vec<VecDeque<&Packet>> = vec![VecDeque::new(); WORKERS];
    packets.iter().for_each(|packet| queues[packet.worker].push_back(packet));
    let mut all = Vec::new();
    // Each worker has its turn now and then, whatever the schedule says.
    let fair = (0..WORKERS as u8).cycle().map(|worker| 9 + worker);
    let mut ops =
        schedule.chunks(4).cycle().zip(fair).flat_map(|(some, one)| some.iter().copied().chain([one]));
    while queues.iter().any(|queue| !queue.is_empty()) {
        let op = ops.next().unwrap();
        let worker = usize::from(op) % WORKERS;
        match op / 3 % 8 {
            0 => ends[worker].flush().unwrap(),
            1 => {
                while monitor.turn() {
                    results(&mut monitor, &mut all);
                }
                results(&mut monitor, &mut all);
            }
            2 => {
                // As far as a worker's next packet allows.
                if let Some(next) = queues[worker].front() {
                    ends[worker].caught_up(next.ts_ns - START_NS, next.ts_ns).unwrap();
                }
            }
            _ => {
                for _ in 0..op / 24 + 1 {
                    if let Some(packet) = queues[worker].pop_front() {
                        let steady_ns = packet.ts_ns - START_NS;
                        ends[worker].packet(LinkType::Raw, &packet.bytes, steady_ns, packet.ts_ns).unwrap();
                    }
                }
            }
        }
    }
    drop(ends);
    assert!(exchange.has_ended());
    while monitor.turn() {
        results(&mut monitor, &mut all);
    }
    results(&mut monitor, &mut all);
    end(monitor, all)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Battery: I10
    #[test]
    fn several_workers_have_the_results_of_one(
        steps in prop::collection::vec(step(), 1..120),
        schedule in prop::collection::vec(any::<u8>(), 1..40),
        scatters: bool,
        heuristic: bool,
        audio: bool,
    ) {
        let keep = if audio { Keep::All } else { Keep::Signals };
        let settings = Settings { heuristic, keep, interval_ns: 1_000_000_000, ..Settings::default() };
        let packets = packets(&steps, scatters);
        let (one, counts) = by_one(&packets, &settings);
        let (several, counts_of_several) = by_several(&packets, &settings, &schedule);
        prop_assert_eq!(counts.packets(), packets.len() as u64);
        prop_assert_eq!(&counts, &counts_of_several);
        for (one, several) in one.iter().zip(&several) {
            prop_assert_eq!(one, several);
        }
        prop_assert_eq!(one.len(), several.len());
    }
}

/// Streams are lent, so that the monitor has little to do in a call that goes on.
#[test]
fn packets_of_a_stream_stay_with_its_worker() {
    let call = |event| Step { call: 0, event, wait_ms: 1000, scatter: 0 };
    let talk = |from_caller| Event::Rtp { packets: 200, lost: 255, from_caller, ssrc: 0, kind: 0 };
    let mut steps = vec![call(Event::Request("INVITE", Some(0))), call(Event::Response(200, Some(0)))];
    for turn in 0..20 {
        steps.push(Step { wait_ms: 4000, ..call(talk(turn % 2 == 0)) });
    }
    steps.push(Step { wait_ms: 5000, ..call(Event::Request("BYE", None)) });
    let packets = packets(&steps, false);
    let settings = Settings::default();
    let exchange = Exchange::new(WORKERS, 64 << 20);
    let mut monitor = Monitor::new(settings.clone());
    monitor.exchange(&exchange);
    let mut ends: Vec<WorkerEnd> =
        (0..WORKERS).map(|worker| WorkerEnd::new(&exchange, worker, &settings)).collect();
    for packet in &packets {
        let steady_ns = packet.ts_ns - START_NS;
        ends[packet.worker].packet(LinkType::Raw, &packet.bytes, steady_ns, packet.ts_ns).unwrap();
        ends.iter_mut().for_each(|end| end.caught_up(steady_ns + 1, packet.ts_ns).unwrap());
        while monitor.turn() {}
    }
    assert_eq!(monitor.handled(), 5, "three messages, and the first packet of each stream");
    drop(ends);
    while monitor.turn() {}
    let mut all = Vec::new();
    results(&mut monitor, &mut all);
    assert_eq!(end(monitor, all), by_one(&packets, &settings));
}

/// A worker whose monitor stands still waits, with bounded memory, and ends with it.
#[test]
fn a_worker_waits_for_its_monitor() {
    let exchange = Exchange::new(1, 0);
    let settings = Settings::default();
    let (done, told) = std::sync::mpsc::channel();
    let worker = {
        let exchange = std::sync::Arc::clone(&exchange);
        std::thread::spawn(move || {
            let mut end = WorkerEnd::new(&exchange, 0, &settings);
            let bytes = message("INVITE sip:b SIP/2.0", "INVITE", 0, 0, Some((true, 0)));
            let packet = ip(17, 0, 0, [1, 2], &udp([5060, 5060], &bytes));
            let mut packets = 0u64;
            while end.packet(LinkType::Raw, &packet, packets, START_NS + packets).is_ok() {
                packets += 1;
            }
            done.send(packets).unwrap();
        })
    };
    let waits = told.recv_timeout(std::time::Duration::from_millis(300));
    assert!(waits.is_err(), "it did not wait: {waits:?}");
    exchange.end();
    let packets = told.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    worker.join().unwrap();
    // 256 KiB, and what it had gathered.
    assert!((200..2000).contains(&packets), "{packets} packets");
}
