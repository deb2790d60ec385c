//! Compiled sets in the kernel: `bpf/rules_probe.bpf.c`, which contains the capture programs' evaluator, driven by
//! BPF_PROG_TEST_RUN with packets of the corpus, against the reference.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, OpenObject, ProgramInput};
use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::layout::{LinkType, Parsed};
use wirelane_bpf::native;
use wirelane_bpf::rules::{
    Counts, Evaluated, ExactKey, ExactValue, Facts, FlatSet, Set, evaluated_flags, rule_flags,
};
use wirelane_bpf::skel::rules_probe::{RulesProbeSkel, RulesProbeSkelBuilder};

use crate::engine::ring::rules::KernelSets;
use wirelane_bpf::linktype;
use wirelane_rules::testing::generator::{self, Values};
use wirelane_rules::{Reference, Room, RuleSet};
use wirelane_testing::Dice;
use wirelane_testing::packets::captures;

/// BPF_PROG_TEST_RUN refuses shorter XDP packets (the kernel's ETH_HLEN).
const SHORTEST: usize = 14;
/// A longer packet is in several buffers, of which the parser sees the first.
const LONGEST: usize = 3400;
/// Capacity of the probe's tables.
const ROOM: Room = Room { nodes: 20_000, classes: 8192 };
/// Capacity for the automata of patterns, in pages.
const PAGES: usize = 512;
/// The time of the first packet.
const START_NS: u64 = 1_000_000_000_000;

/// The bytes of a struct, field by field.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u8(&mut self, value: u8) -> &mut Bytes {
        self.0.push(value);
        self
    }

    fn u16(&mut self, value: u16) -> &mut Bytes {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u32s(&mut self, values: &[u32]) -> &mut Bytes {
        self.0.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
        self
    }

    fn u64s(&mut self, values: &[u64]) -> &mut Bytes {
        self.0.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
        self
    }

    fn of_set(set: &Set) -> Vec<u8> {
        let mut bytes = Bytes::default();
        bytes.u32s(&[
            set.version,
            set.clauses,
            set.rules,
            set.default_verdict,
            set.used,
            set.shapes,
            set.slots,
            set.search_slot,
        ]);
        for dim in &set.dims {
            bytes.u32s(&[dim.root, dim.root6, dim.absent, 0]);
        }
        bytes.u32s(&set.shape);
        for rule in &set.rule_of {
            bytes.u16(*rule);
        }
        for rule in &set.rule {
            bytes.u32s(&[rule.id, rule.slot]).u8(rule.verdict).u8(rule.flags).u16(rule.last_clause);
            bytes.u32s(&[rule.truncate, rule.sample, rule.tag]);
            bytes.u32s(&[rule.insert_shape, rule.insert_idle_s, rule.insert_hard_s]);
            bytes.u8(rule.insert_verdict).u8(rule.insert_flags).u8(rule.mirror).u8(rule.to);
            bytes.0.extend(rule.plugin);
            bytes.u32s(&rule.after);
        }
        bytes.0.extend(set.member);
        bytes.u32s(&set.search_root).u32s(&[set.search_reach]);
        bytes.0.extend(set.plugin);
        bytes.0.extend(set.prefix.as_flattened().as_flattened());
        assert_eq!(bytes.0.len(), size_of::<Set>());
        bytes.0
    }

    fn of_key(key: &ExactKey) -> Vec<u8> {
        let mut bytes = Bytes(Vec::new());
        bytes.0.extend(key.src);
        bytes.0.extend(key.dst);
        bytes.u16(key.src_port).u16(key.dst_port).u16(key.vlan).u8(key.proto).u8(key.l3);
        bytes.u32s(&[key.mpls, key.tunnel, key.shape]);
        assert_eq!(bytes.0.len(), size_of::<ExactKey>());
        bytes.0
    }

    fn of_entry(entry: &ExactValue) -> Vec<u8> {
        let mut bytes = Bytes::default();
        bytes.u64s(&[entry.packets, entry.bytes, entry.first_ns, entry.last_ns, entry.made_ns]);
        bytes.u32s(&[entry.id]).u8(entry.verdict).u8(entry.flags).u8(entry.mirror).u8(entry.to);
        bytes.u32s(&[entry.truncate, entry.sample, entry.tag, entry.idle_s, entry.hard_s, 0]);
        assert_eq!(bytes.0.len(), size_of::<ExactValue>());
        bytes.0
    }

    fn of_counts(counts: &Counts) -> Vec<u8> {
        let mut bytes = Bytes::default();
        bytes.u64s(&[counts.packets, counts.bytes, counts.first_ns, counts.last_ns]);
        bytes.u64s(&[counts.inserted, counts.refused, 0, 0]);
        bytes.0
    }
}

