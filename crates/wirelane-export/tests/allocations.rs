//! Neither reading nor writing a packet allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Cursor, Write};
use std::time::Duration;

use wirelane::{FileOptions, FileSource};
use wirelane_export::recorder::{Format, Keep, Packet, Recording, RecordingOptions, Rotation};
use wirelane_export::{Direction, Interface, PcapWriter, PcapngWriter, SectionInfo};

/// The system's allocator, counting per thread, since the test runner allocates in others.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator with the arguments that came in, so its guarantees are ours.
// The counter is a thread-local without a destructor and never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps to the contract of alloc.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from System, through alloc or realloc above and below.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the pointer came from System, and the caller keeps to the contract of realloc.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

const PACKETS: u64 = 20_000;

/// Writes packets to preallocated memory, and returns the number of allocations.
fn write_all(file: &mut Vec<u8>, pcapng: bool) -> u64 {
    let data = [7; 500];
    let length = |number: u64| (number % 500) as usize;
    let mut output = Cursor::new(file);
    let allocated = if pcapng {
        let mut writer = PcapngWriter::new(&mut output, &SectionInfo::default()).unwrap();
        writer.add_interface(&Interface { link_number: 1, ..Interface::default() }).unwrap();
        let before = allocations();
        for number in 0..PACKETS {
            let direction = (number % 2 == 0).then_some(Direction::Outbound);
            writer.write_packet(0, number, &data[..length(number)], 500, direction).unwrap();
        }
        allocations() - before
    } else {
        let mut writer = PcapWriter::new(&mut output, 1, 0).unwrap();
        let before = allocations();
        for number in 0..PACKETS {
            writer.write_packet(1, number, &data[..length(number)], 500).unwrap();
        }
        allocations() - before
    };
    output.flush().unwrap();
    allocated
}

#[test]
fn a_recorder_does_not_allocate_in_its_workers_thread() {
    let folder = tempfile::tempdir().unwrap();
    for (name, format) in [("file.pcapng", Format::Pcapng), ("file.pcap", Format::Pcap)] {
        let options = RecordingOptions {
            path: folder.path().join(name),
            format,
            rotation: Rotation { size: Some(1 << 20), ..Rotation::default() },
            keep: Keep { files: Some(2), bytes: None },
            zstd_level: None,
            direct_io: false,
            overwrite: false,
            stop_on_error: false,
            workers: 1,
            live: true,
        };
        let (recording, mut recorders) = Recording::begin(options, &SectionInfo::default(), None).unwrap();
        let mut recorder = recorders.pop().unwrap();
        let interface = Interface { link_number: 1, ..Interface::default() };
        let interface = recorder.add_interface(0, &interface).unwrap();
        let data = [7; 500];
        let mut write = |number: u64| {
            let data = &data[..(number % 500) as usize];
            recorder
                .packet(&Packet {
                    interface,
                    ts_ns: number,
                    data,
                    wire_len: 500,
                    direction: None,
                    aggregate: None,
                    checksum: None,
                })
                .unwrap();
            if number.is_multiple_of(100) {
                recorder.pause(number.is_multiple_of(1000)).unwrap();
            }
        };
        // The first packet of a pcap file determines its link type.
        write(0);
        let before = allocations();
        for number in 1..=PACKETS {
            write(number);
        }
        assert_eq!(allocations() - before, 0, "{name}");
        let (counts, result) = recording.end(vec![recorder]);
        result.unwrap();
        assert_eq!((counts.written, counts.unwritten), (PACKETS + 1, 0));
        assert!(counts.files > 4 && counts.files - counts.files_removed == 2, "{counts:?}");
    }
}

#[test]
fn no_allocation_per_packet() {
    for pcapng in [true, false] {
        let mut file = Vec::with_capacity(16 << 20);
        assert_eq!(write_all(&mut file, pcapng), 0);
        assert!(file.len() > 5 << 20, "the packets are there");

        let mut source =
            FileSource::from_reader(Cursor::new(file), "memory", FileOptions::as_written()).unwrap();
        let mut packets = 0;
        let mut before = None;
        while let Some(batch) = source.next_batch(Duration::ZERO).unwrap() {
            packets += batch.count() as u64;
            // The first batch may size the buffers and the counters.
            before.get_or_insert_with(allocations);
        }
        assert_eq!(packets, PACKETS);
        assert_eq!(allocations(), before.expect("there was a batch"));
    }
}
