//! Choice of the engine: the requested one or an error that names the obstacle, and with `auto` the best one that
//! works, with a message.

use wirelane_tests::numbers::{LIMIT, capture, column, finish, send, wirelane};
use wirelane_tests::{ForeignXdp, Lab, require_root};

/// Battery: F9
#[test]
fn auto_takes_packet_sockets_where_bpf_is_not_allowed_and_says_why() {
    if !require_root("auto_takes_packet_sockets_where_bpf_is_not_allowed_and_says_why") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let binary = wirelane_tests::wirelane_binary().unwrap();
    let device = lab.receiver().device.clone();
    let unprivileged = |more: &[&str]| {
        let words = [
            &["setpriv", "--bounding-set=-all,+net_raw", "--inh-caps=-all"],
            &[binary.to_str().unwrap(), "count", "-i", &device, "--json"][..],
            more,
        ]
        .concat();
        lab.spawn(&lab.receiver().namespace, &words).unwrap()
    };
    let child = unprivileged(&["--workers", "2"]);
    let ready = child.next_json(LIMIT).unwrap().unwrap();
    assert_eq!((&ready["ready"], &ready["engine"]), (&true.into(), &"packet".into()));
    assert!(ready["engine_reason"].as_str().unwrap().contains("CAP_BPF"), "{ready}");
    send(&lab, 1000, &["--rate", "50k"]).unwrap();
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("CAP_BPF") && finished.stderr.lines().count() == 1,
        "{}",
        finished.stderr
    );
    assert_eq!(column(&finished.last_json().unwrap(), "analysed"), 1000);

    // In a namespace of its own a process seems to have all capabilities, but the kernel refuses BPF.
    let words =
        ["unshare", "-Urn", binary.to_str().unwrap(), "count", "-i", "lo", "--duration", "0.2", "--json"];
    let finished = lab.spawn(&lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("CAP_BPF") && finished.stderr.contains("user namespace of its own"),
        "{}",
        finished.stderr
    );
    assert_eq!(finished.last_json().unwrap()["engine"], "packet");

    // Options that packet sockets do not support are not silently ignored, and engine ring is not replaced if it is
    // named.
    for more in [&["--exclusive"][..], &["--hook", "native"], &["--engine", "ring"]] {
        let finished = unprivileged(more).finish(LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(1), "{more:?}");
        assert!(finished.stderr.contains("missing CAP_BPF"), "{more:?}: {}", finished.stderr);
    }
    // Without an obstacle, auto is ring.
    let child = capture(&lab, &["count", "-i", &device, "--json"]).unwrap();
    assert_eq!(finish(child).unwrap()["engine"], "ring");
}

#[test]
fn what_an_engine_lacks_is_refused() {
    if !require_root("what_an_engine_lacks_is_refused") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let device = lab.receiver().device.clone();
    let refused = |engine: &str, more: &[&str], status: i32, said: &str| {
        let words = [&["count", "-i", &device, "--duration", "1", "--engine", engine], more].concat();
        let finished = wirelane(&lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(status), "{words:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(said), "{words:?}: {}", finished.stderr);
    };
    refused("packet", &["--exclusive"], 2, "--exclusive");
    refused("packet", &["--hook", "tc"], 2, "--hook");
    refused("packet", &["--clock", "batch"], 2, "--clock");
    refused("packet", &["--clock", "card"], 2, "--clock");
    refused("packet", &["--inner", "--workers", "2"], 2, "--inner");
    refused("packet", &["--zero-copy", "auto"], 2, "--zero-copy");
    refused("ring", &["--zero-copy", "require"], 2, "--zero-copy");
    refused("auto", &["--busy-poll", "50"], 2, "--busy-poll");
    refused("xsk", &[], 2, "--exclusive");
    refused("xsk", &["--exclusive", "--hook", "tc"], 2, "--hook");
    refused("xsk", &["--exclusive", "--clock", "card"], 2, "--clock");
    refused("xsk", &["--exclusive", "--direction", "both"], 2, "--direction");
    refused("xsk", &["--exclusive", "--workers", "2"], 2, "--steering queue");
    refused("xsk", &["--exclusive", "--workers", "3", "--steering", "queue"], 2, "2 RX queue(s)");
    refused("xsk", &["--exclusive", "--zero-copy", "require"], 1, "zero copy");
    refused("file", &[], 2, "-r");
    refused("xsk", &["-r", "some.pcap"], 2, "the argument");

    // xsk cannot share a device.
    let child = capture(&lab, &["count", "-i", &device, "--json", "--hook", "native"]).unwrap();
    refused("xsk", &["--exclusive"], 2, "being captured by engine ring");
    finish(child).unwrap();
    let child = capture(&lab, &["count", "-i", &device, "--json", "--engine", "xsk", "--exclusive"]).unwrap();
    refused("xsk", &["--exclusive"], 2, "engine xsk");
    refused("ring", &["--hook", "native"], 2, "engine xsk");
    assert_eq!(column(&finish(child).unwrap(), "lost"), 0);
    let foreign = ForeignXdp::attach(&lab, lab.receiver(), true).unwrap();
    refused("xsk", &["--exclusive"], 1, "other_program");
    assert!(foreign.is_attached().unwrap());
}

/// Zero copy without support of the driver: `auto` reports at the end that the kernel copies.
#[test]
fn zero_copy_is_reported_as_it_is() {
    if !require_root("zero_copy_is_reported_as_it_is") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let device = lab.receiver().device.clone();
    let words = ["count", "-i", &device, "--json", "--engine", "xsk", "--exclusive", "--zero-copy", "auto"];
    let mut child =
        wirelane(&lab, &lab.receiver().namespace, &[&words[..], &["--busy-poll", "20"]].concat()).unwrap();
    let ready = child.next_json(LIMIT).unwrap().unwrap();
    assert_eq!(
        (&ready["ready"], &ready["devices"][0]["zero_copy"]),
        (&true.into(), &false.into()),
        "{ready}"
    );
    assert!(child.is_running().unwrap());
    send(&lab, 500, &["--rate", "20k"]).unwrap();
    assert_eq!(column(&finish(child).unwrap(), "analysed"), 500);
}
