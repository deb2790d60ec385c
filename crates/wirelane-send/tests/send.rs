//! The generator on a real link, with tcpdump at the other end: the numbers that arrived, and their packets.

mod netns;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use netns::{Pair, read_frames};
use wirelane_netdev::allowed_cpus;
use wirelane_pcapng::{MergedReader, Reader};
use wirelane_send::{
    Error, IMIX, Method, Plan, ReplayPlan, ReplaySpeed, Report, Rewrite, Traffic, Transport, generate,
    numbered, replay,
};

static NEVER: AtomicBool = AtomicBool::new(false);

const PACKETS: u64 = 10_000;

fn plan(method: Method, traffic: Traffic, threads: usize) -> Plan {
    let cpus = allowed_cpus();
    Plan {
        device: "wltx".into(),
        traffic: vec![traffic],
        method,
        pps: Some(20_000.0),
        packets: Some(PACKETS),
        duration: None,
        cpus: (0..threads).map(|thread| cpus[thread % cpus.len()]).collect(),
        retries: true,
        interval: Duration::from_millis(100),
    }
}

/// Parses a frame with an independent parser: number, destination and length.
fn look(frame: &[u8]) -> (u64, Ipv4Addr, usize) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(NetSlice::Ipv4(ip)) = &sliced.net else { panic!("no IPv4: {frame:02x?}") };
    let header = ip.header().to_header();
    assert_eq!(header.header_checksum, header.calc_header_checksum());
    assert_eq!(header.source, [10, 0, 0, 1]);
    let payload = match &sliced.transport {
        Some(TransportSlice::Udp(udp)) => {
            let sum = udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap();
            assert_eq!(udp.checksum(), sum);
            udp.payload()
        }
        Some(TransportSlice::Tcp(tcp)) => {
            let sum = tcp.to_header().calc_checksum_ipv4(&header, tcp.payload()).unwrap();
            assert_eq!(tcp.checksum(), sum);
            tcp.payload()
        }
        other => panic!("no transport: {other:?}"),
    };
    (numbered(payload).expect("a number"), header.destination.into(), frame.len())
}

/// Sends by this plan and checks that exactly the numbers 0 to N-1 arrive, each with its size and destination.
fn every_number_arrives(test: &str, method: Method, traffic: Traffic, threads: usize) {
    let Some(pair) = Pair::new(test) else { return };
    if method == Method::Kernel {
        pair.allow_live_frames();
    }
    let folder = tempfile::tempdir().unwrap();
    let receiver = pair.receiver(&folder.path().join("received.pcap"));
    let plan = plan(method, traffic, threads);
    let mut in_intervals = 0;
    let report =
        pair.in_near(|| generate(&plan, &NEVER, |interval| in_intervals += interval.offered)).unwrap();
    let frames = receiver.finish(PACKETS as usize);

    let mut numbers = BTreeSet::new();
    let mut destinations = BTreeSet::new();
    let mut bytes = 0;
    for frame in &frames {
        let (number, destination, length) = look(frame);
        assert!(numbers.insert(number), "number {number} came twice");
        let sizes = &plan.traffic[0].sizes;
        assert_eq!(length, usize::from(sizes[number as usize % sizes.len()]), "size of number {number}");
        let flow = (number % 4096) as u32;
        assert_eq!(
            u32::from(destination),
            u32::from(wirelane_send::DST) + flow,
            "destination of number {number}"
        );
        destinations.insert(destination);
        bytes += length as u64;
    }
    assert_eq!(numbers, (0..PACKETS).collect(), "every number once");
    assert_eq!(destinations.len(), 4096);
    assert_eq!(bytes, report.bytes);
    check_report(&report, threads);
    assert!(in_intervals > 0 && in_intervals <= PACKETS, "{in_intervals} packets in the intervals");
    assert!(report.duration_s >= 0.4, "10000 packets at 20000 a second took {} s", report.duration_s);
}

fn check_report(report: &Report, threads: usize) {
    assert_eq!((report.offered, report.sent, report.dropped, report.unaccounted), (PACKETS, PACKETS, 0, 0));
    assert_eq!((report.first_sequence, report.last_sequence), (Some(0), Some(PACKETS - 1)));
    assert_eq!(report.threads.len(), threads);
    assert_eq!(report.threads.iter().map(|thread| thread.offered).sum::<u64>(), PACKETS);
}

#[test]
fn kernel_60_bytes() {
    every_number_arrives("kernel_60_bytes", Method::Kernel, Traffic::default(), 1);
}

#[test]
fn kernel_imix_two_threads() {
    let traffic = Traffic { sizes: IMIX.to_vec(), ..Traffic::default() };
    every_number_arrives("kernel_imix_two_threads", Method::Kernel, traffic, 2);
}

#[test]
fn kernel_tcp_with_vlan() {
    let traffic =
        Traffic { sizes: vec![70], transport: Transport::Tcp, vlans: vec![42], ..Traffic::default() };
    every_number_arrives("kernel_tcp_with_vlan", Method::Kernel, traffic, 1);
}

