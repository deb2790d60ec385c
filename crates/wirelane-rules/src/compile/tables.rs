//! Classes and nodes: what each value of a dimension means, and how the kernel finds that out byte by byte.
//!
//! Both tables hold nothing twice. A node that leads where another leads is that one, so a tree of addresses in which
//! parts look alike is a graph.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use wirelane_bpf::rules::{Class, LEAF, Node, WORDS};

use super::pivots::Pivots;

/// Bits of clauses.
pub(super) type Bits = [u64; WORDS];

/// Values from here on, up to the next segment, are of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub first: u128,
    pub class: u32,
}

/// A table has no room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// A table that holds nothing twice.
struct Interned<T> {
    all: Vec<T>,
    places: HashMap<u64, Vec<u32>>,
    hasher: RandomState,
    most: usize,
}

impl<T: PartialEq> Interned<T> {
    fn new(most: usize) -> Interned<T> {
        // Numbers have a bit less than 32: that one is LEAF.
        let most = most.min(LEAF as usize);
        Interned { all: Vec::new(), places: HashMap::new(), hasher: RandomState::new(), most }
    }

    /// The number of what is `made` like this, of which `key` tells all.
    fn number(&mut self, key: impl std::hash::Hash, made: T) -> Result<u32, Full> {
        let places = self.places.entry(self.hasher.hash_one(key)).or_default();
        if let Some(place) = places.iter().find(|place| self.all[**place as usize] == made) {
            return Ok(*place);
        }
        let place = u32::try_from(self.all.len()).map_err(|_| Full)?;
        if self.all.len() >= self.most {
            return Err(Full);
        }
        places.push(place);
        self.all.push(made);
        Ok(place)
    }
}

/// The classes and nodes of a set.
pub(super) struct Tables {
    pivots: Pivots,
    classes: Interned<Class>,
    nodes: Interned<Node>,
}

impl Tables {
    /// With at most so many of each, of which class 0 has the first so many `clauses`.
    pub fn new(
        clauses: usize,
        pivots: Pivots,
        most_classes: usize,
        most_nodes: usize,
    ) -> Result<Tables, Full> {
        let mut tables =
            Tables { pivots, classes: Interned::new(most_classes), nodes: Interned::new(most_nodes) };
        let mut all = [0; WORDS];
        for clause in 0..clauses {
            set(&mut all, clause);
        }
        let pivot = summary(&tables.pivots.none);
        let summary = summary(&all);
        tables.classes.number(all, Class { summary, pivot, words: all, pad: [0; 6] })?;
        Ok(tables)
    }

    /// The class of these clauses in a dimension. No two dimensions share one: how many there are then depends on what
    /// each dimension tells apart, and not on where clauses are at pivot.
    pub fn class(&mut self, dim: usize, bits: &Bits) -> Result<u32, Full> {
        let mut at_home = *bits;
        at_home.iter_mut().zip(&self.pivots.of[dim]).for_each(|(bits, pivot)| *bits &= pivot);
        let class = Class { summary: summary(bits), pivot: summary(&at_home), words: *bits, pad: [0; 6] };
        self.classes.number((dim, bits), class)
    }

    /// The root of the tree of these segments, whose values have so many `bytes`. The first segment begins at 0.
    pub fn tree(&mut self, segments: &[Segment], bytes: u32) -> Result<u32, Full> {
        self.subtree(segments, 0, bytes * 8)
    }

    /// The tree of the values from `base` on that differ from it in the last so many `bits`. The first segment begins at
    /// or before `base`, and all others within these values.
    fn subtree(&mut self, segments: &[Segment], base: u128, bits: u32) -> Result<u32, Full> {
        if let [only] = segments {
            return Ok(LEAF | only.class);
        }
        // No segment ends within a value, so there are several only where there are bits left.
        let bits = bits - 8;
        let mut node = Node { next: [0; 256] };
        let (mut first, mut end) = (0, 0);
        for (byte, next) in node.next.iter_mut().enumerate() {
            let base = base | (byte as u128) << bits;
            let last = base | ((1 << bits) - 1);
            // On to the last segment that begins at or before this part, and to the first behind it.
            while first + 1 < segments.len() && segments[first + 1].first <= base {
                first += 1;
            }
            end = end.max(first);
            while end < segments.len() && segments[end].first <= last {
                end += 1;
            }
            *next = self.subtree(&segments[first..end], base, bits)?;
        }
        self.nodes.number(node.next, node)
    }

    /// The tables as they are.
    pub fn finish(self) -> (Vec<Node>, Vec<Class>) {
        (self.nodes.all, self.classes.all)
    }
}

/// Bit per word that is not 0.
fn summary(bits: &Bits) -> u64 {
    let there = bits.iter().enumerate().filter(|(_, word)| **word != 0);
    there.fold(0, |summary, (place, _)| summary | 1 << place)
}

/// At most how many nodes the tree of these segments has: as many as there are beginnings of values at which not all
/// values with this beginning are of one class. Those that look alike are counted each.
pub(super) fn most_nodes(segments: &[Segment], bytes: u32) -> usize {
    let prefix = |first: u128, bits: u32| first.checked_shr(bits).unwrap_or(0);
    let nodes = |bits: u32| {
        let within = |first: u128| prefix(first, bits).checked_shl(bits) != Some(first);
        // Segments are in order, so those that begin within one node are neighbours.
        let mut prefixes: Vec<u128> = segments[1..]
            .iter()
            .filter(|segment| within(segment.first))
            .map(|segment| prefix(segment.first, bits))
            .collect();
        prefixes.dedup();
        prefixes.len()
    };
    (1..=bytes).map(|bytes| nodes(bytes * 8)).sum()
}

/// Sets the bit of a clause.
pub(super) fn set(bits: &mut Bits, clause: usize) {
    bits[clause / 64] |= 1 << (clause % 64);
}
