//! Captures with rules on a lab's receiver, with every engine that evaluates rules.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use wirelane::rules::RuleSet;
use wirelane::{Builder, Capture, Direction, Engine, Error, HookChoice, Record, RuleStats, Selector, Worker};

use crate::Lab;
use crate::numbers::LIMIT;

/// Engines and hooks that evaluate in the kernel: the ring engine's program at each hook.
pub const KERNEL: [(Engine, HookChoice); 4] = [
    (Engine::Ring, HookChoice::Native),
    (Engine::Ring, HookChoice::Generic),
    (Engine::Ring, HookChoice::Tc),
    (Engine::Ring, HookChoice::Clsact),
];

/// Engines that evaluate in the worker, except for files.
pub const WORKER: [(Engine, HookChoice); 3] = [
    (Engine::Packet, HookChoice::Auto),
    (Engine::Xsk, HookChoice::Native),
    (Engine::Xsk, HookChoice::Generic),
];

/// A capture on the lab's receiver.
///
/// # Errors
/// Errors of [`Builder::open`].
///
/// # Panics
/// If the lab cannot be entered.
pub fn open(
    lab: &Lab,
    (engine, hook): (Engine, HookChoice),
    settings: impl FnOnce(Builder) -> Builder + Send,
) -> Result<Capture, Error> {
    let end = lab.receiver();
    let builder = move || {
        let builder = Builder::new(Selector::parse_list(&end.device).unwrap())
            .direction(Direction::Rx)
            .engine(engine)
            .hook(hook);
        settings(builder.exclusive(engine == Engine::Xsk)).open()
    };
    lab.enter(&end.namespace, builder).unwrap()
}

/// Parses the text of a rule file.
///
/// # Panics
/// If there is a mistake in the text.
pub fn rules(text: &str) -> RuleSet {
    RuleSet::parse(text).unwrap()
}

/// Reads until the capture has seen so many packets and each of them is in one column of the ledger.
///
/// # Panics
/// If that takes too long, or the capture ends.
pub fn drain(capture: &Capture, worker: &mut Worker, seen: u64, mut each: impl FnMut(&Record<'_>)) {
    let deadline = Instant::now() + LIMIT;
    loop {
        for record in worker.next_batch(Duration::from_millis(20)).unwrap().expect("it goes on") {
            each(&record);
        }
        let total = capture.ledger().unwrap().total;
        let done = total.analysed + total.filtered + total.absorbed + total.lost;
        if total.seen >= seen && done >= total.seen {
            return;
        }
        assert!(Instant::now() < deadline, "{total:?} of {seen}");
    }
}

/// Packets that hit each wildcard rule.
pub fn hits(stats: &RuleStats) -> BTreeMap<u32, u64> {
    stats.rules.iter().map(|line| (line.rule.id, line.hits.packets)).collect()
}

/// Packets from source ports 1000 to 1255, in turn, each of 100 bytes.
pub const PORTS: [&str; 8] = ["--pattern", "ports", "--flows", "256", "--src-port", "1000", "--size", "100"];

/// Packets of each port that are sent: all of them fit into the smallest ring before the first read.
pub const TURNS: u64 = 2;
/// Packets of one transmission.
pub const SENT: u64 = 256 * TURNS;
