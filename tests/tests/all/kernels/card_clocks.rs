//! The clocks of cards: `--clock card` stamps packets with them, or is refused in words.

use std::process::Command;

use super::cards::card;
use super::{Bench as _, Guest, LIMIT, field, last_of};

/// Has the card stamp all received packets, or none; what it says to that.
fn stamp(guest: &Guest, on: bool) -> String {
    let how = if on { "on" } else { "off" };
    let output = Command::new("stamp").args([guest.device(), how]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn the_cards_clock_is_taken_or_refused_in_words() {
    let Some((guest, driver)) = card("the_cards_clock_is_taken_or_refused_in_words") else { return };
    let words = ["count", "-i", guest.device(), "--clock", "card", "--json"];
    let refused = |words: &[&str], parts: &[&str]| {
        let refused = guest.wirelane(words).finish(LIMIT).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
        for part in parts.iter().chain(&[guest.device(), "--clock packet"]) {
            assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
        }
    };
    let shown = Command::new("ethtool").args(["-T", guest.device()]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let clock = shown
        .lines()
        .find(|line| line.contains("Hardware Clock") || line.contains("timestamp provider index"))
        .unwrap_or("no line")
        .trim();
    match driver.as_str() {
        // The 82576 stamps packets of PTP only (igb_ptp.c, igb_ptp_set_timestamp_mode()).
        "igb" => {
            refused(&words, &["only stamps those of PTP"]);
            println!("{driver}: {clock}: stamps of all packets: {}", stamp(&guest, true));
        }
        "e1000e" => {
            refused(&words, &["hwstamp_ctl"]);
            let said = stamp(&guest, true);
            println!("{driver}: {clock}: stamps of all packets: {said}");
            assert_eq!(said, "on");
            let mut capture = guest.wirelane(&words);
            capture.wait_ready(LIMIT).unwrap();
            guest.send(500, "socket");
            let last = last_of(capture, 500);
            assert_eq!((field(&last, "seen"), field(&last, "lost")), (500, 0), "{last}");
            assert_eq!(stamp(&guest, false), "off");
            refused(&words, &["hwstamp_ctl"]);
        }
        _ => {
            refused(&words, &["a clock of its own"]);
            println!("{driver}: {clock}");
        }
    }
    // Drivers tell native programs the card's time since Linux 6.8, and none of these does.
    refused(&["count", "-i", guest.device(), "--clock", "card", "--hook", "generic"], &["generic XDP"]);
}