pub(super) struct Probe(RulesProbeSkel<'static>);

impl Probe {
    /// Loads the program; without privileges, reports that `what` is skipped.
    pub(super) fn load(what: &str) -> Option<Probe> {
        if std::env::var_os("WIRELANE_UNPRIVILEGED").is_some_and(|value| value == "1") {
            println!("left out: {what} (WIRELANE_UNPRIVILEGED=1: no kernel program is loaded)");
            return None;
        }
        // The object outlives the skeleton; one per test, so it may as well live as long as the process.
        let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open =
            RulesProbeSkelBuilder::default().open(object).expect("the embedded BPF object is valid");
        let sizes = [
            (&mut open.maps.probe_nodes, ROOM.nodes),
            (&mut open.maps.probe_classes, ROOM.classes),
            (&mut open.maps.probe_exact_rules, 1000),
            (&mut open.maps.probe_pages, PAGES),
            (&mut open.maps.probe_outputs, PAGES),
        ];
        for (map, entries) in sizes {
            map.set_max_entries(entries as u32).expect("a size that maps can have");
        }
        match open.load() {
            Ok(skel) => Some(Probe(skel)),
            Err(error) => panic!(
                "the kernel did not load rules_probe.bpf.c: {error}. This test needs root (CAP_BPF, CAP_NET_ADMIN, \
                 CAP_PERFMON); set WIRELANE_UNPRIVILEGED=1 to leave it out."
            ),
        }
    }

    /// Evaluates the following packets by this set, with all counters at 0.
    pub(super) fn use_set(&self, rules: &RuleSet, flat: &FlatSet, exact: &[(ExactKey, ExactValue)]) {
        let maps = &self.0.maps;
        let kernel = KernelSets::new(None, u64::MAX).expect("nothing is started");
        for (test, (_, set)) in rules.named_tests().into_iter().enumerate() {
            let set = kernel.of(set).expect("the set fits");
            let place = |map: &OwnedFd| map.as_raw_fd().to_ne_bytes();
            let test = (test as u32).to_ne_bytes();
            maps.probe_blooms.update(&test, &place(&set.bloom), MapFlags::ANY).expect("the map is writable");
            if let Some(exact) = &set.exact {
                maps.probe_exacts.update(&test, &place(exact), MapFlags::ANY).expect("the map is writable");
            }
        }
        let number = |at: usize| (at as u32).to_ne_bytes();
        for (at, node) in flat.nodes.iter().enumerate() {
            let value = std::mem::take(&mut Bytes::default().u32s(&node.next).0);
            maps.probe_nodes.update(&number(at), &value, MapFlags::ANY).expect("the map is writable");
        }
        for (at, class) in flat.classes.iter().enumerate() {
            let mut value = Bytes::default();
            value.u64s(&[class.summary, class.pivot]).u64s(&class.words).u64s(&[0; 6]);
            maps.probe_classes.update(&number(at), &value.0, MapFlags::ANY).expect("the map is writable");
        }
        for (at, page) in flat.search.pages.iter().enumerate() {
            maps.probe_pages.update(&number(at), page.bytes(), MapFlags::ANY).expect("the map is writable");
        }
        for (at, page) in flat.search.output_pages.iter().enumerate() {
            maps.probe_outputs.update(&number(at), page.bytes(), MapFlags::ANY).expect("the map is writable");
        }
        let set = Bytes::of_set(&flat.set);
        maps.probe_set.update(&number(0), &set, MapFlags::ANY).expect("the map is writable");
        for slot in 0..=flat.set.rules {
            let none = [0; size_of::<Counts>()];
            maps.probe_counts.update(&slot.to_ne_bytes(), &none, MapFlags::ANY).expect("the map is writable");
        }
        for key in maps.probe_exact_rules.keys().collect::<Vec<_>>() {
            maps.probe_exact_rules.delete(&key).expect("an entry can be deleted");
        }
        for (key, value) in exact {
            let (key, value) = (Bytes::of_key(key), Bytes::of_entry(value));
            maps.probe_exact_rules.update(&key, &value, MapFlags::ANY).expect("the map is writable");
        }
    }

    /// The kernel's verdict for a packet.
    pub(super) fn evaluate(&self, link: LinkType, data: &[u8], inner: bool, facts: &Facts) -> Evaluated {
        let map = &self.0.maps.probe_lane;
        // In order: parse result, verdict, facts, the evaluator's scratch memory, and last the run's own arguments.
        let mut lane = Bytes(vec![0; size_of::<Parsed>() + size_of::<Evaluated>()]);
        lane.u64s(&[facts.now_ns]).u32s(&[facts.wire_len, facts.queue, facts.egress, facts.seed]);
        lane.u32s(&[facts.more_packets, facts.more_bytes]);
        lane.0.resize(map.value_size() as usize - 8, 0xa5);
        lane.u32s(&[inner.into(), link as u32]);
        map.update(&0u32.to_ne_bytes(), &lane.0, MapFlags::ANY).expect("the map is writable");
        let input = ProgramInput { data_in: Some(data), ..Default::default() };
        let output = self.0.progs.wl_rules_probe.test_run(input).expect("BPF_PROG_TEST_RUN works");
        let lane = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).expect("the map is readable");
        let lane = lane.expect("an array has all its entries");
        let word = |at: usize| {
            let at = size_of::<Parsed>() + 4 * at;
            u32::from_ne_bytes(lane[at..at + 4].try_into().expect("four bytes"))
        };
        let evaluated = Evaluated {
            verdict: word(0),
            rule_id: word(1),
            truncate: word(2),
            tag: word(3),
            flags: word(4),
            hits: word(5),
            pattern: [word(6), word(7), word(8), word(9)],
            egress_devices: word(10),
            to: word(11),
            hit_count: word(12),
            pad: word(13),
            hit: std::array::from_fn(|place| word(14 + place)),
        };
        assert_eq!(output.return_value, evaluated.verdict, "the probe returns the verdict");
        evaluated
    }

    /// Asserts that the kernel has the reference's counts and made rules.
    fn has_counted(&self, reference: &Reference<'_>, egress_devices: &[String]) {
        let maps = &self.0.maps;
        for (slot, expected) in reference.counts().iter().enumerate() {
            let ours = maps.probe_counts.lookup(&(slot as u32).to_ne_bytes(), MapFlags::ANY);
            let ours = ours.expect("the map is readable").expect("an array has all its entries");
            assert_eq!(ours, Bytes::of_counts(expected), "slot {slot}: {expected:?}");
        }
        let searched = (reference.counts().len() as u32).to_ne_bytes();
        let ours = maps.probe_counts.lookup(&searched, MapFlags::ANY).expect("the map is readable");
        assert_eq!(ours, Some(Bytes::of_counts(&reference.searched())), "{:?}", reference.searched());
        for entry in reference.exact() {
            let (key, mut value) = entry.rule.entry(entry.made_ns, egress_devices);
            value.flags |= if entry.made { rule_flags::MADE } else { 0 };
            let counts = entry.counts;
            (value.packets, value.bytes) = (counts.packets, counts.bytes);
            (value.first_ns, value.last_ns) = (counts.first_ns, counts.last_ns);
            let ours = maps.probe_exact_rules.lookup(&Bytes::of_key(&key), MapFlags::ANY);
            assert_eq!(ours.expect("the map is readable"), Some(Bytes::of_entry(&value)), "{entry:?}");
        }
        assert_eq!(maps.probe_exact_rules.keys().count(), reference.exact().len());
    }
}

