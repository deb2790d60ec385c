//! Devices that come up during a capture and match its pattern: they are captured, and counted by their own names.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wirelane_tests::numbers::{self, LIMIT, capture, column, send, wirelane};
use wirelane_tests::{Child, Lab, LabOptions, Signal, kernel_version, require_root};

/// Time for the maintenance thread, which looks five times a second, to notice a change: four times its period.
const NOTICED: Duration = Duration::from_millis(800);

/// Whether the test can run here.
fn runs(test: &str) -> bool {
    if kernel_version().unwrap() < (6, 6) {
        println!("left out: {test} (tc has links since Linux 6.6)");
        return false;
    }
    require_root(test)
}

/// A lab with one link, in which veth pairs of the receiver's namespace come and go.
struct Later(Lab);

impl Later {
    fn new() -> Later {
        Later(Lab::with(&LabOptions::default()).unwrap())
    }

    fn ip(&self, words: &[&str]) {
        self.0.exec(&self.0.receiver().namespace, &[&["ip", "link"], words].concat()).unwrap();
    }

    /// A pair of devices, `rx` and `px` with this number, which is noticed.
    fn add(&self, number: u32) {
        let (device, peer) = (format!("rx{number}"), format!("px{number}"));
        self.ip(&["add", &device, "type", "veth", "peer", "name", &peer]);
        self.ip(&["set", &peer, "up"]);
        self.ip(&["set", &device, "up"]);
        std::thread::sleep(NOTICED);
    }

    /// Sends numbered packets from one device of the receiver's namespace.
    fn send(&self, device: &str, packets: u32) {
        let number = packets.to_string();
        let words = ["send", "-i", device, "--packets", &number, "--flows", "10", "--method", "socket"];
        let sent = wirelane(&self.0, &self.0.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
        assert!(sent.status.success(), "{}", sent.stderr);
    }

    fn capture(&self, words: &[&str]) -> Child {
        capture(&self.0, words).unwrap()
    }
}

/// Packets of a virtual device by the last object of a command.
fn seen(last: &Value, device: &str, direction: &str) -> u64 {
    let lines = last["virtual_devices"].as_array().unwrap();
    let line = lines.iter().find(|line| line["device"] == device && line["direction"] == direction);
    line.map_or(0, |line| column(line, "seen"))
}

fn end(child: Child) -> (Value, String) {
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    (finished.last_json().unwrap(), finished.stderr)
}

/// Counts of all devices and both directions are those of the generator; a recording has the devices' names, which
/// capinfos reads, and is in time order.
/// Battery: F1
#[test]
fn later_devices_are_captured_by_name() {
    if !runs("later_devices_are_captured_by_name") {
        return;
    }
    let later = Later::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("later.pcapng");
    let counter = later.capture(&["count", "-i", "rx*", "--json"]);
    // Without the kernel's neighbour discovery.
    let words = ["record", "-i", "rx*", "-w", file.to_str().unwrap(), "--json", "udp"];
    let recorder = later.capture(&words);
    let flows = later.capture(&["flows", "-i", "rx*", "--json", "udp"]);
    later.add(7);
    later.add(8);
    send(&later.0, 100, &[]).unwrap();
    later.send("px7", 200);
    later.send("rx7", 300);
    later.send("px8", 400);
    // A device that goes keeps its line; the same name later is another device.
    later.ip(&["del", "rx7"]);
    later.add(7);
    later.send("px7", 500);
    let expected = [("rx0", "ingress", 100), ("rx7", "egress", 300), ("rx8", "ingress", 400)];
    for child in [counter, recorder] {
        let (last, said) = end(child);
        for (device, direction, packets) in expected {
            assert!(seen(&last, device, direction) >= packets, "{device} {direction}: {last}");
        }
        let lines = last["virtual_devices"].as_array().unwrap().iter();
        let of_rx7 = lines.filter(|line| line["device"] == "rx7" && line["direction"] == "ingress");
        let of_rx7: Vec<u64> = of_rx7.map(|line| column(line, "seen")).collect();
        assert!(of_rx7.len() == 2 && of_rx7[0] >= 200 && of_rx7[1] >= 500, "{of_rx7:?}");
        assert_eq!(column(&last, "lost"), 0, "{last}");
        assert_eq!(column(&last, "seen"), column(&last, "analysed") + column(&last, "filtered"), "{last}");
        assert!(said.contains("rx7 disappeared; packets until then are counted"), "{said}");
    }
    let mut numbers = numbers::in_file(&file).unwrap_or_else(|e| panic!("{e}"));
    numbers.sort_unstable();
    let mut sent: Vec<u64> = [100, 200, 300, 400, 500].iter().flat_map(|packets| 0..*packets).collect();
    sent.sort_unstable();
    assert_eq!(numbers, sent);
    names_are_read(&file);
    let finished = flows.terminate(LIMIT).unwrap();
    let by_device = |device: &str| -> u64 {
        let lines = finished.lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["device"] == device).map(|line| column(&line, "packets")).sum()
    };
    assert_eq!(by_device("rx0"), 100);
    assert_eq!(by_device("rx7"), 200 + 300 + 500);
    assert_eq!(by_device("rx8"), 400);
}

