// Runs a fuzz target in tests: over its seeds, and over its seeds with one byte changed. Included by tests, each of
// which replaces libFuzzer by `extern crate self as libfuzzer_sys`.

/// Same interface as libFuzzer's: one input.
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

/// Name and function of a target, and the stride in its seeds.
pub(crate) type Target = (&'static str, fn(&[u8]), usize);

/// Runs each target over its seeds, which `scripts/fuzz-seeds` makes from these captures.
pub(crate) fn run(repository: &std::path::Path, captures: &std::path::Path, targets: &[Target]) {
    let seeds = tempfile::tempdir().expect("a folder for seeds");
    let made = std::process::Command::new(repository.join("scripts/fuzz-seeds"))
        .arg(captures)
        .arg(seeds.path())
        .status()
        .expect("the script runs");
    assert!(made.success());
    for (name, target, one_of) in targets {
        let folder = std::fs::read_dir(seeds.path().join(name)).expect("a folder of seeds");
        let mut all: Vec<_> = folder.map(|entry| entry.expect("a seed").path()).collect();
        all.sort();
        let mut inputs = 0;
        for (number, seed) in all.iter().enumerate().step_by(*one_of) {
            let mut bytes = std::fs::read(seed).expect("a seed");
            target(&bytes);
            // The same changes in each run: the names of seeds are their hashes, sorted.
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
