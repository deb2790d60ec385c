//! Load-adaptive RX queues on a device without an RSS table: refused by name, and nothing is left behind. Cards with an
//! RSS table are in the guests of `make test-kernels` (`kernels/rss_table.rs`).

use std::collections::BTreeSet;
use std::fs;

use wirelane::{Balance, Builder, Engine, Error, Selector, Steering};
use wirelane_tests::numbers::{LIMIT, wirelane};
use wirelane_tests::{Lab, LabOptions, brokers, require_root, settled_bpf_objects, wait_for_bpf_objects};

/// Journals of changes that captures have made to devices.
fn journals() -> BTreeSet<String> {
    let Ok(folder) = fs::read_dir("/run/wirelane") else { return BTreeSet::new() };
    folder.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_device_without_a_table_is_refused_by_every_engine() {
    if !require_root("a_device_without_a_table_is_refused_by_every_engine") {
        return;
    }
    let lab = Lab::with(&LabOptions { queues: 4, alone: true, ..LabOptions::default() }).unwrap();
    let end = lab.receiver();
    let (objects, before) = (settled_bpf_objects(), journals());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nothing.pcapng");
    let record = ["record", "-w", file.to_str().unwrap()];
    for command in [&["count"][..], &record] {
        for engine in [&["ring"][..], &["packet"], &["xsk", "--exclusive"]] {
            let words = ["-i", &end.device, "--steering", "queue", "--balance", "adaptive", "--engine"];
            let words = [command, &words, engine].concat();
            let refused = wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap();
            assert_eq!(refused.status.code(), Some(1), "{engine:?}: {}", refused.stderr);
            let what = format!("--balance adaptive with --steering queue on {}", end.device);
            for part in [&*what, "a card that has an RSS table", "--balance static", "--steering flow"] {
                assert!(refused.stderr.contains(part), "{engine:?}: {part}: {}", refused.stderr);
            }
            assert!(refused.lines.is_empty(), "{engine:?}: {:?}", refused.lines);
        }
    }
    assert_eq!(wait_for_bpf_objects(&objects, LIMIT), objects);
    assert_eq!(journals(), before);
    assert!(brokers(&lab).is_empty());
    // The device can be captured as before.
    let capture = lab.enter(&end.namespace, || {
        Builder::new(Selector::parse_list(&end.device).unwrap()).steering(Steering::Queue).open()
    });
    capture.unwrap().unwrap().close().unwrap();
}

/// The library returns an error type that programs can match.
#[test]
fn the_library_says_what_is_missing() {
    if !require_root("the_library_says_what_is_missing") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let end = lab.receiver();
    for engine in [Engine::Ring, Engine::Packet] {
        let opened = lab.enter(&end.namespace, || {
            Builder::new(Selector::parse_list(&end.device).unwrap())
                .engine(engine)
                .steering(Steering::Queue)
                .balance(Balance::Adaptive)
                .open()
        });
        match opened.unwrap() {
            Err(Error::Tune(wirelane::tune::Error::Unsupported { what, needs, instead })) => {
                assert!(what.contains(&end.device) && needs.contains("RSS table"), "{what}: {needs}");
                assert!(instead.contains("--steering flow"), "{instead}");
            }
            other => panic!("{engine:?}: {other:?}"),
        }
    }
}

/// Combinations that no card supports are usage errors, before any device is opened.
#[test]
fn what_has_nothing_to_move_is_wrong_usage() {
    if !require_root("what_has_nothing_to_move_is_wrong_usage") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let end = lab.receiver();
    let cases: [(&[&str], &str); 3] = [
        (&["--steering", "round-robin"], "only steering by flow, VLAN or address has buckets"),
        (&["--steering", "copy"], "only steering by flow, VLAN or address has buckets"),
        (&["--steering", "queue", "--direction", "tx"], "the card's RSS table is for received packets"),
    ];
    for (options, reason) in cases {
        let words = ["count", "-i", &end.device, "--balance", "adaptive"];
        let words = [&words, options].concat();
        let refused = wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{options:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(reason), "{options:?}: {}", refused.stderr);
    }
}
