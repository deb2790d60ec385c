//! Several files, merged by the time stamps of their packets.
//!
//! The first packet of each file says where the file begins. A file is read again from its start when its first packet
//! is the next one, so the memory depends on how many files overlap in time, and not on their number.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::{FileInput, FileInterface, FileProgress, Packet, Reached, Reader};
use crate::{Error, Result};

/// Most errors of damaged files that are kept for the message.
const SHOWN: usize = 8;

/// Packets of one file, or of several in the order of their time stamps. Packets with the same time stamp come in the
/// order of the files. A file in itself is read in its own order: a packet that is too late stays too late.
#[derive(Debug)]
pub struct MergedReader {
    files: Vec<State>,
    /// Time stamp of the next packet of each file, and the file's index, except for the file that is `stepping`.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    /// The file whose next packet is not known.
    stepping: Option<usize>,
    /// The interfaces of several files, equal ones once.
    interfaces: Vec<FileInterface>,
    progress: Option<FileProgress>,
    failures: Vec<Error>,
    failed: usize,
}

#[derive(Debug)]
enum State {
    /// The file is read later, from its start.
    Later(FileInput),
    Open(Box<Open>),
    Ended,
}

#[derive(Debug)]
struct Open {
    reader: Reader,
    /// Index in [`MergedReader::interfaces`] of each interface of the file; unused for a single file.
    numbers: Vec<u16>,
    packet: Option<Packet>,
}

impl From<Reader> for MergedReader {
    fn from(reader: Reader) -> MergedReader {
        let progress = reader.progress();
        let open = Open { reader, numbers: Vec::new(), packet: None };
        MergedReader {
            files: vec![State::Open(Box::new(open))],
            next: BinaryHeap::new(),
            stepping: None,
            interfaces: Vec::new(),
            progress,
            failures: Vec::new(),
            failed: 0,
        }
    }
}

impl MergedReader {
    /// Reads open files, and of each the first packet. A single file may be a pipe.
    ///
    /// # Errors
    /// As [`Reader::read`], and [`Error::BadOption`] without a file, and for a pipe among several files.
    pub fn read(mut inputs: Vec<FileInput>) -> Result<MergedReader> {
        if inputs.len() == 1 {
            return Ok(Reader::read(inputs.remove(0))?.into());
        }
        let mut merged = MergedReader {
            files: Vec::new(),
            next: BinaryHeap::new(),
            stepping: None,
            interfaces: Vec::new(),
            progress: None,
            failures: Vec::new(),
            failed: 0,
        };
        let mut total = 0;
        for input in &inputs {
            total += input.size()?;
        }
        let progress = FileProgress::new(total);
        for input in inputs {
            merged.add(input, &progress)?;
        }
        if merged.files.is_empty() {
            return Err(Error::BadOption { option: "-r", reason: "there is no file to read".into() });
        }
        merged.progress = Some(progress);
        Ok(merged)
    }

    fn add(&mut self, input: FileInput, progress: &FileProgress) -> Result<()> {
        let mut reader = Reader::read(input.again()?)?;
        let first = first(&mut reader);
        self.number(&mut Vec::new(), reader.interfaces())?;
        self.files.push(State::Ended);
        let at = self.files.len() - 1;
        match first {
            Ok(Some(ts_ns)) => {
                self.files[at] = State::Later(input.counted(progress.clone()));
                self.next.push(Reverse((ts_ns, at)));
            }
            Ok(None) => {}
            Err(error) => self.fail(error),
        }
        Ok(())
    }

    /// Adds to `numbers` the indices of the interfaces that it lacks.
    fn number(&mut self, numbers: &mut Vec<u16>, interfaces: &[FileInterface]) -> Result<()> {
        for interface in &interfaces[numbers.len()..] {
            let known = self.interfaces.iter().position(|known| known == interface);
            let number = known.unwrap_or(self.interfaces.len());
            numbers.push(u16::try_from(number).map_err(|_| Error::BadOption {
                option: "-r",
                reason:
                    "the files have more than 65,536 different interfaces: read fewer files at once".into(),
            })?);
            if known.is_none() {
                self.interfaces.push(interface.clone());
            }
        }
        Ok(())
    }

    /// The files go on without one that cannot be read further.
    fn fail(&mut self, error: Error) {
        self.failed += 1;
        if self.failures.len() < SHOWN {
            self.failures.push(error);
        }
    }

    /// The only file.
    fn single(&self) -> Option<&Open> {
        match &self.files[..] {
            [State::Open(open)] => Some(open),
            _ => None,
        }
    }

