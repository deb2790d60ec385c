//! Tables that no compiler produces: whatever their contents, the evaluator stays within them, with the same result in
//! both compilations.

use std::sync::Arc;

use wirelane_bpf::evaluate::{Packet, evaluate};
use wirelane_bpf::members::Members;
use wirelane_bpf::native;
use wirelane_bpf::rules::{
    Class, Counts, DIMS, Field, FlatSet, LEAF, LiveCounts, MAX_RULES, MAX_SHAPES, Node, Rule, Set, WORDS, dim,
};
use wirelane_bpf::search::{self, Output, Search};

use super::ROOM;
use super::dice::{self, Dice, LINK, SHAPES};
use super::probe::{PAGES, Probe};
use super::reference::Entries;

/// The number of a node, a class, or neither.
fn lead(dice: &mut Dice, nodes: usize, classes: usize) -> u32 {
    match dice.below(12) {
        0 => dice.next() as u32,
        1 => LEAF | dice.next() as u32,
        2..5 => dice.below(nodes) as u32,
        _ => LEAF | dice.below(classes) as u32,
    }
}

fn word(dice: &mut Dice) -> u64 {
    match dice.below(8) {
        0 => 0,
        1 => 1 << dice.below(64),
        2..6 => u64::MAX,
        _ => dice.next(),
    }
}

/// No gates, some, or the flag for saved ones.
fn gates(dice: &mut Dice) -> u8 {
    if dice.once_in(2) { 0 } else { dice.next() as u8 & dice.next() as u8 }
}

/// Automata with arbitrary transitions.
fn automata(dice: &mut Dice) -> Search {
    let room = PAGES * search::PAGE;
    let outputs: Vec<Output> = (0..room)
        .map(|_| Output {
            id: dice.below(8) as u32,
            from: dice.below(40) as u32,
            last: dice.next() as u32,
            bits: dice.next() as u8,
            needs: gates(dice),
            opens: gates(dice),
            closes: gates(dice),
        })
        .collect();
    let mut automata = Search::new(room);
    automata.set_outputs(&outputs);
    for state in 0..room {
        let far = dice.once_in(30);
        automata.next(state).iter_mut().for_each(|next| {
            let state = if far { dice.next() as u32 } else { dice.below(room) as u32 * search::STATE };
            *next = state | if dice.once_in(4) { search::HIT } else { 0 };
        });
        let ends = automata.ends(state);
        ends.first = dice.below(room + 10) as u32;
        ends.count = if dice.once_in(20) { dice.next() as u32 } else { dice.below(4) as u32 };
    }
    automata
}

