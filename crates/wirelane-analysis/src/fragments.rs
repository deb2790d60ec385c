//! Reassembly of IP fragments: SIP over UDP is often longer than a frame, and tunnels fragment TCP segments.

use std::collections::VecDeque;

use ahash::RandomState;
use hashbrown::HashTable;
use wirelane::{Ip, l3};

/// Maximum time to wait for the fragments of a datagram (RFC 8200: 60 s, much longer than SIP needs).
const PATIENCE_NS: u64 = 15_000_000_000;
/// Maximum number of incomplete datagrams.
const MOST: usize = 512;
/// Maximum number of fragments of one datagram.
const MOST_PARTS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    src: [u8; 16],
    dst: [u8; 16],
    id: u32,
    proto: u8,
    l3: u8,
}

#[derive(Debug)]
struct Waiting {
    key: Key,
    since_ns: u64,
    number: u64,
    bytes: Vec<u8>,
    /// Ranges that have arrived, in order and disjoint.
    parts: Vec<(usize, usize)>,
    /// Length of the whole datagram, once the last fragment has arrived.
    whole: Option<usize>,
}

impl Waiting {
    /// Memory in bytes.
    fn held(&self) -> usize {
        size_of::<Waiting>() + self.bytes.capacity() + self.parts.capacity() * size_of::<(usize, usize)>()
    }
}

/// Result of adding a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum Joined {
    /// The datagram is incomplete.
    Waits,
    /// The fragment overlaps or contradicts another, or exceeds a limit: its datagram is given up (RFC 5722).
    Refused,
    /// The datagram is complete: its payload, from the transport header on.
    Whole(Vec<u8>),
}

/// Incomplete datagrams.
#[derive(Debug)]
pub struct Fragments {
    random: RandomState,
    table: HashTable<Waiting>,
    /// In order of arrival; some may have been removed.
    order: VecDeque<(u64, Key)>,
    number: u64,
    /// Memory of incomplete datagrams, and its limit, in bytes.
    held: usize,
    most: usize,
    /// Datagrams that were given up: incomplete in time, or evicted.
    pub given_up: u64,
}

impl Fragments {
    /// No datagrams; `most` limits the memory of incomplete datagrams in bytes.
    pub fn new(most: usize) -> Fragments {
        Fragments {
            random: RandomState::new(),
            table: HashTable::new(),
            order: VecDeque::new(),
            number: 0,
            held: 0,
            most,
            given_up: 0,
        }
    }

    /// Adds a packet that is a fragment, with these headers. `data`: the packet, up to the end of its datagram, which
    /// is at `end` according to the header. `None`: the packet is truncated, so its datagram cannot be completed.
    pub fn packet(&mut self, ip: &Ip, data: &[u8], end: usize, now_ns: u64) -> Option<Joined> {
        let (begin, more) = begin(ip, data).filter(|(begin, _)| data.len() == end && *begin <= end)?;
        Some(self.add(ip, &data[begin..], more, now_ns))
    }

    /// Memory in use, in bytes.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Adds a fragment with these headers: `data` is the payload after them, `more` is set unless it is the last.
    pub fn add(&mut self, ip: &Ip, data: &[u8], more: bool, now_ns: u64) -> Joined {
        self.expire(now_ns);
        let key = Key { src: ip.src, dst: ip.dst, id: ip.frag_id, proto: ip.proto, l3: ip.l3 };
        let hash = self.random.hash_one(key);
        let (begin, end) = (usize::from(ip.frag_off), usize::from(ip.frag_off) + data.len());
        if self.table.find(hash, |waiting| waiting.key == key).is_none() {
            while self.table.len() >= MOST {
                self.drop_oldest();
            }
            self.number += 1;
            let fresh = Waiting {
                key,
                since_ns: now_ns,
                number: self.number,
                bytes: Vec::new(),
                parts: Vec::new(),
                whole: None,
            };
            // Removed entries are dropped from the list before they accumulate.
            if self.order.len() >= 4 * MOST {
                let (table, random) = (&self.table, &self.random);
                let waits = |number: u64, key: Key| {
                    let hash = random.hash_one(key);
                    table.find(hash, |waiting| waiting.key == key && waiting.number == number).is_some()
                };
                self.order.retain(|(number, key)| waits(*number, *key));
            }
            self.order.push_back((self.number, key));
            self.held += fresh.held();
            let random = &self.random;
            self.table.insert_unique(hash, fresh, |waiting| random.hash_one(waiting.key));
        }
        let Ok(mut entry) = self.table.find_entry(hash, |waiting| waiting.key == key) else {
            return Joined::Refused;
        };
        let waiting = entry.get_mut();
        let at = waiting.parts.partition_point(|part| part.0 < begin);
        // An identical repetition is harmless; an overlap is not.
        if waiting.parts.get(at) == Some(&(begin, end)) && waiting.bytes[begin..end] == *data {
            return Joined::Waits;
        }
        let overlaps = (at > 0 && waiting.parts[at - 1].1 > begin)
            || waiting.parts.get(at).is_some_and(|next| next.0 < end)
            || waiting.whole.is_some_and(|whole| end > whole)
            || (!more && waiting.parts.last().is_some_and(|last| last.1 > end));
        if overlaps || data.is_empty() || end > 65_535 || waiting.parts.len() == MOST_PARTS {
            self.held -= entry.remove().0.held();
            self.given_up += 1;
            return Joined::Refused;
        }
        let before = waiting.held();
        if waiting.bytes.len() < end {
            waiting.bytes.resize(end, 0);
        }
        waiting.bytes[begin..end].copy_from_slice(data);
        waiting.parts.insert(at, (begin, end));
        if !more {
            waiting.whole = Some(end);
        }
        self.held = self.held - before + waiting.held();
        let joined = waiting.parts.windows(2).all(|pair| pair[0].1 == pair[1].0);
        if waiting.parts.first().is_some_and(|first| first.0 == 0)
            && joined
            && waiting.parts.last().is_some_and(|last| Some(last.1) == waiting.whole)
        {
            let waiting = entry.remove().0;
            self.held -= waiting.held();
            return Joined::Whole(waiting.bytes);
        }
        self.make_room();
        Joined::Waits
    }

