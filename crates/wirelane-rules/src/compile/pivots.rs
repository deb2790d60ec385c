//! Pivot of each clause: the dimension that decides whether the clause's word of the bit set is examined.
//!
//! Any dimension that a clause tests can be its pivot, because a packet that the clause accepts satisfies all of them.
//! The fewer packets satisfy the pivot, the fewer packets examine the word in vain. The traffic is not known in
//! advance, so the share of packets that satisfy a demand is estimated from two properties. A demand shared by many
//! clauses is not selective: the clauses were written for the actual traffic and differ in another dimension. A demand
//! that accepts few values is satisfied rarely; this holds more for addresses than for protocols, as nearly all packets
//! have one of two protocols.

use std::collections::HashMap;
use std::sync::Arc;

use wirelane_bpf::rules::{DIMS_USED, WORDS, dim};

use super::clauses::{Clause, Demand, last};
use super::ranges::Ranges;
use super::tables::{Bits, set};

/// The clauses whose pivot is each dimension, and the clauses without a demand.
pub(super) struct Pivots {
    /// By dimension.
    pub of: [Bits; DIMS_USED],
    /// Clauses without a pivot: they accept every packet.
    pub none: Bits,
}

impl Pivots {
    /// Chooses the pivots of `clauses`, which are numbered in their order.
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

/// The demands of a clause, by dimension, except that on the payload, which is tested only after another dimension
/// selected the clause.
fn demands(clause: &Clause) -> impl Iterator<Item = (usize, &Demand)> {
    let asked = clause.demands.iter().enumerate().filter_map(|(dim, demand)| Some((dim, demand.as_ref()?)));
    asked.filter(|(dim, _)| *dim != dim::PAYLOAD)
}

/// Identity of a demand, equal for clauses with the same demand on a dimension: its sets of values by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    dim: usize,
    values: usize,
    values6: usize,
    absent: bool,
}

/// Distinct sets of values found so far. Rules that share a list share one set of values, which is read once.
#[derive(Default)]
struct Known<'c> {
    places: HashMap<*const Ranges, usize>,
    numbers: HashMap<&'c Ranges, usize>,
    /// Number of values of each set, by its number.
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

    /// Estimated share of packets that satisfy a demand.
    fn satisfied(&self, Key { dim, values, values6, absent }: Key) -> f64 {
        let part = |number: usize, last: u128| self.sizes[number] / (last as f64 + 1.0);
        let of_values = part(values, last(dim));
        match dim {
            _ if absent => 1.0,
            // A network sees few of all prefixes, and nearby prefixes in most packets.
            dim::SRC | dim::DST => of_values.sqrt() + part(values6, u128::MAX).powf(0.25),
            // A few services make up most of the traffic.
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
