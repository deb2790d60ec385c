//! The same captures through other readers: the pcap-parser crate, and libpcap by way of tcpdump.

use std::io::{Cursor, Read, Write};
use std::process::{Command, Stdio};

use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, LegacyPcapReader, PcapBlockOwned, PcapError, PcapNGReader};

use wirelane_testing::{load, manifest};

use super::build::{Big, Little, MICRO, MODIFIED, NANO};
use super::{AS_WRITTEN, Got, read};

/// Time in the file's units, wire length, data.
type Seen = (u64, u32, Vec<u8>);

/// The packets that pcap-parser finds before it gives up, or `None` where it cannot open the file.
fn by_pcap_parser(bytes: &[u8]) -> Option<Vec<Seen>> {
    // Buffer space for the whole file, so that only a cut file is ever incomplete.
    let room = bytes.len() + 65_536;
    let mut reader: Box<dyn PcapReaderIterator> = match bytes.starts_with(b"\x0a\x0d\x0d\x0a") {
        true => Box::new(PcapNGReader::new(room, Cursor::new(bytes.to_vec())).ok()?),
        false => Box::new(LegacyPcapReader::new(room, Cursor::new(bytes.to_vec())).ok()?),
    };
    let mut packets = Vec::new();
    let mut refilled = false;
    loop {
        match reader.next() {
            Ok((size, block)) => {
                match block {
                    PcapBlockOwned::Legacy(p) => {
                        packets.push((u64::from(p.ts_usec), p.origlen, p.data.to_vec()));
                    }
                    PcapBlockOwned::NG(Block::EnhancedPacket(p)) => {
                        let units = u64::from(p.ts_high) << 32 | u64::from(p.ts_low);
                        packets.push((units, p.origlen, p.packet_data().to_vec()));
                    }
                    PcapBlockOwned::NG(Block::SimplePacket(p)) => {
                        packets.push((0, p.origlen, p.packet_data().to_vec()));
                    }
                    _ => {}
                }
                reader.consume(size);
                refilled = false;
            }
            Err(PcapError::Incomplete(_)) if !refilled => {
                reader.refill().expect("memory can be read");
                refilled = true;
            }
            Err(_) => return Some(packets),
        }
    }
}

/// Captures whose version matters: pcap before 2.4 has its lengths in another order, pcapng 0.1 and 1.1 do not exist.
/// pcap-parser ignores versions; tcpdump and capinfos check them, and get our counts.
const VERSIONS: &[&str] =
    &["ndpi--fuzz-2021-10-13", "libpcap--pcapng-invalid-vers-1", "libpcap--pcapng-invalid-vers-2"];

