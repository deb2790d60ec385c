//! Rule files: any text is a set or has mistakes with positions; any set compiles, to tables no larger than computed,
//! and its verdict on any packet matches its conditions.
//!
//! Input: the length of the text (two bytes), the text, which is also taken as words, the packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wirelane::rules::{Error, ExactRule, Reference, Room, Rule, RuleSet};
use wirelane_bpf::evaluate::{ExactTable, Inserted, Packet, evaluate};
use wirelane_bpf::layout::LinkType;
use wirelane_bpf::native;
use wirelane_bpf::rules::{ExactKey, ExactValue, Facts, LiveCounts, evaluated_flags};

/// Exact-match rules, one after the other.
struct Table(Vec<(ExactKey, ExactValue)>);

impl ExactTable for Table {
    fn find(&mut self, key: &ExactKey) -> Option<&mut ExactValue> {
        self.0.iter_mut().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    fn insert(&mut self, key: &ExactKey, value: &ExactValue) -> Inserted {
        self.0.retain(|(known, _)| known != key);
        self.0.push((*key, *value));
        Inserted::Yes
    }
}

/// Mistakes have positions in the text, and are one line each.
fn told(text: &str, error: &Error) {
    let Error::Rules { mistakes } = error else { panic!("not the text's fault: {error}") };
    assert!(!mistakes.is_empty());
    for mistake in mistakes {
        let line = text.split('\n').nth(mistake.line.saturating_sub(1)).expect("a line of the text");
        assert!(mistake.column <= line.chars().count() + 1, "{mistake:?}");
        assert!(!mistake.reason.is_empty() && !mistake.to_string().contains(char::is_control), "{mistake:?}");
    }
}

fuzz_target!(|data: &[u8]| {
    let [low, high, rest @ ..] = data else { return };
    let (text, packet) = rest.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()));
    // Exact allocation, so that ASan detects a read beyond its end.
    let packet: Box<[u8]> = packet.into();
    let Ok(text) = std::str::from_utf8(text) else { return };
    if let Err(error) = Rule::from_words(text) {
        told(text, &error);
    }
    if let Ok(rule) = ExactRule::from_words(text).map_err(|error| told(text, &error)) {
        let set = RuleSet { exact: vec![rule], ..RuleSet::default() };
        set.check().expect("what was read can be used");
    }
    let set = match RuleSet::parse(text) {
        Ok(set) => set,
        Err(error) => return told(text, &error),
    };
    let egress_devices = set.egress_devices();
    let room = set.room().expect("what was read can be used");
    let flat = set.compile("eth0", &[], Room::UNLIMITED).expect("what was read compiles");
    assert!(flat.nodes.len() <= room.nodes && flat.classes.len() <= room.classes);

    let counts: Vec<LiveCounts> = (0..flat.set.slots).map(|_| LiveCounts::default()).collect();
    let mut table = Table(set.exact.iter().map(|rule| rule.entry(0, &egress_devices)).collect());
    let mut reference = Reference::new(&set, 0);
    for (turn, link) in [LinkType::Ethernet, LinkType::Raw, LinkType::Ethernet].into_iter().enumerate() {
        let parsed = native::parse(link, &packet, true);
        let facts = Facts {
            now_ns: 1_000_000_000 * turn as u64,
            wire_len: packet.len() as u32,
            queue: turn as u32,
            egress: turn as u32 & 1,
            seed: 7,
            ..Facts::default()
        };
        for inner in [false, true] {
            let packet = Packet { parsed: &parsed, data: &packet, inner };
            let ours = evaluate(&flat, &counts, &mut table, packet, &facts);
            let expected = reference.evaluate(packet, &facts, "eth0");
            let decided = |evaluated: wirelane_bpf::rules::Evaluated| {
                let tagged = evaluated.flags & evaluated_flags::TAGGED != 0;
                (
                    evaluated.verdict,
                    evaluated.rule_id,
                    evaluated.truncate,
                    evaluated.flags,
                    evaluated.hits,
                    evaluated.pattern,
                    (evaluated.egress_devices, evaluated.to),
                    tagged.then_some(evaluated.tag),
                )
            };
            assert_eq!(decided(ours), decided(expected), "{set:?}, {parsed:?}");
            assert!(!set.explain(packet, &facts, "eth0").to_string().is_empty());
        }
    }
    let ours = counts.iter().map(LiveCounts::read);
    let searched = (flat.set.slots > flat.set.rules).then(|| reference.searched());
    assert!(ours.eq(reference.counts().iter().copied().chain(searched)), "{set:?}");
});
