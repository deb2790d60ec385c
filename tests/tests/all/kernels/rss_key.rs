//! The RSS key of a real driver: `tune` sets one by which both directions of a conversation come on one queue, and puts
//! the old one back.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use wirelane_tests::{Signal, kernel_version};

use super::{Bench as _, Guest, LIMIT, settings};

/// Before this kernel virtio_net serves fewer queues when a table is set (rss_table.rs).
const ALL_QUEUES: (u32, u32) = (6, 12);
/// Conversations, each between two addresses of its own.
const CONVERSATIONS: u32 = 8;

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

/// Packets of each queue, by the driver's counters: `rx_queue_0_packets`, since Linux 6.9 `rx0_packets`.
fn packets(guest: &Guest) -> BTreeMap<u32, u64> {
    let output = Command::new("ethtool").args(["-S", guest.device()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = |line: &str| {
        let (name, value) = line.trim().split_once(": ")?;
        let queue = name.strip_prefix("rx")?.strip_suffix("_packets")?;
        let queue = queue.strip_prefix("_queue_").unwrap_or(queue).parse().ok()?;
        Some((queue, value.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// The queue of packets between these addresses.
fn queue(guest: &Guest, from: &str, to: &str, ports: (u32, u32)) -> u32 {
    let before = packets(guest);
    assert!(!before.is_empty(), "the driver counts no packets of queues");
    let (one, other) = ports;
    let options = format!(
        "--flows 1 --dst-mac ff:ff:ff:ff:ff:ff --src {from} --dst {to} --src-port {one} --dst-port {other}"
    );
    guest.send_with(20, "socket", &options);
    let begun = Instant::now();
    loop {
        let now = packets(guest);
        let grown = now.iter().filter(|(queue, packets)| before.get(queue) != Some(packets));
        let grown: Vec<(u32, u64)> =
            grown.map(|(queue, packets)| (*queue, packets - before[queue])).collect();
        match grown[..] {
            [(queue, 20)] => return queue,
            _ => assert!(begun.elapsed() < LIMIT, "packets of one flow: {grown:?}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Conversations whose two directions come on two queues, and the queues in use.
fn split(guest: &Guest) -> (u32, usize) {
    let mut used = BTreeMap::new();
    let apart = (0..CONVERSATIONS).filter(|number| {
        let (here, there) = (format!("10.7.{number}.1"), format!("10.9.0.{}", 3 * number + 5));
        let ports = (2000 + number, 443);
        let out = queue(guest, &here, &there, ports);
        let back = queue(guest, &there, &here, (ports.1, ports.0));
        used.insert(out, ());
        out != back
    });
    (apart.count() as u32, used.len())
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
    let before = (settings(&guest), key(&guest));
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
    assert_eq!((settings(&guest), key(&guest)), before);

    // Killed at any time, with the key set or not yet: the journal knows.
    let mut set = 0;
    for delay in [1, 30, 100, 300, 600, 1000, 2000] {
        let apply = guest.wirelane(&["tune", "apply", "-i", guest.device()]);
        std::thread::sleep(Duration::from_millis(delay));
        apply.signal(Signal::Kill).unwrap();
        apply.finish(LIMIT).unwrap();
        set += u32::from(key(&guest) != before.1);
        tune("restore");
        assert_eq!((settings(&guest), key(&guest)), before, "killed after {delay} ms");
    }
    println!("killed: the key had been set {set} of 7 times, and is the driver's again");
}