/// capinfos finds the names of the devices, and strict time order.
fn names_are_read(file: &Path) {
    let Ok(output) = Command::new("capinfos").arg(file).output() else {
        println!("left out: names read by capinfos (no capinfos)");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["rx0@0", "rx7@0", "rx7@tx", "rx8@0"] {
        assert!(text.contains(&format!("Name = {name}\n")), "{name}: {text}");
    }
    let order = text.lines().find(|line| line.starts_with("Strict time order:"));
    assert!(order.is_some_and(|line| line.ends_with("True")), "{text}");
}

/// A filter, and the workers, are those of the other devices. The capture goes on without any device.
/// Battery: F1
#[test]
fn later_devices_have_the_filter_and_the_workers() {
    if !runs("later_devices_have_the_filter_and_the_workers") {
        return;
    }
    let later = Later::new();
    let words = ["count", "-i", "rx*", "--workers", "3", "--direction", "rx", "--json", "udp"];
    let counter = later.capture(&words);
    let none = later.capture(&["count", "-i", "rx*", "--direction", "rx", "--json", "tcp"]);
    later.ip(&["del", "rx0"]);
    std::thread::sleep(NOTICED);
    later.add(7);
    later.send("px7", 600);
    let (last, _) = end(counter);
    assert_eq!((seen(&last, "rx7", "ingress") - column(&last, "filtered"), column(&last, "lost")), (600, 0));
    let workers = last["workers"].as_array().unwrap();
    assert_eq!(workers.iter().map(|line| column(line, "analysed")).sum::<u64>(), 600);
    assert!(workers.iter().filter(|line| column(line, "analysed") > 0).count() > 1, "{last}");
    let (last, _) = end(none);
    assert_eq!(column(&last, "seen"), column(&last, "filtered"), "{last}");
}

/// After `kill -9` no program of ours is on the device.
/// Battery: F1
#[test]
fn a_killed_capture_leaves_nothing_on_later_devices() {
    if !runs("a_killed_capture_leaves_nothing_on_later_devices") {
        return;
    }
    let later = Later::new();
    let counter = later.capture(&["count", "-i", "rx*", "--json"]);
    later.add(7);
    let programs = || {
        let found = later.0.enter(&later.0.receiver().namespace, || {
            libbpf_rs::query::LinkInfoIter::default()
                .filter(|link| matches!(&link.info, libbpf_rs::query::LinkTypeInfo::Tcx(tcx) if tcx.ifindex == index("rx7")))
                .count()
        });
        found.unwrap()
    };
    assert_eq!(programs(), 2);
    let killed = counter.signal(Signal::Kill).and_then(|()| counter.finish(LIMIT)).unwrap();
    assert!(!killed.status.success());
    let deadline = std::time::Instant::now() + LIMIT;
    while programs() > 0 {
        assert!(std::time::Instant::now() < deadline, "the links are there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn index(device: &str) -> u32 {
    wirelane_netdev::Link::find(device).unwrap().map_or(0, |link| link.ifindex)
}
