//! The RSS key of a real driver: `tune` sets one by which both directions of a conversation come on one queue, and puts
//! the old one back.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wirelane_tests::{Signal, kernel_version};

use super::{Bench as _, Guest, LIMIT, field, settings};

/// Before this kernel virtio_net serves fewer queues when a table is set (rss_table.rs).
const ALL_QUEUES: (u32, u32) = (6, 12);
/// Conversations, each between two addresses of its own.
const CONVERSATIONS: u32 = 8;
/// Packets of each direction of a conversation.
const PACKETS: u64 = 10;

/// The key, as ethtool shows it.
fn key(guest: &Guest) -> String {
    let output = Command::new("ethtool").args(["-x", guest.device()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, rest) = text.split_once("RSS hash key:").expect("a key");
    rest.trim_start().lines().next().unwrap().to_owned()
}

fn channels(guest: &Guest, number: &str) {
    let set = Command::new("ethtool").args(["-L", guest.device(), "combined", number]).status().unwrap();
    assert!(set.success(), "{number} queues");
}

/// Conversations whose two directions come on two queues, and the number of queues in use.
fn split(guest: &Guest) -> (usize, usize) {
    let all = (2 * u64::from(CONVERSATIONS) * PACKETS).to_string();
    // A native program ends RSS by the table (rss_table.rs).
    let words = ["packets", "-i", guest.device(), "--hook", "generic", "--packets", &all, "--json"];
    let mut capture = guest.wirelane(&words);
    capture.wait_ready(LIMIT).unwrap();
    let mut conversations = Vec::new();
    for number in 0..CONVERSATIONS {
        let (here, there) = (format!("10.7.{number}.1"), format!("10.9.0.{}", 3 * number + 5));
        let (port, service) = (2000 + number, 443);
        for (from, to, one, other) in [(&here, &there, port, service), (&there, &here, service, port)] {
            let options = format!("--flows 1 --src {from} --dst {to} --src-port {one} --dst-port {other}");
            guest.send_with(PACKETS, "socket", &options);
        }
        conversations.push((here, there));
    }
    let finished = capture.finish(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let mut queues: BTreeMap<(String, String), Vec<u64>> = BTreeMap::new();
    for packet in finished.json().unwrap().iter().filter(|line| line["record"] == "packet") {
        let address = |name: &str| packet[name].as_str().unwrap().to_owned();
        queues.entry((address("src"), address("dst"))).or_default().push(field(packet, "queue"));
    }
    let queue = |from: &str, to: &str| {
        let all = &queues[&(from.to_owned(), to.to_owned())];
        assert!(all.len() as u64 == PACKETS && all.iter().all(|one| *one == all[0]), "{from}, {to}: {all:?}");
        all[0]
    };
    let found: Vec<(u64, u64)> =
        conversations.iter().map(|(here, there)| (queue(here, there), queue(there, here))).collect();
    let used: BTreeSet<u64> = found.iter().map(|(out, _)| *out).collect();
    (found.iter().filter(|(out, back)| out != back).count(), used.len())
}

/// Both directions of each conversation come on one queue with the key that `tune` sets, and on two by the driver's own.
#[test]
fn virtio_net_key_is_symmetric_and_put_back() {
    let Some(guest) = Guest::find("virtio_net_key_is_symmetric_and_put_back") else { return };
    let tune = |word: &str| {
        let done = guest.wirelane(&["tune", word, "-i", guest.device()]).finish(LIMIT).unwrap();
        assert!(done.status.success(), "{word}: {}", done.stderr);
    };
    let serves = kernel_version().unwrap() >= ALL_QUEUES;
    // The number of queues is changed by hand, with which the driver binds interrupts anew.
    let state = || {
        let mut all = settings(&guest);
        all["cpus"] = Value::Null;
        (all, key(&guest))
    };
    let before = state();
    if serves {
        let (apart, used) = split(&guest);
        println!("the driver's key: {apart} of {CONVERSATIONS} conversations on two queues, {used} queues");
        assert!(apart > 0 && used > 1, "{apart}, {used}");
    }
    tune("apply");
    let symmetric = key(&guest);
    assert_ne!(symmetric, before.1);
    let bytes: Vec<&str> = symmetric.split(':').collect();
    assert!(bytes.len() >= 40 && bytes.chunks_exact(2).all(|pair| *pair == ["6d", "5a"]), "{symmetric}");
    if serves {
        // The plan is for two CPUs and has one queue.
        channels(&guest, "4");
        assert_eq!(key(&guest), symmetric);
        let (apart, used) = split(&guest);
        println!("the symmetric key: {apart} of {CONVERSATIONS} conversations on two queues, {used} queues");
        assert!(apart == 0 && used > 1, "{apart}, {used}");
    }
    tune("restore");
    assert_eq!(state(), before);

    // Killed at any time, with the key set or not yet: the journal knows.
    let mut set = 0;
    for delay in [1, 30, 100, 300, 600, 1000, 2000] {
        let apply = guest.wirelane(&["tune", "apply", "-i", guest.device()]);
        std::thread::sleep(Duration::from_millis(delay));
        apply.signal(Signal::Kill).unwrap();
        apply.finish(LIMIT).unwrap();
        set += u32::from(key(&guest) != before.1);
        tune("restore");
        assert_eq!(state(), before, "killed after {delay} ms");
    }
    println!("killed: the key had been set {set} of 7 times, and is the driver's again");
}
