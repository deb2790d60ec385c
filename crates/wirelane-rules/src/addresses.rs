//! Sets of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::names::shown;

/// A set of IPv4 and IPv6 addresses: ranges in order that neither touch nor overlap, so that a set has one form.
///
/// As text, each element is an address, a prefix (`192.0.2.0/24`), or a range (`192.0.2.1-192.0.2.9`).
///
/// ```
/// # use wirelane_rules::Addresses;
/// let mut set = Addresses::default();
/// set.insert("192.0.2.0/25")?;
/// set.insert("192.0.2.128-192.0.2.255")?;
/// assert!(set.contains("192.0.2.200".parse().unwrap()));
/// assert_eq!(set.to_string(), "192.0.2.0/24");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    v4: Vec<RangeInclusive<u32>>,
    v6: Vec<RangeInclusive<u128>>,
}

/// One element of a set as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// IPv4 range.
    V4(RangeInclusive<u32>),
    /// IPv6 range.
    V6(RangeInclusive<u128>),
}

impl Addresses {
    /// Adds an address, a prefix or a range. [`FromIterator`] is faster for many elements.
    ///
    /// # Errors
    /// A description of the syntax error.
    pub fn insert(&mut self, text: &str) -> Result<(), String> {
        let part: Part = text.parse()?;
        let all = std::mem::take(self);
        *self = all.parts().chain([part]).collect();
        Ok(())
    }

    /// Whether the set contains `address`. An IPv4-mapped IPv6 address (`::ffff:192.0.2.1`) is an IPv6 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => within(&self.v4, address.to_bits()),
            IpAddr::V6(address) => within(&self.v6, address.to_bits()),
        }
    }

    /// Whether the set contains all addresses of the network with this first address and prefix length.
    pub(super) fn contains_network(&self, first: IpAddr, length: u32) -> bool {
        match first {
            IpAddr::V4(first) => {
                let rest = u32::MAX.checked_shr(length).unwrap_or(0);
                encloses(&self.v4, first.to_bits(), first.to_bits() | rest)
            }
            IpAddr::V6(first) => {
                let rest = u128::MAX.checked_shr(length).unwrap_or(0);
                encloses(&self.v6, first.to_bits(), first.to_bits() | rest)
            }
        }
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Number of ranges, of both families.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// The ranges of IPv4 addresses, in order.
    pub fn v4(&self) -> &[RangeInclusive<u32>] {
        &self.v4
    }

    /// The ranges of IPv6 addresses, in order.
    pub fn v6(&self) -> &[RangeInclusive<u128>] {
        &self.v6
    }

    /// Union of sets.
    pub(super) fn union<'a>(sets: impl Iterator<Item = &'a Addresses>) -> Addresses {
        sets.flat_map(Addresses::parts).collect()
    }

    fn parts(&self) -> impl Iterator<Item = Part> {
        self.v4.iter().cloned().map(Part::V4).chain(self.v6.iter().cloned().map(Part::V6))
    }
}

impl FromIterator<Part> for Addresses {
    fn from_iter<I: IntoIterator<Item = Part>>(parts: I) -> Addresses {
        let mut set = Addresses::default();
        for part in parts {
            match part {
                Part::V4(range) => set.v4.push(range),
                Part::V6(range) => set.v6.push(range),
            }
        }
        merge(&mut set.v4, |end| end.checked_add(1));
        merge(&mut set.v6, |end| end.checked_add(1));
        set
    }
}

/// Sorts ranges and merges those that touch or overlap.
fn merge<T: Copy + Ord>(ranges: &mut Vec<RangeInclusive<T>>, next: impl Fn(T) -> Option<T>) {
    ranges.sort_by_key(|range| (*range.start(), *range.end()));
    let mut merged: Vec<RangeInclusive<T>> = Vec::with_capacity(ranges.len());
    for range in ranges.drain(..) {
        match merged.last_mut() {
            Some(last) if next(*last.end()).is_none_or(|next| *range.start() <= next) => {
                *last = *last.start()..=*last.end().max(range.end());
            }
            _ => merged.push(range),
        }
    }
    *ranges = merged;
}

fn within<T: Copy + Ord>(ranges: &[RangeInclusive<T>], value: T) -> bool {
    encloses(ranges, value, value)
}

