//! Records that plug-ins write (`plugin_record()`), and steering programs with state.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;
use wirelane::ledger::PluginRecordsLine;
use wirelane::{Capture, Record, Worker};
use wirelane_tests::numbers::{LIMIT, column, last_of, send, wirelane};
use wirelane_tests::ruled::{KERNEL, drain, open, rules};
use wirelane_tests::{Lab, Signal, program_file, require_root, settled_bpf_objects, wait_for_bpf_objects};

/// A time budget that no plug-in exceeds, even on a busy machine.
const PATIENT: u32 = 1_000_000_000;
const PORTS: u64 = 8;

const COUNTED: &str = "[[rule]]\nid = 1\nplugin = \"ports\"\naction = \"count\"\n";

/// Sends packets from ports 1000 to 1007 in turn.
fn send_ports(lab: &Lab, packets: u64) {
    let ports = PORTS.to_string();
    send(lab, packets, &["--pattern", "ports", "--flows", &ports, "--src-port", "1000", "--size", "100"])
        .unwrap();
}

/// Port and number of a record of `tests/programs/plugin_records.bpf.c`; `None`: a packet.
fn of_plugin(record: &Record<'_>) -> Option<(u32, u32)> {
    let (plugin, bytes) = record.plugin()?;
    assert_eq!((plugin, bytes.len(), &bytes[16..20]), (0, 37, &[1, 2, 3, 0][..]));
    let word = |at: usize| u32::from_ne_bytes(bytes[at..][..4].try_into().unwrap());
    let time_ns = u64::from_ne_bytes(bytes[8..16].try_into().unwrap());
    assert_eq!((time_ns, record.data().len()), (record.header().ts_ns, 0));
    Some((word(0), word(4)))
}

/// Stops a capture that has seen so many packets.
fn stop(capture: &Capture, seen: u64) {
    let deadline = Instant::now() + LIMIT;
    while capture.ledger().unwrap().total.seen < seen {
        assert!(Instant::now() < deadline, "{:?}", capture.ledger().unwrap());
        std::thread::sleep(Duration::from_millis(10));
    }
    capture.stop().unwrap();
}

