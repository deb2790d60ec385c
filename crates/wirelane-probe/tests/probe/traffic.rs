//! Generated packets, and the results of a probe.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use wirelane::{FileOptions, FileSource};
use wirelane_probe::{AlarmEvent, Config, Event, Plan, Reader, Switches, Totals, Worker};

/// Start of captures: 2023-11-14T22:13:20Z, a Tuesday.
pub const START_NS: u64 = 1_700_000_000 * SECOND;
pub const SECOND: u64 = 1_000_000_000;
pub const MS: u64 = 1_000_000;

/// A frame with its time since [`START_NS`].
pub type Timed = (u64, Vec<u8>);

fn ethernet(mac: u8, eth_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, mac];
    frame.extend(eth_type.to_be_bytes());
    frame.extend(payload);
    frame.resize(frame.len().max(60), 0);
    frame
}

fn ipv4(src: u32, dst: u32, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((20 + payload.len() as u16).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
    packet.extend(src.to_be_bytes());
    packet.extend(dst.to_be_bytes());
    packet.extend(payload);
    ethernet(1, 0x0800, &packet)
}

/// An address of 10.0.0.0/8.
pub fn host(number: u32) -> u32 {
    0x0a00_0000 + number
}

/// Text of an address.
pub fn shown(address: u32) -> String {
    Ipv4Addr::from(address).to_string()
}

pub fn udp(src: u32, dst: u32, ports: (u16, u16), length: usize) -> Vec<u8> {
    udp_with(src, dst, ports, &vec![0x55; length])
}

pub fn udp_with(src: u32, dst: u32, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    for number in [ports.0, ports.1, 8 + payload.len() as u16, 0] {
        datagram.extend(number.to_be_bytes());
    }
    datagram.extend(payload);
    ipv4(src, dst, 17, &datagram)
}

pub const SYN: u8 = 0x02;
pub const SYN_ACK: u8 = 0x12;
pub const ACK: u8 = 0x10;

pub fn tcp(src: u32, dst: u32, ports: (u16, u16), flags: u8, seq: u32, length: usize) -> Vec<u8> {
    tcp_with(src, dst, ports, flags, seq, &vec![0x55; length])
}

pub fn tcp_with(src: u32, dst: u32, ports: (u16, u16), flags: u8, seq: u32, payload: &[u8]) -> Vec<u8> {
    let mut segment = Vec::new();
    segment.extend(ports.0.to_be_bytes());
    segment.extend(ports.1.to_be_bytes());
    segment.extend(seq.to_be_bytes());
    segment.extend([0, 0, 0, 0, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    segment.extend(payload);
    ipv4(src, dst, 6, &segment)
}

/// An ARP reply: this address belongs to the card with this last byte.
pub fn arp(mac: u8, address: u32) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, mac];
    packet.extend(address.to_be_bytes());
    packet.extend([2, 0, 0, 0, 0, 2]);
    packet.extend(host(254).to_be_bytes());
    ethernet(mac, 0x0806, &packet)
}

/// Writes these frames to a capture file.
pub fn write(path: &Path, frames: &[Timed]) {
    let mut pcap: Vec<u8> = Vec::new();
    for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        pcap.extend(word.to_le_bytes());
    }
    for (ns, frame) in frames {
        let (at, length) = (START_NS + ns, frame.len() as u32);
        for word in [(at / SECOND) as u32, (at % SECOND) as u32, length, length] {
            pcap.extend(word.to_le_bytes());
        }
        pcap.extend(frame);
    }
    std::fs::File::create(path).and_then(|mut file| file.write_all(&pcap)).unwrap();
}

/// Output of a probe.
#[derive(Default)]
pub struct Said {
    /// Results of intervals and totals.
    pub shown: Vec<Value>,
    pub alarms: Vec<AlarmEvent>,
    pub logs: Vec<String>,
    pub runs: Vec<Vec<String>>,
    pub totals: Totals,
}

impl Said {
    fn hear(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Shown(shown) => self.shown.push(serde_json::to_value(shown).unwrap()),
                Event::Alarm(alarm) => self.alarms.push(alarm),
                Event::Log(line) => self.logs.push(line),
                Event::Run { words, .. } => self.runs.push(words),
                Event::Record(_) | Event::Export(..) => {}
            }
        }
    }

    /// Results of a measurement: of its intervals, or its totals.
    pub fn of(&self, measurement: &str, total: bool) -> Vec<&Value> {
        self.shown.iter().filter(|one| one["measurement"] == measurement && one["total"] == total).collect()
    }

    /// `alarm state key`, in order.
    pub fn alarms(&self) -> Vec<String> {
        let line = |one: &AlarmEvent| format!("{} {} {}", one.alarm, one.state.name(), one.key_text);
        self.alarms.iter().map(|one| line(one).trim_end().to_owned()).collect()
    }
}

/// Parses a valid configuration.
pub fn config(text: &str) -> Config {
    Config::parse(text, Path::new("probe.toml")).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

/// Runs a probe over files with this many workers: packets are steered by flow hash. `pause` is called before each
/// batch; then all workers check for a new plan.
pub fn probe_files(
    config: Config,
    files: &[std::path::PathBuf],
    workers: usize,
    pause: impl FnMut(&Switches, u64),
) -> Said {
    probe_files_in_turn(config, files, workers, pause, |_, _| true)
}

/// The same, but workers check for a new plan only before some batches.
pub fn probe_files_in_turn(
    config: Config,
    files: &[std::path::PathBuf],
    workers: usize,
    mut pause: impl FnMut(&Switches, u64),
    looks: impl Fn(usize, u64) -> bool,
) -> Said {
    let switches = Arc::new(Switches::new(Plan::new(config, 5).unwrap()));
    let said = Arc::new(Mutex::new((Reader::new(workers), Said::default())));
    let outlet = || {
        let said = Arc::clone(&said);
        Box::new(move |closed| {
            let mut said = said.lock().unwrap();
            let events = said.0.take(closed);
            said.1.hear(events);
            true
        })
    };
    let mut all: Vec<Worker> =
        (0..workers).map(|index| Worker::new(index, Arc::clone(&switches), false, outlet())).collect();
    let (mut packets, mut batches) = (0, 0);
    for file in files {
        let Ok(mut source) = FileSource::open(file, FileOptions::as_written()) else { continue };
        while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
            pause(&switches, packets);
            for (index, worker) in all.iter_mut().enumerate().filter(|(index, _)| looks(*index, batches)) {
                assert!(worker.pause(), "worker {index}");
            }
            batches += 1;
            for record in batch {
                packets += 1;
                let worker = record.header().hash as usize % workers;
                assert!(all[worker].record(&record, record.header().ts_ns));
            }
        }
    }
    all.iter_mut().for_each(|worker| assert!(worker.finish()));
    drop(all);
    let (mut reader, mut said) = Arc::into_inner(said).unwrap().into_inner().unwrap();
    let (events, totals) = reader.finish(&[]);
    said.hear(events);
    said.totals = totals;
    assert_eq!(said.totals.packets, packets, "every packet is counted once");
    said
}

/// Runs a probe over these frames.
pub fn probe(text: &str, frames: &[Timed]) -> Said {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    write(&path, frames);
    probe_files(config(text), &[path], 1, |_, _| {})
}
