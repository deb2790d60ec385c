//! Rules in the kernel: exact in every column on each hook, with rules inserted by packets, and replaced while the
//! capture runs.

use super::evaluated::{Evaluated, on_veth};
use super::{Bench, Guest, field};

/// Packets from source ports 1000 to 1255, in turn: 16 of each.
const PACKETS: u64 = 4096;
const EACH: u64 = PACKETS / 256;
const PORTS: &str = "--pattern ports --flows 256 --src-port 1000 --size 100";

/// Drops 64 ports, counts 33, digests 8, and of 8 passes the first packet only.
const FIRST: &str = r#"
[[rule]]
id = 1
src-port = "1000-1063"
action = "drop"

[[rule]]
id = 2
src-port = "1064-1095"
action = "count"

[[rule]]
id = 3
src-port = "1100-1107"
action = "pass"
tag = 7
truncate = 60
insert = { fields = ["src-port", "protocol"], action = "drop", idle = 600 }

[[rule]]
id = 5
src-port = "1208-1215"
action = "digest"

[[exact]]
id = 100
src-port = 1200
protocol = "udp"
action = "count"
"#;

/// Passes 128 ports.
const SECOND: &str = r#"
default = "drop"

[[rule]]
id = 1
src-port = "1000-1063"
action = "pass"

[[rule]]
id = 4
src-port = "1128-1191"
action = "pass"
"#;

fn decide(bench: &(dyn Bench + Sync), hook: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (first, second) = (file("first.toml", FIRST), file("second.toml", SECOND));
    let mut evaluated = Evaluated::start(bench, hook, &first);
    bench.send_with(PACKETS, "socket", PORTS);
    evaluated.all_of(PACKETS);
    let stats = evaluated.ask(&["stats"]);
    let hits = |at: usize| field(&stats["rules"][at]["hits"], "packets");
    assert_eq!([0, 1, 2, 3].map(hits), [64 * EACH, 32 * EACH, 8, 8 * EACH], "{stats}");
    assert_eq!((field(&stats["rules"][2], "inserted"), field(&stats, "exact")), (8, 9), "{stats}");
    assert_eq!(field(&stats["exact_hits"], "packets"), EACH + 8 * (EACH - 1), "{stats}");
    evaluated.ask(&["load", &second]);
    bench.send_with(PACKETS, "socket", PORTS);
    evaluated.all_of(2 * PACKETS);
    let last = evaluated.end();
    assert_eq!((field(&last, "seen"), field(&last, "lost")), (2 * PACKETS, 0), "{last}");
    assert_eq!(field(&last, "absorbed"), 33 * EACH, "{last}");
    assert_eq!(field(&last, "filtered"), 64 * EACH + 8 * (EACH - 1) + 128 * EACH, "{last}");
    let sum = ["filtered", "absorbed", "analysed"].map(|column| field(&last, column)).iter().sum::<u64>();
    assert_eq!(sum, 2 * PACKETS, "{last}");
    // A new set has its own exact-match rules, and its own counters.
    let gone = field(&last["rule_stats"]["exact_gone"], "packets");
    assert_eq!(gone, EACH + 8 * (EACH - 1), "{last}");
    let hits = |at: usize| field(&last["rule_stats"]["rules"][at]["hits"], "packets");
    assert_eq!([0, 1].map(hits), [64 * EACH; 2], "{last}");
}

#[test]
fn rules_decide_on_veth() {
    on_veth("rules_decide_on_veth", |lab, hook| decide(lab, hook));
}

#[test]
fn rules_decide_on_virtio_net() {
    let Some(guest) = Guest::find("rules_decide_on_virtio_net") else { return };
    for hook in ["native", "generic", "tc"] {
        decide(&guest, hook);
    }
}
