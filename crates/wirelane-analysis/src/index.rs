//! Hash tables of indices that do not grow.

use hashbrown::HashTable;

/// Maximum bytes of a [`table`] per entry: an index and a control byte, for at most 32 buckets for 7 entries.
pub(crate) const BYTES: usize = 23;

/// A table for this many entries. It has twice the capacity: hashbrown clears the marks of removed entries in place only while
/// at most half of the capacity is in use, and allocates a larger table otherwise.
pub(crate) fn table(most: usize) -> HashTable<u32> {
    HashTable::with_capacity(2 * most)
}
