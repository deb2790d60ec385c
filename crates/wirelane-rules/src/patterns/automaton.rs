//! The automata of patterns (`bpf/lib/search.h`), built by the crate `aho-corasick` and converted to the kernel's
//! layout.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use aho_corasick::automaton::{Automaton as _, StateID};
use aho_corasick::nfa::noncontiguous::NFA;
use aho_corasick::{Anchored, MatchKind};
use wirelane_bpf::search::{Ends, HIT, Output, STATE, Search};

use super::sip::MESSAGE;
use super::{Patterns, Role, Sought};

/// A pattern of an automaton.
struct Part<'p> {
    bytes: &'p [u8],
    output: Output,
}

/// Cache of automata in use: a set is compiled for each device, and again after each change of another rule.
static MADE: Mutex<Vec<(Vec<Sought>, Weak<Search>)>> = Mutex::new(Vec::new());

/// The automata for these patterns, from the cache if possible.
pub(super) fn of(asked: Vec<Sought>) -> Arc<Search> {
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    made.retain(|(_, search)| search.strong_count() > 0);
    let known = made.iter().find(|(other, _)| *other == asked).and_then(|(_, search)| search.upgrade());
    known.unwrap_or_else(|| {
        let search = Arc::new(make(&asked));
        made.push((asked, Arc::downgrade(&search)));
        search
    })
}

/// Number of states of these patterns' automata: one per distinct prefix.
pub(super) fn states(patterns: &[&Patterns]) -> u64 {
    [false, true].into_iter().map(|nocase| states_of(patterns, nocase) as u64).sum()
}

fn states_of(patterns: &[&Patterns], nocase: bool) -> usize {
    let of = patterns.iter().filter(|patterns| patterns.nocase == nocase);
    let all = of.flat_map(|patterns| patterns.patterns.iter());
    let mut all: Vec<Vec<u8>> =
        all.map(|pattern| if nocase { pattern.0.to_ascii_lowercase() } else { pattern.0.clone() }).collect();
    all.sort_unstable();
    let common = |one: &[u8], other: &[u8]| one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let mut before: &[u8] = &[];
    let mut states = usize::from(!all.is_empty());
    for pattern in &all {
        states += pattern.len() - common(before, pattern);
        before = pattern;
    }
    states
}

fn make(asked: &[Sought]) -> Search {
    let all: Vec<&Patterns> = asked.iter().map(|sought| &sought.patterns).collect();
    let counts = [false, true].map(|nocase| states_of(&all, nocase));
    let mut search = Search::new(counts[0] + counts[1]);
    let (mut outputs, mut first) = (Vec::new(), 0);
    for (which, nocase) in [false, true].into_iter().enumerate() {
        if counts[which] == 0 {
            continue;
        }
        let mut parts = Vec::new();
        for Sought { bits, role, patterns } in asked.iter().filter(|sought| sought.patterns.nocase == nocase)
        {
            let (needs, opens, closes) = match role {
                Role::Anywhere => (0, 0, 0),
                Role::Within(header) => (header.gate(), 0, 0),
                Role::Head => (MESSAGE, 0, 0),
                Role::Gate(gate) => (gate.needs, gate.opens, gate.closes),
            };
            for (id, pattern) in patterns.ids() {
                let (from, last) = patterns.ends(pattern.0.len());
                search.reach = search.reach.max(last);
                parts.push(Part {
                    bytes: &pattern.0,
                    output: Output { id, from, last, bits: *bits, needs, opens, closes },
                });
            }
        }
        search.roots[which] = first * STATE;
        fill(&mut search, first, &parts, nocase, &mut outputs);
        first += counts[which] as u32;
    }
    search.set_outputs(&outputs);
    search
}

