//! A clock that is really set, by hours, while packets are recorded. Clocks are the machine's, so only in a guest.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wirelane::{FileOptions, FileSource};
use wirelane_tests::numbers::number_of;
use wirelane_tests::{Lab, set_guest_clock};

use super::{Bench as _, Guest, LIMIT, field};

const HOUR_NS: i64 = 3_600_000_000_000;
/// Of each part.
const PACKETS: u64 = 200;
/// The maintenance thread follows the clock five times a second; an emulated machine may oversleep.
const FOLLOWED: Duration = Duration::from_secs(2);
/// What an emulated machine's readings of its own clocks may be apart.
const APART_NS: i64 = 20_000_000;

fn utc_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64
}

/// Packets that were sent while UTC was between these two.
struct Part {
    from: i64,
    to: i64,
    /// By how much UTC had been set a moment before, where the capture may not have followed yet.
    stepped: i64,
}

impl Part {
    fn send(lab: &Lab, stepped: i64) -> Part {
        let from = utc_ns() - APART_NS;
        assert_eq!(lab.send(PACKETS, "socket"), PACKETS);
        // In the recorder's hands, wherever it converts their stamps.
        std::thread::sleep(FOLLOWED);
        Part { from, to: utc_ns() + APART_NS, stepped }
    }

    fn has(&self, utc: i64) -> bool {
        (self.from..=self.to).contains(&utc)
    }
}

/// Packets of the time before a step, from right behind it, and from when it has been followed: each has a time that
/// was or is, and none one in between. Between steps time only grows, and no duration is below zero.
/// Battery: F7
#[test]
fn a_clock_that_is_set_by_hours_is_followed() {
    if Guest::find("a_clock_that_is_set_by_hours_is_followed").is_none() {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("steps.pcapng");
    let words = ["record", "-i", lab.device(), "-w", file.to_str().unwrap(), "--hook", "native", "--json"];
    let start = Instant::now();
    let mut recorder = lab.wirelane(&words);
    recorder.wait_ready(LIMIT).unwrap();
    let mut parts = vec![Part::send(&lab, 0)];
    for by in [HOUR_NS, -2 * HOUR_NS, HOUR_NS] {
        set_guest_clock(by).unwrap();
        parts.push(Part::send(&lab, by));
        parts.push(Part::send(&lab, 0));
    }
    let finished = recorder.terminate(LIMIT).unwrap();
    let elapsed = start.elapsed().as_secs_f64();
    assert!(finished.status.success(), "{}", finished.stderr);

    let objects = finished.json().unwrap();
    let last = objects.last().unwrap();
    assert_eq!(field(last, "analysed"), PACKETS * parts.len() as u64, "{last}");
    for object in &objects {
        let duration = object["duration_s"].as_f64().unwrap();
        assert!(duration > 0.0 && duration <= elapsed, "a step in a duration: {object}");
    }

    let mut source = FileSource::open(&file, FileOptions::as_written()).unwrap();
    let mut stamps = Vec::new();
    while let Some(batch) = source.next_batch(Duration::ZERO).unwrap() {
        stamps.extend(batch.map(|record| (number_of(&record), record.header().ts_ns as i64)));
    }
    let (mut of_parts, rest) = stamps.as_chunks::<{ PACKETS as usize }>();
    assert!(rest.is_empty() && of_parts.len() == parts.len(), "{} packets", stamps.len());
    for (at, part) in parts.iter().enumerate() {
        let [stamps, others @ ..] = of_parts else { unreachable!("as many as there are parts") };
        of_parts = others;
        for (number, (found, utc)) in (0u64..).zip(stamps) {
            assert_eq!(*found, Some(number), "part {at}");
            let before_the_step = part.stepped != 0 && part.has(utc + part.stepped);
            assert!(part.has(*utc) || before_the_step, "part {at}, packet {number}: {utc}");
        }
        let back = stamps.windows(2).filter(|two| two[1].1 < two[0].1).count();
        // Only where the capture follows a step back, which is once.
        assert!(back <= usize::from(part.stepped < 0), "part {at}: time went back {back} times");
    }
}
