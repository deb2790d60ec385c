//! Rules on devices: every hook and engine applies the verdict of the rules to each packet, counts it in the right
//! column, and replaces its rules while packets flow without losing one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use wirelane::rules::{Action, ExactFields, ExactRule, RuleSet};
use wirelane::{Capture, Direction, Engine, Error, HookChoice, Ip, Record, RulesCapacity, ip_flags, l3};
use wirelane_send::{DST, SRC, Traffic};
use wirelane_tests::numbers::{LIMIT, number_of, send};
use wirelane_tests::ruled::{KERNEL, PORTS, SENT, TURNS, WORKER, drain, hits, open, rules};
use wirelane_tests::{Lab, LabOptions, require_root};

const EVERYTHING: &str = r#"
    [[rule]]
    id = 10
    src-port = "1000-1063"
    action = "drop"

    [[rule]]
    id = 20
    src-port = "1064-1095"
    action = "count"

    [[rule]]
    id = 30
    src-port = "1096-1127"
    action = "pass"
    truncate = 60
    tag = 7

    [[rule]]
    id = 40
    src-port = "1128-1191"
    action = "none"
    tag = 9

    [[rule]]
    id = 50
    src-port = "1128-1159"
    not.src-port = "1140-1159"
    action = "pass"
    sample = 4

    [[rule]]
    id = 60
    src-port = 65000
    action = "drop"

    [[rule]]
    id = 70
    src-port = "1220-1229"
    action = "digest"
    tag = 11

    [[exact]]
    id = 100
    src-port = 1200
    protocol = "udp"
    action = "drop"

    [[exact]]
    id = 101
    src-port = 1201
    protocol = "udp"
    action = "count"

    [[exact]]
    id = 102
    src-port = 1001
    protocol = "udp"
    action = "pass"
    truncate = 64
    tag = 0
"#;

/// The source port of a digest, after a check of its other fields.
fn digested(record: &Record<'_>, digest: &Ip) -> u64 {
    let (src, dst, dst_port) = (SRC, DST, Traffic::default().dst_port);
    assert_eq!((&digest.src[..4], &digest.dst[..4]), (&src.octets()[..], &dst.octets()[..]));
    assert_eq!((digest.l3, digest.proto, digest.flags), (l3::IPV4, 17, ip_flags::PORTS));
    // Ethernet, IPv4, UDP; the datagram is the rest of the 100 bytes.
    assert_eq!((digest.l3_off, digest.l4_off, digest.payload_off, digest.l3_len), (14, 34, 42, 86));
    assert_eq!(u16::from_be(digest.dst_port), dst_port);
    let header = record.header();
    assert_eq!((header.l3, header.proto, header.payload_off), (digest.l3, digest.proto, digest.payload_off));
    assert_eq!((record.payload(), record.data()), (None, &[][..]));
    u16::from_be(digest.src_port).into()
}

