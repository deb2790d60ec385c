//! One direction of a TCP connection: reassembly in order, with buffering of early segments.

use std::collections::BTreeMap;

/// Start position of a direction: bytes before the first captured one have positions, too.
const BEGIN: u64 = 1 << 40;
/// Overhead of a held piece in bytes.
const PIECE: usize = 128;

/// A held piece of a packet.
#[derive(Debug)]
pub struct Piece {
    /// Length in the stream in bytes.
    pub len: u32,
    /// Its bytes, as far as they were captured and are needed.
    pub data: Box<[u8]>,
    /// Whether the bytes were captured, even if `data` does not have them.
    pub captured: bool,
    /// Time of the packet.
    pub ts_ns: u64,
    /// Acknowledgement number.
    pub ack: Option<u32>,
    /// Number of the packet, in order of arrival.
    pub order: u64,
    /// Whether it begins at the start of the packet.
    pub begins: bool,
}

/// One direction.
#[derive(Debug, Default)]
pub struct Stream {
    /// Whether any packet of it was seen.
    pub seen: bool,
    /// Position after all bytes that were taken.
    pub next: u64,
    next_seq: u32,
    held: BTreeMap<u64, Piece>,
    bytes: usize,
    /// Position of its end.
    pub fin: Option<u64>,
    /// Whether all bytes up to the end were taken.
    pub ended: bool,
    /// Highest position that the receiver acknowledged.
    pub acked: u64,
    /// Time since which pieces are held and none could be taken.
    pub since_ns: u64,
    /// Whether retransmitted bytes differed from the first ones.
    pub conflict: bool,
    /// First acknowledgement number for a direction without packets.
    heard: Option<u32>,
    /// Whether it has acknowledged more since: the other direction takes another path.
    pub heard_more: bool,
}

impl Stream {
    /// Begins with this sequence number.
    pub fn begin(&mut self, seq: u32) {
        *self = Stream { seen: true, next: BEGIN, next_seq: seq, acked: BEGIN, ..Stream::default() };
    }

    /// Position of the first byte.
    pub fn first_place(&self) -> u64 {
        BEGIN
    }

    /// Position of a sequence number, which is less than 2 GiB away.
    pub fn place(&self, seq: u32) -> u64 {
        self.next.saturating_add_signed(i64::from(seq.wrapping_sub(self.next_seq) as i32))
    }

    /// Advances to this position.
    pub fn advance(&mut self, to: u64) {
        self.next_seq = self.next_seq.wrapping_add((to - self.next) as u32);
        self.next = to;
    }

    /// Notes an acknowledgement for a direction without packets.
    pub fn hears(&mut self, ack: u32) {
        let first = *self.heard.get_or_insert(ack);
        self.heard_more |= (ack.wrapping_sub(first) as i32) > 0;
    }

    /// Memory of held pieces, in bytes.
    pub fn memory(&self) -> usize {
        self.bytes
    }

    /// Whether no piece is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// First held piece, with its position.
    pub fn first(&self) -> Option<(u64, &Piece)> {
        self.held.first_key_value().map(|(at, piece)| (*at, piece))
    }

    /// Removes the first held piece, without the bytes before the current position.
    pub fn take(&mut self) -> Option<(u64, Piece)> {
        let (at, mut piece) = self.held.pop_first()?;
        self.bytes -= piece.data.len() + PIECE;
        let old = self.next.saturating_sub(at).min(piece.len.into());
        if old > 0 {
            cut_front(&mut piece, old as u32);
        }
        Some((at + old, piece))
    }

    /// Drops all held pieces.
    pub fn clear(&mut self) {
        self.held = BTreeMap::new();
        self.bytes = 0;
    }

