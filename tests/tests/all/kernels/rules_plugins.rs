//! Plug-ins in the kernel: linked in, run on each hook by a capture without rights, and counted.

use super::evaluated::{Evaluated, on_veth};
use super::{Bench, Guest, field};
use wirelane_tests::program_file;

/// Numbered packets: a multiple of 8.
const PACKETS: u64 = 2048;
/// Packets with each value of the lowest three bits of the number.
const EACH: u64 = PACKETS / 8;
/// Rules with the plug-in `tests/programs/plugin_number.bpf.c`, and with `plugin_even` for the other numbers.
const RULES: &str = r#"
    [[rule]]
    id = 1
    plugin = "number"
    action = "plugin"
    tag = 7

    [[rule]]
    id = 2
    plugin = ["odd-one-out", "even"]
    not.plugin = "number"
    action = "count"
"#;

fn decide(bench: &(dyn Bench + Sync), hook: &str) {
    let folder = tempfile::tempdir().unwrap();
    let object = |name: &str, object: &str| {
        format!("{name}={}", program_file(folder.path(), object).unwrap().display())
    };
    let rules = folder.path().join("rules.toml");
    std::fs::write(&rules, RULES).unwrap();
    // An emulated machine is a hundred times slower than a real one, and no plug-in may be disabled here.
    let words = [
        "--plugin-budget",
        "1000000000",
        "--plugin",
        &object("number", "plugin_number"),
        "--plugin",
        &object("even", "plugin_even"),
        "--plugin",
        &object("odd-one-out", "plugin_even"),
    ];
    let mut evaluated = Evaluated::start_with(bench, hook, rules.to_str().unwrap(), &words);
    // Without a tag and with one, which the stack removes from a packet before tc sees it.
    for (turn, options) in ["--size 300", "--size 300 --vlan 7"].into_iter().enumerate() {
        let packets = (turn as u64 + 1) * PACKETS;
        bench.send_with(PACKETS, "socket", options);
        evaluated.all_of(packets);
        let stats = evaluated.ask(&["stats"]);
        let hits = [0, 1].map(|at| field(&stats["rules"][at]["hits"], "packets"));
        assert_eq!(hits, [packets / 2, packets / 4], "{hook}: {stats}");
        let plugins = &stats["plugins"];
        let each = ["number", "even", "odd-one-out"].into_iter().enumerate();
        for (at, name) in each {
            let line = &plugins[at];
            assert_eq!(line["name"], name, "{stats}");
            let counted = ["asked", "matched", "refused", "off"].map(|what| field(line, what));
            // Two plug-ins with the same object run once, and share their counters.
            assert_eq!(counted, [packets, packets / 2, 0, 0], "{hook}: {stats}");
            assert!(field(line, "timed") >= packets / 64 && field(line, "timed_ns") > 0, "{hook}: {stats}");
        }
        let number = &plugins[0]["counters"];
        let counted = ["lower half", "bits", "counter 7"].map(|name| field(number, name));
        assert_eq!(counted, [packets / 2, packets / 8 * 28, packets / 8], "{hook}: {stats}");
        assert_eq!(field(&plugins[1]["counters"], "odd"), packets / 2, "{hook}: {stats}");
    }
    let last = evaluated.end();
    assert_eq!((field(&last, "seen"), field(&last, "lost")), (2 * PACKETS, 0), "{hook}: {last}");
    // Of eight numbers two are passed by the first rule, one of them unchanged, and two by default; one is dropped, and
    // three are counted, one of them by the plug-in's verdict.
    assert_eq!(
        [field(&last, "analysed"), field(&last, "filtered"), field(&last, "absorbed")],
        [2 * 4 * EACH, 2 * EACH, 2 * 3 * EACH],
        "{hook}: {last}"
    );
}

/// Battery: L1
#[test]
fn plug_ins_decide_on_veth() {
    on_veth("plug_ins_decide_on_veth", |lab, hook| decide(lab, hook));
}

#[test]
fn plug_ins_decide_on_virtio_net() {
    let Some(guest) = Guest::find("plug_ins_decide_on_virtio_net") else { return };
    // The other hooks behave as on veth.
    decide(&guest, "native");
}
