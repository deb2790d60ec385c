//! Named sets of every key on devices: several in each capture, and replaced while it runs.

use std::collections::BTreeMap;

use wirelane::{Capture, Engine, HookChoice};
use wirelane_send::{DST, SRC};
use wirelane_tests::numbers::send;
use wirelane_tests::ruled::{KERNEL, PORTS, SENT, TURNS, WORKER, drain, hits, open, rules};
use wirelane_tests::{Lab, require_root};

/// Rules over three sets: of these source ports, of these ports of UDP, and of these networks.
fn text(ends: std::ops::Range<u16>, services: std::ops::Range<u16>, networks: &str) -> String {
    let ends: Vec<String> = ends.map(|port| format!("\"{SRC}:{port}\"")).collect();
    // Other protocols and other addresses are other entries.
    let services: Vec<String> = services
        .flat_map(|port| [format!("\"udp {SRC}:{port}\""), format!("\"tcp {SRC}:{}\"", port + 64)])
        .chain([format!("\"udp {DST}:1255\"")])
        .collect();
    let set = |name: &str, of: &str, entries: &str| {
        format!("[[sets]]\nname = \"{name}\"\nof = \"{of}\"\nentries = [{entries}]\nconfirm = true\n")
    };
    let rule = |id: u32, condition: &str| format!("[[rule]]\nid = {id}\n{condition}\naction = \"count\"\n");
    [
        set("ends", "address-port", &ends.join(", ")),
        set("services", "address-port-protocol", &services.join(", ")),
        set("networks", "network", networks),
        rule(1, "src-in = \"ends\""),
        rule(2, "host-in = \"services\""),
        rule(3, "dst-in = \"networks\""),
    ]
    .concat()
}

/// Packets that hit the three rules.
fn counted(capture: &Capture) -> BTreeMap<u32, u64> {
    hits(&capture.rule_stats().unwrap().unwrap())
}

fn sets_are_replaced(at: (Engine, HookChoice), beside: bool) {
    const ELSEWHERE: &str = "\"203.0.113.0/24\", \"2001:db8::/32\"";
    let lab = Lab::new(1).unwrap();
    let first = rules(&text(1000..1064, 1064..1096, ELSEWHERE));
    // Another capture has sets of the same names.
    let mut other = beside.then(|| {
        let sets = rules(&text(1100..1110, 1110..1111, ELSEWHERE));
        open(&lab, at, |builder| builder.rules(sets)).unwrap()
    });
    let mut capture = open(&lab, at, |builder| builder.rules(first)).unwrap();
    let mut worker = capture.workers().remove(0);
    send(&lab, SENT, &PORTS).unwrap();
    let mut left = 0;
    drain(&capture, &mut worker, SENT, |_| left += 1);
    assert_eq!(counted(&capture), BTreeMap::from([(1, 64 * TURNS), (2, 32 * TURNS), (3, 0)]), "{at:?}");
    assert_eq!(left, SENT - 96 * TURNS, "{at:?}");
    // The rules stay, and count on; their sets are others.
    let networks = format!("\"{DST}/31\", \"198.51.100.0/25\", \"2001:db8::/33\"");
    capture.set_rules(&rules(&text(1200..1210, 1210..1211, &networks))).unwrap();
    let lines = capture.rule_stats().unwrap().unwrap().sets;
    let kinds: Vec<(&str, u64)> = lines.iter().map(|line| (line.of.as_str(), line.entries)).collect();
    assert_eq!(kinds, [("address-port", 10), ("address-port-protocol", 3), ("network", 3)]);
    send(&lab, SENT, &PORTS).unwrap();
    drain(&capture, &mut worker, 2 * SENT, |_| panic!("{at:?}: all is counted by a rule"));
    let expected = [(1, 74 * TURNS), (2, 33 * TURNS), (3, 245 * TURNS)];
    assert_eq!(counted(&capture), BTreeMap::from(expected), "{at:?}");
    if let Some(other) = &mut other {
        let mut worker = other.workers().remove(0);
        drain(other, &mut worker, 2 * SENT, |_| {});
        let expected = [(1, 2 * 10 * TURNS), (2, 2 * TURNS), (3, 0)];
        assert_eq!(counted(other), BTreeMap::from(expected), "{at:?}");
    }
}

/// Battery: I8
#[test]
fn sets_of_any_key_are_replaced_in_the_kernel() {
    if require_root("sets_of_any_key_are_replaced_in_the_kernel") {
        KERNEL.into_iter().for_each(|at| sets_are_replaced(at, true));
    }
}

#[test]
fn sets_of_any_key_are_replaced_in_the_worker() {
    if require_root("sets_of_any_key_are_replaced_in_the_worker") {
        WORKER.into_iter().for_each(|at| sets_are_replaced(at, false));
    }
}
