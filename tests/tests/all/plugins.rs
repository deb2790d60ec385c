//! Plug-ins (`--plugin`): users' functions as conditions of rules, in the kernel, with exact counts. The programs are
//! those of `tests/programs/` and `examples/plugins/`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wirelane::Record;
use wirelane::rules::RuleSet;
use wirelane_tests::frames::{ethernet, replay, udp};
use wirelane_tests::numbers::{column, last_of, number_of, send, wirelane};
use wirelane_tests::ruled::{KERNEL, drain, open, rules};
use wirelane_tests::{
    Child, Finished, Lab, LabOptions, Signal, program_file, program_object, repository, require_root,
    settled_bpf_objects, wait_for_bpf_objects,
};

const LIMIT: Duration = Duration::from_secs(240);
/// Packets of a run: a multiple of 64.
const PACKETS: u64 = 640;
/// A time budget that no plug-in exceeds, even on a busy machine.
const PATIENT: u32 = 1_000_000_000;

/// Path of a plug-in's object file, after writing it to the folder.
fn object(folder: &Path, name: &str) -> String {
    program_file(folder, name).unwrap().to_str().unwrap().to_owned()
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Rule 1 has a pattern. For the first 64 ports the plug-in `even` decides first, for the others `number` alone.
const SAYING: &str = r#"
    [[patterns]]
    name = "magic"
    id = 900
    text = "WLn1"

    [[rule]]
    id = 1
    src-port = "1000-1127"
    payload = "magic"
    action = "none"
    tag = 9

    [[rule]]
    id = 2
    src-port = "1000-1063"
    plugin = ["even", "number"]
    action = "plugin"

    [[rule]]
    id = 3
    not.src-port = "1000-1063"
    plugin = "number"
    action = "plugin"
"#;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passed,
    Dropped,
    Counted,
    Digest,
}

/// The verdict for packets from port 1000 + `port`, by the results of the two plug-ins for a number with these last
/// bits.
fn fate(port: u64) -> Fate {
    match port % 8 {
        2 | 4 if port < 64 => Fate::Passed,
        2 => Fate::Dropped,
        3 => Fate::Counted,
        4 => Fate::Digest,
        _ => Fate::Passed,
    }
}

/// Checks the note of the first matching plug-in, in the order of their definition: `number` notes the number, `even`
/// the flow hash and more bytes than fit into a note.
fn is_noted(port: u64, record: &Record<'_>) -> bool {
    let hash = record.header().hash & 0x7fff_ffff;
    match (port % 8, record.note()) {
        (1..=4, Some(note)) => {
            let number = <[u8; 4]>::try_from(note).map(u32::from_be_bytes);
            number.is_ok_and(|number| u64::from(number) % 256 == port)
        }
        (0 | 6, Some(note)) => note.iter().copied().eq(hash.to_be_bytes().into_iter().chain(4..32)),
        (5 | 7, None) => true,
        _ => false,
    }
}

