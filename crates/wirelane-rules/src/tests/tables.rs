//! Sizes of compiled sets, and limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wirelane_bpf::evaluate::{NoExact, Packet, evaluate};
use wirelane_bpf::layout::{Parsed, l3};
use wirelane_bpf::rules::{Facts, LEAF, dim, verdict};

use super::generator::{self, Values};
use crate::{Action, Addresses, Condition, Room, Rule, RuleSet, Shape, Test};
use wirelane_testing::Dice;

/// A set with one rule that drops packets from these sources.
fn dropping(parts: impl Iterator<Item = String>) -> RuleSet {
    let text: String = parts.map(|part| format!("\"{part}\",")).collect();
    super::set(&format!("[[rule]]\nid = 1\nsrc = [{text}]\naction = \"drop\"\n"))
}

#[test]
fn a_set_without_rules_needs_nothing() {
    let flat = RuleSet::default().compile("eth0", &[], Room::UNLIMITED).expect("an empty set");
    assert_eq!((flat.nodes.len(), flat.classes.len()), (0, 1));
    assert_eq!(*flat.set, *wirelane_bpf::rules::Set::empty());
    let dropping = super::set("default = \"drop\"\n");
    let flat = dropping.compile("eth0", &[], Room::UNLIMITED).expect("an empty set");
    assert_eq!(flat.set.default_verdict, u32::from(verdict::DROP));
}

#[test]
fn what_no_rule_asks_about_is_not_looked_at() {
    let set = super::set("[[rule]]\nid = 1\nport = 53\nnot.kind = \"arp\"\naction = \"drop\"\n");
    let flat =
        set.compile("eth0", &[Shape::SRC, Shape::VLAN.with(Shape::DST)], Room::UNLIMITED).expect("a set");
    assert_eq!(flat.set.used, 1 << dim::SRC_PORT | 1 << dim::DST_PORT | 1 << dim::KIND);
    assert_eq!((flat.set.clauses, flat.set.rules), (2, 1));
    // The shape with the most fields comes first.
    assert_eq!((flat.set.shapes, flat.set.shape[0], flat.set.shape[1]), (2, 0x22, 0x01));
}

#[test]
fn rules_for_other_devices_keep_their_slots() {
    let set = super::set(
        "[[rule]]\nid = 5\ndevice = \"eth1\"\naction = \"drop\"\n\
         [[rule]]\nid = 3\nnot.device = [\"eth1\", \"eth2\"]\naction = \"pass\"\n\
         [[rule]]\nid = 9\naction = \"count\"\n",
    );
    let clauses = |device| {
        let flat = set.compile(device, &[], Room::UNLIMITED).expect("a set");
        let slots: Vec<(u32, u32)> = flat.set.rule[..3].iter().map(|rule| (rule.id, rule.slot)).collect();
        assert_eq!(slots, [(3, 0), (5, 1), (9, 2)]);
        flat.set.rule_of[..flat.set.clauses as usize].to_vec()
    };
    assert_eq!((clauses("eth0"), clauses("eth1"), clauses("")), (vec![0, 2], vec![1, 2], vec![0, 2]));
}

#[test]
fn neighbours_share_nodes_and_values_share_classes() {
    // 256 networks of one class: the last two bytes are equal for all of them.
    let set = dropping((0..256).map(|third| format!("10.0.{third}.128/25")));
    let flat = set.compile("eth0", &[], Room::UNLIMITED).expect("a set");
    // One node per byte. Classes: all clauses, and in the dimension all and none.
    assert_eq!((flat.nodes.len(), flat.classes.len()), (4, 3));
    assert_eq!(flat.set.dims[dim::SRC].root6 & LEAF, LEAF, "no IPv6 address is in it");
    assert_eq!(set.room().expect("a set"), Room::of(&flat));
}

