//! Packets of the corpus, by capture.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use wirelane_pcapng::{Reached, Reader};

/// A packet of a file.
pub struct Packet {
    /// LINKTYPE number.
    pub link: u32,
    /// Length on the wire.
    pub wire_len: u32,
    /// Captured bytes.
    pub data: Vec<u8>,
}

/// A file of the corpus.
pub struct Capture {
    /// Path in the corpus.
    pub name: String,
    /// Its packets.
    pub packets: Vec<Packet>,
}

/// Folder of the corpus, or `None` after a message that the test is skipped.
pub fn corpus(what: &str) -> Option<PathBuf> {
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

/// Capture files of the corpus.
pub fn files(corpus: &Path) -> Vec<PathBuf> {
    let manifest = fs::read_to_string(corpus.join("MANIFEST.tsv")).expect("the manifest is readable");
    let name = |line: &str| corpus.join(line.split('\t').nth(1).expect("the second column is the path"));
    manifest.lines().skip(1).map(name).collect()
}

/// Packets of a file up to the first error; `None` if it is not a capture.
pub fn read(path: &Path) -> Option<Vec<Packet>> {
    let mut reader = Reader::open(path).ok()?;
    let mut packets = Vec::new();
    loop {
        match reader.advance(Duration::ZERO) {
            Ok(Reached::Packet(packet)) => {
                let link = reader.interfaces()[usize::from(packet.interface)].link_number;
                let data = reader.data(&packet).to_vec();
                packets.push(Packet { link, wire_len: packet.wire_len, data });
                reader.consume(&packet);
            }
            Ok(Reached::Further | Reached::Wait) => {}
            Ok(Reached::End) | Err(_) => return Some(packets),
        }
    }
}

/// All captures with at most `most` packets each, spread over the file. A damaged file counts up to the damage.
pub fn captures(what: &str, most: usize) -> Option<Vec<Capture>> {
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
