//! Every hook counts exactly: XDP in the driver and in the stack, tc in both directions, beside the programs of others.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use wirelane_tests::{
    Child, ForeignTc, ForeignXdp, Lab, LabOptions, bpf_objects, kernel_version, require_root,
    settled_bpf_objects, wait_for_bpf_objects, wirelane_binary,
};

const LIMIT: Duration = Duration::from_secs(240);

fn wirelane(lab: &Lab, namespace: &str, words: &[&str]) -> Child {
    let binary = wirelane_binary().unwrap();
    let all: Vec<&str> = [binary.to_str().unwrap()].into_iter().chain(words.iter().copied()).collect();
    lab.spawn(namespace, &all).unwrap()
}

/// Starts `count` on the receiver and waits until it captures.
fn count(lab: &Lab, options: &[&str]) -> Child {
    let end = lab.receiver();
    let words = [&["count", "-i", &end.device, "--json"], options].concat();
    let mut child = wirelane(lab, &end.namespace, &words);
    child.wait_ready(LIMIT).unwrap();
    child
}

fn finish(child: Child) -> Value {
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let last = finished.last_json().unwrap();
    assert_eq!(last["final"], true);
    last
}

fn send(lab: &Lab, packets: u32, options: &[&str]) {
    let end = lab.sender();
    let number = packets.to_string();
    let words = [
        &["send", "-i", &end.device, "--packets", &number, "--rate", "100k", "--method", "socket", "--json"],
        options,
    ]
    .concat();
    let finished = wirelane(lab, &end.namespace, &words).finish(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    assert_eq!(finished.last_json().unwrap()["sent"], packets);
}

/// Transmits UDP datagrams through the receiver's own stack to a socket that accepts them (a closed port would answer
/// by ICMP).
fn answer(lab: &Lab, packets: usize) {
    let sink =
        lab.enter(&lab.sender().namespace, || UdpSocket::bind((lab.sender().address, 9)).unwrap()).unwrap();
    lab.enter(&lab.receiver().namespace, || {
        let socket = UdpSocket::bind((lab.receiver().address, 0)).unwrap();
        for _ in 0..packets {
            socket.send_to(&[0; 100], (lab.sender().address, 9)).unwrap();
        }
    })
    .unwrap();
    drop(sink);
}

fn field(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

#[test]
fn every_receiving_hook_counts_exactly() {
    if !require_root("every_receiving_hook_counts_exactly") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    for hook in ["native", "generic", "tc", "clsact"] {
        let child = count(&lab, &["--hook", hook]);
        send(&lab, 5000, &[]);
        let last = finish(child);
        for column in ["seen", "delivered", "analysed"] {
            assert_eq!(field(&last, column), 5000, "{hook}: {column}");
        }
        assert_eq!(field(&last, "bytes"), 5000 * 60, "{hook}");
    }
}

/// By our names, and by tcpdump's.
#[test]
fn directions_are_told_apart() {
    if !require_root("directions_are_told_apart") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let ours = [("rx", 300, 0), ("tx", 0, 70), ("both", 300, 70)];
    let tcpdumps = [("in", 300, 0), ("out", 0, 70), ("inout", 300, 70)];
    for (hook, option, values) in [
        ("native", "--direction", ours),
        ("tc", "--direction", ours),
        ("clsact", "--direction", ours),
        ("tc", "-Q", tcpdumps),
    ] {
        for (direction, received, transmitted) in values {
            let child = count(&lab, &["--hook", hook, option, direction]);
            send(&lab, 300, &[]);
            answer(&lab, 70);
            let last = finish(child);
            let lines = last["virtual_devices"].as_array().unwrap();
            let seen = |egress: bool| -> u64 {
                lines
                    .iter()
                    .filter(|line| (line["direction"] == "egress") == egress)
                    .map(|line| field(line, "seen"))
                    .sum()
            };
            assert_eq!((seen(false), seen(true)), (received, transmitted), "{hook} {direction}");
            assert_eq!(field(&last, "analysed"), received + transmitted, "{hook} {direction}");
        }
    }
}

#[test]
fn tc_works_beside_another_xdp_program() {
    if !require_root("tc_works_beside_another_xdp_program") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let foreign = ForeignXdp::attach(&lab, lab.receiver(), true).unwrap();
    let words = ["count", "-i", &lab.receiver().device, "--hook", "native"];
    let refused = wirelane(&lab, &lab.receiver().namespace, &words).finish(LIMIT).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stderr.contains("--hook tc"), "{}", refused.stderr);
    let child = count(&lab, &["--hook", "tc"]);
    send(&lab, 1000, &[]);
    assert_eq!(field(&finish(child), "analysed"), 1000);
    assert!(foreign.is_attached().unwrap());
}

/// A program that returns a final verdict ends the chain: programs after it do not see the packet.
#[test]
fn tc_sees_packets_that_others_decide_about() {
    if !require_root("tc_sees_packets_that_others_decide_about") {
        return;
    }
    if kernel_version().unwrap() < (6, 6) {
        println!("left out: tc beside another program by link (needs Linux 6.6)");
        return;
    }
    let lab = Lab::new(1).unwrap();
    let foreign = ForeignTc::attach(&lab, lab.receiver()).unwrap();
    let (first, second) = (count(&lab, &["--hook", "tc"]), count(&lab, &["--hook", "tc"]));
    send(&lab, 1000, &[]);
    assert_eq!(field(&finish(first), "analysed"), 1000);
    assert_eq!(field(&finish(second), "analysed"), 1000);
    drop(foreign);
}

#[test]
fn two_processes_share_one_tc_instance_and_leave_nothing() {
    if !require_root("two_processes_share_one_tc_instance_and_leave_nothing") {
        return;
    }
    let lab = Lab::with(&LabOptions { alone: true, ..LabOptions::default() }).unwrap();
    let before = settled_bpf_objects();
    let options = ["--hook", "tc", "--direction", "both"];
    let first = count(&lab, &options);
    let with_one = settled_bpf_objects();
    // It replaces the programs for one group by those for several.
    let second = count(&lab, &options);
    let with_two = settled_bpf_objects();
    assert_eq!(
        with_two.programs.len(),
        with_one.programs.len(),
        "the second process has programs of its own"
    );
    let third = count(&lab, &options);
    assert_eq!(bpf_objects().programs, with_two.programs, "the third process loaded programs of its own");
    send(&lab, 200, &[]);
    answer(&lab, 20);
    assert_eq!(field(&finish(first), "analysed"), 220);
    send(&lab, 100, &[]);
    assert_eq!(field(&finish(second), "analysed"), 320);
    send(&lab, 10, &[]);
    assert_eq!(field(&finish(third), "analysed"), 330);
    assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before);
}