/// Each verdict, each modifier, and the counts of each rule.
fn every_verdict_is_carried_out(at: (Engine, HookChoice)) {
    let lab = Lab::new(1).unwrap();
    let mut capture = open(&lab, at, |builder| builder.rules(rules(EVERYTHING))).unwrap();
    let mut worker = capture.workers().remove(0);
    let mut by_port = BTreeMap::<u64, u64>::new();
    send(&lab, SENT, &PORTS).unwrap();
    drain(&capture, &mut worker, SENT, |record| {
        let port = match record.digest() {
            Some(digest) => digested(record, digest),
            None => 1000 + number_of(record).expect("a packet that nobody sent") % 256,
        };
        *by_port.entry(port).or_default() += 1;
        let expected = match port {
            1001 => (Some(102), Some(0), 64),
            1096..1128 => (Some(30), Some(7), 60),
            1128..1140 => (Some(50), Some(9), 100),
            1140..1192 => (Some(40), Some(9), 100),
            1220..1230 => (Some(70), Some(11), 0),
            _ => (None, None, 100),
        };
        assert_eq!((record.rule(), record.tag(), record.data().len()), expected, "{at:?} port {port}");
        assert_eq!((record.wire_len(), record.is_snapped()), (100, expected.2 < 100), "{at:?} port {port}");
    });
    drop(worker);
    capture.stop().unwrap();
    let stats = capture.rule_stats().unwrap().unwrap();
    let ledger = capture.close().unwrap();
    assert!(ledger.balances(), "{at:?} {ledger:?}");

    // A flow is sampled as a whole.
    assert!(by_port.values().all(|packets| *packets == TURNS), "{at:?} {by_port:?}");
    let sampled = (1128..1140).filter(|port| by_port.contains_key(port)).count() as u64;
    let gone = |port: &u64| (1000..1096).contains(port) && *port != 1001 || [1200, 1201].contains(port);
    assert!(
        (1000..1256).all(|port| by_port.contains_key(&port) != gone(&port) || (1128..1140).contains(&port))
    );
    let total = ledger.total;
    assert_eq!((total.seen, total.lost), (SENT, 0), "{at:?}");
    assert_eq!(total.absorbed, (32 + 1) * TURNS, "{at:?}");
    assert_eq!(total.filtered, (63 + 1 + 12 - sampled) * TURNS, "{at:?}");
    assert_eq!(total.analysed, SENT - total.absorbed - total.filtered);

    let expected = [(10, 63), (20, 32), (30, 32), (40, 64), (50, 12), (60, 0), (70, 10)];
    let expected: BTreeMap<u32, u64> = expected.into_iter().map(|(id, ports)| (id, ports * TURNS)).collect();
    assert_eq!(hits(&stats), expected, "{at:?}");
    assert_eq!((stats.exact, stats.exact_hits.packets), (3, 3 * TURNS), "{at:?}");
    for line in &stats.rules {
        assert_eq!(line.hits.bytes, line.hits.packets * 100, "{at:?}");
        let (first, last) = (line.hits.first_ns, line.hits.last_ns);
        assert_eq!((first.is_some(), last.is_some()), (line.hits.packets > 0, line.hits.packets > 0));
        assert!(first <= last, "{at:?} {line:?}");
    }
}

/// Battery: L1
#[test]
fn every_verdict_is_carried_out_in_the_kernel() {
    if require_root("every_verdict_is_carried_out_in_the_kernel") {
        KERNEL.into_iter().for_each(every_verdict_is_carried_out);
    }
}

/// Battery: L1
#[test]
fn every_verdict_is_carried_out_in_the_worker() {
    if require_root("every_verdict_is_carried_out_in_the_worker") {
        WORKER.into_iter().for_each(every_verdict_is_carried_out);
    }
}

/// Four classes, by source port: each set delivers 1000 and one of the next two, counts the other, and drops 1003.
fn one_of_two(turn: u32) -> RuleSet {
    let (pass, count, id) = if turn.is_multiple_of(2) { (1001, 1002, 1) } else { (1002, 1001, 2) };
    rules(&format!(
        "default = \"drop\"\n[[rule]]\nid = {id}\nsrc-port = [1000, {pass}]\naction = \"pass\"\n\
         [[rule]]\nid = 3\nsrc-port = {count}\naction = \"count\"\n\
         [[exact]]\nid = {}\nsrc-port = {pass}\nprotocol = \"tcp\"\naction = \"drop\"\n",
        turn + 10
    ))
}

