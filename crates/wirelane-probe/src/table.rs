//! The cells of a measurement, in bounded memory.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::cell::{Cell, Counted, Shape};
use crate::config::Measurement;
use crate::key::{self, Key};

/// What packets of one interval have come to, of one measurement.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub cells: HashMap<Key, Cell, ahash::RandomState>,
    /// Of a measurement without a key, everything; else what found no room.
    pub rest: Cell,
    /// Packets that lack a field of the key, and their bytes.
    pub without_key: (u64, u64),
    /// Of a plug-in's counters, what each has grown by.
    pub counters: BTreeMap<String, u64>,
    most: usize,
}

impl Table {
    /// Nothing counted yet.
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

    /// Adds what another worker, or another interval, has counted. What finds no room goes to the rest.
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

    /// The interval is over.
    pub fn end(&mut self) {
        self.cells.values_mut().for_each(Cell::end);
        self.rest.end();
    }

    /// Packets and bytes of all.
    pub fn sum(&self) -> (u64, u64) {
        let cells = self.cells.values().chain([&self.rest]).map(|cell| (cell.packets, cell.bytes));
        cells.chain([self.without_key]).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}
