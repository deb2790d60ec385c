//! An open file of a recording: its name, its body, its time span, and compression with zstd.

use std::io;

use super::body::{Body, Kind};
use super::compress::Compression;
use super::part::PartFile;
use super::rotate::Span;

/// An open file; see the module documentation.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) part: PartFile,
    pub(crate) body: Body,
    pub(crate) span: Span,
    /// Bytes of the head that are already written.
    head: usize,
    /// Whether to keep the file without packets.
    pub(crate) keep_empty: bool,
}

impl OpenFile {
    /// An empty file.
    pub(crate) fn new(part: PartFile, body: Body, span: Span) -> OpenFile {
        OpenFile { part, body, span, head: 0, keep_empty: false }
    }

    /// Packets in the file, including staged ones.
    pub(crate) fn packets(&self) -> u64 {
        self.body.settled() + self.body.pending()
    }

    /// Whether the file may be removed.
    pub(crate) fn is_empty(&self) -> bool {
        self.packets() == 0 && !self.keep_empty
    }

    /// An error message with the name of the file.
    pub(crate) fn named(&self, error: &io::Error) -> String {
        format!("{}: {error}", self.part.path().display())
    }

    /// Writes the rest of the head.
    pub(crate) fn begin(&mut self, compression: Option<&mut Compression>, head: &[u8]) -> io::Result<()> {
        if self.head < head.len() {
            self.opaque(compression, &head[self.head..])?;
            self.head = head.len();
        }
        Ok(())
    }

    /// Appends packets.
    pub(crate) fn append(
        &mut self,
        compression: Option<&mut Compression>,
        bytes: &[u8],
        packets: u64,
    ) -> io::Result<()> {
        let Some(compression) = compression else {
            return self.body.append(&self.part, bytes, packets, Kind::Blocks);
        };
        let result = match compression.blocks(bytes) {
            Ok(compressed) => self.body.append(&self.part, compressed, packets, Kind::Opaque),
            Err(error) => Err(error),
        };
        result.inspect_err(|_| compression.take_back(self.body.len()))
    }

    /// Writes the last blocks, and all staged bytes. The file is complete after that, even after a failure: then it
    /// ends earlier.
    pub(crate) fn end(&mut self, mut compression: Option<&mut Compression>, blocks: &[u8]) -> io::Result<()> {
        // If the file is behind its encoder, the blocks would need another frame, which not every reader supports.
        let left_out = compression.as_ref().is_some_and(|compression| compression.is_behind());
        let last = match blocks.is_empty() || left_out {
            true => Ok(()),
            false => self.opaque(compression.as_deref_mut(), blocks),
        };
        let ended = match compression.map(Compression::end) {
            Some(end) if !end.is_empty() => self.body.append(&self.part, end, 0, Kind::Opaque),
            _ => Ok(()),
        };
        last.and(ended).and(self.body.close(&self.part))
    }

    /// Appends all bytes or none.
    fn opaque(&mut self, compression: Option<&mut Compression>, bytes: &[u8]) -> io::Result<()> {
        match compression {
            None => self.body.append(&self.part, bytes, 0, Kind::Opaque),
            compression => self.append(compression, bytes, 0),
        }
    }
}
