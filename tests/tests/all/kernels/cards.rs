//! Cards that are neither veth nor virtio-net, with the drivers of real ones, as QEMU emulates them: `scripts/test-kernels
//! trixie/igb`. Each packet is accounted for, on every hook that the driver has; what it lacks is refused in words.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::{Child, kernel_version};

use super::{
    Bench as _, Guest, LIMIT, PACKETS, account_for_every_packet, field, kill, kill_process, last_of,
    processes, settings,
};

/// Features of a driver, according to the kernel's sources.
struct Expected {
    /// First kernel with native XDP.
    native: Option<(u32, u32)>,
    /// First kernel with AF_XDP's zero copy.
    zero_copy: Option<(u32, u32)>,
    /// Whether the number of queues can be set.
    channels: bool,
}

impl Expected {
    fn of(driver: &str) -> Expected {
        let (native, zero_copy, channels) = match driver {
            // drivers/net/ethernet/intel/igb: XDP in 5.10, zero copy in 6.14 (2c6196013f84).
            "igb" => (Some((5, 10)), Some((6, 14)), true),
            // drivers/net/vmxnet3: XDP in 6.6 (54f00cce1178).
            "vmxnet3" => (Some((6, 6)), None, true),
            "e1000e" | "8139cp" => (None, None, false),
            other => panic!("nothing is known of the driver {other}"),
        };
        Expected { native, zero_copy, channels }
    }

    fn has(since: Option<(u32, u32)>) -> bool {
        since.is_some_and(|since| kernel_version().unwrap() >= since)
    }
}

/// The card and its driver; `None` outside of guests with such a card.
pub(super) fn card(test: &str) -> Option<(Guest, String)> {
    let guest = Guest::find(test)?;
    let driver = std::env::var("WIRELANE_PEER_DRIVER").unwrap();
    if driver == "virtio_net" {
        println!("left out: {test} (runs in guests with other cards: scripts/test-kernels trixie/igb)");
        return None;
    }
    Some((guest, driver))
}

/// A counter of the device in sysfs.
pub(super) fn counter(guest: &Guest, name: &str) -> u64 {
    fs::read_to_string(format!("/sys/class/net/{}/{name}", guest.device())).unwrap().trim().parse().unwrap()
}