#[test]
fn socket_60_bytes() {
    every_number_arrives("socket_60_bytes", Method::Socket, Traffic::default(), 1);
}

#[test]
fn socket_imix_two_threads() {
    let traffic = Traffic { sizes: IMIX.to_vec(), ..Traffic::default() };
    every_number_arrives("socket_imix_two_threads", Method::Socket, traffic, 2);
}

#[test]
fn socket_full_mtu_tcp_with_vlan() {
    let traffic =
        Traffic { sizes: vec![1518], transport: Transport::Tcp, vlans: vec![42], ..Traffic::default() };
    every_number_arrives("socket_full_mtu_tcp_with_vlan", Method::Socket, traffic, 1);
}

/// A veth whose peer has no NAPI accepts no live frames: an error with the fix, and `auto` chooses the socket.
#[test]
fn a_device_that_refuses_live_frames_is_named() {
    let Some(pair) = Pair::new("a_device_that_refuses_live_frames_is_named") else { return };
    let kernel = plan(Method::Kernel, Traffic::default(), 1);
    let error = pair.in_near(|| generate(&kernel, &NEVER, |_| {})).unwrap_err().to_string();
    assert!(error.contains("--method socket") && error.contains("gro on"), "{error}");
    let auto = Plan { pps: None, ..plan(Method::Auto, Traffic::default(), 1) };
    let report = pair.in_near(|| generate(&auto, &NEVER, |_| {})).unwrap();
    assert_eq!(report.method, "socket");
    assert!(report.method_reason.unwrap().contains("gro on"));
}

/// A run without an end stops on request, and its numbers have no gap.
#[test]
fn stop_ends_both_methods_soon() {
    let Some(pair) = Pair::new("stop_ends_both_methods_soon") else { return };
    pair.allow_live_frames();
    for method in [Method::Kernel, Method::Socket] {
        for pps in [None, Some(5000.0)] {
            let endless = Plan { pps, packets: None, ..plan(method, Traffic::default(), 1) };
            let stop = AtomicBool::new(false);
            let start = Instant::now();
            let report = pair.in_near(|| {
                generate(&endless, &stop, |interval| stop.store(interval.interval == 3, Ordering::Relaxed))
                    .unwrap()
            });
            assert!(start.elapsed() < Duration::from_secs(60), "{method:?} {pps:?}: {:?}", start.elapsed());
            assert!(report.offered > 0, "{report:?}");
            assert_eq!(report.last_sequence, Some(report.offered - 1));
            assert_eq!(report.sent + report.dropped + report.unaccounted, report.offered);
        }
    }
}

#[test]
fn impossible_plans_are_refused() {
    let Some(pair) = Pair::new("impossible_plans_are_refused") else { return };
    let good = plan(Method::Socket, Traffic::default(), 1);
    let with_size =
        |size| Plan { traffic: vec![Traffic { sizes: vec![size], ..Traffic::default() }], ..good.clone() };
    let wrong = [
        (with_size(59), "--size"),
        (with_size(1515), "--size"),
        (Plan { pps: Some(0.0), ..good.clone() }, "--rate"),
        (Plan { pps: Some(f64::NAN), ..good.clone() }, "--rate"),
        (Plan { method: Method::Xsk, retries: false, ..good.clone() }, "--no-retry"),
        (Plan { packets: Some(0), ..good.clone() }, "--packets"),
        (Plan { duration: Some(Duration::ZERO), ..good.clone() }, "--duration"),
        (Plan { cpus: vec![1_000_000], ..good.clone() }, "--cores"),
    ];
    for (plan, option) in wrong {
        match pair.in_near(|| generate(&plan, &NEVER, |_| {})) {
            Err(Error::BadOption { option: named, .. }) => assert_eq!(named, option),
            other => panic!("{option}: {other:?}"),
        }
    }
    let unknown = Plan { device: "eth99".into(), ..good };
    let error = pair.in_near(|| generate(&unknown, &NEVER, |_| {})).unwrap_err().to_string();
    assert!(error.contains("eth99") && error.contains("wltx"), "{error}");
}

/// Uncompressed Ethernet captures of the corpus in the classic format with up to this many frames, all of them complete
/// and neither too long nor too short for the device.
fn captures(most: usize) -> Vec<(PathBuf, Vec<Vec<u8>>)> {
    let root = std::env::var_os("WIRELANE_CORPUS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/corpus")),
        PathBuf::from,
    );
    let mut found = Vec::new();
    for category in ["apps", "encap", "http"] {
        let Ok(folder) = std::fs::read_dir(root.join("captures").join(category)) else { continue };
        let mut paths: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            let bytes = std::fs::read(&path).unwrap();
            let Ok((_, header)) = pcap_parser::parse_pcap_header(&bytes) else { continue };
            let frames = read_frames(&path);
            let plain = frames.iter().all(|frame| (60..=1514).contains(&frame.len()));
            let total: usize = frames.iter().map(|frame| frame.len() + 16).sum();
            let whole = total + 24 == bytes.len();
            if header.network.0 == 1 && plain && whole && (2..=most).contains(&frames.len()) {
                found.push((path, frames));
            }
        }
    }
    found
}

