//! Settings that change during a capture: each packet is counted by the measurements that were active when it arrived,
//! and unnamed parts continue.

use std::path::Path;

use serde_json::Value;
use wirelane_probe::{Changes, Config, Switches};

use crate::traffic::*;

const FRAMES: u32 = 40_000;

/// Three measurements of all packets, of which the third is inactive, and an alarm on the first.
const TEXT: &str = "[[measurement]]\nname = \"all\"\nkey = [\"src\"]\nvalues = [\"packets\", \"bytes\", \"flows\"]\n\
    [[measurement]]\nname = \"one\"\nvalues = [\"packets\"]\n\
    [[measurement]]\nname = \"other\"\nvalues = [\"packets\"]\nactive = false\n\
    [[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"keys\"\nabove = 1000\nclear = 0\n";

/// A capture of four seconds with equal contents.
fn frames(path: &Path) {
    let frame = |n: u32| (u64::from(n) * MS / 10, udp(host(n % 50), host(n % 7), (n as u16 % 500, 53), 200));
    write(path, &(0..FRAMES).map(frame).collect::<Vec<Timed>>());
}

/// The text of the active configuration; changes it and the plan.
struct Setting(String);

impl Setting {
    fn set(&mut self, switches: &Switches, words: &[&str]) {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let changed = Changes::parse(&words).unwrap().apply(&self.0, Path::new("p.toml")).unwrap();
        switches.change(&changed).unwrap();
        self.0 = changed.text;
    }
}

fn packets(of: &[&Value]) -> Vec<u64> {
    of.iter().map(|one| one["packets"].as_u64().unwrap()).collect()
}

fn configured() -> Config {
    let text = TEXT.replace(
        "values = [\"packets\", \"bytes\", \"flows\"]",
        "values = [\"packets\", \"bytes\", \"flows\", \"keys\"]",
    );
    config(&text)
}

#[test]
fn each_packet_is_of_what_was_active_and_the_rest_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    frames(&path);
    let plain = probe_files(configured(), std::slice::from_ref(&path), 1, |_, _| {});
    for workers in [1, 3] {
        // All workers at the same time, or each when it reaches the position.
        for skewed in [false, true] {
            let mut setting = Setting(TEXT.replace("\"flows\"]", "\"flows\", \"keys\"]"));
            let mut turns = 0u32;
            let said = probe_files_in_turn(
                configured(),
                std::slice::from_ref(&path),
                workers,
                |switches, packets| {
                    if packets > u64::from(turns + 1) * 1000 && turns < 38 {
                        let (on, off) =
                            if turns.is_multiple_of(2) { ("other", "one") } else { ("one", "other") };
                        let words = [
                            format!("measurement.{on}.active=true"),
                            format!("measurement.{off}.active=false"),
                        ];
                        setting.set(
                            switches,
                            &[&words[0], &words[1], &format!("alarm.many.above={}", 1000 - turns)],
                        );
                        turns += 1;
                    }
                },
                |worker, batch| !skewed || batch.is_multiple_of(2 * worker as u64 + 1),
            );
            let what = format!("{workers} workers, skewed: {skewed}, {turns} turns");
            assert!(turns > 5, "{what}");
            // The measurement that is never changed has whole intervals, and one total.
            for total in [false, true] {
                assert_eq!(said.of("all", total), plain.of("all", total), "{what}");
            }
            let sum = |name: &str, total| packets(&said.of(name, total)).iter().sum::<u64>();
            for total in [false, true] {
                let (one, other) = (sum("one", total), sum("other", total));
                assert_eq!(one + other, u64::from(FRAMES), "{what}");
                assert!(one > 2000 && other > 2000, "{what}: {one} and {other}");
            }
            assert_eq!((said.of("one", true).len(), said.of("other", true).len()), (1, 1), "{what}");
            assert_eq!((said.totals.intervals, said.totals.reloads), (4, 0), "{what}");
            assert_eq!(said.alarms(), Vec::<String>::new(), "{what}");
        }
    }
}

