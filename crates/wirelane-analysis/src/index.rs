//! Hash tables of entry numbers, within a memory limit.

use hashbrown::HashTable;

/// Maximum bytes of an [`Index`] per entry: a number and a control byte, for at most 32 buckets for 7 entries.
pub(crate) const BYTES: usize = 23;

/// Sizes of a table in entries before it has room for all: a small table stays in the processor's caches. Growth visits
/// each entry while packets wait, at most as many as the last size. The old and the new table exist at the same time then,
/// so a size is used only where at most a quarter of the entries, and so of their memory, is in use.
const SIZES: [usize; 2] = [1 << 12, 1 << 16];

/// Size of a table that has more than this many entries, of at most `most`.
fn size_above(entries: usize, most: usize) -> usize {
    SIZES.into_iter().find(|size| *size > entries && *size <= most / 4).unwrap_or(most)
}

/// A hash table of entry numbers.
#[derive(Debug)]
pub(crate) struct Index {
    table: HashTable<u32>,
    /// Entries for which the table is made. It has twice the capacity: hashbrown clears the marks of removed entries in
    /// place only while at most half of the capacity is in use, and allocates a larger table otherwise.
    room: usize,
    most: usize,
}

impl Index {
    /// An empty table for at most this many entries.
    pub fn new(most: usize) -> Index {
        let room = size_above(0, most);
        Index { table: HashTable::with_capacity(2 * room), room, most }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Allocated memory in bytes.
    pub fn memory(&self) -> usize {
        self.table.allocation_size()
    }

    /// Number of the entry with this hash for which `is_it` is true.
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.table.find(hash, |at| is_it(*at)).copied()
    }

    /// Adds an entry that is not present. `hash_of`: hash of each entry, also of this one.
    pub fn insert(&mut self, hash: u64, at: u32, hash_of: impl Fn(u32) -> u64) {
        if self.table.len() == self.room && self.room < self.most {
            self.room = size_above(self.room, self.most);
            self.table.reserve(2 * self.room - self.table.len(), |at| hash_of(*at));
        }
        self.table.insert_unique(hash, at, |at| hash_of(*at));
    }

    /// Removes an entry.
    pub fn remove(&mut self, hash: u64, at: u32) {
        if let Ok(found) = self.table.find_entry(hash, |other| *other == at) {
            found.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spreads numbers over all bits (Fibonacci hashing).
    fn hash(at: u32) -> u64 {
        u64::from(at).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Entries that come and go, at each size of the table.
    #[test]
    fn entries_are_found_while_the_table_grows() {
        for most in [1, 100, SIZES[0], 4 * SIZES[0], 4 * SIZES[1] - 1, 4 * SIZES[1] + 1] {
            let mut index = Index::new(most);
            let mut largest = index.memory();
            for at in 0..2 * most as u32 {
                if index.len() == most {
                    index.remove(hash(at - most as u32), at - most as u32);
                }
                let (entries, memory) = (index.len(), index.memory());
                index.insert(hash(at), at, hash);
                assert!(index.memory() == memory || entries <= most / 4, "grown with {entries} of {most}");
                largest = largest.max(index.memory());
            }
            for at in 0..2 * most as u32 {
                let found = index.find(hash(at), |other| other == at);
                assert_eq!(found.is_some(), at >= most as u32, "{at} of {most}");
            }
            assert_eq!(index.len(), most);
            // A table for a few entries has a group of control bytes more.
            assert!(largest <= BYTES * most + 64, "{largest} bytes for {most}");
        }
    }

    #[test]
    fn a_table_for_many_entries_is_small_at_first() {
        assert!(Index::new(1 << 24).memory() < 100 << 10);
    }
}
