//! Results of an analysis that wait for its caller.

use std::collections::VecDeque;

/// Maximum number of results of a batch.
const MOST: usize = 256;
/// Maximum bytes of a batch, except for its last result.
const MOST_BYTES: usize = 256 << 10;

/// Finished results that were not taken yet, in batches of at most 256 and of about 256 KiB. While a batch is
/// [full](Outbox::is_full), an analysis adds only the results that a packet causes, so a table whose entries all end at
/// once is handed out in steps and never copied as a whole.
#[derive(Debug)]
pub struct Outbox<T> {
    batches: VecDeque<Vec<T>>,
    /// Bytes of the last batch.
    bytes: usize,
}

impl<T> Default for Outbox<T> {
    fn default() -> Outbox<T> {
        Outbox { batches: VecDeque::new(), bytes: 0 }
    }
}

impl<T> Outbox<T> {
    /// Adds a result of this many bytes.
    pub(crate) fn push(&mut self, result: T, bytes: usize) {
        match self.batches.back_mut() {
            Some(batch) if batch.len() < MOST && self.bytes < MOST_BYTES => batch.push(result),
            _ => {
                self.batches.push_back(vec![result]);
                self.bytes = 0;
            }
        }
        self.bytes += bytes;
    }

    /// Whether a batch is full and should be taken.
    pub fn is_full(&self) -> bool {
        self.batches.len() > 1
            || self.batches.back().is_some_and(|batch| batch.len() >= MOST || self.bytes >= MOST_BYTES)
    }

    /// Removes the first batch; `None`: there are no results.
    pub fn take(&mut self) -> Option<Vec<T>> {
        self.batches.pop_front()
    }

    /// Removes all results, one by one.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.take()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_bounded_in_number_and_bytes_and_keep_their_order() {
        let mut outbox = Outbox::default();
        for n in 0..300 {
            assert_eq!(outbox.is_full(), n >= 256);
            outbox.push(n, 100);
        }
        outbox.push(300, MOST_BYTES);
        outbox.push(301, 1);
        let batches: Vec<Vec<i32>> = std::iter::from_fn(|| outbox.take()).collect();
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [256, 45, 1]);
        assert!(batches.concat().into_iter().eq(0..302));
        assert!(!outbox.is_full() && outbox.take().is_none());
    }
}