/// A change while packets flow: each packet is evaluated by the old or the new set, none is lost, and all hits are
/// counted for the right rule.
fn a_set_is_replaced_as_a_whole(at: (Engine, HookChoice)) {
    const SENT: u64 = 24_000;
    const FLOWS: [&str; 8] = ["--pattern", "ports", "--flows", "4", "--src-port", "1000", "--rate", "20k"];
    let lab = Lab::new(1).unwrap();
    // Rings for all that is sent, so that a slow reader does not lose any.
    let mut capture = open(&lab, at, |builder| builder.rules(one_of_two(0)).ring_size(64 << 20)).unwrap();
    let mut worker = capture.workers().remove(0);
    let (by_rule, changes) = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut by_rule = BTreeMap::<(u64, u32), u64>::new();
            while let Some(batch) = worker.next_batch(Duration::from_secs(1)).unwrap() {
                for record in batch {
                    let class = number_of(&record).expect("a packet that nobody sent") % 4;
                    *by_rule.entry((class, record.rule().unwrap_or(0))).or_default() += 1;
                }
            }
            by_rule
        });
        let sender = scope.spawn(|| send(&lab, SENT, &FLOWS).unwrap());
        let mut changes = 0;
        while !sender.is_finished() {
            changes += 1;
            capture.set_rules(&one_of_two(changes)).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        sender.join().unwrap();
        let deadline = Instant::now() + LIMIT;
        while capture.ledger().unwrap().total.seen < SENT && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        capture.stop().unwrap();
        (reader.join().unwrap(), changes)
    });
    let stats = capture.rule_stats().unwrap().unwrap();
    let ledger = capture.close().unwrap();
    assert!(ledger.balances(), "{at:?} {ledger:?}");
    let total = ledger.total;
    assert!(changes > 10, "{changes}");
    assert_eq!((total.seen, total.lost), (SENT, 0), "{at:?}");
    assert_eq!(total.filtered, SENT / 4, "{at:?}: what no rule passes");
    let of = |class: u64, rule: u32| by_rule.get(&(class, rule)).copied().unwrap_or(0);
    assert_eq!(of(0, 1) + of(0, 2), SENT / 4, "{at:?} {by_rule:?}");
    assert!(of(1, 1) > 0 && of(2, 2) > 0, "{at:?} {by_rule:?}");
    assert_eq!(total.absorbed, SENT / 2 - of(1, 1) - of(2, 2), "{at:?} {by_rule:?}");
    assert_eq!(by_rule.values().sum::<u64>(), total.analysed, "{at:?}");
    assert!(by_rule.keys().all(|key| [(0, 1), (0, 2), (1, 1), (2, 2)].contains(key)), "{at:?} {by_rule:?}");
    let counted = stats.rules_gone.packets + hits(&stats).values().sum::<u64>();
    assert_eq!(counted, total.analysed + total.absorbed, "{at:?}");
    assert_eq!((stats.version, stats.exact), (u64::from(changes) + 1, 1), "{at:?}");
}

/// Battery: L1
#[test]
fn a_set_is_replaced_as_a_whole_in_the_kernel() {
    if require_root("a_set_is_replaced_as_a_whole_in_the_kernel") {
        KERNEL.into_iter().for_each(a_set_is_replaced_as_a_whole);
    }
}

/// Battery: L1
#[test]
fn a_set_is_replaced_as_a_whole_in_the_worker() {
    if require_root("a_set_is_replaced_as_a_whole_in_the_worker") {
        WORKER.into_iter().for_each(a_set_is_replaced_as_a_whole);
    }
}

