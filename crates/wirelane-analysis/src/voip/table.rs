//! Hash map with LRU lists by idle time.

use std::hash::Hash;

use ahash::RandomState;
use hashbrown::HashTable;

use crate::flows::lists::{Link, Links, List, NONE};

/// Lists that things can be in.
const LISTS: usize = 4;

#[derive(Debug)]
struct Slot<K, V> {
    hash: u64,
    link: Link,
    list: u8,
    /// `None`: free. What a free slot keeps is small: the room of calls that have gone is for streams, too.
    entry: Option<Box<(K, V)>>,
}

/// Entries have numbers that stay theirs until they are removed.
#[derive(Debug)]
pub struct Table<K, V> {
    /// Seeded at random, so that nobody can choose keys that meet in one place.
    random: RandomState,
    index: HashTable<u32>,
    slots: Vec<Slot<K, V>>,
    free: Vec<u32>,
    lists: [List; LISTS],
}

struct Linked<'a, K, V>(&'a mut [Slot<K, V>]);

impl<K, V> Links for Linked<'_, K, V> {
    fn link(&mut self, at: u32) -> &mut Link {
        &mut self.0[at as usize].link
    }
}

impl<K: Hash + Eq, V> Table<K, V> {
    /// Nothing.
    pub fn new() -> Table<K, V> {
        Table {
            random: RandomState::new(),
            index: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            lists: [List::default(); LISTS],
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// The number of what has this key.
    pub fn find(&self, key: &K) -> Option<u32> {
        let is_it = |at: &u32| self.slots[*at as usize].entry.as_ref().is_some_and(|entry| entry.0 == *key);
        self.index.find(self.random.hash_one(key), is_it).copied()
    }

    /// Adds something whose key is not there yet, at the end of a list.
    pub fn insert(&mut self, key: K, value: V, list: u8) -> u32 {
        let hash = self.random.hash_one(&key);
        let slot = Slot { hash, link: Link::default(), list, entry: Some(Box::new((key, value))) };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        };
        let slots = &self.slots;
        self.index.insert_unique(hash, at, |at| slots[*at as usize].hash);
        self.lists[usize::from(list)].push(&mut Linked(&mut self.slots), at);
        at
    }

    /// What has this number.
    pub fn get(&self, at: u32) -> Option<&V> {
        self.slots.get(at as usize)?.entry.as_ref().map(|entry| &entry.1)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut V> {
        self.slots.get_mut(at as usize)?.entry.as_mut().map(|entry| &mut entry.1)
    }

    /// All there is, in no order, with its number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(at, slot)| slot.entry.as_ref().map(|entry| (at as u32, &entry.1)))
    }

    /// Puts it at the end of a list.
    pub fn touch(&mut self, at: u32, list: u8) {
        let before = self.slots[at as usize].list;
        self.lists[usize::from(before)].remove(&mut Linked(&mut self.slots), at);
        self.slots[at as usize].list = list;
        self.lists[usize::from(list)].push(&mut Linked(&mut self.slots), at);
    }

    /// The first of a list.
    pub fn first(&self, list: u8) -> Option<u32> {
        let at = self.lists[usize::from(list)].first();
        (at != NONE).then_some(at)
    }

    /// Takes something out.
    pub fn remove(&mut self, at: u32) -> Option<V> {
        let slot = self.slots.get_mut(at as usize)?;
        let (_, value) = *slot.entry.take()?;
        let (hash, list) = (slot.hash, slot.list);
        self.lists[usize::from(list)].remove(&mut Linked(&mut self.slots), at);
        if let Ok(entry) = self.index.find_entry(hash, |known| *known == at) {
            entry.remove();
        }
        self.free.push(at);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_found_until_they_go() {
        let mut table = Table::new();
        let numbers: Vec<u32> = (0..100).map(|key| table.insert(key, key * 2, 0)).collect();
        assert_eq!(table.first(0), Some(numbers[0]));
        table.touch(numbers[0], 1);
        assert_eq!((table.first(0), table.first(1)), (Some(numbers[1]), Some(numbers[0])));
        assert_eq!((table.remove(numbers[1]), table.remove(numbers[1])), (Some(2), None));
        assert_eq!((table.find(&1), table.find(&2), table.len()), (None, Some(numbers[2]), 99));
        assert_eq!(table.insert(7000, 1, 0), numbers[1], "a free place is used again");
        assert_eq!(table.get(numbers[2]), Some(&4));
    }
}
