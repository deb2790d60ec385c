//! The packets of the corpus, by capture.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{FileOptions, FileSource};

/// A packet of a file.
pub(crate) struct Packet {
    /// Its LINKTYPE number.
    pub(crate) link: u32,
    pub(crate) wire_len: u32,
    pub(crate) data: Vec<u8>,
}

/// A file of the corpus.
pub(crate) struct Capture {
    pub(crate) name: String,
    pub(crate) packets: Vec<Packet>,
}

/// The folder of the corpus, or `None` with a line that says what is left out.
pub(crate) fn corpus(what: &str) -> Option<PathBuf> {
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

/// The capture files of the corpus.
pub(crate) fn files(corpus: &Path) -> Vec<PathBuf> {
    let manifest = fs::read_to_string(corpus.join("MANIFEST.tsv")).expect("the manifest is readable");
    let name = |line: &str| corpus.join(line.split('\t').nth(1).expect("the second column is the path"));
    manifest.lines().skip(1).map(name).collect()
}

/// The packets of a file, up to where it breaks; `None` where it does not begin as a capture.
pub(crate) fn read(path: &Path) -> Option<Vec<Packet>> {
    let mut source = FileSource::open(path, FileOptions::as_written()).ok()?;
    let mut packets = Vec::new();
    while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
        // A batch is of one interface, which is known once the batch is released.
        let mut device = 0;
        let first = packets.len();
        for record in batch {
            device = record.device();
            packets.push(Packet { link: 0, wire_len: record.wire_len(), data: record.data().to_vec() });
        }
        let link = source.interfaces().get(device).map_or(0, |interface| interface.link_number);
        packets[first..].iter_mut().for_each(|packet: &mut Packet| packet.link = link);
    }
    Some(packets)
}

/// All captures with their packets, at most `most` of each, spread over the file. A file that breaks ends there.
pub(crate) fn captures(what: &str, most: usize) -> Option<Vec<Capture>> {
    let corpus = corpus(what)?;
    let manifest = fs::read_to_string(corpus.join("MANIFEST.tsv")).expect("the manifest is readable");
    let mut captures = Vec::new();
    for line in manifest.lines().skip(1) {
        let name = line.split('\t').nth(1).expect("the second column is the path");
        let Some(mut packets) = read(&corpus.join(name)) else { continue };
        if packets.len() > most {
            let step = packets.len() / most;
            packets = packets.into_iter().step_by(step).take(most).collect();
        }
        if !packets.is_empty() {
            captures.push(Capture { name: name.to_owned(), packets });
        }
    }
    Some(captures)
}
