//! pcapng with any times, resolutions, offsets and lengths through every analysis: no overflow, and each analysis
//! counts every packet once.
//!
//! Input: the resolution of times (if_tsresol), their offset in seconds (8 bytes), then packets: a byte of lengths (1: much
//! longer on the wire), the time (8 bytes), the captured length (two bytes), the bytes.
#![no_main]

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use wirelane::{FileOptions, FileSource};
use wirelane_analysis::flows::{CacheSettings, FlowCache, FlowReader};
use wirelane_analysis::http::{HttpSettings, HttpTable};
use wirelane_analysis::voip::{LEAST_MEMORY, Monitor, Settings};
use wirelane_export::http::LOG_FORMATS;
use wirelane_probe::{Config, Plan, Switches, Worker};

/// A probe that measures times.
const PROBE: &str = "interval = \"1s\"\n[[measurement]]\nname = \"m\"\nkey = [\"flow\"]\nvalues = [\"lengths\", \"gaps\"]\n\
                     [[measurement]]\nname = \"n\"\nvalues = [\"packets\"]\n";

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().div_ceil(4) * 4;
    let length = (padded + 12) as u32;
    let mut block: Vec<u8> = [kind, length].into_iter().flat_map(u32::to_le_bytes).collect();
    block.extend(body);
    block.resize(padded + 8, 0);
    block.extend(length.to_le_bytes());
    block
}

/// The file, and its number of packets.
fn file(data: &[u8]) -> Option<(Vec<u8>, u64)> {
    let (&resolution, rest) = data.split_first()?;
    let (offset, mut rest) = rest.split_first_chunk::<8>()?;
    let head: Vec<u8> =
        [0x1a2b_3c4du32, 1, u32::MAX, u32::MAX].into_iter().flat_map(u32::to_le_bytes).collect();
    let mut file = block(0x0a0d_0d0a, &head);
    let mut interface = vec![1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, resolution, 0, 0, 0, 14, 0, 8, 0];
    interface.extend(offset);
    interface.extend([0, 0, 0, 0]);
    file.extend(block(1, &interface));
    let mut packets = 0;
    while let Some((lengths, after)) = rest.split_first()
        && let Some((time, after)) = after.split_first_chunk::<8>()
        && let Some((captured, after)) = after.split_first_chunk::<2>()
    {
        let (bytes, behind) =
            after.split_at(usize::from(u16::from_le_bytes(*captured) & 0x0fff).min(after.len()));
        rest = behind;
        let time = u64::from_le_bytes(*time);
        let captured = bytes.len() as u32;
        let wire = if lengths & 1 != 0 { u32::MAX - captured } else { captured };
        let mut body: Vec<u8> = [0, (time >> 32) as u32, time as u32, captured, wire]
            .into_iter()
            .flat_map(u32::to_le_bytes)
            .collect();
        body.extend(bytes);
        file.extend(block(6, &body));
        packets += 1;
    }
    Some((file, packets))
}

/// Removes the flows that have ended, and returns the sum of their packets.
fn packets_of(flows: &mut FlowCache) -> u64 {
    flows.finished().drain(..).map(|flow| flow.flow.packets).sum()
}

/// Writes the finished transactions in each log format.
fn log(http: &mut HttpTable) {
    for transaction in http.finished().drain() {
        for (_, format) in LOG_FORMATS {
            format.line(&mut Vec::new(), 0, &transaction, &[]);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((file, packets)) = file(data) else { return };
    let mut source = FileSource::from_reader(Cursor::new(file), "fuzzed", FileOptions::as_written())
        .expect("the file begins as one");
    let mut flows = FlowCache::new(CacheSettings { memory: 0, ..CacheSettings::default() });
    let mut reader = FlowReader::new(true);
    let mut http = HttpTable::new(HttpSettings { memory: 0, ..HttpSettings::default() });
    let mut calls = Monitor::new(Settings { memory: LEAST_MEMORY, heuristic: true, ..Settings::default() });
    let config = Config::parse(PROBE, Path::new("p.toml")).expect("it is one");
    let switches = Arc::new(Switches::new(Plan::new(config, 7).expect("it can be used")));
    let mut probe = Worker::new(0, switches, true, Box::new(|_| true));
    let (mut read, mut exported) = (0, 0);
    while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
        for record in batch {
            let ts_ns = record.header().ts_ns;
            let (ip, packet) = reader.read(&record, ts_ns);
            flows.packet(ip, &packet);
            let _ = flows.tick(ts_ns);
            exported += packets_of(&mut flows);
            http.record(&record, ts_ns);
            let _ = http.tick(ts_ns);
            log(&mut http);
            calls.record(&record, ts_ns);
            let _ = calls.tick(ts_ns);
            calls.finished().drain().for_each(drop);
            assert!(probe.record(&record, ts_ns));
            read += 1;
        }
    }
    assert!(read <= packets);
    while flows.flush() {
        exported += packets_of(&mut flows);
    }
    exported += packets_of(&mut flows);
    assert_eq!((flows.totals().packets, exported), (read, read));
    while http.flush() {
        log(&mut http);
    }
    log(&mut http);
    assert_eq!((http.totals().packets, http.held()), (read, 0));
    while calls.flush() {
        calls.finished().drain().for_each(drop);
    }
    calls.finished().drain().for_each(drop);
    assert_eq!((calls.counts().packets(), calls.memory() + calls.held()), (read, 0));
    assert!(probe.finish());
});
