//! In-kernel sums by flow give the same results as the packets one by one: with the functions that lanes run, compiled
//! natively.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use wirelane::rules::{Action, Room, RuleSet, Then};
use wirelane::{FileOptions, FileSource, Record};
use wirelane_analysis::flows::{FlowReader, Timeouts};
use wirelane_bpf::evaluate::{self, NoExact};
use wirelane_bpf::flow_cache::{FirstLevel, FlowPart, Splits};
use wirelane_bpf::native;
use wirelane_bpf::rules::{Facts, LiveCounts};
use wirelane_probe::config::Location;
use wirelane_probe::{Config, Event, Plan, Reader, Switches, Totals, Worker};

use crate::corpus::captures;
use crate::traffic::*;

/// The configuration `ALL`, with intervals of this many milliseconds.
fn all(ms: u64) -> String {
    format!("interval = \"{ms}ms\"\n{ALL}")
}

/// Everything that can be measured in the kernel. `keys` has room for all, as the order of keys differs there.
const ALL: &str = "[[rule]]\nname = \"web\"\nprotocol = [\"tcp\", \"udp\"]\nport = [80, 53, 443]\n\
    [[rule]]\nname = \"not-arp\"\nkind = [\"ipv4\", \"ipv6\"]\nnot.src = \"10.0.0.7\"\n\
    [[measurement]]\nname = \"all\"\nanalysis = \"auto\"\n\
    values = [\"packets\", \"bytes\", \"flows\", \"distinct-src\", \"distinct-dst\", \"distinct-src-port\", \"distinct-dst-port\"]\n\
    [[measurement]]\nname = \"pairs\"\nanalysis = \"kernel\"\nkey = [\"pair\", \"protocol\"]\nkeys = 100000\nshow = 1000000\n\
    values = [\"packets\", \"pps\", \"one-way\", \"keys\", \"entropy\"]\n\
    [[measurement]]\nname = \"ports\"\nanalysis = \"auto\"\nrule = \"web\"\nkey = [\"src\", \"port\", \"vlan\"]\nkeys = 100000\nshow = 1000000\n\
    values = [\"bytes\", \"bps\", \"flows\"]\n\
    [[measurement]]\nname = \"nets\"\nanalysis = \"auto\"\nrule = \"not-arp\"\nkey = [\"dst-net\", \"src-port\", \"device\"]\nkeys = 100000\nshow = 1000000\n\
    values = [\"packets\", \"distinct-src\"]\n\
    [[measurement]]\nname = \"few\"\nanalysis = \"auto\"\nkey = [\"flow\"]\nkeys = 100000\nshow = 1000000\nvalues = [\"packets\", \"bytes\"]\n";

/// Additional measurements in the workers.
const BESIDE: &str = "[[rule]]\nname = \"syn\"\ntcp-flags = \"S/SA\"\n\
    [[measurement]]\nname = \"syns\"\nrule = \"syn\"\nkey = [\"dst\"]\nkeys = 100000\nshow = 1000000\n\
    values = [\"packets\", \"bytes\", \"lengths\"]\n\
    [[measurement]]\nname = \"queues\"\nanalysis = \"user\"\nrule = \"web\"\nkey = [\"src\", \"queue\"]\nkeys = 100000\nshow = 1000000\n\
    values = [\"packets\"]\n\
    [[measurement]]\nname = \"gaps\"\nanalysis = \"auto\"\nrule = \"web\"\nkey = [\"flow\"]\nkeys = 100000\nshow = 1000000\n\
    bin = \"10ms\"\nvalues = [\"gaps\", \"peak-packets\", \"segments\"]\n";

/// Whether a packet is delivered to user space, as the kernel decides it.
fn comes_up(whole: RuleSet) -> impl Fn(&Record<'_>) -> bool {
    let compiled = whole.compile("", &[], Room::UNLIMITED).unwrap();
    let counts = [LiveCounts::default()];
    let most = whole.rules.len() as u32;
    move |record| {
        let parsed = native::parse(record.link_type(), record.data(), false);
        let packet = evaluate::Packet { parsed: &parsed, data: record.data(), inner: false };
        let facts = Facts { wire_len: record.wire_len(), ..Facts::default() };
        let evaluated = evaluate::evaluate(&compiled, &counts, &mut NoExact, packet, &facts);
        (1..=most).contains(&evaluated.rule_id)
    }
}

