//! `flows`, `http`, `voip`, `probe` and `record` at once, under real and hostile traffic for a time: nothing is lost,
//! everything that has to be found is found, and no process grows.

use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::frames::replay_stream;
use wirelane_tests::mixture::{Mixture, Sent};
use wirelane_tests::numbers::{LIMIT, capture, column, last_of};
use wirelane_tests::recordings::{NOON_NS, write_header, write_packet};
use wirelane_tests::{Child, Lab, cpu_time, full, open_descriptors, require_root, resident_bytes};

/// Packets per second.
const RATE: u64 = 2_000;
/// The largest growth of a process in ten minutes, in bytes.
const GROWTH: u64 = 1 << 20;

const PROBE: &str = r#"
interval = "5s"
[[measurement]]
name = "destinations"
key = ["dst"]
values = ["packets", "bytes", "distinct-src", "top-src"]
keys = 1000
[[measurement]]
name = "flows"
values = ["flows", "segments", "retransmissions"]
[[alarm]]
name = "flood"
measurement = "destinations"
value = "packets"
above = 10
actions = ["tell"]
[[action]]
name = "tell"
log = true
"#;

/// State of a process at one time.
#[derive(Clone, Copy)]
struct Sample {
    seconds: f64,
    resident: u64,
    descriptors: usize,
}

/// Growth of resident memory in bytes, from the maximum in the first half of these samples to the maximum in the
/// second. Tables that are emptied by halves go up and down, so a slope would be less exact.
fn growth(samples: &[Sample]) -> u64 {
    let most = |samples: &[Sample]| samples.iter().map(|sample| sample.resident).max().unwrap_or(0);
    let (first, second) = samples.split_at(samples.len() / 2);
    most(second).saturating_sub(most(first))
}

/// A conversation takes some seconds here, so these timeouts do not end a running one, and tables reach their full size
/// soon.
const SHORT: [(&str, &[&str]); 3] = [
    ("flows", &["--inactive-timeout", "8", "--active-timeout", "16"]),
    ("http", &["--idle-timeout", "15"]),
    ("voip", &["--linger", "1", "--answer-timeout", "15", "--silence-timeout", "15"]),
];

