//! Fragments of IP datagrams, put together again: SIP over UDP is often longer than a frame.

use std::collections::VecDeque;

use ahash::RandomState;
use hashbrown::HashTable;
use wirelane::Ip;

/// How long the parts of a datagram are waited for (RFC 8200: 60 s; nobody's SIP takes that long).
const PATIENCE_NS: u64 = 15_000_000_000;
/// Datagrams that wait at once.
const MOST: usize = 512;
/// Parts of one datagram.
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
    /// Beginnings and ends of what has come, in order, apart from each other.
    parts: Vec<(usize, usize)>,
    /// Bytes of the whole, once the last fragment has come.
    whole: Option<usize>,
}

/// What became of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum Joined {
    /// It waits for others.
    Waits,
    /// It overlaps another, contradicts it, or is too much: its datagram is given up (RFC 5722).
    Refused,
    /// It was the last: the payload of the datagram, from the transport header on.
    Whole(Vec<u8>),
}

/// Datagrams of which fragments have come.
#[derive(Debug)]
pub struct Fragments {
    random: RandomState,
    table: HashTable<Waiting>,
    /// In the order of their beginning; some may be gone.
    order: VecDeque<(u64, Key)>,
    number: u64,
    /// Datagrams that were given up: not whole in time, or no room.
    pub given_up: u64,
}

impl Fragments {
    /// None so far.
    pub fn new() -> Fragments {
        Fragments {
            random: RandomState::new(),
            table: HashTable::new(),
            order: VecDeque::new(),
            number: 0,
            given_up: 0,
        }
    }

    /// Adds a fragment with these headers: `data` is what follows them, `more` says that others follow.
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
            // Those that have gone are forgotten before they are many.
            if self.order.len() >= 4 * MOST {
                let (table, random) = (&self.table, &self.random);
                let waits = |number: u64, key: Key| {
                    let hash = random.hash_one(key);
                    table.find(hash, |waiting| waiting.key == key && waiting.number == number).is_some()
                };
                self.order.retain(|(number, key)| waits(*number, *key));
            }
            self.order.push_back((self.number, key));
            let random = &self.random;
            self.table.insert_unique(hash, fresh, |waiting| random.hash_one(waiting.key));
        }
        let Ok(mut entry) = self.table.find_entry(hash, |waiting| waiting.key == key) else {
            return Joined::Refused;
        };
        let waiting = entry.get_mut();
        let at = waiting.parts.partition_point(|part| part.0 < begin);
        // The same again is no harm; an overlap is.
        if waiting.parts.get(at) == Some(&(begin, end)) && waiting.bytes[begin..end] == *data {
            return Joined::Waits;
        }
        let overlaps = (at > 0 && waiting.parts[at - 1].1 > begin)
            || waiting.parts.get(at).is_some_and(|next| next.0 < end)
            || waiting.whole.is_some_and(|whole| end > whole)
            || (!more && waiting.parts.last().is_some_and(|last| last.1 > end));
        if overlaps || data.is_empty() || end > 65_535 || waiting.parts.len() == MOST_PARTS {
            entry.remove();
            self.given_up += 1;
            return Joined::Refused;
        }
        if waiting.bytes.len() < end {
            waiting.bytes.resize(end, 0);
        }
        waiting.bytes[begin..end].copy_from_slice(data);
        waiting.parts.insert(at, (begin, end));
        if !more {
            waiting.whole = Some(end);
        }
        let Some(whole) = waiting.whole else { return Joined::Waits };
        let joined = waiting.parts.windows(2).all(|pair| pair[0].1 == pair[1].0);
        if waiting.parts.first().is_some_and(|first| first.0 == 0)
            && joined
            && waiting.parts.last().is_some_and(|last| last.1 == whole)
        {
            return Joined::Whole(entry.remove().0.bytes);
        }
        Joined::Waits
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
            entry.remove();
            self.given_up += 1;
        }
    }

    /// The capture is over: how many datagrams were never whole.
    pub fn finish(&mut self) -> u64 {
        self.given_up += self.table.len() as u64;
        self.table.clear();
        self.order.clear();
        self.given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(id: u32, offset: u16) -> Ip {
        Ip { frag_id: id, frag_off: offset, ..Ip::default() }
    }

    #[test]
    fn datagrams_are_whole_in_any_order() {
        let mut fragments = Fragments::new();
        assert_eq!(fragments.add(&ip(1, 16), b"c", false, 0), Joined::Waits);
        assert_eq!(fragments.add(&ip(1, 0), b"aaaaaaaa", true, 0), Joined::Waits);
        assert_eq!(fragments.add(&ip(1, 0), b"aaaaaaaa", true, 0), Joined::Waits);
        assert_eq!(
            fragments.add(&ip(1, 8), b"bbbbbbbb", true, 0),
            Joined::Whole(b"aaaaaaaabbbbbbbbc".to_vec())
        );
        assert_eq!(fragments.finish(), 0);
    }

    #[test]
    fn overlaps_are_refused_and_floods_are_bounded() {
        let mut fragments = Fragments::new();
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
    fn what_is_never_whole_goes() {
        let mut fragments = Fragments::new();
        fragments.add(&ip(1, 0), b"aaaaaaaa", true, 0);
        assert_eq!(fragments.add(&ip(1, 8), b"b", false, PATIENCE_NS), Joined::Waits);
        assert_eq!(fragments.given_up, 1);
    }
}