    /// The interfaces that the files have described so far; [`Packet::interface`] is an index into them. Equal interfaces
    /// of several files are one.
    pub fn interfaces(&self) -> &[FileInterface] {
        self.single().map_or(&self.interfaces, |open| open.reader.interfaces())
    }

    /// Progress of reading all files; `None` for a pipe.
    pub fn progress(&self) -> Option<FileProgress> {
        self.progress.clone()
    }

    /// Whether reading may block on the writer of a pipe.
    pub fn is_pipe(&self) -> bool {
        self.single().is_some_and(|open| open.reader.is_pipe())
    }

    /// Size of the windows over the files in bytes.
    pub fn memory(&self) -> usize {
        let open = |file: &State| match file {
            State::Open(open) => open.reader.memory(),
            State::Later(_) | State::Ended => 0,
        };
        self.files.iter().map(open).sum()
    }

    /// The captured bytes of a packet that [`MergedReader::advance`] has reached.
    pub fn data(&self, packet: &Packet) -> &[u8] {
        match (&self.files[..], self.next.peek()) {
            ([State::Open(open)], _) => open.reader.data(packet),
            (files, Some(&Reverse((_, at)))) => match &files[at] {
                State::Open(open) => open.reader.data(packet),
                State::Later(_) | State::Ended => &[],
            },
            (_, None) => &[],
        }
    }

    /// Skips the packet that [`MergedReader::advance`] has reached.
    pub fn consume(&mut self, packet: &Packet) {
        if let [State::Open(open)] = &mut self.files[..] {
            return open.reader.consume(packet);
        }
        if let Some(Reverse((_, at))) = self.next.pop()
            && let State::Open(open) = &mut self.files[at]
        {
            open.reader.consume(packet);
            open.packet = None;
            self.stepping = Some(at);
        }
    }

    /// Advances one step, waiting up to `wait` for bytes of a pipe. Returns the same packet until it is consumed.
    ///
    /// # Errors
    /// As [`Reader::advance`]. Of several files, those that can be read are read to their ends before.
    pub fn advance(&mut self, wait: Duration) -> Result<Reached> {
        if let [State::Open(open)] = &mut self.files[..] {
            return open.reader.advance(wait);
        }
        loop {
            if let Some(at) = self.stepping {
                if !self.step(at)? {
                    return Ok(Reached::Further);
                }
                continue;
            }
            let Some(&Reverse((_, at))) = self.next.peek() else { return self.end() };
            match std::mem::replace(&mut self.files[at], State::Ended) {
                State::Open(open) => {
                    let packet = open.packet.clone();
                    self.files[at] = State::Open(open);
                    if let Some(packet) = packet {
                        return Ok(Reached::Packet(packet));
                    }
                    self.next.pop();
                    self.stepping = Some(at);
                }
                State::Later(input) => {
                    self.next.pop();
                    match Reader::read(input.rewound()?) {
                        Ok(reader) => {
                            let open = Open { reader, numbers: Vec::new(), packet: None };
                            self.files[at] = State::Open(Box::new(open));
                            self.stepping = Some(at);
                        }
                        Err(error) => self.fail(error),
                    }
                }
                State::Ended => {
                    self.next.pop();
                }
            }
        }
    }

    /// Advances the file that is stepping; returns whether its next packet or its end was reached.
    fn step(&mut self, at: usize) -> Result<bool> {
        let State::Open(mut open) = std::mem::replace(&mut self.files[at], State::Ended) else {
            self.stepping = None;
            return Ok(true);
        };
        match open.reader.advance(Duration::MAX) {
            Ok(Reached::Packet(mut packet)) => {
                self.number(&mut open.numbers, open.reader.interfaces())?;
                packet.interface = open.numbers[usize::from(packet.interface)];
                self.next.push(Reverse((packet.ts_ns, at)));
                open.packet = Some(packet);
                self.files[at] = State::Open(open);
            }
            Ok(Reached::Further | Reached::Wait) => {
                self.files[at] = State::Open(open);
                return Ok(false);
            }
            Ok(Reached::End) => {}
            Err(error) => self.fail(error),
        }
        self.stepping = None;
        Ok(true)
    }

    /// The end of all files: their errors, once.
    fn end(&mut self) -> Result<Reached> {
        let errors = std::mem::take(&mut self.failures);
        match std::mem::take(&mut self.failed) {
            0 => Ok(Reached::End),
            failed => Err(Error::Damaged { failed, files: self.files.len(), errors }),
        }
    }
}

/// The time stamp of a file's first packet.
fn first(reader: &mut Reader) -> Result<Option<u64>> {
    loop {
        match reader.advance(Duration::MAX)? {
            Reached::Packet(packet) => return Ok(Some(packet.ts_ns)),
            Reached::Further | Reached::Wait => {}
            Reached::End => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
