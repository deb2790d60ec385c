//! Rules of a whole device: what they drop reaches neither a socket of the host nor another process's capture, however
//! they change, and all of it does once the process has been killed.

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::{Child, Lab, Signal};

use super::{LIMIT, field, kill, require_root, start};

/// Where the host's socket is, and the first port that packets come from.
const SINK: u16 = 9;
const FIRST: u16 = 2000;
/// Datagrams go out in lots: so many ports in turn, so many of each, and of these so many at once, which a socket holds.
const PORTS: u16 = 8;
const EACH: u64 = 16;
const LOT: u64 = PORTS as u64 * EACH;
const AT_ONCE: u64 = 4;

/// Numbered datagrams from the sender's stack, and the host's socket that they go to.
struct Traffic {
    senders: Vec<UdpSocket>,
    sink: UdpSocket,
    sent: u64,
}

impl Traffic {
    fn of(lab: &Lab, first: u16, port: u16) -> Traffic {
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

    /// Sends so many of each port, and gives the numbers of those that are to arrive if these ports are blocked.
    fn send(&mut self, each: u64, blocked: &[u16]) -> BTreeSet<u64> {
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

    /// The numbers of what is there now.
    fn arrived(&self) -> BTreeSet<u64> {
        let mut numbers = BTreeSet::new();
        let mut bytes = [0; 8];
        while let Ok(length) = self.sink.recv(&mut bytes) {
            assert_eq!(length, 8);
            assert!(numbers.insert(u64::from_be_bytes(bytes)), "one came twice");
        }
        numbers
    }

    /// Sends a lot of which exactly the datagrams arrive that do not come from these ports.
    fn only_passes(&mut self, what: &str, blocked: &[u16]) {
        for _ in 0..EACH / AT_ONCE {
            let expected = self.send(AT_ONCE, blocked);
            assert_eq!(self.wait_for(expected.len()), expected, "{what}");
        }
    }

    /// The numbers of what arrives until there are so many.
    fn wait_for(&self, count: usize) -> BTreeSet<u64> {
        let mut arrived = self.arrived();
        let deadline = Instant::now() + LIMIT;
        while arrived.len() < count && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            arrived.extend(self.arrived());
        }
        arrived
    }
}

fn count(lab: &Lab, namespace: &str, device: &str, words: &[&str]) -> Child {
    let all = [&["count", "-i", device, "--json", "--interval", "0.2"], words].concat();
    let mut child = start(lab, namespace, &all);
    child.wait_ready(LIMIT).unwrap();
    child
}

/// Waits until so many packets have found their place in a capture's ledger.
fn all_of(child: &Child, packets: u64) {
    let mut seen = 0;
    while seen < packets {
        seen += field(&child.next_json(LIMIT).unwrap().expect("it goes on"), "seen");
    }
}

/// Ends a capture, and gives `seen`, `filtered`, `blocked`, `absorbed` and `analysed`, which are all there is.
fn end(child: Child) -> [u64; 5] {
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let last: Value = finished.last_json().unwrap();
    let counts = ["seen", "filtered", "blocked", "absorbed", "analysed"].map(|name| field(&last, name));
    assert_eq!(counts[0], counts[1] + counts[3] + counts[4], "{last}");
    counts
}

fn rule_file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Has `wirelane rules` change those of a capture.
fn change(lab: &Lab, capture: &Child, words: &[&str]) {
    let pid = capture.pid().to_string();
    let namespace = &lab.receiver().namespace;
    let finished =
        start(lab, namespace, &[&["rules"], words, &["--pid", &pid]].concat()).finish(LIMIT).unwrap();
    let fails = words.iter().any(|word| word.ends_with("wrong.toml"));
    assert_eq!(finished.status.success(), !fails, "{words:?}: {}", finished.stderr);
}

const BLOCK: &str = "[[rule]]\nid = 1\nsrc-port = \"2000-2001\"\naction = \"drop\"\n\
                     [[precise]]\nid = 100\nsrc-port = 2002\nprotocol = \"udp\"\naction = \"drop\"\n\
                     [[rule]]\nid = 2\nsrc-port = 2003\naction = \"count\"\n";

/// Blocked is what the rules in force drop, and nothing else; of all captures each counts it.
fn block(hook: &str) {
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (namespace, device) = (&lab.receiver().namespace, &lab.receiver().device);
    let hook_is = ["--hook", hook];
    let by = |words: &[&str]| count(&lab, namespace, device, &[&hook_is, words].concat());
    let mut traffic = Traffic::of(&lab, FIRST, SINK);
    traffic.only_passes("before", &[]);
    // In the first place, and asked behind the others all the same.
    let other = by(&[]);
    let rules = rule_file(folder.path(), "block.toml", BLOCK);
    let wide = by(&["--device-wide", "--rules", &rules]);
    traffic.only_passes("from the first packet on", &[2000, 2001, 2002]);
    let mut expected = [3 * EACH, EACH];

    change(&lab, &wide, &["add", "id=5", "src-port=2005", "action=drop"]);
    traffic.only_passes("one more", &[2000, 2001, 2002, 2005]);
    change(&lab, &wide, &["add", "--precise", "id=6", "src-port=2006", "protocol=udp", "action=drop"]);
    change(&lab, &wide, &["del", "5", "100"]);
    traffic.only_passes("two less, one more", &[2000, 2001, 2006]);
    let wrong =
        rule_file(folder.path(), "wrong.toml", "default = \"drop\"\n[[rule]]\nid = 1\nport = 70000\n");
    change(&lab, &wide, &["load", &wrong]);
    traffic.only_passes("a mistake changes nothing", &[2000, 2001, 2006]);
    expected[0] += (4 + 3 + 3) * EACH;
    expected[1] += 3 * EACH;
    let only = "default = \"drop\"\n[[rule]]\nid = 9\nsrc-port = 2004\naction = \"pass\"\n";
    change(&lab, &wide, &["load", &rule_file(folder.path(), "only.toml", only)]);
    traffic.only_passes("all but one", &[2000, 2001, 2002, 2003, 2005, 2006, 2007]);
    expected[0] += 7 * EACH;

    // Another one's rules are asked of what these let through, also where an expression chooses.
    let second = "[[rule]]\nid = 1\naction = \"drop\"\n";
    let second = rule_file(folder.path(), "second.toml", second);
    let second = by(&["--device-wide", "--rules", &second, "src port 2004 or src port 2005"]);
    traffic.only_passes("nobody's", &[2000, 2001, 2002, 2003, 2004, 2005, 2006, 2007]);
    change(&lab, &wide, &["load", &rules]);
    traffic.only_passes("by both", &[2000, 2001, 2002, 2004, 2005]);
    let lots = 7;
    all_of(&other, lots * LOT);
    all_of(&second, 2 * LOT);
    let first = 7 * EACH + 3 * EACH;
    // Those that the expression rejects are filtered, too.
    let rejected = 5 * EACH - 2 * EACH;
    assert_eq!(end(second), [2 * LOT, first + EACH + 2 * EACH + rejected, first, 0, 0], "{hook}");
    traffic.only_passes("by the first alone", &[2000, 2001, 2002]);
    all_of(&wide, (lots + 1) * LOT);
    let (dropped, counted) = (expected[0] + first + 3 * EACH, expected[1] + 2 * EACH);
    let seen = (lots + 1) * LOT;
    assert_eq!(end(wide), [seen, dropped, 0, counted, seen - dropped - counted], "{hook}");
    traffic.only_passes("after it", &[]);
    let seen = seen + LOT;
    let blocked = dropped + EACH + 2 * EACH;
    assert_eq!(end(other), [seen, blocked, blocked, 0, seen - blocked], "{hook}");
}

#[test]
fn device_wide_rules_block_native() {
    if require_root("device_wide_rules_block_native") {
        block("native");
    }
}

#[test]
fn device_wide_rules_block_generic() {
    if require_root("device_wide_rules_block_generic") {
        block("generic");
    }
}

#[test]
fn device_wide_rules_block_tc() {
    if require_root("device_wide_rules_block_tc") {
        block("tc");
    }
}

/// On the way out; and by flow, one in two.
#[test]
fn device_wide_rules_block_what_leaves() {
    if !require_root("device_wide_rules_block_what_leaves") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (namespace, device) = (&lab.sender().namespace, &lab.sender().device);
    let mut traffic = Traffic::of(&lab, FIRST, SINK);
    let out = ["--direction", "tx"];
    let other = count(&lab, namespace, device, &out);
    let rules = rule_file(folder.path(), "block.toml", BLOCK);
    let wide = count(&lab, namespace, device, &[&out[..], &["--device-wide", "--rules", &rules]].concat());
    traffic.only_passes("leaving", &[2000, 2001, 2002]);
    all_of(&wide, LOT);
    assert_eq!(end(wide), [LOT, 3 * EACH, 0, EACH, LOT - 4 * EACH]);

    let rules = "[[rule]]\nid = 1\naction = \"pass\"\nsample = 2\ntruncate = 40\n";
    let rules = rule_file(folder.path(), "sample.toml", rules);
    let wide = count(&lab, namespace, device, &[&out[..], &["--device-wide", "--rules", &rules]].concat());
    traffic.send(EACH, &[]);
    all_of(&wide, LOT);
    let [seen, filtered, blocked, absorbed, analysed] = end(wide);
    assert_eq!((seen, filtered + analysed, blocked, absorbed), (LOT, LOT, 0, 0));
    let arrived = traffic.wait_for(analysed as usize);
    // Whole flows, each of which is there or not.
    assert_eq!(arrived.len() as u64, analysed);
    for flow in 0..u64::from(PORTS) {
        let of = arrived.iter().filter(|number| *number % u64::from(PORTS) == flow).count() as u64;
        assert!(of == 0 || of == EACH, "flow {flow}: {of}");
    }
    assert_eq!(
        end(other),
        [2 * LOT, 3 * EACH + filtered, 3 * EACH + filtered, 0, 2 * LOT - 3 * EACH - filtered]
    );
}

/// Tells a thread to stop when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// While packets flow rules come and go, and each packet is blocked for all or for nobody.
#[test]
fn device_wide_rules_change_under_traffic() {
    if !require_root("device_wide_rules_change_under_traffic") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let (namespace, device) = (&lab.receiver().namespace, &lab.receiver().device);
    let other = count(&lab, namespace, device, &[]);
    let wide = count(&lab, namespace, device, &["--device-wide", "--rules-room", "100"]);
    let (mut steady, mut traffic) = (Traffic::of(&lab, 3000, 10), Traffic::of(&lab, FIRST, SINK));
    let stop = AtomicBool::new(false);
    let mut changes = 0;
    let arrived = std::thread::scope(|scope| {
        let flowing = scope.spawn(|| {
            let mut arrived = BTreeSet::new();
            while !stop.load(Ordering::Relaxed) {
                let surely = steady.send(AT_ONCE, &[]).len() * 7 / 8;
                arrived.extend(steady.wait_for(surely));
            }
            arrived
        });
        // Also where the test fails.
        let stop = Stop(&stop);
        for turn in 0..3 {
            change(&lab, &wide, &["add", "id=7", "src-port=2000,3000", "action=drop"]);
            traffic.only_passes(&format!("added, {turn}"), &[2000]);
            change(&lab, &wide, &["del", "7"]);
            traffic.only_passes(&format!("removed, {turn}"), &[]);
            changes += 2;
        }
        drop(stop);
        flowing.join().unwrap()
    });
    let sent = steady.sent + traffic.sent;
    all_of(&wide, sent);
    let [seen, filtered, blocked, absorbed, analysed] = end(wide);
    assert_eq!((seen, blocked, absorbed), (sent, 0, 0));
    let mut arrived = arrived;
    arrived.extend(steady.arrived());
    println!("{changes} changes; {filtered} of {sent} blocked");
    // All but the first port's always arrive, and of that one what was not blocked.
    assert_eq!(arrived.len() as u64 + traffic.sent - 3 * EACH, analysed);
    assert!((0..steady.sent).all(|number| number % u64::from(PORTS) == 0 || arrived.contains(&number)));
    assert!(filtered > 3 * EACH, "none of the steady ones was blocked");
    all_of(&other, sent);
    assert_eq!(end(other), [sent, filtered, filtered, 0, analysed]);
}

/// A killed one blocks nothing from that moment, though nobody can clear its place.
#[test]
fn killed_device_wide_rules_block_nothing() {
    if !require_root("killed_device_wide_rules_block_nothing") {
        return;
    }
    for hook in ["native", "generic", "tc", "clsact"] {
        let lab = Lab::new(1).unwrap();
        let (namespace, device) = (&lab.receiver().namespace, &lab.receiver().device);
        let folder = tempfile::tempdir().unwrap();
        let rules = rule_file(folder.path(), "drop.toml", "default = \"drop\"\n");
        let wide = || count(&lab, namespace, device, &["--hook", hook, "--device-wide", "--rules", &rules]);
        let everything: Vec<u16> = (FIRST..FIRST + PORTS).collect();
        let mut traffic = Traffic::of(&lab, FIRST, SINK);
        let other = count(&lab, namespace, device, &["--hook", hook]);
        let killed = wide();
        traffic.only_passes("all are blocked", &everything);
        all_of(&other, LOT);
        other.signal(Signal::Stop).unwrap();
        kill(killed);
        traffic.only_passes(hook, &[]);
        other.signal(Signal::Continue).unwrap();
        // Whoever takes its place next does not inherit that.
        let next = count(&lab, namespace, device, &["--hook", hook]);
        traffic.only_passes(hook, &[]);
        all_of(&next, LOT);
        assert_eq!(end(next), [LOT, 0, 0, 0, LOT], "{hook}");
        assert_eq!(end(other), [3 * LOT, LOT, LOT, 0, 2 * LOT], "{hook}");
        // Nobody else is there.
        let alone = wide();
        traffic.only_passes("all are blocked", &everything);
        kill(alone);
        traffic.only_passes(hook, &[]);
    }
}

#[test]
fn device_wide_is_refused_where_it_cannot_be() {
    if !require_root("device_wide_is_refused_where_it_cannot_be") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let only_ring = "--device-wide: only --engine ring keeps packets from others";
    for (options, expected) in [
        (&["-i", "rx0"][..], "--device-wide: there are no rules: name them with --rules, or set room aside"),
        (&["-i", "rx0", "--rules-room", "1", "--engine", "packet"], only_ring),
        (&["-i", "rx0", "--rules-room", "1", "--engine", "xsk", "--take"], only_ring),
        (&["-r", "nosuch.pcap", "--rules", "nosuch.toml"], "cannot be used with"),
    ] {
        let words = [&["count", "--device-wide"], options].concat();
        let finished = start(&lab, &lab.receiver().namespace, &words).finish(LIMIT).unwrap();
        assert!(!finished.status.success() && finished.stderr.contains(expected), "{}", finished.stderr);
    }
}
