//! Rules that send packets to other devices: every copy arrives unchanged, every packet is in the ledger, and packets
//! that the kernel could not send are counted.

use std::collections::BTreeMap;
use std::fs;
use std::net::UdpSocket;

use wirelane::rules::RuleSet;
use wirelane::{Builder, Capture, Direction, EgressLine, Engine, HookChoice, Selector, Worker};
use wirelane_tests::numbers::{number_of, send};
use wirelane_tests::ruled::{PORTS, SENT, TURNS, drain, rules};
use wirelane_tests::{Child, End};

use super::{LIMIT, Lab, LabOptions, field, require_root, start};

/// Of 256 ports 65 are redirected, and 96 others are mirrored.
const SENDING: &str = r#"
    [[rule]]
    id = 1
    src-port = "1000-1063"
    action = "redirect"
    to = "rx1"

    [[rule]]
    id = 2
    src-port = "1064-1127"
    action = "none"
    mirror = "rx1"

    [[rule]]
    id = 3
    src-port = "1096-1127"
    action = "drop"
    mirror = "rx1"

    [[rule]]
    id = 4
    src-port = "1128-1159"
    action = "count"
    mirror = "rx1"

    [[exact]]
    id = 100
    src-port = 1200
    protocol = "udp"
    action = "redirect"
    to = "rx1"
"#;

const MIRROR: &str = "[[rule]]\nid = 1\naction = \"none\"\nmirror = \"rx1\"\n";
const REDIRECT: &str = "[[rule]]\nid = 1\naction = \"redirect\"\nto = \"rx1\"\n";

/// Two links: packets received from the first can be sent out by the second.
fn lab() -> Lab {
    Lab::with(&LabOptions { links: 2, ..LabOptions::default() }).unwrap()
}

/// A capture on an end; by tc unless `settings` choose another hook.
fn capture(lab: &Lab, end: &End, settings: impl FnOnce(Builder) -> Builder + Send) -> (Capture, Worker) {
    let builder = Builder::new(Selector::parse_list(&end.device).unwrap());
    let builder = builder.engine(Engine::Ring).hook(HookChoice::Tc);
    let mut capture = lab.enter(&end.namespace, || settings(builder).open().unwrap()).unwrap();
    let worker = capture.workers().remove(0);
    (capture, worker)
}

/// The packets of a capture by number, once it has seen so many.
fn packets((capture, worker): &mut (Capture, Worker), seen: u64) -> BTreeMap<u64, Vec<Vec<u8>>> {
    let mut packets = BTreeMap::<u64, Vec<Vec<u8>>>::new();
    drain(capture, worker, seen, |record| {
        let number = number_of(record).expect("a packet that nobody sent");
        packets.entry(number).or_default().push(record.data().to_vec());
    });
    packets
}

fn sent(capture: &Capture) -> EgressLine {
    let egress_devices = capture.ledger().unwrap().egress_devices;
    let [exit] = egress_devices.as_slice() else { panic!("one egress device: {egress_devices:?}") };
    exit.clone()
}