    /// Holds a piece. Existing bytes stay: only the new ones of the piece are added.
    pub fn hold(&mut self, at: u64, piece: Piece) {
        if self.held.is_empty() {
            self.since_ns = piece.ts_ns;
        }
        let (mut at, mut piece) = (at, piece);
        let old = self.next.saturating_sub(at);
        if old > 0 {
            if old >= u64::from(piece.len) {
                return;
            }
            cut_front(&mut piece, old as u32);
            at += old;
        }
        loop {
            // Overlap with a piece that begins before it.
            if let Some((start, before)) = self.held.range(..=at).next_back() {
                let end = start + u64::from(before.len);
                if end > at {
                    let both = (end - at).min(piece.len.into()) as usize;
                    self.conflict |= differ(&before.data, (at - start) as usize, &piece.data, 0, both);
                    if both >= piece.len as usize {
                        return;
                    }
                    cut_front(&mut piece, both as u32);
                    at += both as u64;
                }
            }
            // Overlap with a piece that begins within it: the part before that is added, and the loop continues after
            // it.
            let next = self.held.range(at..at + u64::from(piece.len)).next().map(|(start, _)| *start);
            let Some(start) = next else {
                self.insert(at, piece);
                return;
            };
            let (front, rest) = split(piece, (start - at) as u32);
            if front.len > 0 {
                self.insert(at, front);
            }
            (at, piece) = (start, rest);
        }
    }

    fn insert(&mut self, at: u64, piece: Piece) {
        self.bytes += piece.data.len() + PIECE;
        self.held.insert(at, piece);
    }
}

/// Whether the bytes that both have are different.
fn differ(one: &[u8], from: usize, other: &[u8], other_from: usize, length: usize) -> bool {
    let length = length.min(one.len().saturating_sub(from)).min(other.len().saturating_sub(other_from));
    length > 0 && one[from..from + length] != other[other_from..other_from + length]
}

fn cut_front(piece: &mut Piece, bytes: u32) {
    piece.data = piece.data.get(bytes as usize..).unwrap_or_default().into();
    piece.len -= bytes;
    piece.begins = false;
}

fn split(piece: Piece, at: u32) -> (Piece, Piece) {
    let Piece { len, data, captured, ts_ns, ack, order, begins } = piece;
    let (front, back) = data.split_at(data.len().min(at as usize));
    let front = Piece { len: at, data: front.into(), captured, ts_ns, ack, order, begins: begins && at > 0 };
    let begins = begins && at == 0;
    (front, Piece { len: len - at, data: back.into(), captured, ts_ns, ack, order, begins })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(data: &[u8]) -> Piece {
        let (len, data) = (data.len() as u32, data.into());
        Piece { len, data, captured: true, ts_ns: 1, ack: None, order: 0, begins: true }
    }

    fn all(stream: &mut Stream) -> Vec<(u64, Vec<u8>)> {
        std::iter::from_fn(|| stream.take()).map(|(at, piece)| (at - BEGIN, piece.data.to_vec())).collect()
    }

    #[test]
    fn what_came_first_stays() {
        let mut stream = Stream::default();
        stream.begin(u32::MAX - 3);
        for (seq, data) in [(6, "gh"), (0, "CDE"), (u32::MAX, "bcdefghij"), (3, "fgX")] {
            let at = stream.place(seq);
            stream.hold(at, piece(data.as_bytes()));
        }
        assert!(stream.conflict, "ij and X came later, and are others");
        let held = all(&mut stream);
        let text: Vec<u8> = held.iter().flat_map(|(_, data)| data.clone()).collect();
        assert_eq!(text, b"bCDEfghgh");
        assert_eq!(held[0].0, 3);
        assert_eq!(stream.memory(), 0);
    }

    #[test]
    fn what_was_taken_out_is_not_held_again() {
        let mut stream = Stream::default();
        stream.begin(0);
        stream.advance(BEGIN + 10);
        for (seq, data) in [(0u32, &b"0123456789"[..]), (5, b"56789ab"), (10, b"ab")] {
            let at = stream.place(seq);
            stream.hold(at, piece(data));
        }
        assert_eq!(all(&mut stream), [(10, b"ab".to_vec())]);
        assert!(!stream.conflict);
    }

    #[test]
    fn worst_orders_take_little_time() {
        let mut stream = Stream::default();
        stream.begin(0);
        for n in (0..40_000u32).rev() {
            let at = stream.place(n * 2);
            stream.hold(at, piece(b"a"));
        }
        let at = stream.place(0);
        stream.hold(at, piece(&vec![b'b'; 80_000]));
        assert_eq!(all(&mut stream).iter().map(|(_, data)| data.len()).sum::<usize>(), 80_000);
    }
}
