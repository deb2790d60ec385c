use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::{Interface, PcapngWriter, SectionInfo};

/// Writes a file with one interface and packets with these times, whose bytes are the file's number and their own.
fn write(folder: &TempDir, file: usize, name: &str, stamps: &[u64]) -> std::path::PathBuf {
    let mut writer = PcapngWriter::new(Vec::new(), &SectionInfo::default()).unwrap();
    let interface = Interface { name, link_number: 1, ..Interface::default() };
    let interface = writer.add_interface(&interface).unwrap();
    for (number, &stamp) in stamps.iter().enumerate() {
        writer.write_packet(interface, stamp, &[file as u8, number as u8], 2, None).unwrap();
    }
    let path = folder.path().join(format!("{file}.pcapng"));
    std::fs::write(&path, writer.finish().unwrap()).unwrap();
    path
}

fn open(paths: &[std::path::PathBuf]) -> Vec<FileInput> {
    paths.iter().map(|path| FileInput::open(path).unwrap()).collect()
}

/// Time, interface and bytes of a packet.
type Read = (u64, u16, Vec<u8>);

/// The packets up to the end, and the error there.
fn read(merged: &mut MergedReader) -> (Vec<Read>, Option<Error>) {
    let mut packets = Vec::new();
    loop {
        match merged.advance(Duration::ZERO) {
            Ok(Reached::Packet(packet)) => {
                let again = merged.advance(Duration::ZERO).unwrap();
                assert!(matches!(again, Reached::Packet(again) if again.ts_ns == packet.ts_ns));
                packets.push((packet.ts_ns, packet.interface, merged.data(&packet).to_vec()));
                merged.consume(&packet);
            }
            Ok(Reached::Further) => {}
            Ok(Reached::Wait) => panic!("files do not wait"),
            Ok(Reached::End) => return (packets, None),
            Err(error) => return (packets, Some(error)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn files_are_merged_as_sorted_lists_are(
        mut files in prop::collection::vec(prop::collection::vec(0u64..100, 0..20), 1..6)
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut expected = Vec::new();
        let mut paths = Vec::new();
        for (file, stamps) in files.iter_mut().enumerate() {
            stamps.sort_unstable();
            paths.push(write(&folder, file, "eth0", stamps));
            expected.extend(stamps.iter().enumerate().map(|(n, &at)| (at, file as u8, n as u8)));
        }
        expected.sort_unstable();
        let mut merged = MergedReader::read(open(&paths)).unwrap();
        let (packets, error) = read(&mut merged);
        prop_assert!(error.is_none());
        let packets: Vec<_> = packets.iter().map(|(at, _, bytes)| (*at, bytes[0], bytes[1])).collect();
        prop_assert_eq!(packets, expected);
        prop_assert_eq!(merged.interfaces().len(), 1, "equal interfaces are one");
    }
}

#[test]
fn a_file_is_open_from_its_first_packet_to_its_last() {
    let folder = tempfile::tempdir().unwrap();
    // In another order than their times, with a gap between them.
    let paths: Vec<_> = (0..200)
        .map(|n| write(&folder, n, "", &[(199 - n as u64) * 10, (199 - n as u64) * 10 + 5]))
        .collect();
    let mut merged = MergedReader::read(open(&paths)).unwrap();
    assert_eq!(merged.memory(), 0);
    let mut most = 0;
    while let Reached::Packet(_) | Reached::Further = merged.advance(Duration::ZERO).unwrap() {
        most = most.max(merged.memory());
        if let Reached::Packet(packet) = merged.advance(Duration::ZERO).unwrap() {
            merged.consume(&packet);
        }
    }
    assert!((1..=512 << 10).contains(&most), "{most} bytes");
    let progress = merged.progress().unwrap();
    assert_eq!(progress.read(), progress.total());
}

#[test]
fn interfaces_keep_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [
        write(&folder, 0, "eth1@0", &[1, 4]),
        write(&folder, 1, "eth1@1", &[2]),
        write(&folder, 2, "eth1@0", &[3]),
    ];
    let mut merged = MergedReader::read(open(&paths)).unwrap();
    let names: Vec<_> = merged.interfaces().iter().map(|interface| interface.name.clone()).collect();
    assert_eq!(names, ["eth1@0", "eth1@1"]);
    let (packets, _) = read(&mut merged);
    assert_eq!(packets.iter().map(|packet| packet.1).collect::<Vec<_>>(), [0, 1, 0, 0]);
}

#[test]
fn a_damaged_file_ends_alone_and_is_named_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [write(&folder, 0, "a", &[1, 3, 5]), write(&folder, 1, "a", &[2, 4, 6])];
    let whole = std::fs::read(&paths[1]).unwrap();
    std::fs::write(&paths[1], &whole[..whole.len() - 3]).unwrap();
    let mut merged = MergedReader::read(open(&paths)).unwrap();
    let (packets, error) = read(&mut merged);
    assert_eq!(packets.iter().map(|packet| packet.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let error = error.expect("an error at the end").to_string();
    assert!(error.starts_with("1 of 2 files could not be read to the end"), "{error}");
    assert!(error.contains("1.pcapng: at byte"), "{error}");
    assert!(matches!(merged.advance(Duration::ZERO), Ok(Reached::End)));
}

#[test]
fn several_files_are_regular_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(&folder, 0, "a", &[1]);
    let error = MergedReader::read(open(&[file, "/dev/null".into()])).unwrap_err().to_string();
    assert!(error.contains("/dev/null is not a regular file"), "{error}");
    assert!(MergedReader::read(Vec::new()).is_err());
}