/// Battery: I8
#[test]
fn the_kernel_decides_what_the_conditions_say() {
    const WHAT: &str = "the_kernel_decides_what_the_conditions_say";
    let Some(captures) = captures(WHAT, 60) else { return };
    let Some(probe) = Probe::load(WHAT) else { return };
    let packets: Vec<(LinkType, Vec<u8>, u32)> = captures
        .into_iter()
        .flat_map(|capture| capture.packets)
        .filter(|packet| (SHORTEST..=LONGEST).contains(&packet.data.len()))
        .map(|packet| (linktype::from_number(packet.link), packet.data, packet.wire_len))
        // The kernel does not parse link types that only files have.
        .filter(|(link, ..)| link.is_of_devices())
        .collect();
    let mut dice = Dice(8);
    let (mut hits, mut exact, mut made, mut found) = (0, 0, 0, 0);
    for turn in 0..60 {
        let mut values = Values::none();
        values.tcp_flags.push(0x10);
        while values.addresses.len() < 40 {
            let (link, data, wire_len) = dice.pick(&packets);
            values.take(&native::parse(*link, data, true), *wire_len);
            values.take_words(&mut dice, data);
        }
        let rules = if turn % 20 == 0 { 200 } else { dice.below(40) };
        let set = generator::set(&mut dice, &values, rules);
        let flat = set.compile("eth0", &[], ROOM).unwrap_or_else(|error| panic!("{error}: {set:#?}"));
        let egress_devices = set.egress_devices();
        let entries: Vec<_> = set.exact.iter().map(|rule| rule.entry(START_NS, &egress_devices)).collect();
        probe.use_set(&set, &flat, &entries);
        let mut reference = Reference::new(&set, START_NS);
        let mut now_ns = START_NS;
        for _ in 0..150 {
            let (link, data, wire_len) = dice.pick(&packets);
            now_ns += dice.next() % 500_000_000;
            let facts = Facts { wire_len: *wire_len, ..generator::facts(&mut dice, &values, now_ns) };
            let inner = dice.once_in(2);
            let parsed = native::parse(*link, data, true);
            let expected = reference.evaluate(Packet { parsed: &parsed, data, inner }, &facts, "eth0");
            found += u64::from(expected.pattern[0] != 0);
            let mut ours = probe.evaluate(*link, data, inner, &facts);
            if ours.flags & evaluated_flags::TAGGED == 0 {
                ours.tag = 0;
            }
            assert_eq!(ours, expected, "inner {inner}, {facts:?}: {parsed:#?} and {set:#?}");
            hits += expected.hits;
        }
        probe.has_counted(&reference, &egress_devices);
        exact += reference.exact().iter().map(|entry| entry.counts.packets).sum::<u64>();
        made += reference.exact().iter().filter(|entry| entry.made).count();
    }
    println!("{hits} hits, {exact} of exact-match rules, {made} made, {found} with patterns");
    assert!(hits > 3000 && exact > 100 && made > 100 && found > 300);
}

