//! Beside other programs (F2 of tests/BATTERY.md): another's XDP program is left alone and named, tc captures beside
//! it, and nobody gets onto a device in the place of ours.

use wirelane_tests::numbers::{LIMIT, capture, column, finish, send, wirelane};
use wirelane_tests::{AttachBy, ForeignXdp, Lab, detach_xdp, kernel_version, require_root};

const WAYS: [AttachBy; 2] = [AttachBy::Netlink, AttachBy::Link];

#[test]
fn another_xdp_program_is_named_left_alone_and_captured_beside() {
    if !require_root("another_xdp_program_is_named_left_alone_and_captured_beside") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let end = lab.receiver();
    for native in [true, false] {
        for by in WAYS {
            let case = format!("native: {native}, by {by:?}");
            let foreign = ForeignXdp::attach_by(&lab, end, native, by).unwrap();
            for hook in ["auto", "native", "generic"] {
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
                let last = finish(child).unwrap();
                let counted = (column(&last, "seen"), column(&last, "analysed"), column(&last, "lost"));
                assert_eq!(counted, (1000, 1000, 0), "{case}, {direction}");
            }
            assert!(foreign.is_attached().unwrap(), "{case}");
        }
    }
}

/// The kernel lets nobody replace a program that a link holds, in whichever mode and by whichever way: what others try
/// is refused to them, and we go on.
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
            // Of the other mode there is nothing to take off.
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

/// An XDP program that comes while tc captures stands before us: packets that it passes are all there.
#[test]
fn one_that_comes_while_tc_captures() {
    if !require_root("one_that_comes_while_tc_captures") {
        return;
    }
    if kernel_version().unwrap() < (6, 6) {
        println!("left out: one_that_comes_while_tc_captures (clsact has its own tests)");
        return;
    }
    let lab = Lab::new(1).unwrap();
    let child = capture(&lab, &["count", "-i", "rx0", "--hook", "tc", "--json"]).unwrap();
    send(&lab, 300, &[]).unwrap();
    for native in [true, false] {
        let foreign = ForeignXdp::attach_by(&lab, lab.receiver(), native, AttachBy::Link).unwrap();
        send(&lab, 300, &["--rate", "50k"]).unwrap();
        assert!(foreign.is_attached().unwrap());
    }
    send(&lab, 300, &[]).unwrap();
    let last = finish(child).unwrap();
    assert_eq!((column(&last, "seen"), column(&last, "analysed")), (1200, 1200));
}
