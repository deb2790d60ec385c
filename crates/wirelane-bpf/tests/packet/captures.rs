//! The corpus of real captures: finding it, and reading its files.

use std::fs;
use std::io::{Cursor, Read as _};
use std::path::{Path, PathBuf};

use pcap_parser::{Block, PcapBlockOwned, PcapError, create_reader};
use wirelane_bpf::layout::LinkType;

/// One packet of a capture.
pub struct Packet {
    pub link: LinkType,
    pub data: Vec<u8>,
    pub wire_len: u32,
}

/// The folder of the corpus, or None after printing that `what` is skipped.
pub fn corpus(what: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("WIRELANE_CORPUS")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus"));
    if folder.join("MANIFEST.tsv").is_file() {
        return Some(folder);
    }
    println!("left out: {what} (no corpus)");
    None
}

/// A line of the corpus's manifest.
pub struct Capture {
    pub id: String,
    pub path: PathBuf,
    pub category: String,
    pub truth: Option<PathBuf>,
}

/// All captures, in the order of the manifest.
pub fn captures(corpus: &Path) -> Vec<Capture> {
    let manifest = fs::read_to_string(corpus.join("MANIFEST.tsv")).expect("the manifest is readable");
    manifest
        .lines()
        .skip(1)
        .map(|line| {
            let column: Vec<&str> = line.split('\t').collect();
            let truth = column.get(14).filter(|path| !path.is_empty()).map(|path| corpus.join(path));
            Capture {
                id: column[0].to_owned(),
                path: corpus.join(column[1]),
                category: column[2].to_owned(),
                truth,
            }
        })
        .collect()
}

/// A file's contents, decompressed if its name ends in `.gz`.
pub fn contents(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if path.extension().is_none_or(|extension| extension != "gz") {
        return bytes;
    }
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&bytes[..])
        .read_to_end(&mut plain)
        .expect("the corpus's gzip files are whole");
    plain
}

/// The parser's link type for a LINKTYPE_ number of a capture file.
pub fn link_of(number: i32) -> LinkType {
    u32::try_from(number).map_or(LinkType::Other, LinkType::from_number)
}

/// All packets that can be read; a broken file ends at the damage.
pub fn packets(path: &Path) -> Vec<Packet> {
    let bytes = contents(path);
    let mut packets = Vec::new();
    let capacity = bytes.len() + 65536;
    let Ok(mut reader) = create_reader(capacity, Cursor::new(bytes)) else { return packets };
    let mut links = Vec::new();
    loop {
        match reader.next() {
            Ok((used, block)) => {
                take(block, &mut links, &mut packets);
                reader.consume(used);
            }
            Err(PcapError::Incomplete(_)) => {
                if reader.reader_exhausted() || reader.refill().is_err() {
                    return packets;
                }
            }
            Err(_) => return packets,
        }
    }
}

fn take(block: PcapBlockOwned<'_>, links: &mut Vec<LinkType>, packets: &mut Vec<Packet>) {
    let mut push = |link: Option<&LinkType>, data: &[u8], captured: u32, wire_len: u32| {
        // pcapng pads data to a multiple of 4; the captured length tells how much of it is the packet.
        let data = data[..data.len().min(captured as usize)].to_vec();
        packets.push(Packet { link: link.copied().unwrap_or(LinkType::Other), data, wire_len });
    };
    match block {
        PcapBlockOwned::LegacyHeader(header) => links.push(link_of(header.network.0 & 0xffff)),
        PcapBlockOwned::Legacy(packet) => push(links.first(), packet.data, packet.caplen, packet.origlen),
        PcapBlockOwned::NG(Block::SectionHeader(_)) => links.clear(),
        PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
            links.push(link_of(interface.linktype.0));
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
            push(links.get(packet.if_id as usize), packet.data, packet.caplen, packet.origlen);
        }
        PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
            push(links.first(), packet.data, packet.origlen, packet.origlen);
        }
        PcapBlockOwned::NG(_) => {}
    }
}
