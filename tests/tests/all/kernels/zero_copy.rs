//! AF_XDP with zero copy on a real driver: the device writes into our memory, and reads transmitted packets from it.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::{Child, kernel_version};

use super::{Bench as _, FRAME, Guest, LIMIT, PACKETS, field, kill, last_of, numbers, queues_used};

/// First kernel whose virtio_net offers zero copy; the receiving half existed two kernels earlier, but could not be
/// requested.
const VIRTIO_ZERO_COPY: (u32, u32) = (6, 13);

fn has_it() -> bool {
    kernel_version().unwrap() >= VIRTIO_ZERO_COPY
}

/// Starts a capture by engine xsk; returns it with its description of the device in the ready line.
fn start(guest: &Guest, words: &[&str], zero_copy: &str) -> (Child, Value) {
    let options = ["-i", guest.device(), "--engine", "xsk", "--exclusive", "--hook", "native", "--json"];
    let child = guest.wirelane(&[words, &options, &["--zero-copy", zero_copy]].concat());
    match child.next_json(LIMIT).unwrap() {
        Some(ready) if ready["ready"] == true => (child, ready["devices"][0].clone()),
        other => panic!("{other:?}: {}", child.finish(LIMIT).unwrap().stderr),
    }
}

/// Asserts that every packet is recorded once, in each mode.
fn record(guest: &Guest, zero_copy: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("numbered.pcapng");
    let packets = PACKETS.to_string();
    let words = ["record", "-w", file.to_str().unwrap(), "--packets", &packets];
    let words = [&words, ["--steering", "queue", "--workers", "2"].as_slice()].concat();
    let (recorder, device) = start(guest, &words, zero_copy);
    assert_eq!(device["zero_copy"], zero_copy != "never" && has_it(), "{device}");
    assert_eq!(device["queues"].as_array().unwrap().len(), 4, "{device}");
    guest.send(PACKETS, "socket");
    let finished = recorder.finish(LIMIT).unwrap();
    assert!(finished.status.success(), "{zero_copy}: {}", finished.stderr);
    let last = finished.last_json().unwrap();
    for column in ["seen", "delivered", "analysed"] {
        assert_eq!(field(&last, column), PACKETS, "{zero_copy}: {column} of {last}");
    }
    for column in ["filtered", "shed", "lost", "in_flight"] {
        assert_eq!(field(&last, column), 0, "{zero_copy}: {column} of {last}");
    }
    assert_eq!(field(&last, "bytes"), PACKETS * FRAME, "{zero_copy}");
    assert!(queues_used(&last) > 1, "{zero_copy}: all packets on one queue: {last}");
    // One file for each worker.
    let mut found = BTreeMap::<u64, u32>::new();
    for entry in fs::read_dir(folder.path()).unwrap() {
        for (number, times) in numbers(&entry.unwrap().path()) {
            *found.entry(number).or_default() += times;
        }
    }
    assert!(found.values().all(|times| *times == 1), "{zero_copy}: a packet was recorded twice");
    assert!(found.keys().copied().eq(0..PACKETS), "{zero_copy}: {} numbers", found.len());
}

/// Battery: L1
#[test]
fn virtio_net_is_received_exactly() {
    let Some(guest) = Guest::find("virtio_net_is_received_exactly") else { return };
    if has_it() {
        record(&guest, "require");
    }
    record(&guest, "auto");
    record(&guest, "never");
}

/// `--zero-copy require` without support names the missing feature, and leaves nothing on the device.
#[test]
fn virtio_net_without_it_is_refused_by_name() {
    let Some(guest) = Guest::find("virtio_net_without_it_is_refused_by_name") else { return };
    if has_it() {
        println!("left out: virtio_net_without_it_is_refused_by_name (this kernel has zero copy)");
        return;
    }
    let words = ["count", "-i", guest.device(), "--engine", "xsk", "--exclusive", "--zero-copy", "require"];
    let refused = guest.wirelane(&words).finish(LIMIT).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    for part in [&*format!("zero copy on {}", guest.device()), "a driver that can", "--zero-copy auto"] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    // The host stack receives packets again, and the ring engine can use the device.
    let mut counter = guest.wirelane(&["count", "-i", guest.device(), "--hook", "native", "--json"]);
    counter.wait_ready(LIMIT).unwrap();
    guest.send(100, "socket");
    let last = last_of(counter, 100);
    assert_eq!((field(&last, "seen"), field(&last, "lost")), (100, 0), "{last}");
}

