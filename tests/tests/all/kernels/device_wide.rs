//! Packets dropped by device-wide rules reach neither a socket of the host nor another process's capture, through all
//! changes of the rules, and all packets do once the process is killed.

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{column, wirelane};
use wirelane_tests::{Child, Lab, Signal};

/// An emulated machine is a hundred times slower than a real one.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

/// Port of the host's socket, and the first source port of packets.
pub(crate) const SINK: u16 = 9;
pub(crate) const FIRST: u16 = 2000;
/// Datagrams are sent in lots: so many ports in turn, so many of each, and of these so many at once as fit into a
/// socket's buffer.
pub(crate) const PORTS: u16 = 8;
pub(crate) const EACH: u64 = 16;
pub(crate) const LOT: u64 = PORTS as u64 * EACH;
pub(crate) const AT_ONCE: u64 = 4;

/// Numbered datagrams from the sender's stack, and the receiving socket of the host.
pub(crate) struct Traffic {
    senders: Vec<UdpSocket>,
    sink: UdpSocket,
    pub(crate) sent: u64,
}

impl Traffic {
    pub(crate) fn of(lab: &Lab, first: u16, port: u16) -> Traffic {
        let to = (lab.receiver().address, port);
        let sink = lab.enter(&lab.receiver().namespace, || UdpSocket::bind(to).unwrap()).unwrap();
        sink.set_nonblocking(true).unwrap();
        let sender = |port: u16| {
            let socket = UdpSocket::bind((lab.sender().address, first + port)).unwrap();
            socket.connect(to).unwrap();
            socket
        };
        let senders = lab.enter(&lab.sender().namespace, || (0..PORTS).map(sender).collect()).unwrap();
        Traffic { senders, sink, sent: 0 }
    }

    /// Sends so many of each port, and returns the numbers of those expected to arrive if these ports are blocked.
    pub(crate) fn send(&mut self, each: u64, blocked: &[u16]) -> BTreeSet<u64> {
        let mut passing = BTreeSet::new();
        let count = each * u64::from(PORTS);
        for number in self.sent..self.sent + count {
            let port = (number % u64::from(PORTS)) as u16;
            self.senders[usize::from(port)].send(&number.to_be_bytes()).unwrap();
            if !blocked.contains(&(FIRST + port)) {
                passing.insert(number);
            }
        }
        self.sent += count;
        passing
    }

    /// The numbers of the datagrams in the socket's buffer.
    pub(crate) fn arrived(&self) -> BTreeSet<u64> {
        let mut numbers = BTreeSet::new();
        let mut bytes = [0; 8];
        while let Ok(length) = self.sink.recv(&mut bytes) {
            assert_eq!(length, 8);
            assert!(numbers.insert(u64::from_be_bytes(bytes)), "one came twice");
        }
        numbers
    }

    /// Sends a lot, and asserts that exactly the datagrams from other ports than these arrive.
    pub(crate) fn only_passes(&mut self, what: &str, blocked: &[u16]) {
        for _ in 0..EACH / AT_ONCE {
            let expected = self.send(AT_ONCE, blocked);
            assert_eq!(self.wait_for(expected.len()), expected, "{what}");
        }
    }

    /// Numbers of arriving datagrams, once there are so many.
    pub(crate) fn wait_for(&self, count: usize) -> BTreeSet<u64> {
        let mut arrived = self.arrived();
        let deadline = Instant::now() + LIMIT;
        while arrived.len() < count && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            arrived.extend(self.arrived());
        }
        arrived
    }
}

pub(crate) fn count(lab: &Lab, namespace: &str, device: &str, words: &[&str]) -> Child {
    let all = [&["count", "-i", device, "--json", "--interval", "0.2"], words].concat();
    let mut child = wirelane(lab, namespace, &all).unwrap();
    child.wait_ready(LIMIT).unwrap();
    child
}

/// Counts of packets: `seen`, `filtered`, `blocked`, `absorbed` and `analysed`.
type Counts = [u64; 5];

fn counts(object: &Value) -> Counts {
    ["seen", "filtered", "blocked", "absorbed", "analysed"].map(|name| column(object, name))
}

/// Waits until so many more packets are in a column of a capture's ledger, and returns the counts.
pub(crate) fn all_of(child: &Child, packets: u64) -> Counts {
    let mut sums = [0; 5];
    while sums[0] < packets || sums[0] != sums[1] + sums[3] + sums[4] {
        let now = counts(&child.next_json(LIMIT).unwrap().expect("it goes on"));
        sums.iter_mut().zip(now).for_each(|(sum, more)| *sum += more);
    }
    sums
}

/// Ends a capture, and returns its total counts.
pub(crate) fn end(child: Child) -> Counts {
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let last = finished.last_json().unwrap();
    let [seen, filtered, _, absorbed, analysed] = counts(&last);
    assert_eq!(seen, filtered + absorbed + analysed, "{last}");
    counts(&last)
}

/// Kills a capture.
pub(crate) fn kill(child: Child) {
    child.signal(Signal::Kill).unwrap();
    assert!(!child.finish(LIMIT).unwrap().status.success());
}

pub(crate) fn rule_file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Changes the rules of a capture with `wirelane rules`.
pub(crate) fn change(lab: &Lab, capture: &Child, words: &[&str]) {
    let pid = capture.pid().to_string();
    let namespace = &lab.receiver().namespace;
    let finished = wirelane(lab, namespace, &[&["rules"], words, &["--pid", &pid]].concat())
        .unwrap()
        .finish(LIMIT)
        .unwrap();
    let fails = words.iter().any(|word| word.ends_with("wrong.toml"));
    assert_eq!(finished.status.success(), !fails, "{words:?}: {}", finished.stderr);
}