fn tables(dice: &mut Dice) -> FlatSet {
    // The full capacity of the probe, so that the same numbers are in range natively and in the kernel.
    let (nodes, classes) = (ROOM[0], ROOM[1]);
    // A few that are referenced, the rest copies of them.
    let some_nodes: Vec<Node> = (0..20)
        .map(|_| {
            let mut node = Node { next: [0; 256] };
            node.next.iter_mut().for_each(|next| *next = lead(dice, nodes, classes));
            node
        })
        .collect();
    let some_classes: Vec<Class> = (0..20)
        .map(|_| {
            let mut class = Class { words: [0; WORDS], ..Class::EMPTY };
            class.words.iter_mut().for_each(|bits| *bits = word(dice));
            class.summary = word(dice) | 1;
            class.pivot = word(dice) | 1;
            class
        })
        .collect();
    let mut set = Set::empty();
    set.clauses = 1;
    set.rules = dice.next() as u32;
    set.default_verdict = dice.below(6) as u32;
    set.used = dice.next() as u32 & dice.next() as u32 & dice.next() as u32;
    set.shapes = *dice.pick(&[0, 3, u32::MAX]);
    for at in 0..DIMS {
        let root = lead(dice, nodes, classes);
        let root6 = lead(dice, nodes, classes);
        set.dims[at] = Field { root, root6, absent: dice.below(2 * classes) as u32, pad: 0 };
    }
    for at in 0..MAX_SHAPES {
        set.shape[at] = if dice.once_in(2) { *dice.pick(&SHAPES) } else { dice.next() as u32 };
    }
    set.used |= if dice.once_in(2) { 1 << dim::PAYLOAD } else { 0 };
    let states = PAGES * search::PAGE;
    set.search_slot = dice.below(2 * MAX_RULES) as u32;
    set.search_root.iter_mut().for_each(|root| {
        *root = *dice.pick(&[0, (states as u32 - 1) * search::STATE, search::NONE, 1 << 20, 1 << 31])
    });
    set.search_reach = *dice.pick(&[0, 7, 200, u32::MAX]);
    // Tests of sets that do not exist.
    set.member.iter_mut().for_each(|member| *member = dice.next() as u8);
    set.prefix.iter_mut().flatten().flatten().for_each(|length| *length = dice.next() as u8);
    for at in 0..MAX_RULES {
        set.rule_of[at] = dice.next() as u16;
        let some = dice.next();
        set.rule[at] = Rule {
            id: some as u32,
            slot: if some >> 60 == 0 { some as u32 } else { some as u32 % MAX_RULES as u32 },
            verdict: (some >> 32) as u8 & 7,
            flags: (some >> 40) as u8,
            last_clause: (some >> 48) as u16,
            truncate: some as u32 & 0xf,
            sample: (some >> 36) as u32 & 3,
            tag: 7,
            insert_shape: *dice.pick(&SHAPES),
            insert_flags: (some >> 20) as u8,
            after: if some >> 61 == 0 {
                std::array::from_fn(|place| (some >> (8 * place)) as u32 & 3)
            } else {
                [0; 5]
            },
            ..Rule::default()
        };
    }
    FlatSet {
        set,
        nodes: (0..nodes).map(|at| some_nodes[at % some_nodes.len()]).collect(),
        classes: (0..classes).map(|at| some_classes[at % some_classes.len()]).collect(),
        members: Members::default(),
        search: Arc::new(automata(dice)),
    }
}

#[test]
fn any_tables_have_one_result() {
    let probe = Probe::load("kernel side of hostile tables", ROOM);
    let mut dice = Dice(8);
    let (mut hits, mut none) = (0, 0);
    for round in 0..12u64 {
        let flat = tables(&mut dice);
        let counts: Vec<LiveCounts> = (0..MAX_RULES).map(|_| LiveCounts::default()).collect();
        let mut entries = Entries { room: ROOM[2], ..Entries::default() };
        if let Some(probe) = &probe {
            probe.use_set(&flat);
            (0..MAX_RULES as u32).for_each(|slot| probe.clear_counts(slot));
        }
        let mut now = 1_000_000_000_000 + round;
        for _ in 0..200 {
            let packet = dice::packet(&mut dice);
            let facts = dice::facts(&mut dice, &mut now, 1_000_000);
            let inner = dice.once_in(2);
            let parsed = native::parse(LINK, &packet, true);
            let evaluated = evaluate(
                &flat,
                &counts,
                &mut entries,
                Packet { parsed: &parsed, data: &packet, inner },
                &facts,
            );
            hits += evaluated.hits;
            none += u32::from(evaluated.hits == 0);
            if let Some(probe) = &probe {
                let kernel = probe.evaluate(LINK, &packet, inner, &facts);
                assert_eq!(kernel, evaluated, "kernel left, native right: {packet:02x?}");
            }
        }
        if let Some(probe) = &probe {
            let kernel: Vec<Counts> = (0..MAX_RULES as u32).map(|slot| probe.counts(slot)).collect();
            let native: Vec<Counts> = counts.iter().map(LiveCounts::read).collect();
            assert!(kernel == native, "counters differ between kernel and native");
            let mut kernel = probe.entries();
            kernel.sort_by_key(|(key, _)| *key);
            assert_eq!(kernel, entries.of.into_iter().collect::<Vec<_>>(), "kernel left, native right");
        }
    }
    println!("hostile tables: {hits} hits, {none} packets without");
    assert!(hits > 500 && none > 100);
}
