//! Sets of values of one field, as numbers.

use std::ops::RangeInclusive;

use crate::Addresses;

/// A set of numbers: ranges, ends included, in order, that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    /// Of ranges in any order.
    pub fn of(ranges: impl IntoIterator<Item = (u128, u128)>) -> Ranges {
        let mut all: Vec<(u128, u128)> = ranges.into_iter().filter(|(first, last)| first <= last).collect();
        all.sort_unstable();
        let mut merged: Vec<(u128, u128)> = Vec::with_capacity(all.len());
        for (first, last) in all {
            match merged.last_mut() {
                Some(before) if before.1 == u128::MAX || first <= before.1 + 1 => {
                    before.1 = before.1.max(last);
                }
                _ => merged.push((first, last)),
            }
        }
        Ranges(merged)
    }

    /// Of ranges of any type of number.
    pub fn of_numbers<T: Copy + Into<u128>>(ranges: &[RangeInclusive<T>]) -> Ranges {
        Ranges::of(ranges.iter().map(|range| ((*range.start()).into(), (*range.end()).into())))
    }

    /// The bytes for which this holds.
    pub fn of_bytes(holds: impl Fn(u8) -> bool) -> Ranges {
        let held = (0..=u8::MAX).filter(|byte| holds(*byte));
        Ranges::of(held.map(|byte| (byte.into(), byte.into())))
    }

    /// The IPv4 addresses of a set.
    pub fn of_v4(addresses: &Addresses) -> Ranges {
        // They are in order already.
        Ranges(addresses.v4().iter().map(|range| ((*range.start()).into(), (*range.end()).into())).collect())
    }

    /// The IPv6 addresses of a set.
    pub fn of_v6(addresses: &Addresses) -> Ranges {
        Ranges(addresses.v6().iter().map(|range| (*range.start(), *range.end())).collect())
    }

    /// Everything from 0 to `last` that is not in it.
    pub fn complement(&self, last: u128) -> Ranges {
        let mut rest = Vec::with_capacity(self.0.len() + 1);
        let mut from = Some(0);
        for (first, end) in &self.0 {
            if let Some(from) = from.filter(|from| from < first) {
                rest.push((from, first - 1));
            }
            from = end.checked_add(1);
        }
        if let Some(from) = from.filter(|from| *from <= last) {
            rest.push((from, last));
        }
        Ranges(rest)
    }

    /// What is in both.
    pub fn intersection(&self, other: &Ranges) -> Ranges {
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some(a), Some(b)) = (ours.peek(), theirs.peek()) {
            let (first, last) = (a.0.max(b.0), a.1.min(b.1));
            if first <= last {
                both.push((first, last));
            }
            // Whichever ends first cannot meet anything further on.
            if a.1 < b.1 {
                ours.next()
            } else {
                theirs.next()
            };
        }
        Ranges(both)
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this number is in it.
    pub fn contains(&self, number: u128) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= number);
        after > 0 && self.0[after - 1].1 >= number
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u128, u128)> {
        self.0.iter().copied()
    }
}
