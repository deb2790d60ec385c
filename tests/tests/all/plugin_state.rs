//! State of plug-ins and steering programs (`wirelane/state.h`): maps of their own, of each capture.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::json_schemas::check_all;
use serde_json::json;
use wirelane::rules::RuleSet;
use wirelane::{Capture, Error, StateEntry, StateReader};
use wirelane_tests::numbers::{LIMIT, send, wirelane};
use wirelane_tests::ruled::{KERNEL, drain, hits, open, rules};
use wirelane_tests::{
    Lab, LabOptions, program_file, require_root, settled_bpf_objects, wait_for_bpf_objects,
};

/// A time budget that no plug-in exceeds, even on a busy machine.
const PATIENT: u32 = 1_000_000_000;
/// Bytes of each packet.
const SIZE: u64 = 100;
const PORTS: u64 = 8;

fn object(folder: &Path, name: &str) -> String {
    program_file(folder, name).unwrap().to_str().unwrap().to_owned()
}

/// Rule 5 hits packets from the first four ports; the plug-in decides about all.
fn turns() -> RuleSet {
    rules(
        r#"
        [[rule]]
        id = 5
        src-port = "1000-1003"
        action = "none"

        [[rule]]
        id = 6
        plugin = "turns"
        action = "count"
        "#,
    )
}

/// Sends packets from ports 1000 to 1007 in turn.
fn send_ports(lab: &Lab, packets: u64) {
    let (flows, size) = (PORTS.to_string(), SIZE.to_string());
    send(lab, packets, &["--pattern", "ports", "--flows", &flows, "--src-port", "1000", "--size", &size])
        .unwrap();
}

/// The number of 64 bits at this place of a value.
fn number(value: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(value[8 * at..][..8].try_into().unwrap())
}

fn port(entry: &StateEntry) -> u64 {
    u16::from_ne_bytes([entry.key[0], entry.key[1]]).into()
}

/// Packets and bytes by port.
fn by_port(state: &StateReader) -> BTreeMap<u64, (u64, u64)> {
    let read = |entry: &StateEntry| {
        let [value] = &entry.values[..] else { panic!("{entry:?}") };
        (port(entry), (number(value, 0), number(value, 1)))
    };
    state.read("turns", "ports").unwrap().iter().map(read).collect()
}

/// Packets and bytes by rule that was hit, over all CPUs.
fn by_rule(state: &StateReader) -> BTreeMap<u32, (u64, u64)> {
    let cpus = |entry: &StateEntry, at| entry.values.iter().map(|value| number(value, at)).sum::<u64>();
    let rule = |entry: &StateEntry| u32::from_ne_bytes(entry.key[..].try_into().unwrap());
    let all = state.read("turns", "rules").unwrap();
    assert_eq!(all.len(), 8);
    all.iter()
        .map(|entry| (rule(entry), (cpus(entry, 0), cpus(entry, 1))))
        .filter(|(_, sums)| sums.0 > 0)
        .collect()
}

fn start(lab: &Lab, folder: &Path, at: (wirelane::Engine, wirelane::HookChoice)) -> Capture {
    let object = object(folder, "plugin_turns");
    open(lab, at, |builder| builder.plugin("turns", object).plugin_budget(PATIENT).rules(turns())).unwrap()
}

