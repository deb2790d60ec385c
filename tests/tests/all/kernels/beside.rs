//! Flows and RTP in the kernel beside other analyses of a monitor: one copy of each packet that is needed, counted once,
//! and the results of captures that analyse the same packets in user space.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use wirelane_tests::Lab;
use wirelane_tests::flows::{difference, timeless};
use wirelane_tests::numbers::last_of;

use super::bench::{Bench as _, Guest, field};
use super::streams::{CALLS, calls_in, listen, stay_on_one_cpu, talk};
use super::{LIMIT, require_root};

/// Sections of a monitor, and what becomes of RTP that is measured in the kernel.
struct Case {
    record: bool,
    cache: &'static str,
    stays: bool,
}

/// Flows of a file, with durations instead of times of day.
fn flows(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let mut flows: Vec<String> =
        text.lines().map(|line| timeless(serde_json::from_str(line).unwrap()).unwrap()).collect();
    flows.sort();
    flows
}

/// Whether a monitor with RTP in the kernel has the calls, flows and packets of captures without, at the same time on one
/// device.
fn is_equal(hook: &str, case: &Case) {
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let at = |name: &str| folder.path().join(name);
    let shown = |name: &str| at(name).display().to_string();
    let record =
        if case.record { format!("[record]\nwrite = \"{}\"\n", shown("all.pcapng")) } else { String::new() };
    let site = format!(
        "[capture]\ninterface = \"{}\"\nhook = \"{hook}\"\nfilter = \"udp\"\npriority = \"normal\"\n{record}\
         [flows]\ncache = \"{}\"\ninactive-timeout = 1\noutput-rate = 0\nexport = \"file:{}\"\n\
         [voip]\nanalysis = \"kernel\"\nlinger = 0.5\nquality-interval = 0.7\ndtmf-digits = true\noutput-rate = 0\nexport = \"file:{}\"\n",
        lab.device(),
        case.cache,
        shown("flows.json"),
        shown("calls.json"),
    );
    fs::write(at("site.toml"), site).unwrap();
    let mut monitor = lab.wirelane(&["monitor", &shown("site.toml"), "--json"]);
    monitor.wait_ready(LIMIT).unwrap();
    let calls = format!("file:{}", shown("alone-calls.json"));
    let voip = listen(&lab, hook, &["--quiet", "--output-rate", "0", "--export", &calls, "udp"]);
    let to = format!("file:{}", shown("alone-flows.json"));
    let words = ["flows", "-i", lab.device(), "--hook", hook, "--json", "--quiet", "--inactive-timeout", "1"];
    let mut alone = lab.wirelane(&[&words[..], &["--output-rate", "0", "--export", &to, "udp"]].concat());
    alone.wait_ready(LIMIT).unwrap();
    let work = || {
        stay_on_one_cpu();
        talk(&lab, Duration::from_millis(if Guest::is_here() { 12 } else { 4 }))
    };
    let sent = lab.enter(&lab.sender().namespace, work).unwrap();
    // Until flows and ended calls have timed out, so that the result does not depend on the order of the ends.
    std::thread::sleep(Duration::from_millis(3500));
    let [last, voip, alone] =
        [monitor, voip, alone].map(|child| last_of(&child.terminate(LIMIT).unwrap()).unwrap());

    assert_eq!(
        [&last, &voip, &alone].map(|last| field(last, "seen") - field(last, "filtered")),
        [sent; 3],
        "{last}"
    );
    for name in ["lost", "shed"] {
        assert_eq!([&last, &voip, &alone].map(|last| field(last, name)), [0; 3], "{name}: {last}");
    }
    let (analyses, absorbed) = (&last["analyses"], field(&last, "absorbed"));
    assert_eq!(absorbed + field(&last, "analysed"), sent, "{last}");
    let measured = field(&analyses["voip"], "rtp_absorbed");
    let rtp = field(&voip, "rtp_packets");
    assert_eq!(field(&analyses["voip"], "rtp_packets"), rtp, "{analyses}");
    assert!(measured > if Guest::is_here() { rtp / 4 } else { rtp / 2 }, "{measured} of {rtp}");
    assert_eq!(absorbed, if case.stays { measured } else { 0 }, "{last}");
    if case.record {
        assert_eq!(field(&analyses["record"], "written"), sent, "{analyses}");
    }
    if case.cache == "kernel" {
        assert_eq!(field(&last["flow_cache"], "packets"), sent, "{last}");
    }
    assert_eq!(field(&analyses["flows"], "flow_packets"), sent, "{analyses}");
    assert_eq!(analyses["flows"]["end_reasons"], alone["end_reasons"]);
    assert_eq!(difference(&flows(&at("flows.json")), &flows(&at("alone-flows.json"))), None);
    let [shared, single] = ["calls.json", "alone-calls.json"]
        .map(|name| calls_in(fs::read_to_string(at(name)).unwrap().lines()));
    assert_eq!(shared.len(), usize::from(CALLS));
    for (id, call) in &shared {
        assert_eq!(call, &single[id]);
    }
}

/// All packets are needed by the recording; RTP is measured beside its delivery.
#[test]
fn flows_and_rtp_in_the_kernel_beside_a_recording_native() {
    if require_root("flows_and_rtp_in_the_kernel_beside_a_recording_native") {
        is_equal("native", &Case { record: true, cache: "kernel", stays: false });
    }
}

#[test]
fn flows_and_rtp_in_the_kernel_beside_a_recording_tc() {
    let test = "flows_and_rtp_in_the_kernel_beside_a_recording_tc";
    if require_root(test) && !Guest::leaves_out(test) {
        is_equal("tc", &Case { record: true, cache: "kernel", stays: false });
    }
}

/// Nobody needs the packets of streams that are measured: they become flows, and stay in the kernel.
#[test]
fn flows_and_rtp_stay_in_the_kernel_native() {
    if require_root("flows_and_rtp_stay_in_the_kernel_native") {
        is_equal("native", &Case { record: false, cache: "kernel", stays: true });
    }
}

#[test]
fn flows_and_rtp_stay_in_the_kernel_tc() {
    let test = "flows_and_rtp_stay_in_the_kernel_tc";
    if require_root(test) && !Guest::leaves_out(test) {
        is_equal("tc", &Case { record: false, cache: "kernel", stays: true });
    }
}

/// Flows of user space get the packets that are measured in the kernel.
#[test]
fn rtp_in_the_kernel_beside_flows_of_user_space_generic() {
    let test = "rtp_in_the_kernel_beside_flows_of_user_space_generic";
    if require_root(test) && !Guest::leaves_out(test) {
        is_equal("generic", &Case { record: false, cache: "user", stays: false });
    }
}
