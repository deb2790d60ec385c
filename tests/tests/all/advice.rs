//! Advice of commands on how a device is captured: a mirror port, conversations with a missing direction, native XDP on
//! a device that the host uses.

use wirelane_tests::numbers::{LIMIT, capture, column, last_of};
use wirelane_tests::{Lab, LabOptions, require_root};

/// TCP packets of 30 connections between other hosts, for six seconds; `both`: of both directions.
fn mirror(lab: &Lab, both: bool) {
    let script = r#"
import socket, struct, sys, time
device, both = sys.argv[1], sys.argv[2] == "true"
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind((device, 0))
def packet(a, b, sport, dport):
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 1, 0, 64, 6, 0, socket.inet_aton(a), socket.inet_aton(b))
    tcp = struct.pack("!HHIIBBHHH", sport, dport, 1, 1, 0x50, 0x10, 1000, 0, 0)
    return bytes.fromhex("020000000099" "020000000098" "0800") + ip + tcp
end = time.monotonic() + 6
while time.monotonic() < end:
    for port in range(30):
        raw.send(packet("192.0.2.1", "192.0.2.2", 5000 + port, 80))
        if both:
            raw.send(packet("192.0.2.2", "192.0.2.1", 80, 5000 + port))
    time.sleep(0.1)
"#;
    let end = lab.sender();
    let words = ["python3", "-c", script, &end.device, if both { "true" } else { "false" }];
    let finished = lab.spawn(&end.namespace, &words).unwrap().finish(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
}

/// Standard error of a command while traffic of other hosts passes.
fn said(lab: &Lab, words: &[&str], both: bool) -> String {
    let words = [words, &["-i", &lab.receiver().device, "--json"]].concat();
    let child = capture(lab, &words).unwrap();
    mirror(lab, both);
    let finished = child.terminate(LIMIT).unwrap();
    let last = last_of(&finished).unwrap();
    assert!(column(&last, "seen") >= 30 && column(&last, "lost") == 0, "{last}");
    finished.stderr
}

#[test]
fn a_mirror_port_and_a_missing_direction_are_told() {
    if !require_root("a_mirror_port_and_a_missing_direction_are_told") {
        return;
    }
    let lab = Lab::with(&LabOptions { alone: true, ..LabOptions::default() }).unwrap();
    let [port, direction] = ["looks like a mirror port", "only one direction of 30 of 30 TCP connections"];
    let text = said(&lab, &["flows"], false);
    assert!(text.contains(port) && text.contains(direction), "{text}");
    let text = said(&lab, &["http"], true);
    assert!(text.contains(port) && !text.contains("only one direction"), "{text}");
    // No advice on something that an option has already answered.
    let text = said(&lab, &["flows", "--exclusive"], false);
    assert!(!text.contains(port) && text.contains(direction), "{text}");
    let text = said(&lab, &["flows", "--direction", "rx"], false);
    assert!(text.contains(port) && !text.contains("only one direction"), "{text}");
}

#[test]
fn native_xdp_on_a_shared_device_is_told() {
    if !require_root("native_xdp_on_a_shared_device_is_told") {
        return;
    }
    let lab = Lab::with(&LabOptions::default()).unwrap();
    for (words, told) in
        [(&["--hook", "native"][..], true), (&["--hook", "native", "--exclusive"], false), (&[], false)]
    {
        let child =
            capture(&lab, &[&["count", "-i", &lab.receiver().device, "--json"], words].concat()).unwrap();
        let finished = child.terminate(LIMIT).unwrap();
        assert_eq!(
            finished.stderr.contains("native XDP switches off"),
            told,
            "{words:?}: {}",
            finished.stderr
        );
    }
}
