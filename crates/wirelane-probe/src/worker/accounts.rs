//! For any packets, flow parts, times, configurations and orders: the probe holds nothing once all workers and the
//! reader have ended.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use wirelane::{FileOptions, FileSource};

use super::*;
use crate::{Caught, Changes, Config, Reader, Wanted};

const WORKERS: usize = 2;
const SECOND: u64 = 1_000_000_000;
/// Bytes per packet in a file in addition to its data.
const ASIDE: u64 = 44;

/// A configuration that uses every table of a worker.
const TEXT: &str = "[[measurement]]\nname = \"sources\"\nkey = [\"src\"]\nkeys = 5\n\
    values = [\"packets\", \"segments\", \"macs\", \"distinct-dst\", \"keys\", \"entropy\"]\n\
    [[measurement]]\nname = \"applications\"\nkey = [\"application\"]\nvalues = [\"packets\"]\n\
    [[measurement]]\nname = \"sums\"\nkey = [\"src\", \"dst\"]\nvalues = [\"packets\", \"bytes\"]\n\
    [[alarm]]\nname = \"many\"\nmeasurement = \"sources\"\nvalue = \"packets\"\nabove = 3\n\
    actions = [\"keep\"]\n\
    [[alarm]]\nname = \"rises\"\nmeasurement = \"sums\"\nvalue = \"bytes\"\nrises = 50\nleast = 1\n\
    [[action]]\nname = \"keep\"\nrecord = { folder = \"x\", before = \"2s\", after = \"1s\", buffer = \"4KiB\" }\n\
    [[schedule]]\nname = \"often\"\nevery = \"5s\"\nflush = true\n";
/// A configuration whose packets are added up before they are counted.
const SUMS: &str = "interval = \"2s\"\n[[measurement]]\nname = \"sums\"\nkey = [\"src\", \"dst\"]\nkeys = 5\n\
    values = [\"packets\", \"bytes\"]\n[[alarm]]\nname = \"many\"\nmeasurement = \"sums\"\nvalue = \"packets\"\nabove = 3\n";

/// Frames of ARP, DNS and TCP between a few hosts.
fn frames() -> Vec<Vec<u8>> {
    let ethernet = |eth_type: u16, payload: &[u8]| {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        frame.extend(eth_type.to_be_bytes());
        frame.extend(payload);
        frame.resize(frame.len().max(60), 0);
        frame
    };
    let ip = |host: u8, proto: u8, payload: &[u8]| {
        let mut packet =
            vec![0x45, 0, 0, 20 + payload.len() as u8, 0, 0, 0, 0, 64, proto, 0, 0, 10, 0, 0, host];
        packet.extend([10, 0, 0, 99]);
        packet.extend(payload);
        ethernet(0x0800, &packet)
    };
    let mut frames = Vec::new();
    for host in 0..10 {
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, host, 10, 0, 0, host, 2, 0, 0, 0, 0, 2];
        arp.extend([10, 0, 0, 99]);
        frames.push(ethernet(0x0806, &arp));
        let dns =
            [0x9c, host, 0, 53, 0, 27, 0, 0, 1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1];
        frames.push(ip(host, 17, &dns));
        for (flags, text) in [(0x02, &b""[..]), (0x18, b"GET / HTTP/1.1\r\n\r\n"), (0x18, b"x"), (0x14, b"")]
        {
            let mut segment =
                vec![0x9c, host, 0, 80, 0, 0, 0, host, 0, 0, 0, 0, 0x50, flags, 1, 0, 0, 0, 0, 0];
            segment.extend(text);
            frames.push(ip(host, 6, &segment));
        }
    }
    frames
}

fn write(path: &Path, frames: &[Vec<u8>]) {
    let mut pcap: Vec<u8> = Vec::new();
    for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        pcap.extend(word.to_le_bytes());
    }
    for frame in frames {
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            pcap.extend(word.to_le_bytes());
        }
        pcap.extend(frame);
    }
    std::fs::File::create(path).and_then(|mut file| file.write_all(&pcap)).unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    /// A frame of this index.
    Packet(usize),
    /// A flow part of this host and so many packets.
    Part(u8, u64),
    Tick,
    /// The worker adopts the active plan.
    Pause,
    /// Another configuration.
    Replace(bool),
    /// Another threshold.
    Set(u32),
    /// Packets of the plan with this number, from so long ago, for so long, of so many bytes.
    Order(u64, u64, u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let order = (0..3u64, 0..20 * SECOND, 0..20 * SECOND, 0..5000u64);
    prop_oneof![
        20 => (0..60usize).prop_map(Step::Packet),
        4 => (any::<u8>(), 1..1000u64).prop_map(|(host, packets)| Step::Part(host, packets)),
        2 => Just(Step::Tick),
        2 => Just(Step::Pause),
        1 => any::<bool>().prop_map(Step::Replace),
        1 => (1..50u32).prop_map(Step::Set),
        2 => order.prop_map(|(plan, before, after, most)| Step::Order(plan, before, after, most)),
    ]
}

