//! What may happen to a device while it is captured (RELIABILITY.md, F1 and F2): the capture goes on, or ends clearly,
//! and every packet is in its ledger either way.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send};
use wirelane_tests::{Child, Lab, Signal, require_root};

const HOOKS: [&str; 3] = ["native", "generic", "tc"];

fn count(lab: &Lab, hook: &str) -> Child {
    capture(lab, &["count", "-i", &lab.receiver().device, "--hook", hook, "--json"]).unwrap()
}

fn ip(lab: &Lab, words: &[&str]) {
    lab.exec(&lab.receiver().namespace, &[&["ip"], words].concat()).unwrap();
}

/// The last ledger of a capture that ends well.
fn end(child: Child) -> serde_json::Value {
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    last_of(&finished).unwrap()
}

#[test]
fn another_mtu_and_another_name_change_nothing() {
    if !require_root("another_mtu_and_another_name_change_nothing") {
        return;
    }
    for hook in HOOKS {
        let lab = Lab::new(2).unwrap();
        let device = lab.receiver().device.as_str();
        let child = count(&lab, hook);
        send(&lab, 500, &[]).unwrap();
        ip(&lab, &["link", "set", "dev", device, "mtu", "1300"]);
        send(&lab, 500, &[]).unwrap();
        ip(&lab, &["link", "set", "dev", device, "down"]);
        ip(&lab, &["link", "set", "dev", device, "name", "renamed0"]);
        ip(&lab, &["link", "set", "dev", "renamed0", "up"]);
        wait_for_carrier(&lab);
        send(&lab, 500, &[]).unwrap();
        let last = end(child);
        assert_eq!(
            (column(&last, "seen"), column(&last, "lost"), column(&last, "analysed")),
            (1500, 0, 1500),
            "{hook}"
        );
    }
}

/// The sender's end has a carrier when both ends are up.
fn wait_for_carrier(lab: &Lab) {
    let start = Instant::now();
    let sender = lab.sender();
    let path = format!("/sys/class/net/{}/operstate", sender.device);
    while lab.exec(&sender.namespace, &["cat", &path]).unwrap().trim() != "up" {
        assert!(start.elapsed() < LIMIT, "no carrier");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn other_queues_are_in_the_ledger() {
    if !require_root("other_queues_are_in_the_ledger") {
        return;
    }
    for hook in HOOKS {
        let lab = Lab::new(4).unwrap();
        let (namespace, device) = (&lab.receiver().namespace, lab.receiver().device.as_str());
        let child = count(&lab, hook);
        send(&lab, 2000, &[]).unwrap();
        for queues in ["2", "4", "1"] {
            // A veth may have fewer queues to receive by than its peer has to send by only without XDP; what the
            // kernel refuses changes nothing.
            let _ = lab.exec(namespace, &["ethtool", "-L", device, "rx", queues]);
            send(&lab, 2000, &[]).unwrap();
        }
        let last = end(child);
        assert_eq!(
            (column(&last, "seen"), column(&last, "lost"), column(&last, "analysed")),
            (8000, 0, 8000),
            "{hook}"
        );
    }
}

#[test]
fn a_device_that_is_moved_away_ends_the_capture() {
    if !require_root("a_device_that_is_moved_away_ends_the_capture") {
        return;
    }
    for hook in HOOKS {
        let lab = Lab::new(1).unwrap();
        let device = lab.receiver().device.as_str();
        let child = count(&lab, hook);
        send(&lab, 700, &[]).unwrap();
        ip(&lab, &["link", "set", "dev", device, "netns", &lab.sender().namespace]);
        let finished = child.finish(LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(1), "{hook}: {}", finished.stderr);
        assert!(
            finished.stderr.contains("moved to another network namespace"),
            "{hook}: {}",
            finished.stderr
        );
        let last = finished.last_json().unwrap();
        assert_eq!((column(&last, "seen"), column(&last, "analysed")), (700, 700), "{hook}");
        // Nothing of ours went with it.
        let shown = lab.exec(&lab.sender().namespace, &["ip", "link", "show", "dev", device]).unwrap();
        assert!(!shown.contains("xdp"), "{hook}: {shown}");
    }
}

#[test]
fn waiting_for_a_device_that_is_down_takes_no_time() {
    if !require_root("waiting_for_a_device_that_is_down_takes_no_time") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let child = count(&lab, "native");
    ip(&lab, &["link", "set", "dev", &lab.receiver().device, "down"]);
    std::thread::sleep(Duration::from_millis(500));
    let before = wirelane_tests::cpu_time(child.pid()).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let used = wirelane_tests::cpu_time(child.pid()).unwrap() - before;
    // 5 % of three seconds.
    assert!(used < Duration::from_millis(150), "{used:?}");
    end(child);
}

/// Killed, it leaves a device that works, to which others can attach.
#[test]
fn traffic_flows_on_after_kill() {
    if !require_root("traffic_flows_on_after_kill") {
        return;
    }
    for hook in HOOKS {
        let lab = Lab::new(1).unwrap();
        let device = lab.receiver().device.clone();
        // It takes the packets: while it lives, nobody else gets any.
        let child = capture(&lab, &["count", "-i", &device, "--hook", hook, "--take", "--json"]).unwrap();
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
        let again = count(&lab, hook);
        send(&lab, 100, &[]).unwrap();
        assert_eq!(column(&end(again), "analysed"), 100, "{hook}");
    }
}