/// Battery: L1
#[test]
fn records_say_what_plug_ins_say() {
    if !require_root("records_say_what_plug_ins_say") {
        return;
    }
    const TURNS: u64 = 2;
    let folder = tempfile::tempdir().unwrap();
    let plugins = ["number", "even"].map(|name| (name, object(folder.path(), &format!("plugin_{name}"))));
    for (engine, hook) in KERNEL {
        let lab = Lab::new(1).unwrap();
        let mut capture = open(&lab, (engine, hook), |builder| {
            let builder = plugins.iter().fold(builder, |builder, (name, file)| builder.plugin(*name, file));
            builder.plugin_budget(PATIENT).rules(rules(SAYING))
        })
        .unwrap();
        let mut worker = capture.workers().remove(0);
        let ports = ["--pattern", "ports", "--flows", "256", "--src-port", "1000", "--size", "100"];
        send(&lab, 256 * TURNS, &ports).unwrap();
        let mut got: BTreeMap<u64, u64> = BTreeMap::new();
        drain(&capture, &mut worker, 256 * TURNS, |record| {
            let port = match record.digest() {
                Some(digest) => u64::from(u16::from_be(digest.src_port)) - 1000,
                None => number_of(record).expect("nobody else sends") % 256,
            };
            *got.entry(port).or_default() += 1;
            let case = format!("{hook:?} port {port}");
            assert_eq!(record.digest().is_some(), fate(port) == Fate::Digest, "{case}");
            assert!(is_noted(port, record), "{case}: {:?}", record.note());
            // The payload is also searched for packets of plug-in rules.
            let said = (record.tag(), record.patterns().collect::<Vec<u32>>(), record.has_more_patterns());
            assert_eq!(said, ((port < 128).then_some(9), vec![900], false), "{case}");
            assert!(!record.is_half_searched(), "{case}");
        });
        drop(worker);
        capture.stop().unwrap();
        let stats = capture.rule_stats().unwrap().unwrap();
        let ledger = capture.close().unwrap();
        assert!(ledger.balances(), "{ledger:?}");
        let of = |fates: &[Fate]| (0..256).filter(|port| fates.contains(&fate(*port))).collect::<Vec<u64>>();
        let expected: BTreeMap<u64, u64> =
            of(&[Fate::Passed, Fate::Digest]).into_iter().map(|port| (port, TURNS)).collect();
        assert_eq!(got, expected, "{hook:?}");
        let columns = (ledger.total.filtered, ledger.total.absorbed, ledger.total.lost);
        let count = |fate| of(&[fate]).len() as u64 * TURNS;
        assert_eq!(columns, (count(Fate::Dropped), count(Fate::Counted), 0), "{hook:?}");
        let lines: Vec<_> =
            stats.plugins.iter().map(|line| (line.name.as_str(), line.asked, line.matched)).collect();
        let all = 256 * TURNS;
        assert_eq!(lines, [("number", all, all / 2), ("even", all, all / 2)], "{hook:?}");
        assert_eq!((stats.searches.packets, stats.searches.found, stats.searches.half), (all, all, 0));
    }
}

/// Starts `wirelane count` on the lab's receiver.
fn start(lab: &Lab, options: &[&str]) -> Child {
    let end = lab.receiver();
    let words = ["count", "-i", &end.device, "--hook", "native", "--json", "--interval", "0.1"];
    wirelane(lab, &end.namespace, &[&words, options].concat()).unwrap()
}

fn running(lab: &Lab, options: &[&str]) -> Child {
    let mut child = start(lab, options);
    child.wait_ready(LIMIT).unwrap();
    child
}

#[track_caller]
fn assert_refused(finished: &Finished, code: i32, parts: &[&str]) {
    assert_eq!(finished.status.code(), Some(code), "{}", finished.stderr);
    for part in parts {
        assert!(finished.stderr.contains(part), "no '{part}' in: {}", finished.stderr);
    }
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
}

