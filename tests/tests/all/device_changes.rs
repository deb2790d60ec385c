//! Changes of a device during a capture (F1 of tests/BATTERY.md): it is set down and up, renamed, moved to another
//! network namespace, changes its MTU and its queues, is deleted and made anew, or loses the capture program to another
//! process. A counter and a recorder, as two groups of one instance, account for every packet.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use wirelane_tests::numbers::{self, LIMIT, capture, column, send, spread_by_hash};
use wirelane_tests::{Child, Finished, Lab, LabOptions, Signal, cpu_time, kernel_version, require_root};

/// Time for the maintenance thread, which looks five times a second, to notice a change: four times its period.
const NOTICED: Duration = Duration::from_millis(800);

/// The hooks that stay with a device in any namespace.
fn hooks() -> Vec<&'static str> {
    // Before TCX, tc programs are attached to the device's queueing discipline, which does not move with it.
    if kernel_version().unwrap() >= (6, 6) {
        vec!["native", "generic", "tc"]
    } else {
        vec!["native", "generic"]
    }
}

/// A counter and a recorder on the same device.
struct Watched<'lab> {
    lab: &'lab Lab,
    counter: Child,
    recorder: Child,
    folder: TempDir,
    /// Numbers of all packets sent: from 0 in each call.
    sent: Vec<u64>,
}

impl<'lab> Watched<'lab> {
    fn new(lab: &'lab Lab, selector: &str, hook: &str) -> Watched<'lab> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("changes.pcapng");
        let options = ["-i", selector, "--hook", hook, "--direction", "rx", "--json"];
        let counter = capture(lab, &[&["count"], &options[..]].concat()).unwrap();
        let words = [&["record", "-w", file.to_str().unwrap()], &options[..]].concat();
        let recorder = capture(lab, &words).unwrap();
        Watched { lab, counter, recorder, folder, sent: Vec::new() }
    }

    fn send(&mut self, packets: u64) {
        send(self.lab, packets, &["--rate", "20k"]).unwrap();
        self.sent.extend(0..packets);
    }

    fn receiver(&self, words: &[&str]) {
        self.lab.exec(&self.lab.receiver().namespace, words).unwrap();
    }

    /// Ends both, and checks that both have every packet. Returns the counter's last object and its standard error.
    fn end(self) -> (Value, String) {
        let (sent, folder) = (self.sent, self.folder);
        let counted = self.counter.terminate(LIMIT).unwrap();
        let recorded = self.recorder.terminate(LIMIT).unwrap();
        for finished in [&counted, &recorded] {
            assert!(finished.status.success(), "{}", finished.stderr);
        }
        all_there(sent, folder, counted, &recorded)
    }

    /// The same for captures that end by themselves, with an error that contains `why`.
    fn ended(self, why: &str) -> (Value, String) {
        let (sent, folder) = (self.sent, self.folder);
        let (counted, recorded) = (self.counter.finish(LIMIT).unwrap(), self.recorder.finish(LIMIT).unwrap());
        for finished in [&counted, &recorded] {
            assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
            assert!(finished.stderr.contains(why), "{}", finished.stderr);
        }
        all_there(sent, folder, counted, &recorded)
    }
}

fn all_there(mut sent: Vec<u64>, folder: TempDir, counted: Finished, recorded: &Finished) -> (Value, String) {
    let last = counted.last_json().unwrap();
    let packets = sent.len() as u64;
    for object in [&last, &recorded.last_json().unwrap()] {
        for of in ["seen", "delivered", "analysed"] {
            assert_eq!(column(object, of), packets, "{of} of {object}");
        }
        assert_eq!((column(object, "lost"), column(object, "in_flight")), (0, 0), "{object}");
    }
    let mut recorded = numbers::in_file(&folder.path().join("changes.pcapng")).unwrap();
    recorded.sort_unstable();
    sent.sort_unstable();
    assert!(recorded == sent, "the recording has other packets than were sent");
    (last, counted.stderr)
}

#[track_caller]
fn says(stderr: &str, parts: &[&str]) {
    for part in parts {
        assert!(stderr.contains(part), "no '{part}' in: {stderr}");
    }
}

