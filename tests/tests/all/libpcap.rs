//! Our libpcap beside the system's: the same functions, and C programs with the same output for the same traffic.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use object::{Object as _, ObjectSymbol as _};
use wirelane_tests::libpcap::{Library, built, compile, start, systems};
use wirelane_tests::numbers::{LIMIT, capture, finish, last_of, send, wirelane};
use wirelane_tests::{BpfObjects, Child, Lab, LabOptions, require_root, settled_bpf_objects};

/// Packets from source ports 1000 to 1015, in turn, each of 100 bytes.
const PACKETS: [&str; 8] = ["--pattern", "ports", "--flows", "16", "--src-port", "1000", "--size", "100"];

fn exported(library: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
    let file = object::File::parse(&*bytes).unwrap();
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    symbols.map(|symbol| symbol.name().unwrap().to_owned()).collect()
}

#[test]
fn both_libraries_export_what_the_systems_does_and_load_no_libpcap() {
    let system = exported(&systems());
    assert!(system.len() >= 96 && system.contains("pcap_activate"), "{system:?}");
    for (name, soname) in [
        ("libwirelane_libpcap_dropin.so", Some("[libpcap.so.0.8]")),
        ("libwirelane_libpcap_preload.so", None),
    ] {
        let library = built(name).unwrap();
        assert_eq!(exported(&library), system, "{name}");
        let output = std::process::Command::new("readelf").arg("-d").arg(&library).output().unwrap();
        let dynamic = String::from_utf8(output.stdout).unwrap();
        assert!(dynamic.contains("(NEEDED)"), "{dynamic}");
        assert!(
            !dynamic.lines().any(|line| line.contains("NEEDED") && line.contains("libpcap")),
            "{dynamic}"
        );
        let has = dynamic.lines().find(|line| line.contains("SONAME"));
        assert_eq!(has.and_then(|line| line.split_whitespace().last()), soname, "{name}");
    }
}

/// Output of a program up to its end, which must be a success.
fn rest(child: Child) -> String {
    let finished = child.finish(LIMIT).unwrap();
    let said = finished.lines.join("\n");
    assert!(finished.status.success(), "{}: {said}\n{}", finished.status, finished.stderr);
    // libpcap warns if the kernel does not accept a filter; ours filters without a warning.
    let errors = finished.stderr.lines().filter(|line| !line.starts_with("Warning: Kernel filter failed"));
    said + "\n" + &errors.collect::<Vec<_>>().join("\n")
}

