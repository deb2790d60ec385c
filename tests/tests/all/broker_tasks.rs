//! The tasks of a capture's broker together, and its rights: one process for all. Each task alone is in `broker.rs`,
//! `clsact.rs` and `kernels/rss_table.rs`.

use std::fs;

use super::broker::{POLLED, count, lab_with_gro, only_broker, state, status, until, until_no_broker};
use wirelane_tests::numbers::{LIMIT, column, finish, last_of, send, wirelane};
use wirelane_tests::{Lab, Signal, brokers, require_root};

/// Polling, a filter, a control socket and the maps of named sets: one process for all, with the capabilities of these
/// tasks. It creates the map of a set that comes later, and undoes the changes of a killed capture.
/// Battery: F2, S1
#[test]
fn all_tasks_of_a_capture_have_one_broker() {
    if !require_root("all_tasks_of_a_capture_have_one_broker") {
        return;
    }
    let rules = |set: &str, address: &str| {
        format!(
            "[[sets]]\nname = \"{set}\"\nentries = [\"{address}\"]\n[[rule]]\nid = 1\nsrc-in = \"{set}\"\naction = \"drop\"\n"
        )
    };
    let lab = lab_with_gro(1);
    let before = state(&lab, "rx0");
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let first = file("first.toml", rules("first", "192.0.2.1"));
    // The source of the generator's packets.
    let second = file("second.toml", rules("second", "10.0.0.1"));
    for end in [Signal::Terminate, Signal::Kill] {
        let options = [&["--hook", "clsact", "--rules", &first], &POLLED[..]].concat();
        let child = count(&lab, "rx0", &options);
        let told = status(&format!("/proc/{}", only_broker(&lab)));
        // CAP_NET_ADMIN, CAP_SYS_NICE and CAP_BPF: bits 12, 23 and 39 of linux/capability.h.
        let wanted = 1u64 << 12 | 1 << 23 | 1 << 39;
        for set in ["CapEff", "CapPrm"] {
            assert_eq!(u64::from_str_radix(&told[set], 16).unwrap(), wanted, "{set}: {told:?}");
        }
        let pid = child.pid().to_string();
        let words = ["rules", "load", &second, "--pid", &pid];
        let replaced = wirelane(&lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
        assert!(replaced.status.success(), "{}", replaced.stderr);
        send(&lab, 300, &["--rate", "20k"]).unwrap();
        child.signal(end).unwrap();
        let finished = child.finish(LIMIT).unwrap();
        if end == Signal::Terminate {
            let last = last_of(&finished).unwrap();
            assert_eq!((column(&last, "seen"), column(&last, "filtered")), (300, 300), "{last}");
        }
        until(before.clone(), || state(&lab, "rx0"), &format!("{end:?}"));
        until_no_broker(&lab);
        let sockets = fs::read_dir("/run/wirelane").unwrap();
        let left = sockets.filter(|one| {
            one.as_ref().unwrap().file_name().to_string_lossy().starts_with(&format!("{pid}."))
        });
        assert_eq!(left.count(), 0, "{end:?}: a control socket is left");
    }
}

/// The broker drops at the seal what its tasks do not need: a control socket needs its folder only.
/// Battery: S1
#[test]
fn the_broker_of_a_control_socket_has_no_capabilities() {
    if !require_root("the_broker_of_a_control_socket_has_no_capabilities") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let child = count(&lab, "rx0", &["--engine", "packet", "--rules-capacity", "100"]);
    let told = status(&format!("/proc/{}", only_broker(&lab)));
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&told[set], 16).unwrap(), 0, "{set}: {told:?}");
    }
    finish(child).unwrap();
    assert_eq!(brokers(&lab), [0; 0]);
}
