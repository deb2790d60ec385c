//! Sets of values of one field, as numbers.

use std::ops::RangeInclusive;

use crate::Addresses;

/// A set of numbers: ranges, ends included, in order, that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    /// A set of these ranges, which may be in any order.
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

    /// A set of these ranges, of any type of number.
    pub fn of_numbers<T: Copy + Into<u128>>(ranges: &[RangeInclusive<T>]) -> Ranges {
        Ranges::of(ranges.iter().map(|range| ((*range.start()).into(), (*range.end()).into())))
    }

    /// The bytes for which `holds` is true.
    pub fn of_bytes(holds: impl Fn(u8) -> bool) -> Ranges {
        let held = (0..=u8::MAX).filter(|byte| holds(*byte));
        Ranges::of(held.map(|byte| (byte.into(), byte.into())))
    }

    /// The IPv4 addresses of a set.
    pub fn of_v4(addresses: &Addresses) -> Ranges {
        // The address set keeps them in order.
        Ranges(addresses.v4().iter().map(|range| ((*range.start()).into(), (*range.end()).into())).collect())
    }

    /// The IPv6 addresses of a set.
    pub fn of_v6(addresses: &Addresses) -> Ranges {
        Ranges(addresses.v6().iter().map(|range| (*range.start(), *range.end())).collect())
    }

    /// The complement of the set within 0 to `last`.
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

    /// The intersection of both sets.
    pub fn intersection(&self, other: &Ranges) -> Ranges {
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some(a), Some(b)) = (ours.peek(), theirs.peek()) {
            let (first, last) = (a.0.max(b.0), a.1.min(b.1));
            if first <= last {
                both.push((first, last));
            }
            // The range that ends first cannot overlap any later range.
            if a.1 < b.1 {
                ours.next()
            } else {
                theirs.next()
            };
        }
        Ranges(both)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set contains this number.
    pub fn contains(&self, number: u128) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= number);
        after > 0 && self.0[after - 1].1 >= number
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u128, u128)> {
        self.0.iter().copied()
    }
}
