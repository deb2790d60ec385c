//! The engine against files: the corpus, other readers, damage of every kind.

use std::io::Cursor;
use std::path::PathBuf;
use std::time::Duration;

use super::{FileOptions, FileSource};
use crate::error::Error;
use wirelane_bpf::layout::LinkType;

mod build;
mod compressed;
pub(crate) mod corpus;
mod damage;
mod hostile;
mod order;
mod others;
mod reading;

/// Packets in the order of the file, which the other readers yield too.
const AS_WRITTEN: FileOptions = FileOptions { batch_bytes: 256 << 10, in_order: false };

/// A packet from a batch, with the fields that the tests check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Got {
    ts_ns: u64,
    wire_len: u32,
    data: Vec<u8>,
    device: usize,
    queue: u16,
    flags: u16,
    link: LinkType,
}

/// The complete result of reading a file.
struct Outcome {
    packets: Vec<Got>,
    source: FileSource,
    error: Option<Error>,
}

impl Outcome {
    /// The offset and reason of the damage that ended the file.
    fn damage(&self) -> (u64, &str) {
        match self.error.as_ref().expect("the file ends in damage") {
            Error::Pcapng(wirelane_pcapng::Error::CaptureFile { offset, reason, .. }) => (*offset, reason),
            other => panic!("not about the file: {other}"),
        }
    }
}

/// Reads a capture to its end and checks invariants of every capture: records are counted as they are read, nothing
/// comes after the end, memory is bounded.
fn read(bytes: &[u8], options: FileOptions) -> Result<Outcome, Error> {
    let mut source = FileSource::from_reader(Cursor::new(bytes.to_vec()), "capture", options)?;
    let mut packets = Vec::new();
    let error = loop {
        match source.next_batch(Duration::ZERO) {
            Ok(Some(batch)) => {
                let before = packets.len();
                packets.extend(batch.map(|record| Got {
                    ts_ns: record.header().ts_ns,
                    wire_len: record.wire_len(),
                    data: record.data().to_vec(),
                    device: record.device(),
                    queue: record.queue(),
                    flags: record.header().flags,
                    link: record.link_type(),
                }));
                assert!(packets.len() > before, "a file never waits, so it has no empty batch");
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    assert!(source.next_batch(Duration::ZERO).expect("the error comes once").is_none());
    for index in 0..source.interfaces().len() {
        let counters = source.counters(index);
        let of_it = || packets.iter().filter(|packet| packet.device == index);
        assert_eq!(counters.read_packets, of_it().count() as u64);
        assert_eq!(counters.read_bytes, of_it().map(|packet| u64::from(packet.wire_len)).sum::<u64>());
        assert_eq!(counters.analysed_packets, counters.read_packets);
        assert_eq!(counters.analysed_bytes, counters.read_bytes);
        if index > 1000 {
            break; // of a million interfaces, this many are enough
        }
    }
    // The window is at most twice the largest item that is accepted, the arena as large as one.
    let memory = source.reader.memory() + source.arena.memory();
    assert!(memory <= 3 * wirelane_pcapng::MAX_ITEM + (1 << 20), "{memory} bytes");
    Ok(Outcome { packets, source, error })
}

/// Reads a capture with a valid header.
fn read_all(bytes: &[u8]) -> Outcome {
    read(bytes, AS_WRITTEN).expect("the header is good")
}

/// The corpus, or `None` with a message that `what` is skipped.
fn corpus(what: &str) -> Option<PathBuf> {
    let path = std::env::var_os("WIRELANE_CORPUS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/corpus")),
        PathBuf::from,
    );
    if path.join("MANIFEST.tsv").exists() {
        return Some(path);
    }
    println!("left out: {what} (no corpus)");
    None
}
