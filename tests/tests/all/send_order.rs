//! `wirelane send` keeps the order of each flow, from several threads to a device with several queues.

use std::collections::BTreeMap;

use wirelane::{Engine, HookChoice};
use wirelane_tests::numbers::{LIMIT, last_of, number_of, wirelane};
use wirelane_tests::ruled::{drain, open};
use wirelane_tests::{Lab, require_root};

/// Packets of one run: all fit into the rings before the first read.
const PACKETS: u64 = 12_000;
/// No multiple of the threads.
const FLOWS: u64 = 7;

/// The queue and the last number of each flow, and how many packets it has.
type Flows = BTreeMap<u16, (u16, u64, u64)>;

/// Sends from so many threads, and checks that the packets of a flow arrive on one queue, in the order of their numbers.
fn flows_keep_their_order(method: &str, threads: &str) {
    let lab = Lab::new(4).unwrap();
    let end = lab.sender();
    let at = (Engine::Ring, HookChoice::Native);
    let mut capture = open(&lab, at, |builder| builder.ring_size(16 << 20).in_order(false)).unwrap();
    let mut worker = capture.workers().remove(0);
    let (packets, flows) = (PACKETS.to_string(), FLOWS.to_string());
    let words = ["send", "-i", &end.device, "--packets", &packets, "--flows", &flows, "--json"];
    let words = [&words[..], &["--pattern", "ports", "--method", method, "--threads", threads]].concat();
    let sent = last_of(&wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap()).unwrap();
    assert_eq!(sent["sent"], PACKETS, "{sent}");
    let mut flows = Flows::new();
    drain(&capture, &mut worker, PACKETS, |record| {
        let (Some(number), Some(port)) = (number_of(record), record.data().get(34..36)) else { return };
        let port = u16::from_be_bytes([port[0], port[1]]);
        let (queue, last, count) = flows.entry(port).or_insert((record.queue(), number, 0));
        assert_eq!(*queue, record.queue(), "{method}: a flow on two queues");
        assert!(*count == 0 || *last < number, "{method}: {number} of flow {port} came after {last}");
        (*last, *count) = (number, *count + 1);
    });
    assert_eq!(capture.ledger().unwrap().total.lost, 0);
    let counts: Vec<u64> = flows.values().map(|(_, _, count)| *count).collect();
    assert_eq!((counts.len() as u64, counts.iter().sum::<u64>()), (FLOWS, PACKETS), "{flows:?}");
}

/// Through sockets, flows are on the queues that their hashes choose.
#[test]
fn flows_keep_their_order_from_sockets() {
    if require_root("flows_keep_their_order_from_sockets") {
        flows_keep_their_order("socket", "1");
        flows_keep_their_order("socket", "2");
    }
}

/// From inside the kernel, they are on the queue of the sending CPU.
#[test]
fn flows_keep_their_order_from_inside_the_kernel() {
    if require_root("flows_keep_their_order_from_inside_the_kernel") {
        flows_keep_their_order("kernel", "2");
    }
}

/// One packet is singular in the report.
#[test]
fn a_single_packet_is_reported_as_one() {
    if !require_root("a_single_packet_is_reported_as_one") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let end = lab.sender();
    let words = ["send", "-i", &end.device, "-c", "1", "--method", "socket"];
    let finished = wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    for line in ["asked        full speed, 1 packet", "offered      1 packet, 60 bytes, numbers 0 to 0"] {
        assert!(finished.lines.iter().any(|one| one == line), "no '{line}' in: {:?}", finished.lines);
    }
}