#[test]
fn functions_say_the_same_in_every_state_of_a_handle() {
    if !require_root("functions_say_the_same_in_every_state_of_a_handle") {
        return;
    }
    let lab = Lab::with(&LabOptions { links: 2, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = compile("states", folder.path(), &[]).unwrap();
    let checked = compile("states", folder.path(), &["-fsanitize=address,undefined"]).unwrap();
    let (receiver, file) = (lab.receiver(), folder.path().join("file.pcap"));
    let down = &lab.links[1].receiver.device;
    lab.exec(&receiver.namespace, &["ip", "link", "set", down, "down"]).unwrap();
    let say = |library, words: &[&str]| rest(start(&lab, library, folder.path(), words).unwrap());
    let all = |program: &Path, library| {
        say(library, &[program.to_str().unwrap(), &receiver.device, down, file.to_str().unwrap()])
    };
    let expected = all(&program, Library::System);
    assert!(expected.lines().count() > 150, "{expected}");
    assert_eq!(all(&program, Library::DropIn), expected);
    // Preloaded, ordinary devices belong to the system's library, and calls on its handles are forwarded to it.
    assert_eq!(all(&program, Library::Preload), expected);
    // The address sanitizer must be loaded first, so it does not work with a preloaded library.
    assert_eq!(all(&checked, Library::DropIn), expected);
    // A closed handle refuses the same calls as one that is not activated yet, with the same messages, and activation,
    // too.
    let refusals = expected.split("activate: ").next().unwrap().trim_end();
    for program in [&program, &checked] {
        let said = say(Library::DropIn, &[program.to_str().unwrap(), "closed", &receiver.device]);
        let (same, rest) = said.split_at(refusals.len());
        assert_eq!(same, refusals);
        let expected = "pcap_activate(handle): -5 [the handle has been closed]\n\
                        pcap_snapshot(other): 100\nperror: the handle has been closed";
        assert_eq!(rest.trim(), expected);
    }
}

/// A mode of `behave`, its expected packets, and a filter. The sender sends 64 packets in all.
const MODES: [(&str, &str, &str); 9] = [
    ("loop", "64", ""),
    ("loop", "8", "udp src port 1002 or udp src port 1003"),
    // A filter that the kernel refuses is evaluated in user space.
    ("loop", "64", "ip protochain 17"),
    ("snapped", "16", "udp src portrange 1004-1007"),
    ("next", "64", ""),
    ("epoll", "64", ""),
    ("poll", "64", ""),
    ("broken", "64", ""),
    ("forked", "64", ""),
];

/// Runs a mode with a library while 64 packets arrive, and returns its output.
fn behave(lab: &Lab, library: Library, folder: &Path, program: &Path, mode: (&str, &str, &str)) -> String {
    // A forked process keeps the resources of the process that has opened the handle, until it ends.
    let leaks =
        if mode.0 == "forked" { "ASAN_OPTIONS=detect_leaks=0" } else { "ASAN_OPTIONS=detect_leaks=1" };
    let words = [leaks, program.to_str().unwrap(), mode.0, &lab.receiver().device, mode.1, mode.2];
    let child = start(lab, library, folder, &words).unwrap();
    let mut said = Vec::new();
    let mut beside = None;
    loop {
        match child.next_line(LIMIT).unwrap() {
            Some(line) if line == "ready" => break,
            // Traffic of another generator, while the program changes its filter.
            Some(line) if line == "changing" => {
                let sender = lab.sender();
                let words = [
                    "send",
                    "-i",
                    &sender.device,
                    "--packets",
                    "30000",
                    "--rate",
                    "30k",
                    "--method",
                    "socket",
                ];
                let words = [&words[..], &PACKETS[..5], &["5000", "--json"]].concat();
                beside = Some(wirelane(lab, &sender.namespace, &words).unwrap());
            }
            Some(line) => said.push(line),
            None => panic!("{mode:?} of {library:?}: {said:?}{}", rest(child)),
        }
    }
    send(lab, 64, &PACKETS).unwrap();
    said.push(rest(child));
    if let Some(beside) = beside {
        last_of(&beside.finish(LIMIT).unwrap()).unwrap();
    }
    said.join("\n")
}

/// Battery: L1
#[test]
fn programs_see_the_same_of_the_same_traffic() {
    if !require_root("programs_see_the_same_of_the_same_traffic") {
        return;
    }
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let plain = compile("behave", folder, &[]).unwrap();
    let checked = compile("behave", folder, &["-fsanitize=address"]).unwrap();
    // Keeps the capture program loaded, so that joining it is quick.
    let device = lab.receiver().device.clone();
    let holder = capture(&lab, &["count", "-i", &device, "--direction", "both", "--json"]).unwrap();
    let file = folder.join("dump.pcap");
    let dumped = ("dumped", "64", file.to_str().unwrap());
    for mode in MODES.into_iter().chain([dumped]) {
        let expected = behave(&lab, Library::System, folder, &plain, mode);
        assert!(expected.contains("packets,"), "{mode:?}: {expected}");
        assert_eq!(behave(&lab, Library::DropIn, folder, &plain, mode), expected, "{mode:?}");
        // The address sanitizer must be loaded first, so it does not work with a preloaded library.
        assert_eq!(behave(&lab, Library::DropIn, folder, &checked, mode), expected, "{mode:?}, checked");
    }
    // libpcap does not deliver packets that were sent by a handle to that handle.
    let directions = ("directions", "64", "");
    let expected = behave(&lab, Library::System, folder, &plain, directions);
    assert_eq!(behave(&lab, Library::DropIn, folder, &plain, directions), expected);
    // libpcap's manual does not allow concurrent calls, so the output is compared with that of one thread.
    let filter = "udp src port 1002 or udp src port 1003";
    let expected = behave(&lab, Library::System, folder, &plain, ("loop", "8", filter));
    let expected = expected.lines().next().unwrap().strip_prefix("loop: ").unwrap().to_owned();
    for program in [&plain, &checked] {
        let said = behave(&lab, Library::DropIn, folder, program, ("threads", "8", ""));
        assert_eq!(said.trim_end(), format!("in the end: {expected}"));
    }
    drop(holder);
}

/// Battery: L12
#[test]
fn opening_and_closing_leaves_nothing_behind() {
    if !require_root("opening_and_closing_leaves_nothing_behind") {
        return;
    }
    // A cycle mostly waits for the kernel: four devices run it concurrently.
    let lab = Lab::with(&LabOptions { links: 4, alone: true, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = compile("behave", folder.path(), &[]).unwrap();
    let devices: Vec<&str> = lab.links.iter().map(|link| link.receiver.device.as_str()).collect();
    let all = devices.join(",");
    let words = ["count", "-i", &all, "--direction", "both", "--json", "len >= 0"];
    let holder = capture(&lab, &words).unwrap();
    // A second capture has the programs for several loaded.
    finish(capture(&lab, &words).unwrap()).unwrap();
    let before = settled_bpf_objects();
    // Total of all devices; 'make soak' runs 1000.
    let cycles = std::env::var("WIRELANE_PCAP_CYCLES").map_or(60, |cycles| cycles.parse::<u32>().unwrap());
    let each = cycles.div_ceil(devices.len() as u32).to_string();
    let begin = |device: &&str| {
        let words = [program.to_str().unwrap(), "cycles", device, &each];
        start(&lab, Library::DropIn, folder.path(), &words).unwrap()
    };
    let children: Vec<Child> = devices.iter().map(begin).collect();
    for child in children {
        let finished = child.finish(Duration::from_secs(600)).unwrap();
        assert_eq!(finished.lines, ["descriptors 0, threads 0, memory the same"], "{}", finished.stderr);
    }
    // Handles have replaced the programs, for their filters: as many objects, not the same ones.
    let number = |objects: &BpfObjects| (objects.programs.len(), objects.maps.len(), objects.links.len());
    let begun = Instant::now();
    loop {
        let after = settled_bpf_objects();
        if number(&after) == number(&before) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{after:?} is more than {before:?}");
    }
    finish(holder).unwrap();
}

/// A program with a time-out of 50 ms and without immediate mode is not woken for each packet.
#[test]
fn packets_gather_where_a_program_lets_them() {
    if !require_root("packets_gather_where_a_program_lets_them") {
        return;
    }
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let program = compile("behave", folder.path(), &[]).unwrap();
    let words = [program.to_str().unwrap(), "loop", &lab.receiver().device, "601", ""];
    let child = start(&lab, Library::DropIn, folder.path(), &words).unwrap();
    assert_eq!(child.next_line(LIMIT).unwrap().as_deref(), Some("ready"));
    let woken = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    };
    let before = woken();
    send(&lab, 600, &[&PACKETS[..], &["--rate", "300"]].concat()).unwrap();
    let times = woken() - before;
    // Two seconds of 20 ms each are 100; on a busy machine sending takes longer.
    assert!(times < 300, "woken {times} times for 600 packets");
    send(&lab, 1, &PACKETS).unwrap();
    assert!(rest(child).starts_with("loop: 0, 601 packets"));
}
