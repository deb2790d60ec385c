//! The pivot of each clause: the dimension that decides whether the words it lies in are looked at.
//!
//! Any of the dimensions that a clause asks about does, as a packet that it accepts satisfies all of them. The fewer
//! packets satisfy its pivot, the fewer look at its word for nothing. What packets there will be nobody knows; the guess
//! is from two things. A demand that many clauses share tells little: they were written for the traffic that there is,
//! and differ in something else. And a demand that few values satisfy is satisfied seldom, more so of addresses than of
//! protocols, which nearly all packets have two of.

use std::collections::HashMap;
use std::sync::Arc;

use wirelane_bpf::rules::{DIMS_USED, WORDS, dim};

use super::clauses::{Clause, Demand, last};
use super::ranges::Ranges;
use super::tables::{Bits, set};

/// The clauses that are at pivot in each dimension, and those that ask for nothing.
pub(super) struct Pivots {
    /// By dimension.
    pub of: [Bits; DIMS_USED],
    /// They accept every packet.
    pub none: Bits,
}

impl Pivots {
    /// Of clauses in their order.
    pub fn new(clauses: &[Clause]) -> Pivots {
        let mut pivots = Pivots { of: [[0; WORDS]; DIMS_USED], none: [0; WORDS] };
        let mut known = Known::default();
        let keys: Vec<Vec<Key>> =
            clauses.iter().map(|clause| demands(clause).map(|asked| known.key(asked)).collect()).collect();
        let mut sharing: HashMap<Key, usize> = HashMap::new();
        keys.iter().flatten().for_each(|key| *sharing.entry(*key).or_default() += 1);
        for (number, keys) in keys.iter().enumerate() {
            let guess = |key: &Key| {
                let shared = sharing[key] as f64 / clauses.len() as f64;
                shared.max(known.satisfied(*key))
            };
            let pivot = keys.iter().map(|key| (key.dim, guess(key))).min_by(|a, b| a.1.total_cmp(&b.1));
            set(pivot.map_or(&mut pivots.none, |(dim, _)| &mut pivots.of[dim]), number);
        }
        pivots
    }
}

/// What a clause asks, by dimension; but for the payload, which is looked at only where something else leads to a clause.
fn demands(clause: &Clause) -> impl Iterator<Item = (usize, &Demand)> {
    let asked = clause.demands.iter().enumerate().filter_map(|(dim, demand)| Some((dim, demand.as_ref()?)));
    asked.filter(|(dim, _)| *dim != dim::PAYLOAD)
}

/// What clauses share that ask the same of a dimension: sets of values by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    dim: usize,
    values: usize,
    values6: usize,
    absent: bool,
}

/// The sets of values that were met. Rules that share a list have one set of it, which is read once.
#[derive(Default)]
struct Known<'c> {
    places: HashMap<*const Ranges, usize>,
    numbers: HashMap<&'c Ranges, usize>,
    /// How many values each set has, by its number.
    sizes: Vec<f64>,
}

impl<'c> Known<'c> {
    fn key(&mut self, (dim, demand): (usize, &'c Demand)) -> Key {
        let mut number = |ranges: &'c Arc<Ranges>| {
            *self.places.entry(Arc::as_ptr(ranges)).or_insert_with(|| {
                *self.numbers.entry(ranges.as_ref()).or_insert_with(|| {
                    let size = |(first, end): (u128, u128)| (end - first) as f64 + 1.0;
                    self.sizes.push(ranges.iter().map(size).sum());
                    self.sizes.len() - 1
                })
            })
        };
        let (values, values6) = (number(demand.values()), number(demand.values6()));
        Key { dim, values, values6, absent: demand.absent }
    }

    /// A guess at the part of packets that satisfy a demand.
    fn satisfied(&self, Key { dim, values, values6, absent }: Key) -> f64 {
        let part = |number: usize, last: u128| self.sizes[number] / (last as f64 + 1.0);
        let of_values = part(values, last(dim));
        match dim {
            _ if absent => 1.0,
            // A network meets few of all prefixes, and those near it in most packets.
            dim::SRC | dim::DST => of_values.sqrt() + part(values6, u128::MAX).powf(0.25),
            // Some services are most of all traffic.
            dim::SRC_PORT | dim::DST_PORT => of_values.max(1.0 / 64.0),
            dim::VLAN | dim::ICMP_TYPE | dim::SETS => of_values.max(1.0 / 32.0),
            _ => of_values.max(0.5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuleSet;
    use crate::compile::clauses::Clauses;

    /// The pivot of each clause of these rules.
    fn pivots(text: &str) -> Vec<Option<usize>> {
        let set = RuleSet::parse(text).expect("a set");
        let mut maker = Clauses::new(&set.rules);
        let clauses: Vec<Clause> =
            set.rules.iter().enumerate().flat_map(|(index, rule)| maker.of(index, rule, None)).collect();
        let pivots = Pivots::new(&clauses);
        let has = |bits: &Bits, number: usize| bits[number / 64] >> (number % 64) & 1 == 1;
        (0..clauses.len())
            .map(|number| {
                let of: Vec<usize> = (0..DIMS_USED).filter(|dim| has(&pivots.of[*dim], number)).collect();
                assert_eq!(of.len() + usize::from(has(&pivots.none, number)), 1, "one pivot, or none");
                of.first().copied()
            })
            .collect()
    }

    #[test]
    fn a_clause_is_at_home_where_it_asks_for_the_least() {
        let rule = |id: u32, asks: &str| format!("[[rule]]\nid = {id}\n{asks}\naction = \"drop\"\n");
        let text = rule(1, "src = \"10.1.0.0/16\"\ndst-port = 53\nprotocol = \"udp\"")
            + &rule(2, "protocol = \"tcp\"\nvlan = 7")
            + &rule(3, "")
            + &rule(4, "not.src = \"10.0.0.1\"\ndst-port = 80")
            + &rule(5, "host = \"2001:db8::1\"");
        let (src, dst) = (Some(dim::SRC), Some(dim::DST));
        assert_eq!(pivots(&text), [src, Some(dim::VLAN), None, Some(dim::DST_PORT), src, dst]);
    }

    #[test]
    fn what_all_rules_ask_is_no_home() {
        let one = |id: u32| {
            let own =
                if id.is_multiple_of(2) { format!("src-port = {id}") } else { format!("dst-port = {id}") };
            format!("[[rule]]\nid = {id}\nsrc = \"10.0.0.1\"\n{own}\naction = \"drop\"\n")
        };
        let pivots = pivots(&(1..101).map(one).collect::<String>());
        let of = |id: usize| Some(if id.is_multiple_of(2) { dim::SRC_PORT } else { dim::DST_PORT });
        assert_eq!(pivots, (1..101).map(of).collect::<Vec<_>>());
    }
}
