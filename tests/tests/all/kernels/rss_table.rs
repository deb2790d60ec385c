//! Entries of a real driver's RSS table move while packets flow, and are restored at any end of the capture.
//!
//! With tables that an administrator has set, captures use generic XDP: when a native program is attached to
//! virtio_net, or removed, the driver sets the number of queues anew, which ends RSS by the table in the device (VIRTIO
//! 1.2, 5.1.6.5.6), and sends the table to the device again only if it is the driver's own (`_virtnet_set_queues()`),
//! or when it is next set.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::{Child, Lab, kernel_version, require_root};

use super::{Bench as _, Guest, LIMIT, field, kill, kill_process, last_of, processes, start};

/// Name of the process that sets the table.
const BROKER: &str = "wl-broker";
/// Enough packets for a plan, although some of them precede the first look.
const SOME: u64 = 6000;
/// Before this kernel virtio_net sends its device, with each table, the number of queues that it had at probe time,
/// which equals the number of CPUs: of the four queues that the guests then request, the device serves two, and packets
/// for the others are not received (`max_tx_vq` in drivers/net/virtio_net.c).
const VIRTIO_RSS_QUEUES: (u32, u32) = (6, 12);
/// A table that gives queue 0 thirteen sixteenths of the packets.
const UNEVEN: [&str; 5] = ["weight", "13", "1", "1", "1"];

