//! Networks as entries of a named set.
//!
//! The kernel looks up one prefix length after the other, so a set has few lengths: at most [`MAX_PREFIXES`] for each IP
//! version. Prefixes of other lengths are split into longer ones (controlled prefix expansion: Srinivasan and Varghese,
//! ACM TOCS 17, 1999), with the lengths that give the fewest entries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wirelane_bpf::members::{Member, Membership};
use wirelane_bpf::rules::MAX_PREFIXES;

use crate::Addresses;

/// Numbers of prefixes, by length.
type Counts = [u64; 129];

/// Networks: sets of addresses that are stored as prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Networks {
    addresses: Addresses,
    /// The prefix lengths of the entries, of both IP versions, in order.
    lengths: [Vec<u32>; 2],
    entries: u64,
}

impl From<Addresses> for Networks {
    fn from(addresses: Addresses) -> Networks {
        let mut counts: [Counts; 2] = [[0; 129]; 2];
        prefixes_of(&addresses, &mut |address, length| {
            counts[usize::from(address.is_ipv6())][length as usize] += 1;
        });
        let [(four, of_four), (six, of_six)] = counts.each_ref().map(best_lengths);
        Networks { addresses, lengths: [four, six], entries: of_four.saturating_add(of_six) }
    }
}

impl Networks {
    /// Number of prefixes that are stored.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Whether an address is in one of the networks.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.addresses.contains(address)
    }

    /// The prefix lengths of the entries, of both IP versions: each plus 1, and 0 after the last.
    pub fn lengths(&self) -> [[u8; MAX_PREFIXES]; 2] {
        let mut lengths = [[0; MAX_PREFIXES]; 2];
        for (to, from) in lengths.iter_mut().zip(&self.lengths) {
            to.iter_mut().zip(from).for_each(|(to, length)| *to = *length as u8 + 1);
        }
        lengths
    }

    /// Maximum number of look-ups for one address.
    pub fn lookups(&self) -> u64 {
        self.lengths.iter().map(Vec::len).max().unwrap_or(0).max(1) as u64
    }

    /// Calls `then` for every entry.
    ///
    /// # Errors
    /// The first error of `then`.
    pub fn each<E>(&self, mut then: impl FnMut(&Member) -> Result<(), E>) -> Result<(), E> {
        let mut result = Ok(());
        prefixes_of(&self.addresses, &mut |address, length| {
            let stops = &self.lengths[usize::from(address.is_ipv6())];
            let Some(stop) = stops.iter().copied().find(|stop| *stop >= length) else { return };
            let width = if address.is_ipv4() { 32 } else { 128 };
            for number in 0..1u128 << (stop - length) {
                let below = number.checked_shl(width - stop).unwrap_or(0);
                let part: IpAddr = match address {
                    IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() | below as u32).into(),
                    IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() | below).into(),
                };
                if result.is_ok() {
                    result = then(&Member::network(part, stop));
                }
            }
        });
        result
    }
}

impl Membership for Networks {
    fn has(&self, member: &Member) -> bool {
        let Some(length) = u32::from(member.prefix).checked_sub(1) else { return false };
        self.addresses.contains_network(member.ends()[0].0, length)
    }
}

/// Calls `then` for every prefix of a set of addresses: the largest ones that are whole in it.
fn prefixes_of(addresses: &Addresses, then: &mut dyn FnMut(IpAddr, u32)) {
    for range in addresses.v4() {
        prefixes(u128::from(*range.start()), u128::from(*range.end()), 32, &mut |first, length| {
            then(Ipv4Addr::from_bits(first as u32).into(), length);
        });
    }
    for range in addresses.v6() {
        prefixes(*range.start(), *range.end(), 128, &mut |first, length| {
            then(Ipv6Addr::from_bits(first).into(), length);
        });
    }
}

/// Calls `then` for every prefix of a range of addresses of `width` bits.
fn prefixes(first: u128, last: u128, width: u32, then: &mut dyn FnMut(u128, u32)) {
    let mut at = first;
    loop {
        // The longest block that begins here, and ends in the range.
        let aligned = if at == 0 { width } else { at.trailing_zeros() };
        let left = (last - at).checked_add(1).map_or(128, u128::ilog2);
        let free = aligned.min(left);
        then(at, width - free);
        let end = at + u128::MAX.checked_shr(128 - free).unwrap_or(0);
        if end == last {
            return;
        }
        at = end + 1;
    }
}