/// Invalid rules of any kind leave the active ones unchanged.
fn what_is_refused_changes_nothing(at: (Engine, HookChoice)) {
    let lab = Lab::new(1).unwrap();
    let first = "[[rule]]\nid = 1\nsrc-port = \"1000-1127\"\naction = \"drop\"\n";
    let room = RulesCapacity { rules: 2, exact: 4, nodes: 16, classes: 16, sets: 1 };
    let mut capture = open(&lab, at, |builder| builder.rules(rules(first)).rules_capacity(room)).unwrap();
    let mut worker = capture.workers().remove(0);
    let of = |ports: std::ops::Range<u16>| -> Vec<ExactRule> {
        let fields = |port| ExactFields { src_port: Some(port), ..ExactFields::default() };
        ports.map(|port| ExactRule::new(port.into(), fields(port), Action::Drop)).collect()
    };
    let many =
        "[[rule]]\nid = 2\naction = \"pass\"\n[[rule]]\nid = 3\naction = \"pass\"\n".to_owned() + first;
    let wide: Vec<String> = (0..40).map(|net| format!("\"10.{net}.{net}.0/24\"")).collect();
    let wide = format!("[[rule]]\nid = 2\nsrc = [{}]\naction = \"drop\"\n", wide.join(", "));
    let twice = RuleSet { rules: [rules(first).rules, rules(first).rules].concat(), ..RuleSet::default() };
    let refusals = [
        (capture.set_rules(&rules(&many)), "rules=3"),
        (capture.set_rules(&rules(&wide)), "nodes"),
        (capture.set_rules(&twice), "id 1 is taken"),
        (capture.set_rules(&RuleSet { exact: of(1200..1205), ..RuleSet::default() }), "exact=8"),
        (capture.add_rules(Vec::new(), of(1200..1205)), "exact=8"),
        (capture.add_rules(rules(first).rules, Vec::new()), "in use"),
    ];
    for (refused, reason) in refusals {
        let refusal = refused.unwrap_err().to_string();
        assert!(refusal.contains(reason), "{at:?}: {refusal}");
    }
    send(&lab, SENT, &PORTS).unwrap();
    drain(&capture, &mut worker, SENT, |_| {});
    let total = capture.ledger().unwrap().total;
    assert_eq!((total.filtered, total.analysed), (SENT / 2, SENT / 2), "{at:?}");
    let stats = capture.rule_stats().unwrap().unwrap();
    assert_eq!((stats.version, stats.exact, hits(&stats)[&1]), (1, 0, SENT / 2), "{at:?}");
    // The refusals have not used up any capacity.
    assert_eq!(capture.add_rules(Vec::new(), of(1200..1204)).unwrap().added, 4, "{at:?}");
    send(&lab, SENT, &PORTS).unwrap();
    drain(&capture, &mut worker, 2 * SENT, |_| {});
    assert_eq!(capture.ledger().unwrap().total.filtered, SENT + 4 * TURNS, "{at:?}");

    // Without rules and without capacity for any, a change is an error.
    let without = open(&lab, at, |builder| builder);
    if at.0 != Engine::Xsk {
        let without = without.unwrap();
        assert!(matches!(without.set_rules(&RuleSet::default()), Err(Error::BadOption { .. })));
        assert_eq!(without.rule_stats().unwrap(), None);
    }
}

#[test]
fn what_is_refused_changes_nothing_in_the_kernel() {
    if require_root("what_is_refused_changes_nothing_in_the_kernel") {
        KERNEL.into_iter().for_each(what_is_refused_changes_nothing);
    }
}

#[test]
fn what_is_refused_changes_nothing_in_the_worker() {
    if require_root("what_is_refused_changes_nothing_in_the_worker") {
        WORKER.into_iter().for_each(what_is_refused_changes_nothing);
    }
}

/// A tag in the packet's metadata, the RX queue, the direction, and rules in addition to a filter.
fn conditions_of_the_device(at: (Engine, HookChoice)) {
    // After XDP the stack has moved the tag from the packet to its metadata.
    let lab = Lab::with(&LabOptions { offloads: true, ..LabOptions::default() }).unwrap();
    let device = lab.receiver().device.clone();
    let text = format!(
        r#"
        default = "drop"

        [[rule]]
        id = 1
        device = "eth99"
        action = "count"

        [[rule]]
        id = 2
        vlan = 5
        queue = 0
        direction = "rx"
        length = 100
        device = "{device}"
        dst-port = 53
        action = "pass"
        "#
    );
    let mut capture =
        open(&lab, at, |builder| builder.rules(rules(&text)).filter("vlan and src portrange 4000-4001"))
            .unwrap();
    let mut worker = capture.workers().remove(0);
    let words = ["--vlan", "5", "--size", "100", "--flows", "4", "--pattern", "ports", "--src-port", "4000"];
    send(&lab, 40, &[&words[..], &["--dst-port", "53"]].concat()).unwrap();
    drain(&capture, &mut worker, 40, |record| {
        assert_eq!((record.rule(), record.header().vlan_tci, record.wire_len()), (Some(2), 5, 100), "{at:?}");
    });
    send(&lab, 40, &[&words[..], &["--dst-port", "54"]].concat()).unwrap();
    drain(&capture, &mut worker, 80, |_| panic!("{at:?}: by default all is dropped"));
    let total = capture.ledger().unwrap().total;
    assert_eq!((total.analysed, total.filtered), (20, 60), "{at:?}");
    let stats = capture.rule_stats().unwrap().unwrap();
    // Rules are not evaluated for packets that the filter rejects.
    assert_eq!(hits(&stats), BTreeMap::from([(1, 0), (2, 20)]), "{at:?}");
}