/// A UDP packet with this payload.
fn packet(payload: &[u8]) -> Vec<u8> {
    let mut data = vec![0; 42];
    data[12] = 0x08;
    data[14] = 0x45;
    data[16..18].copy_from_slice(&(28 + payload.len() as u16).to_be_bytes());
    data[23] = 17;
    data[38..40].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
    [&data, payload].concat()
}

/// At each boundary of payload blocks and packet buffers; at the end of the payload, and beyond the searched part.
#[test]
fn the_kernel_finds_patterns_wherever_they_lie() {
    let Some(probe) = Probe::load("the_kernel_finds_patterns_wherever_they_lie") else { return };
    let set = wirelane_rules::testing::set(
        r#"
        [[patterns]]
        name = "some"
        id = 5
        text = ["needle", "edle", "le", "z"]

        [[patterns]]
        name = "others"
        id = 100
        text = ["NEEDLES", "dle"]
        nocase = true
        offset = 100

        [[rule]]
        id = 1
        payload = "some"
        action = "drop"

        [[rule]]
        id = 2
        not.payload = "others"
        action = "count"
        "#,
    );
    let flat = set.compile("eth0", &[], ROOM).expect("it fits");
    probe.use_set(&set, &flat, &[]);
    let mut reference = Reference::new(&set, START_NS);
    let (mut half, mut found) = (0, 0);
    let places = (0..20).chain(90..280).chain(3300..3600).step_by(3);
    let ends = [16_370, 16_378, 16_379, 16_384, 17_000];
    for (turn, at) in places.chain(4000..4010).chain(ends).enumerate() {
        let mut payload = vec![b'n'; at];
        payload.extend(b"needle");
        payload.resize(at + 6 + turn % 3 * 50, b's');
        for payload in [&payload[..], &payload[..at + 5]] {
            let mut data = packet(payload);
            // Padding is not part of the payload.
            data.extend(if turn % 2 == 0 { &b"z needles"[..] } else { &[] });
            let facts = Facts { now_ns: START_NS, wire_len: data.len() as u32, ..Facts::default() };
            let parsed = native::parse(LinkType::Ethernet, &data, true);
            let expected =
                reference.evaluate(Packet { parsed: &parsed, data: &data, inner: false }, &facts, "eth0");
            assert_eq!(probe.evaluate(LinkType::Ethernet, &data, false, &facts), expected, "at {at}");
            half += u64::from(expected.flags & evaluated_flags::HALF != 0);
            found += u64::from(expected.pattern[0] != 0);
        }
    }
    // More ends of patterns than the search examines.
    for count in [1000, 1023, 1024, 1025, 3000] {
        let data = packet(&vec![b'z'; count]);
        let facts = Facts { now_ns: START_NS, wire_len: data.len() as u32, ..Facts::default() };
        let parsed = native::parse(LinkType::Ethernet, &data, true);
        let expected =
            reference.evaluate(Packet { parsed: &parsed, data: &data, inner: false }, &facts, "eth0");
        assert_eq!(probe.evaluate(LinkType::Ethernet, &data, false, &facts), expected, "{count}");
        half += u64::from(expected.flags & evaluated_flags::HALF != 0);
    }
    probe.has_counted(&reference, &[]);
    println!("{found} found, {half} not searched to the end");
    assert!(found > 100 && half >= 6, "{found} and {half}");
}