    /// Gives up the oldest datagrams while the memory exceeds the limit.
    fn make_room(&mut self) {
        while self.held > self.most && !self.table.is_empty() {
            self.drop_oldest();
        }
    }

    fn expire(&mut self, now_ns: u64) {
        while let Some((number, key)) = self.order.front().copied() {
            let hash = self.random.hash_one(key);
            match self.table.find(hash, |waiting| waiting.key == key && waiting.number == number) {
                Some(waiting) if now_ns.saturating_sub(waiting.since_ns) < PATIENCE_NS => return,
                Some(_) => self.drop_oldest(),
                None => _ = self.order.pop_front(),
            }
        }
    }

    fn drop_oldest(&mut self) {
        let Some((number, key)) = self.order.pop_front() else { return };
        let hash = self.random.hash_one(key);
        if let Ok(entry) =
            self.table.find_entry(hash, |waiting| waiting.key == key && waiting.number == number)
        {
            self.held -= entry.remove().0.held();
            self.given_up += 1;
        }
    }

    /// Ends at the end of the capture; returns the number of datagrams that were given up.
    pub fn finish(&mut self) -> u64 {
        self.given_up += self.table.len() as u64;
        self.table.clear();
        self.order.clear();
        self.held = 0;
        self.given_up
    }
}

/// Offset of the data of a fragment, and whether further fragments follow it.
fn begin(ip: &Ip, data: &[u8]) -> Option<(usize, bool)> {
    let l3 = usize::from(ip.l3_off);
    if ip.l3 == l3::IPV4 {
        let header = data.get(l3..l3 + 20)?;
        return Some((l3 + 4 * usize::from(header[0] & 0x0f), header[6] & 0x20 != 0));
    }
    // Extension headers before the fragment header: hop-by-hop, routing, destination options.
    let (mut next, mut at) = (*data.get(l3 + 6)?, l3 + 40);
    for _ in 0..8 {
        let header = data.get(at..at + 8)?;
        match next {
            44 => return Some((at + 8, header[3] & 0x01 != 0)),
            0 | 43 | 60 => (next, at) = (header[0], at + 8 * (usize::from(header[1]) + 1)),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(id: u32, offset: u16) -> Ip {
        Ip { frag_id: id, frag_off: offset, ..Ip::default() }
    }

    #[test]
    fn datagrams_are_whole_in_any_order() {
        let mut fragments = Fragments::new(32 << 20);
        assert_eq!(fragments.add(&ip(1, 16), b"c", false, 0), Joined::Waits);
        assert_eq!(fragments.add(&ip(1, 0), b"aaaaaaaa", true, 0), Joined::Waits);
        assert_eq!(fragments.add(&ip(1, 0), b"aaaaaaaa", true, 0), Joined::Waits);
        assert_eq!(
            fragments.add(&ip(1, 8), b"bbbbbbbb", true, 0),
            Joined::Whole(b"aaaaaaaabbbbbbbbc".to_vec())
        );
        assert_eq!(fragments.finish(), 0);
    }

    /// Battery: I6
    #[test]
    fn overlaps_are_refused_and_floods_are_bounded() {
        let mut fragments = Fragments::new(32 << 20);
        assert_eq!(fragments.add(&ip(1, 0), b"aaaaaaaa", true, 0), Joined::Waits);
        assert_eq!(fragments.add(&ip(1, 4), b"aaaaaaaa", true, 0), Joined::Refused);
        for id in 0..10_000 {
            fragments.add(&ip(id, 0), b"aaaaaaaa", true, 0);
        }
        assert_eq!(fragments.table.len(), MOST);
        assert!(fragments.order.len() <= MOST + 1);
        assert_eq!(fragments.finish(), 10_001);
    }

    #[test]
    fn bytes_are_bounded_and_given_back() {
        let mut fragments = Fragments::new(1000);
        for id in 0..100 {
            assert_eq!(fragments.add(&ip(id, 8), &[1; 300], false, 0), Joined::Waits);
            assert!(fragments.held <= 1000, "{}", fragments.held);
        }
        assert!(matches!(fragments.add(&ip(99, 0), &[1; 8], true, 0), Joined::Whole(_)));
        assert_eq!(fragments.finish(), 99);
        assert_eq!(fragments.held, 0);
    }

    #[test]
    fn what_is_never_whole_goes() {
        let mut fragments = Fragments::new(32 << 20);
        fragments.add(&ip(1, 0), b"aaaaaaaa", true, 0);
        assert_eq!(fragments.add(&ip(1, 8), b"b", false, PATIENCE_NS), Joined::Waits);
        assert_eq!(fragments.given_up, 1);
    }
}
