//! A clock that is set by hours while packets are recorded. Clocks belong to the whole machine, so this runs only in a
//! guest.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wirelane::{FileOptions, FileSource};
use wirelane_tests::numbers::number_of;
use wirelane_tests::{Lab, set_guest_clock};

use super::{Bench as _, Guest, LIMIT, field};

const HOUR_NS: i64 = 3_600_000_000_000;
/// Packets of each part.
const PACKETS: u64 = 200;
/// Time to follow a step: the maintenance thread looks at the clock five times a second; an emulated machine may
/// oversleep.
const FOLLOWED: Duration = Duration::from_secs(2);
/// Tolerance between an emulated machine's readings of its own clocks.
const APART_NS: i64 = 20_000_000;

fn utc_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64
}

/// Packets that were sent while UTC was between `from` and `to`.
struct Part {
    from: i64,
    to: i64,
    /// Step of UTC just before, which the capture may not have followed yet.
    stepped: i64,
}

impl Part {
    fn send(lab: &Lab, stepped: i64) -> Part {
        let from = utc_ns() - APART_NS;
        assert_eq!(lab.send(PACKETS, "socket"), PACKETS);
        // The recorder has the packets by then, and converts their timestamps at some point of this time.
        std::thread::sleep(FOLLOWED);
        Part { from, to: utc_ns() + APART_NS, stepped }
    }

    fn has(&self, utc: i64) -> bool {
        (self.from..=self.to).contains(&utc)
    }
}

/// Packets before a step, right after it, and after the capture has followed it: each has the time of before or after
/// the step, and no time in between. Between steps time only increases, and no duration is negative.
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
        // Only when the capture follows a step back, at most once.
        assert!(back <= usize::from(part.stepped < 0), "part {at}: time went back {back} times");
    }
}
