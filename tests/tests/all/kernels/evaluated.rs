//! A `count` with rules, which are queried and changed while it runs.

use serde_json::Value;
use wirelane_tests::Child;

use super::{Bench, Guest, LIMIT, Lab, LabOptions, field, require_root, spread_by_hash};

/// Runs the test on veth pairs of two queues, by each hook; in a guest by tc alone, as its own device is used for XDP,
/// and loading each capture's programs takes the verifier of an emulated machine half a minute.
pub(super) fn on_veth(test: &str, decide: impl Fn(&Lab, &str)) {
    if !require_root(test) {
        return;
    }
    let hooks: &[&str] = if Guest::is_here() { &["tc"] } else { &["native", "generic", "tc"] };
    for hook in hooks {
        let lab = Lab::with(&LabOptions { queues: 2, ..LabOptions::default() }).unwrap();
        spread_by_hash(&lab, 2);
        decide(&lab, hook);
    }
}

/// A running `count` with rules.
pub(super) struct Evaluated<'a> {
    bench: &'a (dyn Bench + Sync),
    child: Child,
    seen: u64,
}

impl<'a> Evaluated<'a> {
    /// Starts a capture with the rules of a file.
    pub(super) fn start(bench: &'a (dyn Bench + Sync), hook: &str, rules: &str) -> Evaluated<'a> {
        Evaluated::start_with(bench, hook, rules, &[])
    }

    /// As [`Evaluated::start`], with further options.
    pub(super) fn start_with(
        bench: &'a (dyn Bench + Sync),
        hook: &str,
        rules: &str,
        options: &[&str],
    ) -> Evaluated<'a> {
        let words = [
            "count",
            "-i",
            bench.device(),
            "--hook",
            hook,
            "--direction",
            "rx",
            "--json",
            "--interval",
            "0.2",
        ];
        let mut child = bench.wirelane(&[&words[..], &["--rules", rules], options].concat());
        child.wait_ready(LIMIT).unwrap();
        Evaluated { bench, child, seen: 0 }
    }

    /// Waits until so many packets are in a column of the ledger since the start.
    pub(super) fn all_of(&mut self, packets: u64) {
        while self.seen < packets {
            let interval = self.child.next_json(LIMIT).unwrap().expect("it goes on");
            self.seen +=
                ["analysed", "filtered", "absorbed"].map(|name| field(&interval, name)).iter().sum::<u64>();
        }
    }

    /// Answer of `wirelane rules` with these arguments in JSON; it must succeed.
    pub(super) fn ask(&self, words: &[&str]) -> Value {
        let finished = self.try_to(&[words, &["--json"]].concat());
        assert!(finished.status.success(), "{words:?}: {}", finished.stderr);
        finished.last_json().unwrap()
    }

    /// Runs `wirelane rules` with these arguments; it may fail.
    pub(super) fn try_to(&self, words: &[&str]) -> wirelane_tests::Finished {
        let pid = self.child.pid().to_string();
        self.bench.wirelane(&[&["rules"], words, &["--pid", &pid]].concat()).finish(LIMIT).unwrap()
    }

    /// Loads these rule files in turn while so many packets are sent; returns the number of loads.
    pub(super) fn load_under_traffic(&self, files: &[String; 2], packets: u64, options: &str) -> usize {
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| self.bench.send_with(packets, "socket", options));
            let mut loads = 0;
            while !sending.is_finished() {
                loads += 1;
                self.ask(&["load", &files[loads % 2]]);
            }
            assert_eq!(sending.join().unwrap(), packets);
            loads
        })
    }

    /// Ends the capture; returns its last object.
    pub(super) fn end(self) -> Value {
        let finished = self.child.terminate(LIMIT).unwrap();
        assert!(finished.status.success(), "{}", finished.stderr);
        finished.last_json().unwrap()
    }
}