/// The kernel releases the queues of a killed process: the next capture and the stack can use them.
#[test]
fn virtio_net_of_a_killed_process_is_given_back() {
    let Some(guest) = Guest::find("virtio_net_of_a_killed_process_is_given_back") else { return };
    for _ in 0..2 {
        let (victim, device) = start(&guest, &["count", "--steering", "queue"], "auto");
        assert_eq!(device["zero_copy"], has_it(), "{device}");
        guest.send(200, "socket");
        kill(victim);
    }
    // Sockets are released in the background, and only then does the driver receive as before.
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut counter = guest.wirelane(&["count", "-i", guest.device(), "--hook", "native", "--json"]);
        counter.wait_ready(LIMIT).unwrap();
        guest.send(300, "socket");
        let last = counter.terminate(LIMIT).unwrap().last_json().unwrap();
        assert!(field(&last, "seen") <= 300 && field(&last, "lost") == 0, "{last}");
        if field(&last, "seen") == 300 {
            break;
        }
        assert!(Instant::now() < deadline, "packets do not come back: {last}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The reported transmissions equal the packets and bytes that have arrived at the host's side.
/// Battery: L1
#[test]
fn virtio_net_sends_exactly() {
    let Some(guest) = Guest::find("virtio_net_sends_exactly") else { return };
    for (threads, size) in [(1, 60), (2, 60), (1, 1514)] {
        let (packets, bytes) = guest.arrived();
        let numbers = [3000.to_string(), threads.to_string(), size.to_string()];
        let [count, threads, bytes_each] = &numbers;
        let words = ["send", "-i", guest.device(), "--method", "xsk", "--rate", "2k", "--json"];
        let more = ["--packets", count, "--threads", threads, "--size", bytes_each];
        let finished = guest.wirelane(&[&words[..], &more].concat()).finish(LIMIT).unwrap();
        assert!(finished.status.success(), "{}", finished.stderr);
        let last = finished.last_json().unwrap();
        assert_eq!(last["method"], if has_it() { "xsk, zero copy" } else { "xsk" }, "{last}");
        for (column, expected) in [("offered", 3000), ("sent", 3000), ("dropped", 0), ("unaccounted", 0)] {
            assert_eq!(field(&last, column), expected, "{column} of {last}");
        }
        let expected = (packets + 3000, bytes + 3000 * size);
        // In copy mode, the device counts packets that may still be in flight.
        let deadline = Instant::now() + LIMIT;
        let mut now = guest.arrived();
        while now != expected && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(100));
            now = guest.arrived();
        }
        assert_eq!(now, expected, "{last}");
    }
}

/// A sender with zero copy owns the queue, but its received packets still reach the host stack.
#[test]
fn virtio_net_receives_while_it_sends() {
    let Some(guest) = Guest::find("virtio_net_receives_while_it_sends") else { return };
    let mut counter = guest.wirelane(&["count", "-i", guest.device(), "--hook", "tc", "--json"]);
    counter.wait_ready(LIMIT).unwrap();
    let words = ["send", "-i", guest.device(), "--method", "xsk", "--rate", "500", "--json"];
    let mut sender = guest.wirelane(&words);
    // An object of an interval shows that it sends.
    let first = sender.next_json(LIMIT).unwrap().unwrap();
    assert!(field(&first, "offered") > 0, "{first}");
    guest.send(1000, "socket");
    // Sending goes on until all packets have arrived.
    let last = last_of(counter, 1000);
    assert!(sender.is_running().unwrap());
    let sent = sender.terminate(LIMIT).unwrap();
    assert!(sent.status.success(), "{}", sent.stderr);
    let of_sent = sent.last_json().unwrap();
    let (offered, unaccounted) = (field(&of_sent, "offered"), field(&of_sent, "unaccounted"));
    assert_eq!((field(&of_sent, "sent"), unaccounted), (offered, 0), "{of_sent}");
    assert_eq!((field(&last, "seen"), field(&last, "lost")), (1000, 0), "{last}");
    assert!(queues_used(&last) == 4, "{last}");
}
