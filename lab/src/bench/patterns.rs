//! Search of payloads for 10 to 10,000 patterns: the capture program of a running capture, driven by BPF_PROG_TEST_RUN
//! with packets of files, and the crate `aho-corasick` in user space over the same payloads.
//!
//! The time of a search is the difference between the times of a packet with and without patterns in the rules.
//! Patterns are words of the payloads: every tenth unchanged, the others with another end, so that automata are deep
//! for these packets. The number of packets with matches must be the same for all searchers, otherwise there is no
//! result.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use anyhow::{Context, Result, ensure};
use wirelane::Capture;
use wirelane::rules::RuleSet;
use wirelane_tests::{Lab, ruled};

use super::driven::Driven;
use super::table::{Table, spread};
use crate::summary::Spread;

/// Numbers of patterns.
const PATTERNS: [usize; 4] = [10, 100, 1000, 10_000];
/// Number of packets, and number of runs of each in one call.
const PACKETS: usize = 1500;
const REPEAT: u32 = 40;
/// Frame sizes that BPF_PROG_TEST_RUN accepts, without padded ones.
const FRAMES: std::ops::RangeInclusive<usize> = 61..=3400;
/// Number of measurements of each searcher, interleaved.
const ROUNDS: usize = 5;

/// The searchers: the capture program; the crate with its default choice of automaton, and with its largest and fastest.
const SEARCHERS: [&str; 3] =
    ["Wirelane, in the kernel", "aho-corasick, in user space", "aho-corasick, as a DFA"];

/// A frame with payload.
struct Frame {
    bytes: Vec<u8>,
    payload: usize,
}

impl Frame {
    fn payload(&self) -> &[u8] {
        &self.bytes[self.payload..]
    }
}

/// Measures with packets of the captures in a folder.
pub(super) fn measure(folder: &Path) -> Result<Vec<Table>> {
    let frames = frames(folder)?;
    let bytes: u64 = frames.iter().map(|frame| frame.payload().len() as u64).sum();
    let mut table = Table::new(
        "Payloads searched for patterns",
        format!(
            "{} packets of captures with {bytes} bytes of payload, Gbit/s of it that one core searches. `with all else`: parsing, rules \
             and counting too.",
            frames.len()
        ),
        &["who", "patterns", "Gbit/s a core", "spread", "with all else", "of the crate", "packets found in"],
    );
    measure_here(&frames, bytes, &mut table)?;
    Ok(vec![table])
}

/// Frames with payload, spread over the captures.
fn frames(folder: &Path) -> Result<Vec<Frame>> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .with_context(|| format!("--captures {}", folder.display()))?;
    files.sort();
    let mut frames = Vec::new();
    for file in files.iter().filter(|file| file.is_file()) {
        // Corpora also have damaged files: their readable part is used.
        let Ok(mut capture) = Capture::open_file(file) else { continue };
        for mut worker in capture.workers() {
            while let Ok(Some(batch)) = worker.next_batch(Duration::ZERO) {
                frames.extend(batch.into_iter().filter_map(|record| {
                    let is_whole = record.data().len() == record.wire_len() as usize;
                    let is_ethernet = record.link_type() == wirelane::LinkType::Ethernet;
                    let payload = record.data().len() - record.payload()?.len();
                    let fits = FRAMES.contains(&record.data().len()) && payload < record.data().len();
                    (is_whole && is_ethernet && fits)
                        .then(|| Frame { bytes: record.data().to_vec(), payload })
                }));
            }
        }
    }
    ensure!(
        frames.len() >= 100,
        "--captures {}: {} packets with a payload, where 100 are needed",
        folder.display(),
        frames.len()
    );
    let step = frames.len().div_ceil(PACKETS);
    Ok(frames.into_iter().step_by(step).collect())
}

/// This many distinct patterns, as described above.
fn patterns(count: usize, frames: &[Frame]) -> Vec<Vec<u8>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut dice = |below: usize| {
        // Steele, Lea and Flood, OOPSLA 2014: SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) % below as u64) as usize
    };
    let long: Vec<&[u8]> = frames.iter().map(Frame::payload).filter(|payload| payload.len() >= 32).collect();
    let mut patterns = BTreeSet::new();
    let mut number = 0;
    while patterns.len() < count {
        let payload = long[dice(long.len())];
        let length = 8 + dice(9);
        let from = dice(payload.len() - length);
        let mut pattern = payload[from..from + length].to_vec();
        // Words, as people search for: a run of one byte would match at every byte of another run.
        let distinct: BTreeSet<&u8> = pattern.iter().collect();
        if distinct.len() < 5 || !pattern.iter().all(u8::is_ascii_graphic) {
            continue;
        }
        if number % 10 != 0 {
            for byte in &mut pattern[length / 2..] {
                *byte = b'a' + dice(26) as u8;
            }
        }
        number += 1;
        patterns.insert(pattern);
    }
    patterns.into_iter().collect()
}

