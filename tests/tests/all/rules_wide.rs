//! Device-wide rules by the other hooks, on transmission, under traffic, and where they are not possible. Tests that
//! depend on the kernel are in kernels/rules_wide.rs.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};

use super::kernels::device_wide::{
    AT_ONCE, BLOCK, EACH, FIRST, LIMIT, LOT, PORTS, SINK, Traffic, all_of, block, change, count, end, kill,
    rule_file,
};
use wirelane_tests::numbers::wirelane;
use wirelane_tests::{Lab, require_root};

/// Battery: L1
#[test]
fn device_wide_rules_change_native() {
    if require_root("device_wide_rules_change_native") {
        block("native", true);
    }
}

/// Battery: L1
#[test]
fn device_wide_rules_change_generic() {
    if require_root("device_wide_rules_change_generic") {
        block("generic", true);
    }
}

/// By a clsact filter, which the kernel would keep; also when no other process exists after the kill.
/// Battery: L1
#[test]
fn device_wide_rules_change_clsact() {
    if !require_root("device_wide_rules_change_clsact") {
        return;
    }
    block("clsact", true);
    let lab = Lab::new(1).unwrap();
    let (namespace, device) = (&lab.receiver().namespace, &lab.receiver().device);
    let folder = tempfile::tempdir().unwrap();
    let rules = rule_file(folder.path(), "drop.toml", "default = \"drop\"\n");
    let everything: Vec<u16> = (FIRST..FIRST + PORTS).collect();
    let mut traffic = Traffic::of(&lab, FIRST, SINK);
    let alone = count(&lab, namespace, device, &["--hook", "clsact", "--device-wide", "--rules", &rules]);
    traffic.only_passes("all are blocked", &everything);
    kill(alone);
    traffic.only_passes("killed", &[]);
}

/// By the payload, which is searched in blocks: with a name at any position, and with folded lines.
/// Battery: L1
#[test]
fn callers_are_blocked_wherever_their_names_lie() {
    if !require_root("callers_are_blocked_wherever_their_names_lie") {
        return;
    }
    const PLACES: usize = 160;
    const ALICE: &str = "alice@example.com";
    const BOB: &str = "bob@example.com";
    let message = |place: usize, from: &str, to: &str| {
        let via = "x".repeat(place);
        let head = format!(
            "INVITE sip:{to} SIP/2.0\r\nVia: {via}\r\nFrom: \"A\"\r\n\t<sip:{from}>;tag=1\r\nTo: <sip:{to}>\r\n"
        );
        head + "\r\nFrom: alice@example.com\r\n"
    };
    for hook in ["native", "tc"] {
        let lab = Lab::new(1).unwrap();
        let (namespace, device) = (&lab.receiver().namespace, &lab.receiver().device);
        let folder = tempfile::tempdir().unwrap();
        let rules =
            "[[rule]]\nid = 1\nprotocol = \"udp\"\nsip-from = \"Alice@Example.com\"\naction = \"drop\"\n";
        let rules = rule_file(folder.path(), "callers.toml", rules);
        let wide = count(&lab, namespace, device, &["--hook", hook, "--device-wide", "--rules", &rules]);
        let to = (lab.receiver().address, 5060);
        let sink = lab.enter(namespace, || UdpSocket::bind(to).unwrap()).unwrap();
        sink.set_read_timeout(Some(LIMIT)).unwrap();
        let sender =
            lab.enter(&lab.sender().namespace, || UdpSocket::bind((lab.sender().address, 5060)).unwrap());
        let sender = sender.unwrap();
        for place in 0..PLACES {
            let (blocked, passing) = (message(place, ALICE, BOB), message(place, BOB, ALICE));
            sender.send_to(blocked.as_bytes(), to).unwrap();
            sender.send_to(passing.as_bytes(), to).unwrap();
            let mut bytes = [0; 1500];
            let length = sink.recv(&mut bytes).unwrap();
            assert_eq!(String::from_utf8_lossy(&bytes[..length]), passing, "{hook}: {place}");
        }
        let sent = 2 * PLACES as u64;
        all_of(&wide, sent);
        assert_eq!(end(wide), [sent, sent / 2, 0, 0, sent / 2], "{hook}");
    }
}

/// On transmission; and by flow, one in two.
/// Battery: L1
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
    // Complete flows: each is present or not.
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

/// Rules are added and removed while packets flow, and each packet is blocked for all or for none.
/// Battery: L1
#[test]
fn device_wide_rules_change_under_traffic() {
    if !require_root("device_wide_rules_change_under_traffic") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let (namespace, device) = (&lab.receiver().namespace, &lab.receiver().device);
    let other = count(&lab, namespace, device, &[]);
    let wide = count(&lab, namespace, device, &["--device-wide", "--rules-capacity", "100"]);
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
        // Also if the test fails.
        let stop = Stop(&stop);
        for turn in 0..2 {
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
    // All packets of the other ports arrive, and of the first port those that were not blocked.
    assert_eq!(arrived.len() as u64 + traffic.sent - changes / 2 * EACH, analysed);
    assert!((0..steady.sent).all(|number| number % u64::from(PORTS) == 0 || arrived.contains(&number)));
    assert!(filtered > changes / 2 * EACH, "none of the steady ones was blocked");
    all_of(&other, sent);
    assert_eq!(end(other), [sent, filtered, filtered, 0, analysed]);
}

#[test]
fn device_wide_is_refused_where_it_cannot_be() {
    if !require_root("device_wide_is_refused_where_it_cannot_be") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let only_ring = "--device-wide: only --engine ring keeps packets from others";
    for (options, expected) in [
        (&["-i", "rx0"][..], "--device-wide: no rules: pass --rules, or reserve capacity"),
        (&["-i", "rx0", "--rules-capacity", "1", "--engine", "packet"], only_ring),
        (&["-i", "rx0", "--rules-capacity", "1", "--engine", "xsk", "--exclusive"], only_ring),
        (&["-r", "nosuch.pcap", "--rules", "nosuch.toml"], "cannot be used with"),
    ] {
        let words = [&["count", "--device-wide"], options].concat();
        let finished = wirelane(&lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
        assert!(!finished.status.success() && finished.stderr.contains(expected), "{}", finished.stderr);
    }
}