/// Battery: F1
#[test]
fn down_and_up_renamed_and_another_mtu() {
    if !require_root("down_and_up_renamed_and_another_mtu") {
        return;
    }
    for hook in hooks() {
        let lab = Lab::new(2).unwrap();
        let mut watched = Watched::new(&lab, "rx0", hook);
        watched.send(300);
        watched.receiver(&["ip", "link", "set", "rx0", "down"]);
        std::thread::sleep(NOTICED);
        // Some kernels rename only a device that is down.
        watched.receiver(&["ip", "link", "set", "rx0", "name", "uplink0"]);
        watched.receiver(&["ip", "link", "set", "uplink0", "mtu", "1400", "up"]);
        std::thread::sleep(NOTICED);
        watched.send(300);
        let (last, said) = watched.end();
        says(
            &said,
            &["rx0 was set down", "rx0 is called uplink0 now", "uplink0 is up again", "an MTU of 1400"],
        );
        // The output keeps the name of the selector.
        assert_eq!(last["virtual_devices"][0]["device"], "rx0", "{hook}");
    }
}

/// Battery: F1
#[test]
fn moved_to_another_network_namespace_and_back() {
    if !require_root("moved_to_another_network_namespace_and_back") {
        return;
    }
    for hook in hooks() {
        let lab = Lab::new(2).unwrap();
        let (home, away) = (lab.receiver().namespace.as_str(), lab.sender().namespace.as_str());
        let mut watched = Watched::new(&lab, "rx0", hook);
        watched.send(300);
        for (from, to) in [(home, away), (away, home)] {
            lab.exec(from, &["ip", "link", "set", "rx0", "netns", to]).unwrap();
            lab.exec(to, &["ip", "link", "set", "rx0", "up"]).unwrap();
            std::thread::sleep(NOTICED);
            watched.send(300);
        }
        let (_, said) = watched.end();
        says(&said, &["rx0 was moved to another network namespace", "rx0 is back"]);
        assert!(!said.contains("disappeared"), "{hook}: {said}");
    }
}

/// Battery: F1
#[test]
fn moved_away_and_deleted_there() {
    if !require_root("moved_away_and_deleted_there") {
        return;
    }
    for hook in hooks() {
        let lab = Lab::new(1).unwrap();
        let away = lab.sender().namespace.as_str();
        let mut watched = Watched::new(&lab, "rx0", hook);
        watched.send(200);
        watched.receiver(&["ip", "link", "set", "rx0", "netns", away]);
        std::thread::sleep(NOTICED);
        lab.exec(away, &["ip", "link", "del", "rx0"]).unwrap();
        watched.ended("device rx0 disappeared");
    }
}

/// A new device of the same name is another device.
/// Battery: F1
#[test]
fn deleted_and_made_anew() {
    if !require_root("deleted_and_made_anew") {
        return;
    }
    for hook in hooks() {
        let lab = Lab::new(1).unwrap();
        let mut watched = Watched::new(&lab, "rx0", hook);
        watched.send(200);
        watched.receiver(&["ip", "link", "del", "rx0"]);
        watched.receiver(&["ip", "link", "add", "rx0", "type", "veth", "peer", "name", "tx9"]);
        let (_, said) = watched.ended("device rx0 disappeared");
        says(&said, &["start again when it is back"]);
        watched_again(&lab, hook);
    }
}

/// Asserts that the device can be captured immediately.
fn watched_again(lab: &Lab, hook: &str) {
    let child = capture(lab, &["count", "-i", "rx0", "--hook", hook, "--json"]).unwrap();
    assert!(child.terminate(LIMIT).unwrap().status.success());
}

/// Two RX queues become four, and then one; each has a line of its own in the counts.
/// Battery: F1
#[test]
fn another_number_of_queues() {
    if !require_root("another_number_of_queues") {
        return;
    }
    for hook in hooks() {
        let lab = Lab::new(4).unwrap();
        // With an XDP program the driver requires at least as many RX queues as the peer has TX queues.
        let queues = |rx: &str, first: bool| {
            let (rx_end, tx_end) = (lab.receiver(), lab.sender());
            let set_rx = || lab.exec(&rx_end.namespace, &["ethtool", "-L", "rx0", "rx", rx]).unwrap();
            let set_tx = || lab.exec(&tx_end.namespace, &["ethtool", "-L", "tx0", "tx", rx]).unwrap();
            if first {
                (set_tx(), set_rx())
            } else {
                (set_rx(), set_tx())
            };
            spread_by_hash(&lab, rx.parse().unwrap()).unwrap();
        };
        queues("2", true);
        let mut watched = Watched::new(&lab, "rx0", hook);
        watched.send(1000);
        queues("4", false);
        std::thread::sleep(NOTICED);
        if hook == "native" {
            // veth starts its new queues without the program until the device is set up again; other drivers do not.
            watched.receiver(&["ip", "link", "set", "rx0", "down"]);
            watched.receiver(&["ip", "link", "set", "rx0", "up"]);
        }
        watched.send(1000);
        queues("1", true);
        std::thread::sleep(NOTICED);
        watched.send(500);
        let (last, said) = watched.end();
        says(&said, &["rx0 has 4 RX queues now, it had 2", "rx0 has 1 RX queue now, it had 4: all of them"]);
        assert_eq!(said.contains("set down and up again"), hook == "native", "{said}");
        let lines = last["virtual_devices"].as_array().unwrap();
        let seen: Vec<u64> = lines.iter().map(|line| column(line, "seen")).collect();
        // Without native XDP veth numbers queues from the second one on, and from 0; tc does not see queue numbers.
        let used = match hook {
            "native" => 4,
            "generic" => 3,
            _ => 1,
        };
        assert!(seen.len() == used && seen.iter().all(|seen| *seen > 0), "{hook}: {seen:?}");
    }
}