/// Runs `wirelane rules` on a capture.
fn ask(lab: &Lab, child: &Child, words: &[&str]) -> Finished {
    let pid = child.pid().to_string();
    let words = [&["rules"], words, &["--pid", &pid]].concat();
    wirelane(lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap()
}

/// The columns of a capture's last object: seen, analysed, filtered, absorbed, lost.
fn columns(last: &Value) -> [u64; 5] {
    ["seen", "analysed", "filtered", "absorbed", "lost"].map(|name| column(last, name))
}

/// All captures at once on one device: two with a plug-in each and one without, refused ones, and one whose plug-in is
/// too slow.
/// Battery: L1
#[test]
fn plug_ins_harm_nobody_else() {
    if !require_root("plug_ins_harm_nobody_else") {
        return;
    }
    let lab = Lab::with(&LabOptions { alone: true, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let before = settled_bpf_objects();
    let asks = |name: &str, action: &str| {
        let text = format!("[[rule]]\nid = 1\nplugin = \"{name}\"\naction = \"{action}\"\n");
        write(folder, &format!("{name}-{action}.toml"), &text)
    };
    let with = |name: &str| format!("{name}={}", object(folder, &format!("plugin_{name}")));
    let patient = ["--plugin-budget", "1000000000"];
    let (number, even) = (with("number"), with("even"));
    let by = |plugin: &'static str, word: &str, action: &str| -> Child {
        let rules = asks(plugin, action);
        running(&lab, &[&patient[..], &["--plugin", word, "--rules", &rules]].concat())
    };
    let by_number = by("number", &number, "plugin");
    let by_even = by("even", &even, "drop");
    // The same object in the existing slot.
    let same = by("even", &even, "count");
    let plain = running(&lab, &[]);
    let (objects, link) = (settled_bpf_objects(), attached(&lab));

    // Objects without a plug-in, and plug-ins that cannot run.
    let rules = asks("x", "drop");
    for (name, parts) in [
        ("plugin_version", ["version 2 of <wirelane/plugin.h>", "this Wirelane has 1"].as_slice()),
        ("plugin_map", &["has a map 'turns' of another kind", "STATE_HASH()"]),
        ("plugin_bad_map", &["maps of more than 64 MiB", "large 102400 KiB, small "]),
        ("plugin_many_maps", &["has 5 maps, more than 4"]),
        ("plugin_ring_map", &["its map 'ring' is not one of each capture"]),
        ("plugin_program_map", &["its map 'programs' is of a kind that is not allowed (ProgArray)"]),
        ("plugin_pinned_map", &["its map 'pinned' is pinned"]),
        ("plugin_state", &["variables that can be written", ".bss"]),
        ("plugin_wild", &["the kernel's verifier refuses it", "WIRELANE_LOG=debug"]),
        ("plugin_beyond", &["the kernel's verifier refuses it", "unbounded memory access"]),
        ("plugin_wild_rule", &["the kernel's verifier refuses it", "WIRELANE_LOG=debug"]),
        ("loop", &["calls bpf_loop()"]),
        ("number", &["has no plug-in", "PLUGIN() of <wirelane/plugin.h>"]),
    ] {
        let path = object(folder, name);
        let refused = start(&lab, &["--plugin", &format!("x={path}"), "--rules", &rules]);
        assert_refused(&refused.finish(LIMIT).unwrap(), 2, &[parts, &["--plugin", &path]].concat());
    }
    let text = write(folder, "text.bpf.o", "#include <wirelane/plugin.h>\n");
    let pcap = write(folder, "empty.pcap", "");
    let number_at = number.split_once('=').unwrap().1;
    let nine: Vec<String> = (0..9).map(|name| format!("n{name}={number_at}")).collect();
    let nine: Vec<&str> = nine.iter().flat_map(|word| ["--plugin", word]).collect();
    for (words, parts) in [
        (&["--plugin", &format!("x={text}")][..], &["not a BPF object file"][..]),
        (&["--plugin", number_at], &["NAME=FILE.bpf.o"]),
        (&["--plugin", &number, "--plugin", &number], &["two are called 'number'"]),
        (&["--plugin", &format!("a b={number_at}")], &["'a b' cannot name a plug-in"]),
        (&nine, &["--plugin", "too many: 9 (at most 8)"]),
        (&["--plugin", &number, "--engine", "packet"], &["--plugin", "only --engine ring"]),
        (&["--plugin", &number, "--engine", "xsk", "--exclusive"], &["--plugin", "only --engine ring"]),
    ] {
        assert_refused(&start(&lab, words).finish(LIMIT).unwrap(), 2, parts);
    }
    let nowhere = start(&lab, &["--plugin", "x=/nowhere.bpf.o"]).finish(LIMIT).unwrap();
    assert_refused(&nowhere, 1, &["/nowhere.bpf.o", "No such file"]);
    let unknown = start(&lab, &["--plugin", &number, "--rules", &asks("nummer", "drop")]);
    let parts = ["nummer-drop.toml:3:10", "no plug-in 'nummer'; did you mean 'number'?"];
    assert_refused(&unknown.finish(LIMIT).unwrap(), 1, &parts);
    let here = &lab.receiver().namespace;
    let file = |options: &[&str]| {
        let words = [&["count", "-r", &pcap], options].concat();
        wirelane(&lab, here, &words).unwrap().finish(LIMIT).unwrap()
    };
    assert_refused(&file(&["--plugin", &number]), 2, &["--plugin", "not on files"]);
    assert_refused(
        &file(&["--rules", &asks("number", "drop")]),
        2,
        &["'number'", "plug-ins run in the kernel"],
    );

    // A rule with an unknown plug-in is an error, and the active rules stay.
    let other = ask(&lab, &by_even, &["load", &asks("number", "drop")]);
    let parts = ["number-drop.toml:3:10", "no plug-in 'number'; plug-ins are fixed when a capture starts"];
    assert_refused(&other, 1, &parts);
    let added = ask(&lab, &by_even, &["add", "id=7", "plugin=number", "action=drop"]);
    assert_refused(&added, 1, &["rule 7: there is no plug-in 'number'"]);
    let list = ask(&lab, &by_even, &["list"]).lines.join("\n");
    assert!(list.contains("plugin = even") && list.contains("plug-in even: asked about 0 packets"), "{list}");

    // All slots are taken; the refusals have not changed anything for the others.
    assert_eq!(attached(&lab), link, "the program on the device was replaced");
    assert_eq!(wait_for_bpf_objects(&objects, LIMIT), objects);
    let word = |number: u64| format!("x={}", object(folder, &format!("plugin_{number}")));
    let x = asks("x", "count");
    let slow = running(&lab, &["--plugin", &with("slow"), "--rules", &asks("slow", "count")]);
    let zero = running(&lab, &[&patient[..], &["--plugin", &word(0), "--rules", &x]].concat());
    let four: Vec<String> =
        (3..7).map(|number| word(number).replacen('x', &format!("x{number}"), 1)).collect();
    let asked = asks("x3", "count");
    let four = four.iter().flat_map(|word| ["--plugin", word]).chain(["--rules", &asked]);
    let four = running(&lab, &patient.into_iter().chain(four).collect::<Vec<_>>());
    let full = start(&lab, &["--plugin", &word(1), "--rules", &x]).finish(LIMIT).unwrap();
    assert_refused(
        &full,
        2,
        &["plugin_1.bpf.o", "already looked at by 8 other plug-ins", "'wirelane groups'"],
    );

    // Many more packets than needed to detect a slow plug-in: 16 timed runs, one in 64, in each lane.
    let packets = 4 * PACKETS;
    send(&lab, packets, &["--rate", "5k", "--size", "100"]).unwrap();
    let mut seen = 0;
    while seen < packets {
        let interval = slow.next_json(LIMIT).unwrap().expect("it goes on");
        seen += column(&interval, "analysed") + column(&interval, "absorbed");
    }
    let listed = ask(&lab, &slow, &["list"]).lines.join("\n");
    assert!(listed.contains("plug-in slow: disabled in 1 lane, as it was too slow"), "{listed}");
    let slow = slow.terminate(LIMIT).unwrap();
    assert!(
        slow.stderr.contains("the plug-in slow is too slow") && slow.stderr.contains("--plugin-budget"),
        "{}",
        slow.stderr
    );
    let last = last_of(&slow).unwrap();
    let line = &last["rule_stats"]["plugins"][0];
    let [asked, matched, refused, timed] =
        ["asked", "matched", "refused", "timed"].map(|name| column(line, name));
    // Disabled by the sixteenth timed run, which is the first of its 64.
    assert_eq!((asked, matched, asked + refused, timed), (15 * 64 + 1, asked, packets, 16), "{line}");
    assert_eq!(columns(&last), [packets, refused, 0, asked, 0], "{last}");

    let zero = last_of(&zero.terminate(LIMIT).unwrap()).unwrap();
    assert_eq!(columns(&zero), [packets, 0, 0, packets, 0], "{zero}");
    // A killed capture does not affect the other one with the same plug-in.
    same.signal(Signal::Kill).unwrap();
    assert!(!same.finish(LIMIT).unwrap().status.success());
    let one = running(&lab, &[&patient[..], &["--plugin", &word(1), "--rules", &x]].concat());
    let two = running(&lab, &[&patient[..], &["--plugin", &word(2), "--rules", &x]].concat());
    send(&lab, PACKETS, &["--rate", "20k", "--size", "100"]).unwrap();
    for (child, number) in [(one, 1), (two, 2)] {
        let last = last_of(&child.terminate(LIMIT).unwrap()).unwrap();
        assert_eq!(columns(&last), [PACKETS, 0, 0, PACKETS, 0], "{last}");
        let counters = &last["rule_stats"]["plugins"][0]["counters"];
        assert_eq!(column(counters, "counter 0"), number * PACKETS, "{counters}");
    }
    let all = packets + PACKETS;
    for (child, filtered, absorbed) in
        [(by_number, all / 8, all / 8), (by_even, all / 2, 0), (plain, 0, 0), (four, 0, all)]
    {
        let last = last_of(&child.terminate(LIMIT).unwrap()).unwrap();
        assert_eq!(columns(&last), [all, all - filtered - absorbed, filtered, absorbed, 0], "{last}");
    }
    assert_eq!(wait_for_bpf_objects(&before, LIMIT), before);
}

/// The id of the XDP program on the receiver's device.
fn attached(lab: &Lab) -> String {
    let end = lab.receiver();
    let shown = lab.exec(&end.namespace, &["ip", "-d", "link", "show", &end.device]).unwrap();
    let id = shown.split("prog/xdp id ").nth(1).and_then(|rest| rest.split_whitespace().next());
    id.unwrap_or_else(|| panic!("no XDP program: {shown}")).to_owned()
}

/// A DNS message with a question for a name of these labels.
fn dns(id: u16, flags: u16, labels: &[&str], kind: u16) -> Vec<u8> {
    let mut message = Vec::new();
    for word in [id, flags, 1, 0, 0, 0] {
        message.extend_from_slice(&word.to_be_bytes());
    }
    for label in labels {
        message.push(label.len() as u8);
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    for word in [kind, 1] {
        message.extend_from_slice(&word.to_be_bytes());
    }
    message
}

/// The example with its rule file, as its README describes, with matching traffic.
#[test]
fn the_example_finds_tunnels_through_dns() {
    if !require_root("the_example_finds_tunnels_through_dns") {
        return;
    }
    const TIMES: u64 = 10;
    const ANSWER: u16 = 0x8180;
    let folder = tempfile::tempdir().unwrap();
    let (client, server) = ([192, 168, 0, 1], [192, 168, 0, 53]);
    let query = |id, labels: &[&str], kind| udp(client, server, (40_000, 53), &dns(id, 0x0100, labels, kind));
    let long = ["a", "b", "c", "d", "e", "t", "example"];
    let deep = ["x"; 60];
    let packets = [
        query(1, &["www", "example", "org"], 1),
        query(2, &long[1..], 1),
        query(0x1234, &long, 28),
        query(0x4321, &["example", "org"], 16),
        query(5, &deep, 1),
        // A compression pointer in place of a label.
        udp(client, server, (40_000, 53), &[&dns(6, 0, &[], 16)[..12], &[0xc0, 12, 0, 16, 0, 1]].concat()),
        udp(server, client, (53, 40_000), &dns(3, ANSWER, &long, 28)),
        // Not DNS by its port, although the payload is.
        udp(client, server, (40_000, 54), &dns(7, 0, &long, 16)),
    ];
    let frames: Vec<Vec<u8>> = packets.iter().map(|packet| ethernet(0x0800, packet)).collect();
    // A rule before those of the example: a record has both ids, and the note between patterns and ids.
    let example = std::fs::read_to_string(repository().join("examples/plugins/dns.toml")).unwrap();
    let first = "[[rule]]\nid = 9\nprotocol = \"udp\"\naction = \"none\"\n\n[[rule]]";
    let rules = RuleSet::parse(&example.replacen("[[rule]]", first, 1)).unwrap();
    assert_eq!(rules.plugins(), ["dns"]);
    for (engine, hook) in [KERNEL[0], KERNEL[2]] {
        let lab = Lab::new(1).unwrap();
        let mut capture = open(&lab, (engine, hook), |builder| {
            builder.plugin("dns", object(folder.path(), "dns")).plugin_budget(PATIENT).rules(rules.clone())
        })
        .unwrap();
        let mut worker = capture.workers().remove(0);
        replay(&lab, folder.path(), &frames, TIMES).unwrap();
        let mut notes: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        drain(&capture, &mut worker, TIMES * frames.len() as u64, |record| {
            assert_eq!((record.tag(), record.rule(), record.patterns().count()), (Some(53), Some(10), 0));
            assert_eq!(record.rules().collect::<Vec<_>>(), [9, 10]);
            *notes.entry(record.note().unwrap().to_vec()).or_default() += 1;
        });
        drop(worker);
        // The deep name has more labels than the plug-in parses, so its note has a part of a label in place of the
        // type.
        let expected = [vec![0x12, 0x34, 0, 28], vec![0x43, 0x21, 0, 16], vec![0, 5, b'x', 1]];
        assert_eq!(notes, expected.into_iter().map(|note| (note, TIMES)).collect(), "{hook:?}");
        let stats = capture.rule_stats().unwrap().unwrap();
        let ledger = capture.close().unwrap();
        assert!(ledger.balances(), "{ledger:?}");
        assert_eq!((ledger.total.analysed, ledger.total.filtered), (3 * TIMES, 5 * TIMES), "{hook:?}");
        let [line] = &stats.plugins[..] else { panic!("{stats:?}") };
        // The rule checks for port 53 first.
        assert_eq!((line.asked, line.matched, line.refused), (7 * TIMES, 3 * TIMES, 0), "{hook:?}");
        let counters: Vec<_> = line.counters.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_eq!(counters, [("answers", TIMES), ("queries", 6 * TIMES)], "{hook:?}");
    }
}

/// The README's commands yield the tested instructions, and the sources in the documentation compile.
#[test]
fn the_examples_are_compiled_as_the_readmes_say() {
    let clang = ["clang-19", "clang"].into_iter().find_map(|name| {
        let path = String::from_utf8(Command::new("which").arg(name).output().ok()?.stdout).ok()?;
        (!path.trim().is_empty()).then(|| path.trim().to_owned())
    });
    let Some(clang) = clang else {
        println!("left out: the_examples_are_compiled_as_the_readmes_say (no clang)");
        return;
    };
    let (root, folder) = (repository(), tempfile::tempdir().unwrap());
    for name in ["include", "examples"] {
        symlink(root.join(name), folder.path().join(name)).unwrap();
    }
    let readme = fs::read_to_string(root.join("examples/plugins/README.md")).unwrap();
    let commands: Vec<&str> = readme.lines().filter(|line| line.starts_with("clang-19 ")).collect();
    let compile = |command: &str| {
        let words: Vec<&str> = command.split_whitespace().skip(1).collect();
        let output = Command::new(&clang).args(words).current_dir(&folder).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    };
    assert_eq!(commands.len(), 3, "{commands:?}");
    for (command, name) in commands.into_iter().zip(["dns", "netflow", "rtp"]) {
        let source = fs::read_to_string(root.join(format!("examples/plugins/{name}.bpf.c"))).unwrap();
        assert!(source.contains(&format!(" *\t{command}\n")), "{name}.bpf.c does not say '{command}'");
        assert!(source.lines().count() < 300, "{name}.bpf.c");
        compile(command);
        let made = fs::read(folder.path().join(format!("{name}.bpf.o"))).unwrap();
        let (made, tested) = (code(&made), code(program_object(name).unwrap()));
        assert!(!made.is_empty() && made == tested, "{name}: other code than the tests'");
    }

    let readme = fs::read_to_string(root.join("docs/extend/plugins.md")).unwrap();
    let mut commands = readme.lines().filter_map(|line| line.strip_prefix("$ "));
    let command = commands.find(|line| line.ends_with("-c quic.bpf.c -o quic.bpf.o")).unwrap();
    let blocks: Vec<&str> =
        readme.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 4);
    for source in blocks {
        fs::write(folder.path().join("quic.bpf.c"), source).unwrap();
        compile(&command.replace("/usr/local/include", "include"));
    }
}

/// The instructions of an object file.
fn code(bytes: &[u8]) -> Vec<u8> {
    use object::{Object as _, ObjectSection as _};
    let file = object::File::parse(bytes).unwrap();
    file.section_by_name(".text").unwrap().data().unwrap().to_vec()
}