#[test]
fn thresholds_schedules_and_totals_change_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    frames(&path);
    let text = "[[measurement]]\nname = \"all\"\nvalues = [\"packets\"]\n\
        [[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 5000\n\
        [[schedule]]\nname = \"turn\"\nevery = \"1h\"\nactivate = [\"many\"]\nflush = true\n";
    let run = |words: &[&str], at: u64| {
        let mut setting = Setting(text.to_owned());
        let mut is_set = false;
        probe_files(config(text), std::slice::from_ref(&path), 1, |switches, packets| {
            if packets > at && !is_set {
                setting.set(switches, words);
                is_set = true;
            }
        })
    };
    // Raised once, in the first interval, and cleared at the end of the second.
    let said = run(&["alarm.many.above=20000"], 12_000);
    assert_eq!(said.alarms(), ["many raised", "many cleared"]);
    assert_eq!(said.alarms[1].value, 10_000.0, "of a whole interval");
    // A raised alarm is cleared when it is switched off.
    let said = run(&["alarm.many.active=false"], 12_000);
    assert_eq!(said.alarms(), ["many raised", "many cleared"]);
    assert_eq!(said.alarms[1].value, 0.0);
    // It stays raised during other changes.
    assert_eq!(run(&["schedule.turn.every=2h"], 12_000).alarms(), ["many raised"]);
    // Totals are shown every second: of two intervals, of one, of one.
    let said = run(&["schedule.turn.every=1s"], 12_000);
    assert_eq!(packets(&said.of("all", true)), [20_000, 10_000, 10_000]);
    // Once, of the intervals that were over by then.
    let said = run(&["flush"], 22_000);
    assert_eq!(packets(&said.of("all", true)), [20_000, 20_000]);
    assert_eq!(packets(&said.of("all", false)), [10_000; 4]);
    // Intervals of another length restart the sums.
    let said = run(&["interval=2s"], 12_000);
    let (rows, totals) = (packets(&said.of("all", false)), packets(&said.of("all", true)));
    assert_eq!((rows.iter().sum::<u64>(), totals.iter().sum::<u64>()), (40_000, 40_000));
    assert_eq!((rows.len(), totals.len(), rows[3]), (4, 2, 20_000), "{rows:?} {totals:?}");
    assert_eq!(said.totals.reloads, 1);
}

/// The state set by a schedule or an alarm stays, unless it is changed.
#[test]
fn what_was_switched_stays_switched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    frames(&path);
    let text = "[[measurement]]\nname = \"all\"\nvalues = [\"packets\"]\n\
        [[measurement]]\nname = \"one\"\nvalues = [\"packets\"]\n\
        [[measurement]]\nname = \"other\"\nvalues = [\"packets\"]\nactive = false\n\
        [[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 5000\nactions = [\"turn\"]\n\
        [[action]]\nname = \"turn\"\nactivate = [\"other\"]\ndeactivate = [\"one\"]\n";
    let run = |words: &[&str]| {
        let mut setting = Setting(text.to_owned());
        let mut is_set = false;
        let said = probe_files(config(text), std::slice::from_ref(&path), 1, |switches, packets| {
            if packets > 22_000 && !is_set {
                setting.set(switches, words);
                is_set = true;
            }
        });
        ["one", "other"].map(|name| packets(&said.of(name, false)).iter().sum::<u64>())
    };
    let [one, other] = run(&["alarm.many.clear=100"]);
    assert_eq!((one, other), (10_000, 30_000), "from the second interval on");
    let [one, other] = run(&["measurement.one.active=true"]);
    assert!(other == 30_000 && (20_000..28_000).contains(&one), "{one} {other}");
}

/// Times set by another schedule stay, too.
#[test]
fn what_was_given_other_times_keeps_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    frames(&path);
    let text = "[[measurement]]\nname = \"all\"\nvalues = [\"packets\"]\n\
        [[schedule]]\nname = \"first\"\nat = \"22:13:21\"\nretime = { flush = \"1s\" }\n\
        [[schedule]]\nname = \"flush\"\nevery = \"1h\"\nflush = true\n";
    let run = |words: &[&str]| {
        let mut setting = Setting(text.to_owned());
        let mut is_set = false;
        let said = probe_files(config(text), std::slice::from_ref(&path), 1, |switches, packets| {
            if packets > 22_000 && !is_set {
                setting.set(switches, words);
                is_set = true;
            }
        });
        packets(&said.of("all", true))
    };
    // The first interval ends when it is retimed.
    assert_eq!(run(&["schedule.first.at=06:00"]), [20_000, 10_000, 10_000]);
    assert_eq!(run(&["schedule.flush.every=2h"]), [20_000, 20_000]);
}