#[test]
fn conditions_of_the_device_hold_in_the_kernel() {
    if require_root("conditions_of_the_device_hold_in_the_kernel") {
        KERNEL.into_iter().for_each(conditions_of_the_device);
    }
}

#[test]
fn conditions_of_the_device_hold_in_the_worker() {
    if require_root("conditions_of_the_device_hold_in_the_worker") {
        WORKER.into_iter().for_each(conditions_of_the_device);
    }
}

/// Each group on a device has its own rules.
#[test]
fn groups_have_rules_of_their_own() {
    if !require_root("groups_have_rules_of_their_own") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let at = KERNEL[0];
    let sets = [
        ("[[rule]]\nid = 1\nsrc-port = \"1000-1063\"\naction = \"drop\"\n", (SENT / 4, 0)),
        ("[[rule]]\nid = 1\nsrc-port = \"1000-1127\"\naction = \"count\"\n", (0, SENT / 2)),
        ("default = \"drop\"\n", (SENT, 0)),
    ];
    let ruled = sets.iter().map(|(text, _)| open(&lab, at, |builder| builder.rules(rules(text))).unwrap());
    let captures: Vec<Capture> = ruled.chain([open(&lab, at, |builder| builder).unwrap()]).collect();
    send(&lab, SENT, &PORTS).unwrap();
    let expected = sets.iter().map(|(_, expected)| *expected).chain([(0, 0)]);
    for (capture, (filtered, absorbed)) in captures.iter().zip(expected) {
        let deadline = Instant::now() + LIMIT;
        while capture.ledger().unwrap().total.seen < SENT && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        capture.stop().unwrap();
        let total = capture.ledger().unwrap().total;
        assert_eq!((total.filtered, total.absorbed), (filtered, absorbed));
        assert_eq!((total.seen, total.delivered), (SENT, SENT - filtered - absorbed));
    }
}