pub(crate) const BLOCK: &str = "[[rule]]\nid = 1\nsrc-port = \"2000-2001\"\naction = \"drop\"\n\
                     [[exact]]\nid = 100\nsrc-port = 2002\nprotocol = \"udp\"\naction = \"drop\"\n\
                     [[rule]]\nid = 2\nsrc-port = 2003\naction = \"count\"\n";

/// Exactly the packets that the active rules drop are blocked, and each capture counts them. A killed capture does not
/// block anything from that moment, even while its slot is not cleared. With `changes`, rules are added and removed
/// meanwhile.
pub(crate) fn block(hook: &str, changes: bool) {
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (namespace, device) = (&lab.receiver().namespace, &lab.receiver().device);
    let by = |words: &[&str]| count(&lab, namespace, device, &[&["--hook", hook], words].concat());
    let mut traffic = Traffic::of(&lab, FIRST, SINK);
    traffic.only_passes("before", &[]);
    // In the first slot, but evaluated after the others.
    let other = by(&[]);
    let rules = rule_file(folder.path(), "block.toml", BLOCK);
    let wide = by(&["--device-wide", "--rules", &rules]);
    traffic.only_passes("from the first packet on", &[2000, 2001, 2002]);
    // Lots that both have seen; ports of each that the device-wide rules drop, that they count, and that another
    // capture drops.
    let (mut lots, mut dropped, mut counted, mut by_others) = (1, 3, 1, 0);
    if changes {
        let [more, fewer] = come_and_go(&lab, &wide, &mut traffic, folder.path());
        (lots, dropped, counted) = (lots + 4, dropped + more, counted + fewer);
        by_others = beside_another(&lab, hook, &wide, &mut traffic, folder.path());
        (lots, dropped, counted) = (lots + 2, dropped + 7 + 3, counted + 1);
    }
    all_of(&other, lots * LOT);
    let (seen, dropped, counted) = (lots * LOT, dropped * EACH, counted * EACH);
    assert_eq!(all_of(&wide, seen), [seen, dropped, 0, counted, seen - dropped - counted], "{hook}");

    other.signal(Signal::Stop).unwrap();
    kill(wide);
    traffic.only_passes("killed", &[]);
    other.signal(Signal::Continue).unwrap();
    // The next capture in its slot does not inherit the blocking.
    let next = by(&[]);
    traffic.only_passes("after it", &[]);
    all_of(&next, LOT);
    assert_eq!(end(next), [LOT, 0, 0, 0, LOT], "{hook}");
    let (seen, blocked) = (seen + 2 * LOT, dropped + by_others * EACH);
    assert_eq!(end(other), [seen, blocked, blocked, 0, seen - blocked], "{hook}");
}

/// Four lots with changed rules: returns the numbers of ports that they dropped and counted.
fn come_and_go(lab: &Lab, wide: &Child, traffic: &mut Traffic, folder: &Path) -> [u64; 2] {
    change(lab, wide, &["add", "id=5", "src-port=2005", "action=drop"]);
    traffic.only_passes("one more", &[2000, 2001, 2002, 2005]);
    change(lab, wide, &["add", "--exact", "id=6", "src-port=2006", "protocol=udp", "action=drop"]);
    change(lab, wide, &["del", "5", "100"]);
    traffic.only_passes("two less, one more", &[2000, 2001, 2006]);
    let wrong = rule_file(folder, "wrong.toml", "default = \"drop\"\n[[rule]]\nid = 1\nport = 70000\n");
    change(lab, wide, &["load", &wrong]);
    traffic.only_passes("a mistake changes nothing", &[2000, 2001, 2006]);
    let only = "default = \"drop\"\n[[rule]]\nid = 9\nsrc-port = 2004\naction = \"pass\"\n";
    change(lab, wide, &["load", &rule_file(folder, "only.toml", only)]);
    traffic.only_passes("all but one", &[2000, 2001, 2002, 2003, 2005, 2006, 2007]);
    [4 + 3 + 3 + 7, 3]
}

/// Two lots beside another capture with device-wide rules: these are evaluated for packets that the first rules pass,
/// if its filter accepts them. Returns the number of ports that it drops.
fn beside_another(lab: &Lab, hook: &str, wide: &Child, traffic: &mut Traffic, folder: &Path) -> u64 {
    let (namespace, device) = (&lab.receiver().namespace, &lab.receiver().device);
    let all = rule_file(folder, "all.toml", "default = \"drop\"\n");
    let words = ["--hook", hook, "--device-wide", "--rules", &all, "src port 2004 or src port 2005"];
    let second = count(lab, namespace, device, &words);
    traffic.only_passes("nobody's", &[2000, 2001, 2002, 2003, 2004, 2005, 2006, 2007]);
    change(lab, wide, &["load", folder.join("block.toml").to_str().unwrap()]);
    traffic.only_passes("by both", &[2000, 2001, 2002, 2004, 2005]);
    all_of(&second, 2 * LOT);
    // Dropped by the first rules, by its own rules, and rejected by its filter.
    let (first, own, rejected) = (7 + 3, 1 + 2, 3);
    let filtered = (first + own + rejected) * EACH;
    assert_eq!(end(second), [2 * LOT, filtered, first * EACH, 0, 0], "{hook}");
    own
}
