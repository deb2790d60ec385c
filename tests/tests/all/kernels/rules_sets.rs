//! Named sets in the kernel: looked up on each hook by a capture without rights, and replaced under traffic without a
//! gap.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

use serde_json::Value;
use wirelane_send::Traffic;

use super::evaluated::{Evaluated, on_veth};
use super::{Bench, Guest, field};

/// Packets to 256 addresses, in turn: 16 of each.
const PACKETS: u64 = 4096;
const EACH: u64 = PACKETS / 256;
const HOSTS: &str = "--flows 256 --size 100";

/// The k-th destination address of the packets.
fn host(k: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(wirelane_send::DST) + k)
}

/// A rule file that drops packets to some hosts, counts those of some flows, and passes the others.
fn rules(folder: &Path, name: &str, hosts: (u32, u32), flows: (u32, u32), rest: &str) -> String {
    let (src, Traffic { src_port, dst_port, .. }) = (wirelane_send::SRC, Traffic::default());
    let mut list = String::from("2001:db8::1 # another family\n");
    for k in hosts.0..hosts.1 {
        let _ = writeln!(list, "{}", host(k));
    }
    let mut calls = String::new();
    for k in flows.0..flows.1 {
        // The opposite direction.
        let _ = writeln!(
            calls,
            "udp {} {}",
            SocketAddrV4::new(host(k), dst_port),
            SocketAddrV4::new(src, src_port)
        );
    }
    std::fs::write(folder.join(format!("{name}.txt")), list).unwrap();
    std::fs::write(folder.join(format!("{name}-calls.txt")), calls).unwrap();
    let text = format!(
        r#"
        [[sets]]
        name = "threats"
        entries = "@{name}.txt"
        false-positives = 0.000001
        {rest}

        [[sets]]
        name = "calls"
        of = "flow"
        entries = "@{name}-calls.txt"
        confirm = true

        [[rule]]
        id = 1
        host-in = "threats"
        action = "drop"

        [[rule]]
        id = 2
        flow-in = "calls"
        not.src-in = "threats"
        action = "count"
        "#
    );
    let path = folder.join(format!("{name}.toml"));
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn decide(bench: &(dyn Bench + Sync), hook: &str) {
    let folder = tempfile::tempdir().unwrap();
    let first = rules(folder.path(), "first", (0, 64), (60, 96), "");
    let second = rules(folder.path(), "second", (32, 128), (0, 200), "confirm = true");
    let mut evaluated = Evaluated::start(bench, hook, &first);
    bench.send_with(PACKETS, "socket", HOSTS);
    evaluated.all_of(PACKETS);
    let stats = evaluated.ask(&["stats"]);
    let hits = |stats: &Value| [0, 1].map(|at| field(&stats["rules"][at]["hits"], "packets") / EACH);
    assert_eq!(hits(&stats), [64, 32], "{stats}");
    assert_eq!(
        (field(&stats["sets"][0], "entries"), field(&stats["sets"][1], "entries")),
        (65, 36),
        "{stats}"
    );

    // Other lists with the same rules, which keep their counters.
    evaluated.ask(&["load", &second]);
    bench.send_with(PACKETS, "socket", HOSTS);
    evaluated.all_of(2 * PACKETS);
    assert_eq!(hits(&evaluated.ask(&["stats"])), [64 + 96, 32 + 104]);
    // An active set can be used by another rule.
    evaluated.ask(&["add", "id=3", "dst-in=threats", "action=none", "tag=7"]);
    let finished = evaluated.try_to(&["add", "id=4", "dst-in=threads", "action=drop"]);
    assert!(
        !finished.status.success() && finished.stderr.contains("there is no set 'threads'"),
        "{}",
        finished.stderr
    );

    // Under traffic: each of these lists contains all packets.
    let whole = [
        rules(folder.path(), "all", (0, 256), (0, 1), ""),
        rules(folder.path(), "more", (0, 300), (0, 1), "confirm = true"),
    ];
    evaluated.ask(&["load", &whole[0]]);
    let before = evaluated.ask(&["stats"]);
    let packets = 4 * PACKETS;
    let loads = evaluated.load_under_traffic(&whole, packets, HOSTS);
    evaluated.all_of(2 * PACKETS + packets);
    let last = evaluated.end();
    println!("{hook}: {loads} lists under traffic");
    let dropped = |stats: &Value| field(&stats["rules"][0]["hits"], "packets");
    assert_eq!(dropped(&last["rule_stats"]) - dropped(&before), packets, "none slipped through: {last}");
    assert_eq!((field(&last, "seen"), field(&last, "lost")), (2 * PACKETS + packets, 0), "{last}");
    assert_eq!(field(&last, "filtered"), (64 + 96) * EACH + packets, "{last}");
    assert_eq!(field(&last, "absorbed"), (32 + 104) * EACH, "{last}");
}

/// Battery: L1
#[test]
fn named_sets_decide_on_veth() {
    on_veth("named_sets_decide_on_veth", |lab, hook| decide(lab, hook));
}

#[test]
fn named_sets_decide_on_virtio_net() {
    let Some(guest) = Guest::find("named_sets_decide_on_virtio_net") else { return };
    // The other hooks behave as on veth.
    decide(&guest, "native");
}