/// Runs all commands for so long; `warm` is the time after which their tables have reached their size; in a long run
/// twice ten minutes are left after it.
fn soak(total: Duration, warm: Duration, every: Duration, short: bool) {
    let lab = Lab::new(2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("probe.toml");
    // Connections that are followed for their retransmissions take minutes to reach their limit.
    let probe =
        if short { PROBE.replace(", \"segments\", \"retransmissions\"", "") } else { PROBE.to_owned() };
    fs::write(&config, probe).unwrap();
    let recording = folder.path().join("soak.pcapng");
    let (config, recording) = (config.to_str().unwrap(), recording.to_str().unwrap());
    let device = lab.receiver().device.as_str();
    let common = ["-i", device, "--json", "--interval", "10", "--direction", "rx", "--ring-size", "2"];
    let commands: [(&str, Vec<&str>); 5] = [
        ("flows", vec!["--quiet"]),
        ("http", vec!["--quiet"]),
        ("voip", vec!["--quiet"]),
        ("probe", vec![config, "--quiet"]),
        ("record", vec!["-w", recording, "--rotate-size", "1MB", "--keep-files", "3"]),
    ];
    let children: Vec<(&str, Child)> = commands
        .into_iter()
        .map(|(name, mut words)| {
            let timeouts = SHORT.iter().find(|(command, _)| short && *command == name);
            words.extend(timeouts.map_or(&[][..], |(_, timeouts)| timeouts));
            let interval = if name == "probe" { &common[..3] } else { &common[..5] };
            let words = [&[name], &words[..], interval, &common[5..]].concat();
            (name, capture(&lab, &words).unwrap())
        })
        .collect();
    let over = AtomicBool::new(false);
    let (sent, samples) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut mixture = Mixture::new();
            replay_stream(&lab, "recorded", |output| {
                write_header(output)?;
                let mut at_ns = NOON_NS;
                while let Some(frame) = mixture.next() {
                    write_packet(output, at_ns, &frame)?;
                    at_ns += 1_000_000_000 / RATE;
                    if over.load(Ordering::Relaxed) {
                        mixture.end();
                    }
                }
                Ok(())
            })
            .unwrap();
            mixture.sent()
        });
        let begun = Instant::now();
        let mut samples: Vec<Vec<Sample>> = children.iter().map(|_| Vec::new()).collect();
        while begun.elapsed() < total && !sender.is_finished() {
            std::thread::sleep(every);
            for ((_, child), samples) in children.iter().zip(&mut samples) {
                samples.push(Sample {
                    seconds: begun.elapsed().as_secs_f64(),
                    resident: resident_bytes(child.pid()).unwrap(),
                    descriptors: open_descriptors(child.pid()).unwrap(),
                });
            }
        }
        over.store(true, Ordering::Relaxed);
        (sender.join().unwrap(), samples)
    });
    println!("{sent:?}");
    for ((name, child), samples) in children.into_iter().zip(samples) {
        let busy = cpu_time(child.pid()).unwrap();
        let last = last_of(&child.terminate(LIMIT).unwrap()).unwrap();
        let after: Vec<Sample> =
            samples.iter().filter(|sample| sample.seconds >= warm.as_secs_f64()).copied().collect();
        let mut line = String::new();
        for sample in samples.iter().step_by((samples.len() / 12).max(1)) {
            write!(line, " {:.0} s {} KiB,", sample.seconds, sample.resident >> 10).unwrap();
        }
        let grown = growth(&after);
        println!(
            "{name}: resident{line} grew by {} KiB; lost {}; {:.1} s of CPU time",
            grown >> 10,
            column(&last, "lost"),
            busy.as_secs_f64()
        );
        assert_eq!((column(&last, "seen"), column(&last, "lost")), (sent.packets, 0), "{name}: {last}");
        assert_eq!(column(&last, "analysed"), sent.packets, "{name}: {last}");
        found(name, &last, &sent);
        let (first, end) = (after[0], after[after.len() - 1]);
        if name != "record" {
            assert_eq!(end.descriptors, first.descriptors, "{name}: descriptors");
        }
        assert!(grown < GROWTH, "{name} grew by {grown} bytes");
    }
}

/// Asserts that the results contain the traffic sent.
fn found(name: &str, last: &Value, sent: &Sent) {
    match name {
        "flows" => assert_eq!(column(last, "flow_packets"), sent.packets, "{last}"),
        "http" => {
            assert_eq!(column(last, "responses"), sent.transactions, "{last}");
            assert_eq!(
                (column(last, "without_request"), column(last, "without_response")),
                (0, sent.unanswered),
                "{last}"
            );
            assert_eq!(column(last, "evicted_connections"), 0, "{last}");
        }
        "voip" => {
            assert_eq!(column(last, "calls"), sent.calls + sent.unanswered_calls, "{last}");
            assert_eq!(column(last, "rtp_packets"), sent.rtp_packets, "{last}");
            assert_eq!(column(&last["call_states"], "completed"), sent.calls, "{last}");
            assert_eq!(column(last, "calls_evicted"), 0, "{last}");
        }
        "probe" => assert_eq!(column(last, "probed"), sent.packets, "{last}"),
        _ => assert_eq!(column(last, "written"), sent.packets, "{last}"),
    }
}

/// Of 50 seconds, 25 are left after the tables have reached their size; `make test-all` runs for two minutes.
/// Battery: L5
#[test]
fn all_commands_for_a_minute() {
    if require_root("all_commands_for_a_minute") {
        let (total, warm) = if full() { (120, 60) } else { (50, 25) };
        soak(Duration::from_secs(total), Duration::from_secs(warm), Duration::from_secs(1), true);
    }
}

/// With the default timeouts, of which the longest is 5 minutes; `WIRELANE_SOAK_MINUTES` for another time than 30.
/// Battery: L5
#[test]
#[ignore = "takes half an hour: make test-all"]
fn all_commands_for_half_an_hour() {
    if require_root("all_commands_for_half_an_hour") {
        let minutes: u64 = std::env::var("WIRELANE_SOAK_MINUTES").map_or(30, |text| text.parse().unwrap());
        let total = Duration::from_secs(minutes * 60);
        soak(total, total / 3, Duration::from_secs(10), false);
    }
}
