//! Beside other programs (F2 of tests/BATTERY.md): another XDP program is not touched and is named, tc captures beside
//! it, and no program can replace ours on a device.

use std::time::Duration;

use wirelane_tests::numbers::{LIMIT, capture, column, finish, send, wirelane};
use wirelane_tests::{AttachBy, ForeignXdp, Lab, detach_xdp, kernel_version, require_root};

/// Since this kernel tc receives packets without their Ethernet header if a generic XDP program that supports several
/// buffers has passed them. Ours is one, the foreign one here is not.
const HEADERLESS: (u32, u32) = (6, 9);

const WAYS: [AttachBy; 2] = [AttachBy::Netlink, AttachBy::Link];

/// Battery: F2
#[test]
fn another_xdp_program_is_named_left_alone_and_captured_beside() {
    if !require_root("another_xdp_program_is_named_left_alone_and_captured_beside") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let end = lab.receiver();
    let headerless = kernel_version().unwrap() >= HEADERLESS;
    for native in [true, false] {
        for by in WAYS {
            let case = format!("native: {native}, by {by:?}");
            let foreign = ForeignXdp::attach_by(&lab, end, native, by).unwrap();
            for hook in ["native", "generic"] {
                let file = tempfile::tempdir().unwrap();
                let path = file.path().join("never.pcapng");
                for words in [
                    ["count", "-i", "rx0", "--hook", hook].as_slice(),
                    &["record", "-i", "rx0", "--hook", hook, "-w", path.to_str().unwrap()],
                ] {
                    let refused = wirelane(&lab, &end.namespace, words).unwrap().finish(LIMIT).unwrap();
                    assert_eq!(refused.status.code(), Some(1), "{case}, {words:?}: {}", refused.stderr);
                    let mode = if native { "native" } else { "generic" };
                    for part in ["rx0", mode, "'other_program'", "--hook tc"] {
                        assert!(refused.stderr.contains(part), "{case}, {words:?}: {}", refused.stderr);
                    }
                    assert!(foreign.is_attached().unwrap(), "{case}, {words:?}");
                }
                assert!(!path.exists(), "a recording was begun");
            }
            for direction in ["rx", "both"] {
                let words = ["count", "-i", "rx0", "--hook", "tc", "--direction", direction, "--json"];
                let child = capture(&lab, &words).unwrap();
                send(&lab, 1000, &["--rate", "50k"]).unwrap();
                let finished = child.terminate(LIMIT).unwrap();
                let last = finished.last_json().unwrap();
                let warned = finished.stderr.contains("without their Ethernet header");
                assert_eq!(warned, !native && headerless, "{case}: {}", finished.stderr);
                let counted = (column(&last, "seen"), column(&last, "analysed"), column(&last, "bytes"));
                assert_eq!(counted, (1000, 1000, 60_000), "{case}, {direction}");
            }
            assert!(foreign.is_attached().unwrap(), "{case}");
        }
    }
}

/// The kernel does not allow a program held by a link to be replaced, in any mode and by any method: attempts are
/// refused, and our capture continues.
/// Battery: F2
#[test]
fn ours_stays_where_another_is_put_or_ours_taken_off() {
    if !require_root("ours_stays_where_another_is_put_or_ours_taken_off") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let end = lab.receiver();
    for hook in ["native", "generic"] {
        let child = capture(&lab, &["count", "-i", "rx0", "--hook", hook, "--json"]).unwrap();
        send(&lab, 500, &["--rate", "50k"]).unwrap();
        for native in [true, false] {
            for by in WAYS {
                let refused = ForeignXdp::attach_by(&lab, end, native, by);
                assert!(refused.is_err(), "{hook}: another program was let in, native: {native}, by {by:?}");
            }
            // In the other mode there is no program to detach.
            if native == (hook == "native") {
                assert!(detach_xdp(&lab, end, native).is_err(), "{hook}: ours was taken off");
            }
        }
        send(&lab, 500, &["--rate", "50k"]).unwrap();
        let finished = child.terminate(LIMIT).unwrap();
        assert!(finished.status.success(), "{}", finished.stderr);
        let last = finished.last_json().unwrap();
        assert_eq!((column(&last, "seen"), column(&last, "analysed")), (1000, 1000), "{hook}");
    }
}

/// An XDP program that is attached while tc captures runs before ours: packets that it passes are all captured, and
/// complete; a warning is printed if another program could change that.
/// Battery: F2
#[test]
fn one_that_comes_while_tc_captures() {
    if !require_root("one_that_comes_while_tc_captures") {
        return;
    }
    let kernel = kernel_version().unwrap();
    if kernel < (6, 6) {
        println!("left out: one_that_comes_while_tc_captures (clsact has its own tests)");
        return;
    }
    let lab = Lab::new(1).unwrap();
    for native in [true, false] {
        let child = capture(&lab, &["count", "-i", "rx0", "--hook", "tc", "--json"]).unwrap();
        send(&lab, 300, &[]).unwrap();
        let foreign = ForeignXdp::attach_by(&lab, lab.receiver(), native, AttachBy::Link).unwrap();
        // The maintenance thread looks five times a second.
        std::thread::sleep(Duration::from_millis(500));
        send(&lab, 300, &["--rate", "50k"]).unwrap();
        assert!(foreign.is_attached().unwrap());
        drop(foreign);
        send(&lab, 300, &[]).unwrap();
        let finished = child.terminate(LIMIT).unwrap();
        let last = finished.last_json().unwrap();
        let counted = (column(&last, "seen"), column(&last, "analysed"), column(&last, "bytes"));
        assert_eq!(counted, (900, 900, 900 * 60), "native: {native}");
        let warned = finished.stderr.contains("without their Ethernet header");
        assert_eq!(warned, !native && kernel >= HEADERLESS, "{}", finished.stderr);
    }
}

/// Two captures of ours that the kernel does not support together.
/// Battery: F2
#[test]
fn generic_xdp_and_tc_are_not_mixed_where_headers_would_be_missing() {
    if !require_root("generic_xdp_and_tc_are_not_mixed_where_headers_would_be_missing") {
        return;
    }
    if kernel_version().unwrap() < HEADERLESS {
        println!(
            "left out: generic_xdp_and_tc_are_not_mixed_where_headers_would_be_missing (before Linux 6.9 they may)"
        );
        return;
    }
    let lab = Lab::new(1).unwrap();
    for (first, second) in [("generic", "tc"), ("tc", "generic")] {
        let child = capture(&lab, &["count", "-i", "rx0", "--hook", first, "--json"]).unwrap();
        let words = ["count", "-i", "rx0", "--hook", second];
        let refused = wirelane(&lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
        let joins = format!("--hook {first} joins");
        assert!(refused.stderr.contains(&joins), "{}", refused.stderr);
        send(&lab, 100, &[]).unwrap();
        assert_eq!(column(&finish(child).unwrap(), "bytes"), 6000);
    }
}
