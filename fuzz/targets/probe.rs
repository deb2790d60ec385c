//! Probe configurations: any text is valid or has mistakes with positions; a valid one counts each packet once, with
//! one worker or with two.
//!
//! Input: the length of the text (two bytes), the text, a packet, which is repeated a few times.
#![no_main]

use std::io::Cursor;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use wirelane::rules::Room;
use wirelane::{FileOptions, FileSource};
use wirelane_probe::config::describe;
use wirelane_probe::{Config, Event, Plan, Reader, Switches, Worker};

/// Packets and bytes of totals, by measurement.
type Sums = Vec<(String, u64, u64)>;

fn sums(config: Config, pcap: &[u8], workers: usize) -> Sums {
    let switches = Arc::new(Switches::new(Plan::new(config, 7).expect("what was read can be used")));
    let heard = Arc::new(Mutex::new((Reader::new(workers), Sums::new())));
    let hear = |events: Vec<Event>, sums: &mut Sums| {
        for event in events {
            match event {
                Event::Shown(shown) if shown.total => {
                    sums.push((shown.measurement, shown.packets, shown.bytes))
                }
                Event::Log(line) => assert!(!line.contains(char::is_control)),
                _ => {}
            }
        }
    };
    let mut all: Vec<Worker> = (0..workers)
        .map(|index| {
            let heard = Arc::clone(&heard);
            let outlet = move |closed| {
                let mut heard = heard.lock().expect("nobody panics with it");
                let events = heard.0.take(closed);
                hear(events, &mut heard.1);
                true
            };
            Worker::new(index, Arc::clone(&switches), true, Box::new(outlet))
        })
        .collect();
    let mut source = FileSource::from_reader(Cursor::new(pcap.to_vec()), "fuzzed", FileOptions::as_written())
        .expect("the file begins as one");
    let (mut packets, mut bytes) = (0, 0);
    while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
        for record in batch {
            bytes += u64::from(record.wire_len());
            assert!(all[packets as usize % workers].record(&record, record.header().ts_ns));
            packets += 1;
        }
    }
    all.iter_mut().for_each(|worker| assert!(worker.finish()));
    drop(all);
    let mut heard = heard.lock().expect("nobody panics with it");
    let (events, totals) = heard.0.finish(&[]);
    hear(events, &mut heard.1);
    assert_eq!((totals.packets, totals.bytes), (packets, bytes));
    assert!(heard.1.iter().all(|(_, packets, bytes)| *packets <= totals.packets && *bytes <= totals.bytes));
    std::mem::take(&mut heard.1)
}

fuzz_target!(|data: &[u8]| {
    let [low, high, rest @ ..] = data else { return };
    let (text, packet) = rest.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()));
    let Ok(text) = std::str::from_utf8(text) else { return };
    let config = match Config::parse(text, Path::new("p.toml")) {
        Ok(config) => config,
        Err(mistakes) => {
            assert!(!mistakes.0.is_empty());
            for mistake in &mistakes.0 {
                let line = text.split('\n').nth(mistake.line.saturating_sub(1)).expect("a line of the text");
                assert!(mistake.column <= line.chars().count() + 1, "{mistake:?}");
                assert!(
                    !mistake.reason.is_empty() && !mistake.to_string().contains(char::is_control),
                    "{mistake:?}"
                );
            }
            return;
        }
    };
    assert!(!describe(&config).is_empty());
    if let Some(whole) = config.whole() {
        whole.compile("", &[], Room::UNLIMITED).expect("what was read can be used");
        assert!(whole.rules.len() <= config.rules.rules.len() && config.is_in_kernel());
    }
    // Configurations that may take a GiB for their keys are too slow here.
    if config.rules.rules.len() > 4 || config.measurements.len() > 8 {
        return;
    }
    let mut pcap: Vec<u8> =
        [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65_535, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    for second in [5u32, 5, 4, 900] {
        let length = packet.len().min(2000) as u32;
        pcap.extend([second, 7, length, length].into_iter().flat_map(u32::to_le_bytes));
        pcap.extend(&packet[..length as usize]);
    }
    let one = sums(config.clone(), &pcap, 1);
    // Schedules and alarms switch at interval boundaries, which each worker reaches on its own.
    if config.schedules.is_empty() && config.alarms.is_empty() {
        assert_eq!(one, sums(config, &pcap, 2));
    }
});
