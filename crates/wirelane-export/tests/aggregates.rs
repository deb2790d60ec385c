//! Aggregates of GRO and GSO in recordings: marked by a comment, which tshark shows and `FileSource` reads.

use std::io::Cursor;
use std::process::Command;
use std::time::Duration;

use wirelane::{FileOptions, FileSource, linktype};
use wirelane_export::{Aggregate, Direction, Interface, PcapngWriter, SectionInfo};

const HEADERS: u16 = 54;
const SEGMENT: u16 = 1000;
/// 2,500 bytes of payload are three packets on the wire.
const LENGTH: u32 = 54 + 2500;
const AGGREGATE: Aggregate = Aggregate { packets: 3, headers: HEADERS, segment_size: SEGMENT };

fn recording(aggregates: &[Option<Aggregate>]) -> Vec<u8> {
    let mut writer = PcapngWriter::new(Vec::new(), &SectionInfo::default()).unwrap();
    writer.add_interface(&Interface { link_number: linktype::ETHERNET, ..Interface::default() }).unwrap();
    for (number, aggregate) in aggregates.iter().enumerate() {
        // All amounts of padding.
        let data = [0; 60];
        let data = &data[..57 + number % 4];
        writer
            .write_aggregate(0, number as u64, data, LENGTH, Some(Direction::Outbound), *aggregate)
            .unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn an_aggregate_counts_as_its_packets_when_it_is_read_back() {
    let most = Aggregate { packets: u32::from(u16::MAX), headers: u16::MAX, segment_size: u16::MAX };
    let bytes = recording(&[Some(AGGREGATE), None, Some(AGGREGATE), Some(AGGREGATE), Some(most)]);
    let mut source = FileSource::from_reader(Cursor::new(bytes), "capture", FileOptions::default()).unwrap();
    let mut seen = Vec::new();
    while let Some(batch) = source.next_batch(Duration::ZERO).unwrap() {
        seen.extend(batch.map(|record| (record.segments(), record.wire_bytes(), record.segment_size())));
    }
    let (whole, aggregate) = ((1, 2554, (0, 0)), (3, 2554 + 2 * 54, (SEGMENT, HEADERS)));
    // The last one contradicts its length, and counts as one packet.
    assert_eq!(seen, [aggregate, whole, aggregate, aggregate, whole]);
    let counters = source.counters(0);
    assert_eq!((counters.read_packets, counters.analysed_packets), (11, 11));
    assert_eq!((counters.read_bytes, counters.analysed_bytes), (5 * 2554 + 6 * 54, 5 * 2554 + 6 * 54));
}

#[test]
fn tshark_shows_the_mark() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("aggregates.pcapng");
    std::fs::write(&file, recording(&[Some(AGGREGATE), None, Some(AGGREGATE), Some(AGGREGATE)])).unwrap();
    let words = ["-T", "fields", "-e", "frame.packet_flags_direction", "-e", "frame.comment", "-r"];
    let Ok(output) = Command::new("tshark").args(words).arg(&file).output() else {
        println!("left out: tshark_shows_the_mark (there is no tshark)");
        return;
    };
    let mark = "aggregate of 3 packets, each of 54 bytes of headers and at most 1000 of payload";
    let expected = [mark, "", mark, mark].map(|mark| format!("0x00000002\t{mark}\n")).concat();
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
}