fn rule_file(patterns: &[Vec<u8>]) -> String {
    let mut text = "[[patterns]]\nname = \"words\"\nid = 1\nhex = [\n".to_owned();
    for pattern in patterns {
        text.push('"');
        pattern.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
        text += "\",\n";
    }
    // Counted, so that no packet is copied.
    text + "]\n\n[[rule]]\nid = 1\npayload = \"words\"\naction = \"count\"\n\n" + PLAIN
}

const PLAIN: &str = "[[rule]]\nid = 2\naction = \"count\"\n";

fn rules(text: &str) -> Result<RuleSet> {
    RuleSet::parse(text).context("a set of our own")
}

/// Time for all frames, each once, in nanoseconds.
fn time(driven: &Driven, frames: &[Frame]) -> Result<f64> {
    frames.iter().map(|frame| driven.time(&frame.bytes, REPEAT)).sum()
}

/// Number of packets that matched the first rule, and of those that were not searched completely.
fn found(driven: &Driven) -> Result<(u64, u64)> {
    let stats = driven.capture.rule_stats()?.context("the capture has rules")?;
    Ok((ruled::hits(&stats).get(&1).copied().unwrap_or(0), stats.searches.half))
}

/// Time in nanoseconds, and number of frames with a match.
fn crate_time(searcher: &AhoCorasick, frames: &[Frame]) -> (f64, usize) {
    let mut found = 0;
    let start = Instant::now();
    for _ in 0..REPEAT {
        found = 0;
        for frame in frames {
            // All matches, as records need their ids.
            found += usize::from(black_box(searcher.find_overlapping_iter(frame.payload()).count()) > 0);
        }
    }
    (start.elapsed().as_nanos() as f64 / f64::from(REPEAT), found)
}

fn measure_here(frames: &[Frame], bytes: u64, table: &mut Table) -> Result<()> {
    let lab = Lab::new(1)?;
    let plain = rules(PLAIN)?;
    let running = Driven::open(&lab, |builder| builder.rules(plain.clone()))?;
    let gbit_s = |ns: &[f64]| {
        let rates = ns.iter().map(|ns| bytes as f64 * 8.0 / ns).collect();
        Spread::of(rates).context("one round at least")
    };
    for count in PATTERNS {
        let patterns = patterns(count, frames);
        let with = rules(&rule_file(&patterns))?;
        let automaton = |kind| {
            let builder = AhoCorasick::builder().match_kind(MatchKind::Standard).kind(kind).build(&patterns);
            builder.context("making the crate's automaton")
        };
        let crates = [automaton(None)?, automaton(Some(AhoCorasickKind::DFA))?];
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        let mut whole = Vec::new();
        let mut expected = 0;
        for _ in 0..ROUNDS {
            running.capture.set_rules(&plain)?;
            let without = time(&running, frames)?;
            running.capture.set_rules(&with)?;
            let ours = time(&running, frames)?;
            let (found, half) = found(&running)?;
            let runs = u64::from(REPEAT);
            ensure!(half == 0, "{half} packets were not searched whole");
            for (searcher, times) in crates.iter().zip(&mut times[1..]) {
                let (ns, packets) = crate_time(searcher, frames);
                times.push(ns);
                expected = packets;
                ensure!(
                    found == packets as u64 * runs,
                    "{count} patterns: found in {found} packets of {runs} turns by the kernel, and in {packets} by \
                     the crate"
                );
            }
            times[0].push(ours - without);
            whole.push(ours);
        }
        let of_crate = gbit_s(&times[1])?.median;
        for (at, ns) in times.iter().enumerate() {
            let rate = gbit_s(ns)?;
            let [median, ends] = spread(rate, 2);
            // All other work of the program on a packet included; equal for the crate.
            let with_all = gbit_s(if at == 0 { &whole } else { ns })?.median;
            let ratio = rate.median / of_crate;
            let (with_all, ratio) = (format!("{with_all:.2}"), format!("{ratio:.2}"));
            table.row(&[&SEARCHERS[at], &count, &median, &ends, &with_all, &ratio, &expected]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_and_some_are_there() {
        let frame = |number: u8| {
            let bytes =
                (0..200_u16).map(|at| b'!' + ((at as u8).wrapping_mul(number) ^ number) % 90).collect();
            Frame { bytes, payload: 42 }
        };
        let frames: Vec<Frame> = (1..50).map(frame).collect();
        let patterns = patterns(1000, &frames);
        let distinct: BTreeSet<&Vec<u8>> = patterns.iter().collect();
        assert_eq!((patterns.len(), distinct.len()), (1000, 1000));
        let there = |pattern: &&Vec<u8>| {
            frames
                .iter()
                .any(|frame| frame.payload().windows(pattern.len()).any(|part| part == pattern.as_slice()))
        };
        assert!((100..200).contains(&patterns.iter().filter(there).count()));
        let set = RuleSet::parse(&rule_file(&patterns)).unwrap();
        assert_eq!((set.patterns[0].patterns.len(), set.rules.len()), (1000, 2));
    }
}