fn plan(text: &str) -> Plan {
    Plan::new(Config::parse(text, Path::new("probe.toml")).unwrap_or_else(|mistakes| panic!("{mistakes}")), 5)
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Battery: L6
    #[test]
    fn nothing_is_held_once_a_probe_has_ended(
        steps in prop::collection::vec(
            (step(), 0..WORKERS, prop_oneof![12 => 0..300_000_000u64, 3 => 0..9 * SECOND, 1 => any::<u64>()]),
            0..500,
        ),
        sums: bool,
        // Otherwise it fails: it is dropped.
        last_finishes: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.pcap");
        write(&path, &frames());
        let mut source = FileSource::open(&path, FileOptions::as_written()).unwrap();
        let records: Vec<Record<'_>> = source.next_batch(Duration::ZERO).unwrap().unwrap().collect();
        prop_assert_eq!(records.len(), 60);

        let mut text = if sums { SUMS } else { TEXT }.to_owned();
        let switches = Arc::new(Switches::new(plan(&text)));
        let caught: Arc<Mutex<Vec<Caught>>> = Arc::default();
        let sink = Arc::clone(&caught);
        let orders = Arc::new(Orders::new(WORKERS, Box::new(move |one| sink.lock().unwrap().push(one))));
        let reader = Arc::new(Mutex::new(Reader::new(WORKERS)));
        let mut workers: Vec<Worker> = (0..WORKERS)
            .map(|index| {
                let reader = Arc::clone(&reader);
                let outlet = Box::new(move |closed| {
                    reader.lock().unwrap().take(closed);
                    true
                });
                let mut worker = Worker::new(index, Arc::clone(&switches), false, outlet);
                worker.catch(Arc::clone(&orders));
                worker
            })
            .collect();

        let (mut ts_ns, mut packets, mut most_of) = (1_700_000_000 * SECOND, 0, BTreeMap::new());
        for (step, index, wait) in steps {
            ts_ns = ts_ns.wrapping_add(wait);
            let worker = &mut workers[index];
            match step {
                Step::Packet(number) => {
                    packets += 1;
                    worker.record(&records[number], ts_ns);
                }
                Step::Part(host, more) => {
                    packets += more;
                    let mut key = FlowKey { l3: l3::IPV4, proto: 17, vlan: NO_VLAN, ..FlowKey::default() };
                    key.src[0] = host;
                    worker.part(&key, &Flow { packets: more, wire_bytes: 60 * more, ..Flow::default() }, 0, ts_ns);
                }
                Step::Tick => prop_assert!(worker.tick(ts_ns)),
                Step::Pause => prop_assert!(worker.pause()),
                Step::Replace(sums) => {
                    text = if sums { SUMS } else { TEXT }.to_owned();
                    switches.replace(plan(&text));
                }
                Step::Set(above) => {
                    let changes = Changes::parse(&[format!("alarm.many.above={above}")]).unwrap();
                    let changed = changes.apply(&text, Path::new("probe.toml")).unwrap();
                    switches.change(&changed).unwrap();
                    text = changed.text;
                }
                Step::Order(generation, before, after, most) => {
                    let (from_ns, to_ns) = (ts_ns.saturating_sub(before), ts_ns.saturating_add(after));
                    let number = orders.post(Wanted { generation, from_ns, to_ns, rule: None, most });
                    most_of.insert(number, most);
                }
            }
        }
        let last = workers.pop().unwrap();
        for mut worker in workers {
            prop_assert!(worker.finish());
            prop_assert!(worker.open.is_empty());
            prop_assert!(worker.catching.as_ref().unwrap().is_empty());
            worker.parts.drain(|part| panic!("{part:?} was not counted"));
        }
        if last_finishes {
            let mut last = last;
            prop_assert!(last.finish());
            let (_, totals) = reader.lock().unwrap().finish(&[]);
            prop_assert_eq!(totals.packets, packets);
        } else {
            drop(last);
            reader.lock().unwrap().finish(&[]);
        }
        prop_assert_eq!(reader.lock().unwrap().held(), 0);
        prop_assert_eq!(orders.waiting(), 0);
        let mut taken: BTreeMap<u64, (usize, u64)> = BTreeMap::new();
        for one in caught.lock().unwrap().iter() {
            let of = taken.entry(one.order).or_default();
            let bytes: u64 = one.heads.iter().map(|head| u64::from(head.captured)).sum();
            prop_assert_eq!(bytes, one.bytes.len() as u64);
            *of = (of.0 + 1, of.1 + bytes + ASIDE * one.heads.len() as u64);
        }
        prop_assert_eq!(taken.len(), most_of.len());
        for (number, (parts, bytes)) in taken {
            prop_assert_eq!(parts, WORKERS, "order {}", number);
            prop_assert!(bytes <= most_of[&number], "order {}: {} bytes", number, bytes);
        }
    }
}