/// Cost of a payload byte in the kernel, printed for inspection.
#[test]
fn searching_is_measured() {
    let Some(probe) = Probe::load("searching_is_measured") else { return };
    let mut dice = Dice(31);
    let text: Vec<u8> = (0..1400).map(|_| b' ' + dice.below(95) as u8).collect();
    let data = packet(&text);
    for (what, count) in [("nothing", 0), ("10 patterns", 10), ("1,000 patterns", 1000)] {
        let word = |number: usize| format!("\"{number:04}{:08x}\", ", number as u32 ^ 0x1357_9bdf);
        let words: String = (0..count.max(1)).map(word).collect();
        let asked = if count > 0 { "payload = \"words\"\n" } else { "" };
        let set = wirelane_rules::testing::set(&format!(
            "[[patterns]]\nname = \"words\"\nid = 1\ntext = [{words}]\n[[rule]]\nid = 1\n{asked}action = \"count\"\n"
        ));
        let flat = set.compile("eth0", &[], ROOM).expect("it fits");
        probe.use_set(&set, &flat, &[]);
        let facts = Facts { now_ns: START_NS, wire_len: data.len() as u32, ..Facts::default() };
        probe.evaluate(LinkType::Ethernet, &data, false, &facts);
        let mut runs: Vec<u128> = (0..9)
            .map(|_| {
                let input = ProgramInput { data_in: Some(&data), repeat: 2000, ..Default::default() };
                let output = probe.0.progs.wl_rules_probe.test_run(input);
                output.expect("BPF_PROG_TEST_RUN works").duration.as_nanos()
            })
            .collect();
        runs.sort_unstable();
        println!("1,400 bytes, {what} ({} states): {} ns", flat.search.states, runs[4]);
    }
}
