//! The cells of a measurement, in bounded memory.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::cell::{Cell, Counted, Shape};
use crate::config::Measurement;
use crate::key::{self, Key};

/// Counts of one measurement in one interval.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub cells: HashMap<Key, Cell, ahash::RandomState>,
    /// Without a key: all packets; otherwise those whose keys exceeded the capacity.
    pub rest: Cell,
    /// Packets that lack a field of the key, and their bytes.
    pub without_key: (u64, u64),
    /// Increments of plug-in counters.
    pub counters: BTreeMap<String, u64>,
    most: usize,
}

impl Table {
    /// All counters at 0.
    pub fn new(shape: &Shape, most: usize) -> Table {
        Table {
            cells: HashMap::default(),
            rest: Cell::new(shape),
            without_key: (0, 0),
            counters: BTreeMap::new(),
            most,
        }
    }

    /// Counts a packet.
    #[inline]
    pub fn add(&mut self, of: &Measurement, shape: &Shape, packet: &Counted<'_>) {
        if of.key.is_empty() {
            return self.rest.add(shape, packet);
        }
        let Some(key) = key::of(of, &packet.seen) else {
            self.without_key.0 += packet.packets;
            self.without_key.1 += packet.bytes;
            return;
        };
        let has_room = self.cells.len() < self.most;
        match self.cells.get_mut(&key) {
            Some(cell) => cell.add(shape, packet),
            None if has_room => {
                let mut cell = Cell::new(shape);
                cell.add(shape, packet);
                self.cells.insert(key, cell);
            }
            None => self.rest.add(shape, packet),
        }
    }

    /// Adds the counts of another worker, or of another interval. Keys beyond the capacity are added to the rest.
    pub fn merge(&mut self, other: Table) {
        for (key, cell) in other.cells {
            let has_room = self.cells.len() < self.most;
            match self.cells.get_mut(&key) {
                Some(ours) => ours.merge(&cell),
                None if has_room => {
                    self.cells.insert(key, cell);
                }
                None => self.rest.merge(&cell),
            }
        }
        self.rest.merge(&other.rest);
        self.without_key.0 += other.without_key.0;
        self.without_key.1 += other.without_key.1;
        for (name, number) in other.counters {
            *self.counters.entry(name).or_default() += number;
        }
    }

    /// Closes the interval.
    pub fn end(&mut self) {
        self.cells.values_mut().for_each(Cell::end);
        self.rest.end();
    }

    /// Packets and bytes in all.
    pub fn sum(&self) -> (u64, u64) {
        let cells = self.cells.values().chain([&self.rest]).map(|cell| (cell.packets, cell.bytes));
        cells.chain([self.without_key]).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}
