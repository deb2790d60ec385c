//! Sums of both ends of flows, by address or by network.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

use ahash::RandomState;
use hashbrown::HashTable;

use super::super::functions::Network;

/// Key by which flows are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The address of an end.
    Address,
    /// The network of an end, by the prefix lengths for IPv4 and IPv6.
    Network(u8, u8),
}

/// One end of a flow, as in a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum End<'a> {
    /// An address.
    Is(IpAddr),
    /// Text that is not an address, as in a file of another program.
    Strange(&'a str),
}

impl End<'_> {
    pub(super) fn read(text: &str) -> End<'_> {
        text.parse().map_or(End::Strange(text), End::Is)
    }

    /// Whether the end is in this network.
    pub(super) fn is_in(self, network: &Network) -> bool {
        matches!(self, End::Is(address) if network.contains(address))
    }
}

/// Sums of an end's flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) flows: i64,
    pub(super) sent: i64,
    pub(super) received: i64,
    /// Start of the first flow, in microseconds since 1970.
    pub(super) first: i64,
    /// End of the last flow.
    pub(super) last: i64,
}

impl Sums {
    /// Adds with wrap-around on overflow, as SQL does.
    fn add(&mut self, more: &Sums) {
        self.flows = self.flows.wrapping_add(more.flows);
        self.sent = self.sent.wrapping_add(more.sent);
        self.received = self.received.wrapping_add(more.received);
        self.first = self.first.min(more.first);
        self.last = self.last.max(more.last);
    }
}

/// An address in the fewest machine words: an entry with its sums is a cache line of 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    high: u64,
    low: u64,
    is_six: bool,
}

impl From<IpAddr> for Key {
    fn from(address: IpAddr) -> Key {
        match address {
            IpAddr::V4(address) => Key { high: 0, low: u32::from(address).into(), is_six: false },
            IpAddr::V6(address) => {
                let bits = u128::from(address);
                Key { high: (bits >> 64) as u64, low: bits as u64, is_six: true }
            }
        }
    }
}

impl From<Key> for IpAddr {
    fn from(key: Key) -> IpAddr {
        match key.is_six {
            true => IpAddr::from(Ipv6Addr::from(u128::from(key.high) << 64 | u128::from(key.low))),
            false => IpAddr::from((key.low as u32).to_be_bytes()),
        }
    }
}

/// Sums by address or network.
#[derive(Debug)]
pub(super) struct Table {
    by: By,
    /// Senders of packets choose addresses: the hash has a secret seed.
    random: RandomState,
    known: HashTable<(Key, Sums)>,
    /// Sums by text that is not an address. Grouped by network, all of it is under `None`.
    strange: HashMap<Option<Box<str>>, Sums>,
}

impl Table {
    pub(super) fn new(by: By) -> Table {
        Table { by, random: RandomState::new(), known: HashTable::new(), strange: HashMap::new() }
    }

    /// Adds an end of a flow.
    pub(super) fn add(&mut self, end: End<'_>, sums: &Sums) {
        let address = match end {
            End::Is(address) => address,
            End::Strange(text) => {
                let name = (self.by == By::Address).then(|| text.into());
                self.strange.entry(name).and_modify(|known| known.add(sums)).or_insert(*sums);
                return;
            }
        };
        let address = match self.by {
            By::Address => address,
            By::Network(four, six) => {
                Network::of(address, if address.is_ipv4() { four } else { six }).address()
            }
        };
        self.put(Key::from(address), sums);
    }

    fn put(&mut self, key: Key, sums: &Sums) {
        let random = &self.random;
        let hash = |key: &Key| random.hash_one(key);
        let entry = self.known.entry(hash(&key), |(known, _)| *known == key, |(known, _)| hash(known));
        entry.and_modify(|(_, known)| known.add(sums)).or_insert((key, *sums));
    }