/// Two captures with the same plug-in, one of which comes later, each have a state of their own; a third begins anew.
#[test]
fn state_is_of_each_capture_and_ends_with_it() {
    if !require_root("state_is_of_each_capture_and_ends_with_it") {
        return;
    }
    const FIRST: u64 = 40;
    const THEN: u64 = 24;
    let folder = tempfile::tempdir().unwrap();
    for at in KERNEL {
        let lab = Lab::with(&LabOptions { alone: true, ..LabOptions::default() }).unwrap();
        let before = settled_bpf_objects();
        let mut early = start(&lab, folder.path(), at);
        let mut worker = early.workers().remove(0);
        send_ports(&lab, FIRST);
        drain(&early, &mut worker, FIRST, |_| {});
        let state = early.state().unwrap();
        let each = |packets| (1000..1000 + PORTS).map(|port| (port, (packets, packets * SIZE))).collect();
        let of_rules =
            |packets: u64| BTreeMap::from([0, 5].map(|rule| (rule, (packets / 2, packets / 2 * SIZE))));
        assert_eq!((by_port(&state), by_rule(&state)), (each(FIRST / PORTS), of_rules(FIRST)), "{at:?}");

        let mut late = start(&lab, folder.path(), at);
        let mut late_worker = late.workers().remove(0);
        let late_state = late.state().unwrap();
        assert_eq!(
            (by_port(&late_state), by_rule(&late_state)),
            (BTreeMap::new(), BTreeMap::new()),
            "{at:?}"
        );
        send_ports(&lab, THEN);
        drain(&early, &mut worker, FIRST + THEN, |_| {});
        drain(&late, &mut late_worker, THEN, |_| {});
        for (capture, state, packets) in [(&early, &state, FIRST + THEN), (&late, &late_state, THEN)] {
            assert_eq!(by_port(state), each(packets / PORTS), "{at:?}");
            assert_eq!(by_rule(state), of_rules(packets), "{at:?}");
            // Every second packet of a port matches.
            let matched = packets / PORTS / 2 * PORTS;
            assert_eq!(hits(&capture.rule_stats().unwrap().unwrap())[&6], matched, "{at:?}");
            // A full map refuses keys: of eight ports the first four fit in, and port 1003 makes room for another.
            let [line] = &capture.rule_stats().unwrap().unwrap().plugins[..] else { panic!() };
            assert!(line.counters["refused"] > 0 && line.counters["removed"] > 0, "{line:?}");
            assert_eq!(state.read("turns", "few").unwrap().len(), 4, "{at:?}");
            let latest = state.read("turns", "latest").unwrap();
            assert_eq!(latest.len() as u64, PORTS);
        }
        let shown = late_state.read("turns", "ports").unwrap();
        let shown = shown.iter().find(|entry| port(entry) == 1002).unwrap().json();
        let value = json!({"packets": THEN / PORTS, "bytes": THEN / PORTS * SIZE});
        assert_eq!(shown, &json!({"key": {"port": 1002, "zero": 0}, "value": value}));
        let names: Vec<_> = late_state.maps().collect();
        assert_eq!(names, ["ports", "rules", "latest", "few"].map(|map| ("turns", map)));
        let unknown = late_state.read("turns", "nothing").unwrap_err().to_string();
        assert!(unknown.contains("no map 'nothing'") && unknown.contains("turns few"), "{unknown}");

        drop(worker);
        early.stop().unwrap();
        // After the end it can still be read, and is not written any more.
        send_ports(&lab, PORTS);
        drain(&late, &mut late_worker, THEN + PORTS, |_| {});
        assert_eq!(by_port(&state), each((FIRST + THEN) / PORTS), "{at:?}");
        assert_eq!(by_port(&late_state), each(THEN / PORTS + 1), "{at:?}");
        drop((early, state));
        let new = start(&lab, folder.path(), at);
        assert_eq!(by_port(&new.state().unwrap()), BTreeMap::new(), "{at:?}");
        drop((late_worker, late, late_state, new));
        assert_eq!(wait_for_bpf_objects(&before, LIMIT), before, "{at:?}");
    }
}

/// Parameters of the plug-in `tests/programs/plugin_parameters.bpf.c`, before its rule.
fn with_parameters(parameters: &str) -> RuleSet {
    let rule = "[[rule]]\nid = 1\nplugin = \"ports\"\naction = \"count\"\n";
    rules(&format!("[plugins.ports.parameters]\n{parameters}\n{rule}"))
}