/// Both directions of a device: two groups that are changed together.
#[test]
fn both_directions_have_the_same_rules() {
    if !require_root("both_directions_have_the_same_rules") {
        return;
    }
    const OUT: u64 = 30;
    for at in [KERNEL[0], KERNEL[2], WORKER[0]] {
        let lab = Lab::new(1).unwrap();
        let (here, there) = (lab.receiver(), lab.sender());
        let _sink =
            lab.enter(&there.namespace, || std::net::UdpSocket::bind((there.address, 9)).unwrap()).unwrap();
        let text = "[[rule]]\nid = 1\ndirection = \"tx\"\naction = \"count\"\n\
                    [[rule]]\nid = 2\nsrc-port = \"1000-1127\"\naction = \"drop\"\n";
        let mut capture = open(&lab, at, |builder| {
            builder.direction(Direction::Both).rules_capacity(RulesCapacity::default())
        })
        .unwrap();
        capture.set_rules(&rules(text)).unwrap();
        let mut worker = capture.workers().remove(0);
        send(&lab, SENT, &PORTS).unwrap();
        lab.enter(&here.namespace, || {
            let socket = std::net::UdpSocket::bind((here.address, 0)).unwrap();
            for _ in 0..OUT {
                socket.send_to(&[0; 100], (there.address, 9)).unwrap();
            }
        })
        .unwrap();
        drain(&capture, &mut worker, SENT + OUT, |record| assert!(!record.is_egress()));
        let total = capture.ledger().unwrap().total;
        assert_eq!((total.absorbed, total.filtered, total.analysed), (OUT, SENT / 2, SENT / 2), "{at:?}");
        let stats = capture.rule_stats().unwrap().unwrap();
        assert_eq!(hits(&stats), BTreeMap::from([(1, OUT), (2, SENT / 2)]), "{at:?}");
        // A rule in two groups of one device is one rule.
        let fields = ExactFields { src_port: Some(1255), ..ExactFields::default() };
        let rule = || vec![ExactRule::new(9, fields, Action::Drop)];
        capture.add_rules(Vec::new(), rule()).unwrap();
        let stats = capture.rule_stats().unwrap().unwrap();
        assert_eq!((stats.exact, stats.devices), (1, vec![here.device.clone()]), "{at:?}");
        assert_eq!(capture.remove_rules(&[9], &[]).unwrap().removed, 1, "{at:?}");
        assert_eq!(capture.remove_rules(&[9], &[]).unwrap().removed, 0);
        capture.add_rules(Vec::new(), rule()).unwrap();
        assert_eq!(capture.remove_rules(&[], &[fields]).unwrap().removed, 1, "{at:?}");
        capture.add_rules(Vec::new(), rule()).unwrap();
    }
}

/// One rule between two ends counts the packets of both directions, and no packets between other ports.
#[test]
fn a_rule_for_both_ways_hits_both_directions() {
    if !require_root("a_rule_for_both_ways_hits_both_directions") {
        return;
    }
    const IN: u64 = 40;
    const OUT: u64 = 30;
    const OTHERS: u64 = 5;
    for at in [KERNEL[0], KERNEL[2], WORKER[0]] {
        let lab = Lab::new(1).unwrap();
        let (here, there) = (lab.receiver(), lab.sender());
        let text = format!(
            "[[rule]]\nid = 1\nprotocol = \"udp\"\nsrc = \"{}\"\nsrc-port = 9\ndst = \"{}\"\ndst-port = 7\n\
             both-ways = true\naction = \"count\"\n",
            there.address, here.address
        );
        let mut capture =
            open(&lab, at, |builder| builder.direction(Direction::Both).rules(rules(&text))).unwrap();
        let mut worker = capture.workers().remove(0);
        let bind = |namespace: &str, ends: [(std::net::IpAddr, u16); 2]| -> [std::net::UdpSocket; 2] {
            lab.enter(namespace, || ends.map(|end| std::net::UdpSocket::bind(end).unwrap())).unwrap()
        };
        let (near, far) = (std::net::IpAddr::from(here.address), std::net::IpAddr::from(there.address));
        let [here_7, here_9] = bind(&here.namespace, [(near, 7), (near, 9)]);
        let [there_7, there_9] = bind(&there.namespace, [(far, 7), (far, 9)]);
        for (from, to, count) in [
            (&there_9, (near, 7), IN),
            (&here_7, (far, 9), OUT),
            (&here_9, (far, 7), OTHERS),
            (&there_7, (near, 9), OTHERS),
        ] {
            for _ in 0..count {
                from.send_to(&[0; 100], to).unwrap();
            }
        }
        let mut others = 0;
        drain(&capture, &mut worker, IN + OUT + 2 * OTHERS, |_| others += 1);
        assert_eq!(others, 2 * OTHERS, "{at:?}");
        let stats = capture.rule_stats().unwrap().unwrap();
        assert_eq!(hits(&stats), BTreeMap::from([(1, IN + OUT)]), "{at:?}");
        assert_eq!(capture.ledger().unwrap().total.absorbed, IN + OUT, "{at:?}");
    }
}