    /// Approximate memory in bytes.
    pub(super) fn size(&self) -> usize {
        self.known.allocation_size() + self.strange.len() * (size_of::<Sums>() + 64)
    }

    /// Adds the sums of another thread.
    pub(super) fn merge(&mut self, other: Table) {
        for (key, sums) in other.known {
            self.put(key, &sums);
        }
        for (name, sums) in other.strange {
            self.strange.entry(name).and_modify(|known| known.add(&sums)).or_insert(sums);
        }
    }

    /// All sums.
    pub(super) fn into_sums(self) -> impl Iterator<Item = (Name, Sums)> {
        let known = self.known.into_iter().map(|(key, sums)| (Name::Known(key), sums));
        known.chain(self.strange.into_iter().map(|(name, sums)| (Name::Strange(name), sums)))
    }
}

/// An address or network of which there are sums.
#[derive(Debug)]
pub(super) enum Name {
    Known(Key),
    Strange(Option<Box<str>>),
}

impl Name {
    /// The text, if it is known.
    pub(super) fn name(self, by: By) -> Option<String> {
        match (self, by) {
            (Name::Strange(name), _) => name.map(String::from),
            (Name::Known(key), By::Address) => Some(IpAddr::from(key).to_string()),
            (Name::Known(key), By::Network(four, six)) => {
                let bits = if key.is_six { six } else { four };
                Some(Network::of(key.into(), bits).to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const ONE: Sums = Sums { flows: 1, sent: 10, received: 3, first: 5, last: 6 };

    fn rows(by: By, ends: &[&str]) -> BTreeMap<Option<String>, i64> {
        let mut table = Table::new(by);
        ends.iter().for_each(|end| table.add(End::read(end), &ONE));
        table.into_sums().map(|(name, sums)| (name.name(by), sums.flows)).collect()
    }

    #[test]
    fn an_address_of_one_family_is_none_of_the_other() {
        let ends = ["1.2.3.4", "::ffff:1.2.3.4", "::1.2.3.4", "::102:304", "1.2.3.4", "", "x"];
        let found = rows(By::Address, &ends);
        // `::102:304` is the form in which `::1.2.3.4` is written.
        let expected = [("", 1), ("1.2.3.4", 2), ("::102:304", 2), ("::ffff:1.2.3.4", 1), ("x", 1)];
        let expected: BTreeMap<_, _> = expected.map(|(name, flows)| (Some(name.to_owned()), flows)).into();
        assert_eq!(found, expected);
    }

    #[test]
    fn networks_are_those_of_the_function_and_what_is_no_address_is_in_none() {
        let ends = ["10.1.2.3", "10.1.255.255", "10.2.0.0", "2001:db8:7fff::1", "2001:db8:8000::", "x", "y"];
        let found = rows(By::Network(16, 33), &ends);
        let expected = [
            (None, 2),
            (Some("10.1.0.0/16"), 2),
            (Some("10.2.0.0/16"), 1),
            (Some("2001:db8::/33"), 1),
            (Some("2001:db8:8000::/33"), 1),
        ];
        assert_eq!(found, expected.map(|(name, flows)| (name.map(str::to_owned), flows)).into());
        assert_eq!(rows(By::Network(0, 0), &ends[..5]).len(), 2);
    }

    #[test]
    fn sums_are_of_all_that_was_added() {
        let mut table = Table::new(By::Address);
        let later = Sums { flows: 1, sent: i64::MAX, received: 0, first: 9, last: 9 };
        let earlier = Sums { first: 1, last: 2, ..ONE };
        [ONE, later, earlier].iter().for_each(|sums| table.add(End::read("10.0.0.1"), sums));
        let rows: Vec<_> = table.into_sums().map(|(name, sums)| (name.name(By::Address), sums)).collect();
        let sent = i64::MAX.wrapping_add(20);
        assert_eq!(
            rows,
            [(Some("10.0.0.1".to_owned()), Sums { flows: 3, sent, received: 6, first: 1, last: 9 })]
        );
    }
}
