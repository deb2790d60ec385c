//! Rates on this machine: the highest without loss for four mixes of sizes, beside tcpdump and dumpcap with the same
//! generator, and twice that rate. Needs an otherwise idle machine and an optimised program.

use std::time::Duration;

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, spread_by_hash, wirelane};
use wirelane_tests::{Child, Lab, LabOptions, require_root};

/// Mixes: the value of `wirelane send --size`, and a name.
const MIXES: [(&str, &str); 4] =
    [("60", "64 bytes"), ("imix", "IMIX"), ("1510", "1514 bytes"), ("9000", "9000 bytes")];
/// A rate that the generator does not reach: it sends as fast as it can.
const FULL_SPEED: f64 = f64::INFINITY;
/// Packets per second at full speed that a trial is planned for.
const PLANNED: f64 = 1e6;
/// Largest final distance between a passed and a failed rate, as a fraction.
const WIDTH: f64 = 0.02;
/// Attempts for a rate: a stall of the machine does not decide a search.
const TRIES: usize = 3;

/// True if `WIRELANE_BIN` names an optimised program; rates of another one are meaningless.
fn optimised(test: &str) -> bool {
    let there = std::env::var_os("WIRELANE_BIN").is_some();
    if !there {
        println!(
            "left out: {test} (no optimised program: make build, WIRELANE_BIN=$PWD/target/release/wirelane)"
        );
    }
    there
}

/// The capturing program under test.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Receiver {
    Wirelane(&'static [&'static str]),
    Tcpdump,
    Dumpcap,
}

/// Packets sent, and lost of these.
#[derive(Clone, Copy, Debug)]
struct Trial {
    sent: u64,
    lost: u64,
    /// Rate that the generator reached, in packets per second.
    rate: f64,
}

