//! Bodies in chunks (RFC 9112, section 7.1), byte by byte.

/// Where in the packing of chunks a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In a size; how many digits there were.
    Size { digits: u8 },
    /// Behind the size, up to the end of its line.
    Extension,
    /// Within a chunk.
    Data,
    /// Behind a chunk: its end of line.
    DataEnd { returned: bool },
    /// In the trailer, behind the last chunk: bytes of its line.
    Trailer { line: u8 },
}

/// A body in chunks.
#[derive(Clone, Copy, Debug)]
pub struct Chunks {
    at: At,
    /// The size that is being read, or what is left of the chunk.
    left: u64,
}

/// What some bytes of such a body are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many bytes of packing.
    Packing(usize),
    /// So many bytes of content follow, at most.
    Content(u64),
    /// The body ended with the byte before.
    End(usize),
    /// This is no such body.
    Bad(usize),
}

impl Chunks {
    /// In front of the first chunk.
    pub fn new() -> Chunks {
        Chunks { at: At::Size { digits: 0 }, left: 0 }
    }

    /// Content that is left of the chunk at hand.
    pub fn content(&self) -> u64 {
        if self.at == At::Data { self.left } else { 0 }
    }

    /// So many bytes of content have passed, no more than [`Chunks::content`].
    pub fn passed(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
        if self.left == 0 {
            self.at = At::DataEnd { returned: false };
        }
    }

    /// Reads packing up to content, the end, or the end of `bytes`.
    pub fn step(&mut self, bytes: &[u8]) -> Step {
        if self.at == At::Data {
            return Step::Content(self.left);
        }
        for (at, byte) in bytes.iter().enumerate() {
            match self.byte(*byte) {
                None => return Step::Bad(at),
                Some(true) => return Step::End(at + 1),
                Some(false) if self.at == At::Data => return Step::Packing(at + 1),
                Some(false) => {}
            }
        }
        Step::Packing(bytes.len())
    }

    /// Whether it ends with this byte; `None`: it cannot be.
    fn byte(&mut self, byte: u8) -> Option<bool> {
        match self.at {
            At::Size { digits } => match (byte as char).to_digit(16) {
                // What is not below 2^63, nobody sends.
                Some(digit) => {
                    if self.left >> 59 != 0 {
                        return None;
                    }
                    self.left = self.left << 4 | u64::from(digit);
                    self.at = At::Size { digits: digits.saturating_add(1) };
                }
                None if digits == 0 => return None,
                None => match byte {
                    b'\n' => self.sized(),
                    b'\r' | b';' | b' ' | b'\t' => self.at = At::Extension,
                    _ => return None,
                },
            },
            At::Extension if byte == b'\n' => self.sized(),
            At::Extension => {}
            At::Data => return None,
            At::DataEnd { returned } => match byte {
                b'\n' => (self.at, self.left) = (At::Size { digits: 0 }, 0),
                b'\r' if !returned => self.at = At::DataEnd { returned: true },
                _ => return None,
            },
            At::Trailer { line } => match (byte, line) {
                // 0: nothing in it; 1: a carriage return; 2: text.
                (b'\n', 0 | 1) => return Some(true),
                (b'\n', _) => self.at = At::Trailer { line: 0 },
                (b'\r', 0) => self.at = At::Trailer { line: 1 },
                _ => self.at = At::Trailer { line: 2 },
            },
        }
        Some(false)
    }

    fn sized(&mut self) {
        self.at = if self.left == 0 { At::Trailer { line: 0 } } else { At::Data };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Content, bytes up to the end, and whether there was one; `None`: bad.
    fn read(body: &[u8]) -> Option<(Vec<u8>, usize, bool)> {
        let (mut chunks, mut at, mut content) = (Chunks::new(), 0, Vec::new());
        while at < body.len() {
            match chunks.step(&body[at..]) {
                Step::Bad(_) => return None,
                Step::End(bytes) => return Some((content, at + bytes, true)),
                Step::Packing(bytes) => at += bytes,
                Step::Content(most) => {
                    let bytes = (body.len() - at).min(most as usize);
                    content.extend_from_slice(&body[at..at + bytes]);
                    chunks.passed(bytes as u64);
                    at += bytes;
                }
            }
        }
        Some((content, at, false))
    }

    #[test]
    fn chunks_are_unpacked() {
        let whole = b"5\r\nhello\r\n6;a=\"b;c\"\r\n world\r\n0\r\nTrailer: x\r\n\r\nHTTP/1.1";
        assert_eq!(read(whole), Some((b"hello world".to_vec(), whole.len() - 8, true)));
        assert_eq!(read(b"00005\nhello\n0\n\n"), Some((b"hello".to_vec(), 15, true)));
        assert_eq!(read(b"0\r\n\r\n"), Some((vec![], 5, true)));
        assert_eq!(read(b"5\r\nhel"), Some((b"hel".to_vec(), 6, false)));
    }

    #[test]
    fn sizes_that_overflow_or_are_none_are_bad() {
        for bad in [
            "x\r\n",
            "\r\n",
            "-1\r\n",
            "0x5\r\n",
            "10000000000000000\r\n",
            "ffffffffffffffff0\r\n",
            "5\r\nhelloX",
            "1\r\na\rX",
        ] {
            assert_eq!(read(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(read(b"7fffffffffffffff\r\nab"), Some((b"ab".to_vec(), 20, false)));
        assert_eq!(read(b"8000000000000000\r\nab"), None, "two to the power of 63");
        let zeros = [&[b'0'; 300][..], b"2\r\nab\r\n0\r\n\r\n"].concat();
        assert_eq!(read(&zeros), Some((b"ab".to_vec(), zeros.len(), true)));
    }
}