/// Runs the probe over flow parts: evicted ones at that time, the others after every `turn` packets; and over the
/// packets that are delivered in addition, whose number it returns.
fn probe_parts(file: &Path, (text, ms): (&str, u64), sets: usize, turn: u64) -> (Vec<Value>, Totals, u64) {
    let config = config(text);
    let comes_up = comes_up(config.whole().unwrap());
    let switches = Arc::new(Switches::new(Plan::new(config, 5).unwrap()));
    let said = Arc::new(Mutex::new((Reader::new(1), Vec::new())));
    let hear = |events: Vec<Event>, shown: &mut Vec<Value>| {
        shown.extend(events.into_iter().filter_map(|event| match event {
            Event::Shown(shown) => Some(serde_json::to_value(shown).unwrap()),
            _ => None,
        }));
    };
    let outlet = {
        let said = Arc::clone(&said);
        Box::new(move |closed| {
            let mut said = said.lock().unwrap();
            let (reader, shown) = &mut *said;
            hear(reader.take(closed), shown);
            true
        })
    };
    let mut worker = Worker::new(0, switches, false, outlet);
    let length_ns = ms * MS;
    let timeouts = Timeouts { active_ns: u64::MAX, idle_ns: length_ns / 2, ended_ns: length_ns / 2 };
    // Another clock than that of the packets, with an interval boundary at its start.
    let mut first =
        FirstLevel::with_splits(sets, Splits::of(&timeouts).with_intervals(length_ns, 7 * length_ns), 3);
    let (mut headers, mut packets, mut whole, mut latest) = (FlowReader::new(false), 0, 0, 0u64);
    let hand_on = |part: FlowPart, worker: &mut Worker| {
        worker.part(&part.key, &part.flow, part.key.device, part.flow.first_ns);
    };
    if let Ok(mut source) = FileSource::open(file, FileOptions::as_written()) {
        while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
            for record in batch {
                packets += 1;
                let ts_ns = record.header().ts_ns;
                latest = latest.max(ts_ns);
                if comes_up(&record) {
                    whole += 1;
                    worker.whole(&record, ts_ns);
                    continue;
                }
                let (ip, mut packet) = headers.read(&record, ts_ns);
                packet.device = record.device() as u16;
                if let Some(part) = first.keep(ip, &packet) {
                    hand_on(part, &mut worker);
                }
                if packets % turn == 0 {
                    first.turn().into_iter().for_each(|part| hand_on(part, &mut worker));
                }
            }
        }
    }
    first.turn().into_iter().for_each(|part| hand_on(part, &mut worker));
    assert!(worker.tick(latest) && worker.finish());
    drop(worker);
    let (mut reader, mut shown) = Arc::into_inner(said).unwrap().into_inner().unwrap();
    let (events, totals) = reader.finish(&[]);
    hear(events, &mut shown);
    assert_eq!(totals.packets, packets, "every packet is counted once");
    (shown, totals, whole)
}

/// Number of results, and of packets that were delivered.
fn agree(file: &Path, (text, ms): (&str, u64), sets: usize, turn: u64) -> (usize, u64) {
    let packets = probe_files(config(text), &[file.to_owned()], 1, |_, _| {});
    let (parts, totals, whole) = probe_parts(file, (text, ms), sets, turn);
    // Late packets have no counterpart in parts: each part belongs to its own interval.
    if packets.totals.late > 0 {
        return (0, 0);
    }
    assert_eq!(
        (totals.packets, totals.bytes),
        (packets.totals.packets, packets.totals.bytes),
        "{}",
        file.display()
    );
    assert_eq!(parts.len(), packets.shown.len(), "{}", file.display());
    for (parts, packets) in parts.iter().zip(&packets.shown) {
        assert_eq!(parts, packets, "{}", file.display());
    }
    (parts.len(), whole)
}

