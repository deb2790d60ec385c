//! Splits a dimension into intervals with equal clause sets.

use std::collections::HashMap;
use std::sync::Arc;

use wirelane_bpf::rules::{DIMS_USED, WORDS, dim};

use super::Room;
use super::clauses::{Clause, Demand, bytes};
use super::pivots::Pivots;
use super::ranges::Ranges;
use super::tables::{Bits, Full, Segment, Tables, most_nodes, set};

/// Selects a set of a demand: the IPv6 addresses, or all other values.
pub(super) type Of = fn(&Demand) -> &Arc<Ranges>;

/// The trees of a dimension, in the order of [`wirelane_bpf::rules::Field`], with the size of their values in bytes.
pub(super) fn trees(dim: usize) -> Vec<(Of, u32)> {
    match dim {
        dim::SRC | dim::DST => vec![(Demand::values, bytes(dim)), (Demand::values6, 16)],
        _ => vec![(Demand::values, bytes(dim))],
    }
}

/// Clauses that accept the same values.
struct Alike<'c> {
    ranges: &'c Ranges,
    /// Words of the clause bit set that contain these clauses, with their bits.
    words: Vec<(usize, u64)>,
}

/// The segments of a dimension with values of this many bytes, from value 0 on. `class` returns the class of each
/// segment.
pub(super) fn segments(
    clauses: &[Clause],
    dim: usize,
    (of, bytes): (Of, u32),
    mut class: impl FnMut(&Bits) -> Result<u32, Full>,
) -> Result<Vec<Segment>, Full> {
    let (mut bits, alike) = grouped(clauses, dim, of);
    let last_value = u128::MAX >> (128 - bytes * 8);
    // Boundaries: values at which a range begins, or the first value after its end, with the index of the group.
    let mut turns: Vec<(u128, u32)> = Vec::new();
    for (number, group) in alike.iter().enumerate() {
        for (first, last) in group.ranges.iter() {
            turns.push((first, number as u32));
            let behind = last.checked_add(1).filter(|behind| *behind <= last_value);
            turns.extend(behind.map(|behind| (behind, number as u32)));
        }
    }
    turns.sort_unstable();
    let mut segments: Vec<Segment> = Vec::new();
    let mut turns = turns.into_iter().peekable();
    let mut first = 0;
    loop {
        // Ranges of a set do not touch, so a group changes at most once at one value.
        while let Some((_, group)) = turns.next_if(|(at, _)| *at == first) {
            for (word, changed) in &alike[group as usize].words {
                bits[*word] ^= changed;
            }
        }
        let class = class(&bits)?;
        if segments.last().is_none_or(|last| last.class != class) {
            segments.push(Segment { first, class });
        }
        match turns.peek() {
            Some((at, _)) => first = *at,
            None => return Ok(segments),
        }
    }
}

/// The clauses that accept every value, and the others, grouped by equal sets of accepted values.
fn grouped(clauses: &[Clause], dim: usize, of: Of) -> (Bits, Vec<Alike<'_>>) {
    let mut all = [0; WORDS];
    let (mut numbers, mut alike) = (HashMap::new(), Vec::<Alike<'_>>::new());
    // Rules that share a list share one set of values, which need not be compared value by value.
    let mut known: HashMap<*const Ranges, usize> = HashMap::new();
    for (number, clause) in clauses.iter().enumerate() {
        let Some(demand) = &clause.demands[dim] else {
            set(&mut all, number);
            continue;
        };
        let ranges = of(demand);
        let group = *known.entry(Arc::as_ptr(ranges)).or_insert_with(|| {
            *numbers.entry(ranges.as_ref()).or_insert_with(|| {
                alike.push(Alike { ranges, words: Vec::new() });
                alike.len() - 1
            })
        });
        let (word, bit) = (number / 64, 1 << (number % 64));
        match alike[group].words.last_mut() {
            Some((last, bits)) if *last == word => *bits |= bit,
            _ => alike[group].words.push((word, bit)),
        }
    }
    (all, alike)
}

/// Upper bound of the size of these clauses' tables, computed without building nodes: equal nodes are counted
/// separately.
pub(super) fn room(clauses: &[Clause]) -> Room {
    // Classes are built: they are few compared to nodes, and they determine where a segment ends.
    let Ok(mut tables) = Tables::new(clauses.len(), Pivots::new(clauses), usize::MAX, 0) else {
        return Room::UNLIMITED;
    };
    let mut nodes = 0;
    for dim in 0..DIMS_USED {
        if clauses.iter().all(|clause| clause.demands[dim].is_none()) {
            continue;
        }
        for tree in trees(dim) {
            match segments(clauses, dim, tree, |bits| tables.class(dim, bits)) {
                Ok(segments) => nodes += most_nodes(&segments, tree.1),
                // More classes than class numbers: no table has the capacity for them.
                Err(Full) => return Room::UNLIMITED,
            }
        }
    }
    let (_, classes) = tables.finish();
    // Each dimension may have one more class, for packets without the field.
    Room { nodes, classes: classes.len() + DIMS_USED }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{MOST_BUILT, build, clauses::Clauses};
    use crate::{Action, Addresses, Condition, Rule, Test};
    use wirelane_testing::Dice;

    #[test]
    fn no_more_nodes_are_made_than_are_counted() {
        let mut dice = Dice(13);
        for _ in 0..200 {
            let rules: Vec<Rule> = (1..1 + dice.below(8) as u32)
                .map(|id| {
                    let mut list = Addresses::default();
                    for _ in 0..1 + dice.below(6) {
                        let six = std::net::Ipv6Addr::from(u128::from(dice.next()) << dice.below(100));
                        let four = std::net::Ipv4Addr::from(dice.word() & 0xff00_ffff);
                        let part = if dice.once_in(2) { six.to_string() } else { four.to_string() };
                        list.insert(&part).expect("an address");
                    }
                    let test = Test::Src(list.into());
                    let conditions = vec![Condition { negated: dice.once_in(3), test }];
                    Rule { conditions, ..Rule::new(id, Action::Drop) }
                })
                .collect();
            let mut maker = Clauses::new(&rules);
            let clauses: Vec<Clause> =
                rules.iter().enumerate().flat_map(|(index, rule)| maker.of(index, rule, None)).collect();
            let counted = room(&clauses);
            let built = build(&clauses, Room { nodes: MOST_BUILT, classes: usize::MAX }).expect("a few");
            assert!(built.nodes.len() <= counted.nodes && built.classes.len() <= counted.classes);
        }
    }
}