/// Writes the states of an automaton from state `first` on, in the order of their depth.
///
/// The library determines the states and the patterns that end in them. For a byte that does not continue a pattern,
/// the next state is that of the longest proper suffix of the input read so far that is also a prefix of a pattern;
/// that suffix state has a smaller depth, so its transitions are already complete and are copied.
fn fill(search: &mut Search, first: u32, parts: &[Part<'_>], nocase: bool, outputs: &mut Vec<Output>) {
    let automaton = NFA::builder()
        .match_kind(MatchKind::Standard)
        .ascii_case_insensitive(nocase)
        .prefilter(false)
        .build(parts.iter().map(|part| part.bytes))
        .expect("far fewer states than there are numbers for");
    let tree = Tree::new(&automaton, parts, nocase);
    // By state: the suffix state.
    let mut ends = vec![0; tree.order.len()];
    let mut steps = tree.steps.iter().peekable();
    for (state, id) in tree.order.iter().enumerate() {
        let end = ends[state];
        let mut next = if state == 0 { [first * STATE; 256] } else { *search.next(first as usize + end) };
        while let Some(Step { byte, to, .. }) = steps.next_if(|step| step.from == state) {
            let before = next[usize::from(*byte)] / STATE;
            ends[*to] = if state == 0 { 0 } else { (before - first) as usize };
            let hit = if automaton.is_match(tree.order[*to]) { HIT } else { 0 };
            for byte in [*byte, if nocase { other_case(*byte) } else { *byte }] {
                next[usize::from(byte)] = ((first + *to as u32) * STATE) | hit;
            }
        }
        *search.next(first as usize + state) = next;
        if automaton.is_match(*id) {
            let ended = (0..automaton.match_len(*id)).map(|place| automaton.match_pattern(*id, place));
            let mut ended: Vec<usize> = ended.map(|pattern| pattern.as_usize()).collect();
            // The order of patterns in records.
            ended.sort_by_key(|pattern| (Reverse(parts[*pattern].bytes.len()), *pattern));
            *search.ends(first as usize + state) =
                Ends { first: outputs.len() as u32, count: ended.len() as u32 };
            outputs.extend(ended.into_iter().map(|pattern| parts[pattern].output));
        }
    }
}

fn other_case(byte: u8) -> u8 {
    if byte.is_ascii_alphabetic() { byte ^ 0x20 } else { byte }
}

/// The prefixes of patterns, one per state, the shortest first.
struct Tree {
    order: Vec<StateID>,
    /// The transitions from each prefix to a longer one, in the order of the shorter prefixes.
    steps: Vec<Step>,
}

struct Step {
    from: usize,
    byte: u8,
    to: usize,
}

impl Tree {
    fn new(automaton: &NFA, parts: &[Part<'_>], nocase: bool) -> Tree {
        let root = automaton.start_state(Anchored::No).expect("searches begin anywhere");
        let mut tree = Tree { order: vec![root], steps: Vec::new() };
        // State numbers by the library's ids.
        let mut numbers: Vec<Option<usize>> = Vec::new();
        let mut reached: Vec<(usize, usize)> = (0..parts.len()).map(|part| (part, 0)).collect();
        for length in 0.. {
            reached.retain(|(part, _)| parts[*part].bytes.len() > length);
            if reached.is_empty() {
                break;
            }
            let longer = tree.steps.len();
            for (part, state) in &mut reached {
                let byte = parts[*part].bytes[length];
                let byte = if nocase { byte.to_ascii_lowercase() } else { byte };
                let id = automaton.next_state(Anchored::No, tree.order[*state], byte);
                if id.as_usize() >= numbers.len() {
                    numbers.resize(id.as_usize() + 1, None);
                }
                let from = *state;
                *state = *numbers[id.as_usize()].get_or_insert_with(|| {
                    let to = tree.order.len();
                    tree.order.push(id);
                    tree.steps.push(Step { from, byte, to });
                    to
                });
            }
            tree.steps[longer..].sort_by_key(|step| step.from);
        }
        tree
    }
}

#[cfg(test)]
mod tests {
    use aho_corasick::AhoCorasick;
    use proptest::prelude::*;
    use wirelane_bpf::search::{NONE, PAGE};

    use super::*;
    use crate::Pattern;

    fn patterns(nocase: bool, id: u32, all: Vec<Vec<u8>>) -> Patterns {
        let patterns = all.into_iter().map(Pattern).collect();
        Patterns { name: "some".to_owned(), id, patterns, nocase, offset: 0, depth: None }
    }

    fn sought(bits: u8, patterns: &Patterns) -> Sought {
        Sought { bits, role: Role::Anywhere, patterns: patterns.clone() }
    }

    /// The matches found with the tables: ids and end offsets.
    fn found(search: &Search, which: usize, text: &[u8]) -> Vec<(u32, usize)> {
        let mut all = Vec::new();
        let mut state = search.roots[which];
        if state == NONE {
            return all;
        }
        for (at, byte) in text.iter().enumerate() {
            let number = |state: u32| ((state / STATE) as usize / PAGE, (state / STATE) as usize % PAGE);
            let (page, row) = number(state);
            let next = search.pages[page].next[row][usize::from(*byte)];
            state = next & !HIT;
            let (page, row) = number(state);
            let ends = search.pages[page].ends[row];
            assert_eq!(next & HIT != 0, ends.count != 0);
            for output in (ends.first..ends.first + ends.count).map(|output| output as usize) {
                all.push((search.output_pages[output / PAGE].output[output % PAGE].id, at + 1));
            }
        }
        all
    }

    /// The matches found by the library.
    fn expected(patterns: &Patterns, text: &[u8]) -> Vec<(u32, usize)> {
        let library = AhoCorasick::builder()
            .ascii_case_insensitive(patterns.nocase)
            .build(patterns.patterns.iter().map(|pattern| &pattern.0))
            .expect("a few patterns");
        let found = library.find_overlapping_iter(text);
        found.map(|found| (patterns.id + found.pattern().as_u32(), found.end())).collect()
    }

    fn sorted<T: Ord>(mut all: Vec<T>) -> Vec<T> {
        all.sort();
        all
    }

    proptest! {
        #[test]
        fn the_tables_find_what_the_library_finds(
            exact in prop::collection::vec(prop::collection::vec(prop::sample::select(&b"abAB\x00"[..]), 1..6), 0..40),
            either in prop::collection::vec(prop::collection::vec(prop::sample::select(&b"abAB\xe9"[..]), 1..6), 0..40),
            text in prop::collection::vec(prop::sample::select(&b"abABc\x00\xe9"[..]), 0..300),
        ) {
            let (exact, either) = (patterns(false, 1, exact), patterns(true, 1000, either));
            let search = make(&[sought(1, &exact), sought(2, &either)]);
            prop_assert_eq!(search.states as u64, states(&[&exact, &either]));
            for (which, patterns) in [&exact, &either].into_iter().enumerate() {
                let expected = if patterns.patterns.is_empty() { Vec::new() } else { expected(patterns, &text) };
                prop_assert_eq!(sorted(found(&search, which, &text)), sorted(expected));
            }
        }
    }

    #[test]
    fn states_near_the_root_are_near_each_other() {
        let all = patterns(false, 1, (0..200u8).map(|byte| vec![byte; 100]).collect());
        let search = make(&[sought(1, &all)]);
        assert_eq!((search.states, search.outputs, search.reach), (1 + 200 * 100, 200, u32::MAX));
        assert!((0..200).all(|byte| search.pages[0].next[0][byte] == (byte as u32 + 1) * STATE));
    }

    #[test]
    fn the_same_patterns_are_made_once() {
        let one = patterns(false, 7, vec![b"abc".to_vec()]);
        let other = patterns(false, 7, vec![b"abd".to_vec()]);
        let of = |bits, patterns: &Patterns| of(vec![sought(bits, patterns)]);
        let first = of(1, &one);
        assert!(Arc::ptr_eq(&first, &of(1, &one)));
        assert!(!Arc::ptr_eq(&first, &of(2, &one)) && !Arc::ptr_eq(&first, &of(1, &other)));
    }

    #[test]
    fn a_thousand_patterns_and_more() {
        let word = |number: u32| format!("word{number:05}").into_bytes();
        let all = patterns(true, 1, (0..20_000).map(word).collect());
        let search = make(&[sought(1, &all)]);
        assert_eq!(found(&search, 1, b"xWORD19999word00000"), [(20_000, 10), (1, 19)]);
        assert_eq!(search.states as u64, states(&[&all]));
    }
}