/// A capture of some queues gets their packets only, and reports if a queue disappears.
/// Battery: F1
#[test]
fn a_virtual_device_whose_queue_goes() {
    if !require_root("a_virtual_device_whose_queue_goes") {
        return;
    }
    let lab = Lab::new(4).unwrap();
    let child = capture(&lab, &["count", "-i", "rx0@2", "--json"]).unwrap();
    lab.exec(&lab.sender().namespace, &["ethtool", "-L", "tx0", "tx", "2"]).unwrap();
    lab.exec(&lab.receiver().namespace, &["ethtool", "-L", "rx0", "rx", "2"]).unwrap();
    std::thread::sleep(NOTICED);
    send(&lab, 500, &[]).unwrap();
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    says(&finished.stderr, &["rx0 has 2 RX queues now, it had 4", "nothing does on rx0@2 any more"]);
    assert_eq!(column(&finished.last_json().unwrap(), "seen"), 0);
}

/// Battery: F1
#[test]
fn a_program_that_somebody_takes_off() {
    if !require_root("a_program_that_somebody_takes_off") {
        return;
    }
    for hook in hooks() {
        let lab = Lab::new(1).unwrap();
        let mut watched = Watched::new(&lab, "rx0", hook);
        watched.send(200);
        let links = wirelane_tests::bpf_links(watched.counter.pid()).unwrap();
        assert_eq!(links.len(), 1, "{hook}");
        wirelane_tests::detach_link(links[0]).unwrap();
        watched.ended("another process removed it");
    }
}

/// Waiting for a device that is down, or in another namespace, costs almost no CPU time.
/// Battery: F1
#[test]
fn waiting_costs_little() {
    if !require_root("waiting_costs_little") {
        return;
    }
    const WAIT: Duration = Duration::from_secs(3);
    let lab = Lab::new(4).unwrap();
    let (home, away) = (lab.receiver().namespace.as_str(), lab.sender().namespace.as_str());
    let child = capture(&lab, &["count", "-i", "rx0", "--json", "--interval", "60"]).unwrap();
    for words in
        [["ip", "link", "set", "rx0", "down"].as_slice(), &["ip", "link", "set", "rx0", "netns", away]]
    {
        lab.exec(home, words).unwrap();
        std::thread::sleep(NOTICED);
        let before = cpu_time(child.pid()).unwrap();
        std::thread::sleep(WAIT);
        let used = cpu_time(child.pid()).unwrap() - before;
        assert!(used < WAIT.mul_f64(0.05), "{used:?} of CPU in {WAIT:?} after {words:?}");
    }
    assert!(child.terminate(LIMIT).unwrap().status.success());
}

/// A killed capture leaves a working device, to which others can attach.
/// Battery: F2
#[test]
fn traffic_flows_on_after_kill() {
    if !require_root("traffic_flows_on_after_kill") {
        return;
    }
    for hook in hooks() {
        let lab = Lab::new(1).unwrap();
        let device = lab.receiver().device.clone();
        // The capture consumes the packets: while it lives, the host stack does not get any.
        let child =
            capture(&lab, &["count", "-i", &device, "--hook", hook, "--exclusive", "--json"]).unwrap();
        send(&lab, 100, &[]).unwrap();
        child.signal(Signal::Kill).unwrap();
        child.finish(LIMIT).unwrap();
        let start = Instant::now();
        while lab
            .exec(&lab.receiver().namespace, &["ip", "link", "show", "dev", &device])
            .unwrap()
            .contains("xdp")
        {
            assert!(start.elapsed() < LIMIT, "{hook}: the program stays");
            std::thread::sleep(Duration::from_millis(10));
        }
        let socket = |end: &wirelane_tests::End| {
            let address = (end.address, 0);
            let socket = lab.enter(&end.namespace, || UdpSocket::bind(address).unwrap()).unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            socket
        };
        let (to, from) = (socket(lab.receiver()), socket(lab.sender()));
        from.send_to(b"through", to.local_addr().unwrap()).unwrap();
        assert_eq!(to.recv_from(&mut [0; 16]).unwrap().0, 7, "{hook}");
        let again = capture(&lab, &["count", "-i", &device, "--hook", hook, "--json"]).unwrap();
        send(&lab, 100, &[]).unwrap();
        assert_eq!(column(&numbers::finish(again).unwrap(), "analysed"), 100, "{hook}");
    }
}

