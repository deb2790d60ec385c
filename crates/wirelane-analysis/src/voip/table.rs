//! Hash map with LRU lists by idle time.

use std::hash::Hash;

use ahash::RandomState;
use hashbrown::HashTable;

use crate::flows::lists::{Link, Links, List, NONE};

/// Number of lists.
const LISTS: usize = 4;

#[derive(Debug)]
struct Slot<K, V> {
    hash: u64,
    link: Link,
    list: u8,
    /// `None`: free. A free slot is small, so the memory of removed calls is available for streams, too.
    entry: Option<Box<(K, V)>>,
}

/// A hash map whose entries keep their index until they are removed.
#[derive(Debug)]
pub struct Table<K, V> {
    /// Seeded at random, so that an attacker cannot choose keys that collide.
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
    /// An empty table.
    pub fn new() -> Table<K, V> {
        Table {
            random: RandomState::new(),
            index: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            lists: [List::default(); LISTS],
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Index of the entry with this key.
    pub fn find(&self, key: &K) -> Option<u32> {
        let is_it = |at: &u32| self.slots[*at as usize].entry.as_ref().is_some_and(|entry| entry.0 == *key);
        self.index.find(self.random.hash_one(key), is_it).copied()
    }

    /// Adds an entry whose key is not present, at the end of a list.
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

    /// Value of an entry.
    pub fn get(&self, at: u32) -> Option<&V> {
        self.slots.get(at as usize)?.entry.as_ref().map(|entry| &entry.1)
    }

    /// Mutable value of an entry.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut V> {
        self.slots.get_mut(at as usize)?.entry.as_mut().map(|entry| &mut entry.1)
    }

    /// All entries with their index, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(at, slot)| slot.entry.as_ref().map(|entry| (at as u32, &entry.1)))
    }

    /// Moves an entry to the end of a list.
    pub fn touch(&mut self, at: u32, list: u8) {
        let before = self.slots[at as usize].list;
        self.lists[usize::from(before)].remove(&mut Linked(&mut self.slots), at);
        self.slots[at as usize].list = list;
        self.lists[usize::from(list)].push(&mut Linked(&mut self.slots), at);
    }

    /// First entry of a list.
    pub fn first(&self, list: u8) -> Option<u32> {
        let at = self.lists[usize::from(list)].first();
        (at != NONE).then_some(at)
    }

    /// Removes an entry.
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
