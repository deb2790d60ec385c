//! The fuzz targets (`fuzz/`) over their seeds, and over seeds with a byte changed: what a fuzzer does first, on every
//! run of the tests. It also holds the targets to what they call, as `fuzz/` is no part of the workspace.

#![expect(
    unused_attributes,
    unused_imports,
    reason = "targets are programs without main(), and take the macro from a crate"
)]

use std::path::Path;
use std::process::Command;

use wirelane_tests::{corpus, repository};

/// As libFuzzer's: one input.
#[macro_export]
macro_rules! fuzz_target {
    (|$data:ident: &[u8]| $body:block) => {
        pub(crate) fn one_input($data: &[u8]) $body
    };
    (|$data:ident: &str| $body:block) => {
        pub(crate) fn one_input(bytes: &[u8]) {
            if let Ok($data) = std::str::from_utf8(bytes) $body
        }
    };
}

#[path = "../../../fuzz/targets/battery.rs"]
mod battery;
#[path = "../../../fuzz/targets/capture_file.rs"]
mod capture_file;
#[path = "../../../fuzz/targets/filter.rs"]
mod filter;
#[path = "../../../fuzz/targets/http.rs"]
mod http;
#[path = "../../../fuzz/targets/packet.rs"]
mod packet;
#[path = "../../../fuzz/targets/probe.rs"]
mod probe;
#[path = "../../../fuzz/targets/probe_set.rs"]
mod probe_set;
#[path = "../../../fuzz/targets/rules.rs"]
mod rules;
#[path = "../../../fuzz/targets/second_opinion.rs"]
mod second_opinion;
#[path = "../../../fuzz/targets/selector.rs"]
mod selector;
#[path = "../../../fuzz/targets/voip.rs"]
mod voip;

/// A target, and of how many of its seeds one is taken.
type Target = (&'static str, fn(&[u8]), usize);

const TARGETS: [Target; 11] = [
    ("battery", battery::one_input, 1),
    ("capture_file", capture_file::one_input, 1),
    ("filter", filter::one_input, 3),
    ("http", http::one_input, 1),
    ("packet", packet::one_input, 1),
    ("probe", probe::one_input, 40),
    ("probe_set", probe_set::one_input, 1),
    ("rules", rules::one_input, 6),
    ("second_opinion", second_opinion::one_input, 1),
    ("selector", selector::one_input, 1),
    ("voip", voip::one_input, 1),
];

#[test]
fn all_targets_are_here() {
    let targets = std::fs::read_dir(repository().join("fuzz/targets")).unwrap();
    let mut names: Vec<String> = targets
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert_eq!(names, TARGETS.map(|(name, ..)| name));
}

#[test]
fn seeds_and_seeds_with_a_byte_changed_do_no_harm() {
    let Some(corpus) = corpus("seeds_and_seeds_with_a_byte_changed_do_no_harm") else { return };
    let seeds = tempfile::tempdir().unwrap();
    let made = Command::new(repository().join("scripts/fuzz-seeds"))
        .arg(corpus.join("captures"))
        .arg(seeds.path())
        .status()
        .unwrap();
    assert!(made.success());
    for (name, target, one_of) in TARGETS {
        let all = files(&seeds.path().join(name));
        let mut inputs = 0;
        for (number, seed) in all.iter().enumerate().step_by(one_of) {
            let mut bytes = std::fs::read(seed).unwrap();
            target(&bytes);
            // The same bytes in each run: the seeds' names are their hashes, and in order.
            for turn in 0..2 {
                if let Some(at) = (number * 31 + turn * 17).checked_rem(bytes.len()) {
                    bytes[at] = bytes[at].wrapping_mul(37).wrapping_add(turn as u8 * 64 + 1);
                    target(&bytes);
                }
                inputs += 1;
            }
        }
        println!("{name}: {inputs} inputs of {} seeds", all.len());
        assert!(inputs >= 8, "{name}: {inputs} inputs");
    }
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