/// Whether one of the ranges contains all values from `first` to `last`.
fn encloses<T: Copy + Ord>(ranges: &[RangeInclusive<T>], first: T, last: T) -> bool {
    let after = ranges.partition_point(|range| *range.start() <= first);
    after > 0 && *ranges[after - 1].end() >= last
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        if let Some((address, length)) = text.split_once('/') {
            return prefix(text, address.trim(), length.trim());
        }
        let Some((first, last)) = text.split_once('-') else {
            return Ok(match address(text.trim())? {
                IpAddr::V4(one) => Part::V4(one.to_bits()..=one.to_bits()),
                IpAddr::V6(one) => Part::V6(one.to_bits()..=one.to_bits()),
            });
        };
        let backwards = || format!("{} ends before it begins", shown(text));
        match (address(first.trim())?, address(last.trim())?) {
            (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => {
                Ok(Part::V4(first.to_bits()..=last.to_bits()))
            }
            (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => {
                Ok(Part::V6(first.to_bits()..=last.to_bits()))
            }
            (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => Err(backwards()),
            _ => Err(format!("{} goes from IPv4 to IPv6 or back", shown(text))),
        }
    }
}

fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| {
        format!(
            "'{}' is not an address; write 192.0.2.1, 192.0.2.0/24, 192.0.2.1-192.0.2.9 or the like of IPv6",
            shown(text)
        )
    })
}

fn prefix(text: &str, start: &str, length: &str) -> Result<Part, String> {
    let start = address(start)?;
    let most = if start.is_ipv4() { 32 } else { 128 };
    // `parse` would accept a sign.
    let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
    let bits = match length.parse::<u32>() {
        Ok(bits) if digits && bits <= most => bits,
        _ => {
            return Err(format!(
                "'{}' is not a prefix length; it is 0 to {most} in {}",
                shown(length),
                shown(text)
            ));
        }
    };
    let stray = |right: String| {
        format!("{} has bits set behind its prefix; the network is {right}/{bits}", shown(text))
    };
    match start {
        IpAddr::V4(start) => {
            let rest = u32::MAX.checked_shr(bits).unwrap_or(0);
            let first = start.to_bits();
            if first & rest != 0 {
                return Err(stray(Ipv4Addr::from_bits(first & !rest).to_string()));
            }
            Ok(Part::V4(first..=first | rest))
        }
        IpAddr::V6(start) => {
            let rest = u128::MAX.checked_shr(bits).unwrap_or(0);
            let first = start.to_bits();
            if first & rest != 0 {
                return Err(stray(Ipv6Addr::from_bits(first & !rest).to_string()));
            }
            Ok(Part::V6(first..=first | rest))
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last, span, bits) = match self {
            Part::V4(range) => {
                let (first, last) = (*range.start(), *range.end());
                let (first_address, last_address) = (Ipv4Addr::from_bits(first), Ipv4Addr::from_bits(last));
                (first_address.into(), IpAddr::from(last_address), u128::from(first ^ last), 32)
            }
            Part::V6(range) => {
                let (first, last) = (*range.start(), *range.end());
                let (first_address, last_address) = (Ipv6Addr::from_bits(first), Ipv6Addr::from_bits(last));
                (first_address.into(), IpAddr::from(last_address), first ^ last, 128)
            }
        };
        let first: IpAddr = first;
        if first == last {
            return write!(f, "{first}");
        }
        // A prefix: the ends differ only in the last bits, which are 0 in the first and 1 in the last address.
        let low = match self {
            Part::V4(range) => u128::from(*range.start()),
            Part::V6(range) => *range.start(),
        };
        if span.checked_add(1).is_none_or(u128::is_power_of_two) && low & span == 0 {
            return write!(f, "{first}/{}", bits - span.count_ones());
        }
        write!(f, "{first}-{last}")
    }
}

/// Elements, separated by commas; only the first ones of a long set.
impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 4;
        for (position, part) in self.parts().take(SHOWN).enumerate() {
            write!(f, "{}{part}", if position > 0 { ", " } else { "" })?;
        }
        match self.len().checked_sub(SHOWN) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, " and {more} more"),
        }
    }
}

impl Serialize for Addresses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.parts().map(|part| part.to_string()))
    }
}

impl<'de> Deserialize<'de> for Addresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Addresses, D::Error> {
        let parts = Vec::<String>::deserialize(deserializer)?;
        parts.iter().map(|part| part.parse::<Part>().map_err(serde::de::Error::custom)).collect()
    }
}
