//! Chunked bodies (RFC 9112, section 7.1), byte by byte.

/// Position in the chunk framing of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In a chunk size; with the number of digits so far.
    Size { digits: u8 },
    /// After the size, up to the end of its line.
    Extension,
    /// Within a chunk.
    Data,
    /// After a chunk: its line end.
    DataEnd { returned: bool },
    /// In the trailer after the last chunk; with the state of its line.
    Trailer { line: u8 },
}

/// Decoder of a chunked body.
#[derive(Clone, Copy, Debug)]
pub struct Chunks {
    at: At,
    /// Size that is being read, or remaining bytes of the chunk.
    left: u64,
}

/// Classification of the next bytes of a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// This many bytes of chunk framing.
    Packing(usize),
    /// At most this many bytes of content follow.
    Content(u64),
    /// The body ended with the byte before.
    End(usize),
    /// Not a valid chunked body.
    Bad(usize),
}

impl Chunks {
    /// Starts before the first chunk.
    pub fn new() -> Chunks {
        Chunks { at: At::Size { digits: 0 }, left: 0 }
    }

    /// Remaining content of the current chunk.
    pub fn content(&self) -> u64 {
        if self.at == At::Data { self.left } else { 0 }
    }

    /// Advances by this many bytes of content, at most [`Chunks::content`].
    pub fn passed(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
        if self.left == 0 {
            self.at = At::DataEnd { returned: false };
        }
    }

    /// Reads chunk framing up to content, the end of the body, or the end of `bytes`.
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

    /// Whether the body ends with this byte; `None`: invalid.
    fn byte(&mut self, byte: u8) -> Option<bool> {
        match self.at {
            At::Size { digits } => match (byte as char).to_digit(16) {
                // Sizes of 2^63 and above are invalid.
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
                // 0: empty so far; 1: a carriage return; 2: text.
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

    /// Content, bytes up to the end of the body, and whether the end was found; `None`: invalid.
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
