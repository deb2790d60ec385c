//! Files that are out of time order.

use std::os::fd::AsRawFd as _;
use std::time::Duration;

use super::build::{Little, MICRO};
use super::read;
use crate::engine::file::{Disorder, FileOptions, FileSource};

/// A pcap file of packets with these times, in seconds, whose only byte is their number.
fn pcap(seconds: &[u32]) -> Vec<u8> {
    let mut file = Little.pcap(MICRO, (2, 4), 65535, 1);
    for (number, &seconds) in seconds.iter().enumerate() {
        file.extend(Little.pcap_packet([seconds, 0, 1, 1], &[], &[number as u8]));
    }
    file
}

fn numbers(packets: &[super::Got]) -> Vec<u8> {
    packets.iter().map(|packet| packet.data[0]).collect()
}

#[test]
fn packets_come_in_the_order_of_their_stamps_and_those_with_equal_stamps_in_the_order_of_the_file() {
    let outcome = read(&pcap(&[5, 1, 5, 0, 3, 1, 9]), FileOptions::default()).expect("the header is good");
    assert_eq!(numbers(&outcome.packets), [3, 1, 5, 4, 0, 2, 6]);
    assert_eq!(outcome.source.disorder(), Disorder { records: 4, beyond: 0 });
    let ordered = read(&pcap(&[1, 1, 2, 3]), FileOptions::default()).expect("the header is good");
    assert_eq!(ordered.source.disorder(), Disorder::default());
}

#[test]
fn what_lies_before_damage_is_sorted_and_delivered_before_the_error() {
    let mut file = pcap(&[2, 1]);
    file.extend([1, 2, 3]);
    let outcome = read(&file, FileOptions::default()).expect("the header is good");
    assert_eq!(numbers(&outcome.packets), [1, 0]);
    assert_eq!(outcome.damage().0, file.len() as u64 - 3);
}

#[test]
fn interfaces_are_merged() {
    let mut file = [Little.section(), Little.interface(1, 0, &[]), Little.interface(1, 0, &[])].concat();
    for (interface, time) in [(0, 1), (0, 3), (1, 2), (1, 4)] {
        file.extend(Little.packet(interface, time, &[time as u8]));
    }
    let outcome = read(&file, FileOptions::default()).expect("the header is good");
    assert_eq!(numbers(&outcome.packets), [1, 2, 3, 4]);
    assert_eq!(outcome.packets.iter().map(|packet| packet.device).collect::<Vec<_>>(), [0, 1, 0, 1]);
}

#[test]
fn a_pipe_yields_what_has_come_when_nothing_follows() {
    let (reader, mut writer) = std::io::pipe().expect("pipes");
    let mut writes = |bytes: &[u8]| std::io::Write::write_all(&mut writer, bytes).expect("the pipe takes it");
    let file = pcap(&[2, 1, 3]);
    let (first, last) = file.split_at(24 + 2 * 17);
    writes(first);
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    let mut source = FileSource::open(path.as_ref(), FileOptions::default()).expect("the header has come");
    let mut next = || {
        let batch = source.next_batch(Duration::from_secs(5)).expect("no damage").expect("no end");
        batch.map(|record| record.data()[0]).collect::<Vec<_>>()
    };
    assert_eq!(next(), [1, 0]);
    writes(last);
    assert_eq!(next(), [2]);
}