/// A device that disappears is reported once, and the others are captured on. One that appears or is set up and matches
/// the pattern is captured by tc with links; otherwise it is reported once.
/// Battery: F1
#[test]
fn devices_of_a_pattern_disappear_and_appear() {
    if !require_root("devices_of_a_pattern_disappear_and_appear") {
        return;
    }
    for (hook, selector, direction) in
        [("native", "rx*", "rx"), ("tc", "rx[0-9]", "both"), ("generic", "any", "rx")]
    {
        let lab = Lab::with(&LabOptions { links: 2, ..LabOptions::default() }).unwrap();
        let receiver = lab.receiver().namespace.clone();
        let exec = |words: &[&str]| lab.exec(&receiver, words).unwrap();
        exec(&["ip", "link", "add", "rx7", "type", "veth", "peer", "name", "px7"]);
        let options = ["--hook", hook, "--direction", direction, "--json"];
        let mut child = capture(&lab, &[&["count", "-i", selector], &options[..]].concat()).unwrap();
        send(&lab, 300, &[]).unwrap();
        exec(&["ip", "link", "set", "rx7", "up"]);
        exec(&["ip", "link", "del", "rx1"]);
        exec(&["ip", "link", "add", "rx1", "type", "veth", "peer", "name", "px1"]);
        exec(&["ip", "link", "set", "rx1", "up"]);
        std::thread::sleep(NOTICED);
        // A captured device and a reported one that are set down and up again are not reported.
        for change in ["down", "up"] {
            exec(&["ip", "link", "set", "rx0", change]);
            exec(&["ip", "link", "set", "rx7", change]);
            std::thread::sleep(NOTICED);
        }
        send(&lab, 400, &[]).unwrap();
        assert!(child.is_running().unwrap(), "{selector}");
        let finished = child.terminate(LIMIT).unwrap();
        assert!(finished.status.success(), "{selector}: {}", finished.stderr);
        let told: Vec<&str> = finished.stderr.lines().filter(|line| line.contains("disappeared")).collect();
        assert_eq!(told.len(), 1, "{selector}: {}", finished.stderr);
        // As in `2026-03-01T12:00:00Z: rx1 disappeared`.
        assert!(told[0].contains("Z: rx1 disappeared during the capture"), "{}", told[0]);
        let is_captured = hook == "tc" && kernel_version().unwrap() >= (6, 6);
        if is_captured {
            assert!(!finished.stderr.contains("and matches"), "{}", finished.stderr);
            let last = finished.last_json().unwrap();
            assert_eq!((column(&last, "seen"), column(&last, "analysed")), (700, 700), "{last}");
            continue;
        }
        let matches = format!("and matches '{selector}'; it is not captured: start again to capture it");
        for told in ["rx7 is up now", "rx1 appeared"] {
            let lines = finished.stderr.lines().filter(|line| line.contains(&format!("Z: {told} {matches}")));
            assert_eq!(lines.count(), 1, "{selector}: no '{told} {matches}' in: {}", finished.stderr);
        }
        assert_eq!(finished.stderr.matches(&matches).count(), 2, "{selector}: {}", finished.stderr);
        let last = finished.last_json().unwrap();
        assert_eq!((column(&last, "seen"), column(&last, "analysed")), (700, 700), "{selector}: {last}");
        let devices: Vec<&str> = last["virtual_devices"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|line| line["device"].as_str())
            .collect();
        assert!(devices.contains(&"rx0") && devices.contains(&"rx1"), "{selector}: {devices:?}");
        assert!(!devices.contains(&"rx7"), "a device that was down at the start: {devices:?}");
        assert_eq!(devices.contains(&"lo"), selector == "any", "{devices:?}");
    }
}
