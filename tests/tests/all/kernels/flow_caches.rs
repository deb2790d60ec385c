//! Flow caches in the kernel and in the workers, of the same packets at the same time: two captures on one device, as
//! each packet has one timestamp for both.

use super::bench::{Bench, Guest, field};
use super::{LIMIT, require_root};
use wirelane_tests::flow_traffic::{SPOKEN, make_capture};
use wirelane_tests::flows::{difference, flows_of, named_by_payload};
use wirelane_tests::{Child, Lab, wirelane_binary};

/// Flows of the numbered packets.
const FLOWS: u64 = 300;
const PACKETS: u64 = 2000;

/// Starts `flows --cache kernel` with the smallest cache, and `flows --cache user`.
fn start(bench: &dyn Bench, hook: &str) -> [Child; 2] {
    let common = ["flows", "-i", bench.device(), "--hook", hook, "--json", "--active-timeout", "2"];
    let begin = |cache: &[&str]| {
        let mut child = bench.wirelane(&[&common, cache].concat());
        child.wait_ready(LIMIT).unwrap();
        child
    };
    [begin(&["--cache", "kernel", "--cache-entries", "1"]), begin(&["--cache", "user"])]
}

/// Asserts that both find the same flows of numbered packets, all of them, including parts ended by the active timeout.
pub(super) fn agree(bench: &dyn Bench, hook: &str, method: &str) {
    let [kernel, user] = start(bench, hook);
    let options = format!("--flows {FLOWS}");
    let mut sent = 0;
    for _ in 0..2 {
        sent += bench.send_with(PACKETS, method, &options);
        // Long enough for a lane to be scanned, and for flows to end by the inactivity of the whole device.
        std::thread::sleep(std::time::Duration::from_millis(2500));
    }
    let end = |child: Child| flows_of(&child.terminate(LIMIT).unwrap()).unwrap();
    let ((kernel, of_kernel), (user, of_user)) = (end(kernel), end(user));
    assert_eq!(field(&of_kernel, "absorbed"), sent, "{of_kernel}");
    assert_eq!(field(&of_kernel, "flow_packets"), sent, "{of_kernel}");
    assert_eq!(field(&of_user, "flow_packets"), sent, "{of_user}");
    assert_eq!(field(&of_kernel["flow_cache"], "packets"), sent);
    let parts = field(&of_kernel["flow_cache"], "parts");
    assert!(parts >= kernel.len() as u64 && parts <= sent, "{of_kernel}");
    assert!(field(&of_kernel["flow_cache"], "written") > 0, "128 places for {FLOWS} flows: {of_kernel}");
    assert_eq!(difference(&kernel, &user), None);
    assert!(kernel.len() as u64 >= FLOWS, "{} flows", kernel.len());
}

fn on_veth(test: &str, hook: &str) {
    if require_root(test) {
        let lab = Lab::new(1).unwrap();
        agree(&lab, hook, "socket");
        agree_on_names(&lab, hook);
    }
}

/// The same for packets of all kinds, some with a detectable protocol.
fn agree_on_names(lab: &Lab, hook: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.pcap");
    make_capture(&file, 900).unwrap();
    let captures = start(lab, hook);
    let end = lab.sender();
    // On one CPU: results that depend on the order of packets (sequence numbers) are defined within one lane only.
    let mut command = lab.command(&end.namespace, "taskset");
    command
        .arg("1")
        .arg(wirelane_binary().unwrap())
        .args(["send", "-i", &end.device, "--json", "--replay"])
        .arg(&file);
    let sent = Child::spawn(&mut command).unwrap().finish(LIMIT).unwrap();
    assert!(sent.status.success(), "{}", sent.stderr);
    std::thread::sleep(std::time::Duration::from_millis(2500));
    let [(kernel, of_kernel), (user, _)] =
        captures.map(|child| flows_of(&child.terminate(LIMIT).unwrap()).unwrap());
    assert_eq!(field(&of_kernel, "flow_packets"), 900, "{of_kernel}");
    assert_eq!(difference(&kernel, &user), None);
    let named = named_by_payload(&kernel).unwrap();
    assert!(named.len() >= SPOKEN.len() - 4, "{named:?}");
}

/// Battery: I10
#[test]
fn flows_in_the_kernel_are_those_of_the_workers_native() {
    on_veth("flows_in_the_kernel_are_those_of_the_workers_native", "native");
}

#[test]
fn flows_in_the_kernel_are_those_of_the_workers_tc() {
    let test = "flows_in_the_kernel_are_those_of_the_workers_tc";
    if !Guest::leaves_out(test) {
        on_veth(test, "tc");
    }
}
