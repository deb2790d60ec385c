//! A clock that is slewed, by as much as the kernel can, while packets are recorded. Clocks belong to the whole
//! machine, so this runs only in a guest.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wirelane::{FileOptions, FileSource};
use wirelane_tests::numbers::number_of;
use wirelane_tests::{Lab, raw_ns, slew_guest_clock};

use super::{Bench as _, Guest, LIMIT, field};

/// Packets of each part.
const PACKETS: u64 = 300;
/// Time for the kernel, which adjusts the slew every second, and for the maintenance thread's next look.
const SLEWED: Duration = Duration::from_secs(2);
/// Tolerance between an emulated machine's readings of its own clocks.
const APART_NS: i64 = 20_000_000;
/// Limit of the kernel, in thousandths.
const MOST: i64 = 100;

fn utc_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64
}

/// Restores the speed of the clocks on drop, also if a test fails.
struct Slewed;

impl Drop for Slewed {
    fn drop(&mut self) {
        slew_guest_clock(0).unwrap();
    }
}

/// Faster, slower, and normal: each packet has the UTC time of its transmission, within the tolerance, and the packets
/// of the queue have ascending times.
/// Battery: F7
#[test]
fn a_clock_that_is_slewed_is_followed_in_order() {
    if Guest::find("a_clock_that_is_slewed_is_followed_in_order").is_none() {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slew.pcapng");
    let words = ["record", "-i", lab.device(), "-w", file.to_str().unwrap(), "--hook", "native", "--json"];
    let mut recorder = lab.wirelane(&words);
    recorder.wait_ready(LIMIT).unwrap();
    let slewed = Slewed;
    let mut parts = Vec::new();
    for per_mille in [0, MOST, -MOST, MOST, 0] {
        slew_guest_clock(per_mille).unwrap();
        // The kernel applies the slew from the next second on.
        std::thread::sleep(SLEWED);
        let (from, raw) = (utc_ns(), raw_ns());
        assert_eq!(lab.send(PACKETS, "socket"), PACKETS);
        // The packets are in the recorder's ring, and its clock is still slewed.
        std::thread::sleep(SLEWED);
        let to = utc_ns();
        parts.push((from, to));
        // Checks the slew: UTC gained so many thousandths on the raw oscillator.
        let (utc, raw) = (to - from, raw_ns() - raw);
        let gained = utc - raw;
        assert!((gained - raw * per_mille / 1000).abs() < raw * 20 / 1000, "{per_mille}: {utc} in {raw}");
    }
    drop(slewed);
    let finished = recorder.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let last = finished.last_json().unwrap();
    let all = PACKETS * parts.len() as u64;
    assert_eq!((field(&last, "analysed"), field(&last, "lost")), (all, 0), "{last}");

    let mut source = FileSource::open(&file, FileOptions::as_written()).unwrap();
    let mut stamps = Vec::new();
    while let Some(batch) = source.next_batch(Duration::ZERO).unwrap() {
        stamps.extend(batch.map(|record| (number_of(&record), record.header().ts_ns as i64)));
    }
    assert_eq!(stamps.len() as u64, all);
    for (at, two) in stamps.windows(2).enumerate() {
        assert!(two[0].1 <= two[1].1, "packet {at} is {} ns after its successor", two[0].1 - two[1].1);
    }
    let chunks = stamps.chunks(PACKETS as usize);
    for (part, ((from, to), stamps)) in parts.iter().zip(chunks).enumerate() {
        for (number, (found, utc)) in (0u64..).zip(stamps) {
            assert_eq!(*found, Some(number), "part {part}");
            let then = from - APART_NS..=to + APART_NS;
            assert!(then.contains(utc), "part {part}, packet {number}: {utc} is not in {then:?}");
        }
    }
}
