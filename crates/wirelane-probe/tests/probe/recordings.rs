//! Recordings around an event: exactly the packets of its time, each once, whichever worker counted them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wirelane::{FileOptions, FileSource};
use wirelane_probe::{Caught, Changes, Event, Orders, Plan, Reader, Recorded, Switches, Totals, Worker};

use crate::traffic::*;

/// Recording events, and the recorded packets by order.
#[derive(Default)]
struct Found {
    events: Vec<Recorded>,
    caught: BTreeMap<u64, Vec<Caught>>,
}

impl Found {
    /// Times of an order's packets, from the start of the capture, sorted.
    fn times(&self, order: u64) -> Vec<u64> {
        let parts = &self.caught[&order];
        let mut times: Vec<u64> =
            parts.iter().flat_map(|one| &one.heads).map(|head| head.ts_ns - START_NS).collect();
        for one in parts {
            let bytes: u32 = one.heads.iter().map(|head| head.captured).sum();
            assert_eq!(bytes as usize, one.bytes.len());
        }
        times.sort_unstable();
        times
    }
}

/// Runs a probe that records over these frames. Orders are posted when events are emitted; with `lag`, after this many
/// more packets, as if the events were processed concurrently; `None`: after all workers have ended.
fn record(text: &str, frames: &[Timed], workers: usize, lag: Option<u64>) -> (Found, Totals) {
    record_and_set(text, frames, workers, lag, &[])
}

/// The same, with another threshold of the alarm set before each of these packets.
fn record_and_set(
    text: &str,
    frames: &[Timed],
    workers: usize,
    lag: Option<u64>,
    set_before: &[u64],
) -> (Found, Totals) {
    let mut text_now = text.to_owned();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    write(&path, frames);
    let switches = Arc::new(Switches::new(Plan::new(config(text), 5).unwrap()));
    let found = Arc::new(Mutex::new(Found::default()));
    let sink = Arc::clone(&found);
    let sink =
        Box::new(move |one: Caught| sink.lock().unwrap().caught.entry(one.order).or_default().push(one));
    let orders = Arc::new(Orders::new(workers, sink));
    let waiting: Arc<Mutex<Vec<(u64, Recorded)>>> = Arc::default();
    let reader = Arc::new(Mutex::new(Reader::new(workers)));
    let packets = Arc::new(Mutex::new(0u64));
    let mut all: Vec<Worker> = (0..workers)
        .map(|index| {
            let (reader, waiting, packets) =
                (Arc::clone(&reader), Arc::clone(&waiting), Arc::clone(&packets));
            let outlet = Box::new(move |closed| {
                for event in reader.lock().unwrap().take(closed) {
                    if let Event::Record(recorded) = event {
                        let due = lag.map_or(u64::MAX, |lag| *packets.lock().unwrap() + lag);
                        waiting.lock().unwrap().push((due, *recorded));
                    }
                }
                true
            });
            let mut worker = Worker::new(index, Arc::clone(&switches), false, outlet);
            worker.catch(Arc::clone(&orders));
            worker
        })
        .collect();
    let post = |now: u64| {
        let mut waiting = waiting.lock().unwrap();
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *waiting).into_iter().partition(|one| one.0 <= now);
        *waiting = later;
        for (_, recorded) in due {
            let number = orders.post(recorded.wanted);
            let mut found = found.lock().unwrap();
            assert_eq!(number, found.events.len() as u64);
            found.events.push(recorded);
        }
    };
    let mut source = FileSource::open(&path, FileOptions::as_written()).unwrap();
    while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
        for record in batch {
            if set_before.contains(&*packets.lock().unwrap()) {
                let words = [format!("alarm.many.above={}", 111 + *packets.lock().unwrap() / 100)];
                let changed = Changes::parse(&words).unwrap().apply(&text_now, Path::new("p.toml")).unwrap();
                switches.change(&changed).unwrap();
                text_now = changed.text;
                all.iter_mut().for_each(|worker| assert!(worker.pause()));
            }
            *packets.lock().unwrap() += 1;
            let worker = record.header().hash as usize % workers;
            assert!(all[worker].record(&record, record.header().ts_ns));
            post(*packets.lock().unwrap());
        }
    }
    all.iter_mut().for_each(|worker| assert!(worker.finish()));
    post(u64::MAX);
    drop(all);
    let (_, totals) = reader.lock().unwrap().finish(&[]);
    drop(orders);
    let found = std::mem::take(&mut *found.lock().unwrap());
    for number in 0..found.events.len() as u64 {
        assert_eq!(found.caught[&number].len(), workers, "one part of each worker");
    }
    (found, totals)
}

/// A packet every 10 ms of many conversations, and ten times as many in the seventh second.
fn traffic() -> Vec<Timed> {
    let mut frames = Vec::new();
    for second in 0..12u64 {
        let each = if second == 6 { 1 } else { 10 };
        for number in 0..1000 / each {
            let n = (second * 1000 + number) as u32;
            frames
                .push((second * SECOND + number * each * MS, udp(host(n % 250), host(7), (n as u16, 9), 40)));
        }
    }
    frames
}

fn text(rule: &str, record: &str) -> String {
    format!(
        "[[rule]]\nname = \"some\"\nsrc = \"10.0.0.0/26\"\n\
         [[measurement]]\nname = \"all\"\n{rule}values = [\"packets\"]\n\
         [[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 110\nactions = [\"keep\"]\n\
         [[action]]\nname = \"keep\"\nrecord = {{ folder = \"x\", {record} }}\n"
    )
}

fn between(frames: &[Timed], from: u64, to: u64) -> Vec<u64> {
    frames.iter().map(|frame| frame.0).filter(|at| (from..=to).contains(at)).collect()
}