/// Rule files set parameters of the types that the plug-in has; captures with different ones run at the same time.
#[test]
fn rule_files_set_parameters_of_plug_ins() {
    if !require_root("rule_files_set_parameters_of_plug_ins") {
        return;
    }
    const PACKETS: u64 = 80;
    let folder = tempfile::tempdir().unwrap();
    let object = object(folder.path(), "plugin_parameters");
    let start = |lab: &Lab, parameters: &str| {
        let set = with_parameters(parameters);
        open(lab, KERNEL[0], |builder| builder.plugin("ports", &object).plugin_budget(PATIENT).rules(set))
    };
    let lab = Lab::new(1).unwrap();
    let large = u64::from(u32::MAX) * 4;
    let cases = [
        ("", 2, 1),
        ("first = 1002\nlast = 1006", 5, 1),
        ("others = true\nweight = 3", 6, 3),
        (&format!("offset = -3\nlast = 0xffff\nweight = {large}"), 5, large),
    ];
    let mut captures: Vec<_> =
        cases.iter().map(|(parameters, ..)| start(&lab, parameters).unwrap()).collect();
    let mut workers: Vec<_> = captures.iter_mut().map(|capture| capture.workers().remove(0)).collect();
    send_ports(&lab, PACKETS);
    for ((capture, worker), (parameters, ports, weight)) in captures.iter().zip(&mut workers).zip(cases) {
        drain(capture, worker, PACKETS, |_| {});
        let stats = capture.rule_stats().unwrap().unwrap();
        assert_eq!(hits(&stats)[&1], PACKETS / PORTS * ports, "{parameters}");
        assert_eq!(stats.plugins[0].counters["weight"], PACKETS * weight, "{parameters}");
    }

    // The running ones are constants: rules with the same ones can be loaded, others cannot.
    captures[1].set_rules(&with_parameters("last = 1006")).unwrap();
    captures[1].set_rules(&rules("")).unwrap();
    let changed =
        captures[1].set_rules(&with_parameters("last = 1005\nothers = true")).unwrap_err().to_string();
    for part in [
        "rules:2:8: parameter 'last' of plug-in 'ports': is 1006 since the capture started",
        "rules:3:10: parameter 'others' of plug-in 'ports': is not set since",
    ] {
        assert!(changed.contains(part), "{changed}");
    }
    drop((workers, captures));

    let refused = start(
        &lab,
        "frist = 1\nlast = 65536\nfirst = -1\nothers = 1\noffset = true\nweight = -1\nconstant = 1",
    );
    let Err(Error::Rules(refused)) = refused else { panic!("{refused:?}") };
    let refused = refused.to_string();
    for part in [
        "rules:2:9: parameter 'frist' of plug-in 'ports': it has no such parameter; expected one of first, last, offset, others, weight",
        "rules:3:8: parameter 'last' of plug-in 'ports': 65536 is not in its range; expected a number from 0 to 65535",
        "rules:4:9: parameter 'first' of plug-in 'ports': -1 is not in its range",
        "rules:5:10: parameter 'others' of plug-in 'ports': 1 is a number; expected true or false",
        "rules:6:10: parameter 'offset' of plug-in 'ports': true is not a number; expected a number from -2147483648 to 2147483647",
        "rules:7:10: parameter 'weight' of plug-in 'ports': -1 is not in its range; expected a number from 0 to 18446744073709551615",
        "rules:8:12: parameter 'constant' of plug-in 'ports': it has no such parameter",
    ] {
        assert!(refused.contains(part), "no '{part}' in {refused}");
    }
    let none = rules("[steering-program.parameters]\nlast = 1");
    let none = open(&lab, KERNEL[0], |builder| builder.rules(none)).unwrap_err().to_string();
    assert!(
        none.contains("rules:2:8: parameter 'last' of the steering program: the capture has none"),
        "{none}"
    );
}

/// `wirelane rules state` lists the maps of a running capture, and shows them by the names of their fields.
#[test]
fn the_command_shows_maps_by_the_names_of_fields() {
    if !require_root("the_command_shows_maps_by_the_names_of_fields") {
        return;
    }
    const PACKETS: u64 = 16;
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let file = folder.path().join("turns.toml");
    std::fs::write(&file, "[[rule]]\nid = 6\nplugin = \"turns\"\naction = \"count\"\n").unwrap();
    let plugin = format!("turns={}", object(folder.path(), "plugin_turns"));
    let end = lab.receiver();
    let words = ["count", "-i", &end.device, "--plugin", &plugin, "--plugin-budget", "1s", "--rules"];
    let words = [&words[..], &[file.to_str().unwrap(), "--json", "--interval", "0.1"]].concat();
    let mut capture = wirelane(&lab, &end.namespace, &words).unwrap();
    capture.wait_ready(LIMIT).unwrap();
    send_ports(&lab, PACKETS);
    while capture.next_json(LIMIT).unwrap().expect("it goes on")["absorbed"] != 0 {}
    let pid = capture.pid().to_string();
    let ask = |words: &[&str]| {
        let words = [&["rules", "state"], words, &["--pid", &pid]].concat();
        wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap()
    };
    assert_eq!(ask(&[]).lines, ["turns ports", "turns rules", "turns latest", "turns few"]);
    let all = ask(&["turns", "ports", "--json"]).json().unwrap();
    assert_eq!(all.last().unwrap(), &json!({"final": true, "entries": PORTS}));
    let value = json!({"packets": PACKETS / PORTS, "bytes": PACKETS / PORTS * SIZE});
    let expected = json!({"key": {"port": 1005, "zero": 0}, "value": value});
    assert!(all.contains(&expected), "{all:?}");
    for words in [&["--json"][..], &["turns", "ports", "--json"], &["turns", "rules", "--json"]] {
        check_all("rules", &ask(words).json().unwrap());
    }
    let text = ask(&["turns", "ports"]).lines;
    let line = format!("port 1005, zero 0: bytes {}, packets {}", PACKETS / PORTS * SIZE, PACKETS / PORTS);
    assert!(text.len() as u64 == PORTS && text.contains(&line), "{text:?}");
    let none = ask(&["turns", "nothing"]);
    assert!(
        !none.status.success() && none.stderr.contains("the capture has no map 'nothing' of 'turns'"),
        "{}",
        none.stderr
    );
    capture.terminate(LIMIT).unwrap();
}