fn send(lab: &Lab, size: &str, rate: f64, seconds: f64) -> Value {
    let packets = ((rate.min(PLANNED) * seconds) as u64).max(100).to_string();
    let end = lab.sender();
    let words = ["send", "-i", &end.device, "--packets", &packets, "--size", size, "--json"];
    let more = ["--flows", "1024", "--pattern", "sources", "--no-retry"];
    let limit = ["--rate".to_owned(), format!("{rate:.0}")];
    let limit: Vec<&str> = limit.iter().map(String::as_str).filter(|_| rate.is_finite()).collect();
    let words = [&words[..], &more, &limit].concat();
    last_of(&wirelane(lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap()).unwrap()
}

/// Ends a foreign program by SIGINT; returns the number of packets that it reports. tcpdump prints the number before
/// the words, dumpcap after them, with its progress before both.
fn foreign(child: Child, words: &str) -> u64 {
    child.signal(wirelane_tests::Signal::Interrupt).unwrap();
    let said = child.finish(LIMIT).unwrap().stderr;
    let (before, behind) = said.split_once(words).unwrap_or_else(|| panic!("no '{words}' in {said}"));
    let number = if words.ends_with(": ") {
        behind.split(|c: char| !c.is_ascii_digit()).next()
    } else {
        before.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()
    };
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no number at '{words}' in {said}"))
}

fn trial(lab: &Lab, receiver: Receiver, size: &str, rate: f64, seconds: f64) -> Trial {
    let end = lab.receiver();
    let device = end.device.as_str();
    let (sent, rate, analysed) = match receiver {
        Receiver::Wirelane(options) => {
            let words = ["count", "-i", device, "--json", "--direction", "rx", "--interval", "60"];
            let child = capture(lab, &[&words[..], options].concat()).unwrap();
            let sent = send(lab, size, rate, seconds);
            let last = last_of(&child.terminate(LIMIT).unwrap()).unwrap();
            let (seen, lost, analysed) =
                (column(&last, "seen"), column(&last, "lost"), column(&last, "analysed"));
            // To the packet: what the veth pair has passed on is analysed or counted as lost. Packets that it dropped
            // before our hook are in the columns of the sender; as for tcpdump, the trial counts them as lost.
            assert_eq!(seen, lost + analysed, "{last}");
            assert_eq!((seen, column(&sent, "unaccounted")), (column(&sent, "sent"), 0), "{last}, {sent}");
            assert_eq!(column(&sent, "offered"), seen + column(&sent, "dropped"), "{last}, {sent}");
            (column(&sent, "offered"), sent["pps"].as_f64().unwrap(), analysed)
        }
        Receiver::Tcpdump | Receiver::Dumpcap => {
            let words: &[&str] = match receiver {
                Receiver::Tcpdump => {
                    &["tcpdump", "-i", device, "-n", "-w", "/dev/null", "-B", "65536", "-Q", "in"]
                }
                _ => &["dumpcap", "-i", device, "-w", "/dev/null", "-B", "64", "-p"],
            };
            let child = lab.spawn(&end.namespace, words).unwrap();
            std::thread::sleep(Duration::from_millis(2000));
            let sent = send(lab, size, rate, seconds);
            std::thread::sleep(Duration::from_millis(500));
            let word = if receiver == Receiver::Tcpdump { "packets captured" } else { "Packets captured: " };
            (column(&sent, "offered"), sent["pps"].as_f64().unwrap(), foreign(child, word))
        }
    };
    Trial { sent, lost: sent.saturating_sub(analysed), rate }
}

/// True if nothing is lost at this rate.
fn passes(lab: &Lab, receiver: Receiver, size: &str, rate: f64, seconds: f64) -> bool {
    (0..TRIES).any(|_| {
        let trial = trial(lab, receiver, size, rate, seconds);
        let passed = trial.lost == 0 && (trial.rate > 0.95 * rate || rate == FULL_SPEED);
        if !passed {
            println!("{receiver:?}, {size}, {rate:.0}: {trial:?}");
        }
        passed
    })
}

/// The highest rate without loss, in packets per second: bisection between a passed and a failed rate.
fn search(lab: &Lab, receiver: Receiver, size: &str, seconds: f64) -> f64 {
    let passes = |rate: f64| passes(lab, receiver, size, rate, seconds);
    let (mut low, mut high) = (5_000.0, 10_000.0);
    assert!(passes(low), "{receiver:?}, {size}: loss at {low} packets a second");
    while passes(high) {
        (low, high) = (high, 2.0 * high);
    }
    while high - low > WIDTH * low {
        let middle = (low + high) / 2.0;
        if passes(middle) { low = middle } else { high = middle }
    }
    low
}

/// A lab of this many queues whose processes use the optimised program.
fn lab(queues: u32, mtu: u32) -> Lab {
    let lab = Lab::with(&LabOptions { queues, mtu, alone: true, ..LabOptions::default() }).unwrap();
    if queues > 1 {
        spread_by_hash(&lab, queues).unwrap();
    }
    lab
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// For each mix of sizes, on 1 and 2 RX queues.
/// Battery: L2
#[test]
#[ignore = "measures rates: make test-all"]
fn the_highest_rate_without_loss_is_found() {
    const NAME: &str = "the_highest_rate_without_loss_is_found";
    if !require_root(NAME) || !optimised(NAME) {
        return;
    }
    for queues in [1, 2] {
        let lab = lab(queues, 9100);
        for (size, mix) in MIXES {
            let rates: Vec<f64> = (0..3).map(|_| search(&lab, Receiver::Wirelane(&[]), size, 1.0)).collect();
            println!("{mix}, {queues} RX queues: {rates:.0?} packets a second without loss");
            let (least, most) = (
                rates.iter().fold(f64::MAX, |a, b| a.min(*b)),
                rates.iter().fold(0.0, |a: f64, b| a.max(*b)),
            );
            assert!(least > 10_000.0, "{mix}: {rates:?}");
            assert!(most < 2.0 * least, "{mix}: the search finds another rate each time: {rates:?}");
            // The rate, reduced by a tenth, holds for a longer time.
            let held =
                (0..TRIES).any(|_| trial(&lab, Receiver::Wirelane(&[]), size, 0.9 * least, 10.0).lost == 0);
            assert!(held, "{mix}: loss within 10 s at {:.0}", 0.9 * least);
        }
    }
}

/// The same generator at the same rates, in turns: the highest rates of the default engine and of packet sockets are at
/// least that of the better of the others.
/// Battery: L3
#[test]
#[ignore = "measures rates: make test-all"]
fn others_take_no_more() {
    const NAME: &str = "others_take_no_more";
    if !require_root(NAME) || !optimised(NAME) {
        return;
    }
    let lab = lab(1, 9100);
    for (size, mix) in MIXES {
        let receivers = [
            // The same memory for all: a buffer bridges stalls of the machine.
            ("wirelane", Receiver::Wirelane(&["--ring-size", "64"])),
            ("wirelane, packet sockets", Receiver::Wirelane(&["--engine", "packet", "--ring-size", "64"])),
            ("tcpdump", Receiver::Tcpdump),
            ("dumpcap", Receiver::Dumpcap),
        ];
        // The generator's own rate varies too much to be compared: no loss at its full speed is the best result. Where
        // both engines have that, the others cannot be better, and their rates need not be searched.
        let measure = |at: &dyn Fn(Receiver) -> f64| -> Vec<f64> {
            let mut rates: Vec<Vec<f64>> = vec![Vec::new(); receivers.len()];
            for _ in 0..3 {
                for ((_, receiver), rates) in receivers.iter().zip(&mut rates) {
                    rates.push(at(*receiver));
                }
            }
            rates.into_iter().map(median).collect()
        };
        let full = |receiver| if passes(&lab, receiver, size, FULL_SPEED, 0.5) { FULL_SPEED } else { 0.0 };
        let mut medians = measure(&full);
        if medians[0] != FULL_SPEED || medians[1] != FULL_SPEED {
            medians = measure(&|receiver| match full(receiver) {
                FULL_SPEED => FULL_SPEED,
                _ => search(&lab, receiver, size, 0.5),
            });
        }
        for ((name, _), rate) in receivers.iter().zip(&medians) {
            println!("{mix}: {name} {rate:.0} packets a second (inf: full speed; 0: less, not searched)");
        }
        // Within the accuracy of the search; programs that keep up with the generator's full speed are equal.
        let least = (1.0 - WIDTH) * medians[2].max(medians[3]);
        assert!(medians[0] >= least && medians[1] >= least, "{mix}: {medians:.0?}");
    }
}

/// Battery: L4
#[test]
#[ignore = "measures rates: make test-all"]
fn twice_the_highest_rate_is_survived() {
    const NAME: &str = "twice_the_highest_rate_is_survived";
    if !require_root(NAME) || !optimised(NAME) {
        return;
    }
    let lab = lab(1, 9100);
    // A worker with work per packet, so that the generator reaches twice its rate, and a ring that holds only a small
    // part of the trial.
    let ring: &[&str] = &["--ring-size", "1", "--load", "25000"];
    for (size, mix) in MIXES {
        let best = search(&lab, Receiver::Wirelane(ring), size, 2.0);
        let shares: Vec<(f64, f64)> = (0..3)
            .map(|_| {
                let over = trial(&lab, Receiver::Wirelane(ring), size, 2.0 * best, 3.0);
                let seconds = over.sent as f64 / over.rate;
                ((over.sent - over.lost) as f64 / seconds / best, over.rate / best)
            })
            .collect();
        println!(
            "{mix}: {best:.0} without loss; delivered and offered at twice that, as parts of it: {shares:.2?}"
        );
        let delivered = median(shares.iter().map(|share| share.0).collect());
        let offered = median(shares.iter().map(|share| share.1).collect());
        assert!(
            offered >= 1.8,
            "{mix}: the generator could not do twice {best:.0} packets a second: {shares:?}"
        );
        assert!(delivered >= 0.9, "{mix}: {shares:?}");
        // A second later nothing is lost at a lower rate.
        let words =
            ["count", "-i", &lab.receiver().device, "--json", "--direction", "rx", "--interval", "0.5"];
        let child = capture(&lab, &[&words[..], ring].concat()).unwrap();
        send(&lab, size, 2.0 * best, 2.0);
        std::thread::sleep(Duration::from_secs(1));
        while child.next_json(Duration::from_millis(1)).is_ok() {}
        send(&lab, size, 0.5 * best, 2.0);
        let finished = child.terminate(LIMIT).unwrap();
        let lines = finished.json().unwrap();
        let (last, intervals) = lines.split_last().unwrap();
        assert_eq!(column(last, "seen"), column(last, "lost") + column(last, "analysed"));
        let later: u64 = intervals.iter().map(|line| column(line, "lost")).sum();
        assert_eq!(later, 0, "{mix}: loss goes on once the load has fallen");
        assert!(column(last, "analysed") > 0);
    }
}