/// Battery: I10
#[test]
fn parts_come_to_what_their_packets_come_to() {
    let mut frames = Vec::new();
    // A generator of irregular numbers.
    let mut state = 1u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut at = 0;
    for _ in 0..4000 {
        at += if next(50) == 0 { next(400) * MS } else { next(3) * MS / 4 };
        let (src, dst) = (host(next(9) as u32), host(next(9) as u32));
        let ports = ([0, 53, 80, 1000, 1001][next(5) as usize], [0, 53, 443, 9][next(4) as usize]);
        frames.push((
            at,
            match next(8) {
                0 => arp(next(3) as u8, src),
                1 | 2 => tcp(src, dst, ports, SYN, 7, 0),
                3 => tcp(src, dst, ports, ACK, 7, next(300) as usize),
                _ => udp(src, dst, ports, next(900) as usize),
            },
        ));
    }
    // On a boundary between intervals, and a nanosecond before one.
    let length_ns = 100 * MS;
    let line = at / length_ns * length_ns + length_ns;
    for ns in [line - 1, line, line + length_ns - 1, line + length_ns] {
        frames.push((ns, udp(host(1), host(2), (1, 2), 10)));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    write(&path, &frames);
    for (sets, turn) in [(1, 1_000_000), (4, 100), (256, 1_000_000), (256, 7)] {
        let (shown, whole) = agree(&path, (&all(100), 100), sets, turn);
        assert!(shown > 100 && whole == 0);
        let beside = all(100) + BESIDE;
        let (shown, whole) = agree(&path, (&beside, 100), sets, turn);
        assert!(shown > 160 && (1000..3000).contains(&whole), "{shown} results, {whole} packets came up");
    }
    assert!(agree_with_each(&path, 100) > 100);
}

/// Repeats every measurement with a value that depends on single packets, so that it cannot use sums.
fn twice(text: &str) -> String {
    let text = text.replace("analysis = \"auto\"\n", "").replace("analysis = \"kernel\"\n", "");
    let (head, of) = text.split_once("[[measurement]]\n").unwrap();
    let again = of.replace("name = \"", "name = \"each-").replace("values = [", "values = [\"lengths\", ");
    format!("{head}[[measurement]]\n{of}[[measurement]]\n{again}")
}

/// Sums that workers make before counting give the same results as single packets.
fn agree_with_each(file: &Path, ms: u64) -> usize {
    let said = probe_files(config(&twice(&all(ms))), &[file.to_owned()], 1, |_, _| {});
    let mut compared = 0;
    for name in ["all", "pairs", "ports", "nets", "few"] {
        for total in [false, true] {
            let (added, each) = (said.of(name, total), said.of(&format!("each-{name}"), total));
            assert_eq!(added.len(), each.len());
            for (added, each) in added.into_iter().zip(each) {
                let mut each = each.clone();
                each["measurement"] = added["measurement"].clone();
                for row in each["rows"].as_array_mut().unwrap() {
                    assert!(row.as_object_mut().unwrap().remove("lengths").is_some(), "{row}");
                }
                assert_eq!(*added, each, "{}", file.display());
                compared += 1;
            }
        }
    }
    compared
}

/// Battery: I10
#[test]
fn captures_of_the_corpus_come_to_the_same_in_parts() {
    let Some(captures) = captures("captures_of_the_corpus_come_to_the_same_in_parts") else { return };
    let hour = all(3_600_000);
    let beside = hour.clone() + &BESIDE.replace("10ms", "400s");
    let compared = captures.iter().filter(|path| agree(path, (&hour, 3_600_000), 64, 500).0 > 0).count();
    assert!(compared > 100, "{compared} captures");
    let beside = captures.iter().map(|path| agree(path, (&beside, 3_600_000), 64, 500));
    let came_up = beside.filter(|(shown, whole)| *shown > 0 && *whole > 0).count();
    assert!(came_up > 50, "of {came_up} captures packets came up");
    let compared = captures.iter().filter(|path| agree_with_each(path, 3_600_000) > 0).count();
    assert!(compared > 100, "{compared} captures");
}

#[test]
fn a_configuration_says_where_it_measures_and_why() {
    let places = |config: &Config| -> Vec<Location> {
        config.measurements.iter().map(|one| config.place(one)).collect()
    };
    assert_eq!(places(&config(&all(1000))), vec![Location::Kernel; 5]);
    let whole = config(&all(1000)).whole().unwrap();
    assert_eq!(whole, RuleSet::default(), "nothing comes up");
    let one = |more: &str| format!("[[measurement]]\nname = \"m\"\n{more}\n");
    let in_workers = config(&one("values = [\"packets\"]"));
    assert_eq!((places(&in_workers), in_workers.whole()), (vec![Location::Workers(None)], None));
    for (more, why) in [
        ("values = [\"lengths\"]", "\"lengths\" depends on single packets"),
        ("key = [\"queue\"]\nvalues = [\"packets\"]", "\"queue\" depends on single packets"),
        (
            "rule = \"syn\"\nvalues = [\"packets\"]\n[[rule]]\nname = \"syn\"\ntcp-flags = \"S/SA\"",
            "rule syn asks for more",
        ),
        (
            "values = [\"pps\"]\n[[measurement]]\nname = \"n\"\nvalues = [\"pps\"]",
            "n is analysed in the workers (analysis = \"user\", which is so where nothing is said), and has no rule",
        ),
        (
            "values = [\"pps\"]\n[[measurement]]\nname = \"n\"\nanalysis = \"auto\"\nvalues = [\"gaps\"]",
            "n is analysed in the workers, as \"gaps\" depends on single packets, and the kernel delivers sums, and has no rule",
        ),
        (
            "values = [\"pps\"]\n[[measurement]]\nname = \"n\"\nrule = \"web\"\nkey = [\"application\"]\n\
             values = [\"pps\"]\n[[rule]]\nname = \"web\"\nport = 80",
            "n is by application",
        ),
    ] {
        let auto = config(&one(&format!("analysis = \"auto\"\n{more}")));
        let Location::Workers(Some(told)) = auto.place(&auto.measurements[0]) else { panic!("{more}") };
        assert!(told.contains(why), "{told}");
        assert!(wirelane_probe::config::describe(&auto).contains(why));
        assert_eq!(auto.whole(), None, "everything comes up");
        let text = one(&format!("analysis = \"kernel\"\n{more}"));
        let mistakes = Config::parse(&text, Path::new("p.toml")).unwrap_err().to_string();
        assert!(
            mistakes.starts_with("p.toml:3:12: this cannot be \"kernel\": ") && mistakes.contains(why),
            "{mistakes}"
        );
    }
}

/// Packets of several lanes arrive out of order, some before the parts of their interval, some after: each is counted
/// in its own interval.
#[test]
fn what_comes_up_is_of_its_own_interval() {
    let frames: Vec<Timed> = (0..900u64)
        .map(|at| (at * MS, udp(host(at as u32 % 5), host(9), (7, 53), at as usize % 90)))
        .collect();
    // Three lanes, each in order, read one after the other: after the first packet of the second lane, the last
    // interval receives only its own packets.
    let lanes: Vec<Timed> = (0..3).flat_map(|lane| frames.iter().skip(lane).step_by(3).cloned()).collect();
    let folder = tempfile::tempdir().unwrap();
    let (sorted, mixed) = (folder.path().join("sorted.pcap"), folder.path().join("mixed.pcap"));
    write(&sorted, &frames);
    write(&mixed, &lanes);
    let text = all(100)
        + "[[measurement]]\nname = \"lengths\"\nrule = \"web\"\nkey = [\"src\"]\nvalues = [\"packets\", \"lengths\"]\n";
    let of_sorted = probe_files(config(&text), &[sorted], 1, |_, _| {});
    let (of_mixed, totals, whole) = probe_parts(&mixed, (&text, 100), 4, 100);
    assert_eq!((whole, totals.late, of_mixed.len()), (900, 0, of_sorted.shown.len()));
    assert_eq!(of_mixed, of_sorted.shown);
}

#[test]
fn what_workers_measure_beside_the_kernel_comes_up_by_its_rules() {
    let config = config(&(all(100) + BESIDE));
    let places: Vec<Location> = config.measurements.iter().map(|one| config.place(one)).collect();
    assert_eq!(places[..5], vec![Location::Kernel; 5]);
    assert_eq!(places[5..7], [Location::Workers(None), Location::Workers(None)]);
    let Location::Workers(Some(why)) = &places[7] else { panic!("{:?}", places[7]) };
    assert!(why.contains("\"gaps\" depends on single packets"), "{why}");
    let whole = config.whole().unwrap();
    let rules: Vec<_> = whole.rules.iter().map(|rule| (rule.id, rule.name.as_deref().unwrap())).collect();
    assert_eq!(rules, [(1, "web"), (2, "syn")]);
    assert!(whole.rules.iter().all(|rule| rule.action == Action::Pass && rule.then == Then::Continue));
    assert_eq!(whole.rules[1].conditions, config.rules.rules[2].conditions);
    let told = wirelane_probe::config::describe(&config);
    assert!(
        told.contains("beside the sums of the kernel, packets of these rules are delivered: web, syn\n"),
        "{told}"
    );
}