#[test]
fn replay_is_byte_identical_and_in_order() {
    let test = "replay_is_byte_identical_and_in_order";
    let all = captures(500);
    if all.is_empty() {
        println!("left out: {test} (no corpus)");
        return;
    }
    assert!(all.len() >= 10, "only {} captures of the corpus are suitable", all.len());
    let Some(pair) = Pair::new(test) else { return };
    let folder = tempfile::tempdir().unwrap();
    for (path, frames) in all.iter().take(6) {
        let receiver = pair.receiver(&folder.path().join("received.pcap"));
        let plan = ReplayPlan {
            device: "wltx".into(),
            server_device: None,
            rewrite: Rewrite::default(),
            speed: ReplaySpeed::Max,
            passes: 2,
        };
        let open = || Ok(MergedReader::from(Reader::open(path)?));
        let report = pair.in_near(|| replay(&plan, open, &NEVER)).unwrap();
        let received = receiver.finish(frames.len() * 2);
        let expected: Vec<_> = frames.iter().chain(frames).collect();
        assert_eq!(received.iter().collect::<Vec<_>>(), expected, "{}", path.display());
        let count = frames.len() as u64 * 2;
        assert_eq!((report.read, report.offered, report.sent, report.passes), (count, count, count, 2));
    }
}

/// A classic pcap of these frames, each with its distance to the previous frame in milliseconds.
fn write_pcap(frames: &[(u64, Vec<u8>)], snap: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let mut ms = 1_000_000;
    for (distance, frame) in frames {
        ms += distance;
        let captured = frame.len().min(snap);
        for word in [(ms / 1000) as u32, (ms % 1000 * 1000) as u32, captured as u32, frame.len() as u32] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&frame[..captured]);
    }
    bytes
}

#[test]
fn what_a_replay_leaves_out_is_counted() {
    let Some(pair) = Pair::new("what_a_replay_leaves_out_is_counted") else { return };
    pair.set_mtu(600);
    let frame = |length: usize, fill: u8| -> (u64, Vec<u8>) {
        let mut bytes = vec![fill; length];
        bytes[12..14].copy_from_slice(&0x88b5_u16.to_be_bytes());
        (1, bytes)
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mixed.pcap");
    let frames = [frame(60, 2), frame(615, 4), frame(614, 6), (1, vec![8; 13]), frame(100, 10)];
    std::fs::write(&file, write_pcap(&frames, usize::MAX)).unwrap();
    let receiver = pair.receiver(&folder.path().join("received.pcap"));
    let plan = ReplayPlan {
        device: "wltx".into(),
        server_device: None,
        rewrite: Rewrite::default(),
        speed: ReplaySpeed::Max,
        passes: 1,
    };
    let open = || Ok(MergedReader::from(Reader::open(&file)?));
    let report = pair.in_near(|| replay(&plan, open, &NEVER)).unwrap();
    assert_eq!(receiver.finish(3), [&frames[0].1[..], &frames[2].1, &frames[4].1]);
    assert_eq!((report.read, report.offered, report.sent), (5, 3, 3));
    assert_eq!((report.too_large, report.too_short, report.cut, report.not_ethernet), (1, 1, 0, 0));

    std::fs::write(&file, write_pcap(&frames[..1], 40)).unwrap();
    let report = pair.in_near(|| replay(&plan, open, &NEVER)).unwrap();
    assert_eq!((report.offered, report.cut), (0, 1));
}

#[test]
fn replay_keeps_the_recorded_distances() {
    let Some(pair) = Pair::new("replay_keeps_the_recorded_distances") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slow.pcap");
    let frames: Vec<_> = [0, 200, 100, 300].map(|distance| (distance, vec![0x02; 60])).to_vec();
    std::fs::write(&file, write_pcap(&frames, usize::MAX)).unwrap();
    let mut taken = BTreeMap::new();
    for (name, speed) in
        [("1x", ReplaySpeed::Factor(1.0)), ("3x", ReplaySpeed::Factor(3.0)), ("max", ReplaySpeed::Max)]
    {
        let plan = ReplayPlan {
            device: "wltx".into(),
            server_device: None,
            rewrite: Rewrite::default(),
            speed,
            passes: 1,
        };
        let open = || Ok(MergedReader::from(Reader::open(&file)?));
        taken.insert(name, pair.in_near(|| replay(&plan, open, &NEVER)).unwrap().duration_s);
    }
    assert!((0.6..0.9).contains(&taken["1x"]), "{taken:?}");
    assert!((0.2..0.5).contains(&taken["3x"]), "{taken:?}");
    assert!(taken["max"] < 0.2, "{taken:?}");
}
