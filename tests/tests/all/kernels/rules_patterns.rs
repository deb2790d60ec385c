//! Payload patterns in the kernel: searched for on each hook by a capture without rights, and replaced under traffic
//! without a gap.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::evaluated::{Evaluated, on_veth};
use super::{Bench, Guest, field};

/// Numbered packets: each last byte of the number occurs 16 times, each second-last byte, up to 15, 256 times.
const PACKETS: u64 = 4096;
const EACH: u64 = PACKETS / 256;
/// Bytes of the payload before the number.
const MAGIC: u64 = 4;
const OPTIONS: &str = "--flows 256 --size 600";

/// A rule file: packets whose number has the second-last byte 7 are dropped, those whose last byte is below 64 are
/// counted, and the others are tagged. `more` patterns that no packet contains are added.
fn rules(folder: &Path, name: &str, more: usize) -> String {
    let mut text = String::new();
    (0..64).for_each(|byte| {
        let _ = writeln!(text, "{byte:02x}");
    });
    let ends: Vec<String> = text.lines().map(|byte| format!("\"{byte}\"")).collect();
    let others: String = (0..more).map(|number| format!("no packet has this {number}\n")).collect();
    std::fs::write(folder.join(format!("{name}.txt")), others + "WLn2\n").unwrap();
    let text = format!(
        r#"
        [[patterns]]
        name = "seventh"
        id = 700
        hex = "07"
        offset = {seventh}
        depth = 1

        [[patterns]]
        name = "ends"
        id = 1
        hex = [{ends}]
        offset = {last}
        depth = 1

        [[patterns]]
        name = "magic"
        id = 900
        text = "wlN1"
        nocase = true

        [[patterns]]
        name = "others"
        id = 1000
        file = "{name}.txt"

        [[rule]]
        id = 1
        payload = ["seventh", "others"]
        action = "drop"

        [[rule]]
        id = 2
        payload = "ends"
        not.payload = "seventh"
        action = "count"

        [[rule]]
        id = 3
        payload = "magic"
        action = "pass"
        tag = 7
        "#,
        seventh = MAGIC + 6,
        last = MAGIC + 7,
        ends = ends.join(", "),
    );
    let path = folder.join(format!("{name}.toml"));
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A rule file that drops packets with a pattern that all of them contain.
fn all(folder: &Path, name: &str, patterns: &str, more: usize) -> String {
    let others: String = (0..more).map(|number| format!("no packet has this {number}\n")).collect();
    std::fs::write(folder.join(format!("{name}.txt")), others + patterns).unwrap();
    let path = folder.join(format!("{name}.toml"));
    let text = format!(
        "[[patterns]]\nname = \"all\"\nid = 1\nfile = \"{name}.txt\"\n[[rule]]\nid = 1\npayload = \"all\"\naction = \"drop\"\n"
    );
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn decide(bench: &(dyn Bench + Sync), hook: &str) {
    let folder = tempfile::tempdir().unwrap();
    let first = rules(folder.path(), "first", 1000);
    let mut evaluated = Evaluated::start(bench, hook, &first);
    // Without a tag and with one, which the stack removes from a packet before tc sees it.
    for (turn, options) in [OPTIONS.to_owned(), format!("{OPTIONS} --vlan 7")].iter().enumerate() {
        let turns = turn as u64 + 1;
        bench.send_with(PACKETS, "socket", options);
        evaluated.all_of(turns * PACKETS);
        let stats = evaluated.ask(&["stats"]);
        let hits = [0, 1, 2].map(|at| field(&stats["rules"][at]["hits"], "packets"));
        let expected = [256, 64 * (EACH - 1), PACKETS - 256 - 64 * (EACH - 1)];
        assert_eq!(hits, expected.map(|packets| turns * packets), "{stats}");
        let searches = ["packets", "found", "half"].map(|what| field(&stats["searches"], what));
        assert_eq!(searches, [turns * PACKETS, turns * PACKETS, 0], "{stats}");
        let lines = stats["patterns"].as_array().unwrap();
        let counts: Vec<u64> = lines.iter().map(|line| field(line, "patterns")).collect();
        assert_eq!(counts, [1, 64, 1, 1001], "{stats}");
    }
    // A file with a mistake leaves the rules active.
    let wrong = all(folder.path(), "wrong", &"x".repeat(129), 0);
    let finished = evaluated.try_to(&["load", &wrong]);
    assert!(
        !finished.status.success() && finished.stderr.contains("the pattern has 129 bytes, more than 128"),
        "{}",
        finished.stderr
    );
    assert_eq!(evaluated.ask(&["stats"])["rules"].as_array().unwrap().len(), 3);

    // Under traffic: each of these files has a pattern that all packets contain.
    let whole = [all(folder.path(), "all", "WLn1\n", 1), all(folder.path(), "more", "WLn\nn1\n", 3000)];
    evaluated.ask(&["load", &whole[0]]);
    let before = evaluated.ask(&["stats"]);
    let packets = 4 * PACKETS;
    let loads = evaluated.load_under_traffic(&whole, packets, OPTIONS);
    evaluated.all_of(2 * PACKETS + packets);
    let last = evaluated.end();
    println!("{hook}: {loads} sets of patterns under traffic");
    let dropped = |stats: &Value| field(&stats["rules"][0]["hits"], "packets");
    assert_eq!(dropped(&last["rule_stats"]) - dropped(&before), packets, "none slipped through: {last}");
    assert_eq!((field(&last, "seen"), field(&last, "lost")), (2 * PACKETS + packets, 0), "{last}");
    assert_eq!(field(&last, "filtered"), 2 * 256 + packets, "{last}");
    assert_eq!(field(&last, "absorbed"), 2 * 64 * (EACH - 1), "{last}");
}

/// Battery: L1
#[test]
fn patterns_decide_on_veth() {
    on_veth("patterns_decide_on_veth", |lab, hook| decide(lab, hook));
}

#[test]
fn patterns_decide_on_virtio_net() {
    let Some(guest) = Guest::find("patterns_decide_on_virtio_net") else { return };
    // The other hooks behave as on veth.
    decide(&guest, "native");
}