/// The lengths, at most [`MAX_PREFIXES`], to which prefixes are split so that there are the fewest, and their number.
fn best_lengths(counts: &Counts) -> (Vec<u32>, u64) {
    let lengths: Vec<usize> = (0..counts.len()).filter(|length| counts[*length] > 0).collect();
    let Some(last) = lengths.len().checked_sub(1) else { return (Vec::new(), 0) };
    // The number of entries if prefixes of lengths[from..=to] are split to the last of these.
    let cost = |from: usize, to: usize| {
        let split = |at: usize| {
            let factor = 1u64.checked_shl((lengths[to] - lengths[at]) as u32).unwrap_or(u64::MAX);
            counts[lengths[at]].saturating_mul(factor)
        };
        (from..=to).map(split).fold(0, u64::saturating_add)
    };
    // By the last length: the fewest entries with so many lengths, and these lengths.
    let mut best: Vec<(u64, Vec<usize>)> = (0..=last).map(|to| (cost(0, to), vec![to])).collect();
    for _ in 1..MAX_PREFIXES {
        let with_one_more = |to: usize| {
            let split = (0..to).map(|before| (best[before].0.saturating_add(cost(before + 1, to)), before));
            match split.min() {
                Some((entries, before)) if entries < best[to].0 => {
                    (entries, best[before].1.iter().copied().chain([to]).collect())
                }
                _ => best[to].clone(),
            }
        };
        best = (0..=last).map(with_one_more).collect();
    }
    let (entries, stops) = best.swap_remove(last);
    (stops.into_iter().map(|at| lengths[at] as u32).collect(), entries)
}

impl Serialize for Networks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.addresses.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Networks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Networks, D::Error> {
        Addresses::deserialize(deserializer).map(Networks::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wirelane_testing::Dice;

    fn networks(texts: &[&str]) -> Networks {
        let parts = texts.iter().map(|text| text.parse::<crate::Part>().expect("addresses"));
        Networks::from(parts.collect::<Addresses>())
    }

    fn entries(networks: &Networks) -> Vec<Member> {
        let mut all = Vec::new();
        networks
            .each(|member| {
                all.push(*member);
                Ok::<(), std::convert::Infallible>(())
            })
            .expect("it cannot fail");
        all
    }

    #[test]
    fn prefixes_that_fit_are_entries() {
        let all = ["10.0.0.0/8", "192.0.2.0/24", "198.51.100.7", "2001:db8::/32", "2001:db9::1"];
        let networks = networks(&all);
        assert_eq!((networks.entries(), networks.lookups()), (5, 3));
        assert_eq!(networks.lengths(), [[9, 25, 33, 0, 0, 0, 0, 0], [33, 129, 0, 0, 0, 0, 0, 0]]);
        let member = |text: &str, length| Member::network(text.parse().expect("an address"), length);
        assert_eq!(
            entries(&networks),
            [
                member("10.0.0.0", 8),
                member("192.0.2.0", 24),
                member("198.51.100.7", 32),
                member("2001:db8::", 32),
                member("2001:db9::1", 128)
            ]
        );
        assert!(networks.has(&member("10.0.0.0", 8)) && networks.has(&member("10.5.0.0", 16)));
        assert!(!networks.has(&member("10.0.0.0", 7)) && !networks.has(&Member::default()));
    }

    #[test]
    fn everything_is_one_entry() {
        let networks = networks(&["0.0.0.0/0", "::/0"]);
        assert_eq!(networks.lengths().map(|lengths| lengths[..2].to_vec()), [[1, 0], [1, 0]]);
        assert_eq!(entries(&networks).len(), 2);
    }

    /// 32 lengths become eight, and no address is lost or added.
    #[test]
    fn a_range_of_all_lengths_is_split_to_eight() {
        let networks = networks(&["0.0.0.1-255.255.255.254", "::1-::ffff"]);
        assert_eq!(networks.lookups(), 8);
        let all = entries(&networks);
        assert_eq!(all.len() as u64, networks.entries());
        assert!(all.len() < 8_000, "{}", all.len());
        // Entries are different, and together as large as the ranges.
        let mut sorted = all.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), all.len());
        let size = |four: bool| -> u128 {
            let width = if four { 32 } else { 128 };
            let of = all.iter().filter(|member| member.ends()[0].0.is_ipv4() == four);
            of.map(|member| 1u128 << (width + 1 - u32::from(member.prefix))).sum()
        };
        assert_eq!((size(true), size(false)), ((1 << 32) - 2, 0xffff));
        assert!(all.iter().all(|member| networks.has(member)));
    }

    /// An address is in the set exactly if one of its prefixes of the set's lengths is an entry.
    #[test]
    fn entries_are_the_addresses() {
        let mut dice = Dice(3);
        for _ in 0..200 {
            let base = dice.word();
            let mut parts = Vec::new();
            for _ in 0..1 + dice.below(6) {
                let first = base ^ dice.word() >> 12;
                parts.push(crate::Part::V4(first..=first.saturating_add(dice.word() >> 16)));
            }
            let networks = Networks::from(parts.into_iter().collect::<Addresses>());
            let all: std::collections::HashSet<Member> = entries(&networks).into_iter().collect();
            assert_eq!(all.len() as u64, networks.entries());
            for _ in 0..200 {
                let address: IpAddr = Ipv4Addr::from_bits(base ^ dice.word() >> 12).into();
                let found = networks.lengths[0].iter().any(|length| {
                    let bits = |address: IpAddr| match address {
                        IpAddr::V4(address) => address.to_bits(),
                        IpAddr::V6(_) => unreachable!("made as IPv4"),
                    };
                    let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
                    all.contains(&Member::network(Ipv4Addr::from_bits(bits(address) & mask).into(), *length))
                });
                assert_eq!(found, networks.contains(address), "{address}");
            }
        }
    }
}