/// Waits until the card has its link again, after a reset.
pub(super) fn until_up(guest: &Guest) {
    let begun = Instant::now();
    while fs::read_to_string(format!("/sys/class/net/{}/carrier", guest.device())).ok().as_deref()
        != Some("1\n")
    {
        assert!(begun.elapsed() < LIMIT, "the link stays down");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn device(guest: &Guest) -> Value {
    guest.wirelane(&["devices", guest.device(), "--json"]).finish(LIMIT).unwrap().json().unwrap().remove(0)
}

#[test]
fn every_hook_is_exact() {
    let Some((guest, driver)) = card("every_hook_is_exact") else { return };
    let expected = Expected::of(&driver);
    let native = Expected::has(expected.native);
    let found = device(&guest);
    assert_eq!(found["driver"], driver, "{found}");
    // Kernels before 6.3 do not say what a driver has.
    if !found["xdp_features"].is_null() {
        assert_eq!(found["xdp_features"]["native"], native, "{found}");
    }
    let hooks = if native { &["tc", "generic", "native"][..] } else { &["tc", "generic"] };
    for hook in hooks {
        let last = account_for_every_packet(&guest, hook, "socket");
        let missed = &last["nic_missed"];
        assert!(missed.as_u64() == Some(0), "{hook}: {last}");
        println!("{driver}, {hook}: {PACKETS} of {PACKETS}");
    }
    if !native {
        let words = ["count", "-i", guest.device(), "--hook", "native"];
        let refused = guest.wirelane(&words).finish(LIMIT).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
        for part in ["native XDP on ", &driver, "--hook generic"] {
            assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
        }
    }
    // Without an option, whatever the driver has.
    let mut counter = guest.wirelane(&["count", "-i", guest.device(), "--json"]);
    counter.wait_ready(LIMIT).unwrap();
    guest.send(500, "socket");
    let last = last_of(counter, 500);
    assert_eq!((field(&last, "seen"), field(&last, "lost")), (500, 0), "{last}");
}

#[test]
fn both_directions_are_exact() {
    let Some((guest, _)) = card("both_directions_are_exact") else { return };
    // `wirelane send` goes past tc where a card has one TX queue.
    let ip = |words: &str| {
        let device = guest.device();
        let words: Vec<&str> = words.split(' ').chain(["dev", device]).collect();
        assert!(Command::new("ip").args(&words).status().unwrap().success(), "ip {words:?}");
    };
    ip("address add 192.0.2.1/24");
    ip("neighbour add 192.0.2.2 lladdr 02:00:00:00:00:02");
    let (packets, bytes) = guest.arrived();
    let mut counter = guest.wirelane(&["count", "-i", guest.device(), "--direction", "both", "--json"]);
    counter.wait_ready(LIMIT).unwrap();
    guest.send(500, "socket");
    // Nobody answers. Frames of 98 bytes.
    Command::new("ping").args(["-c", "30", "-i", "0.1", "-W", "1", "192.0.2.2"]).output().unwrap();
    let last = last_of(counter, 530);
    ip("address delete 192.0.2.1/24");
    let lines = last["virtual_devices"].as_array().unwrap();
    let seen = |egress: bool| -> u64 {
        let of = lines.iter().filter(|line| (line["direction"] == "egress") == egress);
        of.map(|line| field(line, "seen")).sum()
    };
    assert_eq!((seen(false), seen(true), field(&last, "lost")), (500, 30, 0), "{last}");
    let begun = Instant::now();
    while guest.arrived() != (packets + 30, bytes + 30 * 98) {
        assert!(begun.elapsed() < LIMIT, "{:?} after {:?}", guest.arrived(), (packets, bytes));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A native program resets some cards: packets of that time reach nobody, and the ledger has all others. On tc nothing is
/// reset. The numbers are printed for the table of drivers.
#[test]
fn attaching_loses_what_is_said() {
    let Some((guest, driver)) = card("attaching_loses_what_is_said") else { return };
    let native = Expected::has(Expected::of(&driver).native);
    for hook in if native { &["tc", "native"][..] } else { &["tc"] } {
        let (resets, received) =
            (counter(&guest, "carrier_changes"), counter(&guest, "statistics/rx_packets"));
        // From before the capture to after its end.
        let is_over = AtomicBool::new(false);
        let (last, sent) = std::thread::scope(|scope| {
            let traffic = scope.spawn(|| {
                let mut sent = 0;
                while !is_over.load(Ordering::Relaxed) {
                    // To all, since the card receives them without a capture, too.
                    sent += guest.send_with(500, "socket", "--dst-mac ff:ff:ff:ff:ff:ff");
                }
                sent
            });
            std::thread::sleep(Duration::from_secs(1));
            let words = ["count", "-i", guest.device(), "--hook", hook, "--json"];
            let mut counter = guest.wirelane(&words);
            counter.wait_ready(LIMIT).unwrap();
            std::thread::sleep(Duration::from_secs(2));
            let finished = counter.terminate(LIMIT).unwrap();
            assert!(finished.status.success(), "{hook}: {}", finished.stderr);
            is_over.store(true, Ordering::Relaxed);
            (finished.last_json().unwrap(), traffic.join().unwrap())
        });
        until_up(&guest);
        let resets = counter(&guest, "carrier_changes") - resets;
        // Packets wait for the card while the machine loads programs.
        let so_far = || counter(&guest, "statistics/rx_packets");
        let (before, mut received, mut since) = (received, so_far(), Instant::now());
        while received < before + sent && since.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(100));
            if so_far() != received {
                (received, since) = (so_far(), Instant::now());
            }
        }
        // vmxnet3 begins to count anew with a native program.
        let lost = received.checked_sub(before).map(|received| sent.saturating_sub(received));
        let own = Command::new("ethtool").args(["-S", guest.device()]).output().unwrap().stdout;
        let own = String::from_utf8_lossy(&own).into_owned();
        let own =
            own.lines().map(str::trim).filter(|line| line.contains("miss") || line.contains("no_buffer"));
        let own: Vec<&str> = own.filter(|line| !line.ends_with(": 0")).collect();
        println!(
            "{driver}, {hook}: the link changed {resets} times, the card did not count {lost:?} of {sent} packets; missed: {}, {own:?}",
            last["nic_missed"]
        );
        assert!(field(&last, "seen") > 0 && field(&last, "lost") == 0, "{hook}: {last}");
        assert_eq!(field(&last, "seen"), field(&last, "analysed"), "{hook}: {last}");
        if *hook == "tc" {
            assert_eq!((resets, lost), (0, Some(0)), "{driver}: a capture on tc disturbs the card");
        }
        // The card works as before.
        let mut counter = guest.wirelane(&["count", "-i", guest.device(), "--json"]);
        counter.wait_ready(LIMIT).unwrap();
        guest.send(300, "socket");
        assert_eq!(field(&last_of(counter, 300), "seen"), 300, "{hook}");
    }
}

/// Rings and queues of the card, as ethtool shows them.
fn shown(guest: &Guest, letter: &str) -> String {
    let output = Command::new("ethtool").args([letter, guest.device()]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `tune` changes what the driver lets it change, and takes it back, also of a process that is killed.
#[test]
fn settings_are_changed_and_put_back() {
    let Some((guest, driver)) = card("settings_are_changed_and_put_back") else { return };
    let expected = Expected::of(&driver);
    let all = || (settings(&guest), shown(&guest, "-g"), shown(&guest, "-l"));
    let before = all();
    let plan = guest.wirelane(&["tune", "-i", guest.device(), "--json"]).finish(LIMIT).unwrap();
    assert!(plan.status.success(), "{}", plan.stderr);
    assert_eq!(all(), before, "a plan changes nothing");
    let changes: Vec<String> = plan.json().unwrap()[0]["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| change["what"]["setting"].as_str().unwrap_or("?").to_owned())
        .collect();
    println!("{driver}: tune plans {changes:?}");
    let can_set = expected.channels;
    assert_eq!(changes.iter().any(|change| change == "channels"), can_set, "{changes:?}");
    // None of these drivers shows a key (rss_key.rs has virtio-net, whose driver does).
    assert!(!changes.iter().any(|change| change == "rss_key"), "{changes:?}: {}", before.0["rss"]);
    let applied = guest.wirelane(&["tune", "apply", "-i", guest.device(), "--json"]).finish(LIMIT).unwrap();
    // vmxnet3 shows a number of queues, and cannot change it.
    let is_whole = applied.status.success();
    assert_eq!(is_whole, !applied.stderr.contains("channels: the driver cannot"), "{}", applied.stderr);
    assert_eq!(is_whole, driver != "vmxnet3", "{}", applied.stderr);
    until_up(&guest);
    assert_ne!(all(), before);
    let restored = guest.wirelane(&["tune", "restore", "-i", guest.device()]).finish(LIMIT).unwrap();
    assert!(restored.status.success(), "{}", restored.stderr);
    until_up(&guest);
    assert_eq!(all(), before, "{:?}", restored.lines);
}

/// Settings that a capture changes are put back by its broker if the capture is killed, and no program stays on the card.
#[test]
fn a_killed_capture_leaves_the_card_as_it_was() {
    let Some((guest, driver)) = card("a_killed_capture_leaves_the_card_as_it_was") else { return };
    let expected = Expected::of(&driver);
    let hook = if Expected::has(expected.native) { "native" } else { "tc" };
    let settings = || settings(&guest);
    let before = settings();
    let begin = || -> Child {
        let words = ["count", "-i", guest.device(), "--hook", hook, "--polling", "threaded", "--json"];
        let mut capture = guest.wirelane(&words);
        capture.wait_ready(LIMIT).unwrap();
        assert_ne!(settings(), before);
        capture
    };
    kill(begin());
    let begun = Instant::now();
    while settings() != before {
        assert!(begun.elapsed() < LIMIT, "nobody puts it back: {}", settings());
        std::thread::sleep(Duration::from_millis(100));
    }
    let capture = begin();
    processes("wl-broker").into_iter().for_each(kill_process);
    kill(capture);
    let restored = guest.wirelane(&["tune", "restore", "-i", guest.device()]).finish(LIMIT).unwrap();
    assert!(restored.status.success(), "{}", restored.stderr);
    assert_eq!(settings(), before);
    assert_eq!(device(&guest)["xdp"], serde_json::json!([]), "a program stays");
    until_up(&guest);
    let mut counter = guest.wirelane(&["count", "-i", guest.device(), "--json"]);
    counter.wait_ready(LIMIT).unwrap();
    guest.send(300, "socket");
    assert_eq!(field(&last_of(counter, 300), "seen"), 300);
}

/// A driver that turns LRO off for a native program turns it on again when the last capture has ended, however it ends.
#[test]
fn offloads_are_on_again_after_the_last_native_capture() {
    let Some((guest, driver)) = card("offloads_are_on_again_after_the_last_native_capture") else { return };
    if !Expected::has(Expected::of(&driver).native) {
        println!("{driver} has no native XDP here");
        return;
    }
    let lro = || {
        let shown = shown(&guest, "-k");
        shown.lines().find(|line| line.starts_with("large-receive-offload")).unwrap().to_owned()
    };
    let before = lro();
    let begin = || -> Child {
        let words = ["count", "-i", guest.device(), "--hook", "native", "--json"];
        let mut capture = guest.wirelane(&words);
        capture.wait_ready(LIMIT).unwrap();
        capture
    };
    let (first, second) = (begin(), begin());
    let during = lro();
    println!("{driver}: {before}, during a capture {during}");
    // The driver's own decision: if another kernel leaves LRO on, nothing is to be seen here.
    assert_eq!(during != before, driver == "vmxnet3", "{during}");
    kill(first);
    // Longer than the broker of the killed one tries.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(lro(), during, "under the second capture");
    let finished = second.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    assert_eq!(lro(), before);
    // An administrator's choice during a capture stays.
    let third = begin();
    let off = Command::new("ethtool").args(["-K", guest.device(), "lro", "off"]).status().unwrap();
    third.terminate(LIMIT).unwrap();
    let after = lro();
    if off.success() && driver == "vmxnet3" {
        assert_eq!(after, "large-receive-offload: off");
        let on = Command::new("ethtool").args(["-K", guest.device(), "lro", "on"]).status().unwrap();
        assert!(on.success());
    }
    until_up(&guest);
    assert_eq!(lro(), before);
}

#[test]
fn zero_copy_is_there_or_refused_in_words() {
    let Some((guest, driver)) = card("zero_copy_is_there_or_refused_in_words") else { return };
    let expected = Expected::of(&driver);
    let has_it = Expected::has(expected.zero_copy);
    let hook = if Expected::has(expected.native) { "native" } else { "generic" };
    let words =
        ["count", "-i", guest.device(), "--engine", "xsk", "--exclusive", "--steering", "queue", "--json"];
    let words = [&words[..], &["--hook", hook]].concat();
    let count = |zero_copy: &str| {
        let child = guest.wirelane(&[&words[..], &["--zero-copy", zero_copy]].concat());
        let ready = match child.next_json(LIMIT).unwrap() {
            Some(ready) if ready["ready"] == true => ready["devices"][0].clone(),
            other => panic!("{zero_copy}: {other:?}: {}", child.finish(LIMIT).unwrap().stderr),
        };
        assert_eq!(ready["zero_copy"], zero_copy != "never" && has_it, "{zero_copy}: {ready}");
        until_up(&guest);
        guest.send(1000, "socket");
        let last = last_of(child, 1000);
        assert_eq!((field(&last, "seen"), field(&last, "lost")), (1000, 0), "{zero_copy}: {last}");
        until_up(&guest);
    };
    count("auto");
    count("never");
    if has_it {
        count("require");
    } else {
        let refused =
            guest.wirelane(&[&words[..], &["--zero-copy", "require"]].concat()).finish(LIMIT).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
        assert!(refused.stderr.contains(&format!("zero copy on {}", guest.device())), "{}", refused.stderr);
    }
    println!("{driver}: zero copy: {has_it}");
}