#[test]
fn what_is_needed_is_never_more_than_was_said() {
    let mut dice = Dice(9);
    for _ in 0..120 {
        let values = Values::few(&mut dice);
        let rules = dice.below(40);
        let set = generator::set(&mut dice, &values, rules);
        let room = set.room().expect("a set");
        let flat = set.compile("eth0", &[], Room::UNLIMITED).expect("a set");
        let taken = Room::of(&flat);
        assert!(taken.nodes <= room.nodes && taken.classes <= room.classes, "{taken:?}, {room:?}, {set:#?}");
        // The set fits into exactly its own size, and into nothing smaller.
        assert_eq!(set.compile("eth0", &[], taken).expect("it fits"), flat);
        for smaller in [
            Room { nodes: taken.nodes.wrapping_sub(1), ..taken },
            Room { classes: taken.classes - 1, ..taken },
        ] {
            assert!(smaller.nodes > taken.nodes || set.compile("eth0", &[], smaller).is_err());
        }
        // Every index in the tables is valid.
        let there = |next: &u32| match next & LEAF {
            0 => (*next as usize) < flat.nodes.len(),
            _ => ((next ^ LEAF) as usize) < flat.classes.len(),
        };
        assert!(flat.nodes.iter().all(|node| node.next.iter().all(there)));
        let used = flat.set.dims.iter().enumerate().filter(|(dim, _)| flat.set.used & 1 << dim != 0);
        used.for_each(|(dim, field)| {
            let six = dim > dim::DST || there(&field.root6);
            assert!(there(&field.root) && six && (field.absent as usize) < flat.classes.len());
        });
    }
}

#[test]
fn a_set_that_does_not_fit_says_how_much_it_needs() {
    let set = dropping((0..64u32).map(|number| format!("{}.1.2.3", number * 3 + 1)));
    // The addresses differ in the first byte: the rest is equal for all of them.
    assert_eq!(set.room().expect("a set"), Room { nodes: 4, classes: 3 });
    let few = Room { nodes: 3, classes: 100 };
    let error = set.compile("eth0", &[], few).expect_err("no room").to_string();
    assert_eq!(
        error,
        "rules: they need up to 4 nodes and 3 classes (1 MiB), and there is room for 3 and 100 (1 MiB); \
         addresses that lie far apart take the most: ask for more room, or for fewer of them"
    );
}

/// A list of this many random addresses.
fn scattered(count: usize) -> (RuleSet, Vec<u32>) {
    let mut dice = Dice(11);
    let mut numbers: Vec<u32> = (0..count).map(|_| dice.next() as u32).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let text: String =
        numbers.iter().map(|number| format!("{}\n", std::net::Ipv4Addr::from_bits(*number))).collect();
    let folder = tempfile::TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("list.txt"), text).expect("a file");
    let rules = "[[rule]]\nid = 1\nsrc = \"@list.txt\"\naction = \"drop\"\n";
    std::fs::write(folder.path().join("a.toml"), rules).expect("a file");
    (RuleSet::read(folder.path().join("a.toml")).expect("a set"), numbers)
}

#[test]
fn long_lists_of_addresses() {
    let began = Instant::now();
    let (set, numbers) = scattered(20_000);
    let flat = set.compile("eth0", &[], Room::UNLIMITED).expect("a set");
    let Test::Src(list) = &set.rules[0].conditions[0].test else { panic!("src") };
    println!("{} ranges, {:?}, {:?}", list.len(), Room::of(&flat), began.elapsed());
    let mut parsed = Parsed::default();
    parsed.outer.l3 = l3::IPV4;
    let mut dropped = |number: u32| {
        parsed.outer.src[..4].copy_from_slice(&number.to_be_bytes());
        let facts = Facts { wire_len: 60, ..Facts::default() };
        let packet = Packet { parsed: &parsed, data: &[], inner: false };
        evaluate(&flat, &[], &mut NoExact, packet, &facts).verdict == u32::from(verdict::DROP)
    };
    for number in &numbers {
        assert!(dropped(*number), "{number:#x}");
        let next = number.wrapping_add(1);
        assert_eq!(dropped(next), numbers.binary_search(&next).is_ok(), "{next:#x}");
    }
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[test]
fn a_list_that_many_rules_share_is_taken_apart_once() {
    let list: Arc<Addresses> = {
        let (set, _) = scattered(20_000);
        let Test::Src(list) = &set.rules[0].conditions[0].test else { panic!("src") };
        list.clone()
    };
    let rule = |id: u32| {
        let tests = [Test::Src(list.clone()), Test::DstPort(vec![id as u16..=id as u16])];
        Rule { conditions: tests.map(Condition::is).to_vec(), ..Rule::new(id, Action::Drop) }
    };
    let set = RuleSet { rules: (1..=2000).map(rule).collect(), ..RuleSet::default() };
    let began = Instant::now();
    let flat = set.compile("eth0", &[], Room::UNLIMITED).expect("a set");
    println!("{:?}, {:?}", Room::of(&flat), began.elapsed());
    // One class for all clauses; for sources all and none; for ports none and one each.
    assert_eq!(flat.classes.len(), 1 + 2 + 1 + 2000);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}