/// Packets that have reached the IP layer of the receiver's host.
fn received_by_host(lab: &Lab) -> u64 {
    let read = || fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let text = lab.enter(&lab.receiver().namespace, read).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("Ip: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|name| name == "InReceives").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

fn go_where_rules_send_them(hook: HookChoice, vlan: bool) {
    let lab = lab();
    let mut arrivals = capture(&lab, &lab.links[1].sender, |builder| builder);
    let everything = |builder: Builder| builder.hook(hook);
    let mut all = capture(&lab, lab.receiver(), everything);
    let mut ruled = capture(&lab, lab.receiver(), |builder| {
        builder.hook(hook).rules(rules(SENDING)).egress_devices(["rx1"])
    });
    let before = received_by_host(&lab);
    let (mac, address) =
        (lab.receiver().mac.map(|byte| format!("{byte:02x}")).join(":"), lab.receiver().address);
    let address = address.to_string();
    let to = ["--dst-mac", mac.as_str(), "--dst", address.as_str(), "--vlan", "7"];
    send(&lab, SENT, &[&PORTS[..], if vlan { &to[..] } else { &to[..4] }].concat()).unwrap();
    let was = packets(&mut all, SENT);
    let kept = packets(&mut ruled, SENT);
    let copies = (64 + 64 + 32 + 1) * TURNS;
    let arrived = packets(&mut arrivals, copies);
    // A device without this VLAN does not pass the packets to the host.
    let expected = if vlan { 0 } else { SENT - 65 * TURNS };
    assert_eq!(received_by_host(&lab) - before, expected, "{hook:?}: packets of the host");

    let port = |number: &u64| 1000 + number % 256;
    let goes = |port: u64| (1000..1160).contains(&port) || port == 1200;
    assert_eq!(arrived.len() as u64, copies, "{hook:?}: each once");
    for number in 0..SENT {
        let original = &was[&number];
        assert_eq!(original[0][12..14] == [0x81, 0], vlan, "{hook:?}: the tag");
        match arrived.get(&number) {
            Some(copy) => assert_eq!(copy, original, "{hook:?}: packet {number}, byte for byte"),
            None => assert!(!goes(port(&number)), "{hook:?}: packet {number} has not arrived"),
        }
        let stays = (1064..1096).contains(&port(&number)) || !goes(port(&number));
        assert_eq!(kept.contains_key(&number), stays, "{hook:?}: packet {number}");
    }
    assert_eq!(sent(&ruled.0), EgressLine { device: "rx1".into(), sent: copies, unsent: 0 });
    let (capture, worker) = ruled;
    drop(worker);
    let ledger = capture.close().unwrap();
    assert!(ledger.balances(), "{hook:?} {ledger:?}");
    let total = ledger.total;
    assert_eq!((total.seen, total.lost), (SENT, 0), "{hook:?} {total:?}");
    assert_eq!((total.absorbed, total.filtered), ((65 + 32) * TURNS, 32 * TURNS), "{hook:?} {total:?}");
}

#[test]
fn packets_go_where_rules_send_them() {
    if !require_root("packets_go_where_rules_send_them") {
        return;
    }
    for hook in [HookChoice::Tc, HookChoice::Clsact] {
        go_where_rules_send_them(hook, false);
    }
    go_where_rules_send_them(HookChoice::Tc, true);
}

#[test]
fn what_cannot_be_sent_is_counted() {
    if !require_root("what_cannot_be_sent_is_counted") {
        return;
    }
    for (text, absorbed) in [(MIRROR, 0), (REDIRECT, 1)] {
        let lab = lab();
        // Without a hook the capture uses tc, like the others.
        let settings =
            |builder: Builder| builder.hook(HookChoice::Auto).rules(rules(text)).egress_devices(["rx1"]);
        let (capture, mut worker) = capture(&lab, lab.receiver(), settings);
        let near = &lab.links[1].receiver;
        for (turn, words) in [(1, ""), (2, "link set rx1 down"), (3, "link del rx1")] {
            if !words.is_empty() {
                lab.exec(&near.namespace, &[&["ip"][..], &words.split(' ').collect::<Vec<_>>()[..]].concat())
                    .unwrap();
            }
            send(&lab, SENT, &PORTS).unwrap();
            drain(&capture, &mut worker, turn * SENT, |_| ());
            let line = sent(&capture);
            assert_eq!((line.sent, line.unsent), (SENT, (turn - 1) * SENT), "{words}: {text}");
        }
        drop(worker);
        let ledger = capture.close().unwrap();
        assert!(ledger.balances(), "{ledger:?}");
        let total = ledger.total;
        assert_eq!((total.seen, total.absorbed), (3 * SENT, 3 * SENT * absorbed), "{total:?}");
        assert_eq!(ledger.egress_devices[0].unsent, 2 * SENT);
    }
}

#[test]
fn groups_send_each_for_itself() {
    if !require_root("groups_send_each_for_itself") {
        return;
    }
    let lab = lab();
    let mut arrivals = capture(&lab, &lab.links[1].sender, |builder| builder);
    let mut groups = [MIRROR, REDIRECT, MIRROR].map(|text| {
        capture(&lab, lab.receiver(), |builder| builder.rules(rules(text)).egress_devices(["rx1"]))
    });
    let before = received_by_host(&lab);
    send(&lab, SENT, &PORTS).unwrap();
    let arrived = packets(&mut arrivals, 3 * SENT);
    assert!(arrived.len() as u64 == SENT && arrived.values().all(|copies| copies.len() == 3));
    assert_eq!(received_by_host(&lab), before, "one of them has taken all");
    for (group, kept) in groups.iter_mut().zip([SENT, 0, SENT]) {
        assert_eq!(packets(group, SENT).len() as u64, kept);
        assert_eq!((sent(&group.0).sent, sent(&group.0).unsent), (SENT, 0));
    }
}

#[test]
fn rules_change_while_packets_are_sent_on() {
    if !require_root("rules_change_while_packets_are_sent_on") {
        return;
    }
    const PACKETS: u64 = 4096;
    let lab = lab();
    let mut arrivals = capture(&lab, &lab.links[1].sender, |builder| builder);
    let settings = |builder: Builder| builder.rules(RuleSet::default()).egress_devices(["rx1"]);
    let (capture, mut worker) = capture(&lab, lab.receiver(), settings);
    capture.set_rules(&rules(MIRROR)).unwrap();
    let mut changes = 0;
    std::thread::scope(|scope| {
        let sending =
            scope.spawn(|| send(&lab, PACKETS, &[&PORTS[..], &["--rate", "10k"][..]].concat()).unwrap());
        while !sending.is_finished() {
            for text in [REDIRECT, MIRROR] {
                capture.set_rules(&rules(text)).unwrap();
                changes += 1;
            }
        }
    });
    // With either rule set, each packet was sent once.
    let arrived = packets(&mut arrivals, PACKETS);
    assert!(arrived.len() as u64 == PACKETS && arrived.values().all(|copies| copies.len() == 1));
    drain(&capture, &mut worker, PACKETS, |_| ());
    drop(worker);
    let ledger = capture.close().unwrap();
    let total = ledger.total;
    println!("{changes} changes; {} redirected, {} mirrored", total.absorbed, total.analysed);
    assert!(ledger.balances() && changes >= 2, "{ledger:?}");
    assert_eq!((total.seen, total.absorbed + total.analysed), (PACKETS, PACKETS), "{total:?}");
    assert_eq!((ledger.egress_devices[0].sent, ledger.egress_devices[0].unsent), (PACKETS, 0));
}

/// Datagrams from the sender's stack to the receiver, on the first link.
fn datagrams(lab: &Lab, packets: u64) {
    let to = (lab.receiver().address, 9);
    let sink = lab.enter(&lab.receiver().namespace, || UdpSocket::bind(to).unwrap()).unwrap();
    let from = || {
        let socket = UdpSocket::bind((lab.sender().address, 0)).unwrap();
        (0..packets).for_each(|_| assert_eq!(socket.send_to(&[0; 100], to).unwrap(), 100));
    };
    lab.enter(&lab.sender().namespace, from).unwrap();
    drop(sink);
}

/// Two devices whose rules send transmitted packets to each other.
#[test]
fn packets_that_leave_are_sent_on_and_do_not_go_round() {
    if !require_root("packets_that_leave_are_sent_on_and_do_not_go_round") {
        return;
    }
    const PACKETS: u64 = 100;
    let lab = lab();
    let [one, two] = [&lab.links[0], &lab.links[1]];
    let mirror = |exit: &str| rules(&MIRROR.replace("rx1", exit));
    let leaving = |end: &End, exit: &'static str| {
        capture(&lab, end, |builder| {
            builder.direction(Direction::Tx).rules(mirror(exit)).egress_devices([exit])
        })
    };
    let mut far = [&one.receiver, &two.receiver].map(|end| capture(&lab, end, |builder| builder));
    let mut first = leaving(&one.sender, "tx1");
    let mut second = leaving(&two.sender, "tx0");
    datagrams(&lab, PACKETS);
    // Each packet leaves by the first device; its copy by the second, and from there a copy by the first.
    for ((capture, worker), seen) in [(&mut first, 2 * PACKETS), (&mut second, PACKETS)]
        .into_iter()
        .chain(far.iter_mut().zip([2 * PACKETS, PACKETS]))
    {
        drain(capture, worker, seen, |record| assert_eq!(record.data().len(), 142));
        assert_eq!(capture.ledger().unwrap().total.analysed, seen);
    }
    let counts = |capture: &Capture| (sent(capture).sent, sent(capture).unsent);
    assert_eq!((counts(&first.0), counts(&second.0)), ((PACKETS, PACKETS), (PACKETS, 0)));
}

/// The error message of a command that fails.
fn refusal(lab: &Lab, words: &[&str]) -> String {
    let finished = start(lab, &lab.receiver().namespace, words).finish(LIMIT).unwrap();
    assert!(!finished.status.success(), "{words:?} is not refused");
    finished.stderr
}

#[test]
fn what_can_be_no_exit_is_refused() {
    if !require_root("what_can_be_no_exit_is_refused") {
        return;
    }
    let lab = lab();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.toml");
    fs::write(&file, "[[rule]]\nid = 1\naction = \"redirect\"\nto = \"rx7\"\n").unwrap();
    let file = file.to_str().unwrap();
    for (options, expected) in [
        (&["--mirror-to", "nosuch"][..], "no device 'nosuch' in this network namespace; there are: "),
        (&["--mirror-to", "rx0"], "--mirror-to: rx0 is captured"),
        (&["--mirror-to", "lo"], "--mirror-to: lo is a loopback device"),
        (&["--mirror-to", "rx1,rx1"], "--mirror-to: rx1 and rx1 are one device"),
        (&["--mirror-to", "a,b,c,d,e,f,g,h,i"], "--mirror-to: too many devices: 9 (at most 8)"),
        (
            &["--mirror-to", "rx1", "--hook", "native"],
            "--mirror-to: packets are sent on by tc, not by XDP: use --hook tc",
        ),
        (&["--mirror-to", "rx1", "--hook", "generic"], "use --hook tc"),
        (&["--mirror-to", "rx1", "--engine", "packet"], "--mirror-to: only --engine ring sends packets on"),
        (
            &["--mirror-to", "rx1", "--engine", "xsk", "--exclusive"],
            "--mirror-to: only --engine ring sends packets on",
        ),
        (
            &["--rules", file],
            "rules.toml:4:6: 'rx7' is not an egress device of the capture: start it with --mirror-to rx7",
        ),
        (
            &["--rules", file, "--mirror-to", "rx1"],
            "'rx7' is not an egress device of the capture: start it with --mirror-to rx1,rx7",
        ),
    ] {
        let said = refusal(&lab, &[&["count", "-i", "rx0"], options].concat());
        assert!(said.contains(expected), "{options:?}: {said}");
    }
    let said = refusal(&lab, &["count", "-r", file, "--mirror-to", "rx1"]);
    assert!(said.contains("cannot be used with"), "{said}");
}

#[test]
fn exits_are_named_when_the_capture_starts_and_shown_at_its_end() {
    if !require_root("exits_are_named_when_the_capture_starts_and_shown_at_its_end") {
        return;
    }
    let lab = lab();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let namespace = lab.receiver().namespace.as_str();
    let run = |words: &[&str]| -> Child { start(&lab, namespace, words) };
    // Rules are loaded later, while the process has no rights.
    let mut child = run(&["count", "-i", "rx0", "--mirror-to", "rx1", "--json", "--interval", "0.2"]);
    child.wait_ready(LIMIT).unwrap();
    let pid = child.pid().to_string();
    let said = refusal(
        &lab,
        &["rules", "load", &file("wrong.toml", &REDIRECT.replace("rx1", "rx2")), "--pid", &pid],
    );
    assert!(
        said.contains(
            "wrong.toml:4:6: 'rx2' is not an egress device of the capture: start it with --mirror-to rx1,rx2"
        ),
        "{said}"
    );
    let said = refusal(&lab, &["rules", "add", "--pid", &pid, "id=5", "action=none", "mirror=rx2"]);
    assert!(
        said.contains(
            "rule 5: 'rx2' is not an egress device of the capture: start it with --mirror-to rx1,rx2"
        ),
        "{said}"
    );
    let done = |words: &[&str]| {
        let finished = run(&[words, &["--pid", &pid]].concat()).finish(LIMIT).unwrap();
        assert!(finished.status.success(), "{words:?}: {}", finished.stderr);
        finished.lines.join("\n")
    };
    let right = file("right.toml", MIRROR);
    let checked = run(&["rules", "check", &right]).finish(LIMIT).unwrap().lines.join("\n");
    assert!(checked.ends_with("for a capture that is started with --mirror-to rx1"), "{checked}");
    done(&["rules", "load", &right]);
    done(&["rules", "add", "--exact", "id=7", "src-port=1001", "action=redirect", "to=rx1", "mirror=rx1"]);
    let shown = done(&["rules", "list", "--exact"]);
    assert!(
        shown.contains("redirect to rx1, mirror to rx1") && shown.contains("none, mirror to rx1"),
        "{shown}"
    );
    send(&lab, SENT, &PORTS).unwrap();
    let mut seen = 0;
    while seen < SENT {
        let interval = child.next_json(LIMIT).unwrap().expect("it goes on");
        seen += ["analysed", "absorbed"].map(|name| field(&interval, name)).iter().sum::<u64>();
    }
    let last = child.terminate(LIMIT).unwrap().last_json().unwrap();
    assert_eq!(last["egress_devices"][0]["device"], "rx1", "{last}");
    assert_eq!(
        (field(&last["egress_devices"][0], "sent"), field(&last["egress_devices"][0], "unsent")),
        (SENT, 0),
        "{last}"
    );
    assert_eq!((field(&last, "absorbed"), field(&last, "analysed")), (TURNS, SENT - TURNS), "{last}");
}
