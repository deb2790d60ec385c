//! Which numbers of a stream have come.

/// Numbers behind the highest that are told apart.
pub const WINDOW: u64 = 1 << 20;

/// Counts of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets, duplicates included.
    pub received: u64,
    /// Packets whose number had come before.
    pub duplicates: u64,
    /// Packets that came after one with a higher number, without duplicates.
    pub reordered: u64,
    /// Packets that came so late that they may be duplicates: more than [`WINDOW`] numbers behind the highest.
    pub too_late: u64,
    /// Numbers that did not come.
    pub lost: u64,
}

/// The numbers of a stream in order of arrival.
#[derive(Debug)]
pub struct Sequence {
    /// A bit for each number of the window, at the number modulo [`WINDOW`].
    seen: Box<[u64]>,
    lowest: u64,
    highest: u64,
    received: u64,
    duplicates: u64,
    reordered: u64,
    too_late: u64,
}

impl Sequence {
    /// A sequence whose first packet has this number, and has not been added yet.
    pub fn new(first: u64) -> Sequence {
        Sequence {
            seen: vec![0; (WINDOW / 64) as usize].into_boxed_slice(),
            lowest: first,
            highest: first,
            received: 0,
            duplicates: 0,
            reordered: 0,
            too_late: 0,
        }
    }

    /// The lowest number.
    pub fn lowest(&self) -> u64 {
        self.lowest
    }

    /// The highest number.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// Adds a packet. True: it is the first with this number.
    pub fn add(&mut self, number: u64) -> bool {
        self.received += 1;
        if number > self.highest {
            self.forget(number);
            self.highest = number;
        } else if self.highest - number >= WINDOW {
            self.too_late += 1;
            return false;
        }
        let (word, bit) = place(number);
        if self.seen[word] & bit != 0 {
            self.duplicates += 1;
            return false;
        }
        self.seen[word] |= bit;
        self.reordered += u64::from(number < self.highest);
        self.lowest = self.lowest.min(number);
        true
    }

    /// Clears the bits of the numbers after the highest up to this one.
    fn forget(&mut self, up_to: u64) {
        if up_to - self.highest >= WINDOW {
            self.seen.fill(0);
            return;
        }
        for number in self.highest + 1..=up_to {
            let (word, bit) = place(number);
            self.seen[word] &= !bit;
        }
    }

    /// The counts. With `expected`, the numbers below it were expected, else those from the lowest to the highest.
    pub fn counts(&self, expected: Option<u64>) -> Counts {
        let distinct = self.received - self.duplicates - self.too_late;
        let expected = expected.unwrap_or_else(|| (self.highest - self.lowest).saturating_add(1));
        Counts {
            received: self.received,
            duplicates: self.duplicates,
            reordered: self.reordered,
            too_late: self.too_late,
            lost: expected.saturating_sub(distinct),
        }
    }
}

fn place(number: u64) -> (usize, u64) {
    (((number % WINDOW) / 64) as usize, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn counts(numbers: &[u64]) -> Counts {
        let mut sequence = Sequence::new(numbers[0]);
        numbers.iter().for_each(|number| _ = sequence.add(*number));
        sequence.counts(None)
    }

    #[test]
    fn loss_order_and_duplicates() {
        let of = |received, duplicates, reordered, lost| Counts {
            received,
            duplicates,
            reordered,
            lost,
            too_late: 0,
        };
        assert_eq!(counts(&[0, 1, 2, 3]), of(4, 0, 0, 0));
        assert_eq!(counts(&[5, 6, 8, 9]), of(4, 0, 0, 1));
        assert_eq!(counts(&[0, 2, 1, 3]), of(4, 0, 1, 0));
        assert_eq!(counts(&[0, 1, 1, 0, 2]), of(5, 2, 0, 0));
        // RFC 4737, section 4: each packet below the next expected number.
        assert_eq!(counts(&[3, 4, 5, 1, 2, 6]), of(6, 0, 2, 0));
        // A duplicate that arrives late is a duplicate, its first copy is not.
        assert_eq!(counts(&[0, 3, 1, 1, 2]), of(5, 1, 2, 0));
        assert_eq!(counts(&[u64::MAX, 0]).too_late, 1);
        assert_eq!(counts(&[0, u64::MAX]).lost, u64::MAX - 2);
        let mut sequence = Sequence::new(2);
        sequence.add(2);
        assert_eq!(sequence.counts(Some(10)).lost, 9);
    }

    #[test]
    fn numbers_behind_the_window_are_too_late() {
        assert_eq!(counts(&[0, WINDOW - 1, 0]).duplicates, 1);
        assert_eq!(
            counts(&[0, WINDOW, 0]),
            Counts { received: 3, too_late: 1, lost: WINDOW - 1, ..Counts::default() }
        );
    }

    proptest! {
        #[test]
        fn counts_are_those_of_a_set(
            numbers in prop::collection::vec(prop_oneof![0..50_u64, 0..WINDOW, 3..3 * WINDOW], 1..200),
        ) {
            let (mut seen, mut highest) = (HashSet::new(), None::<u64>);
            let mut expected = Counts::default();
            for number in &numbers {
                expected.received += 1;
                if highest.is_some_and(|highest| number + WINDOW <= highest) {
                    expected.too_late += 1;
                } else if !seen.insert(*number) {
                    expected.duplicates += 1;
                } else {
                    expected.reordered += u64::from(highest.is_some_and(|highest| *number < highest));
                }
                highest = highest.max(Some(*number));
            }
            let (low, high) = (seen.iter().min().unwrap(), seen.iter().max().unwrap());
            expected.lost = high - low + 1 - seen.len() as u64;
            prop_assert_eq!(counts(&numbers), expected);
        }
    }
}