impl Guest {
    /// The queue of each entry of the table, as ethtool shows it.
    fn table(&self) -> Vec<u32> {
        let output = Command::new("ethtool").args(["-x", self.device()]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // The key follows the table; its first byte may look like an entry's number.
        let table = text.lines().take_while(|line| !line.contains("hash key"));
        let rows = table.filter_map(|line| {
            let (first, queues) = line.trim().split_once(':')?;
            first.parse::<u32>().ok()?;
            Some(queues.split_whitespace().map(|queue| queue.parse().unwrap()).collect::<Vec<u32>>())
        });
        rows.flatten().collect()
    }

    fn set_table(&self, words: &[&str]) {
        let set = Command::new("ethtool").args(["-X", self.device()]).args(words).status().unwrap();
        assert!(set.success(), "ethtool -X {words:?}");
    }

    /// Starts a capture that moves entries, on `queues` in the notation of a selector.
    fn balance(&self, queues: &str, options: &[&str]) -> Child {
        let device = format!("{}{queues}", self.device());
        let words = ["count", "-i", &device, "--steering", "queue", "--balance", "adaptive", "--json"];
        self.wirelane(&[&words, options].concat())
    }

    /// Waits until the table equals `table`.
    fn wait_for_table(&self, table: &[u32]) {
        let deadline = Instant::now() + LIMIT;
        while self.table() != table {
            assert!(Instant::now() < deadline, "the table stays {:?}", self.table());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A running capture that has moved entries, and the one process that sets the table for it. No more entries move,
    /// as no packets are sent.
    fn moved(&self, before: &[u32], sent: &mut u64) -> (Child, u32) {
        let mut capture = self.balance("", &["--hook", "generic"]);
        capture.wait_ready(LIMIT).unwrap();
        *sent += self.send(SOME, "socket");
        let deadline = Instant::now() + LIMIT;
        while self.table() == before {
            assert!(Instant::now() < deadline, "no entry moves");
            *sent += self.send(1000, "socket");
        }
        match processes(BROKER)[..] {
            [broker] => (capture, broker),
            ref others => panic!("processes {others:?}"),
        }
    }
}

/// True if packets arrive on all queues while the table changes.
fn all_queues_serve(test: &str) -> bool {
    let can = kernel_version().unwrap() >= VIRTIO_RSS_QUEUES;
    if !can {
        println!("left out: {test} (the driver serves fewer queues before Linux 6.12 when a table is set)");
    }
    can
}

/// Number of entries of each queue.
fn shares(table: &[u32]) -> [usize; 4] {
    [0, 1, 2, 3].map(|queue| table.iter().filter(|one| **one == queue).count())
}

/// The last object of a capture, after a check that it has accounted for all packets sent.
fn exact(capture: Child, sent: u64) -> Value {
    let last = last_of(capture, sent);
    for column in ["seen", "delivered", "analysed"] {
        assert_eq!(field(&last, column), sent, "{column} of {last}");
    }
    assert_eq!((field(&last, "lost"), field(&last, "in_flight")), (0, 0), "{last}");
    last
}

fn gone() {
    let deadline = Instant::now() + LIMIT;
    while !processes(BROKER).is_empty() {
        assert!(Instant::now() < deadline, "{BROKER} goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Restores the driver's own table on drop, also if a test fails.
struct Default<'a>(&'a Guest);

impl Drop for Default<'_> {
    fn drop(&mut self) {
        let set = Command::new("ethtool").args(["-X", self.0.device(), "default"]).status();
        if !set.is_ok_and(|status| status.success()) {
            println!("the RSS table of {} stays as it is", self.0.device());
        }
    }
}

/// Most packets arrive on one queue; soon each queue has its share of them. Every packet is counted once, and SIGTERM
/// restores the table.
#[test]
fn virtio_net_is_balanced_and_put_back() {
    let Some(guest) = Guest::find("virtio_net_is_balanced_and_put_back") else { return };
    if !all_queues_serve("virtio_net_is_balanced_and_put_back") {
        return;
    }
    let _default = Default(&guest);
    guest.set_table(&UNEVEN);
    let before = guest.table();
    assert!(before.len() >= 64 && shares(&before)[0] * 2 > before.len(), "{before:?}");
    let queue_share = |last: &Value, queue: usize| field(&last["virtual_devices"][queue], "seen");
    for options in [["--hook", "generic"], ["--engine", "packet"]] {
        let mut capture = guest.balance("", &[&options[..], &["--workers", "2"]].concat());
        capture.wait_ready(LIMIT).unwrap();
        let mut sent = 0;
        // Flows differ in load, and packets are few: two or three plans, each measured on 1000 packets.
        let deadline = Instant::now() + LIMIT;
        while shares(&guest.table())[0] * 3 > before.len() {
            assert!(Instant::now() < deadline, "{options:?}: the table stays {:?}", guest.table());
            sent += guest.send(4000, "socket");
        }
        // Counts of another capture, which does not move entries. Packets in flight during a move are counted on the
        // old queues, so the balance takes a few steps.
        let deadline = Instant::now() + LIMIT;
        loop {
            let words = ["count", "-i", guest.device(), "--hook", "generic", "--json"];
            let mut other = guest.wirelane(&words);
            other.wait_ready(LIMIT).unwrap();
            sent += guest.send(4000, "socket");
            let seen = exact(other, 4000);
            let shares = [0, 1, 2, 3].map(|queue| queue_share(&seen, queue));
            if shares.iter().all(|share| (500..1600).contains(share)) {
                break;
            }
            assert!(Instant::now() < deadline, "{options:?}: queues have {shares:?} of 4000");
        }
        let last = exact(capture, sent);
        assert!(field(&last["balance"], "entries") > 0, "{last}");
        assert_eq!(guest.table(), before, "{options:?}: not put back");
        gone();
    }
}

/// The same with native XDP, from the driver's own table: six flows cannot be even on four queues.
#[test]
fn virtio_net_is_balanced_under_native_xdp() {
    let Some(guest) = Guest::find("virtio_net_is_balanced_under_native_xdp") else { return };
    if !all_queues_serve("virtio_net_is_balanced_under_native_xdp") {
        return;
    }
    let _default = Default(&guest);
    guest.set_table(&["default"]);
    let before = guest.table();
    let mut capture = guest.balance("", &["--hook", "native"]);
    capture.wait_ready(LIMIT).unwrap();
    let mut sent = 0;
    let deadline = Instant::now() + LIMIT;
    while guest.table() == before {
        assert!(Instant::now() < deadline, "no entry moves");
        sent += guest.send_with(3000, "socket", "--flows 6");
    }
    let last = exact(capture, sent);
    assert!(field(&last["balance"], "entries") > 0, "{last}");
    assert_eq!(guest.table(), before);
    gone();
}

/// Entries of queues that are not captured do not move, and no entry moves to such a queue.
#[test]
fn virtio_net_moves_entries_of_its_queues_only() {
    let Some(guest) = Guest::find("virtio_net_moves_entries_of_its_queues_only") else { return };
    let _default = Default(&guest);
    guest.set_table(&["weight", "10", "2", "2", "2"]);
    let before = guest.table();
    let mut capture = guest.balance("@0-1", &["--hook", "generic"]);
    capture.wait_ready(LIMIT).unwrap();
    let deadline = Instant::now() + LIMIT;
    while guest.table() == before {
        assert!(Instant::now() < deadline, "no entry moves");
        guest.send(2000, "socket");
    }
    let now = guest.table();
    for (entry, (old, new)) in before.iter().zip(&now).enumerate() {
        assert!(old == new || (*old < 2 && *new < 2), "entry {entry} went from {old} to {new}");
    }
    assert!(shares(&now)[1] > shares(&before)[1], "{now:?}");
    let finished = capture.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let last = finished.last_json().unwrap();
    assert_eq!((field(&last, "seen"), field(&last, "lost")), (field(&last, "analysed"), 0), "{last}");
    assert_eq!(guest.table(), before);

    // With one queue there is nowhere to move entries.
    let refused = guest.balance("@2", &[]).finish(LIMIT).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("at least two of the RX queues"), "{}", refused.stderr);
    gone();
}

/// A second capture that would move entries is refused with the first one's process id, while one that does not is
/// accepted. The broker of a killed capture restores the table; if it is killed too, `tune restore` does, or the next
/// capture that moves entries.
/// Battery: F2
#[test]
fn virtio_net_is_put_back_after_a_kill() {
    let Some(guest) = Guest::find("virtio_net_is_put_back_after_a_kill") else { return };
    let _default = Default(&guest);
    guest.set_table(&UNEVEN);
    let before = guest.table();
    let mut sent = 0;
    let (capture, broker) = guest.moved(&before, &mut sent);
    let second = guest.balance("", &["--hook", "generic"]).finish(LIMIT).unwrap();
    assert_eq!(second.status.code(), Some(1), "{}", second.stderr);
    assert!(second.stderr.contains(&format!("process {} does", capture.pid())), "{}", second.stderr);
    assert_eq!(processes(BROKER), [broker]);
    kill(capture);
    guest.wait_for_table(&before);
    gone();

    let (capture, broker) = guest.moved(&before, &mut sent);
    kill_process(broker);
    kill(capture);
    assert_ne!(guest.table(), before, "nobody could put it back");
    let restored = guest.wirelane(&["tune", "restore", "-i", guest.device()]).finish(LIMIT).unwrap();
    assert!(restored.status.success(), "{}", restored.stderr);
    assert_eq!(guest.table(), before);

    let (capture, broker) = guest.moved(&before, &mut sent);
    kill_process(broker);
    // Counting goes on without the broker, and the capture reports that entries no longer move.
    let counted = guest.send(500, "socket");
    let finished = capture.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    assert!(finished.stderr.contains("tune restore"), "{}", finished.stderr);
    let last = finished.last_json().unwrap();
    assert!(field(&last, "seen") >= SOME + counted, "{last}");
    assert_eq!((field(&last, "seen"), field(&last, "lost")), (field(&last, "analysed"), 0), "{last}");
    assert_ne!(guest.table(), before, "nobody could put it back");
    let mut next = guest.balance("", &["--hook", "generic"]);
    next.wait_ready(LIMIT).unwrap();
    assert_eq!(guest.table(), before, "the next capture begins with what was there before");
    exact(next, 0);
    assert_eq!(guest.table(), before);
    gone();
}

/// A table that another program sets meanwhile is not restored.
#[test]
fn virtio_net_of_somebody_else_is_left_alone() {
    let Some(guest) = Guest::find("virtio_net_of_somebody_else_is_left_alone") else { return };
    let _default = Default(&guest);
    guest.set_table(&UNEVEN);
    let before = guest.table();
    let mut sent = 0;
    let (capture, _) = guest.moved(&before, &mut sent);
    guest.set_table(&["weight", "1", "1", "13", "1"]);
    let theirs = guest.table();
    // The next move detects it, and there are no more moves.
    sent += guest.send(SOME, "socket");
    let finished = capture.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    assert!(finished.stderr.contains("changed by somebody else"), "{}", finished.stderr);
    let last = finished.last_json().unwrap();
    assert_eq!((field(&last, "seen"), field(&last, "analysed")), (sent, sent), "{last}");
    assert_eq!(guest.table(), theirs);
    gone();
}

/// A device without a table is refused by name, on every kernel.
#[test]
fn veth_without_a_table_is_refused() {
    if !require_root("veth_without_a_table_is_refused") {
        return;
    }
    let lab = Lab::new(4).unwrap();
    let words = ["count", "-i", lab.device(), "--steering", "queue", "--balance", "adaptive", "--json"];
    let refused = start(&lab, &lab.receiver().namespace, &words).finish(LIMIT).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    for part in ["--balance adaptive with --steering queue on", lab.device(), "RSS table", "--steering flow"]
    {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
}