/// Two versions of a plug-in, with the same names and values of different lengths, run beside each other.
#[test]
fn two_versions_of_a_plug_in_do_not_share_maps() {
    if !require_root("two_versions_of_a_plug_in_do_not_share_maps") {
        return;
    }
    const PACKETS: u64 = 80;
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let later = object(folder.path(), "plugin_turns_later");
    let first = start(&lab, folder.path(), KERNEL[0]);
    let second = open(&lab, KERNEL[0], |builder| {
        builder.plugin("turns", &later).plugin_budget(PATIENT).rules(turns())
    });
    // The first version again, in the slot that is there.
    let mut captures = [first, second.unwrap(), start(&lab, folder.path(), KERNEL[0])];
    let mut workers = captures.each_mut().map(|capture| capture.workers().remove(0));
    send_ports(&lab, PACKETS);
    for ((capture, worker), length) in captures.iter().zip(&mut workers).zip([16, 24, 16]) {
        drain(capture, worker, PACKETS, |_| {});
        let state = capture.state().unwrap();
        let each = PACKETS / PORTS;
        assert_eq!(by_port(&state), (1000..1000 + PORTS).map(|port| (port, (each, each * SIZE))).collect());
        let entries = state.read("turns", "ports").unwrap();
        assert!(entries.iter().all(|entry| entry.values[0].len() == length), "{entries:?}");
        let latest = |entry: &StateEntry| entry.json()["value"]["latest_ns"].as_u64();
        assert!(entries.iter().all(|entry| latest(entry).is_some_and(|ns| ns > 0) == (length == 24)));
    }
}

/// Received and transmitted packets of a device are evaluated by two programs, which have the same maps.
#[test]
fn all_programs_of_a_capture_have_the_same_maps() {
    if !require_root("all_programs_of_a_capture_have_the_same_maps") {
        return;
    }
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let plugin = object(folder.path(), "plugin_turns");
    let mut capture = open(&lab, KERNEL[2], |builder| {
        let builder = builder.direction(wirelane::Direction::Both).plugin("turns", plugin);
        builder.plugin_budget(PATIENT).rules(turns())
    })
    .unwrap();
    let mut worker = capture.workers().remove(0);
    send_ports(&lab, 2 * PORTS);
    drain(&capture, &mut worker, 2 * PORTS, |_| {});
    // The generator bypasses tc, which a socket of UDP does not.
    let (from, to) = (lab.receiver(), lab.sender());
    let sent = lab.enter(&from.namespace, || -> std::io::Result<()> {
        for port in 1000..1000 + PORTS as u16 {
            let socket = UdpSocket::bind((from.address, port))?;
            for _ in 0..3 {
                socket.send_to(&[0; SIZE as usize - 42], (to.address, 9))?;
            }
        }
        Ok(())
    });
    sent.unwrap().unwrap();
    let state = capture.state().unwrap();
    let expected: BTreeMap<_, _> = (1000..1000 + PORTS).map(|port| (port, (5, 5 * SIZE))).collect();
    // Addresses may have to be resolved before.
    let deadline = Instant::now() + Duration::from_secs(30);
    while by_port(&state) != expected && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(by_port(&state), expected);
}
