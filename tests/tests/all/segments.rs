//! Counts of packets on the wire when the host's devices segment and merge: they equal those of the kernel's TCP, which
//! has made the segments.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane::{Builder, HookChoice, Selector};
use wirelane_tests::numbers::{LIMIT, capture, column, drain, wirelane};
use wirelane_tests::{Lab, LabOptions, require_root};

const BYTES: usize = 20 << 20;
/// Bytes that an end sends before the other end has read them. Their frames and the acknowledgements fit the queue of 256
/// frames of a veth with a native program. That queue drops a part of a longer burst, whose segments TCP sends again.
const WINDOW: usize = 64 << 10;

/// Both ends send at the same time.
fn talk(lab: &Lab) {
    // A port of its own each time: a process that another test starts has the last listener until its `exec`.
    let any = SocketAddr::from((lab.receiver().address, 0));
    let listener = lab.enter(&lab.receiver().namespace, || TcpListener::bind(any).unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    // An end is told when the other end has read a window.
    let pass = |stream: TcpStream, told: Receiver<()>, tell: &SyncSender<()>| {
        // The end of a window does not wait for a delayed acknowledgement.
        stream.set_nodelay(true).unwrap();
        let mut writer = stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..BYTES / WINDOW {
                    writer.write_all(&[7; WINDOW]).unwrap();
                    told.recv().unwrap();
                }
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut window = vec![0; WINDOW];
            for _ in 0..BYTES / WINDOW {
                (&stream).read_exact(&mut window).unwrap();
                tell.send(()).unwrap();
            }
            assert_eq!((&stream).read(&mut window).unwrap(), 0);
        });
    };
    let [(tell, told), (tell_other, told_other)] = [sync_channel(1), sync_channel(1)];
    std::thread::scope(|scope| {
        scope.spawn(move || pass(listener.accept().unwrap().0, told, &tell_other));
        lab.enter(&lab.sender().namespace, || pass(TcpStream::connect(address).unwrap(), told_other, &tell))
            .unwrap();
    });
}

/// Segments that the TCPs of both namespaces have sent, without retransmissions, and retransmissions.
fn sent_segments(lab: &Lab) -> (u64, u64) {
    let mut sent = (0, 0);
    for namespace in [&lab.receiver().namespace, &lab.sender().namespace] {
        let text = lab.exec(namespace, &["cat", "/proc/net/snmp"]).unwrap();
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let of = |name: &str| {
            let at = names.split(' ').position(|one| one == name).unwrap();
            values.split(' ').nth(at).unwrap().parse::<u64>().unwrap()
        };
        sent.0 += of("OutSegs");
        sent.1 += of("RetransSegs");
    }
    sent
}

/// Checks engine `ring` at a hook, or engine `packet`, which has no hook and no flow cache in the kernel.
///
/// Returns false if a segment was sent again: the kernel counts such a segment before it tries to send it, and one that a
/// full queue drops passes no hook, so that the numbers cannot be compared.
fn check(lab: &Lab, by: &[&str]) -> bool {
    let in_kernel = by[0] == "--hook";
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("p.toml");
    std::fs::write(&config, "[[measurement]]\nname = \"all\"\nvalues = [\"packets\", \"bytes\"]\n").unwrap();
    let device = lab.receiver().device.as_str();
    let start = |command: &[&str]| {
        let on = ["-i", device, "--json", "--direction", "both"];
        capture(lab, &[command, &on, by, &["--ring-size", "64", "tcp"]].concat()).unwrap()
    };
    let mut commands =
        vec![start(&["count"]), start(&["flows"]), start(&["probe", config.to_str().unwrap()])];
    if in_kernel {
        commands.push(start(&["flows", "--cache", "kernel"]));
    }
    let before = sent_segments(lab);
    talk(lab);
    let after = sent_segments(lab);
    let (sent, again) = (after.0 - before.0, after.1 - before.1);
    let ended: Vec<Vec<Value>> =
        commands.into_iter().map(|child| child.terminate(LIMIT).unwrap().json().unwrap()).collect();
    if again > 0 {
        println!("{by:?}: {again} of {sent} segments were sent again");
        return false;
    }
    let [count, flows, probe, ..] = &ended[..] else { unreachable!("three commands at least") };
    for lines in &ended {
        let last = lines.last().unwrap();
        assert_eq!(
            (column(last, "seen") - column(last, "filtered"), column(last, "lost")),
            (sent, 0),
            "{last}"
        );
    }
    let sum = |lines: &[Value], field: &str| -> u64 {
        lines.iter().filter(|line| line.get("flow").is_some()).map(|flow| column(flow, field)).sum()
    };
    for flows in ended.get(3).into_iter().chain([flows]) {
        assert_eq!(sum(flows, "packets"), sent);
        assert_eq!(column(count.last().unwrap(), "bytes"), sum(flows, "wire_bytes"));
    }
    // Each segment has its headers, and all payload is counted.
    assert!(sum(flows, "wire_bytes") >= 2 * BYTES as u64 + sent * (14 + 20 + 20));
    let total = probe.iter().find(|line| line["measurement"] == "all" && line["total"] == true).unwrap();
    assert_eq!(column(total, "packets"), sent, "{total}");
    assert_eq!(column(total, "bytes"), sum(flows, "wire_bytes"), "{total}");
    if by[1] != "native" {
        // Otherwise the test has covered little.
        assert!(column(count.last().unwrap(), "aggregates") > 100, "{:?}", count.last());
    }
    true
}