#[test]
fn pcap_parser_sees_the_same_packets_in_the_corpus() {
    let Some(corpus) = super::corpus("the corpus against pcap-parser") else { return };
    let (mut compared, mut wrong) = (0, Vec::new());
    for capture in manifest(&corpus) {
        let id = capture["id"].as_str();
        let bytes = load(&corpus.join(&capture["path"]));
        let ours = read(&bytes, AS_WRITTEN).map(|outcome| outcome.packets).unwrap_or_default();
        let Some(theirs) = by_pcap_parser(&bytes) else { continue };
        let unit = if bytes.starts_with(b"\x4d\x3c\xb2\xa1") { 1 } else { 1000 };
        let is_pcap = !bytes.starts_with(b"\x0a\x0d\x0d\x0a");
        let same = ours.len() == theirs.len()
            && ours.iter().zip(&theirs).all(|(our, (units, wire_len, data))| {
                let same_time = !is_pcap || *units >= 1_000_000 || our.ts_ns % 1_000_000_000 == units * unit;
                same_time && (our.wire_len, &our.data) == (*wire_len, data)
            });
        match VERSIONS.contains(&id) {
            true => assert!(!same, "{id} needs no exception"),
            false if !same => wrong.push(format!("{id}: {} packets, {} there", ours.len(), theirs.len())),
            false => compared += ours.len(),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 190_000, "only {compared} packets were compared");
}

/// The packets that libpcap reads from a capture: tcpdump reads it and writes it as nanosecond pcap. `None` where
/// tcpdump is not installed; an error where it refuses the capture.
fn by_tcpdump(bytes: &[u8]) -> Option<Result<Vec<Got>, String>> {
    let child = Command::new("tcpdump")
        .args(["--nano", "-r", "-", "-w", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        println!("left out: comparison with tcpdump (not installed)");
        return None;
    };
    let mut stdin = child.stdin.take().expect("it is piped");
    let input = bytes.to_vec();
    // tcpdump may refuse the capture and close the pipe early, which its exit status shows.
    let feeder = std::thread::spawn(move || stdin.write_all(&input).is_ok());
    let (mut stdout, mut stderr) = (Vec::new(), String::new());
    child.stdout.take().expect("it is piped").read_to_end(&mut stdout).expect("tcpdump writes");
    child.stderr.take().expect("it is piped").read_to_string(&mut stderr).expect("tcpdump writes text");
    feeder.join().expect("the feeder ends");
    if !child.wait().expect("tcpdump ends").success() {
        return Some(Err(stderr));
    }
    let outcome = read(&stdout, AS_WRITTEN).expect("tcpdump writes good captures");
    assert!(outcome.error.is_none());
    Some(Ok(outcome.packets))
}

/// Time, lengths and bytes; interfaces and flags are lost in conversion to pcap, and so are times after 2106.
fn essence(packets: &[Got]) -> Vec<(u64, u32, &[u8])> {
    packets.iter().map(|p| (p.ts_ns % (1_000_000_000 << 32), p.wire_len, &p.data[..])).collect()
}

#[test]
fn libpcap_reads_hand_made_captures_the_same_way() {
    let mut captures = Vec::new();
    for order in [Little, Big] {
        for (magic, extra) in [(MICRO, 0), (NANO, 0), (MODIFIED, 8)] {
            for (version, lengths) in [
                ((2, 4), [4, 60]),
                ((2, 3), [4, 60]),
                ((2, 3), [60, 4]),
                ((2, 2), [60, 4]),
                ((543, 0), [60, 4]),
            ] {
                let mut file = order.pcap(magic, version, 65535, 1);
                for number in 0..3 {
                    let header = [1_700_000_000, number, lengths[0], lengths[1]];
                    file.extend(order.pcap_packet(header, &[0xee; 8][..extra], b"abcd"));
                }
                captures.push((format!("{order:?} {magic:#x} {version:?} {lengths:?}"), file));
            }
        }
        for resolution in [0, 3, 6, 9, 12, 19, 0x80, 0x80 | 10, 0x80 | 20, 0x80 | 32, 0x80 | 63] {
            let options = [
                order.option(2, b"eth0"),
                order.option(9, &[resolution]),
                order.option(14, &order.n64(1000)),
            ];
            let units = 1_700_000_000;
            let file = [
                order.section(),
                order.interface(1, 65535, &options.concat()),
                order.enhanced(0, units, b"abcde", 99, &order.option(1, b"comment")),
                order.obsolete(0, units * 2, b"abcdef", 6),
                order.block(0xbad, b"unknown"),
                // libpcap assigns the interface's time offset to a simple packet, which has no time; we assign no time.
                order.section(),
                order.interface(1, 65535, &[]),
                order.simple(b"abc", 3),
            ];
            captures.push((format!("{order:?} resolution {resolution:#x}"), file.concat()));
        }
    }
    for (name, capture) in captures {
        let ours = read(&capture, AS_WRITTEN).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(ours.error.is_none(), "{name}: {:?}", ours.error);
        let Some(theirs) = by_tcpdump(&capture) else { return };
        let theirs = theirs.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(essence(&ours.packets), essence(&theirs), "{name}");
    }
}

#[test]
fn libpcap_reads_the_pcapng_files_of_the_corpus_the_same_way() {
    let Some(corpus) = super::corpus("the pcapng files of the corpus against tcpdump") else { return };
    let mut compared = 0;
    for capture in manifest(&corpus) {
        let id = &capture["id"];
        let bytes = load(&corpus.join(&capture["path"]));
        if !bytes.starts_with(b"\x0a\x0d\x0d\x0a") && capture["category"] != "fileformat" {
            continue;
        }
        let Some(theirs) = by_tcpdump(&bytes) else { return };
        // Captures that tcpdump refuses are in the table of exceptions, or are damaged.
        let Ok(theirs) = theirs else { continue };
        let ours = read(&bytes, AS_WRITTEN).expect("tcpdump opens it");
        assert_eq!(essence(&ours.packets), essence(&theirs), "{id}");
        compared += 1;
    }
    assert!(compared > 50, "only {compared} captures were compared");
}