/// Reads what a worker of a stopped capture has not read.
fn rest(worker: &mut Worker, mut each: impl FnMut(&Record<'_>)) {
    while let Some(batch) = worker.next_batch(Duration::from_millis(10)).unwrap() {
        batch.into_iter().for_each(|record| each(&record));
    }
}

/// Each record arrives once, in order, at the worker of its flow, also where the packets are delivered besides; and each is
/// counted where nobody reads them.
#[test]
fn records_of_plug_ins_arrive_and_are_counted() {
    if !require_root("records_of_plug_ins_arrive_and_are_counted") {
        return;
    }
    const PACKETS: u64 = 240;
    let folder = tempfile::tempdir().unwrap();
    let object = program_file(folder.path(), "plugin_records").unwrap();
    for at in KERNEL {
        let lab = Lab::new(1).unwrap();
        let start = |workers, records, text: &str| {
            let set = rules(text);
            let settings = |builder: wirelane::Builder| {
                let builder = builder.workers(workers).plugin("ports", &object).plugin_records(records);
                builder.plugin_budget(PATIENT).rules(set)
            };
            open(&lab, at, settings).unwrap()
        };
        let every = "[plugins.ports.parameters]\nevery = 3\n";
        let mut two = start(2, true, COUNTED);
        let mut third = start(1, true, &format!("{every}{}", COUNTED.replace("count", "none")));
        let deaf = start(1, false, COUNTED);
        let mut workers = two.workers();
        let mut of_third = third.workers().remove(0);
        send_ports(&lab, PACKETS);

        [&two, &third, &deaf].into_iter().for_each(|capture| stop(capture, PACKETS));
        let mut got: BTreeMap<u32, Vec<(usize, u32)>> = BTreeMap::new();
        let mut packets = 0;
        for (number, worker) in workers.iter_mut().enumerate() {
            rest(worker, |record| match of_plugin(record) {
                Some((port, count)) => got.entry(port).or_default().push((number, count)),
                None => packets += 1,
            });
        }
        let each = PACKETS / PORTS;
        let expected: Vec<u32> = (1..=each as u32).collect();
        assert_eq!(got.len() as u64, PORTS, "{at:?}");
        for (port, records) in &got {
            let worker = records[0].0;
            let in_order: Vec<_> = expected.iter().map(|number| (worker, *number)).collect();
            assert_eq!(records, &in_order, "{at:?} port {port}");
        }
        // Packets of odd ports match and are counted, the others are delivered.
        assert_eq!(packets, PACKETS / 2, "{at:?}");

        let (mut records, mut packets) = (Vec::new(), 0);
        rest(&mut of_third, |record| match of_plugin(record) {
            Some((_, number)) => records.push(number),
            None => packets += 1,
        });
        assert_eq!((records.len() as u64, packets), (PACKETS / 3, PACKETS), "{at:?}");
        assert!(records.iter().all(|number| number % 3 == 0), "{records:?}");
        drop((workers, of_third));
        for (capture, written, unwritten) in [(two, PACKETS, 0), (third, PACKETS / 3, 0), (deaf, 0, PACKETS)]
        {
            let stats = capture.rule_stats().unwrap().unwrap();
            let ledger = capture.close().unwrap();
            assert!(ledger.balances(), "{ledger:?}");
            let records = PluginRecordsLine { written, read: written, in_flight: 0, lost: unwritten };
            assert_eq!((&ledger.plugins, ledger.plugin_records), (&stats.plugins, Some(records)), "{at:?}");
            assert_eq!(
                (stats.plugins[0].records, stats.plugins[0].unwritten),
                (written, unwritten),
                "{at:?}"
            );
        }
    }
}

/// A plug-in that writes more than its worker reads fills its own ring: what does not fit is counted, and no other capture
/// loses anything.
#[test]
fn records_without_end_harm_nobody_else() {
    if !require_root("records_without_end_harm_nobody_else") {
        return;
    }
    const PACKETS: u64 = 40_000;
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let object = program_file(folder.path(), "plugin_records").unwrap();
    let mut writer = open(&lab, KERNEL[0], |builder| {
        let builder = builder.plugin("ports", &object).plugin_records(true).ring_size(1 << 20);
        builder.plugin_budget(PATIENT).rules(rules(COUNTED))
    })
    .unwrap();
    let mut other = open(&lab, KERNEL[0], |builder| builder.rules(rules("default = \"drop\""))).unwrap();
    let mut worker = other.workers().remove(0);
    send_ports(&lab, PACKETS);
    drain(&other, &mut worker, PACKETS, |_| {});
    let total = other.close().unwrap().total;
    assert_eq!((total.seen, total.filtered, total.lost), (PACKETS, PACKETS, 0));
    let mut late = writer.workers().remove(0);
    writer.stop().unwrap();
    let (mut records, mut packets) = (0, 0);
    rest(&mut late, |record| match of_plugin(record) {
        Some(_) => records += 1,
        None => packets += 1,
    });
    let stats = writer.rule_stats().unwrap().unwrap();
    let [line] = &stats.plugins[..] else { panic!("{stats:?}") };
    assert_eq!((line.records, line.records + line.unwritten), (records, PACKETS));
    assert!(records > 1000 && line.unwritten > 1000, "{line:?}");
    let total = writer.close().unwrap().total;
    assert_eq!(
        (total.analysed, total.absorbed, total.analysed + total.lost),
        (packets, PACKETS / 2, PACKETS / 2)
    );
}

#[test]
fn packets_prints_records_of_plug_ins() {
    if !require_root("packets_prints_records_of_plug_ins") {
        return;
    }
    const PACKETS: u64 = 16;
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let file = folder.path().join("rules.toml");
    std::fs::write(&file, format!("default = \"drop\"\n{COUNTED}")).unwrap();
    let plugin = format!("ports={}", program_file(folder.path(), "plugin_records").unwrap().display());
    let end = lab.receiver();
    let words =
        ["packets", "-i", &end.device, "--plugin", &plugin, "--plugin-budget", "1s", "--json", "--rules"];
    let words = [&words[..], &[file.to_str().unwrap()]].concat();
    let mut child = wirelane(&lab, &end.namespace, &words).unwrap();
    child.wait_ready(LIMIT).unwrap();
    send_ports(&lab, PACKETS);
    let mut lines = Vec::new();
    while lines.len() < PACKETS as usize {
        let line = child.next_json(LIMIT).unwrap().expect("it goes on");
        if line["record"] == "plug-in" {
            lines.push(line);
        }
    }
    crate::json_schemas::check_all("packets", &lines);
    let finished = child.terminate(LIMIT).unwrap();
    let last = last_of(&finished).unwrap();
    for (at, line) in lines.iter().enumerate() {
        let (port, number) = (1000 + at as u32 % 8, 1 + at as u32 / 8);
        let begin: String =
            [port, number].into_iter().flat_map(u32::to_ne_bytes).map(|byte| format!("{byte:02x}")).collect();
        let bytes = line["bytes"].as_str().unwrap();
        assert!(bytes.len() == 74 && bytes.starts_with(&begin), "{at}: {line}");
        assert_eq!((&line["plugin"], &line["device"]), (&"ports".into(), &end.device.clone().into()));
    }
    let stats = &last["rule_stats"]["plugins"][0];
    assert_eq!((column(stats, "records"), column(stats, "unwritten")), (PACKETS, 0), "{last}");
    assert_eq!(last["plugins"][0], *stats, "{last}");
    let line = json!({"written": PACKETS, "read": PACKETS, "in_flight": 0, "lost": 0});
    assert_eq!(last["plugin_records"], line, "{last}");
}

/// A steering program with a table and a parameter: two captures with different parameters, each with a table of its own.
#[test]
fn steering_programs_have_state_and_parameters() {
    if !require_root("steering_programs_have_state_and_parameters") {
        return;
    }
    const PACKETS: u64 = 80;
    let folder = tempfile::tempdir().unwrap();
    let object = program_file(folder.path(), "sticky").unwrap();
    for at in KERNEL {
        let lab = Lab::new(1).unwrap();
        let start = |text: &str| {
            let set = rules(text);
            open(&lab, at, |builder| builder.workers(3).steering_program(&object).rules(set)).unwrap()
        };
        let captures = [start(""), start("[steering-program.parameters]\nrefused = 1003\n"), start("")];
        send_ports(&lab, PACKETS);
        for (mut capture, refused) in captures.into_iter().zip([None, Some(1003), None]) {
            stop(&capture, PACKETS);
            let mut of_port: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
            for (number, mut worker) in capture.workers().into_iter().enumerate() {
                rest(&mut worker, |record| {
                    let (port, _) = record.headers().unwrap().ports.unwrap();
                    of_port.entry(port.into()).or_default().push(number);
                });
            }
            // The ports came in this order.
            let all = (1000..1000 + PORTS).filter(|port| Some(*port) != refused);
            let expected =
                all.zip(0..).map(|(port, turn)| (port, vec![turn % 3; (PACKETS / PORTS) as usize]));
            assert_eq!(of_port, expected.collect(), "{at:?}");
            let state = capture.state().unwrap();
            let ports = state.read(wirelane::STEERING_PROGRAM, "ports").unwrap();
            assert_eq!(ports.len(), of_port.len(), "{at:?}");
            let refusals = PACKETS / PORTS * u64::from(refused.is_some());
            assert_eq!(capture.close().unwrap().total.filtered, refusals, "{at:?}");
        }
    }
}

/// The maps of a killed capture go when the next one starts, though another one keeps the program on the device.
#[test]
fn maps_of_a_killed_capture_are_removed() {
    if !require_root("maps_of_a_killed_capture_are_removed") {
        return;
    }
    let lab = Lab::with(&wirelane_tests::LabOptions { alone: true, ..Default::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let object = program_file(folder.path(), "plugin_records").unwrap();
    let start = || {
        let settings = |builder: wirelane::Builder| builder.plugin("ports", &object).rules(rules(COUNTED));
        open(&lab, KERNEL[0], settings).unwrap()
    };
    let stays = start();
    // A second capture has the program for several loaded.
    drop(start());
    let before = settled_bpf_objects();
    let (end, plugin) = (lab.receiver(), format!("ports={}", object.display()));
    let words = [
        "count",
        "-i",
        &end.device,
        "--hook",
        "native",
        "--plugin",
        &plugin,
        "--rules-capacity",
        "10",
        "--json",
    ];
    let mut killed = wirelane(&lab, &end.namespace, &words).unwrap();
    killed.wait_ready(LIMIT).unwrap();
    killed.signal(Signal::Kill).unwrap();
    assert!(!killed.finish(LIMIT).unwrap().status.success());
    drop(start());
    assert_eq!(wait_for_bpf_objects(&before, LIMIT), before);
    drop(stays);
}
