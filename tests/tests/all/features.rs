//! Features of the capture program: groups that need more features than the running program has join and leave under
//! load. No group loses a packet, and each gets its features.

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, column, finish, last_of, send, wirelane};
use wirelane_tests::{Child, Lab, require_root};

const HOOKS: [&str; 4] = ["native", "generic", "tc", "clsact"];
/// Number of joins with a new set of features on each hook; `make test-all` has 50.
fn joins() -> usize {
    std::env::var("WIRELANE_FEATURE_JOINS").map_or(10, |joins| joins.parse().unwrap())
}

/// Commands that each need a feature.
const GUESTS: [&[&str]; 5] = [
    &["count", "udp dst port 9"],
    &["count", "--balance", "adaptive", "--workers", "2"],
    &["count", "--rules-capacity", "10"],
    &["flows", "--cache", "kernel"],
    &["count", "--congestion-control", "on"],
];

fn start(lab: &Lab, hook: &str, words: &[&str]) -> Child {
    let end = lab.receiver();
    let options = ["-i", &end.device, "--direction", "rx", "--hook", hook, "--ring-size", "16", "--json"];
    let mut child = wirelane(lab, &end.namespace, &[&words[..1], &options, &words[1..]].concat()).unwrap();
    child.wait_ready(LIMIT).unwrap();
    child
}

/// Asserts that every packet of a capture is in one column, and none is lost.
fn whole(last: &Value) -> u64 {
    assert_eq!((column(last, "lost"), column(last, "shed")), (0, 0), "{last}");
    let places = ["filtered", "absorbed", "analysed"].map(|name| column(last, name));
    assert_eq!(column(last, "seen"), places.iter().sum::<u64>(), "{last}");
    column(last, "seen")
}

/// Battery: L1
#[test]
fn groups_that_need_more_join_and_leave_and_nobody_loses_a_packet() {
    if !require_root("groups_that_need_more_join_and_leave_and_nobody_loses_a_packet") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let sender = lab.sender();
    for hook in HOOKS {
        let mut joined = 0;
        while joined < joins() {
            // The program is loaded anew, without features, for each round of guests.
            let plain = start(&lab, hook, &["count"]);
            let words = ["send", "-i", &sender.device, "--method", "socket", "--rate", "5k", "--json"];
            let load = wirelane(&lab, &sender.namespace, &words).unwrap();
            for at in 0..GUESTS.len() {
                let guest = start(&lab, hook, GUESTS[(at + joined) % GUESTS.len()]);
                whole(&finish(guest).unwrap());
                joined += 1;
            }
            let sent = last_of(&load.terminate(LIMIT).unwrap()).unwrap();
            assert_eq!(whole(&finish(plain).unwrap()), column(&sent, "sent"), "{hook}");
        }
    }
}

/// Battery: L1
#[test]
fn each_guest_of_a_plain_capture_gets_what_it_asks_for() {
    if !require_root("each_guest_of_a_plain_capture_gets_what_it_asks_for") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    for hook in HOOKS {
        let plain = start(&lab, hook, &["count"]);
        let filter = start(&lab, hook, &["count", "udp dst port 9"]);
        let other = start(&lab, hook, &["count", "udp dst port 10"]);
        let flows = start(&lab, hook, &["flows", "--cache", "kernel"]);
        let balanced = start(&lab, hook, &["count", "--balance", "adaptive", "--workers", "2"]);
        send(&lab, 1000, &["--flows", "50", "--rate", "20k"]).unwrap();
        let last = |child| {
            let last = finish(child).unwrap();
            assert_eq!(whole(&last), 1000, "{hook}: {last}");
            last
        };
        assert_eq!(column(&last(plain), "analysed"), 1000);
        assert_eq!(column(&last(filter), "analysed"), 1000);
        assert_eq!(column(&last(other), "filtered"), 1000);
        let flows = last(flows);
        assert_eq!((column(&flows, "flows"), column(&flows, "flow_packets")), (50, 1000), "{hook}");
        assert_eq!(column(&last(balanced), "analysed"), 1000);
    }
}