/// The peer's VLAN offload removes tags from packets of its stack; raw frames keep theirs. The recording must have the
/// tag in both cases.
#[test]
fn vlan_tags_are_in_the_recording() {
    if !require_root("vlan_tags_are_in_the_recording") {
        return;
    }
    let lab = Lab::with(&LabOptions { offloads: true, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for hook in ["native", "tc", "clsact"] {
        let file = folder.path().join(format!("{hook}.pcapng"));
        let end = lab.receiver();
        let words =
            ["record", "-i", &end.device, "-w", file.to_str().unwrap(), "--hook", hook, "--json", "-c", "40"];
        let mut recorder = wirelane(&lab, &end.namespace, &words);
        recorder.wait_ready(LIMIT).unwrap();
        send(&lab, 40, &["--vlan", "7"]);
        assert!(recorder.finish(LIMIT).unwrap().status.success());
        assert_eq!(tagged(&file, 7), 40, "{hook}");
    }
}

/// Packets of a recording that begin with an 802.1Q tag of this VLAN, by tcpdump.
fn tagged(file: &Path, vlan: u16) -> usize {
    let output = std::process::Command::new("tcpdump")
        .args(["-nn", "-e", "-r", file.to_str().unwrap(), "vlan", &vlan.to_string()])
        .output()
        .expect("tcpdump is installed by scripts/setup");
    String::from_utf8_lossy(&output.stdout).lines().count()
}

/// Jumbo frames reach a native XDP program in several buffers; they are counted as one packet each.
#[test]
fn jumbo_frames_are_whole() {
    if !require_root("jumbo_frames_are_whole") {
        return;
    }
    let lab = Lab::with(&LabOptions { mtu: 9000, ..LabOptions::default() }).unwrap();
    // The ring has room for all of them, so that the scheduling of the worker does not matter.
    const FRAMES: u32 = 400;
    for hook in ["native", "generic", "tc", "clsact"] {
        let child = count(&lab, &["--hook", hook]);
        send(&lab, FRAMES, &["--size", "9014"]);
        let (last, expected) = (finish(child), (u64::from(FRAMES), u64::from(FRAMES) * 9014));
        assert_eq!((field(&last, "analysed"), field(&last, "bytes")), expected, "{hook}");
    }
}

/// TCP with segmentation offload: packets longer than the MTU are complete and marked.
#[test]
fn offloaded_segments_are_whole() {
    if !require_root("offloaded_segments_are_whole") {
        return;
    }
    const BYTES: usize = 2 << 20;
    let lab = Lab::with(&LabOptions { offloads: true, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gso.pcapng");
    let end = lab.receiver();
    let words = [
        "record",
        "-i",
        &end.device,
        "-w",
        file.to_str().unwrap(),
        "--hook",
        "tc",
        "--direction",
        "both",
        "--json",
    ];
    let mut recorder = wirelane(&lab, &end.namespace, &words);
    recorder.wait_ready(LIMIT).unwrap();
    let listener = lab.enter(&end.namespace, || TcpListener::bind((end.address, 7777)).unwrap()).unwrap();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut all).unwrap();
        all.len()
    });
    lab.enter(&lab.sender().namespace, || {
        TcpStream::connect((end.address, 7777)).unwrap().write_all(&vec![7; BYTES]).unwrap();
    })
    .unwrap();
    assert_eq!(reader.join().unwrap(), BYTES);
    let last = finish(recorder);
    assert_eq!(field(&last, "lost"), 0);
    // Every byte of the stream is in the recording, and some packets are longer than the MTU.
    let output = std::process::Command::new("tcpdump")
        .args(["-nn", "-q", "-r", file.to_str().unwrap(), "dst port 7777"])
        .output()
        .expect("tcpdump is installed by scripts/setup");
    let lengths: Vec<usize> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.rsplit_once("tcp ")?.1.trim().parse().ok())
        .collect();
    assert!(lengths.iter().sum::<usize>() >= BYTES, "{} bytes", lengths.iter().sum::<usize>());
    assert!(lengths.iter().any(|length| *length > 1500), "no offloaded packet");
}
