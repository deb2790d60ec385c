//! Packets that the card itself loses, because the driver has no buffers for them: they are in the ledger as `nic_missed`,
//! as the driver counts them, and with them every packet that was sent.

use std::process::Command;
use std::time::{Duration, Instant};

use super::cards::{card, counter, until_up};
use super::{Bench as _, Guest, LIMIT, PACKETS, field};

/// Behaviour of a QEMU card when the driver has no buffer for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// It drops the packet and counts it.
    Counted,
    /// It takes no packet from the tap device before there is a buffer (`e1000e_can_receive()`).
    Waits,
    /// It waits where all queues are full, and drops packets of a queue that is full beside others
    /// (`igb_receive_internal()` in hw/net/igb_core.c), which none of its registers counts.
    Uncounted,
}

impl Without {
    fn buffers(driver: &str) -> Without {
        match driver {
            // hw/net/vmxnet3.c: VMXNET3_PKT_STATUS_OUT_OF_BUF; hw/net/rtl8139.c: RxMissed.
            "vmxnet3" | "8139cp" => Without::Counted,
            "e1000e" => Without::Waits,
            "igb" => Without::Uncounted,
            other => panic!("nothing is known of the driver {other}"),
        }
    }
}

/// The driver's own count of packets that the card had no buffers for.
fn missed(guest: &Guest, driver: &str) -> u64 {
    if driver == "vmxnet3" {
        let output = Command::new("ethtool").args(["-S", guest.device()]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let values: Vec<u64> = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("pkts rx OOB:")?.trim().parse().ok())
            .collect();
        assert!(!values.is_empty(), "{text}");
        return values.iter().sum();
    }
    ["missed", "fifo", "over"]
        .iter()
        .map(|name| counter(guest, &format!("statistics/rx_{name}_errors")))
        .sum()
}

/// Descriptors of the RX ring, now.
fn ring(guest: &Guest) -> Option<String> {
    let output = Command::new("ethtool").args(["-g", guest.device()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, now) = text.split_once("Current hardware settings:")?;
    Some(now.lines().find_map(|line| line.strip_prefix("RX:"))?.trim().to_owned())
}

fn set_ring(guest: &Guest, descriptors: &str) {
    let set = Command::new("ethtool").args(["-G", guest.device(), "rx", descriptors]).status().unwrap();
    assert!(set.success(), "{descriptors} descriptors");
    until_up(guest);
}

#[test]
fn what_the_card_loses_is_missed() {
    let Some((guest, driver)) = card("what_the_card_loses_is_missed") else { return };
    let expected = Without::buffers(&driver);
    // The 8139's ring has 64 descriptors for good.
    let before = ring(&guest).filter(|_| driver != "8139cp");
    if before.is_some() {
        set_ring(&guest, "64");
    }
    let (taken, dropped) = guest.taken();
    let counted = missed(&guest, &driver);
    let mut capture = guest.wirelane(&["count", "-i", guest.device(), "--json"]);
    capture.wait_ready(LIMIT).unwrap();
    guest.burst(PACKETS);
    // Until the card has taken or refused all, and the driver has had the time to hand them on.
    let begun = Instant::now();
    let dropped = loop {
        let now = guest.taken();
        if now.0 - taken + now.1 - dropped >= PACKETS {
            break now.1 - dropped;
        }
        assert!(begun.elapsed() < LIMIT, "{now:?} after {taken} and {dropped}");
        std::thread::sleep(Duration::from_millis(200));
    };
    std::thread::sleep(Duration::from_secs(3));
    let finished = capture.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let last = finished.last_json().unwrap();
    let counted = missed(&guest, &driver) - counted;
    if let Some(before) = before {
        set_ring(&guest, &before);
    }
    let (seen, missed) = (field(&last, "seen"), field(&last, "nic_missed"));
    let on_the_way = PACKETS - dropped;
    println!(
        "{driver}: {PACKETS} sent, {dropped} dropped by the tap device, {seen} received, {missed} missed, the driver counts {counted}"
    );
    assert_eq!(missed, counted, "{last}");
    assert_eq!((field(&last, "lost"), seen), (0, field(&last, "analysed")), "{last}");
    match expected {
        Without::Counted => assert!(missed > 0 && seen + missed == on_the_way, "{last}"),
        Without::Waits => assert_eq!((missed, seen), (0, on_the_way), "{last}"),
        Without::Uncounted => assert!(missed == 0 && seen <= on_the_way, "{last}"),
    }
}