#[test]
fn exactly_the_packets_of_its_time_are_caught_by_several_workers() {
    let frames = traffic();
    // The alarm is raised at the end of the seventh second.
    let expected = between(&frames, 4500 * MS, 8250 * MS);
    assert_eq!(expected.len(), 150 + 1000 + 126);
    let text = text("", "before = \"2500ms\", after = \"1250ms\"");
    for workers in [1, 4] {
        // Immediately; late, but before its time is over; long after its time is over; after the end of the capture.
        for lag in [Some(0), Some(60), Some(300), None] {
            let (found, totals) = record(&text, &frames, workers, lag);
            assert_eq!((found.events.len(), totals.packets), (1, frames.len() as u64));
            assert_eq!(found.times(0), expected, "{workers} workers, {lag:?}");
            let [left_out, cut] = [
                found.caught[&0].iter().map(|one| one.left_out).sum::<u64>(),
                found.caught[&0].iter().filter(|one| one.is_cut).count() as u64,
            ];
            assert_eq!((left_out, cut), (0, 0));
            let alarm = &found.events[0].alarm;
            assert_eq!((alarm.alarm.as_str(), alarm.end_ns), ("many", START_NS + 7 * SECOND));
        }
    }
}

#[test]
fn what_is_set_meanwhile_leaves_no_hole() {
    let frames = traffic();
    let text = text("rule = \"some\"\n", "before = \"2500ms\", after = \"1250ms\"");
    let (plain, _) = record(&text, &frames, 3, Some(20));
    assert!(plain.times(0).len() > 200);
    // Before the event, and while the packets after it are recorded; the alarm stays raised.
    let (set, totals) = record_and_set(&text, &frames, 3, Some(20), &[450, 520, 1650]);
    assert_eq!((set.events.len(), set.times(0)), (plain.events.len(), plain.times(0)));
    assert_eq!((totals.packets, totals.reloads), (frames.len() as u64, 0));
}

#[test]
fn only_packets_of_the_rule_are_kept_and_caught() {
    let frames = traffic();
    let of_rule = |(at, frame): &&Timed| (4 * SECOND..=9 * SECOND).contains(at) && frame[29] < 64;
    let expected: Vec<u64> = frames.iter().filter(of_rule).map(|frame| frame.0).collect();
    assert!(expected.len() > 200);
    let window = "before = \"3s\", after = \"2s\"";
    // The rule of the measurement; and a rule of the recording, for a measurement without one.
    for text in [text("rule = \"some\"\n", window), text("", &format!("{window}, rule = \"some\""))] {
        let (found, _) = record(&text, &frames, 3, Some(20));
        assert_eq!(found.times(0), expected);
    }
}

#[test]
fn what_finds_no_room_is_told() {
    let frames = traffic();
    // A buffer for fewer than a hundred packets before the event.
    let (found, _) =
        record(&text("", "before = \"5s\", after = \"1s\", buffer = \"8KiB\""), &frames, 2, Some(0));
    let times = found.times(0);
    assert!(found.caught[&0].iter().all(|one| one.is_cut));
    let first = times[0];
    assert!(first > 6500 * MS && first < 7 * SECOND, "{first}");
    // The recording has no gaps: the last packets before the event of each worker, and all packets after it.
    assert_eq!(
        times.iter().filter(|at| **at >= 7 * SECOND).count(),
        between(&frames, 7 * SECOND, 8 * SECOND).len()
    );
    // A file for 40 packets of 82 bytes with their overhead.
    let (found, _) =
        record(&text("", "before = \"1s\", after = \"1s\", most = \"5040B\""), &frames, 2, Some(0));
    let left_out: u64 = found.caught[&0].iter().map(|one| one.left_out).sum();
    let times = found.times(0);
    assert_eq!(times.len() as u64 + left_out, between(&frames, 6 * SECOND, 8 * SECOND).len() as u64);
    assert_eq!(times.len(), 40);
}

#[test]
fn orders_of_another_plan_catch_nothing_and_say_so() {
    let frames = traffic();
    let text = text("", "before = \"2s\", after = \"1s\"");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    write(&path, &frames);
    let switches = Arc::new(Switches::new(Plan::new(config(&text), 5).unwrap()));
    let caught: Arc<Mutex<Vec<Caught>>> = Arc::default();
    let sink = Arc::clone(&caught);
    let orders = Arc::new(Orders::new(1, Box::new(move |one| sink.lock().unwrap().push(one))));
    let mut worker = Worker::new(0, Arc::clone(&switches), false, Box::new(|_| true));
    worker.catch(Arc::clone(&orders));
    let wanted = |generation| wirelane_probe::Wanted {
        generation,
        from_ns: START_NS,
        to_ns: START_NS + 100 * SECOND,
        rule: None,
        most: 1 << 20,
    };
    orders.post(wanted(0));
    let mut source = FileSource::open(&path, FileOptions::as_written()).unwrap();
    let (mut packets, mut replaced) = (0, 0);
    while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
        for record in batch {
            packets += 1;
            if packets == 1000 {
                switches.replace(Plan::new(config(&text), 5).unwrap());
                assert!(worker.pause());
                orders.post(wanted(0));
                orders.post(wanted(1));
                replaced = packets;
            }
            assert!(worker.record(&record, record.header().ts_ns));
        }
    }
    assert!(worker.finish());
    let of = |order: u64| {
        let caught = caught.lock().unwrap();
        let one = caught.iter().find(|one| one.order == order).unwrap();
        (one.heads.len(), one.is_cut)
    };
    assert_eq!((of(0), of(1), of(2)), ((999, true), (0, true), (packets - replaced + 1, false)));
}
