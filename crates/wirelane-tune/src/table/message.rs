//! Protocol between a capture and its RSS table helper.
//!
//! Both ends come from the same fork, so numbers are in this machine's byte order. Messages have one length in each
//! direction, so that a stream can carry them. An attacker may control the capture's end, so every request is checked
//! against the values that were fixed before the fork.

use std::collections::BTreeSet;

/// Size of an answer in bytes: the request's number, the kind, and a value.
pub(super) const ANSWER: usize = 12;
/// Size of a request in bytes: its number, the count of moves, and space for the maximum number of moves.
pub(super) const REQUEST: usize = 8 + EntryMove::MOST * 8;

/// The move of a table entry to an RX queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryMove {
    /// The entry of the table.
    pub entry: u32,
    /// The new RX queue of the entry.
    pub queue: u32,
}

impl EntryMove {
    /// Maximum number of moves per request.
    pub const MOST: usize = 128;
}

/// An answer of the helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The helper is ready; its process id.
    Ready(u32),
    /// The entries were moved.
    Moved,
    /// The entries were not moved: the table was set too often.
    Later,
    /// The entries were not moved: another process has changed the table.
    Foreign,
    /// The entries were not moved: the kernel's errno, or 0 without one.
    Refused(u32),
    /// Invalid request, which an uncompromised capture does not send.
    Nonsense,
    /// Last answer: the table is restored.
    Restored,
    /// Last answer: another process has changed the table, which stays as it is.
    LeftAlone,
    /// Last answer: the table could not be restored.
    NotRestored,
}

impl Answer {
    /// Encodes the answer to the request with this number.
    pub(super) fn bytes(self, number: u32) -> [u8; ANSWER] {
        let (kind, value) = match self {
            Answer::Ready(pid) => (0, pid),
            Answer::Moved => (1, 0),
            Answer::Later => (2, 0),
            Answer::Foreign => (3, 0),
            Answer::Refused(errno) => (4, errno),
            Answer::Nonsense => (5, 0),
            Answer::Restored => (6, 0),
            Answer::LeftAlone => (7, 0),
            Answer::NotRestored => (8, 0),
        };
        let mut bytes = [0; ANSWER];
        for (place, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip([number, kind, value]) {
            *place = word.to_ne_bytes();
        }
        bytes
    }

    /// The request's number, and the answer; `None` for bytes that the helper does not send.
    pub(super) fn read(bytes: &[u8; ANSWER]) -> Option<(u32, Answer)> {
        let [number, kind, value] = [0, 1, 2].map(|word| word_at(bytes, word));
        let answer = match (kind, value) {
            (0, pid) => Answer::Ready(pid),
            (4, errno) => Answer::Refused(errno),
            (_, 1..) => return None,
            (1, _) => Answer::Moved,
            (2, _) => Answer::Later,
            (3, _) => Answer::Foreign,
            (5, _) => Answer::Nonsense,
            (6, _) => Answer::Restored,
            (7, _) => Answer::LeftAlone,
            (8, _) => Answer::NotRestored,
            _ => return None,
        };
        Some((number, answer))
    }
}

fn word_at(bytes: &[u8], word: usize) -> u32 {
    bytes.as_chunks::<4>().0.get(word).map_or(0, |word| u32::from_ne_bytes(*word))
}

/// Encodes a request for these moves, at most [`EntryMove::MOST`].
pub(super) fn request(number: u32, moves: &[EntryMove]) -> [u8; REQUEST] {
    let moves = &moves[..moves.len().min(EntryMove::MOST)];
    let words = [number, moves.len() as u32].into_iter();
    let words = words.chain(moves.iter().flat_map(|one| [one.entry, one.queue]));
    let mut bytes = [0; REQUEST];
    for (place, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *place = word.to_ne_bytes();
    }
    bytes
}

/// A request's number and its moves; `None` if the count exceeds the maximum.
pub(super) fn read_request(bytes: &[u8; REQUEST]) -> Option<(u32, Vec<EntryMove>)> {
    let (number, count) = (word_at(bytes, 0), word_at(bytes, 1) as usize);
    if count > EntryMove::MOST {
        return None;
    }
    let of = |at: usize| EntryMove { entry: word_at(bytes, 2 + at * 2), queue: word_at(bytes, 3 + at * 2) };
    Some((number, (0..count).map(of).collect()))
}

/// The table after these moves; `None` unless each of them moves a different entry from one of these queues to another
/// of them.
pub(super) fn check(table: &[u32], queues: &[u32], moves: &[EntryMove]) -> Option<Vec<u32>> {
    let mut seen = BTreeSet::new();
    let mut new = table.to_vec();
    for one in moves {
        let place = new.get_mut(one.entry as usize)?;
        let sound = queues.contains(place) && queues.contains(&one.queue) && seen.insert(one.entry);
        if !sound {
            return None;
        }
        *place = one.queue;
    }
    (!moves.is_empty()).then_some(new)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_entries_of_these_queues_move_among_them() {
        let table = [0, 1, 2, 3, 0, 1, 2, 3];
        let to = |entry, queue| EntryMove { entry, queue };
        assert_eq!(check(&table, &[1, 3], &[to(1, 3), to(7, 1)]), Some(vec![0, 3, 2, 3, 0, 1, 2, 1]));
        let refused = [
            (vec![], "nothing"),
            (vec![to(8, 1)], "no such entry"),
            (vec![to(0, 1)], "an entry of another queue"),
            (vec![to(1, 2)], "to another queue"),
            (vec![to(1, 3), to(1, 1)], "one entry twice"),
        ];
        for (moves, why) in refused {
            assert_eq!(check(&table, &[1, 3], &moves), None, "{why}");
        }
    }

    #[test]
    fn answers_come_as_they_were_sent() {
        let all = [
            Answer::Ready(u32::MAX),
            Answer::Moved,
            Answer::Later,
            Answer::Foreign,
            Answer::Refused(95),
            Answer::Nonsense,
            Answer::Restored,
            Answer::LeftAlone,
            Answer::NotRestored,
        ];
        for answer in all {
            assert_eq!(Answer::read(&answer.bytes(7)), Some((7, answer)));
        }
    }

    proptest! {
        #[test]
        fn requests_come_as_they_were_sent(
            number: u32,
            moves in prop::collection::vec((any::<u32>(), any::<u32>()), 0..=EntryMove::MOST),
        ) {
            let moves: Vec<EntryMove> =
                moves.into_iter().map(|(entry, queue)| EntryMove { entry, queue }).collect();
            prop_assert_eq!(read_request(&request(number, &moves)), Some((number, moves)));
        }

        #[test]
        fn nothing_that_is_sent_makes_it_fail(words in prop::collection::vec(any::<u32>(), REQUEST / 4)) {
            let mut bytes = [0; REQUEST];
            bytes.as_chunks_mut::<4>().0.iter_mut().zip(&words).for_each(|(to, from)| *to = from.to_ne_bytes());
            if let Some((_, moves)) = read_request(&bytes) {
                let table = [0, 1, 2, 3];
                if let Some(new) = check(&table, &[1, 2], &moves) {
                    prop_assert_eq!((new[0], new[3]), (0, 3));
                    prop_assert!(new[1..3].iter().all(|queue| [1, 2].contains(queue)));
                }
            }
            let answer: [u8; ANSWER] = bytes[..ANSWER].try_into().unwrap();
            if let Some((number, answer)) = Answer::read(&answer) {
                prop_assert_eq!(&answer.bytes(number)[..], &bytes[..ANSWER]);
            }
        }
    }
}
