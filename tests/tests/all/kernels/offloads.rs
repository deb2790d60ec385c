//! Generic XDP turns hardware GRO off, and the kernel forgets that it was on: the last capture turns it on again, however it
//! ends.

use std::process::Command;
use std::time::{Duration, Instant};

use wirelane_tests::Child;

use super::{Bench as _, Guest, LIMIT, kill, kill_process, processes, settings};

#[test]
fn virtio_net_offloads_are_on_again_after_generic_captures() {
    let Some(guest) = Guest::find("virtio_net_offloads_are_on_again_after_generic_captures") else { return };
    let gro = || {
        let shown = Command::new("ethtool").args(["-k", guest.device()]).output().unwrap().stdout;
        let shown = String::from_utf8(shown).unwrap();
        shown.lines().find_map(|line| line.strip_prefix("rx-gro-hw: ")).unwrap().to_owned()
    };
    let before = settings(&guest);
    if gro() != "on" {
        println!("left out: the device has no hardware GRO that can be turned off: {}", gro());
        return;
    }
    let begin = || -> Child {
        let words = ["count", "-i", guest.device(), "--hook", "generic", "--json"];
        let mut capture = guest.wirelane(&words);
        capture.wait_ready(LIMIT).unwrap();
        assert_eq!(gro(), "off");
        capture
    };
    let end = |capture: Child| {
        let finished = capture.terminate(LIMIT).unwrap();
        assert!(finished.status.success(), "{}", finished.stderr);
    };
    let again = || {
        let begun = Instant::now();
        while settings(&guest) != before {
            assert!(begun.elapsed() < LIMIT, "nobody puts it back: {}", settings(&guest));
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    end(begin());
    assert_eq!(settings(&guest), before);
    // The first one ends before the second.
    let (first, second) = (begin(), begin());
    end(first);
    assert_eq!(gro(), "off", "under the second capture");
    end(second);
    assert_eq!(settings(&guest), before);
    let (first, second) = (begin(), begin());
    kill(first);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(gro(), "off", "under the second capture");
    kill(second);
    again();
    let capture = begin();
    processes("wl-broker").into_iter().for_each(kill_process);
    kill(capture);
    assert_eq!(gro(), "off", "nobody could put it back");
    let restored = guest.wirelane(&["tune", "restore", "-i", guest.device()]).finish(LIMIT).unwrap();
    assert!(restored.status.success(), "{}", restored.stderr);
    assert_eq!(settings(&guest), before);
}
