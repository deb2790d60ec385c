//! Classes and nodes: the clause set of each value of a dimension, and the tree in which the kernel looks it up byte by
//! byte.
//!
//! Both tables are deduplicated. Equal subtrees are one node, so a tree of addresses with repeated parts is a directed
//! acyclic graph.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use wirelane_bpf::rules::{Class, LEAF, Node, WORDS};

use super::pivots::Pivots;

/// Bit set of clauses.
pub(super) type Bits = [u64; WORDS];

/// A run of values of one class, from `first` up to the next segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub first: u128,
    pub class: u32,
}

/// The capacity of a table is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// A table without duplicates.
struct Interned<T> {
    all: Vec<T>,
    places: HashMap<u64, Vec<u32>>,
    hasher: RandomState,
    most: usize,
}

impl<T: PartialEq> Interned<T> {
    fn new(most: usize) -> Interned<T> {
        // Indexes have one bit less than 32: that bit is LEAF.
        let most = most.min(LEAF as usize);
        Interned { all: Vec::new(), places: HashMap::new(), hasher: RandomState::new(), most }
    }

    /// The index of the entry `made`, which `key` identifies; adds the entry if it is new.
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
    /// Tables of at most this many classes and nodes. Class 0 has the first `clauses` clauses.
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

    /// The class of these clauses in a dimension. Dimensions do not share classes, so the number of classes depends
    /// only on the values that each dimension distinguishes, not on the choice of pivots.
    pub fn class(&mut self, dim: usize, bits: &Bits) -> Result<u32, Full> {
        let mut at_home = *bits;
        at_home.iter_mut().zip(&self.pivots.of[dim]).for_each(|(bits, pivot)| *bits &= pivot);
        let class = Class { summary: summary(bits), pivot: summary(&at_home), words: *bits, pad: [0; 6] };
        self.classes.number((dim, bits), class)
    }

    /// Builds the tree of these segments, whose values have this many `bytes`, and returns its root. The first segment
    /// begins at 0.
    pub fn tree(&mut self, segments: &[Segment], bytes: u32) -> Result<u32, Full> {
        self.subtree(segments, 0, bytes * 8)
    }

    /// Builds the tree of the values from `base` on that differ from `base` in the last `bits` bits. The first segment
    /// begins at or before `base`, and all others within these values.
    fn subtree(&mut self, segments: &[Segment], base: u128, bits: u32) -> Result<u32, Full> {
        if let [only] = segments {
            return Ok(LEAF | only.class);
        }
        // No segment ends within a value, so there is more than one segment only if bits are left.
        let bits = bits - 8;
        let mut node = Node { next: [0; 256] };
        let (mut first, mut end) = (0, 0);
        for (byte, next) in node.next.iter_mut().enumerate() {
            let base = base | (byte as u128) << bits;
            let last = base | ((1 << bits) - 1);
            // Advance to the last segment that begins at or before this part, and to the first segment after it.
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

    /// The finished tables.
    pub fn finish(self) -> (Vec<Node>, Vec<Class>) {
        (self.nodes.all, self.classes.all)
    }
}

/// Bit per nonzero word.
fn summary(bits: &Bits) -> u64 {
    let there = bits.iter().enumerate().filter(|(_, word)| **word != 0);
    there.fold(0, |summary, (place, _)| summary | 1 << place)
}

/// Upper bound of the number of nodes of these segments' tree: the number of value prefixes whose values are not all of
/// one class. Equal nodes are counted separately.
pub(super) fn most_nodes(segments: &[Segment], bytes: u32) -> usize {
    let prefix = |first: u128, bits: u32| first.checked_shr(bits).unwrap_or(0);
    let nodes = |bits: u32| {
        let within = |first: u128| prefix(first, bits).checked_shl(bits) != Some(first);
        // Segments are sorted, so those that begin within one node are adjacent.
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
