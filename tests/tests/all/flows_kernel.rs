//! `wirelane flows --cache kernel`: the same flows as those of the workers, exact sums in every case, and flows that
//! end without further packets.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use wirelane_tests::flow_traffic::{SPOKEN, make_capture};
use wirelane_tests::flows::{difference, flows_of, named_by_payload};
use wirelane_tests::numbers::{LIMIT, capture, column, finish, last_of, send, wirelane};
use wirelane_tests::{Child, Lab, LabOptions, Signal, maps_named, require_root, wirelane_binary};

/// Starts a capturing command on the receiver and waits until it is ready.
fn start(lab: &Lab, command: &[&str]) -> Child {
    let (name, options) = command.split_first().unwrap();
    // One lane: a flow whose packets arrive on several CPUs has parts in several caches.
    let base = [name, "-i", &lab.receiver().device, "--hook", "native", "--direction", "rx", "--json"];
    capture(lab, &[&base, options].concat()).unwrap()
}

fn flows(lab: &Lab, options: &[&str]) -> Child {
    start(lab, &[&["flows"], options].concat())
}

fn replay(lab: &Lab, path: &Path) {
    let end = lab.sender();
    let words = ["send", "-i", &end.device, "--replay", path.to_str().unwrap(), "--json"];
    last_of(&wirelane(lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap()).unwrap();
}

const RULES: &str = r#"
[[rule]]
id = 1
protocol = "udp"
dst-port = 80
action = "count"

[[rule]]
id = 2
protocol = "udp"
action = "digest"

[[rule]]
id = 3
protocol = "icmp"
action = "drop"

[[rule]]
id = 4
protocol = "tcp"
action = "pass"
truncate = 82
"#;

/// All captures at once on one device, so that each packet has the same timestamp for all: each set of options with
/// both caches.
/// Battery: I10
#[test]
fn both_caches_find_the_same_flows() {
    if !require_root("both_caches_find_the_same_flows") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, rules) = (folder.path().join("in.pcap"), folder.path().join("rules.toml"));
    make_capture(&file, 2400).unwrap();
    fs::write(&rules, RULES).unwrap();
    let rules = rules.to_str().unwrap();
    let lab = Lab::new(1).unwrap();
    let sets: &[&[&str]] = &[
        &["--cache-entries", "1"],
        &["--inner", "--clock", "packet"],
        &["--sampling", "3"],
        // All headers, and 22 bytes of the payload of a segment over IPv4, two over IPv6.
        &["--snap-length", "76"],
        &["--workers", "3"],
        &["--rules", rules],
        &["tcp and not port 443"],
    ];
    let begin = |cache: &str, options: &[&str]| {
        let times = ["--active-timeout", "2", "--inactive-timeout", "1", "--cache", cache];
        let options = match (cache, options) {
            ("user", ["--cache-entries", ..]) => &[],
            _ => options,
        };
        flows(&lab, &[times.as_slice(), options].concat())
    };
    let pairs: Vec<(Child, Child)> =
        sets.iter().map(|options| (begin("kernel", options), begin("user", options))).collect();
    replay(&lab, &file);
    // Until all flows that time out have ended, so that the result does not depend on the order in which the captures
    // are stopped.
    std::thread::sleep(Duration::from_millis(2600));
    for (options, (kernel, user)) in sets.iter().zip(pairs) {
        let (kernel, of_kernel) = flows_of(&kernel.terminate(LIMIT).unwrap()).unwrap();
        let (user, of_user) = flows_of(&user.terminate(LIMIT).unwrap()).unwrap();
        assert!(kernel.len() > 50, "{options:?}: {} flows", kernel.len());
        assert_eq!(difference(&kernel, &user), None, "{options:?}");
        let named = named_by_payload(&kernel).unwrap();
        let least = if options.contains(&"--cache-entries") { SPOKEN.len() } else { 5 };
        assert!(named.len() >= least, "{options:?}: {named:?}");
        for name in
            ["seen", "filtered", "flows", "flow_packets", "flow_bytes", "flow_wire_bytes", "unsampled"]
        {
            assert_eq!(column(&of_kernel, name), column(&of_user, name), "{options:?}: {name}");
        }
        assert_eq!(of_kernel["end_reasons"], of_user["end_reasons"], "{options:?}");
        // Packets that a rule absorbs do not belong to flows.
        let cache = &of_kernel["flow_cache"];
        let absorbed = column(cache, "packets") + column(&of_user, "absorbed");
        assert_eq!(column(&of_kernel, "absorbed"), absorbed, "{options:?}");
        assert_eq!(column(&of_kernel, "delivered"), 0, "{options:?}");
        assert_eq!(column(cache, "packets"), column(&of_user, "analysed"), "{options:?}");
    }
}