#[test]
fn segments_are_counted_as_the_sender_counts_them() {
    if !require_root("segments_are_counted_as_the_sender_counts_them") {
        return;
    }
    for by in [["--hook", "tc"], ["--hook", "native"], ["--engine", "packet"]] {
        let lab = Lab::with(&LabOptions { offloads: true, ..LabOptions::default() }).unwrap();
        assert!((0..10).any(|_| check(&lab, &by)), "{by:?}: segments were sent again in each of ten trials");
    }
}

/// `count` and `flows` read headers only: no more than that is copied of an aggregate, and other packets are whole.
#[test]
fn headers_only_cuts_aggregates_and_no_other_packet() {
    if !require_root("headers_only_cuts_aggregates_and_no_other_packet") {
        return;
    }
    let lab = Lab::with(&LabOptions { offloads: true, ..LabOptions::default() }).unwrap();
    let end = lab.receiver();
    let mut capture = lab
        .enter(&end.namespace, || {
            Builder::new(Selector::parse_list(&end.device).unwrap())
                .hook(HookChoice::Tc)
                .filter("tcp")
                .ring_size(64 << 20)
                .headers_only(true)
                .open()
        })
        .unwrap()
        .unwrap();
    let mut worker = capture.workers().remove(0);
    talk(&lab);
    let mut cut = 0;
    drain(&mut worker, Duration::from_millis(300), |record| {
        let (captured, sent) = (record.data().len(), record.wire_len() as usize);
        assert_eq!(captured, sent.min(6400));
        assert_eq!(record.headers().and_then(|headers| headers.protocol), Some(6));
        cut += usize::from(captured < sent);
    })
    .unwrap();
    assert!(cut > 100, "only {cut} aggregates");
}

/// `packets` copies whole aggregates only if it prints their bytes.
#[test]
fn packets_copies_payload_only_for_a_dump() {
    if !require_root("packets_copies_payload_only_for_a_dump") {
        return;
    }
    let lab = Lab::with(&LabOptions { offloads: true, ..LabOptions::default() }).unwrap();
    let on = ["-i", lab.receiver().device.as_str(), "--ring-size", "64", "-c", "2000", "tcp"];
    let lines = capture(&lab, &[&["packets", "--json"], &on[..]].concat()).unwrap();
    // Text has no line that says that the capture has begun.
    let mut dump =
        wirelane(&lab, &lab.receiver().namespace, &[&["packets", "-x"], &on[..]].concat()).unwrap();
    let begun = Instant::now();
    while dump.is_running().unwrap() {
        assert!(begun.elapsed() < LIMIT, "fewer than 2000 packets came");
        talk(&lab);
    }
    let lines = lines.terminate(LIMIT).unwrap().json().unwrap();
    let records = || lines.iter().filter(|line| line["record"] == "packet");
    let cut = records()
        .filter(|line| {
            let (captured, sent) = (column(line, "cap_len"), column(line, "wire_len"));
            assert_eq!(captured, sent.min(6400), "{line}");
            captured < sent
        })
        .count();
    assert!(cut > 100, "only {cut} aggregates");
    // The last line of a dump has the offset of 16 bytes.
    let dump = dump.finish(LIMIT).unwrap().lines;
    let far = dump.iter().filter(|line| line.trim_start().starts_with("0x4000:")).count();
    assert!(far > 100, "only {far} whole aggregates");
}
