//! Helpers for tests of several crates: random numbers, and packets of the corpus.

pub mod packets;

use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use flate2::read::GzDecoder;

/// Reproducible pseudo-random numbers (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "dice have no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True with a probability of one in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// A random element.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// A random text.
    pub fn one(&mut self, from: &[&'static str]) -> &'static str {
        from[self.below(from.len())]
    }

    /// Any number, often a small one or a limit of the range.
    pub fn word(&mut self) -> u32 {
        match self.below(8) {
            0..=3 => self.below(64) as u32,
            4 => self.below(70_000) as u32,
            5 => u32::MAX - self.below(64) as u32,
            6 => 1 << self.below(32),
            _ => self.next() as u32,
        }
    }
}

/// Contents of a file, decompressed if its name ends in .gz.
pub fn load(path: &Path) -> Vec<u8> {
    let raw = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    if path.extension().is_some_and(|extension| extension == "gz") {
        let mut bytes = Vec::new();
        GzDecoder::new(&raw[..]).read_to_end(&mut bytes).expect("the corpus is well compressed");
        return bytes;
    }
    raw
}

/// Captures of the corpus: their columns by name.
pub fn manifest(corpus: &Path) -> Vec<HashMap<String, String>> {
    let text = fs::read_to_string(corpus.join("MANIFEST.tsv")).expect("the manifest is readable");
    let mut lines = text.lines().map(|line| line.split('\t').map(str::to_owned));
    let columns: Vec<String> = lines.next().expect("there is a heading").collect();
    lines.map(|line| columns.iter().cloned().zip(line).collect()).collect()
}