/// Parts that do not fit into the ring cost packets, which are `lost`; flows and ledger still agree to the byte.
/// Another capture on the device sees everything.
/// Battery: L6
#[test]
fn a_flood_of_flows_that_nobody_reads_costs_packets_and_no_sums() {
    if !require_root("a_flood_of_flows_that_nobody_reads_costs_packets_and_no_sums") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let flooded = flows(&lab, &["--cache", "kernel", "--cache-entries", "1", "--ring-size", "1", "--quiet"]);
    let counter = start(&lab, &["count"]);
    flooded.signal(Signal::Stop).unwrap();
    // A ring holds 4681 parts, the cache 128.
    send(&lab, 12_000, &["--flows", "12000", "--rate", "40k"]).unwrap();
    flooded.signal(Signal::Continue).unwrap();
    // There is room again.
    send(&lab, 3000, &["--flows", "12000", "--rate", "10k"]).unwrap();
    assert_eq!(column(&finish(counter).unwrap(), "analysed"), 15_000);
    let last = finish(flooded).unwrap();
    assert_eq!(column(&last, "seen"), 15_000);
    let lost = column(&last, "lost");
    assert!((7000..7300).contains(&lost), "{lost} of 12000 beyond 4681 and 128");
    assert_eq!(column(&last, "flow_packets"), 15_000 - lost);
    assert_eq!(column(&last, "flow_wire_bytes"), 60 * (15_000 - lost));
    assert_eq!(column(&last["flow_cache"], "packets"), 15_000 - lost);
    assert_eq!(column(&last["flow_cache"], "bytes"), 60 * (15_000 - lost));
    assert_eq!(column(&last["workers"][0], "absorbed"), 15_000 - lost);
}

/// Flows end and are reported without further packets, and a killed process leaves nothing behind.
/// Battery: I10
#[test]
fn silent_flows_come_up_and_a_killed_capture_leaves_nothing() {
    if !require_root("silent_flows_come_up_and_a_killed_capture_leaves_nothing") {
        return;
    }
    let lab = Lab::with(&LabOptions { queues: 2, alone: true, ..LabOptions::default() }).unwrap();
    assert_eq!(maps_named("wl_flow"), Default::default(), "nobody else has flow caches");
    let child = flows(&lab, &["--cache", "kernel", "--cache-entries", "1000000", "--inactive-timeout", "1"]);
    send(&lab, 500, &["--flows", "100"]).unwrap();
    let (start, mut packets) = (Instant::now(), 0);
    while packets < 500 {
        assert!(start.elapsed() < Duration::from_secs(10), "{packets} packets in flows");
        let line = child.next_json(LIMIT).unwrap().expect("it goes on");
        if line.get("flow").is_some() {
            assert_eq!(line["end_reason"], "idle");
            packets += column(&line, "packets");
        }
    }
    assert_eq!(maps_named("wl_flow").len(), 1);
    child.signal(Signal::Kill).unwrap();
    child.finish(LIMIT).unwrap();
    while !maps_named("wl_flow").is_empty() {
        assert!(start.elapsed() < 2 * LIMIT, "a map is left behind");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Incompatible options are refused with a hint, and nothing is captured.
#[test]
fn what_the_kernel_cannot_do_is_refused() {
    if !require_root("what_the_kernel_cannot_do_is_refused") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let device = &lab.receiver().device;
    for (words, message) in [
        (vec!["--packets", "5"], "use --duration"),
        (vec!["--engine", "packet"], "only --engine ring"),
        (vec!["--engine", "xsk", "--exclusive"], "only --engine ring"),
        (vec!["--clock", "card"], "use 'packet' or 'batch'"),
        (vec!["--steering", "copy"], "'flow' keeps them together"),
        (vec!["--cache-entries", "0"], "0 is not in 1..=1048576"),
        (vec!["--cache-entries", "1048577"], "1048577 is not in 1..=1048576"),
    ] {
        let mut command = lab.command(&lab.receiver().namespace, wirelane_binary().unwrap());
        let command: &mut Command = command.args(["flows", "-i", device, "--cache", "kernel"]).args(&words);
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {errors}");
        assert!(errors.contains(message), "{words:?}: {errors}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}
