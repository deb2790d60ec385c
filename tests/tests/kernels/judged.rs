//! A `count` by rules, which are asked about and changed while it runs.

use serde_json::Value;
use wirelane_tests::Child;

use super::{Bench, LIMIT, field};

/// See the head of this file.
pub(super) struct Judged<'a> {
    bench: &'a (dyn Bench + Sync),
    child: Child,
    seen: u64,
}

impl<'a> Judged<'a> {
    /// Starts it by the rules of a file.
    pub(super) fn start(bench: &'a (dyn Bench + Sync), hook: &str, rules: &str) -> Judged<'a> {
        let words = ["count", "-i", bench.device(), "--hook", hook, "--json", "--interval", "0.2"];
        let mut child = bench.wirelane(&[&words[..], &["--rules", rules]].concat());
        child.wait_ready(LIMIT).unwrap();
        Judged { bench, child, seen: 0 }
    }

    /// Waits until so many packets have found their place since the start.
    pub(super) fn all_of(&mut self, packets: u64) {
        while self.seen < packets {
            let interval = self.child.next_json(LIMIT).unwrap().expect("it goes on");
            self.seen +=
                ["analysed", "filtered", "absorbed"].map(|name| field(&interval, name)).iter().sum::<u64>();
        }
    }

    /// What `wirelane rules` with these words answers of it.
    pub(super) fn ask(&self, words: &[&str]) -> Value {
        let finished = self.try_to(&[words, &["--json"]].concat());
        assert!(finished.status.success(), "{words:?}: {}", finished.stderr);
        finished.last_json().unwrap()
    }

    /// `wirelane rules` with these words, whatever comes of it.
    pub(super) fn try_to(&self, words: &[&str]) -> wirelane_tests::Finished {
        let pid = self.child.pid().to_string();
        self.bench.wirelane(&[&["rules"], words, &["--pid", &pid]].concat()).finish(LIMIT).unwrap()
    }

    /// Ends it; its last object.
    pub(super) fn end(self) -> Value {
        let finished = self.child.terminate(LIMIT).unwrap();
        assert!(finished.status.success(), "{}", finished.stderr);
        finished.last_json().unwrap()
    }
}
