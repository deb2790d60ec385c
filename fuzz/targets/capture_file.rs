//! Readers of pcap and pcapng: any bytes result in records, and an end or an error; memory never exceeds the size of
//! the input (scripts/fuzz limits a single allocation).
//!
//! Input: a byte for the size of the pieces in which the file arrives, the file.
#![no_main]

use std::io::{self, Read};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use wirelane::{Error, FileOptions, FileSource};
use wirelane_pcapng::Error as PcapngError;

/// A file that arrives in pieces of at most `most` bytes.
struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    most: usize,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = &self.bytes[self.at..];
        let count = rest.len().min(into.len()).min(self.most);
        into[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

/// Device, time, length on the wire and bytes of a record.
type Taken = (usize, u64, u32, Vec<u8>);

/// Result of reading the file: the records, then the error.
fn read(file: &[u8], most: usize) -> (Vec<Taken>, Option<String>) {
    let pieces = Pieces { bytes: file.to_vec(), at: 0, most };
    let mut records = Vec::new();
    let told = |error: Error| {
        let Error::Pcapng(PcapngError::CaptureFile { offset, .. }) = &error else {
            panic!("not the file's fault: {error}")
        };
        assert!(*offset <= file.len() as u64, "{error}: behind the end of the file");
        Some(error.to_string())
    };
    let mut source = match FileSource::from_reader(pieces, "fuzzed", FileOptions::as_written()) {
        Ok(source) => source,
        Err(error) => return (records, told(error)),
    };
    loop {
        match source.next_batch(Duration::ZERO) {
            Ok(Some(batch)) => {
                for record in batch {
                    let header = record.header();
                    assert_eq!(header.cap_len as usize, record.data().len());
                    records.push((record.device(), header.ts_ns, record.wire_len(), record.data().to_vec()));
                }
                let known = source.interfaces().len();
                assert!(records.last().is_none_or(|(device, ..)| *device < known), "an unknown interface");
            }
            Ok(None) => return (records, None),
            Err(error) => return (records, told(error)),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let [most, file @ ..] = data else { return };
    let whole = read(file, usize::MAX);
    let total: usize = whole.0.iter().map(|(.., bytes)| bytes.len()).sum();
    assert!(total <= file.len(), "{total} bytes of records from {} of file", file.len());
    let pieces = read(file, 1 + usize::from(*most));
    assert_eq!(whole, pieces, "how a file arrives makes a difference");
});
